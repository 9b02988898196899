"""A topic with very many partitions: who takes looks at those that have something to give, and misses none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Corrupt
from penstock.groups.cursor import Cursor
from penstock.groups.leasing import Leasing
from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from penstock import Delivery

PARTITIONS = 500
QUIET = 321
"""One of them, of which nothing is expected."""


def _made(messages: dict[int, int], partitions: int = PARTITIONS) -> Sim:
    sim = Sim()
    sim.store.create_topic("t", partitions=partitions)
    for partition, count in messages.items():
        sim.store.publish_many("t", numbered(count), partition=partition)
    return sim


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions from which somebody tried to lease, or whose backlog was counted, in order."""
    found: list[int] = []
    lease_of, backlog, has_more = Leasing._lease_of, Cursor.backlog, Cursor.has_more

    def counted_lease_of(leasing: Leasing, cursor: Cursor, *rest: Any) -> tuple[int, int]:
        found.append(cursor.partition)
        return lease_of(leasing, cursor, *rest)

    def counted(method: Callable[[Cursor], Any]) -> Callable[[Cursor], Any]:
        def looked(cursor: Cursor) -> Any:
            found.append(cursor.partition)
            return method(cursor)

        return looked

    monkeypatch.setattr(Leasing, "_lease_of", counted_lease_of)
    monkeypatch.setattr(Cursor, "backlog", counted(backlog))
    monkeypatch.setattr(Cursor, "has_more", counted(has_more))
    return found


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("ordered", [False, True])
def test_partitions_without_messages_are_not_looked_at(ordered: bool, consumers: int, visited: list[int]) -> None:
    sim = _made({7: 30})
    group = [sim.store.subscribe("t", "g", ordered=ordered, prefetch=5) for _ in range(consumers)]
    visited.clear()
    got = 0
    for _ in range(30):
        for consumer in group:
            found = consumer.get_many(5, timeout=0)
            consumer.ack(found)
            got += len(found)
    assert got == 30
    assert set(visited) == {7}
    visited.clear()
    assert [take(consumer) for consumer in group] == [[]] * consumers
    assert visited == []


@pytest.mark.parametrize("ordered", [False, True])
def test_after_a_publish_only_its_partition_is_looked_at(ordered: bool, visited: list[int]) -> None:
    sim = _made({})
    consumer = sim.store.subscribe("t", "g", ordered=ordered)
    visited.clear()
    for _ in range(3):
        sim.store.publish("t", b"x", partition=QUIET)
        one(consumer).ack()
        assert set(visited) == {QUIET}
    assert len(visited) < 10


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_waits_for_its_time_costs_nothing_until_it_is_due(ordered: bool, visited: list[int]) -> None:
    sim = _made({QUIET: 1})
    consumer = sim.store.subscribe("t", "g", ordered=ordered)
    one(consumer).nack(delay=60)
    assert take(consumer) == []
    visited.clear()
    for _ in range(10):
        sim.clock.advance(5)
        assert take(consumer) == []
    assert visited == []
    sim.clock.advance(20)
    assert one(consumer).partition == QUIET
    assert set(visited) == {QUIET}


def _nack(sim: Sim, held: Delivery) -> None:
    held.nack(delay=0)


def _nack_for_a_while(sim: Sim, held: Delivery) -> None:
    held.nack(delay=3)
    sim.clock.advance(4)


def _expire(sim: Sim, held: Delivery) -> None:
    sim.clock.advance(31)


def _give_back(sim: Sim, held: Delivery) -> None:
    held._lot.member.group.give_back(held)


def _seek(sim: Sim, held: Delivery) -> None:
    sim.store.seek("t", "g", "earliest", partition=QUIET)


def _close(sim: Sim, held: Delivery) -> None:
    sim.group().leave(held._lot.member)


def _close_during_a_transaction_that_fails(sim: Sim, held: Delivery) -> None:
    group = sim.group()
    reservation = group.reserve_acks([held], [])
    group.leave(held._lot.member)
    reservation.release()


