"""The order in which delayed messages are due, and what each of them costs."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

from penstock.groups.delays import BLOCK, Delays

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

FOREVER = 1 << 62


def drained(delays: Delays, now_us: int = FOREVER) -> list[tuple[int, int]]:
    found = []
    while (entry := delays.pop(now_us)) is not None:
        found.append(entry)
    return found


def test_they_come_in_the_order_of_due_times_and_then_of_offsets() -> None:
    delays = Delays()
    delays.add([(30, 1), (10, 7), (10, 2), (20, 3)])
    assert delays.next_due() == 10
    assert drained(delays, now_us=20) == [(10, 2), (10, 7), (20, 3)]
    assert (delays.next_due(), len(delays)) == (30, 1)
    assert drained(delays) == [(30, 1)]
    assert (delays.next_due(), len(delays)) == (None, 0)


def test_any_history_is_like_a_sorted_list(rng: random.Random) -> None:
    for spread in (3, 1_000, 10**12):
        delays, expected = Delays(), []
        for offset in range(3 * BLOCK):
            entry = (rng.randrange(spread), rng.choice([offset, offset << 40]))
            delays.add([entry])
            expected.append(entry)
            if rng.random() < 0.3:
                expected.sort()
                assert delays.pop(FOREVER) == expected.pop(0)
            assert len(delays) == len(expected)
        assert drained(delays) == sorted(expected)


def test_any_history_of_many_at_once_is_like_a_sorted_list(rng: random.Random) -> None:
    """As a restart adds them: some behind all others, some among them, offsets near and far, in order or not."""
    for spread in (3, 1_000, 10**12):
        delays = Delays()
        expected: list[tuple[int, int]] = []
        for turn in range(20):
            later = rng.choice([0, turn * spread])
            entries = [
                (later + rng.randrange(spread), (turn << 10) + at << rng.choice([0, 0, 0, 24]))
                for at in range(rng.choice([1, 5, 700]))
            ]
            delays.add(entries)
            expected = sorted([*expected, *entries])
            for _ in range(rng.choice([0, 3, 300])):
                assert delays.pop(FOREVER) == (expected.pop(0) if expected else None)
            assert len(delays) == len(expected)
            assert delays.next_due() == (expected[0][0] if expected else None)
        assert drained(delays) == expected


def test_those_that_come_behind_all_others_fill_whole_blocks() -> None:
    """They are not put in one by one, and no block is split for them."""
    delays = Delays()
    for first in range(0, 10_000, 1_000):
        delays.add([(due, due) for due in range(first, first + 1_000)])
    assert [len(block.dues) for block in delays._blocks] == [BLOCK] * (10_000 // BLOCK) + [10_000 % BLOCK]


def test_what_is_added_before_the_first_one_comes_first() -> None:
    delays = Delays()
    delays.add([(due, due) for due in range(100, 100 + 2 * BLOCK)])
    assert delays.pop(FOREVER) == (100, 100)
    delays.add([(5, 9_999)])
    assert delays.pop(FOREVER) == (5, 9_999)
    assert delays.pop(FOREVER) == (101, 101)


def test_many_that_are_due_at_one_moment_come_by_offset(rng: random.Random) -> None:
    delays, offsets = Delays(), list(range(4 * BLOCK))
    rng.shuffle(offsets)
    for offset in offsets:
        delays.add([(7, offset)])
    assert drained(delays) == [(7, offset) for offset in range(4 * BLOCK)]


def test_each_takes_no_more_than_24_bytes(rng: random.Random) -> None:
    count = 8_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        delays = Delays()
        for offset in range(count):
            delays.add([(rng.randrange(3_600_000_000), offset)])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / count <= 24


class _Counted(list[int]):
    """An array of a block that counts what is read of it."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        _Counted.reads += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nothing is swept")


class _CountedBlocks(list[Any]):
    """The blocks, of which only single ones may be looked at."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("nothing is swept")


def test_looking_and_taking_read_the_same_few_numbers_however_many_wait(rng: random.Random) -> None:
    """Counted, not timed: who asks reads one number, who is given one reads two, of a thousand that wait and of twenty thousand."""
    for count in (1_000, 20_000):
        delays = Delays()
        delays.add(sorted((rng.randrange(1_000, 3_600_000_000), offset) for offset in range(count)))
        delays._blocks = _CountedBlocks(delays._blocks)
        for at in range(len(delays._blocks)):
            block = delays._blocks[at]
            block.dues, block.offsets = _Counted(block.dues), _Counted(block.offsets)
        _Counted.reads = 0
        for _ in range(100):
            assert delays.pop(999) is None
            assert delays.next_due() is not None
        assert _Counted.reads == 200
        _Counted.reads = 0
        fired = drained(delays)
        assert fired == sorted(fired)
        assert len(fired) == count
        assert _Counted.reads == 2 * count
