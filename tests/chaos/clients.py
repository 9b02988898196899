# mypy: ignore-errors
"""
The ways to reach a server, with one face: a protocol more is a class more here, and a name more in `CLIENTS`.

A client never raises because the server is away: it waits, up to `PATIENCE_S`, or says what it was told.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import grpc

import penstock
import penstock.aio
from penstock.errors import Closed, Conflict, OutcomeUnknown, Unavailable
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.chaos.history import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.store.producer import Producer

TOPIC = "t"
PATIENCE_S = 240.0
"""How long a client goes on trying: longer than any server of a test is away, on any machine."""
RECEIVE_S = 0.5
RECEIVE_MAX = 20
GRPC_S = 10.0
"""How long a call or a stream over gRPC lives at most; a stream is ended in order long before."""
_T = TypeVar("_T")


class Addresses(NamedTuple):
    """Where a server listens, or a proxy before it."""

    native: str
    http: str
    grpc: str


class Got(NamedTuple):
    """A message that a consumer was handed."""

    value: bytes
    place: Place
    attempt: int
    asked_s: float | None
    """When it was asked for; None if it was pushed, some time before."""
    handle: Any


class Client(ABC):
    """One connection of a client, which publishes or consumes. For one thread."""

    @abstractmethod
    def __init__(self, addresses: Addresses, name: str) -> None:
        """Connect; *name* is its own among all clients."""

    @abstractmethod
    def publish(self, value: bytes, key: bytes) -> Place:
        """Store it once. Raises `Unavailable`: certainly not stored; `OutcomeUnknown`."""

    @abstractmethod
    def subscribe(self, group: str) -> None:
        """Consume as a member of *group*."""

    @abstractmethod
    def receive(self) -> list[Got]:
        """What there is; none after a moment."""

    @abstractmethod
    def ack(self, got: Got, *, durable: bool) -> bool:
        """Whether the server took it; False if it was late, or nobody knows."""

    @abstractmethod
    def reject(self, got: Got) -> bool:
        """Make it a dead letter; the same."""

    @abstractmethod
    def close(self) -> None:
        """Hang up."""


def _taken(work: Callable[[], object]) -> bool:
    """Whether the server took an ack."""
    try:
        work()
    except (Conflict, OutcomeUnknown, Unavailable):
        return False
    return True


def _got(message: Any, asked_s: float | None) -> Got:
    return Got(
        bytes(message.value or b""), Place(message.partition, message.offset), message.attempt, asked_s, message
    )  # fmt: skip


class NativeClient(Client):
    """`penstock.open`, which asks for messages."""

    def __init__(self, addresses: Addresses, name: str) -> None:
        self.store = patiently(lambda: penstock.open(addresses.native, give_up=PATIENCE_S))
        self._consumer: Any = None

    def publish(self, value: bytes, key: bytes) -> Place:
        receipt = self.store.publish(TOPIC, value, key=key)
        return Place(receipt.partition, receipt.offset)

    def producer(self) -> Producer:
        """Many batches at once."""
        return self.store.producer(TOPIC, linger=0.002, max_pending=2_000)

    def subscribe(self, group: str) -> None:
        self._consumer = patiently(lambda: self.store.subscribe(TOPIC, group))

    def receive(self) -> list[Got]:
        asked_s = time.monotonic()
        try:
            return [_got(one, asked_s) for one in self._consumer.get_many(RECEIVE_MAX, RECEIVE_S)]
        except Unavailable:
            time.sleep(0.05)
            return []

    def ack(self, got: Got, *, durable: bool) -> bool:
        return _taken(lambda: got.handle.ack(wait=durable))

    def reject(self, got: Got) -> bool:
        return _taken(lambda: got.handle.reject("poison"))

    def close(self) -> None:
        self.store.close()


class PushedClient(NativeClient):
    """The same, with messages pushed to it as they come."""

    def receive(self) -> list[Got]:
        # An iterator ends with its consumer only; so that it ends in a moment too, somebody else must wait for it.
        if self._messages is None:
            self._messages = iter(self._consumer)
        try:
            return [_got(next(self._messages), None)]
        except Unavailable:
            self._messages = None
            time.sleep(0.05)
        except StopIteration:
            pass
        return []

    _messages: Any = None

    def ack(self, got: Got, *, durable: bool) -> bool:
        # Without waiting it is gathered with others, and whether the server took it is told by a later call, if it did not.
        return super().ack(got, durable=durable) and durable

    def close(self) -> None:
        # In another thread than the one that receives, which this wakes.
        if self._consumer is not None:
            self._consumer.close()
        super().close()


class AioClient(Client):
    """`penstock.aio.open`, in an event loop of its own."""

    def __init__(self, addresses: Addresses, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"aio {name}", daemon=True)
        self._thread.start()
        self._consumer: Any = None

        async def opened() -> Any:
            return await penstock.aio.open(addresses.native, give_up=PATIENCE_S)

        self._store = patiently(lambda: self._run(opened()))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def publish(self, value: bytes, key: bytes) -> Place:
        receipt = self._run(self._store.publish(TOPIC, value, key=key))
        return Place(receipt.partition, receipt.offset)

    def subscribe(self, group: str) -> None:
        async def subscribed() -> Any:
            return await self._store.subscribe(TOPIC, group)

        self._consumer = patiently(lambda: self._run(subscribed()))

    def receive(self) -> list[Got]:
        asked_s = time.monotonic()
        try:
            return [_got(one, asked_s) for one in self._run(self._consumer.get_many(RECEIVE_MAX, RECEIVE_S))]
        except Unavailable:
            time.sleep(0.05)
            return []

    def ack(self, got: Got, *, durable: bool) -> bool:
        return _taken(lambda: self._run(got.handle.ack(wait=durable)))

    def reject(self, got: Got) -> bool:
        return _taken(lambda: self._run(got.handle.reject("poison")))

    def close(self) -> None:
        self._run(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class HttpClient(Client):
    """Plain HTTP. A publish is sent again with the same `Idempotency-Key` until it is answered."""

    def __init__(self, addresses: Addresses, name: str) -> None:
        parts = urlsplit(addresses.http)
        assert parts.hostname is not None
        self._name = name
        self._group = ""
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)

    def _ask(self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """One request. Raises `OSError` or `HTTPException`: nobody knows what became of it."""
        if self._is_closed:
            raise Closed("the connection")
        try:
            self._connection.request(
                "POST", path, json.dumps(fields), {"Content-Type": "application/json", **(headers or {})}
            )  # fmt: skip
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except BaseException:
            self._connection.close()  # the next request makes a new one
            raise
        finally:
            if self._is_closed:
                self._connection.close()  # it was closed in another thread, and this request has opened it again

    def publish(self, value: bytes, key: bytes) -> Place:
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                status, answer = self._ask(
                    f"/v1/topics/{TOPIC}/messages",
                    {"value": value.decode(), "key": key.decode()},
                    {"Idempotency-Key": value.decode()},
                )
                if status in (200, 201):
                    return Place(answer["partition"], answer["offset"])
                assert status in (500, 503), (status, answer)
                assert status == 503 or answer["code"] == "OUTCOME_UNKNOWN", answer
            if time.monotonic() > end:
                raise OutcomeUnknown("the message", "HTTP was not answered")
            time.sleep(0.02)

    def subscribe(self, group: str) -> None:
        self._group = f"/v1/topics/{TOPIC}/groups/{group}"

    def receive(self) -> list[Got]:
        asked_s = time.monotonic()
        try:
            fields = {"max": RECEIVE_MAX, "wait": RECEIVE_S, "consumer": self._name, "base64": True}
            status, answer = self._ask(f"{self._group}/receive", fields)
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.05)
            return []
        if status != 200:
            assert status == 503, (status, answer)
            time.sleep(0.05)
            return []
        return [
            Got(base64.b64decode(one["value_base64"]), Place(one["partition"], one["offset"]), one["attempt"], asked_s, one["receipt"])
            for one in answer["messages"]
        ]  # fmt: skip

    def _finish(self, path: str, fields: dict[str, Any]) -> bool:
        try:
            status, answer = self._ask(f"{self._group}/{path}", fields)
        except (OSError, http.client.HTTPException, ValueError):
            return False
        assert status in (200, 409, 500, 503), (status, answer)
        return status == 200

    def ack(self, got: Got, *, durable: bool) -> bool:
        return self._finish("ack", {"receipts": [got.handle], "wait": durable})

    def reject(self, got: Got) -> bool:
        return self._finish("reject", {"receipts": [got.handle], "reason": "poison"})

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    _is_closed = False


class GrpcClient(Client):
    """gRPC by the generated stub. A publish is sent again with the same deduplication key until it is answered."""

    def __init__(self, addresses: Addresses, name: str) -> None:
        self._address = addresses.grpc.rpartition("://")[2]
        self._connect()
        self._group = ""
        self._requests: queue.SimpleQueue[pb.SubscribeRequest | None] = queue.SimpleQueue()
        self._stream: Any = None
        self._ends_s = 0.0
        self._number = 0

    def _connect(self) -> None:
        # A server that is killed comes back at once, and the usual pauses would be most of the test.
        options: list[tuple[str, int]] = [
            (f"grpc.{which}_reconnect_backoff_ms", number) for which, number in (("initial", 20), ("min", 20), ("max", 200))
        ]
        # Else a new channel would go on with the connection of the old one.
        options.append(("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(self._address, options=options)
        self._stub = PenstockStub(self._channel)

    def _expect(self, error: grpc.RpcError) -> None:
        _expected(error)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            # The connection may be half open, and gRPC would go on with it.
            self._channel.close()
            self._connect()

    def publish(self, value: bytes, key: bytes) -> Place:
        request = pb.PublishRequest(topic=TOPIC, messages=[pb.NewMessage(value=value, key=key, dedup_key=value)])
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                receipt = self._stub.Publish(request, timeout=GRPC_S).receipts[0]
                return Place(receipt.partition, receipt.offset)
            except grpc.RpcError as error:
                self._expect(error)
            if time.monotonic() > end:
                raise OutcomeUnknown("the message", "gRPC was not answered")
            time.sleep(0.02)

    def subscribe(self, group: str) -> None:
        self._group = group

    def receive(self) -> list[Got]:
        asked_s = time.monotonic()
        try:
            if self._stream is not None and asked_s > self._ends_s:
                self._lose(_StreamEnded())
            if self._stream is None:
                self._ends_s = asked_s + GRPC_S / 3
                self._requests = queue.SimpleQueue()
                self._requests.put(pb.SubscribeRequest(start=pb.Subscription(topic=TOPIC, group=self._group)))
                # A stream has an end too: the server may be gone, and nobody have said so.
                self._stream = self._stub.Subscribe(iter(self._requests.get, None), timeout=GRPC_S)
            fetch = pb.Fetch(max_messages=RECEIVE_MAX, wait_ms=round(RECEIVE_S * 1000))
            _, found = self._ask(pb.SubscribeRequest(fetch=fetch))
        except grpc.RpcError as error:
            self._lose(error)
            time.sleep(0.05)
            return []
        except ValueError:
            if self._is_closed:
                raise Closed("the channel") from None
            raise
        stream = self._stream
        return [
            Got(one.message.value, Place(one.message.partition, one.message.offset), one.attempt, asked_s, (stream, one.tag))
            for one in found
        ]

    def _ask(self, request: pb.SubscribeRequest) -> tuple[int, list[pb.Delivery]]:
        """How many were late, and what was fetched. Raises `RpcError`."""
        self._number += 1
        request.id = self._number
        self._requests.put(request)
        late: int | None = None
        found: list[pb.Delivery] | None = None if request.HasField("fetch") else []
        while late is None or found is None:
            response = next(self._stream, None)
            if response is None or (response.HasField("closing") and request.HasField("fetch")):
                raise _StreamEnded
            if response.HasField("settled"):
                late = response.settled.late
            elif response.HasField("deliveries"):
                found = list(response.deliveries.messages)
        return late, found

    def _lose(self, error: grpc.RpcError) -> None:
        stream, self._stream = self._stream, None
        self._requests.put(None)
        if stream is not None and isinstance(error, _StreamEnded):
            with contextlib.suppress(grpc.RpcError):
                for (
                    _
                ) in stream:  # what it held goes back when the server has heard the end: cancelling would count as a failure
                    pass
        elif stream is not None:
            stream.cancel()
        self._expect(error)

    def _finish(self, got: Got, request: pb.SubscribeRequest) -> bool:
        if self._stream is None or got.handle[0] is not self._stream:
            return False
        try:
            return not self._ask(request)[0]
        except grpc.RpcError as error:
            self._lose(error)
            return False

    def ack(self, got: Got, *, durable: bool) -> bool:
        return self._finish(got, pb.SubscribeRequest(ack=[pb.Tags(first=got.handle[1], count=1)], durable=durable))

    def reject(self, got: Got) -> bool:
        tags = [pb.Tags(first=got.handle[1], count=1)]
        return self._finish(got, pb.SubscribeRequest(nack=[pb.Nack(tags=tags, reason="poison", reject=True)]))

    def close(self) -> None:
        self._is_closed = True
        self._requests.put(None)
        self._channel.close()

    _is_closed = False


class _StreamEnded(grpc.RpcError):  # type: ignore[misc]  # it comes without types
    """The server stops."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def _expected(error: grpc.RpcError) -> None:
    """Raise what no server that is killed, stopped or cut off may answer."""
    allowed = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL")
    if error.code().name not in allowed or "Exception calling application" in str(error):
        raise error


CLIENTS: dict[str, type[Client]] = {
    "native": NativeClient, "pushed": PushedClient, "aio": AioClient, "http": HttpClient, "grpc": GrpcClient,
}  # fmt: skip


def patiently(work: Callable[[], _T]) -> _T:
    """Do it again while the server cannot be reached."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except (Unavailable, OutcomeUnknown):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
