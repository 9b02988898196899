"""Large stages: parts that become segments, and what happens where they cannot."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from penstock.clock import SystemClock
from penstock.errors import CommitTooLarge, DamagedFile, MissingData, StageNotFound, StorageFull, Unavailable, UsageError
from penstock.format.batch import Batch
from penstock.format.batch_header import Producer
from penstock.log.partition_log import PartitionLog
from penstock.settings import StoreSettings
from penstock.store.outside import stage_outside
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.testing.simulated_files.open_file import SimulatedFile
from penstock.topics.stages import StageLimits, _Part
from penstock.volume.verification import verify

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    from penstock.files import File
    from penstock.testing import Operation

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=256 * 1024, frame_bytes=64 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
SMALL = StageLimits(inline_bytes_max=1_000, adopt_bytes_min=1_000, adopt_batch_bytes_min=500, joined_bytes=0)


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


def _segments(files: SimulatedFileSystem, partition: int = 0) -> list[int]:
    return [int(name[:-4]) for name in files.list_directory(f"{PATH}/topics/t/{partition}") if name.endswith(".log")]


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
    for limits in (StageLimits(1_000, 1 << 20, 1, 0), StageLimits(1_000, 1, 100_000, 0)):
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
    store = _open(files, StageLimits(1_000, 1 << 20, 1, 0))
    store.create_topic("t")
    staged, _ = _stage(store, "one")
    part = next(path for path in files.files() if path.endswith(".part"))
    content = bytearray(files.files()[part])
    content[-300] ^= 1
    files.replace(part, bytes(content))
    with pytest.raises(DamagedFile, match="part"):
        store.commit("job", 1, [staged])
    assert _values(store) == []


def test_what_is_copied_at_one_commit_is_limited_where_files_cannot_have_two_names() -> None:
    """The error says what to do; nothing is changed, and nothing more is left."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    files.fail("link", 1, errno.EPERM)
    staged, values = _stage(store, "one")
    with (
        mock.patch("penstock.store.staging.COMMIT_BYTES_MAX", 3_000),
        pytest.raises(CommitTooLarge, match="maxOffsetsPerTrigger"),
    ):
        store.commit("job", 1, [staged])
    assert _values(store) == []
    assert files.list_directory(f"{PATH}/staging") == [f"{staged}.stage"]
    store.commit("job", 1, [staged])
    assert _values(store) == values


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


def _stages(store: Store, count: int, partitions: int, *, calls: int, size: int) -> tuple[list[str], dict[int, list[bytes]]]:
    """What many tasks stage for all partitions of `t`, and what each partition gets of them."""
    identities = []
    values: dict[int, list[bytes]] = {}
    for task in range(count):
        with store.stage("job") as stage:
            for call in range(calls):
                for partition in range(partitions):
                    value = b"%d %d %d " % (task, partition, call) + bytes(size)
                    values.setdefault(partition, []).append(value)
                    stage.publish_many("t", [value], partition=partition)
        identities.append(stage.identity)
    return identities, values


def _check_partitions(store: Store, values: dict[int, list[bytes]]) -> None:
    """All messages are there, those of one task in their order."""
    for partition, expected in values.items():
        found = [bytes(message.value or b"") for message in store.read("t", partition=partition)]
        assert sorted(found) == sorted(expected)
        tasks = {value.split(b" ")[0] for value in expected}
        for task in tasks:
            assert [one for one in found if one.split(b" ")[0] == task] == [
                one for one in expected if one.split(b" ")[0] == task
            ]


def test_more_small_batches_than_a_frame_has_room_for_are_committed() -> None:
    """Keyed rows over many partitions come in tiny pieces: a frame of 64 KiB names at most 682 of them."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits())
    store.create_topic("t", partitions=4)
    staged, values = _stages(store, 2, 4, calls=150, size=20)
    store.commit("job", 1, staged)
    _check_partitions(store, values)


def test_many_tasks_for_many_partitions_are_committed_where_they_are_too_much_to_copy() -> None:
    """Each task has more than a stage itself holds for each partition, and less than is worth adopting."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits(1_000, 1 << 20, 1))
    store.create_topic("t", partitions=4)
    staged, values = _stages(store, 6, 4, calls=3, size=600)
    with mock.patch("penstock.store.staging.COMMIT_BYTES_MAX", 10_000):
        store.commit("job", 1, staged)
    _check_partitions(store, values)


