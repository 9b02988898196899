"""A consumer whose effects and position commit together: rollback, restart, rebalancing, poison, and positions that do not fit."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import database as databases
from penstock.errors import BadArgument, PositionLost, TakenOver, UsageError
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.database.databases import connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.database.databases import Database

ORDERS, BILLING = "orders", "billing"
PATIENCE_S = 60.0


def publish(store: Any, count: int, first: int = 0, **options: Any) -> list[str]:
    values = [str(number) for number in range(first, first + count)]
    store.publish_many(ORDERS, [value.encode() for value in values], **options)
    return values


def consumer(store: Any, database: Database, **options: Any) -> databases.DatabaseConsumer:
    return databases.consumer(store, ORDERS, BILLING, connection=database.connect, backoff=0.01, **options)


def is_done(store: Any, database: Database) -> bool:
    """Whether every message had its effect, or was given up."""
    with contextlib.closing(connect(database.address)) as connection:
        reached = sum(one.offset for one in databases.positions(connection, ORDERS, BILLING).values())
    return bool(reached == sum(store.ends(ORDERS).values()))


def handle_all(found: databases.DatabaseConsumer, store: Any, database: Database) -> None:
    """Let every message have its effect, however long that takes, and then look once more."""
    while (batch := found.get(0.2 if is_done(store, database) else PATIENCE_S)) is not None:
        with batch as cursor:
            for message in batch:
                database.insert(cursor, text_of(message))


def drain(store: Any, database: Database, **options: Any) -> None:
    with consumer(store, database, **options) as found:
        handle_all(found, store, database)


def text_of(message: Any) -> str:
    return str(message.value.decode())


def first_batch(found: databases.DatabaseConsumer, timeout: float = PATIENCE_S) -> databases.Batch:
    batch = found.get(timeout)
    assert batch is not None
    return batch


def group_position(store: Any) -> int:
    return sum(store.stats().topics[ORDERS].groups[BILLING].positions.values())


def test_effects_and_position_are_committed_together(store: Any, database: Database) -> None:
    values = publish(store, 250)
    drain(store, database)
    assert database.effects() == values
    assert databases.positions(database.connect(), ORDERS, BILLING)[0].offset == 250
    store.flush()
    assert group_position(store) == 250


def test_what_a_block_that_raises_did_is_rolled_back_and_comes_again(store: Any, database: Database) -> None:
    values = publish(store, 5)
    failed = False
    with consumer(store, database) as found:
        for batch in found.batches(PATIENCE_S):
            try:
                with batch as cursor:
                    for message in batch:
                        database.insert(cursor, text_of(message))
                        if message.offset == 3 and not failed:
                            failed = True
                            raise ValueError("the third is too much")
            except ValueError:
                assert database.effects() == []
            if len(database.effects()) == 5:
                break
    assert failed
    assert database.effects() == values


def test_a_restart_goes_on_at_the_position_of_the_database_when_acks_were_lost(tmp_path: Path, database: Database) -> None:
    store = Store.open(tmp_path / "store", settings=SETTINGS)
    values = publish(store, 10)
    found = consumer(store, database)
    opened = first_batch(found)
    found._consumer.ack = lambda messages: None  # the process dies after the commit
    with opened as cursor:
        for message in opened:
            database.insert(cursor, text_of(message))
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with Store.open(tmp_path / "killed", settings=SETTINGS) as again:
        assert group_position(again) == 0
        values += publish(again, 3, 10)
        drain(again, database)
        assert database.effects() == values
    found.close()
    store.close()


def test_what_had_its_effect_before_is_passed_over_even_without_time(tmp_path: Path, database: Database) -> None:
    """What a group died with it delivers one by one: each is a look of its own, and so is the first that is new."""
    store = Store.open(tmp_path / "store", settings=SETTINGS)
    publish(store, 10)
    found = consumer(store, database)
    opened = first_batch(found)
    found._consumer.ack = lambda messages: None
    store.flush()
    with opened as cursor:
        for message in opened:
            database.insert(cursor, text_of(message))
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with Store.open(tmp_path / "killed", settings=SETTINGS) as again:
        publish(again, 3, 10)
        with consumer(again, database) as other:
            assert [message.offset for message in first_batch(other, timeout=0)] == [10]
    found.close()
    store.close()


def test_a_group_that_is_ahead_of_the_database_goes_back(store: Any, database: Database) -> None:
    values = publish(store, 5)
    with store.subscribe(ORDERS, BILLING) as other:
        other.ack(other.get_many(3))
    drain(store, database)
    assert database.effects() == values


def test_a_gap_in_what_the_group_delivers_is_filled_from_the_log(store: Any, database: Database) -> None:
    """Somebody else finished 2 and 3 in this group; this database has not seen them."""
    values = publish(store, 6)
    with store.subscribe(ORDERS, BILLING) as other:
        other.ack(other.get_many(4)[2:])
    drain(store, database)
    assert database.effects() == values


def test_a_new_consumer_begins_where_it_is_told(store: Any, database: Database) -> None:
    publish(store, 5)
    with consumer(store, database, start="latest") as found:
        values = publish(store, 3, 5)
        handle_all(found, store, database)
    assert database.effects() == values


def test_partitions_are_shared_among_consumers_and_nothing_has_its_effect_twice(store: Any, database: Database) -> None:
    store.create_topic(ORDERS, partitions=4)
    for partition in range(4):
        publish(store, 20, 20 * partition, partition=partition)
    first, second = consumer(store, database, batch_messages=3), consumer(store, database, batch_messages=3)
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    with first, second:
        end = time.monotonic() + PATIENCE_S
        while len(database.effects()) < 80 and time.monotonic() < end:
            for number, one in enumerate((first, second)):
                batch = one.get(0.05)
                if batch is not None:
                    with batch as cursor:
                        for message in batch:
                            seen[number].add(message.partition)
                            database.insert(cursor, text_of(message))
    effects = database.effects()
    assert sorted(effects, key=int) == [str(number) for number in range(80)]
    assert len(seen[0]) == len(seen[1]) == 2
    for partition in range(4):
        own = [value for value in effects if int(value) // 20 == partition]
        assert own == sorted(own, key=int)


@pytest.mark.long
@pytest.mark.xdist_group("postgres")
def test_a_consumer_that_lost_its_partition_is_stopped_by_the_database(store: Any, postgres: Database) -> None:
    """
    A zombie: it has the messages and a transaction, and meanwhile its successor has done the work.

    In SQLite its transaction keeps all others waiting; the next test is about that.
    """
    values = publish(store, 4)
    zombie = consumer(store, postgres)
    batch = first_batch(zombie)
    with pytest.raises(TakenOver), batch as cursor:
        postgres.insert(cursor, "by the zombie")
        zombie._consumer.close()
        drain(store, postgres)
        assert postgres.effects() == values
    assert postgres.effects() == values
    zombie.close()


def test_a_position_that_moved_meanwhile_undoes_the_block(store: Any, database: Database) -> None:
    publish(store, 4)
    with consumer(store, database) as found:
        batch = first_batch(found)
        with pytest.raises(TakenOver), batch as cursor:
            database.insert(cursor, "too late")
            cursor.execute("UPDATE penstock_position SET next_offset = 3")
    assert database.effects() == []


def test_a_message_that_always_fails_is_dead_lettered_once_and_the_others_go_on(store: Any, database: Database) -> None:
    publish(store, 8)
    attempts = 0

    def handle(cursor: Any, message: Any) -> None:
        nonlocal attempts
        database.insert(cursor, text_of(message))
        if message.value == b"5":
            attempts += 1
            raise ValueError("five is poison")
        if message.value == b"7":
            found.stop()

    with consumer(store, database, max_deliveries=3) as found:
        found.run(handle)
    assert database.effects() == ["0", "1", "2", "3", "4", "6", "7"]
    [letter] = store.dead_letters(ORDERS).list()
    assert letter.value == b"5"
    assert b"five is poison" in letter.headers["x-dlq-reason"]
    assert attempts == 4, "once with the batch, then three times alone"


def test_a_dead_letter_that_was_decided_and_not_written_is_written_after_a_restart(store: Any, database: Database) -> None:
    """Killed between the commit that gives the message up and the group's move."""
    publish(store, 2)
    with consumer(store, database, max_deliveries=1, batch_messages=1) as found:
        found._consumer.reject = lambda message, reason: None
        batch = first_batch(found)
        with pytest.raises(ValueError, match="poison"), batch:
            raise ValueError("poison")
    assert store.dead_letters(ORDERS).list() == []
    drain(store, database)
    assert database.effects() == ["1"]
    [letter] = store.dead_letters(ORDERS).list()
    assert (letter.value, letter.headers["x-dlq-reason"]) == (b"0", b"ValueError: poison")
    drain(store, database)
    assert len(store.dead_letters(ORDERS)) == 1


