"""
Planted bugs, each one a mistake that a real queue shipped. The suite is worth something only if it finds every one of them.

A mutant replaces one function while it is active; nothing in the product knows of them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.format.batch import Batch, EncodedBatch
from penstock.format.frame import ENTRY_BATCH
from penstock.format.segment import FOOTER_BYTES
from penstock.journal import checkpoints, journal, small_file
from penstock.journal.journal import Journal
from penstock.log import recovery as log_recovery
from penstock.log import segment
from penstock.log.recovery import LogRecovery
from penstock.log.segment import Segment
from penstock.topics.producers import Producers
from penstock.volume import identity, topic_files
from penstock.volume import recovery as volume_recovery
from penstock.volume.commit_cycle import CommitCycle
from penstock.volume.recovery import VolumeRecovery
from penstock.volume.tickets import ChangesTicket, MoveLogStart
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.files import File, FileSystem
    from penstock.log.partition_log import PartitionLog


@contextlib.contextmanager
def _patched(*replacements: tuple[object, str, object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for target, name, replacement in replacements:
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield


def _zero(*_: object) -> int:
    return 0


def ack_before_fsync() -> Any:
    """The journal is written but not synced before the answer."""

    def sync(self: Journal) -> None:
        self.syncs += 1

    return _patched((Journal, "sync", sync))


def no_directory_fsync_after_rename() -> Any:
    """Small files are renamed into place, and the folder is not synced."""

    def replace(files: FileSystem, path: str, data: bytes) -> None:
        temporary = path + small_file.TEMPORARY_SUFFIX
        if files.exists(temporary):
            files.unlink(temporary)
        file = files.create(temporary)
        file.pwrite(data, 0)
        file.sync_data()
        file.close()
        files.rename(temporary, path)

    return _patched(*[(module, "replace_small_file", replace) for module in (checkpoints, identity, topic_files)])


def rename_without_fsync_of_the_file() -> Any:
    """Small files are renamed into place before their bytes are synced."""

    def replace(files: FileSystem, path: str, data: bytes) -> None:
        temporary = path + small_file.TEMPORARY_SUFFIX
        if files.exists(temporary):
            files.unlink(temporary)
        file = files.create(temporary)
        file.pwrite(data, 0)
        file.close()
        files.rename(temporary, path)
        files.sync_directory(os.path.dirname(path))

    return _patched(*[(module, "replace_small_file", replace) for module in (checkpoints, identity, topic_files)])


def fsync_retried_after_error() -> Any:
    """A sync that failed is tried again, and its success believed."""

    def sync(self: Journal) -> None:
        current = self._current
        assert current is not None
        try:
            current.file.sync_data()
        except OSError:
            current.file.sync_data()

    return _patched((Journal, "sync", sync))


def short_write_ignored() -> Any:
    """The count that a write returns is not looked at."""

    def write(file: File, data: Any, position: int) -> None:
        file.pwrite(data, position)

    def write_buffers(file: File, buffers: Any, position: int) -> None:
        file.pwritev(buffers, position)

    return _patched(
        (journal, "write_fully", write),
        (segment, "write_fully", write),
        (segment, "write_buffers_fully", write_buffers),
    )


def truncate_at_bad_checksum_below_the_durable_end() -> Any:
    """Recovery cuts the log at the first bad batch, whatever was durable."""
    original = LogRecovery._cut

    def cut(self: LogRecovery, *arguments: Any) -> None:
        self._floor = 0
        self._row_end = 0
        with _patched((LogRecovery, "_durable_position", _zero), (LogRecovery, "_claim_of", _zero)):
            original(self, *arguments)
        self._floor = 0

    return _patched((LogRecovery, "_cut", cut))


def apply_not_idempotent() -> Any:
    """Redoing a frame appends its batches, whether the log has them or not."""

    def redo_batch(log: PartitionLog, entry: Any) -> None:
        batch = Batch(entry.body)
        header = batch.header
        copy = EncodedBatch(bytearray(batch.buffer), header.header_bytes, header.count, header.offset_span)
        log.make_room(len(copy.data), copy.count, header.append_time_us)
        log.plan(copy, header.append_time_us)
        log.apply_planned()
        log.commit_planned()

    return _patched((VolumeRecovery, "_redo_batch", staticmethod(redo_batch)))


def checkpoint_frees_the_journal_too_early() -> Any:
    """The journal is freed before the checkpoint that replaces it is durable."""
    original = Volume._checkpoint

    def checkpoint(self: Volume, *, clean: bool) -> None:
        self._journal._switch()
        self._journal.free(self._journal.sequence)
        original(self, clean=clean)

    return _patched((Volume, "_checkpoint", checkpoint))


def checkpoint_without_syncing_the_logs() -> Any:
    """A checkpoint says that logs are durable and does not sync them."""

    def sync(self: Segment) -> None:
        self.synced_position = self.position + (FOOTER_BYTES if self.sealed else 0)

    return _patched((Segment, "sync", sync))


def offset_zero_means_never() -> Any:
    """A log whose only committed offset is 0 counts as one that has none."""
    original = VolumeRecovery._look_ahead

    def look_ahead(self: VolumeRecovery) -> None:
        original(self)
        for log_id, end in list(self._committed.items()):
            if end - 1 == 0:
                self._committed[log_id] = 0
                for frame in self._frames:
                    frame.entries[:] = [one for one in frame.entries if not (one.kind == ENTRY_BATCH and one.owner == log_id)]

    return _patched((VolumeRecovery, "_look_ahead", look_ahead))


def recovery_does_not_sync_what_it_keeps() -> Any:
    """What a killed process left in the cache is served without a sync."""

    def secure(self: LogRecovery, kept: list[Segment]) -> None:
        for one in kept:
            if one is not kept[-1] and not one.sealed:
                one.seal()
            one.synced_position = one.position + (FOOTER_BYTES if one.sealed else 0)

    def scan(original: Callable[..., Any]) -> Callable[..., Any]:
        def without_sync(self: LogRecovery, *arguments: Any) -> Any:
            opened = self._files.open

            def open_unsynced(path: str, *, write: bool = False) -> Any:
                file = opened(path, write=write)
                return _Unsynced(file)

            with mock.patch.object(self, "_files", _OpenWith(self._files, open_unsynced)):
                return original(self, *arguments)

        return without_sync

    return _patched((LogRecovery, "_secure", secure), (LogRecovery, "_scan", scan(LogRecovery._scan)))


class _OpenWith:
    def __init__(self, files: Any, opener: Any) -> None:
        self._files = files
        self.open = opener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _Unsynced:
    def __init__(self, file: Any) -> None:
        self._file = file

    def sync_data(self) -> None:
        """Does nothing: that is the bug."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def uncommitted_large_batch_is_kept() -> Any:
    """A batch that was written ahead of its frame is served though the frame never came."""

    def uncommitted_from(*_: Any) -> None:
        return None

    return _patched((VolumeRecovery, "_uncommitted_from", uncommitted_from))


