"""Bugs that a review found before anybody else did, each as a case: found by reading, reproduced here."""

from __future__ import annotations

import errno
import random
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.errors import (
    BadBytes,
    BatchTooLarge,
    Closed,
    MissingData,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
)
from penstock.format.batch import EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.format.compression import Codec
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Segment
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume import volume as volume_module
from penstock.volume.repair import repair
from penstock.volume.tickets import MoveLogStart, Other
from penstock.volume.verification import verify
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.ticket import Ticket
    from penstock.testing import Operation

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
LARGE = b"x" * 9_000
PATIENCE_S = 60.0


def _open(files: SimulatedFileSystem) -> Volume:
    return Volume.open(PATH, settings=SETTINGS, files=files, background=False)


def _new(topic: TopicSettings | None = None) -> tuple[SimulatedFileSystem, Volume, PartitionLog]:
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("a", 1, topic)
    return files, volume, volume.log("a")


def _power_loss(files: SimulatedFileSystem) -> SimulatedFileSystem:
    return files.crash(random.Random(1), keep="nothing")


def test_a_commit_that_races_close_is_refused_and_not_acknowledged_behind_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be missing from a store that says it was closed in order."""
    files, volume, log = _new()
    volume.append(log, encode_single(b"1"))
    late = volume._ticket(log, encode_single(b"late"))
    sync = Segment.sync
    errors: list[Exception] = []

    def wait() -> None:
        try:
            late.wait()
        except Closed as error:
            errors.append(error)

    def sync_with_a_late_comer(segment: Segment) -> None:
        if volume._committer._closing and not errors:
            volume._committer._pending.append(late)
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(PATIENCE_S)
        sync(segment)

    monkeypatch.setattr(Segment, "sync", sync_with_a_late_comer)
    volume.close()
    assert len(errors) == 1
    assert _open(files.kill()).log("a").committed_end == 1
    assert _open(_power_loss(files)).log("a").committed_end == 1


def test_a_large_batch_waits_for_the_name_of_its_segment_to_be_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: another thread is in the middle of syncing the folder; its beginning is not its end."""
    files, volume, log = _new()
    volume.append(log, encode_single(b"1"))
    inside, gate = threading.Event(), threading.Event()
    sync = files.sync_directory

    def slow_sync(path: str) -> None:
        if path.endswith("/a/0") and threading.current_thread().name == "checkpoint":
            inside.set()
            gate.wait(2 * PATIENCE_S)
        sync(path)

    monkeypatch.setattr(files, "sync_directory", slow_sync)
    checkpoint = threading.Thread(target=volume.checkpoint, name="checkpoint")
    checkpoint.start()
    assert inside.wait(PATIENCE_S)
    states: list[SimulatedFileSystem] = []

    def append() -> None:
        volume.append(log, encode_single(LARGE))
        states.append(_power_loss(files))

    appending = threading.Thread(target=append)
    appending.start()
    appending.join(0.2)
    assert not states, "it was acknowledged while its segment could still lose its name"
    gate.set()
    checkpoint.join(PATIENCE_S)
    appending.join(PATIENCE_S)
    assert _open(states[0]).log("a").committed_end == 2


def test_a_batch_that_is_published_again_is_not_taken_for_one_that_waits_for_its_frame() -> None:
    """What the owner of one log noted in a batch means nothing in another."""
    files, volume, log = _new()
    volume.create_topic("weak", 1, TopicSettings(sync=SyncMode.INTERVAL))
    weak = volume.log("weak")
    original = encode_single(LARGE)
    volume.append(log, original)
    volume.append(weak, EncodedBatch.adopt(log.read(0)[0].buffer))
    volume.append(weak, original)
    volume.append(weak, encode_single(b"after"))
    volume.sync_interval_logs()
    for disk in (files.kill(), _power_loss(files)):
        assert _open(disk).log("weak").committed_end == 3


def test_a_batch_from_outside_cannot_use_up_the_offsets() -> None:
    """Only the owner of a log leaves offsets out."""
    batch = encode_single(b"1")
    batch.data[32:40] = ((1 << 63) - 2).to_bytes(8, "little")
    batch.stamp(0, 0, 0, 0, 0, 0)
    with pytest.raises(BadBytes):
        EncodedBatch.adopt(batch.data)


