"""
Judge stores with damages that nobody has seen yet: `python -m tests.verification.explore SEED COUNT [FIRST]`.

The tests of CI judge the same combinations of damages in each run: there is no end of them, and a run of CI is no place to find a new one.
This looks for it. Each disagreement is printed with its number, and comes again with the same seed, 1 for the count, and that number.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from tests.verification.damages import damage
from tests.verification.judge import Disagreement, judge
from tests.verification.stores import damaged_workloads, queue_store, small_stores, steadily
from tests.verification.test_equivalence import CONDITIONS, ENDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.verification.judge import Subject


def _subjects(rng: Random) -> Iterator[Subject]:
    """In turns a store that was damaged, and a copy or a crash state that was."""
    stores = [*[small_stores()[condition] for condition in CONDITIONS], *map(queue_store, ENDINGS)]
    for subject in damaged_workloads(rng, sys.maxsize):
        store = rng.choice(stores)
        yield store.subject(*damage(store.base, rng))
        yield subject


def explore(seed: str, count: int, first: int = 0) -> Counter[str]:
    """Judge *count* stores from number *first* on, and print the disagreements."""
    outcomes: Counter[str] = Counter()
    for number, subject in enumerate(islice(steadily(seed, _subjects), first, first + count), first):
        try:
            outcomes[judge(subject)] += 1
        except Disagreement as disagreement:
            outcomes["disagreement"] += 1
            print(f"{number}: {disagreement}\n", flush=True)
    return outcomes


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = explore(sys.argv[1], *map(int, sys.argv[2:]))
    print(dict(found))
    sys.exit(1 if found["disagreement"] else 0)
