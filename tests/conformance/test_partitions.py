"""Partitions: every message has one, keys find theirs again, and all of them are consumed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import TopicExists, TopicNotFound, UsageError
from tests.conformance.helpers import drain, numbered, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_a_consumer_gets_all_partitions_each_in_order(backend: Backend) -> None:
    """4 partitions of 25: offsets rise in each, order is that of publishing, exact counts, no leakage; keys stay; bad ones are errors."""
    store = backend.open()
    store.create_topic("t", partitions=4)
    store.create_topic("other", partitions=4)
    for number in range(100):
        store.publish("t", b"%d" % number, partition=number % 4)
        store.publish("other", b"leak", partition=number % 4)
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    with store.subscribe("t", "g") as consumer:
        for message in drain(consumer):
            seen[message.partition].append((message.offset, int(message.value or b"")))
    assert dict(seen) == {partition: [(at, at * 4 + partition) for at in range(25)] for partition in range(4)}
    with pytest.raises((TopicNotFound, UsageError)):
        store.publish("t", b"x", partition=4)
    with pytest.raises((TopicNotFound, UsageError)):
        store.publish("t", b"x", partition=-1)
    with pytest.raises(TopicExists):
        store.create_topic("t", partitions=5)
    before = [store.publish("t", b"", key=b"user-%d" % number).partition for number in range(50)]
    if backend.keeps_data:
        store = backend.reopen()
        assert [store.publish("t", b"", key=b"user-%d" % number).partition for number in range(50)] == before


@pytest.mark.parametrize("partitions", [1, 2, 4, 8])
def test_every_message_of_every_partition_is_consumed(store: Store, partitions: int) -> None:
    """A backlog of two thousand, round robin, taken ten at a time: none is skipped."""
    store.create_topic("t", partitions=partitions)
    for partition in range(partitions):
        store.publish_many("t", numbered(2_000)[partition::partitions], partition=partition)
    seen = []
    with store.subscribe("t", "g") as consumer:
        while batch := consumer.get_many(10, timeout=0):
            consumer.ack(batch)
            seen += values(batch)
    assert sorted(seen, key=lambda value: int(value or b"")) == numbered(2_000)


GOLDEN_PLACES = {b"": 0, b"a": 14, b"user-1": 4, b"user-2": 8, "é".encode(): 6, bytes(range(256)): 14}
"""Of sixteen partitions. They are part of the data's meaning: a change here breaks the order of every key that is stored."""


def test_any_key_finds_a_partition_and_always_the_same(store: Store) -> None:
    """Ten thousand keys, and the places of some written down: they hold for every process and every version."""
    store.create_topic("t", partitions=16)
    keys = [b"key-%d" % number for number in range(10_000)]
    receipts = store.publish_many("t", [b""] * 10_000, keys=keys)
    assert {receipt.partition for receipt in receipts} == set(range(16))
    assert {key: store.publish("t", b"", key=key).partition for key in GOLDEN_PLACES} == GOLDEN_PLACES


@pytest.mark.parametrize("ordered", [False, True])
def test_two_members_do_not_both_read_everything(store: Store, ordered: bool) -> None:
    """Each message goes to one of them."""
    store.create_topic("t", partitions=4)
    for value in numbered(40):
        store.publish("t", value, partition=int(value) % 4)
    with (
        store.subscribe("t", "g", ordered=ordered, prefetch=5) as a,
        store.subscribe("t", "g", ordered=ordered, prefetch=5) as b,
    ):
        seen: list[Any] = []
        while got := a.get_many(3, timeout=0) + b.get_many(3, timeout=0):
            for message in got:
                message.ack()
                seen.append((message.partition, message.offset))
    assert sorted(seen) == [(partition, offset) for partition in range(4) for offset in range(10)]
