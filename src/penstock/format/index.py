"""
The index file of a segment: a cache that is rebuilt whenever it is missing or in doubt.

```
header, 64 bytes                                   then entries, 24 bytes each, then the state batch of valid_position
 byte  size  field                                   offset u64, max_time_us i64, position u64: the batch at position is
    0     8  magic           "PNSTKIDX"              the first one after the interval before it; max_time_us is the
    8     4  crc             of bytes [12, end)      running maximum before that batch
   12     4  entries         how many
   16     8  segment_uid     which file it is for
   24     8  valid_position  it covers the batches before this position
   32     8  end_offset      the offset at that position
   40     8  max_time_us     the running maximum at that position
   48     4  state_bytes     length of the state batch at the end (0: none)
   52     4  batches         data batches before valid_position
   56     4  crc_of_crcs     as in the footer, up to valid_position
   60     4  reserved        0
```

The state at `valid_position` lets opening go on from there instead of reading the whole active segment.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from penstock.files import Buffer

INDEX_MAGIC = b"PNSTKIDX"
INDEX_HEADER_BYTES = 64
INDEX_ENTRY_BYTES = 24
_HEADER = struct.Struct("<8sIIQQQqIII4x")
assert _HEADER.size == INDEX_HEADER_BYTES


class IndexSnapshot(NamedTuple):
    """The contents of an index file."""

    segment_uid: int
    valid_position: int
    end_offset: int
    max_time_us: int
    batches: int
    crc_of_crcs: int
    offsets: array[int]
    times_us: array[int]
    positions: array[int]
    state: bytes

    def encode(self) -> bytes:
        """The whole file."""
        entries = array("q", bytes(INDEX_ENTRY_BYTES * len(self.offsets)))
        # Three strided copies instead of a loop over entries.
        entries[0::3], entries[1::3], entries[2::3] = self.offsets, self.times_us, self.positions
        head = _HEADER.pack(
            INDEX_MAGIC, 0, len(self.offsets), self.segment_uid, self.valid_position, self.end_offset, self.max_time_us,
            len(self.state), self.batches, self.crc_of_crcs,
        )  # fmt: skip
        data = bytearray().join([head, entries.tobytes(), self.state])
        struct.pack_into("<I", data, 8, crc32c(memoryview(data)[12:]))
        return bytes(data)

    @classmethod
    def decode(cls, data: Buffer) -> IndexSnapshot:
        """Read and check a whole file. Raises `BadBytes`."""
        if len(data) < INDEX_HEADER_BYTES:
            raise BadBytes("index", f"needs {INDEX_HEADER_BYTES} bytes, has {len(data)}")
        magic, crc, count, uid, valid, end, time_us, state_bytes, batches, crc_of_crcs = _HEADER.unpack_from(data)
        if magic != INDEX_MAGIC:
            raise BadBytes("index", "this is not an index file")
        entries_end = INDEX_HEADER_BYTES + count * INDEX_ENTRY_BYTES
        if entries_end + state_bytes != len(data):
            raise BadBytes("index", "its length does not fit its entries")
        if crc32c(memoryview(data)[12:]) != crc:
            raise BadBytes("index", "checksum does not match")
        entries = array("q")
        entries.frombytes(memoryview(data)[INDEX_HEADER_BYTES:entries_end])
        offsets, times_us, positions = entries[0::3], entries[1::3], entries[2::3]
        for numbers in (offsets.tolist(), positions.tolist()):
            # Sorting what is sorted is the fastest check there is.
            if sorted(numbers) != numbers or len(set(numbers)) != len(numbers):
                raise BadBytes("index", "its entries do not rise")
        if len(positions) and positions[-1] >= valid:
            raise BadBytes("index", "it points past what it covers")
        return cls(
            uid, valid, end, time_us, batches, crc_of_crcs, offsets, times_us, positions, bytes(memoryview(data)[entries_end:])
        )
