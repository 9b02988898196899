"""Ordered groups: a partition has one member, and its messages are handled one after the other whatever fails."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LeaseExpired, UsageError
from tests.conformance.helpers import PATIENCE, Running, drain, numbered, offsets, one, position, take, values

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from penstock import Message, Store
    from tests.conformance.backends import Backend


def fill(store: Store, partitions: int, count: int) -> None:
    """Topic t with *count* messages in each partition."""
    store.create_topic("t", partitions=partitions)
    for partition in range(partitions):
        store.publish_many("t", numbered(count), partition=partition)


def by_partition(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Offsets in the order of their delivery."""
    found: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        found[message.partition].append(message.offset)
    return dict(found)


def test_one_member_gets_all_partitions_in_order(store: Store) -> None:
    """Each from its beginning to its end."""
    fill(store, 4, 10)
    with store.subscribe("t", "g", ordered=True) as consumer:
        assert by_partition(drain(consumer)) == {partition: list(range(10)) for partition in range(4)}


def test_each_partition_belongs_to_one_member(store: Store) -> None:
    """Two members have two partitions each, and share none."""
    fill(store, 4, 10)
    with store.subscribe("t", "g", ordered=True) as first, store.subscribe("t", "g", ordered=True) as second:
        mine, yours = by_partition(drain(first)), by_partition(drain(second))
    assert len(mine) == len(yours) == 2
    assert mine | yours == {partition: list(range(10)) for partition in range(4)}


def test_a_member_too_many_waits(store: Store) -> None:
    """Two partitions have work for two; the third gets something when one leaves."""
    fill(store, 2, 3)
    members = [store.subscribe("t", "g", ordered=True) for _ in range(3)]
    shares = [len(drain(member)) for member in members]
    assert sorted(shares) == [0, 3, 3]
    for partition in range(2):
        store.publish("t", b"more", partition=partition)
    members[shares.index(3)].close()
    left = [member for index, member in enumerate(members) if index != shares.index(3)]
    assert sorted(len(drain(member)) for member in left) == [1, 1]


def test_a_failed_message_holds_back_its_partition_and_no_other(backend: Backend) -> None:
    """Nothing overtakes it; the other partition goes on."""
    store = backend.open()
    fill(store, 2, 5)
    with store.subscribe("t", "g", ordered=True) as consumer:
        stuck = None
        seen = []
        while (message := consumer.get(timeout=0)) is not None:
            if message.partition == 0:
                stuck = message
                message.nack(delay=60)
            else:
                seen.append(message.offset)
                message.ack()
        assert stuck is not None
        assert stuck.offset == 0
        assert seen == [0, 1, 2, 3, 4]
        backend.advance(59)
        assert consumer.get(timeout=0) is None
        backend.advance(5)
        got = drain(consumer)
        assert [(message.partition, message.offset) for message in got] == [(0, offset) for offset in range(5)]
        assert [message.attempt for message in got] == [2, 1, 1, 1, 1]


def test_what_was_handed_out_behind_a_failed_message_comes_again_behind_it(backend: Backend) -> None:
    """Its order would be broken otherwise: the later ones are void, uncounted, and follow the failed one."""
    store = backend.open()
    fill(store, 1, 5)
    with store.subscribe("t", "g", ordered=True) as consumer:
        held = take(consumer)
        assert offsets(held) == [0, 1, 2, 3, 4]
        held[0].ack()
        held[1].nack(delay=10)
        for later in held[2:]:
            with pytest.raises(LeaseExpired):
                later.ack()
        assert consumer.get(timeout=0) is None
        backend.advance(11)
        assert offsets(drain(consumer)) == [1, 2, 3, 4]
        assert position(store, "t", "g") == 5


def test_an_expired_lease_keeps_the_order_too(backend: Backend) -> None:
    """The message whose lease ended comes again, then the ones behind it."""
    store = backend.open()
    fill(store, 1, 4)
    with store.subscribe("t", "g", ordered=True, lease=10) as consumer:
        late = one(consumer)
        backend.advance(11)
        got = drain(consumer)
        assert [(message.offset, message.attempt) for message in got] == [(0, 2), (1, 1), (2, 1), (3, 1)]
        with pytest.raises(LeaseExpired):
            late.ack()


def test_a_dead_letter_frees_its_partition(store: Store) -> None:
    """What can never be handled does not block for ever."""
    fill(store, 1, 4)
    with store.subscribe("t", "g", ordered=True, max_deliveries=2) as consumer:
        one(consumer).nack(delay=0)
        one(consumer).nack(delay=0)
        assert offsets(drain(consumer)) == [1, 2, 3]
        assert len(store.dead_letters("t")) == 1


def test_partitions_move_to_those_who_stay(store: Store) -> None:
    """A member that leaves hands on its partitions, with what it had not finished first."""
    fill(store, 4, 5)
    first = store.subscribe("t", "g", ordered=True)
    second = store.subscribe("t", "g", ordered=True)
    held = take(first, 2)
    first.close()
    got = by_partition(drain(second))
    assert got == {partition: list(range(5)) for partition in range(4)}
    for message in held:
        with pytest.raises(Exception, match=r"lease|closed"):
            message.ack()
    second.close()


