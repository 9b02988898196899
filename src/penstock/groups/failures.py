"""
How often each message of a partition failed, in little memory.

A dictionary with an entry for each message takes a hundred bytes of them, and after an outage a million messages may wait. Those that
lie side by side mostly failed together and alike. So the offsets are a bitmap, and for each block of them there is one failure if all
in it are alike, otherwise a list in the order of offsets.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BITS = 6
_BLOCK = 1 << _BLOCK_BITS
"""Offsets in a block. A list of so many is changed as quickly as a dictionary is."""


class Failure(NamedTuple):
    """How often a message failed, when first and last, and why last."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    first_s: int
    last_s: int
    reason: str
    condemned: bool = False
    """Whether it is to become a dead letter, whatever the count."""


class Failures:
    """Failures by offset. Not locked: its cursor's group is."""

    __slots__ = ("_blocks", "offsets")

    def __init__(self) -> None:
        self.offsets = OffsetSet()
        """Those that have failed; to be looked at, and not to be changed."""
        self._blocks: dict[int, Failure | list[Failure]] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def get(self, offset: int) -> Failure | None:
        """How *offset* failed, if it did."""
        if offset not in self.offsets:
            return None
        block = self._blocks[offset >> _BLOCK_BITS]
        return block if isinstance(block, Failure) else block[self._place(offset)]

    def __setitem__(self, offset: int, failure: Failure) -> None:
        number = offset >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            self._blocks[number] = failure
        elif not isinstance(block, Failure):
            self._put(block, offset, failure)
        elif block != failure:
            several = [block] * self._count(number)
            self._blocks[number] = several
            self._put(several, offset, failure)
        self.offsets.add(offset)

    def _put(self, block: list[Failure], offset: int, failure: Failure) -> None:
        place = self._place(offset)
        if offset in self.offsets:
            block[place] = failure
        else:
            block.insert(place, failure)
        if block[0] == failure == block[-1] and block.count(failure) == len(block):
            self._blocks[offset >> _BLOCK_BITS] = failure

    def discard(self, offset: int) -> None:
        """Forget how *offset* failed, if it did."""
        if offset not in self.offsets:
            return
        number = offset >> _BLOCK_BITS
        block = self._blocks[number]
        if not isinstance(block, Failure):
            del block[self._place(offset)]
            if len(block) == 1:
                self._blocks[number] = block[0]
        elif self._count(number) == 1:
            del self._blocks[number]
        self.offsets.discard(offset)

    def remove_range(self, start: int, end: int) -> None:
        """Forget offsets [start, end)."""
        first, last = start >> _BLOCK_BITS, (end - 1) >> _BLOCK_BITS
        for number in {first, last} & self._blocks.keys():
            begin = number << _BLOCK_BITS
            for offset in range(max(start, begin), min(end, begin + _BLOCK)):
                self.discard(offset)
        for number in [number for number in self._blocks if first < number < last]:
            del self._blocks[number]
        self.offsets.remove_range(start, end)

    def clear(self) -> None:
        """Forget all."""
        self._blocks.clear()
        self.offsets.clear()

    def alike(self, among: OffsetSet) -> dict[Failure, OffsetSet]:
        """Those *among* some that have failed, by how they failed; a step for each block and not for each of them."""
        whole: dict[Failure, OffsetSet] = {}
        single: dict[Failure, list[int]] = {}
        at = among.min() if among else None
        while at is not None:
            number = at >> _BLOCK_BITS
            begin, block = number << _BLOCK_BITS, self._blocks[number]
            if isinstance(block, Failure):
                ranges = whole.get(block)
                if ranges is None:
                    ranges = whole[block] = OffsetSet()
                ranges.add_range(begin, begin + _BLOCK)
            else:
                for offset in takewhile(lambda one, end=begin + _BLOCK: one < end, among.iter_equal_or_larger(at)):  # type: ignore[misc]
                    single.setdefault(block[self._place(offset)], []).append(offset)
            at = next(among.iter_equal_or_larger(begin + _BLOCK), None)
        found = {failure: ranges & among for failure, ranges in whole.items()}
        for failure, offsets in single.items():
            found[failure] = found.get(failure, OffsetSet()) | OffsetSet(offsets)
        return found

    def items(self) -> Iterator[tuple[int, Failure]]:
        """All of them, in the order of offsets."""
        number, place = -1, 0
        block: Failure | list[Failure] = []
        for offset in self.offsets:
            if offset >> _BLOCK_BITS != number:
                number, place = offset >> _BLOCK_BITS, 0
                block = self._blocks[number]
            yield offset, block if isinstance(block, Failure) else block[place]
            place += 1

    def _place(self, offset: int) -> int:
        """The place of *offset* in the list of its block."""
        return self.offsets.range_cardinality(offset & -_BLOCK, offset)

    def _count(self, number: int) -> int:
        return self.offsets.range_cardinality(number << _BLOCK_BITS, (number + 1) << _BLOCK_BITS)