def test_a_message_that_kills_its_consumer_each_time_is_given_up(store: Any, database: Database) -> None:
    """Each attempt is counted before it begins."""
    publish(store, 2)
    for _ in range(3):
        with consumer(store, database, max_deliveries=2, batch_messages=1) as found:
            batch = first_batch(found)
            assert batch.messages[0].offset == 0
            found._consumer.nack([batch.messages[0]], delay=0)  # what a death is to the group
            found._open.dialect.rollback()  # type: ignore[union-attr]
    drain(store, database, max_deliveries=2)
    assert database.effects() == ["1"]
    [letter] = store.dead_letters(ORDERS).list()
    assert b"died with it 2 times" in letter.headers["x-dlq-reason"]


def test_errors_of_the_database_are_not_the_messages_fault(store: Any, database: Database) -> None:
    publish(store, 1)
    attempts = 0
    with consumer(store, database, max_deliveries=1) as found:
        while attempts < 3:
            for batch in found.batches(PATIENCE_S):
                attempts += 1
                with pytest.raises(Exception, match="down"), batch:
                    raise sqlite3.OperationalError("down") if database.is_sqlite else _operational_error("down")
                break
    assert len(store.dead_letters(ORDERS)) == 0
    drain(store, database, max_deliveries=1)
    assert database.effects() == ["0"]