def test_partitions_move_to_those_who_come(store: Store) -> None:
    """A new member gets its share once the old one has finished what it holds; nothing is handled by both at once."""
    fill(store, 2, 6)
    with store.subscribe("t", "g", ordered=True) as first:
        held = take(first, 4)
        with store.subscribe("t", "g", ordered=True) as second:
            early = take(second)
            in_hand = {(message.partition, message.offset) for message in held}
            assert not in_hand & {(message.partition, message.offset) for message in early}
            first.ack(held)
            second.ack(early)
            mine, yours = drain(first), drain(second)
            everything = by_partition(held + early) | {}
            for part in (mine, yours):
                for partition, order in by_partition(part).items():
                    everything[partition] = everything.get(partition, []) + order
            assert everything == {0: list(range(6)), 1: list(range(6))}
            assert len({message.partition for message in mine}) <= 1
            assert len({message.partition for message in early + yours}) == 1


def test_those_who_stay_keep_what_they_have(store: Store) -> None:
    """Assignment is sticky: a member that leaves moves its own partitions only."""
    store.create_topic("t", partitions=6)
    members = [store.subscribe("t", "g", ordered=True) for _ in range(3)]

    def shares() -> list[set[int]]:
        for partition in range(6):
            store.publish("t", b"x", partition=partition)
        return [{message.partition for message in drain(member)} for member in members]

    before = shares()
    assert sorted(map(len, before)) == [2, 2, 2]
    members.pop(1).close()
    before.pop(1)
    after = shares()
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert sorted(map(len, after)) == [3, 3]
    for member in members:
        member.close()


def test_the_order_of_a_key_is_kept_whatever_fails(backend: Backend, rng: random.Random, seed: int) -> None:
    """Members come and go, handlers fail and are late at random: the acks of each key come in its order, each once."""
    print("seed", seed)
    store = backend.open()
    store.create_topic("t", partitions=3)
    for number in range(120):
        key = b"key-%d" % rng.randrange(12)
        store.publish("t", b"%d" % number, key=key)
    acked: dict[bytes | None, list[int]] = defaultdict(list)
    members = [store.subscribe("t", "g", ordered=True, lease=10, max_deliveries=0, prefetch=5) for _ in range(2)]
    for _ in range(5_000):
        if sum(map(len, acked.values())) == 120:
            break
        chance = rng.random()
        if chance < 0.02 and len(members) > 1:
            members.pop(rng.randrange(len(members))).close()
        elif chance < 0.05 and len(members) < 4:
            members.append(store.subscribe("t", "g", ordered=True, lease=10, max_deliveries=0, prefetch=5))
        elif chance < 0.10:
            backend.advance(rng.choice([1, 11]))
        messages = rng.choice(members).get_many(rng.randint(1, 4), timeout=0)
        if rng.random() < 0.05:
            backend.advance(11)
        for message in messages:
            # What lies behind a message that failed is not the member's any more, and refuses to be finished.
            with contextlib.suppress(LeaseExpired):
                if rng.random() < 0.1:
                    message.nack(delay=rng.choice([0, 1]))
                else:
                    message.ack()
                    acked[message.key].append(int(message.value or b""))
        backend.advance(0.1)
    assert sum(map(len, acked.values())) == 120
    assert all(order == sorted(order) for order in acked.values())
    assert store.stats().topics["t"].groups["g"].lag == 0
    for member in members:
        member.close()


def test_a_group_is_ordered_or_not_from_its_beginning(store: Store) -> None:
    """Members must agree: what another one relies on cannot be changed under it."""
    store.create_topic("t")
    with store.subscribe("t", "g", ordered=True):
        assert store.groups()[0].ordered
        with pytest.raises(UsageError):
            store.subscribe("t", "g", ordered=False)


def test_seek_works_in_order_too(store: Store) -> None:
    """From the new place on, one after the other."""
    fill(store, 1, 6)
    with store.subscribe("t", "g", ordered=True) as consumer:
        held = take(consumer, 3)
        store.seek("t", "g", 4)
        with pytest.raises(LeaseExpired):
            held[0].ack()
        assert offsets(drain(consumer)) == [4, 5]


def test_a_waiting_member_is_woken_by_a_partition_that_becomes_its_own(live_store: Store) -> None:
    """The member that waited gets the messages of the one that left."""
    live_store.create_topic("t")
    first = live_store.subscribe("t", "g", ordered=True)
    second = live_store.subscribe("t", "g", ordered=True)
    live_store.publish("t", b"x")
    message = first.get(timeout=1)
    holder, waiter = (first, second) if message is not None else (second, first)
    if message is None:
        message = holder.get(timeout=PATIENCE)
    assert message is not None
    waiting = Running(lambda: waiter.get(timeout=PATIENCE))
    holder.close()
    assert values([waiting.result()]) == [b"x"]
    waiter.close()


def test_threads_of_one_ordered_group_see_each_partition_in_order(live_store: Store) -> None:
    """Three members in three threads while messages are published: order in each partition, nothing twice."""
    live_store.create_topic("t", partitions=3)
    seen: list[tuple[int, int]] = []

    def consume() -> None:
        with live_store.subscribe("t", "g", ordered=True) as consumer:
            while len(seen) < 150:
                message = consumer.get(timeout=0.1)
                if message is not None:
                    seen.append((message.partition, message.offset))
                    message.ack()

    members = [Running(consume) for _ in range(3)]
    for number in range(150):
        live_store.publish("t", b"x", partition=number % 3)
    for member in members:
        member.result()
    for partition in range(3):
        order = [offset for where, offset in seen if where == partition]
        assert sorted(set(order)) == list(range(50))
        assert order == sorted(order)
