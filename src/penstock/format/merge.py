"""
Cutting a batch and merging batches, column by column.

Both work on parts: the bits, offsets and data of messages [start, stop) of one column of one batch. A cut is one part; a
merge is the parts of many batches put behind each other. Values are moved as ranges of bytes, never one by one.

A merged batch keeps what its sources said: offsets (listed if they are not dense), message times (made absolute, since each
source had its own time of appending), producer and transaction of each source in the runs column. Where no source has any of
these, the time column alone tells when each message was appended, and a flag says so.

A join is a merge of batches that no log has taken yet: there is nothing to keep of them but their messages.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, cast

from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch, batch_from_columns, encode_batch
from penstock.format.batch_header import COMPATIBLE_APPEND_TIMES, FLAG_PRODUCER, FLAG_TRANSACTION, set_compatible_flag
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMES = (c.EXPIRES, c.DELIVER)

Part = tuple[Batch, int, int]


def cut(batch: Batch, start: int, stop: int) -> EncodedBatch:
    """
    Messages [start, stop) of *batch* as a batch of its own.

    Times that were relative stay relative, so the cut batch must be stamped with the append time of its source.
    """
    parts: list[Part] = [(batch, start, stop)]
    encoded = _join_columns(parts, _codec_of([batch]), None, absolute=False)
    first = batch.offset(start)
    span = batch.offset(stop - 1) + 1 - first
    if span != stop - start:
        encoded.append(c.encode_numbers(c.OFFSETS, [batch.offset(index) - first for index in range(start, stop)]))
    if batch.runs():
        encoded.append(_encode_runs(_runs_of(batch, start, stop)))
    result = batch_from_columns(encoded, stop - start, span, transaction=batch.transaction, schema_id=batch.schema_id)
    if batch.header.compatible & COMPATIBLE_APPEND_TIMES:
        set_compatible_flag(result.data, COMPATIBLE_APPEND_TIMES)
    return result


def merge(batches: Sequence[Batch], codec: Codec = Codec.NONE, level: int | None = None) -> EncodedBatch:
    """
    One batch with all messages of *batches*, which follow each other in one log and have the same schema.

    The caller stamps it with the first offset of the first, the append time of the first and the max time of the last. Without a
    *codec* it is compressed if one of them is.
    """
    parts: list[Part] = [(batch, 0, batch.header.count) for batch in batches]
    count = sum(batch.header.count for batch in batches)
    first = batches[0].first_offset
    span = batches[-1].end_offset - first
    if codec is Codec.NONE:
        codec = _codec_of(batches)
    encoded = _join_columns(parts, codec, level, absolute=True)
    if span != count:
        deltas: list[int] = []
        for batch in batches:
            view = batch._column(c.OFFSETS)  # noqa: SLF001 - same package, and the numbers are not public
            base = batch.first_offset - first
            numbers = range(batch.header.count) if view is None else view.numbers.tolist()
            deltas.extend([base + number for number in numbers])
        encoded.append(c.encode_numbers(c.OFFSETS, deltas))
    plain = all(is_plain(batch) for batch in batches)
    if not plain:
        runs: list[c.Run] = []
        done = 0
        for batch in batches:
            runs.extend([run._replace(end_index=run.end_index + done) for run in _runs_of(batch, 0, batch.header.count)])
            done += batch.header.count
        encoded.append(_encode_runs(runs))
    merged = batch_from_columns(encoded, count, span, schema_id=batches[0].schema_id)
    if plain:
        set_compatible_flag(merged.data, COMPATIBLE_APPEND_TIMES)
    return merged


def join(batches: Sequence[Batch], codec: Codec = Codec.NONE, level: int | None = None) -> EncodedBatch:
    """
    One batch with all messages of *batches*, which no log has taken yet: what they leave to the appending is left to it.

    They name no producer, transaction or schema, and where they tell when messages expire or are due all of them count from the appending,
    or none of them does. Without a *codec* it is compressed if one of them is. Raises `BatchTooLarge`.
    """
    count = sum(batch.header.count for batch in batches)
    if codec is Codec.NONE:
        codec = _codec_of(batches)
    encoded = _join_columns([(batch, 0, batch.header.count) for batch in batches], codec, level, absolute=False)
    return batch_from_columns(encoded, count, count)


def merge_values(
    values: list[bytes | memoryview], append_times_us: list[int], codec: Codec = Codec.NONE, level: int | None = None
) -> EncodedBatch:
    """What `merge` makes of batches that each hold one value and nothing else, sooner."""
    merged = encode_batch(cast("list[bytes | None]", values), times_us=append_times_us, codec=codec, level=level)
    set_compatible_flag(merged.data, COMPATIBLE_APPEND_TIMES)
    return merged


def is_plain(batch: Batch) -> bool:
    """Whether a batch says nothing of producers, transactions or message times, so that merging needs no runs."""
    if batch.header.compatible & COMPATIBLE_APPEND_TIMES:
        return True
    extended = batch.header.incompatible & (FLAG_PRODUCER | FLAG_TRANSACTION)
    return not extended and batch.entry(c.TIME) is None and batch.entry(c.RUNS) is None


def _codec_of(batches: Sequence[Batch]) -> Codec:
    for batch in batches:
        for column in (c.VALUE, c.KEY, c.HEADERS):
            entry = batch.entry(column)
            if entry is not None and entry.codec:
                return Codec(entry.codec)
    return Codec.NONE


def _join_columns(parts: list[Part], codec: Codec, level: int | None, *, absolute: bool) -> list[c.EncodedColumn]:
    present = {column for batch, _, _ in parts for column in batch.column_ids}
    encoded = [_join_binary(c.VALUE, parts, codec, level)]
    if c.KEY in present:
        encoded.append(_join_binary(c.KEY, parts, codec, level))
    if c.HEADERS in present:
        encoded.append(_join_headers(parts, codec, level))
    if absolute or c.TIME in present:
        encoded.append(_join_message_times(parts, absolute=absolute))
    encoded += [_join_moments(column, parts, absolute=absolute) for column in _TIMES if column in present]
    if c.PRIORITY in present:
        encoded.append(c.encode_numbers(c.PRIORITY, _join_priorities(parts)))
    if c.DEDUP_KEY in present:
        encoded.append(_join_binary(c.DEDUP_KEY, parts, Codec.NONE, None))
    return encoded


def _join_priorities(parts: list[Part]) -> list[int]:
    numbers: list[int] = []
    for batch, start, stop in parts:
        view: c.NumberColumn | None = batch._column(c.PRIORITY)  # noqa: SLF001
        numbers.extend([0] * (stop - start) if view is None else view.numbers[start:stop].tolist())
    return numbers


def _join_binary(column: int, parts: list[Part], codec: Codec, level: int | None) -> c.EncodedColumn:
    nulls = 0
    count = 0
    offsets = array("i", [0])
    data: list[memoryview | bytes] = []
    done = 0
    for batch, start, stop in parts:
        length = stop - start
        view: c.BinaryColumn | None = batch._column(column)  # noqa: SLF001
        if view is None:
            offsets.extend([done] * length)
            nulls |= ((1 << length) - 1) << count
        else:
            table = view.offsets[start : stop + 1].tolist()
            data.append(view.data.get(table[0], table[-1]))
            shift = done - table[0]
            offsets.extend([number + shift for number in table[1:]])
            done = offsets[-1]
            if view.validity is not None:
                nulls |= (~int.from_bytes(view.validity, "little") >> start & (1 << length) - 1) << count
        count += length
    flags, validity = 0, b""
    if nulls:
        flags, validity = c.HAS_NULLS, (nulls ^ (1 << count) - 1).to_bytes(c.bitmap_bytes(count), "little")
    return c.binary_from_parts(column, flags, validity, offsets.tobytes(), b"".join(data), codec, level)


def _join_headers(parts: list[Part], codec: Codec, level: int | None) -> c.EncodedColumn:
    lists, names, values = array("i", [0]), array("i", [0]), array("i", [0])
    name_data: list[memoryview] = []
    value_data: list[memoryview] = []
    for batch, start, stop in parts:
        view: c.HeadersColumn | None = batch._column(c.HEADERS)  # noqa: SLF001
        if view is None:
            lists.extend([lists[-1]] * (stop - start))
            continue
        table = view.list_offsets[start : stop + 1].tolist()
        shift = lists[-1] - table[0]
        lists.extend([number + shift for number in table[1:]])
        begin, end = table[0], table[-1]
        for source, base, target, data in (
            (view.name_offsets, 0, names, name_data),
            (view.value_offsets, view.name_region_bytes, values, value_data),
        ):
            cuts = source[begin : end + 1].tolist()
            data.append(view.data.get(base + cuts[0], base + cuts[-1]))
            shift = target[-1] - cuts[0]
            target.extend([number + shift for number in cuts[1:]])
    tables = [lists.tobytes(), names.tobytes(), values.tobytes()]
    return c.headers_from_parts(tables, b"".join(name_data), b"".join(value_data), codec, level)


def _join_message_times(parts: list[Part], *, absolute: bool) -> c.EncodedColumn:
    numbers: list[int | None] = []
    for batch, start, stop in parts:
        view: c.NumberColumn | None = batch._column(c.TIME)  # noqa: SLF001
        if view is None and not batch.runs():
            numbers.extend([batch.header.append_time_us if absolute else None] * (stop - start))
        elif view is not None and view.validity is None:
            numbers.extend(view.numbers[start:stop].tolist())
        elif absolute:
            numbers.extend([batch.time_us(index) for index in range(start, stop)])
        else:
            numbers.extend([None if view is None else view.get(index) for index in range(start, stop)])
    return c.encode_numbers(c.TIME, numbers)


def _join_moments(column: int, parts: list[Part], *, absolute: bool) -> c.EncodedColumn:
    numbers: list[int | None] = []
    entries = [entry for batch, _, _ in parts if (entry := batch.entry(column)) is not None]
    relative = not absolute and all(entry.flags & c.RELATIVE for entry in entries)
    for batch, start, stop in parts:
        if batch.entry(column) is None:
            numbers.extend([None] * (stop - start))
            continue
        base = batch.header.append_time_us if relative else 0
        moments = batch.moments(column, start, stop)
        numbers.extend([None if moment is None else moment - base for moment in moments] if base else moments)
    return c.encode_numbers(column, numbers, c.RELATIVE if relative else 0)


def _runs_of(batch: Batch, start: int, stop: int) -> list[c.Run]:
    """The runs of messages [start, stop), with indexes that count from *start*."""
    runs = batch.runs()
    if batch.header.compatible & COMPATIBLE_APPEND_TIMES:
        return _runs_of_times(batch, start, stop)
    if not runs:
        return [single_run(batch, stop - start, batch.offset(start) if start else batch.first_offset)]
    chosen: list[c.Run] = []
    begin = 0
    for run in runs:
        if run.end_index > start and begin < stop:
            chosen.append(run._replace(end_index=min(run.end_index, stop) - start))
        begin = run.end_index
    return chosen


def _runs_of_times(batch: Batch, start: int, stop: int) -> list[c.Run]:
    """One run for each message of a batch that lists when its messages were appended."""
    runs = []
    highest = max([batch.append_time_us(index) for index in range(start)], default=c.TIME_MIN)
    highest = max(highest, batch.header.append_time_us)
    for index in range(start, stop):
        time_us = batch.append_time_us(index)
        highest = max(highest, time_us)
        runs.append(c.Run(index + 1 - start, 0, time_us, highest, 0, 0, 0, 0, 0, batch.offset(index)))
    return runs


def single_run(batch: Batch, count: int, first_offset: int) -> c.Run:
    """What a merged batch remembers of *batch*, which was not merged before."""
    header = batch.header
    producer, transaction = batch.producer, batch.transaction
    flags = (c.RUN_PRODUCER if producer else 0) | (c.RUN_TRANSACTION if transaction else 0)
    return c.Run(
        end_index=count,
        flags=flags,
        append_time_us=header.append_time_us,
        max_time_us=header.max_time_us,
        producer_id=producer.id if producer else 0,
        producer_sequence=producer.sequence if producer else 0,
        producer_incarnation=producer.incarnation if producer else 0,
        transaction_part=transaction.part if transaction else 0,
        transaction_number=transaction.number if transaction else 0,
        first_offset=first_offset,
    )


def _encode_runs(runs: list[c.Run]) -> c.EncodedColumn:
    return c.encode_records(c.RUNS, b"".join([c.RUN.pack(*run) for run in runs]))
