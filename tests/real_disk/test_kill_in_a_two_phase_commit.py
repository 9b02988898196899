"""
A process is killed at every system call of staging, committing and applying, and the power fails there: all or nothing, for everybody.

Each point is one run and two crashes. The program is killed there on a disk of its own; what it leaves is copied away, links
included, and recovered: that is the kill. Then that disk loses what was not synced, and is recovered too: that is the power loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.real_disk.loop_disk import LoopDisk, loop_disk, run
from tests.real_disk.processes import (
    CHANGING_CALLS,
    Call,
    Child,
    calls_in,
    in_parallel,
    kill_at,
    strace_command,
)
from tests.real_disk.two_phase_commit import PARTS, PLANTS, Told, prepare
from tests.real_disk.warm import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SERVER = [sys.executable, "-m", "tests.real_disk.two_phase_commit"]
CALLS = (*CHANGING_CALLS, "link", "linkat", "openat")


class Crasher:
    """Runs the program on a disk of its own, as often as wanted. One for each thread."""

    def __init__(self, disk: LoopDisk, folder: str, seed: int, servers: Sequence[Child], number: int, plant: str) -> None:
        self.path = os.path.join(disk.path, "store")
        self.outcomes: Counter[str] = Counter()
        self.readers: Counter[str] = Counter()
        """What readers saw before recovery."""
        self.unwanted = 0
        """Stages that were finished, and nobody was told."""
        self._disk = disk
        self._seed = seed
        self._runner, self._server = servers
        self._plant = plant
        self._prepared = os.path.join(folder, "prepared")
        self._killed = os.path.join(folder, f"killed-{number}")
        self._log = os.path.join(folder, f"strace-{number}")
        self._told = os.path.join(folder, f"told-{number}")

    def run(self, *options: str) -> int:
        """Run it under strace on a copy of the prepared store, which is durable; returns how it ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self._prepared, self.path)
        run("sync", "-f", self.path)
        with open(self._told, "wb"):
            pass
        self._ask(self._server, "watch", self.path)
        answer = self._ask(self._runner, "run", self.path, plant=self._plant)
        assert "pid" in answer, answer
        # It is loaded and has the store open, so what strace counts begins with the first stage.
        errors = trace(answer["pid"], strace_command(self._log, ["-p", str(answer["pid"])], *options, calls=CALLS))
        assert not errors, errors
        status: int = self._ask(self._runner, "status", self.path)["status"]
        return status

    def calls(self) -> list[Call]:
        """The calls of the last run that change the store."""
        return calls_in(self.path, self._log)

    def list_calls(self) -> list[Call]:
        """Run undisturbed, check what that leaves, and return the calls."""
        assert self.run() == 0
        assert self._server.ask("now") == {"anomalies": [], "seen": True}
        assert Told(self._told).is_done
        calls = self.calls()
        assert len({call.thread for call in calls}) == 1
        return calls

    def crash(self, calls: Sequence[Call], index: int) -> list[str]:
        """Kill it at the call with this index and recover; cut the power and recover again. Returns what was wrong."""
        call = calls[index]
        status = self.run(*kill_at(call))
        seen = self._server.ask("now")
        done = self.calls()
        if status != -9 or len(done) != index + 1 or done[-1].name != call.name:
            return [f"not killed at {call}: ended with {status} after {len(done)} calls"]
        anomalies = [f"a reader beside it: {anomaly}" for anomaly in seen["anomalies"]]
        shutil.rmtree(self._killed, ignore_errors=True)
        # Links stay links.
        run("cp", "-a", self.path, self._killed)
        # At once, before anything is written back.
        self._disk.cut_power()
        anomalies += self._check("kill", self._killed, index, seen.get("seen"), "")
        anomalies += self._check("power loss", self.path, index, seen.get("seen"), self._disk.boot_id.hex())
        return [f"{call.name}({call.text.strip()}: {anomaly}" for anomaly in anomalies]

    def _check(self, crash: str, path: str, index: int, seen: bool | None, boot_id: str) -> list[str]:
        # Half of the recovered stores are closed, and the others die.
        first = self._ask(self._server, "check", path, boot_id=boot_id, seen=seen, close=index % 2 == 0)
        anomalies = first["anomalies"]
        if not anomalies:
            self.outcomes[f"{crash}: {'' if first['committed'] else 'not '}committed"] += 1
            self.readers[f"{crash}: {({True: 'all', False: 'nothing', None: 'unavailable'})[first['early']]}"] += 1
            second = self._ask(self._server, "check_again", path, boot_id=boot_id)
            anomalies = second["anomalies"]
            self.unwanted += second.get("unwanted", 0)
        return [f"{crash}: {anomaly}" for anomaly in anomalies]

    def _ask(self, server: Child, command: str, path: str, **more: Any) -> dict[str, Any]:
        return server.ask(json.dumps({"command": command, "path": path, "told": self._told, "seed": self._seed, **more}))


