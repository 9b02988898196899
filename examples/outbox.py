"""An outbox: a message is published if, and only if, the transaction commits that it belongs to; once, whoever crashes."""

import sqlite3

import penstock
from penstock import database

connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
database.outbox.create(connection)


def order(identity: int, item: str) -> None:
    connection.execute("INSERT INTO orders VALUES (?, ?)", (identity, item))
    database.outbox.publish(connection, "orders", item.encode(), key=str(identity))


order(1, "a gate")
connection.commit()
order(2, "a turbine that is sold out")
connection.rollback()

with penstock.open("memory:") as store:
    with database.relay(store, connection=connection) as relay:
        assert relay.run_once() == 1  # `relay.run()` goes on for ever; `penstock outbox relay` is a process of its own
        assert relay.run_once() == 0

    order(3, "a pipe")
    connection.commit()
    with database.relay(store, connection=connection) as successor:  # it takes over, whatever became of the other
        assert successor.run_once() == 1

    published = [message.value for message in store.read("orders")]
    assert published == [b"a gate", b"a pipe"], "what was committed, once"
    print("in the topic:", published)
