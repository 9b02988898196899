"""A set of offsets leaks nothing, whatever is asked of it, and what is made of it is one too."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest

from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TIMES = 10_000
LEAK_BYTES = 500_000
"""One iterator leaked each time would be 2.2 MB."""


class Mallinfo(ctypes.Structure):
    """What glibc says of its heaps."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _used_bytes() -> int:
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    return int(mallinfo().uordblks)


def _next_set_bit(offsets: OffsetSet, value: int) -> int | None:
    try:
        return offsets.next_set_bit(value)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("offsets", "ask", "answer"),
    [
        ([], list, []),
        ([], sorted, []),
        ([], lambda offsets: next(iter(offsets), None), None),
        ([], lambda offsets: next(offsets.iter_equal_or_larger(0), None), None),
        ([], lambda offsets: _next_set_bit(offsets, 0), None),
        ([3, 5], lambda offsets: next(iter(offsets)), 3),
        ([3, 5], lambda offsets: next(offsets.iter_equal_or_larger(4)), 5),
        ([3, 5], lambda offsets: list(offsets.iter_equal_or_larger(5)), [5]),
        ([3, 5], lambda offsets: next(offsets.iter_equal_or_larger(6), None), None),
        ([3, 5], lambda offsets: next(offsets.iter_equal_or_larger(1 << 40), None), None),
        ([3, 5], lambda offsets: _next_set_bit(offsets, 4), 5),
        ([3, 5], lambda offsets: _next_set_bit(offsets, 6), None),
    ],
)
def test_asking_leaks_nothing(offsets: list[int], ask: Callable[[OffsetSet], Any], answer: Any) -> None:
    asked = OffsetSet(offsets)
    assert ask(asked) == answer
    before = _used_bytes()
    for _ in range(TIMES):
        ask(asked)
    assert _used_bytes() - before < LEAK_BYTES


@pytest.mark.parametrize(
    "make",
    [
        lambda one, other: one | other,
        lambda one, other: one & other,
        lambda one, other: one - other,
        lambda one, other: one ^ other,
        lambda one, other: one[:1],
        lambda one, other: one.copy(),
        lambda one, other: OffsetSet.deserialize(one.serialize()),
    ],
)
def test_what_is_made_of_offset_sets_is_one(make: Callable[[OffsetSet, OffsetSet], Iterable[int]]) -> None:
    made = make(OffsetSet([1, 2]), OffsetSet([2, 3]))
    assert type(made) is OffsetSet
    made |= OffsetSet([9])
    assert type(made) is OffsetSet
    assert 9 in made
