"""What a connection was given and its client has not read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def waiting_bytes(transport: asyncio.Transport) -> int:
    """What was written to *transport* and not sent yet."""
    # Of TLS the bytes that are encrypted already wait in the transport below, which that above does not count.
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport.get_write_buffer_size() + (0 if below is None else int(below.get_write_buffer_size()))
