"""
One rule: verify is clean exactly when opening succeeds and every committed message can be read; repair makes it so and loses nothing.

Over stores that were damaged in one to four places, copied while they were at work, left by a power cut or a kill, or several of these:
more than 5,000 in each run of CI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.verification.damages import damage
from tests.verification.judge import judge_all
from tests.verification.stores import copies, crash_states, damaged_workloads, queue_store, small_stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.verification.judge import Subject
    from tests.verification.stores import Whole

CONDITIONS = ("closed", "killed", "reopened", "powerless", "referring")
ENDINGS = ("closed", "killed", "cut off")
LONG_EACH = 600
SHORT_EACH = 40
"""Of damaged stores; of the others half."""


def _damaged(store: Whole, rng: Random, count: int) -> Iterator[Subject]:
    for _ in range(count):
        name, files = damage(store.base, rng)
        yield store.subject(name, files)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_damaged_stores(condition: str, rng: Random) -> None:
    """A sample of what the long run does."""
    print(judge_all(_damaged(small_stores()[condition], rng, SHORT_EACH)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_queues(ending: str, rng: Random) -> None:
    """With groups, dead letters and partitions."""
    print(judge_all(_damaged(queue_store(ending), rng, SHORT_EACH)))


def test_copies_of_stores_at_work(rng: Random) -> None:
    """`cp -r` of a folder whose owner goes on."""
    print(judge_all(copies(rng, SHORT_EACH // 2)))


def test_damaged_copies_and_crash_states(rng: Random) -> None:
    """What a copy or a crash left, with damage besides."""
    print(judge_all(damaged_workloads(rng, SHORT_EACH // 2)))


def test_crash_states(rng: Random) -> None:
    """Every one of them is sound: opening recovers it."""
    outcomes = judge_all(crash_states(rng, SHORT_EACH // 2))
    assert set(outcomes) == {"sound"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_many_damaged_stores(condition: str, rng: Random) -> None:
    """3,000 of them."""
    outcomes = judge_all(_damaged(small_stores()[condition], rng, LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 10


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ending", ENDINGS)
def test_many_damaged_queues(ending: str, rng: Random) -> None:
    """1,800 of them."""
    outcomes = judge_all(_damaged(queue_store(ending), rng, LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 10


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_copies_of_stores_at_work(rng: Random) -> None:
    """300 of them."""
    outcomes = judge_all(copies(rng, LONG_EACH // 2))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 40


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_damaged_copies_and_crash_states(rng: Random) -> None:
    """600 of them."""
    outcomes = judge_all(damaged_workloads(rng, LONG_EACH))
    print(outcomes)
    assert outcomes["repaired"] > LONG_EACH / 10


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_crash_states(rng: Random) -> None:
    """300 of them."""
    outcomes = judge_all(crash_states(rng, LONG_EACH // 2))
    assert set(outcomes) == {"sound"}
