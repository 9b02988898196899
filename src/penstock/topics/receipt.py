"""What a publisher gets back: where its messages lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, overload


class Receipt(NamedTuple):
    """Where one message lies. *duplicate*: it was there already, and nothing was stored."""

    topic: str
    partition: int
    offset: int
    duplicate: bool = False


class Receipts(Sequence[Receipt]):
    """
    The receipts of messages that were published together, in the order in which they were given; made when they are looked at.

    `ranges` says the same in short: (partition, first offset, count) for each partition that got any.
    """

    __slots__ = ("_begins", "_places", "ranges", "topic")

    def __init__(self, topic: str, ranges: list[tuple[int, int, int]], places: Sequence[tuple[int, int]] | None = None) -> None:
        self.topic = topic
        self.ranges = ranges
        # For each message the index of its range and its place in it; None if the ranges follow each other.
        self._places = places
        self._begins = [0]
        for _, _, count in ranges:
            self._begins.append(self._begins[-1] + count)

    @classmethod
    def of_parts(cls, topic: str, ranges: list[tuple[int, int, int]], indices: Sequence[Sequence[int]]) -> Receipts:
        """The receipts of messages that were split: *indices* names those of each range."""
        if len(ranges) == 1:
            return cls(topic, ranges)
        places: list[tuple[int, int]] = [(0, 0)] * sum(map(len, indices))
        for which, chosen in enumerate(indices):
            for at, index in enumerate(chosen):
                places[index] = (which, at)
        return cls(topic, ranges, places)

    def __len__(self) -> int:
        return self._begins[-1]

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | Sequence[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._places is not None:
            which, at = self._places[index]
        else:
            which = bisect_right(self._begins, index) - 1
            at = index - self._begins[which]
        partition, first, _ = self.ranges[which]
        return Receipt(self.topic, partition, first + at)

    def __repr__(self) -> str:
        return f"<Receipts of {len(self)} messages in {self.topic}>"
