"""Opening a segment that is sealed: what its file says of itself is checked, and its data is left alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile, UnsupportedFormat
from penstock.files import NOT_REGULAR, NotRegular
from penstock.format.batch_header import HEADER_BYTES_MAX, KIND_DATA, parse_header
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, Footer, SegmentHeader
from penstock.log.index_cache import read_index_cache, write_index_cache
from penstock.log.offset_index import OffsetIndex
from penstock.log.segment import READ_BYTES_DEFAULT, Segment, find_header, segment_name

if TYPE_CHECKING:
    from penstock.files import FileSystem
    from penstock.log.identity import LogIdentity
    from penstock.settings import TopicSettings


def load_sealed(
    files: FileSystem, directory: str, first_offset: int, identity: LogIdentity, settings: TopicSettings, *, cache: bool = True
) -> Segment:
    """
    Look at a sealed segment: header, footer, and its index from the cache or by hopping over its batches.

    With *cache* an index that had to be rebuilt is stored; a reader that does not own the store leaves no files.

    Raises:
        DamagedFile, UnsupportedFormat: header or footer are wrong.
        FileNotFoundError: it is not there.
    """
    path = os.path.join(directory, segment_name(first_offset))
    try:
        file = files.open(path)
    except NotRegular:
        raise DamagedFile(path, 0, None, NOT_REGULAR) from None
    try:
        header = check_header(path, file.pread(SEGMENT_HEADER_BYTES, 0), first_offset, identity)
        size = file.size()
        footer = read_footer(path, file.pread(FOOTER_BYTES, max(size - FOOTER_BYTES, 0)), header, size)
    except BaseException:
        file.close()
        raise
    segment = Segment(files, path, header, OffsetIndex(settings.index_interval_bytes))
    segment.file = file
    segment.sealed = True
    segment.position = footer.data_end
    segment.synced_position = size
    segment.end_offset = footer.end_offset
    segment.max_time_us = footer.max_time_us
    segment.min_time_us = footer.min_time_us
    segment.messages = footer.messages
    segment.batches = footer.batches
    segment.crc_of_crcs = footer.crc_of_crcs
    snapshot = read_index_cache(files, segment)
    if snapshot is not None and snapshot.valid_position == footer.data_end:
        segment.index.restore(snapshot.offsets, snapshot.times_us, snapshot.positions)
    elif _rebuild_index(segment) and cache:
        write_index_cache(files, segment.index_path, segment.index_snapshot(b"").encode())
    return segment


def check_header(path: str, data: bytes, first_offset: int, identity: LogIdentity) -> SegmentHeader:
    """The header of a segment file, if it belongs there. Raises `DamagedFile` or `UnsupportedFormat`."""
    try:
        header = SegmentHeader.decode(data)
    except BadBytes as error:
        raise DamagedFile(path, 0, first_offset, str(error)) from None
    except UnsupportedFormat as error:
        raise UnsupportedFormat(path, error.found) from None
    expected = (identity.store_id, identity.topic_id, identity.partition, first_offset)
    if (header.store_id, header.topic_id, header.partition, header.first_offset) != expected:
        raise DamagedFile(path, 0, first_offset, "this file belongs to another store, topic, partition or offset")
    return header


def read_footer(path: str, data: bytes, header: SegmentHeader, size: int) -> Footer:
    """The footer of a sealed segment of *size* bytes. Raises `DamagedFile`."""
    try:
        footer = Footer.decode(data)
    except BadBytes as error:
        raise DamagedFile(path, max(size - FOOTER_BYTES, 0), None, str(error)) from None
    if footer.segment_uid != header.segment_uid or footer.data_end != size - FOOTER_BYTES:
        raise DamagedFile(path, size - FOOTER_BYTES, None, "the footer belongs to another segment or place")
    return footer


def _rebuild_index(segment: Segment) -> bool:
    """Fill the index of a sealed segment from its batch headers; False if some are damaged, which are passed over."""
    whole = True
    position = noted = SEGMENT_HEADER_BYTES
    time_us = segment.header.base_time_us
    view, base = segment.window(position, min(segment.position, position + READ_BYTES_DEFAULT))
    while position < segment.position:
        if position + HEADER_BYTES_MAX > base + len(view) and base + len(view) < segment.position:
            view, base = segment.window(position, min(segment.position, position + READ_BYTES_DEFAULT))
        try:
            header = parse_header(view, position - base)
        except BadBytes:
            # Who reads there is told; the rest can be found.
            whole = False
            if not segment.index.offsets:
                # Else a look-up would begin behind it, and never come there.
                segment.index.add(segment.first_offset, time_us, position)
            behind = find_header(segment.window, position + 1, segment.position, segment.uid)
            if behind is None:
                break
            position, header = behind
            view, base = segment.window(position, min(segment.position, position + READ_BYTES_DEFAULT))
        if header.kind == KIND_DATA:
            segment.index.add(header.first_offset, time_us, position)
            time_us = header.max_time_us
        position += header.total_bytes
        if position - noted >= READ_BYTES_DEFAULT:
            segment.note_read(position - noted)
            noted = position
    return whole
