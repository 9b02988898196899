"""
Opening a log: find out what its files hold, cut a torn tail, refuse damage.

Theory of operation
-------------------
The checkpoint says up to which offset, and which byte of which segment, the log was durable. Everything before that was synced
and must be there: if it is not, that is damage, and opening stops with the path, the byte and the offset. Everything behind
was written without a sync; a crash may have kept any part of it. It is scanned, batch by batch, with all checksums:

- A bad batch with evidence that it was once durable is damage as well. Evidence is: it lies before the checkpoint; it lies before
  the committed end in the `positions` file of this same boot (the page cache survives a dead process); or any later batch says
  so in its `durable_end`.
- Any other bad batch is a torn tail: the segment is cut there, and segments behind it, which must be younger still, are removed.
  For logs with ``sync=always`` the journal then redoes what was committed; for the weaker modes this is the loss they allow.

Unless the last owner closed the store in order, each file is synced and its clean cached pages are dropped before anything of it is
read: after a failed sync the cache can hold bytes that the disk does not. What is kept is written once more in place and synced
before anybody may see it.

Reading a log whose owner is alive or unknown judges nothing of this: see log_reader.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile, MissingData, UnsupportedFormat
from penstock.files import write_fully
from penstock.format.batch import Batch
from penstock.format.batch_header import (
    COMPATIBLE_PREWRITTEN,
    HEADER_BYTES_MAX,
    KIND_DATA,
    KIND_STATE,
    MAGIC,
    BatchHeader,
    parse_header,
)
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, Footer, SegmentHeader, add_header_crc
from penstock.log.index_cache import read_index_cache
from penstock.log.offset_index import OffsetIndex
from penstock.log.sealed_segment import check_header
from penstock.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Segment,
    is_footer,
    parse_segment_name,
    remove_segment,
    segment_name,
)

if TYPE_CHECKING:
    from penstock.files import File, FileSystem
    from penstock.format.checkpoint import LogRow
    from penstock.log.identity import LogIdentity
    from penstock.log.partition_log import PartitionLog
    from penstock.settings import TopicSettings

_REWRITE_BYTES = 1024 * 1024
_WINDOW_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class TailReport:
    """What recovery found behind the checkpoint."""

    end: int = 0
    prewritten: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, end) of batches that only a journal frame can commit, in order."""
    plain_end: int = 0
    """The end of the last batch that was written after its commit."""
    cut_bytes: int = 0
    removed_segments: int = 0


@dataclass(slots=True)
class _Scan:
    """One segment as the scan found it."""

    segment: Segment
    problem: str | None = None
    footer: bool = False
    durable_end: int = 0


