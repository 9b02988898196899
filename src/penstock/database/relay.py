"""
The relay: takes the messages of an outbox to the store, each exactly once.

Theory of operation
-------------------
A batch is rows that have the same `batch_number`, given to them, and noted in the relay's row, in one transaction before anything is
published. It is then committed to the store under that number and the outbox's own name, in one frame (`Store.commit`): a number that
was committed before gives the first answer and changes nothing, whatever happened in between. Then the rows are deleted, in the
transaction that makes the next batch. So a relay that is killed anywhere leaves a batch that its successor publishes again in vain, or for
the first time.

There is one relay: whoever starts takes over, by writing his name into the relay's row, and each transaction of a relay begins by finding
its own name there. A relay that was stopped for a while may still publish its batch: its successor has the same rows under the same
number.

A number is noted in the database before the store hears of it, so the store never knows a higher one; unless the database was set back to
an earlier state, from a backup perhaps. Then new rows would get a number that the store has, be taken for published, and be deleted. So
before rows get a number the store is asked whether it is free; a commit says so of the next one.

In PostgreSQL rows become visible when their transaction commits, later perhaps than rows with higher ids. Nothing here believes that there
is nothing below an id: a batch is the lowest ids that can be seen and have no number yet.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import check_seconds, check_whole_number
from penstock.database import schema
from penstock.database.dialect import Source, Transaction, is_database_error
from penstock.database.helper import Helper
from penstock.database.outbox import TABLE, VERSION, Outbox, decode_headers
from penstock.errors import Conflict, TakenOver, TopicNotFound, TransactionFenced, Unavailable, UsageError
from penstock.log_events import event, get_logger
from penstock.values import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.database.dialect import PostgresDialect, SqliteDialect

_log = get_logger("penstock.database")

BATCH_MESSAGES = 500
BATCH_BYTES = 16 * MIB
_CALL_BYTES = 4 * MIB
"""The most that is handed to the store at once, unless a single message is longer: it takes no more than 8 MiB for one partition."""
POLL_SECONDS = 0.2
PAUSE_SECONDS = 1.0


class _Row(NamedTuple):
    """A message of the outbox."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    timestamp_us: int


def _parts(rows: list[_Row]) -> Iterator[list[_Row]]:
    """*rows* in the same order, in parts that the store takes in one call."""
    part: list[_Row] = []
    total = 0
    for row in rows:
        length = (
            len(row.value or b"") + len(row.key or b"") + sum(len(name) * 4 + len(text) for name, text in row.headers or ())
        )
        if part and total + length > _CALL_BYTES:
            yield part
            part, total = [], 0
        part.append(row)
        total += length
    if part:
        yield part


def relay(
    store: Any, *, connection: Any, outbox: Outbox | str = TABLE, batch_messages: int = BATCH_MESSAGES, poll: Any = POLL_SECONDS
) -> Relay:
    """
    The relay of an *outbox* to *store*; it takes over from any other, which is told `TakenOver`. See `Relay`.

    *connection* is a connection of sqlite3 or psycopg that nobody else uses, or a function that opens one, which is asked again when that
    one breaks. *poll* is how often, in seconds, it looks for messages when there were none.
    """
    return Relay(store, Source(connection), Outbox(outbox) if isinstance(outbox, str) else outbox, batch_messages, poll)


