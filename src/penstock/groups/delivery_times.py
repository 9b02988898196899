"""
How long messages waited until a group handed them out, counted while a topic records its deliveries.

Theory of operation. `RecordedLeasing` takes the place of a group's `Leasing` when the topic was made with ``record_deliveries=True``; other
groups run the plain one, and not one instruction more. It looks at what was handed out by lots: the messages of one batch share the moment
of their appending, so a call costs one addition for each batch it hands out of, not one for each message. Only where messages of a
batch may differ (it was merged, or some were delayed) each is looked at, and not even then if all fall into the same bucket.

The wait of a message is from its appending, or from when it was due if that is later (a delay is wanted), until it was handed out. It
is of first deliveries; those after a failure or a crash are only counted. Where the clock was set back the wait is 0.

Buckets are log-linear: up to 64 us one for each microsecond, above that 32 for each power of two. A bucket is not wider than 1/32 (3.2 %)
of its lowest value, so what is told of a wait, the highest value of its bucket, is at most 3.2 % too high and never too low.

Waits gather by windows of 10 seconds of delivery, aligned to UTC. All of it is guarded by the group's lock.
"""

from __future__ import annotations

import json
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.format.columns import DELIVER
from penstock.groups.leasing import Leasing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.clock import Clock
    from penstock.format.batch import Batch
    from penstock.groups.delivery import Delivery, Lot
    from penstock.groups.member import Member

VERSION = 1
"""Of a record; one that cannot be read as this one has another."""
WINDOW_US = 10_000_000
WINDOWS_MAX = 60
"""So many windows of a group wait to be written; the oldest is dropped for the next one."""
WAIT_MAX_US = (1 << 50) - 1
"""35 years; what waited longer counts as this. It bounds the buckets: there are fewer than 1,500."""
_HALF_BITS = 5

_lot_of = attrgetter("_lot")


def bucket_of(wait_us: int) -> int:
    """The number of the bucket that *wait_us* belongs to."""
    if wait_us < 0:
        return 0
    wait_us = min(wait_us, WAIT_MAX_US)
    shift = wait_us.bit_length() - _HALF_BITS - 1
    return wait_us if shift <= 0 else (shift << _HALF_BITS) + (wait_us >> shift)


def bucket_bounds_us(bucket: int) -> tuple[int, int]:
    """The waits [low, high) that belong to a bucket."""
    shift = max((bucket >> _HALF_BITS) - 1, 0)
    low = bucket - (shift << _HALF_BITS)
    return low << shift, (low + 1) << shift


