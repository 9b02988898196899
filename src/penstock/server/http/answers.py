"""
Answers that are large: how much of them all requests may hold together, and how they are sent.

Whoever asks for much and does not read makes the server hold it. So a large answer is made when there is room for it, and sent in pieces as
the client takes them; a client that takes nothing for a while is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from penstock.broker import memory_budget
from penstock.errors import Unavailable
from penstock.server.http.body import ClientGone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Scope, Send

PIECE_BYTES = 64 * 1024
"""What is given to the connection at a time; it takes the next when it has sent most of it."""
ROOM_SECONDS = 10.0
"""How long a request waits for room."""
MAKING = 3
"""While it is made an answer is there so many times: as messages, as text, as bytes."""


class AnswerBudget:
    """How much answers that are being made, or sent, may take together. Used in one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0
        """What they take now."""
        self._given_back = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[Held]:
        """Room to make an answer of *size* bytes at most, as long as the block runs. Raises `Unavailable`."""
        held = Held(self)
        await self._take(size * MAKING)
        held.size = size * MAKING
        try:
            yield held
        finally:
            held.shrink(0)

    def _fits(self, size: int) -> bool:
        return not self.held or self.held + size <= self._bytes_max

    async def _take(self, size: int) -> None:
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                async with asyncio.timeout(ROOM_SECONDS):
                    await turn
            except BaseException as error:
                if turn.done() and not turn.cancelled():
                    self.give_back(size)  # it got room at the moment when it gave up
                self._waiting = deque(one for one in self._waiting if one[1] is not turn)
                self._let_in()
                if isinstance(error, TimeoutError):
                    raise Unavailable("the server holds as many answers that nobody reads as it may; try again later") from None
                raise
            return
        self.held += size

    def give_back(self, size: int) -> None:
        """So much is not held any more."""
        self.held -= size
        self._given_back += size
        if self._given_back >= memory_budget.TRIM_FROM_BYTES and memory_budget._MALLOC_TRIM is not None:  # noqa: SLF001
            # The allocator keeps what it was given back. In a thread: it may take some milliseconds.
            self._given_back = 0
            asyncio.get_running_loop().run_in_executor(None, memory_budget._MALLOC_TRIM, 0)  # noqa: SLF001
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.held += size
                turn.set_result(None)


class Held:
    """What one answer takes of the budget."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self.size = 0

    def shrink(self, size: int) -> None:
        """It takes *size* bytes now, and no more than before."""
        less, self.size = self.size - size, size
        if less:
            self._budget.give_back(less)


async def send_in_pieces(message: Message, scope: Scope, send: Send, seconds: float) -> None:
    """
    Send a part of an answer as the client takes it. Raises `ClientGone` if it took nothing for so many *seconds*.

    The server waits before each piece until the connection has room for it.
    """
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        await send(message)
        return
    more = message.get("more_body", False)
    view = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        piece = bytes(view[start : start + PIECE_BYTES])
        last = start + PIECE_BYTES >= len(body)
        try:
            async with asyncio.timeout(seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": more or not last})
        except TimeoutError:
            connection = scope.get("state", {}).get("penstock.connection")
            if connection is not None:
                connection.transport.abort()
            raise ClientGone from None
