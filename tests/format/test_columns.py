"""Columns with right checksums and wrong contents: they are refused when they are read, and by `Batch.check` at once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.fuzz import mend_batch
from penstock.errors import BadBytes, PenstockError, UnsupportedFormat
from penstock.format import columns as c
from penstock.format.batch import Batch, batch_from_columns, encode_batch
from penstock.format.batch_header import Producer
from penstock.format.compression import Codec
from penstock.format.merge import merge
from penstock.values import BATCH_BYTES_MAX
from tests.format.strategies import messages, stamped

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_FIELDS = {"column": (0, "<B"), "codec": (1, "<B"), "flags": (2, "<H"), "crc": (4, "<I"), "position": (8, "<I"),
                "stored_bytes": (12, "<I"), "raw_bytes": (16, "<I")}  # fmt: skip


def full() -> Batch:
    """A batch with every column that a publisher can fill."""
    return stamped(
        encode_batch(
            [b"one", None, b"three"],
            keys=[b"k", None, b""],
            headers=[[("name", b"value")], None, [("n", b"v"), ("n", b"w")]],
            times_us=[1, None, 3],
            expires_us=[4, 5, 6],
            deliver_us=[7, None, 9],
            priorities=[1, 2, 3],
            dedup_keys=[b"d", None, b"e"],
            offset_deltas=[0, 2, 4],
            offset_span=6,
        )
    )


def with_entry(batch: Batch, changed: int, **fields: int) -> bytearray:
    """The batch with other fields in the directory entry of the column *changed*, and every checksum right."""
    data = bytearray(batch.buffer)
    at = batch.header.header_bytes - batch.header.columns * 40 + batch.column_ids.index(changed) * 40
    for name, value in fields.items():
        offset, layout = ENTRY_FIELDS[name]
        struct.pack_into(layout, data, at + offset, value)
    mend_batch(data)
    return data


def with_body(batch: Batch, column: int, at: int, layout: str, value: int) -> Batch:
    """The batch with a number changed in the stored bytes of a column, and every checksum right."""
    data = bytearray(batch.buffer)
    entry = batch.entry(column)
    assert entry is not None
    struct.pack_into(layout, data, entry.position + at, value)
    mend_batch(data)
    return Batch(data)


def assert_refused(batch: Batch, read: Callable[[Batch], object]) -> None:
    with pytest.raises(BadBytes):
        batch.check()
    with pytest.raises(BadBytes):
        read(batch)


@pytest.mark.parametrize("value", [1, 2, -1, 4, 9, 1 << 20, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("index", [0, 3])
def test_offsets_of_a_binary_column_must_cover_its_data(index: int, value: int) -> None:
    """The first is 0, the last the length of the data, and none goes back."""
    batch = full()
    with pytest.raises(BadBytes):
        with_body(batch, c.VALUE, 8 + index * 4, "<i", value).check()


def test_offsets_that_go_back_are_refused() -> None:
    """Where the message is read, and by the check."""
    assert_refused(with_body(full(), c.VALUE, 8 + 4, "<i", 9), lambda batch: [batch.value(0), batch.value(1), batch.value(2)])
    assert_refused(with_body(full(), c.VALUE, 8 + 4, "<i", -1), lambda batch: batch.value(0))


@pytest.mark.parametrize("value", [0, 1, 4, -1, 1 << 28, (1 << 31) - 1])
def test_the_count_of_headers_must_fit(value: int) -> None:
    """It says how long two tables are: more than there is room for is refused, and so is what leaves pairs out."""
    with pytest.raises(BadBytes):
        with_body(full(), c.HEADERS, 12, "<i", value).check()


def test_a_list_of_headers_that_goes_back_is_refused() -> None:
    """For the message whose headers they are."""
    assert_refused(with_body(full(), c.HEADERS, 4, "<i", 3), lambda batch: [batch.headers(index) for index in range(3)])


def test_a_header_name_that_is_not_text_is_refused() -> None:
    """Names are UTF-8."""
    batch = full()
    data = bytearray(batch.buffer)
    data[data.index(b"name")] = 0xFF
    mend_batch(data)
    assert_refused(Batch(data), lambda batch: batch.headers(0))


@pytest.mark.parametrize("deltas", [(1, 0, 4), (0, 2, 6), (0, 2, 2), (0, 0, 0)])
def test_listed_offsets_must_rise_within_the_span(deltas: tuple[int, ...]) -> None:
    """From outside anything may come."""
    data = bytearray(full().buffer)
    entry = full().entry(c.OFFSETS)
    assert entry is not None
    struct.pack_into("<3I", data, entry.position, *deltas)
    mend_batch(data)
    with pytest.raises(BadBytes):
        Batch(data).check()


def test_a_batch_with_gaps_must_list_its_offsets() -> None:
    """Else nobody knows which offsets its messages have."""
    data = bytearray(stamped(encode_batch([b"a", b"b"])).buffer)
    struct.pack_into("<Q", data, 32, 5)
    mend_batch(data)
    with pytest.raises(BadBytes):
        Batch(data).check()


# The directory


@pytest.mark.parametrize(
    "fields",
    [
        {"position": 0}, {"position": 8}, {"position": (1 << 32) - 1}, {"stored_bytes": 0}, {"stored_bytes": 7},
        {"stored_bytes": (1 << 32) - 8}, {"raw_bytes": BATCH_BYTES_MAX + 1}, {"raw_bytes": (1 << 32) - 1}, {"column": c.KEY},
    ],
    ids=repr,
)  # fmt: skip
def test_columns_must_follow_each_other_to_the_end_of_the_batch(fields: dict[str, int]) -> None:
    """No gap, no overlap, nothing outside, no column twice."""
    with pytest.raises(BadBytes):
        Batch(with_entry(full(), c.VALUE, **fields))


def test_a_data_batch_has_a_value_column() -> None:
    """Also where all values are null."""
    batch = batch_from_columns([c.encode_numbers(c.TIME, [1])], 1, 1)
    batch.stamp(0, 0, 0, 0, 0, 0)
    with pytest.raises(BadBytes):
        Batch(batch.data)


@pytest.mark.parametrize("column", [c.VALUE, c.KEY, c.HEADERS, c.TIME, c.EXPIRES, c.PRIORITY, c.OFFSETS, c.DEDUP_KEY])
def test_a_column_shorter_than_its_messages_is_refused(column: int) -> None:
    """The count of the batch is what each column must have."""
    short = {
        c.VALUE: lambda: c.encode_binary(c.VALUE, [b""]),
        c.KEY: lambda: c.encode_binary(c.KEY, [b""]),
        c.DEDUP_KEY: lambda: c.encode_binary(c.DEDUP_KEY, [b""]),
        c.HEADERS: lambda: c.encode_headers([[]]),
    }.get(column, lambda: c.encode_numbers(column, [1]))()
    parts = [short] if column == c.VALUE else [c.encode_binary(c.VALUE, [b"v"] * 99), short]
    batch = stamped(batch_from_columns(parts, 99, 99))
    with pytest.raises(BadBytes):
        batch.check()


@pytest.mark.parametrize("column", [c.VALUE, c.KEY, c.HEADERS, c.DEDUP_KEY])
def test_data_longer_than_what_is_stored_is_refused(column: int) -> None:
    """The raw length is what the offsets may point into, so it is not believed either."""
    with pytest.raises(BadBytes):
        Batch(with_entry(full(), column, raw_bytes=BATCH_BYTES_MAX)).check()


@pytest.mark.parametrize("codec", [4, 7, 255])
@pytest.mark.parametrize("column", [c.VALUE, c.KEY, c.HEADERS])
def test_an_unknown_codec_is_refused(column: int, codec: int) -> None:
    """As the work of a newer version, also where the column has no data at all."""
    for batch in (full(), stamped(encode_batch([b"", None], keys=[None, b""], headers=[None, None]))):
        with pytest.raises(PenstockError):
            Batch(with_entry(batch, column, codec=codec)).check()


@pytest.mark.parametrize("column", [c.TIME, c.EXPIRES, c.PRIORITY, c.DEDUP_KEY, c.OFFSETS])
def test_a_codec_on_a_column_that_is_never_compressed_is_refused(column: int) -> None:
    """The format allows it on value, key and headers only."""
    with pytest.raises(PenstockError):
        Batch(with_entry(full(), column, codec=Codec.GZIP)).check()


@pytest.mark.parametrize(
    ("column", "flags"),
    [
        (c.PRIORITY, c.HAS_NULLS),
        (c.OFFSETS, c.HAS_NULLS),
        (c.HEADERS, c.HAS_NULLS),
        (c.TIME, c.RELATIVE),
        (c.VALUE, 1 << 5),
        (c.KEY, 1 << 15),
    ],
)
def test_a_flag_that_a_column_cannot_have_is_refused(column: int, flags: int) -> None:
    """
    Readers of messages and of Arrow would see different things in it, and a new flag would be misread.

    Found by reading: the Arrow reader took the bitmap of a priority column for priorities.
    """
    with pytest.raises((BadBytes, UnsupportedFormat)):
        Batch(with_entry(full(), column, flags=flags)).check()


def test_each_flipped_bit_of_a_column_is_noticed_by_verify() -> None:
    """Padding included."""
    batch = full()
    data = bytearray(batch.buffer)
    for bit in range(batch.header.header_bytes * 8, len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            Batch(data).verify()
        data[bit // 8] ^= 1 << bit % 8
    Batch(data).check()


# Runs


def merged() -> Batch:
    """A batch with two runs: it has them because one of its sources names a producer."""
    parts = [stamped(encode_batch([b"a", b"b"], producer=Producer(1, 2, 3)), 10, 1), stamped(encode_batch([b"c"]), 12, 2)]
    return stamped(merge(parts), 10)


@pytest.mark.parametrize("ends", [(3, 3), (3, 2), (2, 4), (1, 2), (4, 3), (2, 0)])
def test_runs_must_cover_the_batch(ends: tuple[int, int]) -> None:
    """Their ends rise to the count."""
    data = bytearray(merged().buffer)
    entry = merged().entry(c.RUNS)
    assert entry is not None
    for index, end in enumerate(ends):
        struct.pack_into("<I", data, entry.position + index * 64, end)
    mend_batch(data)
    batch = Batch(data)
    with pytest.raises(BadBytes):
        batch.runs()
    with pytest.raises(BadBytes):
        batch.check()


@pytest.mark.parametrize("raw_bytes", [0, 1, 63, 192, 1 << 20])
def test_runs_of_an_impossible_length_are_refused(raw_bytes: int) -> None:
    """Not whole records, none, or more than there is."""
    with pytest.raises(BadBytes):
        Batch(with_entry(merged(), c.RUNS, raw_bytes=raw_bytes)).runs()


# What a checked batch promises


def test_a_batch_that_passed_the_check_can_be_read() -> None:
    """Whatever is forged into it, with right checksums: refused, or all of its messages can be asked for."""
    original = full()
    taken = 0
    for at in range(original.header.header_bytes, original.header.total_bytes, 4):
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            data = bytearray(original.buffer)
            struct.pack_into("<I", data, at, value)
            mend_batch(data)
            batch: Any = Batch(data)
            try:
                batch.check()
            except BadBytes:
                continue
            taken += 1
            assert len(messages(batch)) == 3
    assert taken
