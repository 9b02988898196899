"""A disk that is full or fails: what is refused, what is told, and what is there afterwards."""

from __future__ import annotations

import errno
import random

import pytest

from penstock.errors import OutcomeUnknown, PenstockError, StorageFailed, StorageFull
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import open_simulated
from tests.conformance.helpers import drain, numbered, offsets, one, position, stored, take, values


def test_a_dead_letter_that_cannot_be_written_is_no_loss() -> None:
    """The disk is full when the message is to be buried: it stays with its group, and is buried when there is room."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.publish("t", bytes(3_000))
    consumer = store.subscribe("t", "g", max_deliveries=1)
    message = one(consumer)
    files.capacity_bytes = sum(map(len, files.files().values()))
    message.nack(reason="bad")
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.lag, numbers.dead_lettered) == (1, 0)
    files.capacity_bytes = None
    for _ in range(10):
        clock.advance(10)
        assert consumer.get(timeout=0) is None
    assert values(store.dead_letters("t").list()) == [bytes(3_000)]
    assert position(store, "t", "g") == 1
    store.close()


def test_a_full_disk_loses_nothing_and_consuming_goes_on() -> None:
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


def test_after_a_failed_sync_nothing_is_called_stored() -> None:
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


def test_an_ack_that_could_not_be_stored_is_told() -> None:
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
