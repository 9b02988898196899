"""
Ctrl-C and SIGTERM: they end a command at a place where nothing is half done.

Python would raise in the middle of whatever runs, also of a commit. Here a signal is only noted, except where the command waits for
its user, its terminal or its pipe (`allowed`): there it raises at once. A second signal raises wherever it finds the program.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Interrupted(BaseException):
    """A signal asked the program to end. Not an `Exception`: to be stopped is no failure, and no message is nacked for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _State:
    number: int | None = None
    allowed = False


_state = _State()


def install() -> None:
    """From now on SIGINT and SIGTERM are handled here, unless whoever started the program had them ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _note)


def _note(number: int, _frame: FrameType | None) -> None:
    again = _state.number is not None
    _state.number = number
    if again or _state.allowed:
        raise Interrupted(number)


def check() -> None:
    """Raise `Interrupted` if a signal has come."""
    if _state.number is not None:
        raise Interrupted(_state.number)


def forget() -> None:
    """The signal that came is dealt with: the command ends by itself, and may still print what it has done."""
    _state.number = None


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """In this block, which must not call the engine, a signal raises `Interrupted` at once."""
    _state.allowed = True
    try:
        check()
        yield
    finally:
        _state.allowed = False
