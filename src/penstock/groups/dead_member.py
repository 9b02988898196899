"""A member of a group whose process died: what the journal tells of it, while it is replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIDY_FROM = 64


class DeadMember:
    """A member of before the restart: what it held of each partition, in the order in which it was leased, and what it had begun."""

    __slots__ = ("_granted", "_grants", "_tidy_at", "begun", "concurrency", "held")

    def __init__(self, concurrency: int, partitions: int) -> None:
        self.concurrency = concurrency
        self.held = [OffsetSet() for _ in range(partitions)]
        self._grants: list[tuple[int, OffsetSet]] = []
        """What was leased together, oldest first; each offset is in one of them at most, and may be held no more."""
        self._granted: dict[int, OffsetSet] = {}
        """All that is in one of them, by partition."""
        self._tidy_at = _TIDY_FROM
        self.begun: set[tuple[int, int]] = set()

    def let_go(self, partition: int, start: int, end: int) -> None:
        """It does not hold offsets [start, end) any more."""
        self.held[partition].remove_range(start, end)
        if self.begun:
            self.begun = {(at, offset) for at, offset in self.begun if at != partition or not start <= offset < end}

    def lease(self, partition: int, ranges: Sequence[tuple[int, int]]) -> None:
        """It holds *ranges* of offsets, from now on; they were leased in this order."""
        offsets, last = OffsetSet(), 0
        for start, end in ranges:
            if start < last:
                self._grant(partition, offsets)
                offsets = OffsetSet()
            self.let_go(partition, start, end)
            offsets.add_range(start, end)
            last = end
        self._grant(partition, offsets)

    def _grant(self, partition: int, offsets: OffsetSet) -> None:
        """These were leased in the order of offsets, after all others."""
        granted = self._granted.setdefault(partition, OffsetSet())
        again = offsets & granted
        if again:
            for at, older in self._grants:
                if at == partition:
                    older.difference_update(again)
        granted.update(offsets)
        self.held[partition].update(offsets)
        self._grants.append((partition, offsets))
        if len(self._grants) > self._tidy_at:
            self._tidy()

    def _tidy(self) -> None:
        """Forget grants of which nothing is held any more: now and then, since all are looked at."""
        self._grants = [(at, offsets) for at, offsets in self._grants if not offsets.isdisjoint(self.held[at])]
        self._tidy_at = _TIDY_FROM + 2 * len(self._grants)
        self._granted = {}
        for at, offsets in self._grants:
            self._granted.setdefault(at, OffsetSet()).update(offsets)

    def oldest(self, possible: list[OffsetSet]) -> list[tuple[int, int]]:
        """As many of the oldest deliveries as the member could have been handling at once."""
        found: list[tuple[int, int]] = []
        for partition, granted in self._grants:
            offsets = granted & possible[partition]
            found += [(partition, offset) for offset in offsets[: self.concurrency - len(found)]]
            if len(found) >= self.concurrency:
                break
        return found
