"""What one thread may not do when the disk fails, or two get in each other's way, in another."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import OffsetOutOfRange, OutcomeUnknown, StorageFailed, StorageFull
from penstock.files import RealFile, RealFileSystem
from penstock.format.batch import encode_batch, encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import SyncMode
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from penstock.log.partition_log import PartitionLog

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)  # fmt: skip


class Trap:
    """One operation on a file, or one sync of a folder, that waits until it is let go, or fails, or both in this order."""

    def __init__(self) -> None:
        self.operation = ""
        self.part = ""
        self.code = 0
        self.waits = False
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def set(self, operation: str, part: str, code: int = errno.EIO, *, waits: bool = False) -> None:
        """From now on *operation* on a path with *part* in it fails with *code*, if not 0; a $ stands for the end of a path."""
        self.operation, self.part, self.code, self.waits = operation, part, code, waits

    def unset(self) -> None:
        """Let everything pass."""
        self.operation = ""

    def check(self, operation: str, path: str) -> None:
        """Fail here, if this is the place."""
        if operation == self.operation and self.part in path + "$":
            self.reached.set()
            if self.waits:
                assert self.let_go.wait(30)
            if self.code:
                raise OSError(self.code, os.strerror(self.code), path)


class _TrappedFile(RealFile):
    __slots__ = ()
    trap: Trap

    def sync_data(self) -> None:
        self.trap.check("sync", self.path)
        super().sync_data()

    def pwrite(self, data: Any, position: int) -> int:
        self.trap.check("write", self.path)
        return super().pwrite(data, position)

    def map(self) -> memoryview:
        self.trap.check("map", self.path)
        return super().map()


class TrappedFiles(RealFileSystem):
    """The real file system with a trap in it."""

    __slots__ = ("_file_class", "_trap")

    def __init__(self, trap: Trap) -> None:
        self._trap = trap
        self._file_class = type("TrappedFile", (_TrappedFile,), {"__slots__": (), "trap": trap})

    def open(self, path: str, *, write: bool = False) -> RealFile:
        file = super().open(path, write=write)
        file.__class__ = self._file_class
        return file

    def create(self, path: str) -> RealFile:
        file = super().create(path)
        file.__class__ = self._file_class
        return file

    def make_directory(self, path: str) -> None:
        self._trap.check("make", path)
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._trap.check("sync folder", path)
        super().sync_directory(path)


def read_values(log: PartitionLog) -> list[bytes]:
    """All values of a log."""
    values: list[bytes] = []
    offset = log.log_start
    while offset < log.committed_end:
        for batch in log.read(offset):
            values += [bytes(batch.value(index) or b"") for index in range(len(batch))]
            offset = batch.end_offset
    return values


def in_thread(work: Callable[[], object], results: dict[str, object], name: str) -> threading.Thread:
    """Start *work*; its result, or its error, will be in *results*."""

    def run() -> None:
        try:
            results[name] = work()
        except Exception as error:
            results[name] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("operation", "part"), [("sync", ".log"), ("write", "/journal/"), ("sync", "/journal/")])
def test_an_append_that_waited_for_a_failed_cycle_is_refused_and_the_store_opens_again(
    operation: str, part: str, tmp_path: pathlib.Path
) -> None:
    """
    A commit to a weaker log holds that log until the journal has it; an append waits meanwhile. Then the disk fails.

    If the append went on, it would lie behind a batch that nothing commits, would show that batch to readers, and the next opening
    would take the log for damaged: it holds more than the journal knows.
    """
    trap = Trap()
    path = tmp_path / "store"
    volume = Volume.open(path, settings=SETTINGS, files=TrappedFiles(trap), background=False)
    volume.create_topic("lazy", settings=TopicSettings(sync=SyncMode.OS))
    log = volume.log("lazy")
    volume.append(log, encode_single(b"first"))
    trap.set(operation, part, waits=True)
    results: dict[str, object] = {}
    strict = in_thread(lambda: volume.append(log, encode_single(b"strict"), sync=SyncMode.ALWAYS), results, "strict")
    assert trap.reached.wait(30)
    weak = in_thread(lambda: volume.append(log, encode_single(b"weak")), results, "weak")
    weak.join(0.2)
    assert weak.is_alive(), "it does not wait: this test shows nothing"
    trap.let_go.set()
    strict.join(30)
    weak.join(30)
    assert isinstance(results["strict"], OutcomeUnknown)
    assert isinstance(results["weak"], StorageFailed)
    assert read_values(log) == [b"first"]
    volume.close()
    with Volume.open(path, settings=SETTINGS, background=False) as again:
        assert read_values(again.log("lazy")) in ([b"first"], [b"first", b"strict"])


def test_a_checkpoint_that_waited_for_a_failed_cycle_is_refused(tmp_path: pathlib.Path) -> None:
    """It would sync the same file again, which then succeeds and means nothing, and record that the file is durable."""
    trap = Trap()
    volume = Volume.open(tmp_path / "store", settings=SETTINGS, files=TrappedFiles(trap), background=False)
    volume.create_topic("lazy", settings=TopicSettings(sync=SyncMode.OS))
    log = volume.log("lazy")
    trap.set("sync", ".log", waits=True)
    results: dict[str, object] = {}
    strict = in_thread(lambda: volume.append(log, encode_single(b"strict"), sync=SyncMode.ALWAYS), results, "strict")
    assert trap.reached.wait(30)
    checkpoint = in_thread(volume.checkpoint, results, "checkpoint")
    checkpoint.join(0.2)
    assert checkpoint.is_alive(), "it does not wait: this test shows nothing"
    generation = volume._checkpoints.latest.generation  # type: ignore[union-attr]
    # The kernel reports an error once.
    trap.unset()
    trap.let_go.set()
    strict.join(30)
    checkpoint.join(30)
    assert isinstance(results["strict"], OutcomeUnknown)
    assert isinstance(results["checkpoint"], StorageFailed)
    assert volume._checkpoints.latest.generation == generation  # type: ignore[union-attr]
    volume.close()


def test_a_commit_waits_for_the_sync_of_a_folder_that_another_thread_has_begun(tmp_path: pathlib.Path) -> None:
    """The name of the segment is not durable before that sync returns, whoever asked for it, and until then nothing is acknowledged."""
    trap = Trap()
    volume = Volume.open(tmp_path / "store", settings=SETTINGS, files=TrappedFiles(trap), background=False)
    volume.create_topic("timed", settings=TopicSettings(sync=SyncMode.INTERVAL))
    log = volume.log("timed")
    volume.append(log, encode_single(b"weak"))
    trap.set("sync folder", "/timed/0$", 0, waits=True)
    results: dict[str, object] = {}
    interval = in_thread(volume.sync_interval_logs, results, "interval")
    assert trap.reached.wait(30)
    strict = in_thread(lambda: volume.append(log, encode_single(b"strict"), sync=SyncMode.ALWAYS), results, "strict")
    strict.join(0.3)
    early = dict(results)
    trap.let_go.set()
    interval.join(30)
    strict.join(30)
    volume.close()
    assert "strict" not in early, "acknowledged, and the name of its segment is not durable"
    assert results == {"interval": None, "strict": 1}


def test_a_segment_that_cannot_be_mapped_any_more_is_still_read(tmp_path: pathlib.Path) -> None:
    """ext4 that went read-only after an error (seen with Linux 6.18) refuses to map files, and reads those that are open."""
    trap = Trap()
    volume = Volume.open(tmp_path / "store", settings=SETTINGS, files=TrappedFiles(trap), background=False)
    volume.create_topic("lazy", settings=TopicSettings(sync=SyncMode.OS, segment_bytes=600, coalesce_below_bytes=0))
    log = volume.log("lazy")
    values = [b"%d" % number for number in range(20)]
    for value in values:
        volume.append(log, encode_single(value))
    volume.checkpoint()
    assert len(log.segment_firsts) > 2
    trap.set("map", ".log", errno.EROFS)
    assert read_values(log) == values
    trap.unset()
    volume.close()


@pytest.mark.parametrize("failed", ["alpha", "omega"])
def test_the_log_ids_of_a_topic_that_could_not_be_made_are_not_given_out_again(failed: str, tmp_path: pathlib.Path) -> None:
    """The last step of making a topic fails, and the topic is there after all: it may not share a log with the next one."""
    trap = Trap()
    path = tmp_path / "store"
    volume = Volume.open(path, settings=SETTINGS, files=TrappedFiles(trap), background=False)
    trap.set("sync folder", "/topics$")
    with pytest.raises((OSError, StorageFailed)):
        volume.create_topic(failed)
    trap.unset()
    try:
        volume.create_topic("middle")
        volume.append(volume.log("middle"), encode_single(b"mine"))
    except StorageFailed:
        return  # As good: a store that saw the disk fail takes nothing more.
    finally:
        volume.close()
    with Volume.open(path, settings=SETTINGS, background=False) as again:
        logs = {record.name: again.log(record.name) for record in again.topics}
        assert {name: log.identity.topic for name, log in logs.items()} == {name: name for name in logs}
        assert read_values(logs["middle"]) == [b"mine"]


def test_a_topic_that_could_not_be_made_for_lack_of_room_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    """Each attempt would take more of what is lacking."""
    trap = Trap()
    path = tmp_path / "store"
    volume = Volume.open(path, settings=SETTINGS, files=TrappedFiles(trap), background=False)
    trap.set("make", "/3$", errno.ENOSPC)
    for _ in range(3):
        with pytest.raises(StorageFull):
            volume.create_topic("many", 5)
    assert os.listdir(path / "topics") == []
    trap.unset()
    volume.create_topic("many", 5)
    volume.close()


def test_threads_that_coalesce_at_once_do_no_harm(tmp_path: pathlib.Path) -> None:
    """
    One renames what another has just begun to write, and that one is interrupted, as by closing: the segment would be cut short.

    The store's own maintenance is such a thread.
    """
    wanted = [b"%d" % number for number in range(200)]
    errors: Counter[str] = Counter()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for attempt in range(8):
            path = tmp_path / f"store-{attempt}"
            volume = Volume.open(path, settings=SETTINGS, background=False)
            volume.create_topic("lazy", settings=TopicSettings(sync=SyncMode.OS, segment_bytes=1500))
            log = volume.log("lazy")
            for value in wanted:
                volume.append(log, encode_batch([value]))
            volume.checkpoint()
            volume.checkpoint()
            _coalesce_twice(volume, errors)
            assert read_values(log) == wanted
            volume.close()
            with Volume.open(path, settings=SETTINGS, background=False) as again:
                assert read_values(again.log("lazy")) == wanted
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_reading_old_segments_beside_checkpoints_and_retention_never_fails(tmp_path: pathlib.Path) -> None:
    """Readers and checkpoints both let go of segments that are not needed, and retention does too: none may trip over another."""
    volume = Volume.open(tmp_path / "store", settings=SETTINGS, background=False)
    volume.create_topic("lazy", settings=TopicSettings(sync=SyncMode.OS, segment_bytes=600, coalesce_below_bytes=0))
    log = volume.log("lazy")
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                for batch in log.read(log.log_start):
                    assert bytes(batch.value(0) or b"") == b"%d" % batch.first_offset
            except OffsetOutOfRange:
                continue  # Retention was quicker.
            except BaseException as error:
                errors.append(error)
                return

    def write() -> None:
        for number in range(700):
            volume.append(log, encode_single(b"%d" % number))
            if number % 5 == 4:
                volume.checkpoint()
                volume.retain(log, messages_max=30)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = [threading.Thread(target=read) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        write()
    finally:
        stop.set()
        for reader in readers:
            reader.join(30)
        sys.setswitchinterval(interval)
        volume.close()
    assert not errors


def _coalesce_twice(volume: Volume, errors: Counter[str]) -> None:
    barrier = threading.Barrier(2)
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise InterruptedError

    def work(pause: Callable[[], None]) -> None:
        barrier.wait(30)
        for _ in range(100):
            try:
                if not volume.coalesce(pause):
                    return
            except InterruptedError:
                continue
            except Exception as error:
                errors[type(error).__name__] += 1

    threads = [threading.Thread(target=work, args=(pause,)) for pause in (lambda: None, interrupt)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
