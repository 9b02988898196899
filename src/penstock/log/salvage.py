"""
Reading a segment that may be damaged: every good batch, and every range that is not good.

Recovery trusts a log up to its first bad byte; this module goes on behind it. `verify` uses it to tell the extent of damage that a
reader met, `repair` to save what is left.

A file is read piece by piece (`FilePieces`) and each batch is forgotten, so it takes as much memory as the largest batch, however large a
segment is. It is not mapped: where a disk cannot be read, that would kill the process instead of telling it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch import Batch
from penstock.format.batch_header import HEADER_BYTES_MAX, KIND_DATA, KIND_STATE, MAGIC, parse_header
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, Footer, SegmentHeader, add_header_crc
from penstock.log.segment import is_footer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import File
    from penstock.log.identity import LogIdentity

PIECE_BYTES = 1 << 20
"""So much of a file is read at once; more if a batch is larger."""


class BadRange(NamedTuple):
    """Bytes [start, end) of a file that are not what they should be."""

    start: int
    end: int
    offset: int | None
    reason: str


class Salvage(NamedTuple):
    """What could be read of a segment."""

    header: SegmentHeader | None
    state: Batch | None
    batches: list[Batch]
    footer: Footer | None
    bad: list[BadRange]
    end_offset: int


class Pieces(Protocol):
    """The bytes of a segment."""

    size: int

    def read(self, position: int, length: int) -> memoryview:
        """Bytes [position, position + length), fewer where the file ends."""
        ...


class BytesPieces:
    """Of one that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self.size = len(data)

    def read(self, position: int, length: int) -> memoryview:
        """See `Pieces`."""
        return self._view[position : position + length]


