"""
Publishing by a client: in the event loop, in order, and without waiting for the disk.

A batch becomes a ticket; the answer is sent when that is committed. What may take a while, or wait for the disk (a long batch, a
topic with a weaker mode whose log is busy or wants a new segment), goes to a thread; publishes to the same log that come meanwhile
wait in a *line* behind it. Batches for several partitions in one call are one ticket, and so one frame of the journal; they wait in no
line, so their order among other publishes that are not answered yet is any.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_whole_number, shown
from penstock.broker.batches import adopt, adopt_each, adopt_unnumbered
from penstock.errors import BadArgument, BadBytes
from penstock.format.batch import is_compressed
from penstock.topics.encoder import Columns
from penstock.topics.idempotence import offsets_of
from penstock.topics.options import options
from penstock.values import SyncMode, check_name
from penstock.volume.tickets import AppendTicket
from penstock.wire import documents
from penstock.wire.deliveries import split_batches
from penstock.wire.frame import ANSWER, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.calls_under_way import CallsUnderWay
    from penstock.broker.completions import Completions
    from penstock.broker.replies import Answer, Replies
    from penstock.broker.topics import Topics
    from penstock.errors import PenstockError
    from penstock.format.batch import EncodedBatch
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.store.store import Store
    from penstock.topics.topic import Topic
    from penstock.wire.frame import Frame

LOOP_BYTES_MAX = 256 * 1024
"""The longest batch that is checked in the event loop."""
LOOP_PARTS_MAX = 100
"""So many batches of one call are checked in the event loop."""
SENT_BY_COMMITTER_MAX = 2
"""So many answers of one commit are sent by the thread that commits."""


class Publishing:
    """What one client publishes. `publish` runs in the event loop, the other calls in threads."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        replies: Replies,
        under_way: CallsUnderWay,
        completions: Completions,
        owner: str = "",
    ) -> None:
        """*owner*: who the names of the client's producers belong to, empty without tokens."""
        self._store = store
        self._owner = owner
        self._topics = topics
        self._replies = replies
        self._under_way = under_way
        self._completions = completions
        self._lines: dict[PartitionLog, deque[Frame]] = {}
        """Publishes that wait behind one of the same log that is with a thread."""
        self._workers: set[asyncio.Task[None]] = set()

    def publish(self, frame: Frame) -> Answer | None:
        """Store one batch; the answer is sent when it is committed."""
        topic = self._topics.publishable(frame)
        partition = topic.check_partition(frame.fields.get("partition"))
        log = topic.logs[partition]
        if frame.fields.get("sync") is not None and not log.always:
            # Each waits for a sync of its own; who wants them in order waits for the answers.
            self._under_way.begin(frame, asyncio.to_thread(self._append_strictly, frame, topic, partition))
            return None
        line = self._lines.get(log)
        if line is None and self._takes_long(frame, topic, partition):
            self._lines[log] = line = deque()
            task = asyncio.get_running_loop().create_task(self._work_off(topic, partition, line))
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)
        size = len(frame.payload)
        self._under_way.begin_publish(size)
        if line is not None:
            line.append(frame)
            return None
        try:
            self._store_batch(frame, topic, partition, _at_once)
        except BaseException:
            self._under_way.end_publish(size)
            raise
        self._completions.commit_soon()
        return None

    def _takes_long(self, frame: Frame, topic: Topic, partition: int) -> bool:
        """Whether a publish may keep the loop waiting."""
        size, log = len(frame.payload), topic.logs[partition]
        # A compressed batch is inflated to look at it, and may be a large one.
        if size > LOOP_BYTES_MAX or not self._store.has_threads or is_compressed(frame.payload):
            return True
        if log.always:
            return False
        return log.lock.locked() or topic.gate(partition).is_busy or not log.appends_quickly(size)

    async def _work_off(self, topic: Topic, partition: int, line: deque[Frame]) -> None:
        """Store the batches of a line one after the other in a thread, in their order."""
        while line and not self._replies.closed:
            frame = line[0]
            try:
                await asyncio.to_thread(self._store_in_thread, frame, topic, partition)
            except Exception as error:  # noqa: BLE001 - also a bug of ours, or fields of a wrong type
                self._replies.refuse(frame, error)
                self._under_way.end_publish(len(frame.payload))
            line.popleft()
        del self._lines[topic.logs[partition]]

    def _append_strictly(self, frame: Frame, topic: Topic, partition: int) -> Answer:
        batch = adopt_unnumbered(topic, frame.payload)
        mode = SyncMode.of(frame.fields.get("sync"))  # type: ignore[arg-type]  # it checks
        offset = self._store._volume.append(topic.logs[partition], batch, sync=mode)  # noqa: SLF001
        topic.published += batch.count
        return {"offset": offset, "duplicate": False}, []

    def _store_in_thread(self, frame: Frame, topic: Topic, partition: int) -> None:
        self._store_batch(frame, topic, partition, self._completions.add)
        if self._store.has_threads:
            self._store._volume.hand_on()  # noqa: SLF001

    def _store_batch(self, frame: Frame, topic: Topic, partition: int, in_loop: Callable[[Callable[[], None]], None]) -> None:
        """
        Store one batch, or submit it; *in_loop* calls a function in the loop.

        Raises `PenstockError`, and then the publish has not ended.
        """
        volume, log = self._store._volume, topic.logs[partition]  # noqa: SLF001
        batch = adopt(topic, frame.payload)
        producer, count, is_duplicate = batch.producer, batch.count, False

        def answer(offset: int | None) -> bytes:
            assert offset is not None
            told = b'{"offset":%d,"duplicate":%b}' % (offset, b"true" if is_duplicate else b"false")
            return b"".join(encode_frame(ANSWER, frame.call, frame.correlation, told))

        def end(data: bytes | None = None, error: PenstockError | None = None) -> None:
            """In the loop. With neither it was answered already."""
            self._under_way.end_publish(len(frame.payload))
            if error is not None:
                self._replies.refuse(frame, error)
                return
            if not is_duplicate:
                topic.published += count
            if data is not None:
                self._replies.send(data)

        def done(ticket: Ticket) -> None:
            """In the thread that commits."""
            if ticket.error is not None:
                self._completions.add(partial(end, None, ticket.error))
                return
            assert isinstance(ticket, AppendTicket)
            data = answer(ticket.first_offset)
            # One or two answers are sent from here: to wake the loop takes longer. More are sent by the loop, during the next sync.
            if volume.last_tickets <= SENT_BY_COMMITTER_MAX and not self._replies.closed and self._replies.send_now(data):
                self._completions.add_quietly(end)
            else:
                self._completions.add_of_cycle(partial(end, data))

        if producer is not None:
            self._store._producers.check_opened(producer, self._owner)  # noqa: SLF001
        offset: int | None
        ticket: AppendTicket | None = None
        if not self._store.has_threads:
            # Nobody commits by itself there, so this thread of ours must.
            receipt = topic.append_batch(partition, batch)
            offset, is_duplicate = receipt.offset, receipt.duplicate
        elif producer is not None:
            offset, ticket, is_duplicate = topic.gate(partition).submit(batch, done)
            if ticket is not None and is_duplicate:
                ticket.on_done(done)
                self._completions.wake()  # its cycle may be over already
        elif log.always:
            offset, ticket = None, volume.submit(log, batch, done)
        else:
            offset = volume.append(log, batch)
        if ticket is None:
            in_loop(partial(end, answer(offset)))

    def publish_many(self, frame: Frame) -> Answer | None:
        """Store one batch for each of several partitions, all of them or none; the answer is sent when they are committed."""
        topic = self._topics.publishable(frame)
        if frame.fields.get("sync") is not None and not topic.logs[0].always:
            self._under_way.begin(frame, asyncio.to_thread(self._append_all_strictly, frame, topic))
        elif (
            len(frame.payload) > LOOP_BYTES_MAX or not self._store.has_threads or not topic.logs[0].always
            or len(_partitions(frame)) > LOOP_PARTS_MAX or any(log in self._lines for log in self._logs_of(frame, topic))
        ):  # fmt: skip
            self._under_way.begin(frame, asyncio.to_thread(self._append_all, frame, topic))
        else:
            size = len(frame.payload)
            self._under_way.begin_publish(size)
            try:
                self._submit_all(frame, topic)
            except BaseException:
                self._under_way.end_publish(size)
                raise
            self._completions.commit_soon()
        return None

    @staticmethod
    def _logs_of(frame: Frame, topic: Topic) -> list[PartitionLog]:
        return [topic.logs[topic.check_partition(one)] for one in _partitions(frame)]

    def _submit_all(self, frame: Frame, topic: Topic) -> None:
        """In the loop: nothing here waits for the disk. Raises `PenstockError`, and then the publish has not ended."""
        count = 0

        def end(offsets: list[int], error: PenstockError | None, *, duplicate: bool) -> None:
            self._under_way.end_publish(len(frame.payload))
            if error is not None:
                self._replies.refuse(frame, error)
                return
            if not duplicate:
                topic.published += count
            self._replies.answer(frame, {"offsets": offsets, "duplicate": duplicate}, [])

        def done(ticket: Ticket, *, duplicate: bool = False) -> None:
            """In the thread that commits."""
            offsets = offsets_of(ticket) if ticket.error is None else []
            self._completions.add_of_cycle(partial(end, offsets, ticket.error, duplicate=duplicate))

        parts = self._adopt_all(frame, topic)
        count = sum([batch.count for _, batch in parts])
        offsets, ticket, duplicate = topic.submit_batches(parts, done)
        if offsets is not None:
            end(offsets, None, duplicate=duplicate)
        elif duplicate:
            assert ticket is not None
            ticket.on_done(partial(done, duplicate=True))
            self._completions.wake()  # its cycle may be over already

    def _append_all(self, frame: Frame, topic: Topic) -> Answer:
        """In a thread."""
        parts = self._adopt_all(frame, topic)
        offsets, ticket, duplicate = topic.submit_batches(parts)
        if ticket is not None:
            ticket.wait()
            offsets = offsets_of(ticket)
        if not duplicate:
            topic.published += sum([batch.count for _, batch in parts])
        return {"offsets": offsets, "duplicate": duplicate}, []

    def _append_all_strictly(self, frame: Frame, topic: Topic) -> Answer:
        mode = SyncMode.of(frame.fields.get("sync"))  # type: ignore[arg-type]  # it checks
        parts = list(adopt_each(frame, topic, _partitions(frame), adopt_unnumbered))
        offsets = topic.append_all(parts, mode)
        topic.published += sum([batch.count for _, batch in parts])
        return {"offsets": offsets, "duplicate": False}, []

    def _adopt_all(self, frame: Frame, topic: Topic) -> list[tuple[int, EncodedBatch]]:
        parts = list(adopt_each(frame, topic, _partitions(frame), adopt))
        for _, batch in parts:
            if batch.producer is not None:
                self._store._producers.check_opened(batch.producer, self._owner)  # noqa: SLF001
        return parts

    def publish_once(self, frame: Frame) -> Answer:
        """Messages with a deduplication key: the one slow way, message by message."""
        topic = self._topics.publishable(frame)
        batches = split_batches(frame.payload)
        if len(batches) != 1:
            raise BadBytes("payload", f"has {len(batches)} batches where one is due")
        source = batches[0]
        source.verify()
        source.check_numbers()
        count = len(source)
        times_us = frame.fields.get("times_us")
        if times_us is None:
            times_us = [source.given_time_us(index) for index in range(count)]
        messages = Columns(
            topic,
            [_bytes(source.value(index)) for index in range(count)],
            [_bytes(source.key(index)) for index in range(count)],
            [source.headers(index) for index in range(count)],
            [None if time_us is None else _moment(time_us) for time_us in times_us],
            [_bytes(source.dedup_key(index)) for index in range(count)],
            options(None, None, None, frame.fields.get("compression")),
        )
        messages.take_from(source)
        receipts = topic.publish_columns(messages, frame.fields.get("partition"), frame.fields.get("sync"))
        return {"receipts": [[one.partition, one.offset, one.duplicate] for one in receipts]}, []

    def open_producer(self, frame: Frame) -> Answer:
        """The id and the incarnation of a producer by name."""
        name = frame.fields.get("name")
        check_name("producer", name)  # type: ignore[arg-type]
        logs = self._topics.named(frame).logs
        identity, incarnation = self._store._producers.open(name, logs, self._owner)  # type: ignore[arg-type]  # noqa: SLF001
        return {"id": identity, "incarnation": incarnation}, []


def _partitions(frame: Frame) -> list[int]:
    """Where the batches of a call go. Raises `BadArgument`."""
    partitions = frame.fields.get("partitions")
    if not isinstance(partitions, list) or not partitions or any(type(one) is not int for one in partitions):
        raise BadArgument("partitions", shown(partitions), "must be a list of partitions, one for each batch")
    if len(set(partitions)) != len(partitions):
        raise BadArgument("partitions", shown(partitions), "must name no partition twice")
    return partitions


def _at_once(function: Callable[[], None]) -> None:
    function()


def _moment(time_us: Any) -> dt.datetime:
    """As a datetime, since a float of seconds would lose some of it."""
    return documents.EPOCH + dt.timedelta(microseconds=check_whole_number("times_us", time_us, -(1 << 63), 1 << 63))


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)
