"""The end of accepting connections, which asyncio alone gets wrong."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_TURNS = 3
"""Turns of the loop from accepting a connection to telling its protocol of it."""


async def stop_accepting(listening: socket.socket) -> None:
    """
    Accept no more on *listening*; returns when the protocols of all connections that were accepted know of them. Close the server then.

    A connection that is accepted and not set up when its server is closed is left to itself: it belongs to nobody, and its client
    waits (python/cpython#109564). Those that are not accepted are refused by the closing.
    """
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