class LogRecovery:
    """Recovers one log. Used once."""

    def __init__(
        self, files: FileSystem, directory: str, identity: LogIdentity, settings: TopicSettings, row: LogRow | None, known_end: int,
        *, clean: bool = False,
    ) -> None:  # fmt: skip
        """*clean*: its last owner has synced all of it, saw no failure, and said so."""
        self._files = files
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._row = row
        self._row_end = 0 if row is None else row.end
        self._floor = max(self._row_end, known_end)
        self._clean = clean
        self.report = TailReport()

    def run(self, log: PartitionLog, log_start: int) -> TailReport:
        """Bring *log* to what its files hold. Raises `Corrupt`; nothing that was durable is changed then."""
        log.log_start = log_start
        firsts = self._list_segments(log, log_start)
        start = self._start_segment(firsts, log_start)
        if start is None:
            self.report.end = self.report.plain_end = self._row_end
            if self._floor > self._row_end:
                raise MissingData(self._directory, f"offsets up to {self._floor} were committed and no segment is there")
            log.adopt([], None, [], self._row_end)
            return self.report
        kept: list[Segment] = []
        position = firsts.index(start)
        while position < len(firsts):
            first = firsts[position]
            following = firsts[position + 1] if position + 1 < len(firsts) else None
            scan = self._scan(log, first, kept)
            problem = self._join(scan, kept, following)
            if problem is not None:
                self._cut(scan, kept, firsts[position:], problem)
                firsts = [one for one in firsts if one < start] + [segment.first_offset for segment in kept]
                break
            position += 1
        end = kept[-1].end_offset if kept else start
        if end < self._floor:
            raise MissingData(
                os.path.join(self._directory, segment_name(start)),
                f"offsets up to {self._floor} were durable, and the log ends at {end}",
            )
        self._secure(kept)
        self.report.end = end
        self.report.plain_end = max(self.report.plain_end, min(end, self._row_end))
        active = kept[-1] if kept else None
        log.max_time_us = max(active.max_time_us if active else 0, 0 if self._row is None else self._row.max_time_us)
        log.adopt(firsts, active, kept, end)
        return self.report

    # -- which segments ---------------------------------------------------------------------------------------------

    def _list_segments(self, log: PartitionLog, log_start: int) -> list[int]:
        """
        The first offsets of the segments to keep. What was removed before a crash, or was to be, is noted: it goes when readers know.

        They learn where the log begins from the owner's positions, which those of the last owner may not have said any more.
        """
        try:
            names = self._files.list_directory(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingData(self._directory, "the folder of the partition is missing") from None
        removed = False
        for name in names:
            if name.endswith((LOG_SUFFIX + ".tmp", INDEX_SUFFIX + ".tmp")):
                # A rewriting that was not finished: the segment it was made from is still there.
                self._files.unlink(os.path.join(self._directory, name))
                removed = True
        firsts = sorted(first for name in names if (first := parse_segment_name(name)) is not None)
        while len(firsts) > 1 and firsts[1] <= log_start:
            log.stale_firsts.append(firsts.pop(0))
        if removed:
            self._files.sync_directory(self._directory)
        return firsts

    def _start_segment(self, firsts: list[int], log_start: int) -> int | None:
        """The segment that was active at the checkpoint: scanning begins there."""
        if self._row is None or not self._row.position:
            if firsts and firsts[0] > self._row_end:
                # The checkpoint knows no segment, and the first one that was made since did not survive.
                for first in firsts:
                    self._floor = max(self._floor, self._claim_of(first))
                if self._floor > self._row_end:
                    path = os.path.join(self._directory, segment_name(self._row_end))
                    raise MissingData(path, f"offsets up to {self._floor} were durable, and this segment is gone")
                self._remove_all(firsts)
            if self._row_end and not firsts:
                raise MissingData(self._directory, f"the log had offsets up to {self._row_end}, and no segment is there")
            return firsts[0] if firsts else None
        first = self._row.segment_first
        if first not in firsts:
            raise MissingData(os.path.join(self._directory, segment_name(first)), "the last checkpoint names this segment")
        if firsts[0] > log_start:
            path = os.path.join(self._directory, segment_name(log_start))
            raise MissingData(path, f"the log begins at {log_start}, and its first segment at {firsts[0]}")
        return first

    def _remove_all(self, firsts: list[int]) -> None:
        """Remove segments that hold nothing durable, the youngest first."""
        while firsts:
            self._remove(firsts.pop())
            self.report.removed_segments += 1
        self._files.sync_directory(self._directory)

    def _remove(self, first: int) -> None:
        remove_segment(self._files, self._directory, first)

    # -- scanning ---------------------------------------------------------------------------------------------------

    def _scan(self, log: PartitionLog, first: int, kept: list[Segment]) -> _Scan:
        path = os.path.join(self._directory, segment_name(first))
        file = self._files.open(path, write=True)
        if not self._clean:
            # Sync, then drop: what is read below is what the disk has.
            file.sync_data()
            file.drop_cache()
        durable = self._durable_position(first)
        data = file.pread(SEGMENT_HEADER_BYTES, 0)
        try:
            header = check_header(path, data, first, self._identity)
        except DamagedFile as error:
            if durable or is_whole_header(data):
                file.close()
                raise
            header = SegmentHeader(
                self._identity.store_id, self._identity.topic_id, self._identity.partition, 0, first, 0, 0, 0, 0
            )
            segment = Segment(self._files, path, header, OffsetIndex(self._settings.index_interval_bytes))
            segment.file = file
            return _Scan(segment, problem=error.reason)
        segment = Segment(self._files, path, header, OffsetIndex(self._settings.index_interval_bytes))
        segment.file = file
        scan = _Scan(segment)
        self._restore(log, segment, durable, fresh=not kept)
        size = file.size()
        if size < durable:
            raise DamagedFile(path, size, segment.end_offset, f"the file is {durable - size} bytes shorter than it was")
        self._walk(log, scan, file, size)
        return scan

    def _durable_position(self, first: int) -> int:
        row = self._row
        return row.position if row is not None and row.segment_first == first else 0

    def _restore(self, log: PartitionLog, segment: Segment, durable: int, *, fresh: bool) -> None:
        """Begin where a usable index cache says, if the checkpoint covers that; else at the start of the segment."""
        if not fresh:
            return
        snapshot = read_index_cache(self._files, segment)
        if snapshot is None or not snapshot.state or not SEGMENT_HEADER_BYTES < snapshot.valid_position <= durable:
            return
        try:
            log.state.restore(snapshot.state)
        except BadBytes:
            return
        segment.index.restore(snapshot.offsets, snapshot.times_us, snapshot.positions)
        segment.position = snapshot.valid_position
        segment.end_offset = snapshot.end_offset
        segment.max_time_us = snapshot.max_time_us
        segment.batches = snapshot.batches
        segment.crc_of_crcs = snapshot.crc_of_crcs
        segment.messages = snapshot.end_offset - segment.first_offset
        log.cached_index = (segment.uid, snapshot.valid_position)

    def _walk(self, log: PartitionLog, scan: _Scan, file: File, size: int) -> None:
        """Take in the batches from the segment's position on, up to the first thing that is not a good batch."""
        segment = scan.segment
        view, base = memoryview(b""), segment.position
        while segment.position < size:
            view, base = self._window(file, view, base, segment.position, size)
            at = segment.position - base
            if is_footer(view, at):
                scan.problem = self._take_footer(scan, view, at, size)
                return
            try:
                batch = Batch(view, at)
                batch.verify()
                self._check_batch(log, segment, batch)
            except UnsupportedFormat as error:
                raise UnsupportedFormat(segment.path, error.found) from None
            except BadBytes as error:
                scan.problem = str(error)
                scan.durable_end = max(
                    scan.durable_end, durable_claim(file, segment.position, size, segment.header.segment_uid)
                )
                return
            header = batch.header
            if header.kind == KIND_STATE:
                log.state.restore(batch.buffer)
                segment.crc_of_crcs = add_header_crc(0, batch.buffer)
                segment.position += header.total_bytes
                continue
            scan.durable_end = max(scan.durable_end, header.durable_end)
            segment.note_scanned(batch)
            log.state.note_batch(batch)
            if batch.end_offset > self._row_end:
                if header.compatible & COMPATIBLE_PREWRITTEN:
                    self.report.prewritten.append((batch.first_offset, batch.end_offset))
                else:
                    self.report.plain_end = batch.end_offset

    @staticmethod
    def _window(file: File, view: memoryview, base: int, position: int, size: int) -> tuple[memoryview, int]:
        """A part of the file that has the whole batch at *position*, as far as the file has it; and where that part begins."""
        at, left = position - base, size - position
        if len(view) - at < min(left, HEADER_BYTES_MAX):
            view, base, at = memoryview(file.pread(min(left, _WINDOW_BYTES), position)), position, 0
        if len(view) - at == left:
            return view, base
        header = _header_at(view, at)
        if header is not None and header.total_bytes > len(view) - at:
            # Its checksum is right, so it is as long as it says, and no longer than a batch may be.
            view, base = memoryview(file.pread(min(left, max(header.total_bytes, _WINDOW_BYTES)), position)), position
        return view, base

    def _check_batch(self, log: PartitionLog, segment: Segment, batch: Batch) -> None:
        header = batch.header
        if header.segment_uid != segment.header.segment_uid:
            raise BadBytes("batch", "belongs to another segment")
        if header.kind == KIND_STATE:
            if segment.position != SEGMENT_HEADER_BYTES:
                raise BadBytes("state batch", "is not at the start of its segment")
            return
        if segment.position == SEGMENT_HEADER_BYTES:
            raise BadBytes("segment", "does not begin with a state batch")
        rewritten = segment.header.generation > 0
        if header.first_offset < segment.end_offset or (header.first_offset > segment.end_offset and not rewritten):
            raise BadBytes("batch", f"has offset {header.first_offset} where {segment.end_offset} is next")
        if log.state.epochs and header.log_epoch < log.state.epochs[-1].epoch:
            raise BadBytes("batch", f"is of log epoch {header.log_epoch} behind one of {log.state.epochs[-1].epoch}")

    def _take_footer(self, scan: _Scan, view: memoryview, at: int, size: int) -> str | None:
        segment = scan.segment
        try:
            footer = Footer.decode(view[at:])
        except BadBytes as error:
            return str(error)
        ours = segment.footer()
        # An index cache does not know these two.
        comparable = ours._replace(messages=footer.messages, min_time_us=footer.min_time_us, end_offset=footer.end_offset)
        if comparable != footer or footer.end_offset < segment.end_offset:
            return "the footer does not fit the batches before it"
        segment.messages, segment.min_time_us, segment.end_offset = footer.messages, footer.min_time_us, footer.end_offset
        scan.footer = True
        if size > segment.position + FOOTER_BYTES:
            return f"{size - segment.position - FOOTER_BYTES} bytes lie behind the footer"
        return None

    # -- joining and cutting ----------------------------------------------------------------------------------------

    def _join(self, scan: _Scan, kept: list[Segment], following: int | None) -> str | None:
        """Put the segment behind those kept; say what is wrong if the log must end in it."""
        segment = scan.segment
        self._floor = max(self._floor, scan.durable_end)
        expected = kept[-1].end_offset if kept else segment.first_offset
        if segment.first_offset != expected:
            return f"the segment before it ends at {expected}"
        kept.append(segment)
        if scan.problem is not None:
            return scan.problem
        if scan.footer:
            segment.sealed = True
        if following is None:
            return None
        if following != segment.end_offset:
            return f"the next segment begins at {following}"
        return None

    def _cut(self, scan: _Scan, kept: list[Segment], firsts: list[int], problem: str) -> None:
        """End the log in this segment, if nothing that was durable is lost by it; else raise `DamagedFile`."""
        segment = scan.segment
        in_log = bool(kept) and kept[-1] is segment
        offset = segment.end_offset if in_log else (kept[-1].end_offset if kept else segment.first_offset)
        later = firsts[1:] if in_log else firsts
        for first in later:
            self._floor = max(self._floor, self._claim_of(first))
        position = segment.position if in_log else 0
        durable = self._durable_position(segment.first_offset)
        if scan.footer and scan.problem is not None and in_log and not later:
            # Only bytes behind a good footer.
            self._truncate(segment, segment.position + FOOTER_BYTES)
            segment.sealed = True
            return
        if offset < self._floor or position < durable:
            raise DamagedFile(segment.path, position, offset, problem)
        for first in reversed(later):
            self._remove(first)
            self.report.removed_segments += 1
        if not in_log:
            segment.close()
        elif segment.position <= SEGMENT_HEADER_BYTES:
            # Not even the state batch is whole: the file was being made.
            kept.pop()
            segment.close()
            self._remove(segment.first_offset)
            self.report.removed_segments += 1
        elif scan.footer:
            segment.sealed = True
        else:
            self._truncate(segment, segment.position)
        self._files.sync_directory(self._directory)

    def _truncate(self, segment: Segment, size: int) -> None:
        assert segment.file is not None
        drop_index(self._files, segment)
        self.report.cut_bytes += segment.file.size() - size
        segment.file.truncate(size)
        segment.file.sync_data()

    def _claim_of(self, first: int) -> int:
        """The highest durable end that any valid batch of a later segment names."""
        file = self._files.open(os.path.join(self._directory, segment_name(first)))
        try:
            header = SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
            return durable_claim(file, SEGMENT_HEADER_BYTES, file.size(), header.segment_uid)
        except (BadBytes, UnsupportedFormat):
            return 0
        finally:
            file.close()

    def _secure(self, kept: list[Segment]) -> None:
        """Write what is kept behind the checkpoint once more and sync it, so that what is served is what the disk has."""
        changed = self._row is None
        for segment in kept:
            file = segment.file
            assert file is not None
            start = self._durable_position(segment.first_offset)
            if segment is not kept[-1] and not segment.sealed:
                segment.seal()
            end = segment.position + (FOOTER_BYTES if segment.sealed else 0)
            if start >= end:
                segment.synced_position = end
                continue
            changed = True
            for position in range(start, end, _REWRITE_BYTES):
                write_fully(file, file.pread(min(_REWRITE_BYTES, end - position), position), position)
            segment.sync()
        if changed:
            self._files.sync_directory(self._directory)


def cut_log(log: PartitionLog, offset: int) -> None:
    """
    Remove everything at and behind *offset*, a batch boundary, from the files of a log that recovery has just read.

    The caller runs recovery once more afterwards. A crash in between leaves a state that is cut again. A segment that begins at *offset*
    stays, with no messages: the checkpoint may name it. So no segment before the checkpoint's is touched: those are open for reading only.
    """
    files = log._files  # noqa: SLF001
    for first in reversed(log.segment_firsts):
        segment = log.segment(first)
        if first > offset and first != log.segment_firsts[0]:
            segment.delete()
            files.sync_directory(log.directory)
            continue
        position = segment.find(offset) if offset < segment.end_offset else segment.position
        drop_index(files, segment)
        file = segment.file
        assert file is not None
        file.truncate(position)
        file.sync_data()
        break


def drop_index(files: FileSystem, segment: Segment) -> None:
    """Remove the cached index of a segment that is about to be cut: it may point behind the cut, where others will write."""
    if files.exists(segment.index_path):
        files.unlink(segment.index_path)
        files.sync_directory(segment.directory)


def is_whole_header(data: bytes) -> bool:
    """Whether these bytes are an undamaged segment header, so that a mismatch is a misplaced file and not a torn one."""
    try:
        SegmentHeader.decode(data)
    except BadBytes:
        return False
    except UnsupportedFormat:
        return True
    return True


def durable_claim(file: File, start: int, end: int, segment_uid: int) -> int:
    """The highest `durable_end` in any valid batch header of this segment at or behind *start*; 0 if there is none."""
    highest = 0
    for position in range(start, end, _WINDOW_BYTES):
        # A header that begins in one part may end in the next.
        content = file.pread(min(_WINDOW_BYTES + HEADER_BYTES_MAX, end - position), position)
        at = content.find(MAGIC)
        while 0 <= at < _WINDOW_BYTES:
            header = _header_at(memoryview(content), at)
            if header is not None and header.segment_uid == segment_uid and header.kind == KIND_DATA:
                highest = max(highest, header.durable_end)
            at = content.find(MAGIC, at + 1)
    return highest


def _header_at(view: memoryview, at: int) -> BatchHeader | None:
    try:
        return parse_header(view, at)
    except (BadBytes, UnsupportedFormat):
        return None
