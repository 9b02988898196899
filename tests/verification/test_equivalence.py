"""
One rule: verify is clean exactly when opening succeeds and every committed message can be read; repair makes it so and loses nothing.

Over stores that were damaged in one to four places, copied while they were at work, left by a power cut or a kill, or several of these:
more than 5,000 in each run of CI.

Stores with one damage, copies and crash states are others in each run. Those with several damages at once are the same in each: see
ADR 0033. `PENSTOCK_DAMAGES_SEED` makes others of them, and `python -m tests.verification.explore` looks for new ones.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.verification.damages import ONE, SEVERAL
from tests.verification.judge import judge, judge_all
from tests.verification.stores import copies, crash_states, damaged, damaged_workloads, queue_store, small_stores, steadily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tests.verification.judge import Subject
    from tests.verification.stores import Whole

CONDITIONS = ("closed", "killed", "reopened", "powerless", "referring")
ENDINGS = ("closed", "killed", "cut off")
LONG_EACH = 300
SHORT_EACH = 20
DAMAGES_SEED = os.environ.get("PENSTOCK_DAMAGES_SEED") or "1"


def _with_several(kind: str, store: Whole, count: int) -> Iterator[Subject]:
    """The same in each run."""
    return steadily(f"{DAMAGES_SEED} {kind}", partial(damaged, store, count=count, together=SEVERAL))


def _damaged_workloads(count: int) -> Iterator[Subject]:
    """The same in each run."""
    return steadily(f"{DAMAGES_SEED} workloads", partial(damaged_workloads, count=count))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_damaged_stores(condition: str, rng: Random) -> None:
    """A sample of what the long run does."""
    print(judge_all(damaged(small_stores()[condition], rng, SHORT_EACH, ONE)))
    print(judge_all(_with_several(condition, small_stores()[condition], SHORT_EACH)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_queues(ending: str, rng: Random) -> None:
    """With groups, dead letters and partitions."""
    print(judge_all(damaged(queue_store(ending), rng, SHORT_EACH, ONE)))
    print(judge_all(_with_several(f"queue {ending}", queue_store(ending), SHORT_EACH)))


def test_copies_of_stores_at_work(rng: Random) -> None:
    """`cp -r` of a folder whose owner goes on."""
    print(judge_all(copies(rng, SHORT_EACH)))


def test_damaged_copies_and_crash_states() -> None:
    """What a copy or a crash left, with damage besides."""
    print(judge_all(_damaged_workloads(SHORT_EACH)))


def test_crash_states(rng: Random) -> None:
    """Every one of them is sound: opening recovers it."""
    outcomes = judge_all(crash_states(rng, SHORT_EACH))
    assert set(outcomes) == {"sound"}


@pytest.mark.parametrize("make", [lambda: _with_several("killed", small_stores()["killed"], 5), lambda: _damaged_workloads(5)])
def test_stores_with_several_damages_are_the_same_in_each_run(make: Callable[[], Iterator[Subject]]) -> None:
    """Byte for byte, also if those before them are not judged."""
    made = [subject.files.files() for subject in make()]
    small_stores.cache_clear()
    for subject, files in zip(make(), made, strict=True):
        assert subject.files.files() == files
        judge(subject)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_many_damaged_stores(condition: str, rng: Random) -> None:
    """3,000 of them."""
    outcomes = judge_all(damaged(small_stores()[condition], rng, LONG_EACH, ONE))
    outcomes += judge_all(_with_several(condition, small_stores()[condition], LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ending", ENDINGS)
def test_many_damaged_queues(ending: str, rng: Random) -> None:
    """1,800 of them."""
    outcomes = judge_all(damaged(queue_store(ending), rng, LONG_EACH, ONE))
    outcomes += judge_all(_with_several(f"queue {ending}", queue_store(ending), LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_copies_of_stores_at_work(rng: Random) -> None:
    """300 of them."""
    outcomes = judge_all(copies(rng, LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 20


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_damaged_copies_and_crash_states() -> None:
    """600 of them."""
    outcomes = judge_all(_damaged_workloads(2 * LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_crash_states(rng: Random) -> None:
    """300 of them."""
    outcomes = judge_all(crash_states(rng, LONG_EACH))
    assert set(outcomes) == {"sound"}
