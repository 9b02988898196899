"""The outbox: published if and only if the transaction commits, once, and in the order of commits."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock import database as databases
from penstock.errors import BadArgument, BadName, Conflict, MessageTooLarge, TakenOver, TopicNotFound, Unavailable, UsageError
from penstock.store.store import Store
from penstock.values import MIB
from tests.conformance.backends import SETTINGS
from tests.database.databases import connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.database.databases import Database

ORDERS = "orders"


def values(store: Any, topic: str = ORDERS) -> list[str]:
    return [message.value.decode() for message in store.read(topic)]


def rows(database: Database) -> int:
    return int(database.run("SELECT COUNT(*) FROM penstock_outbox")[0][0])


def test_a_message_is_published_if_its_transaction_commits_and_only_then(store: Any, database: Database) -> None:
    connection = database.connect()
    databases.outbox.publish(connection, ORDERS, b"never")
    connection.rollback()
    with databases.relay(store, connection=database.connect) as relay:
        assert relay.run_once() == 0
        databases.outbox.publish(connection, ORDERS, b"not this either")
        connection.rollback()
        assert relay.run_once() == 0
        database.insert(connection.cursor(), "an order")
        databases.outbox.publish(connection, ORDERS, b"first", key="k", headers=[("a", b"\0\xff"), ("a", b"2")])
        databases.outbox.publish(connection, ORDERS, None, key=b"\xfe")
        connection.commit()
        assert relay.run_once() == 2
        assert relay.run_once() == 0
    first, second = store.read(ORDERS)
    assert (first.value, first.key, tuple(first.headers)) == (b"first", b"k", (("a", b"\0\xff"), ("a", b"2")))
    assert (second.value, second.key) == (None, b"\xfe")
    assert first.timestamp_us <= second.timestamp_us
    assert rows(database) == 0


def test_many_messages_to_many_topics_keep_their_order(store: Any, database: Database) -> None:
    store.create_topic(ORDERS, partitions=3)
    connection = database.connect()
    databases.outbox.create(connection)
    for number in range(60):
        databases.outbox.publish(connection, ORDERS if number % 3 else "others", str(number).encode(), key=str(number % 5))
    connection.commit()
    with databases.relay(store, connection=database.connect, batch_messages=7) as relay:
        assert relay.run_once() == 60
    for key in range(5):
        own = [int(message.value) for message in store.read(ORDERS) if message.key == str(key).encode()]
        assert own == [number for number in range(60) if number % 3 and number % 5 == key]
    assert values(store, "others") == [str(number) for number in range(0, 60, 3)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_batch_whose_relay_died_around_publishing_is_published_once(store: Any, database: Database, moment: str) -> None:
    connection = database.connect()
    for number in range(3):
        databases.outbox.publish(connection, ORDERS, str(number).encode())
    connection.commit()
    relay = databases.relay(store, connection=database.connect)
    commit = relay._store.commit

    def die(*arguments: Any) -> Any:
        if moment == "after":
            commit(*arguments)
        raise Unavailable("killed")

    relay._store = _With(store, commit=die)
    with pytest.raises(Unavailable, match="killed"):
        relay.run_once()
    databases.outbox.publish(connection, ORDERS, b"3")
    connection.commit()
    with databases.relay(store, connection=database.connect) as successor:
        successor.run_once()
        assert values(store) == ["0", "1", "2", "3"]
        assert rows(database) == 0
    relay.close()


class _With:
    """A store, some of whose calls are others."""

    def __init__(self, store: Any, **calls: Any) -> None:
        self._store = store
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_relay_that_was_stopped_for_a_while_changes_nothing(store: Any, database: Database) -> None:
    """It wakes up between its batch and publishing it, after its successor has done that, and more."""
    connection = database.connect()
    databases.outbox.publish(connection, ORDERS, b"0")
    connection.commit()
    zombie = databases.relay(store, connection=database.connect)
    stage = store.stage

    def stop_before_staging(producer: str) -> Any:
        zombie._store = store
        with databases.relay(store, connection=database.connect) as successor:
            successor.run_once()
            databases.outbox.publish(connection, ORDERS, b"1")
            connection.commit()
            successor.run_once()
        return stage(producer)

    zombie._store = _With(store, stage=stop_before_staging)
    with pytest.raises(TakenOver):
        zombie.run_once()
    assert values(store) == ["0", "1"]
    zombie.close()


def test_a_message_that_the_store_refuses_is_set_aside_and_the_others_go_on(tmp_path: Path, database: Database) -> None:
    with Store.open(tmp_path / "store", settings=SETTINGS, auto_create=False) as store:
        store.create_topic(ORDERS)
        connection = database.connect()
        databases.outbox.publish(connection, ORDERS, b"0")
        databases.outbox.publish(connection, "nowhere", b"lost?")
        databases.outbox.publish(connection, ORDERS, b"x" * 2 * MIB)
        databases.outbox.publish(connection, ORDERS, b"1")
        connection.commit()
        with databases.relay(store, connection=database.connect) as relay:
            relay.run_once()
            assert values(store) == ["0", "1"]
            first, second = databases.outbox.set_aside(connection)
            assert (first.topic, first.value) == ("nowhere", b"lost?")
            assert "TOPIC_NOT_FOUND" in first.error
            assert "MESSAGE_TOO_LARGE" in second.error
            store.create_topic("nowhere")
            connection.rollback()
            assert databases.outbox.retry(connection, [first.id]) == 1
            assert relay.run_once() == 1
            assert values(store, "nowhere") == ["lost?"]


def test_more_than_a_partition_takes_at_once_is_published_all_the_same(store: Any, database: Database) -> None:
    """A batch of an outbox may have 16 MiB, and a call of the store 8 MiB for a partition."""
    connection = database.connect()
    databases.outbox.create(connection)
    contents = [b"%05d" % at + bytes(100_000) for at in range(100)]
    for content in contents:
        databases.outbox.publish(connection, ORDERS, content, key="one")
    connection.commit()
    with databases.relay(store, connection=database.connect) as relay:
        assert relay.run_once() == 100
    assert [message.value for message in store.read(ORDERS)] == contents


def test_what_no_topic_can_take_is_refused_at_once(database: Database) -> None:
    connection = database.connect()
    with pytest.raises(BadName):
        databases.outbox.publish(connection, "../x", b"")
    with pytest.raises(BadArgument):
        databases.outbox.publish(connection, ORDERS, "text")  # type: ignore[arg-type]
    with pytest.raises(MessageTooLarge):
        databases.outbox.publish(connection, ORDERS, bytes(65 * MIB))


def test_a_connection_that_commits_by_itself_needs_a_transaction(store: Any, database: Database) -> None:
    connection = database.connect()
    if database.is_sqlite:
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(UsageError, match="begin one"):
        databases.outbox.publish(connection, ORDERS, b"0")
    connection.execute("BEGIN")
    databases.outbox.publish(connection, ORDERS, b"1")
    connection.execute("COMMIT")
    with databases.relay(store, connection=database.connect) as relay:
        assert relay.run_once() == 1
    assert values(store) == ["1"]


def test_a_relay_runs_until_it_is_stopped(store: Any, database: Database) -> None:
    connection = database.connect()
    databases.outbox.create(connection)
    store.create_topic(ORDERS)
    made = threading.Event()
    relays: list[databases.Relay] = []

    def work() -> None:
        # Made here, since a connection of SQLite is for the thread that opened it.
        with databases.relay(store, connection=lambda: connect(database.address), poll=0.01) as relay:
            relays.append(relay)
            made.set()
            relay.run()

    thread = threading.Thread(target=work)
    thread.start()
    assert made.wait(60)
    with store.subscribe(ORDERS, "g") as consumer:
        databases.outbox.publish(connection, ORDERS, b"0")
        connection.commit()
        assert consumer.get(60).value == b"0"
    relays[0].stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.long
@pytest.mark.xdist_group("postgres")
def test_rows_that_become_visible_late_are_published_late_and_not_lost(store: Any, postgres: Database) -> None:
    """The transaction with the lower id commits after the relay has seen a higher one."""
    slow, quick = postgres.connect(), postgres.connect()
    databases.outbox.create(slow)
    databases.outbox.publish(slow, ORDERS, b"slow", key="a")
    databases.outbox.publish(quick, ORDERS, b"quick", key="b")
    quick.commit()
    with databases.relay(store, connection=postgres.connect) as relay:
        assert relay.run_once() == 1
        slow.commit()
        assert relay.run_once() == 1
    assert values(store) == ["quick", "slow"]


@pytest.mark.long
@pytest.mark.xdist_group("postgres")
def test_messages_of_one_key_are_published_in_the_order_of_commits(store: Any, postgres: Database) -> None:
    """The second transaction of a key waits with its message until the first has ended; so nobody's id is out of order."""
    first, second = postgres.connect(), postgres.connect()
    databases.outbox.create(first)
    databases.outbox.publish(first, ORDERS, b"first", key="a")
    began, done = threading.Event(), threading.Event()

    def publish() -> None:
        began.set()
        databases.outbox.publish(second, ORDERS, b"second", key="a")
        second.commit()
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    assert began.wait(60)
    assert not done.wait(0.2)
    first.commit()
    thread.join(60)
    with databases.relay(store, connection=postgres.connect) as relay:
        assert relay.run_once() == 2
    assert values(store) == ["first", "second"]


