"""
A batch made of an Arrow RecordBatch, the other way round of `arrow.py`: buffers are copied once, and nothing is done per message.

Needs pyarrow (the extra `arrow`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import BadColumn, MessageTooLarge
from penstock.format import columns as c
from penstock.format.arrow import library
from penstock.format.batch import batch_from_columns
from penstock.format.compression import Codec
from penstock.values import HEADER_NAME_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX

if TYPE_CHECKING:
    from penstock.format.batch import EncodedBatch

COLUMNS = ("value", "key", "headers", "timestamp", "expires_at", "deliver_at", "priority")
_TIMES = {"timestamp": c.TIME, "expires_at": c.EXPIRES, "deliver_at": c.DELIVER}
_PRIORITY_MAX = 2
_BINARY_LIKE = ("binary", "string", "large_binary", "large_string", "binary_view", "string_view", "null")


def prepare(name: str, array: Any) -> Any:
    """A column in the type that `encode` takes, None if no message has a value in it. Raises `BadColumn`."""
    pa = library()
    if name not in COLUMNS:
        raise BadColumn(name, f"unknown, use {', '.join(COLUMNS)}")
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if name != "value" and array.null_count == len(array):
        return None
    kind = array.type
    try:
        if name in ("value", "key"):
            if str(kind) not in _BINARY_LIKE:
                raise BadColumn(name, f"must be binary or string, not {kind}")
            return array.cast(pa.binary())
        if name == "priority":
            return _prepare_priority(pa, array)
        if name in _TIMES:
            if not pa.types.is_timestamp(kind):
                raise BadColumn(name, f"must be a timestamp, not {kind}")
            return array.cast(pa.timestamp("us", kind.tz))
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2):
            raise BadColumn(name, f"must be a list of structs of key and value, not {kind}")
        return array.cast(pa.list_(header))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadColumn(name, str(error)) from None


def sizes(columns: dict[str, Any]) -> Any:
    """How many bytes each message has in its value, key and headers: an Arrow array of i64. The columns are as `prepare` gives them."""
    pa = library()
    compute = pa.compute
    total = compute.fill_null(compute.binary_length(columns["value"]), 0).cast(pa.int64())
    if "key" in columns:
        lengths = compute.fill_null(compute.binary_length(columns["key"]), 0)
        longest = compute.max(lengths).as_py()
        if longest > KEY_BYTES_MAX:
            raise MessageTooLarge("a key", longest, KEY_BYTES_MAX)
        total = compute.add(total, lengths)
    if "headers" in columns:
        counts, names, values = _pairs(columns["headers"])
        lengths = compute.add(compute.binary_length(names), compute.binary_length(values)).cast(pa.int64())
        before = _running(pa, lengths, pa.int64())
        ends = _running(pa, counts, pa.int32())
        total = compute.add(total, compute.subtract(before.take(ends.slice(1)), before.take(ends.slice(0, len(ends) - 1))))
    return total


def encode(columns: dict[str, Any], codec: Codec = Codec.NONE, level: int | None = None) -> EncodedBatch:
    """A batch of columns as `prepare` gives them. Raises `BadColumn`, `BatchTooLarge`, `MessageTooLarge`."""
    pa = library()
    count = len(columns["value"])
    if not count:
        raise BadColumn("value", "a batch has at least one message")
    parts = [_binary(pa, c.VALUE, columns["value"], codec, level)]
    if "key" in columns:
        parts.append(_binary(pa, c.KEY, columns["key"], codec, level))
    if "headers" in columns:
        parts.append(_headers(pa, columns["headers"], codec, level))
    parts += [_times(pa, columns[name], column) for name, column in _TIMES.items() if name in columns]
    if "priority" in columns:
        parts.append(_priority(columns["priority"]))
    return batch_from_columns(parts, count, count)


def _validity(pa: Any, array: Any) -> tuple[int, bytes]:
    if not array.null_count:
        return 0, b""
    count = len(array)
    bits = pa.compute.is_valid(array)
    start = bits.offset
    number = int.from_bytes(memoryview(bits.buffers()[1])[: (start + count + 7) // 8], "little") >> start
    return c.HAS_NULLS, (number & ((1 << count) - 1)).to_bytes(c.bitmap_bytes(count), "little")


def _strings(pa: Any, array: Any) -> tuple[bytes, memoryview]:
    """The offset table, beginning with 0, and the data of an array of binary or string."""
    count = len(array)
    _, table, data = array.buffers()
    if not count:
        return bytes(4), memoryview(b"")
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, table], offset=array.offset)
    first, last = offsets[0].as_py(), offsets[count].as_py()
    if first:
        offsets = pa.compute.subtract(offsets, pa.scalar(first, pa.int32()))
    at = offsets.offset * 4
    found = memoryview(offsets.buffers()[1])[at : at + (count + 1) * 4]
    return bytes(found), memoryview(b"") if data is None else memoryview(data)[first:last]


def _binary(pa: Any, column: int, array: Any, codec: Codec, level: int | None) -> c.EncodedColumn:
    flags, validity = _validity(pa, array)
    table, data = _strings(pa, array)
    return c.binary_from_parts(column, flags, validity, table, data, codec, level)  # type: ignore[arg-type]  # bytes-like


def _pairs(array: Any) -> tuple[Any, Any, Any]:
    """How many headers each message has, and the names and values of all of them."""
    compute = library().compute
    counts = compute.fill_null(compute.list_value_length(array), 0)
    pairs = array.flatten()
    if pairs.null_count:
        raise BadColumn("headers", "a header must not be null")
    names, values = pairs.flatten()
    if names.null_count or values.null_count:
        raise BadColumn("headers", "the name and the value of a header must not be null")
    return counts, names, values


def _running(pa: Any, numbers: Any, kind: Any) -> Any:
    """0, and then the running sum of *numbers*."""
    return pa.concat_arrays([pa.array([0], kind), pa.compute.cumulative_sum(numbers.cast(kind))])


def _headers(pa: Any, array: Any, codec: Codec, level: int | None) -> c.EncodedColumn:
    compute = pa.compute
    counts, names, values = _pairs(array)
    most = compute.max(counts).as_py() or 0
    if most > HEADERS_MAX:
        raise MessageTooLarge("the number of headers of a message", most, HEADERS_MAX)
    longest = compute.max(compute.binary_length(names)).as_py() or 0
    if longest > HEADER_NAME_BYTES_MAX:
        raise MessageTooLarge("a header name", longest, HEADER_NAME_BYTES_MAX)
    lists = _running(pa, counts, pa.int32())
    name_table, name_data = _strings(pa, names)
    value_table, value_data = _strings(pa, values)
    tables = [bytes(lists.buffers()[1])[: len(lists) * 4], name_table, value_table]
    return c.headers_from_parts(tables, bytes(name_data), bytes(value_data), codec, level)


def _prepare_priority(pa: Any, array: Any) -> Any:
    """As bytes, without nulls; None if all are low."""
    if not pa.types.is_integer(array.type):
        raise BadColumn("priority", f"must be a whole number, not {array.type}")
    bounds = pa.compute.min_max(array).as_py()
    if bounds["min"] < 0 or bounds["max"] > _PRIORITY_MAX:
        raise BadColumn(
            "priority", f"must be from 0 (low) to {_PRIORITY_MAX} (high), there is {bounds['min']} to {bounds['max']}"
        )
    return pa.compute.fill_null(array, 0).cast(pa.uint8()) if bounds["max"] else None


def _priority(array: Any) -> c.EncodedColumn:
    table = bytes(memoryview(array.buffers()[1])[array.offset : array.offset + len(array)])
    parts = [table, c.padding(len(table))]
    return c.EncodedColumn(c.PRIORITY, Codec.NONE, 0, parts, sum(map(len, parts)), min(table), max(table))


def _rises(compute: Any, numbers: Any) -> bool:
    return bool(compute.all(compute.less_equal(numbers.slice(0, len(numbers) - 1), numbers.slice(1)), min_count=0).as_py())


def _times(pa: Any, array: Any, column: int) -> c.EncodedColumn:
    compute = pa.compute
    numbers = array.cast(pa.int64())
    flags, validity = _validity(pa, numbers)
    bounds = compute.min_max(numbers).as_py()
    if flags:
        numbers = compute.fill_null(numbers, 0)
    elif column == c.TIME and _rises(compute, numbers):
        flags |= c.SORTED
    at = numbers.offset * 8
    table = bytes(memoryview(numbers.buffers()[1])[at : at + len(numbers) * 8])
    return c.EncodedColumn(
        column, Codec.NONE, flags, [validity, table], len(validity) + len(table), bounds["min"], bounds["max"]
    )
