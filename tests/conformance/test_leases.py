"""Leases and failures: messages that come again, late answers, nacks, backoff, counts of attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import LeaseExpired
from tests.conformance.helpers import LATE, drain, group_stats, numbered, offsets, one, position, state_of, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


# -- leases ---------------------------------------------------------------------------------------------------------


def test_an_unfinished_message_comes_again_after_its_lease(backend: Backend) -> None:
    """Not before it, then with the next attempt, again and again."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=30, max_deliveries=0) as consumer:
        for attempt in range(1, 8):
            message = one(consumer)
            assert (message.offset, message.attempt) == (0, attempt)
            backend.advance(29.9)
            assert consumer.get(timeout=0) is None
            backend.advance(30 * LATE - 29.9)


def test_a_lease_may_be_a_timedelta(backend: Backend) -> None:
    """Times are seconds or timedeltas, wherever they are asked for."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=timedelta(minutes=1)) as consumer:
        one(consumer)
        backend.advance(59.9)
        assert consumer.get(timeout=0) is None
        backend.advance(60 * LATE - 59.9)
        assert one(consumer).attempt == 2


def test_an_expired_message_goes_to_whoever_asks(backend: Backend) -> None:
    """Another member gets it, although the first one is still there."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as first, store.subscribe("t", "g", lease=10) as second:
        one(first)
        assert second.get(timeout=0) is None
        backend.advance(10 * LATE)
        assert one(second).attempt == 2
        assert first.get(timeout=0) is None
    assert group_stats(store).expired_leases == 1


@pytest.mark.parametrize("finish", ["ack", "nack", "reject", "extend"])
@pytest.mark.parametrize("again", [False, True], ids=["before it is delivered again", "after it was delivered again"])
def test_a_late_answer_is_refused_and_changes_nothing(backend: Backend, finish: str, again: bool) -> None:
    """The delivery that ended has no say over the one that follows it."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as first, store.subscribe("t", "g", lease=10) as second:
        late = one(first)
        backend.advance(10 * LATE)
        current = one(second) if again else None
        before = state_of(store)
        with pytest.raises(LeaseExpired) as caught:
            getattr(late, finish)()
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
        if again:
            assert state_of(store) == before
        current = current or one(second)
        assert current.attempt == 2
        current.ack()
        assert position(store, "t", "g") == 1


def test_a_late_ack_among_others_does_not_undo_them(backend: Backend) -> None:
    """A list with one late message: it is told, the late one stays unfinished, and the late one only."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", lease=10) as consumer:
        late = one(consumer)
        backend.advance(10 * LATE)
        others = take(consumer)
        assert sorted(offsets(others)) == [0, 1, 2]
        with pytest.raises(LeaseExpired):
            consumer.ack([late, *[message for message in others if message.offset != 0]])
        again = [message for message in others if message.offset == 0]
        assert [message.attempt for message in again] == [2]
        consumer.ack(again)
        backend.advance(10 * LATE)
        left = drain(consumer)
        assert 0 not in offsets(left)


def test_extend_moves_the_end_of_the_lease(backend: Backend) -> None:
    """By its own length from now, or by the seconds given; the attempt stays the same."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as consumer:
        message = one(consumer)
        for _ in range(5):
            backend.advance(9)
            message.extend()
            assert consumer.get(timeout=0) is None
        message.extend(100)
        backend.advance(99)
        assert consumer.get(timeout=0) is None
        message.ack()
        assert position(store, "t", "g") == 1
    assert group_stats(store).expired_leases == 0


def test_an_extended_lease_ends_too(backend: Backend) -> None:
    """No sooner than asked, and then the message comes again."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as consumer:
        message = one(consumer)
        backend.advance(5)
        consumer.extend(message, 20)
        backend.advance(19.9)
        assert consumer.get(timeout=0) is None
        backend.advance(20 * LATE - 19.9)
        assert one(consumer).attempt == 2
        with pytest.raises(LeaseExpired):
            message.ack()


def test_a_wall_clock_that_jumps_moves_no_lease(backend: Backend) -> None:
    """A lease is a length of time, whatever somebody does to the clock."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as consumer:
        one(consumer)
        backend.fake_clock.jump_wall(86_400)
        assert consumer.get(timeout=0) is None
        backend.fake_clock.jump_wall(-10 * 86_400)
        assert consumer.get(timeout=0) is None
        backend.advance(10 * LATE)
        assert one(consumer).attempt == 2


def test_each_message_has_a_lease_of_its_own(backend: Backend) -> None:
    """What was handed out later comes again later."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", lease=30) as consumer:
        for expected in range(3):
            assert one(consumer).offset == expected
            backend.advance(10)
        backend.advance(30 * LATE - 30)
        assert offsets(take(consumer)) == [0]
        backend.advance(10)
        assert offsets(take(consumer)) == [1]


