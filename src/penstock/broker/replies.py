"""The way back to a client: answers, errors and pushes. What is said after the connection ended is dropped."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Unavailable, UsageError
from penstock.log_events import event, get_logger
from penstock.wire.calls import Call
from penstock.wire.failures import encode_error
from penstock.wire.frame import ANSWER, ERROR, PUSH, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import Buffer
    from penstock.wire.frame import Frame

    Answer = tuple[dict[str, Any], list[Buffer]]
    Send = Callable[[list[Buffer]], None]

_log = get_logger("penstock.broker")
BAD_FIELDS_SECONDS = 60.0
"""So often at most it is logged that the fields of a call were of a wrong type."""


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


class BadFields:
    """Calls whose fields are of a wrong type, which a client can send as often as it likes: logged now and then, in one line."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told: dict[int, float] = {}
        self._untold: dict[int, int] = {}

    def tell(self, call: int, error: Exception) -> None:
        """*error* was raised for the fields of *call*."""
        now = self._now()
        if now - self._told.get(call, -BAD_FIELDS_SECONDS) < BAD_FIELDS_SECONDS:
            self._untold[call] = self._untold.get(call, 0) + 1
            return
        self._told[call] = now
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {place[0].filename.rpartition('penstock/')[2]}:{place[0].lineno}" if place else ""
        before = self._untold.pop(call, 0)
        _log.warning(
            "call %s was refused, its fields are not as they must be: %s%s%s",
            call, type(error).__name__, where, f" ({before} more since this was last logged)" if before else "",
            extra=event("bad_fields", call=call, error=type(error).__name__, more=before),
        )  # fmt: skip


_bad_fields = BadFields()


def _as_told(frame: Frame, error: Exception) -> PenstockError:
    if isinstance(error, (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError)):
        # Fields of a wrong type, most likely.
        _bad_fields.tell(frame.call, error)
        return UsageError(f"the fields of call {frame.call} are not as they must be")
    _log.error("call %s failed", frame.call, exc_info=error)
    return Unavailable("the server failed to do this; its log says why")
