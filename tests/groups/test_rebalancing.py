"""Ordered groups whose members come and go: partitions move as little as possible, and never while somebody works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    import random

    from penstock import Consumer, Delivery


def _made(partitions: int, messages: int) -> Sim:
    sim = Sim()
    sim.store.create_topic("t", partitions=partitions)
    for partition in range(partitions):
        sim.store.publish_many("t", numbered(messages), partition=partition)
    return sim


def _partitions(messages: list[Delivery]) -> set[int]:
    return {message.partition for message in messages}


def _owned(sim: Sim) -> list[list[int]]:
    """The partitions of each member, in the order in which they joined."""
    return [sorted(cursor.partition for cursor in member.cursors) for member in sim.group().members]


def test_a_new_member_gets_its_share_at_once_where_nobody_works() -> None:
    """The partitions of which nothing is in anybody's hands."""
    sim = _made(4, 2)
    first = sim.store.subscribe("t", "g", ordered=True)
    second = sim.store.subscribe("t", "g")
    assert sorted(map(len, _owned(sim))) == [2, 2]
    assert _partitions(take(first)) | _partitions(take(second)) == {0, 1, 2, 3}


def test_what_was_leased_and_not_handed_out_goes_with_its_partition() -> None:
    """It lies in the prefetch of the old member, and is delivered by the new one, in order and uncounted."""
    sim = _made(2, 3)
    first = sim.store.subscribe("t", "g", ordered=True, prefetch=100)
    held = one(first)
    second = sim.store.subscribe("t", "g")
    moved = take(second)
    assert [(message.offset, message.attempt) for message in moved] == [(0, 1), (1, 1), (2, 1)]
    assert _partitions(moved) == {1 - held.partition}
    assert [message.offset for message in take(first)] == [1, 2]


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "expire", "close", "commit", "transaction", "seek"])
def test_a_partition_in_use_moves_when_its_last_message_is_given_up(how: str) -> None:
    """Until then its new owner gets nothing of it, and its old one no more."""
    sim = _made(2, 3)
    first = sim.store.subscribe("t", "g", ordered=True, lease=30, max_deliveries=0)
    held = [one(first), one(first), one(first), one(first)]
    assert _partitions(held) == {0, 1}
    second = sim.store.subscribe("t", "g")
    assert take(second) == []
    moving = next(cursor for cursor in sim.group().cursors if cursor.successor is not None)
    own = [message for message in held if message.partition == moving.partition]
    rest = [message for message in held if message.partition != moving.partition]
    assert moving.partition not in _partitions(take(first))
    *others, last = own
    for message in others:
        message.ack()
    assert take(second) == [], "one is still in its hands"
    expected = [last.offset + 1]
    if how == "ack":
        last.ack()
    elif how == "nack":
        last.nack(delay=0)
        expected = [last.offset]
    elif how == "reject":
        last.reject()
    elif how == "expire":
        for message in rest:
            message.extend(1_000)
        sim.clock.advance(31)
        expected = [last.offset]
    elif how == "close":
        first.close()
        expected = [last.offset]
    elif how == "commit":
        first.commit(last)
    elif how == "transaction":
        with sim.store.transaction() as transaction:
            transaction.ack(last)
    else:
        sim.store.seek("t", "g", 0, partition=moving.partition)
        expected = [0]
    found = [message for message in take(second) if message.partition == moving.partition]
    assert [message.offset for message in found][:1] == expected


def test_a_member_that_leaves_before_its_partition_came_changes_nothing() -> None:
    """The old owner goes on as if it had never been there."""
    sim = _made(2, 3)
    first = sim.store.subscribe("t", "g", ordered=True, prefetch=4)
    held = take(first)
    assert len(held) == 4
    second = sim.store.subscribe("t", "g")
    second.close()
    assert _owned(sim) == [[0, 1]]
    for message in held:
        message.ack()
    assert len(take(first)) == 2


def test_two_that_join_while_one_works_share_evenly() -> None:
    """Whoever is to get a partition may change while it waits."""
    sim = _made(6, 1)
    first = sim.store.subscribe("t", "g", ordered=True)
    held = take(first)
    assert len(held) == 6
    others = [sim.store.subscribe("t", "g") for _ in range(2)]
    for message in held:
        message.nack(delay=0)
    assert sorted(map(len, _owned(sim))) == [2, 2, 2]
    assert sorted(len(take(consumer)) for consumer in (first, *others)) == [2, 2, 2]


