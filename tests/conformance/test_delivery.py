"""Delivery: leases, acks, nacks, backoff, counts of attempts, late tags, prefetch, pausing, waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import Closed, LeaseExpired, UsageError
from tests.conformance.helpers import PATIENCE, Running, drain, numbered, offsets, one, position, state_of, take, values

if TYPE_CHECKING:
    import random

    from penstock import Store
    from tests.conformance.backends import Backend

LATE = 1.04
"""A delay ends never early, and late by three in a hundred at most."""


def stats(store: Store) -> Any:
    """The numbers of group g of topic t."""
    return store.stats().topics["t"].groups["g"]


# -- getting --------------------------------------------------------------------------------------------------------


def test_messages_are_delivered_in_order(store: Store) -> None:
    """One consumer, one partition: offset by offset, each once."""
    store.publish_many("t", numbered(250))
    with store.subscribe("t", "g") as consumer:
        messages = drain(consumer)
    assert values(messages) == numbered(250)
    assert offsets(messages) == list(range(250))


def test_a_delivered_message_says_all_about_itself(store: Store) -> None:
    """Its place, its content, its group, and that it comes for the first time."""
    store.create_topic("t", partitions=2)
    store.publish("t", b"v", key=b"k", headers={"h": b"1"}, timestamp=7, partition=1)
    with store.subscribe("t", "g") as consumer:
        message = one(consumer)
    assert (message.topic, message.partition, message.offset) == ("t", 1, 0)
    assert (message.value, message.key, message.headers["h"], message.timestamp_us) == (b"v", b"k", b"1", 7_000_000)
    assert (message.group, message.attempt) == ("g", 1)


def test_nothing_ready_is_none(store: Store) -> None:
    """Not an error: an empty topic, and one that is read to its end."""
    store.create_topic("t")
    with store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None
        assert consumer.get_many(10, timeout=0) == []
        store.publish("t", b"x")
        assert len(drain(consumer)) == 1
        assert consumer.get(timeout=0) is None


def test_get_many_gives_what_there_is_up_to_the_number(store: Store) -> None:
    """Never more than asked, never waiting for more than there is."""
    store.publish_many("t", numbered(25))
    with store.subscribe("t", "g") as consumer:
        parts = [consumer.get_many(10, timeout=0) for _ in range(4)]
    assert [len(part) for part in parts] == [10, 10, 5, 0]
    assert values([message for part in parts for message in part]) == numbered(25)


def test_messages_published_later_are_delivered_too(store: Store) -> None:
    """A consumer is not a snapshot."""
    store.create_topic("t")
    with store.subscribe("t", "g") as consumer:
        for number in range(10):
            store.publish("t", b"%d" % number)
            assert values(drain(consumer)) == [b"%d" % number]


def test_all_partitions_are_delivered(store: Store) -> None:
    """Each in its own order."""
    store.create_topic("t", partitions=4)
    for number in range(40):
        store.publish("t", b"%d" % number, partition=number % 4)
    with store.subscribe("t", "g") as consumer:
        messages = drain(consumer)
    assert len(messages) == 40
    for partition in range(4):
        assert offsets(one for one in messages if one.partition == partition) == list(range(10))


def test_members_of_a_group_share_its_messages(store: Store) -> None:
    """Each message goes to exactly one, and both get their part."""
    store.publish_many("t", numbered(40))
    with store.subscribe("t", "g", prefetch=10) as first, store.subscribe("t", "g", prefetch=10) as second:
        seen: list[list[int]] = [[], []]
        for _ in range(20):
            for mine, consumer in zip(seen, (first, second), strict=True):
                message = consumer.get(timeout=0)
                if message is not None:
                    message.ack()
                    mine.append(message.offset)
        assert consumer.get(timeout=0) is None
    assert sorted(seen[0] + seen[1]) == list(range(40))
    assert min(map(len, seen)) >= 10


def test_a_member_does_not_take_what_another_holds(store: Store) -> None:
    """At most one valid lease for a message at a time."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g") as first, store.subscribe("t", "g") as second:
        mine = take(first)
        yours = take(second)
        assert sorted(offsets(mine) + offsets(yours)) == list(range(5))


# -- acks -----------------------------------------------------------------------------------------------------------


