"""The judge finds planted bugs in verify and in repair."""

from __future__ import annotations

import random
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pytest

from tests.verification.judge import Disagreement, judge
from tests.verification.mutants import FOUND_BY
from tests.verification.stores import copies, crash_states, damaged, queue_store, small_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.verification.judge import Subject

_MOST = 1500
_OTHERS = 4


def _subjects(rng: random.Random) -> Iterator[Subject]:
    """Of each kind one, in turns."""
    stores = [*small_stores().values(), queue_store("killed")]
    kinds = [*[damaged(store, rng, _MOST) for store in stores], copies(rng, _MOST), crash_states(rng, _MOST)]
    return chain.from_iterable(zip(*kinds, strict=True))


def _first_disagreement(subjects: Iterable[Subject]) -> Disagreement | None:
    for subject in subjects:
        try:
            judge(subject)
        except Disagreement as disagreement:
            return disagreement
    return None


@pytest.mark.parametrize(("mutant", "made"), FOUND_BY, ids=lambda one: one.__name__)
def test_the_judge_finds_the_planted_bug(mutant: Callable[[], Any], made: Callable[[], Subject], rng: random.Random) -> None:
    """In the store that was made for it, and that is in order without it; others, of the run's own seed, may show it as well."""
    subject = made()
    judge(subject)
    others = list(islice(_subjects(rng), _OTHERS))  # the stores themselves are made without it
    with mutant():
        found = _first_disagreement([subject])
        seen = _first_disagreement(others)
    assert found is not None, f"{made.__name__} does not show {mutant.__name__} any more"
    print(f"{mutant.__name__}: {found}")
    print(f"one of {_OTHERS} others: {seen}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_judge_is_silent_without_a_mutant() -> None:
    """Many stores of each kind give no disagreement in the product itself."""
    assert _first_disagreement(islice(_subjects(random.Random(7)), _MOST)) is None
