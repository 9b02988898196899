"""
One client of a server: its calls, its consumers and its stages.

A session knows no sockets. It is given frames, and gives frames to `send`, both in the event loop. Calls that only move memory are
done at once and in order: publishing (the answer comes when the batch is committed, and nobody waits for it), acks, credits. All
others go to a thread, and may overtake each other.

Publishes that may take a while, or wait for the disk (a long batch, a topic with a weaker mode whose log is busy or wants a new
segment), go to a thread too; those to the same log that come meanwhile wait in line behind them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import secrets
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.aio.waiting import finished_or_undone
from penstock.arguments import check_whole_number, shown
from penstock.broker.rights import require
from penstock.broker.subscription import Subscription
from penstock.errors import BadArgument, BadBytes, PenstockError, StageNotFound, Unavailable, UsageError
from penstock.format.batch import EncodedBatch, is_compressed
from penstock.store.consumer import GET_MANY_MAX
from penstock.topics.catalog import OWN_SUFFIXES, check_publishable
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.values import SyncMode, check_name
from penstock.volume.tickets import AppendTicket
from penstock.wire import documents
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.deliveries import split_batches
from penstock.wire.failures import encode_error
from penstock.wire.frame import ANSWER, ERROR, PUSH, Frame, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.broker.completions import Completions
    from penstock.broker.rights import Principal
    from penstock.files import Buffer
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.store.staging import OpenStage
    from penstock.store.store import Store
    from penstock.topics.topic import Topic

    Answer = tuple[dict[str, Any], list[Buffer]]
    Send = Callable[[list[Buffer]], None]

_log = logging.getLogger("penstock.broker")
READ_BYTES_MAX = 16 * 1024 * 1024
CONSUMERS_MAX = 10_000
LANES_AHEAD = 4
"""What an iterating consumer is pushed ahead in a topic with priorities: so many may stand before a more urgent one."""
STAGES_MAX = 100
WAITING_MAX = 10_000
LARGE_ANSWERS_MAX = 4
"""What one connection may have open."""
PREFETCH_BYTES_DEFAULT = 1024 * 1024
PREFETCH_BYTES_MAX = 64 * 1024 * 1024
"""What a consumer may hold unfinished, if it does not say, and if it does: the server keeps it in memory."""
OUTSTANDING_MAX = 1_000
PUBLISHING_BYTES_MAX = 64 * 1024 * 1024
"""Calls, and bytes of publishes, of one connection that may be under way; more wait in its socket."""
LOOP_BYTES_MAX = 256 * 1024
"""The longest batch that is checked in the event loop."""
SENT_BY_COMMITTER_MAX = 2
"""So many answers of one commit are sent by the thread that commits."""


class _AnsweredError(Exception):
    """The call was answered already."""


class Session:
    """What one connection may do, and what it has open. All methods but `release` run in the event loop."""

    def __init__(
        self, store: Store, send: Send, completions: Completions, principal: Principal,
        send_now: Callable[[bytes], bool] = lambda _: False, *, auto_create: bool | None = None,
    ) -> None:  # fmt: skip
        """
        *send_now*: send a frame from any thread without waiting; False if it must go by *send*.

        *auto_create*: whether the client may have topics made by publishing; None means as the store says.
        """
        self._store = store
        self._auto_create = store._catalog.auto_create if auto_create is None else auto_create  # noqa: SLF001
        self._principal = principal
        self._send = send
        self._send_now = send_now
        self._completions = completions
        self._subscriptions: dict[int, Subscription] = {}
        self._stages: dict[str, tuple[OpenStage, threading.Lock]] = {}
        # Random: a number of another connection, which a client kept by mistake, must not name anything of this one.
        self._next_handle = secrets.randbits(40)
        self._large_answers = asyncio.Semaphore(LARGE_ANSWERS_MAX)
        self.on_room: Callable[[], None] = lambda: None
        """Called whenever a call has ended, so that more may be read."""
        self._publishing = 0
        self._publishing_bytes = 0
        self._lines: dict[PartitionLog, deque[Frame]] = {}
        """Publishes that wait behind one of the same log that is with a thread."""
        self._workers: set[asyncio.Task[None]] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        self._closed = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._now: dict[int, Callable[[Frame], Answer | None]] = {
            Call.PING: lambda _: ({}, []),
            Call.PUBLISH: self._publish,
            Call.CREDIT: self._credit,
            Call.ACK: self._ack,
            Call.RETURN: self._return,
            Call.PAUSE: self._pause,
            Call.EXTEND: self._extend,
            Call.NACK: self._nack,
            Call.CANCEL: self._cancel,
            Call.CONSUMER: self._consumer,
        }
        self._later: dict[int, Callable[[Frame], Answer]] = {
            Call.TOPICS: self._topics,
            Call.TOPIC: lambda frame: (documents.encode_topic(store.topic(frame.fields.get("topic"))), []),  # type: ignore[arg-type]
            Call.CREATE_TOPIC: self._create_topic,
            Call.TOPIC_TO_PUBLISH: self._topic_to_publish,
            Call.STATS: lambda _: (documents.encode_stats(store.stats()), []),
            Call.RETAIN: self._retain,
            Call.FLUSH: self._flush,
            Call.VACUUM: lambda frame: (store.vacuum(frame.fields.get("topic"))._asdict(), []),
            Call.COMPACT: lambda frame: (store.compact(frame.fields.get("topic"))._asdict(), []),
            Call.DELETE_TOPIC: self._delete_topic,
            Call.PUBLISH_ONCE: self._publish_once,
            Call.OPEN_PRODUCER: self._open_producer,
            Call.TRANSACT: self._transact,
            Call.STAGE_ADD: self._stage_add,
            Call.STAGE_FINISH: self._stage_finish,
            Call.STAGE_ABANDON: self._stage_abandon,
            Call.COMMIT: self._commit,
            Call.ABORT: lambda frame: ({"count": store.abort(_texts(frame, "stages"))}, []),
            Call.COMMITTED: self._committed,
            Call.COMMIT_POSITION: self._commit_position,
            Call.GROUPS: lambda frame: (
                {"groups": [documents.encode_group(one) for one in store.groups(frame.fields.get("topic"))]}, []
            ),
            Call.DELETE_GROUP: self._delete_group,
            Call.SEEK: self._seek,
            Call.POSITIONS: self._positions,
            Call.READ: self._read,
            Call.OFFSET_OF_TIME: self._offset_of_time,
            Call.DEAD_LETTERS: self._dead_letters,
            Call.REPLAY_DEAD_LETTERS: lambda frame: self._take_out(frame, republish=True),
            Call.DISCARD_DEAD_LETTERS: lambda frame: self._take_out(frame, republish=False),
        }  # fmt: skip
        self._awaited: dict[int, Callable[[Frame], Coroutine[Any, Any, Answer]]] = {
            Call.SUBSCRIBE: self._subscribe,
            Call.FETCH: self._fetch,
            Call.UNSUBSCRIBE: self._unsubscribe,
            Call.STAGE: self._stage,
        }

    def hello(self) -> dict[str, Any]:
        """What the server tells a client that it took in."""
        catalog = self._store._catalog  # noqa: SLF001
        return {
            "version": PROTOCOL_VERSION,
            "store_id": self._store._volume.store_id.hex(),  # noqa: SLF001
            "auto_create": self._auto_create,
            "default": documents.encode_settings(catalog.default),
        }

    @property
    def outstanding(self) -> int:
        """Calls that run; those that wait for messages do not count, since only other calls may bring them."""
        return len(self._tasks) - len(self._waiting) + self._publishing

    @property
    def is_full(self) -> bool:
        """Whether no more calls should be read for now."""
        return self.outstanding > OUTSTANDING_MAX or self._publishing_bytes > PUBLISHING_BYTES_MAX

    @property
    def has_room(self) -> bool:
        """Whether reading may go on."""
        return self.outstanding <= OUTSTANDING_MAX // 2 and self._publishing_bytes <= PUBLISHING_BYTES_MAX // 2

    def handle(self, frame: Frame) -> None:
        """Do what a request asks for, or begin to."""
        try:
            if frame.correlation in self._tasks:
                raise UsageError(f"correlation {frame.correlation} belongs to a call that still runs")
            require(self._principal, frame, self._topic_of_consumer)
            now = self._now.get(frame.call)
            if now is not None:
                answer = now(frame)
                if answer is not None:
                    self._answer(frame, *answer)
                return
        except PenstockError as error:
            self._refuse(frame, error)
            return
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end other clients' sessions
            self._refuse_unexpected(frame, error)
            return
        later, awaited = self._later.get(frame.call), self._awaited.get(frame.call)
        if frame.call == Call.READ and later is not None:
            work: Coroutine[Any, Any, Answer] = self._when_writable(later, frame)
        elif later is not None:
            work = asyncio.to_thread(later, frame)
        elif awaited is not None:
            work = awaited(frame)
        else:
            self._refuse(frame, UsageError(f"there is no call {frame.call} in version {PROTOCOL_VERSION} of the protocol"))
            return
        self._begin(frame, work)

    def _begin(self, frame: Frame, work: Coroutine[Any, Any, Answer]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(frame, work))
        self._tasks[frame.correlation] = task

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.pop(frame.correlation, None)
            self.on_room()

        task.add_done_callback(done)

    async def _when_writable(self, later: Callable[[Frame], Answer], frame: Frame) -> Answer:
        """A large answer is made when the connection has room for it."""
        async with self._large_answers:
            await self._writable.wait()
            answer = await asyncio.to_thread(later, frame)
            self._answer(frame, *answer)
        raise _AnsweredError

    async def _run(self, frame: Frame, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            fields, payload = await work
        except _AnsweredError:
            pass
        except PenstockError as error:
            self._refuse(frame, error)
        except asyncio.CancelledError:
            self._refuse(frame, Unavailable("the call was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001
            self._refuse_unexpected(frame, error)
        else:
            self._answer(frame, fields, payload)

    def _answer(self, frame: Frame, fields: dict[str, Any], payload: list[Buffer]) -> None:
        if not self._closed:
            self._send(encode_frame(ANSWER, frame.call, frame.correlation, fields, payload))

    def _refuse(self, frame: Frame, error: PenstockError) -> None:
        if not self._closed:
            self._send(encode_frame(ERROR, frame.call, frame.correlation, encode_error(error)))

    def _refuse_unexpected(self, frame: Frame, error: Exception) -> None:
        if isinstance(error, (TypeError, ValueError, KeyError, AttributeError, OverflowError)):
            # Fields of a wrong type, most likely; the log has the rest.
            _log.warning("call %s failed", frame.call, exc_info=error)
            self._refuse(frame, UsageError(f"the fields of call {frame.call} are not as they must be"))
            return
        _log.error("call %s failed", frame.call, exc_info=error)
        self._refuse(frame, Unavailable("the server failed to do this; its log says why"))

    def _topic_of_consumer(self, handle: Any) -> str | None:
        found = self._subscriptions.get(handle) if type(handle) is int else None
        return None if found is None else found.consumer.topic

    # -- topics -----------------------------------------------------------------------------------------------------

    def _create_topic(self, frame: Frame) -> Answer:
        name, settings = frame.fields.get("topic"), frame.fields.get("settings", {})
        if not isinstance(settings, dict):
            raise BadArgument("settings", shown(settings), "must be an object")
        return documents.encode_topic(self._store.create_topic(name, **settings)), []  # type: ignore[arg-type]

    def _topics(self, _: Frame) -> Answer:
        """Those that the client has any right on."""
        seen = [one for one in self._store.topics() if self._principal.may_see(one.name)]
        return {"topics": [documents.encode_topic(one) for one in seen]}, []

    def _topic_to_publish(self, frame: Frame) -> Answer:
        topic = self._to_publish(frame.fields.get("topic"))
        return documents.encode_topic(self._store.topic(topic.name)), []

    def _to_publish(self, name: Any) -> Topic:
        return self._store._catalog.to_publish(name, auto_create=self._auto_create)  # noqa: SLF001

    def _consumer(self, frame: Frame) -> Answer:
        consumer = self._of(frame).consumer
        unfinished, held = consumer.backlog()
        return {"in_flight": consumer.in_flight, "unfinished": unfinished, "held": held}, []

    def _retain(self, frame: Frame) -> Answer:
        segments, freed = self._store.retain(frame.fields.get("topic"))
        return {"segments": segments, "bytes": freed}, []

    def _delete_topic(self, frame: Frame) -> Answer:
        self._store.delete_topic(frame.fields.get("topic"))  # type: ignore[arg-type]
        return {}, []

    def _flush(self, _: Frame) -> Answer:
        self._store.flush()
        return {}, []

    def _topic(self, frame: Frame) -> Topic:
        return self._store._catalog.get(frame.fields.get("topic"))  # type: ignore[arg-type]  # noqa: SLF001

    def _publishable(self, frame: Frame) -> Topic:
        topic = self._topic(frame)
        if topic.name.endswith(OWN_SUFFIXES):
            check_publishable(topic.name)  # raises: they are Penstock's own
        return topic

    # -- publishing -------------------------------------------------------------------------------------------------

    def _publish(self, frame: Frame) -> Answer | None:
        """Store one batch; the answer is sent when it is committed."""
        topic = self._publishable(frame)
        partition = topic.check_partition(frame.fields.get("partition"))
        log = topic.logs[partition]
        if frame.fields.get("sync") is not None and not log.always:
            # Each waits for a sync of its own; who wants them in order waits for the answers.
            self._begin(frame, asyncio.to_thread(self._append_strictly, frame, topic, partition))
            return None
        line = self._lines.get(log)
        if line is None and self._takes_long(frame, topic, partition):
            self._lines[log] = line = deque()
            task = asyncio.get_running_loop().create_task(self._work_off(topic, partition, line))
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)
        size = len(frame.payload)
        self._publishing += 1
        self._publishing_bytes += size
        if line is not None:
            line.append(frame)
            return None
        try:
            self._store_batch(frame, topic, partition, _at_once)
        except BaseException:
            self._end_publish(size)
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
        while line and not self._closed:
            frame = line[0]
            try:
                await asyncio.to_thread(self._store_in_thread, frame, topic, partition)
            except PenstockError as error:
                self._refuse(frame, error)
                self._end_publish(len(frame.payload))
            except Exception as error:  # noqa: BLE001 - a bug of ours, or fields of a wrong type
                self._refuse_unexpected(frame, error)
                self._end_publish(len(frame.payload))
            line.popleft()
        del self._lines[topic.logs[partition]]

    def _end_publish(self, size: int) -> None:
        self._publishing -= 1
        self._publishing_bytes -= size
        self.on_room()

    def _append_strictly(self, frame: Frame, topic: Topic, partition: int) -> Answer:
        batch = _adopt(topic, frame.payload)
        _refuse_producer(batch)
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
        batch = _adopt(topic, frame.payload)
        producer, count, is_duplicate = batch.producer, batch.count, False

        def answer(offset: int | None) -> bytes:
            assert offset is not None
            told = b'{"offset":%d,"duplicate":%b}' % (offset, b"true" if is_duplicate else b"false")
            return b"".join(encode_frame(ANSWER, frame.call, frame.correlation, told))

        def end(data: bytes | None = None, error: PenstockError | None = None) -> None:
            """In the loop. With neither it was answered already."""
            self._end_publish(len(frame.payload))
            if error is not None:
                self._refuse(frame, error)
                return
            if not is_duplicate:
                topic.published += count
            if data is not None and not self._closed:
                self._send([data])

        def done(ticket: Ticket) -> None:
            """In the thread that commits."""
            if ticket.error is not None:
                self._completions.add(partial(end, None, ticket.error))
                return
            assert isinstance(ticket, AppendTicket)
            data = answer(ticket.first_offset)
            # One or two answers are sent from here: to wake the loop takes longer. More are sent by the loop, during the next sync.
            if volume.last_tickets <= SENT_BY_COMMITTER_MAX and not self._closed and self._send_now(data):
                self._completions.add_quietly(end)
            else:
                self._completions.add_of_cycle(partial(end, data))

        if producer is not None:
            self._store._producers.check_opened(producer)  # noqa: SLF001
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

    def _publish_once(self, frame: Frame) -> Answer:
        """Messages with a deduplication key: the one slow way, message by message."""
        topic = self._publishable(frame)
        batches = split_batches(frame.payload)
        if len(batches) != 1:
            raise BadBytes("payload", f"has {len(batches)} batches where one is due")
        source = batches[0]
        source.verify()
        source.check_numbers()
        count = len(source)
        messages = Columns(
            topic,
            [_bytes(source.value(index)) for index in range(count)],
            [_bytes(source.key(index)) for index in range(count)],
            [source.headers(index) for index in range(count)],
            [None if time_us is None else _moment(time_us) for time_us in frame.fields.get("times_us") or [None] * count],
            [_bytes(source.dedup_key(index)) for index in range(count)],
            options(None, None, None, frame.fields.get("compression")),
        )
        messages.take_from(source)
        receipts = topic.publish_columns(messages, frame.fields.get("partition"), frame.fields.get("sync"))
        return {"receipts": [[one.partition, one.offset, one.duplicate] for one in receipts]}, []

    def _open_producer(self, frame: Frame) -> Answer:
        name = frame.fields.get("name")
        check_name("producer", name)  # type: ignore[arg-type]
        identity, incarnation = self._store._producers.open(name, self._topic(frame).logs)  # type: ignore[arg-type]  # noqa: SLF001
        return {"id": identity, "incarnation": incarnation}, []

    def _transact(self, frame: Frame) -> Answer:
        """Batches to topics and acks of deliveries, all or nothing."""
        transaction = self._store.transaction()
        batches = split_batches(frame.payload)
        parts = frame.fields.get("parts", [])
        if len(parts) != len(batches):
            raise BadArgument("parts", str(len(parts)), f"must name a topic and a partition for each of {len(batches)} batches")
        for (name, partition), batch in zip(parts, batches, strict=True):
            check_whole_number("partition", partition, 0, 1 << 31)
            topic = self._to_publish(name)
            adopted = _adopt(topic, batch.buffer)
            _refuse_producer(adopted)
            transaction.add_batch(topic, topic.check_partition(partition), adopted)
        for handle, tags in frame.fields.get("acks", []):
            subscription = self._subscription(handle)
            found, missing = subscription.peek(tags)
            if missing:
                raise subscription.expired(missing)
            for delivery in found:
                transaction.ack(delivery)
        transaction.commit()
        for handle, tags in frame.fields.get("acks", []):
            # It may be gone, if the client closed it or hung up meanwhile; the commit is done nevertheless.
            left = self._subscriptions.get(handle)
            if left is not None:
                left.take(tags)
        return {"offsets": transaction.first_offsets}, []

    # -- stages -----------------------------------------------------------------------------------------------------

    async def _stage(self, frame: Frame) -> Answer:
        if len(self._stages) >= STAGES_MAX:
            raise Unavailable(f"this connection has {STAGES_MAX} unfinished stages; finish or abandon some")
        stage = await finished_or_undone(
            lambda: self._store.stage(frame.fields.get("producer")),  # type: ignore[arg-type]
            lambda made: made.abandon(),
        )
        self._stages[stage.identity] = (stage, threading.Lock())
        return {"stage": stage.identity}, []

    def _take_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def _open_stage(self, frame: Frame) -> tuple[OpenStage, threading.Lock]:
        identity = frame.fields.get("stage")
        found = self._stages.get(identity) if isinstance(identity, str) else None
        if found is None:
            raise StageNotFound(str(identity))
        return found

    def _stage_add(self, frame: Frame) -> Answer:
        stage, lock = self._open_stage(frame)
        batches, parts = split_batches(frame.payload), frame.fields.get("parts", [])
        if len(parts) != len(batches):
            raise BadArgument("parts", str(len(parts)), f"must name a topic and a partition for each of {len(batches)} batches")
        # A stage is for one thread, and its calls may come at once.
        with lock:
            for (name, partition), batch in zip(parts, batches, strict=True):
                check_whole_number("partition", partition, 0, 1 << 31)
                topic = self._to_publish(name)
                adopted = _adopt(topic, batch.buffer)
                _refuse_producer(adopted)
                stage.add_batch(topic, topic.check_partition(partition), adopted)
        return {}, []

    def _stage_finish(self, frame: Frame) -> Answer:
        stage, lock = self._open_stage(frame)
        with lock:
            identity = stage.finish()
        self._stages.pop(identity, None)
        return {"stage": identity}, []

    def _stage_abandon(self, frame: Frame) -> Answer:
        stage, lock = self._open_stage(frame)
        with lock:
            stage.abandon()
        self._stages.pop(stage.identity, None)
        return {}, []

    def _commit(self, frame: Frame) -> Answer:
        fields = frame.fields
        result = self._store.commit(fields.get("producer"), fields.get("number"), _texts(frame, "stages"))  # type: ignore[arg-type]
        return {"messages": result.messages, "duplicate": result.duplicate, "newest": result.newest}, []

    def _committed(self, frame: Frame) -> Answer:
        result = self._store.committed(frame.fields.get("producer"), frame.fields.get("number"))  # type: ignore[arg-type]
        if result is None:
            return {"messages": None}, []
        return {"messages": result.messages, "newest": result.newest}, []

    # -- consuming --------------------------------------------------------------------------------------------------

    async def _subscribe(self, frame: Frame) -> Answer:
        if len(self._subscriptions) >= CONSUMERS_MAX:
            raise Unavailable(f"this connection has {CONSUMERS_MAX} consumers; close some")
        options = frame.fields.get("options", {})
        if not isinstance(options, dict):
            raise BadArgument("options", shown(options), "must be an object")
        if "start" in options:
            options["start"] = documents.decode_place("start", options["start"])
        options.setdefault("prefetch_bytes", PREFETCH_BYTES_DEFAULT)
        if type(options["prefetch_bytes"]) is int:  # else it is refused below
            options["prefetch_bytes"] = min(options["prefetch_bytes"], PREFETCH_BYTES_MAX)
        store, fields = self._store, frame.fields
        # Who hangs up meanwhile gets no consumer, and the group no member that nobody is.
        consumer = await finished_or_undone(
            lambda: store.subscribe(fields.get("topic"), fields.get("group"), **options),  # type: ignore[arg-type]
            lambda made: made.close(),
        )
        handle = self._take_handle()

        def push(told: dict[str, Any], payload: list[Buffer]) -> None:
            if not self._closed:
                self._send(encode_frame(PUSH, Call.FETCH, handle, told, payload))

        subscription = Subscription(consumer, options.get("concurrency", 1), push)
        subscription.set_writable(may_write=self._writable.is_set())
        self._subscriptions[handle] = subscription
        group = consumer._group  # noqa: SLF001
        answer = {"handle": handle, "topic": consumer.topic, "group": consumer.group, "ordered": consumer.ordered,
                  "partitions": len(group.cursors), "lease": group.lease_s, "ttl_ms": self._ttl_ms(consumer.topic)}  # fmt: skip
        if group.has_lanes:
            answer["ahead"] = LANES_AHEAD
        return answer, []

    def _ttl_ms(self, topic: str) -> int:
        return self._store._catalog.get(topic).settings.ttl_ms  # noqa: SLF001

    def _subscription(self, handle: Any) -> Subscription:
        found = self._subscriptions.get(handle) if type(handle) is int else None
        if found is None:
            raise BadArgument("consumer", shown(handle), "this connection has no such consumer")
        found.heard()
        return found

    def _of(self, frame: Frame) -> Subscription:
        return self._subscription(frame.fields.get("consumer"))

    async def _fetch(self, frame: Frame) -> Answer:
        count = check_whole_number("count", frame.fields.get("count"), 1, GET_MANY_MAX)
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX:,} calls of this connection wait for messages already")
        self._waiting.add(frame.correlation)
        try:
            await self._writable.wait()
            return await self._of(frame).fetch(count, frame.fields.get("wait"))
        finally:
            self._waiting.discard(frame.correlation)

    def _credit(self, frame: Frame) -> Answer:
        self._of(frame).add_credit(check_whole_number("messages", frame.fields.get("messages"), 0, GET_MANY_MAX))
        return {}, []

    def _ack(self, frame: Frame) -> Answer | None:
        if self._is_finished(frame):
            return {"late": 0}, []
        late, first = self._of(frame).ack(frame.fields.get("tags"))
        told = {"late": late, "tag": first} if late else {"late": 0}
        if frame.fields.get("wait"):
            self._begin(frame, self._when_durable(told))
            return None
        return told, []

    async def _when_durable(self, fields: dict[str, Any]) -> Answer:
        await asyncio.to_thread(self._store.flush)
        return fields, []

    def _is_finished(self, frame: Frame) -> bool:
        """Of a call that also ends a handler: whether that had finished its message itself. Raises `LeaseExpired`."""
        tag = frame.fields.get("ends")
        return tag is not None and not self._of(frame).end_handler(tag)

    def _nack(self, frame: Frame) -> Answer:
        if self._is_finished(frame):
            return {"late": 0}, []
        fields = frame.fields
        late = self._of(frame).nack(
            fields.get("tags"), delay=fields.get("delay"), reason=fields.get("reason"), reject=bool(fields.get("reject"))
        )
        return {"late": late}, []

    def _extend(self, frame: Frame) -> Answer:
        subscription = self._of(frame)
        delivery = subscription.find(frame.fields.get("tag"))
        if delivery is None:
            return {"late": 1}, []
        group = delivery._lot.member.group  # noqa: SLF001
        if frame.fields.get("begins"):
            group.begin(delivery)
        else:
            group.extend(delivery, frame.fields.get("seconds"))
        return {"late": 0}, []

    def _return(self, frame: Frame) -> Answer:
        if self._is_finished(frame):
            return {}, []
        self._of(frame).give_back(frame.fields.get("tags"))
        return {}, []

    def _pause(self, frame: Frame) -> Answer:
        consumer = self._of(frame).consumer
        if frame.fields.get("paused"):
            consumer.pause()
        else:
            consumer.resume()
        return {}, []

    def _commit_position(self, frame: Frame) -> Answer:
        self._of(frame).consumer.commit(frame.fields.get("position"), frame.fields.get("partition"))  # type: ignore[arg-type]
        return {}, []

    async def _unsubscribe(self, frame: Frame) -> Answer:
        subscription = self._of(frame)
        subscription.stop_pushing()
        await asyncio.to_thread(subscription.close)
        # Only now: if the connection is lost before, it is closed with the others.
        self._subscriptions.pop(frame.fields["consumer"], None)
        return {}, []

    def _cancel(self, frame: Frame) -> Answer:
        correlation = frame.fields.get("correlation")
        task = self._tasks.get(correlation) if correlation in self._waiting else None  # others have begun to change something
        if task is not None:
            task.cancel()
        return {}, []

    # -- groups -----------------------------------------------------------------------------------------------------

    def _delete_group(self, frame: Frame) -> Answer:
        self._store.delete_group(frame.fields.get("topic"), frame.fields.get("group"))  # type: ignore[arg-type]
        return {}, []

    def _seek(self, frame: Frame) -> Answer:
        fields = frame.fields
        to = fields.get("to")
        if isinstance(to, dict) and "time_us" not in to:
            to = {int(partition): documents.decode_place("to", where) for partition, where in to.items()}
        else:
            to = documents.decode_place("to", to)
        self._store.seek(fields.get("topic"), fields.get("group"), to, partition=fields.get("partition"))  # type: ignore[arg-type]
        return {}, []

    # -- reading ----------------------------------------------------------------------------------------------------

    def _positions(self, frame: Frame) -> Answer:
        if "topics" in frame.fields:
            found = self._store.positions(_texts(frame, "topics"))
            return {"topics": {name: documents.encode_positions(one) for name, one in found.items()}}, []
        topic = self._topic(frame)
        ends = self._store._volume.ends(topic.logs)  # noqa: SLF001
        return {"starts": [log.log_start for log in topic.logs], "ends": ends, "ttl_ms": topic.settings.ttl_ms}, []

    def _read(self, frame: Frame) -> Answer:
        topic = self._topic(frame)
        log = topic.logs[topic.check_partition(frame.fields.get("partition"))]
        offset = check_whole_number("offset", frame.fields.get("offset"), 0, (1 << 63) - 1)
        size = check_whole_number("bytes", frame.fields.get("bytes", 1 << 20), 1, READ_BYTES_MAX)
        return {}, [batch.buffer for batch in log.read(offset, size)]

    def _offset_of_time(self, frame: Frame) -> Answer:
        topic = self._topic(frame)
        log = topic.logs[topic.check_partition(frame.fields.get("partition"))]
        return {
            "offset": log.offset_of_time(check_whole_number("time_us", frame.fields.get("time_us"), -(1 << 63), (1 << 63) - 1))
        }, []

    # -- dead letters -----------------------------------------------------------------------------------------------

    def _dead_letters(self, frame: Frame) -> Answer:
        """The offsets of those that are there; the messages are read like any others."""
        box = self._store.dead_letters(frame.fields.get("topic"))  # type: ignore[arg-type]
        if frame.fields.get("count"):
            return {"count": len(box)}, []
        return {"places": [[one.partition, one.offset] for one in box.list(frame.fields.get("max_messages"))]}, []

    def _take_out(self, frame: Frame, *, republish: bool) -> Answer:
        box = self._store.dead_letters(frame.fields.get("topic"))  # type: ignore[arg-type]
        offsets = frame.fields.get("offsets")
        return {"count": box.replay(offsets=offsets) if republish else box.discard(offsets=offsets)}, []

    # -- the end ----------------------------------------------------------------------------------------------------

    def set_writable(self, *, may_write: bool) -> None:
        """The connection takes more, or is full."""
        if may_write:
            self._writable.set()
        else:
            self._writable.clear()
        for subscription in self._subscriptions.values():
            subscription.set_writable(may_write=may_write)

    def end_waits(self) -> None:
        """End the calls that wait for messages."""
        for correlation in self._waiting:
            task = self._tasks.get(correlation)
            if task is not None:
                task.cancel()

    def disconnect(self, *, orderly: bool) -> Callable[[], None]:
        """The connection is gone. Returns what is left to do, which waits for the disk."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
        stages, self._stages = list(self._stages.values()), {}
        for subscription in subscriptions:
            subscription.stop_pushing()

        def release() -> None:
            for subscription in subscriptions:
                if orderly:
                    subscription.close()
                else:
                    subscription.lose()
            for stage, lock in stages:
                with lock:
                    stage.abandon()

        return release


def _adopt(topic: Topic, data: Buffer) -> EncodedBatch:
    """A client's batch, checked. Raises `BadBytes`, `MessageTooLarge`."""
    batch = EncodedBatch.adopt(data)
    topic.check_batch(batch)
    return batch


def _refuse_producer(batch: EncodedBatch) -> None:
    """A transaction, a stage or a strict publish is recognised by other means; a sequence in it would only be forged."""
    if batch.producer is not None:
        raise UsageError("batches of this call carry no producer")


def _at_once(function: Callable[[], None]) -> None:
    function()


def _moment(time_us: Any) -> dt.datetime:
    """As a datetime, since a float of seconds would lose some of it."""
    return documents.EPOCH + dt.timedelta(microseconds=check_whole_number("times_us", time_us, -(1 << 63), 1 << 63))


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _texts(frame: Frame, name: str) -> list[str]:
    values = frame.fields.get(name)
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise BadArgument(name, shown(values), "must be a list of texts")
    return values
