"""
A store that crashes again and again, and is written to in between.

`test_crash_states.py` opens each state of the disk and looks at it. Here the workload goes on with what the crash left: a state that
recovery is content with may still be one from which the next crash leads to something that it is not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

import pytest

from penstock.testing import SimulatedFileSystem
from tests.crash.workload import Anomaly, Workload

if TYPE_CHECKING:
    from penstock.testing import Operation

CRASHES, FIXED_CRASHES = 1_500, 6_000
CRASHES_OF_A_STORE = 60
OPERATIONS_MAX = 90

Kind = Literal["killed", "random", "nothing"]


class _Crash(BaseException):
    """Ends what is being done in the middle."""


class CrashingWorkload:
    """A workload whose disk is replaced, in the middle of an operation, by what a crash leaves of it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(seed)
        self._workload = Workload(random.Random(seed + 1), SimulatedFileSystem())
        self._left: SimulatedFileSystem | None = None
        self.crashes: dict[str, int] = {}
        self._workload.open()
        self._workload.create_topics()

    @property
    def steps_done(self) -> dict[str, int]:
        """How often each step was done."""
        return self._workload.steps_done

    def run(self, crashes: int) -> None:
        """Crash so many times. Raises `Anomaly` with the seed."""
        for number in range(crashes):
            kind: Kind = self._rng.choice(["killed", "killed", "random", "nothing"])
            power_lost = kind != "killed"
            try:
                self._crash(kind, "at work")
                while self._rng.random() < 0.15:
                    power_lost |= self._crash_in_recovery()
                self._go_on(power_lost=power_lost)
            except Anomaly as anomaly:
                raise Anomaly(f"seed {self._seed}, crash {number} ({kind}): {anomaly}") from anomaly

    def _arm(self, kind: Kind) -> None:
        """Let the disk crash so at one of the next operations."""
        files, countdown = self._workload.files, self._rng.randint(1, OPERATIONS_MAX)

        def stop(_: Operation) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                files.on_operation = None
                self._left = files.kill() if kind == "killed" else files.crash(self._rng, keep=kind)
                raise _Crash

        self._left = None
        files.on_operation = stop

    def _crash(self, kind: Kind, where: str) -> None:
        """Run steps until the crash, which is in the middle of one."""
        self._arm(kind)
        try:
            while True:
                self._workload.run(1)
        except _Crash:
            assert self._left is not None
        self._take_over(kind, where)

    def _crash_in_recovery(self) -> bool:
        """Crash while the store is opened, if opening takes so long; returns whether power was lost."""
        kind: Kind = self._rng.choice(["killed", "random", "nothing"])
        spare = self._workload.files.clone()
        self._arm(kind)
        try:
            # On the files themselves, and with no look at the result: that is for the opening that is not disturbed.
            self._workload.oracle.check(self._workload.files, power_lost=True)
        except _Crash:
            self._take_over(kind, "in recovery")
            return kind != "killed"
        self._workload.files = spare
        return False

    def _take_over(self, kind: Kind, where: str) -> None:
        assert self._left is not None
        self._workload.files = self._left
        self.crashes[f"{kind} {where}"] = self.crashes.get(f"{kind} {where}", 0) + 1

    def _go_on(self, *, power_lost: bool) -> None:
        """Open what the crash left, see that it keeps every promise, and take it for what there is."""
        self._workload.oracle.check(self._workload.files.clone(), power_lost=power_lost)
        self._workload.open_what_was_left()


def _crash_again_and_again(seed: int, crashes: int) -> dict[str, int]:
    done: dict[str, int] = {}
    kinds: dict[str, int] = {}
    while sum(kinds.values()) < crashes:
        workload = CrashingWorkload(seed)
        workload.run(CRASHES_OF_A_STORE)
        for counts, more in ((done, workload.steps_done), (kinds, workload.crashes)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        seed += 1
    print(f"crashes {kinds}, seeds up to {seed}, steps {done}")
    assert len(kinds) == 6, kinds
    return done


def test_a_store_goes_on_from_every_crash_to_the_next(seed: int) -> None:
    """I1-I4, I6-I8, R1: what was acknowledged before and between all crashes is there after each of them."""
    _crash_again_and_again(seed % 1_000_000, CRASHES)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_repeated_crashes_of_fixed_seeds() -> None:
    """The same for workloads that are the same in every run, and that are known to do everything."""
    done = _crash_again_and_again(91_000_000, FIXED_CRASHES)
    for step in ("append_large", "append_to_many", "checkpoint", "retain", "merged segments", "close_and_open"):
        assert done.get(step, 0) > 0, f"the workload never did {step}"
