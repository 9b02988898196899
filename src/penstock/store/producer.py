"""
A producer: gathers messages, and commits them in batches.

Theory of operation
-------------------
`send` adds a message to the open batch of its partition and returns. The batch goes when it is full (messages or bytes), when its first
message has lingered long enough, when somebody waits for one of its futures, or by `flush`. Batches of a partition are committed in
the order in which they were begun, since they are handed to the store under the producer's lock. The number of messages that are not
committed yet is bounded: `send` then waits, or raises, as the caller chose.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from penstock import threads as threading
from penstock.arguments import check_moment_us, check_one_of, check_seconds, check_wait, check_whole_number
from penstock.errors import Closed, OutcomeUnknown, PenstockError, ProducerFull, UsageError, WaitTimeout
from penstock.format.batch_header import Producer as Identity
from penstock.interrupts import Held
from penstock.store.future import CallbackThread, Future, Promise, SentBatch
from penstock.topics import publication
from penstock.topics.options import Wishes, packing
from penstock.topics.partitioner import partition_of_key
from penstock.values import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, batch_bytes_limit, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.format.batch import EncodedBatch
    from penstock.format.compression import Codec
    from penstock.topics.encoder import MessageEncoder
    from penstock.topics.options import Moment
    from penstock.topics.producers import Producers
    from penstock.topics.topic import Topic
    from penstock.volume.tickets import AppendTicket
    from penstock.volume.volume import Volume

_MESSAGE_OVERHEAD_BYTES = 40
"""What a message takes in the tables of a batch that has all columns: three offsets, three times, priority, validity."""
_HEADER_OVERHEAD_BYTES = 8
"""What each of its headers takes there: the offsets of name and value."""
_BATCH_OVERHEAD_BYTES = 1024
"""What a batch takes beside its messages: header, directory, padding; no more than that."""
CALLBACK_SECONDS = 10.0
"""How long closing waits for the callbacks of the producer that is closed."""


class ProducerOptions(NamedTuple):
    """How a producer works, checked."""

    linger: float
    batch_messages: int
    batch_bytes: int
    max_pending: int
    raise_when_full: bool
    name: str | None
    packing: tuple[Codec, int | None] | None

    @classmethod
    def check(
        cls,
        linger: object,
        batch_messages: object,
        batch_bytes: object,
        max_pending: object,
        when_full: object,
        name: str | None,
        compression: object,
    ) -> ProducerOptions:
        """Check what a caller gave. Raises `UsageError`."""
        return cls(
            check_seconds("linger", linger, 0, 60),
            check_whole_number("batch_messages", batch_messages, 1, BATCH_MESSAGES_MAX),
            check_whole_number("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX),
            check_whole_number("max_pending", max_pending, 1, 10_000_000),
            check_one_of("when_full", when_full, ("block", "raise")) == "raise",
            None if name is None else check_name("producer", name),
            None if compression is None else packing(compression),
        )


class Commitment(Protocol):
    """A batch on its way: a ticket of the commit cycle, or a call to a server."""

    done: bool
    error: PenstockError | None
    first_offset: int | None

    def on_done(self, callback: Callable[[Any], None]) -> None:
        """Call *callback* with it when it is done."""
        ...


class Outlet(Protocol):
    """
    Where a producer's batches go, in the order in which they are given.

    Attributes:
        is_quick: `submit` never waits for long, so that signals may wait for it.
    """

    is_quick: bool

    @property
    def topic(self) -> MessageEncoder:
        """The topic."""
        ...

    def identity(self, partition: int) -> Identity | None:
        """What the next batch to *partition* carries, so that it is stored once."""
        ...

    def submit(self, partition: int, batch: EncodedBatch) -> tuple[int | None, Commitment | None]:
        """Give a batch: its first offset if it is stored already, else what to wait for. Raises `PenstockError`."""
        ...

    def note_published(self, count: int) -> None:
        """So many messages are stored."""
        ...

    def commit(self) -> None:
        """Commit what was given, in this thread; for stores without threads."""
        ...


class StoreOutlet:
    """To a topic of an open store."""

    is_quick = True

    def __init__(self, topic: Topic, volume: Volume, producers: Producers, name: str | None) -> None:
        self.topic = topic
        self._volume = volume
        self._identity = None if name is None else producers.open(name, topic.logs)
        self._sequences = [0] * topic.partitions

    def identity(self, partition: int) -> Identity | None:
        """See `Outlet`."""
        return None if self._identity is None else Identity(*self._identity, self._sequences[partition])

    def submit(self, partition: int, batch: EncodedBatch) -> tuple[int | None, AppendTicket | None]:
        """See `Outlet`."""
        log = self.topic.logs[partition]
        if self._identity is not None:
            try:
                first, ticket, _ = self.topic.gate(partition).submit(batch)
            except PenstockError:
                raise  # its number is the next one's
            except BaseException:
                # It may be on its way: the next one must not pass for it.
                self._sequences[partition] += 1
                raise
            self._sequences[partition] += 1
            return first, ticket
        if log.always:
            return None, self._volume.submit(log, batch)
        return self._volume.append(log, batch), None

    def note_published(self, count: int) -> None:
        """See `Outlet`."""
        self.topic.published += count

    def commit(self) -> None:
        """See `Outlet`."""
        self._volume.commit_changes(())


class _OpenBatch:
    """What gathers for one partition."""

    __slots__ = ("begun", "counted", "headers", "keys", "sent", "size", "times_us", "values", "wishes")

    def __init__(self, sent: SentBatch, begun: float) -> None:
        self.sent = sent
        self.begun = begun
        self.size = 0
        self.counted = 0
        """How many of its values the producer counts as pending: one fewer where a signal came in the middle of `send`."""
        self.values: list[bytes | None] = []
        self.keys: dict[int, bytes] = {}
        self.headers: dict[int, list[tuple[str, bytes]]] = {}
        self.times_us: dict[int, int] = {}
        self.wishes: dict[int, Wishes] | None = None


def _column(found: dict[int, Any], count: int) -> list[Any] | None:
    return [found.get(index) for index in range(count)] if found else None


class Producer:
    """
    Publishes to one topic in batches. Made by `Store.producer`. Safe to use from many threads.

    Close it, or use it as a context manager: it then commits what it holds, or gives each future its error.
    """

    def __init__(
        self,
        outlet: Outlet,
        forget: Callable[[Producer], None],
        options: ProducerOptions,
        *,
        background: bool,
    ) -> None:
        self._outlet = outlet
        self._topic = topic = outlet.topic
        self._forget = forget
        self.linger = options.linger
        self._batch_messages = options.batch_messages
        self._batch_bytes = min(
            options.batch_bytes, batch_bytes_limit(topic.settings.max_message_bytes) - _BATCH_OVERHEAD_BYTES
        )
        self._max_pending = options.max_pending
        self._raise_when_full = options.raise_when_full
        # Taken again by a callback that sends, and by a commit that is done before its callback is set.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._open: dict[int, _OpenBatch] = {}
        self._partitions = topic.partitions
        self._sticky = topic.next_partition() if self._partitions > 1 else 0
        self._pending = 0
        self._on_the_way: dict[SentBatch, None] = {}
        self._callbacks = CallbackThread()
        self._closed = False
        self._limit = topic.settings.max_message_bytes
        self._codec, self._level = options.packing or (topic.codec, topic.level)
        self._background = background
        self._timer: threading.Thread | None = None
        self._timer_wake = threading.Event()

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | None,
        *,
        key: object = None,
        headers: object = None,
        partition: object = None,
        timestamp: object = None,
        ttl: object = None,
        delay: object = None,
        priority: object = None,
        on_done: Callable[[Future], object] | Promise | None = None,
    ) -> Future:
        """
        Take one message; returns at once with the promise of its receipt. *on_done* is called with it when it is done.

        *ttl* and *delay* count from when the message is stored.

        Raises:
            UsageError: the message is not allowed; nothing was taken.
            ProducerFull: it holds as many as it may, and was made with ``when_full="raise"``.
            Closed: the producer was closed.
        """
        if type(value) is not bytes:
            value = publication.value_bytes(value)
        size = 0 if value is None else len(value)
        key_data = pairs = time_us = wishes = None
        # A message that is only a value pays for this one question, and not for each thing that it could have.
        is_plain = key is None and headers is None and timestamp is None and ttl is None and delay is None and priority is None
        if not is_plain:
            if key is not None:
                key_data = publication.key_bytes(key)
            if headers is not None:
                pairs = publication.header_pairs(headers) or None
            if timestamp is not None:
                time_us = check_moment_us("timestamp", timestamp)
            if ttl is not None or delay is not None or priority is not None:
                wishes = self._topic.check_wishes(ttl, delay, priority)
            if key_data is not None or pairs is not None:
                size = publication.message_bytes(value, key_data, pairs)
        if size > self._limit:
            self._topic.check_size(size)
        size += _MESSAGE_OVERHEAD_BYTES if pairs is None else _MESSAGE_OVERHEAD_BYTES + _HEADER_OVERHEAD_BYTES * len(pairs)
        if partition is not None:
            partition = self._topic.check_partition(partition)
        with self._lock:
            if self._pending >= self._max_pending:
                self._wait_for_room()
            if self._closed:
                raise Closed(f"the producer of {self._topic.name}")
            if partition is not None:
                number: int = partition
            elif self._partitions == 1:
                number = 0
            elif key_data is not None:
                number = partition_of_key(key_data, self._partitions)
            else:
                number = self._sticky
            batch = self._open.get(number)
            if batch is None or batch.size + size > self._batch_bytes:
                if batch is not None:
                    self._commit(number)
                batch = self._begin(number)
            index = len(batch.values)
            batch.values.append(value)
            if not is_plain:
                if key_data is not None:
                    batch.keys[index] = key_data
                if pairs is not None:
                    batch.headers[index] = pairs
                if time_us is not None:
                    batch.times_us[index] = time_us
                if wishes is not None:
                    if batch.wishes is None:
                        batch.wishes = {}
                    batch.wishes[index] = wishes
            # No call in between, so no signal gets in.
            batch.size += size
            batch.counted += 1
            self._pending += 1
            future = Future(batch.sent, index)
            if on_done is not None:
                if isinstance(on_done, Promise):
                    batch.sent.promises.append((on_done, future))
                else:
                    batch.sent.callbacks.append((on_done, future))
            if index + 1 >= self._batch_messages or (self.linger == 0 and self._pending == 1):
                self._commit(number)
        return future

    def _wait_for_room(self) -> None:
        if self._raise_when_full:
            raise ProducerFull(self._topic.name, self._pending)
        for number in list(self._open):
            self._commit(number)
        self._room.wait_for(lambda: self._pending < self._max_pending or self._closed)

    def _begin(self, number: int) -> _OpenBatch:
        sent = SentBatch(self._topic.name, number, self._flush_open, self._callbacks)
        with Held():
            batch = self._open[number] = _OpenBatch(sent, threading.monotonic())
            if self._background:
                if self._timer is None:
                    self._timer = threading.Thread(target=self._send_lingering, name="penstock-producer", daemon=True)
                    self._timer.start()
                if len(self._open) == 1:
                    self._timer_wake.set()
        return batch

    def _commit(self, number: int) -> None:
        """Hand the open batch of a partition to the store; the caller holds the lock."""
        batch = self._open[number]
        count = len(batch.values)
        try:
            # If Ctrl-C comes the batch is still open, and goes when the next one wants it to.
            encoded = self._encode(batch, count, self._outlet.identity(number))
        except Exception as error:  # noqa: BLE001 - as out of memory: whatever it is, its futures are told, and the next batch goes on
            with Held():
                self._take_out(number)
                told = error if isinstance(error, PenstockError) else UsageError(f"the batch cannot be encoded: {error!r}")
                self._fail(batch, told)
            return
        # Once it is not open any more, its futures must be told whatever comes.
        with Held() if self._outlet.is_quick else contextlib.nullcontext():
            self._take_out(number)
            try:
                self._hand_over(number, batch, encoded)
            except BaseException as error:
                told = error if isinstance(error, PenstockError) else OutcomeUnknown("the batch", repr(error))
                self._fail(batch, told)
                if not isinstance(error, Exception):
                    raise

    def _hand_over(self, number: int, batch: _OpenBatch, encoded: EncodedBatch) -> None:
        first, ticket = self._outlet.submit(number, encoded)
        if ticket is None:
            assert first is not None
            self._pending -= batch.counted
            if self._room._waiters:  # type: ignore[attr-defined]  # noqa: SLF001 - notify costs a microsecond
                self._room.notify_all()
            self._outlet.note_published(len(batch.values))
            batch.sent.finish(first, None)
            return
        self._on_the_way[batch.sent] = None
        ticket.on_done(lambda done: self._committed(batch, done))

    def _take_out(self, number: int) -> None:
        """The batch of a partition takes no more messages."""
        del self._open[number]
        if number == self._sticky and self._partitions > 1:
            # Messages without a key stay together in a batch, and batches take turns.
            self._sticky = (self._sticky + 1) % self._partitions

    def _fail(self, batch: _OpenBatch, error: PenstockError) -> None:
        if batch.sent.done:
            return
        self._on_the_way.pop(batch.sent, None)
        self._pending -= batch.counted
        self._room.notify_all()
        batch.sent.finish(-1, error)

    def _encode(self, batch: _OpenBatch, count: int, identity: Identity | None) -> EncodedBatch:
        ttls: list[int | None] = []
        dues: list[int | Moment | None] = []
        priorities: list[int] = []
        if batch.wishes is not None:
            nothing = Wishes()
            every = [batch.wishes.get(index, nothing) for index in range(count)]
            ttls, dues, priorities = (list(column) for column in zip(*every, strict=True))
        return self._topic.encode_columns(
            batch.values,
            keys=_column(batch.keys, count),
            headers=_column(batch.headers, count),
            times_us=_column(batch.times_us, count),
            ttls_us=ttls if any(ttls) else None,
            dues=dues if any(dues) else None,
            priorities=priorities if any(priorities) else None,
            codec=self._codec,
            level=self._level,
            producer=identity,
        )

    def _committed(self, batch: _OpenBatch, ticket: Commitment) -> None:
        """In the committing thread."""
        first = ticket.first_offset
        if ticket.error is None:
            self._outlet.note_published(len(batch.values))
        with self._lock:
            if batch.sent.done:
                return  # Ctrl-C came when it had just been handed over, and its futures were told so
            self._pending -= batch.counted
            self._room.notify_all()
        batch.sent.finish(-1 if first is None else first, ticket.error)
        with self._lock:
            # Last: who flushes waits for those that are here, and their callbacks must be under way then.
            self._on_the_way.pop(batch.sent, None)

    # -- lingering --------------------------------------------------------------------------------------------------

    def _flush_open(self) -> None:
        with self._lock:
            for number in list(self._open):
                self._commit(number)
        if not self._background:
            while self._on_the_way:
                self._outlet.commit()

    def _send_lingering(self) -> None:
        """The thread that commits what has lingered long enough; asleep while nothing lingers."""
        rest: float | None = None
        while not self._closed:
            self._timer_wake.wait(rest)
            self._timer_wake.clear()
            with self._lock:
                now = threading.monotonic()
                due = [number for number, batch in self._open.items() if now - batch.begun >= self.linger]
                for number in due:
                    self._commit(number)
                rest = min([batch.begun + self.linger - now for batch in self._open.values()], default=None)

    def flush(self, timeout: object = None) -> None:
        """
        Commit all that was sent; returns when it is committed or has failed (see the futures).

        Raises `WaitTimeout` after *timeout* seconds; the commits go on.
        """
        wait_s = check_wait("timeout", timeout)
        with self._lock:
            for number in list(self._open):
                self._commit(number)
            # What others send from now on is not waited for: they might never stop.
            on_the_way = list(self._on_the_way)
        if not self._background:
            while not all(sent.done for sent in on_the_way):
                self._outlet.commit()
        end = None if wait_s is None else threading.monotonic() + wait_s
        for sent in on_the_way:
            if not sent.wait(None if end is None else max(0.0, end - threading.monotonic())):
                raise WaitTimeout("flushing the producer", wait_s or 0.0)

    @property
    def pending(self) -> int:
        """Messages that are not committed yet."""
        return self._pending

    def close(self) -> None:
        """Commit what it holds and take no more. Closing twice does nothing."""
        with self._lock:
            if self._closed and not self._open:  # else it was interrupted before all was handed over
                return
            self._closed = True
            self._room.notify_all()
        try:
            self.flush()
        finally:
            self._callbacks.drain(CALLBACK_SECONDS)
            self._timer_wake.set()
            if self._timer is not None and self._timer is not threading.current_thread():
                self._timer.join()
            self._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer of {self._topic.name}, {self._pending} pending{', closed' if self._closed else ''}>"
