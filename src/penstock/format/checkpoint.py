"""
The checkpoint: which part of the store is durable outside the journal.

```
file `checkpoint-0` or `checkpoint-1`, written in turn by temp + sync + rename + sync of the folder
 byte  size  field
    0     8  magic             "PNSTKCKP"
    8     4  crc               of bytes [12, end)
   12     4  version           1
   16    16  store id
   32     8  generation        +1 with each checkpoint; the valid file with the higher one counts
   40     8  owner generation  +1 with each opening
   48     8  frame number      all frames up to this one are in the logs
   56     8  journal sequence  the journal file in which the next frame lies
   64     4  log epoch
   68     4  clean             1: the store was closed in order, and nothing came after
   72     4  next log id
   76     4  rows
   80     4  sections
   84     4  reserved          0
   88        rows, 48 bytes each: log id u32, 0 u32, end offset u64, log start u64, active segment's first offset u64,
             position in it u64, max_time_us i64
             sections: owner u32, 0 u32, length u64, then that many bytes, padded to a multiple of 8: the state of a layer
             above (groups, producers) after the frame of this checkpoint
```
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.files import Buffer

CHECKPOINT_MAGIC = b"PNSTKCKP"
CHECKPOINT_VERSION = 1
_HEADER = struct.Struct("<8sII16sQQQQIIIIII")
_ROW = struct.Struct("<IIQQQQq")
_SECTION = struct.Struct("<IIQ")
assert _HEADER.size == 88


class LogRow(NamedTuple):
    """One log in a checkpoint: all up to `end` is durable in its own files."""

    log_id: int
    end: int
    log_start: int
    segment_first: int
    position: int
    max_time_us: int


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file."""

    store_id: bytes
    generation: int
    owner_generation: int
    frame_number: int
    journal_sequence: int
    log_epoch: int
    clean: bool
    next_log_id: int
    rows: tuple[LogRow, ...]
    sections: tuple[tuple[int, bytes], ...] = ()
    """(owner, state) of the layers above."""

    def encode(self) -> bytes:
        """The whole file."""
        head = _HEADER.pack(
            CHECKPOINT_MAGIC, 0, CHECKPOINT_VERSION, self.store_id, self.generation, self.owner_generation, self.frame_number,
            self.journal_sequence, self.log_epoch, int(self.clean), self.next_log_id, len(self.rows), len(self.sections), 0,
        )  # fmt: skip
        parts = [head, *[_ROW.pack(row.log_id, 0, *row[1:]) for row in self.rows]]
        for owner, state in self.sections:
            parts += [_SECTION.pack(owner, 0, len(state)), state, bytes(-len(state) & 7)]
        data = bytearray().join(parts)
        struct.pack_into("<I", data, 8, crc32c(memoryview(data)[12:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: Buffer) -> Checkpoint:
        """Read and check a whole file. Raises `BadBytes` or `UnsupportedFormat`."""
        if len(data) < _HEADER.size:
            raise BadBytes("checkpoint", f"needs {_HEADER.size} bytes, has {len(data)}")
        fields = _HEADER.unpack_from(data)
        if fields[0] != CHECKPOINT_MAGIC:
            raise BadBytes("checkpoint", "this is not a checkpoint")
        rows_end = _HEADER.size + fields[11] * _ROW.size
        if len(data) < rows_end:
            raise BadBytes("checkpoint", "its length does not fit its rows")
        if crc32c(memoryview(data)[12:]) != fields[1]:
            raise BadBytes("checkpoint", "checksum does not match")
        if fields[2] != CHECKPOINT_VERSION:
            raise UnsupportedFormat("the checkpoint", f"version {fields[2]}")
        rows = tuple([LogRow(row[0], *row[2:]) for row in _ROW.iter_unpack(memoryview(data)[_HEADER.size : rows_end])])
        sections = tuple(_read_sections(memoryview(data)[rows_end:], fields[12]))
        return cls(
            fields[3], fields[4], fields[5], fields[6], fields[7], fields[8], bool(fields[9]), fields[10], rows, sections
        )  # fmt: skip


def _read_sections(data: memoryview, count: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(count):
        if len(data) - at < _SECTION.size:
            raise BadBytes("checkpoint", "has fewer sections than it says")
        owner, _, length = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if length > len(data) - at:
            raise BadBytes("checkpoint", f"a section has the impossible length {length}")
        yield owner, bytes(data[at : at + length])
        at += length + (-length & 7)
    if at != len(data):
        raise BadBytes("checkpoint", "its length does not fit its rows and sections")
