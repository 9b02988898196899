"""What a store does to old messages by itself: also when nothing comes any more, and whatever is wrong with one of its topics."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from penstock.errors import DamagedFile, StorageFull
from penstock.settings import StoreSettings
from penstock.store.dead_letter_box import DeadLetters
from penstock.store.store import Store
from tests.groups.sim import PATH, Sim

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = 86_400.0


def _pass_time(sim: Sim, turns: int = 6) -> None:
    """Nobody uses the store: its threads have their turns, as often as by its settings."""
    store = sim.store
    for _ in range(turns):
        sim.clock.advance(store._volume.settings.retention_interval_ms / 1000)
        for _ in range(2):
            store._volume.maintain_once()
        store._housekeep()
        store._housekeeper.join()


def _offsets(store: Store, topic: str) -> list[int]:
    return [message.offset for message in store.read(topic)]


def test_an_idle_store_removes_old_segments_by_itself() -> None:
    """The last checkpoint before it went idle is not the only one, and the other one points into a segment that should go."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retain="always", retention_bytes=1)
    for number in range(100):
        sim.store.publish("t", b"%d" % number)
    _pass_time(sim)
    assert _offsets(sim.store, "t") == list(range(90, 100))


def test_an_idle_store_compacts_by_itself() -> None:
    """Only the latest message of the key is left in sealed segments."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, compaction=True)
    for number in range(100):
        sim.store.publish("t", b"%d" % number, key="k")
    _pass_time(sim)
    assert _offsets(sim.store, "t") == list(range(89, 100))


def test_an_idle_store_takes_tombstones_out_when_their_grace_is_over() -> None:
    """Also hours after the last change."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, compaction=True, tombstone_grace=3600)
    for number in range(29):
        sim.store.publish("t", None, key=f"{number % 2}")
    _pass_time(sim)
    assert _offsets(sim.store, "t") == [18, 19, *range(20, 29)]
    sim.clock.advance(3600)
    _pass_time(sim)
    assert _offsets(sim.store, "t") == list(range(20, 29))


def test_an_idle_store_vacuums_by_itself() -> None:
    """What is finished and past its retention goes out of a segment that one message keeps, a day after the last change."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retention_age=DAY)
    for number in range(100):
        sim.store.publish("t", b"%d" % number)
    with sim.store.subscribe("t", "g", prefetch=100) as consumer:
        for message in consumer.get_many(100, timeout=0):
            if message.offset != 3:
                consumer.ack(message)
    sim.clock.advance(DAY)
    _pass_time(sim)
    assert _offsets(sim.store, "t") == [3]


@pytest.mark.parametrize("with_keys", [False, True], ids=["without keys", "with keys"])
def test_vacuum_waits_for_the_window_of_dedup_keys_only_where_there_are_some(with_keys: bool) -> None:
    """Segments that are younger than the window are rewritten too, but for those messages whose key must be known."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retention_messages=1, dedup_window=DAY)
    for number in range(100):
        sim.store.publish("t", b"%d" % number, dedup_key=f"key {number}" if with_keys and number >= 50 else None)
    with sim.store.subscribe("t", "g", prefetch=100) as consumer:
        for message in consumer.get_many(100, timeout=0):
            if message.offset != 3:
                consumer.ack(message)
    sim.clock.advance(60)
    _pass_time(sim)
    assert _offsets(sim.store, "t") == [3, *range(50 if with_keys else 90, 100)]
    if with_keys:
        assert sim.store.publish("t", b"again", dedup_key="key 57").duplicate
        sim.clock.advance(DAY)
        _pass_time(sim)
        assert _offsets(sim.store, "t") == [3, *range(90, 100)]


def test_an_idle_store_merges_small_batches_by_itself() -> None:
    """Of every sealed segment."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10)
    for number in range(100):
        sim.store.publish("t", b"%d" % number)
    _pass_time(sim)
    log = sim.store._volume.log("t")
    assert {log.segment(first).batches for first in log.segment_firsts[:-1]} == {1}


def test_a_store_with_nothing_to_do_writes_nothing() -> None:
    """However long it is idle, and whatever it has done before."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, compaction=True, retention_age=DAY)
    sim.store.create_topic("empty", partitions=3)
    for number in range(100):
        sim.store.publish("t", b"%d" % number, key="k")
    _pass_time(sim)
    sim.files.record.clear()
    sim.files.recording = True
    _pass_time(sim, 50)
    assert [one for one in sim.files.record if one.kind not in ("open", "close")] == []


