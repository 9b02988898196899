"""Prefetch and pausing: how much a consumer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import Closed
from tests.conformance.helpers import LATE, drain, group_stats, numbered, offsets, one, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_prefetch_bounds_what_is_in_flight(store: Store) -> None:
    """Four at most; one ack releases exactly one."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        held = take(consumer)
        assert offsets(held) == [0, 1, 2, 3]
        for number in range(4, 20):
            held.pop(0).ack()
            released = take(consumer)
            assert offsets(released) == [number]
            held += released
        assert consumer.in_flight == 4


def test_get_many_keeps_to_the_prefetch(store: Store) -> None:
    """Asking for more does not make the window wider."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        first = consumer.get_many(100, timeout=0)
        assert len(first) == 4
        assert consumer.get_many(100, timeout=0) == []
        consumer.ack(first[:3])
        assert len(consumer.get_many(100, timeout=0)) == 3


def test_a_nack_or_a_reject_releases_one_too(store: Store) -> None:
    """Whatever way a message is finished, its place is free."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=2) as consumer:
        first, second = take(consumer)
        first.nack(delay=1_000)
        assert offsets(take(consumer)) == [2]
        second.reject()
        assert offsets(take(consumer)) == [3]
        assert consumer.in_flight == 2


def test_an_expired_lease_releases_one_too(backend: Backend) -> None:
    """The member that let it expire is free for others, and for the same message again."""
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=2, lease=10) as consumer:
        assert len(take(consumer)) == 2
        backend.advance(10 * LATE)
        assert len(take(consumer)) == 2


def test_each_member_has_a_window_of_its_own(store: Store) -> None:
    """Two members with three each hold six together."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", prefetch=3) as first, store.subscribe("t", "g", prefetch=3) as second:
        assert len(take(first)) == 3
        assert len(take(second)) == 3
        assert group_stats(store).in_flight == 6


def test_prefetch_counts_bytes(store: Store) -> None:
    """Values of a thousand bytes and room for three and a half of them: no more than four are out."""
    store.publish_many("t", [bytes(1_000)] * 20)
    with store.subscribe("t", "g", prefetch_bytes=3_500) as consumer:
        held = take(consumer)
        assert 3 <= len(held) <= 4
        held.pop().ack()
        assert len(take(consumer)) == 1


def test_a_message_larger_than_the_window_is_delivered_alone(store: Store) -> None:
    """Else it would never come."""
    store.publish_many("t", [bytes(5_000)] * 3)
    with store.subscribe("t", "g", prefetch_bytes=1_000) as consumer:
        for offset in range(3):
            held = take(consumer)
            assert offsets(held) == [offset]
            consumer.ack(held)


def test_a_paused_consumer_hands_out_nothing(store: Store) -> None:
    """Not even what it has fetched, and not after an ack; resumed, it goes on where it was."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=5) as consumer:
        message = one(consumer)
        paused = [consumer.paused]
        consumer.pause()
        paused.append(consumer.paused)
        assert consumer.get(timeout=0) is None
        message.ack()
        assert consumer.get_many(10, timeout=0) == []
        consumer.resume()
        assert [*paused, consumer.paused] == [False, True, False]
        assert values(drain(consumer)) == numbered(9, 1)


def test_a_paused_member_leaves_the_messages_to_others(backend: Backend) -> None:
    """Sooner or later: what it had fetched comes back by its lease at the latest."""
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", lease=10) as paused, store.subscribe("t", "g", lease=10) as other:
        one(paused).ack()
        paused.pause()
        seen = values(drain(other))
        backend.advance(10 * LATE)
        seen += values(drain(other))
        assert sorted(seen, key=lambda value: int(value or b"")) == numbered(9, 1)


def test_in_flight_counts_what_is_handed_out_and_not_finished(store: Store) -> None:
    """From nothing to nothing."""
    store.publish_many("t", numbered(6))
    with store.subscribe("t", "g") as consumer:
        assert consumer.in_flight == 0
        first, second, third, *_ = take(consumer)
        assert consumer.in_flight == 6
        first.ack()
        second.nack(delay=100)
        third.reject()
        assert consumer.in_flight == 3


def test_a_consumer_knows_what_its_group_has_left(store: Store) -> None:
    """All that is not finished, and what of it is with consumers, with all of them."""
    store.create_topic("t")
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=3) as left, store.subscribe("t", "g", prefetch=3) as right:
        assert left.backlog() == (10, 0)
        first = left.get_many(2, timeout=0)
        right.get_many(1, timeout=0)
        assert left.backlog() == right.backlog() == (10, 3)
        left.ack(first[0])
        assert right.backlog() == (9, 2)
    with pytest.raises(Closed):
        left.backlog()


def test_the_window_bounds_what_is_in_flight(store: Store) -> None:
    """Window 4, 20 messages, no acks: exactly 4 arrive, one ack releases one; paused holds even then, resumed releases."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        held = take(consumer)
        assert offsets(held) == [0, 1, 2, 3]
        held[0].ack()
        assert offsets(take(consumer)) == [4]
        consumer.pause()
        held[1].ack()
        assert take(consumer) == []
        consumer.resume()
        assert offsets(take(consumer)) == [5]
        assert consumer.in_flight == 4


def test_a_member_that_comes_after_another_has_a_window_of_its_own(store: Store) -> None:
    """What the one before it held does not stand in its way."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert len(take(consumer)) == 4
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert offsets(take(consumer)) == [0, 1, 2, 3]
