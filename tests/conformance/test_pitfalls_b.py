"""Bugs that real queues shipped: rows B of the list of pitfalls; `test_pitfalls.py` says where the other rows are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import open_simulated
from tests.conformance.helpers import PATIENCE, drain, numbered, offsets, one, position, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


@pytest.mark.parametrize("partitions", [1, 2, 4, 8])
def test_b1_every_message_of_every_partition_is_consumed(store: Store, partitions: int) -> None:
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


def test_b2_a_message_that_always_fails_is_buried_and_not_called_handled(store: Store) -> None:
    """The error of the last try is the one that is told."""
    store.publish("t", b"poison")
    with store.subscribe("t", "g", max_deliveries=3, backoff=0) as consumer:
        for attempt in range(1, 4):
            with pytest.raises(ValueError, match="broken"), one(consumer):
                raise ValueError(f"broken {attempt}")
        assert consumer.get(timeout=0) is None
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.acked, numbers.dead_lettered) == (0, 1)
    (letter,) = store.dead_letters("t").list()
    assert letter.headers["x-dlq-reason"] == b"ValueError: broken 3"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_b3_a_shutdown_is_no_failure(store: Store, error: type[BaseException]) -> None:
    """A healthy message that was interrupted comes again at once, uncounted, and is never buried for it."""
    store.publish("t", b"healthy")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for _ in range(5):
            message = one(consumer)
            assert message.attempt == 1
            with pytest.raises(error), message:
                raise error
        with one(consumer):
            pass
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.acked, numbers.nacked, numbers.dead_lettered) == (1, 0, 0)
    assert len(store.dead_letters("t")) == 0


@pytest.mark.parametrize("allowed", [1, 2, 3, 4])
def test_b4_as_many_tries_as_were_allowed(store: Store, allowed: int) -> None:
    """Not one more."""
    store.publish("t", b"x")
    tries = 0
    with store.subscribe("t", "g", max_deliveries=allowed) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            tries += 1
            message.nack(delay=0)
    assert tries == allowed
    assert store.dead_letters("t").list()[0].headers["x-dlq-deliveries"] == b"%d" % allowed


def test_b5_a_dead_letter_that_cannot_be_written_is_no_loss() -> None:
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


def test_b6_what_one_group_does_to_a_message_no_other_sees(store: Store) -> None:
    """Attempts, reasons and headers belong to a delivery; the message is the same for all."""
    store.publish("t", b"x", headers={"h": b"1"})
    with store.subscribe("t", "a", max_deliveries=10) as a, store.subscribe("t", "b") as b:
        for _ in range(4):
            one(a).nack(delay=0, reason="a's own trouble")
        mine, theirs = one(a), one(b)
        (read,) = store.read("t")
        assert (mine.attempt, theirs.attempt) == (5, 1)
        assert list(mine.headers) == list(theirs.headers) == list(read.headers) == [("h", b"1")]


GOLDEN_PLACES = {b"": 0, b"a": 14, b"user-1": 4, b"user-2": 8, "é".encode(): 6, bytes(range(256)): 14}
"""Of sixteen partitions. They are part of the data's meaning: a change here breaks the order of every key that is stored."""


def test_b8_any_key_finds_a_partition_and_always_the_same(store: Store) -> None:
    """Ten thousand keys, and the places of some written down: they hold for every process and every version."""
    store.create_topic("t", partitions=16)
    keys = [b"key-%d" % number for number in range(10_000)]
    receipts = store.publish_many("t", [b""] * 10_000, keys=keys)
    assert {receipt.partition for receipt in receipts} == set(range(16))
    assert {key: store.publish("t", b"", key=key).partition for key in GOLDEN_PLACES} == GOLDEN_PLACES


def test_b9_old_segments_are_found_and_offsets_go_on(lasting: Backend) -> None:
    """Many segments, several restarts: nothing is hidden, nothing overwritten."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5)
    for turn in range(6):
        assert [store.publish("t", value).offset for value in numbered(13, turn * 13)] == list(range(turn * 13, turn * 13 + 13))
        store = lasting.reopen() if turn % 2 else lasting.kill()
        assert stored(store, "t") == numbered(turn * 13 + 13)


def test_b10_offsets_stay_when_older_ones_go(backend: Backend) -> None:
    """Retention removes the first segments: what is left is still found under its own offset."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60, retain="always")
    for value in numbered(45):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"45")
    store.retain("t")
    found = {message.offset: message.value for message in store.read("t")}
    assert min(found) > 0
    assert found == {offset: b"%d" % offset for offset in range(min(found), 46)}
    with store.subscribe("t", "g") as consumer:
        assert {message.offset: message.value for message in drain(consumer)} == found


def test_b16_reading_goes_on_into_the_next_segment(store: Store) -> None:
    """From every offset to the end, and in one delivery after the other."""
    store.create_topic("t", segment_messages=3)
    for value in numbered(20):
        store.publish("t", value)
    for start in range(21):
        assert offsets(store.read("t", 0, start=start)) == list(range(start, 20))
    with store.subscribe("t", "g", prefetch=20) as consumer:
        assert offsets(consumer.get_many(20, timeout=0)) == list(range(20))


def test_b22_positions_survive_restart(lasting: Backend) -> None:
    """Of every group of every topic, whatever their names look like when joined."""
    store = lasting.open()
    names = [("a", "b.c"), ("a.b", "c"), ("a-b", "c"), ("a", "b-c")]
    for number, (topic, group) in enumerate(names):
        if topic not in [info.name for info in store.topics()]:
            store.publish_many(topic, numbered(10))
        with store.subscribe(topic, group) as consumer:
            drain(consumer, number + 1)
    store = lasting.reopen()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]
    store = lasting.kill()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]


def test_b23_a_commit_never_rewinds(store: Store) -> None:
    """Only seek does."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        consumer.commit(8)
        consumer.commit(2)
        assert position(store, "t", "g") == 8
        store.seek("t", "g", 2)
        assert position(store, "t", "g") == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_b26_two_members_do_not_both_read_everything(store: Store, ordered: bool) -> None:
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


def test_b29_a_named_producer_after_a_restart_is_new_and_the_old_one_fenced(lasting_live: Backend) -> None:
    """The sequence begins anew with a new epoch: new messages are not taken for old ones."""
    store = lasting_live.open()
    places = []
    for _ in range(4):
        with store.producer("t", name="p") as producer:
            futures = [producer.send(b"same") for _ in range(5)]
        places += [future.result(PATIENCE).offset for future in futures]
        store = lasting_live.reopen()
    assert places == list(range(20))


def test_b30_the_same_offset_in_two_partitions_is_two_messages(lasting: Backend) -> None:
    """Finishing one of them does not finish the other, nor the same offset of another topic."""
    store = lasting.open()
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        store.publish(topic, b"x", partition=partition)
    consumer = store.subscribe("t", "g")
    next(message for message in take(consumer) if message.partition == 1).ack(wait=True)
    store.subscribe("u", "g").close()
    store = lasting.kill()
    lasting.advance(60)
    with store.subscribe("t", "g") as consumer:
        assert [(message.partition, message.offset) for message in take(consumer)] == [(0, 0)]
    assert position(store, "u", "g") == 0
