"""The way back to a client: answers, errors and pushes. What is said after the connection ended is dropped."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Unavailable, UsageError
from penstock.wire.calls import Call
from penstock.wire.failures import encode_error
from penstock.wire.frame import ANSWER, ERROR, PUSH, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import Buffer
    from penstock.wire.frame import Frame

    Answer = tuple[dict[str, Any], list[Buffer]]
    Send = Callable[[list[Buffer]], None]

_log = logging.getLogger("penstock.broker")


class Replies:
    """
    What one connection is told. All methods run in the event loop.

    Attributes:
        closed: whether the connection ended.
        writable: set while the connection takes more.
        send_now: sends a frame from any thread without waiting; False if it must go by `send`.
    """

    def __init__(self, send: Send, send_now: Callable[[bytes], bool]) -> None:
        self._send = send
        self.send_now = send_now
        self.closed = False
        self.writable = asyncio.Event()
        self.writable.set()

    def send(self, data: bytes) -> None:
        """Send a frame that is encoded already."""
        if not self.closed:
            self._send([data])

    def answer(self, frame: Frame, fields: dict[str, Any], payload: list[Buffer]) -> None:
        """The answer to a call."""
        if not self.closed:
            self._send(encode_frame(ANSWER, frame.call, frame.correlation, fields, payload))

    def push(self, handle: int, fields: dict[str, Any], payload: list[Buffer]) -> None:
        """Deliveries that a consumer gave credit for."""
        if not self.closed:
            self._send(encode_frame(PUSH, Call.FETCH, handle, fields, payload))

    def refuse(self, frame: Frame, error: Exception) -> None:
        """The call failed. Only a `PenstockError` is told as it is: another one is a bug of ours, or of the client's."""
        if not isinstance(error, PenstockError):
            error = _as_told(frame, error)
        if not self.closed:
            self._send(encode_frame(ERROR, frame.call, frame.correlation, encode_error(error)))


def _as_told(frame: Frame, error: Exception) -> PenstockError:
    if isinstance(error, (TypeError, ValueError, KeyError, AttributeError, OverflowError)):
        # Fields of a wrong type, most likely; the log has the rest.
        _log.warning("call %s failed", frame.call, exc_info=error)
        return UsageError(f"the fields of call {frame.call} are not as they must be")
    _log.error("call %s failed", frame.call, exc_info=error)
    return Unavailable("the server failed to do this; its log says why")
