"""
The one source of time: code asks a Clock, tests hand in a FakeClock.

What cannot be undone (retention, forgetting a key) goes by `settled_us`, and never by one look at the wall clock: see `WatchedClock`.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from penstock.log_events import event, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger("penstock")

STEP_SECONDS = 2.0
"""Wall clock and monotonic clock may differ by this, and by a thousandth of the time between two looks: NTP slews by half of that."""
OPENING_SECONDS = 60.0
"""How long after its opening a store removes nothing by age by itself, if its clock is ahead of all that it holds."""


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


class WatchedClock:
    """
    A clock that notices when its wall clock jumps, and does not believe it at once.

    Theory of operation
    -------------------
    `settled_us` is the time for decisions that cannot be undone. It goes on with the monotonic clock from where wall clock and monotonic
    clock last agreed. If the wall clock jumps, forward or back, the old time goes on, and nothing is older than both say: `settled_us` is
    the lesser of the two. So after a jump forward old messages go as they would have gone without it, and after a jump back nothing goes.
    The new time is believed when it has gone on with the monotonic clock for *grace_seconds*; or the jump is undone.

    When a store is opened there is no time before, and a machine that has just started may not know the time yet. So if the wall clock is
    further on than the newest message, most often because the store was closed for long, nothing goes by itself for `OPENING_SECONDS`
    (`begin`). What a user orders, `retain` for one, goes by `asked_us`, which believes the time at opening.

    Safe to use from any thread. A Clock itself: `now_us` and `monotonic` are those of the clock that it watches, at no cost.
    """

    __slots__ = (
        "_agreed_mono", "_agreed_us", "_grace_s", "_jump_from_us", "_jump_mono", "_jump_us", "_lock", "_newest_us", "_opened_mono",
        "monotonic", "now_us", "watched",
    )  # fmt: skip

    def __init__(self, clock: Clock, grace_seconds: float) -> None:
        self.watched = clock
        self.now_us: Callable[[], int] = clock.now_us
        self.monotonic: Callable[[], float] = clock.monotonic
        self._grace_s = grace_seconds
        self._lock = threading.Lock()
        self._agreed_us, self._agreed_mono = clock.now_us(), clock.monotonic()
        self._jump_us: int | None = None
        self._jump_mono = 0.0
        self._jump_from_us = 0
        """What time it was before the jump, at most: a later time was read from the wall clock after it."""
        self._newest_us: int | None = None
        self._opened_mono = 0.0

    def begin(self, newest_us: int | None) -> None:
        """The store was opened, and its newest message is of *newest_us*; None if it has none."""
        with self._lock:
            self._agreed_us, self._agreed_mono = self.now_us(), self.monotonic()
            self._jump_us = None
            self._newest_us, self._opened_mono = newest_us, self._agreed_mono

    @property
    def jumped(self) -> bool:
        """Whether the wall clock's time is not believed at the moment."""
        return self._jump_us is not None

    def settled_us(self) -> int:
        """Microseconds since 1970 UTC, for what cannot be undone: never later than what time it was before a jump, and has passed since."""
        asked_us, newest_us = self.asked_us(), self._newest_us
        if newest_us is None:
            return asked_us
        passed_s = self.monotonic() - self._opened_mono
        if passed_s >= min(OPENING_SECONDS, self._grace_s):
            self._newest_us = None
            return asked_us
        return min(asked_us, newest_us + round(passed_s * 1e6))

    def asked_us(self) -> int:
        """The same for what a user orders at this moment: the time at opening is believed, a jump since then is not."""
        with self._lock:
            now_us, mono = self.now_us(), self.monotonic()
            passed_s = mono - self._agreed_mono
            expected_us = self._agreed_us + round(passed_s * 1e6)
            if self._grace_s <= 0 or _is_near(now_us, expected_us, passed_s):
                self._agree(now_us, mono)
                return now_us
            since_s = mono - self._jump_mono
            if self._jump_us is None or not _is_near(now_us, self._jump_us + round(since_s * 1e6), since_s):
                known_us = expected_us if self._jump_us is None else self._jump_us + round(since_s * 1e6)
                self._jump_from_us = max(expected_us, known_us)
                self._jump_us, self._jump_mono = now_us, mono
                _log.warning(
                    "the clock jumped by %+.0f seconds: what is too old stays until the clock has gone on evenly for %.0f seconds",
                    (now_us - expected_us) / 1e6, self._grace_s,
                    extra=event("clock_jumped", seconds=round((now_us - expected_us) / 1e6), grace_seconds=self._grace_s),
                )  # fmt: skip
            elif since_s >= self._grace_s:
                self._agree(now_us, mono)
                return now_us
            return min(now_us, expected_us)

    def ended_us(self, since_us: int) -> int:
        """
        The time by which something that began at *since_us* by the wall clock has ended: `asked_us`, unless it began after a jump.

        After a jump ahead what was stored before it lives as if there had been none, and what is stored after it goes by the new time.
        """
        asked_us = self.asked_us()
        with self._lock:
            return self.now_us() if self._jump_us is not None and since_us > self._jump_from_us else asked_us

    def _agree(self, now_us: int, mono: float) -> None:
        self._agreed_us, self._agreed_mono = now_us, mono
        if self._jump_us is not None:
            self._jump_us = None
            _log.info("the clock's time is believed again: what is too old is removed", extra=event("clock_settled"))


def _is_near(one_us: int, other_us: int, passed_s: float) -> bool:
    return abs(one_us - other_us) <= (STEP_SECONDS + passed_s / 1000) * 1e6


def settled_us(clock: Clock) -> int:
    """The time for what cannot be undone, if *clock* is watched; its wall clock, if it is not."""
    return clock.settled_us() if isinstance(clock, WatchedClock) else clock.now_us()


def asked_us(clock: Clock) -> int:
    """The time for what a user orders and cannot be undone; see `WatchedClock`."""
    return clock.asked_us() if isinstance(clock, WatchedClock) else clock.now_us()


def ended_us(clock: Clock, since_us: int) -> int:
    """The time by which what was stored at *since_us* may have expired; see `WatchedClock`."""
    return clock.ended_us(since_us) if isinstance(clock, WatchedClock) else clock.now_us()
