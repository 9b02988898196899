"""
Coalescing: a sealed segment full of small batches is rewritten with large ones, offsets unchanged.

A topic that was written one message at a time would otherwise read at the cost of one batch a message for ever. The new file is
written beside the old one, synced, read back and compared, then renamed over it: a crash leaves the old or the new one, which
hold the same messages. Batches of different log epochs or schemas are never merged.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import (
    COMPATIBLE_PREWRITTEN,
    FIXED_BYTES,
    KIND_DATA,
    BatchHeader,
    clear_compatible_flag,
    parse_header,
)
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec, is_writable, parse_compression
from penstock.format.merge import is_plain, merge, merge_values
from penstock.format.segment import SEGMENT_HEADER_BYTES
from penstock.log.partition_log import write_cache
from penstock.log.segment import Segment
from penstock.values import BATCH_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.files import FileSystem
    from penstock.log.partition_log import PartitionLog

_GAIN = 2
"""A segment is rewritten if it then has at most one batch for so many of before."""


def find_segment_to_coalesce(log: PartitionLog, keep_from: int) -> Segment | None:
    """The next sealed, durable segment that ends at or before *keep_from* and would gain by coalescing; each is judged once."""
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
        segment = log.segment(first)
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
    packing = parse_compression(settings.compression)
    if not is_writable(packing[0]):
        packing = Codec.NONE, None
    header = segment.header._replace(generation=segment.header.generation + 1, segment_uid=secrets.randbits(64))
    temporary = segment.path + ".tmp"
    if files.exists(temporary):
        files.unlink(temporary)
    # The state batch is copied: what the log knew at the start of the segment has not changed.
    view = segment.content()
    state_header = parse_header(view, SEGMENT_HEADER_BYTES)
    stored_state = view[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + state_header.total_bytes]
    state = EncodedBatch(bytearray(stored_state), state_header.header_bytes, 0, 0)
    rewritten = Segment.create(files, temporary, header, state, settings.index_interval_bytes)
    try:
        messages = 0
        for batch, stamps in _merged(segment, settings.coalesce_below_bytes, settings.coalesce_to_bytes, packing):
            first, append_time_us, max_time_us, durable_end, epoch = stamps
            batch.stamp(first, append_time_us, max_time_us, header.segment_uid, durable_end, epoch)
            rewritten.write([batch], [(first, append_time_us, max_time_us)])
            messages += batch.count
            pause()
        rewritten.min_time_us = segment.min_time_us
        rewritten.seal(segment.end_offset)
        rewritten.sync()
        _compare(rewritten, segment, messages)
    except BaseException:
        rewritten.close()
        if files.exists(temporary):
            files.unlink(temporary)
        raise
    with log.files_lock:
        if segment.first_offset not in log.segment_firsts:
            rewritten.close()
            files.unlink(temporary)
            return False
        files.rename(temporary, segment.path)
        files.sync_directory(os.path.dirname(segment.path))
        rewritten.path = segment.path
        log.replace_segment(rewritten)
    write_cache(files, rewritten.index_path, rewritten.index_snapshot(b"").encode())
    return True


def _all_batches(segment: Segment) -> Iterator[Batch]:
    """Every data batch of a sealed segment, with its checksums checked."""
    for view, position, header in _all_headers(segment):
        try:
            batch = Batch(view, position, header)
            batch.verify()
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        yield batch


def _all_headers(segment: Segment) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    view = segment.content()
    position = SEGMENT_HEADER_BYTES + parse_header(view, SEGMENT_HEADER_BYTES).total_bytes
    while position < segment.position:
        try:
            header = parse_header(view, position)
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        yield view, position, header
        position += header.total_bytes


_Stamps = tuple[int, int, int, int, int]
_Packing = tuple[Codec, int | None]
"""How merged batches are compressed."""


class _MergeGroup:
    """Batches that become one: whole batches, or bare values where each batch holds one value and nothing else."""

    def __init__(self, packing: _Packing) -> None:
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

    def merge(self) -> tuple[EncodedBatch, _Stamps]:
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


def _merged(segment: Segment, below_bytes: int, to_bytes: int, packing: _Packing) -> Iterator[tuple[EncodedBatch, _Stamps]]:
    group = _MergeGroup(packing)
    for view, position, header in _all_headers(segment):
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
            group = _MergeGroup(packing)
        group.add(header, batch, value)
        if large:
            yield group.merge()
            group = _MergeGroup(packing)
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


def _compare(rewritten: Segment, segment: Segment, messages: int) -> None:
    """Read the new file back: it must hold as many messages, in the same range, with every checksum right."""
    found = 0
    end = segment.first_offset
    for batch in _all_batches(rewritten):
        if batch.first_offset < end:
            raise DamagedFile(rewritten.path, 0, batch.first_offset, "the rewritten segment goes back")
        found += batch.header.count
        end = batch.end_offset
    if found != messages or end > segment.end_offset:
        raise DamagedFile(rewritten.path, 0, end, f"the rewritten segment has {found} messages instead of {messages}")
