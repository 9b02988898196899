"""
Answers that are large: sent in pieces, as the client takes them, and counted until then.

A client that asks for much and does not read makes the server hold it. So a large answer is made when the server's memory for its clients
has room for it (`broker/memory_budget.py`); a client that takes nothing for a while is cut.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.server.http.body import ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Send

    from penstock.server.http.protocol import Connection

PIECE_BYTES = 64 * 1024
"""What is given to the connection at a time; it takes the next when it has sent most of it."""
MAKING = 3
"""While it is made an answer is there so many times: as messages, as text, as bytes."""


async def send_in_pieces(message: Message, connection: Connection, send: Send, seconds: float) -> None:
    """
    Send a part of an answer as the client takes it. Raises `ClientGone` if it took nothing for so many *seconds*.

    The server waits before each piece until the connection has room for it.
    """
    body = message.get("body", b"")
    try:
        if len(body) <= PIECE_BYTES:
            await send(message)
            return
        more = message.get("more_body", False)
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            connection.count_unsent(len(body) - start)
            piece = bytes(view[start : start + PIECE_BYTES])
            last = start + PIECE_BYTES >= len(body)
            try:
                async with asyncio.timeout(seconds):
                    await send({"type": "http.response.body", "body": piece, "more_body": more or not last})
            except TimeoutError:
                connection.transport.abort()
                raise ClientGone from None
    finally:
        if message["type"] == "http.response.body":
            connection.count_unsent(0)
