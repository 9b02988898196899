"""
Invariants I1-I14 and rules R1-R10 of the reliability page, each by a test that carries its number.

They are small and direct. The same promises are checked in tens of thousands of crash states by tests/crash, and on real
file systems by tests/real_disk.
"""

from __future__ import annotations

import errno
import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import (
    BadBytes,
    BatchTooLarge,
    Corrupt,
    DamagedFile,
    MissingData,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
    StoreLocked,
    UnsupportedFormat,
)
from penstock.format.batch import Batch, encode_batch, encode_single
from penstock.format.checksum import crc32c
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, Operation, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.log.partition_log import PartitionLog

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=16 * 1024, frame_bytes=8 * 1024, reference_bytes=1024, free_bytes_floor=0, reserve_bytes=0
)
TOPIC = TopicSettings(segment_bytes=3_000, index_interval_bytes=256)
WEAK = TopicSettings(sync=SyncMode.OS, segment_bytes=3_000)
SEGMENT = f"{PATH}/topics/t/0/{0:020d}.log"


def _open(files: SimulatedFileSystem, settings: StoreSettings = SETTINGS) -> Volume:
    return Volume.open(PATH, settings=settings, files=files, clock=FakeClock(), background=False)


def _new(files: SimulatedFileSystem, topic: TopicSettings = TOPIC) -> tuple[Volume, PartitionLog]:
    volume = _open(files)
    volume.create_topic("t", 1, topic)
    return volume, volume.log("t")


def _values(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = log.log_start
    while at < log.committed_end:
        for batch in log.read(at):
            for index in range(len(batch)):
                value = batch.value(index)
                found.append(None if value is None else bytes(value))
            at = batch.end_offset
    return found


def _crash(files: SimulatedFileSystem, keep: str = "nothing", seed: int = 1) -> SimulatedFileSystem:
    return files.crash(random.Random(seed), keep=keep)  # type: ignore[arg-type]


def _crash_at(files: SimulatedFileSystem, index: int, states: list[SimulatedFileSystem]) -> Callable[[Operation], None]:
    """A watcher that adds the crash states of one operation to *states*."""

    def watch(operation: Operation) -> None:
        if operation.index == index:
            states.extend(_crash(files, "random", seed) for seed in range(6))

    return watch


# -- invariants -----------------------------------------------------------------------------------------------------


def test_i1_an_acknowledged_publish_is_byte_identical_after_power_loss() -> None:
    """Key, headers, value, timestamp and offset are what the acknowledgement named."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    values = [b"v" * 500, b"", None]
    keys = [b"key", b"", None]
    headers = [[("h", b"1"), ("h", b"2")], [], None]
    first = volume.append(log, encode_batch(values, keys=keys, headers=headers, times_us=[7, None, -5]))
    batch = _open(_crash(files)).log("t").read(first)[0]
    assert [None if (one := batch.value(index)) is None else bytes(one) for index in range(3)] == values
    assert [None if (one := batch.key(index)) is None else bytes(one) for index in range(3)] == keys
    assert [batch.headers(index) for index in range(3)] == [[("h", b"1"), ("h", b"2")], [], []]
    assert [batch.time_us(0), batch.time_us(2)] == [7, -5]
    assert batch.time_us(1) == batch.header.append_time_us == log.read(first)[0].header.append_time_us


def test_i2_offsets_are_dense_from_zero_and_a_cut_tail_is_not_an_acknowledged_one() -> None:
    """Offsets go on without a gap or a repetition over rolls, crashes and restarts."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    given: list[int] = []
    for turn in range(6):
        given += [volume.append(log, encode_single(b"x" * 90)) for _ in range(7)]
        if turn % 2:
            files = _crash(files, "random", turn)
        else:
            volume.close()
        volume = _open(files)
        log = volume.log("t")
    assert given == list(range(42))
    assert [batch.first_offset for batch in log.read(0, 1 << 20)][:3] == [0, 1, 2]


def test_i3_no_acknowledgement_before_the_syncs_it_depends_on() -> None:
    """For a large batch in a new segment: its file, its folder and then the journal are synced, in this order."""
    files = SimulatedFileSystem(recording=True)
    volume, log = _new(files)
    start = len(files.record)
    volume.append(log, encode_batch([b"x" * 2_000]))
    kinds = [(one.kind, one.path) for one in files.record[start:]]
    created = kinds.index(("create", SEGMENT))
    data = kinds.index(("sync_data", SEGMENT))
    name = kinds.index(("sync_directory", SEGMENT.rpartition("/")[0]))
    frame = max(at for at, (kind, path) in enumerate(kinds) if kind == "pwrite" and path.startswith(f"{PATH}/journal/"))
    journal = max(at for at, (kind, path) in enumerate(kinds) if kind == "sync_data" and path.startswith(f"{PATH}/journal/"))
    assert created < data < frame < journal
    assert name < frame
    assert journal == len(kinds) - 1


def test_i3_one_failed_sync_fails_every_publish_of_its_group() -> None:
    """All tickets of the frame get an error."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    tickets = [volume.submit(log, encode_single(b"%d" % number)) for number in range(5)]
    files.fail("sync_data", 1, errno.EIO, path_contains="journal")
    for ticket in tickets:
        with pytest.raises(OutcomeUnknown):
            ticket.wait()
    assert log.committed_end == 0


def test_i4_a_failed_publish_is_never_visible_in_part() -> None:
    """A batch and a change to several logs are there as a whole or not at all, after a crash at every operation."""
    for stop in itertools.count(1):
        files = SimulatedFileSystem()
        volume = _open(files)
        volume.create_topic("t", 2, TOPIC)
        states: list[SimulatedFileSystem] = []

        files.on_operation = _crash_at(files, files.operations + stop, states)
        changes = [
            Append(volume.log("t", 0), encode_batch([b"a"] * 3)),
            Append(volume.log("t", 1), encode_batch([b"b" * 1_500] * 2)),
        ]
        volume.submit_changes(changes).wait()
        files.on_operation = None
        if not states:
            break
        for state in states:
            again = _open(state)
            assert (again.log("t", 0).committed_end, again.log("t", 1).committed_end) in {(0, 0), (3, 2)}
    assert stop > 5


def test_i5_after_a_failed_sync_nothing_is_acknowledged_by_that_process() -> None:
    """The next publishes are refused, though the disk works again, and the store says why."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    volume.append(log, encode_single(b"good"))
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OutcomeUnknown):
        volume.append(log, encode_single(b"doubtful"))
    for _ in range(3):
        with pytest.raises(StorageFailed):
            volume.append(log, encode_single(b"late"))
    assert _values(log) == [b"good"]
    assert _values(_open(_crash(files)).log("t")) == [b"good"]


