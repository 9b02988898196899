"""What wakes a thread that looks at a socket."""

from __future__ import annotations

import contextlib
import select
import socket

WOKEN, GONE = 1, 2
_POLL_GONE = getattr(select, "POLLRDHUP", 0)


class Bell:
    """A pair of sockets: one thread waits, any rings."""

    def __init__(self) -> None:
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def ring(self) -> None:
        """Wake who waits, or the next one who would."""
        with contextlib.suppress(OSError):  # it was rung often and not heard yet, or was closed
            self._rope.send(b"x")

    def wait(self, seconds: float | None, descriptor: int | None = None) -> int:
        """Wait until somebody rings, `WOKEN`, or the other side of *descriptor* hangs up, `GONE`; returns which."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        if descriptor is not None:
            if descriptor < 0:
                return GONE
            poller.register(descriptor, _POLL_GONE)
        found = 0
        for one, _ in poller.poll(None if seconds is None else seconds * 1000):
            if one != descriptor:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                found |= WOKEN
            else:
                found |= GONE
        return found

    def close(self) -> None:
        """Nobody waits, and ringing does nothing any more."""
        self._bell.close()
        self._rope.close()
