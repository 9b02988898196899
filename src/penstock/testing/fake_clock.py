"""A clock that stands still until the test moves it."""

from __future__ import annotations

import threading

_MICROSECONDS = 1_000_000


class FakeClock:
    """
    Both clocks of `penstock.clock.Clock`, moved by hand.

    Time is kept in whole microseconds, so that advancing a thousand times by 0.001 is exactly one second.
    """

    __slots__ = ("_lock", "_monotonic_us", "_wall_us")

    def __init__(self, *, now_us: int = 1_700_000_000_000_000, monotonic: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._wall_us = now_us
        self._monotonic_us = round(monotonic * _MICROSECONDS)

    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970 UTC."""
        return self._wall_us

    def monotonic(self) -> float:
        """Seconds on the clock that `jump_wall` does not touch."""
        return self._monotonic_us / _MICROSECONDS

    def advance(self, seconds: float) -> None:
        """
        Let time pass on both clocks.

        Raises:
            ValueError: *seconds* is negative; only the wall clock can go back, with `jump_wall`.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        microseconds = round(seconds * _MICROSECONDS)
        with self._lock:
            self._wall_us += microseconds
            self._monotonic_us += microseconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back with a negative number, as an operator or NTP does."""
        with self._lock:
            self._wall_us += round(seconds * _MICROSECONDS)
