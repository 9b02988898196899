"""Acks: in any order, above gaps, waited for, too late, and each for its own message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import LeaseExpired
from tests.conformance.helpers import drain, numbered, offsets, one, position, state_of, take

if TYPE_CHECKING:
    from tests.conformance.backends import Backend


def test_acks_out_of_order_finish_each_its_own_message(lasting: Backend) -> None:
    """Receive 0 and 1, ack 1 then 0: position 2. Ack only 1, restart: 0 comes again and 1 does not."""
    store = lasting.open()
    store.publish_many("t", numbered(2))
    for group, order, expected in (("both", (1, 0), []), ("one", (1,), [0])):
        consumer = store.subscribe("t", group)
        messages = take(consumer)
        for index in order:
            messages[index].ack()
        consumer.flush()
        assert position(store, "t", group) == (2 if group == "both" else 0)
        store = lasting.kill()
        lasting.advance(60)
        with store.subscribe("t", group) as consumer:
            assert offsets(take(consumer)) == expected
        store = lasting.reopen()


def test_the_same_offset_in_two_partitions_is_two_messages(lasting: Backend) -> None:
    """Finishing one of them does not finish the other, nor the same offset of another topic."""
    store = lasting.open()
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        store.publish(topic, b"x", partition=partition)
    consumer = store.subscribe("t", "g")
    next(message for message in take(consumer) if message.partition == 1).ack(wait=True)
    store.subscribe("u", "g").close()
    store = lasting.kill()
    lasting.advance(60)
    with store.subscribe("t", "g") as consumer:
        assert [(message.partition, message.offset) for message in take(consumer)] == [(0, 0)]
    assert position(store, "u", "g") == 0


def test_what_was_acked_above_a_gap_does_not_come_again(lasting: Backend) -> None:
    """Every other message acked, restart: the others come, and only they; twice."""
    store = lasting.open()
    store.publish_many("t", numbered(100))
    for restart in (lasting.kill, lasting.reopen, lasting.kill):
        consumer = store.subscribe("t", "g")
        consumer.ack([message for message in take(consumer) if message.offset % 2], wait=True)
        store = restart()
        lasting.advance(60)
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        assert sorted(offsets(drain(consumer))) == list(range(0, 100, 2))


def test_an_ack_that_was_answered_is_stored(lasting: Backend) -> None:
    """`wait=True` returns after the disk has it, each time: a kill right behind it brings nothing back."""
    store = lasting.open()
    store.publish_many("t", numbered(5))
    for offset in range(5):
        consumer = store.subscribe("t", "g")
        message = one(consumer)
        assert message.offset == offset
        message.ack(wait=True)
        store = lasting.kill()
        assert position(store, "t", "g") == offset + 1
        lasting.advance(60)


def test_a_late_ack_of_one_does_not_settle_the_delivery_of_another(backend: Backend) -> None:
    """The same message, the same group: the tag decides."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as a, store.subscribe("t", "g", lease=10) as b:
        late = one(a)
        backend.advance(11)
        current = one(b)
        before = state_of(store)
        with pytest.raises(LeaseExpired):
            late.ack()
        assert state_of(store) == before
        assert current.attempt == 2
        current.nack(delay=0)
        assert one(b).attempt == 3
