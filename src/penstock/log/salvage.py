"""
Reading a segment that may be damaged: every good batch, and every range that is not good.

Recovery trusts a log up to its first bad byte; this module goes on behind it. `verify` uses it to tell the extent of damage,
`repair` to save what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch import Batch
from penstock.format.batch_header import KIND_DATA, KIND_STATE, MAGIC
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, Footer, SegmentHeader, add_header_crc
from penstock.log.segment import is_footer

if TYPE_CHECKING:
    from penstock.log.identity import LogIdentity


class BadRange(NamedTuple):
    """Bytes [start, end) of a file that are not what they should be."""

    start: int
    end: int
    offset: int | None
    reason: str


class Salvage(NamedTuple):
    """What could be read of a segment."""

    header: SegmentHeader | None
    state: Batch | None
    batches: list[Batch]
    footer: Footer | None
    bad: list[BadRange]
    end_offset: int


def salvage(data: bytes, first_offset: int, identity: LogIdentity, stop_offset: int, *, sealed: bool = False) -> Salvage:
    """
    Read the segment in *data* up to *stop_offset* (the committed end: what lies behind is nobody's business).

    With *sealed*, because another segment follows, a footer must be there.

    A batch counts as good if all its checksums match, it carries the segment's uid (or, where the segment's header is
    unreadable, the uid of the first good batch), and its offset goes on from those before it.
    """
    view = memoryview(data)
    bad: list[BadRange] = []
    header = _header(view, first_offset, identity, bad)
    uid = None if header is None else header.segment_uid
    rewritten = header is not None and header.generation > 0
    batches: list[Batch] = []
    state: Batch | None = None
    footer: Footer | None = None
    end = first_offset
    crcs = 0
    position = SEGMENT_HEADER_BYTES
    while position < len(view) and end < stop_offset:
        if is_footer(view, position) and position + FOOTER_BYTES == len(view):
            footer = _footer(view, position, bad, batches, crcs)
            break
        batch, reason = _batch(view, position, uid)
        if batch is not None and batch.header.kind == KIND_DATA:
            gap = batch.first_offset - end
            if gap < 0 or (gap > 0 and not rewritten and not bad):
                batch, reason = None, f"offset {end + gap} where {end} is next"
        if batch is None:
            following = _next_good(view, position, uid, end)
            bad.append(BadRange(position, following, end, reason))
            position = following
            continue
        uid = batch.header.segment_uid
        crcs = add_header_crc(0 if batch.header.kind == KIND_STATE else crcs, batch.buffer)
        position += batch.header.total_bytes
        if batch.header.kind == KIND_STATE:
            state = batch
        else:
            batches.append(batch)
            end = batch.end_offset
    if footer is None and (sealed or (position + FOOTER_BYTES == len(view) and is_footer(view, position))):
        footer = _footer(view, position, bad, batches, crcs)
    if footer is not None:
        end = max(end, footer.end_offset)
    return Salvage(header, state, batches, footer, bad, end)


def _header(view: memoryview, first_offset: int, identity: LogIdentity, bad: list[BadRange]) -> SegmentHeader | None:
    try:
        header = SegmentHeader.decode(view)
    except (BadBytes, UnsupportedFormat) as error:
        bad.append(BadRange(0, SEGMENT_HEADER_BYTES, None, str(error)))
        return None
    if (header.topic_id, header.partition, header.first_offset) != (identity.topic_id, identity.partition, first_offset):
        bad.append(BadRange(0, len(view), None, "this file belongs to another topic, partition or offset"))
        return None
    return header


def _footer(view: memoryview, position: int, bad: list[BadRange], batches: list[Batch], crcs: int) -> Footer | None:
    try:
        footer = Footer.decode(view[position:])
    except BadBytes as error:
        bad.append(BadRange(position, len(view), None, str(error)))
        return None
    if not bad and (footer.batches != len(batches) or footer.crc_of_crcs != crcs):
        bad.append(BadRange(position, len(view), None, "the footer does not fit the batches before it"))
    return footer


def _batch(view: memoryview, position: int, uid: int | None) -> tuple[Batch | None, str]:
    try:
        batch = Batch(view, position)
        batch.verify()
    except (BadBytes, UnsupportedFormat) as error:
        return None, str(error)
    if uid is not None and batch.header.segment_uid != uid:
        return None, "the batch belongs to another segment"
    return batch, ""


def _next_good(view: memoryview, position: int, uid: int | None, end: int) -> int:
    """The position of the next batch that can be used, or where the file or its footer begins to end."""
    content = bytes(view)
    at = content.find(MAGIC, position + 1)
    while at >= 0:
        batch, _ = _batch(view, at, uid)
        if batch is not None and (batch.header.kind == KIND_STATE or batch.first_offset >= end):
            return at
        at = content.find(MAGIC, at + 1)
    tail = len(view) - FOOTER_BYTES
    return tail if tail > position and is_footer(view, tail) else len(view)
