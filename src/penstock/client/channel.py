"""
One connected socket, as long as it lasts: frames out, frames in.

One thread sends at a time and one reads; both may be at work at once. An error of sending is for who reads to notice.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import TYPE_CHECKING, Any

from penstock.wire.failures import decode_error
from penstock.wire.frame import ANSWER, ERROR, REQUEST, FrameReader, encode_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.client.address import Connected
    from penstock.files import Buffer
    from penstock.wire.frame import Frame

_RECEIVE_BYTES = 64 * 1024
_RECEIVE_MUCH_BYTES = 1024 * 1024
"""What is asked for when the last time there was more than asked for."""
_TIMEVAL = struct.Struct("@ll")


class Channel:
    """A connected socket with the bytes of a frame that is not whole yet."""

    __slots__ = ("_made", "_reader", "_receive_bytes")

    def __init__(self, made: Connected) -> None:
        self._made = made
        self._reader = FrameReader()
        self._receive_bytes = _RECEIVE_BYTES

    def set_greeting_seconds(self, seconds: float) -> None:
        """How long `ask` waits for bytes."""
        self._made.settimeout(seconds)

    def set_silence_seconds(self, seconds: float) -> None:
        """How long `receive` waits for bytes. There is no more asking then."""
        self._made.settimeout(None)
        # Not by Python's own timeout, which costs a second system call for each.
        self._made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def ask(self, call: int, fields: dict[str, Any]) -> Frame:
        """One call, while nobody else uses the socket. Raises `OSError`, `BadBytes`, or what the server refuses with."""
        self._made.sendall(b"".join(encode_frame(REQUEST, call, 0, fields)))
        while True:
            for frame in self.receive() or ():
                if frame.kind == ERROR:
                    raise decode_error(frame.fields)
                if frame.kind == ANSWER:
                    return frame

    def send(self, parts: list[Buffer]) -> None:
        """Send one frame, and wait until the socket has taken it."""
        try:
            self._made.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
        except OSError:
            pass
        except BaseException:
            self.hang_up()  # Ctrl-C in the middle of a frame: nothing can follow it
            raise

    def receive(self) -> Iterator[Frame] | None:
        """
        The frames in the bytes that come next, or None if these are of TLS alone.

        Raises `BlockingIOError` if none came for long, `OSError` if there will be no more; taking the frames raises `BadBytes`.
        """
        data = self._made.recv(self._receive_bytes)
        if data is None:
            return None
        if not data:
            raise OSError("it hung up")
        self._receive_bytes = _RECEIVE_BYTES if len(data) < self._receive_bytes else _RECEIVE_MUCH_BYTES
        return self._reader.feed(data)

    def has_room(self) -> bool:
        """Whether some bytes can be sent without waiting."""
        return self._poll(select.POLLOUT, 0)

    def has_bytes(self, seconds: float) -> bool:
        """Whether bytes can be received, now or within *seconds*."""
        return self._poll(select.POLLIN, seconds)

    def _poll(self, events: int, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._made, events)
        return bool(poller.poll(seconds * 1000))

    def fileno(self) -> int:
        """Its number; less than 0 if it was closed."""
        return self._made.fileno()

    def hang_up(self) -> None:
        """End it for both sides; who reads sees that."""
        with contextlib.suppress(OSError):
            self._made.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its number back. Nobody may read any more: that may soon be the number of another file."""
        self._made.close()


def _timeval(seconds: float) -> bytes:
    """As the kernel wants it."""
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
