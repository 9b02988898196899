"""What is refused and never half done: batches out of sequence (I31), dead letters that cannot be written (I26)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OutcomeUnknown, ProducerFenced, ReservedName, SequenceGap
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import open_simulated
from tests.conformance.helpers import one, stored, values

if TYPE_CHECKING:
    from penstock.store.store import Store


def _send(store: Store, producer: Producer, value: bytes) -> tuple[int, bool]:
    receipt = store._catalog.get("t").append_batch(0, encode_batch([value]).with_producer(producer))
    return receipt.offset, receipt.duplicate


def _again(files: SimulatedFileSystem, how: str) -> SimulatedFileSystem:
    return files.kill() if how == "killed" else files.crash(random.Random(1), keep="nothing")


@pytest.mark.parametrize("how", ["living", "killed", "power lost"])
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_gap_in_a_sequence_is_refused(how: str, sync: str) -> None:
    """Nothing of it is stored, and the one that is missing may still come; also in a store that was opened since."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.create_topic("t", sync=sync)
    identity, incarnation = store._producers.open("p", store._catalog.get("t").logs)
    for sequence in range(3):
        assert _send(store, Producer(identity, incarnation, sequence), b"%d" % sequence) == (sequence, False)
    if how != "living":
        store.flush()
        store._volume.sync_interval_logs()
        store._volume.checkpoint()
        store = open_simulated(_again(files, how), clock)
    for missing in (4, 5, 1_000):
        with pytest.raises(SequenceGap) as caught:
            _send(store, Producer(identity, incarnation, missing), b"too early")
        assert "3" in str(caught.value)
    assert stored(store, "t") == [b"0", b"1", b"2"]
    assert _send(store, Producer(identity, incarnation, 3), b"3") == (3, False)
    assert _send(store, Producer(identity, incarnation, 4), b"4") == (4, False)
    assert _send(store, Producer(identity, incarnation, 3), b"again") == (3, True)
    assert stored(store, "t") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("how", ["living", "killed", "power lost"])
def test_an_old_incarnation_never_appends_again(how: str) -> None:
    """Whatever sequence it says; the new one begins with 0, and nothing else."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.create_topic("t")
    logs = store._catalog.get("t").logs
    identity, old = store._producers.open("p", logs)
    _send(store, Producer(identity, old, 0), b"old")
    same, new = store._producers.open("p", logs)
    assert (same, new) == (identity, old + 1)
    if how != "living":
        store = open_simulated(_again(files, how), clock)
    for sequence in (0, 1, 2, 100):
        with pytest.raises(ProducerFenced):
            _send(store, Producer(identity, old, sequence), b"late")
    with pytest.raises(SequenceGap):
        _send(store, Producer(identity, new, 1), b"gap")
    assert _send(store, Producer(identity, new, 0), b"new") == (1, False)
    assert stored(store, "t") == [b"old", b"new"]


def test_what_was_sent_too_long_ago_to_tell_is_refused() -> None:
    """64 batches are remembered: a retry of one before those is neither stored again nor called stored."""
    store = open_simulated(SimulatedFileSystem(), FakeClock())
    store.create_topic("t")
    identity, incarnation = store._producers.open("p", store._catalog.get("t").logs)
    for sequence in range(70):
        _send(store, Producer(identity, incarnation, sequence), b"x")
    assert _send(store, Producer(identity, incarnation, 6), b"x") == (6, True)
    with pytest.raises(OutcomeUnknown):
        _send(store, Producer(identity, incarnation, 5), b"x")
    assert len(stored(store, "t")) == 70


# -- dead letters that cannot be written -----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["living", "killed"])
def test_a_message_stays_while_its_dead_letter_has_no_room(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is not delivered, not dropped, counted in the lag and told in the log; a death meanwhile changes nothing."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_simulated(files, clock)
    store.publish_many("t", [bytes(3_000), b"next"])
    consumer = store.subscribe("t", "g", max_deliveries=1)
    poison = one(consumer)
    store.flush()
    files.capacity_bytes = sum(map(len, files.files().values()))
    poison.nack(reason="bad")
    assert any("cannot dead-letter offset 0 of t/0 for group g" in record.getMessage() for record in caplog.records)
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.lag, numbers.dead_lettered) == (2, 0)
    assert stored(store, "t") == [bytes(3_000), b"next"]
    files.capacity_bytes = None
    if end == "killed":
        store = open_simulated(files.kill(), clock)
        consumer = store.subscribe("t", "g")
    given = []
    for _ in range(20):
        clock.advance(40)
        if (message := consumer.get(timeout=0)) is not None:
            given.append(message.value)
            if message.value == b"next":
                message.ack()
            else:
                message.nack(reason="bad")
    # The failure that nobody could note is forgotten with the process, and then it comes once more.
    assert given in ([b"next"], [bytes(3_000), b"next"]) if end == "killed" else given == [b"next"]
    assert values(store.dead_letters("t").list()) == [bytes(3_000)]
    assert store.stats().topics["t"].groups["g"].lag == 0


def test_dead_letters_are_not_deleted_from_under_their_topic() -> None:
    """Alone they cannot be; with their topic they go, and those of the next one are its own."""
    store = open_simulated(SimulatedFileSystem(), FakeClock())
    for value in (b"1", b"2"):
        store.publish("t", value)
        with store.subscribe("t", "g", max_deliveries=1) as consumer:
            one(consumer).nack(reason="bad")
        with pytest.raises(ReservedName):
            store.delete_topic("t.dlq")
        assert values(store.dead_letters("t").list()) == [value]
        store.delete_topic("t")
        assert store.topics() == []


def test_dead_letters_have_no_dead_letters() -> None:
    """A group of them whose handler fails keeps them, however often: no topic t.dlq.dlq, no loop, nothing dropped."""
    clock = FakeClock()
    store = open_simulated(SimulatedFileSystem(), clock)
    store.publish("t", b"x")
    one(store.subscribe("t", "g", max_deliveries=1)).nack(reason="bad")
    consumer = store.subscribe("t.dlq", "g")
    for _ in range(20):
        clock.advance(1_000)
        message = consumer.get(timeout=0)
        assert message is not None
        message.nack(reason="bad again")
    assert [topic.name for topic in store.topics()] == ["t", "t.dlq"]
    assert values(store.dead_letters("t").list()) == [b"x"]
