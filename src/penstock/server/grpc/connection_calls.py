"""
How many calls and streams of one connection run at a time.

gRPC tells of a connection only the address of its other side. Those of a Unix socket are all alike, and count as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from penstock.server.grpc.statuses import TooManyStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from penstock.server.grpc.settings import GrpcSettings


class _Connection:
    __slots__ = ("calls", "streams", "turn")

    def __init__(self, calls_max: int) -> None:
        self.turn = asyncio.Semaphore(calls_max)
        self.calls = 0
        self.streams = 0


class ConnectionCalls:
    """Of all connections of a listener that have any. Used in the event loop."""

    def __init__(self, settings: GrpcSettings) -> None:
        self._settings = settings
        self._by_peer: dict[str, _Connection] = {}

    def _of(self, peer: str) -> _Connection:
        found = self._by_peer.get(peer)
        if found is None:
            found = self._by_peer[peer] = _Connection(self._settings.connection_calls_max)
        return found

    def _leave(self, peer: str, connection: _Connection) -> None:
        if not connection.calls and not connection.streams:
            self._by_peer.pop(peer, None)

    @contextlib.asynccontextmanager
    async def call(self, peer: str) -> AsyncIterator[None]:
        """Wait until it is the call's turn: nothing of its request is read before."""
        connection = self._of(peer)
        connection.calls += 1
        try:
            async with connection.turn:
                yield
        finally:
            connection.calls -= 1
            self._leave(peer, connection)

    @contextlib.contextmanager
    def stream(self, peer: str) -> Iterator[None]:
        """A stream, which may go on for hours, is never waited for. Raises `TooManyStreams`."""
        connection = self._of(peer)
        try:
            if connection.streams >= self._settings.connection_streams_max:
                raise TooManyStreams(self._settings.connection_streams_max)
            connection.streams += 1
            try:
                yield
            finally:
                connection.streams -= 1
        finally:
            self._leave(peer, connection)
