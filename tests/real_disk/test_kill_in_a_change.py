"""
A process is killed at every system call of a dead letter, a transaction, a seek, a new group: all of it is there then, or nothing.

For dead letters and transactions, which are in several logs, the power fails there too, on disks of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.real_disk.loop_disk import LoopDisk, loop_disk
from tests.real_disk.loop_disk import run as sync
from tests.real_disk.processes import Call, in_parallel, kill_at, parse_calls
from tests.real_disk.queue_change import OUT_PARTITIONS, STAGES, look, prepare
from tests.real_disk.warm import Warm, warm

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

NOTHING: dict[str, Any] = {
    "dead": [],
    "out": [0] * OUT_PARTITIONS,
    "stages": STAGES,
    "lengths": [],
    "groups": ["jobs/g/1", "more/g/1"],
    "positions": {"jobs/g": {0: 4, 1: 4, 2: 4}, "more/g": {0: 4}},
    "lag": {"jobs/g": 18, "more/g": 6},
}
"""What is there before each change."""


def after(**changed: Any) -> dict[str, Any]:
    return {**NOTHING, **changed}


def _moved(size: int) -> dict[str, Any]:
    positions = {"jobs/g": {0: 7, 1: 4, 2: 4}, "more/g": {0: 5}}
    return after(out=[1] * OUT_PARTITIONS, lengths=[size], positions=positions, lag={"jobs/g": 15, "more/g": 5})


STATES: dict[str, list[dict[str, Any]]] = {
    "dead letter": [
        NOTHING,
        after(dead=[4], positions={"jobs/g": {0: 4, 1: 4, 2: 4}, "more/g": {0: 5}}, lag={"jobs/g": 18, "more/g": 5}),
        after(dead=[4, 5], positions={"jobs/g": {0: 4, 1: 4, 2: 4}, "more/g": {0: 6}}, lag={"jobs/g": 18, "more/g": 4}),
    ],
    "transaction": [NOTHING, _moved(1)],
    "large transaction": [NOTHING, _moved(20_000)],
    "abort": [after(stages=left) for left in range(STAGES, -1, -1)],
    "seek": [NOTHING, after(positions={"jobs/g": {0: 0, 1: 9, 2: 2}, "more/g": {0: 4}}, lag={"jobs/g": 19, "more/g": 6})],
    "commit": [NOTHING, after(positions={"jobs/g": {0: 4, 1: 4, 2: 4}, "more/g": {0: 7}}, lag={"jobs/g": 18, "more/g": 3})],
    "new group": [
        NOTHING,
        after(
            groups=["jobs/g/1", "jobs/new/7", "more/g/1"],
            positions={"jobs/g": {0: 4, 1: 4, 2: 4}, "jobs/new": {0: 10, 1: 10, 2: 10}, "more/g": {0: 4}},
            lag={"jobs/g": 18, "jobs/new": 0, "more/g": 6},
        ),
    ],
}  # fmt: skip
"""The states that each change may leave; the last one is all of it."""


class Crasher:
    """Makes a change in a copy of the prepared store, as often as wanted. One for each thread."""

    def __init__(self, folder: str, prepared: str, what: str, program: Warm, number: int, disk: LoopDisk | None = None) -> None:
        self.path = os.path.join(folder if disk is None else disk.path, f"store-{number}")
        self.outcomes: Counter[int] = Counter()
        """Which of the states was left how often."""
        self._disk = disk
        self._prepared = prepared
        self._log = os.path.join(folder, f"strace-{number}")
        self._marker = os.path.join(folder, f"marker-{number}")
        self._what = what
        self._program = program

    def run(self, *options: str) -> int:
        """Make the change under strace; returns how the process ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self._prepared, self.path)
        if self._disk is not None:
            sync("sync", "-f", self.path)
        status, errors = self._program.run({"path": self.path, "marker": self._marker, "what": self._what}, self._log, *options)
        assert not errors, errors
        return status

    def calls(self) -> list[Call]:
        """The calls of the last run that change the store, from the beginning of the change on."""
        calls = parse_calls(self._log)
        begun = next((at for at, call in enumerate(calls) if call.name == "openat" and self._marker in call.text), len(calls))
        return [call for call in calls[begun:] if call.changes and self.path in call.text]

    @property
    def is_done(self) -> bool:
        """Whether the process was told that the change is durable."""
        with open(self._marker, encoding="ascii") as file:
            return file.read() == "done"

    def crash(self, calls: Sequence[Call], index: int) -> list[str]:
        """Kill it at the call with this index, or let it end; if it has a disk cut its power; look at what is left, twice."""
        if index == len(calls):
            where = "behind the last call"
            assert self.run() == 0
        else:
            call = calls[index]
            where = f"{call.name}({call.text.strip()}"
            status = self.run(*kill_at(call))
            done = self.calls()
            if status != -9 or len(done) != index + 1 or done[-1].name != call.name:
                return [f"not killed at {call}: ended with {status} after {len(done)} calls"]
        boot_id = b""
        if self._disk is not None:
            # At once, before anything is written back.
            self._disk.cut_power()
            boot_id = self._disk.boot_id
        found = look(self.path, boot_id=boot_id)
        states = STATES[self._what]
        if found not in states:
            return [f"{where}: neither nothing nor all: {found}"]
        if self.is_done and found != states[-1]:
            return [f"{where}: it was told that it is durable, and there is {found}"]
        self.outcomes[states.index(found)] += 1
        again = look(self.path, drain=True, boot_id=boot_id)
        drained = sorted(again.pop("drained"))
        if again != found or drained != list(range(found["positions"]["more/g"][0], 11)):
            return [f"{where}: after another opening {again}, {drained}, instead of {found}"]
        return []