GATHERING = StageLimits(inline_bytes_max=4_000, adopt_bytes_min=8_000, adopt_batch_bytes_min=500, joined_bytes=2_000)
"""Small batches are joined; a share of some messages stays in the stage, and one of many goes to a part."""


def _limited(bytes_max: int) -> contextlib.AbstractContextManager[object]:
    return mock.patch("penstock.store.staging.COMMIT_BYTES_MAX", bytes_max)


def _left(files: SimulatedFileSystem) -> list[str]:
    return files.list_directory(f"{PATH}/staging")


def test_a_stage_of_tiny_pieces_has_few_batches() -> None:
    """About as many as its bytes need, and one for each partition."""
    store = _open(SimulatedFileSystem(), StageLimits())
    store.create_topic("t", partitions=16)
    (staged,), values = _stages(store, 1, 16, calls=200, size=20)
    stage = store._staging._stages.load(staged)
    assert len(stage.entries) == 16
    assert not stage.parts
    store.commit("job", 1, [staged])
    _check_partitions(store, values)


def test_of_a_share_that_goes_to_a_part_only_the_first_message_is_copied() -> None:
    """Whether it came in large pieces or in small ones."""
    for calls, count in ((1, 300), (300, 1)):
        files = SimulatedFileSystem()
        store = _open(files, StageLimits(50_000, 8_000, 500, 20_000))
        store.create_topic("t")
        values = [b"%d " % number + bytes(300) for number in range(300)]
        with store.stage("job") as stage:
            for call in range(calls):
                stage.publish_many("t", values[call * count : (call + 1) * count])
        loaded = store._staging._stages.load(stage.identity)
        (entry,), (part,) = loaded.entries, loaded.parts
        assert Batch(entry.batch).header.count == 1
        assert len(part.headers) <= 8
        store.commit("job", 1, [stage.identity])
        assert _values(store) == values
        assert len(_segments(files)) == 2


def test_a_stage_gathers_bounded_memory_and_still_writes_large_batches() -> None:
    """Shares that grow are written out, largest first."""
    files = SimulatedFileSystem()
    limits = StageLimits(8_000, 1 << 20, 1, 4_000, gathered_bytes_max=40_000)
    store = _open(files, limits)
    store.create_topic("t", partitions=32)
    values: dict[int, list[bytes]] = {}
    with store.stage("job") as stage:
        writer = stage._writer
        for call in range(2_000):
            partition = call * 7 % 32 if call % 3 else 0
            values.setdefault(partition, []).append(b"0 %d " % call + bytes(100))
            stage.publish_many("t", values[partition][-1:], partition=partition)
            held = [batch for share in writer._shares.values() for batch in share.batches]
            assert sum(len(batch.data) + 256 for batch in held) == writer._gathered_bytes <= limits.gathered_bytes_max
    loaded = store._staging._stages.load(stage.identity)
    batches = len(loaded.entries) + sum(len(part.headers) for part in loaded.parts)
    assert batches < 32 * 2 + 2_000 * 250 // 1_000
    store.commit("job", 1, [stage.identity])
    _check_partitions(store, values)


def test_many_stages_at_once_share_the_memory_that_they_gather_in() -> None:
    store = _open(SimulatedFileSystem(), StageLimits(1_000, gathered_bytes_max=30_000, all_gathered_bytes_max=40_000))
    store.create_topic("t")
    stages = store._staging._stages
    assert stages.gathered_bytes_max == 30_000
    begun = [store.stage("job") for _ in range(8)]
    assert stages.gathered_bytes_max == 5_000
    begun[0].finish()
    begun[1].abandon()
    del begun[2:6]
    assert stages.gathered_bytes_max == 20_000
    more = [store.stage("job") for _ in range(80)]
    assert stages.gathered_bytes_max == 1_000
    assert len(more) == 80


