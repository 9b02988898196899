"""
Messages that are not to be delivered yet, in the order in which they are due.

A heap of tuples takes more than a hundred bytes for each message, and a million may wait. So they lie in blocks of two arrays, one of due
times and one of offsets: about 13 bytes for each message where offsets lie close together, 17 where they do not. Adding looks for the
block and then for the place in it; a block that is full is split in two. The blocks are in order, and so is each of them, so what is due
is taken off the front of the first one. Nothing is swept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 512
"""A block of this many is full."""
_NEAR = 1 << 32


class _Block:
    """Messages in order; `base` is added to their offsets."""

    __slots__ = ("base", "dues", "offsets")

    def __init__(self, base: int) -> None:
        self.base = base
        self.dues: array[int] = array("q")
        self.offsets: array[int] = array("I")

    def reach(self, low: int, high: int) -> None:
        """Make room for offsets from *low* to *high* that are too far from the others."""
        all_offsets = [self.base + near for near in self.offsets]
        self.base = min([low, *all_offsets])
        spread = max([high, *all_offsets]) - self.base
        self.offsets = array("I" if spread < _NEAR else "Q", [one - self.base for one in all_offsets])

    def split(self) -> _Block:
        """Keep the first half, and return the second."""
        half = len(self.dues) // 2
        behind = _Block(self.base)
        behind.dues, behind.offsets = self.dues[half:], self.offsets[half:]
        # New arrays: one that shrinks keeps its memory.
        self.dues, self.offsets = self.dues[:half], self.offsets[:half]
        return behind


class Delays:
    """Offsets by the time (wall clock, microseconds) at which they are due. Not locked: its cursor's group is."""

    __slots__ = ("_blocks", "_count", "_firsts", "_front", "_last")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []
        """The earliest due time of each block."""
        self._front = 0
        """So many of the first block are gone already."""
        self._count = 0
        self._last = (0, 0)
        """No entry comes after this one."""

    def __len__(self) -> int:
        return self._count

    def add(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add (due time, offset) pairs, quickest if they rise and come behind all others."""
        entries = sorted(entries)
        if not entries:
            return
        blocks, firsts = self._blocks, self._firsts
        if not blocks or entries[0] >= self._last:
            self._append(entries)
            return
        # Those that come behind all others together, and each of the rest in its place.
        behind = bisect_left(entries, self._last)
        self._count += behind
        if self._front:
            self._drop_front()
        at = 0
        for due_us, offset in entries[:behind]:
            at = bisect_right(firsts, due_us, at) - 1  # they rise: what comes next belongs here or behind
            if at < 0:
                at = 0
            elif firsts[at] == due_us:
                at = self._block_for(due_us, offset)
            block = blocks[at]
            dues = block.dues
            place = bisect_left(dues, due_us)
            if place < len(dues) and dues[place] == due_us:
                end = bisect_right(dues, due_us, place)
                place = bisect_left(block.offsets, offset - block.base, place, end)
            if place == 0:
                firsts[at] = due_us
            if not 0 <= offset - block.base < _NEAR:
                block.reach(offset, offset)
            dues.insert(place, due_us)
            block.offsets.insert(place, offset - block.base)
            if len(dues) > BLOCK:
                second = block.split()
                blocks.insert(at + 1, second)
                firsts.insert(at + 1, second.dues[0])
        if behind < len(entries):
            self._append(entries[behind:])

    def _append(self, entries: list[tuple[int, int]]) -> None:
        """The same for those that rise and come behind all others: by whole blocks."""
        self._last = entries[-1]
        blocks = self._blocks
        at = 0
        while at < len(entries):
            block = blocks[-1] if blocks and len(blocks[-1].dues) < BLOCK else None
            some = entries[at : at + BLOCK - (0 if block is None else len(block.dues))]
            offsets = [offset for _, offset in some]
            low, high = min(offsets), max(offsets)
            into = _Block(low) if block is None else block
            if low < into.base or high - into.base >= _NEAR:
                into.reach(low, high)
            base = into.base
            into.dues.fromlist([due_us for due_us, _ in some])
            into.offsets.fromlist([offset - base for offset in offsets])
            if block is None:
                blocks.append(into)
                self._firsts.append(some[0][0])
            self._count += len(some)
            at += len(some)

    def _block_for(self, due_us: int, offset: int) -> int:
        """The number of the block where it belongs."""
        at = max(0, bisect_right(self._firsts, due_us) - 1)
        # Those that are due at the same moment may fill several blocks.
        while at > 0 and self._firsts[at] == due_us and self._first_of(at) > (due_us, offset):
            at -= 1
        return at

    def _first_of(self, at: int) -> tuple[int, int]:
        block = self._blocks[at]
        return block.dues[0], block.base + block.offsets[0]

    def _drop_front(self) -> None:
        """Let go of what was taken out of the first block."""
        block = self._blocks[0]
        block.dues, block.offsets = block.dues[self._front :], block.offsets[self._front :]
        self._front = 0
        self._firsts[0] = block.dues[0]

    def next_due(self) -> int | None:
        """When the next one is due."""
        return self._blocks[0].dues[self._front] if self._blocks else None

    def pop(self, now_us: int) -> tuple[int, int] | None:
        """Take out the one that is due first, as (due time, offset), if it is due at *now_us*."""
        if not self._blocks:
            return None
        block, at = self._blocks[0], self._front
        due_us = block.dues[at]
        if due_us > now_us:
            return None
        self._count -= 1
        if at + 1 < len(block.dues):
            self._front = at + 1
        else:
            del self._blocks[0], self._firsts[0]
            self._front = 0
        return due_us, block.base + block.offsets[at]
