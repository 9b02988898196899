"""
A process that forks the processes which the tests kill: forking is cheap, and starting Python is not.

`python -m tests.database.worker STORE EFFECTS OUTBOX FLAGS`: for each line that it reads it forks a child that works until it is killed, or
with the line ``all`` until there is nothing left to do. A child writes its pid. It has a consumer and a relay at work at once,
each in its thread; when both have begun it writes that it is ready. STORE is a URL or the folder of a store that the child owns, EFFECTS
and OUTBOX are the databases. FLAGS is a file that tells, also after the child was killed, which of the two was in the middle of work.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from penstock import database as databases
from penstock.client.address import is_url, parse_address
from penstock.client.store import RemoteStore
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.databases import Database

TOPIC, GROUP, RELAYED = "orders", "billing", "payments"
POISON_EVERY = 41
MAX_DELIVERIES = 2
CONSUMER, RELAY = 0, 1
"""Where each has its flag: 1 from the moment that it has messages in its hands until their transactions are done."""
BEGUN, FLAGS = 2, 4
"""So much behind it is a flag that stays: it has had messages in its hands. And so many there are."""


def is_poison(value: bytes) -> bool:
    return int(value) % POISON_EVERY == 7


def note(flags: Any, helper: int, *, at_work: bool) -> None:
    flags[helper] = int(at_work)
    if at_work:
        flags[BEGUN + helper] = 1


def open_store(address: str) -> Any:
    if is_url(address):
        return RemoteStore(parse_address(address))
    return Store.open(address, settings=SETTINGS)


def consume(store: Any, database: Database, flags: Any, begun: threading.Barrier, *, until_empty: bool) -> None:
    chance = random.Random(os.getpid())
    with databases.consumer(
        store, TOPIC, GROUP, connection=database.connect, batch_messages=5, max_deliveries=MAX_DELIVERIES, backoff=0.001,
        backoff_max=0.002,
    ) as consumer:  # fmt: skip
        put_in_line = consumer._put_in_line

        def observed(found: Any) -> None:
            note(flags, CONSUMER, at_work=bool(found))
            put_in_line(found)

        consumer._put_in_line = observed  # type: ignore[method-assign]
        begun.wait()
        while True:
            batch = consumer.get(0.3 if until_empty else None)
            if batch is None:
                if is_done(store, database):
                    return
                continue
            try:
                with batch as cursor:
                    for message in batch:
                        value = message.value or b""
                        database.insert(cursor, value.decode())
                        if not until_empty:
                            time.sleep(chance.choice((0, 0, 0.0005, 0.002)))
                        if is_poison(value):
                            raise ValueError("poison")
            except ValueError:
                pass
            flags[CONSUMER] = int(bool(consumer._waiting))


def is_done(store: Any, database: Database) -> bool:
    """Whether every message had its effect, or is a dead letter: that nothing came for a while says so on an idle machine only."""
    reached = sum(one.offset for one in databases.positions(database.connect(), TOPIC, GROUP).values())
    ends = sum(store.ends(TOPIC).values())
    return bool(reached == ends and store.stats().topics[TOPIC].groups[GROUP].lag == 0)


def relay(store: Any, database: Database, flags: Any, begun: threading.Barrier, *, until_empty: bool) -> None:
    with databases.relay(store, connection=database.connect, batch_messages=4, poll=0.002) as running:
        take = running._take

        def observed(dialect: Any) -> Any:
            batch = take(dialect)  # deletes the batch before, and has given this one its number
            note(flags, RELAY, at_work=batch is not None)
            return batch

        running._take = observed  # type: ignore[method-assign]
        begun.wait()
        if until_empty:
            running.run_once()
        else:
            running.run()


def work(address: str, effects: str, outbox: str, flags: Any, *, until_empty: bool) -> None:
    def tell() -> None:
        os.write(1, b"ready\n")

    begun = threading.Barrier(2, action=tell)
    failed: list[BaseException] = []

    def run_relay() -> None:
        try:
            relay(store, Database(outbox), flags, begun, until_empty=until_empty)
        except BaseException as error:
            failed.append(error)
            begun.abort()
            raise

    with open_store(address) as store:
        thread = threading.Thread(target=run_relay)
        thread.start()
        consume(store, Database(effects), flags, begun, until_empty=until_empty)
        thread.join()
    assert not failed


def main() -> None:
    address, effects, outbox, path = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if not effects.startswith("/"):
        import psycopg  # noqa: F401 - once, and not in each child
    with open(path, "r+b") as file:
        flags = mmap.mmap(file.fileno(), 0)
    gc.freeze()
    for line in sys.stdin:
        if os.fork() == 0:
            code = 1
            try:
                # Not by the parent: it may be slower than the child is ready.
                os.write(1, b"pid %d\n" % os.getpid())
                work(address, effects, outbox, flags, until_empty=line.strip() == "all")
                code = 0
            finally:
                if code:
                    sys.excepthook(*sys.exc_info())
                os._exit(code)


if __name__ == "__main__":
    main()
