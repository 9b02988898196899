"""Seeking: the only way back, to an offset or a time, and what it voids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OffsetOutOfRange
from tests.conformance.helpers import drain, numbered, offsets, one, position

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_a_seek_goes_to_an_offset_or_a_time_and_is_remembered(backend: Backend) -> None:
    """To an offset, to a time, not beyond the end; the place persists."""
    store = backend.open()
    store.create_topic("t", segment_messages=7)
    times = []
    for value in numbered(20):
        times.append(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=backend.clock.now_us()))
        store.publish("t", value)
        backend.advance(60)
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
        store.seek("t", "g", 12)
        assert offsets(drain(consumer)) == list(range(12, 20))
        store.seek("t", "g", times[5])
        assert offsets(drain(consumer, 3)) == [5, 6, 7]
        with pytest.raises(OffsetOutOfRange):
            store.seek("t", "g", 21)
        consumer.flush()
    if backend.keeps_data:
        store = backend.kill()
    assert position(store, "t", "g") == 8
    with store.subscribe("t", "g") as consumer:
        assert offsets(drain(consumer)) == list(range(8, 20))


def test_a_seek_back_keeps_priorities_and_brings_back_nothing_that_expired(backend: Backend) -> None:
    """What was done comes again, the most urgent first; what has expired meanwhile does not, and is not in the way."""
    store = backend.open()
    store.create_topic("t", priorities=True, aging=3_600)
    lanes = ["low", "high", "medium", "high", "low", "medium"]
    for number, lane in enumerate(lanes):
        store.publish("t", b"%d" % number, priority=lane, ttl=60 if number in (1, 4) else None)
    first = [1, 3, 2, 5, 0, 4]
    with store.subscribe("t", "g") as consumer:
        taken = [one(consumer) for _ in lanes]
        assert offsets(taken) == first
        consumer.ack(taken, wait=True)
        store.seek("t", "g", "earliest")
        again = [one(consumer) for _ in lanes]
        assert offsets(again) == first
        consumer.ack(again, wait=True)
        backend.advance(61)
        store.seek("t", "g", "earliest")
    if backend.keeps_data:
        store = backend.kill()
    with store.subscribe("t", "g") as consumer:
        left = []
        while (message := consumer.get(timeout=0)) is not None:
            left.append(message.offset)
            message.ack(wait=True)
        assert left == [3, 2, 5, 0]
    assert store.stats().topics["t"].groups["g"].lag == 0


def test_a_commit_never_rewinds_and_a_seek_does(store: Store) -> None:
    """Only seek does."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        consumer.commit(8)
        consumer.commit(2)
        assert position(store, "t", "g") == 8
        store.seek("t", "g", 2)
        assert position(store, "t", "g") == 2


def test_what_a_seek_skipped_does_not_come_back(backend: Backend) -> None:
    """Nor what was taken in batches before it."""
    store = backend.open()
    store.publish_many("t", numbered(30))
    with store.subscribe("t", "g", lease=10) as consumer:
        consumer.ack(consumer.get_many(5, timeout=0))
        consumer.get_many(5, timeout=0)
        store.seek("t", "g", 20)
        assert offsets(drain(consumer)) == list(range(20, 30))
        backend.advance(3_600)
        assert drain(consumer) == []
