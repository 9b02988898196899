"""
The state batch: what a log must know at the start of a segment, so that opening reads no older one.

It is a batch of kind 2 that takes no offsets, the first in every segment. Columns:

```
producers (32)  40 bytes each: id u64, sequence u64, first_offset u64, append_time_us i64, incarnation u32, count u32
                the latest batches of each producer, oldest first
epochs (33)     16 bytes each: first_offset u64, epoch u32, 0 u32; where each log epoch began, oldest first
                zeros may follow, so that the batch fills a place of a given length
```
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import BadBytes
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch, batch_from_columns
from penstock.format.batch_header import KIND_STATE

_PRODUCER = struct.Struct("<QQQqII")
_EPOCH = struct.Struct("<QII")


class ProducerRecord(NamedTuple):
    """One batch of a producer that the log remembers."""

    producer_id: int
    sequence: int
    first_offset: int
    append_time_us: int
    incarnation: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it


class EpochStart(NamedTuple):
    """The first offset that was written in a log epoch."""

    first_offset: int
    epoch: int


def encode_state(producers: list[ProducerRecord], epochs: list[EpochStart], total_bytes: int = 0) -> EncodedBatch:
    """Encode a state batch, filled up to *total_bytes* where it is shorter."""
    parts = [
        c.encode_records(c.PRODUCERS, b"".join([_PRODUCER.pack(*record) for record in producers])),
        c.encode_records(c.EPOCHS, b"".join([_EPOCH.pack(start.first_offset, start.epoch, 0) for start in epochs])),
    ]
    batch = batch_from_columns(parts, 0, 0, kind=KIND_STATE)
    missing = total_bytes - len(batch.data)
    if missing <= 0:
        return batch
    parts[-1].parts.append(bytes(missing))
    return batch_from_columns(parts, 0, 0, kind=KIND_STATE)


def decode_state(batch: Batch) -> tuple[list[ProducerRecord], list[EpochStart]]:
    """Read a state batch. Raises `BadBytes`."""
    if batch.header.kind != KIND_STATE:
        raise BadBytes("state batch", "is a batch of another kind")
    producers = [ProducerRecord._make(fields) for fields in _PRODUCER.iter_unpack(_records(batch, c.PRODUCERS, _PRODUCER.size))]
    epochs = [EpochStart(first, epoch) for first, epoch, _ in _EPOCH.iter_unpack(_records(batch, c.EPOCHS, _EPOCH.size))]
    return producers, epochs


def _records(batch: Batch, column: int, size: int) -> memoryview:
    entry = batch.entry(column)
    if entry is None:
        return memoryview(b"")
    stored = batch.stored_column(column)
    if entry.raw_bytes % size or entry.raw_bytes > len(stored):
        raise BadBytes("state batch", f"its {c.NAMES[column]} have an impossible length")
    return stored[: entry.raw_bytes]