def test_an_acked_message_does_not_come_again(backend: Backend) -> None:
    """Not after the lease, and not for another member."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g") as consumer:
        assert len(drain(consumer)) == 3
        backend.advance(1_000)
        assert consumer.get(timeout=0) is None
    with store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None
    assert (stats(store).lag, stats(store).in_flight, stats(store).acked) == (0, 0, 3)


@pytest.mark.parametrize("wait", [False, True])
def test_a_list_can_be_acked_at_once(store: Store, wait: bool) -> None:
    """As one call, waiting for the disk or not."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        messages = take(consumer)
        consumer.ack(messages[::2], wait=wait)
        assert position(store, "t", "g") == 1
        consumer.ack(messages[1], wait=wait)
        assert position(store, "t", "g") == 3
        consumer.ack(messages[3::2], wait=wait)
        assert position(store, "t", "g") == 10
        consumer.ack([])


def test_acks_in_any_order_move_the_position_over_what_is_finished(store: Store) -> None:
    """The position is the first offset that is not finished."""
    store.publish_many("t", numbered(6))
    with store.subscribe("t", "g") as consumer:
        messages = take(consumer)
        seen = []
        for index in (5, 1, 0, 3, 2, 4):
            messages[index].ack()
            seen.append(position(store, "t", "g"))
    assert seen == [0, 0, 2, 2, 4, 6]


def test_a_list_may_be_acked_in_any_order(backend: Backend, rng: random.Random, seed: int) -> None:
    """Exactly the messages of the list are finished, whatever their order: no neighbour in between, no one left out."""
    print("seed", seed)
    store = backend.open()
    store.publish_many("t", numbered(1_000))
    with store.subscribe("t", "g", prefetch=1_000, lease=10) as consumer:
        held = {message.offset: message for message in take(consumer)}
        finished = set()
        consumer.ack([held[offset] for offset in (0, 5, 2)])
        finished |= {0, 5, 2}
        for first in range(10, 990, 10):
            chosen = rng.sample(range(first, first + 10), rng.randint(2, 5))
            consumer.ack([held[offset] for offset in chosen])
            finished |= set(chosen)
        backend.advance(11)
        assert sorted(offsets(take(consumer))) == [offset for offset in range(1_000) if offset not in finished]
        assert stats(store).acked == len(finished)


def test_acking_twice_changes_nothing(store: Store) -> None:
    """The second is refused or ignored; the count says one."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g") as consumer:
        message = one(consumer)
        message.ack()
        before = state_of(store)
        with contextlib.suppress(LeaseExpired):
            message.ack()
        assert state_of(store) == before
        assert stats(store).acked == 1


def test_a_message_is_finished_once(store: Store) -> None:
    """After an ack it cannot be nacked, rejected or extended; after a nack it cannot be acked."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g") as consumer:
        acked, nacked = take(consumer)
        acked.ack()
        nacked.nack(delay=100)
        before = state_of(store)
        for finish in (acked.nack, acked.reject, acked.extend, nacked.ack, nacked.nack, nacked.reject, nacked.extend):
            with pytest.raises(LeaseExpired):
                finish()
        assert state_of(store) == before


def test_flush_returns_when_acks_are_stored(store: Store) -> None:
    """Of the consumer and of the store; with and without acks."""
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g") as consumer:
        consumer.flush()
        one(consumer).ack()
        consumer.flush()
        one(consumer).ack()
        store.flush()
        one(consumer).ack(wait=True)
        assert position(store, "t", "g") == 3


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
    assert stats(store).expired_leases == 1


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
    assert stats(store).expired_leases == 0


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
        assert stats(store).retrying == 1
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
    assert stats(store).nacked == 3


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
        numbers = stats(store)
        assert (numbers.delivered, numbers.acked, numbers.nacked, numbers.redelivered, numbers.expired_leases) == (
            6,
            2,
            1,
            2,
            1,
        )
        assert (numbers.in_flight, numbers.lag, numbers.members) == (2, 2, 1)


# -- with message ---------------------------------------------------------------------------------------------------


def test_a_block_that_ends_acks_its_message(store: Store) -> None:
    """That is all it takes."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g") as consumer:
        with one(consumer) as message:
            assert message.value == b"0"
        assert position(store, "t", "g") == 1


def test_a_block_that_fails_nacks_its_message_and_passes_the_error_on(backend: Backend) -> None:
    """The message comes again after its backoff."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        with pytest.raises(ZeroDivisionError), one(consumer):
            _ = 1 // 0
        assert (stats(store).nacked, stats(store).acked) == (1, 0)
        assert consumer.get(timeout=0) is None
        backend.advance(2)
        assert one(consumer).attempt == 2


