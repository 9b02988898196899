"""
The two ends of a segment file: the header at its start and the footer behind its last batch.

```
segment file: header (128 bytes), state batch, data batches ..., footer (96 bytes) once sealed

header, 128 bytes                               footer, 96 bytes
 byte  size  field                               byte  size  field
    0     8  magic          "PNSTKSEG"              0     4  magic          "PSEN"
    8     4  crc            of bytes [12, 128)      4     4  crc            of bytes [8, 96)
   12     2  version        1                       8     8  segment_uid
   14     2  header_bytes   128                    16     8  first_offset
   16     4  incompatible   unknown bit = refuse   24     8  end_offset
   20     4  compatible     unknown bit = keep     32     8  data_end       position of this footer
   24    16  store id                              40     8  max_time_us    of the last batch
   40    16  topic id                              48     8  messages
   56     4  partition                             56     4  batches        data batches
   60     4  generation     +1 at each rewriting   60     4  crc of crcs    CRC-32C over the header CRCs of all batches
   64     8  first_offset                          64     8  min_time_us    append time of the first batch
   72     8  segment_uid    random per file        72    24  reserved       0
   80     4  log_epoch      when it was begun
   84     4  reserved       0
   88     8  created_us
   96     8  base_time_us   max_time_us of the partition before this segment
  104     8  compacted_us   when compaction first left nothing to remove in it or before it, bit 1 of compatible
  112    16  reserved       0
```

A file that ends with a valid footer is sealed: it is never written again, so readers may map it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from penstock.files import Buffer

SEGMENT_MAGIC = b"PNSTKSEG"
SEGMENT_VERSION = 1
SEGMENT_HEADER_BYTES = 128
FOOTER_MAGIC = b"PSEN"
COMPATIBLE_COMPACTED = 1
"""The header says when the segment was compacted."""
FOOTER_BYTES = 96

_HEADER = struct.Struct("<8sIHHII16s16sIIQQIIqqq16x")
_FOOTER = struct.Struct("<4sIQQQQqQIIq24x")
_U32 = struct.Struct("<I")
assert _HEADER.size == SEGMENT_HEADER_BYTES
assert _FOOTER.size == FOOTER_BYTES


class SegmentHeader(NamedTuple):
    """What a segment file says of itself."""

    store_id: bytes
    topic_id: bytes
    partition: int
    generation: int
    first_offset: int
    segment_uid: int
    log_epoch: int
    created_us: int
    base_time_us: int
    compacted_us: int = 0
    """When compaction first had nothing left to remove in it and before it: from then on the grace of its tombstones runs; 0 = never."""

    def encode(self) -> bytes:
        """The 128 bytes at the start of the file."""
        data = bytearray(
            _HEADER.pack(
                SEGMENT_MAGIC, 0, SEGMENT_VERSION, SEGMENT_HEADER_BYTES, 0, COMPATIBLE_COMPACTED if self.compacted_us else 0,
                self.store_id, self.topic_id, self.partition, self.generation, self.first_offset, self.segment_uid, self.log_epoch, 0,
                self.created_us, self.base_time_us, self.compacted_us,
            )
        )  # fmt: skip
        _U32.pack_into(data, 8, crc32c(memoryview(data)[12:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: Buffer) -> SegmentHeader:
        """Read and check a header. Raises `BadBytes` or `UnsupportedFormat`."""
        if len(data) < SEGMENT_HEADER_BYTES:
            raise BadBytes("segment header", f"needs {SEGMENT_HEADER_BYTES} bytes, has {len(data)}")
        fields = _HEADER.unpack_from(data)
        if fields[0] != SEGMENT_MAGIC:
            raise BadBytes("segment header", "this is not a segment file")
        if crc32c(memoryview(data)[12:SEGMENT_HEADER_BYTES]) != fields[1]:
            raise BadBytes("segment header", "checksum does not match")
        if fields[2] != SEGMENT_VERSION or fields[3] != SEGMENT_HEADER_BYTES:
            raise UnsupportedFormat("a segment", f"version {fields[2]}")
        if fields[4]:
            raise UnsupportedFormat("a segment", f"flags {fields[4]:#x}")
        return cls._make((*fields[6:13], *fields[14:17]))


class Footer(NamedTuple):
    """What a sealed segment holds."""

    segment_uid: int
    first_offset: int
    end_offset: int
    data_end: int
    max_time_us: int
    messages: int
    batches: int
    crc_of_crcs: int
    min_time_us: int

    def encode(self) -> bytes:
        """The 96 bytes at the end of the file."""
        data = bytearray(_FOOTER.pack(FOOTER_MAGIC, 0, *self))
        _U32.pack_into(data, 4, crc32c(memoryview(data)[8:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: Buffer) -> Footer:
        """Read and check a footer. Raises `BadBytes`."""
        if len(data) < FOOTER_BYTES:
            raise BadBytes("segment footer", f"needs {FOOTER_BYTES} bytes, has {len(data)}")
        fields = _FOOTER.unpack_from(data)
        if fields[0] != FOOTER_MAGIC:
            raise BadBytes("segment footer", "no footer is here")
        if crc32c(memoryview(data)[8:FOOTER_BYTES]) != fields[1]:
            raise BadBytes("segment footer", "checksum does not match")
        return cls(*fields[2:])


def add_header_crc(crc_of_crcs: int, data: Buffer) -> int:
    """Carry the CRC over header CRCs on by the batch at the start of *data*."""
    return crc32c(memoryview(data)[4:8], crc_of_crcs)
