"""The one source of time: code asks a Clock, tests hand in a FakeClock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the engine needs to know about time."""

    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970 UTC; it may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; for timeouts and intervals."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    # Not a method that calls it: it is asked twice for each message that is delivered.
    monotonic = staticmethod(time.monotonic)