def test_a_group_may_get_another_lease(backend: Backend) -> None:
    """Subscribing with other settings changes the group: what is handed out from then on has the new lease, the rest keeps its own."""
    store = backend.open()
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g", lease=1_000) as first:
        long = one(first)
        with store.subscribe("t", "g", lease=10) as second:
            short = [one(first).offset, one(second).offset]
            backend.advance(11)
            again = [message for message in take(second) if message.attempt == 2]
            assert sorted(offsets(again)) == sorted(short)
            backend.advance(500)
            long.ack()


# -- nacks and backoff ----------------------------------------------------------------------------------------------


def test_a_nack_without_delay_brings_the_message_back_at_once(store: Store) -> None:
    """With the next attempt."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        for attempt in (1, 2, 3):
            message = one(consumer)
            assert message.attempt == attempt
            message.nack(delay=0)


@pytest.mark.parametrize("delay", [0.5, 5, 3_600, timedelta(minutes=2)], ids=str)
def test_a_nack_with_a_delay_holds_the_message_back_that_long(backend: Backend, delay: Any) -> None:
    """Never early."""
    store = backend.open()
    store.publish("t", b"x")
    length = delay.total_seconds() if isinstance(delay, timedelta) else delay
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=delay, reason="later")
        backend.advance(length * 0.999)
        assert consumer.get(timeout=0) is None
        assert group_stats(store).retrying == 1
        backend.advance(length * (LATE - 0.999) + 0.01)
        assert one(consumer).attempt == 2


def test_a_nack_backs_off_twice_as_long_each_time(backend: Backend) -> None:
    """Around 1, 2, 4, 8 seconds: never less than half of it, never more than one and a half."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", backoff=1.0, max_deliveries=0) as consumer:
        for failures in range(6):
            one(consumer).nack()
            backend.advance(0.49 * 2**failures)
            assert consumer.get(timeout=0) is None
            backend.advance(1.1 * 2**failures)


def test_backoff_ends_at_its_maximum(backend: Backend) -> None:
    """After many failures the wait is the maximum, not more."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", backoff=1.0, backoff_max=10.0, max_deliveries=0) as consumer:
        for _ in range(80):
            one(consumer).nack()
            backend.advance(16)
        assert one(consumer).attempt == 81


def test_backoff_is_the_groups_choice(backend: Backend) -> None:
    """With `backoff=60` nothing comes within half a minute."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", backoff=60) as consumer:
        one(consumer).nack()
        backend.advance(29)
        assert consumer.get(timeout=0) is None
        backend.advance(70)
        assert one(consumer).attempt == 2


def test_a_failed_message_does_not_hold_up_the_others(backend: Backend) -> None:
    """In a shared group one message that fails is one message."""
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=60)
        assert values(drain(consumer)) == numbered(9, 1)
        assert position(store, "t", "g") == 0
        backend.advance(60 * LATE)
        assert values(drain(consumer)) == [b"0"]
        assert position(store, "t", "g") == 10


def test_a_list_can_be_nacked_at_once(store: Store) -> None:
    """With one delay and one reason for all."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g") as consumer:
        consumer.nack(take(consumer)[1:4], delay=0, reason="again")
        assert [(message.offset, message.attempt) for message in take(consumer)] == [(1, 2), (2, 2), (3, 2)]
    assert group_stats(store).nacked == 3


def test_the_numbers_of_a_group_add_up(backend: Backend) -> None:
    """Delivered, acked, nacked, redelivered, expired: each event once."""
    store = backend.open()
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g", lease=10) as consumer:
        acked, nacked, expired, held = take(consumer)
        acked.ack()
        nacked.nack(delay=0)
        one(consumer).ack()
        backend.advance(5)
        held.extend(100)
        backend.advance(10)
        again = one(consumer)
        assert again.offset == expired.offset
        numbers = group_stats(store)
        assert (numbers.delivered, numbers.acked, numbers.nacked, numbers.redelivered, numbers.expired_leases) == (
            6,
            2,
            1,
            2,
            1,
        )
        assert (numbers.in_flight, numbers.lag, numbers.members) == (2, 2, 1)
