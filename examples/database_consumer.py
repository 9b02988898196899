"""Effects in a database, exactly once: the position is committed with them, so that a crash cannot part the two."""

import sqlite3

import penstock
from penstock import database

connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE balance (account TEXT PRIMARY KEY, cents INTEGER)")

with penstock.open("memory:") as store:
    store.publish_many("payments", [b"250", b"100", b"999"], keys=["ada", "bob", "ada"])

    # The first try dies half-way: the database rolls back, and the messages come again.
    crash = True
    with database.consumer(store, "payments", group="ledger", connection=connection) as consumer:
        for batch in consumer.batches(timeout=0.5):
            try:
                with batch as cursor:  # one transaction: effects and position
                    for message in batch:
                        cursor.execute(
                            "INSERT INTO balance VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
                            (message.key.decode(), int(message.value)),
                        )
                        if crash and message.offset == 1:
                            crash = False
                            raise ConnectionError("the network is gone")
            except ConnectionError as error:
                print("rolled back:", error)

    balances = dict(connection.execute("SELECT account, cents FROM balance"))
    assert balances == {"ada": 1249, "bob": 100}, "each payment once"
    position = database.positions(connection, "payments", "ledger")[0]
    assert position.offset == 3
    print("balances", balances, "at position", position.offset)
