"""Promises are kept, nobody waits for ever and closing ends, whoever runs when; and planted mistakes about that are found."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing.interleaving import ScheduleFailure
from tests.interleaving import mutants
from tests.interleaving.scenes import SCENES, Scene, acks, checkpoints, everything, publishing, waiting

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

SEEDS = range(30)
LONG_SEEDS = 400
OWN_SEEDS = 3
SEARCHED = 100


def _check(program: Callable[[Scene], None], seed: int) -> None:
    Scene(seed, lines=bool(seed % 2)).check(program)


@pytest.mark.parametrize("program", SCENES, ids=lambda program: program.__name__)
def test_what_has_returned_is_kept_under_every_schedule(program: Callable[[Scene], None]) -> None:
    for seed in SEEDS:
        _check(program, seed)


@pytest.mark.long
@pytest.mark.parametrize("program", SCENES, ids=lambda program: program.__name__)
def test_what_has_returned_is_kept_under_many_schedules(program: Callable[[Scene], None], rng: random.Random) -> None:
    for _ in range(LONG_SEEDS):
        _check(program, rng.randrange(1 << 32))


FOUND_BY: list[tuple[Callable[[], Any], Callable[[Scene], None], tuple[int, ...]]] = [
    (mutants.flush_ends_when_a_frame_took_its_mark, acks, (6, 18, 23)),
    (mutants.flush_reads_its_mark_before_it_commits, acks, (0, 1, 3)),
    (mutants.flush_waits_for_one_cycle, acks, (4, 12, 19)),
    (mutants.a_checkpoint_takes_the_mark_early, everything, (1, 3, 4)),
    (mutants.a_ticket_is_done_before_its_waiter_is_there, waiting, (0, 13, 48, 70)),
    (mutants.a_leader_goes_home_without_handing_on, publishing, (1, 13, 15)),
    (mutants.a_leader_sees_its_ticket_done_before_the_sync, publishing, (0, 1, 3)),
    (mutants.close_does_not_wait_for_a_cycle, everything, (5, 6, 7)),
    (mutants.a_checkpoint_does_not_hold_cycles_back, publishing, (16, 64, 73, 82, 84)),
    (mutants.the_background_thread_says_too_late_that_it_sleeps, acks, (17, 25, 29)),
    (mutants.a_consumer_looks_and_then_begins_to_wait, waiting, (36, 40, 54, 68, 75)),
]
"""Each planted mistake, the scene that is quickest to find it, and seeds that do. They change with the steps that the code takes."""


def _finds(program: Callable[[Scene], None], seed: int) -> bool:
    try:
        _check(program, seed)
    except ScheduleFailure as failure:
        text = str(failure)
    else:
        return False
    assert f"seed {seed}" in text
    return True


@pytest.mark.parametrize(("mutant", "program", "seeds"), FOUND_BY, ids=lambda one: getattr(one, "__name__", "seeds"))
def test_a_planted_mistake_is_found(
    mutant: Callable[[], Any], program: Callable[[Scene], None], seeds: tuple[int, ...], caplog: Any, rng: random.Random
) -> None:
    """By seeds that are known to: a seed alone finds it again. Those of the run itself may find it as well."""
    caplog.set_level(logging.CRITICAL)
    others = [rng.randrange(1 << 32) for _ in range(OWN_SEEDS)]
    with mutant():
        found = next((seed for seed in seeds if _finds(program, seed)), None)
        if found is None:
            now = [seed for seed in range(SEARCHED) if _finds(program, seed)]
            pytest.fail(f"none of the seeds {seeds} finds it any more; of the first {SEARCHED} these do now: {now}")
        assert _finds(program, found)
        print(f"found by seed {found}; of this run's {others} by {[seed for seed in others if _finds(program, seed)]}")


@pytest.mark.parametrize("program", [acks, everything, checkpoints], ids=lambda program: program.__name__)
def test_a_thread_that_is_held_up_is_no_mistake(program: Callable[[Scene], None]) -> None:
    """What makes some of the planted mistakes easy to find is not what is found."""
    with mutants.threads_are_held_up():
        for seed in SEEDS:
            _check(program, seed)


def test_no_planted_mistake_is_forgotten() -> None:
    assert [mutant for mutant, _, _ in FOUND_BY] == mutants.MUTANTS


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_schedule_is_the_same_again(seed: int) -> None:
    """By its seed, and by the list of its choices."""
    first, second = Scene(seed), Scene(seed)
    first.check(everything)
    second.check(everything)
    assert first.run.schedule == second.run.schedule
    again = Scene(seed, schedule=first.run.schedule)
    again.check(everything)
    assert again.run.schedule == first.run.schedule
