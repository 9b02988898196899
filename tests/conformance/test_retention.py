"""Retention: what it takes, what it leaves to groups that are behind, and how groups go on above what is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import OffsetOutOfRange
from tests.conformance.helpers import drain, numbered, offsets, one, position, stored, take, values

if TYPE_CHECKING:
    from tests.conformance.backends import Backend


def test_retention_takes_unread_messages_from_a_stream_and_not_from_a_queue(lasting: Backend) -> None:
    """Below the floor is out of range; a fresh group begins at the floor and its acks stay; unread segments are kept in queue mode."""
    store = lasting.open()
    for topic, retain in (("stream", "always"), ("queue", "until_acked")):
        store.create_topic(topic, segment_messages=10, retention_age=60, retain=retain)
        for value in numbered(25):
            store.publish(topic, value)
    for topic in ("stream", "queue"):
        with store.subscribe(topic, "strict", reset="fail") as consumer:
            consumer.ack(take(consumer, 3), wait=True)
    lasting.advance(3_600)
    for topic in ("stream", "queue"):
        store.publish(topic, b"25")
    store.retain()
    # Queue mode: the group is in the first segment, so nothing goes.
    assert stored(store, "queue") == numbered(26)
    # Stream mode: the sealed segments are gone, the active one is not.
    floor = next(iter(store.read("stream"))).offset
    assert floor == 20
    with pytest.raises(OffsetOutOfRange) as caught, store.subscribe("stream", "strict", reset="fail") as consumer:
        consumer.get(timeout=0)
    assert caught.value.first == floor
    with store.subscribe("stream", "fresh") as consumer:
        one(consumer).ack(wait=True)
    store = lasting.kill()
    assert position(store, "stream", "fresh") == floor + 1


def test_a_delayed_message_keeps_its_segment(lasting: Backend) -> None:
    """In queue mode: what is acked around it goes only when it was delivered; it comes in its time, also after a restart."""
    store = lasting.open()
    store.create_topic("t", segment_messages=10, retention_age=60)
    for number in range(35):
        store.publish("t", b"%d" % number, delay=10_000 if number == 14 else None)
    with store.subscribe("t", "g") as consumer:
        assert len(drain(consumer)) == 34
        consumer.flush()
    lasting.advance(3_600)
    store.publish("t", b"35")
    store.retain()
    assert next(iter(store.read("t"))).offset == 10
    store = lasting.kill()
    lasting.advance(10_000)
    store.retain()
    with store.subscribe("t", "g") as consumer:
        assert sorted(offsets(drain(consumer))) == [14, 35]
        consumer.flush()
    store.retain()
    assert offsets(store.read("t")) == []


def test_offsets_stay_when_older_ones_go(backend: Backend) -> None:
    """Retention removes the first segments: what is left is still found under its own offset."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60, retain="always")
    for value in numbered(45):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"45")
    store.retain("t")
    found = {message.offset: message.value for message in store.read("t")}
    assert min(found) > 0
    assert found == {offset: b"%d" % offset for offset in range(min(found), 46)}
    with store.subscribe("t", "g") as consumer:
        assert {message.offset: message.value for message in drain(consumer)} == found


def test_retention_keeps_what_nobody_has_read(backend: Backend) -> None:
    """Sixty messages that are older than the topic keeps them, and a group that has read none: all are delivered."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60)
    store.subscribe("t", "g").close()
    for value in numbered(60):
        store.publish("t", value)
    backend.advance(86_400)
    store.retain("t")
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == numbered(60)
        consumer.flush()
    store.retain("t")
    assert len(stored(store, "t")) < 60


def test_a_topic_without_retention_keeps_everything(backend: Backend) -> None:
    """No hidden default takes its messages."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=0, retain="always")
    for value in numbered(50):
        store.publish("t", value)
    backend.advance(20 * 365 * 86_400)
    assert store.retain().segments == 0
    assert stored(store, "t") == numbered(50)


def test_a_fresh_group_behind_the_floor_makes_durable_progress(lasting: Backend) -> None:
    """Its first ack is of an offset that is not 0, and it stays."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    for value in numbered(12):
        store.publish("t", value)
    lasting.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    floor = next(iter(store.read("t"))).offset
    assert floor > 0
    for turn in range(2):
        with store.subscribe("t", "fresh") as consumer:
            message = one(consumer)
            assert message.offset == floor + turn
            message.ack()
        store = lasting.reopen()
        assert position(store, "t", "fresh") == floor + turn + 1


def test_a_consumer_below_the_floor_is_told_each_time(backend: Backend) -> None:
    """It does not hang and does not pass over: the error comes from get, each time."""
    store = backend.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    consumer = store.subscribe("t", "g", reset="fail")
    for value in numbered(12):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    for _ in range(3):
        with pytest.raises(OffsetOutOfRange):
            consumer.get(timeout=0)
    assert position(store, "t", "g") == 0


def test_a_queue_that_is_emptied_does_not_grow_for_ever(backend: Backend) -> None:
    """Published, acked, retained, a hundred times over: what is kept stays small."""
    store = backend.open()
    store.create_topic("t", segment_messages=20, retention_age=60)
    most = 0
    with store.subscribe("t", "g") as consumer:
        for turn in range(100):
            for value in numbered(10, turn * 10):
                store.publish("t", value)
            drain(consumer)
            consumer.flush()
            backend.advance(100)
            store.retain()
            most = max(most, store.stats().topics["t"].messages)
    assert most <= 60
    assert store.publish("t", b"x").offset == 1_000
