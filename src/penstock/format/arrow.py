"""
A batch as an Arrow RecordBatch. Needs pyarrow (the extra `arrow`); nothing else in the engine does.

Where a column is not compressed its buffers are wrapped, not copied: the Arrow arrays keep the batch's buffer alive.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.errors import BadColumn
from penstock.format import columns as c
from penstock.format.batch_header import COMPATIBLE_APPEND_TIMES
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.format.batch import Batch

COLUMNS = ("offset", "timestamp", "key", "value", "headers", "priority", "expires_at", "deliver_at")
EXTRA_COLUMNS = ("timestamp_type", "appended_at")
"""Given only where they are named."""


@lru_cache(maxsize=1)
def library() -> Any:
    """Pyarrow. Raises `ImportError` with what to install."""
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise ImportError("to_arrow needs pyarrow: pip install 'penstock[arrow]'") from None
    assert sys.byteorder == "little"
    return pa


@lru_cache(maxsize=1)
def _types() -> dict[str, Any]:
    pa = library()
    moment = pa.timestamp("us", tz="UTC")
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": moment,
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(header),
        "header": header,
        "priority": pa.uint8(),
        "expires_at": moment,
        "deliver_at": moment,
        "timestamp_type": pa.int32(),
        "appended_at": moment,
    }


@lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> Any:
    """The schema of a RecordBatch with these columns. Raises `BadColumn`."""
    pa, types = library(), _types()
    for name in names:
        if name not in types or name == "header":
            raise BadColumn(name, f"unknown, use {', '.join(('partition', *COLUMNS, *EXTRA_COLUMNS))}")
    return pa.schema([pa.field(name, types[name]) for name in names])


def with_partition(table: Any, partition: int, names: tuple[str, ...]) -> Any:
    """The columns *names* of a RecordBatch that has all of them but `partition`, which is the same for all its messages."""
    pa = library()
    numbers = pa.repeat(pa.scalar(partition, pa.int32()), table.num_rows)
    arrays = [numbers if name == "partition" else table.column(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(names))


@lru_cache(maxsize=1)
def _counting() -> Any:
    """0, 1, 2, ...: adding a first offset to a slice of it is the fastest way to an offset column."""
    from array import array

    pa = library()
    from penstock.values import BATCH_MESSAGES_MAX

    return pa.Array.from_buffers(pa.int64(), BATCH_MESSAGES_MAX, [None, pa.py_buffer(array("q", range(BATCH_MESSAGES_MAX)))])


@lru_cache(maxsize=64)
def _nulls(name: str, count: int) -> Any:
    """A column that no message has a value in; immutable, so it is shared."""
    return library().nulls(count, _types()[name])


@lru_cache(maxsize=64)
def _zeros(count: int) -> Any:
    pa = library()
    return pa.repeat(pa.scalar(0, pa.uint8()), count)


def to_arrow(batch: Batch, names: Sequence[str] | None) -> Any:
    """The messages of *batch* as a RecordBatch with the columns *names*, default all of `COLUMNS`."""
    pa = library()
    wanted = COLUMNS if names is None else tuple(names)
    whole = pa.py_buffer(batch.buffer)
    arrays = []
    for name in wanted:
        build = _BUILDERS.get(name)
        if build is None:
            raise BadColumn(name, f"unknown, use {', '.join(COLUMNS + EXTRA_COLUMNS)}")
        arrays.append(build(pa, batch, whole))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(wanted))


def _binary(pa: Any, batch: Batch, whole: Any, column: int) -> Any:
    entry = batch.entry(column)
    count = batch.header.count
    if entry is None:
        return _nulls("value", count)
    at = entry.position
    validity = None
    if entry.flags & c.HAS_NULLS:
        length = c.bitmap_bytes(count)
        validity = whole.slice(at, length)
        at += length
    table = (count + 1) * 4
    if entry.codec == Codec.NONE:
        data_at = at + table + (-table & 7)
        data = whole.slice(data_at, min(entry.raw_bytes, len(batch.buffer) - data_at))
    else:
        view: c.BinaryColumn = batch._column(column)  # noqa: SLF001
        data = pa.py_buffer(view.data.get(0, entry.raw_bytes))
    return pa.Array.from_buffers(pa.binary(), count, [validity, whole.slice(at, table), data])


def _value(pa: Any, batch: Batch, whole: Any) -> Any:
    return _binary(pa, batch, whole, c.VALUE)


def _key(pa: Any, batch: Batch, whole: Any) -> Any:
    return _binary(pa, batch, whole, c.KEY)


def _headers(pa: Any, batch: Batch, whole: Any) -> Any:
    types = _types()
    entry = batch.entry(c.HEADERS)
    count = batch.header.count
    if entry is None:
        return _nulls("headers", count)
    view: c.HeadersColumn = batch._column(c.HEADERS)  # noqa: SLF001
    at = entry.position
    buffers = []
    for table in (view.list_offsets, view.name_offsets, view.value_offsets):
        length = len(table) * 4
        buffers.append(whole.slice(at, length))
        at += length + (-length & 7)
    pairs = len(view.name_offsets) - 1
    if entry.codec == Codec.NONE:
        data = whole.slice(at, entry.raw_bytes)
    else:
        data = pa.py_buffer(view.data.get(0, entry.raw_bytes))
    split = view.name_region_bytes
    names = pa.Array.from_buffers(pa.string(), pairs, [None, buffers[1], data.slice(0, split)])
    values = pa.Array.from_buffers(pa.binary(), pairs, [None, buffers[2], data.slice(split)])
    struct = pa.StructArray.from_arrays([names, values], fields=list(types["header"]))
    return pa.Array.from_buffers(types["headers"], count, [None, buffers[0]], children=[struct])


def _offset(pa: Any, batch: Batch, whole: Any) -> Any:
    count = batch.header.count
    entry = batch.entry(c.OFFSETS)
    if entry is None:
        deltas = _counting().slice(0, count)
    else:
        deltas = pa.Array.from_buffers(pa.uint32(), count, [None, whole.slice(entry.position, count * 4)]).cast(pa.int64())
    return pa.compute.add(deltas, pa.scalar(batch.header.first_offset, pa.int64()))


def _times(pa: Any, batch: Batch, whole: Any, column: int) -> Any:
    entry = batch.entry(column)
    count = batch.header.count
    moment = _types()["timestamp"]
    if entry is None:
        return _nulls("timestamp", count)
    at = entry.position
    validity = None
    if entry.flags & c.HAS_NULLS:
        length = c.bitmap_bytes(count)
        validity = whole.slice(at, length)
        at += length
    buffers = [validity, whole.slice(at, count * 8)]
    if not entry.flags & c.RELATIVE:
        return pa.Array.from_buffers(moment, count, buffers)
    base = batch.header.append_time_us
    if not c.TIME_MIN <= entry.min + base <= entry.max + base <= c.TIME_MAX:
        # Beyond the last moment there is: read one by one, which stops there.
        return pa.array([batch.moment(column, index) for index in range(count)], pa.int64()).cast(moment)
    numbers = pa.Array.from_buffers(pa.int64(), count, buffers)
    return pa.compute.add(numbers, pa.scalar(batch.header.append_time_us, pa.int64())).cast(moment)


def _timestamp(pa: Any, batch: Batch, whole: Any) -> Any:
    entry = batch.entry(c.TIME)
    if entry is not None and not entry.flags & c.HAS_NULLS:
        return _times(pa, batch, whole, c.TIME)
    count = batch.header.count
    moment = _types()["timestamp"]
    if entry is None and batch.entry(c.RUNS) is None:
        return pa.repeat(pa.scalar(batch.header.append_time_us, moment), count)
    return pa.array([batch.time_us(index) for index in range(count)], pa.int64()).cast(moment)


def _timestamp_type(pa: Any, batch: Batch, whole: Any) -> Any:
    """0 where the publisher gave the time, 1 where it is the time of appending, as Kafka counts them."""
    count = batch.header.count
    entry = batch.entry(c.TIME)
    if entry is None or batch.header.compatible & COMPATIBLE_APPEND_TIMES:
        return pa.repeat(pa.scalar(1, pa.int32()), count)
    if not entry.flags & c.HAS_NULLS:
        return pa.repeat(pa.scalar(0, pa.int32()), count)
    return _times(pa, batch, whole, c.TIME).is_null().cast(pa.int32())


def _appended_at(pa: Any, batch: Batch, whole: Any) -> Any:
    """When the owner of the store wrote it to the log, whatever its publisher said of its time."""
    count = batch.header.count
    moment = _types()["appended_at"]
    if batch.header.compatible & COMPATIBLE_APPEND_TIMES:
        return _times(pa, batch, whole, c.TIME)
    if batch.entry(c.RUNS) is None:
        return pa.repeat(pa.scalar(batch.header.append_time_us, moment), count)
    parts, begin = [], 0
    for run in batch.runs():
        parts.append(pa.repeat(pa.scalar(run.append_time_us, moment), run.end_index - begin))
        begin = run.end_index
    return pa.concat_arrays(parts)


def _priority(pa: Any, batch: Batch, whole: Any) -> Any:
    count = batch.header.count
    entry = batch.entry(c.PRIORITY)
    if entry is None:
        return _zeros(count)
    return pa.Array.from_buffers(pa.uint8(), count, [None, whole.slice(entry.position, count)])


def _expires_at(pa: Any, batch: Batch, whole: Any) -> Any:
    entry = batch.entry(c.EXPIRES)
    if batch.ttl_us and (entry is None or entry.flags & c.HAS_NULLS):
        # Some or all of them expire by the topic's ttl.
        times = [batch.expires_us(index) for index in range(batch.header.count)]
        return pa.array(times, pa.int64()).cast(_types()["timestamp"])
    return _times(pa, batch, whole, c.EXPIRES)


def _deliver_at(pa: Any, batch: Batch, whole: Any) -> Any:
    return _times(pa, batch, whole, c.DELIVER)


_BUILDERS: dict[str, Callable[[Any, Batch, Any], Any]] = {
    "offset": _offset,
    "timestamp": _timestamp,
    "key": _key,
    "value": _value,
    "headers": _headers,
    "priority": _priority,
    "expires_at": _expires_at,
    "deliver_at": _deliver_at,
    "timestamp_type": _timestamp_type,
    "appended_at": _appended_at,
}
