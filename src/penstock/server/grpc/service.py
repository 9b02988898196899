"""What all calls of one listener share, and what one call knows."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc.aio import ServicerContext

    from penstock.server.auth import Authenticator, Principal
    from penstock.server.grpc.settings import GrpcSettings
    from penstock.store.store import Store

_log = logging.getLogger("penstock.server")


class OpenStream(Protocol):
    """A stream that goes on until its client or the server ends it."""

    def stop(self) -> None:
        """The server stops: finish what was begun, and end."""
        ...

    def look(self) -> None:
        """Now and then: end if the token does not allow it any more."""
        ...


class Service:
    """One listener's state. Used in the event loop."""

    def __init__(self, store: Store, settings: GrpcSettings, auth: Authenticator) -> None:
        self.store = store
        self.settings = settings
        self.auth = auth
        self.is_stopping = False
        self.calls = 0
        self.public_calls = 0
        self.streams: set[OpenStream] = set()
        self._releases: set[asyncio.Future[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no call runs, and all that calls had is released."""
        return not self.calls and not self._releases

    def release(self, work: Callable[[], None]) -> None:
        """Let go of what a stream had, in a thread: it waits for the disk."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._releases.add(future)
        future.add_done_callback(self._released)

    def _released(self, future: asyncio.Future[None]) -> None:
        self._releases.discard(future)
        if not future.cancelled() and future.exception() is not None:
            _log.error("what a stream had could not be released", exc_info=future.exception())


class Call(NamedTuple):
    """One call: who made it, and its connection's side of it."""

    service: Service
    principal: Principal
    context: ServicerContext

    @property
    def store(self) -> Store:
        """The store that is served."""
        return self.service.store

    def require(self, right: str, topic: str | None) -> None:
        """Raise `PermissionDenied` or `Unauthenticated` unless the caller has *right* on *topic*, or with None on the whole store."""
        self.principal.require(right, topic)