def test_a_stage_has_no_more_files_than_it_may() -> None:
    """Another partition's is finished, and goes on in a new one; none stays in the stage itself, however large it gets."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits(1_000, 1_000, 1, 500, parts_max=2))
    store.create_topic("t", partitions=5)
    with mock.patch.object(_Part, "finish", autospec=True, side_effect=_Part.finish) as finished:
        (staged,), values = _stages(store, 1, 5, calls=60, size=200)
    loaded = store._staging._stages.load(staged)
    assert {part.partition for part in loaded.parts} == set(range(5))
    assert finished.call_count == len(loaded.parts) > 5
    assert sum(len(entry.batch) for entry in loaded.entries) < 5 * 1_500
    store.commit("job", 1, [staged])
    _check_partitions(store, values)


def test_what_is_known_of_the_parts_of_a_stage_does_not_keep_the_stage_in_memory() -> None:
    """A commit knows those of all its stages at once."""
    store = _open(SimulatedFileSystem())
    store.create_topic("t")
    staged, _ = _stage(store, "one", calls=20)
    loaded = store._staging._stages.load(staged)
    assert {header.obj == bytes(header) for part in loaded.parts for header in part.headers} == {True}


def test_a_long_stage_is_read_though_the_system_reads_it_in_pieces() -> None:
    """Linux reads two gigabytes at once and no more."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits())
    store.create_topic("t")
    staged, values = _stage(store, "one", calls=50)
    plain = SimulatedFile.pread

    def by_pieces(file: Any, length: int, position: int) -> bytes:
        return plain(file, min(length, 1_000) if file.path.endswith(".stage") else length, position)

    with mock.patch.object(SimulatedFile, "pread", by_pieces):
        store.commit("job", 1, [staged])
    assert _values(store) == values


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_message_that_could_not_be_staged_is_not_staged_twice(error: int) -> None:
    """A stage of which nobody knows what it holds takes no more."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    stage = store.stage("job")
    stage.publish("t", bytes(600))
    files.fail("create", 1, error)
    with pytest.raises(Unavailable):
        stage.publish("t", bytes(600))
    for refused in (lambda: stage.publish("t", bytes(600)), stage.finish):
        with pytest.raises(UsageError, match="abandon"):
            refused()
    assert _left(files) == []


def test_a_commit_that_dies_after_it_gathered_leaves_no_stage_more() -> None:
    """However often it dies; what was staged is still there, and is committed once."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t", partitions=3)
    staged, values = _stages(store, 40, 3, calls=3, size=300)
    before = sorted(_left(files))
    for _ in range(3):
        died = mock.patch.object(store._volume, "commit_changes", side_effect=KeyboardInterrupt)
        with _limited(20_000), died, pytest.raises(KeyboardInterrupt):
            store.commit("job", 1, staged)
        files = files.kill()
        assert len(_left(files)) > len(before)
        store = _open(files, GATHERING)
        assert sorted(_left(files)) == before
    with _limited(20_000):
        store.commit("job", 1, staged)
    _check_partitions(store, values)
    assert _left(files) == []


