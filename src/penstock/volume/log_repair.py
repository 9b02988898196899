"""
One log whose files do not hold what was committed: what is left of it, put together so that recovery takes it.

Every batch that can be read is kept, from the log's own files and from the journal. A segment that is damaged is written anew,
with its good batches, under the next generation; one that is missing becomes one with what the journal has of it, or an empty one. Offsets
that are lost stay a gap, which readers pass over, and are never given to other messages. What is in order is not touched.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.files import NotRegular
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import COMPATIBLE_PREWRITTEN, BatchHeader
from penstock.format.checkpoint import LogRow
from penstock.format.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from penstock.log.log_state import LogState
from penstock.log.salvage import FilePieces, Walk
from penstock.log.segment import Segment, index_path, parse_segment_name, segment_name
from penstock.values import SyncMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.clock import Clock
    from penstock.files import FileSystem
    from penstock.log.identity import LogIdentity
    from penstock.settings import TopicSettings

_END = (1 << 63) - 1
GAP_MAX = 1 << 32
"""A committed end that lies so far behind all that is found is no end but a damaged number."""


class Lost(NamedTuple):
    """What was given up in one place."""

    path: str
    first_offset: int | None
    end_offset: int | None
    reason: str


@dataclass(slots=True)
class Evidence:
    """What is known of a log besides its own files."""

    row: LogRow | None = None
    log_start: int = 0
    known_end: int = 0
    """The committed end in the positions file, if that counts."""
    references: list[tuple[int, int]] = field(default_factory=list)
    batches: list[tuple[Batch, bool]] = field(default_factory=list)
    """Those that the journal has, and whether opening redoes them: those of frames behind the checkpoint."""


class _Piece(NamedTuple):
    """A good batch, in a segment at a position, or in the journal."""

    first_offset: int
    end_offset: int
    header: BatchHeader
    segment: int | None
    position: int
    batch: Batch | None
    is_redone: bool = False


@dataclass(slots=True)
class _Found:
    """A segment's file."""

    first: int
    walk: Walk
    is_good: bool
    state: bytes | None