def test_i6_only_committed_messages_are_readable_and_a_weak_mode_loses_a_suffix() -> None:
    """sync=os: after power loss a prefix is left, and a new log epoch marks what follows."""
    files = SimulatedFileSystem()
    volume, log = _new(files, WEAK)
    for number in range(20):
        volume.append(log, encode_single(b"%d" % number))
        if number == 9:
            volume.checkpoint()
    for seed in range(30):
        again = _open(_crash(files, "random", seed))
        values = _values(again.log("t"))
        assert values == [b"%d" % number for number in range(len(values))]
        assert len(values) >= 10
        assert again.log_epoch == volume.log_epoch + 1
    assert len(_values(_open(files.kill()).log("t"))) == 20


def test_i7_reads_return_offset_order_without_holes() -> None:
    """From any offset, whatever the sizes of batches and segments, the next offset follows."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(30):
        volume.append(log, encode_batch([b"%d" % number] * (number % 4 + 1)))
    for start in range(log.committed_end):
        at = start
        while at < log.committed_end:
            for batch in log.read(at, 300):
                assert batch.first_offset <= at < batch.end_offset
                at = batch.end_offset


def test_i8_recovery_is_idempotent_and_never_goes_back() -> None:
    """Recovering what was recovered, with or without another crash, gives the same log."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(25):
        volume.append(log, encode_single(b"%d" % number))
    expected = _values(log)
    disk = _crash(files, "random", 3)
    for seed in range(5):
        again = _open(disk)
        assert _values(again.log("t")) == expected
        disk = _crash(disk, "random", seed)


