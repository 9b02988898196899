"""A topic that was written one message at a time, and to which nothing is published any more: its messages are merged by themselves."""

from __future__ import annotations

import pytest

from tests.groups.sim import Sim, numbered

COUNT = 1_100
MIB = 1024 * 1024
HOUR_S = 3_600.0


def publish_singly(sim: Sim, count: int = COUNT) -> None:
    for value in numbered(count):
        sim.store.publish("t", value)


def turn(sim: Sim) -> None:
    """What the threads of a store do in some seconds: a turn of housekeeping, and the checkpoints that are due."""
    sim.store._housekeep()
    sim.store._housekeeper.join()
    for _ in range(3):  # two checkpoints: as long as one points into a segment that stays as it is
        sim.clock.advance(6)
        sim.store._volume.maintain_once()


def batches(sim: Sim) -> list[int]:
    """How many batches each segment of the topic has."""
    log = sim.store._volume.log("t")
    return [log.segment(first).batches for first in log.segment_firsts]


@pytest.mark.parametrize(("segment_bytes", "quiet_s"), [(MIB, 60), (64 * MIB, HOUR_S)])
@pytest.mark.parametrize("end", ["stays", "restart", "kill", "lose_power"])
def test_messages_of_a_quiet_topic_are_merged_though_their_segment_is_not_full(
    segment_bytes: int, quiet_s: float, end: str
) -> None:
    """After a minute where the segment has a sixteenth of its size, else after an hour; also by the next process."""
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=segment_bytes)
    publish_singly(sim)
    turn(sim)
    assert batches(sim) == [COUNT]
    if end != "stays":
        getattr(sim, end)()
    sim.clock.advance(quiet_s)
    turn(sim)
    assert len(batches(sim)) == 2
    assert sum(batches(sim)) < COUNT / 100
    assert [one.value for one in sim.store.read("t")] == numbered(COUNT)
    assert sim.store.publish("t", b"next").offset == COUNT
    assert [one.value for one in sim.lose_power().read("t")] == [*numbered(COUNT), b"next"]


def test_a_topic_that_would_not_gain_is_left_alone() -> None:
    """No segment is sealed early while messages come, where few came, where they are large, or where nothing is to be merged."""
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=MIB)
    publish_singly(sim)
    for _ in range(10):
        sim.clock.advance(50)
        sim.store.publish("t", b"more")
        turn(sim)
    assert len(batches(sim)) == 1
    for below in (0, 64):
        sim = Sim()
        sim.store.create_topic("t", segment_bytes=MIB, coalesce_below_bytes=below)
        publish_singly(sim)
        sim.clock.advance(2 * HOUR_S)
        turn(sim)
        assert batches(sim) == [COUNT]
    sim = Sim()
    sim.store.create_topic("t")
    publish_singly(sim, 100)
    sim.clock.advance(2 * HOUR_S)
    turn(sim)
    assert batches(sim) == [100]


def test_a_quiet_topic_is_sealed_once() -> None:
    """What is merged is not looked at again, and an idle store writes nothing."""
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=MIB)
    publish_singly(sim)
    sim.clock.advance(60)
    turn(sim)
    turn(sim)
    found, journal = batches(sim), sim.store._volume._journal.bytes_written
    for _ in range(5):
        sim.clock.advance(HOUR_S)
        turn(sim)
    assert batches(sim) == found
    assert sim.store._volume._journal.bytes_written == journal
