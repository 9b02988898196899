"""
How far consumers have come, in the database that their effects are in.

One row for each topic, group and partition. Everything below `next_offset` is finished: it has had its effect, was given up, had expired or
was not there any more. `finished` has what is finished beyond it, as a bitmap: messages overtake those that are delayed or less
urgent. The row changes in the transaction of the effects, and only if nobody changed it since (`version`): whoever lost his partition to
another changes nothing.

`failures` counts how often messages failed by themselves. `rejected` has those that were given up, from the moment that this is decided
until their dead letter is known to be written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.database import schema
from penstock.database.dialect import Transaction, check_table, dialect_of
from penstock.errors import PositionLost
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.database.dialect import PostgresDialect, SqliteDialect

TABLE = "penstock_position"
VERSION = 2
FINISHED_BYTES_MAX = 65_536
"""When `finished` takes more than this, nothing more overtakes."""
_FAILURES_MAX = 1_000
_COLUMNS = "partition_number, topic_id, next_offset, log_epoch, version, failures, rejected, finished"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer is in one partition."""

    partition: int
    topic_id: str
    offset: int
    """Everything below it is finished."""
    log_epoch: int
    """The log epoch in which the offset was seen; see `penstock.store.reading.TopicPositions`."""
    version: int = 0
    """+1 whenever something was finished."""
    failures: dict[int, int] = field(default_factory=dict)
    """Offset -> how often the message failed by itself."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Offset -> why it was given up, as long as its dead letter may not be written."""
    finished: OffsetSet = field(default_factory=OffsetSet)
    """What is finished beyond the offset."""
    is_full: bool = False
    """Whether `finished` is as large as it may become."""

    @property
    def end(self) -> int:
        """Nothing from here on is finished."""
        return self.finished.max() + 1 if self.finished else self.offset

    def is_finished(self, offset: int) -> bool:
        """Whether the message at *offset* had its effect, or needs none."""
        return offset < self.offset or offset in self.finished

    def holes(self, end: int) -> Iterator[tuple[int, int]]:
        """What is not finished below *end*, as half-open ranges."""
        at = self.offset
        if not self.finished:
            if at < end:
                yield at, end
            return
        gaps = self.finished.flip(at, max(end, at))
        while at < end:
            begin = gaps.next_set_bit(at) if gaps and gaps.max() >= at else end
            if begin >= end:
                return
            at = min(end, self.finished.next_set_bit(begin)) if self.finished.max() >= begin else end
            yield begin, at

    def after(self, offsets: Iterable[int], void: OffsetSet | None = None) -> tuple[int, OffsetSet]:
        """The offset and what is finished beyond it when *offsets* and *void* are finished too."""
        finished = self.finished.copy()
        finished.update(offsets)
        if void is not None:
            finished |= void
        offset = self.offset
        if offset in finished:
            end = finished.max() + 1
            gaps = finished.flip(offset, end)
            gaps.remove_range(0, offset)
            offset = gaps.min() if gaps else end
        finished.remove_range(0, offset)
        return offset, finished


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
            "next_offset BIGINT NOT NULL, log_epoch BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0, "
            f"failures TEXT NOT NULL DEFAULT '{{}}', rejected TEXT NOT NULL DEFAULT '{{}}', finished {dialect.blob}, "
            "PRIMARY KEY (topic, consumer_group, partition_number)"
        )
        schema.create(dialect, self._name, VERSION, [f"CREATE TABLE {self._table} ({columns})"])

    def all(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> dict[int, Position]:
        """All that are known, by partition."""
        where = "topic = ? AND consumer_group = ?"
        dialect.execute(cursor, f"SELECT {_COLUMNS} FROM {self._table} WHERE {where}", self._key)  # noqa: S608 - checked and quoted
        return {row[0]: self._decode(row) for row in cursor.fetchall()}

    def get(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, partition: int) -> Position | None:
        """That of one partition."""
        where = "topic = ? AND consumer_group = ? AND partition_number = ?"
        dialect.execute(
            cursor, f"SELECT {_COLUMNS} FROM {self._table} WHERE {where}", (*self._key, partition)  # noqa: S608
        )  # fmt: skip
        row = cursor.fetchone()
        return None if row is None else self._decode(row)

    def _decode(self, row: tuple[Any, ...]) -> Position:
        partition, topic_id, offset, log_epoch, version, failures, rejected, finished = row
        try:
            return Position(
                partition, topic_id, offset, log_epoch, version,
                {int(at): int(count) for at, count in json.loads(failures).items()},
                {int(at): str(reason) for at, reason in json.loads(rejected).items()},
                OffsetSet.deserialize(bytes(finished)) if finished else OffsetSet(),
                is_full=bool(finished) and len(finished) > FINISHED_BYTES_MAX,
            )  # fmt: skip
        except (ValueError, AttributeError, TypeError, IndexError) as error:
            raise PositionLost(self._key[0], partition, self._key[1], f"its row in {self._name} is damaged: {error}") from None

    def add(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position) -> None:
        """A new one; nothing happens if somebody else has added it."""
        dialect.execute(
            cursor,
            f"INSERT INTO {self._table} (topic, consumer_group, partition_number, topic_id, next_offset, log_epoch) "  # noqa: S608
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (*self._key, position.partition, position.topic_id, position.offset, position.log_epoch),
        )

    def move(
        self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, offsets: Iterable[int], log_epoch: int, *,
        void: OffsetSet | None = None, rejected: dict[int, str] | None = None,
    ) -> bool:  # fmt: skip
        """
        The messages at *offsets*, and *void*, where there are none, are finished too; *rejected* are the notes from now on.

        False if the position has changed meanwhile, and then nothing was changed.
        """
        offset, finished = position.after(offsets, void)
        if finished:
            finished.run_optimize()
        failures = {at: count for at, count in position.failures.items() if at >= offset and at not in finished}
        return self._change(
            dialect, cursor, position,
            "next_offset = ?, log_epoch = ?, version = version + 1, failures = ?, rejected = ?, finished = ?",
            (
                offset, log_epoch, json.dumps(failures), json.dumps(position.rejected if rejected is None else rejected),
                finished.serialize() if finished else None,
            ),
        )  # fmt: skip

    def count_failure(
        self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, offset: int, change: int = 1
    ) -> bool:
        """The message at *offset* failed once more, or with -1: once less. False if the position has changed."""
        failures = dict(position.failures)
        failures[offset] = max(0, failures.pop(offset, 0) + change)
        kept = list(failures.items())[-_FAILURES_MAX:]  # the one that changed is the last of them
        return self._change(dialect, cursor, position, "failures = ?", (json.dumps(dict(kept)),))

    def _change(
        self, dialect: SqliteDialect | PostgresDialect, cursor: Any, position: Position, change: str, values: tuple[object, ...]
    ) -> bool:
        where = "topic = ? AND consumer_group = ? AND partition_number = ? AND topic_id = ? AND next_offset = ? AND version = ?"
        dialect.execute(
            cursor,
            f"UPDATE {self._table} SET {change} WHERE {where}",  # noqa: S608
            (*values, *self._key, position.partition, position.topic_id, position.offset, position.version),
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
