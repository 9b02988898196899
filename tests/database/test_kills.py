"""A consumer and a relay that are killed at random: effects exactly once, and messages exactly once in their topic."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from penstock import database as databases
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.databases import Database, make_effects, memory_folder
from tests.database.worker import BEGUN, CONSUMER, FLAGS, GROUP, RELAY, RELAYED, TOPIC, is_poison

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
MESSAGES_EACH, MESSAGES_MIN = 20, 400
"""So many messages are there to consume for each kill, and at least; more are published when few are left, however slow the relay is."""
PATIENCE_S = 120.0
"""What nobody waits for unless something is broken."""


def is_delayed(number: int) -> bool:
    return number % 10 == 3


class Forker:
    """See `tests.database.worker`."""

    def __init__(self, store: str, effects: Database, outbox: Database, flags: Path) -> None:
        flags.write_bytes(bytes(FLAGS))
        self._flags = flags
        command = [sys.executable, "-m", "tests.database.worker", store, effects.address, outbox.address, str(flags)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def fork(self, line: str = "work") -> int:
        assert self._process.stdin is not None
        with open(self._flags, "r+b") as file:
            file.write(bytes(FLAGS))
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._line("pid").split()[1])

    def _line(self, start: str) -> str:
        """The next line that begins so; others are of processes that were killed meanwhile."""
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith(start):
            assert line, "the process that forks has ended"
        return line

    def kill(self, rng: random.Random, wanted: int) -> bytes:
        """
        Fork one and kill it: mostly while the *wanted* one of its two works, sometimes while it opens its store and its databases.

        There must be work for that one: it is waited for, and may be done with it before this process sees that.

        Returns, for the consumer and for the relay, whether it was in the middle of work.
        """
        pid = self.fork()
        if rng.random() < 0.9:
            self._line("ready")
            _wait_until(pid, lambda: bool(self._flags.read_bytes()[BEGUN + wanted]))
            time.sleep(rng.choice((0, rng.uniform(0, 0.015))))
        else:
            time.sleep(rng.uniform(0, 0.04))
        os.kill(pid, signal.SIGKILL)
        _wait(pid)
        return self._flags.read_bytes()[:BEGUN]

    def kill_after(self, is_so: Callable[[], bool]) -> None:
        """Fork one and kill it when that is so."""
        pid = self.fork()
        _wait_until(pid, is_so)
        os.kill(pid, signal.SIGKILL)
        _wait(pid)

    def work_to_the_end(self) -> None:
        _wait(self.fork("all"), 5 * PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _wait_until(pid: int, is_so: Callable[[], bool]) -> None:
    """Until the process, which must be there, has come so far."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        os.kill(pid, 0)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} does nothing")
        time.sleep(0.0005)


def _wait(pid: int, patience_s: float = PATIENCE_S) -> None:
    """Until the process, which is not our child, is gone."""
    end = time.monotonic() + patience_s
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
        self._store.create_topic(RELAYED, partitions=2)

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


