"""Bugs that real queues shipped: rows E of the list of pitfalls; `test_pitfalls.py` says where the other rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import LeaseExpired, ReservedName
from tests.conformance.helpers import all_of, drain, numbered, offsets, one, position, state_of, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_e2_a_message_that_was_retried_comes_back_once(lasting: Backend) -> None:
    """Nacked five times, then a restart: one delivery, not six."""
    store = lasting.open()
    store.publish("t", b"x")
    for restart in (lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            for _ in range(5):
                one(consumer).nack(delay=0)
            consumer.flush()
        store = restart()
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            assert offsets(take(consumer)) == [0]
    assert stored(store, "t") == [b"x"]


def test_e3_the_dead_stay_dead(lasting: Backend) -> None:
    """After a restart they are not delivered again, and not buried again."""
    store = lasting.open()
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for message in take(consumer)[:2]:
            message.nack()
        consumer.flush()
    for restart in (lasting.kill, lasting.reopen, lasting.kill):
        store = restart()
        lasting.advance(3_600)
        with store.subscribe("t", "g", max_deliveries=1) as consumer:
            assert sorted(offsets(take(consumer))) == [2, 3]
        assert values(store.dead_letters("t").list()) == [b"0", b"1"]


def test_e4_an_ack_that_was_answered_is_stored(lasting: Backend) -> None:
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


def test_e6_a_late_ack_of_one_does_not_settle_the_delivery_of_another(backend: Backend) -> None:
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


def test_e7_a_consumer_that_comes_and_goes_buries_nothing(store: Store) -> None:
    """What was fetched for it and never handed out was never delivered."""
    store.publish_many("t", numbered(20))
    for _ in range(30):
        with store.subscribe("t", "g", max_deliveries=2, prefetch=20) as consumer:
            one(consumer).ack()
            store.publish("t", b"more")
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        got = drain(consumer)
    assert len(got) == 20
    assert {message.attempt for message in got} == {1}


def test_e9_a_queue_that_is_emptied_does_not_grow_for_ever(backend: Backend) -> None:
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


def test_e12_the_order_after_a_restart_is_the_order_before(lasting_live: Backend) -> None:
    """Many threads publish at once: consumers before and after the restart see one order."""
    store = lasting_live.open()
    all_of(lambda name: [store.publish("t", b"%d %d" % (name, at)) for at in range(30)], range(6))
    with store.subscribe("t", "before") as consumer:
        before = values(drain(consumer))
    store = lasting_live.reopen()
    with store.subscribe("t", "after") as consumer:
        assert values(drain(consumer)) == before
    assert len(before) == 180


def test_e13_graves_have_no_graves_and_nobody_digs_by_hand(store: Store) -> None:
    """No `x.dlq.dlq` by failing, none by creating, none by publishing."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack()
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        for _ in range(3):
            one(consumer).nack(delay=0)
    for name in ("t.dlq", "t.dlq.dlq", "x.dlq"):
        with pytest.raises(ReservedName):
            store.publish(name, b"x")
    assert [info.name for info in store.topics()] == ["t", "t.dlq"]
    assert len(store.dead_letters("t")) == 1


def test_e14_a_failed_message_waits_before_it_comes_again(backend: Backend) -> None:
    """No hot loop: within its backoff it does not come, and its place in the log stays its own."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", backoff=10, max_deliveries=0) as consumer:
        one(consumer).nack()
        tries = 1
        drain(consumer)
        for _ in range(100):
            backend.advance(1)
            message = consumer.get(timeout=0)
            if message is not None:
                assert message.offset == 0
                tries += 1
                message.nack()
    assert 3 <= tries <= 5
