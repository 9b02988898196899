"""
A store with the plain face over the HTTP API, so that the suite can be run over it.

It is a client as anybody may write one: http.client, JSON, problem documents. What HTTP has no call for skips the test. Two things are
the server's own work, for which there is no call because time brings them: acks reach the journal within milliseconds, and retention
runs by itself. On a clock that stands still neither happens, so `flush` and `retain` ask the owner of the store.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import http.client
import itertools
import json
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote, urlencode

import pytest

from penstock import errors
from penstock.aio.store import AsyncStore
from penstock.groups.dead_letters import reason_text
from penstock.server.http import HttpListener, HttpSettings
from penstock.server.http.operations import OPERATIONS
from penstock.server.http.schemas import PUBLISH_MESSAGES_MAX
from penstock.settings import GroupSettings, TopicSettings
from penstock.store.stats import GroupStats, MemberInfo, StoreStats, TopicStats
from penstock.store.store import GroupInfo, Rewritten, TopicInfo
from penstock.topics.message import Headers, Message
from penstock.topics.receipt import Receipt
from tests.conformance.awaited import LoopThread

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock import Store

PATIENCE = 60.0
POLL_S = 20.0
PAGE = 1_000
TOGETHER = 1_000
"""Receipts and messages of one request."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_consumers = itertools.count()
_TOPIC_SETTINGS = {
    name for one in OPERATIONS if one.name == "create_topic" and one.body is not None for name in one.body["properties"]
}


def skip(what: str) -> NoReturn:
    """The test needs *what*."""
    pytest.skip(f"no such call over HTTP: {what}")


class StillStore(AsyncStore):
    """A store without threads of its own: a commit happens only when somebody waits for it in a thread."""

    async def publish(self, topic: str, value: bytes | None, **options: Any) -> Receipt:
        return await asyncio.to_thread(self.sync.publish, topic, value, **options)


class HttpServer:
    """A listener over an open store, in a loop of its own."""

    def __init__(self, owner: Store, *, live: bool) -> None:
        self.owner = owner
        store_type = AsyncStore if live else StillStore
        self._thread = LoopThread()
        self._listener = HttpListener(store_type(owner), HttpSettings(listen="127.0.0.1:0", publish_bytes_max=64 * 1024 * 1024))
        self._thread.run(self._listener.start())
        self.port = self._listener.address.port

    def close(self) -> None:
        """Stop in order; the store stays open."""
        self._thread.run(self._listener.stop(5))
        self._thread.run(self._thread.loop.shutdown_default_executor())
        self._thread.close()


# -- values ---------------------------------------------------------------------------------------------------------


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, dt.timedelta) else value


def _time(value: Any) -> str:
    """A moment in ISO 8601."""
    if not isinstance(value, dt.datetime):
        try:
            value = _EPOCH + dt.timedelta(microseconds=round(value * 1_000_000))
        except OverflowError:
            pytest.skip("ISO 8601 cannot say such a time")
    return str(value.isoformat())


def _place(value: Any) -> Any:
    return _time(value) if isinstance(value, dt.datetime) else value


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _seconds(value) for name, value in fields.items() if value is not None}


