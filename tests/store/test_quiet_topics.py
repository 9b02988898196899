"""Topics to which nothing is published any more: their segments are sealed, and their last messages go, by time alone."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

import pytest

from penstock.errors import OffsetOutOfRange, StorageFailed, Unavailable
from penstock.log.filtering import filter_segment
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import Store
from tests.groups.sim import PATH, Sim, numbered, take

if TYPE_CHECKING:
    from pathlib import Path

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
    assert sim.files.record == []


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


@pytest.mark.parametrize("kind", ["create", "write"])
def test_on_a_full_disk_sealing_waits_and_retention_of_others_goes_on(kind: Literal["create", "write"]) -> None:
    sim = Sim()
    sim.store.create_topic("quiet", retention_age=HOUR_S)
    sim.store.publish_many("quiet", numbered(10))
    sim.store.create_topic("t", retention_age=HOUR_S, segment_messages=5)
    for number in range(10):
        sim.store.publish("t", b"%d" % number)
    sim.clock.advance(2 * HOUR_S)
    sim.store.publish("t", b"new")
    sim.files.fail(kind, 1, errno.ENOSPC, count=None, path_contains="topics/quiet/0")
    assert sim.store.retain().segments == 2
    assert len(list(sim.store.read("quiet"))) == 10
    sim.files.clear_faults()
    assert sim.store.publish("quiet", b"10").offset == 10
    sim.clock.advance(2 * HOUR_S)
    assert sim.store.retain("quiet").segments >= 1
    assert list(sim.store.read("quiet")) == []
    assert sim.lose_power().publish("quiet", b"11").offset == 11


def test_a_disk_that_fails_while_a_segment_is_sealed_stops_the_store_and_loses_nothing() -> None:
    sim = Sim()
    sim.store.create_topic("t", retention_age=HOUR_S)
    sim.store.publish_many("t", numbered(10))
    sim.clock.advance(2 * HOUR_S)
    sim.files.fail("write", 1, errno.EIO, count=None, path_contains="topics/t/0")
    with pytest.raises(StorageFailed):
        sim.store.retain("t")
    with pytest.raises(StorageFailed):
        sim.store.publish("t", b"10")
    sim.files.clear_faults()
    assert [one.value for one in sim.kill().read("t")] == numbered(10)
    assert sim.store.retain("t").segments == 1


@pytest.mark.parametrize("sync", ["always", "os"])
def test_segments_are_sealed_beside_publishers_and_readers(tmp_path: Path, sync: str) -> None:
    """Time and publishers both end segments, at any moment: each message is there once, in order."""
    count = 200
    with Store.open(tmp_path / "s") as store:
        store.create_topic("t", sync=sync, segment_messages=7)
        log = store._catalog.get("t").logs[0]
        done = threading.Event()
        failed: list[BaseException] = []

        def publish(name: bytes) -> None:
            try:
                for number in range(count):
                    store.publish("t", b"%s %d" % (name, number))
            except BaseException as error:
                failed.append(error)

        def read() -> None:
            try:
                while not done.is_set():
                    found = [message.offset for message in store.read("t")]
                    assert found == list(range(len(found)))
            except BaseException as error:
                failed.append(error)

        publishers = [threading.Thread(target=publish, args=(name,)) for name in (b"a", b"b")]
        reader = threading.Thread(target=read)
        for thread in (*publishers, reader):
            thread.start()
        sealed = 0
        while any(thread.is_alive() for thread in publishers):
            sealed += store._volume.roll(log, lambda: log.is_overdue(0, 1 << 62))
        done.set()
        reader.join()
        assert failed == []
        assert sealed > 0
        expected = {name: [b"%s %d" % (name, number) for number in range(count)] for name in (b"a", b"b")}
        for again in (store, ReadOnlyStore(tmp_path / "s")):
            values = [message.value or b"" for message in again.read("t")]
            assert {name: [one for one in values if one.startswith(name)] for name in expected} == expected


# -- expired messages ---------------------------------------------------------------------------------------------------


def later(sim: Sim, seconds: float) -> None:
    """So much time passes, and then as many turns of the store's threads as it takes."""
    sim.clock.advance(seconds)
    for _ in range(5):
        turn(sim)


