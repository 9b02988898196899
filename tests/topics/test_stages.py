"""Large stages: parts that become segments, and what happens where they cannot."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from penstock.clock import SystemClock
from penstock.errors import BatchTooLarge, DamagedFile, MissingData, StageNotFound, StorageFull
from penstock.format.batch_header import Producer
from penstock.log.partition_log import PartitionLog
from penstock.settings import StoreSettings
from penstock.store.outside import stage_outside
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.stages import StageLimits
from penstock.volume.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing import Operation

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=256 * 1024, frame_bytes=64 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
SMALL = StageLimits(inline_bytes_max=1_000, adopt_bytes_min=1_000, adopt_batch_bytes_min=500)


def _open(files: SimulatedFileSystem, limits: StageLimits = SMALL, clock: FakeClock | None = None) -> Store:
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=clock or FakeClock(), background=False)
    store._staging._stages.limits = limits
    return store


def _stage(store: Store, name: str, *, topic: str = "t", calls: int = 6, size: int = 600) -> tuple[str, list[bytes]]:
    """A stage of several calls, of which all but the first one or two go to a part."""
    values = [b"%s %d " % (name.encode(), number) + bytes(size) for number in range(calls)]
    with store.stage("job") as stage:
        for value in values:
            stage.publish_many(topic, [value], partition=0)
    return stage.identity, values


def _values(store: Store, topic: str = "t") -> list[bytes]:
    return [bytes(message.value or b"") for message in store.read(topic, partition=0)]


def _segments(files: SimulatedFileSystem, topic: str = "t") -> list[int]:
    return [int(name[:-4]) for name in files.list_directory(f"{PATH}/topics/{topic}/0") if name.endswith(".log")]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_large_parts_become_segments_and_stay(sync: str) -> None:
    """In every mode; they are there after a restart, and after a power loss."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t", sync=sync)
    store.publish("t", b"before")
    staged, values = _stage(store, "one")
    part = next(path for path in files.files() if path.endswith(".part"))
    data_start = store._staging._stages.load(staged).parts[0].data_start
    body = files.files()[part][data_start + 400 : data_start + 600]
    assert store.commit("job", 1, [staged]).messages == len(values)
    assert len(_segments(files)) == 2
    assert body == files.files()[f"{PATH}/topics/t/0/{_segments(files)[1]:020d}.log"][data_start + 400 : data_start + 600]
    assert files.list_directory(f"{PATH}/staging") == []
    assert _values(store) == [b"before", *values]
    store.publish("t", b"after")
    assert len(_segments(files)) == 3
    store._volume.sync_interval_logs()
    store._volume.checkpoint()
    for disk in (files.kill(), files.crash(random.Random(1), keep="nothing")):
        again = _open(disk)
        assert _values(again) == [b"before", *values, b"after"]
        again.publish("t", b"more")
        again.close()
        assert not verify(PATH, files=disk).findings
    store.close()


@pytest.mark.parametrize("sync", ["always", "os"])
def test_an_adoption_without_its_frame_is_taken_back(sync: str) -> None:
    """The process dies before the frame is written: the log is as it was, and the stage can be committed again."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t", sync=sync)
    store.publish("t", b"before")
    store._volume.sync_interval_logs()
    store._volume.checkpoint()
    staged, values = _stage(store, "one")
    disks: list[SimulatedFileSystem] = []

    def look(_: Operation) -> None:
        if len(_segments(files)) > 1:
            disks.append(files.kill())

    files.on_operation = look
    store.commit("job", 1, [staged])
    files.on_operation = None
    assert disks
    again = _open(disks[0])
    assert again.committed("job", 1) is None
    assert _values(again) == [b"before"]
    assert _segments(disks[0]) == [0]
    assert again.commit("job", 1, [staged]).duplicate is False
    assert _values(again) == [b"before", *values]
    assert len(_segments(disks[0])) == 2


def test_messages_of_a_stage_keep_their_order_in_many_parts() -> None:
    """Parts are as long as a segment; the last one, short as it is, is adopted too, so that it stays last."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t", segment_bytes=70_000)
    staged, values = _stage(store, "long", calls=90)
    assert len(store._staging._stages.load(staged).parts) > 2
    store.commit("job", 1, [staged])
    assert _values(store) == values
    assert files.list_directory(f"{PATH}/staging") == []


def test_small_parts_and_small_batches_are_copied() -> None:
    for limits in (StageLimits(1_000, 1 << 20, 1), StageLimits(1_000, 1, 100_000)):
        files = SimulatedFileSystem()
        store = _open(files, limits)
        store.create_topic("t")
        staged, values = _stage(store, "one")
        assert store._staging._stages.load(staged).parts
        store.commit("job", 1, [staged])
        assert _values(store) == values
        assert len(_segments(files)) == 1


