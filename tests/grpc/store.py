"""
The face of a store over the generated stub, for the conformance suite only: what a careful client would do with the proto.

Calls that the proto does not have skip the test that makes them.
"""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import queue
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from penstock.arguments import check_moment_us, check_seconds, check_whole_number, shown
from penstock.errors import BadArgument, Closed, LeaseExpired, PenstockError, UsageError
from penstock.settings import GroupSettings, TopicSettings
from penstock.store.stats import GroupStats, MemberInfo, StoreStats, TopicStats
from penstock.store.store import GroupInfo, Retained, Rewritten, TopicInfo
from penstock.topics.message import Headers
from penstock.topics.receipt import Receipt
from penstock.values import SyncMode
from penstock.wire import penstock_pb2 as pb
from penstock.wire.failures import _BY_CODE
from penstock.wire.penstock_pb2_grpc import AdminStub, PenstockStub
from tests.grpc.running import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SYNCS = {"always": pb.SYNC_MODE_ALWAYS, "interval": pb.SYNC_MODE_INTERVAL, "os": pb.SYNC_MODE_OS}
RETAINS = {"until_acked": pb.RETAIN_UNTIL_ACKED, "always": pb.RETAIN_ALWAYS}
PRIORITIES = {"low": pb.PRIORITY_LOW, "medium": pb.PRIORITY_MEDIUM, "high": pb.PRIORITY_HIGH}
EXPIREDS = {"drop": pb.EXPIRED_DROP, "dead_letter": pb.EXPIRED_DEAD_LETTER}
RESETS = {"earliest": pb.RESET_EARLIEST, "latest": pb.RESET_LATEST, "fail": pb.RESET_FAIL}
EDGES = {"earliest": pb.EDGE_EARLIEST, "latest": pb.EDGE_LATEST}


def no_such_call(what: str) -> NoReturn:
    """Leave out a test that asks for what the proto does not have."""
    pytest.skip(f"no such call over gRPC: {what}")


