"""Burials: a message that failed for the last time becomes one dead letter, whole, and is finished by that."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ReservedName
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import open_simulated
from tests.conformance.helpers import drain, numbered, offsets, one, position, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_a_message_is_buried_once_and_replayed_with_all_it_had(backend: Backend) -> None:
    """One copy after the last allowed failure, byte-equal, described; not delivered again after a restart; replay counts anew."""
    store = backend.open()
    payload = bytes(range(256)) * 20
    store.publish("t", payload, key=b"k", headers={"mine": b"1"}, timestamp=5)
    with store.subscribe("t", "g", max_deliveries=3) as consumer:
        for attempt in (1, 2, 3):
            message = one(consumer)
            assert message.attempt == attempt
            message.nack(delay=0, reason="broken")
        assert consumer.get(timeout=0) is None
    if backend.keeps_data:
        for restart in (backend.reopen, backend.kill):
            store = restart()
            with store.subscribe("t", "g", max_deliveries=3) as consumer:
                backend.advance(3_600)
                assert consumer.get(timeout=0) is None
    (letter,) = store.dead_letters("t").list()
    assert (letter.value, letter.key, letter.timestamp_us, letter.headers["mine"]) == (payload, b"k", 5_000_000, b"1")
    assert [letter.headers["x-dlq-" + name] for name in ("source-topic", "source-partition", "source-offset", "group", "deliveries")] == [
        b"t", b"0", b"0", b"g", b"3",
    ]  # fmt: skip
    assert letter.headers["x-dlq-reason"] == b"broken"
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        one(consumer).nack(delay=0)
    assert [info.name for info in store.topics()] == ["t", "t.dlq"]
    assert store.dead_letters("t").replay() == 1
    if backend.keeps_data:
        store = backend.kill()
    assert store.dead_letters("t").list() == []
    with store.subscribe("t", "g", max_deliveries=3) as consumer:
        message = one(consumer)
    assert (message.value, message.attempt, list(message.headers)) == (payload, 1, [("mine", b"1")])


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_a_dead_letter_of_a_compressed_source_is_byte_equal(backend: Backend, compression: str) -> None:
    """Byte-equal, and so is what is sent back, from among others in one batch."""
    store = backend.open()
    store.create_topic("t", compression=compression)
    payload = bytes(range(256)) * 20
    store.publish_many("t", [b"before", payload, b"after"], keys=["a", "b", "c"])
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for message in take(consumer, 3):
            if message.value == payload:
                message.nack(delay=0, reason="broken")
            else:
                message.ack(wait=True)
    if backend.keeps_data:
        store = backend.kill()
    (letter,) = store.dead_letters("t").list()
    assert (letter.value, letter.key) == (payload, b"b")
    assert store.dead_letters("t").replay() == 1
    with store.subscribe("t", "g") as consumer:
        assert [(message.value, message.key, message.attempt) for message in drain(consumer)] == [(payload, b"b", 1)]


def test_a_message_that_always_fails_is_buried_and_not_called_handled(store: Store) -> None:
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


def test_a_dead_letter_has_the_bytes_of_its_message(store: Store) -> None:
    """Also of one that lies in a batch with others, with columns that the others have not."""
    payload = b"a" * 5_000
    store.publish_many("t", [b"x", payload, None], keys=[None, b"key", None], headers=[None, {"h": b"\0"}, None])
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    plain, full, tombstone = store.dead_letters("t").list()
    assert (full.value, full.key, full.headers["h"]) == (payload, b"key", b"\0")
    assert (plain.value, plain.key) == (b"x", None)
    assert (tombstone.value, tombstone.key) == (None, None)


def test_a_dead_letter_does_not_hold_the_position_back(lasting: Backend) -> None:
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
def test_a_crash_anywhere_in_a_burial_leaves_one_of_source_and_grave(keep: Any, seed: int) -> None:
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


def test_the_dead_stay_dead_over_restarts(lasting: Backend) -> None:
    """After a restart they are not delivered again, and not buried again."""
    store = lasting.open()
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for message in take(consumer)[:2]:
            message.nack()
        consumer.flush()
    for restart in (lasting.kill, lasting.reopen, lasting.kill):
        store = restart()
        lasting.advance(3_600)
        with store.subscribe("t", "g", max_deliveries=1) as consumer:
            assert sorted(offsets(take(consumer))) == [2, 3]
        assert values(store.dead_letters("t").list()) == [b"0", b"1"]


def test_a_consumer_that_comes_and_goes_buries_nothing(store: Store) -> None:
    """What was fetched for it and never handed out was never delivered."""
    store.publish_many("t", numbered(20))
    for _ in range(30):
        with store.subscribe("t", "g", max_deliveries=2, prefetch=20) as consumer:
            one(consumer).ack()
            store.publish("t", b"more")
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        got = drain(consumer)
    assert len(got) == 20
    assert {message.attempt for message in got} == {1}


def test_dead_letters_have_no_dead_letters_and_nobody_publishes_them(store: Store) -> None:
    """No `x.dlq.dlq` by failing, none by creating, none by publishing."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack()
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        for _ in range(3):
            one(consumer).nack(delay=0)
    for name in ("t.dlq", "t.dlq.dlq", "x.dlq"):
        with pytest.raises(ReservedName):
            store.publish(name, b"x")
    assert [info.name for info in store.topics()] == ["t", "t.dlq"]
    assert len(store.dead_letters("t")) == 1
