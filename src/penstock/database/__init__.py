"""
Exactly once together with a database: consumers whose effect and position commit in one transaction, and an outbox.

>>> import sqlite3, penstock
>>> from penstock import database
>>> store = penstock.open("memory:")
>>> connection = sqlite3.connect(":memory:")
>>> _ = connection.execute("CREATE TABLE payments (amount INTEGER)")
>>> _ = store.publish("payments", b"12")
>>> with database.consumer(store, "payments", group="ledger", connection=connection) as consumer:
...     for batch in consumer.batches(timeout=0):
...         with batch as cursor:
...             _ = cursor.executemany("INSERT INTO payments VALUES (?)", [(int(message.value),) for message in batch])
>>> connection.execute("SELECT amount FROM payments").fetchall()
[(12,)]
>>> store.close()

Both work with `sqlite3` and with PostgreSQL through psycopg (the extra ``postgres``), on any store that `penstock.open` gives.
"""

from __future__ import annotations

from penstock.database.batch import Batch
from penstock.database.consumer import DatabaseConsumer, consumer
from penstock.database.outbox import Outbox, SetAside
from penstock.database.positions import Position, forget_positions, positions
from penstock.database.relay import Relay, relay

outbox = Outbox()
"""The outbox in the table ``penstock_outbox``: `outbox.publish(connection, topic, value)`."""

__all__ = [
    "Batch", "DatabaseConsumer", "Outbox", "Position", "Relay", "SetAside", "consumer", "forget_positions", "outbox", "positions",
    "relay",
]  # fmt: skip
