"""Files in memory: what they cost, views that nothing changes, and a whole store on them."""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OffsetOutOfRange, StorageFull, StoreLocked
from penstock.files import LockHeld
from penstock.format.batch import encode_batch, encode_single
from penstock.memory_files import MAPPED_FROM_BYTES, SHARED_ROOM_BYTES, MemoryFileSystem
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import KIB, MIB, SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.verification import verify
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from penstock.log.partition_log import PartitionLog
    from penstock.memory_files import MemoryFile

LARGE = 5 * MAPPED_FROM_BYTES + 1


@pytest.fixture
def files() -> MemoryFileSystem:
    """An empty file system."""
    return MemoryFileSystem()


def resident_bytes() -> int:
    """What this process has of the machine's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What tests before this one left is not freed while memory is measured: it would hide as much of what is taken."""
    gc.disable()
    yield
    gc.enable()


def fill(file: MemoryFile, mebibytes: int) -> None:
    """Write so much, in pieces: what the allocator does with one large value of the test's own is not known."""
    for at in range(mebibytes):
        file.pwrite(b"x" * MIB, at * MIB)


# Memory


@pytest.mark.usefixtures("no_collection")
def test_reserved_bytes_and_holes_cost_no_memory(files: MemoryFileSystem) -> None:
    """As in a journal file, which is extended and reserved before it is written."""
    before = resident_bytes()
    made = []
    for number in range(8):
        file = files.create(f"/{number}")
        file.truncate(64 * MIB)
        file.reserve(0, 64 * MIB)
        file.pwrite(b"header", 0)
        made.append(file)
    lone = files.create("/reserve")
    lone.reserve(0, 1 << 50)
    assert resident_bytes() - before < 32 * MIB
    assert made[3].pread(8, 64 * MIB - 8) == bytes(8)


@pytest.mark.usefixtures("no_collection")
def test_cutting_and_letting_go_of_files_frees_their_memory(files: MemoryFileSystem) -> None:
    """Also of one that was mapped, once the views are gone."""
    file = files.create("/f")
    before = resident_bytes()
    fill(file, 64)
    view = file.map()
    assert resident_bytes() - before > 60 * MIB
    view.release()
    file.truncate(1 * MIB)
    assert resident_bytes() - before < 32 * MIB
    fill(file, 64)
    file.close()
    assert resident_bytes() - before > 60 * MIB
    files.unlink("/f")
    assert resident_bytes() - before < 32 * MIB


@pytest.mark.usefixtures("no_collection")
def test_mapping_and_appending_behind_a_map_copy_nothing(files: MemoryFileSystem) -> None:
    """A view shows the file's own memory, so a sealed segment is not kept twice."""
    file = files.create("/f")
    before = resident_bytes()
    fill(file, 80)
    views = []
    for number in range(20):
        views.append(file.map())
        file.pwrite(b"y", 80 * MIB + number)
    assert resident_bytes() - before < 120 * MIB
    assert [len(view) for view in views] == [80 * MIB + number for number in range(20)]


# Views