@pytest.mark.parametrize("what", STATES)
def test_a_kill_at_any_system_call_leaves_all_or_nothing(
    what: str, folder: str, record_property: Callable[[str, object], None]
) -> None:
    prepared = os.path.join(folder, "prepared")
    prepare(prepared)
    with warm("tests.real_disk.queue_change") as programs:
        crashers = [Crasher(folder, prepared, what, program, number) for number, program in enumerate(programs)]
        assert crashers[0].run() == 0
        calls = crashers[0].calls()
        assert look(crashers[0].path) == STATES[what][-1], "without any crash"
        assert len({call.thread for call in calls}) == 1
        anomalies = in_parallel(lambda worker, index: crashers[worker].crash(calls, index), range(len(calls)))
    record_property(f"{what} killed at", len(calls))
    print(f"{what}: killed at {len(calls)} system calls")
    assert not anomalies
    assert ({"unlink"} if what == "abort" else {"pwritev", "fdatasync"}) & {call.name for call in calls}


POINTS_MAX = 20
"""So many of the calls of each change the power fails at, chosen by the seed; at the first and the last one always, and behind it."""


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("what", ["dead letter", "transaction", "large transaction"])
def test_a_power_loss_at_any_system_call_leaves_all_or_nothing(
    what: str, kind: str, folder: str, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """I24, I30: what was told to be durable is there, and never half of anything."""
    prepared = os.path.join(folder, "prepared")
    prepare(prepared)
    with contextlib.ExitStack() as stack:
        programs = stack.enter_context(warm("tests.real_disk.queue_change"))
        crashers = [
            Crasher(folder, prepared, what, program, number, stack.enter_context(loop_disk(kind, folder)))
            for number, program in enumerate(programs)
        ]
        assert crashers[0].run() == 0
        calls = crashers[0].calls()
        points = sorted({0, len(calls) - 1, len(calls), *rng.sample(range(len(calls)), min(POINTS_MAX, len(calls)))})
        anomalies = in_parallel(lambda worker, point: crashers[worker].crash(calls, points[point]), range(len(points)))
    outcomes = crashers[0].outcomes + crashers[1].outcomes
    record_property(f"{what} lost power on {kind} at", len(points))
    print(
        f"{what} on {kind}: power lost at {len(points)} of {len(calls)} system calls; states {dict(sorted(outcomes.items()))}"
    )
    assert not anomalies
    assert set(outcomes) >= {0, len(STATES[what]) - 1}, "all crashes came too early, or too late"