def test_an_index_that_covers_a_cut_batch_is_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in another thread may have stored it just when the journal failed."""
    files, volume, log = _new()
    volume.create_topic("b", 1)
    other = volume.log("b")
    volume.append(log, encode_single(b"1"))
    volume.append(other, encode_single(b"1"))
    monkeypatch.setattr(volume_module, "_INDEX_CACHE_EVERY_BYTES", 1)
    sync_names = PartitionLog.sync_names
    failed: list[Exception] = []

    def sync_names_then_fail(self: PartitionLog) -> None:
        sync_names(self)
        if self is log and not failed and threading.current_thread().name == "checkpoint":
            files.fail("sync_data", 1, errno.EIO, path_contains="journal")
            with pytest.raises(OutcomeUnknown) as caught:
                volume.append(other, encode_single(LARGE))
            failed.append(caught.value)
            files.clear_faults()

    monkeypatch.setattr(PartitionLog, "sync_names", sync_names_then_fail)
    results: list[Exception] = []

    def checkpoint() -> None:
        try:
            volume.checkpoint()
        except StorageFailed as error:
            results.append(error)

    thread = threading.Thread(target=checkpoint, name="checkpoint")
    thread.start()
    thread.join(PATIENCE_S)
    monkeypatch.undo()
    assert failed
    assert results
    disk = files.crash(random.Random(1), keep="everything")
    again = _open(disk)
    for _ in range(100):
        again.append(again.log("b"), encode_single(b"y" * 333))
    again.checkpoint()
    again.append(again.log("b"), encode_single(b"z"))
    assert _open(disk.kill()).log("b").committed_end == again.log("b").committed_end


def test_repair_without_checkpoints_does_not_go_back_in_log_epochs() -> None:
    """New messages of an older epoch behind those of a newer one would look like damage."""
    files, volume, _ = _new()
    for number in range(4):
        volume.append(volume.log("a"), encode_single(b"%d" % number))
        files = files.kill()
        volume = _open(files)
    volume.append(volume.log("a"), encode_single(b"last"))
    before = volume.log_epoch
    volume.close()
    for name in ("checkpoint-0", "checkpoint-1"):
        files.replace(f"{PATH}/{name}", b"bad")
    repair(PATH, files=files)
    volume = _open(files)
    assert volume.log_epoch > before
    volume.append(volume.log("a"), encode_single(b"new"))
    volume.checkpoint()
    volume.append(volume.log("a"), encode_single(b"newer"))
    assert _open(files.kill()).log("a").committed_end == 7


def test_a_roll_beside_retention_keeps_its_segment() -> None:
    """Both change the list of segments; neither may forget what the other did."""
    _, volume, log = _new(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    for number in range(13):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.append(log, encode_single(b"x"))
    volume.checkpoint()
    with log.files_lock:  # as coalescing holds it
        retaining = threading.Thread(target=lambda: volume.retain(log, messages_max=4))
        retaining.start()
        retaining.join(0.2)
        for number in range(8):
            volume.append(log, encode_single(b"y%d" % number))
    retaining.join(PATIENCE_S)
    at = log.log_start
    assert at > 0
    while at < log.committed_end:
        at = log.read(at, 1)[-1].end_offset


def test_a_callback_that_fails_costs_nobody_else_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged; the other tickets are answered, and the committing thread goes on."""

    def fail(_: Ticket) -> None:
        raise ZeroDivisionError

    files = SimulatedFileSystem()
    with Volume.open(PATH, settings=SETTINGS, files=files) as volume:
        volume.create_topic("a")
        log = volume.log("a")
        with volume._committer.quiesce():
            first = volume.submit(log, encode_single(b"1"))
            first.on_done(fail)
            second = volume.submit(log, encode_single(b"2"))
        second.wait(PATIENCE_S)
        volume.submit(log, encode_single(b"3")).wait(PATIENCE_S)
    assert "callback" in caplog.text


def test_changes_that_do_not_fit_into_a_frame_are_refused() -> None:
    """Their sum counts, not each one; and a log's start cannot be moved behind its end."""
    _, volume, log = _new()
    with pytest.raises(BatchTooLarge):
        volume.submit_changes([Other(1, b"z" * 10_000)] * 10)
    with pytest.raises(OffsetOutOfRange):
        volume.submit_changes([MoveLogStart(log, 1)])
    assert volume.append(log, encode_single(b"1")) == 0


def test_a_log_whose_sync_found_the_disk_full_is_a_failed_one() -> None:
    """I5: the kernel gave those pages up; no later checkpoint may say that they are durable."""
    files, volume, log = _new(TopicSettings(sync=SyncMode.OS))
    volume.append(log, encode_single(b"1"))
    files.fail("sync_data", 1, errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageFailed):
        volume.checkpoint()
    with pytest.raises(StorageFailed):
        volume.append(log, encode_single(b"2"))


def test_maintenance_frees_the_journal_on_a_full_disk() -> None:
    """Making the next file fails; checkpoints, which free old ones, come all the same."""
    files, volume, log = _new()
    files.fail("reserve", 1, errno.ENOSPC, count=None, path_contains=".wal")
    with pytest.raises(StorageFull):
        while True:
            volume.append(log, encode_single(b"x" * 1_000))
    for _ in range(4):
        try:
            volume.maintain_once()
        except OSError:
            continue
    volume.append(log, encode_single(b"again"))


def test_merging_is_bounded_by_what_batches_hold_and_not_by_what_they_take() -> None:
    """Small compressed batches are large ones: merging them must not inflate a whole segment at once."""
    _, volume, log = _new(TopicSettings(segment_bytes=40_000, max_message_bytes=4 << 20, coalesce_to_bytes=1 << 20))
    for _ in range(30):
        volume.append(log, encode_batch([bytes(2 << 20)], codec=Codec.GZIP))
    volume.checkpoint()
    volume.checkpoint()
    volume.coalesce()
    assert max(batch.header.total_bytes for batch in log.read(0, 1 << 20)) < 40_000


