"""Transactions: publishes and acks of any topics and groups, all or nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LeaseExpired, PenstockError, TopicNotFound, UsageError
from tests.conformance.helpers import (
    PATIENCE,
    Running,
    drain,
    numbered,
    offsets,
    one,
    position,
    state_of,
    stored,
    take,
    uncommitted,
    until,
    values,
)

if TYPE_CHECKING:
    from penstock import Delivery, Store
    from tests.conformance.backends import Backend
    from tests.volume.gated_files import GatedFileSystem


def test_nothing_is_visible_before_the_end(store: Store) -> None:
    """Not to readers, not to consumers; then everything is."""
    store.create_topic("a", partitions=2)
    store.create_topic("b")
    with store.subscribe("b", "g") as consumer:
        with store.transaction() as t:
            t.publish("a", b"1", partition=0)
            t.publish("a", b"2", partition=1)
            t.publish_many("b", numbered(3))
            assert stored(store, "a") == []
            assert stored(store, "b") == []
            assert consumer.get(timeout=0) is None
        assert stored(store, "a") == [b"1", b"2"]
        assert values(drain(consumer)) == numbered(3)


def test_an_exception_drops_everything(store: Store) -> None:
    """It goes on up, nothing is stored, and the messages are still unfinished."""
    store.publish_many("in", numbered(3))
    store.create_topic("out")
    with store.subscribe("in", "g") as consumer:
        message = one(consumer)
        before = state_of(store)
        with pytest.raises(RuntimeError, match="mine"), store.transaction() as t:
            t.publish("out", b"x")
            t.publish_many("out", numbered(5))
            t.ack(message)
            raise RuntimeError("mine")
        assert state_of(store) == before
        assert consumer.in_flight == 1
        message.ack()
        assert position(store, "in", "g") == 1
    assert stored(store, "out") == []


def test_publishing_and_acking_are_one(store: Store) -> None:
    """Consume, transform, produce."""
    store.publish_many("in", numbered(10))
    with store.subscribe("in", "g") as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            with store.transaction() as t:
                t.publish("out", b"<%s>" % message.value, key=message.key)
                t.ack(message)
    assert stored(store, "out") == [b"<%s>" % value for value in numbered(10)]
    assert position(store, "in", "g") == 10
    assert store.stats().topics["in"].groups["g"].in_flight == 0


def test_messages_of_several_groups_can_be_acked_together(store: Store) -> None:
    """Of several topics, too."""
    store.publish_many("a", numbered(2))
    store.publish_many("b", numbered(2))
    with store.subscribe("a", "g") as first, store.subscribe("a", "h") as second, store.subscribe("b", "g") as third:
        with store.transaction() as t:
            for consumer in (first, second, third):
                for message in take(consumer):
                    t.ack(message)
        assert [position(store, "a", "g"), position(store, "a", "h"), position(store, "b", "g")] == [2, 2, 2]


def test_an_ack_that_comes_too_late_drops_everything(backend: Backend) -> None:
    """The message is somebody else's by now, so its result must not be stored either."""
    store = backend.open()
    store.publish_many("in", numbered(2))
    store.create_topic("out")
    with store.subscribe("in", "g", lease=10) as consumer:
        late, other = take(consumer)
        other.extend(1_000)
        backend.advance(11)
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("out", b"x")
            t.ack(other)
            t.ack(late)
        assert stored(store, "out") == []
        other.ack()
        assert one(consumer).attempt == 2


def test_an_ack_that_becomes_late_inside_drops_everything(backend: Backend) -> None:
    """Lateness is judged at the end, not when the ack was noted."""
    store = backend.open()
    store.publish("in", b"x")
    store.create_topic("out")
    with store.subscribe("in", "g", lease=10) as consumer, store.subscribe("in", "g", lease=10) as second:
        message = one(consumer)
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("out", b"x")
            t.ack(message)
            backend.advance(11)
            assert one(second).attempt == 2
        assert stored(store, "out") == []
        assert position(store, "in", "g") == 0


def test_a_message_is_not_finished_before_the_end(backend: Backend) -> None:
    """Noted is not done: the lease runs on while the block does."""
    store = backend.open()
    store.publish("in", b"x")
    with store.subscribe("in", "g") as consumer, store.transaction() as t:
        t.ack(one(consumer))
        assert position(store, "in", "g") == 0
        assert consumer.in_flight == 1
    assert position(store, "in", "g") == 1


