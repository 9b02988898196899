"""Consumers and relays that are killed at random: effects exactly once, and messages exactly once in their topic."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from penstock import database as databases
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.worker import GROUP, TOPIC, is_poison

if TYPE_CHECKING:
    import random

    from tests.database.databases import Database

ROOT = Path(__file__).parents[2]


class Forker:
    """See `tests.database.worker`."""

    def __init__(self, role: str, store: str, database: Database) -> None:
        command = [sys.executable, "-m", "tests.database.worker", role, store, database.address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def fork(self, line: str = "work") -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._line("pid").split()[1])

    def _line(self, start: str) -> str:
        """The next line that begins so; others are of processes that were killed meanwhile."""
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(start):
            assert line, "the process that forks has ended"
        return line

    def kill(self, rng: random.Random) -> None:
        """Fork one and kill it: mostly while it works, sometimes while it opens its store and its database."""
        pid = self.fork()
        if rng.random() < 0.85:
            self._line("ready")
            time.sleep(rng.uniform(0, 0.06))
        else:
            time.sleep(rng.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        _wait(pid)

    def work_to_the_end(self) -> None:
        _wait(self.fork("all"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _wait(pid: int) -> None:
    """Until the process, which is not our child, is gone."""
    end = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.001)
        raise AssertionError(f"process {pid} goes on")


class Place:
    """The store, in a folder that the killed process owns, or on a server of this process that lives on."""

    def __init__(self, folder: str, *, served: bool) -> None:
        self._folder = folder
        self._store = Store.open(folder, settings=SETTINGS)
        self._server = RunningServer(self._store) if served else None
        self.address = folder if self._server is None else self._server.address
        self._store.create_topic(TOPIC, partitions=2)

    def hand_over(self) -> None:
        """Nobody here needs the store for now."""
        if self._server is None:
            self._store.close()

    @property
    def store(self) -> Store:
        if self._store.closed:
            self._store = Store.open(self._folder, settings=SETTINGS)
        return self._store

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._store.close()


def check_consumers(place: Place, database: Database, rng: random.Random, kills: int) -> None:
    values = [str(number) for number in range(kills * 12)]
    place.store.publish_many(TOPIC, [value.encode() for value in values], keys=[f"k{int(value) % 7}" for value in values])
    place.hand_over()
    with Forker("consumer", place.address, database) as forker:
        for _ in range(kills):
            forker.kill(rng)
        before = len(database.effects())
        forker.work_to_the_end()
    effects = database.effects()
    dead = [(letter.value or b"").decode() for letter in place.store.dead_letters(TOPIC)]
    assert sorted(effects + dead, key=int) == values, "each had its effect or is a dead letter, once"
    assert {value for value in values if is_poison(value.encode())} <= set(dead)
    for key in range(7):
        own = [int(value) for value in effects if int(value) % 7 == key]
        assert own == sorted(own), "in order"
    assert kills < 50 or before > 0, "the killed ones did some of the work"
    assert sum(one.offset for one in databases.positions(database.connect(), TOPIC, GROUP).values()) == len(values)


def check_relays(place: Place, database: Database, rng: random.Random, kills: int) -> None:
    place.hand_over()
    connection = database.connect()
    databases.outbox.create(connection)
    committed: list[str] = []
    number = 0
    with Forker("relay", place.address, database) as forker:
        for _ in range(kills):
            for _ in range(rng.randint(1, 4)):
                here = []
                for _ in range(rng.randint(1, 5)):
                    databases.outbox.publish(connection, TOPIC, str(number).encode(), key=f"k{number % 7}")
                    here.append(str(number))
                    number += 1
                if rng.random() < 0.8:
                    connection.commit()
                    committed += here
                else:
                    connection.rollback()
            forker.kill(rng)
        forker.work_to_the_end()
    found = [(message.value or b"").decode() for message in place.store.read(TOPIC)]
    assert sorted(found, key=int) == committed, "each exactly once, and nothing that was rolled back"
    for key in range(7):
        own = [int(value) for value in found if int(value) % 7 == key]
        assert own == sorted(own), "in order"
    assert database.run("SELECT COUNT(*) FROM penstock_outbox")[0][0] == 0


CHECKS = {"consumers": check_consumers, "relays": check_relays}


@pytest.mark.parametrize("what", CHECKS)
def test_a_few_kills(what: str, sqlite: Database, tmp_path: Path, rng: random.Random) -> None:
    _check(what, sqlite, str(tmp_path / "store"), rng, 5, served=False)


@pytest.mark.long
@pytest.mark.parametrize("what", CHECKS)
def test_fifty_kills_of_each_with_each_database(what: str, database: Database, tmp_path: Path, rng: random.Random) -> None:
    """With SQLite the killed process owns the store too; with PostgreSQL the store is on a server."""
    _check(what, database, str(tmp_path / "store"), rng, 50, served=not database.is_sqlite)


def _check(what: str, database: Database, folder: str, rng: random.Random, kills: int, *, served: bool) -> None:
    place = Place(folder, served=served)
    try:
        CHECKS[what](place, database, rng, kills)
    finally:
        place.close()
