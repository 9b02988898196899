"""Delivery: getting messages, acks, blocks that finish their message, leaving."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Closed, LeaseExpired, UsageError
from tests.conformance.helpers import (
    PATIENCE,
    drain,
    group_stats,
    numbered,
    offsets,
    one,
    position,
    state_of,
    take,
    values,
)

if TYPE_CHECKING:
    import random

    from penstock import Store
    from tests.conformance.backends import Backend


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
    assert (group_stats(store).lag, group_stats(store).in_flight, group_stats(store).acked) == (0, 0, 3)


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
        assert group_stats(store).acked == len(finished)


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
        assert group_stats(store).acked == 1


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
        assert (group_stats(store).nacked, group_stats(store).acked) == (1, 0)
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
        numbers = group_stats(store)
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
        numbers = group_stats(store)
        assert (numbers.acked, numbers.nacked, numbers.expired_leases) == ((0, 1, 0) if fails else (1, 0, 0))


def test_a_block_keeps_its_lease_while_it_runs(live_store: Store) -> None:
    """A handler slower than the lease is not overtaken by a second delivery."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g") as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        with message:
            message.extend(0.1)
            assert consumer.get(timeout=0.5) is None
        assert position(live_store, "t", "g") == 1


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
    assert group_stats(store).members == 0


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