class Window:
    """The deliveries of one group in [start_us, start_us + WINDOW_US)."""

    __slots__ = ("counts", "delivered", "longest_us", "redelivered", "start_us")

    def __init__(self, start_us: int) -> None:
        self.start_us = start_us
        self.delivered = 0
        """First deliveries; their waits are in `counts`, by bucket."""
        self.redelivered = 0
        self.longest_us = 0
        self.counts: dict[int, int] = {}

    def add(self, wait_us: int, count: int) -> None:
        """*count* messages waited so long."""
        bucket = bucket_of(wait_us)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.delivered += count
        if wait_us > self.longest_us:
            self.longest_us = min(wait_us, WAIT_MAX_US)

    def remove(self, wait_us: int) -> None:
        """One message that waited about so long was not delivered after all; it is taken out of the nearest bucket that has any."""
        if self.delivered:
            wanted = bucket_of(wait_us)
            bucket = min(self.counts, key=lambda one: abs(one - wanted))
            self.counts[bucket] -= 1
            self.delivered -= 1
            if not self.counts[bucket]:
                del self.counts[bucket]
            if self.counts:
                self.longest_us = min(self.longest_us, bucket_bounds_us(max(self.counts))[1] - 1)
            else:
                self.longest_us = 0

    def record(self, group: str) -> bytes:
        """As a message of `TOPIC.deliveries`; docs/traffic.md describes it."""
        fields = {
            "version": VERSION, "group": group, "window_start_us": self.start_us, "window_us": WINDOW_US, "delivered": self.delivered,
            "redelivered": self.redelivered, "max_us": self.longest_us, "buckets": [list(one) for one in sorted(self.counts.items())],
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode()


class DeliveryTimes:
    """The windows of one group that are not written yet. Guarded by the group's lock."""

    __slots__ = ("_clock", "_lot", "_over", "_since_us", "_window", "dropped")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window: Window | None = None
        self._over: list[Window] = []
        self._lot = -1
        self._since_us: int | None = None
        """Since when all messages of lot number `_lot` wait, which is mostly the one that is asked for next; None if they differ."""
        self.dropped = 0
        """Windows that were never written, since too many waited."""

    def observe(self, deliveries: Sequence[Delivery]) -> None:
        """They were handed out now."""
        now_us = self._clock.now_us()
        window = self._window
        if window is None or not 0 <= now_us - window.start_us < WINDOW_US:
            window = self._begin(now_us)
        lot: Lot = _lot_of(deliveries[0])
        if lot is _lot_of(deliveries[-1]):
            self._observe(window, lot, deliveries, now_us)
        else:
            for each, some in groupby(deliveries, _lot_of):
                self._observe(window, each, list(some), now_us)

    def _observe(self, window: Window, lot: Lot, deliveries: Sequence[Delivery], now_us: int) -> None:
        """Messages of one lot, so of one batch, were handed out."""
        count = len(deliveries)
        cursor = lot.cursor
        if cursor.suspects or cursor.failures.offsets:  # else all are delivered for the first time
            deliveries = [one for one in deliveries if one.attempt == 1 and one.offset not in cursor.suspects]
            window.redelivered += count - len(deliveries)
            count = len(deliveries)
            if not count:
                return
        if lot.number != self._lot:
            batch = lot.batch
            alike = batch.entry(DELIVER) is None and not batch.is_merged
            self._lot, self._since_us = lot.number, batch.header.append_time_us if alike else None
        if self._since_us is not None:
            window.add(now_us - self._since_us, count)
        else:
            _add_each(window, lot.batch, deliveries, now_us)

    def undo(self, delivery: Delivery, handed_s: float) -> None:
        """Nobody got it after all; it was handed out at *handed_s* of the monotonic clock. Late ones change nothing."""
        ago_us = round((self._clock.monotonic() - handed_s) * 1e6)
        handed_us = self._clock.now_us() - max(0, ago_us)
        window = self._window
        if window is None or handed_us // WINDOW_US * WINDOW_US != window.start_us:
            return
        if delivery.attempt > 1:
            window.redelivered -= window.redelivered > 0
        else:
            window.remove(handed_us - max(delivery.append_time_us, delivery.deliver_us or 0))

    def _begin(self, now_us: int) -> Window:
        """The window of this moment. A clock that is set, either way, ends the one before."""
        if self._window is not None:
            self.put_back([self._window])
        window = self._window = Window(now_us // WINDOW_US * WINDOW_US)
        return window

    def take(self, *, unfinished: bool) -> list[Window]:
        """The windows that are over, which are the caller's from now on; with *unfinished* also the one that is not."""
        window = self._window
        if window is not None and (unfinished or window.start_us != self._clock.now_us() // WINDOW_US * WINDOW_US):
            self.put_back([window])
            self._window = None
        found, self._over = self._over, []
        return [one for one in found if one.delivered or one.redelivered]

    def put_back(self, windows: list[Window]) -> None:
        """They are to be taken again, oldest first; the oldest are dropped if there are too many."""
        self._over = sorted([*self._over, *windows], key=lambda one: one.start_us)
        excess = len(self._over) - WINDOWS_MAX
        if excess > 0:
            del self._over[:excess]
            self.dropped += excess


def _add_each(window: Window, batch: Batch, deliveries: Sequence[Delivery], now_us: int) -> None:
    """Messages of a batch that was merged, or has some that were delayed."""
    if batch.entry(DELIVER) is None:
        earliest_us, latest_us = batch.append_time_span()
        if bucket_of(now_us - earliest_us) == bucket_of(now_us - latest_us):
            window.add(now_us - deliveries[0].append_time_us, len(deliveries))
            return
    for one in deliveries:
        window.add(now_us - max(one.append_time_us, one.deliver_us or 0), 1)


class RecordedLeasing(Leasing):
    """The same, with a look at what it hands out."""

    __slots__ = ("_times",)

    def __init__(self, plain: Leasing, times: DeliveryTimes) -> None:
        super().__init__(plain._book, plain._moves)  # noqa: SLF001
        self.clock = plain.clock
        self._times = times

    def hand_out(self, member: Member, count: int, deadline: float, found: list[Delivery], *, pushed: bool = False) -> bool:
        """See `Leasing`."""
        before = len(found)
        begun = super().hand_out(member, count, deadline, found, pushed=pushed)
        if len(found) > before:
            self._times.observe(found[before:] if before else found)
        return begun

    def undo(self, delivery: Delivery, handed_s: float) -> None:
        """See `Leasing`."""
        self._times.undo(delivery, handed_s)