class FilePieces:
    """Of one on the disk, of which a piece is in memory. What is added to the file meanwhile is not seen."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._piece = memoryview(b"")
        self.size = file.size()

    def read(self, position: int, length: int) -> memoryview:
        """See `Pieces`. Raises `OSError`."""
        length = max(0, min(length, self.size - position))
        if not length:
            return memoryview(b"")
        at = position - self._start
        if at < 0 or at + length > len(self._piece):
            wanted = min(max(length, PIECE_BYTES), self.size - position)
            self._piece = memoryview(b"")  # before the next one is there, not with it
            self._piece = memoryview(self._file.pread(wanted, position))
            self._start, at = position, 0
        return self._piece[at : at + length]


class Walk:
    """
    Reads one segment, once: batch after batch to *keep*, which may be None, and then what is told of it as a whole.

    A batch counts as good if all its checksums match, it carries the segment's uid (or, where the segment's header is
    unreadable, the uid of the first good batch), and its offset goes on from those before it.
    """

    def __init__(self, pieces: Pieces, first_offset: int, identity: LogIdentity) -> None:
        self._pieces = pieces
        self.bad: list[BadRange] = []
        self.header = _header(pieces, first_offset, identity, self.bad)
        self.footer: Footer | None = None
        self.state: Batch | None = None
        self.batches = 0
        self.messages = 0
        self.end_offset = first_offset
        self._crcs = 0
        self.position = SEGMENT_HEADER_BYTES
        """Where its footer lies, or the next batch would."""

    def run(self, stop_offset: int, *, sealed: bool, keep: Callable[[Batch, int], None] | None = None) -> None:
        """
        Go up to *stop_offset* (the committed end: what lies behind is nobody's business); *keep* gets each good batch and its position.

        With *sealed*, because another segment follows, a footer must be there.
        """
        pieces, bad = self._pieces, self.bad
        uid = None if self.header is None else self.header.segment_uid
        rewritten = self.header is not None and self.header.generation > 0
        position = SEGMENT_HEADER_BYTES
        while position < pieces.size and self.end_offset < stop_offset:
            if position + FOOTER_BYTES == pieces.size and _is_footer(pieces, position):
                self._read_footer(position)
                break
            batch, reason = _batch(pieces, position, uid)
            if batch is not None and batch.header.kind == KIND_DATA:
                gap = batch.first_offset - self.end_offset
                if gap < 0 or (gap > 0 and not rewritten and not bad):
                    batch, reason = None, f"offset {self.end_offset + gap} where {self.end_offset} is next"
            if batch is None:
                following = _next_good(pieces, position, uid, self.end_offset)
                bad.append(BadRange(position, following, self.end_offset, reason))
                position = following
                continue
            uid = batch.header.segment_uid
            self._crcs = add_header_crc(0 if batch.header.kind == KIND_STATE else self._crcs, batch.buffer)
            position += batch.header.total_bytes
            if batch.header.kind == KIND_STATE:
                self.state = batch
            else:
                self.batches += 1
                self.messages += batch.header.count
                self.end_offset = batch.end_offset
                if keep is not None:
                    keep(batch, position - batch.header.total_bytes)
        self.position = position
        if self.footer is None and (sealed or (position + FOOTER_BYTES == pieces.size and _is_footer(pieces, position))):
            self._read_footer(position)
        if self.footer is not None:
            self.end_offset = max(self.end_offset, self.footer.end_offset)

    def _read_footer(self, position: int) -> None:
        bad, size = self.bad, self._pieces.size
        try:
            self.footer = footer = Footer.decode(self._pieces.read(position, FOOTER_BYTES))
        except BadBytes as error:
            bad.append(BadRange(position, size, None, str(error)))
            return
        if not bad and (footer.batches != self.batches or footer.crc_of_crcs != self._crcs):
            bad.append(BadRange(position, size, None, "the footer does not fit the batches before it"))


def salvage(data: bytes, first_offset: int, identity: LogIdentity, stop_offset: int, *, sealed: bool = False) -> Salvage:
    """What a `Walk` over the segment in *data* finds, with all good batches."""
    batches: list[Batch] = []
    walk = Walk(BytesPieces(data), first_offset, identity)
    walk.run(stop_offset, sealed=sealed, keep=lambda batch, _: batches.append(batch))
    return Salvage(walk.header, walk.state, batches, walk.footer, walk.bad, walk.end_offset)


def _header(pieces: Pieces, first_offset: int, identity: LogIdentity, bad: list[BadRange]) -> SegmentHeader | None:
    try:
        header = SegmentHeader.decode(pieces.read(0, SEGMENT_HEADER_BYTES))
    except (BadBytes, UnsupportedFormat) as error:
        bad.append(BadRange(0, SEGMENT_HEADER_BYTES, None, str(error)))
        return None
    if (header.topic_id, header.partition, header.first_offset) != (identity.topic_id, identity.partition, first_offset):
        bad.append(BadRange(0, pieces.size, None, "this file belongs to another topic, partition or offset"))
        return None
    return header


def _is_footer(pieces: Pieces, position: int) -> bool:
    return is_footer(pieces.read(position, FOOTER_BYTES), 0)


def _batch(pieces: Pieces, position: int, uid: int | None) -> tuple[Batch | None, str]:
    try:
        # The header first: it says how much there is to read, and its checksum that this is true.
        header = parse_header(pieces.read(position, HEADER_BYTES_MAX))
        left = pieces.size - position
        if header.total_bytes > left:
            raise BadBytes("batch", f"needs {header.total_bytes} bytes, {left} are left")
        batch = Batch(pieces.read(position, header.total_bytes), 0, header)
        batch.verify()
    except (BadBytes, UnsupportedFormat) as error:
        return None, str(error)
    if uid is not None and batch.header.segment_uid != uid:
        return None, "the batch belongs to another segment"
    return batch, ""


def _next_good(pieces: Pieces, position: int, uid: int | None, end: int) -> int:
    """The position of the next batch that can be used, or where the file or its footer begins to end."""
    start = position + 1
    while start < pieces.size:
        # Of each piece the end again with the next one: a word may lie across.
        piece = bytes(pieces.read(start, PIECE_BYTES))
        at = piece.find(MAGIC)
        while at >= 0:
            batch, _ = _batch(pieces, start + at, uid)
            if batch is not None and (batch.header.kind == KIND_STATE or batch.first_offset >= end):
                return start + at
            at = piece.find(MAGIC, at + 1)
        start += max(1, len(piece) - len(MAGIC) + 1)
    tail = pieces.size - FOOTER_BYTES
    return tail if tail > position and _is_footer(pieces, tail) else pieces.size
