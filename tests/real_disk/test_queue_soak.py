"""
A queue with many clients is killed, or loses power, again and again; in the end nothing is missing, doubled or torn.

One store goes through all crashes of a test. The clients write down what they do and are told on another file, which no crash takes
away; after the last crash everything is drained, and queue_checker.py judges all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.real_disk.loop_disk import LoopDisk, loop_disk, refuse_memory
from tests.real_disk.processes import Child
from tests.real_disk.queue_checker import QueueChecker
from tests.real_disk.queue_worker import PRODUCERS, RULES, plan

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.real_disk.queue_checker import Final

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SERVER = [sys.executable, "-c", "from tests.real_disk.queue_worker import serve; serve()"]
KILL_SECONDS = 40.0
POWER_SECONDS = 30.0
DRAIN_SECONDS = 120.0


class Sessions:
    """Starts processes that use one store, and ends them as wanted; keeps the history."""

    def __init__(self, path: str, history: str, seed: int, *, power: bool) -> None:
        self._server = Child(SERVER)
        self._path = path
        self._history = history
        self._seed = seed
        self._power = power
        self._said = b""
        self._position = 0
        self._next = dict.fromkeys([f"p{number}" for number in range(PRODUCERS)], 0)
        self._unanswered: dict[str, dict[int, None]] = {name: {} for name in self._next}
        self._pid = 0
        self.number = 0
        self.checker = QueueChecker(RULES)

    def start(self, boot_id: bytes = b"", **more: Any) -> None:
        """Start the next process."""
        self.number += 1
        request = {
            "path": self._path, "history": self._history, "session": self.number, "seed": self._seed, "boot_id": boot_id.hex(),
            "resume": {name: [count, list(self._unanswered[name])] for name, count in self._next.items()},
            "fails_are_normal": self._power, **more,
        }  # fmt: skip
        assert self._server.process.stdin is not None
        self._server.process.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.process.stdin.flush()
        self._pid = int(self.wait_for("pid")[0])

    def wait_for(self, word: str, timeout: float = 60) -> list[str]:
        """Wait for a line that begins with *word*; returns the rest of it."""
        deadline = time.monotonic() + timeout
        assert self._server.process.stdout is not None
        while True:
            while b"\n" in self._said:
                line, _, self._said = self._said.partition(b"\n")
                words = line.decode().split()
                if words[0] == word:
                    return words[1:]
                # Whoever loses power while the store is opened fails, and is killed then.
                assert words[0] != "failed" or word == "ended", line.decode()
            ready, _, _ = select.select([self._server.process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"{word!r} was not said within {timeout} s")
            data = os.read(self._server.process.stdout.fileno(), 65536)
            if not data:
                raise RuntimeError(f"the server ended: {self._server.finish()}")
            self._said += data

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        expected = {signal.SIGKILL}
        if self._power:
            # A page of a mapped file that the dead disk cannot give any more ends the process before we do.
            expected.add(signal.SIGBUS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        status = int(self.wait_for("ended")[0])
        self._pid = 0
        assert os.WIFSIGNALED(status), f"the process ended by itself, with {os.waitstatus_to_exitcode(status)}"
        assert os.WTERMSIG(status) in expected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._pid:
                # It would keep the disk busy, and the server's output open.
                self.kill()
        finally:
            self._server.__exit__(*error)

    def crashed(self, how: str) -> None:
        """Write down that the process is gone, and read what it told."""
        self.read()
        with open(self._history, "ab") as file:
            file.write(json.dumps(["crashed", how]).encode() + b"\n")
        self.read()

    def read(self) -> None:
        """Take in what was added to the history; the last line of a killed process is whole, as each is one write."""
        with open(self._history, "rb") as file:
            file.seek(self._position)
            data = file.read()
        assert data.endswith(b"\n") or not data
        self._position += len(data)
        for line in data.splitlines():
            event = json.loads(line)
            self.checker.take(event)
            if event[0] == "send":
                name, number = event[1].split(".")
                self._next[name] = max(self._next[name], int(number) + 1)
                self._unanswered[name][int(number)] = None
            elif event[0] in {"sent", "refused"} and event[1].split(".")[0] in self._unanswered:
                name, number = event[1].split(".")
                self._unanswered[name].pop(int(number), None)

    def drain(self, folder: str, boot_id: bytes = b"") -> Final:
        """The last session: it consumes all there is, and says what is left."""
        answer = os.path.join(folder, "final")
        self._power = False
        self.start(boot_id, answer=answer, seconds=DRAIN_SECONDS)
        self.wait_for("drained", DRAIN_SECONDS + 60)
        self.wait_for("ended")
        self._pid = 0
        self.read()
        with open(answer, "rb") as file:
            final: Final = pickle.load(file)
        return final


def work_for_a_while(sessions: Sessions, rng: random.Random, boot_id: bytes = b"", **more: Any) -> None:
    """Start a session and return at the moment of its crash: while it works, or every sixth time while it opens the store."""
    sessions.start(boot_id, **more)
    if rng.random() < 1 / 6:
        time.sleep(rng.uniform(0, 0.06))
    else:
        sessions.wait_for("opened")
        time.sleep(rng.choice([rng.uniform(0, 0.2), rng.uniform(0, 1.2)]))


def judge(
    sessions: Sessions, final: Final, name: str, record_property: Callable[[str, object], None], seed: int
) -> Counter[str]:
    """Judge all of it: no anomaly, and enough happened."""
    anomalies = sessions.checker.judge(final)
    counts = sessions.checker.counts
    dead = Counter(letter.group for letter in final.dead)
    blamed = [letter for letter in final.dead if letter.reason != "as planned"]
    told = {
        "crashes": counts["crashed"], "sent": counts["sent"], "deliveries": counts["got"], "acks": counts["done ack"],
        "nacks": counts["done nack"], "rejects": counts["done reject"], "late": counts["late"], "transactions": counts["committed"],
        "flushes": counts["flushed"], "dead letters": dict(dead), "put down to crashes and leases": len(blamed),
        "of them innocent": sum(plan(letter.value) == "ack" for letter in blamed),
        "messages": {f"{topic}/{partition}": log.end for (topic, partition), log in final.logs.items()},
        "removed": sum(log.start for log in final.logs.values()),
    }  # fmt: skip
    record_property(name, told)
    print(f"{name} (seed {seed}): {told}")
    assert not anomalies, "\n".join(anomalies)
    # A message of the shared group that is always refused is a dead letter, every one of them.
    refused = {
        value
        for (topic, _), log in final.logs.items()
        for value in log.values
        if topic == "jobs" and plan(value) in {"reject", "fail always"}
    }
    assert refused
    assert not refused - {letter.value for letter in final.dead if letter.group == "shared"}
    return counts


def test_a_queue_that_is_killed_again_and_again(
    folder: str, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL at random moments, on the disk below the tests, which is a real one."""
    refuse_memory(folder)
    with Sessions(os.path.join(folder, "store"), os.path.join(folder, "history"), seed, power=False) as sessions:
        end = time.monotonic() + KILL_SECONDS
        kills = 0
        while kills < 50 or time.monotonic() < end:
            work_for_a_while(sessions, rng)
            sessions.kill()
            sessions.crashed("kill")
            kills += 1
            assert not sessions.checker.found, f"kill {kills}: {sessions.checker.judge_nothing()}"
        final = sessions.drain(folder)
    counts = judge(sessions, final, "queue killed", record_property, seed)
    # Of a busy machine too: how much is done between two kills is no promise.
    assert counts["sent"] > 10 * kills
    assert counts["done ack"] > 10 * kills
    assert counts["committed"] > kills
    assert min(counts["done nack"], counts["done reject"], counts["refused"]) > 10


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_queue_that_loses_power_again_and_again(
    kind: str, folder: str, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """All that was not synced is gone each time; the history lies on another file system."""
    with (
        loop_disk(kind, folder, megabytes=300) as disk,
        Sessions(os.path.join(disk.path, "store"), os.path.join(folder, "history"), seed, power=True) as sessions,
    ):
        end = time.monotonic() + POWER_SECONDS
        while disk.power_losses < 50 or time.monotonic() < end:
            work_for_a_while(sessions, rng, disk.boot_id)
            lose_power(disk, sessions)
            assert not sessions.checker.found, f"loss {disk.power_losses}: {sessions.checker.judge_nothing()}"
        final = sessions.drain(folder, disk.boot_id)
        counts = judge(sessions, final, f"queue without power on {kind}", record_property, seed)
    assert counts["sent"] > 5 * disk.power_losses
    assert counts["done ack"] > 5 * disk.power_losses
    assert counts["committed"] > disk.power_losses
    assert min(counts["done nack"], counts["done reject"]) > 10


def lose_power(disk: LoopDisk, sessions: Sessions) -> None:
    """Cut the power under the process that runs."""
    disk.cut_power(sessions.kill)
    sessions.crashed("power")


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [
        ("acks are not waited for", {"redelivered-after-durable-ack", "delivery-count"}),
        ("dead letters are finished a little later", {"dlq-dup"}),
        ("transactions take two frames", {"partial-transaction"}),
        ("keys are forgotten", {"dedup-miss"}),
        ("leases are too short", {"double-lease"}),
        ("failures are forgotten", {"delivery-count"}),
        ("order is not kept", {"reorder"}),
    ],
)
def test_the_harness_catches_a_planted_bug(planted: str, kinds: set[str], folder: str, rng: random.Random, seed: int) -> None:
    """A test that cannot fail proves nothing."""
    found: set[str] = set()
    for attempt in range(10):
        path, history = (os.path.join(folder, f"{name}-{attempt}") for name in ("store", "history"))
        with Sessions(path, history, seed + attempt, power=False) as sessions:
            for _ in range(8):
                sessions.start(plant=planted)
                sessions.wait_for("opened")
                # Longer at each attempt: on a busy machine little happens in so short a time.
                time.sleep(rng.uniform(0.1, 0.3) * (1 + attempt / 2))
                sessions.kill()
                sessions.crashed("kill")
                if sessions.checker.found.keys() & kinds:
                    break
            else:
                sessions.checker.judge(sessions.drain(folder))
        found |= sessions.checker.found.keys()
        if found & kinds:
            print(f"{planted}: {dict(sessions.checker.found)} after {sessions.number} sessions of attempt {attempt}")
            return
    pytest.fail(f"{planted}: nothing was noticed but {found}")


def test_the_harness_catches_a_journal_that_is_not_synced(folder: str, rng: random.Random, seed: int) -> None:
    """Only power loss shows this one: a killed process leaves the page cache."""
    with (
        loop_disk("ext4", folder) as disk,
        Sessions(os.path.join(disk.path, "store"), os.path.join(folder, "history"), seed, power=True) as sessions,
    ):
        for _ in range(10):
            sessions.start(disk.boot_id, forget="journal")
            try:
                sessions.wait_for("opened")
            except AssertionError as error:
                print(f"journal not synced: the store cannot be opened any more: {error}")
                return
            time.sleep(rng.uniform(0.1, 0.4))
            lose_power(disk, sessions)
            if sessions.checker.found:
                break
        else:
            sessions.checker.judge(sessions.drain(folder, disk.boot_id))
    print(f"journal not synced: {dict(sessions.checker.found)} after {sessions.number} sessions")
    assert sessions.checker.found
