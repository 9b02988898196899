"""One connection: uvicorn's, with a time for the headers of each request, a number of connections, and answers in our own form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import Unavailable
from penstock.server.http.problems import PROBLEM_TYPE, HttpProblem, document
from penstock.server.sending import waiting_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from penstock.broker.memory_budget import MemoryBudget
    from penstock.server.descriptors import Connections

CUT_SECONDS = 3.0
"""So long a connection that is cut has to read the reason."""


class Connection(H11Protocol):
    """A connection that must say within `header_timeout_s` what it wants, each time it begins to say something."""

    header_timeout_s: float
    connections_max: int
    room: Connections
    budget: MemoryBudget
    stopping = False
    """Set on the class of one listener: the system may have accepted a connection that the server hears of after it began to stop."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, object]) -> None:
        # The application gets a copy of the state: this is how it finds the connection of a request.
        super().__init__(config, server_state, {**app_state, "penstock.connection": self}, _loop=asyncio.get_running_loop())
        self._deadline: asyncio.TimerHandle | None = None
        self._is_counted = False
        self.account = self.budget.open(self)
        self.refusal: Unavailable | None = None
        """What the client is told whose body was not received: the server has no room."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._limit: asyncio.Timeout | None = None
        self._received = self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many, or the server stops."""
        super().connection_made(transport)
        if self.client is not None:
            self.account.name = f"{self.client[0]}:{self.client[1]}"
        self._is_counted = self.room.take()
        if self.stopping or not self._is_counted or len(self.connections) > self.connections_max:
            transport.abort()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._headers_came()
        self.app_state.pop("penstock.connection", None)
        self.account.close()
        self._has_room.set()
        if self._is_counted:
            self._is_counted = False
            self.room.give_back()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.conn.their_state is h11.IDLE:
            self._expect_headers()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._headers_came()
        self._count()

    def on_response_complete(self) -> None:
        """Answered: the time without a request begins."""
        self._headers_came()
        super().on_response_complete()
        self._received = 0
        self._count()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            # It has begun the next request already.
            self._expect_headers()

    # -- what it makes the server hold ------------------------------------------------------------------------------

    def count_received(self, count: int) -> None:
        """So much was taken of a body that is not whole yet."""
        self._received = count
        self._count()

    def _count(self) -> None:
        waiting = 0 if self.cycle is None or self.cycle.response_complete else len(self.cycle.body)
        if self._received + waiting != self.account.receiving:
            self.account.set_receiving(self._received + waiting)

    def count_unsent(self, count: int) -> None:
        """So much of an answer was not given to the connection yet."""
        self._unsent = count
        self.look()

    @contextlib.contextmanager
    def reading(self, limit: asyncio.Timeout) -> Iterator[None]:
        """A body is being received in the block, within *limit*."""
        self._limit = limit
        try:
            yield
        finally:
            self._limit = None

    async def until_room(self) -> None:
        """Wait until the server has room for more of this client."""
        if not self._has_room.is_set():
            self.refusal = Unavailable("the server's memory for its clients is full; nothing was changed, try again later")
            await self._has_room.wait()
            self.refusal = None

    def hold_back(self) -> None:
        """See `Holder`. The connection reads a little more of a body that nobody takes, and stops."""
        self._has_room.clear()

    def go_on(self) -> None:
        """See `Holder`."""
        self._has_room.set()

    def look(self) -> None:
        """See `Holder`."""
        unsent = self._unsent + waiting_bytes(self.transport)
        if unsent != self.account.sending:
            self.account.set_sending(unsent)

    def cut(self, error: Unavailable) -> None:
        """See `Holder`. A client that does not read gets neither its answer nor the error."""
        if self._limit is None or self._limit.expired():
            self.transport.abort()
            return
        self.refusal = error
        self._limit.reschedule(self.loop.time())
        self.loop.call_later(CUT_SECONDS, self.transport.abort)

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _headers_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Tell that it is no HTTP, or too long, and close; nothing that follows on the connection can be understood."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        code = "HEADERS_TOO_LARGE" if status == 431 else "BAD_REQUEST"
        body = json.dumps(document(HttpProblem(code, msg))).encode()
        headers = [
            (b"content-type", PROBLEM_TYPE.encode()), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
        ]  # fmt: skip
        response = h11.Response(status_code=431 if status == 431 else 400, headers=headers, reason=b"")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
