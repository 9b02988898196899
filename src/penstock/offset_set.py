"""
A set of offsets, as a compressed bitmap.

`pyroaring.BitMap64` leaks memory in two cases that are common here: iterating over an empty bitmap, and asking for the first offset
from a point after which there is none, lose the iterator's 224 bytes each (up to version 1.2.0 at least). Everything that keeps offsets
uses this class instead, and ruff refuses the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64  # noqa: TID251 - this is the class that makes it safe

if TYPE_CHECKING:
    from collections.abc import Iterator


class OffsetSet(BitMap64):
    """A `BitMap64` that never makes an iterator with nothing to return. Operators and methods return this class too."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        return super().__iter__() if self else iter(())

    def iter_equal_or_larger(self, val: int) -> Iterator[int]:
        """Iterate over the offsets from *val* on."""
        return super().iter_equal_or_larger(val) if self and val <= self.max() else iter(())

    def next_set_bit(self, value: int) -> int:
        """Return the first offset from *value* on; raise `ValueError` if there is none."""
        for offset in self.iter_equal_or_larger(value):
            return offset
        raise ValueError("No value larger or equal to specified value.")
