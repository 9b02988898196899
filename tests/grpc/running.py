"""A real gRPC listener in a thread of its own, so that tests can talk to it with any client."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from penstock.server.address import Address
from penstock.server.grpc.listener import GrpcListener
from penstock.server.grpc.settings import GrpcSettings
from penstock.server.native import CALL_THREADS
from penstock.store.store import Store
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import AdminStub, PenstockStub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.memory_budget import MemoryBudget
    from penstock.server.auth import Authenticator
    from penstock.server.tls import TlsFiles

PATIENCE = 60.0


class Running:
    """A listener that serves a store, by default one in memory that commits by the journal as one on disk does."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        address: Address | None = None,
        auth: Authenticator | None = None,
        tls: TlsFiles | None = None,
        budget: MemoryBudget | None = None,
        **settings: Any,
    ) -> None:
        self.store = store or Store.open("memory:")
        self._owns = store is None
        self._channels: list[grpc.Channel] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(CALL_THREADS, "penstock-call"))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.listener = GrpcListener(
                self.store,
                address or Address("127.0.0.1", 0),
                auth=auth,
                tls=tls,
                settings=GrpcSettings(**settings),
                budget=budget,
            )
            self.call(self.listener.start())
        except BaseException:
            self._end()
            raise

    def call(self, work: Any) -> Any:
        """Run a coroutine in the listener's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    @property
    def target(self) -> str:
        return self.listener.address

    def channel(self, **options: Any) -> grpc.Channel:
        """A connection; closed with the server."""
        # Each with a connection of its own: gRPC would share one between channels that look the same.
        options.setdefault("grpc.use_local_subchannel_pool", 1)
        made = grpc.insecure_channel(self.target, options=list(options.items()))
        self._channels.append(made)
        return made

    def stub(self, **options: Any) -> PenstockStub:
        return PenstockStub(self.channel(**options))

    def admin(self, **options: Any) -> AdminStub:
        return AdminStub(self.channel(**options))

    def subscribe(self, topic: str, group: str = "g", credit: int = 0, **options: Any) -> Subscribed:
        return Subscribed(self.stub(), topic, group, credit, **options)

    def close(self, timeout_s: float = 2.0) -> None:
        for channel in self._channels:
            channel.close()
        if self._thread.is_alive():
            self.call(self.listener.stop(timeout_s))
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        if self._owns:
            self.store.close()


@contextmanager
def running(*arguments: Any, **options: Any) -> Iterator[Running]:
    server = Running(*arguments, **options)
    try:
        yield server
    finally:
        server.close()


class Subscribed:
    """A Subscribe stream, as a client without any library of ours has it."""

    def __init__(
        self, stub: PenstockStub, topic: str, group: str = "g", credit: int = 0, *, metadata: Any = None, **options: Any
    ) -> None:
        self._requests: queue.SimpleQueue[pb.SubscribeRequest | None] = queue.SimpleQueue()
        self._number = 0
        self.send(start=pb.Subscription(topic=topic, group=group, **options), credit=credit)
        self.call = stub.Subscribe(iter(self._requests.get, None), timeout=PATIENCE, metadata=metadata)

    def send(self, **fields: Any) -> None:
        self._requests.put(pb.SubscribeRequest(**fields))

    def next(self) -> pb.SubscribeResponse:
        response: pb.SubscribeResponse = next(self.call)
        return response

    def started(self) -> pb.Started:
        response = self.next()
        assert response.WhichOneof("event") == "started"
        return response.started

    def deliveries(self) -> list[pb.Delivery]:
        response = self.next()
        assert response.WhichOneof("event") == "deliveries", response
        return list(response.deliveries.messages)

    def settle(self, **fields: Any) -> int:
        """Send a request that is answered; how many were late."""
        self._number += 1
        self.send(id=self._number, **fields)
        response = self.next()
        assert response.WhichOneof("event") == "settled", response
        assert response.settled.id == self._number
        return int(response.settled.late)

    def ack(self, *deliveries: pb.Delivery, **fields: Any) -> int:
        return self.settle(ack=[pb.Tags(first=one.tag, count=1) for one in deliveries], **fields)

    def nack(self, *deliveries: pb.Delivery, **fields: Any) -> int:
        tags = [pb.Tags(first=one.tag, count=1) for one in deliveries]
        return self.settle(nack=[pb.Nack(tags=tags, **fields)])

    def end(self) -> None:
        """Close the sending side, and return when the server has ended the stream in order."""
        self._requests.put(None)
        for _ in self.call:
            pass

    def cancel(self) -> None:
        self.call.cancel()