def _operational_error(text: str) -> Exception:
    import psycopg

    return psycopg.OperationalError(text)


def test_the_position_of_another_topic_of_the_same_name_is_told(tmp_path: Path, database: Database) -> None:
    with Store.open(tmp_path / "one", settings=SETTINGS) as store:
        publish(store, 3)
        drain(store, database)
    with Store.open(tmp_path / "two", settings=SETTINGS) as store:
        publish(store, 5)
        with pytest.raises(PositionLost, match="another topic"):
            consumer(store, database)
        assert databases.forget_positions(database.connect(), ORDERS, BILLING) == 1
        drain(store, database)
        assert database.effects() == ["0", "1", "2", "0", "1", "2", "3", "4"]
        with databases.consumer(store, ORDERS, BILLING, connection=database.connect(), table="other_positions") as found:
            batch = first_batch(found)
            assert batch.messages[0].offset == 0


def test_a_log_that_lost_its_end_is_told_though_other_messages_have_the_offsets(tmp_path: Path, database: Database) -> None:
    """The store is put back to an older copy, as after power loss with a weak sync mode, and written on."""
    store = Store.open(tmp_path / "store", settings=SETTINGS)
    publish(store, 3)
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    publish(store, 3, 3)
    drain(store, database)
    store.close()
    with Store.open(tmp_path / "older", settings=SETTINGS) as older:
        with pytest.raises(PositionLost, match="before the position 6"):
            consumer(older, database)
        publish(older, 9, 100)
        with pytest.raises(PositionLost, match="since the store died"):
            consumer(older, database)


