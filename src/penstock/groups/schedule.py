"""
When failed messages are due again: buckets of offsets by time.

A heap entry for each message would cost more than a hundred bytes; here all messages that are due in the same bucket share one bitmap.
A bucket is as wide as a thirty-second part of the delay, so that a message comes late by 3 % of its delay at most, and never early.
"""

from __future__ import annotations

import heapq
import math

from penstock.offset_set import OffsetSet

_FINEST_S = 0.001


class Schedule:
    """Offsets by the time (monotonic seconds) at which they are due. Not locked: its cursor's group is."""

    __slots__ = ("_buckets", "_heap", "offsets")

    def __init__(self) -> None:
        self._buckets: dict[float, OffsetSet] = {}
        self._heap: list[float] = []
        self.offsets = OffsetSet()
        """All that wait."""

    def add(self, offset: int, now: float, delay_s: float) -> float:
        """*offset* is due *delay_s* seconds from *now*; returns when its bucket is due."""
        width = 2.0 ** math.floor(math.log2(delay_s / 32)) if delay_s > 32 * _FINEST_S else 0.0
        width = max(_FINEST_S, width)
        due = math.ceil((now + delay_s) / width) * width
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = OffsetSet()
            heapq.heappush(self._heap, due)
        bucket.add(offset)
        self.offsets.add(offset)
        return due

    def discard(self, offset: int) -> None:
        """It need not come any more. Its bucket finds out when it is due."""
        self.offsets.discard(offset)

    def due(self, now: float) -> OffsetSet | None:
        """Take out what is due at *now*; None if nothing is."""
        if not self._heap or self._heap[0] > now:
            return None
        found = OffsetSet()
        while self._heap and self._heap[0] <= now:
            found |= self._buckets.pop(heapq.heappop(self._heap))
        found &= self.offsets
        self.offsets -= found
        return found

    def next_due(self) -> float | None:
        """When the next bucket is due."""
        return self._heap[0] if self._heap else None

    def by_time(self) -> list[tuple[float, OffsetSet]]:
        """What waits, and when it is due, one bucket after the other."""
        return [(due, bucket & self.offsets) for due, bucket in sorted(self._buckets.items())]

    def mend(self, among: OffsetSet) -> None:
        """It may have been interrupted in the middle of a change: forget all that is in no bucket, or not *among* those that may wait."""
        self._heap = sorted(self._buckets)
        self.offsets &= among & OffsetSet.union(*self._buckets.values()) if self._buckets else OffsetSet()

    def clear(self) -> None:
        """Forget all."""
        self._buckets.clear()
        self._heap.clear()
        self.offsets.clear()
