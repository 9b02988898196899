"""
Journal files and their frames: one frame is one commit.

```
file header, 64 bytes                             frame header, 40 bytes, then entries, padded to a multiple of 8
 byte  size  field                                 byte  size  field
    0     8  magic        "PNSTKJNL"                  0     4  magic        "PSF1"; 0 here = end of the journal
    8     4  crc          of bytes [12, 64)           4     4  crc          of bytes [8, frame_bytes)
   12     4  version      1                           8     4  frame_bytes  with header and padding
   16    16  store id                                12     4  entries
   32     8  sequence     1, 2, 3, ... as in its name   16     8  number       +1 with every frame of the store, from 1
   40     8  file uid     random per use of the file    24     8  file uid     that of the file it lies in
   48     8  first number of the first frame in it      32     8  time_us
   56     8  reserved     0

entry: kind u8, 0 u8, 0 u16, length u32, then the body, padded to a multiple of 8
  1 batch       log id u32, 0 u32, then the whole batch as it was appended
  2 reference   log id u32, count u32, first_offset u64, offset_span u64, segment_uid u64, position u64, total_bytes u64,
                header_crc u32, 0 u32: a batch that was written to its log, and synced there, before this frame
  3 log start   log id u32, 0 u32, offset u64: messages before it are removed
  4 other       owner u32, 0 u32, then bytes that belong to a layer above (groups, topics, transactions)
```

A frame is written only after the sync of the one before it returned. So only the last frame can be torn: a bad frame with a
valid later one behind it is damage. A recycled file still holds frames of its earlier use behind the end; their file uid tells.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.files import Buffer

JOURNAL_MAGIC = b"PNSTKJNL"
JOURNAL_VERSION = 1
JOURNAL_HEADER_BYTES = 64
FRAME_MAGIC = b"PSF1"
FRAME_HEADER_BYTES = 40

ENTRY_BATCH = 1
ENTRY_REFERENCE = 2
ENTRY_LOG_START = 3
ENTRY_OTHER = 4

_FILE = struct.Struct("<8sII16sQQQ8x")
_FRAME = struct.Struct("<4sIIIQQq")
_ENTRY = struct.Struct("<BBHIII")
_REFERENCE = struct.Struct("<QQQQQII")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_ZEROS = [bytes(count) for count in range(8)]
assert _FILE.size == JOURNAL_HEADER_BYTES
assert _FRAME.size == FRAME_HEADER_BYTES


class JournalFileHeader(NamedTuple):
    """What a journal file says of itself."""

    store_id: bytes
    sequence: int
    file_uid: int
    first_number: int

    def encode(self) -> bytes:
        """The 64 bytes at the start of the file."""
        data = bytearray(
            _FILE.pack(JOURNAL_MAGIC, 0, JOURNAL_VERSION, self.store_id, self.sequence, self.file_uid, self.first_number)
        )
        _U32.pack_into(data, 8, crc32c(memoryview(data)[12:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: Buffer) -> JournalFileHeader:
        """Read and check a header. Raises `BadBytes` or `UnsupportedFormat`."""
        if len(data) < JOURNAL_HEADER_BYTES:
            raise BadBytes("journal header", f"needs {JOURNAL_HEADER_BYTES} bytes, has {len(data)}")
        fields = _FILE.unpack_from(data)
        if fields[0] != JOURNAL_MAGIC:
            raise BadBytes("journal header", "this is not a journal file")
        if crc32c(memoryview(data)[12:JOURNAL_HEADER_BYTES]) != fields[1]:
            raise BadBytes("journal header", "checksum does not match")
        if fields[2] != JOURNAL_VERSION:
            raise UnsupportedFormat("the journal", f"version {fields[2]}")
        return cls(*fields[3:])


class Reference(NamedTuple):
    """Where a batch lies that was written to its log before the frame that commits it."""

    log_id: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    first_offset: int
    offset_span: int
    segment_uid: int
    position: int
    total_bytes: int
    header_crc: int


class FrameEntry(NamedTuple):
    """One entry of a frame: *owner* is the log id, or for other entries the layer that owns it."""

    kind: int
    owner: int
    body: memoryview


pack_entry = _ENTRY.pack
"""kind, 0, 0, bytes that follow, owner, count: for who packs many and cannot call a function for each."""


def batch_entry(log_id: int, data: bytearray) -> tuple[bytes, bytearray]:
    """A batch entry as two buffers, so that the batch is not copied; batches are multiples of 8 already."""
    return _ENTRY.pack(ENTRY_BATCH, 0, 0, 8 + len(data), log_id, 0), data


def reference_entry(reference: Reference) -> bytes:
    """A reference entry."""
    body = _REFERENCE.pack(*reference[2:8], 0)
    return _ENTRY.pack(ENTRY_REFERENCE, 0, 0, 8 + len(body), reference.log_id, reference.count) + body


def log_start_entry(log_id: int, offset: int) -> bytes:
    """A log start entry."""
    return _ENTRY.pack(ENTRY_LOG_START, 0, 0, 16, log_id, 0) + _U64.pack(offset)


def other_entry(owner: int, body: bytes) -> bytes:
    """An entry of a layer above."""
    return _ENTRY.pack(ENTRY_OTHER, 0, 0, 8 + len(body), owner, 0) + body + _ZEROS[-len(body) & 7]


def encode_frame(number: int, file_uid: int, time_us: int, entries: int, parts: list[Buffer]) -> bytearray:
    """A whole frame from its entries, given as buffers that follow each other."""
    data = bytearray().join([bytes(FRAME_HEADER_BYTES), *parts])
    assert not len(data) & 7
    _FRAME.pack_into(data, 0, FRAME_MAGIC, 0, len(data), entries, number, file_uid, time_us)
    _U32.pack_into(data, 4, crc32c(memoryview(data)[8:]))
    return data


class FrameHeader(NamedTuple):
    """The fields of a frame header that was checked together with its frame."""

    frame_bytes: int
    entries: int
    number: int
    file_uid: int
    time_us: int


def parse_frame(buffer: Buffer, position: int) -> FrameHeader:
    """Read and check the frame at *position*, with its CRC. Raises `BadBytes`."""
    available = len(buffer) - position
    if available < FRAME_HEADER_BYTES:
        raise BadBytes("journal frame", f"needs {FRAME_HEADER_BYTES} bytes, {available} are left")
    magic, crc, frame_bytes, entries, number, file_uid, time_us = _FRAME.unpack_from(buffer, position)
    if magic != FRAME_MAGIC:
        raise BadBytes("journal frame", "no frame begins here")
    if not FRAME_HEADER_BYTES <= frame_bytes <= available or frame_bytes & 7:
        raise BadBytes("journal frame", f"impossible length {frame_bytes}")
    if crc32c(memoryview(buffer)[position + 8 : position + frame_bytes]) != crc:
        raise BadBytes("journal frame", "checksum does not match")
    return FrameHeader(frame_bytes, entries, number, file_uid, time_us)


def frame_entries(buffer: Buffer, position: int, header: FrameHeader) -> Iterator[FrameEntry]:
    """The entries of a checked frame. Raises `BadBytes` if they do not fill it."""
    view = memoryview(buffer)
    at = position + FRAME_HEADER_BYTES
    end = position + header.frame_bytes
    for _ in range(header.entries):
        if end - at < _ENTRY.size:
            raise BadBytes("journal frame", "has fewer entries than it says")
        kind, _, _, length, owner, _ = _ENTRY.unpack_from(view, at)
        body_end = at + 8 + length
        if length < 8 or body_end > end:
            raise BadBytes("journal frame", f"an entry has the impossible length {length}")
        if kind == ENTRY_REFERENCE:
            # The count stands in the entry header, so the body begins there.
            yield FrameEntry(kind, owner, view[at + 12 : body_end])
        elif kind in (ENTRY_BATCH, ENTRY_LOG_START, ENTRY_OTHER):
            yield FrameEntry(kind, owner, view[at + 16 : body_end])
        else:
            raise UnsupportedFormat("a journal frame", f"entry kind {kind}")
        at = body_end + (-body_end & 7)
    if at != end:
        raise BadBytes("journal frame", "has more bytes than entries")


def decode_reference(entry: FrameEntry) -> Reference:
    """Read a reference entry. Raises `BadBytes`."""
    if len(entry.body) != 4 + _REFERENCE.size:
        raise BadBytes("journal reference", f"impossible length {len(entry.body)}")
    (count,) = _U32.unpack_from(entry.body)
    return Reference(entry.owner, count, *_REFERENCE.unpack_from(entry.body, 4)[:6])


def decode_log_start(entry: FrameEntry) -> int:
    """Read a log start entry. Raises `BadBytes`."""
    if len(entry.body) != _U64.size:
        raise BadBytes("journal log start", f"impossible length {len(entry.body)}")
    (offset,) = _U64.unpack(entry.body)
    return int(offset)
