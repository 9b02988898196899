"""
Eight processes publish to and consume from one folder while its owner is killed again and again.

The first owners are some of the eight, which are started anew when they were hit; later ones are mostly helpers. After the last kill
everything is drained and compared: what was acknowledged is stored, once; each group got all of it; what was acked durably did not come
again.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import Unavailable
from tests.sharing.processes import PATIENCE_S, SETTINGS, eventually, owner_of
from tests.sharing.worker import GROUPS, PARTITIONS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 30
WORKERS = 8


class Crew:
    """The eight, of which those that were killed are replaced."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._incarnation = 0
        self.workers: dict[int, subprocess.Popen[str]] = {}
        for number in range(WORKERS):
            self.start(number)

    def start(self, number: int) -> None:
        """Start one of them."""
        self._incarnation += 1
        history = self._folder / f"history-{number}-{self._incarnation}"
        self.workers[number] = subprocess.Popen(
            [sys.executable, "-m", "tests.sharing.worker", str(self._path), str(number), str(self._incarnation), str(history)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def hear(self, word: str) -> None:
        """Wait until each of them has said *word*."""
        for worker in self.workers.values():
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith(word)

    def tell(self) -> None:
        """Send each of them a line."""
        for worker in self.workers.values():
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()

    def replace_dead(self) -> int:
        """Start anew who was killed; returns how many."""
        dead = [number for number, worker in self.workers.items() if worker.poll() is not None]
        for number in dead:
            self.workers[number].communicate()
            self.start(number)
        return len(dead)

    def wait_for_publishes(self) -> None:
        """Wait until more was acknowledged than now."""
        before = self._acknowledged()
        eventually(lambda: self._acknowledged() > before, "nobody can publish")

    def _acknowledged(self) -> int:
        return sum(history.read_bytes().count(b"stored ") for history in self._folder.glob("history-*"))

    def end(self) -> list[int]:
        """Their exit codes."""
        for worker in self.workers.values():
            try:
                worker.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.communicate()
        return [worker.returncode for worker in self.workers.values()]

    def kill(self) -> None:
        """All of them."""
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
            worker.communicate()


def test_an_owner_that_is_killed_thirty_times_loses_and_doubles_nothing(
    tmp_path: Path, path: Path, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """I1-I8, I16-I24 for a shared folder."""
    with penstock.open(path, **SETTINGS) as store:
        store.create_topic("t", partitions=PARTITIONS)
        for group in GROUPS:
            store.subscribe("t", group).close()
    crew = Crew(path, tmp_path)
    kinds = collections.Counter[str]()
    try:
        crew.hear("open")
        for _ in range(KILLS):
            if rng.random() < 0.7:
                crew.wait_for_publishes()
                time.sleep(rng.uniform(0.0, 0.2))
            # The others at any moment: also while the next owner recovers, and before it serves.
            kinds[_kill_owner(path, crew, at_once=rng.random() < 0.5)] += 1
        crew.replace_dead()
        crew.tell()
        for worker in crew.workers.values():
            assert worker.stdout is not None
            while (line := worker.stdout.readline()) and line != "published\n":
                pass
            assert line, f"a worker has ended: {worker.poll()}"
        _drain(path)
        crew.tell()
        assert crew.end() == [0] * WORKERS
    finally:
        crew.kill()
    counts = _judge(tmp_path, path)
    counts |= {"kills": KILLS, "of": dict(kinds), "seed": seed}
    print(counts)
    record_property("owner kills", counts)
    assert counts["acked"] > 20 * KILLS
    assert kinds["helper"] >= 5
    assert kinds["worker"] >= 1


def _kill_owner(path: Path, crew: Crew, *, at_once: bool) -> str:
    """Kill who owns the store, at whatever it does; returns what it was. *at_once*: a worker comes back before another owner does."""
    found: list[int] = []

    def is_owned() -> bool:
        owner = owner_of(path)
        if owner is not None:
            found.append(owner)
        return owner is not None

    eventually(is_owned, "nobody takes over")
    owner = found[-1]
    is_worker = owner in {worker.pid for worker in crew.workers.values()}
    os.kill(owner, signal.SIGKILL)
    eventually(lambda: owner_of(path) != owner, "a dead process owns it")
    if is_worker:
        if not at_once:
            eventually(lambda: owner_of(path) is not None, "nobody takes over")
        eventually(lambda: crew.replace_dead() > 0, "a killed process lives")
    return "worker" if is_worker else "helper"


def _drain(path: Path) -> None:
    """Wait until every group has finished all that is stored."""
    with penstock.open(path, **SETTINGS) as store:
        end = time.monotonic() + 4 * PATIENCE_S
        while time.monotonic() < end:
            try:
                groups = store.stats().topics["t"].groups
            except Unavailable:
                continue
            if all(groups[group].lag == 0 for group in GROUPS):
                return
            time.sleep(0.1)
    raise AssertionError(f"not drained: {groups}")


def _judge(folder: Path, path: Path) -> dict[str, Any]:
    """Compare what the processes were told with what is stored."""
    acked: dict[str, tuple[int, int]] = {}
    tried: set[str] = set()
    got: dict[str, list[tuple[str, float]]] = {group: [] for group in GROUPS}
    done: dict[str, dict[str, float]] = {group: {} for group in GROUPS}
    anomalies: list[str] = []
    for history in sorted(folder.glob("history-*")):
        for line in history.read_text().split("\n")[:-1]:
            kind, *words = line.split(" ")
            if kind == "try":
                tried.add(words[0])
            elif kind == "stored":
                acked[words[0]] = (int(words[1]), int(words[2]))
            elif kind == "got":
                got[words[0]].append((words[1], float(words[2])))
            elif kind == "done":
                if words[1] in done[words[0]]:
                    anomalies.append(f"finished twice: {words[1]} in {words[0]}")
                done[words[0]][words[1]] = float(words[2])
            else:
                anomalies.append(line)
    stored: dict[str, tuple[int, int]] = {}
    orders: dict[tuple[str, int], int] = {}
    with penstock.open(path, **SETTINGS) as store:
        for message in store.read("t"):
            value = bytes(message.value or b"").decode()
            if value in stored:
                anomalies.append(f"duplicate: {value} at {stored[value]} and {message.partition}/{message.offset}")
            stored[value] = (message.partition, message.offset)
            name, kind, count = value.split("-")
            if kind == "many":
                if int(count) < orders.get((name, message.partition), -1):
                    anomalies.append(f"reorder: {value}")
                orders[name, message.partition] = int(count)
        assert [info.name for info in store.topics()] == ["t"]
    for value, place in acked.items():
        if stored.get(value) != place:
            anomalies.append(f"lost: {value} was acknowledged at {place}, and is at {stored.get(value)}")
    anomalies += [f"invented: {value}" for value in stored.keys() - tried]
    for group in GROUPS:
        anomalies += [f"not delivered: {value} to {group}" for value in stored.keys() - {value for value, _ in got[group]}]
        for value, asked in got[group]:
            if asked > done[group].get(value, float("inf")):
                anomalies.append(f"redelivered after a durable ack: {value} in {group}")
    assert not anomalies, (len(anomalies), anomalies[:20])
    deliveries = sum(map(len, got.values()))
    distinct = sum(len({value for value, _ in got[group]}) for group in GROUPS)
    return {"acked": len(acked), "stored": len(stored), "delivered": distinct, "redelivered": deliveries - distinct}