def test_who_has_no_partition_gets_nothing_and_takes_over_when_one_leaves() -> None:
    """More members than partitions."""
    sim = _made(1, 2)
    first = sim.store.subscribe("t", "g", ordered=True)
    spare = sim.store.subscribe("t", "g")
    assert one(first).offset == 0
    assert take(spare) == []
    first.close()
    assert [message.offset for message in take(spare)] == [0, 1]


def test_a_delay_holds_for_the_new_owner(rng: random.Random) -> None:
    """What failed comes first, and not before it is due, whoever has the partition."""
    sim = _made(1, 2)
    first = sim.store.subscribe("t", "g", ordered=True, max_deliveries=0)
    one(first).nack(delay=50)
    first.close()
    second = sim.store.subscribe("t", "g")
    assert take(second) == []
    sim.clock.advance(52)
    assert [(message.offset, message.attempt) for message in take(second)] == [(0, 2), (1, 1)]


class _Ordered:
    """An ordered group under random members; checks order and that each partition is with one of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sim = _made(5, 0)
        self.next = [0] * 5
        self.published = [0] * 5
        self.held: dict[int, list[Any]] = {partition: [] for partition in range(5)}
        self.consumers: list[Consumer] = []

    def step(self) -> None:
        rng = self.rng
        kind = rng.choices(["publish", "get", "ack", "nack", "join", "leave", "advance"], [6, 14, 12, 3, 3, 1, 1])[0]
        if kind == "publish":
            partition = rng.randrange(5)
            self.sim.store.publish_many("t", numbered(2), partition=partition)
            self.published[partition] += 2
        elif kind == "join" or not self.consumers:
            if len(self.consumers) < 7:
                self.consumers.append(
                    self.sim.store.subscribe("t", "g", ordered=True, prefetch=rng.choice([1, 3, 20]), max_deliveries=0)
                )
        elif kind == "get":
            self.get(rng.choice(self.consumers), rng.randint(1, 4))
        elif kind == "leave":
            consumer = self.consumers.pop(rng.randrange(len(self.consumers)))
            for messages in self.held.values():
                if messages and messages[0]._lot.member is consumer._member:
                    messages.clear()
            consumer.close()
        elif kind == "advance":
            self.sim.clock.advance(1)
        else:
            self.finish(kind, rng.randrange(5))
        owners = [cursor.member for cursor in self.sim.group().cursors] if self.consumers else []
        assert all(owner is not None and not owner.closed for owner in owners)

    def get(self, consumer: Consumer, count: int) -> None:
        for message in consumer.get_many(count, timeout=0):
            messages = self.held[message.partition]
            assert all(one._lot.member is consumer._member for one in messages), "two work on one partition"
            assert message.offset == self.next[message.partition] + len(messages), "not in order"
            messages.append(message)

    def finish(self, kind: str, partition: int) -> None:
        messages = self.held[partition]
        if not messages:
            return
        if kind == "ack":
            messages.pop(0).ack()
            self.next[partition] += 1
        else:
            # What is behind it comes again, too.
            at = self.rng.randrange(len(messages))
            messages[at].nack(delay=self.rng.choice([0, 0.5]))
            del messages[at:]


def test_order_holds_whoever_comes_and_goes(rng: random.Random) -> None:
    """At the end everything was finished once, each partition in order."""
    for _ in range(30):
        ordered = _Ordered(rng)
        for _ in range(250):
            ordered.step()
        if not ordered.consumers:
            ordered.consumers.append(ordered.sim.store.subscribe("t", "g", ordered=True))
        for _ in range(200):
            ordered.sim.clock.advance(1)
            for consumer in ordered.consumers:
                ordered.get(consumer, 10)
            for partition in range(5):
                while ordered.held[partition]:
                    ordered.finish("ack", partition)
        assert ordered.next == ordered.published
        assert ordered.sim.store.stats().topics["t"].groups["g"].lag == 0
