"""Large stages: parts that become segments, and what happens where they cannot."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from penstock.errors import CommitTooLarge, DamagedFile, MissingData, StorageFull
from penstock.format.batch_header import Producer
from penstock.log.partition_log import PartitionLog
from penstock.settings import StoreSettings
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
SMALL = StageLimits(inline_bytes_max=1_000, adopt_bytes_min=1_000, adopt_batch_bytes_min=500, joined_bytes=0)


def _open(files: SimulatedFileSystem, limits: StageLimits = SMALL) -> Store:
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False)
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