@pytest.mark.parametrize("how", ["topic", "message"])
@pytest.mark.parametrize("sync", ["always", "os"])
def test_expired_messages_of_a_quiet_topic_are_removed(how: str, sync: str) -> None:
    """Long before retention_age, by the store itself, whether the topic or the messages say when they expire."""
    sim = Sim()
    sim.store.create_topic("t", sync=sync, ttl=HOUR_S if how == "topic" else None)
    for _ in range(20):
        sim.store.publish_many("t", [b"." * 500] * 5, ttls=None if how == "topic" else HOUR_S)
    later(sim, 120)
    before = stored(sim.store)
    assert len(list(sim.store.read("t"))) == 100
    later(sim, HOUR_S)
    assert list(sim.store.read("t")) == []
    assert list(ReadOnlyStore(PATH, files=sim.files).read("t")) == []
    assert stored(sim.store) < before / 20
    stats = sim.store.stats().topics["t"]
    assert (stats.removed_messages, stats.ends) == (100, {0: 100})
    files = segments(sim)
    later(sim, 7 * DAY_S)
    assert len(segments(sim)) == 1 < len(files), "of what is empty the files go by retention_age"
    for again in (sim.kill, sim.lose_power, sim.restart):
        store = again()
        assert list(store.read("t")) == []
        store.publish("t", b"new")
        assert [one.value for one in store.read("t")] == [b"new"]
        store.delete_topic("t")
        store.create_topic("t")


def test_an_idle_topic_whose_messages_expired_writes_nothing_more() -> None:
    sim = Sim()
    sim.store.create_topic("t", ttl=60.0, retention_age=0)
    sim.store.create_topic("own", retention_age=0)
    sim.store.publish_many("t", numbered(50))
    sim.store.publish_many("own", numbered(50), ttls=[60.0, None] * 25)
    sim.store.create_topic("plain")
    sim.store.publish_many("plain", numbered(50))
    later(sim, 300)
    later(sim, 300)
    assert [len(list(sim.store.read(name))) for name in ("t", "own", "plain")] == [0, 25, 50]
    sim.files.recording = True
    for _ in range(30):
        turn(sim, 60.0)
    assert sim.files.record == []


def test_vacuum_on_demand_removes_expired_messages_at_once_also_those_that_came_last() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=2_000)
    sim.store.publish_many("t", numbered(50), ttls=[10.0] * 40 + [None] * 10)
    for number in range(10):
        sim.store.publish("t", b"%d" % number * 100, ttl=10.0)
    assert sim.store.vacuum("t").messages == 0
    sim.clock.advance(10)
    removed = sim.store.vacuum("t")
    assert removed.messages == 50
    assert removed.bytes > 1_000
    assert [one.value for one in sim.store.read("t")] == numbered(10, 40)
    assert sim.store.vacuum("t").messages == 0
    assert [one.value for one in sim.lose_power().read("t")] == numbered(10, 40)


def test_where_less_than_half_has_expired_nothing_is_rewritten() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(100), ttls=[10.0] * 49 + [None] * 51)
    sim.clock.advance(20)
    assert sim.store.vacuum("t").segments == 0
    assert len(list(sim.store.read("t"))) == 100


def test_a_group_passes_what_was_removed_and_gets_the_rest() -> None:
    """One with consumers, one without, and one that comes later."""
    sim = Sim()
    sim.store.create_topic("t")
    consumer = sim.store.subscribe("t", "busy", prefetch=1, lease=DAY_S)
    sim.store.subscribe("t", "idle", reset="fail").close()
    sim.store.publish_many("t", numbered(20), ttls=[10.0] * 15 + [None] * 5)
    held = take(consumer, 1)
    sim.clock.advance(20)
    assert sim.store.vacuum("t").messages == 14, "what a consumer holds stays"
    held[0].ack()
    found = []
    while (message := consumer.get(timeout=0)) is not None:
        found.append(message.offset)
        message.ack()
    assert found == [15, 16, 17, 18, 19]
    for name in ("idle", "new"):
        with sim.store.subscribe("t", name, reset="fail") as other:
            messages = take(other)
            assert [one.offset for one in messages] == [15, 16, 17, 18, 19]
            for message in messages:
                message.ack()
        stats = sim.store.stats().topics["t"].groups[name]
        assert (stats.lag, stats.skipped) == (0, 0)


