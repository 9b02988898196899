"""The clock of tests."""

from __future__ import annotations

import pytest

from penstock.testing import FakeClock


def test_time_stands_still_until_it_is_moved() -> None:
    """Asking does not advance."""
    clock = FakeClock()
    assert clock.now_us() == clock.now_us()
    assert clock.monotonic() == clock.monotonic()


def test_advance_moves_both_clocks_by_the_same_time() -> None:
    """A second is a second on each."""
    clock = FakeClock(now_us=5, monotonic=10.0)
    clock.advance(1.5)
    assert clock.now_us() == 1_500_005
    assert clock.monotonic() == 11.5


def test_many_small_steps_add_up_exactly() -> None:
    """No rounding error of floating point adds up."""
    clock = FakeClock(now_us=0, monotonic=0.0)
    for _ in range(1000):
        clock.advance(0.001)
    assert clock.now_us() == 1_000_000
    assert clock.monotonic() == 1.0


def test_the_wall_clock_jumps_either_way_and_the_other_does_not() -> None:
    """What NTP or an operator does to the wall clock leaves timeouts alone."""
    clock = FakeClock(now_us=10_000_000, monotonic=1.0)
    clock.jump_wall(-4)
    assert clock.now_us() == 6_000_000
    clock.jump_wall(0.5)
    assert clock.now_us() == 6_500_000
    assert clock.monotonic() == 1.0


def test_time_does_not_go_back() -> None:
    """Only the wall clock may, and by another method."""
    clock = FakeClock()
    before = clock.now_us(), clock.monotonic()
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    assert (clock.now_us(), clock.monotonic()) == before
