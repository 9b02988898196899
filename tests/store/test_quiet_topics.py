"""Topics to which nothing is published any more: their segments are sealed, and their last messages go, by time alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.store.read_only import ReadOnlyStore
from tests.groups.sim import PATH, Sim, numbered, take

if TYPE_CHECKING:
    from penstock import Store

DAY_S = 86_400.0
HOUR_S = 3_600.0


def turn(sim: Sim, seconds: float = 10.0) -> None:
    """What the threads of a store do in so much time: a turn of housekeeping, and the checkpoints that are due."""
    sim.store._housekeep()
    sim.store._housekeeper.join()
    for _ in range(3):
        sim.clock.advance(seconds / 3)
        sim.store._volume.maintain_once()


def segments(sim: Sim, topic: str = "t") -> list[str]:
    """The files of the messages."""
    return sorted(name for name in sim.files.list_directory(f"{PATH}/topics/{topic}/0") if name.endswith(".log"))


def stored(store: Store, topic: str = "t") -> int:
    """The bytes of a topic."""
    return store.stats().topics[topic].bytes


# -- sealing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_segment_age_seals_a_segment_though_nothing_is_published(sync: str) -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_age=HOUR_S, retention_age=7 * DAY_S, sync=sync)
    sim.store.publish_many("t", numbered(5))
    turn(sim)
    assert len(segments(sim)) == 1
    sim.clock.advance(HOUR_S)
    turn(sim)
    assert segments(sim) == [f"{0:020d}.log", f"{5:020d}.log"]
    assert [one.value for one in sim.store.read("t")] == numbered(5)
    assert [one.value for one in ReadOnlyStore(PATH, files=sim.files).read("t")] == numbered(5)
    assert sim.store.publish("t", b"5").offset == 5
    assert [one.value for one in sim.store.read("t")] == numbered(6)
    assert [one.value for one in sim.lose_power().read("t")] == numbered(6 if sync == "always" else 5)


def test_a_segment_without_messages_is_never_sealed_and_an_idle_store_writes_nothing() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_age=60.0, retention_age=7 * DAY_S)
    sim.store.create_topic("empty", segment_age=60.0)
    sim.store.publish_many("t", numbered(5))
    for _ in range(20):
        turn(sim)
    before = segments(sim)
    assert len(before) == 2
    assert segments(sim, "empty") == []
    sim.files.recording = True
    for _ in range(50):
        turn(sim, 60.0)
    assert segments(sim) == before
    assert [one for one in sim.files.record if one.kind in ("create", "write", "pwrite", "sync_data", "rename", "unlink")] == []


def test_a_message_after_a_long_silence_does_not_make_its_segment_old_at_once() -> None:
    """The age of a segment is that of its first message, also where housekeeping made it long before."""
    sim = Sim()
    sim.store.create_topic("t", segment_age=HOUR_S)
    sim.store.publish("t", b"0")
    sim.clock.advance(HOUR_S)
    turn(sim)
    sim.clock.advance(DAY_S)
    for number in range(1, 10):
        sim.store.publish("t", b"%d" % number)
        turn(sim)
    assert segments(sim) == [f"{0:020d}.log", f"{1:020d}.log"]


# -- retention ----------------------------------------------------------------------------------------------------------


def test_retention_takes_the_last_messages_of_a_quiet_topic() -> None:
    sim = Sim()
    sim.store.create_topic("t", retention_age=DAY_S)
    sim.store.publish_many("t", [b"." * 1_000] * 100)
    before = stored(sim.store)
    for _ in range(3):
        turn(sim)
    assert len(list(sim.store.read("t"))) == 100
    sim.clock.advance(DAY_S)
    for _ in range(3):
        turn(sim)
    assert segments(sim) == [f"{100:020d}.log"]
    assert stored(sim.store) < before / 100
    stats = sim.store.stats().topics["t"]
    assert (stats.messages, stats.starts, stats.ends, stats.removed_segments) == (0, {0: 100}, {0: 100}, 1)
    for store in (sim.store, ReadOnlyStore(PATH, files=sim.files)):
        assert list(store.read("t")) == []
        with pytest.raises(OffsetOutOfRange, match="100"):
            list(store.read("t", start=99))
    for again in (sim.kill, sim.lose_power, sim.restart):
        store = again()
        assert list(store.read("t")) == []
        assert store.stats().topics["t"].starts == {0: 100}
    assert sim.store.publish("t", b"new").offset == 100
    assert [(one.offset, one.value) for one in sim.store.read("t")] == [(100, b"new")]
    assert [one.offset for one in ReadOnlyStore(PATH, files=sim.files).read("t")] == [100]


def test_retain_on_demand_takes_them_at_once() -> None:
    sim = Sim()
    sim.store.create_topic("t", partitions=2, retention_age=DAY_S)
    sim.store.publish_many("t", numbered(10), keys=[f"{number}" for number in range(10)])
    assert sim.store.retain("t").segments == 0
    sim.clock.advance(DAY_S + 1)
    removed = sim.store.retain("t")
    assert removed.segments == 2
    assert removed.bytes > 0
    assert list(sim.store.read("t")) == []
    assert sim.store.retain("t").segments == 0


def test_what_a_group_has_not_finished_stays() -> None:
    sim = Sim()
    sim.store.create_topic("t", retention_age=HOUR_S)
    consumer = sim.store.subscribe("t", "g", lease=20 * HOUR_S)
    sim.store.publish_many("t", numbered(10))
    messages = take(consumer)
    for message in messages[:-1]:
        message.ack()
    sim.clock.advance(2 * HOUR_S)
    for _ in range(4):
        turn(sim)
    assert [one.value for one in sim.store.read("t")] == numbered(1, 9), "vacuum took the rest of the segment"
    messages[-1].ack()
    for _ in range(4):
        turn(sim)
    assert list(sim.store.read("t")) == []
    assert sim.store.stats().topics["t"].groups["g"].lag == 0
    sim.store.publish("t", b"new")
    assert [one.value for one in take(consumer)] == [b"new"]


def test_a_group_that_was_there_before_goes_on_with_what_comes_after() -> None:
    """Where it had finished all, nothing is reported as skipped."""
    sim = Sim()
    sim.store.create_topic("t", retention_age=HOUR_S)
    with sim.store.subscribe("t", "g", reset="fail") as consumer:
        sim.store.publish_many("t", numbered(10))
        for message in take(consumer):
            message.ack()
    sim.clock.advance(2 * HOUR_S)
    assert sim.store.retain("t").segments == 1
    store = sim.lose_power()
    store.publish("t", b"new")
    with store.subscribe("t", "g", reset="fail") as consumer:
        assert [one.value for one in take(consumer)] == [b"new"]
    assert store.stats().topics["t"].groups["g"].skipped == 0


def test_a_second_of_a_clock_that_is_days_ahead_seals_and_removes_nothing() -> None:
    sim = Sim()
    sim.store.create_topic("t", retention_age=DAY_S, segment_age=DAY_S)
    sim.store.publish_many("t", numbered(10))
    turn(sim)
    sim.clock.jump_wall(8 * DAY_S)
    turn(sim)
    assert sim.store.retain("t").segments == 0
    sim.clock.jump_wall(-8 * DAY_S)
    turn(sim)
    assert segments(sim) == [f"{0:020d}.log"]
    assert len(list(sim.store.read("t"))) == 10
    sim.clock.advance(DAY_S)
    assert sim.store.retain("t").segments == 1


def test_a_key_is_still_remembered_where_its_message_would_be_old_enough_to_go() -> None:
    """The window of deduplication is longer than retention: its message stays as long as that."""
    sim = Sim()
    sim.store.create_topic("t", retention_age=HOUR_S, dedup_window=DAY_S)
    sim.store.publish("t", b"once", dedup_key="k")
    sim.clock.advance(2 * HOUR_S)
    for _ in range(3):
        turn(sim)
    assert sim.restart().publish("t", b"twice", dedup_key="k").duplicate
    sim.clock.advance(DAY_S)
    for _ in range(4):
        turn(sim)
    assert list(sim.store.read("t")) == []
