"""
Bringing a store back: checkpoint, journal, partition tails, redo, sync, in this order.

Theory of operation
-------------------
After an orderly closing the last checkpoint says everything; of the journal only the beginnings of later files are looked at,
which prove that it is the last one.

Otherwise the frames behind the checkpoint are read first. They tell how far each log is committed. Each log is then recovered
by itself (`log/recovery.py`), which cuts what a crash tore; then:

- A batch in a log that no frame commits is cut if it was *prewritten* (written to the log ahead of its frame). Any other batch
  behind the journal's end in a log with ``sync=always`` was written after its frame was synced: the frame is gone, and that is
  reported as damage.
- Frames are redone in order. Redoing is idempotent by offset: there already = skip, next = append, a gap = damage.

All that was changed is synced before the new checkpoint says so; a crash at any point of this begins it anew.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, Corrupt, DamagedFile, MissingData
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import parse_header
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_LOG_START,
    ENTRY_OTHER,
    ENTRY_REFERENCE,
    FrameEntry,
    decode_log_start,
    decode_reference,
)
from penstock.log.identity import LogIdentity
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import LogRecovery, TailReport, cut_log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.files import FileSystem
    from penstock.format.batch_header import BatchHeader
    from penstock.format.checkpoint import Checkpoint, LogRow
    from penstock.journal.journal import Journal, Replayed
    from penstock.log.partition_log import OpenLogs
    from penstock.log.positions import Position
    from penstock.volume.topic_files import TopicRecord


class Recovered(NamedTuple):
    """What recovery brings back."""

    logs: dict[int, PartitionLog]
    frame_number: int
    log_epoch: int
    others: list[tuple[int, int, bytes]]
    """(frame number, owner, body) of the entries that belong to layers above."""
    reports: dict[int, TailReport]


class VolumeRecovery:
    """Recovers all logs of one store. Used once, by its owner."""

    def __init__(
        self,
        files: FileSystem,
        topics_directory: str,
        store_id: bytes,
        checkpoint: Checkpoint,
        journal: Journal,
        known: dict[tuple[bytes, int], Position] | None,
        descriptors_max: int,
        deleted: Collection[int] = (),
        open_logs: OpenLogs | None = None,
        problems: list[Corrupt] | None = None,
    ) -> None:
        """
        *deleted*: the ids of logs whose topics were deleted; what names them is passed over.

        *open_logs* takes note of those that have files open.

        With *problems* recovery goes on with the other logs after it found one that is damaged, and notes them all, before it raises the
        first: what `verify` and `repair` want to know.
        """
        self._files = files
        self._directory = topics_directory
        self._store_id = store_id
        self._checkpoint = checkpoint
        self._journal = journal
        self._known = known or {}
        self._descriptors_max = descriptors_max
        self._deleted = deleted
        self._problems = problems
        self._bad: set[int] = set()  # log ids with problems
        self._clean = False
        self._open_logs: OpenLogs = set() if open_logs is None else open_logs
        self._rows: dict[int, LogRow] = {row.log_id: row for row in checkpoint.rows}
        self._frames: list[Replayed] = []
        self._committed: dict[int, int] = {row.log_id: row.end for row in checkpoint.rows}
        self._references: dict[int, list[tuple[int, int]]] = {}  # log id -> ranges of offsets that frames refer to, rising
        self._synced: dict[int, int] = {}  # log id -> offset up to which a frame proves that the log's own files were synced
        self._log_starts: dict[int, int] = {row.log_id: row.log_start for row in checkpoint.rows}
        self.reports: dict[int, TailReport] = {}

    def run(self, topics: list[TopicRecord]) -> Recovered:
        """Bring everything back. Raises `Corrupt` or `OSError`; nothing that was durable is lost then."""
        checkpoint = self._checkpoint
        clean = checkpoint.clean and not self._journal.has_frames_behind(checkpoint.journal_sequence, checkpoint.frame_number)
        self._clean = clean
        epoch = checkpoint.log_epoch if clean else checkpoint.log_epoch + 1
        if not clean:
            self._frames = list(self._journal.replay(checkpoint.journal_sequence, checkpoint.frame_number))
            self._look_ahead()
        logs: dict[int, PartitionLog] = {}
        for record in topics:
            for partition in range(record.partitions):
                identity = LogIdentity(self._store_id, record.topic_id, record.name, partition, record.first_log_id + partition)
                with self._noting(identity.log_id):
                    logs[identity.log_id] = log = self._recover_log(record, identity, epoch)
                    if len(self._open_logs) >= self._descriptors_max:
                        log.let_go()
        self._check_all_known(logs)
        others = self._redo(logs)
        for log in logs.values():
            with self._noting(log.log_id):
                self._check_known_end(log)
        if self._problems:
            raise self._problems[0]
        for log in logs.values():
            work = log.sync_work()
            for segment in work.segments:
                segment.sync()
            log.sync_names()
            log.note_durable(work)
        number = self._frames[-1].number if self._frames else checkpoint.frame_number
        return Recovered(logs, number, epoch, others, self.reports)

    @contextlib.contextmanager
    def _noting(self, log_id: int) -> Iterator[None]:
        """Note a problem of one log and go on, if problems are to be noted."""
        try:
            yield
        except Corrupt as error:
            if self._problems is None:
                raise
            self._problems.append(error)
            self._bad.add(log_id)

    # -- what the journal says --------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Learn from the frames how far each log is committed and where it begins."""
        for frame in self._frames:
            for entry in frame.entries:
                if entry.kind == ENTRY_BATCH:
                    header = self._header(frame, entry)
                    self._committed[entry.owner] = max(self._committed.get(entry.owner, 0), header.end_offset)
                elif entry.kind == ENTRY_REFERENCE:
                    reference = decode_reference(entry)
                    end = reference.first_offset + reference.offset_span
                    self._committed[entry.owner] = max(self._committed.get(entry.owner, 0), end)
                    self._references.setdefault(entry.owner, []).append((reference.first_offset, end))
                    self._synced[entry.owner] = max(self._synced.get(entry.owner, 0), end)
                elif entry.kind == ENTRY_LOG_START:
                    start = decode_log_start(entry)
                    self._log_starts[entry.owner] = max(self._log_starts.get(entry.owner, 0), start)

    def _header(self, frame: Replayed, entry: FrameEntry) -> BatchHeader:
        try:
            return parse_header(entry.body)
        except BadBytes as error:
            raise DamagedFile(self._journal.directory, 0, None, f"frame {frame.number} holds a bad batch: {error}") from None

    def _check_all_known(self, logs: dict[int, PartitionLog]) -> None:
        for log_id in [*self._committed, *self._log_starts]:
            if log_id not in logs and log_id not in self._deleted and log_id not in self._bad:
                with self._noting(log_id):
                    raise MissingData(self._directory, f"checkpoint or journal name log {log_id}, and no topic has it")

    # -- one log ----------------------------------------------------------------------------------------------------

    def _recover_log(self, record: TopicRecord, identity: LogIdentity, epoch: int) -> PartitionLog:
        log, report = self._scan(record, identity, epoch)
        limit = self._uncommitted_from(log, report)
        if limit is not None and limit < report.end:
            position = self._known.get((identity.topic_id, identity.partition))
            if position is not None and position.end > limit:
                # Checked before anything is cut: the last owner had committed it, so a frame is gone.
                raise MissingData(
                    log.directory, f"offsets up to {position.end} were committed, and the journal knows of {limit} only"
                )
            if report.plain_end > limit:
                raise MissingData(
                    log.directory,
                    f"the log holds committed messages up to {report.plain_end}, and the journal knows of {limit} only",
                )
            cut_log(log, limit)
            log.close()
            self._open_logs.discard(log)
            log, report = self._scan(record, identity, epoch)
        self.reports[identity.log_id] = report
        return log

    def _scan(self, record: TopicRecord, identity: LogIdentity, epoch: int) -> tuple[PartitionLog, TailReport]:
        directory = os.path.join(self._directory, record.name, str(identity.partition))
        log = PartitionLog(self._files, directory, identity, record.settings, epoch)
        position = self._known.get((identity.topic_id, identity.partition))
        # What an always-log lost of its own files the journal can redo, so there the known end is checked after that.
        known_end = 0 if position is None or log.always else position.end
        # A frame refers to a batch only after the whole log up to it was synced: what is bad before it is damage.
        known_end = max(known_end, self._synced.get(identity.log_id, 0))
        row = self._rows.get(identity.log_id)
        recovery = LogRecovery(self._files, directory, identity, record.settings, row, known_end, clean=self._clean)
        report = recovery.run(log, self._log_starts.get(identity.log_id, 0))
        log.open_logs = self._open_logs
        if log.descriptors:
            self._open_logs.add(log)
        return log, report

    def _uncommitted_from(self, log: PartitionLog, report: TailReport) -> int | None:
        """The first offset in the log that was never committed, if there is one."""
        log_id = log.identity.log_id
        if log.always:
            return self._committed.get(log_id, 0)
        references = self._references.get(log_id, [])
        at = 0
        for first, end in report.prewritten:
            # Both rise; a reference may be to a whole segment of batches.
            while at < len(references) and references[at][1] < end:
                at += 1
            if at == len(references) or references[at][0] > first:
                return first
        return None

    def _check_known_end(self, log: PartitionLog) -> None:
        position = self._known.get((log.identity.topic_id, log.identity.partition))
        if position is not None and log.committed_end < position.end:
            raise MissingData(
                log.directory,
                f"offsets up to {position.end} were committed in this boot, and only {log.committed_end} are found",
            )

    # -- redo -------------------------------------------------------------------------------------------------------

    def _redo(self, logs: dict[int, PartitionLog]) -> list[tuple[int, int, bytes]]:
        others: list[tuple[int, int, bytes]] = []
        for frame in self._frames:
            for entry in frame.entries:
                if entry.kind in (ENTRY_BATCH, ENTRY_REFERENCE) and (entry.owner in self._deleted or entry.owner in self._bad):
                    continue
                if entry.kind == ENTRY_BATCH:
                    with self._noting(entry.owner):
                        self._redo_batch(logs[entry.owner], entry)
                elif entry.kind == ENTRY_REFERENCE:
                    reference = decode_reference(entry)
                    log = logs[entry.owner]
                    if reference.first_offset + reference.offset_span > log.committed_end:
                        with self._noting(entry.owner):
                            raise MissingData(
                                log.directory,
                                f"frame {frame.number} commits offset {reference.first_offset}, which the log lost",
                            )
                elif entry.kind == ENTRY_OTHER:
                    others.append((frame.number, entry.owner, bytes(entry.body)))
        return others

    @staticmethod
    def _redo_batch(log: PartitionLog, entry: FrameEntry) -> None:
        batch = Batch(entry.body)
        end = log.committed_end
        if batch.end_offset <= end:
            return
        if batch.first_offset != end:
            raise MissingData(log.directory, f"the journal goes on at offset {batch.first_offset}, and the log ends at {end}")
        header = batch.header
        log.redo(EncodedBatch(bytearray(batch.buffer), header.header_bytes, header.count, header.offset_span), batch)
