"""
A process that forks the processes which the tests kill: forking is cheap, and starting Python is not.

`python -m tests.database.worker ROLE STORE DATABASE`: for each line that it reads it forks a child that works until it is killed, or with
the line ``all`` until there is nothing left to do, and writes the child's pid; the child writes when it begins to work. ROLE is consumer or
relay, STORE a URL or the folder of a store that the child owns.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

from penstock import database as databases
from penstock.client.address import is_url, parse_address
from penstock.client.store import RemoteStore
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.databases import Database

TOPIC, GROUP = "orders", "billing"
POISON_EVERY = 41
MAX_DELIVERIES = 2


def is_poison(value: bytes) -> bool:
    return int(value) % POISON_EVERY == 7


def open_store(address: str) -> Any:
    if is_url(address):
        return RemoteStore(parse_address(address))
    return Store.open(address, settings=SETTINGS)


def consume(store: Any, database: Database, *, until_empty: bool) -> None:
    chance = random.Random(os.getpid())

    def handle(cursor: Any, message: Any) -> None:
        database.insert(cursor, message.value.decode())
        time.sleep(chance.choice((0, 0, 0.0005, 0.002)))
        if is_poison(message.value):
            raise ValueError("poison")

    with databases.consumer(
        store, TOPIC, GROUP, connection=database.connect, batch_messages=5, max_deliveries=MAX_DELIVERIES, backoff=0.001,
        backoff_max=0.002,
    ) as consumer:  # fmt: skip
        os.write(1, b"ready\n")
        while True:
            batch = consumer.get(0.3 if until_empty else None)
            if batch is None:
                return
            try:
                with batch as cursor:
                    for message in batch:
                        handle(cursor, message)
            except ValueError:
                pass


def relay(store: Any, database: Database, *, until_empty: bool) -> None:
    with databases.relay(store, connection=database.connect, batch_messages=4, poll=0.002) as running:
        os.write(1, b"ready\n")
        if until_empty:
            running.run_once()
        else:
            running.run()


def main() -> None:
    role, address, place = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if not place.startswith("/"):
        import psycopg  # noqa: F401 - once, and not in each child
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with open_store(address) as store:
                    work = consume if role == "consumer" else relay
                    work(store, Database(place), until_empty=line.strip() == "all")
                code = 0
            finally:
                os._exit(code)
        os.write(1, b"pid %d\n" % pid)


if __name__ == "__main__":
    main()
