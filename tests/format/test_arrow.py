"""Batches as Arrow: the same messages, in arrays that Arrow finds valid, without copying where nothing must be inflated."""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadColumn
from penstock.format.arrow import COLUMNS
from penstock.format.batch import Batch, encode_batch, encode_single
from penstock.format.compression import Codec
from penstock.format.merge import merge
from tests.format.strategies import Columns, columns, messages, stamped

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))),
        ("priority", pa.uint8()),
        ("expires_at", pa.timestamp("us", tz="UTC")),
        ("deliver_at", pa.timestamp("us", tz="UTC")),
    ]
)


def rows(table: Any) -> list[dict[str, Any]]:
    """The rows as plain values; times as numbers, since Python's dates end in the year 9999."""
    times = [pa.field(field.name, pa.int64()) if pa.types.is_timestamp(field.type) else field for field in table.schema]
    return table.cast(pa.schema(times)).to_pylist()  # type: ignore[no-any-return]


def expected(batch: Batch) -> list[dict[str, Any]]:
    has_headers = 3 in batch.column_ids
    return [
        {
            "offset": message.offset,
            "timestamp": message.time_us,
            "key": message.key,
            "value": message.value,
            "headers": [{"key": name, "value": value} for name, value in message.headers] if has_headers else None,
            "priority": message.priority,
            "expires_at": message.expires_us,
            "deliver_at": message.deliver_us,
        }
        for message in messages(batch)
    ]


def buffers_of(array: Any) -> list[Any]:
    return [buffer for buffer in array.buffers() if buffer is not None and buffer.size]


def is_inside(buffer: Any, batch: Batch) -> bool:
    """Whether an Arrow buffer is a part of the batch's own memory."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(batch.buffer.obj))
    return bool(start <= buffer.address and buffer.address + buffer.size <= start + len(batch.buffer))


@given(columns())
def test_arrow_shows_the_messages(given_columns: Columns) -> None:
    """All columns, null where the batch has none; Arrow's own full check finds nothing."""
    batch = given_columns.stored()
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert rows(table) == expected(batch)


@given(st.lists(columns(), min_size=1, max_size=3))
def test_arrow_shows_the_messages_of_merged_batches(sources: list[Columns]) -> None:
    """With the times that each source had."""
    batches = []
    offset = 0
    for source in sources:
        batches.append(stamped(source.encode(schema_id=None), offset, source.append_time_us))
        offset = batches[-1].end_offset
    batch = stamped(merge(batches), 0, sources[0].append_time_us)
    table = batch.to_arrow()
    table.validate(full=True)
    assert rows(table) == expected(batch)


def full(codec: Codec = Codec.NONE) -> Batch:
    return stamped(
        encode_batch(
            [b"value " * 300, None, b""],
            keys=[b"key " * 300, b"", None],
            headers=[[("name", b"value " * 300)], None, [("n", b"")]],
            times_us=[1, 2, 3],
            expires_us=[4, None, 6],
            deliver_us=[7, 8, 9],
            priorities=[1, 2, 3],
            codec=codec,
        )
    )


@pytest.mark.parametrize("name", ["timestamp", "key", "value", "headers", "priority", "expires_at", "deliver_at"])
def test_an_uncompressed_column_is_not_copied(name: str) -> None:
    """All of its buffers lie inside the batch's own buffer."""
    batch = full()
    found = buffers_of(batch.to_arrow([name]).column(0))
    assert found
    assert all(is_inside(buffer, batch) for buffer in found)


@pytest.mark.parametrize("name", ["key", "value", "headers"])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_of_a_compressed_column_only_the_data_is_new(codec: Codec, name: str) -> None:
    """Validity and offsets are still those of the batch."""
    batch = full(codec)
    array = batch.to_arrow([name]).column(0)
    array.validate(full=True)
    inside = [is_inside(buffer, batch) for buffer in buffers_of(array)]
    assert inside.count(True) >= 1
    assert inside.count(False) == (2 if name == "headers" else 1)
    assert batch.to_arrow() == full().to_arrow()


def test_arrow_keeps_the_memory_of_the_batch_alive() -> None:
    """The arrays can be used after the batch is gone."""
    array = full().to_arrow(["value"]).column(0)
    assert array.to_pylist() == [b"value " * 300, None, b""]


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    """In the order asked for; nothing else is inflated or looked at."""
    batch = full(Codec.ZSTD)
    table = batch.to_arrow(["priority", "offset"])
    assert table.schema.names == ["priority", "offset"]
    assert table.to_pylist() == [{"priority": 1, "offset": 0}, {"priority": 2, "offset": 1}, {"priority": 3, "offset": 2}]
    assert not batch._columns
    assert batch.to_arrow([]).num_columns == 0
    for name in COLUMNS:
        assert batch.to_arrow([name]).column(0) == batch.to_arrow().column(name)


def test_an_unknown_column_is_refused() -> None:
    """With the names that there are."""
    with pytest.raises(BadColumn, match="timestamp"):
        full().to_arrow(["values"])


def test_the_whole_batch_is_made_once() -> None:
    """Asking again gives the same object."""
    batch = full()
    assert batch.to_arrow() is batch.to_arrow()


def test_a_slice_is_a_part_of_the_same_arrays() -> None:
    """Nothing is copied for it."""
    batch = full()
    part = batch.slice(1, 3).to_arrow()
    part.validate(full=True)
    assert rows(part) == expected(batch)[1:]
    assert part.column("value").buffers()[2].address == batch.to_arrow().column("value").buffers()[2].address


def test_the_shortest_batches_are_valid() -> None:
    """Columns without any data, at the very end of the buffer."""
    for batch in (
        stamped(encode_single(b"")),
        stamped(encode_batch([None], keys=[None], headers=[[]])),
        stamped(encode_batch([b""], headers=[None])),
    ):
        table = batch.to_arrow()
        table.validate(full=True)
        assert rows(table) == expected(batch)


def test_a_relative_time_as_late_as_can_be_is_the_same_in_arrow() -> None:
    """
    It is not before all others because a sum went over the edge.

    Found by reading: Arrow's `add` wraps around, so that what should never expire had expired.
    """
    far = (1 << 63) - 1
    batch = stamped(encode_batch([b"a", b"b", b"c", b"d"], expires_us=[far, None, -5, far - 1], expires_relative=True), 0, 1000)
    assert batch.to_arrow(["expires_at"]).column(0).cast(pa.int64()).to_pylist() == [
        batch.expires_us(index) for index in range(4)
    ]
    assert batch.expires_us(0) == far