@pytest.mark.parametrize("finish", ["ack", "nack", "reject"])
def test_a_block_may_finish_its_message_itself(store: Store, finish: str) -> None:
    """Then leaving it changes nothing more."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        with one(consumer) as message:
            getattr(message, finish)()
        numbers = stats(store)
        assert (numbers.acked, numbers.nacked, numbers.dead_lettered) == {
            "ack": (1, 0, 0),
            "nack": (0, 1, 0),
            "reject": (0, 1, 1),
        }[finish]


@pytest.mark.parametrize("watched", [False, True], ids=["nobody looks", "somebody asks for more"])
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_block_may_take_longer_than_the_lease(backend: Backend, watched: bool, fails: bool) -> None:
    """However long it takes, and whether or not another member asks meanwhile: the message is its own until the block ends."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as consumer, store.subscribe("t", "g", lease=10) as other:
        with contextlib.suppress(ZeroDivisionError), one(consumer) as message:
            for _ in range(10):
                backend.advance(11)
                if watched:
                    assert other.get(timeout=0) is None
            _ = 1 // (0 if fails else 1)
        assert message.attempt == 1
        numbers = stats(store)
        assert (numbers.acked, numbers.nacked, numbers.expired_leases) == ((0, 1, 0) if fails else (1, 0, 0))


def test_a_block_keeps_its_lease_while_it_runs(live_store: Store) -> None:
    """A handler slower than the lease is not overtaken by a second delivery."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g", lease=0.5) as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        with message:
            assert consumer.get(timeout=2.0) is None
        assert position(live_store, "t", "g") == 1


# -- prefetch, pause ------------------------------------------------------------------------------------------------


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
        assert stats(store).in_flight == 6


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


# -- leaving --------------------------------------------------------------------------------------------------------


def test_a_closed_consumer_gives_its_messages_back_at_once(store: Store) -> None:
    """To whoever comes next, in order; what was only fetched is as new as it was."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", prefetch=5) as consumer:
        assert offsets([one(consumer), one(consumer)]) == [0, 1]
    with store.subscribe("t", "g") as consumer:
        got = take(consumer)
    assert offsets(got) == [0, 1, 2, 3, 4]
    assert [message.attempt for message in got[2:]] == [1, 1, 1]


def test_leaving_in_good_order_is_no_failure(store: Store) -> None:
    """A shutdown condemns nothing: what was handed out and not finished comes again uncounted, however often."""
    store.publish("t", b"x")
    for _ in range(10):
        with store.subscribe("t", "g", max_deliveries=2) as consumer:
            assert one(consumer).attempt == 1
    assert len(store.dead_letters("t")) == 0


def test_fetching_is_not_delivering_however_often_members_come_and_go(store: Store) -> None:
    """A consumer that opens and closes a hundred times without taking a message has delivered nothing."""
    store.publish_many("t", numbered(3))
    for _ in range(100):
        with store.subscribe("t", "g", max_deliveries=2):
            pass
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        assert [(message.offset, message.attempt) for message in take(consumer)] == [(0, 1), (1, 1), (2, 1)]


def test_an_answer_after_closing_is_refused_and_changes_nothing(store: Store) -> None:
    """The message went back; it is not this consumer's any more."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        message = one(consumer)
    before = state_of(store)
    for finish in (message.ack, message.nack, message.reject, message.extend):
        with pytest.raises((LeaseExpired, Closed)):
            finish()
    assert state_of(store) == before


def test_a_closed_consumer_is_closed(store: Store) -> None:
    """Every call says so; closing again does not."""
    store.create_topic("t")
    consumer = store.subscribe("t", "g")
    consumer.close()
    consumer.close()
    for call in (lambda: consumer.get(timeout=0), lambda: consumer.get_many(5, timeout=0)):
        with pytest.raises(Closed):
            call()
    assert stats(store).members == 0


def test_a_message_of_another_consumer_is_not_mine_to_finish(store: Store) -> None:
    """Nor one of another group: the wrong consumer changes nothing."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as mine, store.subscribe("t", "other") as theirs:
        message = one(theirs)
        held = one(mine)
        before = state_of(store)
        for finish in (mine.ack, mine.nack, mine.reject, mine.extend):
            with pytest.raises((UsageError, LeaseExpired)):
                finish(message)
        assert state_of(store) == before
        held.ack()
        message.ack()


