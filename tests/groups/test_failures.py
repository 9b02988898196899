"""Failures by offset against a plain dictionary, and how little memory they take."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.failures import Failure, Failures
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    import random

offsets = st.one_of(st.integers(0, 200), st.integers((1 << 62) - 70, 1 << 62))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), offsets, st.integers(1, 3)),
        st.tuples(st.just("alike"), offsets, st.integers(1, 130)),
        st.tuples(st.just("discard"), offsets, st.just(0)),
        st.tuples(st.just("range"), offsets, st.integers(0, 200)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


def _failure(count: int) -> Failure:
    return Failure(count, 1, 2, "why")  # a new object each time: alike is what is equal


@given(steps)
def test_failures_are_a_dictionary(taken: list[tuple[str, int, int]]) -> None:
    failures, expected = Failures(), dict[int, Failure]()
    for kind, offset, number in taken:
        if kind == "set":
            failures[offset] = expected[offset] = _failure(number)
        elif kind == "alike":
            for at in range(offset, offset + number):
                failures[at] = expected[at] = _failure(1)
        elif kind == "discard":
            failures.discard(offset)
            expected.pop(offset, None)
        elif kind == "range":
            failures.remove_range(offset, offset + number)
            expected = {at: failure for at, failure in expected.items() if not offset <= at < offset + number}
        else:
            failures.clear()
            expected = {}
        assert list(failures.items()) == sorted(expected.items())
        assert len(failures) == len(expected)
        assert set(failures.offsets) == set(expected)
        for among in (failures.offsets, OffsetSet(list(failures.offsets)[::2])):
            by_failure: dict[Failure, set[int]] = {}
            for at in among:
                by_failure.setdefault(expected[at], set()).add(at)
            assert {failure: set(alike) for failure, alike in failures.alike(among).items()} == by_failure
        for at in (offset - 1, offset, offset + 1, offset + number):
            if at >= 0:
                assert failures.get(at) == expected.get(at)
        # What is not there costs nothing, and one alone takes no list.
        assert failures._blocks.keys() == {at >> 6 for at in expected}
        assert all(isinstance(block, Failure) or len(block) > 1 for block in failures._blocks.values())


def _bytes_each(kinds: list[Failure], count: int, rng: random.Random) -> float:
    """What each of *count* neighbours takes, each with one of *kinds*."""
    failures = Failures()
    tracemalloc.start()
    try:
        for offset in range(1 << 40, (1 << 40) + count):
            failures[offset] = rng.choice(kinds)
        return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


def test_each_of_many_takes_a_few_bytes(rng: random.Random) -> None:
    """A dictionary would take a hundred; those that are not alike take a pointer more."""
    assert _bytes_each([_failure(1)], 20_000, rng) < 5
    assert _bytes_each([_failure(count) for count in range(1, 5)], 20_000, rng) < 20


def test_those_that_failed_again_one_after_the_other_are_alike_again() -> None:
    failures = Failures()
    for count in (1, 2):
        for offset in range(1_000):
            failures[offset] = _failure(count)
    assert set(failures._blocks.values()) == {_failure(2)}


def test_one_that_failed_again_takes_no_list_for_itself() -> None:
    failures = Failures()
    failures[70] = _failure(1)
    failures[70] = _failure(2)
    assert failures._blocks == {1: _failure(2)}
