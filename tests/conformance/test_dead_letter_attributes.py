"""What a dead letter keeps of its message beside key, value, headers and time, and what it has when it is sent back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.helpers import drain, numbered, offsets, one, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

LOW, MEDIUM, HIGH = "low", "medium", "high"
LANES = [LOW, HIGH, MEDIUM]
LONG_VALUE = b"the same again " * 1_000


def test_a_dead_letter_keeps_its_priority_and_has_it_again_when_it_is_sent_back(store: Store) -> None:
    """The letters themselves come in the order of their deaths."""
    store.create_topic("t", priorities=True)
    store.publish_many("t", numbered(3), priorities=LANES)
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
        letters = store.dead_letters("t").list()
        assert [(letter.value, letter.priority) for letter in letters] == [(b"1", HIGH), (b"2", MEDIUM), (b"0", LOW)]
        with store.subscribe("t.dlq", "inspectors") as inspector:
            assert values(take(inspector)) == [b"1", b"2", b"0"]
        store.publish("t", b"new", priority=MEDIUM)
        assert store.dead_letters("t").replay() == 3
        again = drain(consumer)
    assert [(message.value, message.priority) for message in again] == [
        (b"1", HIGH), (b"new", MEDIUM), (b"2", MEDIUM), (b"0", LOW),
    ]  # fmt: skip


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_dead_letters_are_compressed_as_their_topic_is(backend: Backend, store: Store, compression: str) -> None:
    """And the letter has the bytes of its message all the same."""
    store.create_topic("t", compression=compression)
    store.publish("t", LONG_VALUE)
    with store.subscribe("t", "g") as consumer:
        one(consumer).reject()
    [letter] = store.dead_letters("t").list()
    assert letter.value == LONG_VALUE
    [log] = backend.owner()._catalog.get("t.dlq").logs
    [batch] = log.read(0, 1)
    assert batch.is_compressed
    assert store.topic("t.dlq").settings.compression == compression


def test_a_letter_that_is_sent_back_lives_as_long_as_it_was_to_live(backend: Backend, store: Store) -> None:
    """Counted from then on. The letter itself does not expire, however long it lies there."""
    store.create_topic("t", expired="dead_letter")
    store.publish_many("t", numbered(2), ttls=[5, None])
    consumer = store.subscribe("t", "g")
    backend.advance(6)
    one(consumer).reject()
    backend.advance(1_000)
    letters = store.dead_letters("t").list()
    assert [letter.expires_at for letter in letters] == [None, None]
    with store.subscribe("t.dlq", "inspectors") as inspector:
        assert sorted(offsets(take(inspector))) == [0, 1]
    assert store.dead_letters("t").replay() == 2
    backend.advance(4)
    again = take(consumer)
    assert {message.value: message.expires_at is None for message in again} == {b"0": False, b"1": True}
    assert all(list(message.headers) == [] for message in again)
    for message in again:
        message.nack(delay=0)
    backend.advance(2)
    assert values(drain(consumer)) == [b"1"]
    assert values(store.dead_letters("t").list()) == [b"0"]


def test_a_letter_that_is_sent_back_lives_by_its_topic_if_it_says_nothing(backend: Backend, store: Store) -> None:
    """Its time begins anew, so that it can be handled."""
    store.create_topic("t", ttl=10, expired="dead_letter")
    store.publish("t", b"x")
    consumer = store.subscribe("t", "g")
    backend.advance(11)
    assert consumer.get(timeout=0) is None
    assert store.dead_letters("t").replay() == 1
    backend.advance(9)
    assert values(take(consumer)) == [b"x"]


def test_a_letter_that_is_sent_back_is_due_at_once(backend: Backend, store: Store) -> None:
    """It was due already, or expired before it was."""
    store.create_topic("t", expired="dead_letter")
    store.publish_many("t", numbered(2), delays=[10, 20], ttls=[None, 15])
    consumer = store.subscribe("t", "g")
    backend.advance(10)
    one(consumer).reject()
    backend.advance(10)
    assert consumer.get(timeout=0) is None
    assert store.dead_letters("t").replay() == 2
    assert values(take(consumer)) == [b"0", b"1"]


def test_a_letter_that_is_sent_back_is_no_duplicate_of_its_message(store: Store) -> None:
    """Though the topic remembers the message's deduplication key; and a publisher that sends that again gets the first receipt."""
    store.create_topic("t", dedup_window=600)
    store.publish("t", b"x", dedup_key="order-1")
    with store.subscribe("t", "g") as consumer:
        one(consumer).reject()
        assert store.dead_letters("t").replay() == 1
        assert values(drain(consumer)) == [b"x"]
    again = store.publish("t", b"x", dedup_key="order-1")
    assert (again.offset, again.duplicate) == (0, True)


def test_what_letters_keep_is_there_after_a_restart(lasting: Backend) -> None:
    """Priority, compression and how long it was to live."""
    store = lasting.open()
    store.create_topic("t", priorities=True, compression="gzip")
    store.publish_many("t", [LONG_VALUE, b"1"], priorities=[MEDIUM, HIGH], ttls=[None, 60])
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    store.flush()
    store = lasting.kill()
    assert store.dead_letters("t").replay() == 2
    store = lasting.reopen()
    with store.subscribe("t", "g") as consumer:
        again = drain(consumer)
    assert [(message.value, message.priority) for message in again] == [(b"1", HIGH), (LONG_VALUE, MEDIUM)]
    assert [message.expires_at is None for message in again] == [False, True]