def test_a_message_that_was_read_has_no_delivery(store: Store) -> None:
    """It cannot be finished, because nobody delivered it."""
    store.publish("t", b"x")
    (message,) = store.read("t")
    for finish in (message.ack, message.nack, message.reject, message.extend):
        with pytest.raises(UsageError):
            finish()


# -- waiting (on the machine's clock) -------------------------------------------------------------------------------


def test_a_waiting_consumer_is_woken_by_a_publish(live_store: Store) -> None:
    """Without a timeout, and from another thread."""
    live_store.create_topic("t", partitions=2)
    with live_store.subscribe("t", "g") as consumer:
        for number in range(20):
            waiting = Running(consumer.get)
            live_store.publish("t", b"%d" % number, partition=number % 2)
            message = waiting.result()
            assert message.value == b"%d" % number
            message.ack()


def test_get_many_waits_for_the_first_only(live_store: Store) -> None:
    """One message is enough to come back."""
    live_store.create_topic("t")
    with live_store.subscribe("t", "g") as consumer:
        waiting = Running(lambda: consumer.get_many(100, timeout=PATIENCE))
        live_store.publish("t", b"x")
        assert values(waiting.result()) == [b"x"]


def test_waiting_ends_with_nothing_when_its_time_is_over(live_store: Store) -> None:
    """None, and an empty list."""
    live_store.create_topic("t")
    with live_store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0.05) is None
        assert consumer.get_many(5, timeout=0.05) == []


def test_a_waiting_consumer_is_woken_by_a_nack_of_another(live_store: Store) -> None:
    """What one gives back the other takes at once."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g") as first, live_store.subscribe("t", "g") as second:
        message = first.get(timeout=PATIENCE)
        assert message is not None
        first.pause()
        waiting = Running(lambda: second.get(timeout=PATIENCE))
        message.nack(delay=0)
        assert waiting.result().attempt == 2


def test_a_waiting_consumer_is_woken_when_a_delay_or_a_lease_ends(live_store: Store) -> None:
    """Nobody publishes, nobody calls: time alone is enough."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g", lease=0.3) as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        message.nack(delay=0.2)
        again = consumer.get(timeout=PATIENCE)
        assert again is not None
        assert again.attempt == 2
        third = consumer.get(timeout=PATIENCE)
        assert third is not None
        assert third.attempt == 3


def test_a_waiting_consumer_is_woken_when_another_leaves(live_store: Store) -> None:
    """What the one held is the other's at once."""
    live_store.publish("t", b"x")
    first = live_store.subscribe("t", "g")
    message = first.get(timeout=PATIENCE)
    assert message is not None
    with live_store.subscribe("t", "g") as second:
        waiting = Running(lambda: second.get(timeout=PATIENCE))
        first.close()
        assert waiting.result().value == b"x"


def test_a_waiting_consumer_is_woken_by_an_ack_that_makes_room(live_store: Store) -> None:
    """A full window is no reason to sleep on."""
    live_store.publish_many("t", numbered(2))
    with live_store.subscribe("t", "g", prefetch=1) as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        waiting = Running(lambda: consumer.get(timeout=PATIENCE))
        message.ack()
        assert waiting.result().offset == 1