def test_a_part_with_another_name_is_copied_and_left_alone() -> None:
    """Somebody made a copy of the store by links: writing into the file would change it there."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    staged, values = _stage(store, "one")
    part = next(path for path in files.files() if path.endswith(".part"))
    files.link(part, f"{PATH}/copy")
    before = files.files()[part]
    store.commit("job", 1, [staged])
    assert files.files()[f"{PATH}/copy"] == before
    assert _values(store) == values
    assert len(_segments(files)) == 1


def test_a_stage_that_is_committed_and_not_removed_is_not_adopted_twice() -> None:
    """Its file is a segment; whoever commits it under another number gets copies, and the segment is not touched."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    staged, values = _stage(store, "one")
    with mock.patch.object(store._staging._stages, "remove", return_value=True):
        store.commit("job", 1, [staged])
    before = files.files()[f"{PATH}/topics/t/0/{_segments(files)[1]:020d}.log"]
    store.commit("job", 2, [staged])
    assert files.files()[f"{PATH}/topics/t/0/{_segments(files)[1]:020d}.log"] == before
    assert _values(store) == values + values


def test_where_files_cannot_have_two_names_stages_have_no_parts() -> None:
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    files.fail("link", 1, errno.EPERM)
    staged, values = _stage(store, "one")
    assert not store._staging._stages.load(staged).parts
    assert files.list_directory(f"{PATH}/staging") == [f"{staged}.stage"]
    store.commit("job", 1, [staged])
    assert _values(store) == values


def test_a_state_that_outgrew_its_place_makes_the_commit_copy() -> None:
    """So many producers came between staging and committing that their state does not fit before the batches."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    staged, values = _stage(store, "one")
    log = store._volume.log("t")
    for number in range(20):
        for sequence in range(64):
            log.state.note_producer(Producer(number * 2 + 1, 1, sequence), 0, 0, 1)
    with mock.patch.object(PartitionLog, "plan_adoption", side_effect=AssertionError):
        store.commit("job", 1, [staged])
    assert _values(store) == values


def test_a_part_that_is_gone_or_cut_is_told_and_nothing_is_published() -> None:
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    staged, _ = _stage(store, "one")
    part = next(path for path in files.files() if path.endswith(".part"))
    content = files.files()[part]
    files.replace(part, content[:-1])
    with pytest.raises(DamagedFile, match="part"):
        store.commit("job", 1, [staged])
    files.unlink(part)
    with pytest.raises(MissingData, match="part"):
        store.commit("job", 1, [staged])
    assert _values(store) == []
    files.replace(part, content)
    store.commit("job", 1, [staged])
    assert len(_values(store)) == 6


def test_a_flipped_bit_in_a_copied_part_is_told() -> None:
    files = SimulatedFileSystem()
    store = _open(files, StageLimits(1_000, 1 << 20, 1))
    store.create_topic("t")
    staged, _ = _stage(store, "one")
    part = next(path for path in files.files() if path.endswith(".part"))
    content = bytearray(files.files()[part])
    content[-300] ^= 1
    files.replace(part, bytes(content))
    with pytest.raises(DamagedFile, match="part"):
        store.commit("job", 1, [staged])
    assert _values(store) == []


def test_what_is_copied_at_one_commit_is_limited_and_what_is_adopted_is_not() -> None:
    for limits, is_refused in ((StageLimits(1_000, 1 << 20, 1), True), (SMALL, False)):
        store = _open(SimulatedFileSystem(), limits)
        store.create_topic("t")
        staged, values = _stage(store, "one")
        with mock.patch("penstock.store.staging.COMMIT_BYTES_MAX", 3_000):
            if is_refused:
                with pytest.raises(BatchTooLarge):
                    store.commit("job", 1, [staged])
            else:
                store.commit("job", 1, [staged])
        assert _values(store) == ([] if is_refused else values)


def test_parts_go_with_their_stage() -> None:
    """By abort, by leaving the block with an error, and at the next opening what a dead process left."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    staged, _ = _stage(store, "one")
    assert store.abort([staged]) == 1
    assert files.list_directory(f"{PATH}/staging") == []
    with pytest.raises(ZeroDivisionError), store.stage("job") as stage:
        for _ in range(6):
            stage.publish("t", bytes(600))
        raise ZeroDivisionError
    assert files.list_directory(f"{PATH}/staging") == []
    left = store.stage("job")
    for _ in range(6):
        left.publish("t", bytes(600))
    assert len(files.list_directory(f"{PATH}/staging")) == 2
    store = _open(files.kill())
    assert store._volume._files.list_directory(f"{PATH}/staging") == []


DAY = 86_400


