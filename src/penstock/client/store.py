"""
`penstock.open("penstock://host:port")`: a store on a server, with the names of `penstock.Store`.

Messages are checked, and encoded as they will lie on the server's disk, here; the server stamps and stores the bytes. What each call
means and raises is said in `penstock.Store`; besides, any call raises `Unavailable` when the server cannot be reached for a while.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from penstock.arguments import check_seconds, check_texts, check_whole_number, shown
from penstock.client.connection import Connection
from penstock.client.consumer import RemoteConsumer
from penstock.client.dead_letter_box import RemoteDeadLetters
from penstock.client.pending import ConnectionLost
from penstock.client.publishing import Lanes, RemoteOutlet, for_server
from penstock.client.reading import remote_logs
from penstock.client.staging import RemoteStage
from penstock.client.transaction import RemoteTransaction
from penstock.errors import BadName, BadSetting, PenstockError, PermissionDenied, TopicNotFound, Unavailable
from penstock.store import reading
from penstock.store.declaring import check_subscription_options
from penstock.store.metrics import Meter, StoreMetrics
from penstock.store.producer import Producer, ProducerOptions
from penstock.store.staging import NUMBER_MAX, Committed, check_note
from penstock.store.store import PREFETCH_DEFAULT, Retained, Rewritten, TopicInfo
from penstock.store.worker import STOP_SECONDS, Worker, Workers, check_worker
from penstock.topics import publication
from penstock.topics.catalog import OWN_SUFFIXES, check_publishable
from penstock.topics.encoder import Columns, MessageEncoder
from penstock.topics.options import compression_of, options
from penstock.topics.receipt import Receipt, Receipts
from penstock.values import SyncMode, check_name
from penstock.wire import documents
from penstock.wire.answers import number_rows, rows, whole
from penstock.wire.calls import Call

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.client.address import Place
    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer as Identity
    from penstock.store.reading import TopicPositions
    from penstock.store.stats import MemberInfo, StoreStats
    from penstock.store.store import GroupInfo
    from penstock.topics.message import Message

KIB = 1024
TIMES_MAX = 1_000
_SECONDS = {"lease", "backoff", "backoff_max"}
_SECONDS_OF_TOPIC = {
    "segment_age", "dedup_window", "retention_age", "dead_letter_retention", "tombstone_grace", "group_expiry", "ttl", "aging",
}  # fmt: skip


def rewritten_of(fields: dict[str, Any]) -> Rewritten:
    """What an answer says was removed. Raises `BadBytes`."""
    return Rewritten(*[whole(fields, name) for name in Rewritten._fields])


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a topic as they travel. Raises `BadSetting`, `BadArgument`."""
    given = {
        key: check_seconds(key, value, 0, 1e9) if key in _SECONDS_OF_TOPIC else value
        for key, value in settings.items()
        if value is not None or key == "partitions"
    }
    for key, value in given.items():
        if isinstance(value, SyncMode):
            given[key] = value.value
        elif not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not math.isfinite(value)):
            raise BadSetting(key, shown(value), "must be a number or a text")
    return given