def test_a_store_that_seals_no_segment_takes_one_checkpoint_after_a_change() -> None:
    """The second one is there for those that do."""
    sim = Sim()
    sim.store.create_topic("t")
    _pass_time(sim)
    before = sim.store._volume._checkpoints.latest
    assert before is not None
    sim.store.publish("t", b"1")
    _pass_time(sim)
    after = sim.store._volume._checkpoints.latest
    assert after is not None
    assert after.generation == before.generation + 1


def test_a_store_that_was_killed_removes_old_segments_though_nothing_comes_any_more() -> None:
    """The checkpoint before the kill points into one of them."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retain="always", retention_bytes=1)
    for number in range(100):
        sim.store.publish("t", b"%d" % number)
    sim.kill()
    _pass_time(sim)
    assert _offsets(sim.store, "t") == list(range(90, 100))


def _damage(sim: Sim, topic: str, first: int, partition: int = 0) -> None:
    """A sealed segment cannot be read any more; the store is opened anew, so that nobody has it open."""
    sim.store.close()
    path = f"{PATH}/topics/{topic}/{partition}/{first:020}.log"
    file = sim.files.open(path, write=True)
    file.pwrite(bytes(64), 0)
    file.sync_data()
    file.close()
    sim.restart()


def _events(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    about = [getattr(record, "penstock", {}) for record in caplog.records]
    return [(one.get("event"), one.get("topic"), one.get("partition"), one.get("error")) for one in about]


def test_a_damaged_topic_does_not_stop_retention_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """Nor of its other partitions, nor what comes behind retention; it is told once."""
    sim = Sim()
    for topic in ("a", "b", "c"):
        sim.store.create_topic(topic, partitions=2, segment_messages=10, retain="always", retention_age=DAY)
        for number in range(20):
            for partition in range(2):
                sim.store.publish(topic, b"%d" % number, partition=partition)
    sim.store.create_topic("keys", segment_messages=10, compaction=True)
    for number in range(20):
        sim.store.publish("keys", b"%d" % number, key="k")
    _pass_time(sim)
    _damage(sim, "b", 0)
    sim.clock.advance(DAY)
    caplog.clear()
    _pass_time(sim)
    starts = {name: list(topic.starts.values()) for name, topic in sim.store.stats().topics.items()}
    assert starts == {"a": [20, 20], "b": [0, 20], "c": [20, 20], "keys": [0]}
    assert _offsets(sim.store, "keys") == list(range(9, 20))
    assert _events(caplog) == [("retention_failed", "b", 0, "DamagedFile")]


def test_retention_on_demand_tells_of_a_damaged_topic_when_all_others_are_done() -> None:
    """Whoever asked is told, and what can go is gone."""
    sim = Sim()
    for topic in ("a", "b"):
        sim.store.create_topic(topic, segment_messages=10, retain="always", retention_age=DAY)
        for number in range(20):
            sim.store.publish(topic, b"%d" % number)
    _damage(sim, "a", 0)
    sim.clock.advance(DAY + 1)
    with pytest.raises(DamagedFile):
        sim.store.retain()
    assert sim.store.stats().topics["b"].starts == {0: 20}


def test_what_stops_all_retention_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk the removal of forgotten stages is what frees room."""
    sim = Sim()
    with (
        mock.patch.object(sim.store._housekeeper, "retain", side_effect=StorageFull("/s", None, None)),
        mock.patch.object(sim.store._staging, "remove_expired") as removal,
        mock.patch.object(sim.store._housekeeper, "begin_rewriting") as rewriting,
    ):
        _pass_time(sim, 3)
    assert (removal.call_count, rewriting.call_count) == (3, 3)
    assert _events(caplog) == [("retention_failed", None, None, "StorageFull")]