@pytest.mark.parametrize("again", ["living", "reopened", "killed"])
def test_a_stage_that_nobody_committed_for_three_days_is_removed(again: str) -> None:
    """With its parts; one that is younger is not, nor one that is being written; also of a store that was opened since."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock=clock)
    store.create_topic("t")
    old, _ = _stage(store, "old")
    clock.advance(DAY)
    young, values = _stage(store, "young")
    if again == "reopened":
        store.close()
        store = _open(files, clock=clock)
    elif again == "killed":
        files = files.kill()
        store = _open(files, clock=clock)
    writing = store.stage("job")
    writing.publish("t", b"writing")
    clock.advance(2 * DAY)
    assert store._staging.remove_expired() == 0, "three days are not over"
    assert any(name.startswith(old) and name.endswith(".part") for name in files.list_directory(f"{PATH}/staging"))
    clock.advance(1)
    assert store._staging.remove_expired() == 1
    assert not [name for name in files.list_directory(f"{PATH}/staging") if name.startswith(old)]
    with pytest.raises(StageNotFound):
        store.commit("job", 1, [old, young])
    assert store.commit("job", 1, [young, writing.finish()]).messages == len(values) + 1
    assert store._staging.remove_expired() == 0


def test_a_stage_expires_by_its_own_age_after_the_clock_was_set_back() -> None:
    """One that was made a year ahead is kept, as it may be wanted; those of now expire beside it."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock=clock)
    store.create_topic("t")
    clock.jump_wall(365 * DAY)
    ahead, values = _stage(store, "ahead")
    clock.jump_wall(-365 * DAY)
    now, _ = _stage(store, "now")
    clock.advance(3 * DAY + 1)
    assert store._staging.remove_expired() == 1
    with pytest.raises(StageNotFound):
        store.commit("job", 1, [now])
    assert store.commit("job", 1, [ahead]).messages == len(values)


def test_a_stage_beside_the_owner_is_kept_while_its_process_may_live(tmp_path: Path) -> None:
    """A day for one that is not finished; finished, it expires as any other does."""
    clock = FakeClock(now_us=SystemClock().now_us())
    with Store.open(str(tmp_path / "s"), settings=SETTINGS, clock=clock, background=False) as store:
        store.create_topic("t")
        with ReadOnlyStore(store.path) as reader:
            unfinished, finished = stage_outside(reader, "job"), stage_outside(reader, "job")
            for stage in (unfinished, finished):
                stage.publish("t", b"x")
            finished.finish()
            clock.advance(DAY - 60)
            assert store._staging.remove_expired() == 0
            assert any(name.endswith(".outside") for name in os.listdir(tmp_path / "s" / "staging"))
            clock.advance(120)
            store._staging.remove_expired()
            assert os.listdir(tmp_path / "s" / "staging") == [f"{finished.identity}.stage"]
            clock.advance(2 * DAY)
            assert store._staging.remove_expired() == 1
            assert os.listdir(tmp_path / "s" / "staging") == []
            unfinished.abandon()


def test_the_keeping_of_house_removes_expired_stages() -> None:
    """Nobody has to ask."""
    files, clock = SimulatedFileSystem(), FakeClock()
    settings = dataclasses.replace(SETTINGS, retention_interval_ms=1_000)
    store = Store.open(PATH, settings=settings, files=files, clock=clock, background=False)
    store.create_topic("t")
    staged, _ = _stage(store, "old")
    clock.advance(3 * DAY + 1)
    with mock.patch.object(store, "_wait", side_effect=[False, True]), mock.patch("penstock.store.store.WRITE_SECONDS", 10.0):
        store._retain_forever()
    assert files.list_directory(f"{PATH}/staging") == []
    assert store.abort([staged]) == 0


def test_a_full_disk_is_told_while_staging_and_the_stage_is_dropped() -> None:
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    stage = store.stage("job")
    stage.publish("t", bytes(600))
    files.capacity_bytes = sum(len(content) for content in files.files().values()) + 1_500_000
    with pytest.raises(StorageFull):
        for _ in range(4_000):
            stage.publish("t", bytes(60_000))
    stage.abandon()
    assert files.list_directory(f"{PATH}/staging") == []
    store.publish("t", b"the store goes on")


def test_a_stage_larger_than_all_limits_is_adopted_on_a_real_disk(tmp_path: Path) -> None:
    """With the limits that users have: some megabytes, in both partitions."""
    path = str(tmp_path / "store")
    with Store.open(path) as store:
        store.create_topic("t", partitions=2)
        with store.stage("job") as stage:
            for call in range(24):
                stage.publish_many("t", [b"%d/%d" % (call, number) + bytes(500) for number in range(1_000)], partition=call % 2)
        store.commit("job", 1, [stage.identity])
        names = os.listdir(f"{path}/topics/t/0")
        assert len([name for name in names if name.endswith(".log")]) == 2
        assert os.listdir(f"{path}/staging") == []
        expected = [b"%d/%d" % (call, number) for call in range(0, 24, 2) for number in range(1_000)]
        assert [bytes(message.value or b"").rstrip(b"\0") for message in store.read("t", partition=0)] == expected
    with Store.open(path) as store:
        assert [bytes(message.value or b"").rstrip(b"\0") for message in store.read("t", partition=0)] == expected
    assert not verify(path).findings
