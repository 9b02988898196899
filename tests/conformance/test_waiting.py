"""Waiting for messages, on the machine's clock: what wakes a consumer, what ends its waiting, and threads that share it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.clock import SystemClock
from penstock.errors import Closed
from tests.conformance.helpers import PATIENCE, Running, group_stats, numbered, position, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


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
    with live_store.subscribe("t", "g") as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        message.nack(delay=0.1)
        again = consumer.get(timeout=PATIENCE)
        assert again is not None
        assert again.attempt == 2
        again.extend(0.1)
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
    """Knows how often it was asked by the thread that is being watched; runs `ahead` seconds ahead of the machine's."""

    __slots__ = ("ahead", "asked", "watched")

    def __init__(self) -> None:
        self.ahead = 0.0
        self.asked = 0
        self.watched = 0

    def monotonic(self) -> float:
        self.asked += threading.get_ident() == self.watched
        return super().monotonic() + self.ahead


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
            message.nack(delay=10)
        if why == "full":
            assert owner.get(timeout=PATIENCE) is not None
        if why == "paused":
            owner.pause()
        clock.ahead = 11
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
    assert group_stats(live_store).lag == 0


def test_a_nack_wakes_a_consumer_that_waits(live_store: Store) -> None:
    """Nothing is swept by an interval: the nack itself is the event."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g", lease=600) as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        waiting = Running(lambda: consumer.get(timeout=PATIENCE))
        message.nack(delay=0)
        assert waiting.result().attempt == 2