def test_what_retention_took_is_told_or_passed_over_as_the_caller_chose(tmp_path: Path, database: Database) -> None:
    with Store.open(tmp_path / "store", settings=SETTINGS) as store:
        store.create_topic(ORDERS, segment_messages=2, retention_bytes=1, retain="always")
        publish(store, 2)
        drain(store, database)
        for number in range(2, 10):
            publish(store, 1, number)
        store.retain()
        first = store.positions([ORDERS])[ORDERS].starts[0]
        assert first > 2
        with pytest.raises(PositionLost, match="retention"):
            consumer(store, database)
        drain(store, database, reset="earliest")
        assert database.effects() == ["0", "1", *[str(number) for number in range(first, 10)]]


def test_a_batch_that_was_not_handled_is_an_error_and_comes_again(store: Any, database: Database) -> None:
    values = publish(store, 2)
    with consumer(store, database) as found:
        first_batch(found)
        with pytest.raises(UsageError, match="with batch as cursor"):
            found.get(1)
        handle_all(found, store, database)
    assert database.effects() == values


def test_a_connection_that_gives_text_as_bytes_is_refused(store: Any, sqlite: Database) -> None:
    """What it reads would look like the position of another topic, and the way out of that repeats effects."""
    publish(store, 1)
    connection = sqlite.connect()
    connection.text_factory = bytes
    for given in (connection, lambda: connection):
        with pytest.raises(BadArgument, match="text_factory"):
            databases.consumer(store, ORDERS, BILLING, connection=given)


def test_committing_inside_a_block_is_refused(store: Any, database: Database) -> None:
    publish(store, 1)
    connection = database.connect()
    with databases.consumer(store, ORDERS, BILLING, connection=connection) as found:
        batch = first_batch(found)
        with pytest.raises(Exception, match=r"inside the block|forbidden within a Transaction"), batch:
            connection.commit()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_was_ended_inside_a_block_is_noticed_though_another_one_is_open(
    store: Any, sqlite: Database, end: str
) -> None:
    """Python begins one for the next row: the position must not be committed with that."""
    publish(store, 1)
    connection = sqlite.connect()
    with databases.consumer(store, ORDERS, BILLING, connection=connection) as found:
        batch = first_batch(found)
        with pytest.raises(UsageError, match="inside the block"), batch as cursor:
            sqlite.insert(cursor, "ended with it")
            getattr(connection, end)()
            sqlite.insert(cursor, "of another transaction")
        assert databases.positions(connection, ORDERS, BILLING)[0].offset == 0
    assert sqlite.effects() == (["ended with it"] if end == "commit" else [])


def test_rows_of_the_users_own_kind_do_not_disturb(store: Any, database: Database) -> None:
    values = publish(store, 2)
    connection = database.connect()
    if database.is_sqlite:
        connection.row_factory = lambda cursor, row: {"row": row}
    else:
        from psycopg.rows import dict_row

        connection.row_factory = dict_row
        connection.autocommit = True
    with databases.consumer(store, ORDERS, BILLING, connection=connection) as found:
        handle_all(found, store, database)
    assert database.effects() == values


@pytest.mark.parametrize("table", ['x"; DROP TABLE effects', "", "a.b.c", "1x", "x" * 60, None])
def test_names_of_tables_are_checked(table: Any) -> None:
    with pytest.raises(BadArgument, match="table"):
        databases.positions(sqlite3.connect(":memory:"), ORDERS, BILLING, table=table)
    with pytest.raises(BadArgument, match="table"):
        databases.Outbox(table)


def test_a_connection_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadArgument, match="sqlite3 or of psycopg"):
        databases.outbox.publish(object(), ORDERS, b"1")


def test_tables_of_a_newer_version_are_refused(store: Any, database: Database) -> None:
    publish(store, 1)
    drain(store, database)
    database.run("UPDATE penstock_schema SET version = 9")
    with pytest.raises(UsageError, match="update Penstock"):
        consumer(store, database)


def test_a_broken_connection_is_opened_again(store: Any, database: Database) -> None:
    values = publish(store, 3)
    seen = 0

    def handle(cursor: Any, message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            cursor.connection.close()
        database.insert(cursor, text_of(message))
        if message.value == b"2":
            found.stop()

    began = time.monotonic()
    with consumer(store, database) as found:
        found.run(handle)
    assert database.effects() == values
    assert time.monotonic() - began < PATIENCE_S