@pytest.mark.parametrize("length", [100, LARGE])
def test_a_view_is_not_changed_by_writing_cutting_extending_or_sharing_the_file(files: MemoryFileSystem, length: int) -> None:
    """The real file system's views follow the file; these must not even crash when it is cut."""
    file = files.create("/f")
    expected = [b"a" * length]
    file.pwrite(expected[0], 0)
    views = [file.map()]

    def look() -> None:
        content = file.pread(4 * LARGE, 0)
        assert len(content) == file.size()
        expected.append(content)
        views.append(file.map())

    file.pwrite(b"b" * 50, 10)
    look()
    file.truncate(length // 2)
    look()
    file.truncate(length)
    assert file.pread(length, 0)[length // 2 :].strip(b"\0") == b""
    look()
    file.pwrite(b"c" * length, length - 5)
    look()
    file.truncate(0)
    look()
    file.pwrite(b"d" * length, length)
    look()
    shared = files.map_shared("/f", 10, write=True)
    shared.view[:3] = b"eee"
    look()
    shared.view[:3] = b"fff"
    look()
    file.truncate(5)
    file.pwrite(b"g", 9)
    look()
    assert expected[-1] == b"fff" + bytes(6) + b"g"
    assert [bytes(view) for view in views] == expected
    assert all(view.readonly for view in views)


def test_random_changes_leave_the_file_as_a_plain_bytearray_would_be(files: MemoryFileSystem, rng: Random) -> None:
    """With views taken and let go of at any time, around the length where a block becomes a map."""
    for number in range(30):
        file: MemoryFile = files.create(f"/{number}")
        model = bytearray()
        views: list[tuple[memoryview, bytes]] = []
        reach = rng.choice([50, MAPPED_FROM_BYTES, 4 * MAPPED_FROM_BYTES])
        for _ in range(60):
            action = rng.random()
            if action < 0.3:
                data = rng.randbytes(rng.randrange(1, reach))
                file.pwrite(data, len(model))
                model += data
            elif action < 0.5:
                data = rng.randbytes(rng.randrange(1, 200))
                position = rng.randrange(reach)
                file.pwrite(data, position)
                model += bytes(max(0, position - len(model)))
                model[position : position + len(data)] = data
            elif action < 0.7:
                size = rng.randrange(min(2 * len(model) + 1, 8 * reach))
                file.truncate(size)
                model += bytes(max(0, size - len(model)))
                del model[size:]
            elif action < 0.9:
                views.append((file.map(), bytes(model)))
            elif views:
                views.pop(rng.randrange(len(views)))
            assert file.size() == len(model)
            position, length = rng.randrange(reach), rng.randrange(2 * reach)
            assert file.pread(length, position) == model[position : position + length]
        assert file.pread(len(model) + 1, 0) == model
        for view, content in views:
            assert view == content


def test_a_shared_map_does_not_grow_over_its_addresses_while_it_is_mapped(files: MemoryFileSystem) -> None:
    """It could not stay one memory; unmapped, it can be moved."""
    shared = files.map_shared("/f", 10, write=True)
    with pytest.raises(OSError, match="cannot grow") as caught:
        files.map_shared("/f", SHARED_ROOM_BYTES + 1, write=True)
    assert caught.value.errno == errno.ENOMEM
    shared.view[9] = 7
    shared.close()
    larger = files.map_shared("/f", SHARED_ROOM_BYTES + 1, write=True)
    assert larger.view[9] == 7
    assert len(larger.view) == SHARED_ROOM_BYTES + 1


def test_an_unlinked_file_is_not_bound_by_the_capacity() -> None:
    """Its memory is its holders' affair; what they still write to it takes nothing from the others."""
    files = MemoryFileSystem(capacity_bytes=100)
    file = files.create("/f")
    files.unlink("/f")
    assert file.pwrite(bytes(500), 0) == 500
    file.truncate(1000)
    assert file.reserve(0, 2000)
    assert files.free_bytes("/") == 100


# Names, locks, boots


def test_all_spellings_of_a_path_lead_to_the_same_file(files: MemoryFileSystem) -> None:
    """And the root cannot be made, moved or removed."""
    files.make_directory("d")
    files.create("/d/f").pwrite(b"f", 0)
    for path in ("d/f", "//d//f", "./d/../d/./f"):
        assert files.open(path).pread(9, 0) == b"f"
    assert files.list_directory("/") == files.list_directory("") == ["d"]
    for call in (lambda: files.make_directory("/"), lambda: files.create("/")):
        with pytest.raises(FileExistsError):
            call()
    for call in (lambda: files.rename("/", "/x"), lambda: files.rename("/d", "/"), lambda: files.remove_directory("/")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBUSY


def test_the_owner_of_a_lock_is_this_process_and_stands_in_the_file(files: MemoryFileSystem) -> None:
    """As with a real lock."""
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    files.lock("/LOCK")
    with pytest.raises(LockHeld) as caught:
        files.lock("/LOCK")
    assert caught.value.owner == owner
    assert json.loads(files.open("/LOCK").pread(4096, 0)) == owner


def test_each_file_system_is_a_boot_of_its_own_with_files_of_its_own() -> None:
    """Two stores in memory have nothing to do with each other."""
    first, second = MemoryFileSystem(), MemoryFileSystem()
    assert first.boot_id() != second.boot_id()
    first.create("/f")
    assert not second.exists("/f")
    first.lock("/LOCK")
    second.lock("/LOCK")
    assert first.free_bytes("/") > 1 << 50


# A store

SETTINGS = StoreSettings(
    journal_file_bytes=64 * KIB,
    frame_bytes=16 * KIB,
    reference_bytes=4 * KIB,
    checkpoint_bytes=32 * KIB,
    checkpoint_interval_ms=50,
    free_bytes_floor=0,
    reserve_bytes=4 * KIB,
)
ALWAYS = TopicSettings(segment_bytes=8 * KIB, index_interval_bytes=512, coalesce_below_bytes=2 * KIB, coalesce_to_bytes=4 * KIB)
WEAK = replace(ALWAYS, sync=SyncMode.OS)
STORE = "/store"


def read_all(log: PartitionLog) -> list[bytes]:
    """The values from the start of the log to its end."""
    values: list[bytes] = []
    at = log.log_start
    while at < log.committed_end:
        for batch in log.read(at):
            for index in range(batch.index_of(at), len(batch)):
                assert batch.offset(index) == at
                values.append(bytes(batch.value(index) or b""))
                at += 1
    return values


def publish(volume: Volume, log: PartitionLog, numbers: range) -> list[bytes]:
    """Batches of one message and of several, some large, and return all values."""
    values: list[bytes] = []
    for number in numbers:
        if number % 40 == 39:
            batch = [b"%d " % number + b"x" * 5000]
        elif number % 5 == 4:
            batch = [b"%d-%d" % (number, index) for index in range(7)]
        else:
            batch = [b"%d" % number]
        encoded = encode_single(batch[0]) if len(batch) == 1 else encode_batch(batch)
        volume.append(log, encoded)
        values += batch
    return values


def test_a_store_in_memory_rolls_merges_expires_and_opens_again(files: MemoryFileSystem) -> None:
    """Two openings on the same object; nothing runs in the background, so that each step is seen to do its work."""
    written: dict[str, list[bytes]] = {}
    with Volume.open(STORE, settings=SETTINGS, files=files, background=False) as volume:
        volume.create_topic("always", 1, ALWAYS)
        volume.create_topic("os", 1, WEAK)
        for topic in ("always", "os"):
            log = volume.log(topic)
            written[topic] = publish(volume, log, range(600))
            assert len(log.segment_firsts) > 5
            assert read_all(log) == written[topic]
        with pytest.raises(StoreLocked) as caught:
            Volume.open(STORE, settings=SETTINGS, files=files)
        assert str(os.getpid()) in str(caught.value)
        early = volume.log("os").read(0)
        volume.checkpoint()
        volume.checkpoint()
        assert volume.coalesce() > 5
        for topic in ("always", "os"):
            assert read_all(volume.log(topic)) == written[topic]
        before = files.list_directory(volume.log("os").directory)
        segments, removed_bytes = volume.retain(volume.log("os"), messages_max=300)
        assert segments > 0
        assert removed_bytes > 0
        assert len(files.list_directory(volume.log("os").directory)) < len(before)
        start = volume.log("os").log_start
        assert 0 < start <= len(written["os"]) - 300
        with pytest.raises(OffsetOutOfRange):
            volume.log("os").read(0)
        # What was read before the files were rewritten and removed is still there.
        assert bytes(early[0].value(0) or b"") == b"0"
        assert [bytes(batch.value(0) or b"") for batch in early[:3]] == [b"0", b"1", b"2"]
    assert verify(STORE, files=files).findings == []
    with Volume.open(STORE, settings=SETTINGS, files=files, background=False) as volume:
        assert volume.log("os").log_start == start
        assert read_all(volume.log("os")) == written["os"][start:]
        assert read_all(volume.log("always")) == written["always"]
        more = publish(volume, volume.log("always"), range(50))
        assert read_all(volume.log("always")) == written["always"] + more


def test_a_store_in_memory_that_was_not_closed_is_recovered_from_its_journal(files: MemoryFileSystem) -> None:
    """Its files are all there, so nothing is lost; only the lock is taken away by hand."""
    volume = Volume.open(STORE, settings=SETTINGS, files=files, background=False)
    volume.create_topic("always", 1, ALWAYS)
    values = publish(volume, volume.log("always"), range(100))
    assert volume._lock is not None
    volume._lock.release()
    with Volume.open(STORE, settings=SETTINGS, files=files, background=False) as again:
        assert read_all(again.log("always")) == values


def test_threads_publish_to_and_read_from_a_store_in_memory(files: MemoryFileSystem) -> None:
    """With maintenance in the background: checkpoints, merging and journal files come and go under the readers."""
    errors: list[BaseException] = []
    count = 300
    volume = Volume.open(STORE, settings=SETTINGS, files=files)
    volume.create_topic("always", 2, ALWAYS)
    volume.create_topic("os", 1, WEAK)
    volume.create_topic("interval", 1, replace(WEAK, sync=SyncMode.INTERVAL))
    logs = [volume.log("always", 0), volume.log("always", 1), volume.log("os"), volume.log("interval")]
    total = 2 * count

    def write(log: PartitionLog, name: bytes) -> None:
        try:
            for number in range(count):
                volume.append(log, encode_single(b"%s %d" % (name, number) + b"x" * (number % 300)))
        except BaseException as error:
            errors.append(error)

    def follow(log: PartitionLog) -> None:
        try:
            seen: dict[bytes, int] = {}
            at = 0
            while at < total:
                assert log.wait_for(at, timeout=60)
                for batch in log.read(at):
                    for index in range(batch.index_of(at), len(batch)):
                        name, number = bytes(batch.value(index) or b"").rstrip(b"x").split()
                        assert int(number) == seen.get(name, 0)
                        seen[name] = int(number) + 1
                        at += 1
            assert seen == {b"a": count, b"b": count}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(log, name), daemon=True) for log in logs for name in (b"a", b"b")]
    threads += [threading.Thread(target=follow, args=(log,), daemon=True) for log in logs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), f"{thread} hangs; {errors}"
    assert errors == []
    volume.checkpoint()
    volume.coalesce()
    with VolumeReader.open(STORE, files=files) as reader:
        assert reader.is_live
        assert reader.ends([reader.log("always", 1), reader.log("os")]) == [total, total]
    values = [read_all(log) for log in logs]
    volume.close()
    with Volume.open(STORE, settings=SETTINGS, files=files) as again:
        assert [read_all(again.log(*key)) for key in (("always", 0), ("always", 1), ("os", 0), ("interval", 0))] == values


def test_a_store_in_a_small_memory_is_full_and_goes_on_after_retention() -> None:
    """`StorageFull` as on a disk, nothing half stored, and room again once old segments are gone."""
    files = MemoryFileSystem(capacity_bytes=600 * KIB)
    with Volume.open(STORE, settings=SETTINGS, files=files, background=False) as volume:
        volume.create_topic("always", 1, ALWAYS)
        log = volume.log("always")
        stored: list[bytes] = []
        with pytest.raises(StorageFull):
            for number in range(10_000):
                value = b"%d " % number + b"x" * 1000
                volume.append(log, encode_single(value))
                stored.append(value)
        assert len(stored) > 50
        assert read_all(log) == stored
        volume.checkpoint()
        volume.checkpoint()
        assert volume.retain(log, messages_max=10)[0] > 0
        volume.append(log, encode_single(b"again"))
        assert read_all(log)[-1] == b"again"
    with Volume.open(STORE, settings=SETTINGS, files=files, background=False) as volume:
        assert read_all(volume.log("always"))[-1] == b"again"