def test_a_stage_that_was_not_written_as_a_whole_cannot_be_finished() -> None:
    """What was gathered when the disk was full would be missing."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    stage = store.stage("job")
    stage.publish("t", bytes(600))
    files.fail("pwrite", 1, errno.ENOSPC)
    with pytest.raises(StorageFull):
        stage.publish("t", bytes(600))
    with pytest.raises(UsageError, match="abandon"):
        stage.finish()
    assert _left(files) == []


def test_small_stages_of_very_many_tasks_are_gathered_where_they_are_too_much_to_copy() -> None:
    """None of them has a part; together they become segments, of large batches."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t", partitions=3)
    staged, values = _stages(store, 40, 3, calls=3, size=300)
    assert not any(name.endswith(".part") for name in _left(files))
    with _limited(20_000):
        assert store.commit("job", 1, staged).messages == 40 * 3 * 3
    _check_partitions(store, values)
    assert len(_segments(files)) == 2
    assert _left(files) == []
    store.publish("t", b"0 after", partition=0)
    values[0].append(b"0 after")
    store = _open(files.kill())
    _check_partitions(store, {0: sorted(values[0], key=lambda value: value == b"0 after")})
    assert not verify(PATH, files=store._volume._files).findings


def test_stages_of_many_small_batches_are_gathered_where_a_frame_cannot_name_them() -> None:
    """As older versions made them."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits(joined_bytes=0))
    store.create_topic("t", partitions=2)
    staged, values = _stages(store, 3, 2, calls=200, size=10)
    assert len(store._staging._stages.load(staged[0]).entries) == 400
    store._staging._stages.limits = StageLimits()
    store.commit("job", 1, staged)
    _check_partitions(store, values)
    assert _left(files) == []


def test_parts_are_adopted_though_they_are_small_before_a_commit_is_too_large() -> None:
    """As few as must be, the largest first."""
    files = SimulatedFileSystem()
    store = _open(files, StageLimits(1_000, 1 << 20, 1, 0))
    store.create_topic("t")
    staged = [_stage(store, name, calls=calls)[0] for name, calls in (("a", 3), ("b", 9), ("c", 4))]
    with _limited(6_000), mock.patch.object(store._staging._stages, "begin", side_effect=AssertionError("nothing is gathered")):
        store.commit("job", 1, staged)
    found = _values(store)
    assert len(_segments(files)) == 2
    assert [value[:3] for value in found[-8:]] == [b"b %d" % number for number in range(1, 9)]
    assert len(found) == 16


def test_small_parts_are_gathered_where_adopting_them_would_not_do() -> None:
    """What the stages themselves hold is too much already; the log gets one segment, and not one for each task."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t")
    small, values = _stages(store, 20, 1, calls=4, size=300)
    larger, more = _stages(store, 8, 1, calls=14, size=300)
    assert len([name for name in _left(files) if name.endswith(".part")]) == 8
    with _limited(15_000):
        store.commit("job", 1, [*small, *larger])
    assert sorted(_values(store)) == sorted(values[0] + more[0])
    assert len(_segments(files)) == 2
    assert _left(files) == []


def test_no_more_parts_are_adopted_than_there_may_be_open_files() -> None:
    """The smallest of them are copied, or gathered where that is too much."""
    for bytes_max in (1 << 20, 15_000):
        files = SimulatedFileSystem()
        store = _open(files, GATHERING)
        store.create_topic("t", partitions=2)
        staged, values = _stages(store, 6, 2, calls=40, size=300)
        assert len([name for name in _left(files) if name.endswith(".part")]) == 12
        with _limited(bytes_max), mock.patch("penstock.store.staging.descriptors_max", return_value=8):
            store.commit("job", 1, staged)
        _check_partitions(store, values)
        assert sum(len(_segments(files, partition=partition)) for partition in values) <= 2 + 6
        assert _left(files) == []