@contextmanager
def translated() -> Iterator[None]:
    """Statuses as the errors that they tell of; what Python cannot put into a message leaves the test out."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error) from None
    except (TypeError, ValueError) as error:
        no_such_call(f"the proto cannot say it: {error}")


def error_of(error: grpc.RpcError) -> PenstockError:
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        raise error
    info = ErrorInfo()
    Status.FromString(details).details[0].Unpack(info)
    kind = _BY_CODE[info.reason]
    arguments: list[Any] = []
    if "__init__" not in vars(kind):
        return kind(error.details())
    for parameter in inspect.signature(kind).parameters.values():
        text = info.metadata.get(parameter.name)
        arguments.append(int(text) if text is not None and str(parameter.annotation).startswith("int") else text)
    return kind(*arguments)


def place(name: str, where: Any) -> pb.Place:
    if isinstance(where, dt.datetime):
        return pb.Place(time_us=check_moment_us(name, where))
    if isinstance(where, str) and where in EDGES:
        return pb.Place(edge=EDGES[where])
    if isinstance(where, bool) or not isinstance(where, int) or where < 0:
        no_such_call(f"a place {where!r}")
    return pb.Place(offset=where)


def _ms(name: str, seconds: Any) -> int:
    return round(check_seconds(name, seconds, 0, 1e9) * 1000)


def _bytes(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else bytes(data) if isinstance(data, (bytearray, memoryview)) else data


def _pairs(headers: Any) -> list[pb.Header]:
    found = headers.items() if hasattr(headers, "items") else headers or ()
    return [pb.Header(name=name, value=_bytes(value)) for name, value in found]


class GrpcMessage:
    """A message that was read."""

    def __init__(self, topic: str, message: pb.Message) -> None:
        self.topic, self.partition, self.offset = topic, message.partition, message.offset
        self.value = message.value if message.HasField("value") else None
        self.key = message.key if message.HasField("key") else None
        self.dedup_key = message.dedup_key if message.HasField("dedup_key") else None
        self.headers = Headers((one.name, one.value) for one in message.headers)
        self.timestamp_us, self.append_time_us = message.timestamp_us, message.append_time_us
        self.expires_us = message.expires_at_us if message.HasField("expires_at_us") else None
        self.deliver_us = message.deliver_at_us if message.HasField("deliver_at_us") else None
        self.priority = _word(PRIORITIES, message.priority) if message.HasField("priority") else "low"

    @property
    def timestamp(self) -> dt.datetime:
        return EPOCH + dt.timedelta(microseconds=self.timestamp_us)

    @property
    def expires_at(self) -> dt.datetime | None:
        return None if self.expires_us is None else EPOCH + dt.timedelta(microseconds=self.expires_us)

    @property
    def deliver_at(self) -> dt.datetime | None:
        return None if self.deliver_us is None else EPOCH + dt.timedelta(microseconds=self.deliver_us)

    def ack(self, *, wait: bool = False) -> None:
        raise UsageError("read without a group")

    def __getattr__(self, name: str) -> Any:
        if name in ("nack", "reject", "extend"):
            return self.ack
        raise AttributeError(name)


class GrpcDelivery(GrpcMessage):
    """A message that was delivered."""

    def __init__(self, consumer: GrpcConsumer, delivery: pb.Delivery) -> None:
        super().__init__(consumer.topic, delivery.message)
        self.attempt, self.group = delivery.attempt, consumer.group
        self._tags = [pb.Tags(first=delivery.tag, count=1)]
        self._consumer = consumer

    def _settle(self, **fields: Any) -> None:
        if self._consumer.settle(**fields):
            raise LeaseExpired(self.topic, self.partition, self.offset)

    def ack(self, *, wait: bool = False) -> None:
        self._settle(ack=self._tags, durable=wait)

    def nack(self, *, delay: Any = None, reason: Any = None, reject: bool = False) -> None:
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason
        delay_ms = None if delay is None else _ms("delay", delay)
        with translated():
            nack = pb.Nack(tags=self._tags, delay_ms=delay_ms, reason=text, reject=reject)
        self._settle(nack=[nack])

    def reject(self, reason: Any = None) -> None:
        self.nack(reason=reason, reject=True)

    def extend(self, seconds: Any = None) -> None:
        self._settle(extend=[pb.Extend(tags=self._tags, lease_ms=None if seconds is None else _ms("seconds", seconds))])

    def __enter__(self) -> Self:
        no_such_call("a block that keeps its lease")

    def __exit__(self, *error: object) -> None:
        raise AssertionError


class GrpcConsumer:
    """A Subscribe stream: `get` fetches, iterating gives credit, and what was pushed and not begun is given back when it is asked for."""

    AHEAD = 100

    def __init__(self, stub: PenstockStub, topic: str, group: str, options: dict[str, Any], *, recallable: bool) -> None:
        self.topic, self.group = topic, group
        self._requests: queue.SimpleQueue[pb.SubscribeRequest | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.closed = False
        with translated():
            start = pb.Subscription(topic=topic, group=group, recallable=recallable, **_subscription(options))
            self._requests.put(pb.SubscribeRequest(start=start))
            self._call = stub.Subscribe(iter(self._requests.get, None))
            started = next(self._call).started
        self.ordered, self._partitions = started.settings.ordered, started.partitions
        self._stub = stub
        self._window = max(1, min(self.AHEAD, int(options.get("prefetch") or self.AHEAD)))
        self._answers: queue.SimpleQueue[pb.SubscribeResponse | grpc.RpcError | None] = queue.SimpleQueue()
        self._ahead: deque[pb.Delivery] = deque()
        self._pushed = threading.Condition()
        self._credit = 0
        self._ended = False
        self._end: grpc.RpcError | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Sort what comes: answers for who asked, pushes into the buffer, and out of it again what others are to have."""
        end: grpc.RpcError | None = None
        try:
            for response in self._call:
                kind = response.WhichOneof("event")
                with self._pushed:
                    if kind == "recall":
                        count = min(response.recall.messages, len(self._ahead))
                        tags = [self._ahead.pop().tag for _ in range(count)]
                        given = [pb.Tags(first=tag, count=1) for tag in tags]
                        self._requests.put(pb.SubscribeRequest(recalled=True, give_back=given))
                    elif kind == "revoked":
                        gone = [range(one.first, one.first + one.count) for one in response.revoked.tags]
                        self._ahead = deque(one for one in self._ahead if not any(one.tag in tags for tags in gone))
                    elif kind == "deliveries" and not response.deliveries.id:
                        self._ahead.extend(response.deliveries.messages)
                        self._credit -= len(response.deliveries.messages)
                        self._pushed.notify_all()
                if kind == "settled" or (kind == "deliveries" and response.deliveries.id):
                    self._answers.put(response)
        except grpc.RpcError as error:
            end = error
        with self._pushed:
            self._ended, self._end = True, end
            if end is not None:
                self._ahead.clear()  # none of it is this consumer's any more
            self._pushed.notify_all()
        self._answers.put(end)

    def _next_answer(self) -> pb.SubscribeResponse:
        answer = self._answers.get()
        if answer is None or isinstance(answer, grpc.RpcError):
            self._answers.put(answer)  # for who asks next
            if answer is not None:
                raise answer
            raise Closed(f"the consumer of {self.topic}/{self.group}")
        return answer

    def _ask(self, **fields: Any) -> tuple[pb.Settled, list[pb.Delivery]]:
        """Send a request, and wait for its answer, and for that of its fetch."""
        with self._lock, translated():
            if self.closed:
                raise Closed(f"the consumer of {self.topic}/{self.group}")
            number = next(self._numbers)
            self._requests.put(pb.SubscribeRequest(id=number, **fields))
            settled: pb.Settled | None = None
            found: list[pb.Delivery] | None = None if "fetch" in fields else []
            while settled is None or found is None:
                response = self._next_answer()
                if response.WhichOneof("event") == "settled":
                    settled = response.settled
                else:
                    assert response.deliveries.id == number
                    found = list(response.deliveries.messages)
            return settled, found

    def get_many(self, count: int, timeout: Any = None) -> list[GrpcDelivery]:
        check_whole_number("count", count, 1, 1_000_000)
        wait_ms = None if timeout is None else _ms("timeout", timeout)
        _, found = self._ask(fetch=pb.Fetch(max_messages=count, wait_ms=wait_ms))
        return [GrpcDelivery(self, one) for one in found]

    def get(self, timeout: Any = None) -> GrpcDelivery | None:
        return next(iter(self.get_many(1, timeout)), None)

    def settle(self, **fields: Any) -> int:
        try:
            return self._ask(**fields)[0].late
        except Closed:
            return 1

    def ack(self, messages: Any, *, wait: bool = False) -> None:
        chosen = self._own(messages)
        late = self.settle(ack=[tag for one in chosen for tag in one._tags], durable=wait) if chosen else 0
        if late:
            raise LeaseExpired(self.topic, chosen[0].partition, chosen[0].offset, late)

    def nack(self, messages: Any, *, delay: Any = None, reason: Any = None) -> None:
        for one in self._own(messages):
            one.nack(delay=delay, reason=reason)

    def reject(self, message: Any, reason: Any = None) -> None:
        self._own(message)[0].reject(reason)

    def extend(self, message: Any, seconds: Any = None) -> None:
        self._own(message)[0].extend(seconds)

    def _own(self, messages: Any) -> list[GrpcDelivery]:
        chosen = messages if isinstance(messages, (list, tuple)) else [messages]
        for one in chosen:
            if not isinstance(one, GrpcDelivery):
                raise BadArgument("message", shown(one), "was not delivered")
            if one._consumer is not self:
                no_such_call("finishing what another stream got")
        return list(chosen)

    def __getattr__(self, name: str) -> Any:
        no_such_call(f"consumer.{name}")

    def commit(self, position: Any, partition: Any = None) -> None:
        if isinstance(position, GrpcDelivery):
            self._own(position)
            position, partition = position.offset + 1, position.partition
        elif partition is None and self._partitions > 1:
            no_such_call("a commit without a partition")
        with translated():
            self._stub.Commit(pb.CommitRequest(topic=self.topic, group=self.group, partition=partition or 0, offset=position))

    def flush(self) -> None:
        self._ask(durable=True)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._requests.put(None)
            self._reader.join()

    def __iter__(self) -> Iterator[GrpcDelivery]:
        while True:
            with self._pushed:
                if (len(self._ahead) + self._credit) * 2 <= self._window:
                    more = self._window - len(self._ahead) - self._credit
                    self._credit += more
                    self._requests.put(pb.SubscribeRequest(credit=more))
                while not self._ahead and not self._ended:
                    self._pushed.wait()
                if not self._ahead:
                    if self._end is not None and not self.closed:
                        raise error_of(self._end)
                    return
                message = self._ahead.popleft()
            yield GrpcDelivery(self, message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _each(column: Any, count: int) -> list[Any]:
    """An option for each message."""
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise BadArgument("options", shown(column), "there must be one for each message")
    return column


def _options(ttl: Any, delay: Any, priority: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if ttl is not None:
        found["ttl_ms"] = _ms("ttl", ttl)
    if isinstance(delay, dt.datetime):
        found["deliver_at_us"] = check_moment_us("delay", delay)
    elif delay is not None:
        found["delay_ms"] = _ms("delay", delay)
    if priority is not None:
        found["priority"] = PRIORITIES.get(priority, pb.PRIORITY_UNSPECIFIED)
    return found


def _new_topic(settings: dict[str, Any]) -> pb.TopicSettings:
    chosen: dict[str, Any] = {}
    for key, value in settings.items():
        if f"{key}_ms" in pb.TopicSettings.DESCRIPTOR.fields_by_name:
            chosen[f"{key}_ms"] = _ms(key, value)
            if key == "ttl" and not chosen["ttl_ms"]:
                no_such_call("a ttl of nothing: in the settings 0 means for ever")
        elif key == "expired":
            chosen[key] = EXPIREDS.get(value, pb.EXPIRED_UNSPECIFIED)
        elif key == "sync":
            chosen[key] = value and SYNCS.get(getattr(value, "value", value), pb.SYNC_MODE_UNSPECIFIED)
        elif key == "retain":
            chosen[key] = RETAINS.get(value, pb.RETAIN_UNSPECIFIED)
        else:
            chosen[key] = value
    return pb.TopicSettings(**chosen)


def _subscription(options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in ("lease", "backoff", "backoff_max"):
            found[f"{name}_ms"] = _ms(name, value)
        elif name == "reset":
            found[name] = RESETS.get(value, pb.RESET_UNSPECIFIED)
        elif name == "start":
            found[name] = place(name, value)
        elif name == "topic_settings" and isinstance(value, dict):
            found[name] = _new_topic({key: one for key, one in value.items() if key != "partitions"})
            found["partitions"] = value.get("partitions")
        else:
            found[name] = value
    return found


class GrpcDeadLetters:
    """The dead letters of a topic."""

    def __init__(self, store: GrpcStore, topic: str) -> None:
        self._store, self._topic = store, topic
        len(self)

    def _page(self, start: int) -> pb.ListDeadLettersResponse:
        with translated():
            request = pb.ListDeadLettersRequest(topic=self._topic, max_messages=1_000, start=start)
            return self._store.admin.ListDeadLetters(request)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._page(0).count

    def __iter__(self) -> Iterator[GrpcMessage]:
        start = 0
        while messages := self._page(start).messages:
            for one in messages:
                yield GrpcMessage(f"{self._topic}.dlq", one)
            start = messages[-1].offset + 1

    def list(self, max_messages: int | None = None, filter: Any = None) -> list[GrpcMessage]:  # noqa: A002
        return [*itertools.islice((one for one in self if filter is None or filter(one)), max_messages)]

    def _choose(self, choose: Any, offsets: Iterable[int] | None) -> pb.ChooseDeadLettersRequest:
        if choose is None and offsets is None:
            return pb.ChooseDeadLettersRequest(topic=self._topic, all=True)
        wanted = None if offsets is None else set(offsets)
        chosen = [one.offset for one in self if (choose is None or choose(one)) and (wanted is None or one.offset in wanted)]
        return pb.ChooseDeadLettersRequest(topic=self._topic, offsets=pb.Offsets(offsets=chosen))

    def replay(self, filter: Any = None, offsets: Any = None) -> int:  # noqa: A002
        with translated():
            return int(self._store.admin.ReplayDeadLetters(self._choose(filter, offsets)).count)

    def discard(self, filter: Any = None, offsets: Any = None) -> int:  # noqa: A002
        with translated():
            return int(self._store.admin.DiscardDeadLetters(self._choose(filter, offsets)).count)


class GrpcStore:
    """A store behind a gRPC server."""

    recallable = True
    """Whether its consumers can be asked to give messages back."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(
            target, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        )
        self.stub, self.admin = PenstockStub(self._channel), AdminStub(self._channel)
        self._consumers: list[GrpcConsumer] = []

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, partitions: int = 1, **settings: Any) -> TopicInfo:
        with translated():
            request = pb.CreateTopicRequest(name=name, partitions=partitions, settings=_new_topic(settings))
            return _topic(self.admin.CreateTopic(request))

    def topics(self) -> list[TopicInfo]:
        return [_topic(one) for one in self.admin.ListTopics(pb.ListTopicsRequest()).topics]

    def topic(self, name: str) -> TopicInfo:
        with translated():
            return _topic(self.admin.GetTopic(pb.GetTopicRequest(topic=name)).topic)

    def ends(self, topic: str) -> dict[int, int]:
        with translated():
            return dict(enumerate(self.admin.GetTopic(pb.GetTopicRequest(topic=topic)).ends))

    def retain(self, topic: str | None = None) -> Retained:
        names = [info.name for info in self.topics()] if topic is None else [topic]
        with translated():
            answers = [self.admin.Retain(pb.RetainRequest(topic=name)) for name in names]
        return Retained(sum(one.segments for one in answers), sum(one.bytes for one in answers))

    def compact(self, topic: str) -> Rewritten:
        with translated():
            found = self.admin.Compact(pb.RewriteRequest(topic=topic))
        return Rewritten(found.segments, found.messages, found.tombstones, found.bytes)

    def vacuum(self, topic: str) -> Rewritten:
        with translated():
            found = self.admin.Vacuum(pb.RewriteRequest(topic=topic))
        return Rewritten(found.segments, found.messages, found.tombstones, found.bytes)

    def delete_topic(self, name: str) -> None:
        with translated():
            self.admin.DeleteTopic(pb.DeleteTopicRequest(topic=name))

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, value: Any, **options: Any) -> Receipt:
        columns = {
            "key": "keys", "headers": "headers", "timestamp": "timestamps", "dedup_key": "dedup_keys", "ttl": "ttls", "delay": "delays",
            "priority": "priorities",
        }  # fmt: skip
        given = {columns.get(name, name): [one] if name in columns else one for name, one in options.items()}
        return self.publish_many(topic, [value], **given)[0]

    def publish_many(
        self, topic: str, values: Any, *, keys: Any = None, headers: Any = None, partition: Any = None, timestamps: Any = None,
        dedup_keys: Any = None, sync: Any = None, ttls: Any = None, delays: Any = None, priorities: Any = None, compression: Any = None,
    ) -> list[Receipt]:  # fmt: skip
        if len(values) == 0:
            no_such_call("publishing nothing")
        with translated():
            request = pb.PublishRequest(topic=topic, partition=partition, compression=compression)
            if sync is not None:
                request.sync = SYNCS.get(getattr(sync, "value", sync), pb.SYNC_MODE_UNSPECIFIED)
            nothing = [None] * len(values)
            for value, key, pairs, moment, dedup, *options in zip(
                values, keys or nothing, headers or nothing, timestamps or nothing, dedup_keys or nothing,
                *(_each(column, len(values)) for column in (ttls, delays, priorities)), strict=True
            ):  # fmt: skip
                time_us = None if moment is None else check_moment_us("timestamp", moment)
                request.messages.add(
                    value=value if isinstance(value, str) else _bytes(value), key=_bytes(key), headers=_pairs(pairs),
                    timestamp_us=time_us, dedup_key=_bytes(dedup), **_options(*options),
                )  # fmt: skip
            found = self.stub.Publish(request, timeout=PATIENCE).receipts
        return [Receipt(topic, one.partition, one.offset, one.duplicate) for one in found]

    # -- consuming --------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, group: str, **options: Any) -> GrpcConsumer:
        consumer = GrpcConsumer(self.stub, topic, group, options, recallable=self.recallable)
        self._consumers.append(consumer)
        return consumer

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        names = [info.name for info in self.topics()] if topic is None else [topic]
        with translated():
            found = [one for name in names for one in self.admin.ListGroups(pb.ListGroupsRequest(topic=name)).groups]
        return [GroupInfo(one.topic, one.name, _group_settings(one.settings)) for one in found]

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        with translated():
            found = self.admin.ListMembers(pb.ListMembersRequest(topic=topic, group=group)).members
        return [
            MemberInfo(
                one.id, one.name if one.HasField("name") else None, one.interface, one.peer, one.principal,
                EPOCH + dt.timedelta(microseconds=one.since_us), EPOCH + dt.timedelta(microseconds=one.heard_us), one.in_flight,
                one.buffered, one.bytes, one.prefetch, one.paused, list(one.partitions),
            )
            for one in found
        ]  # fmt: skip

    def evict_member(self, topic: str, group: str, member: str) -> int:
        with translated():
            return int(self.admin.EvictMember(pb.EvictMemberRequest(topic=topic, group=group, member=member)).messages)

    def delete_group(self, topic: str, group: str) -> None:
        with translated():
            self.admin.DeleteGroup(pb.DeleteGroupRequest(topic=topic, group=group))

    def seek(self, topic: str, group: str, to: Any, *, partition: int | None = None) -> None:
        if hasattr(to, "items"):
            no_such_call("moving partitions to different places at once")
        with translated():
            self.admin.Seek(pb.SeekRequest(topic=topic, group=group, to=place("to", to), partition=partition))

    def dead_letters(self, topic: str) -> GrpcDeadLetters:
        return GrpcDeadLetters(self, topic)

    def read(
        self, topic: str, partition: Any = None, *, start: Any = "earliest", end: Any = None, max_messages: Any = None
    ) -> Iterator[GrpcMessage]:
        with translated():
            request = pb.ReadRequest(
                topic=topic, partition=partition, start=place("start", start), end=None if end is None else place("end", end),
                max_messages=max_messages,
            )  # fmt: skip
            pages = list(self.stub.Read(request))
        return iter([GrpcMessage(topic, one) for page in pages for one in page.messages])

    # -- the rest ---------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        found = self.admin.GetStats(pb.GetStatsRequest())
        topics = {name: _topic_stats(found.topics[name]) for name in sorted(found.topics)}
        return StoreStats("", topics, found.commits, found.failure if found.HasField("failure") else None)

    def flush(self) -> None:
        for consumer in self._consumers:
            if not consumer.closed:
                consumer.flush()

    def __getattr__(self, name: str) -> Any:
        no_such_call(f"store.{name}")

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _word(words: dict[str, Any], number: int) -> str:
    return next(word for word, one in words.items() if one == number)


def _topic(topic: pb.Topic) -> TopicInfo:
    settings = {field.name: value for field, value in topic.settings.ListFields()}
    settings["sync"] = SyncMode(_word(SYNCS, topic.settings.sync))
    settings["retain"] = _word(RETAINS, topic.settings.retain)
    settings["expired"] = _word(EXPIREDS, topic.settings.expired)
    return TopicInfo(topic.name, bytes.fromhex(topic.id), topic.partitions, TopicSettings(**settings))


def _group_settings(settings: pb.GroupSettings) -> GroupSettings:
    names = ("ordered", "lease_ms", "max_deliveries", "backoff_ms", "backoff_max_ms")
    return GroupSettings(reset=_word(RESETS, settings.reset), **{name: getattr(settings, name) for name in names})


def _topic_stats(topic: pb.TopicStats) -> TopicStats:
    groups = {name: _group_stats(topic.groups[name]) for name in sorted(topic.groups)}
    numbers = {field.name: getattr(topic, field.name) for field in topic.DESCRIPTOR.fields}
    return TopicStats(
        **{**numbers, "starts": dict(enumerate(topic.starts)), "ends": dict(enumerate(topic.ends)), "groups": groups}
    )


def _group_stats(group: pb.GroupStats) -> GroupStats:
    numbers = {field.name: getattr(group, field.name) for field in group.DESCRIPTOR.fields}
    return GroupStats(**{**numbers, "positions": dict(enumerate(group.positions))})


class PlainGrpcStore(GrpcStore):
    """The same through consumers that say nothing about giving back, as most clients do."""

    recallable = False
