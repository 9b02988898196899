"""Runs the workload with an error at a chosen operation on the file system, and checks what is left."""

from __future__ import annotations

import random
from typing import Any

from penstock.errors import Closed, OutcomeUnknown, PenstockError, StorageFailed, StorageFull
from penstock.format.batch import encode_single
from penstock.testing import Operation, SimulatedFileSystem
from tests.crash.workload import Anomaly, Workload


class FaultRun:
    """One run of the workload with one fault in it."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed = seed
        self.steps = steps
        self.files = SimulatedFileSystem()
        self.workload = Workload(random.Random(seed), self.files)
        self.poisoned = False
        self.refused = 0

    def run(self, kind: Any, at: int, error: int | None, *, count: int | None = 1, short: int | None = None) -> bool:
        """
        Run with the fault at the *at*-th operation of *kind*; True if the fault came to pass.

        Raises `Anomaly` if a promise was broken: something acknowledged is gone, something refused is there, or the store
        acknowledged anything after the disk failed.
        """
        workload = self.workload
        workload.open()
        workload.create_topics()
        seen = 0

        def watch(operation: Operation) -> None:
            nonlocal seen
            seen += operation.kind == kind or (kind == "write" and operation.kind in ("pwrite", "pwritev"))

        self.files.on_operation = watch
        self.files.fail(kind, at, error, count=count, short=short)
        try:
            for _ in range(self.steps):
                if not self._step():
                    break
        finally:
            self.files.on_operation = None
            self.files.clear_faults()
        if self.poisoned:
            self._nothing_more_is_acknowledged()
        self._check()
        return seen >= at

    def _step(self) -> bool:
        oracle = self.workload.oracle
        try:
            self.workload.run(1)
        except StorageFull:
            oracle.in_flight = {}
            self.refused += 1
            return self._still_open()
        except OutcomeUnknown:
            self.poisoned = True
            return False
        except StorageFailed:
            self.poisoned = True
            oracle.in_flight = {}
            return False
        except OSError:
            # From opening, retention or coalescing: nothing was acknowledged by them.
            return self._still_open()
        except PenstockError as error:
            raise Anomaly(f"an unexpected answer to a disk error: {type(error).__name__}: {error}") from error
        return True

    def _still_open(self) -> bool:
        volume = self.workload.volume
        return volume is not None and not volume._closed

    def _nothing_more_is_acknowledged(self) -> None:
        volume = self.workload.volume
        assert volume is not None
        for key in self.workload.oracle.logs:
            try:
                volume.append(volume.log(*key), encode_single(b"after the failure"))
            except (StorageFailed, Closed):
                continue
            raise Anomaly(f"{key} acknowledged a message after the disk had failed")

    def _check(self) -> None:
        oracle = self.workload.oracle
        for keep in ("nothing", "random", "random"):
            oracle.check(self.files.crash(random.Random(self.seed), keep=keep), power_lost=True)
        # After a failed sync the cache may lie, so a killed process counts as a power loss for the weaker modes.
        oracle.check(self.files.kill(), power_lost=self.poisoned)
