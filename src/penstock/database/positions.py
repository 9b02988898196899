"""
How far consumers have come, in the database that their effects are in.

One row for each topic, group and partition. Everything below `next_offset` has had its effect; the row changes in the same transaction,
and only from the offset at which the consumer found it: whoever lost his partition to another changes nothing.

`failures` counts how often the message at `next_offset` failed by itself. `rejected_offset` is the last message that was given up, from
the moment that this is decided until the next message had its effect: its dead letter may not be written yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.database import schema
from penstock.database.dialect import Transaction, check_table, dialect_of

if TYPE_CHECKING:
    from penstock.database.dialect import PostgresDialect, SqliteDialect

TABLE = "penstock_position"
VERSION = 1
_COLUMNS = "partition_number, topic_id, next_offset, log_epoch, failures, rejected_offset, rejected_reason"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer is in one partition."""

    partition: int
    topic_id: str
    offset: int
    """Everything below it has had its effect."""
    log_epoch: int
    """The log epoch in which the offset was seen; see `penstock.store.reading.TopicPositions`."""
    failures: int
    rejected_offset: int | None
    rejected_reason: str | None


class Positions:
    """The positions of one group over one topic. Each call is part of the caller's transaction."""

    def __init__(self, topic: str, group: str, table: str = TABLE) -> None:
        self._table = check_table(table)
        self._name = table
        self._key = (topic, group)

    def create(self, dialect: SqliteDialect | PostgresDialect) -> None:
        """Make the table unless it is there, in a transaction of its own."""
        columns = (
            "topic TEXT NOT NULL, consumer_group TEXT NOT NULL, partition_number INTEGER NOT NULL, topic_id TEXT NOT NULL, "
            "next_offset BIGINT NOT NULL, log_epoch BIGINT NOT NULL, failures INTEGER NOT NULL DEFAULT 0, rejected_offset BIGINT, "
            "rejected_reason TEXT, PRIMARY KEY (topic, consumer_group, partition_number)"
        )
        schema.create(dialect, self._name, VERSION, [f"CREATE TABLE {self._table} ({columns})"])

    def all(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> dict[int, Position]:
        """All that are known, by partition."""
        where = "topic = ? AND consumer_group = ?"
        dialect.execute(cursor, f"SELECT {_COLUMNS} FROM {self._table} WHERE {where}", self._key)  # noqa: S608 - checked and quoted
        return {row[0]: Position(*row) for row in cursor.fetchall()}

    def get(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, partition: int) -> Position | None:
        """That of one partition."""
        where = "topic = ? AND consumer_group = ? AND partition_number = ?"
        dialect.execute(
            cursor, f"SELECT {_COLUMNS} FROM {self._table} WHERE {where}", (*self._key, partition)  # noqa: S608
        )  # fmt: skip
        row = cursor.fetchone()
        return None if row is None else Position(*row)

    def add(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position) -> None:
        """A new one; nothing happens if somebody else has added it."""
        dialect.execute(
            cursor,
            f"INSERT INTO {self._table} (topic, consumer_group, partition_number, topic_id, next_offset, log_epoch) "  # noqa: S608
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (*self._key, position.partition, position.topic_id, position.offset, position.log_epoch),
        )

    def move(
        self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, offset: int, log_epoch: int,
        rejected: tuple[int, str] | None = None,
    ) -> bool:  # fmt: skip
        """From *position* to *offset*; False if it is not there any more, and then nothing was changed."""
        return self._change(
            dialect, cursor, position, "next_offset = ?, log_epoch = ?, failures = 0, rejected_offset = ?, rejected_reason = ?",
            (offset, log_epoch, *(rejected or (None, None))),
        )  # fmt: skip

    def count_failure(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, change: int = 1) -> bool:
        """The message at *position* failed once more, or with -1: once less. False if the position has moved."""
        return self._change(dialect, cursor, position, "failures = failures + ?", (change,))

    def _change(
        self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, change: str, values: tuple[object, ...]
    ) -> bool:
        where = "topic = ? AND consumer_group = ? AND partition_number = ? AND topic_id = ? AND next_offset = ?"
        dialect.execute(
            cursor,
            f"UPDATE {self._table} SET {change} WHERE {where}",  # noqa: S608
            (*values, *self._key, position.partition, position.topic_id, position.offset),
        )
        return bool(cursor.rowcount == 1)

    def forget(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> int:
        """Remove all; returns how many there were."""
        dialect.execute(cursor, f"DELETE FROM {self._table} WHERE topic = ? AND consumer_group = ?", self._key)  # noqa: S608
        return int(cursor.rowcount)


def positions(connection: Any, topic: str, group: str, *, table: str = TABLE) -> dict[int, Position]:
    """Where the consumers of *group* are, by partition; read in a transaction of its own."""
    dialect = dialect_of(connection)
    found = Positions(topic, group, table)
    found.create(dialect)
    with Transaction(dialect) as cursor:
        return found.all(dialect, cursor)


def forget_positions(connection: Any, topic: str, group: str, *, table: str = TABLE) -> int:
    """
    Let *group* begin anew in this database; returns how many partitions it had begun. Stop its consumers first.

    This is the way out of `PositionLost`, when the loss was looked at. What had an effect will have it again, if it is still there.
    """
    dialect = dialect_of(connection)
    known = Positions(topic, group, table)
    known.create(dialect)
    with Transaction(dialect) as cursor:
        return known.forget(dialect, cursor)