def test_i9_damage_is_reported_with_file_byte_and_offset_and_nothing_is_cut() -> None:
    """A flipped bit in a durable batch stops the opening; the file stays as it is."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(4):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    disk = _crash(files)
    content = bytearray(disk.files()[SEGMENT])
    content[500] ^= 1
    disk.replace(SEGMENT, bytes(content))
    with pytest.raises(DamagedFile) as caught:
        _open(disk)
    assert (caught.value.path, caught.value.offset) == (SEGMENT, 1)
    assert "repair" in str(caught.value)
    assert disk.files()[SEGMENT] == bytes(content)


def test_i10_recovery_reads_the_disk_and_not_the_cache() -> None:
    """After a failed sync the cache shows bytes that the disk lost: recovery drops it and redoes from the journal."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(4):
        volume.append(log, encode_single(b"%d" % number))
    files.fail("sync_data", 1, errno.EIO, path_contains="topics")
    with pytest.raises(StorageFailed):
        volume.checkpoint()
    killed = files.kill()
    assert killed.files()[SEGMENT][:8] == b"PNSTKSEG"  # the cache still shows what the disk does not have
    again = _open(killed)
    assert _values(again.log("t")) == [b"0", b"1", b"2", b"3"]
    assert _values(_open(_crash(killed)).log("t")) == [b"0", b"1", b"2", b"3"]


def test_i10_what_recovery_serves_is_durable() -> None:
    """A killed process left un-synced messages in the cache: once they were served, power loss does not take them back."""
    files = SimulatedFileSystem()
    volume, log = _new(files, WEAK)
    for number in range(5):
        volume.append(log, encode_single(b"%d" % number))
    killed = files.kill()
    assert _open(killed).log("t").committed_end == 5
    assert _open(_crash(killed)).log("t").committed_end == 5


@pytest.mark.parametrize("name", ["store.json", "topics/t/topic.json", f"topics/t/0/{0:020d}.log", "journal"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"garbage" * 30], ids=["empty", "zeros", "garbage"])
def test_i11_a_file_that_cannot_be_parsed_is_an_error_and_never_absent(name: str, content: bytes) -> None:
    """Unreadable is not empty: opening says what is wrong and changes nothing."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(3):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.append(log, encode_single(b"3"))
    disk = _crash(files)
    path = max(one for one in disk.files() if one.startswith(f"{PATH}/{name}") and one.endswith((".wal", "json", "log")))
    disk.replace(path, content)
    with pytest.raises(Corrupt):
        _open(disk)
    assert disk.files()[path] == content


def test_i11_a_store_without_its_identity_is_not_a_new_one() -> None:
    """store.json is gone, topics are there: an error, not an empty store."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    volume.append(log, encode_single(b"x"))
    volume.close()
    files.unlink(f"{PATH}/store.json")
    with pytest.raises(MissingData):
        _open(files)


def test_i12_derived_files_may_be_gone_old_or_corrupt() -> None:
    """Every subset of index and positions files, deleted, emptied or back-dated: the same messages."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(20):
        volume.append(log, encode_single(b"%d" % number))
    volume.close()
    old = {path: content for path, content in files.files().items() if path.endswith((".idx", "positions"))}
    volume = _open(files)
    for number in range(20, 30):
        volume.append(volume.log("t"), encode_single(b"%d" % number))
    volume.close()
    derived = [path for path in files.files() if path.endswith((".idx", "positions"))]
    assert len(derived) >= 2
    for chosen in itertools.chain.from_iterable(itertools.combinations(derived, size) for size in range(len(derived) + 1)):
        for way in ("delete", "empty", "zero", "old"):
            disk = files.kill()
            for path in chosen:
                if way == "delete":
                    disk.unlink(path)
                else:
                    size = len(disk.files()[path])
                    disk.replace(path, {"empty": b"", "zero": bytes(size), "old": old.get(path, b"?")}[way])
            assert _values(_open(disk).log("t")) == [b"%d" % number for number in range(30)]


def test_i13_zero_is_a_value() -> None:
    """Offset 0, an empty value, an empty key and no key survive restarts and crashes as what they are."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    assert volume.append(log, encode_batch([b""], keys=[b""])) == 0
    for disk in (_crash(files), files.kill()):
        again = _open(disk)
        batch = again.log("t").read(0)[0]
        assert again.log("t").committed_end == 1
        value, key = batch.value(0), batch.key(0)
        assert value is not None
        assert key is not None
        assert (bytes(value), bytes(key)) == (b"", b"")
        assert again.append(again.log("t"), encode_batch([None], keys=[None])) == 1
        assert (again.log("t").read(1)[-1].value(0), again.log("t").read(1)[-1].key(0)) == (None, None)


