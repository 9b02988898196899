"""Explores the crash states of a workload: at every operation on the file system several disks are made, recovered and checked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.volume.volume import Volume
from tests.crash.workload import PATH, SETTINGS, Anomaly, Oracle, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.testing import Operation


class _StopRecovery(BaseException):
    """Ends a recovery in the middle, as a crash would."""


def crash(files: SimulatedFileSystem, rng: random.Random, index: int) -> SimulatedFileSystem:
    """The disk of state 0: nothing un-synced survived; of state 1: the process was killed; of all others: a random mixture."""
    if index == 1:
        return files.kill()
    return files.crash(rng, keep="nothing" if index == 0 else "random")


def crash_recovery(
    state: SimulatedFileSystem, rng: random.Random, operations_max: int, recover: Callable[[SimulatedFileSystem], object]
) -> tuple[SimulatedFileSystem, bool]:
    """
    The disk after recovery of *state* crashed at a random one of its first operations, and whether it got so far.

    If recovery ended before that, the disk is as it was.
    """
    countdown = rng.randint(1, operations_max)
    crashed: list[SimulatedFileSystem] = []

    def stop(_: Operation) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            state.on_operation = None
            crashed.append(state.crash(rng))
            raise _StopRecovery

    spare = state.clone()
    state.on_operation = stop
    try:
        recover(state)
    except _StopRecovery:
        return crashed[0], True
    except PenstockError as error:
        raise Anomaly(f"unbootable after {spare.origin}: {error}") from error
    finally:
        state.on_operation = None
    return spare, False


class Explorer:
    """
    Runs a workload once and crashes it everywhere.

    Before every operation that changes the disk, *states* disks are taken: one where nothing un-synced survived, one where the
    process was killed and the cache survived, and random mixtures. Each is recovered and compared with the oracle. In some of
    them recovery itself crashes at a random operation, and its disk is recovered.
    """

    def __init__(self, seed: int, *, steps: int, states: int, recovery_crashes: float = 0.1, limit: int | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.steps = steps
        self.states = states
        self.recovery_crashes = recovery_crashes
        self.limit = limit
        self.checked = 0
        self.recovery_checked = 0
        self.files = SimulatedFileSystem()
        self.workload = Workload(random.Random(seed), self.files)

    def run(self) -> None:
        """Explore. Raises `Anomaly` with the seed and the operation at which it was found."""
        workload = self.workload
        workload.open()
        workload.create_topics()
        self.files.on_operation = self._at_operation
        try:
            workload.run(self.steps)
            assert workload.volume is not None
            workload.volume.close()
        finally:
            self.files.on_operation = None

    def _at_operation(self, operation: Operation) -> None:
        if self.limit is not None and self.checked >= self.limit:
            return
        for index in range(self.states):
            kill = index == 1
            try:
                state = crash(self.files, self.rng, index)
                if self.rng.random() < self.recovery_crashes:
                    state, crashed = crash_recovery(state, self.rng, 60, _recover)
                    self.recovery_checked += crashed
                    kill = False
                # A clone is checked, since recovery changes the disk.
                self.workload.oracle.check(state, power_lost=not kill, reopen=self.rng.random() < 0.05)
            except Anomaly as anomaly:
                raise Anomaly(f"seed {self.seed}, before operation {operation}, state {index}: {anomaly}") from anomaly
            self.checked += 1


def _recover(state: SimulatedFileSystem) -> None:
    Volume.open(PATH, settings=SETTINGS, files=state, clock=FakeClock(), background=False)


def explore_until(states: int, seed: int, *, steps: int = 60, states_each: int = 5) -> tuple[int, int, dict[str, int]]:
    """Explore workloads of rising seeds until so many states were checked; returns (states, of them in recovery, steps done)."""
    checked = recovery = 0
    done: dict[str, int] = {}
    while checked < states:
        explorer = Explorer(seed, steps=steps, states=states_each, limit=states - checked)
        explorer.run()
        checked += explorer.checked
        recovery += explorer.recovery_checked
        for name, count in explorer.workload.steps_done.items():
            done[name] = done.get(name, 0) + count
        seed += 1
    return checked, recovery, done


__all__ = ["Anomaly", "Explorer", "Oracle", "crash", "crash_recovery", "explore_until"]