def _coded(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return {name: value} if isinstance(value, str) else {f"{name}_base64": base64.b64encode(value).decode()}


def _new_message(
    value: Any, key: Any, headers: Any, timestamp: Any, dedup_key: Any, ttl: Any, delay: Any, priority: Any
) -> dict[str, Any]:
    if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
        skip("values that are no bytes")
    fields: dict[str, Any] = {"value": None} if value is None else _coded("value", value)
    fields |= _coded("key", key) | _coded("dedup_key", dedup_key)
    if headers is not None:
        pairs = headers.items() if hasattr(headers, "items") else headers
        fields["headers"] = [{"name": name, **_coded("value", one)} for name, one in pairs]
    if timestamp is not None:
        fields["timestamp"] = _time(timestamp)
    if isinstance(delay, dt.datetime):
        fields["deliver_at"], delay = _time(delay), None
    return fields | _given({"ttl": ttl, "delay": delay, "priority": priority})


def _bytes(name: str, fields: dict[str, Any]) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        return base64.b64decode(coded)
    text: str | None = fields.get(name)
    return None if text is None else text.encode()


class HttpMessage(Message):
    """A message as JSON told it."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._topic = fields["topic"]
        self.partition = fields["partition"]
        self.offset = fields["offset"]

    @property
    def value(self) -> bytes | None:
        return _bytes("value", self._fields)

    @property
    def key(self) -> bytes | None:
        return _bytes("key", self._fields)

    @property
    def headers(self) -> Headers:
        return Headers((one["name"], _bytes("value", one) or b"") for one in self._fields["headers"])

    @property
    def timestamp(self) -> dt.datetime:
        return dt.datetime.fromisoformat(self._fields["timestamp"])

    @property
    def timestamp_us(self) -> int:
        since = self.timestamp - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    @property
    def append_time_us(self) -> int:
        skip("the time of appending")

    @property
    def expires_at(self) -> dt.datetime | None:
        found = self._fields.get("expires_at")
        return None if found is None else dt.datetime.fromisoformat(found)

    @property
    def deliver_at(self) -> dt.datetime | None:
        found = self._fields.get("deliver_at")
        return None if found is None else dt.datetime.fromisoformat(found)

    @property
    def priority(self) -> str:
        return str(self._fields.get("priority", "low"))

    @property
    def dedup_key(self) -> bytes | None:
        return _bytes("dedup_key", self._fields)


class HttpDelivery(HttpMessage):
    """A message with a receipt."""

    __slots__ = ("_consumer", "attempt", "receipt")

    def __init__(self, fields: dict[str, Any], consumer: HttpConsumer) -> None:
        super().__init__(fields)
        self._consumer = consumer
        self.attempt: int = fields["attempt"]
        self.receipt: str = fields["receipt"]

    @property
    def group(self) -> str:
        """The group that delivered it."""
        return self._consumer.group

    def ack(self, *, wait: bool = False) -> None:
        self._consumer.ack(self, wait=wait)

    def nack(self, *, delay: object = None, reason: object = None) -> None:
        self._consumer.nack(self, delay=delay, reason=reason)

    def reject(self, reason: object = None) -> None:
        self._consumer.reject(self, reason)

    def extend(self, seconds: object = None) -> None:
        self._consumer.extend(self, seconds)

    def __enter__(self) -> Self:
        skip("a block that keeps its lease")

    def __exit__(self, *error: object) -> None:
        """Never reached."""


# -- errors ---------------------------------------------------------------------------------------------------------

_BY_CODE = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PenstockError)
}


def error_of(problem: dict[str, Any], **known: Any) -> errors.PenstockError:
    """
    The error of the tree that a problem document tells of, with the fields that it tells.

    What only HTTP refuses is a `UsageError`. *known* is what the caller asked about.
    """
    kind = _BY_CODE.get(problem["code"])
    if kind is None:
        assert 400 <= problem["status"] < 500, problem
        kind = errors.UsageError
    told = type(kind.__name__, (kind,), {"__init__": Exception.__init__, "__str__": lambda _: problem["detail"]})
    error: errors.PenstockError = told(problem["detail"])
    for name, value in (known | problem).items():
        setattr(error, name, value)
    return error


# -- the store ------------------------------------------------------------------------------------------------------


class HttpStore:
    """A store behind a listener. Safe to use from many threads: each request has a connection to itself."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.port = server.port
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._consumers: set[HttpConsumer] = set()

    # -- requests ---------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: Sequence[object], body: Any = None, *, headers: Any = None, **query: Any) -> Any:
        """What the answer holds. Raises the error that it tells of."""
        if self._closed:
            raise errors.Closed("the store")
        target = "/v1/" + "/".join(quote(str(part), safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=POLL_S + PATIENCE)
        try:
            connection.request(method, target, None if body is None else json.dumps(body), {**sent, **(headers or {})})
            answer = connection.getresponse()
            data = answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        found: Any = json.loads(data) if data else None
        if answer.status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            names = dict(zip(path[::2], path[1::2], strict=False))
            raise error_of(found, topic=names.get("topics"), group=names.get("groups"), partition=names.get("partitions"))
        return found

    def __getattr__(self, name: str) -> NoReturn:
        skip(f"Store.{name}")

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """See `Store.create_topic`."""
        for unknown in settings.keys() - _TOPIC_SETTINGS:
            skip(f"a topic with {unknown}")
        try:
            return _topic_info(self.ask("POST", ["topics"], {"name": name, **_given(settings)}))
        except errors.TopicExists as error:
            error.topic = name
            raise

    def topics(self) -> list[TopicInfo]:
        """See `Store.topics`."""
        return [_topic_info(one) for one in self.ask("GET", ["topics"])["topics"]]

    def topic(self, name: str) -> TopicInfo:
        """See `Store.topic`."""
        return _topic_info(self.ask("GET", ["topics", name]))

    # -- publishing and reading -------------------------------------------------------------------------------------

    def publish(
        self, topic: str, value: Any, *, key: Any = None, headers: Any = None, partition: int | None = None, timestamp: Any = None,
        dedup_key: Any = None, sync: Any = None, ttl: Any = None, delay: Any = None, priority: Any = None, compression: Any = None,
    ) -> Receipt:  # fmt: skip
        """See `Store.publish`."""
        fields = _new_message(value, key, headers, timestamp, dedup_key, ttl, delay, priority)
        fields |= _given({"partition": partition, "compression": compression, "sync": getattr(sync, "value", sync)})
        return Receipt(**self.ask("POST", ["topics", topic, "messages"], fields))

    def publish_many(
        self, topic: str, values: Any, *, keys: Any = None, headers: Any = None, partition: int | None = None, timestamps: Any = None,
        dedup_keys: Any = None, sync: Any = None, ttls: Any = None, delays: Any = None, priorities: Any = None, compression: Any = None,
    ) -> list[Receipt]:  # fmt: skip
        """See `Store.publish_many`."""
        columns = [[None] * len(values) if one is None else one for one in (keys, headers, timestamps, dedup_keys)]
        columns += [one if isinstance(one, list) else [one] * len(values) for one in (ttls, delays, priorities)]
        if any(len(column) != len(values) for column in columns):
            skip("columns of another length: each message is an object")
        if not 0 < len(values) <= PUBLISH_MESSAGES_MAX:
            skip(f"{len(values):,} messages in one request")
        messages = [_new_message(*one) for one in zip(values, *columns, strict=True)]
        place = {} if partition is None else {"X-Penstock-Partition": str(partition)}
        if compression is not None:
            place["X-Penstock-Compression"] = str(compression)
        if sync is not None:
            place["X-Penstock-Sync"] = str(getattr(sync, "value", sync))
        found = self.ask("POST", ["topics", topic, "messages"], messages, headers=place)
        return [Receipt(**one) for one in found["receipts"]]

    def read(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Any = "earliest",
        end: Any = None,
        max_messages: int | None = None,
    ) -> Iterator[HttpMessage]:
        """See `Store.read`: the first page of each partition is asked for now, and says where it ends."""
        if end is not None:
            skip("reading to an end")
        partitions = range(self.topic(topic).partitions) if partition is None else [partition]
        if max_messages == 0:
            return iter(())
        limit = PAGE if max_messages is None else min(PAGE, max_messages)
        pages = [(number, self._page(topic, number, _place(start), limit)) for number in partitions]
        return itertools.islice(self._messages(topic, pages), max_messages)

    def _page(self, topic: str, partition: int, start: Any, limit: int, **uuid: str) -> dict[str, Any]:
        path = ["topics", topic, "partitions", partition, "messages"]
        found: dict[str, Any] = self.ask("GET", path, start=start, limit=limit, base64="true", **uuid)
        return found

    def _messages(self, topic: str, pages: list[tuple[int, dict[str, Any]]]) -> Iterator[HttpMessage]:
        for partition, first in pages:
            page, end = first, first["end"]
            while True:
                messages = [HttpMessage(fields) for fields in page["messages"]]
                yield from (message for message in messages if message.offset < end)
                if not messages or page["next"] >= end:
                    break
                page = self._page(topic, partition, page["next"], PAGE, uuid=page["uuid"])

    # -- groups -----------------------------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, group: str, *, prefetch: int | None = None, prefetch_bytes: int | None = None,
        concurrency: int | None = None, start: Any = "earliest", **settings: Any,
    ) -> HttpConsumer:  # fmt: skip
        """See `Store.subscribe`."""
        if prefetch_bytes is not None:
            skip("a window of bytes")
        if concurrency is not None:
            skip("saying how many are handled at once")
        if settings.pop("name", None) is not None:
            skip("a name when subscribing: a worker has it in its path")
        self.ask("PUT", ["topics", topic, "groups", group], {"start": _place(start), **_given(settings)})
        consumer = self._consumer(topic, group, prefetch)
        self._consumers.add(consumer)
        return consumer

    def _consumer(self, topic: str, group: str, prefetch: int | None) -> HttpConsumer:
        return HttpConsumer(self, topic, group, prefetch)

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """See `Store.groups`."""
        topics = [info.name for info in self.topics()] if topic is None else [topic]
        return [
            GroupInfo(one["topic"], one["name"], GroupSettings.from_json(one["settings"]))
            for name in topics
            for one in self.ask("GET", ["topics", name, "groups"])["groups"]
        ]

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """See `Store.members`."""
        found = self.ask("GET", ["topics", topic, "groups", group, "members"])["members"]
        times = ("since", "last_heard")
        return [MemberInfo(**{**one, **{name: dt.datetime.fromisoformat(one[name]) for name in times}}) for one in found]

    def evict_member(self, topic: str, group: str, member: str) -> int:
        """See `Store.evict_member`."""
        count: int = self.ask("DELETE", ["topics", topic, "groups", group, "members", member])["messages"]
        return count

    def delete_group(self, topic: str, group: str) -> None:
        """See `Store.delete_group`."""
        self.ask("DELETE", ["topics", topic, "groups", group])
        for consumer in self._consumers:
            consumer.is_orphan |= (consumer.topic, consumer.group) == (topic, group)

    def seek(self, topic: str, group: str, to: Any, *, partition: int | None = None) -> None:
        """See `Store.seek`."""
        if hasattr(to, "items"):
            skip("moving several partitions to places of their own")
        self.ask("POST", ["topics", topic, "groups", group, "seek"], {"to": _place(to), **_given({"partition": partition})})

    def dead_letters(self, topic: str) -> HttpDeadLetters:
        """See `Store.dead_letters`."""
        self.topic(topic)
        return HttpDeadLetters(self, topic)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """See `Store.stats`."""
        found = self.ask("GET", ["stats"])
        topics = {name: _topic_stats(fields) for name, fields in found["topics"].items()}
        return StoreStats("", topics, found["commits"], "failed" if found["failed"] else None)

    def flush(self) -> None:
        """Let the milliseconds pass."""
        self._server.owner.flush()

    def retain(self, topic: str | None = None) -> Any:
        """Let the server do what it does every few seconds."""
        return self._server.owner.retain(topic)

    def compact(self, topic: str) -> Rewritten:
        """See `Store.compact`."""
        return Rewritten(**self.ask("POST", ["topics", topic, "compact"]))

    def vacuum(self, topic: str) -> Rewritten:
        """See `Store.vacuum`."""
        return Rewritten(**self.ask("POST", ["topics", topic, "vacuum"]))

    def delete_topic(self, name: str) -> None:
        """See `Store.delete_topic`."""
        self.ask("DELETE", ["topics", name])

    def close(self) -> None:
        """The client goes: its consumers leave."""
        for consumer in list(self._consumers):
            consumer.close()
        self._closed = True
        for connection in self._idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _topic_info(fields: dict[str, Any]) -> TopicInfo:
    settings = TopicSettings.from_json(fields["settings"])
    return TopicInfo(fields["name"], bytes.fromhex(fields["uuid"]), fields["partitions"], settings)


def _numbered(fields: dict[str, int]) -> dict[int, int]:
    return {int(name): value for name, value in fields.items()}


def _topic_stats(fields: dict[str, Any]) -> TopicStats:
    groups = {
        name: GroupStats(**{**group, "positions": _numbered(group["positions"])}) for name, group in fields["groups"].items()
    }
    places = {name: _numbered(fields[name]) for name in ("starts", "ends")}
    return TopicStats(**{**fields, **places, "groups": groups})


class HttpConsumer:
    """A worker with a name of its own, which joins its group when it is made."""

    def __init__(self, store: HttpStore, topic: str, group: str, prefetch: int | None) -> None:
        self._store = store
        self.topic = topic
        self.group = group
        self.closed = False
        self.is_orphan = False
        """Its group was deleted. Taking messages would make it again, which a plain consumer does not do."""
        self._name = f"worker-{os.getpid()}-{next(_consumers)}"
        self._path = ["topics", topic, "groups", group]
        self._store.ask("PUT", [*self._path, "consumers", self._name], _given({"in_flight": prefetch}))

    def __getattr__(self, name: str) -> NoReturn:
        skip(f"Consumer.{name}")

    # -- taking -----------------------------------------------------------------------------------------------------

    def get(self, timeout: Any = None) -> HttpDelivery | None:
        """See `Consumer.get`."""
        found = self.get_many(1, timeout)
        return found[0] if found else None

    def get_many(self, count: int, timeout: Any = None) -> list[HttpDelivery]:
        """See `Consumer.get_many`."""
        end = None if timeout is None else time.monotonic() + _seconds(timeout)
        while True:
            if self.closed:
                raise errors.Closed(f"the consumer of {self.topic}")
            if self.is_orphan:
                skip("taking from a group that is gone without making it again")
            left = POLL_S if end is None else min(POLL_S, max(0.0, end - time.monotonic()))
            asked = {"max": min(count, TOGETHER), "wait": left, "consumer": self._name, "base64": True}
            found = self._store.ask("POST", [*self._path, "receive"], asked)["messages"]
            if found:
                return [HttpDelivery(fields, self) for fields in found]
            if end is not None and time.monotonic() >= end and not self.closed:
                return []

    def __iter__(self) -> Iterator[HttpDelivery]:
        while True:
            try:
                message = self.get()
            except errors.Closed:
                return
            if message is not None:
                yield message

    # -- finishing --------------------------------------------------------------------------------------------------

    def ack(self, messages: Any, *, wait: bool = False) -> None:
        """See `Consumer.ack`."""
        self._finish("ack", messages, wait=wait)

    def nack(self, messages: Any, *, delay: Any = None, reason: object = None) -> None:
        """See `Consumer.nack`."""
        self._finish("nack", messages, delay=delay, reason=_text(reason))

    def reject(self, message: Any, reason: object = None) -> None:
        """See `Consumer.reject`."""
        self._finish("reject", message, reason=_text(reason))

    def extend(self, message: Any, seconds: Any = None) -> None:
        """See `Consumer.extend`."""
        self._finish("extend", message, lease=seconds)

    def _finish(self, how: str, messages: Any, **fields: Any) -> None:
        chosen = [messages] if isinstance(messages, HttpDelivery) else messages
        late: list[HttpDelivery] = []
        for at in range(0, len(chosen), TOGETHER):
            part = {one.receipt: one for one in chosen[at : at + TOGETHER]}
            try:
                done = self._store.ask("POST", [*self._path, how], {"receipts": list(part), **_given(fields)})["done"]
            except errors.LeaseExpired as error:
                found: Any = error
                late += [part[receipt] for receipt in found.late]
                done = found.done
            assert done + len(late) >= len(part)
        if late:
            raise errors.LeaseExpired(self.topic, late[0].partition, late[0].offset, len(late))

    def commit(self, position: Any, partition: int | None = None) -> None:
        """See `Consumer.commit`."""
        if isinstance(position, HttpDelivery):
            partition, position = position.partition, position.offset + 1
        if partition is None and self._store.topic(self.topic).partitions > 1:
            skip("committing without saying the partition")
        self._store.ask("POST", [*self._path, "commit"], {"offset": position, "partition": partition or 0})

    def flush(self) -> None:
        """See `HttpStore.flush`."""
        self._store.flush()

    def close(self) -> None:
        """Leave."""
        if not self.closed:
            self.closed = True
            self._store._consumers.discard(self)
            if not self.is_orphan:
                self._store.ask("DELETE", [*self._path, "consumers", self._name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class HttpStreamStore(HttpStore):
    """The same, and its consumers take their messages from event streams."""

    def _consumer(self, topic: str, group: str, prefetch: int | None) -> HttpConsumer:
        return HttpStreamConsumer(self, topic, group, prefetch)


class HttpStreamConsumer(HttpConsumer):
    """
    An event stream, as a browser or any other client has it: a thread reads events as they come, and the user takes one after the other.

    It does not begin anew by itself: when the stream breaks, iterating raises `OSError`.
    """

    def __init__(self, store: HttpStore, topic: str, group: str, prefetch: int | None) -> None:
        self._store = store
        self.topic = topic
        self.group = group
        self.closed = False
        self.is_orphan = False
        self._path = ["topics", topic, "groups", group]
        self._ahead: deque[HttpDelivery] = deque()
        self._came = threading.Condition()
        self._end: BaseException | None = None
        self._connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=POLL_S + PATIENCE)
        target = "/v1/" + "/".join(quote(part, safe="") for part in self._path)
        query = urlencode({"base64": "true", **_given({"in_flight": prefetch})})
        self._connection.request("GET", f"{target}/stream?{query}", headers={"Accept": "text/event-stream"})
        self._socket: socket.socket = self._connection.sock
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise error_of(json.loads(answer.read()), topic=topic, group=group)
        self._reader = threading.Thread(target=self._read, args=(answer,), name="events", daemon=True)
        self._reader.start()

    def _read(self, answer: http.client.HTTPResponse) -> None:
        end: BaseException | None = None
        try:
            for kind, fields in _events(answer):
                if kind == "error":
                    end = error_of(fields)
                    break
                if kind == "end":
                    break
                with self._came:
                    self._ahead.append(HttpDelivery(fields, self))
                    self._came.notify_all()
            else:
                end = ConnectionResetError("the stream broke")
        except (OSError, http.client.HTTPException, ValueError) as error:
            end = error if isinstance(error, OSError) else ConnectionResetError(str(error))
        with self._came:
            self._end = end or errors.Closed("the stream")
            self._ahead.clear()  # none of it is this consumer's any more
            self._came.notify_all()

    def get_many(self, count: int, timeout: Any = None) -> list[HttpDelivery]:
        """A stream is not asked."""
        skip("asking a stream for messages")

    def __iter__(self) -> Iterator[HttpDelivery]:
        while True:
            with self._came:
                while not self._ahead and self._end is None:
                    self._came.wait()
                if not self._ahead:
                    if self.closed or isinstance(self._end, errors.Closed):
                        return
                    assert self._end is not None
                    raise self._end
                message = self._ahead.popleft()
            yield message

    def close(self) -> None:
        """Hang up: the server gives what was not finished to others."""
        if not self.closed:
            self.closed = True
            self._store._consumers.discard(self)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._reader.join(PATIENCE)
            self._connection.close()
            self._socket.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a stream sends, without its comments."""
    kind, data = "", ""
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not name and not value and kind:
            yield kind, json.loads(data)
            kind = data = ""


def _text(reason: object) -> str | None:
    """Text goes as it is: the server makes one line of it."""
    return reason if isinstance(reason, str) else reason_text(reason)


class HttpDeadLetters:
    """The dead letters of a topic."""

    def __init__(self, store: HttpStore, topic: str) -> None:
        self._store = store
        self._path = ["topics", topic, "dlq"]

    def list(self, max_messages: int | None = None, filter: Any = None) -> builtins.list[HttpMessage]:  # noqa: A002
        """See `DeadLetters.list`."""
        return list(itertools.islice((one for one in self if filter is None or filter(one)), max_messages))

    def __iter__(self) -> Iterator[HttpMessage]:
        start = 0
        while True:
            page = self._store.ask("GET", self._path, start=start, limit=PAGE, base64="true")["messages"]
            for fields in page:
                yield HttpMessage(fields)
            if not page:
                return
            start = page[-1]["offset"] + 1

    def __len__(self) -> int:
        count: int = self._store.ask("GET", self._path, limit=1)["count"]
        return count

    def _chosen(self, choose: Callable[[Message], bool] | None, offsets: Iterable[int] | None) -> builtins.list[int]:
        wanted = None if offsets is None else set(offsets)
        return [
            one.offset for one in self.list() if (wanted is None or one.offset in wanted) and (choose is None or choose(one))
        ]

    def replay(self, filter: Any = None, offsets: Any = None) -> int:  # noqa: A002 - the plain name
        """See `DeadLetters.replay`."""
        if filter is None and offsets is None:
            count: int = self._store.ask("POST", [*self._path, "replay-all"])["count"]
            return count
        chosen = self._chosen(filter, offsets)
        return sum(self._store.ask("POST", [*self._path, number, "replay"])["count"] for number in chosen)

    def discard(self, filter: Any = None, offsets: Any = None) -> int:  # noqa: A002 - the plain name
        """See `DeadLetters.discard`."""
        chosen = self._chosen(filter, offsets)
        for number in chosen:
            self._store.ask("DELETE", [*self._path, number])
        return len(chosen)

    def __getattr__(self, name: str) -> NoReturn:
        skip(f"DeadLetters.{name}")
