"""
Coalescing: a sealed segment full of small batches is rewritten with large ones, offsets unchanged.

A topic that was written one message at a time would otherwise read at the cost of one batch a message for ever. The new file is
written beside the old one, synced, read back and compared, then renamed over it: a crash leaves the old or the new one, which
hold the same messages. Batches of different log epochs or schemas are never merged.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, Corrupt, DamagedFile
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import (
    COMPATIBLE_PREWRITTEN,
    FIXED_BYTES,
    KIND_DATA,
    BatchHeader,
    clear_compatible_flag,
)
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec, is_writable, parse_compression
from penstock.format.merge import is_plain, merge, merge_values
from penstock.log.rewriting import Stamps, all_headers, rewrite
from penstock.values import BATCH_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.files import FileSystem
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment
    from penstock.settings import TopicSettings

_GAIN = 2
"""A segment is rewritten if it then has at most one batch for so many of before."""


_QUIET_US, _QUIET_PART = 60_000_000, 16
"""The active segment is sealed to be merged when nothing came for so long and it has that part of `segment_bytes`."""
_IDLE_US, _IDLE_BATCHES = 3_600_000_000, 1_024
"""Or when nothing came for so long, and it has so many batches: at most 24 segments a day come of that."""


def gains_by_sealing(log: PartitionLog, now_us: int) -> bool:
    """
    Whether the active segment of *log* is worth sealing before it is full: it is full of small batches, and nothing comes any more.

    Only sealed segments are merged, and a message that lies in a batch of its own costs a reader a hundred times as much as one in a large
    batch. Looks at no file.
    """
    active, settings = log.active, log.settings
    if active is None or log.deleted or not settings.coalesce_below_bytes or active.batches < _IDLE_BATCHES:
        return False
    if active.position / active.batches >= settings.coalesce_below_bytes / _GAIN:
        return False
    quiet_us = now_us - active.max_time_us
    return quiet_us >= _IDLE_US or (quiet_us >= _QUIET_US and active.position >= settings.segment_bytes / _QUIET_PART)


def find_segment_to_coalesce(log: PartitionLog, keep_from: int) -> Segment | None:
    """
    The next sealed, durable segment that ends at or before *keep_from* and would gain by coalescing; each is judged once.

    Raises `Corrupt`: one cannot be read; it is passed over the next time. `OSError`: the disk refuses for now.
    """
    settings = log.settings
    if not settings.coalesce_below_bytes:
        return None
    firsts = log.segment_firsts
    begin = max(bisect_right(firsts, log.coalesced_end) - 1, 0)
    for first, following in pairwise(firsts[begin:]):
        if following <= log.coalesced_end:
            continue
        if following > min(keep_from, log.durable_end):
            break
        try:
            segment = log.segment(first)
        except Corrupt:
            log.coalesced_end = following
            raise
        log.coalesced_end = following
        if segment.batches >= _GAIN and segment.position / segment.batches < settings.coalesce_below_bytes / _GAIN:
            return segment
    return None


def coalesce(files: FileSystem, log: PartitionLog, segment: Segment, pause: Callable[[], None] = lambda: None) -> bool:
    """
    Rewrite *segment* and let the result take over its range; False if retention removed the segment meanwhile.

    *pause* is called between merged batches, so that the thread that does this can let others run.

    Raises:
        OSError: nothing is changed; the half-made file is removed now or at the next opening.
        DamagedFile: the old segment cannot be read; nothing is changed.
    """
    settings = log.settings
    packing = packing_of(settings)
    merged = _merged(segment, settings.coalesce_below_bytes, settings.coalesce_to_bytes, packing)
    return rewrite(files, log, segment, merged, pause=pause) is not None


Packing = tuple[Codec, int | None]
"""How merged batches are compressed."""


def packing_of(settings: TopicSettings) -> Packing:
    """How what is rewritten of a topic is compressed; not at all where the library is missing."""
    packing = parse_compression(settings.compression)
    return packing if is_writable(packing[0]) else (Codec.NONE, None)


class MergeGroup:
    """Batches that become one: whole batches, or bare values where each batch holds one value and nothing else."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self.batches: list[Batch] = []
        self.values: list[bytes | memoryview] = []
        self.times_us: list[int] = []
        self.first: BatchHeader | None = None
        self.last: BatchHeader | None = None
        self.plain = False
        self.schema_id: int | None = None
        self.bytes = 0
        self.messages = 0

    def takes(self, header: BatchHeader, to_bytes: int, *, bare: bool, batch: Batch | None) -> bool:
        """Whether the batch with this header may join."""
        first, last = self.first, self.last
        if first is None or last is None:
            return True
        if bare != bool(self.values) or first.log_epoch != header.log_epoch:
            return False
        if self.bytes + _raw_bytes(header, batch) > to_bytes or self.messages + header.count > BATCH_MESSAGES_MAX:
            return False
        if batch is None:
            # Bare values are numbered from the first one on, so there may be no gap.
            return last.first_offset + last.offset_span == header.first_offset
        return self.plain == is_plain(batch) and self.schema_id == batch.schema_id

    def add(self, header: BatchHeader, batch: Batch | None, value: memoryview | None) -> None:
        """Let a batch join."""
        if self.first is None:
            self.first = header
            if batch is not None:
                self.plain, self.schema_id = is_plain(batch), batch.schema_id
        self.last = header
        self.bytes += _raw_bytes(header, batch)
        self.messages += header.count
        if batch is not None:
            self.batches.append(batch)
        elif value is not None:
            self.values.append(value)
            self.times_us.append(header.append_time_us)

    def merge(self) -> tuple[EncodedBatch, Stamps]:
        """The one batch, and what to stamp it with."""
        first, last = self.first, self.last
        assert first is not None
        assert last is not None
        stamps = (first.first_offset, first.append_time_us, last.max_time_us, last.durable_end, last.log_epoch)
        if self.values:
            return merge_values(self.values, self.times_us, *self._packing), stamps
        if len(self.batches) == 1:
            copy = EncodedBatch(bytearray(self.batches[0].buffer), first.header_bytes, first.count, first.offset_span)
            clear_compatible_flag(copy.data, COMPATIBLE_PREWRITTEN)
            return copy, stamps
        return merge(self.batches, *self._packing), stamps


