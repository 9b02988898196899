"""What a store keeps in memory for names and numbers that its clients choose: who removes it, and how much it can be at most."""

from __future__ import annotations

import errno
import gc
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError, StorageFull
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.format.state import ProducerRecord
from penstock.groups.deadlines import Deadlines
from penstock.log.log_state import BATCHES_PER_PRODUCER, PRODUCERS_MAX, LogState
from penstock.testing import FakeClock
from penstock.volume.tickets import AppendTicket
from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog

DAY_S = 86_400.0


# -- producers -------------------------------------------------------------------------------------------------------


def test_what_a_log_remembers_of_each_producer_is_read_back_as_it_was() -> None:
    state = LogState()
    for sequence in range(100):
        state.note_producer(Producer(7, 3, sequence), 10 * sequence, -sequence, sequence + 1)
    expected = [ProducerRecord(7, one, 10 * one, -one, 3, one + 1) for one in range(100 - BATCHES_PER_PRODUCER, 100)]
    assert list(state.recent[7]) == expected
    assert (len(state.recent[7]), state.recent[7].newest, state.recent[7].incarnation) == (64, expected[-1], 3)
    assert (state.recent[7].find(50), state.recent[7].find(10)) == (expected[50 - 36], None)
    encoded = state.encode()
    encoded.stamp(0, 0, 0, 0, 0, 0)
    again = LogState()
    again.restore(bytes(encoded.data))
    assert again.recent == state.recent
    state.note_producer(Producer(7, 4, 0), 2_000, 0, 1)
    assert list(state.recent[7]) == [ProducerRecord(7, 0, 2_000, 0, 4, 1)]
    assert again.recent != state.recent


def test_a_log_remembers_the_batches_of_all_its_producers_in_little_memory() -> None:
    """Each client that comes and goes is one more producer: as objects their batches took 15 MiB in each partition."""
    state = LogState()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for producer in range(PRODUCERS_MAX + 10):
            for sequence in range(BATCHES_PER_PRODUCER + 2):
                state.note_producer(Producer(producer << 32, 1, sequence), 1 << 40 | sequence, 1 << 50 | sequence, 300)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(state.recent) == PRODUCERS_MAX
    assert sum(len(one) for one in state.recent.values()) == PRODUCERS_MAX * BATCHES_PER_PRODUCER
    assert taken < 3 << 20


def _send(sim: Sim, producer: Producer) -> int:
    topic = sim.store._catalog.get("t")
    return topic.append_batch(0, encode_batch([b"x"]).with_producer(producer)).offset


def test_a_partition_keeps_no_batch_that_is_stored() -> None:
    """A batch on its way is kept with its ticket until the next one comes, and no longer."""
    sim = Sim()
    sim.store.create_topic("t")
    gate = sim.store._catalog.get("t").gate(0)
    for number in range(40):
        assert _send(sim, Producer(2 * number + 2, 1, 0)) == number
        assert (len(gate._on_the_way), len(gate._sent)) == (1, 1)


