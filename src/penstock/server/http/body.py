"""Receiving the body of a request: within its time, and counted, since what all clients make the server hold has one bound."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from penstock.server.http.problems import HttpProblem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.datastructures import Headers
    from starlette.types import Receive

    from penstock.server.http.protocol import Connection

LINGER_BYTES_MAX = 1024 * 1024
LINGER_S = 1.0
DROP_BYTES_MAX = 16 * 1024 * 1024
"""What is read and dropped of a body that there is no memory for: its client may send it again, if it gets the answer."""
WORKING = 2
"""While a body is worked on it is there so many times: as it came, and as what was read from it."""


class ClientGone(Exception):
    """The client has closed the connection: nobody waits for an answer."""


class Body:
    """The body of one request. `ended` tells whether all of it has arrived; else the connection cannot be used again."""

    def __init__(self, receive: Receive, headers: Headers, connection: Connection) -> None:
        self._receive = receive
        self._connection = connection
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
        if self._length is not None and self._length > bytes_max:
            raise _too_large(bytes_max)
        connection, working = self._connection, 0
        try:
            try:
                async with asyncio.timeout(seconds) as limit:
                    with connection.reading(limit):
                        found = await self._read(bytes_max)
            except TimeoutError:
                if connection.refusal is not None:
                    raise connection.refusal from None
                raise HttpProblem("BODY_TIMEOUT", f"the body did not arrive within {seconds:g} s") from None
            finally:
                connection.count_received(0)
            working = WORKING * len(found)
            connection.account.begin(working)
            yield found
        finally:
            connection.account.end(working)

    async def _read(self, bytes_max: int) -> bytes:
        found = bytearray()
        while not self.ended or not self._began:
            if self._began:
                await self._connection.until_room()
            data = await self._next()
            if len(found) + len(data) > bytes_max:
                raise _too_large(bytes_max)
            found += data
            self._connection.count_received(len(found))
        return bytes(found)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._began = True
        self.ended = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data

    async def discard(self, bytes_max: int = LINGER_BYTES_MAX) -> None:
        """
        Let a client send a little more of a body that is refused, *bytes_max* at most.

        Closing a connection while its client sends makes the client see a broken connection, and not the answer.
        """
        if self._length is not None and self._length > bytes_max:
            return
        passed = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.ended and passed < bytes_max:
                    passed += len(await self._next())

    async def gone(self) -> None:
        """Return when the client has closed the connection; call it when the body was read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem("BODY_TOO_LARGE", f"the body is over the limit of {bytes_max:,} bytes; nothing was stored")
