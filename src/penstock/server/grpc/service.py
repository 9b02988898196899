"""What all calls of one listener share, and what one call knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from grpc.aio import EOF

from penstock.server.grpc.connection_calls import ConnectionCalls
from penstock.server.releases import Releases

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from grpc.aio import ServicerContext

    from penstock.broker.memory_budget import MemoryBudget
    from penstock.server.auth import Authenticator, Principal
    from penstock.server.grpc.connection_calls import Connection
    from penstock.server.grpc.settings import GrpcSettings
    from penstock.store.store import Store

MAKING = 3
"""While it is made an answer is there so many times: as stored, as messages, as bytes."""


class OpenStream(Protocol):
    """A stream that goes on until its client or the server ends it."""

    @property
    def in_flight(self) -> int:
        """What its client holds and has not finished."""
        ...

    def stop(self) -> None:
        """The server stops: finish what was begun, and end."""
        ...

    def look(self) -> None:
        """Now and then: end if the token does not allow it any more."""
        ...


class Service:
    """One listener's state. Used in the event loop."""

    def __init__(self, store: Store, settings: GrpcSettings, auth: Authenticator, budget: MemoryBudget) -> None:
        self.store = store
        self.settings = settings
        self.auth = auth
        self.is_draining = False
        """Whether nothing new is begun: consumers finish what they hold."""
        self.is_stopping = False
        """Whether no call is begun at all."""
        self.calls = 0
        self.public_calls = 0
        self.streams: set[OpenStream] = set()
        self.connections = ConnectionCalls(settings, budget)
        self.releases = Releases()

    @property
    def is_idle(self) -> bool:
        """Whether no call runs, and all that calls had is released."""
        return not self.calls and not self.releases


class Call(NamedTuple):
    """One call: who made it, and its connection's side of it."""

    service: Service
    principal: Principal
    context: ServicerContext
    connection: Connection

    @property
    def store(self) -> Store:
        """The store that is served."""
        return self.service.store

    async def write(self, data: bytes) -> None:
        """Write a response; it counts until the client has room for it."""
        with self.connection.writing(len(data)):
            await self.context.write(data)

    async def read(self) -> bytes | None:
        """The next request of a stream; None if the client has closed its side."""
        data = await self.context.read()
        if data is EOF:
            return None
        self.connection.has_read(len(data))
        return bytes(data)

    def making(self) -> AbstractAsyncContextManager[None]:
        """In the block an answer of about `push_bytes_max` is made, when the server's memory for its clients has room for it."""
        return self.service.connections.budget.making(self.connection.account, MAKING * self.service.settings.push_bytes_max)

    def require(self, right: str, topic: str | None) -> None:
        """Raise `PermissionDenied` or `Unauthenticated` unless the caller has *right* on *topic*, or with None on the whole store."""
        self.principal.require(right, topic)
