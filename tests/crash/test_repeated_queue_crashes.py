"""
A store that crashes again and again, and whose transactions, stages, groups and dead letters go on in between.

What `test_repeated_crashes.py` does with logs. After each crash the oracle takes what it finds for what there is: the change that was
under way landed or did not, acks that nobody had waited for are durable or gone, and who had a message in his hands has failed with it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import SimulatedFileSystem
from tests.crash import mutants
from tests.crash.queue_workload import Workload
from tests.crash.repeated import crash_again_and_again
from tests.crash.test_adoption import STEPS as STEPS_OF_STAGES
from tests.crash.test_queue_crash_states import STEPS
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

CRASHES, FIXED_CRASHES = 900, 4_000
CRASHES_OF_A_STORE = 30


class StagingWorkload(Workload):
    """One that does little but stage and commit: its logs adopt many segments."""

    def run(self, steps: int, only: Collection[str] = STEPS_OF_STAGES) -> None:
        """Run *steps* random steps."""
        super().run(steps, only)


def _make(seed: int) -> Workload:
    workload = (Workload if seed % 3 else StagingWorkload)(random.Random(seed + 1), SimulatedFileSystem())
    workload.open()
    workload.create_topics()
    return workload


def test_a_queue_goes_on_from_every_crash_to_the_next(seed: int) -> None:
    """I16, I17, I23, I24, I27, I29-I31, I41, I42, before and between all crashes, and after each of them."""
    crash_again_and_again(_make, seed % 1_000_000, CRASHES, of_a_store=CRASHES_OF_A_STORE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_repeated_queue_crashes_of_fixed_seeds() -> None:
    """The same for workloads that are the same in every run, and that are known to do everything."""
    done = crash_again_and_again(_make, 92_000_000, FIXED_CRASHES, of_a_store=CRASHES_OF_A_STORE)
    for step in STEPS:
        assert done.get(step, 0) > 0, f"the workload never did {step}"


@pytest.mark.parametrize("mutant", mutants.REPEATED_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_repeated_crashes_find_the_planted_bug(mutant: Callable[[], Any]) -> None:
    """Each of these bugs shows after some second crash."""
    with mutant(), pytest.raises(Anomaly) as caught:
        crash_again_and_again(_make, 92_000_000, 3_000, of_a_store=CRASHES_OF_A_STORE)
    print(f"{mutant.__name__}: {caught.value}")
