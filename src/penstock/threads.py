"""
The threads, locks and waits of the engine: those of `threading`, by names that a test can replace, and an event that bears signals.

Modules of the engine import this one under the name of the standard one (``from penstock import threads as threading``). That costs
nothing: a name is looked up in a module in either case. `penstock.testing.interleaving` replaces the names by its own, and decides then
which thread runs when; what goes around them is invisible to it.

`Event` is our own, since Ctrl-C in the main thread can leave one of `threading` locked for ever: its ``with`` enters a function written in
Python, and a handler that raises just after the lock was taken leaves it taken. For the same reason a `Condition` is made of a lock, and
the lock, not the condition, is what is entered: ``with lock:`` is safe.
"""

from __future__ import annotations

from threading import Condition, Lock, RLock, Thread, current_thread, get_ident, main_thread
from time import monotonic

from penstock.interrupts import Held

__all__ = ["Condition", "Event", "Lock", "RLock", "Thread", "current_thread", "get_ident", "main_thread", "monotonic"]


class Event:
    """Like `threading.Event`, and holds no lock: each thread that waits has a lock of its own, which `set` releases."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Lock] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Let those go on that wait, and those that will."""
        with Held():  # else a signal may come between two of them
            self._is_set = True
            # Both orders are safe: a thread that waits looks again after it has put its lock here.
            while self._waiters:
                try:
                    self._waiters.pop().release()
                except IndexError:
                    break  # it has just left

    def clear(self) -> None:
        """Let nobody go on who comes from now on."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True when it is set, False after *timeout* seconds."""
        if self._is_set:
            return True
        waiter = Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        woken = False
        try:
            woken = self._is_set or waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            if not woken or waiter in self._waiters:
                try:
                    self._waiters.remove(waiter)
                except ValueError:
                    woken = True  # in this very moment
        return woken or self._is_set