@contextlib.contextmanager
def crashers(kind: str, folder: str, seed: int, count: int, plant: str = "") -> Iterator[list[Crasher]]:
    """So many, each with a disk and servers of its own."""
    prepare(os.path.join(folder, "prepared"))
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            disk = stack.enter_context(loop_disk(kind, folder))
            servers = [stack.enter_context(Child(SERVER)) for _ in range(2)]
            made.append(Crasher(disk, folder, seed, servers, number, plant))
        yield made


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_crash_at_any_system_call_leaves_all_or_nothing(
    kind: str, folder: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Issue 3's seventh point on a real disk: I41, I42."""
    with crashers(kind, folder, seed, 2) as workers:
        calls = workers[0].list_calls()
        anomalies = in_parallel(lambda worker, index: workers[worker].crash(calls, index), range(len(calls)))
    outcomes = dict(sorted((workers[0].outcomes + workers[1].outcomes).items()))
    names = dict(Counter(call.name for call in calls).most_common())
    readers = dict(sorted((workers[0].readers + workers[1].readers).items()))
    unwanted = sum(worker.unwanted for worker in workers)
    record_property(f"two-phase commits crashed on {kind}", {"points": len(calls), **names, **outcomes})
    print(f"{kind}: killed at {len(calls)} system calls {names}, seed {seed}")
    print(f"outcomes {outcomes}; readers before recovery {readers}; {unwanted} stages that nobody was told of")
    assert not anomalies
    assert sum("/topics/" in call.text for call in calls if call.name in {"link", "linkat"}) == PARTS
    assert sum(outcomes.values()) == 2 * len(calls)
    assert unwanted > 0
    for crash in ("kill", "power loss"):
        # Else the crashes came all too early or all too late.
        assert min(outcomes.get(f"{crash}: {outcome}", 0) for outcome in ("committed", "not committed")) >= len(calls) // 10


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant])
def test_the_harness_catches_planted_bugs(plant: str, folder: str, seed: int) -> None:
    """A test that cannot fail proves nothing."""
    with crashers("ext4", folder, seed, 1, plant) as (crasher,):
        calls = crasher.list_calls()
        names = [at for at, call in enumerate(calls) if call.name in {"link", "linkat", "rename", "renameat2"}]
        # It shows soon behind the name of the first stage, or behind the new name of the last part.
        first = names[0] if plant.startswith("a stage") else max(at for at in names if "/topics/" in calls[at].text)
        for index in range(first + 1, min(first + 20, len(calls))):
            anomalies = crasher.crash(calls, index)
            if anomalies:
                assert not anomalies[0].startswith("not killed"), anomalies
                print(f"{plant}: caught at call {index} of {len(calls)}: {anomalies[0].splitlines()[0][:300]}")
                return
    pytest.fail(f"{plant}: and nothing was noticed")