class RemoteStore:
    """A store on a server. Safe to use from many threads. See `penstock.Store`."""

    def __init__(self, address: Place, *, auto_create: bool = True, give_up_s: float = 30.0) -> None:
        self.path = address.url
        self._connection = Connection(address, give_up_s=give_up_s)
        self._auto_create = auto_create
        self._topics: dict[str, MessageEncoder] = {}
        self._lanes = Lanes(self._connection)
        self._consumers: set[RemoteConsumer] = set()
        self._producers: set[Producer] = set()
        self._workers = Workers()
        self._close_lock = threading.Lock()
        self._meter: Meter | None = None

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Create a topic; durable when it returns. See `Store.create_topic`."""
        answer = self._connection.call(Call.CREATE_TOPIC, self._topic_to_create(name, settings))
        return self._know(documents.decode_topic(answer.fields))

    def _topic_to_create(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        self._check_open()
        check_publishable(name)
        return {"topic": name, "settings": plain_settings(settings)}

    def _know(self, info: TopicInfo) -> TopicInfo:
        known = self._topics.get(info.name)
        if known is None or (known.partitions, known.settings) != (info.partitions, info.settings):
            self._topics[info.name] = MessageEncoder(info.name, info.partitions, info.settings)
        return info

    def delete_topic(self, name: str) -> None:
        """Delete a topic; durable when it returns. See `Store.delete_topic`."""
        self._check_open()
        check_topic_name(name)
        self._connection.call(Call.DELETE_TOPIC, {"topic": name}, resend=False)
        self._topics.pop(name, None)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        answer = self._connection.call(Call.TOPICS)
        return [documents.decode_topic(one) for one in rows(answer.fields, "topics")]

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises `TopicNotFound`."""
        self._check_open()
        check_topic_name(name)
        return self._know(documents.decode_topic(self._connection.call(Call.TOPIC, {"topic": name}).fields))

    def _to_publish(self, name: str, check: Callable[[MessageEncoder], object]) -> MessageEncoder:
        """The topic that *name* publishes to; made after *check* has seen one like it, where that is allowed."""
        self._check_open()
        found = self._to_publish_later(name, check)
        if name not in self._topics:
            self._know(documents.decode_topic(self._connection.call(Call.TOPIC_TO_PUBLISH, {"topic": name}).fields))
            return self._topics[name]
        return found

    def _to_publish_later(self, name: str, check: Callable[[MessageEncoder], object]) -> MessageEncoder:
        """The same, but a topic that is not there yet is made by the server when it is published to."""
        known = self._known(name)
        if known is not None:
            return known
        try:
            self.topic(name)
        except PermissionDenied as error:
            # Without any right on it; what is wanted here is one.
            raise PermissionDenied(error.principal, "publish", name) from None
        except TopicNotFound:
            if not self._may_create:
                raise
            draft = self._draft(name)
            check(draft)
            return draft
        return self._topics[name]

    def _known(self, name: str) -> MessageEncoder | None:
        """The topic, if it was seen before. Raises `BadName`, `ReservedName`."""
        known = self._topics.get(name) if isinstance(name, str) else None
        if known is not None and not name.endswith(OWN_SUFFIXES):
            return known
        check_publishable(name)
        return None

    @property
    def _may_create(self) -> bool:
        return self._auto_create and bool(self._connection.hello.get("auto_create"))

    def _draft(self, name: str) -> MessageEncoder:
        return MessageEncoder(name, 1, documents.decode_topic_settings(self._connection.hello.get("default")))

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp: Any = None,
        dedup_key: str | bytes | None = None,
        sync: str | SyncMode | None = None,
        ttl: Any = None,
        delay: Any = None,
        priority: str | None = None,
        compression: str | None = None,
    ) -> Receipt:
        """Store one message and return where it lies. See `Store.publish`."""
        chosen = options(ttl, delay, priority, compression)
        target = self._to_publish(
            topic, lambda new: new.check_message(value, key, headers, partition, timestamp, dedup_key, sync, chosen)
        )
        mode = None if sync is None else SyncMode.of(sync)
        dedup = publication.dedup_key_bytes(dedup_key)
        if dedup is not None:
            columns = Columns(
                target, [value], None if key is None else [key], None if headers is None else [headers],
                None if timestamp is None else [timestamp], [dedup], chosen,
            )  # fmt: skip
            return self._publish_once(target, columns, partition, mode)[0]
        batch, key_data = target.encode(value, key, headers, timestamp, None, chosen)
        number = target.partition_for(key_data, partition)
        first, duplicate = self._send(target, number, batch, mode)
        return Receipt(topic, number, first, duplicate)

    def _send(self, target: MessageEncoder, number: int, batch: EncodedBatch, mode: SyncMode | None) -> tuple[int, bool]:
        def encode(identity: Identity | None) -> EncodedBatch:
            return for_server(batch, identity)

        first, _ = self._lanes.publish(target.name, number, encode, stricter(target, mode))
        # That the server knew the batch already says only that an answer was lost on the way.
        return first, False

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamps: Any = None,
        dedup_keys: Any = None,
        sync: str | SyncMode | None = None,
        ttls: Any = None,
        delays: Any = None,
        priorities: Any = None,
        compression: str | None = None,
    ) -> Receipts | list[Receipt]:
        """Store several messages, all of them or none. See `Store.publish_many`."""
        chosen = options(ttls, delays, priorities, compression)
        target = self._to_publish(
            topic, lambda new: new.check_messages(values, keys, headers, partition, timestamps, dedup_keys, sync, chosen)
        )
        mode = None if sync is None else SyncMode.of(sync)
        messages = Columns(target, values, keys, headers, timestamps, dedup_keys, chosen)
        if messages.dedup_keys is not None:
            return self._publish_once(target, messages, partition, mode)
        if not messages.values:
            return Receipts(topic, [])
        parts = messages.split(partition)
        if len(parts) == 1:
            firsts = [self._send(target, parts[0][0], parts[0][2], mode)[0]]
        else:
            firsts = self._lanes.publish_many(topic, [(number, batch) for number, _, batch in parts], stricter(target, mode))
        ranges = [(number, first, batch.count) for (number, _, batch), first in zip(parts, firsts, strict=True)]
        return Receipts.of_parts(topic, ranges, [indices for _, indices, _ in parts])

    def _publish_once(
        self, target: MessageEncoder, messages: Columns, partition: int | None, mode: SyncMode | None
    ) -> list[Receipt]:
        """Messages with deduplication keys: the server looks at each."""
        request = self._once(target, messages, partition, mode)
        if request is None:
            return []
        fields, payload, every_key = request
        answer = self._connection.call(Call.PUBLISH_ONCE, fields, payload, resend=every_key)
        return [Receipt(target.name, one[0], one[1], bool(one[2])) for one in number_rows(answer.fields, "receipts", 3)]

    @staticmethod
    def _once(
        target: MessageEncoder, messages: Columns, partition: int | None, mode: SyncMode | None
    ) -> tuple[dict[str, Any], list[bytearray], bool] | None:
        """Fields and payload of `PUBLISH_ONCE`, and whether it may be repeated; None: there is nothing to publish."""
        if partition is not None:
            target.check_partition(partition)
        if not messages.values:
            return None
        batch = for_server(messages.encode_all(), None)
        fields: dict[str, Any] = {
            "topic": target.name, "partition": partition, "sync": None if mode is None else mode.value
        }  # fmt: skip
        if messages.times_us is not None and len(messages.times_us) <= TIMES_MAX:
            # They are in the batch too, where older servers do not look.
            fields["times_us"] = messages.times_us
        if (messages.codec, messages.level) != (target.codec, target.level):
            fields["compression"] = compression_of(messages.codec, messages.level)
        every_key = messages.dedup_keys is not None and all(key is not None for key in messages.dedup_keys)
        return fields, [batch.data], every_key

    def producer(
        self,
        topic: str,
        *,
        linger: Any = 0.005,
        batch_messages: int = 1_000,
        batch_bytes: int = 256 * KIB,
        max_pending: int = 100_000,
        when_full: str = "block",
        name: str | None = None,
        compression: str | None = None,
    ) -> Producer:
        """A producer that gathers messages into batches. See `Store.producer`."""
        checked = ProducerOptions.check(linger, batch_messages, batch_bytes, max_pending, when_full, name, compression)
        target = self._to_publish(topic, lambda _: None)
        producer = Producer(
            RemoteOutlet(self._connection, target, checked.name), self._producers.discard, checked, background=True
        )
        self._producers.add(producer)
        return producer

    def transaction(self) -> RemoteTransaction:
        """Messages to any topics and acks in any groups, all or nothing. See `Store.transaction`."""
        self._check_open()
        return RemoteTransaction(self._connection, self._to_publish_later, self._check_open)

    def stage(self, producer: str) -> RemoteStage:
        """A stage for messages that `commit` will publish. See `Store.stage`."""
        self._check_open()
        check_name("producer", producer)
        return RemoteStage(self._connection, producer, self._to_publish)

    def commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool = False, note: str | None = None
    ) -> Committed:
        """Publish all messages of *stages* at once, under *number*. See `Store.commit`."""
        fields = self._to_commit(producer, number, stages, keep_committed=keep_committed, note=note)
        answer = self._connection.call(Call.COMMIT, fields).fields
        return self._committed(producer, number, answer, duplicate=bool(answer.get("duplicate")))

    def _to_commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool, note: str | None
    ) -> dict[str, Any]:
        self._check_open()
        check_name("producer", producer)
        check_whole_number("number", number, 0, NUMBER_MAX)
        fields: dict[str, Any] = {
            "producer": producer, "number": number, "stages": check_texts("stages", stages, "stage ids")
        }  # fmt: skip
        if keep_committed:
            fields["keep_committed"] = True
        if check_note(note) is not None:
            fields["note"] = note
        return fields

    @staticmethod
    def _committed(producer: str, number: int, answer: dict[str, Any], *, duplicate: bool) -> Committed:
        note = answer.get("note")
        return Committed(
            producer,
            number,
            whole(answer, "messages"),
            duplicate,
            whole(answer, "newest"),
            note if isinstance(note, str) else None,
        )

    def abort(self, stages: Sequence[str]) -> int:
        """Drop stages that will not be committed; returns how many were there."""
        self._check_open()
        wanted = check_texts("stages", stages, "stage ids")
        return whole(self._connection.call(Call.ABORT, {"stages": wanted}).fields, "count")

    def committed(self, producer: str, number: int) -> Committed | None:
        """The answer of an earlier `commit`, None if there was none. Raises `TransactionFenced`."""
        self._check_open()
        check_name("producer", producer)
        check_whole_number("number", number, 0, NUMBER_MAX)
        answer = self._connection.call(Call.COMMITTED, {"producer": producer, "number": number}).fields
        if answer.get("messages") is None:
            return None
        return self._committed(producer, number, answer, duplicate=True)

    # -- consuming --------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, group: str, **options: Any) -> RemoteConsumer:
        """A new member of a group. See `Store.subscribe`."""
        given = self._subscription(topic, group, options)
        end = time.monotonic() + self._connection.give_up_s
        while True:
            try:
                consumer = RemoteConsumer(self._connection, topic, group, given, self._consumers.discard)
            except ConnectionLost:
                # What the lost connection had subscribed is gone with it: nothing is done twice.
                if time.monotonic() > end:
                    raise Unavailable(f"the connection to {self.path} is lost again and again; subscribe later") from None
            else:
                self._consumers.add(consumer)
                return consumer

    def _subscription(self, topic: str, group: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a new member as they travel. Raises `UsageError`."""
        self._check_group(topic, group)
        check_subscription_options(options)
        given: dict[str, Any] = {"create": None if self._auto_create else False}
        for name, value in options.items():
            if name == "topic_settings":
                if value is not None and not hasattr(value, "items"):
                    raise BadSetting("topic_settings", shown(value), 'must be a mapping, like {"partitions": 4}')
                given[name] = None if value is None else plain_settings(value)
            elif name == "start":
                given[name] = documents.encode_place("start", value)
            elif name in ("prefetch", "prefetch_bytes", "concurrency"):
                given[name] = check_whole_number(name, value, 1, 1 << 40)
            elif value is None:
                continue
            elif name in _SECONDS:
                given[name] = check_seconds(name, value, 0, 1e9)
            elif isinstance(value, (str, int, float, bool)):
                given[name] = value
            else:
                raise BadSetting(name, shown(value), "must be a number or a text")
        return given

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of one topic."""
        self._check_open()
        if topic is not None:
            check_topic_name(topic)
        answer = self._connection.call(Call.GROUPS, {"topic": topic})
        return [documents.decode_group(one) for one in rows(answer.fields, "groups")]

    def delete_group(self, topic: str, group: str) -> None:
        """Forget a group and its position; durable when it returns. Raises `GroupNotFound`."""
        self._check_group(topic, group)
        self._connection.call(Call.DELETE_GROUP, {"topic": topic, "group": group}, resend=False)

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """The members of a group, and what each holds. See `Store.members`."""
        self._check_group(topic, group)
        answer = self._connection.call(Call.MEMBERS, {"topic": topic, "group": group})
        return [documents.decode_member(one) for one in rows(answer.fields, "members")]

    def evict_member(self, topic: str, group: str, member: str) -> int:
        """Take a member out of its group. See `Store.evict_member`."""
        answer = self._connection.call(Call.EVICT_MEMBER, self._to_evict(topic, group, member), resend=False)
        return whole(answer.fields, "messages")

    def _to_evict(self, topic: str, group: str, member: str) -> dict[str, Any]:
        self._check_group(topic, group)
        return {"topic": topic, "group": group, "member": check_texts("member", [member], "the id of a member")[0]}

    def _check_group(self, topic: str, group: str) -> None:
        self._check_open()
        check_topic_name(topic)
        check_name("group", group)

    def seek(self, topic: str, group: str, to: Any, *, partition: int | None = None) -> None:
        """Move a group. See `Store.seek`."""
        fields = self._to_seek(topic, group, to, partition)
        if fields is not None:
            self._connection.call(Call.SEEK, fields)

    def _to_seek(self, topic: str, group: str, to: Any, partition: int | None) -> dict[str, Any] | None:
        self._check_group(topic, group)
        if hasattr(to, "items"):
            place: Any = {}
            for number, where in to.items():
                place[str(check_whole_number("partition", number, 0, 1 << 31))] = documents.encode_place("to", where)
            if not place:
                return None
        else:
            place = documents.encode_place("to", to)
        if partition is not None:
            check_whole_number("partition", partition, 0, 1 << 31)
        return {"topic": topic, "group": group, "to": place, "partition": partition}

    def dead_letters(self, topic: str) -> RemoteDeadLetters:
        """The dead letters of *topic*: list, replay, discard. Raises `TopicNotFound`."""
        self.topic(topic)
        return RemoteDeadLetters(self._connection, topic)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, topic: str, partition: int | None = None, *, start: Any = "earliest", end: Any = None, max_messages: int | None = None
    ) -> Iterator[Message]:  # fmt: skip
        """The committed messages from *start* up to, not with, *end*, without a group. See `Store.read`."""
        return reading.messages(topic, self._chosen(topic, partition), start, end, max_messages)

    def read_arrow(
        self, topic: str, partition: int | None = None, *, start: Any = "earliest", end: Any = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """The same as `pyarrow.RecordBatch`es. Needs pyarrow."""
        return reading.arrow(self._chosen(topic, partition), start, end, columns)

    def ends(self, topic: str) -> dict[int, int]:
        """The offset after the last committed message of each partition, at one moment."""
        self._check_open()
        check_topic_name(topic)
        return {number: log.committed_end for number, log in enumerate(remote_logs(self._connection, topic))}

    def positions(self, topics: Sequence[str]) -> dict[str, TopicPositions]:
        """Where the partitions of *topics* begin and end, all at one moment. See `Store.positions`."""
        self._check_open()
        wanted = [check_name("topic", name) for name in check_texts("topics", topics, "names of topics")]
        answer = self._connection.call(Call.POSITIONS, {"topics": wanted}).fields
        return {name: documents.decode_positions(one) for name, one in answer["topics"].items()}

    def offset_of_time(self, topic: str, partition: int, when: dt.datetime) -> int:
        """The first offset appended at or after *when*. See `Store.offset_of_time`."""
        [(_, log)] = self._chosen(topic, partition)
        return reading.place("when", when, log)

    def epoch_at(self, topic: str, partition: int, offset: int) -> int | None:
        """The log epoch in which *offset* was written. See `Store.epoch_at`."""
        [(_, log)] = self._chosen(topic, partition)
        return reading.epoch_at(log, offset)

    def _chosen(self, topic: str, partition: int | None) -> list[tuple[int, Any]]:
        self._check_open()
        check_topic_name(topic)
        logs = remote_logs(self._connection, topic)
        if partition is None:
            return list(enumerate(logs))
        number = check_whole_number("partition", partition, 0, 1 << 31)
        if number >= len(logs):
            raise TopicNotFound(topic, number)
        return [(number, logs[number])]

    # -- workers ----------------------------------------------------------------------------------------------------

    def worker(
        self, topic: str, *, group: str, concurrency: int = 1, batch: int | None = None, **options: Any
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Let the decorated function handle the messages of *group*. See `Store.worker`."""
        self._check_open()
        check_whole_number("concurrency", concurrency, 1, 10_000)
        if batch is not None:
            check_whole_number("batch", batch, 1, 100_000)
        check_worker(topic, group, options)

        def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            handled = concurrency * (batch or 1)
            chosen = {"prefetch": max(PREFETCH_DEFAULT, handled), "concurrency": handled, **options}
            self._workers.add(
                Worker(
                    function,
                    lambda **more: self.subscribe(topic, group, **{**chosen, **more}),
                    topic=topic,
                    concurrency=concurrency,
                    batch=batch,
                    linger=0,
                )
            )
            return function

        return add

    def run(self, *, stop_timeout: Any = STOP_SECONDS) -> None:
        """Run the workers until `stop` is called or, in the main thread, SIGTERM or SIGINT comes."""
        self._check_open()
        self._workers.run(stop_timeout=stop_timeout)

    def stop(self) -> None:
        """Let `run` end."""
        self._workers.stop()

    # -- the rest ---------------------------------------------------------------------------------------------------

    def retain(self, topic: str | None = None) -> Retained:
        """Remove what the topics' retention settings say, now. See `Store.retain`."""
        self._check_open()
        if topic is not None:
            check_topic_name(topic)
        fields = self._connection.call(Call.RETAIN, {"topic": topic}).fields
        return Retained(whole(fields, "segments"), whole(fields, "bytes"))

    def vacuum(self, topic: str | None = None) -> Rewritten:
        """See `Store.vacuum`."""
        return rewritten_of(self._connection.call(Call.VACUUM, self._chosen_topic(topic)).fields)

    def compact(self, topic: str | None = None) -> Rewritten:
        """See `Store.compact`."""
        return rewritten_of(self._connection.call(Call.COMPACT, self._chosen_topic(topic)).fields)

    def _chosen_topic(self, topic: str | None) -> dict[str, Any]:
        self._check_open()
        if topic is not None:
            check_topic_name(topic)
        return {"topic": topic}

    def stats(self) -> StoreStats:
        """Numbers of this moment."""
        return documents.decode_stats(self._connection.call(Call.STATS).fields)

    def metrics(self) -> StoreMetrics:
        """
        See `Store.metrics`; times are there if the server measures, as `penstock serve` does.

        While this client measures too (`measure`), those of publishing are its own: of its `publish` and `publish_many`, the way there and
        back included.
        """
        found = documents.decode_metrics(self._connection.call(Call.METRICS).fields)
        meter = self._meter
        if meter is None:
            return found
        meter.forget_others(found.topics)
        own = {name: histogram.snapshot() for name, histogram in list(meter.publish.items())}
        return replace(found, topics={name: replace(one, publish=own.get(name)) for name, one in found.topics.items()})

    def measure(self, *, on: bool = True) -> None:
        """Take times for `metrics` from now on, or no more."""
        self._check_open()
        if on is (self._meter is not None):
            return
        self._meter = Meter() if on else None
        if self._meter is None:
            self.__dict__.pop("publish", None)
            self.__dict__.pop("publish_many", None)
        else:
            self.__dict__.update(publish=self._meter.timed(self.publish), publish_many=self._meter.timed(self.publish_many))

    def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        self._connection.call(Call.FLUSH)

    def _check_open(self) -> None:
        self._connection.check_open()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._connection.closed

    def close(self) -> None:
        """Close consumers and producers, and hang up. Closing twice does nothing."""
        with self._close_lock:
            if self._connection.closed:
                return
            self._workers.stop()
            for producer in list(self._producers):
                with contextlib.suppress(PenstockError):
                    producer.close()
            for consumer in list(self._consumers):
                with contextlib.suppress(PenstockError):
                    consumer.close()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteStore {self.path}{', closed' if self.closed else ''}>"


def stricter(target: MessageEncoder, mode: SyncMode | None) -> str | None:
    """The *mode* of a publish where it says more than the topic does."""
    return None if mode is None or target.settings.sync is SyncMode.ALWAYS else mode.value


def check_topic_name(name: object) -> None:
    """Raise `BadName` if no topic can be called *name*."""
    if not isinstance(name, str):
        raise BadName("topic", shown(name))
    check_name("topic", name)
