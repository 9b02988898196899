"""A member of a group whose process died: what the journal tells of it, while it is replayed."""

from __future__ import annotations

from pyroaring import BitMap64


class DeadMember:
    """A member of before the restart: what it held of each partition, in the order in which it was leased, and what it had begun."""

    __slots__ = ("begun", "concurrency", "grants", "held")

    def __init__(self, concurrency: int, partitions: int) -> None:
        self.concurrency = concurrency
        self.held = [BitMap64() for _ in range(partitions)]
        self.grants: list[tuple[int, BitMap64]] = []
        self.begun: set[tuple[int, int]] = set()

    def let_go(self, partition: int, start: int, end: int) -> None:
        """It does not hold offsets [start, end) any more."""
        self.held[partition].remove_range(start, end)
        if self.begun:
            self.begun = {(at, offset) for at, offset in self.begun if at != partition or not start <= offset < end}
        for at, offsets in self.grants:
            if at == partition:
                offsets.remove_range(start, end)

    def lease(self, partition: int, start: int, end: int) -> None:
        """It holds offsets [start, end), from now on."""
        self.let_go(partition, start, end)
        self.grants = [(at, offsets) for at, offsets in self.grants if not offsets.isdisjoint(self.held[at])]
        self.held[partition].add_range(start, end)
        self.grants.append((partition, BitMap64(range(start, end))))

    def oldest(self, possible: list[BitMap64]) -> list[tuple[int, int]]:
        """As many of the oldest deliveries as the member could have been handling at once."""
        found: list[tuple[int, int]] = []
        for partition, granted in self.grants:
            offsets = granted & possible[partition]
            found += [(partition, offset) for offset in offsets[: self.concurrency - len(found)]]
            if len(found) >= self.concurrency:
                break
        return found