def test_verify_and_repair_know_of_retention_behind_the_checkpoint() -> None:
    """What was removed by rule is not missing."""
    files, volume, log = _new(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    for number in range(13):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.checkpoint()
    assert volume.retain(log, messages_max=4)[0] > 0
    assert verify(PATH, files=files).is_sound
    disk = files.kill()
    assert verify(PATH, files=disk).is_sound
    assert repair(PATH, files=disk).lost == []
    assert _open(disk).log("a").log_start == log.log_start


def test_a_refused_append_is_not_remembered_as_its_producers() -> None:
    """I30: the producer will send it again, and that is no duplicate."""
    files, volume, log = _new(TopicSettings(sync=SyncMode.OS, segment_bytes=600))
    volume.append(log, encode_single(b"x" * 300))
    files.fail("write", 2, errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageFull):
        volume.append(log, encode_batch([b"y" * 300], producer=Producer(7, 1, 1)))
    assert log.state.recent == {}
    assert volume.append(log, encode_batch([b"y" * 300], producer=Producer(7, 1, 1))) == 1
    assert list(log.state.recent) == [7]


def test_a_closed_log_says_that_it_is_closed() -> None:
    """Not that its files are damaged."""
    _, volume, log = _new()
    volume.append(log, encode_single(b"1"))
    volume.close()
    with pytest.raises(Closed):
        log.read(0)


def test_an_os_topic_can_ask_for_the_interval() -> None:
    """The stricter of the topic's and the call's mode counts."""
    _, volume, log = _new(TopicSettings(sync=SyncMode.OS))
    volume.append(log, encode_single(b"1"), sync=SyncMode.INTERVAL)
    volume.sync_interval_logs()
    assert log.durable_end == 1


class _Killed(BaseException):
    """Ends what is being done in the middle, as SIGKILL would."""


def _kill_at(files: SimulatedFileSystem, kind: str, path_contains: str, work: Callable[[], object]) -> SimulatedFileSystem:
    """Do *work* until just before the first operation of this kind on such a file; returns the disk as the next process finds it."""
    disks: list[SimulatedFileSystem] = []

    def kill(operation: Operation) -> None:
        if operation.kind == kind and path_contains in operation.path:
            files.on_operation = None
            disks.append(files.kill())
            raise _Killed

    files.on_operation = kill
    with pytest.raises(_Killed):
        work()
    return disks[0]


@pytest.mark.parametrize("sync", [SyncMode.ALWAYS, SyncMode.OS])
def test_a_store_killed_before_the_first_message_of_a_segment_is_in_and_killed_again_while_it_is_written_opens(
    sync: SyncMode,
) -> None:
    """The checkpoint of the opening in between names the new, empty segment: what was never committed is cut off it, and it stays."""
    files, volume, log = _new(TopicSettings(sync=sync, segment_bytes=600, coalesce_below_bytes=0))
    volume.append(log, encode_single(b"1" * 500), sync=SyncMode.ALWAYS)
    # The segment is made, and the process is killed before its first batch is in it or in the journal.
    files = _kill_at(files, "reserve", f"{1:020d}.log", lambda: volume.append(log, encode_single(LARGE), sync=SyncMode.ALWAYS))
    volume = _open(files)
    log = volume.log("a")
    assert log.segment_firsts == [0, 1]
    # The batch is in the log, ahead of the frame that would have committed it.
    files = _kill_at(files, "pwrite", "/journal/", lambda: volume.append(log, encode_single(LARGE), sync=SyncMode.ALWAYS))
    for _ in range(2):
        volume = _open(files)
        assert volume.log("a").committed_end == 1
        assert verify(PATH, files=files).is_sound
        files = files.kill()
    volume = _open(files)
    assert volume.append(volume.log("a"), encode_single(b"2"), sync=SyncMode.ALWAYS) == 1
    volume.close()
    log = _open(files).log("a")
    assert [bytes(batch.value(0) or b"") for batch in log.read(0)] == [b"1" * 500]
    assert [bytes(batch.value(0) or b"") for batch in log.read(1)] == [b"2"]


def test_a_store_whose_newest_segment_is_missing_and_was_empty_is_repaired() -> None:
    """Nothing is lost, and opening it says that a file is gone: so repair must do something about it."""
    files, volume, log = _new(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    volume.append(log, encode_single(b"1" * 500))
    files = _kill_at(files, "reserve", f"{1:020d}.log", lambda: volume.append(log, encode_single(LARGE)))
    _open(files)
    files = files.kill()
    gone = f"{PATH}/topics/a/0/{1:020d}.log"
    files.unlink(gone)
    with pytest.raises(MissingData, match="the last checkpoint names this segment"):
        _open(files)
    [lost] = repair(PATH, files=files).lost
    assert "no message is lost" in lost.reason
    volume = _open(files)
    assert volume.append(volume.log("a"), encode_single(b"2")) == 1
    volume.close()
    assert verify(PATH, files=files).is_sound
    log = _open(files).log("a")
    assert [bytes(log.read(offset)[0].value(0) or b"") for offset in (0, 1)] == [b"1" * 500, b"2"]
