"""Bugs that real queues shipped: rows D of the list of pitfalls; `test_pitfalls.py` says where the other rows are."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import OffsetOutOfRange, OutcomeUnknown, PenstockError, StorageFailed, StorageFull
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import open_simulated
from tests.conformance.helpers import drain, numbered, offsets, one, position, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_d1_a_full_disk_loses_nothing_and_consuming_goes_on() -> None:
    """Publishing is refused, whole; delivery and acks go on; with room publishing goes on; after a crash all is there."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock, reserve_bytes=64 * 1024)
    store.create_topic("t")
    consumer = store.subscribe("t", "g", prefetch=10)
    files.capacity_bytes = sum(map(len, files.files().values())) + 100_000
    count = 0
    with pytest.raises(StorageFull):
        while True:
            store.publish("t", b"%d " % count + bytes(500))
            count += 1
    assert count > 10
    assert len(stored(store, "t")) == count
    for _ in range(10):
        one(consumer).ack(wait=True)
    assert position(store, "t", "g") == 10
    files.capacity_bytes = None
    assert store.publish("t", b"room").offset == count
    again = open_simulated(files.crash(random.Random(1), keep="nothing"), clock)
    assert len(stored(again, "t")) == count + 1
    assert position(again, "t", "g") == 10


def test_d2_after_a_failed_sync_nothing_is_called_stored() -> None:
    """The publish is of unknown outcome, every later one is refused, acks too; what was stored before is there after reopening."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.publish_many("t", numbered(5))
    consumer = store.subscribe("t", "g")
    held = take(consumer)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises((OutcomeUnknown, StorageFailed)):
        store.publish("t", b"lost?")
    for call in (
        lambda: store.publish("t", b"x"),
        lambda: store.publish_many("t", [b"x"]),
        lambda: held[0].ack(wait=True),
        lambda: store.seek("t", "g", "earliest"),
        lambda: store.create_topic("new"),
    ):
        with pytest.raises(PenstockError):
            call()
    assert stored(store, "t")[:5] == numbered(5)
    again = open_simulated(files.crash(random.Random(1), keep="nothing"), clock)
    assert stored(again, "t")[:5] == numbered(5)
    assert len(stored(again, "t")) <= 6
    assert position(again, "t", "g") == 0


def test_d4_a_dead_letter_does_not_hold_the_position_back(lasting: Backend) -> None:
    """Its offset is finished like any: the position passes it, and a restart does not bring it back."""
    store = lasting.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack(delay=0)
        drain(consumer)
        assert position(store, "t", "g") == 5
        consumer.flush()
    for restart in (lasting.kill, lasting.reopen):
        store = restart()
        assert position(store, "t", "g") == 5
        assert len(store.dead_letters("t")) == 1


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_d5_a_crash_anywhere_in_a_burial_leaves_one_of_source_and_grave(keep: Any, seed: int) -> None:
    """At every operation of the disk, power fails: the message is with its group or among the dead letters, never both, never neither."""
    print("seed", seed)
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.publish_many("t", numbered(3))
    consumer = store.subscribe("t", "g", max_deliveries=1)
    held = take(consumer)
    held[0].ack(wait=True)
    states: list[SimulatedFileSystem] = []
    rng = random.Random(seed)
    files.on_operation = lambda _: states.append(files.crash(rng, keep=keep))
    held[1].nack(reason="bad")
    states.append(files.crash(rng, keep=keep))
    files.on_operation = None
    assert len(states) > 3
    graves = set()
    for state in states:
        again = open_simulated(state, clock)
        dead = values(again.dead_letters("t").list())
        clock.advance(3_600)
        consumer = again.subscribe("t", "g", max_deliveries=3)
        alive = values(drain(consumer))
        assert sorted(alive + dead, key=lambda value: value or b"") == [b"1", b"2"]
        graves.add(tuple(dead))
        again.close()
    assert graves == {(), (b"1",)}


def test_d6_a_fresh_group_behind_the_floor_makes_durable_progress(lasting: Backend) -> None:
    """Its first ack is of an offset that is not 0, and it stays."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    for value in numbered(12):
        store.publish("t", value)
    lasting.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    floor = next(iter(store.read("t"))).offset
    assert floor > 0
    for turn in range(2):
        with store.subscribe("t", "fresh") as consumer:
            message = one(consumer)
            assert message.offset == floor + turn
            message.ack()
        store = lasting.reopen()
        assert position(store, "t", "fresh") == floor + turn + 1


def test_d7_what_was_acked_above_a_gap_does_not_come_again(lasting: Backend) -> None:
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


def test_d8_nobody_is_delivered_to_who_is_not_there(backend: Backend) -> None:
    """A group without members for a week: nothing is counted, nothing is buried unseen."""
    store = backend.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        take(consumer)
    for _ in range(100):
        backend.advance(6_000)
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        assert {message.attempt for message in take(consumer)} <= {1, 2}
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.dead_lettered, numbers.expired_leases) == (0, 0)


def test_d9_a_new_member_has_a_window_of_its_own(store: Store) -> None:
    """What the one before it held does not stand in its way."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert len(take(consumer)) == 4
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert offsets(take(consumer)) == [0, 1, 2, 3]


def test_d10_attempts_are_not_forgotten(lasting: Backend) -> None:
    """Neither by leaving and coming, nor by a restart."""
    store = lasting.open()
    store.publish("t", b"x")
    expected = 1
    for restart in (None, lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=10) as consumer:
            message = one(consumer)
            assert message.attempt == expected
            message.nack(delay=0)
            expected += 1
            consumer.flush()
        if restart is not None:
            store = restart()


def test_d15_a_backlog_larger_than_the_window_with_acks_that_wait(live_store: Store) -> None:
    """Each ack waits for the disk while the window is full: no deadlock."""
    live_store.publish_many("t", numbered(300))
    seen = []
    with live_store.subscribe("t", "g", prefetch=8) as consumer:
        for message in consumer:
            message.ack(wait=True)
            seen.append(message.offset)
            if len(seen) == 300:
                break
    assert seen == list(range(300))


def test_d16_an_ack_that_could_not_be_stored_is_told() -> None:
    """The caller that waits gets the error, and after a restart the message comes again."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.publish_many("t", numbered(2))
    consumer = store.subscribe("t", "g")
    message = one(consumer)
    consumer.flush()
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises((OutcomeUnknown, StorageFailed)):
        message.ack(wait=True)
    again = open_simulated(files.crash(random.Random(1), keep="nothing"), clock)
    clock.advance(60)
    assert offsets(drain(again.subscribe("t", "g"))) == [0, 1]


def test_d18_a_consumer_that_cannot_read_says_so(backend: Backend) -> None:
    """It does not hang and does not pass over: the error comes from get, each time."""
    store = backend.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    consumer = store.subscribe("t", "g", reset="fail")
    for value in numbered(12):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    for _ in range(3):
        with pytest.raises(OffsetOutOfRange):
            consumer.get(timeout=0)
    assert position(store, "t", "g") == 0


def test_d22_a_message_that_waits_does_not_hold_up_those_behind_it(store: Store) -> None:
    """One that was nacked with a delay, and one that was published with it."""
    store.publish("t", b"later", delay=3_600)
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=3_600)
        assert offsets(drain(consumer)) == list(range(2, 11))
