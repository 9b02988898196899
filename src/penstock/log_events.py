"""
What a line of the log is about, for programs: `record.penstock`, a dict with the event's name and its fields.

Lines are for people and may change; events and their fields are in docs/observability.md. Loggers are those of Python, below
``penstock``, so whoever wants them elsewhere adds a handler, a filter or a formatter there.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, MutableMapping

_KINDS_MAX = 10_000


def event(name: str, **fields: object) -> dict[str, dict[str, object]]:
    """The *extra* of a call of a logger."""
    return {"penstock": {"event": name, **fields}}


class SteadyLogger(logging.LoggerAdapter[logging.Logger]):
    """
    What the program's own log handlers raise is printed, as `logging` itself does, and goes no further.

    A thread that must go on writes lines, and so does a call in the middle of its work; neither may end because nobody can read of it.
    A handler may well fail on an exception of the user's whose ``__str__`` raises.
    """

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        """Leave the line as it is."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """See `logging.Logger.log`."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever a handler raises
            if logging.raiseExceptions and sys.stderr is not None:
                traceback.print_exc()


def get_logger(name: str) -> SteadyLogger:
    """The logger called *name*: every line of Penstock's goes through one of these."""
    return SteadyLogger(logging.getLogger(name))  # noqa: TID251 - here it is made steady


class Troubles:
    """What goes wrong in the background: told once, until it goes well or goes wrong otherwise. Safe to call from any thread."""

    def __init__(self, logger: SteadyLogger) -> None:
        self._logger = logger
        self._told: dict[Hashable, str] = {}

    def tell(self, what: Hashable, text: str, about: str, error: Exception, **fields: object) -> None:
        """
        *what* went wrong with *error*: a warning with *text*, unless the same was told of it already.

        *about* is the name of the event, *fields* those of its fields that are not the error's.
        """
        said = f"{type(error).__name__}: {error}"
        if self._told.get(what) != said:
            self._told[what] = said
            self._logger.warning("%s: %s", text, error, extra=event(about, **fields, error=type(error).__name__))

    def end(self, what: Hashable) -> None:
        """*what* went well."""
        if self._told:
            self._told.pop(what, None)

    def forget(self, is_gone: Callable[[Hashable], bool]) -> None:
        """What *is_gone* says of is there no more."""
        if self._told:
            for what in [what for what in list(self._told) if is_gone(what)]:
                self._told.pop(what, None)


class Often:
    """
    Lines that may come thousands a second: so many of each kind are let through in a window, the others are only counted.

    Safe to call from any thread.
    """

    def __init__(self, most: int, window_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._window_s = window_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: dict[Hashable, list[float]] = {}
        """Of each kind: when its window began, how many were let through in it, and how many were left out since the last one."""

    def let_through(self, kind: Hashable) -> int | None:
        """Whether to tell one more of *kind*: how many were left out before it, or None if it is left out too."""
        now = self._monotonic()
        with self._lock:
            if len(self._seen) > _KINDS_MAX:
                self._seen.clear()
            found = self._seen.setdefault(kind, [now, 0, 0])
            if now - found[0] >= self._window_s:
                found[0], found[1] = now, 0
            if found[1] >= self._most:
                found[2] += 1
                return None
            found[1] += 1
            left_out, found[2] = int(found[2]), 0
            return left_out