class Relay(Helper):
    """Publishes what is in an outbox, exactly once, and in order for each key. Made by `relay`; for one thread."""

    def __init__(self, store: Any, source: Source, outbox: Outbox, batch_messages: int, poll: Any) -> None:
        self._batch_messages = check_whole_number("batch_messages", batch_messages, 1, 10_000)
        self._poll_s = check_seconds("poll", poll, 0.001, 86_400)
        super().__init__(source)
        self._store = store
        self._outbox = outbox
        self._me = uuid.uuid4().hex
        self._published: int | None = None
        """The batch that the store has, and whose rows are to be deleted."""
        self._free: tuple[str, int] | None = None
        """The producer's number that the store is known not to have yet."""
        try:
            dialect = source.dialect
            schema.create(dialect, outbox.table, VERSION, outbox.statements(dialect))
            with Transaction(dialect) as cursor:
                dialect.execute(cursor, f"UPDATE {outbox.relay_table} SET owner = ?", (self._me,))  # noqa: S608
        except BaseException:
            source.close()
            raise

    def run_once(self) -> int:
        """
        Publish all that is there now; returns how many messages. They are in the store, durably, and not in the outbox any more.

        Raises what the database raises, `TakenOver`, what publishing raises, and `Conflict` if the database was set back to an earlier
        state; the messages stay where they are then.
        """
        total = 0
        while count := self._step():
            total += count
        return total

    def _step(self) -> int:
        dialect = self._source.dialect
        if self._published is None and not self._is_there(dialect):
            return 0
        batch = self._take(dialect)
        if batch is None:
            return 0
        producer, number, rows = batch
        if not rows:
            self._check_free(producer, number + 1)
            return self._step()
        # A batch that was begun before may be in the store: then it does not matter what that would say to it now.
        if self._free == (producer, number) or self._store.committed(producer, number) is None:
            while refused := self._publish(producer, number, rows):
                self._set_aside(dialect, refused)
                rows = [row for row in rows if row.id not in refused]
        self._published = number
        return max(1, len(rows))

    def _is_there(self, dialect: SqliteDialect | PostgresDialect) -> bool:
        return bool(dialect.read(f"SELECT 1 FROM {self._outbox.quoted} WHERE error IS NULL LIMIT 1"))  # noqa: S608

    def _take(self, dialect: SqliteDialect | PostgresDialect) -> tuple[str, int, list[_Row]] | None:
        """
        Delete what is published; (producer, number, rows) of the batch that was begun, or of a new one. None: there is nothing.

        Without rows: there are some, and the store is to be asked about the next number first; not here, where others wait for us.
        """
        table, relay_table = self._outbox.quoted, self._outbox.relay_table
        with Transaction(dialect) as cursor:
            producer, number = self._check_owner(dialect, cursor)
            if self._published == number:
                dialect.execute(cursor, f"DELETE FROM {table} WHERE batch_number = ?", (number,))  # noqa: S608
            rows = list(self._rows(dialect, cursor, number))
            chosen = [] if rows else self._choose(dialect, cursor)
            if chosen and self._free == (producer, number + 1):
                number += 1
                marks = ", ".join("?" * len(chosen))
                change = f"UPDATE {table} SET batch_number = ? WHERE id IN ({marks})"  # noqa: S608
                dialect.execute(cursor, change, (number, *chosen))
                dialect.execute(cursor, f"UPDATE {relay_table} SET batch_number = ?", (number,))  # noqa: S608
                rows = list(self._rows(dialect, cursor, number))
        self._published = None
        return (producer, number, rows) if rows or chosen else None

    def _check_free(self, producer: str, number: int) -> None:
        """Raise `Conflict` if the store has a batch of that number."""
        try:
            found = self._store.committed(producer, number) is not None
        except TransactionFenced:
            found = True
        if found:
            raise Conflict(
                f"the outbox {self._outbox.table} was set back to an earlier state, by a backup perhaps: the store has its batch {number} "
                "already. Nothing was published or removed. Look at what is in the outbox: some of it may be in its topic. To publish all "
                "of it, use Outbox.begin_anew(connection)"
            )
        self._free = producer, number

    def _check_owner(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> tuple[str, int]:
        """Its name and number; others wait until this transaction ends. Raises `TakenOver`."""
        table = self._outbox.relay_table
        dialect.execute(cursor, f"UPDATE {table} SET owner = owner WHERE owner = ?", (self._me,))  # noqa: S608
        if cursor.rowcount != 1:
            raise TakenOver(f"the relay of {self._outbox.table}")
        dialect.execute(cursor, f"SELECT producer, batch_number FROM {table}")  # noqa: S608
        producer, number = cursor.fetchone()
        return producer, number

    def _rows(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, number: int) -> Iterator[_Row]:
        columns = "id, topic, message_key, message_value, headers, timestamp_us"
        where = "batch_number = ? ORDER BY id"
        dialect.execute(cursor, f"SELECT {columns} FROM {self._outbox.quoted} WHERE {where}", (number,))  # noqa: S608
        for identity, topic, key, value, headers, timestamp_us in cursor.fetchall():
            yield _Row(
                identity, topic, None if key is None else bytes(key), None if value is None else bytes(value),
                decode_headers(headers), timestamp_us,
            )  # fmt: skip

    def _choose(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> list[int]:
        """The ids of the next batch: the lowest that can be seen."""
        size = "COALESCE(LENGTH(message_value), 0) + COALESCE(LENGTH(message_key), 0) + COALESCE(LENGTH(headers), 0)"
        where = "batch_number IS NULL AND error IS NULL ORDER BY id LIMIT ?"
        dialect.execute(
            cursor, f"SELECT id, {size} FROM {self._outbox.quoted} WHERE {where}", (self._batch_messages,)  # noqa: S608
        )  # fmt: skip
        chosen: list[int] = []
        total = 0
        for identity, length in cursor.fetchall():
            total += length
            if chosen and total > BATCH_BYTES:
                break
            chosen.append(identity)
        return chosen

    def _publish(self, producer: str, number: int, rows: list[_Row]) -> dict[int, str]:
        """Commit the rows to the store under their number; or, and then nothing was published, which are refused, and why."""
        by_topic: dict[str, list[_Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        with self._store.stage(producer) as stage:
            try:
                for topic, whole in by_topic.items():
                    for part in _parts(whole):
                        stage.publish_many(
                            topic, [row.value for row in part], keys=[row.key for row in part],
                            headers=[row.headers for row in part], timestamps=[row.timestamp_us / 1_000_000 for row in part],
                        )  # fmt: skip
            except (UsageError, TopicNotFound):
                stage.abandon()
                refused = self._refused(producer, rows)
                if not refused:
                    raise
                return refused
            identity = stage.finish()
        self._free = None  # nobody knows until there is an answer
        done = self._store.commit(producer, number, [identity])
        self._free = (producer, number + 1) if done.newest == number else None
        return {}

    def _refused(self, producer: str, rows: list[_Row]) -> dict[int, str]:
        """Which of *rows* the store does not take, and why; asked one by one."""
        found: dict[int, str] = {}
        stage = self._store.stage(producer)
        try:
            for row in rows:
                try:
                    stage.publish(
                        row.topic, row.value, key=row.key, headers=row.headers, timestamp=row.timestamp_us / 1_000_000
                    )
                except (UsageError, TopicNotFound) as error:
                    found[row.id] = f"{error.code}: {error}"
        finally:
            stage.abandon()
        return found

    def _set_aside(self, dialect: SqliteDialect | PostgresDialect, refused: dict[int, str]) -> None:
        """Take them out of their batch, durably, before the rest is published: under a number there is always the same."""
        table = self._outbox.quoted
        with Transaction(dialect) as cursor:
            self._check_owner(dialect, cursor)
            for identity, error in refused.items():
                _log.warning(
                    "message %d of the outbox %s is set aside: %s", identity, self._outbox.table, error,
                    extra=event("outbox_set_aside", table=self._outbox.table, id=identity, error=error),
                )  # fmt: skip
                dialect.execute(
                    cursor, f"UPDATE {table} SET batch_number = NULL, error = ? WHERE id = ?", (error, identity)  # noqa: S608
                )  # fmt: skip

    def run(self) -> None:
        """
        Publish what comes until `stop` is called. While the database or the store does not answer it waits and tries again.

        Raises `TakenOver` when another relay has begun, `Conflict` when the database was set back, and what waiting does not mend.
        """
        while not self._stopping.is_set():
            pause_s = self._poll_s
            try:
                self.run_once()
            except Unavailable as error:
                pause_s = PAUSE_SECONDS
                _log.warning("the store does not answer, trying again in %g s: %s", pause_s, error)
            except Exception as error:
                if not is_database_error(error):
                    raise
                pause_s = PAUSE_SECONDS
                _log.warning("the database does not answer, trying again in %g s: %s", pause_s, error)
            self._stopping.wait(pause_s)

    def __repr__(self) -> str:
        return f"<Relay of {self._outbox.table}>"