def test_priorities_delays_and_failures_of_what_is_left() -> None:
    sim = Sim()
    sim.store.create_topic("t", priorities=True)
    consumer = sim.store.subscribe("t", "g", backoff=1)
    sim.store.publish_many("t", numbered(10), ttls=[10.0, 10.0, None, 10.0, 10.0] * 2, priorities=["low", "high"] * 5)
    sim.store.publish("t", b"late", delay=60, ttl=10)
    sim.clock.advance(20)
    assert sim.store.vacuum("t").messages == 9
    messages = take(consumer)
    assert sorted(one.offset for one in messages) == [2, 7]
    for message in messages:
        message.ack()
    sim.clock.advance(100)
    assert take(consumer) == []


@pytest.mark.parametrize("retain", ["until_acked", "always"])
def test_what_becomes_a_dead_letter_stays_until_each_group_has_moved_it(retain: str) -> None:
    sim = Sim()
    sim.store.create_topic("t", expired="dead_letter", retain=retain)
    sim.store.publish_many("t", numbered(4), ttls=10)
    sim.clock.advance(20)
    assert sim.store.vacuum("t").messages == 0, "no group has it as a dead letter yet"
    for name in ("one", "two"):
        sim.store.subscribe("t", name).close()
    for number, name in enumerate(("one", "two")):
        later(sim, 300)
        assert sim.store.vacuum("t").messages == 0
        assert len(list(sim.store.read("t"))) == 4
        assert len(sim.store.dead_letters("t")) == 4 * number
        with sim.store.subscribe("t", name) as consumer:
            assert take(consumer) == []
    sim.store.flush()
    assert len(sim.store.dead_letters("t")) == 8
    assert sim.store.vacuum("t").messages == 4
    assert list(sim.store.read("t")) == []
    assert len(sim.lose_power().dead_letters("t")) == 8


def test_a_second_of_a_clock_that_is_days_ahead_removes_no_message_with_a_ttl() -> None:
    sim = Sim()
    sim.store.create_topic("t", ttl=DAY_S)
    sim.store.publish_many("t", numbered(10))
    later(sim, 120)
    sim.clock.jump_wall(8 * DAY_S)
    turn(sim)
    assert sim.store.vacuum("t").messages == 0
    sim.clock.jump_wall(-8 * DAY_S)
    later(sim, 120)
    assert len(take(sim.store.subscribe("t", "g"))) == 10
    sim.clock.advance(DAY_S)
    assert len(list(sim.store.read("t"))) == 10


def test_what_a_group_takes_while_it_is_being_removed_stays() -> None:
    """The wall clock is set back in the middle, so that the group gets what had expired."""
    sim = Sim()
    sim.store.create_topic("t")
    consumer = sim.store.subscribe("t", "g", prefetch=1)
    sim.store.publish_many("t", numbered(5), ttls=10)
    sim.clock.advance(20)
    taken = []

    def late(*arguments: Any, **options: Any) -> Any:
        sim.clock.jump_wall(-20)
        taken.extend(take(consumer, 1))
        return filter_segment(*arguments, **options)

    with mock.patch("penstock.log.expiry.filter_segment", late), pytest.raises(Unavailable):
        sim.store.vacuum("t")
    assert len(list(sim.store.read("t"))) == 5
    [message] = taken
    message.ack()
    sim.clock.advance(20)
    assert sim.store.vacuum("t").messages == 5


def test_a_compacted_topic_keeps_what_has_expired_for_compaction() -> None:
    """Else an older message of the same key would be its latest again."""
    sim = Sim()
    sim.store.create_topic("t", compaction=True)
    sim.store.publish("t", b"old", key="k")
    for _ in range(5):
        sim.store.publish("t", None, key="k", ttl=10)
    later(sim, 600)
    sim.store.vacuum("t")
    assert [one.value for one in sim.store.read("t")][-1] is None


def test_a_key_is_still_remembered_though_its_message_has_expired() -> None:
    sim = Sim()
    sim.store.create_topic("t", ttl=10.0, dedup_window=HOUR_S)
    sim.store.publish("t", b"once", dedup_key="k")
    later(sim, 300)
    assert sim.store.vacuum("t").messages == 0
    assert sim.lose_power().publish("t", b"twice", dedup_key="k").duplicate
    sim.clock.advance(HOUR_S)
    assert sim.store.vacuum("t").messages == 1


def test_empty_segments_of_a_topic_without_retention_age_do_not_pile_up() -> None:
    sim = Sim()
    sim.store.create_topic("t", ttl=60.0, segment_age=HOUR_S, retention_age=0)
    for _ in range(24 * 10):
        sim.store.publish("t", b"x" * 100)
        sim.clock.advance(HOUR_S)
        turn(sim)
    assert len(segments(sim)) <= 24 * 7 + 10
