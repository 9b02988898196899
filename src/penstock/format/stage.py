"""
A stage: batches that wait, durable, for the transaction that will publish them.

```
file `staging/ID.stage`
 byte  size  field
    0     8  magic            "PNSTKSTG"
    8     4  version          1
   12     4  producer bytes
   16    16  store id
   32     8  created_us
   40        the producer's name (utf-8), padded with zeros to a multiple of 8
             entries: topic id 16, partition u32, kind u32, then by kind
               0 batch        a whole batch, not stamped yet
               1 part         number u32, batches u32, data start u64, then the headers of its batches, one behind the other
               2 digest       messages u64, digest u64 (digest.py), with zeros for topic id and partition; the last entry
  end    24  footer: "PSTF", crc u32 of all bytes before it, entries u32, 0 u32, length of the whole file u64

file `staging/ID.NUMBER.part`: room for a segment's header and state batch up to "data start", batches, 96 bytes for its footer
```

The file is written under a temporary name, synced, and renamed: a stage is there as a whole or not at all. Its parts are synced
before. The batch headers in a part are never read, since a commit that died may have written half of them: those in the stage count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch_header import KIND_DATA, parse_header
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from penstock.files import Buffer

STAGE_MAGIC = b"PNSTKSTG"
STAGE_VERSION = 1
PRODUCER_BYTES_MAX = 1024
_HEADER = struct.Struct("<8sII16sq")
_ENTRY = struct.Struct("<16sII")
_PART = struct.Struct("<IIQ")
_DIGEST = struct.Struct("<QQ")
_FOOTER = struct.Struct("<4sIIIQ")
_KIND_BATCH = 0
_KIND_PART = 1
_KIND_DIGEST = 2
_FOOTER_MAGIC = b"PSTF"
assert _HEADER.size == 40
assert _FOOTER.size == 24


class StageEntry(NamedTuple):
    """A batch of a stage and where it goes."""

    topic_id: bytes
    partition: int
    batch: memoryview


class StagePart(NamedTuple):
    """A file of batches of a stage, for one log: the batches lie in it from *data_start* on, with these headers."""

    topic_id: bytes
    partition: int
    number: int
    data_start: int
    headers: list[memoryview]


class Stage(NamedTuple):
    """The contents of a stage file, without those of its parts. The digest of its messages is None in stages of older versions."""

    store_id: bytes
    producer: str
    created_us: int
    entries: list[StageEntry]
    parts: list[StagePart]
    digest: int | None = None

    @property
    def messages(self) -> int:
        """How many messages it holds, with those of its parts."""
        batches = [entry.batch for entry in self.entries] + [header for part in self.parts for header in part.headers]
        return sum([parse_header(batch).count for batch in batches])


def encode_stage_header(store_id: bytes, producer: str, created_us: int) -> bytes:
    """The beginning of a stage file."""
    name = producer.encode()
    return _HEADER.pack(STAGE_MAGIC, STAGE_VERSION, len(name), store_id, created_us) + name + bytes(-len(name) & 7)


def encode_stage_entry(topic_id: bytes, partition: int) -> bytes:
    """What stands before a batch."""
    return _ENTRY.pack(topic_id, partition, _KIND_BATCH)


def encode_stage_part(part: StagePart) -> bytes:
    """The entry of a part."""
    head = _ENTRY.pack(part.topic_id, part.partition, _KIND_PART) + _PART.pack(part.number, len(part.headers), part.data_start)
    return b"".join([head, *part.headers])


def encode_stage_digest(messages: int, digest: int) -> bytes:
    """The entry that tells what all messages of the stage are."""
    return _ENTRY.pack(bytes(16), 0, _KIND_DIGEST) + _DIGEST.pack(messages, digest)


def encode_stage_footer(crc: int, entries: int, length: int) -> bytes:
    """The end of a stage file of *length* bytes with it."""
    return _FOOTER.pack(_FOOTER_MAGIC, crc, entries, 0, length)


STAGE_FOOTER_BYTES = _FOOTER.size


def decode_stage_header(data: Buffer) -> tuple[bytes, str, int, int]:
    """(store id, producer, created_us, where the entries begin). Raises `BadBytes` or `UnsupportedFormat`."""
    if len(data) < _HEADER.size:
        raise BadBytes("stage", "is cut off")
    magic, version, length, store_id, created_us = _HEADER.unpack_from(data)
    if magic != STAGE_MAGIC:
        raise BadBytes("stage", "this is not a stage")
    if version != STAGE_VERSION:
        raise UnsupportedFormat("the stage", f"version {version}")
    if length > PRODUCER_BYTES_MAX or len(data) < _HEADER.size + length:
        raise BadBytes("stage", f"has a producer's name of the impossible length {length}")
    try:
        producer = bytes(data[_HEADER.size : _HEADER.size + length]).decode()
    except UnicodeDecodeError as error:
        raise BadBytes("stage", str(error)) from None
    return store_id, producer, created_us, _HEADER.size + length + (-length & 7)


def decode_stage(data: Buffer) -> Stage:
    """Read and check a whole stage file; the batches are checked by who takes them. Raises `BadBytes` or `UnsupportedFormat`."""
    view = memoryview(data)
    store_id, producer, created_us, at = decode_stage_header(view)
    end = len(view) - _FOOTER.size
    if end < at:
        raise BadBytes("stage", "is cut off")
    magic, crc, count, _, length = _FOOTER.unpack_from(view, end)
    if magic != _FOOTER_MAGIC or length != len(view):
        raise BadBytes("stage", "has no footer")
    if crc32c(view[:end]) != crc:
        raise BadBytes("stage", "checksum does not match")
    entries: list[StageEntry] = []
    parts: list[StagePart] = []
    digest: int | None = None
    content = view[:end]
    for _ in range(count):
        if end - at < _ENTRY.size:
            raise BadBytes("stage", "has fewer entries than it says")
        topic_id, partition, kind = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        if kind == _KIND_BATCH:
            size = parse_header(content, at).total_bytes
            if size > end - at:
                raise BadBytes("stage", "a batch is cut off")
            entries.append(StageEntry(topic_id, partition, view[at : at + size]))
            at += size
        elif kind == _KIND_PART:
            part, at = _decode_part(content, at, topic_id, partition)
            parts.append(part)
        elif kind == _KIND_DIGEST:
            if end - at < _DIGEST.size:
                raise BadBytes("stage", "its digest is cut off")
            _, digest = _DIGEST.unpack_from(view, at)
            at += _DIGEST.size
        else:
            raise UnsupportedFormat("the stage", f"entry kind {kind}")
    if at != end:
        raise BadBytes("stage", "has more bytes than entries")
    return Stage(store_id, producer, created_us, entries, parts, digest)


def _decode_part(content: memoryview, at: int, topic_id: bytes, partition: int) -> tuple[StagePart, int]:
    """The part whose entry's body begins at *at*, and where the next entry begins."""
    if len(content) - at < _PART.size:
        raise BadBytes("stage", "a part is cut off")
    number, batches, data_start = _PART.unpack_from(content, at)
    at += _PART.size
    headers = []
    for _ in range(batches):
        header = parse_header(content, at)
        if header.kind != KIND_DATA or header.offset_span != header.count:
            raise BadBytes("stage", "a part has a batch that only the owner of a log may write")
        # Copied: a view would keep all of the stage in memory.
        headers.append(memoryview(bytes(content[at : at + header.header_bytes])))
        at += header.header_bytes
    if not headers or data_start & 7:
        raise BadBytes("stage", "a part has no batches, or they begin at an odd place")
    return StagePart(topic_id, partition, number, data_start, headers), at
