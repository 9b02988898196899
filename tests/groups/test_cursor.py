"""A cursor against plain sets: what is finished, what is open, and where the group stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.cursor import Cursor
from penstock.groups.failures import Failure
from penstock.offset_set import OffsetSet

FAILURE = Failure(1, 2, 3, "")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.integers(0, 40), st.integers(1, 8)),
        st.tuples(st.just("finish"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("finish_all"), st.sets(st.integers(0, 60), max_size=6), st.just(0)),
        st.tuples(st.just("below"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("suspect"), st.integers(0, 40), st.just(0)),
    ),
    max_size=25,
)


@given(st.integers(0, 5), steps)
def test_a_cursor_is_a_set_of_open_offsets(start: int, taken: list) -> None:
    """`open` and `scan` say the same as the plain set, and nothing is anywhere that is not open."""
    cursor = Cursor(0, start)
    scan, unfinished, generation = start, set(), 0
    for kind, value, more in taken:
        if kind == "lease":
            # Leasing goes on at the scan, or repeats something below it.
            begin = min(value, scan)
            cursor.lease_range(begin, begin + more)
            unfinished |= set(range(scan, begin + more))
            scan = max(scan, begin + more)
        elif kind == "finish":
            if value < scan:
                cursor.finish(value)
                cursor.ready.discard(value)
                cursor.schedule.discard(value)
                unfinished.discard(value)
        elif kind == "finish_all":
            cursor.finish_all(OffsetSet(value))
            if value:
                unfinished |= set(range(scan, max(value) + 1))
                scan = max(scan, max(value) + 1)
            unfinished -= value
        elif kind == "below":
            cursor.finish_below(value)
            unfinished = {offset for offset in unfinished if offset >= value}
            scan = max(scan, value)
        elif kind == "move":
            generation += 1
            cursor.move_to(value, generation)
            scan, unfinished = value, set()
        elif kind == "cut":
            lost = cursor.cut_at(value)
            assert lost == max(0, scan - value)
            scan = min(scan, value)
            unfinished = {offset for offset in unfinished if offset < value}
        elif value in unfinished:
            if kind == "fail":
                cursor.failures[value] = FAILURE
                cursor.schedule.add(value, 0.0, 5.0)
            else:
                cursor.suspects.add(value)
                cursor.ready.add(value)
        assert cursor.scan == scan
        assert set(cursor.open) == unfinished
        assert cursor.next_offset == min(unfinished, default=scan)
        assert cursor.generation == generation
        for elsewhere in (cursor.ready, cursor.schedule.offsets, cursor.moving, cursor.suspects, cursor.failures.offsets):
            assert set(elsewhere) <= unfinished


def test_offset_zero_is_an_offset() -> None:
    """I13: nothing is taken for "none"."""
    cursor = Cursor(0, 0)
    cursor.lease_range(0, 1)
    assert (cursor.next_offset, cursor.scan) == (0, 1)
    cursor.finish_all(OffsetSet([0]))
    assert (cursor.next_offset, cursor.scan, len(cursor.open)) == (1, 1, 0)


def test_what_is_acked_beyond_the_scan_leaves_what_lies_before_it_open() -> None:
    """The record of the lease came too late for the crash, the ack did not."""
    cursor = Cursor(0, 3)
    cursor.finish_all(OffsetSet([6]))
    assert (list(cursor.open), cursor.scan, cursor.next_offset) == ([3, 4, 5], 7, 3)