def test_an_outbox_that_was_set_back_takes_no_new_message_for_an_old_one(store: Any, database: Database) -> None:
    connection = database.connect()

    def publish(text: str) -> None:
        databases.outbox.publish(connection, ORDERS, text.encode())
        connection.commit()

    def relay() -> int:
        with databases.relay(store, connection=database.connect) as found:
            return found.run_once()

    publish("before the backup")
    assert relay() == 1
    [(number,)] = database.run("SELECT batch_number FROM penstock_outbox_relay")
    for text in ("second", "third"):
        publish(text)
        assert relay() == 1
    database.run("UPDATE penstock_outbox_relay SET batch_number = ?", number)  # as a backup of then has it
    publish("after it")
    for _ in range(2):
        with pytest.raises(Conflict, match=r"set back.*begin_anew"):
            relay()
        assert rows(database) == 1
    assert databases.outbox.begin_anew(connection) == 1
    assert relay() == 1
    assert values(store) == ["before the backup", "second", "third", "after it"]
    assert rows(database) == 0


def test_publishing_first_in_a_transaction_waits_for_other_writers(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks before it writes: nobody may write in between, or SQLite would refuse it at once."""
    connection, other = sqlite.connect(), sqlite.connect()
    databases.outbox.create(connection)
    other.execute("PRAGMA busy_timeout = 0")
    looks = databases.Outbox._exists

    def look(*arguments: Any) -> bool:
        found = looks(*arguments)
        with contextlib.suppress(sqlite3.OperationalError):
            sqlite.insert(other.cursor(), "in between")
        other.commit()
        return found

    monkeypatch.setattr(databases.Outbox, "_exists", look)
    databases.outbox.publish(connection, ORDERS, b"1")
    connection.commit()
    assert rows(sqlite) == 1
    assert sqlite.effects() == []


def test_what_was_published_before_its_relay_died_is_not_set_aside_if_the_store_would_refuse_it_now(
    store: Any, database: Database
) -> None:
    """Its topic is gone, perhaps: tried again, it would come twice."""
    connection = database.connect()
    databases.outbox.publish(connection, ORDERS, b"1")
    connection.commit()
    commit = store.commit

    def die(*arguments: Any) -> None:
        commit(*arguments)
        raise Unavailable("killed")

    def refuse(*_: object) -> None:
        raise TopicNotFound(ORDERS)

    with (
        databases.relay(_With(store, commit=die), connection=database.connect) as relay,
        pytest.raises(Unavailable, match="killed"),
    ):
        relay.run_once()
    with databases.relay(_With(store, stage=refuse), connection=database.connect) as successor:
        assert successor.run_once() == 1
    assert rows(database) == 0
    assert values(store) == ["1"]