def test_i14_a_store_has_one_owner() -> None:
    """The second opener is refused while the first lives, and welcome after it."""
    files = SimulatedFileSystem()
    volume, _ = _new(files)
    with pytest.raises(StoreLocked):
        _open(files)
    volume.close()
    _open(files).close()


# -- rules ----------------------------------------------------------------------------------------------------------


def test_r1_the_default_is_safe() -> None:
    """A topic made without settings acknowledges after the sync."""
    assert TopicSettings().sync is SyncMode.ALWAYS
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t")
    volume.append(volume.log("t"), encode_single(b"x"))
    assert _values(_open(_crash(files)).log("t")) == [b"x"]


def test_r2_a_failed_sync_is_not_retried_on_that_file() -> None:
    """After the error no further sync of the journal is tried."""
    files = SimulatedFileSystem(recording=True)
    volume, log = _new(files)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OutcomeUnknown):
        volume.append(log, encode_single(b"x"))
    before = len(files.record)
    with pytest.raises(StorageFailed):
        volume.append(log, encode_single(b"y"))
    volume.close()
    assert [one for one in files.record[before:] if one.kind == "sync_data"] == []


def test_r3_torn_tail_and_damage_are_told_apart_by_the_durable_end() -> None:
    """The same bad bytes: behind the durable end they are cut, below it they stop the opening."""
    for damaged, expectation in ((False, "cut"), (True, "stop")):
        files = SimulatedFileSystem()
        volume, log = _new(files, WEAK)
        for number in range(4):
            volume.append(log, encode_single(b"%d" % number))
        if damaged:
            volume.checkpoint()
        disk = _crash(files, "everything")
        content = bytearray(disk.files()[SEGMENT])
        content[-10] ^= 1
        disk.replace(SEGMENT, bytes(content))
        if expectation == "cut":
            assert _values(_open(disk).log("t")) == [b"0", b"1", b"2"]
        else:
            with pytest.raises(Corrupt):
                _open(disk)


def test_r3_a_later_batch_proves_that_an_earlier_one_was_durable() -> None:
    """Every batch says which offsets were durable when it was written; that evidence counts without a checkpoint."""
    files = SimulatedFileSystem()
    volume, log = _new(files, TopicSettings(sync=SyncMode.INTERVAL))
    for number in range(3):
        volume.append(log, encode_single(b"%d" % number))
    volume.sync_interval_logs()
    volume.append(log, encode_single(b"3"))
    disk = _crash(files, "everything")
    content = bytearray(disk.files()[SEGMENT])
    content[500] ^= 1
    disk.replace(SEGMENT, bytes(content))
    with pytest.raises(DamagedFile):
        _open(disk)


