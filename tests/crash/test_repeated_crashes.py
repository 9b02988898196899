"""
A store that crashes again and again, and is written to in between.

`test_crash_states.py` opens each state of the disk and looks at it. Here the workload goes on with what the crash left: a state that
recovery is content with may still be one from which the next crash leads to something that it is not.
"""

from __future__ import annotations

import random

import pytest

from penstock.testing import SimulatedFileSystem
from tests.crash.repeated import crash_again_and_again
from tests.crash.workload import Workload

CRASHES, FIXED_CRASHES = 1_500, 6_000
CRASHES_OF_A_STORE = 60


def _make(seed: int) -> Workload:
    workload = Workload(random.Random(seed + 1), SimulatedFileSystem())
    workload.open()
    workload.create_topics()
    return workload


def test_a_store_goes_on_from_every_crash_to_the_next(seed: int) -> None:
    """I1-I4, I6-I8, R1: what was acknowledged before and between all crashes is there after each of them."""
    crash_again_and_again(_make, seed % 1_000_000, CRASHES, of_a_store=CRASHES_OF_A_STORE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_repeated_crashes_of_fixed_seeds() -> None:
    """The same for workloads that are the same in every run, and that are known to do everything."""
    done = crash_again_and_again(_make, 91_000_000, FIXED_CRASHES, of_a_store=CRASHES_OF_A_STORE)
    for step in ("append_large", "append_to_many", "checkpoint", "retain", "merged segments", "close_and_open"):
        assert done.get(step, 0) > 0, f"the workload never did {step}"
