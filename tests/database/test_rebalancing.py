"""Database consumers come and go while messages flow: each message has its effect once, in the order of its partition."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import database as databases
from penstock.errors import TakenOver
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.databases import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ORDERS, BILLING = "orders", "billing"
PARTITIONS = 4
PATIENCE_S = 120.0
ROOT = Path(__file__).parents[2]


class Member:
    """A consumer in a thread of its own, until it is told to leave: then it leaves with what it has in its hands."""

    def __init__(self, store: Any, database: Database) -> None:
        self._store = store
        # Connections of SQLite are closed by the thread that opened them.
        self._database = Database(database.address)
        self._leaving = threading.Event()
        self._failed: BaseException | None = None
        self.handled: list[str] = []
        self.partitions: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with databases.consumer(
                self._store, ORDERS, BILLING, connection=self._database.connect, batch_messages=3, backoff=0.001
            ) as found:
                while not self._leaving.is_set():
                    batch = found.get(0.02)
                    if batch is not None and not self._leaving.is_set():
                        with contextlib.suppress(TakenOver):
                            self._handle(batch)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._database.close()

    def _handle(self, batch: databases.Batch) -> None:
        with batch as cursor:
            for message in batch:
                self._database.insert(cursor, text_of(message))
        self.handled += [text_of(message) for message in batch]
        self.partitions.add(batch.partition)

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self._failed is None


def text_of(message: Any) -> str:
    return str(message.value.decode())


class Flow:
    """Messages for all partitions, one after the other, for as long as somebody waits for something."""

    def __init__(self, store: Any, database: Database) -> None:
        self._store, self._database = store, database
        self.values: list[str] = []
        store.create_topic(ORDERS, partitions=PARTITIONS)

    def publish(self) -> None:
        for partition in range(PARTITIONS):
            value = str(len(self.values))
            self._store.publish(ORDERS, value.encode(), partition=partition)
            self.values.append(value)

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end, "nobody goes on"
            self.publish()
            time.sleep(0.002)

    def check(self) -> None:
        """All had their effect, once, in the order of each partition."""
        end = time.monotonic() + PATIENCE_S
        while len(effects := self._database.effects()) < len(self.values) and time.monotonic() < end:
            time.sleep(0.01)
        assert sorted(effects, key=int) == self.values
        for partition in range(PARTITIONS):
            own = [int(value) for value in effects if int(value) % PARTITIONS == partition]
            assert own == sorted(own)


@contextlib.contextmanager
def all_leave(members: list[Member]) -> Iterator[None]:
    """At the end, and when the test has failed."""
    try:
        yield
    finally:
        for member in members:
            member.leave()


def test_a_consumer_joins_and_one_leaves_while_messages_flow(store: Any, database: Database) -> None:
    flow = Flow(store, database)
    first, second = members = [Member(store, database), Member(store, database)]
    with all_leave(members):
        flow.until(lambda: len(first.handled) > 20 and len(second.handled) > 20)
        third = Member(store, database)
        members.append(third)
        flow.until(lambda: len(third.handled) > 20)
        first.leave()
        left = len(flow.values)
        flow.until(lambda: second.partitions | third.partitions == set(range(PARTITIONS)) and len(flow.values) > left + 100)
        second.leave()
        third.partitions.clear()
        flow.until(lambda: third.partitions == set(range(PARTITIONS)))
        flow.check()
    done = [value for member in members for value in member.handled]
    assert sorted(done, key=int) == flow.values
    assert len(store.dead_letters(ORDERS)) == 0


DIES = """
import pathlib, sys, time
from penstock import database as databases, open
from tests.database.databases import Database

address, effects, flag = sys.argv[1:]
database = Database(effects)
with open(address) as store, databases.consumer(
    store, "orders", "billing", connection=database.connect, batch_messages=3, backoff=0.001
) as found:
    for number, batch in enumerate(found):
        with batch as cursor:
            for message in batch:
                database.insert(cursor, message.value.decode())
            if number == 5:
                pathlib.Path(flag).touch()
                time.sleep(3600)
"""


def test_a_process_that_is_killed_in_its_transaction_is_followed_by_the_others(tmp_path: Path, database: Database) -> None:
    with Store.open(tmp_path / "store", settings=SETTINGS) as store, RunningServer(store) as server:
        flow = Flow(store, database)
        members = [Member(store, database), Member(store, database)]
        with all_leave(members):
            flow.until(lambda: all(len(member.handled) > 10 for member in members))
            flag = tmp_path / "in the middle"
            process = subprocess.Popen([sys.executable, "-c", DIES, server.address, database.address, str(flag)], cwd=ROOT)
            try:
                flow.until(lambda: flag.exists() or process.poll() is not None)
            finally:
                process.kill()
                process.wait()
            assert flag.exists()
            flow.publish()
            flow.check()
        done = {value for member in members for value in member.handled}
        assert 0 < len(flow.values) - len(done) <= 15, "the killed one committed five batches"