def test_r4_recovery_syncs_before_it_serves() -> None:
    """Between the first read of a segment and the end of opening its file is synced."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    for number in range(3):
        volume.append(log, encode_single(b"%d" % number))
    killed = files.kill()
    killed.recording = True
    _open(killed)
    synced = {one.path for one in killed.record if one.kind == "sync_data"}
    assert SEGMENT in synced
    assert any(path.endswith(".wal") for path in synced)


def test_r5_stray_files_are_left_alone() -> None:
    """What the engine does not know it does not delete."""
    files = SimulatedFileSystem()
    volume, _ = _new(files)
    volume.close()
    strays = [
        f"{PATH}/topics/t/0/notes.txt",
        f"{PATH}/journal/backup.wal.old",
        f"{PATH}/mine",
        f"{PATH}/topics/t/0/1.log",
        f"{PATH}/topics/notes",
    ]
    for path in strays:
        files.replace(path, b"mine")
    files.make_directory(f"{PATH}/topics/lost+found")
    _open(files).close()
    for path in strays:
        assert files.files()[path] == b"mine"


def test_r6_no_derived_file_runs_ahead_of_the_log() -> None:
    """An index that covers more than the log has after a crash is not used."""
    files = SimulatedFileSystem()
    volume, log = _new(files, WEAK)
    for number in range(30):
        volume.append(log, encode_single(b"%d" % number))
    for seed in range(20):
        volume.checkpoint()
        volume.append(log, encode_single(b"%d" % log.committed_end))
        disk = _crash(files, "random", seed)
        values = _values(_open(disk).log("t"))
        assert values == [b"%d" % number for number in range(len(values))]
        assert len(values) >= log.committed_end - 1


@pytest.mark.parametrize("topic", [TOPIC, WEAK], ids=["always", "os"])
def test_r7_a_full_disk_refuses_cleanly_and_recovers_without_a_restart(topic: TopicSettings) -> None:
    """Publishes are refused, nothing is half stored, reading goes on, and with space publishing goes on."""
    files = SimulatedFileSystem()
    settings = replace(SETTINGS, reserve_bytes=4096)
    volume = _open(files, settings)
    volume.create_topic("t", 1, topic)
    log = volume.log("t")
    used = sum(map(len, files.files().values()))
    files.capacity_bytes = used + 60_000
    stored = 0
    with pytest.raises(StorageFull):
        while True:
            volume.append(log, encode_single(b"%d" % stored + b"x" * 300))
            stored += 1
    assert stored > 20
    assert len(_values(log)) == stored
    with pytest.raises(StorageFull):
        volume.append(log, encode_single(b"x" * 5_000))
    files.capacity_bytes = used + 400_000
    assert volume.append(log, encode_single(b"again")) == stored
    volume.checkpoint()
    assert len(_values(_open(_crash(files), settings).log("t"))) == stored + 1


def test_r7_publishing_stops_at_the_floor_before_the_disk_is_full() -> None:
    """The error says how much is free and what the floor is."""
    files = SimulatedFileSystem(capacity_bytes=10_000_000)
    volume = _open(files, replace(SETTINGS, free_bytes_floor=9_990_000))
    volume.create_topic("t", 1, TOPIC)
    with pytest.raises(StorageFull) as caught:
        volume.append(volume.log("t"), encode_single(b"x" * 500))
    assert caught.value.floor_bytes == 9_990_000
    assert caught.value.free_bytes is not None
    assert f"{caught.value.free_bytes:,} bytes are free" in str(caught.value)
    assert "9,990,000 must stay free" in str(caught.value)


def test_r8_small_files_are_replaced_atomically() -> None:
    """A crash at any operation of a checkpoint leaves one that can be read."""
    files = SimulatedFileSystem()
    volume, log = _new(files)
    volume.append(log, encode_single(b"x"))
    states: list[SimulatedFileSystem] = []
    files.on_operation = lambda _: states.extend(_crash(files, keep, 1) for keep in ("nothing", "random", "everything"))
    volume.checkpoint()
    files.on_operation = None
    assert len(states) > 10
    for state in states:
        assert _values(_open(state).log("t")) == [b"x"]


def test_r9_the_log_start_is_durable_before_a_file_goes() -> None:
    """Retention: the frame is synced, then files are unlinked, then the folder is synced."""
    files = SimulatedFileSystem(recording=True)
    volume, log = _new(files)
    for number in range(60):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.checkpoint()
    start = len(files.record)
    volume.retain(log, messages_max=5)
    kinds = [one.kind for one in files.record[start:]]
    assert kinds.index("sync_data") < kinds.index("unlink")
    assert kinds[-1] == "sync_directory"
    with pytest.raises(OffsetOutOfRange):
        log.read(0)


def test_r10_lengths_are_checked_before_anything_is_allocated() -> None:
    """A header that claims more than the limit, or more than there is, is refused by its numbers alone."""
    data = bytearray(encode_single(b"x").data)
    batch = encode_single(b"x")
    batch.stamp(0, 0, 0, 0, 0, 0)
    for claimed in (1 << 63, (1 << 64) - 8, 1 << 32, 72 * 1024 * 1024):
        data = bytearray(batch.data)
        data[24:32] = claimed.to_bytes(8, "little")
        data[4:8] = crc32c(bytes(data[8 : batch.header_bytes])).to_bytes(4, "little")
        with pytest.raises((BadBytes, UnsupportedFormat)):
            Batch(data)
    with pytest.raises(BatchTooLarge):
        encode_batch([b""] * 100_001)