def test_a_seek_in_between_drops_the_transaction(store: Store) -> None:
    """Leases of before the seek are void, here as elsewhere."""
    store.publish_many("in", numbered(2))
    store.create_topic("out")
    with store.subscribe("in", "g") as consumer:
        message = one(consumer)
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("out", b"x")
            t.ack(message)
            store.seek("in", "g", "earliest")
        assert stored(store, "out") == []
        assert offsets(drain(consumer)) == [0, 1]


@pytest.mark.parametrize("bad", ["too large", "partition", "type", "name"])
def test_a_bad_publish_drops_everything(store: Store, bad: str) -> None:
    """The error is the one that a plain publish gives."""
    store.create_topic("t", max_message_bytes=10)
    before = state_of(store)
    with pytest.raises((UsageError, TopicNotFound)), store.transaction() as t:
        t.publish("t", b"good")
        match bad:
            case "too large":
                t.publish("t", bytes(11))
            case "partition":
                t.publish("t", b"x", partition=1)
            case "type":
                t.publish("t", "text")
            case _:
                t.publish("../t", b"x")
    assert state_of(store) == before


def test_a_bad_publish_that_is_caught_leaves_no_trace(store: Store) -> None:
    """Who catches the error inside goes on without the bad message, or not at all; never with half of it."""
    store.create_topic("t", max_message_bytes=10)
    with store.transaction() as t:
        t.publish("t", b"before")
        with pytest.raises(UsageError):
            t.publish_many("t", [b"x", bytes(11), b"y"])
        t.publish("t", b"after")
    assert stored(store, "t") == [b"before", b"after"]


def test_an_empty_transaction_is_fine(store: Store) -> None:
    """It changes nothing."""
    store.create_topic("t")
    before = state_of(store)
    with store.transaction():
        pass
    assert state_of(store) == before


def test_a_finished_transaction_takes_nothing_more(store: Store) -> None:
    """Neither after success nor after failure."""
    store.create_topic("t")
    with store.transaction() as kept:
        kept.publish("t", b"x")
    dropped = store.transaction()
    with pytest.raises(RuntimeError), dropped as t:
        raise RuntimeError
    for t in (kept, dropped):
        with pytest.raises(PenstockError):
            t.publish("t", b"y")
    assert stored(store, "t") == [b"x"]


def test_order_inside_is_kept(store: Store) -> None:
    """In each partition as published, whatever is mixed."""
    store.create_topic("t", partitions=2)
    with store.transaction() as t:
        for number in range(20):
            t.publish("t", b"%d" % number, partition=number % 2)
            t.publish_many("t", [b"%d.1" % number, b"%d.2" % number], partition=number % 2)
    for partition in range(2):
        expected = []
        for number in range(partition, 20, 2):
            expected += [b"%d" % number, b"%d.1" % number, b"%d.2" % number]
        assert stored(store, "t", partition) == expected


def test_a_dropped_transaction_leaves_no_topic_behind(store: Store) -> None:
    """A topic that would have been made by its first message is not made without it."""
    with pytest.raises(RuntimeError), store.transaction() as t:
        t.publish("new", b"x")
        t.publish_many("newer", [b"x"])
        raise RuntimeError
    assert store.topics() == []


def test_a_large_transaction_is_still_one(store: Store) -> None:
    """Many topics, many partitions, many messages."""
    for number in range(10):
        store.create_topic(f"t{number}", partitions=2)
    with pytest.raises(RuntimeError), store.transaction() as t:
        for number in range(10):
            t.publish_many(f"t{number}", numbered(100), keys=numbered(100))
        raise RuntimeError
    assert sum(len(stored(store, f"t{number}")) for number in range(10)) == 0
    with store.transaction() as t:
        for number in range(10):
            t.publish_many(f"t{number}", numbered(100), keys=numbered(100))
    assert sum(len(stored(store, f"t{number}")) for number in range(10)) == 1_000


def test_a_transaction_wakes_those_who_wait(live_store: Store) -> None:
    """Like a publish."""
    live_store.create_topic("t")
    with live_store.subscribe("t", "g") as consumer:
        waiting = Running(lambda: consumer.get(timeout=PATIENCE))
        with live_store.transaction() as t:
            t.publish("t", b"x")
        assert waiting.result().value == b"x"


def test_a_message_that_is_given_back_inside_drops_the_transaction(store: Store) -> None:
    """It was nacked after the ack was noted: its result must not be stored, since it comes again."""
    store.publish("in", b"x")
    store.create_topic("out")
    with store.subscribe("in", "g") as consumer:
        message = one(consumer)
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("out", b"x")
            t.ack(message)
            message.nack(delay=0)
        assert stored(store, "out") == []
        assert one(consumer).attempt == 2


