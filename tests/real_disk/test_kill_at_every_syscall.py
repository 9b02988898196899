"""
A process is killed at every single system call that changes the disk, from the making of a store to its closing.

The list of calls comes from a run that is not disturbed. Each of them is then a crash of its own: a new store, the same operations, and
SIGKILL when that call begins. What must hold afterwards holds for what the kernel had got by then: nothing acknowledged is lost,
whatever the topic's mode, since the page cache outlives the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.real_disk.loop_disk import LoopDisk, loop_disk
from tests.real_disk.processes import (
    Call,
    Inspector,
    Store,
    calls_in,
    in_parallel,
    inspector,
    kill_at,
    parse_calls,
)
from tests.real_disk.warm import Warm, warm

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WRITER = "tests.real_disk.writer"
OPERATIONS = 40
RECOVERIES = 5


@contextlib.contextmanager
def two_crashers(folder: str, seed: int) -> Iterator[tuple[LoopDisk, list[Crasher]]]:
    """A disk, and a crasher on it for each core."""
    with inspector(folder) as one, inspector(folder) as other, loop_disk("ext4", folder) as disk, warm(WRITER) as writers:
        parts = zip((one, other), writers, strict=True)
        yield disk, [Crasher(disk.path, folder, server, writer, seed, at) for at, (server, writer) in enumerate(parts)]


class Crasher:
    """Runs the writer in a folder of its own, as often as wanted. One for each thread."""

    def __init__(self, disk: str, folder: str, server: Inspector, writer: Warm, seed: int, number: int) -> None:
        self.path = os.path.join(disk, f"store-{number}")
        self.history = os.path.join(folder, f"history-{number}")
        self.log = os.path.join(folder, f"strace-{number}")
        self._server = server
        self._writer = writer
        self._seed = seed

    def clear(self) -> Store:
        """Remove what is left of the last run; returns the new store, which is not there yet."""
        shutil.rmtree(self.path, ignore_errors=True)
        if os.path.exists(self.history):
            os.unlink(self.history)
        return Store.at(self.path, self.history, self._server)

    def run(self, store: Store, *options: str, operations: int = OPERATIONS) -> int:
        """Run the writer under strace; returns how it ended."""
        config = store.config(seed=self._seed, operations=operations)
        status, errors = self._writer.run(config, self.log, *options)
        assert not errors, errors
        return status

    def list_calls(self, store: Store, *, operations: int = OPERATIONS) -> list[Call]:
        """Run undisturbed and return the calls that change the disk."""
        assert self.run(store, operations=operations) == 0
        # The writer is one thread, so that calls come in the same order each time.
        calls = calls_in(self.path, self.log)
        assert len({call.thread for call in calls}) == 1
        return calls

    def crash(self, store: Store, calls: Sequence[Call], index: int, *, operations: int = OPERATIONS) -> list[str]:
        """Kill it at the call with this index; returns what is wrong with the test itself, if anything."""
        call = calls[index]
        status = self.run(store, *kill_at(call), operations=operations)
        if status != -9:
            return [f"not killed at {call}: ended with {status}"]
        # The call that killed it must be the one meant, else some point was left out and another was tried twice.
        last = parse_calls(self.log)[-1]
        done = len(calls_in(self.path, self.log))
        if (last.name, last.number, done) != (call.name, call.number, index + 1):
            return [f"killed at {last} after {done} calls, and not at {call}, the call {index + 1}"]
        return []


def test_a_kill_at_any_system_call_loses_and_tears_nothing(
    folder: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """All of them: making the store and its topics, appends of each kind, rolling, checkpoints, retention, coalescing, closing."""
    with two_crashers(folder, seed) as (_, crashers):
        store = crashers[0].clear()
        calls = crashers[0].list_calls(store)
        assert not store.check(power_lost=False), "without any crash"

        def crash(worker: int, index: int) -> list[str]:
            crasher = crashers[worker]
            store = crasher.clear()
            return crasher.crash(store, calls, index) or [
                f"{calls[index].name}({calls[index].text.strip()}: {anomaly}"
                for anomaly in store.check(power_lost=False, close=index % 2 == 0)
            ]

        anomalies = in_parallel(crash, range(len(calls)))
    counts = dict(Counter(call.name for call in calls).most_common())
    record_property("killed at", {"points": len(calls), **counts})
    print(f"killed at {len(calls)} system calls: {counts}")
    assert not anomalies
    assert len(calls) > 300
    assert "unlink" in counts, "nothing was removed: retention did not run"
    assert any(".log.tmp" in call.text for call in calls), "nothing was rewritten: coalescing did not run"


def test_a_kill_at_any_system_call_of_the_recovery_loses_and_tears_nothing(
    folder: str, seed: int, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """For a sample of crashes: the recovery from each is killed at every call it makes, and the next one must still succeed."""
    points = 0
    with two_crashers(folder, seed) as (disk, crashers):
        calls = crashers[0].list_calls(crashers[0].clear())
        # One from each part of the run, so that early and late states both come.
        width = len(calls) // RECOVERIES
        sample = [rng.randrange(number * width, (number + 1) * width) for number in range(RECOVERIES)]
        saved, saved_history = os.path.join(disk.path, "crashed"), os.path.join(folder, "crashed-history")
        for index in sample:
            crashed = crashers[0].clear()
            assert not crashers[0].crash(crashed, calls, index)
            shutil.rmtree(saved, ignore_errors=True)
            if os.path.exists(crashed.path):
                shutil.copytree(crashed.path, saved)
            shutil.copy(crashed.history_path, saved_history)

            def bring_back(crasher: Crasher, session: int = crashed.session) -> Store:
                store = crasher.clear()
                if os.path.exists(saved):
                    shutil.copytree(saved, store.path)
                shutil.copy(saved_history, store.history_path)
                store.session = session
                return store

            recovery = crashers[0].list_calls(bring_back(crashers[0]), operations=0)

            def crash(
                worker: int, at: int, recovery: Sequence[Call] = recovery, bring_back: Callable = bring_back
            ) -> list[str]:
                store = bring_back(crashers[worker])
                return crashers[worker].crash(store, recovery, at, operations=0) or [
                    f"{recovery[at].name}({recovery[at].text.strip()}: {anomaly}" for anomaly in store.check(power_lost=False)
                ]

            anomalies = in_parallel(crash, range(len(recovery)))
            assert not anomalies, f"recovery after a kill at {calls[index]}"
            points += len(recovery)
    record_property("recoveries killed at", points)
    print(f"{len(sample)} recoveries killed at {points} system calls")
    assert points > 100