def test_a_damaged_topic_of_dead_letters_does_not_stop_retention_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its old letters cannot be discarded, and that is told, once."""
    sim = Sim()
    sim.store.create_topic("a", dead_letter_retention=DAY)
    sim.store.create_topic("b", segment_messages=10, retain="always", retention_age=DAY)
    for number in range(20):
        sim.store.publish("b", b"%d" % number)
    sim.store.publish("a", b"x")
    with sim.store.subscribe("a", "g", max_deliveries=1) as consumer:
        consumer.nack(consumer.get_many(1, timeout=0))
        assert consumer.get_many(1, timeout=0) == []
    sim.store.flush()
    _pass_time(sim)
    dead = next(info.name for info in sim.store.topics() if info.name not in ("a", "b"))
    sim.clock.advance(DAY)
    with mock.patch.object(DeadLetters, "expire", side_effect=DamagedFile("x", 0, None, "planted")):
        caplog.clear()
        _pass_time(sim)
    assert sim.store.stats().topics["b"].starts == {0: 20}
    assert _events(caplog) == [("retention_failed", dead, None, "DamagedFile")]


def test_a_damaged_segment_stops_compaction_of_no_other_partition_or_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Told once."""
    sim = Sim()
    for topic in ("a", "b"):
        sim.store.create_topic(topic, partitions=2, segment_messages=10, compaction=True)
        for number in range(20):
            for partition in range(2):
                sim.store.publish(topic, b"%d" % number, key="k", partition=partition)
    _damage(sim, "a", 0)
    caplog.clear()
    _pass_time(sim)
    log = sim.store._volume.log("a", 1)
    assert log.segment(0).messages == 1
    assert _offsets(sim.store, "b").count(9) == 2
    assert len(_offsets(sim.store, "b")) == 22
    assert ("rewriting_failed", "a", 0, "DamagedFile") in _events(caplog)
    assert len(_events(caplog)) == len(set(_events(caplog)))


def test_a_damaged_segment_stops_merging_of_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Neither behind it nor in other logs; it is told once, and maintenance goes on."""
    sim = Sim()
    for topic in ("a", "b"):
        sim.store.create_topic(topic, segment_messages=10)
        for number in range(40):
            sim.store.publish(topic, b"%d" % number)
    _damage(sim, "a", 10)
    sim.store.publish("b", b"a change")
    caplog.clear()
    _pass_time(sim)
    a, b = sim.store._volume.log("a"), sim.store._volume.log("b")
    assert [a.segment(first).batches for first in (0, 20)] == [1, 1]
    assert [b.segment(first).batches for first in (0, 10, 20)] == [1, 1, 1]
    assert _events(caplog).count(("coalescing_failed", "a", 0, "DamagedFile")) == 1


def test_the_threads_of_an_idle_store_remove_vacuum_and_compact(tmp_path: Path) -> None:
    """With nothing but time: of what another process left that was killed, and after that."""
    settings = StoreSettings(retention_interval_ms=50, checkpoint_interval_ms=50)
    with Store.open(tmp_path / "before", settings=settings, background=False) as store:
        store.create_topic("removed", segment_messages=10, retain="always", retention_bytes=1)
        store.create_topic("compacted", segment_messages=10, compaction=True)
        store.create_topic("vacuumed", segment_messages=10, retention_messages=1, dedup_window=0.001)
        consumer = store.subscribe("vacuumed", "g", prefetch=100)
        for topic in ("removed", "compacted", "vacuumed"):
            for number in range(100):
                store.publish(topic, b"%d" % number, key="k")
        for message in consumer.get_many(100, timeout=0):
            if message.offset != 3:
                consumer.ack(message)
        store.flush()
        shutil.copytree(tmp_path / "before", tmp_path / "s")
    with Store.open(tmp_path / "s", settings=settings) as store:
        _await(lambda: _offsets(store, "removed") == list(range(90, 100)))
        _await(lambda: _offsets(store, "compacted") == list(range(89, 100)))
        _await(lambda: _offsets(store, "vacuumed") == [3, *range(90, 100)])
        for number in range(100, 120):
            store.publish("removed", b"%d" % number)
        _await(lambda: _offsets(store, "removed") == list(range(110, 120)))


def _await(condition: Callable[[], bool]) -> None:
    """Threads of their own do it, by the system's clock."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