def test_a_transaction_inside_a_block_finishes_its_message(backend: Backend) -> None:
    """The two go together: the block has nothing left to do, and if the transaction fails the block nacks, whatever time it took."""
    store = backend.open()
    store.publish_many("in", numbered(2))
    store.create_topic("out")
    with store.subscribe("in", "g", lease=10) as consumer:
        with one(consumer) as message, store.transaction() as t:
            t.publish("out", b"result")
            t.ack(message)
            backend.advance(100)
        with pytest.raises(RuntimeError), one(consumer) as message, store.transaction() as t:
            t.publish("out", b"dropped")
            t.ack(message)
            backend.advance(100)
            raise RuntimeError
    assert stored(store, "out") == [b"result"]
    numbers = store.stats().topics["in"].groups["g"]
    assert (numbers.acked, numbers.nacked, numbers.expired_leases) == (1, 1, 0)


def test_a_message_is_acked_by_one_transaction(store: Store) -> None:
    """The second one that tries is dropped, with what it published."""
    store.publish("in", b"x")
    with store.subscribe("in", "g") as consumer:
        message = one(consumer)
        with store.transaction() as t:
            t.publish("out", b"first")
            t.ack(message)
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("out", b"second")
            t.ack(message)
    assert stored(store, "out") == [b"first"]
    assert store.stats().topics["in"].groups["g"].acked == 1


def held_at_the_gate(store: Store, files: GatedFileSystem, message: Delivery) -> Running:
    """A transaction that acks *message* and waits for the disk."""
    files.gate.clear()
    files.at_gate.clear()

    def transact() -> None:
        with store.transaction() as t:
            t.publish("t", b"first", partition=0)
            t.ack(message)

    running = Running(transact)
    assert files.at_gate.wait(PATIENCE)
    return running


def test_two_transactions_at_once_do_not_both_ack_a_message(gated: tuple[Store, GatedFileSystem]) -> None:
    """While the first waits for the disk the second is refused, or waits and is refused then: one result is stored."""
    store, files = gated
    store.publish("in", b"x")
    with store.subscribe("in", "g") as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        store.flush()
        first = held_at_the_gate(store, files, message)

        def transact() -> None:
            with store.transaction() as t:
                t.publish("t", b"second", partition=1)
                t.ack(message)

        second = Running(transact)
        assert until(lambda: second.ended or uncommitted(store))
        files.gate.set()
        first.result()
        with pytest.raises(LeaseExpired):
            second.result()
        assert stored(store, "t") == [b"first"]


@pytest.mark.parametrize("meanwhile", ["close", "nack"])
def test_a_message_of_a_transaction_that_waits_for_the_disk_goes_to_nobody_else(
    gated: tuple[Store, GatedFileSystem], meanwhile: str
) -> None:
    """Its consumer is closed, or the handler nacks it: another member may not get it, finish it, and store a second result."""
    store, files = gated
    store.publish("in", b"x")
    consumer = store.subscribe("in", "g")
    message = consumer.get(timeout=PATIENCE)
    assert message is not None
    store.flush()
    other = store.subscribe("in", "g")
    first = held_at_the_gate(store, files, message)

    def disturb() -> None:
        with contextlib.suppress(LeaseExpired):
            if meanwhile == "close":
                consumer.close()
            else:
                message.nack(delay=0)

    disturbing = Running(disturb)
    assert until(lambda: disturbing.ended or uncommitted(store))
    taken = other.get(timeout=0)
    files.gate.set()
    first.result()
    disturbing.result()
    if taken is not None:
        with pytest.raises(LeaseExpired), store.transaction() as t:
            t.publish("t", b"second", partition=1)
            t.ack(taken)
    assert stored(store, "t") == [b"first"]
    assert other.get(timeout=0.1) is None
    assert position(store, "in", "g") == 1
    other.close()
    consumer.close()


def test_a_topic_that_is_deleted_meanwhile_drops_the_whole_transaction(store: Store) -> None:
    """It is told by the commit, and the store goes on."""
    store.create_topic("gone", partitions=2)
    transaction = store.transaction()
    transaction.publish("kept", b"x")
    transaction.publish("gone", b"x", partition=0)
    transaction.publish("gone", b"y", partition=1)
    store.delete_topic("gone")
    with pytest.raises(TopicNotFound):
        transaction.commit()
    assert store.publish("kept", b"z").offset == 0
