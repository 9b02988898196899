"""When failed messages are due: never early, late by a small part of the delay, and never twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.schedule import Schedule

entries = st.dictionaries(st.integers(0, 1 << 40), st.tuples(st.floats(0, 1e6), st.floats(0.000_001, 90_000)), max_size=30)


@given(entries)
def test_nothing_is_early_and_nothing_is_late(added: dict[int, tuple[float, float]]) -> None:
    """At its bucket's time each is due, within 1/32 of its delay, or a millisecond where that is longer."""
    schedule = Schedule()
    for offset, (now, delay) in added.items():
        schedule.add(offset, now, delay)
    assert set(schedule.offsets) == set(added)
    times = {offset: due for due, waiting in schedule.by_time() for offset in waiting}
    assert set(times) == set(added)
    seen: set[int] = set()
    while (at := schedule.next_due()) is not None:
        before = schedule.due(at - 1e-6)
        assert before is None
        found = set(schedule.due(at) or ())
        assert not found & seen
        seen |= found
        for offset in found:
            now, delay = added[offset]
            assert times[offset] == at
            assert at >= now + delay - 1e-9
            assert at <= now + delay + max(0.001, delay / 32) + 1e-6
    assert seen == set(added)
    assert not schedule.offsets


@given(entries, st.data())
def test_what_was_taken_out_does_not_come(added: dict[int, tuple[float, float]], data: st.DataObject) -> None:
    schedule = Schedule()
    for offset, (now, delay) in added.items():
        schedule.add(offset, now, delay)
    gone = data.draw(st.sets(st.sampled_from(sorted(added)))) if added else set()
    for offset in gone:
        schedule.discard(offset)
    found: set[int] = set()
    while (at := schedule.next_due()) is not None:
        found |= set(schedule.due(at) or ())
    assert found == set(added) - gone


def test_an_empty_one_and_a_cleared_one() -> None:
    schedule = Schedule()
    assert schedule.due(1e9) is None
    assert schedule.next_due() is None
    schedule.add(3, 10.0, 5.0)
    schedule.clear()
    assert schedule.due(1e9) is None
    assert schedule.next_due() is None
    assert not schedule.offsets


def test_messages_that_failed_together_share_a_bucket() -> None:
    """A million of them must not take a million entries."""
    schedule = Schedule()
    for offset in range(10_000):
        schedule.add(offset, 1_000.0 + offset / 10_000, 60.0)
    assert len(schedule._buckets) <= 3