def test_a_waiting_consumer_is_woken_by_resume(live_store: Store) -> None:
    """And not before."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g") as consumer:
        consumer.pause()
        assert consumer.get(timeout=0.05) is None
        waiting = Running(lambda: consumer.get(timeout=PATIENCE))
        consumer.resume()
        assert waiting.result().value == b"x"


class CountingClock(SystemClock):
    """Knows how often it was asked by the thread that is being watched."""

    __slots__ = ("asked", "watched")

    def __init__(self) -> None:
        self.asked = 0
        self.watched = 0

    def monotonic(self) -> float:
        self.asked += threading.get_ident() == self.watched
        return super().monotonic()


@pytest.mark.parametrize("why", ["empty", "full", "paused", "not its own"])
def test_waiting_is_sleeping(live: Backend, why: str) -> None:
    """
    A consumer that waits for half a second looks a few times at most: nothing polls.

    Not on an empty topic; and not while a message is due that it may not have: its window is full, it is paused, or, in an ordered
    group, the partition is another member's.
    """
    clock = live.live_clock = CountingClock()
    store = live.open()
    store.create_topic("t")
    ordered = why == "not its own"
    with store.subscribe("t", "g", prefetch=1, ordered=ordered) as owner, store.subscribe("t", "g", prefetch=1) as other:
        waiter = other if ordered else owner
        if not ordered:
            other.close()
        if why != "empty":
            store.publish_many("t", numbered(2))
            message = owner.get(timeout=PATIENCE)
            assert message is not None
            message.nack(delay=0.1)
        if why == "full":
            assert owner.get(timeout=PATIENCE) is not None
        if why == "paused":
            owner.pause()
        time.sleep(0.15)
        clock.watched = threading.get_ident()
        assert waiter.get(timeout=0.5) is None
        clock.watched = 0
        assert clock.asked < 50


@pytest.mark.parametrize("closing", ["consumer", "store"])
def test_iteration_ends_when_the_consumer_is_closed(live_store: Store, closing: str) -> None:
    """By itself or with its store, in the middle of waiting."""
    live_store.publish_many("t", numbered(5))
    consumer = live_store.subscribe("t", "g")
    seen: list[bytes | None] = []
    all_there = threading.Event()

    def consume() -> None:
        for message in consumer:
            message.ack()
            seen.append(message.value)
            if len(seen) == 5:
                all_there.set()

    running = Running(consume)
    assert all_there.wait(PATIENCE)
    (consumer if closing == "consumer" else live_store).close()
    running.result()
    assert seen == numbered(5)


@pytest.mark.parametrize("closing", ["consumer", "store"])
def test_a_get_that_waits_ends_when_the_consumer_is_closed(live_store: Store, closing: str) -> None:
    """With nothing, or with the error that says why; it does not sleep on."""
    live_store.create_topic("t")
    consumer = live_store.subscribe("t", "g")
    waiting = Running(consumer.get)
    (consumer if closing == "consumer" else live_store).close()
    with contextlib.suppress(Closed):
        assert waiting.result() is None


def test_messages_may_be_finished_by_any_thread(live_store: Store) -> None:
    """Taken by one, acked by another."""
    live_store.publish_many("t", numbered(50))
    with live_store.subscribe("t", "g") as consumer:
        messages = [consumer.get(timeout=PATIENCE) for _ in range(50)]
        for message in messages:
            assert message is not None
            Running(message.ack).result()
        assert position(live_store, "t", "g") == 50


def test_threads_may_share_a_consumer(live_store: Store) -> None:
    """Each message goes to one of them."""
    live_store.publish_many("t", numbered(200))
    seen: list[int] = []
    with live_store.subscribe("t", "g", prefetch=10) as consumer:

        def consume() -> None:
            while (message := consumer.get(timeout=1)) is not None:
                seen.append(message.offset)
                message.ack()

        for running in [Running(consume) for _ in range(5)]:
            running.result()
        assert position(live_store, "t", "g") == 200
    assert sorted(seen) == list(range(200))


def test_publishers_and_members_at_once_lose_and_double_nothing(live_store: Store) -> None:
    """Three publishers, four members with small windows, one partition each way: every message acked exactly once."""
    live_store.create_topic("t", partitions=3)
    seen: list[bytes | None] = []

    def publish(name: int) -> None:
        for number in range(100):
            live_store.publish("t", b"%d %d" % (name, number), key=b"%d" % name)

    def consume() -> None:
        with live_store.subscribe("t", "g", prefetch=7) as consumer:
            while len(seen) < 300:
                message = consumer.get(timeout=0.1)
                if message is not None:
                    message.ack()
                    seen.append(message.value)

    members = [Running(consume) for _ in range(4)]
    publishers = [Running(publish, name) for name in range(3)]
    for running in publishers + members:
        running.result()
    assert len(seen) == 300
    assert sorted(seen, key=lambda value: value or b"") == sorted(
        b"%d %d" % (name, number) for name in range(3) for number in range(100)
    )
    assert stats(live_store).lag == 0