def test_a_commit_that_cannot_be_gathered_for_lack_of_room_is_refused_and_can_be_repeated() -> None:
    """Nothing is changed, and nothing more is left."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t", partitions=3)
    staged, values = _stages(store, 40, 3, calls=3, size=300)
    before = _left(files)
    files.capacity_bytes = sum(len(content) for content in files.files().values()) + 30_000
    with _limited(20_000), pytest.raises(StorageFull):
        store.commit("job", 1, staged)
    assert _left(files) == before
    assert not _values(store)
    files.capacity_bytes = None
    with _limited(20_000):
        store.commit("job", 1, staged)
    _check_partitions(store, values)


def test_a_process_without_descriptors_refuses_a_commit_and_can_repeat_it() -> None:
    """Whichever file it was that could not be opened."""
    files = SimulatedFileSystem()
    store = _open(files)
    store.create_topic("t")
    store.publish("t", b"before")
    staged, values = _stage(store, "one")
    plain = files.open
    for number in range(3):
        calls = itertools.count()

        def refuse(path: str, *, write: bool = False, number: int = number, calls: itertools.count[int] = calls) -> File:
            if next(calls) == number:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return plain(path, write=write)

        with mock.patch.object(files, "open", refuse), pytest.raises(Unavailable, match="ulimit"):
            store.commit("job", 1, [staged])
        assert _values(store) == [b"before"]
    store.commit("job", 1, [staged])
    assert _values(store) == [b"before", *values]


def test_a_damaged_stage_is_told_while_it_is_gathered() -> None:
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t")
    staged, _ = _stage(store, "one", calls=40)
    part = next(path for path in files.files() if path.endswith(".part"))
    content = bytearray(files.files()[part])
    content[-300] ^= 1
    files.replace(part, bytes(content))
    files.link(part, f"{PATH}/copy")  # so that it is not adopted
    with _limited(3_000), pytest.raises(DamagedFile, match="part"):
        store.commit("job", 1, [staged])
    assert _values(store) == []
    assert len(_left(files)) == 2


def test_parts_that_were_outgrown_are_gathered_anew_where_they_are_too_much_to_copy() -> None:
    """The new ones leave the room that the state takes now."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t")
    staged, values = _stage(store, "one", calls=40)
    log = store._volume.log("t")
    for number in range(20):
        for sequence in range(64):
            log.state.note_producer(Producer(number * 2 + 1, 1, sequence), 0, 0, 1)
    with _limited(5_000):
        store.commit("job", 1, [staged])
    assert _values(store) == values
    assert len(_segments(files)) == 2
    assert _left(files) == []


def test_what_has_more_pieces_than_a_frame_can_name_is_refused_with_what_to_do() -> None:
    """Nothing is changed; fewer of them can be committed."""
    files = SimulatedFileSystem()
    settings = dataclasses.replace(SETTINGS, frame_bytes=8 * 1024)
    store = Store.open(PATH, settings=settings, files=files, clock=FakeClock(), background=False)
    store.create_topic("t", partitions=60)
    staged, values = _stages(store, 1, 60, calls=1, size=1)
    with pytest.raises(CommitTooLarge, match=r"60 pieces is over the limit of \d+; nothing was changed: .*fewer tasks"):
        store.commit("job", 1, staged)
    assert _left(files) == [f"{staged[0]}.stage"]
    for partition in values:
        assert not list(store.read("t", partition=partition))
    store.publish("t", b"the store goes on", partition=0)


def test_a_gathered_commit_is_all_or_nothing_at_every_operation() -> None:
    """Killed, or without power, it is there as a whole, or it can be repeated; what it made is left to expire, or is gone."""
    files = SimulatedFileSystem()
    store = _open(files, GATHERING)
    store.create_topic("t", partitions=2)
    staged, values = _stages(store, 12, 2, calls=2, size=300)
    count = sum(map(len, values.values()))
    outcomes: list[bool] = []

    def look(_: Operation) -> None:
        for disk in (
            files.kill(),
            files.crash(random.Random(len(outcomes)), keep="random"),
            files.crash(random.Random(1), keep="nothing"),
        ):
            again = _open(disk, GATHERING)
            known = again.committed("job", 1)
            found = sum(len(list(again.read("t", partition=partition))) for partition in values)
            assert found == (0 if known is None else count)
            with _limited(3_000):
                assert again.commit("job", 1, staged) == ("job", 1, count, known is not None, 1, None)
            _check_partitions(again, values)
            outcomes.append(known is not None)

    files.on_operation = look
    with _limited(3_000):
        store.commit("job", 1, staged)
    files.on_operation = None
    assert True in outcomes
    assert outcomes.count(False) > 60
