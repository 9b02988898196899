"""
The header of a batch: layout, checks, stamping.

Every batch on disk, in the journal and on the wire begins with it. Little-endian; a batch starts and ends on a multiple of
8 bytes.

```
 byte  size  field
    0     4  magic             "PSB1"
    4     4  header_crc        CRC-32C of bytes [8, header_bytes): all that follows, with extensions and directory
    8     4  header_bytes      where the body begins; a multiple of 8
   12     1  kind              1 data, 2 state
   13     1  columns           entries in the column directory
   14     2  incompatible      flags that a reader must know; an unknown one = refuse the batch
   16     4  compatible        flags that a reader may ignore; an unknown one = keep it
   20     4  count             messages in the batch
   24     8  total_bytes       header and body; a multiple of 8
   32     8  offset_span       offsets that the batch covers; more than count after compaction
   40     8  first_offset    \
   48     8  append_time_us   |
   56     8  max_time_us      |  stamped by the owner of the log when the batch is appended;
   64     8  segment_uid      |  an encoder leaves zeros
   72     8  durable_end      |
   80     4  log_epoch       /
   84     4  reserved          0
   88        extensions        those flagged in `incompatible`, in this order:
         24    producer        id u64, sequence u64, incarnation u32, 0 u32
         16    transaction     number u64, part u32, 0 u32
          8    schema          id u64
          8    encryption      key id u64 (reserved: no version writes it)
     columns*40  directory     one entry a column, see columns.py
```

- max_time_us is the running maximum of append_time_us in the partition, so it never goes back when the clock does; look-up
  by time and retention use it.
- durable_end says which offsets were known to be fsynced in the partition's own files when the batch was written. A bad batch
  below it is damage, never a torn tail.
- segment_uid is random per segment file, and log_epoch grows at each unclean opening: a payload that holds bytes of another
  batch, or a stale block of another file, does not pass as a batch of this segment.

How to change the format: a field that old readers may ignore takes a bit in `compatible`; one that they must not ignore takes a
bit in `incompatible` and an extension at the end of the list above; anything else takes a new magic and a new entry in
the required features of store.json. Add a golden file for what is new, and never change an old golden file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, BadColumn, UnsupportedFormat
from penstock.format.checksum import crc32c
from penstock.values import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX

if TYPE_CHECKING:
    from penstock.files import Buffer

MAGIC = b"PSB1"
KIND_DATA = 1
KIND_STATE = 2

FLAG_PRODUCER = 1
FLAG_TRANSACTION = 2
FLAG_SCHEMA = 4
FLAG_ENCRYPTION = 8
KNOWN_INCOMPATIBLE = FLAG_PRODUCER | FLAG_TRANSACTION | FLAG_SCHEMA

COMPATIBLE_PREWRITTEN = 1
"""The batch was written to its log before its journal frame; without that frame it was never committed."""

COMPATIBLE_APPEND_TIMES = 2
"""A merged batch whose time column holds the time of appending of each message, since no publisher gave one."""

FIXED_BYTES = 88
HEADER_BYTES_MAX = 4096
DIRECTORY_ENTRY_BYTES = 40

_FIXED = struct.Struct("<4sIIBBHIIQQQqqQQII")
_STAMP = struct.Struct("<QqqQQI")
_STAMP_AT = 40
_CRC_AT = 4
_COMPATIBLE_AT = 16
_U32 = struct.Struct("<I")
_PRODUCER = struct.Struct("<QQII")
_TRANSACTION = struct.Struct("<QII")
_U64 = struct.Struct("<Q")
_OFFSET_MAX = (1 << 63) - 1
_put_stamp = _STAMP.pack_into
_put_u32 = _U32.pack_into

assert _FIXED.size == FIXED_BYTES


class Producer(NamedTuple):
    """Who published a batch, and as which of its batches to this partition."""

    id: int
    incarnation: int
    sequence: int


class Transaction(NamedTuple):
    """The transaction that a batch belongs to."""

    number: int
    part: int


class BatchHeader(NamedTuple):
    """The fields of a header whose magic, CRC and lengths were checked."""

    header_bytes: int
    kind: int
    columns: int
    incompatible: int
    compatible: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    total_bytes: int
    offset_span: int
    first_offset: int
    append_time_us: int
    max_time_us: int
    segment_uid: int
    durable_end: int
    log_epoch: int

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.first_offset + self.offset_span


_new_header = BatchHeader._make


def build_header(
    *,
    kind: int,
    count: int,
    offset_span: int,
    body_bytes: int,
    directory: bytes,
    producer: Producer | None = None,
    transaction: Transaction | None = None,
    schema_id: int | None = None,
) -> bytes:
    """The header of a new batch, not stamped yet: its CRC is still 0."""
    incompatible = 0
    extensions = b""
    try:
        if producer is not None:
            incompatible |= FLAG_PRODUCER
            extensions += _PRODUCER.pack(producer.id, producer.sequence, producer.incarnation, 0)
        if transaction is not None:
            incompatible |= FLAG_TRANSACTION
            extensions += _TRANSACTION.pack(transaction.number, transaction.part, 0)
        if schema_id is not None:
            incompatible |= FLAG_SCHEMA
            extensions += _U64.pack(schema_id)
    except struct.error as error:
        raise BadColumn("producer, transaction or schema", str(error)) from None
    header_bytes = FIXED_BYTES + len(extensions) + len(directory)
    fixed = _FIXED.pack(
        MAGIC, 0, header_bytes, kind, len(directory) // DIRECTORY_ENTRY_BYTES, incompatible, 0, count,
        header_bytes + body_bytes, offset_span, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return fixed + extensions + directory


def stamp(
    data: bytearray,
    header_bytes: int,
    first_offset: int,
    append_time_us: int,
    max_time_us: int,
    segment_uid: int,
    durable_end: int,
    log_epoch: int,
) -> None:
    """Write what the owner of the log decides into the header of *data*, and its CRC."""
    _put_stamp(data, _STAMP_AT, first_offset, append_time_us, max_time_us, segment_uid, durable_end, log_epoch)
    # Copying some hundred bytes is cheaper than making two views of them.
    _put_u32(data, _CRC_AT, crc32c(data[8:header_bytes]))


def set_compatible_flag(data: bytearray, flag: int) -> None:
    """Set a compatible flag; `stamp` afterwards."""
    (flags,) = _U32.unpack_from(data, _COMPATIBLE_AT)
    _U32.pack_into(data, _COMPATIBLE_AT, flags | flag)


def clear_compatible_flag(data: bytearray, flag: int) -> None:
    """Clear a compatible flag; `stamp` afterwards."""
    (flags,) = _U32.unpack_from(data, _COMPATIBLE_AT)
    _U32.pack_into(data, _COMPATIBLE_AT, flags & ~flag)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """
    Read and check the header at *position*; the body is not looked at.

    Raises:
        BadBytes: too short, wrong magic, wrong CRC, or lengths that cannot be.
        UnsupportedFormat: a valid header with an incompatible flag that this version does not know.
    """
    available = len(buffer) - position
    if available < FIXED_BYTES:
        raise BadBytes("batch header", f"needs {FIXED_BYTES} bytes, {available} are left")
    fields = _FIXED.unpack_from(buffer, position)
    if fields[0] != MAGIC:
        raise BadBytes("batch header", "no batch begins here")
    header_bytes = fields[2]
    # Lengths are checked before the CRC reads that many bytes.
    if header_bytes < FIXED_BYTES or header_bytes > HEADER_BYTES_MAX or header_bytes & 7:
        raise BadBytes("batch header", f"impossible header length {header_bytes}")
    if available < header_bytes:
        raise BadBytes("batch header", f"needs {header_bytes} bytes, {available} are left")
    if crc32c(memoryview(buffer)[position + 8 : position + header_bytes]) != fields[1]:
        raise BadBytes("batch header", "checksum does not match")
    header = _new_header(fields[2:16])
    _check_fields(header)
    return header


def _check_fields(header: BatchHeader) -> None:
    """A matching CRC says that the bytes are as written, not that the writer was honest."""
    if header.incompatible & ~KNOWN_INCOMPATIBLE:
        raise UnsupportedFormat("a batch", f"flags {header.incompatible & ~KNOWN_INCOMPATIBLE:#x}")
    if header.total_bytes < header.header_bytes or header.total_bytes > BATCH_BYTES_MAX or header.total_bytes & 7:
        raise BadBytes("batch header", f"impossible length {header.total_bytes}")
    if header.count > BATCH_MESSAGES_MAX:
        raise BadBytes("batch header", f"{header.count} messages are over the limit of {BATCH_MESSAGES_MAX}")
    if header.kind == KIND_DATA:
        if not 0 < header.count <= header.offset_span <= _OFFSET_MAX:
            raise BadBytes("batch header", f"{header.count} messages cannot cover {header.offset_span} offsets")
    elif header.kind == KIND_STATE:
        if header.count or header.offset_span:
            raise BadBytes("batch header", "a state batch takes no offsets")
    else:
        raise UnsupportedFormat("a batch", f"kind {header.kind}")
    if header.first_offset > _OFFSET_MAX - header.offset_span or header.durable_end > _OFFSET_MAX:
        raise BadBytes("batch header", f"offset {header.first_offset} is over the limit")
    if header.header_bytes != FIXED_BYTES + _extension_bytes(header.incompatible) + header.columns * DIRECTORY_ENTRY_BYTES:
        raise BadBytes("batch header", "its length does not fit its extensions and columns")


def _extension_bytes(incompatible: int) -> int:
    total = 0
    if incompatible & FLAG_PRODUCER:
        total += _PRODUCER.size
    if incompatible & FLAG_TRANSACTION:
        total += _TRANSACTION.size
    if incompatible & FLAG_SCHEMA:
        total += _U64.size
    return total


def directory_at(header: BatchHeader) -> int:
    """Where the column directory begins, from the start of the batch."""
    return header.header_bytes - header.columns * DIRECTORY_ENTRY_BYTES


def read_producer(buffer: Buffer, position: int, header: BatchHeader) -> Producer | None:
    """The producer extension of the batch at *position*, if it has one."""
    if not header.incompatible & FLAG_PRODUCER:
        return None
    identity, sequence, incarnation, _ = _PRODUCER.unpack_from(buffer, position + FIXED_BYTES)
    return Producer(identity, incarnation, sequence)


def read_transaction(buffer: Buffer, position: int, header: BatchHeader) -> Transaction | None:
    """The transaction extension of the batch at *position*, if it has one."""
    if not header.incompatible & FLAG_TRANSACTION:
        return None
    at = position + FIXED_BYTES + _extension_bytes(header.incompatible & FLAG_PRODUCER)
    number, part, _ = _TRANSACTION.unpack_from(buffer, at)
    return Transaction(number, part)


def read_schema_id(buffer: Buffer, position: int, header: BatchHeader) -> int | None:
    """The schema extension of the batch at *position*, if it has one."""
    if not header.incompatible & FLAG_SCHEMA:
        return None
    at = position + FIXED_BYTES + _extension_bytes(header.incompatible & (FLAG_PRODUCER | FLAG_TRANSACTION))
    (identity,) = _U64.unpack_from(buffer, at)
    return int(identity)
