"""Messages that are due later, expire, or are urgent, as groups deliver them over every way to an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadSetting
from tests.conformance.helpers import PATIENCE, drain, group_stats, numbered, offsets, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

LOW, MEDIUM, HIGH = "low", "medium", "high"
MIXED = [LOW, HIGH, MEDIUM, LOW, HIGH, MEDIUM]


def test_a_delayed_message_is_overtaken_and_comes_when_it_is_due(backend: Backend, store: Store) -> None:
    store.create_topic("t")
    consumer = store.subscribe("t", "g")
    store.publish("t", b"later", delay=10)
    store.publish("t", b"now")
    assert values(drain(consumer)) == [b"now"]
    backend.advance(9)
    assert consumer.get(timeout=0) is None
    backend.advance(1)
    assert values(drain(consumer)) == [b"later"]


def test_what_is_due_comes_in_the_order_of_due_times(backend: Backend, store: Store) -> None:
    store.create_topic("t")
    consumer = store.subscribe("t", "g")
    store.publish_many("t", numbered(4), delays=[5, 3, 9, 1])
    assert consumer.get(timeout=0) is None
    backend.advance(20)
    assert offsets(consumer.get_many(4, timeout=0)) == [3, 1, 0, 2]


def test_what_has_expired_is_not_delivered_and_counted(backend: Backend, store: Store) -> None:
    store.create_topic("t", ttl=50)
    consumer = store.subscribe("t", "g")
    store.publish_many("t", numbered(4), ttls=[5, None, 100, 5])
    backend.advance(6)
    assert offsets(drain(consumer)) == [1, 2]
    assert (group_stats(store).expired, group_stats(store).lag) == (2, 0)
    store.publish_many("t", numbered(2), ttls=[None, 60])
    backend.advance(55)
    assert offsets(drain(consumer)) == [5]


def test_what_has_expired_becomes_a_dead_letter_where_the_topic_says_so(backend: Backend, store: Store) -> None:
    store.create_topic("t", expired="dead_letter")
    consumer = store.subscribe("t", "g")
    store.publish_many("t", numbered(2), ttls=[5, None])
    backend.advance(6)
    assert offsets(take(consumer)) == [1]
    [letter] = store.dead_letters("t").list()
    assert (letter.value, letter.headers["x-dlq-reason"]) == (b"0", b"expired")


def test_high_comes_first_one_by_one_and_many_at_once(store: Store) -> None:
    store.create_topic("t", priorities=True)
    consumer, other = store.subscribe("t", "g"), store.subscribe("t", "other")
    store.publish_many("t", numbered(6), priorities=MIXED)
    assert offsets(drain(consumer)) == [1, 4, 2, 5, 0, 3]
    assert offsets(other.get_many(4, timeout=0)) == [1, 4, 2, 5]
    store.publish("t", b"urgent", priority=HIGH)
    assert values(other.get_many(9, timeout=0)) == [b"urgent", b"0", b"3"]


def test_a_later_one_does_not_wait_behind_what_was_fetched_ahead(store: Store) -> None:
    store.create_topic("t", priorities=True)
    consumer = store.subscribe("t", "g", prefetch=100)
    store.publish_many("t", numbered(60))
    messages = iter(consumer)
    next(messages).ack()
    store.publish("t", b"urgent", priority=HIGH)
    before = 0
    for message in messages:
        message.ack()
        if message.value == b"urgent":
            break
        before += 1
    assert before <= 8


def test_who_waits_too_long_is_served_as_the_next_lane_up(backend: Backend, store: Store) -> None:
    store.create_topic("t", priorities=True)
    consumer = store.subscribe("t", "g")
    store.publish("t", b"0 low")
    backend.advance(31)
    store.publish("t", b"1 medium", priority=MEDIUM)
    store.publish("t", b"2 high", priority=HIGH)
    assert offsets(drain(consumer)) == [2, 0, 1]


def test_an_ordered_group_of_a_topic_with_priorities_is_refused(store: Store) -> None:
    store.create_topic("t", priorities=True)
    with pytest.raises(BadSetting, match="priorities"):
        store.subscribe("t", "g", ordered=True)


def test_delay_lane_expiry_failure_and_restart_across_segments(lasting: Backend) -> None:
    with lasting.open() as store:
        store.create_topic("t", priorities=True, segment_messages=8)
        consumer = store.subscribe("t", "g", lease=900)
        for number in range(5):
            store.publish_many(
                "t", numbered(4, 4 * number), priorities=[LOW, HIGH, MEDIUM, HIGH], delays=[None, 10, None, 20],
                ttls=[None, 15, 5, None],
            )  # fmt: skip
        first = consumer.get_many(3, timeout=0)
        assert offsets(first) == [2, 6, 10]
        first[0].nack(delay=8)
        first[1].ack()
    lasting.advance(10)
    with lasting.open() as store:
        consumer = store.subscribe("t", "g", lease=900)
        due = consumer.get_many(5, timeout=0)
        assert offsets(due) == [1, 5, 9, 13, 17], "due by now, and high; what is medium has expired"
        consumer.ack(due)
    with lasting.open() as store:
        consumer = store.subscribe("t", "g", lease=900)
        assert offsets(drain(consumer)) == [0, 4, 8, 12, 16]
        lasting.advance(10)
        assert offsets(drain(consumer)) == [3, 7, 11, 15, 19]
        assert group_stats(store).lag == 0


def test_who_waits_is_woken_when_a_message_is_due(live_store: Store) -> None:
    live_store.create_topic("t")
    consumer = live_store.subscribe("t", "g")
    live_store.publish("t", b"soon", delay=0.2)
    message = consumer.get(timeout=PATIENCE)
    assert message is not None
    assert message.value == b"soon"