def segments_removed_before_log_start_is_durable() -> Any:
    """Retention unlinks files first and records the new start of the log afterwards."""

    def retain(self: Volume, log: PartitionLog, **rules: Any) -> tuple[int, int]:
        rules = {"before_time_us": None, "bytes_max": None, "messages_max": None} | rules
        start = log.retention_start(keep_from=self.keep_from(log), **rules)
        if start <= log.log_start:
            return 0, 0
        result = log.drop_before(start)
        ticket = ChangesTicket(self._committer, [MoveLogStart(log, start)])
        self._committer.commit(ticket)
        return result

    return _patched((Volume, "retain", retain))


def large_batch_not_synced_before_its_frame() -> Any:
    """The frame refers to a batch that its log may lose."""
    original = CommitCycle._write_ahead

    def no_sync(_: Segment) -> None:
        """Does nothing: that is the bug."""

    def write_ahead(self: CommitCycle, prepared: Any, log: PartitionLog) -> None:
        with _patched((Segment, "sync", no_sync)):
            original(self, prepared, log)

    return _patched((CommitCycle, "_write_ahead", write_ahead))


def half_a_batch_stays_after_a_full_disk() -> Any:
    """A write that failed in the middle is not cut off again, and what comes next goes behind it."""

    def stay(self: Segment) -> None:
        assert self.file is not None
        self.position = self.file.size() + (-self.file.size() & 7)

    return _patched((Segment, "_roll_back", stay))


def the_segment_that_the_checkpoint_names_is_cut_away() -> Any:
    """Of what was never committed not only the messages go: also the segment, which was empty when the last opening recorded it."""

    def cut(log: PartitionLog, offset: int) -> None:
        log_recovery.cut_log(log, offset)
        if offset in log.segment_firsts[1:]:
            log.segment(offset).delete()

    return _patched((volume_recovery, "cut_log", cut))


def a_replayed_commit_is_not_in_the_checkpoint_of_the_opening() -> Any:
    """The next crash forgets it, unless another checkpoint comes before."""
    snapshot = Producers.snapshot
    opening: list[Producers] = []

    def recovered(self: Producers, *_: object) -> None:
        opening.append(self)

    def without_the_newest(self: Producers) -> bytes:
        if self not in opening:
            return snapshot(self)
        opening.remove(self)
        older = {
            producer: {number: one for number, one in known.items() if number != max(known)}
            for producer, known in self._transactions.items()
        }
        with _patched((self, "_transactions", older)):
            return snapshot(self)

    return _patched((Producers, "recovered", recovered), (Producers, "snapshot", without_the_newest))


STATE_MUTANTS: list[Callable[[], Any]] = [
    ack_before_fsync,
    no_directory_fsync_after_rename,
    rename_without_fsync_of_the_file,
    apply_not_idempotent,
    checkpoint_frees_the_journal_too_early,
    checkpoint_without_syncing_the_logs,
    offset_zero_means_never,
    recovery_does_not_sync_what_it_keeps,
    uncommitted_large_batch_is_kept,
    segments_removed_before_log_start_is_durable,
    large_batch_not_synced_before_its_frame,
]
"""Those that crash states alone must find."""

REPEATED_MUTANTS: list[Callable[[], Any]] = [
    the_segment_that_the_checkpoint_names_is_cut_away,
    a_replayed_commit_is_not_in_the_checkpoint_of_the_opening,
]
"""Those that a store shows which crashes again after it went on from a crash."""