class LogRepair:
    """Repairs the files of one log. Used once."""

    def __init__(
        self, files: FileSystem, directory: str, identity: LogIdentity, settings: TopicSettings, evidence: Evidence, clock: Clock,
        set_aside: Callable[..., None],
    ) -> None:  # fmt: skip
        """*set_aside* is called with the path of each file that is to be changed, and ``moved=True`` of one that is to go."""
        self._files = files
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._evidence = evidence
        self._clock = clock
        self._set_aside = set_aside
        self._log_start = 0
        self._firsts: list[int] = []
        self._found: dict[int, _Found] = {}
        self._pieces: list[_Piece] = []
        self.lost: list[Lost] = []
        self.log_epoch = 0
        self.journal_lacks_frames = False
        """Whether the log has batches that a frame must have committed, and there is none."""
        self.is_known_end_wrong = False
        """Whether the end in the positions file cannot be true."""

    def look(self) -> int:
        """Find out what is there, and where the log would end; changes nothing but that what is no segment of the log is moved away."""
        evidence = self._evidence
        if not self._files.exists(self._directory):
            self._files.make_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))
        self._log_start = max(evidence.log_start, 0 if evidence.row is None else evidence.row.log_start)
        self._firsts = self._segments(self._log_start)
        if self._firsts and evidence.row is None:
            # No checkpoint knows where it begins: with its first file, or with what the journal has of files that are gone.
            self._log_start = max(
                self._log_start, min([self._firsts[0], *[batch.first_offset for batch, _ in evidence.batches]])
            )
        for first in self._firsts:
            self._walk(first, last=first == self._firsts[-1])
        for batch, is_redone in evidence.batches:
            self._pieces.append(_Piece(batch.first_offset, batch.end_offset, batch.header, None, 0, batch, is_redone))
        self._pieces.sort(key=lambda piece: (piece.first_offset, piece.segment is None))
        return self._choose(self._log_start, keeps_uncommitted=False)[0]

    def run(self, *, keeps_uncommitted: bool = False) -> LogRow:
        """
        Repair, and return what a checkpoint says of the log from now on. `look` came before.

        *keeps_uncommitted*: batches that were written ahead of a frame stay though none is there. Frames are lost, and one may have been
        theirs.
        """
        evidence, log_start, firsts = self._evidence, self._log_start, self._firsts
        end, self._pieces = self._choose(log_start, keeps_uncommitted=keeps_uncommitted)
        # A segment behind all that was committed, without a message.
        while firsts and firsts[-1] >= end and not (firsts[-1] == end and self._found[firsts[-1]].is_good):
            self._remove(firsts.pop())
        starts = self._with_missing(firsts, end)
        if end > log_start and (not starts or starts[0] > log_start):
            starts.insert(0, log_start)
        if not starts:
            return self._without_messages(end, log_start)
        row = LogRow(self._identity.log_id, end, log_start, end, 0, 0 if evidence.row is None else evidence.row.max_time_us)
        for at, first in enumerate(starts):
            stop = starts[at + 1] if at + 1 < len(starts) else end
            row = self._segment(first, stop, row, last=at + 1 == len(starts))
        return row

    # -- what is there ----------------------------------------------------------------------------------------------

    def _segments(self, log_start: int) -> list[int]:
        firsts = []
        for name in self._files.list_directory(self._directory):
            first = parse_segment_name(name)
            if first is None:
                continue
            path = os.path.join(self._directory, name)
            try:
                file = self._files.open(path)
            except NotRegular:
                self._set_aside(path, moved=True)
                self.lost.append(Lost(path, first, None, "this was no regular file"))
                continue
            try:
                header: SegmentHeader | None = SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
            except BadBytes:
                header = None
            except UnsupportedFormat as error:
                raise UnsupportedFormat(path, error.found) from None
            finally:
                file.close()
            identity = self._identity
            if header is not None and (header.store_id, header.topic_id, header.partition, header.first_offset) != (
                identity.store_id, identity.topic_id, identity.partition, first,
            ):  # fmt: skip
                if (header.store_id, header.topic_id, header.partition) == identity[:2] + identity[3:4]:
                    self._use_copy(path, header.first_offset)
                self._set_aside(path, moved=True)
                self.lost.append(Lost(path, None, None, "the file belongs to another store, topic, partition or offset"))
                continue
            firsts.append(first)
        firsts.sort()
        while len(firsts) > 1 and firsts[1] <= log_start:
            firsts.pop(0)
        return firsts

    def _use_copy(self, path: str, first: int) -> None:
        """A copy of a segment of this log under another name: it may have what the segment has lost."""

        def keep(batch: Batch, _: int) -> None:
            whole = Batch(bytes(batch.buffer))
            self._pieces.append(_Piece(batch.first_offset, batch.end_offset, batch.header, None, 0, whole))

        file = self._files.open(path)
        try:
            Walk(FilePieces(file), first, self._identity).run(_END, sealed=False, keep=keep)
        finally:
            file.close()

    def _walk(self, first: int, *, last: bool) -> None:
        path = os.path.join(self._directory, segment_name(first))
        file = self._files.open(path)
        try:
            file.drop_cache()
            size = file.size()
            walk = Walk(FilePieces(file), first, self._identity)

            def keep(batch: Batch, position: int) -> None:
                self._pieces.append(_Piece(batch.first_offset, batch.end_offset, batch.header, first, position, None))

            walk.run(_END, sealed=not last, keep=keep)
        finally:
            file.close()
        footer = walk.footer
        sealed_well = footer is not None and footer.data_end == walk.position and size == walk.position + len(footer.encode())
        is_good = not walk.bad and walk.header is not None and walk.state is not None
        is_good = is_good and (sealed_well if footer is not None or not last else size == walk.position)
        state = None if walk.state is None else bytes(walk.state.buffer)
        walk.state = None  # it holds a piece of the file
        self._found[first] = _Found(first, walk, is_good, state)
        self.log_epoch = max(self.log_epoch, 0 if walk.header is None else walk.header.log_epoch)

    def _choose(self, log_start: int, *, keeps_uncommitted: bool) -> tuple[int, list[_Piece]]:
        """Where the log is to end, and of all batches those to keep, in order and without overlap."""
        evidence = self._evidence
        row_end = 0 if evidence.row is None else evidence.row.end
        kept: list[_Piece] = []
        for piece in self._pieces:
            if piece.end_offset > log_start and (not kept or piece.first_offset >= kept[-1].end_offset):
                kept.append(piece)
        committed = max([log_start, row_end, *[end for _, end in evidence.references]])
        found_end = kept[-1].end_offset if kept else committed
        if 0 <= evidence.known_end - max(found_end, committed) > GAP_MAX:
            self.is_known_end_wrong = True
        else:
            committed = max(committed, evidence.known_end)
        if evidence.row is not None and not keeps_uncommitted:
            while kept and kept[-1].first_offset >= committed and self._is_uncommitted(kept[-1]):
                kept.pop()
        framed = max([committed, *[piece.end_offset for piece in kept if piece.segment is None]])
        self.journal_lacks_frames = self._settings.sync is SyncMode.ALWAYS and bool(kept) and kept[-1].end_offset > framed
        self.log_epoch = max([self.log_epoch, *[piece.header.log_epoch for piece in kept]])
        return max([committed, *[piece.end_offset for piece in kept[-1:]]]), kept

    @staticmethod
    def _is_uncommitted(piece: _Piece) -> bool:
        """Whether it was written ahead of a frame that never came."""
        return piece.segment is not None and bool(piece.header.compatible & COMPATIBLE_PREWRITTEN)

    def _with_missing(self, firsts: list[int], end: int) -> list[int]:
        """Where segments are to begin: also where one that is in order ends, and the next one is missing."""
        starts = []
        for first, following in zip(firsts, [*firsts[1:], end], strict=False):
            starts.append(first)
            found = self._found[first]
            if found.is_good and found.walk.footer is not None and first < found.walk.end_offset < following:
                starts.append(found.walk.end_offset)
        return starts

    # -- putting it together ----------------------------------------------------------------------------------------

    def _without_messages(self, end: int, log_start: int) -> LogRow:
        """No segment is left, and none is needed, but to say where the log goes on."""
        row = LogRow(self._identity.log_id, end, log_start, end, 0, 0)
        return self._rewrite(end, end, [], row, None) if end else row

    def _segment(self, first: int, stop: int, before: LogRow, *, last: bool) -> LogRow:
        found = self._found.get(first)
        pieces = [piece for piece in self._pieces if first <= piece.first_offset < stop]
        path = os.path.join(self._directory, segment_name(first))
        if found is not None and found.is_good and self._is_as_it_should_be(found, pieces, stop, last=last):
            self._sync(path)
            own = [piece for piece in pieces if piece.segment == first]
            time_us = max([before.max_time_us, *[piece.header.max_time_us for piece in own[-1:]]])
            # What the journal has behind it is redone.
            return LogRow(self._identity.log_id, found.walk.end_offset, before.log_start, first, found.walk.position, time_us)
        if found is None:
            if not pieces or pieces[0].first_offset > first or pieces[-1].end_offset < stop:
                self.lost.append(Lost(path, first, stop, "the segment was missing"))
        else:
            self._set_aside(path)
            self._report(found, path, pieces, stop)
        old = None if found is None else found.walk.header
        # What it holds that belongs in a later segment, before it is written over.
        self._pieces = [
            piece._replace(batch=self._batch(piece)) if piece.segment == first and piece.first_offset >= stop else piece
            for piece in self._pieces
        ]
        return self._rewrite(first, stop, pieces, before, old)

    def _state(self, first: int) -> LogState:
        """What the log remembered where this segment begins: as it says itself, or else by what lies before it."""
        state = LogState()
        since = first
        for found in sorted(self._found.values(), key=lambda found: -found.first):
            if found.first <= first and found.state is not None:
                state.restore(found.state)
                since = found.first
                break
        for piece in self._pieces:
            if since <= piece.first_offset < first:
                state.note_batch(self._batch(piece))
        return state

    @staticmethod
    def _is_as_it_should_be(found: _Found, pieces: list[_Piece], stop: int, *, last: bool) -> bool:
        if not last:
            return found.walk.footer is not None and found.walk.end_offset == stop
        at = found.walk.end_offset
        if found.walk.footer is not None and at > stop:
            return False
        for piece in pieces:
            if piece.segment is None and piece.end_offset > at:
                if piece.first_offset != at or not piece.is_redone:
                    return False
                at = piece.end_offset
        return at == stop

    def _report(self, found: _Found, path: str, pieces: list[_Piece], stop: int) -> None:
        for bad in found.walk.bad:
            self.lost.append(Lost(path, bad.offset, None, f"bytes [{bad.start}, {bad.end}): {bad.reason}"))
        end = pieces[-1].end_offset if pieces else found.first
        if end < stop:
            self.lost.append(Lost(path, end, stop, "the segment ends too early"))
        elif not found.walk.bad:
            self.lost.append(Lost(path, None, None, "the segment's end was not in order; no message is lost"))

    def _rewrite(self, first: int, end: int, pieces: list[_Piece], before: LogRow, old: SegmentHeader | None) -> LogRow:
        """Write what was saved as a segment of a higher generation for [first, end); sealed, unless it is empty and takes what comes."""
        identity, path = self._identity, os.path.join(self._directory, segment_name(first))
        header = SegmentHeader(
            identity.store_id, identity.topic_id, identity.partition, 1 if old is None else old.generation + 1, first,
            secrets.randbits(64), self.log_epoch if old is None else old.log_epoch, self._clock.now_us(),
            before.max_time_us if old is None else old.base_time_us,
        )  # fmt: skip
        temporary = path + ".tmp"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        segment = Segment.create(
            self._files, temporary, header, self._state(first).encode(), self._settings.index_interval_bytes
        )
        written: dict[int, _Piece] = {}
        for piece in pieces:
            batch = self._batch(piece)
            one = batch.header
            written[piece.first_offset] = piece._replace(segment=first, position=segment.position, batch=None)
            copy = EncodedBatch(bytearray(batch.buffer), one.header_bytes, one.count, one.offset_span)
            copy.stamp(one.first_offset, one.append_time_us, one.max_time_us, header.segment_uid, 0, one.log_epoch)
            segment.write([copy], [(one.first_offset, one.append_time_us, one.max_time_us)])
        if end > first:
            segment.seal(end)
        segment.sync()
        segment.close()
        self._files.rename(temporary, path)
        self._pieces = [written.get(piece.first_offset, piece) for piece in self._pieces]
        self._drop_index(path)
        self._files.sync_directory(self._directory)
        time_us = max(before.max_time_us, segment.max_time_us)
        return LogRow(identity.log_id, end, before.log_start, first, segment.position, time_us)

    def _batch(self, piece: _Piece) -> Batch:
        if piece.batch is not None:
            return piece.batch
        assert piece.segment is not None
        path = os.path.join(self._directory, segment_name(piece.segment))
        file = self._files.open(path)
        try:
            return Batch(memoryview(file.pread(piece.header.total_bytes, piece.position)))
        finally:
            file.close()

    def _sync(self, path: str) -> None:
        """The checkpoint will say that it is durable."""
        file = self._files.open(path, write=True)
        try:
            file.sync_data()
        finally:
            file.close()

    def _remove(self, first: int) -> None:
        path = os.path.join(self._directory, segment_name(first))
        self._set_aside(path, moved=True)
        self._drop_index(path)
        self._files.sync_directory(self._directory)
        self.lost.append(Lost(path, None, None, "a segment without a message lay behind the end of the log"))

    def _drop_index(self, path: str) -> None:
        if self._files.exists(index_path(path)):
            self._files.unlink(index_path(path))