class Writer:
    """Writes to the outbox, and knows what was committed."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self._connection = database.connect()
        self._rng = rng
        self._number = 0
        self.committed: list[str] = []
        databases.outbox.create(self._connection)

    def write(self) -> None:
        """Something is committed each time, so that there is work for the relay."""
        for last in (False,) * 5 + (True,):
            here = []
            for _ in range(self._rng.randint(1, 5)):
                databases.outbox.publish(self._connection, RELAYED, str(self._number).encode(), key=f"k{self._number % 7}")
                here.append(str(self._number))
                self._number += 1
            if last or self._rng.random() < 0.8:
                self._connection.commit()
                self.committed += here
            else:
                self._connection.rollback()


def publish(store: Store, count: int, first: int = 0) -> list[str]:
    """Some of them are overtaken by others."""
    numbers = range(first, first + count)
    store.publish_many(
        TOPIC, [str(number).encode() for number in numbers], keys=[f"k{number % 7}" for number in numbers],
        delays=[0.5 if is_delayed(number) else None for number in numbers],
    )  # fmt: skip
    return [str(number) for number in numbers]


def count_effects(database: Database) -> int:
    return int(database.run("SELECT COUNT(*) FROM effects")[0][0])


def check_consumer(place: Place, database: Database, values: list[str]) -> None:
    effects = database.effects()
    dead = [(letter.value or b"").decode() for letter in place.store.dead_letters(TOPIC)]
    assert sorted(effects + dead, key=int) == values, "each had its effect or is a dead letter, once"
    assert {value for value in values if is_poison(value.encode())} <= set(dead)
    for key in range(7):
        own = [int(value) for value in effects if int(value) % 7 == key and not is_delayed(int(value))]
        assert own == sorted(own), "in order"
    found = databases.positions(database.connect(), TOPIC, GROUP).values()
    assert sum(one.offset for one in found) == len(values)


def check_relay(place: Place, database: Database, committed: list[str]) -> None:
    found = [(message.value or b"").decode() for message in place.store.read(RELAYED)]
    assert sorted(found, key=int) == committed, "each exactly once, and nothing that was rolled back"
    for key in range(7):
        own = [int(value) for value in found if int(value) % 7 == key]
        assert own == sorted(own), "in order"
    assert database.run("SELECT COUNT(*) FROM penstock_outbox")[0][0] == 0


def check(effects: Database, outbox: Database, folder: Path, rng: random.Random, kills: int, *, served: bool) -> None:
    """Kill until each of the two was in the middle of work so many times."""
    place = Place(str(folder / "store"), served=served)
    try:
        values = publish(place.store, max(MESSAGES_MIN, kills * MESSAGES_EACH))
        place.hand_over()
        writer = Writer(outbox, rng)
        counts = [0, 0]
        rounds = missed = 0
        with Forker(place.address, effects, outbox, folder / "flags") as forker:
            forker.kill_after(lambda: count_effects(effects) > 0)
            while min(counts) < kills:
                for _ in range(1 + missed):
                    writer.write()
                if sum(not is_poison(value.encode()) for value in values) - count_effects(effects) < MESSAGES_MIN // 2:
                    values += publish(place.store, MESSAGES_MIN, len(values))
                    place.hand_over()
                wanted = counts.index(min(counts))
                found = forker.kill(rng, wanted)
                for helper, was_at_work in enumerate(found):
                    counts[helper] += was_at_work
                # More to do for the relay, until this process is quick enough to kill it in the middle.
                missed = 0 if found[wanted] else missed + 1
                rounds += 1
                # One of ten is killed while it opens, and some are done with their work when the signal comes.
                assert rounds < 20 * kills + 100, f"too seldom at work: {counts}"
            done = count_effects(effects)
            forker.work_to_the_end()
        print(
            f"{rounds} kills, in the work of the consumer {counts[CONSUMER]}, of the relay {counts[RELAY]}; {done} effects before"
        )
        check_consumer(place, effects, values)
        check_relay(place, outbox, writer.committed)
        assert done > 0, "they did some of the work before the last one did the rest"
    finally:
        place.close()
        effects.close()
        outbox.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For the store and the databases of SQLite."""
    with tempfile.TemporaryDirectory(prefix="penstock-kills-", dir=memory_folder(str(tmp_path))) as made:
        yield Path(made)


def sqlite_of(folder: Path) -> tuple[Database, Database]:
    """For the effects and for the outbox: SQLite has one writer at a time."""
    effects = Database(str(folder / "effects.sqlite"))
    make_effects(effects)
    return effects, Database(str(folder / "outbox.sqlite"))


def test_a_few_kills(folder: Path, rng: random.Random) -> None:
    check(*sqlite_of(folder), folder, rng, 4, served=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_kills_of_each_helper_with_sqlite(folder: Path, rng: random.Random) -> None:
    """The killed process owns the store too."""
    check(*sqlite_of(folder), folder, rng, 100, served=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("postgres")
def test_a_hundred_kills_of_each_helper_with_postgres(postgres: Database, folder: Path, rng: random.Random) -> None:
    """The store is on a server that lives on."""
    check(postgres, postgres, folder, rng, 100, served=True)
