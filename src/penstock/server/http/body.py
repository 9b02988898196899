"""Receiving the body of a request: counted while it comes, within its time, and within what all requests may hold together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from penstock.errors import Unavailable
from penstock.server.http.problems import HttpProblem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.datastructures import Headers
    from starlette.types import Receive

LINGER_BYTES_MAX = 1024 * 1024
LINGER_S = 1.0


class ClientGone(Exception):
    """The client has closed the connection: nobody waits for an answer."""


class BodyBudget:
    """How much all bodies that are being received, or worked on, may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        """What may still be taken."""

    def take(self, size: int) -> None:
        """Raise `Unavailable` if there is no room for *size* more bytes."""
        if size > self.left:
            raise Unavailable("the server receives as much as it may; nothing was stored, try again")
        self.left -= size

    def give_back(self, size: int) -> None:
        """They are not held any more."""
        self.left += size


class Body:
    """The body of one request. `ended` tells whether all of it has arrived; else the connection cannot be used again."""

    def __init__(self, receive: Receive, headers: Headers, budget: BodyBudget) -> None:
        self._receive = receive
        self._budget = budget
        self._held = 0
        self._length = self._claimed(headers)
        self.ended = self._length == 0
        self._began = False

    @staticmethod
    def _claimed(headers: Headers) -> int | None:
        if "transfer-encoding" in headers:
            return None
        return int(headers.get("content-length", "0"))  # h11 has checked that it is a number

    @contextlib.asynccontextmanager
    async def read(self, bytes_max: int, seconds: float) -> AsyncIterator[bytes]:
        """The whole body, held as long as the block runs. Raises `HttpProblem`, `Unavailable`, `ClientGone`."""
        try:
            if self._length is not None and self._length > bytes_max:
                raise _too_large(bytes_max)
            try:
                async with asyncio.timeout(seconds):
                    found = await self._read(bytes_max)
            except TimeoutError:
                raise HttpProblem("BODY_TIMEOUT", f"the body did not arrive within {seconds:g} s") from None
            yield found
        finally:
            self._budget.give_back(self._held)
            self._held = 0

    async def _read(self, bytes_max: int) -> bytes:
        found = bytearray()
        while not self.ended or not self._began:
            data = await self._next()
            if len(found) + len(data) > bytes_max:
                raise _too_large(bytes_max)
            self._budget.take(len(data))
            self._held += len(data)
            found += data
        return bytes(found)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._began = True
        self.ended = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data

    async def discard(self) -> None:
        """
        Let a client send a little more of a body that is refused.

        Closing a connection while its client sends makes the client see a broken connection, and not the answer.
        """
        if self._length is not None and self._length > LINGER_BYTES_MAX:
            return
        passed = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.ended and passed < LINGER_BYTES_MAX:
                    passed += len(await self._next())

    async def gone(self) -> None:
        """Return when the client has closed the connection; call it when the body was read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem("BODY_TOO_LARGE", f"the body is over the limit of {bytes_max:,} bytes; nothing was stored")
