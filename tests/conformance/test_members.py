"""The members of a group: who they are, what they hold, and taking one out."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConsumerEvicted, GroupNotFound, LeaseExpired, MemberNotFound
from tests.conformance.helpers import PATIENCE, Running, numbered, until, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

INTERFACES = {
    "memory": "embedded", "directory": "embedded", "server": "native", "asyncio": "native", "http": "http", "grpc": "grpc",
}  # fmt: skip


def test_members_are_told_with_what_they_hold(backend: Backend) -> None:
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=10) as first:
        assert [message.value for message in first.get_many(3, timeout=5)] == numbered(3)
        [member] = store.members("t", "g")
        assert (member.interface, member.in_flight, member.prefetch, member.paused) == (INTERFACES[backend.name], 3, 10, False)
        assert member.partitions == []
        assert member.principal == ("" if member.interface == "embedded" else "everyone") or member.principal
        assert (member.peer == "") is (member.interface == "embedded")
        assert abs(member.since - member.last_heard) < dt.timedelta(minutes=10)
        with store.subscribe("t", "g"):
            assert len({one.id for one in store.members("t", "g")}) == 2
    until(lambda: store.members("t", "g") == [])


def test_a_member_has_the_name_that_it_gave_itself(store: Store) -> None:
    store.create_topic("t")
    with store.subscribe("t", "g", name="worker-3"):
        names = [member.name for member in store.members("t", "g")]
        assert "worker-3" in names


def test_partitions_of_an_ordered_group_are_told(store: Store) -> None:
    store.create_topic("t", partitions=3)
    with store.subscribe("t", "g", ordered=True), store.subscribe("t", "g", ordered=True):
        owned = [member.partitions for member in store.members("t", "g")]
        assert sorted(number for numbers in owned for number in numbers) == [0, 1, 2]


def test_what_an_evicted_member_held_goes_back_uncounted(store: Store) -> None:
    """Its consumer is told when it asks, and not before that; finishing what it held is too late."""
    store.publish_many("t", numbered(5))
    consumer = store.subscribe("t", "g")
    held = consumer.get_many(2, timeout=5)
    [member] = store.members("t", "g")
    assert store.evict_member("t", "g", member.id) >= 2
    assert store.members("t", "g") == []
    with store.subscribe("t", "g") as other:
        again = other.get_many(5, timeout=5)
        assert values(again) == numbered(5)
        assert [message.attempt for message in again] == [1] * 5
        with pytest.raises((ConsumerEvicted, LeaseExpired)):
            held[0].ack()
        with pytest.raises(ConsumerEvicted, match="subscribe again"):
            consumer.get(timeout=0)
        other.ack(again)
    consumer.close()
    assert store.stats().topics["t"].groups["g"].lag == 0


def test_one_who_waits_is_told_at_once(live_store: Store) -> None:
    live_store.create_topic("t")
    consumer = live_store.subscribe("t", "g")
    waiting = Running(lambda: consumer.get(timeout=PATIENCE))
    until(lambda: live_store.members("t", "g"))
    live_store.evict_member("t", "g", live_store.members("t", "g")[0].id)
    with pytest.raises(ConsumerEvicted):
        waiting.result()
    consumer.close()
    with live_store.subscribe("t", "g") as again:
        live_store.publish("t", b"x")
        message = again.get(timeout=PATIENCE)
        assert message is not None
        assert message.value == b"x"


def test_one_who_iterates_is_told(live_store: Store) -> None:
    """Also with messages that were pushed ahead: none of them is handled by two."""
    live_store.publish_many("t", numbered(20))
    consumer = live_store.subscribe("t", "g")
    handled: list[bytes | None] = []
    begun = threading.Event()
    go_on = threading.Event()

    def iterate() -> None:
        for message in consumer:
            handled.append(message.value)
            begun.set()
            assert go_on.wait(PATIENCE)

    run = Running(iterate)
    assert begun.wait(PATIENCE)
    live_store.evict_member("t", "g", live_store.members("t", "g")[0].id)
    go_on.set()
    with pytest.raises(ConsumerEvicted):
        run.result()
    consumer.close()
    with live_store.subscribe("t", "g") as other:
        found: list[Any] = []
        while len(found) < 20:
            found += other.get_many(20, timeout=PATIENCE)
        assert {*values(found)} == {*numbered(20)}
        assert {message.attempt for message in found} == {1}


def test_partitions_of_an_evicted_member_go_to_others(store: Store) -> None:
    store.create_topic("t", partitions=2)
    store.publish("t", b"a", partition=0)
    store.publish("t", b"b", partition=1)
    first = store.subscribe("t", "g", ordered=True)
    assert len(first.get_many(2, timeout=5)) == 2
    [member] = store.members("t", "g")
    with store.subscribe("t", "g", ordered=True) as second:
        store.evict_member("t", "g", member.id)
        assert {*values(second.get_many(2, timeout=5) + second.get_many(2, timeout=0))} == {b"a", b"b"}
    first.close()


def test_who_is_not_there_cannot_be_evicted(store: Store) -> None:
    store.create_topic("t")
    with pytest.raises(GroupNotFound):
        store.members("t", "g")
    with store.subscribe("t", "g"):
        with pytest.raises(MemberNotFound):
            store.evict_member("t", "g", "0123")
        assert len(store.members("t", "g")) == 1


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_that_was_evicted_goes_on(live: Backend, kind: str) -> None:
    """It subscribes again: what it was handling comes again, and nothing is lost."""
    store = live.open()
    if live.name in ("http", "grpc", "asyncio"):
        pytest.skip("it has no workers")
    store.publish("t", b"first")
    seen: list[bytes | None] = []
    if kind == "plain":
        store.worker("t", group="g", concurrency=2)(lambda message: seen.append(message.value))
    else:

        @store.worker("t", group="g", concurrency=2)
        async def handle(message: Any) -> None:
            seen.append(message.value)

    run = Running(store.run)
    until(lambda: seen == [b"first"])
    [old] = store.members("t", "g")
    store.evict_member("t", "g", old.id)
    store.publish("t", b"second")
    until(lambda: seen == [b"first", b"second"])
    [new] = store.members("t", "g")
    assert new.id != old.id
    store.stop()
    run.result()