def test_a_partition_forgets_producers_whose_batches_failed_and_that_never_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk every new client is refused, and most do not come again under the same number."""
    sim = Sim()
    sim.store.create_topic("t")
    gate = sim.store._catalog.get("t").gate(0)

    def refused(volume: Any, log: PartitionLog, batch: EncodedBatch, *_given: Any) -> AppendTicket:
        ticket = AppendTicket(volume._committer, log, batch)
        ticket.finish(StorageFull("/s", None, None))
        return ticket

    with monkeypatch.context() as patch:
        patch.setattr(type(sim.store._volume), "submit", refused)
        for number in range(PRODUCERS_MAX + 100):
            with pytest.raises(StorageFull):
                _send(sim, Producer(2 * number + 2, 1, 0))
    assert len(gate._sent) == PRODUCERS_MAX
    assert len(gate._on_the_way) == 1
    assert sum(sent.ticket is not None for sent in gate._sent.values()) == 1
    assert gate._sent[2 * (PRODUCERS_MAX + 99) + 2].is_refused
    # Once there is room each of them may send it again, whether it is remembered or not, and once more for the same answer.
    for at, identity in enumerate((2, 2 * (PRODUCERS_MAX + 99) + 2)):
        assert [_send(sim, Producer(identity, 1, 0)) for _ in range(2)] == [at, at]


# -- groups ----------------------------------------------------------------------------------------------------------


def test_a_deleted_group_is_let_go_of_though_its_leases_have_a_day_to_go() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(10))
    gone = []
    for number in range(5):
        consumer = sim.store.subscribe("t", f"g{number}", lease=DAY_S, start="earliest")
        one(consumer)
        gone.append(weakref.ref(sim.group("t", f"g{number}")))
        sim.store.delete_group("t", f"g{number}")
        consumer.close()
    del consumer
    sim.store._groups.look_at_deadlines()
    gc.collect()
    assert [reference() for reference in gone] == [None] * 5
    assert len(sim.store._groups._deadlines) == 0


class _Looked:
    def __init__(self) -> None:
        self.looks: list[float] = []

    def look(self, moment: float) -> None:
        self.looks.append(moment)


def test_a_moment_that_takes_the_place_of_another_is_kept_alone() -> None:
    """A group with long leases that is looked at often has one moment, and not one for each look."""
    clock = FakeClock()
    deadlines, looked, other = Deadlines(clock), _Looked(), _Looked()
    deadlines.add(clock.monotonic() + DAY_S, other)
    start = clock.monotonic()
    for number in range(1_000):
        deadlines.add(start + DAY_S + number, looked)
        deadlines.add(start + number, looked)
        clock.advance(1)
        deadlines.look()
        assert len(deadlines) < 100
    assert looked.looks == [start + number for number in range(1_000)]
    clock.advance(2 * DAY_S)
    deadlines.look()
    assert len(other.looks) == 1
    assert looked.looks[-1] == start + 999
    assert len(deadlines) == 0


def test_what_was_discarded_is_not_looked_at_and_can_be_added_again() -> None:
    clock = FakeClock()
    deadlines, looked = Deadlines(clock), _Looked()
    deadlines.discard(looked)
    deadlines.add(clock.monotonic() + 1, looked)
    deadlines.discard(looked)
    clock.advance(2)
    deadlines.look()
    assert (looked.looks, len(deadlines)) == ([], 0)
    moment = clock.monotonic() + 1
    deadlines.add(moment, looked)
    clock.advance(2)
    deadlines.look()
    assert looked.looks == [moment]


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_measuring_keeps_nothing_of_messages_that_are_never_acked() -> None:
    """They fail, their leases end, or a transaction finishes them: the meter sees none of that."""
    sim = Sim()
    sim.store.measure()
    sim.store.publish_many("t", numbered(60))
    consumer = sim.store.subscribe("t", "g", lease=10, max_deliveries=0)
    for message in take(consumer, 20):
        message.nack()
    for message in take(consumer, 20):
        with sim.store.transaction() as transaction:
            transaction.ack(message)
    assert len(take(consumer, 10)) == 10
    sim.clock.advance(60)
    assert take(consumer)
    closure: Any = sim.group().take.__closure__
    assert [cell.cell_contents for cell in closure if isinstance(cell.cell_contents, (dict, list, set))] == []


def test_the_times_of_a_group_begin_anew_with_the_next_one_of_its_name_and_go_with_it() -> None:
    sim = Sim()
    sim.store.measure()
    for number in range(3):
        sim.store.publish("t", b"x")
        with sim.store.subscribe("t", "g", start="earliest") as consumer:
            one(consumer).ack()
            times = sim.store.metrics().topics["t"].groups["g"].deliver_to_ack
            assert times is not None
            assert times.count == 1
        sim.store.delete_group("t", "g")
        sim.store.publish(f"passing-{number}", b"x")
        sim.store.delete_topic(f"passing-{number}")
    meter = sim.store._meter
    assert meter is not None
    assert list(meter.publish) == ["t"]


# -- housekeeping ----------------------------------------------------------------------------------------------------


def test_a_deleted_topic_leaves_no_counters_and_no_troubles() -> None:
    sim = Sim()
    housekeeper = sim.store._housekeeper
    for number in range(3):
        name = f"t{number}"
        sim.store.create_topic(name, group_expiry=60, segment_bytes=1_000, retention_age=1)
        sim.store.publish_many(name, [bytes(900)] * 3)
        sim.store.subscribe(name, "idle").close()
        sim.clock.advance(3_600)
        sim.store.retain()
        topic = sim.store._catalog.get(name)
        assert (topic.topic_id, "idle") in housekeeper._expired
        for what in (topic.topic_id, ("rewriting", topic.topic_id), ("retention", topic.topic_id, 0)):
            housekeeper.troubles.tell(what, "stopped", "retention_failed", OSError(errno.EIO, "bad"))
        sim.store.delete_topic(name)
        # Somebody who was at it goes on for a moment.
        housekeeper.counters(topic).removed_segments += 1
        housekeeper._protected_groups(topic, sim.clock.now_us())
    assert (housekeeper._counters, housekeeper._expired, housekeeper.troubles._told) == ({}, set(), {})
    with pytest.raises(PenstockError):
        sim.store.topic("t0")
