"""
What a line of the log is about, for programs: `record.penstock`, a dict with the event's name and its fields.

Lines are for people and may change; events and their fields are in docs/observability.md. Loggers are those of Python, below
``penstock``, so whoever wants them elsewhere adds a handler, a filter or a formatter there.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Hashable

_KINDS_MAX = 10_000


def event(name: str, **fields: object) -> dict[str, dict[str, object]]:
    """The *extra* of a call of a logger."""
    return {"penstock": {"event": name, **fields}}


class Troubles:
    """What goes wrong in the background: told once, until it goes well or goes wrong otherwise. Safe to call from any thread."""

    def __init__(self, logger: logging.Logger) -> None:
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
