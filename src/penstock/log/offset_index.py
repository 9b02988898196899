"""
The sparse index of one segment, in memory: every few KiB of batches one entry (offset, running max time, position).

It is built while batches are appended or scanned, and stored as a cache (`format/index.py`). Reading threads may look things
up while one thread adds: an entry is complete before its offset, by which look-ups count entries, is added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right


class OffsetIndex:
    """Entries of rising offsets and positions; `times_us[i]` is the running maximum before the batch of entry i."""

    __slots__ = ("_interval_bytes", "next_position", "offsets", "positions", "times_us")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self.next_position = 0
        """A batch from this position on becomes an entry; callers in a hurry look before they call `add`."""
        self.offsets = array("q")
        self.times_us = array("q")
        self.positions = array("q")

    def add(self, offset: int, time_before_us: int, position: int) -> None:
        """Tell the index of the next batch; it becomes an entry if the last entry is an interval away."""
        if position >= self.next_position:
            self.times_us.append(time_before_us)
            self.positions.append(position)
            self.offsets.append(offset)
            self.next_position = position + self._interval_bytes

    def restore(self, offsets: array[int], times_us: array[int], positions: array[int]) -> None:
        """Take over stored entries."""
        self.offsets, self.times_us, self.positions = offsets, times_us, positions
        self.next_position = positions[-1] + self._interval_bytes if positions else 0

    def position_of(self, offset: int) -> int | None:
        """Where to begin to look for *offset*: at most one interval before its batch; None in an empty index."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[max(entry, 0)] if self.offsets else None

    def position_of_time(self, time_us: int) -> int | None:
        """Where to begin to look for the first batch whose running max time reaches *time_us*."""
        count = len(self.offsets)
        if not count:
            return None
        entry = bisect_left(self.times_us, time_us, 0, count) - 1
        return self.positions[max(entry, 0)]