@pytest.mark.parametrize(
    "how",
    [_nack, _nack_for_a_while, _expire, _give_back, _seek, _close, _close_during_a_transaction_that_fails],
    ids=lambda how: how.__name__[1:],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_whatever_comes_back_is_found_again(how: Callable[[Sim, Delivery], None], ordered: bool) -> None:
    """The partition had nothing left to give, and everybody has seen that."""
    sim = _made({QUIET: 1})
    consumers = [sim.store.subscribe("t", "g", ordered=ordered, lease=30) for _ in range(2)]
    (held,) = [message for consumer in consumers for message in take(consumer)]
    assert [message for consumer in consumers for message in take(consumer)] == []
    how(sim, held)
    found = [message for consumer in consumers if not consumer.closed for message in take(consumer)]
    assert [(message.partition, message.offset) for message in found] == [(QUIET, 0)]


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_there_when_the_store_is_opened_is_found(how: str, ordered: bool) -> None:
    sim = _made({QUIET: 3})
    consumer = sim.store.subscribe("t", "g", ordered=ordered)
    one(consumer)
    consumer.flush()
    getattr(sim, how)()
    consumer = sim.store.subscribe("t", "g")
    found = []
    while message := consumer.get(timeout=0):
        message.ack()
        found.append(message.offset)
    assert sorted(found) == [0, 1, 2]


def test_what_was_published_while_nobody_was_there_is_found() -> None:
    sim = _made({})
    with sim.store.subscribe("t", "g") as consumer:
        assert take(consumer) == []
    sim.store.publish("t", b"x", partition=QUIET)
    assert one(sim.store.subscribe("t", "g")).partition == QUIET


def test_a_group_that_is_ordered_from_now_on_finds_what_it_had() -> None:
    """And one that is not any more."""
    sim = _made({QUIET: 2})
    for ordered in (False, True, False):
        with sim.store.subscribe("t", "g", ordered=ordered) as consumer:
            assert one(consumer).partition == QUIET


@pytest.mark.parametrize("ordered", [False, True])
def test_partitions_take_turns(ordered: bool) -> None:
    """A long one does not keep the others waiting."""
    sim = _made({number: 100 if number == 2 else 1 for number in range(6)}, partitions=6)
    consumer = sim.store.subscribe("t", "g", ordered=ordered, prefetch=3)
    seen = []
    for _ in range(12):
        message = one(consumer)
        seen.append(message.partition)
        message.ack()
    assert set(seen) == set(range(6))


def test_a_damaged_partition_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = _made({0: 2, 1: 2, 2: 2}, partitions=3)
    consumer = sim.store.subscribe("t", "g")
    fresh_batch = Cursor.fresh_batch

    def damaged(cursor: Cursor) -> Any:
        if cursor.partition == 1:
            raise Corrupt("log", 0, "damaged")
        return fresh_batch(cursor)

    monkeypatch.setattr(Cursor, "fresh_batch", damaged)
    seen = []
    refusals = 0
    for _ in range(10):
        try:
            message = consumer.get(timeout=0)
        except Corrupt:
            refusals += 1
        else:
            assert message is not None
            message.ack()
            seen.append(message.partition)
    assert sorted(seen) == [0, 0, 2, 2]
    assert refusals == 6


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_committed_while_its_partition_is_looked_at_is_not_missed(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit comes when the partition was found empty, before that was written down, or just after."""
    sim = _made({0: 1}, partitions=2)
    consumer = sim.store.subscribe("t", "g", ordered=ordered)
    to_publish = [b"before", b"after"]
    lease_of, has_more = Leasing._lease_of, Cursor.has_more

    def published_before(leasing: Leasing, cursor: Cursor, *rest: Any) -> tuple[int, int]:
        found = lease_of(leasing, cursor, *rest)
        if len(to_publish) == 2:
            sim.store.publish("t", to_publish.pop(0), partition=0)
        return found

    def published_after(cursor: Cursor) -> bool:
        more = has_more(cursor)
        if len(to_publish) == 1 and not more:
            sim.store.publish("t", to_publish.pop(), partition=0)
        return more

    monkeypatch.setattr(Leasing, "_lease_of", published_before)
    monkeypatch.setattr(Cursor, "has_more", published_after)
    seen = []
    while message := consumer.get(timeout=0):
        message.ack()
        seen.append(bytes(message.value or b""))
    assert seen == [b"0", b"before", b"after"]


@pytest.mark.parametrize("ordered", [False, True])
def test_whatever_happens_everything_is_delivered(ordered: bool, rng: random.Random) -> None:
    """Members that come and go, failures and publishes, in any order: at the end all is finished."""
    for _ in range(20):
        sim = _made({}, partitions=8)
        consumers = [sim.store.subscribe("t", "g", ordered=ordered, prefetch=4, lease=30, max_deliveries=0)]
        published, acked = 0, set()
        for _ in range(60):
            kind = rng.choice(["publish", "get", "get", "get", "join", "leave", "advance"])
            consumer = rng.choice(consumers)
            if kind == "publish":
                sim.store.publish_many("t", numbered(count := rng.randint(1, 6)), partition=rng.randrange(8))
                published += count
            elif kind == "join" and len(consumers) < 3:
                consumers.append(sim.store.subscribe("t", "g", prefetch=rng.choice([2, 5])))
            elif kind == "leave" and len(consumers) > 1:
                consumers.remove(consumer)
                consumer.close()
            elif kind == "advance":
                sim.clock.advance(rng.choice([1, 31]))
            elif message := consumer.get(timeout=0):
                if rng.random() < 0.4:
                    message.ack()
                    acked.add((message.partition, message.offset))
                elif rng.random() < 0.5:
                    message.nack(delay=rng.choice([0, 2]))
        for _ in range(3):  # what failed in an ordered group holds back what comes behind it
            sim.clock.advance(40)
            for consumer in consumers:
                while message := consumer.get(timeout=0):
                    message.ack()
                    acked.add((message.partition, message.offset))
        assert len(acked) == published