def _raw_bytes(header: BatchHeader, batch: Batch | None) -> int:
    """How much room a batch takes when it is inflated: small stored bytes may be large ones."""
    if batch is None:
        return header.total_bytes
    entries = [batch.entry(column) for column in batch.column_ids]
    return max(header.total_bytes, sum(entry.raw_bytes for entry in entries if entry is not None))


def _merged(segment: Segment, below_bytes: int, to_bytes: int, packing: Packing) -> Iterator[tuple[EncodedBatch, Stamps]]:
    group = MergeGroup(packing)
    for view, position, header in all_headers(segment):
        batch: Batch | None = None
        try:
            value = bare_value(view, position, header)
            if value is None:
                batch = Batch(view, position, header)
                batch.verify()
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        large = header.total_bytes >= below_bytes
        if group.first is not None and (large or not group.takes(header, to_bytes, bare=batch is None, batch=batch)):
            yield group.merge()
            group = MergeGroup(packing)
        group.add(header, batch, value)
        if large:
            yield group.merge()
            group = MergeGroup(packing)
    if group.first is not None:
        yield group.merge()


def merge_small(batches: Iterable[Batch], settings: TopicSettings) -> Iterator[tuple[EncodedBatch, Stamps]]:
    """*batches*, which follow each other in one segment and were verified, with small ones merged."""
    packing = packing_of(settings)
    group = MergeGroup(packing)
    for batch in batches:
        header = batch.header
        large = header.total_bytes >= settings.coalesce_below_bytes
        fits = group.first is None or (not large and group.takes(header, settings.coalesce_to_bytes, bare=False, batch=batch))
        if not fits:
            yield group.merge()
            group = MergeGroup(packing)
        group.add(header, batch, None)
        if large:
            yield group.merge()
            group = MergeGroup(packing)
    if group.first is not None:
        yield group.merge()


def bare_value(view: memoryview, position: int, header: BatchHeader) -> memoryview | None:
    """
    The value of a batch that holds one value and nothing else, with its checksum checked; None for any other batch.

    Most batches of a topic that is written one message at a time are such, and a `Batch` for each would cost five times as much.
    """
    if header.count != 1 or header.columns != 1 or header.incompatible or header.kind != KIND_DATA:
        return None
    column, codec, flags, crc, at, stored_bytes, raw_bytes, _, _, _ = c.ENTRY.unpack_from(view, position + FIXED_BYTES)
    if column != c.VALUE or codec or flags or raw_bytes + 8 > stored_bytes or at + stored_bytes != header.total_bytes:
        return None
    stored = view[position + at : position + header.total_bytes]
    if crc32c(stored) != crc:
        raise BadBytes("value column", "checksum does not match")
    return stored[8 : 8 + raw_bytes]
