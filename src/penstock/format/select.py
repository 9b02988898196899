"""
Some messages of a batch as a batch of its own, offsets unchanged: what compaction and vacuum leave of it.

Like `merge`, it works column by column, and nothing of a message that goes is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.format import columns as c
from penstock.format.batch import Batch, batch_from_columns
from penstock.format.batch_header import COMPATIBLE_APPEND_TIMES, set_compatible_flag
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN = frozenset(
    [c.VALUE, c.KEY, c.HEADERS, c.TIME, c.EXPIRES, c.DELIVER, c.PRIORITY, c.DEDUP_KEY, c.OFFSETS, c.RUNS]
)  # fmt: skip


def can_select(batch: Batch) -> bool:
    """Whether this version knows all columns of *batch*; of one that it does not, no message may be taken out."""
    return _KNOWN.issuperset(batch.column_ids)


def select(batch: Batch, indexes: Sequence[int]) -> Batch:
    """
    The messages *indexes* (rising, at least one) of *batch*, which was verified and passed `can_select`.

    It has the times, epoch and durable end of its source, and belongs to no segment until it is stamped anew.
    """
    encoded: list[c.EncodedColumn] = []
    for column in batch.column_ids:
        view = batch._column(column)  # noqa: SLF001 - same package, and the columns are not public
        entry = batch.entry(column)
        assert entry is not None
        if column in (c.VALUE, c.KEY, c.DEDUP_KEY):
            encoded.append(_binary(column, view, indexes, Codec(entry.codec)))
        elif column == c.HEADERS:
            encoded.append(_headers(view, indexes, Codec(entry.codec)))
        elif column == c.PRIORITY:
            encoded.append(c.encode_numbers(column, [view.numbers[index] for index in indexes]))
        elif column in (c.TIME, c.EXPIRES, c.DELIVER):
            encoded.append(c.encode_numbers(column, [view.get(index) for index in indexes], entry.flags & c.RELATIVE))
    offsets = batch.offsets_of(indexes)
    first, count = offsets[0], len(indexes)
    span = offsets[-1] + 1 - first
    if span != count:
        encoded.append(c.encode_numbers(c.OFFSETS, [offset - first for offset in offsets]))
    if batch.runs():
        encoded.append(_runs(batch.runs(), indexes))
    header = batch.header
    made = batch_from_columns(
        encoded, count, span, producer=batch.producer, transaction=batch.transaction, schema_id=batch.schema_id
    )  # fmt: skip
    if header.compatible & COMPATIBLE_APPEND_TIMES:
        set_compatible_flag(made.data, COMPATIBLE_APPEND_TIMES)
    made.stamp(first, header.append_time_us, header.max_time_us, 0, header.durable_end, header.log_epoch)
    return Batch(made.data)


def _binary(column: int, view: c.BinaryColumn, indexes: Sequence[int], codec: Codec) -> c.EncodedColumn:
    table = view.offsets.tolist()
    data = view.data.get(0, view.data.raw_bytes)
    pieces = [data[table[index] : table[index + 1]] for index in indexes]
    flags, validity = 0, b""
    if view.validity is not None:
        bits = [c.is_valid(view.validity, index) for index in indexes]
        if not all(bits):
            flags, validity = c.HAS_NULLS, c.bitmap(bits)
    offsets = c.offset_table(map(len, pieces), len(pieces))
    return c.binary_from_parts(column, flags, validity, offsets, b"".join(pieces), codec, None)


def _headers(view: c.HeadersColumn, indexes: Sequence[int], codec: Codec) -> c.EncodedColumn:
    lists = view.list_offsets.tolist()
    pairs = [pair for index in indexes for pair in range(lists[index], lists[index + 1])]
    data = view.data.get(0, view.data.raw_bytes)
    tables = [c.offset_table([lists[index + 1] - lists[index] for index in indexes], len(indexes))]
    parts = []
    for source, base in ((view.name_offsets, 0), (view.value_offsets, view.name_region_bytes)):
        cuts = source.tolist()
        pieces = [data[base + cuts[pair] : base + cuts[pair + 1]] for pair in pairs]
        tables.append(c.offset_table(map(len, pieces), len(pieces)))
        parts.append(b"".join(pieces))
    return c.headers_from_parts(tables, parts[0], parts[1], codec, None)


def _runs(runs: list[c.Run], indexes: Sequence[int]) -> c.EncodedColumn:
    """The runs that still have messages."""
    chosen = []
    done = at = 0
    for run in runs:
        begin = at
        while at < len(indexes) and indexes[at] < run.end_index:
            at += 1
        done += at - begin
        if at > begin:
            chosen.append(run._replace(end_index=done))
    return c.encode_records(c.RUNS, b"".join([c.RUN.pack(*run) for run in chosen]))
