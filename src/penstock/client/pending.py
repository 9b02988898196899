"""Calls that are on their way to a server, and whatever else a thread waits for on a connection."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.client.connection import Connection
    from penstock.errors import PenstockError
    from penstock.files import Buffer
    from penstock.wire.frame import Fields, Frame


class ConnectionLost(Unavailable):
    """The connection broke while the call was on its way. Never leaves the client."""


class NotBegun(ConnectionLost):
    """The same, and the server had said that it begins the call no more."""


class Waiter:
    """Something that a thread waits for, by `Connection.wait`."""

    __slots__ = ("_event", "done")

    def __init__(self) -> None:
        self.done = False
        """Whether it is there. Set before it is woken."""
        self._event = threading.Lock()
        self._event.acquire()

    def wake(self) -> None:
        """Let the thread look again: it is done, or this thread is to read."""
        try:  # noqa: SIM105 - for each answer, and suppress costs more than all the rest here
            self._event.release()
        except RuntimeError:
            pass  # it was woken already

    def sleep(self, seconds: float | None) -> None:
        """Sleep until it is woken."""
        if seconds is None:
            self._event.acquire()
        else:
            self._event.acquire(timeout=max(0.0, seconds))

    def set(self) -> None:
        """It is there."""
        self.done = True
        self.wake()


class Pending(Waiter):
    """A call on its way. `result` waits for it."""

    __slots__ = (
        "_connection",
        "call",
        "callback",
        "correlation",
        "error",
        "fields",
        "frame",
        "generation",
        "is_refused",
        "lost",
        "parked_at",
        "payload",
        "resend",
        "sends",
        "was_sent",
    )

    def __init__(
        self, connection: Connection, call: int, fields: Fields, payload: Sequence[Buffer], *, resend: bool,
        lost: PenstockError | None, callback: Callable[[Pending], None] | None, generation: int | None = None,
    ) -> None:  # fmt: skip
        self.done = False
        self._event = threading.Lock()
        self._event.acquire()
        self._connection = connection
        self.call = call
        self.fields = fields
        self.payload = payload
        self.resend = resend
        self.lost = lost
        self.callback = callback
        self.generation = generation
        self.correlation = 0
        self.frame: Frame | None = None
        self.error: PenstockError | None = None
        self.was_sent = False
        self.sends = 0
        self.is_refused = False
        """Whether the server itself answered with the error."""
        self.parked_at: float | None = None
        """Since when it waits for the next server, because this one stops and did not begin it."""

    def park(self, now: float) -> None:
        """The server has not begun it, and does not: it is for the next one, which it may be sent to whatever it does."""
        self.parked_at = now
        self.was_sent = False
        self.sends = 0

    def finish(self, frame: Frame | None, error: PenstockError | None) -> None:
        """The answer is there. Called once, by who reads."""
        self.frame, self.error = frame, error
        self.done = True
        self.wake()
        if self.callback is not None:
            self.callback(self)

    def result(self) -> Frame:
        """Wait for the answer. Raises the error that the server told, `Unavailable` or `OutcomeUnknown`."""
        if not self.done:
            self._connection.wait(self)
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return self.frame
