"""
A consumer whose effects and position are committed together, in a database: each message has its effect exactly once.

Theory of operation
-------------------
The truth is the database: what its position calls finished had its effect there, and nothing else had (`positions.py`). The group in
the store follows it. It is an ordered group, which gives each partition to one consumer at a time and wakes it, keeps retention away
from what is to come, and shows the lag. But nothing depends on it: its acks come after the commit and may be lost. A message that is
finished is acked and left out; where the group is ahead of the position it is sought back (`following.py`). Messages that are delayed
are overtaken, as in any group, and have their effect when they come; in a topic with priorities the group is a shared one, and hands out
the most urgent first.

Whoever lost a partition without knowing, a process that was stopped for a while, finds the position changed when it commits: it changes
only from what this transaction found. So its effects are rolled back, and it is told `TakenOver`. Two consumers of a topic with priorities
that handle messages of one partition at once are told the same, and the messages come again.

A message that fails is not acked in the group but comes again, alone: first the messages of a batch that failed are handled one by one,
and each failure is counted in the database, before the message is handled, so that one that kills the process is counted too. Errors that
are the database's do not count. After `max_deliveries` the message is given up: it is finished, with a note that it is rejected, and then
the group dead-letters it, in one frame that also finishes it. If the process dies between the two, the group delivers the message again,
the note says what to do with it, and the dead letter is written then: once. The note goes when the dead letter is durable.

An offset stands for the same message only in the same topic (its id), and if the log did not lose its end meanwhile (its epoch). Both are
stored with the position and compared, and a difference is told as `PositionLost`.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_one_of, check_wait, check_whole_number
from penstock.database.batch import Batch
from penstock.database.dialect import Source, Transaction, is_database_error
from penstock.database.following import Following, Passed
from penstock.database.helper import Helper
from penstock.database.positions import TABLE, Position, Positions
from penstock.errors import Closed, LeaseExpired, PenstockError, PositionLost, TakenOver, UsageError
from penstock.groups.dead_letters import reason_text
from penstock.log_events import event, get_logger
from penstock.store import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.database.dialect import PostgresDialect, SqliteDialect
    from penstock.groups.delivery import Delivery

_log = get_logger("penstock.database")

BATCH_MESSAGES = 100
MAX_DELIVERIES = 5
PAUSE_SECONDS = 1.0
"""How long `run` waits before it asks a database again that did not answer."""
NOTES_MAX = 100
_LOOK_AGAIN_SECONDS = 1.0
_WAIT_SECONDS = 30.0
"""A consumer that waits looks this often whether the group has passed over something, such as messages that expire."""


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


class DatabaseConsumer(Helper):
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
        super().__init__(source)
        self.topic = topic
        self.group = group
        self._positions = Positions(topic, group, table)
        self._following = Following(store, topic, group, self._positions, reset=self._reset, start=start)
        self._waiting: deque[list[Delivery]] = deque()
        """What was delivered and comes next: a list for each partition."""
        self._careful: dict[int, int] = {}
        """Partition -> the offset below which messages are handled one by one, since a batch failed."""
        self._told: dict[int, set[int]] = {}
        """Partition -> messages that were given up and whose dead letters are durable: their notes can go."""
        self._look_at_s = 0.0
        """When to look next whether the group is past something, by the monotonic clock."""
        self._open: _Open | None = None
        try:
            self._positions.create(source.dialect)
            self._following.check_all(source.dialect)
            given = {"prefetch": max(batch_messages, 100), **options}
            ordered = not self._following.has_lanes
            self._consumer = store.subscribe(topic, group, ordered=ordered, max_deliveries=0, start=start, **given)
            try:
                self._following.catch_up(source.dialect)
            except BaseException:
                self._consumer.close()
                raise
        except BaseException:
            source.close()
            raise

    @property
    def expired(self) -> int:
        """How many messages it left out because they had expired."""
        return self._following.expired

    @property
    def skipped(self) -> int:
        """How many messages it left out because retention had taken them, with ``reset="earliest"``."""
        return self._following.skipped

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

        Messages that had their effect before, and that only the group did not know of, are left out on the way: however long that
        takes, what lies behind them is looked for.

        Raises `Closed`, and what `batches` raises.
        """
        wait_s = check_wait("timeout", timeout)
        if self._open is not None:
            self._abandon()
            raise UsageError("the batch before this one was not handled: use `with batch as cursor`")
        end_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if not self._waiting:
                left_s = _WAIT_SECONDS if end_s is None else min(_WAIT_SECONDS, max(0.0, end_s - time.monotonic()))
                found = self._take(left_s)
                if not found and end_s is not None and time.monotonic() >= end_s:
                    return None
                self._put_in_line(found)
            batch = self._next()
            if batch is not None:
                return batch

    def _take(self, wait_s: float) -> Sequence[Delivery]:
        """What the group has for us; before waiting for more, look whether it has passed over something."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            found: Sequence[Delivery] = self._consumer.get_many(self._batch_messages, 0)
            if found:
                return found
            self._look_at_s = now_s + _LOOK_AGAIN_SECONDS
            for partition in self._following.catch_up(self._source.dialect):
                self._drop(partition)
        waited: Sequence[Delivery] = self._consumer.get_many(self._batch_messages, wait_s)
        return waited

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
        alone = self._is_suspected(first)
        if first.attempt > 1:
            # It failed or died, perhaps together with those behind it: nobody knows which of them is to blame.
            behind = first.offset + self._batch_messages
            self._careful[first.partition] = max(self._careful.get(first.partition, 0), behind)
        count = 1 if alone else next((at for at, message in enumerate(line) if self._is_suspected(message)), len(line))
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
                self._return(chosen, error, delay=PAUSE_SECONDS)
            raise
        if opened is None:
            return None
        self._open = opened
        return Batch(self, opened.messages)

    def _is_suspected(self, message: Delivery) -> bool:
        return message.attempt > 1 or message.offset < self._careful.get(message.partition, 0)

    def _prepare(self, dialect: SqliteDialect | PostgresDialect, chosen: list[Delivery], *, alone: bool) -> _Open | None:
        """Begin the transaction for *chosen*; None, and no transaction, if they need no handling now."""
        cursor = dialect.begin()
        position = self._following.get(dialect, cursor, chosen[0].partition)
        for message in chosen:
            self._following.check_epoch(position, message)
        old = [message for message in chosen if position.is_finished(message.offset)]
        if old:
            self._finish_old(position, old)
        fresh = [message for message in chosen if not position.is_finished(message.offset)]
        if position.is_full:
            fresh = self._hold_back(position, fresh)
        passed = self._following.examine(position, fresh) if fresh else None
        if passed is None:
            dialect.rollback()
            if fresh:
                self._drop(position.partition)
            return None
        if alone:
            failures = position.failures.get(fresh[0].offset, 0)
            if 0 < self._max_deliveries <= failures:
                dialect.rollback()
                self._give_up(dialect, position, passed, fresh[0], f"its consumer died with it {failures} times")
                return None
            # Now, and not when it has failed: it may be the end of this process.
            counted = self._positions.count_failure(dialect, cursor, position, fresh[0].offset)
            dialect.commit()
            cursor = dialect.begin()
            if not counted or self._following.get(dialect, cursor, position.partition).version != position.version:
                raise self._taken_over(position.partition)
        return _Open(dialect, cursor, position, passed, fresh, counted=alone)

    def _taken_over(self, partition: int) -> TakenOver:
        return TakenOver(f"{self.topic}/{partition} in group {self.group}")

    def _hold_back(self, position: Position, fresh: list[Delivery]) -> list[Delivery]:
        """Too much has overtaken: only what is behind has its turn, and the rest comes again."""
        held = [message for message in fresh if message.offset >= position.end]
        if held:
            _log.warning(
                "%s/%d in group %s: %d messages are finished beyond offset %d, which is not; later ones wait for it",
                self.topic, position.partition, self.group, len(position.finished), position.offset,
            )  # fmt: skip
            with contextlib.suppress(LeaseExpired):
                self._consumer.nack(held[:1] if self._consumer.ordered else held, delay=PAUSE_SECONDS)
            if self._consumer.ordered:
                self._drop(position.partition, held[0].offset)
        return [message for message in fresh if message.offset < position.end]

    def _finish_old(self, position: Position, old: list[Delivery]) -> None:
        """Messages that had their effect, or were given up, before somebody could tell the group."""
        for message in old:
            if message.offset in position.rejected:
                self._reject(message, position.rejected[message.offset])
        with contextlib.suppress(LeaseExpired):
            self._consumer.ack([message for message in old if message.offset not in position.rejected])

    def _reject(self, message: Delivery, reason: str) -> None:
        """Let the group dead-letter it, durably. If it is not ours any more it comes again, and the note says what to do with it."""
        with contextlib.suppress(LeaseExpired):
            self._consumer.reject(message, reason)
            self._consumer.flush()
            self._told.setdefault(message.partition, set()).add(message.offset)

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
            epoch = max(opened.position.log_epoch, opened.passed.log_epoch, *(message.log_epoch for message in opened.messages))
            if not self._positions.move(
                opened.dialect, opened.cursor, opened.position, [message.offset for message in opened.messages], epoch,
                void=opened.passed.void, rejected=self._notes(opened.position),
            ):  # fmt: skip
                raise self._taken_over(last.partition)
            opened.dialect.commit()
        except BaseException as error:
            self.fail(error)
            raise
        self._open = None
        self._following.count(opened.passed)
        self._following.handled(opened.messages[0])
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
        excused = isinstance(error, TakenOver) or opened.dialect.is_excused(error)
        if len(opened.messages) > 1:
            if not isinstance(error, TakenOver):
                self._careful[first.partition] = max(message.offset for message in opened.messages) + 1
            self._return(opened.messages, error, delay=0)
            return
        failures = opened.position.failures.get(first.offset, 0) + 1
        if excused is opened.counted:
            # It was counted and is not to blame, or the other way round.
            with contextlib.suppress(Exception):  # the next attempt counts; the error that matters is on its way
                self._count(opened, -1 if excused else 1)
        if not excused and 0 < self._max_deliveries <= failures:
            try:
                self._give_up(opened.dialect, opened.position, opened.passed, first, error)
            except Exception as later:  # noqa: BLE001 - the user's error is on its way, and the message comes again
                _log.warning("%r could not be dead-lettered now: %s", first, later)
                self._return([first], error)
            return
        self._return([first], error, delay=0 if isinstance(error, TakenOver) else None)

    def _count(self, opened: _Open, change: int) -> None:
        """The message failed once more, or once less, unless somebody has finished it meanwhile."""
        [message] = opened.messages
        with Transaction(opened.dialect) as cursor:
            now = self._following.get(opened.dialect, cursor, message.partition)
            if not now.is_finished(message.offset):
                self._positions.count_failure(opened.dialect, cursor, now, message.offset, change)

    def _give_up(
        self, dialect: SqliteDialect | PostgresDialect, position: Position, passed: Passed, message: Delivery, reason: object
    ) -> None:
        """Dead-letter *message* and go on without it. Raises `TakenOver`."""
        text = reason_text(reason)
        with Transaction(dialect) as cursor:
            epoch = max(position.log_epoch, passed.log_epoch, message.log_epoch)
            rejected = {**self._notes(position), message.offset: text}
            if not self._positions.move(
                dialect, cursor, position, [message.offset], epoch, void=passed.void, rejected=rejected
            ):
                raise self._taken_over(position.partition)
        self._following.count(passed)
        self._following.handled(message)
        self._reject(message, text)

    def _notes(self, position: Position) -> dict[int, str]:
        """
        What was given up and may not be a dead letter yet.

        A note goes when the group is past its message (`Following.catch_up`). Where many are there, perhaps because the group waits
        for a delayed message, those go whose dead letters were durable when the group was asked.
        """
        if len(position.rejected) < NOTES_MAX:
            return position.rejected
        told = self._told.pop(position.partition, set())
        return {offset: reason for offset, reason in position.rejected.items() if offset not in told}

    def _return(self, messages: Sequence[Delivery], error: Exception, delay: float | None = None) -> None:
        """They come again; in an ordered group with all that is behind the first of them."""
        first = min(messages, key=lambda message: message.offset)
        if self._consumer.ordered:
            self._drop(first.partition, first.offset)
        with contextlib.suppress(LeaseExpired, Closed):
            self._consumer.nack([first] if self._consumer.ordered else messages, delay=delay, reason=error)

    def _drop(self, partition: int, offset: int = 0) -> None:
        """Forget what was delivered of a partition, from *offset* on: it comes again."""
        lines = (
            line if line[0].partition != partition else [message for message in line if message.offset < offset]
            for line in self._waiting
        )
        self._waiting = deque(line for line in lines if line)

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
        super().stop()
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
        super().close()

    def __repr__(self) -> str:
        return f"<DatabaseConsumer of {self.topic} in {self.group}{', closed' if self.closed else ''}>"


class _Open:
    """A transaction that is open, and what it is for."""

    __slots__ = ("counted", "cursor", "dialect", "messages", "passed", "position")

    def __init__(
        self,
        dialect: SqliteDialect | PostgresDialect,
        cursor: Any,
        position: Position,
        passed: Passed,
        messages: list[Delivery],
        *,
        counted: bool,
    ) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.position = position
        self.passed = passed
        self.messages = messages
        self.counted = counted
        """Whether this attempt was counted as a failure before it began."""
