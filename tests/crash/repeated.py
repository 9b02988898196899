"""Crashes a workload again and again: it goes on with what each crash left, so that the next one comes upon that."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import PenstockError
from penstock.volume.verification import verify
from tests.crash.workload import PATH, Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.testing import Operation, SimulatedFileSystem

OPERATIONS_MAX = (10, 30, 90)
"""A crash comes after so many operations at most: often soon after the one before, while what that left is still there."""

Kind = Literal["killed", "random", "nothing"]


class Oracle(Protocol):
    """Knows what must be there."""

    def check(self, files: SimulatedFileSystem, *, power_lost: bool, reopen: bool = False) -> None:
        """Open the store on *files* and compare. Raises `Anomaly`. With *reopen* also what can be done with it then."""


class Workload(Protocol):
    """What can be crashed: `workload.Workload` and `queue_workload.Workload`."""

    files: SimulatedFileSystem
    steps_done: dict[str, int]

    @property
    def oracle(self) -> Oracle:
        """Follows what it does."""

    def run(self, steps: int) -> None:
        """Run *steps* random steps."""

    def open_what_was_left(self) -> None:
        """Open the store after a crash, and take what is there for what was acknowledged. The oracle has checked it."""


class _Crash(BaseException):
    """Ends what is being done in the middle."""


class CrashingWorkload:
    """A workload whose disk is replaced, in the middle of an operation, by what a crash leaves of it."""

    def __init__(self, seed: int, workload: Workload) -> None:
        self._seed = seed
        self._rng = random.Random(seed)
        self._workload = workload
        self._left: SimulatedFileSystem | None = None
        self._before = ""
        self.crashes: dict[str, int] = {}

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
            except Exception as error:
                # Also what the store itself raises, which goes on with what it said was well.
                what = f"{'' if isinstance(error, Anomaly) else type(error).__name__ + ': '}{error}"
                raise Anomaly(f"seed {self._seed}, crash {number} ({kind}, before {self._before}): {what}") from error

    def _arm(self, kind: Kind) -> None:
        """Let the disk crash so at one of the next operations."""
        files, countdown = self._workload.files, self._rng.randint(1, self._rng.choice(OPERATIONS_MAX))

        def stop(operation: Operation) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                files.on_operation = None
                self._left = files.kill() if kind == "killed" else files.crash(self._rng, keep=kind)
                self._before = str(operation)
                raise _Crash

        self._left = None
        files.on_operation = stop

    def _crash(self, kind: Kind, where: str) -> None:
        """Run steps until the crash, which is in the middle of one."""
        self._arm(kind)
        try:
            while self._left is None:
                self._workload.run(1)
            raise AssertionError("a step ended as if there had been no crash in it")
        except _Crash:
            pass
        except PenstockError:
            # Of something that was to be put in order on the way out, and is of no matter to who is dead.
            if self._left is None:
                raise
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
        reopen = self._rng.random() < 0.05
        self._workload.oracle.check(self._workload.files.clone(), power_lost=power_lost, reopen=reopen)
        self._workload.open_what_was_left()
        if reopen:
            # The owner has checked only what it needed to.
            damage = [finding for finding in verify(PATH, files=self._workload.files.clone()).findings if finding.is_damage]
            if damage:
                raise Anomaly(f"damage: {damage}")


def crash_again_and_again(make: Callable[[int], Workload], seed: int, crashes: int, *, of_a_store: int) -> dict[str, int]:
    """Crash workloads of rising seeds, *of_a_store* times each, until there were so many; returns how often each step was done."""
    done: dict[str, int] = {}
    kinds: dict[str, int] = {}
    while sum(kinds.values()) < crashes:
        workload = make(seed)
        crashing = CrashingWorkload(seed, workload)
        crashing.run(of_a_store)
        for counts, more in ((done, workload.steps_done), (kinds, crashing.crashes)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        seed += 1
    print(f"crashes {kinds}, seeds up to {seed}, steps {done}")
    assert len(kinds) == 6, kinds
    return done
