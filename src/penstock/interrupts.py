"""
Signals that come in the middle of what must not stop half-way, such as a commit: they wait until it is done.

Python runs the handlers of signals in the main thread, between any two steps of whatever runs there, and that of Ctrl-C raises. So while
the main thread is in such a place, the handlers are replaced by one that only notes what came; then they are put back, and called. That
takes about a microsecond, in the main thread only, and once for a whole commit.

An exception that is put into another thread (`PyThreadState_SetAsyncExc`) cannot be held back.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from _thread import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_HELD = tuple(
    int(number)
    for number in (
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM,
        signal.SIGPROF,
    )
)  # fmt: skip
_get: Callable[[int], Any] = _signal.getsignal
_set: Callable[[int, Any], Any] = _signal.signal
"""Without the enums of `signal`, which take most of its time."""
_main = threading.main_thread().ident


def _after_fork() -> None:
    global _main  # noqa: PLW0603 - the thread that forks is the main one of the child
    _main = get_ident()


os.register_at_fork(after_in_child=_after_fork)


class Held:
    """
    While it is entered no signal's handler runs; in the main thread. In others there is nothing to do.

    Holds may be nested: what came goes to the outer one then.
    """

    __slots__ = ("_came", "_handlers")

    def __enter__(self) -> None:
        handlers: list[tuple[int, Any]] = []
        self._handlers = handlers
        if get_ident() != _main:
            return
        came: list[tuple[int, Any]] = []
        self._came = came

        def note(number: int, frame: object) -> None:
            came.append((number, frame))

        try:
            for number in _HELD:
                handler = _get(number)
                if callable(handler):
                    handlers.append((number, handler))
                    _set(number, note)
        except BaseException as error:
            _put_back(handlers)
            if isinstance(error, ValueError):
                return  # not the main interpreter: no handlers run here
            raise

    def __exit__(self, *error: object) -> None:
        handlers = self._handlers
        if not handlers:
            return
        known = dict(handlers)
        try:
            _put_back(handlers)
        finally:
            # One that comes just now may be raised by then: the others are not lost.
            _call(self._came, known)


def _put_back(handlers: list[tuple[int, Any]]) -> None:
    try:
        while handlers:
            number, handler = handlers[-1]
            _set(number, handler)
            handlers.pop()
    finally:
        if handlers:
            _put_back(handlers)  # a handler that was put back has just raised


def _call(came: list[tuple[int, Any]], handlers: dict[int, Any]) -> None:
    while came:
        number, frame = came.pop(0)
        try:
            handlers[number](number, frame)
        finally:
            _call(came, handlers)
