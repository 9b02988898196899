"""
Rewriting a sealed segment: a new file with a higher generation takes over the range of the old one by one rename.

Coalescing, compaction and vacuum all end here. The new file is written beside the old one under a temporary name, sealed, synced, and
read back; only then it is renamed over the old one and the folder synced. A crash at any point leaves the old or the new file; a
temporary one that is left over is removed at the next opening. Readers that are in the old file stay in it: it goes when the last one
lets go of it.
"""

from __future__ import annotations

import os
import secrets
from contextlib import nullcontext
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile
from penstock.format.batch import Batch, EncodedBatch
from penstock.format.batch_header import BatchHeader, parse_header
from penstock.format.segment import SEGMENT_HEADER_BYTES
from penstock.log.index_cache import write_index_cache
from penstock.log.segment import READ_BYTES_DEFAULT, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from penstock.files import FileSystem
    from penstock.log.partition_log import PartitionLog

Stamps = tuple[int, int, int, int, int]
"""First offset, append time, max time, durable end and log epoch of a batch."""


def rewrite(
    files: FileSystem,
    log: PartitionLog,
    segment: Segment,
    batches: Iterable[tuple[EncodedBatch, Stamps]],
    *,
    compacted_us: int | None = None,
    check: Callable[[Segment], None] = lambda _: None,
    takes_over: Callable[[], AbstractContextManager[object]] = nullcontext,
    pause: Callable[[], None] = lambda: None,
) -> Segment | None:
    """
    Let *batches* take the place of what *segment* holds, and return the new segment; None if retention removed it meanwhile.

    The range of offsets stays, also where no batch is left in it. *check* sees the new file, synced and read back from the disk, and
    raises if it is not what it should be. *takes_over* is entered while the new file takes the place of the old one. *pause* is called
    between batches, so that the thread that does this can let others run. One thread at a time for each log.

    Raises:
        OSError: nothing is changed; the half-made file is removed now or at the next opening.
        DamagedFile: the old segment cannot be read, or the new one is wrong; nothing is changed.
    """
    old = segment.header
    header = old._replace(
        generation=old.generation + 1,
        segment_uid=secrets.randbits(64),
        compacted_us=old.compacted_us if compacted_us is None else compacted_us,
    )
    temporary = segment.path + ".tmp"
    if files.exists(temporary):
        files.unlink(temporary)
    # The state batch is copied: what the log knew at the start of the segment has not changed.
    view = segment.content()
    state_header = parse_header(view, SEGMENT_HEADER_BYTES)
    stored_state = view[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + state_header.total_bytes]
    state = EncodedBatch(bytearray(stored_state), state_header.header_bytes, 0, 0)
    rewritten = Segment.create(files, temporary, header, state, log.settings.index_interval_bytes)
    try:
        messages = 0
        for batch, stamps in batches:
            first, append_time_us, max_time_us, durable_end, epoch = stamps
            batch.stamp(first, append_time_us, max_time_us, header.segment_uid, durable_end, epoch)
            rewritten.write([batch], [(first, append_time_us, max_time_us)])
            messages += batch.count
            pause()
        rewritten.min_time_us = segment.min_time_us
        rewritten.seal(segment.end_offset)
        rewritten.sync()
        _compare(rewritten, segment, messages)
        check(rewritten)
        with takes_over(), log.files_lock:
            if segment.first_offset not in log.segment_firsts:
                rewritten.close()
                files.unlink(temporary)
                return None
            files.rename(temporary, segment.path)
            files.sync_directory(os.path.dirname(segment.path))
            rewritten.path = segment.path
            log.replace_segment(rewritten)
    except BaseException:
        rewritten.close()
        if files.exists(temporary):
            files.unlink(temporary)
        raise
    write_index_cache(files, rewritten.index_path, rewritten.index_snapshot(b"").encode())
    return rewritten


def all_batches(segment: Segment) -> Iterator[Batch]:
    """Every data batch of a sealed segment, with its checksums checked. Raises `DamagedFile`."""
    for batch in unchecked_batches(segment):
        try:
            batch.verify()
        except BadBytes as error:
            raise DamagedFile(segment.path, 0, batch.first_offset, str(error)) from None
        yield batch


def unchecked_batches(segment: Segment) -> Iterator[Batch]:
    """Every data batch of a sealed segment; of its columns nothing is looked at. Raises `DamagedFile`."""
    for view, position, header in all_headers(segment):
        try:
            batch = Batch(view, position, header)
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        yield batch


def all_headers(segment: Segment) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """The file, and position and header of each data batch of a sealed segment. Raises `DamagedFile`."""
    view = segment.content()
    position = noted = SEGMENT_HEADER_BYTES + parse_header(view, SEGMENT_HEADER_BYTES).total_bytes
    while position < segment.position:
        try:
            header = parse_header(view, position)
        except BadBytes as error:
            raise DamagedFile(segment.path, position, None, str(error)) from None
        yield view, position, header
        position += header.total_bytes
        if position - noted >= READ_BYTES_DEFAULT:
            segment.note_read(position - noted)
            noted = position


def _compare(rewritten: Segment, segment: Segment, messages: int) -> None:
    """Read the new file back: it must hold as many messages, in the same range, with every checksum right."""
    found = 0
    end = segment.first_offset
    for batch in all_batches(rewritten):
        if batch.first_offset < end:
            raise DamagedFile(rewritten.path, 0, batch.first_offset, "the rewritten segment goes back")
        found += batch.header.count
        end = batch.end_offset
    if found != messages or end > segment.end_offset:
        raise DamagedFile(rewritten.path, 0, end, f"the rewritten segment has {found} messages instead of {messages}")
