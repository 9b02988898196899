"""
A consumer whose effects and position are committed together, in a database: each message has its effect exactly once.

Theory of operation
-------------------
The truth is the database: everything below the position has had its effect there, and nothing else has (`positions.py`). The group in
the store follows it. It is an ordered group, which gives each partition to one consumer at a time and wakes it, keeps retention away
from what is to come, and shows the lag. But nothing depends on it: its acks come after the commit and may be lost. A message below
the position is acked and left out; where the group is ahead of the position (another database, a restored backup) it is sought back.

Whoever lost a partition without knowing, a process that was stopped for a while, finds the position moved when it commits: the position
changes only from where this transaction found it. So its effects are rolled back, and it is told `TakenOver`.

A message that fails is not acked in the group but comes again, alone: first the messages of a batch that failed are handled one by one,
and each failure is counted in the database, before the message is handled, so that one that kills the process is counted too. Errors that
are the database's do not count. After `max_deliveries` the message is given up: the position moves past it, with a note that it is
rejected, and then the group dead-letters it, in one frame that also finishes it. If the process dies between the two, the group delivers
the message again, the note says what to do with it, and the dead letter is written then: once.

An offset stands for the same message only in the same topic (its id), and if the log did not lose its end meanwhile (its epoch). Both are
stored with the position and compared, and a difference is told as `PositionLost`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from penstock.arguments import check_one_of, check_wait, check_whole_number
from penstock.database.batch import Batch
from penstock.database.dialect import Source, Transaction, is_database_error
from penstock.database.positions import TABLE, Position, Positions
from penstock.errors import Closed, LeaseExpired, PenstockError, PositionLost, TakenOver, UsageError
from penstock.groups.dead_letters import reason_text
from penstock.log_events import event
from penstock.store import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.database.dialect import PostgresDialect, SqliteDialect
    from penstock.groups.delivery import Delivery
    from penstock.store.reading import TopicPositions

_log = logging.getLogger("penstock.database")

BATCH_MESSAGES = 100
MAX_DELIVERIES = 5
_OTHER_TOPIC = "the position is one of another topic of this name: it was made again, or is in another store"
PAUSE_SECONDS = 1.0
"""How long `run` waits before it asks a database again that did not answer."""


def consumer(
    store: Any,
    topic: str,
    group: str,
    *,
    connection: Any,
    batch_messages: int = BATCH_MESSAGES,
    max_deliveries: int = MAX_DELIVERIES,
    start: Any = "earliest",
    reset: str = "fail",
    table: str = TABLE,
    **options: Any,
) -> DatabaseConsumer:
    """
    A consumer of *topic* whose effects and position commit together in the database of *connection*; see `DatabaseConsumer`.

    *connection* is a connection of sqlite3 or psycopg that nobody else uses meanwhile, or a function that opens one: then it is closed
    with the consumer, and opened again when it breaks. Positions are in *table*, which is made if it is not there. Where there is no
    position yet the consumer begins at *start*. A batch has at most *batch_messages* messages. A message that failed *max_deliveries*
    times is dead-lettered (0: never). *reset* says what to do when retention took messages before they had their effect: ``fail``, or go
    on at the ``earliest`` that is left. *options* are those of `Store.subscribe`; the group is an ordered one.

    Raises:
        TopicNotFound, BadName, BadSetting, BadArgument: nothing was changed.
        PositionLost: the position in the database is not one of this topic, or messages before it were lost.
    """
    return DatabaseConsumer(
        store, topic, group, Source(connection), batch_messages=batch_messages, max_deliveries=max_deliveries, start=start,
        reset=reset, table=table, options=options,
    )  # fmt: skip


class DatabaseConsumer:
    """
    Iterates over batches of messages; each is handled in one transaction, and has its effect exactly once. Made by `consumer`.

    For one thread; have one consumer, with a connection of its own, for each thread or process. Close it, or use it as a context manager.
    """

    def __init__(
        self, store: Any, topic: str, group: str, source: Source, *, batch_messages: int, max_deliveries: int, start: Any,
        reset: str, table: str, options: dict[str, Any],
    ) -> None:  # fmt: skip
        self._batch_messages = check_whole_number("batch_messages", batch_messages, 1, reading.OFFSET_MAX)
        self._max_deliveries = check_whole_number("max_deliveries", max_deliveries, 0, 1_000_000)
        self._reset = check_one_of("reset", reset, ("fail", "earliest"))
        self._store = store
        self.topic = topic
        self.group = group
        self._source = source
        self._start = start
        self._positions = Positions(topic, group, table)
        self._topic_id = store.topic(topic).topic_id.hex()
        self._waiting: deque[list[Delivery]] = deque()
        """What was delivered and comes next: a list for each partition."""
        self._careful: dict[int, int] = {}
        """Partition -> the offset below which messages are handled one by one, since a batch failed."""
        self._sought: dict[int, int] = {}
        """Partition -> where its group was sought to."""
        self._open: _Open | None = None
        self._stopping = threading.Event()
        try:
            self._positions.create(source.dialect)
            self._check_all()
            given = {"prefetch": max(batch_messages, 100), **options}
            self._consumer = store.subscribe(topic, group, ordered=True, max_deliveries=0, start=start, **given)
            try:
                self._seek_back()
            except BaseException:
                self._consumer.close()
                raise
        except BaseException:
            source.close()
            raise

    # -- taking -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, timeout: object = None) -> Iterator[Batch]:
        """
        The batches; ends when the consumer is closed, or when nothing came for *timeout* seconds (None: wait for ever).

        Raises what the database raises; the messages come again then. Raises `PositionLost`, and `UsageError` if the batch before was
        not handled.
        """
        while True:
            try:
                batch = self.get(timeout)
            except Closed:
                return
            if batch is not None:
                yield batch
            elif timeout is not None:
                return

    def get(self, timeout: object = None) -> Batch | None:
        """
        The next batch, in a transaction that is open; None if nothing came within *timeout* seconds (None: wait for ever).

        Raises `Closed`, and what `batches` raises.
        """
        wait_s = check_wait("timeout", timeout)
        if self._open is not None:
            self._abandon()
            raise UsageError("the batch before this one was not handled: use `with batch as cursor`")
        while True:
            if not self._waiting:
                found = self._consumer.get_many(self._batch_messages, wait_s)
                if not found and wait_s is not None:
                    return None
                self._put_in_line(found)
            batch = self._next()
            if batch is not None:
                return batch

    def _put_in_line(self, found: Sequence[Delivery]) -> None:
        lines: dict[int, list[Delivery]] = {}
        for message in found:
            lines.setdefault(message.partition, []).append(message)
        self._waiting.extend(lines.values())

    def _next(self) -> Batch | None:
        """The next batch, in an open transaction; None if there was nothing left to do."""
        if not self._waiting:
            return None
        line = self._waiting.popleft()
        first = line[0]
        alone = first.attempt > 1 or first.offset < self._careful.get(first.partition, 0)
        if first.attempt > 1:
            # It failed or died, perhaps together with those behind it: nobody knows which of them is to blame.
            behind = first.offset + self._batch_messages
            self._careful[first.partition] = max(self._careful.get(first.partition, 0), behind)
        count = 1 if alone else _run_length(line)
        chosen, rest = line[:count], line[count:]
        if rest:
            self._waiting.appendleft(rest)
        dialect = None
        try:
            dialect = self._source.dialect
            opened = self._prepare(dialect, chosen, alone=alone)
        except BaseException as error:
            if dialect is not None:
                dialect.rollback()
            if isinstance(error, Exception):
                self._return(chosen[0], error, delay=PAUSE_SECONDS)
            raise
        if opened is None:
            return None
        self._open = opened
        return Batch(self, opened.messages)

    def _prepare(self, dialect: SqliteDialect | PostgresDialect, chosen: list[Delivery], *, alone: bool) -> _Open | None:
        """Begin the transaction for *chosen*; None, and no transaction, if they need no handling now."""
        cursor = dialect.begin()
        position = self._position(dialect, cursor, chosen[0])
        fresh = [message for message in chosen if message.offset >= position.offset]
        old = chosen[: len(chosen) - len(fresh)]
        self._check_epoch(position, chosen[0])
        if old:
            self._finish_old(position, old)
        if not fresh or not self._is_next(position, fresh[0]):
            dialect.rollback()
            return None
        if alone:
            if 0 < self._max_deliveries <= position.failures:
                dialect.rollback()
                self._give_up(dialect, position, fresh[0], f"its consumer died with it {position.failures} times")
                return None
            # Now, and not when it has failed: it may be the end of this process.
            counted = self._positions.count_failure(dialect, cursor, position)
            dialect.commit()
            cursor = dialect.begin()
            if not counted or self._position(dialect, cursor, fresh[0]).offset != position.offset:
                raise TakenOver(f"{self.topic}/{position.partition} in group {self.group}")
        return _Open(dialect, cursor, position, fresh, counted=alone)

    def _position(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, message: Delivery) -> Position:
        found = self._positions.get(dialect, cursor, message.partition)
        if found is None:
            raise self._lost(message.partition, "somebody removed the position while this consumer ran")
        if found.topic_id != self._topic_id:
            raise self._lost(found.partition, _OTHER_TOPIC)
        return found

    def _finish_old(self, position: Position, old: list[Delivery]) -> None:
        """Messages that had their effect, or were given up, before somebody could tell the group."""
        for message in old:
            if message.offset == position.rejected_offset:
                with contextlib.suppress(LeaseExpired):
                    self._consumer.reject(message, position.rejected_reason)
        with contextlib.suppress(LeaseExpired):
            self._consumer.ack([message for message in old if message.offset != position.rejected_offset])

    # -- checking ---------------------------------------------------------------------------------------------------

    def _positions_now(self) -> TopicPositions:
        found: TopicPositions = self._store.positions([self.topic])[self.topic]
        return found

    def _lost(self, partition: int, reason: str) -> PositionLost:
        return PositionLost(self.topic, partition, self.group, reason)

    def _check_all(self) -> None:
        """
        Before anything is consumed: whether the positions are those of this topic, and the log still has what was seen.

        Where there is none yet, it is made.
        """
        now = self._positions_now()
        dialect = self._source.dialect
        with Transaction(dialect) as cursor:
            known = self._positions.all(dialect, cursor)
            for partition in now.ends.keys() - known.keys():
                place = _place(self._store, self._start, self.topic, partition, now)
                self._positions.add(dialect, cursor, Position(partition, self._topic_id, place, now.log_epoch, 0, None, None))
        for partition, position in known.items():
            if position.topic_id != self._topic_id:
                raise self._lost(partition, _OTHER_TOPIC)
            # The ends were read first, so another consumer may have come further than they say: look again.
            if position.offset > now.ends.get(partition, 0):
                now = self._positions_now()
            if position.offset > now.ends.get(partition, 0):
                raise self._lost(
                    partition, f"the log ends at {now.ends.get(partition, 0)}, before the position {position.offset}"
                )
            self._check_epoch_at(position, now.log_epoch)
            self._check_start(position, now.starts[partition])

    def _check_start(self, position: Position, first: int) -> int:
        """Where to go on, in a log that begins at *first*. Raises `PositionLost`."""
        if first > position.offset:
            reason = f"retention removed the messages from offset {position.offset} to {first} before they had their effect"
            if self._reset == "fail":
                raise self._lost(position.partition, reason)
            _log.warning("%s/%d in group %s: %s; going on", self.topic, position.partition, self.group, reason)
        return max(first, position.offset)

    def _seek_back(self) -> None:
        """Where the group is ahead of the database, as with a restored backup, it would not deliver what is missing."""
        reached = self._store.stats().topics[self.topic].groups[self.group].positions
        # In this order: a group is never told before the database is.
        dialect = self._source.dialect
        with Transaction(dialect) as cursor:
            known = self._positions.all(dialect, cursor)
        starts = self._positions_now().starts
        places = {number: max(starts[number], known[number].offset) for number in reached if number in known}
        behind = {number: place for number, place in places.items() if reached[number] > place}
        if behind:
            self._seek(behind)

    def _seek(self, places: dict[int, int]) -> None:
        for partition, offset in places.items():
            _log.info(
                "group %s of %s/%d goes back to %d, the position in the database", self.group, self.topic, partition, offset
            )
            self._drop(partition)
        self._sought |= places
        self._store.seek(self.topic, self.group, places)

    def _check_epoch(self, position: Position, message: Delivery) -> None:
        if message.log_epoch > position.log_epoch:
            if message.offset < position.offset:
                raise self._lost(
                    position.partition, f"other messages have the offsets from {message.offset} on since the store died"
                )
            self._check_epoch_at(position, message.log_epoch)

    def _check_epoch_at(self, position: Position, log_epoch: int) -> None:
        if position.offset > 0 and log_epoch > position.log_epoch:
            written = self._store.epoch_at(self.topic, position.partition, position.offset - 1)
            if written is not None and written > position.log_epoch:
                raise self._lost(position.partition, f"other messages lie before offset {position.offset} since the store died")

    def _is_next(self, position: Position, message: Delivery) -> bool:
        """Whether *message* comes next: nothing lies between the position and it. If the group is ahead it is sought back."""
        if message.offset == position.offset:
            return True
        partition = position.partition
        begin = self._check_start(position, self._positions_now().starts[partition])
        between = next(
            iter(self._store.read(self.topic, partition, start=begin, end=message.offset, max_messages=1)), None
        )  # fmt: skip
        if between is None:
            return True
        if self._sought.get(partition) != begin:
            self._seek({partition: begin})
            return False
        if self._store.stats().topics[self.topic].groups[self.group].positions[partition] > between.offset:
            return True  # the group left it out, since it has expired for example
        raise UsageError(
            f"{between!r} is held back, and messages behind it are not: a position cannot tell that; use no delays in topics with "
            "database consumers"
        )

    # -- the block --------------------------------------------------------------------------------------------------

    def begin_block(self, batch: Batch) -> Any:
        """See `Batch`."""
        if self._open is None or self._open.messages is not batch.messages:
            raise UsageError(f"{batch!r} is not the consumer's any more: handle a batch before asking for the next")
        return self._open.dialect.connection.cursor()

    def succeed(self) -> None:
        """See `Batch`: position and effects are committed, then the group is told."""
        opened = self._open
        assert opened is not None
        last = opened.messages[-1]
        try:
            opened.dialect.check_inside()
            epoch = max(opened.position.log_epoch, last.log_epoch)
            if not self._positions.move(opened.dialect, opened.cursor, opened.position, last.offset + 1, epoch):
                raise TakenOver(f"{self.topic}/{last.partition} in group {self.group}")
            opened.dialect.commit()
        except BaseException as error:
            self.fail(error)
            raise
        self._open = None
        with contextlib.suppress(LeaseExpired, Closed):
            self._consumer.ack(opened.messages)

    def fail(self, error: BaseException) -> None:
        """See `Batch`."""
        opened = self._open
        assert opened is not None
        self._open = None
        opened.dialect.rollback()
        if not isinstance(error, Exception):
            return  # Ctrl-C, the end of a generator: closing gives the messages back
        first = opened.messages[0]
        if isinstance(error, TakenOver):
            self._return(first, error, delay=0)
            return
        if len(opened.messages) > 1:
            self._careful[first.partition] = opened.messages[-1].offset + 1
            self._return(first, error, delay=0)
            return
        excused = opened.dialect.is_excused(error)
        failures = opened.position.failures + 1
        if excused is opened.counted:
            # It was counted and is not to blame, or the other way round.
            with contextlib.suppress(Exception):  # the next attempt counts; the error that matters is on its way
                self._count(opened, -1 if excused else 1)
        if not excused and 0 < self._max_deliveries <= failures:
            try:
                self._give_up(opened.dialect, opened.position, first, error)
            except Exception as later:  # noqa: BLE001 - the user's error is on its way, and the message comes again
                _log.warning("%r could not be dead-lettered now: %s", first, later)
                self._return(first, error)
            return
        self._return(first, error)

    def _count(self, opened: _Open, change: int) -> None:
        with Transaction(opened.dialect) as cursor:
            self._positions.count_failure(opened.dialect, cursor, opened.position, change)

    def _give_up(self, dialect: SqliteDialect | PostgresDialect, position: Position, message: Delivery, reason: object) -> None:
        """Dead-letter *message* and go on behind it. Raises `TakenOver`."""
        text = reason_text(reason)
        with Transaction(dialect) as cursor:
            epoch = max(position.log_epoch, message.log_epoch)
            if not self._positions.move(dialect, cursor, position, message.offset + 1, epoch, (message.offset, text)):
                raise TakenOver(f"{self.topic}/{position.partition} in group {self.group}")
        with contextlib.suppress(LeaseExpired):  # else it comes again, and the note says what to do with it
            self._consumer.reject(message, text)
            self._consumer.flush()

    def _return(self, message: Delivery, error: Exception, delay: float | None = None) -> None:
        """It comes again, and with it what is behind it in its partition."""
        self._drop(message.partition)
        with contextlib.suppress(LeaseExpired, Closed):
            self._consumer.nack([message], delay=delay, reason=error)

    def _drop(self, partition: int) -> None:
        self._waiting = deque(line for line in self._waiting if line[0].partition != partition)

    def _abandon(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.dialect.rollback()
            self._waiting.appendleft(list(opened.messages))

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, handle: Callable[[Any, Delivery], object]) -> None:
        """
        Call ``handle(cursor, message)`` for each message until `stop` is called.

        Failures are logged, and the messages come again as the group's backoff says; a database that does not answer is waited for.
        Raises only what nobody can go on after: `PositionLost`, `UsageError`.
        """
        while not self._stopping.is_set():
            try:
                for batch in self:
                    try:
                        with batch as cursor:
                            for message in batch:
                                handle(cursor, message)
                    except (PositionLost, UsageError):
                        raise
                    except Exception as error:  # noqa: BLE001 - whatever a handler raises
                        _log.warning(
                            "%r failed: %s: %s", batch, type(error).__name__, error,
                            extra=event(
                                "batch_failed", topic=self.topic, group=self.group, partition=batch.partition,
                                messages=len(batch), error=type(error).__name__,
                            ),
                        )  # fmt: skip
            except (PositionLost, UsageError):
                raise
            except PenstockError as error:
                _log.warning("the consumer of %s in %s goes on in %g s: %s", self.topic, self.group, PAUSE_SECONDS, error)
            except Exception as error:
                if not is_database_error(error):
                    raise
                _log.warning("the database does not answer, going on in %g s: %s", PAUSE_SECONDS, error)
            if self._consumer.closed:
                return
            self._stopping.wait(PAUSE_SECONDS)

    def stop(self) -> None:
        """Let iterating and `run` end after the batch that they are at. Any thread, or a signal handler, may call it."""
        self._stopping.set()
        self._consumer.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or stopped."""
        return bool(self._consumer.closed)

    def close(self) -> None:
        """Roll back what is open, give back what was not handled, and leave the group. Closing twice does nothing."""
        self._stopping.set()
        opened, self._open = self._open, None
        if opened is not None:
            opened.dialect.rollback()
        self._consumer.close()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DatabaseConsumer of {self.topic} in {self.group}{', closed' if self.closed else ''}>"


class _Open:
    """A transaction that is open, and what it is for."""

    __slots__ = ("counted", "cursor", "dialect", "messages", "position")

    def __init__(
        self,
        dialect: SqliteDialect | PostgresDialect,
        cursor: Any,
        position: Position,
        messages: list[Delivery],
        *,
        counted: bool,
    ) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.position = position
        self.messages = messages
        self.counted = counted
        """Whether this attempt was counted as a failure before it began."""


def _run_length(line: list[Delivery]) -> int:
    """How many of *line* are of consecutive offsets; what comes behind a gap is looked at by itself."""
    first = line[0].offset
    return next((at for at, message in enumerate(line) if message.offset != first + at), len(line))


def _place(store: Any, start: Any, topic: str, partition: int, now: TopicPositions) -> int:
    """The offset that *start* means in a partition."""

    class Log:
        log_start = now.starts[partition]
        committed_end = now.ends[partition]

        @staticmethod
        def offset_of_time(time_us: int) -> int:
            import datetime as dt

            moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time_us)
            return int(store.offset_of_time(topic, partition, moment))

    return reading.place("start", start, Log())
