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
from penstock.files import write_fully
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import parse_header
from penstock.format.merge import merge
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from penstock.log.partition_log import write_cache
from penstock.log.segment import Segment
from penstock.values import BATCH_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.files import FileSystem
    from penstock.log.partition_log import PartitionLog

_GAIN = 2
"""A segment is rewritten if it then has at most one batch for so many of before."""
_READ_BYTES = 4 * 1024 * 1024
_END = (1 << 63) - 1


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
    header = segment.header._replace(generation=segment.header.generation + 1, segment_uid=secrets.randbits(64))
    temporary = segment.path + ".tmp"
    if files.exists(temporary):
        files.unlink(temporary)
    # The state batch is copied: what the log knew at the start of the segment has not changed.
    view = segment.view()
    assert view is not None
    state_header = parse_header(view, SEGMENT_HEADER_BYTES)
    stored_state = view[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + state_header.total_bytes]
    state = EncodedBatch(bytearray(stored_state), state_header.header_bytes, 0, 0)
    rewritten = Segment.create(files, temporary, header, state, settings.index_interval_bytes)
    try:
        messages = 0
        for batch, stamps in _merged(segment, settings.coalesce_below_bytes, settings.coalesce_to_bytes):
            first, append_time_us, max_time_us, durable_end, epoch = stamps
            batch.stamp(first, append_time_us, max_time_us, header.segment_uid, durable_end, epoch)
            rewritten.write([batch], [(first, append_time_us, max_time_us)])
            messages += batch.count
            pause()
        rewritten.min_time_us = segment.min_time_us
        _write_footer(rewritten, segment)
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


def _write_footer(rewritten: Segment, segment: Segment) -> None:
    assert rewritten.file is not None
    # The end is that of the range, which is more than the last message's where the last ones were removed.
    write_fully(rewritten.file, rewritten.footer(segment.end_offset).encode(), rewritten.position)
    rewritten.file.truncate(rewritten.position + FOOTER_BYTES)
    rewritten.end_offset = segment.end_offset
    rewritten.sealed = True


def _all_batches(segment: Segment) -> Iterator[Batch]:
    """Every data batch of a sealed segment, with its checksums checked."""
    view = segment.view()
    assert view is not None
    position = SEGMENT_HEADER_BYTES + parse_header(view, SEGMENT_HEADER_BYTES).total_bytes
    while position < segment.position:
        try:
            batch = Batch(view, position)
            batch.verify()
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        yield batch
        position += batch.header.total_bytes


_Stamps = tuple[int, int, int, int, int]


def _merged(segment: Segment, below_bytes: int, to_bytes: int) -> Iterator[tuple[EncodedBatch, _Stamps]]:
    group: list[Batch] = []
    group_bytes = group_messages = 0
    for batch in _all_batches(segment):
        header = batch.header
        fits = (
            header.total_bytes < below_bytes
            and group_bytes + header.total_bytes <= to_bytes
            and group_messages + header.count <= BATCH_MESSAGES_MAX
            and (not group or (group[0].header.log_epoch == header.log_epoch and group[0].schema_id == batch.schema_id))
        )
        if group and not fits:
            yield _flush(group)
            group, group_bytes, group_messages = [], 0, 0
        if header.total_bytes >= below_bytes:
            yield _flush([batch])
            continue
        group.append(batch)
        group_bytes += header.total_bytes
        group_messages += header.count
    if group:
        yield _flush(group)


def _flush(group: list[Batch]) -> tuple[EncodedBatch, _Stamps]:
    first, last = group[0].header, group[-1].header
    stamps = (first.first_offset, first.append_time_us, last.max_time_us, last.durable_end, last.log_epoch)
    if len(group) == 1:
        return EncodedBatch(bytearray(group[0].buffer), first.header_bytes, first.count, first.offset_span), stamps
    return merge(group), stamps


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
