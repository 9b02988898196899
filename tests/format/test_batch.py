"""Batches: every column goes in and comes out, and what does not fit is refused with a typed error before anything is made."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadBytes, BadColumn, BatchTooLarge, MessageTooLarge
from penstock.format import columns as c
from penstock.format.batch import (
    SINGLE_ADDED_BYTES_MAX,
    Batch,
    EncodedBatch,
    encode_batch,
    encode_single,
    encode_stamped,
    of_stamped,
)
from penstock.format.batch_header import (
    COMPATIBLE_APPEND_TIMES,
    COMPATIBLE_PREWRITTEN,
    Producer,
    Transaction,
    set_compatible_flag,
)
from penstock.format.compression import Codec
from penstock.format.state import encode_state
from penstock.values import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, HEADER_NAME_BYTES_MAX, HEADERS_STORED_MAX, KEY_BYTES_MAX, MIB
from tests.format.strategies import Columns, columns, messages, optional_bytes, stamped

# Round trips


@given(columns())
def test_whatever_is_encoded_is_read_back(given_columns: Columns) -> None:
    """All columns, extensions and codecs in any combination; the batch passes its own full check."""
    batch = given_columns.stored()
    batch.check()
    arguments = given_columns.arguments
    assert messages(batch) == given_columns.messages()
    assert batch.producer == arguments["producer"]
    assert batch.transaction == arguments["transaction"]
    assert batch.schema_id == arguments["schema_id"]
    assert batch.first_offset == given_columns.first_offset
    assert batch.end_offset == given_columns.first_offset + (arguments.get("offset_span") or len(batch))


@given(columns())
def test_encoding_is_the_same_each_time(given_columns: Columns) -> None:
    """The same columns give the same bytes, so that batches can be compared by their bytes."""
    assert given_columns.encode().data == given_columns.encode().data


@given(columns())
def test_every_part_of_a_batch_is_a_multiple_of_eight(given_columns: Columns) -> None:
    """Arrow wants its buffers aligned, and batches follow each other in a segment without a gap."""
    batch = given_columns.stored()
    assert not len(batch.buffer) % 8
    position = batch.header.header_bytes
    for column in batch.column_ids:
        entry = batch.entry(column)
        assert entry is not None
        assert (entry.position, entry.stored_bytes % 8, entry.reserved) == (position, 0, 0)
        position += entry.stored_bytes
    assert position == batch.header.total_bytes


@given(st.binary(max_size=3000))
def test_encode_single_makes_the_bytes_of_encode_batch(value: bytes) -> None:
    """The quick way for one message may not differ by a single byte."""
    quick, plain = encode_single(value), encode_batch([value])
    assert quick.data == plain.data
    assert (quick.header_bytes, quick.count, quick.offset_span) == (plain.header_bytes, plain.count, plain.offset_span)


@given(st.binary(max_size=3000), st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_encode_stamped_makes_the_bytes_of_encode_single_when_it_is_stamped(value: bytes, numbers: list[int]) -> None:
    """And says the same of itself."""
    first, append, latest, uid, durable, epoch = numbers
    quick, plain = of_stamped(encode_stamped(value, first, append, latest, uid, durable, epoch)), encode_single(value)
    plain.stamp(first, append, latest, uid, durable, epoch)
    assert quick.data == plain.data
    assert len(quick.data) <= len(value) + SINGLE_ADDED_BYTES_MAX
    assert (quick.header_bytes, quick.count, quick.offset_span) == (plain.header_bytes, plain.count, plain.offset_span)


# Null and empty


def test_an_empty_value_is_not_a_tombstone() -> None:
    """None and b"" stay apart, alone and side by side."""
    assert optional_bytes(stamped(encode_batch([b""])).value(0)) == b""
    assert optional_bytes(stamped(encode_batch([None])).value(0)) is None
    batch = stamped(encode_batch([None, b"", b"x", None, b""]))
    assert [optional_bytes(batch.value(index)) for index in range(5)] == [None, b"", b"x", None, b""]
    batch.check()


def test_an_empty_key_is_not_a_missing_one() -> None:
    """For keys and deduplication keys, with a column and without."""
    batch = stamped(encode_batch([b"1", b"2", b"3"], keys=[b"", None, b"k"], dedup_keys=[None, b"", b"d"]))
    assert [optional_bytes(batch.key(index)) for index in range(3)] == [b"", None, b"k"]
    assert [optional_bytes(batch.dedup_key(index)) for index in range(3)] == [None, b"", b"d"]
    plain = stamped(encode_single(b"1"))
    assert plain.key(0) is None
    assert plain.dedup_key(0) is None


def test_values_of_length_zero_take_no_room() -> None:
    """A batch of nothing but empty values is as long as its offsets."""
    batch = stamped(encode_batch([b""] * 1000))
    assert batch.header.total_bytes == batch.header.header_bytes + 1001 * 4 + 4
    assert {optional_bytes(batch.value(index)) for index in range(1000)} == {b""}


def test_validity_is_right_at_the_edges_of_its_words() -> None:
    """Bitmaps are words of 64 bits: the last bit of one and the first of the next are not mixed up."""
    for count in (1, 7, 8, 9, 63, 64, 65, 128, 129):
        values = [None if index % 63 == 0 else b"%d" % index for index in range(count)]
        batch = stamped(encode_batch(values))
        assert [optional_bytes(batch.value(index)) for index in range(count)] == values


# Headers


def test_headers_keep_their_order_and_their_repeats() -> None:
    """They are a list of pairs and not a dictionary; empty names and values are allowed."""
    pairs = [("trace", b"1"), ("trace", b"2"), ("", b""), ("\N{SNOWMAN}\0", b"\xff\0"), ("trace", b"1")]
    batch = stamped(encode_batch([b"a", b"b", b"c"], headers=[None, pairs, []]))
    assert [batch.headers(index) for index in range(3)] == [[], pairs, []]
    assert stamped(encode_single(b"a")).headers(0) == []


def test_headers_may_be_given_as_tuples() -> None:
    """Any sequence of pairs will do."""
    assert stamped(encode_batch([b"a"], headers=[(("n", b"v"),)])).headers(0) == [("n", b"v")]


# Times


def test_a_message_without_a_time_has_that_of_its_appending() -> None:
    """The publisher's time counts where there is one, also 0 and times before 1970."""
    batch = stamped(encode_batch([b"a", b"b", b"c"], times_us=[None, 0, -5]), append_time_us=77)
    assert [batch.time_us(index) for index in range(3)] == [77, 0, -5]
    assert [batch.append_time_us(index) for index in range(3)] == [77, 77, 77]
    assert stamped(encode_single(b"a"), append_time_us=78).time_us(0) == 78


def test_relative_times_count_from_the_appending() -> None:
    """A publisher can say "in ten seconds" without knowing the server's clock."""
    relative = stamped(
        encode_batch([b"a", b"b"], expires_us=[10, None], expires_relative=True, deliver_us=[None, 3], deliver_relative=True),
        append_time_us=1000,
    )
    assert [relative.expires_us(0), relative.expires_us(1), relative.deliver_us(0), relative.deliver_us(1)] == [
        1010,
        None,
        None,
        1003,
    ]
    absolute = stamped(encode_batch([b"a", b"b"], expires_us=[10, None], deliver_us=[None, 3]), append_time_us=1000)
    assert [absolute.expires_us(0), absolute.expires_us(1), absolute.deliver_us(0), absolute.deliver_us(1)] == [
        10,
        None,
        None,
        3,
    ]


def test_a_relative_time_never_leaves_the_range_of_times() -> None:
    """ "As late as can be" must not turn into a number that no column can hold: it is the last time there is."""
    far = (1 << 63) - 1
    batch = stamped(encode_batch([b"a", b"b"], expires_us=[far, -far], expires_relative=True), append_time_us=1000)
    assert batch.expires_us(0) == far
    assert batch.expires_us(1) == 1000 - far


def test_the_directory_knows_the_smallest_and_the_largest_number() -> None:
    """Of the entries that are not null; 0 and 0 if there is none."""
    batch = stamped(encode_batch([b""] * 3, times_us=[5, None, -7], expires_us=[None] * 3, priorities=[3, 1, 2]))
    entries = [batch.entry(column) for column in (c.TIME, c.EXPIRES, c.PRIORITY)]
    assert [(entry.min, entry.max) for entry in entries if entry] == [(-7, 5), (0, 0), (1, 3)]


# Offsets


def test_offsets_are_dense_unless_they_are_listed() -> None:
    """The n-th message has the n-th offset, or the one that the batch lists for it."""
    dense = stamped(encode_batch([b"a", b"b", b"c"]), first_offset=100)
    assert [dense.offset(index) for index in range(3)] == [100, 101, 102]
    assert dense.end_offset == 103
    listed = stamped(encode_batch([b"a", b"b", b"c"], offset_deltas=[0, 4, 9], offset_span=20), first_offset=100)
    assert [listed.offset(index) for index in range(3)] == [100, 104, 109]
    assert listed.end_offset == 120


@given(columns())
def test_index_of_is_the_first_message_at_or_after_an_offset(given_columns: Columns) -> None:
    """For offsets before, in the gaps of, and behind the batch."""
    batch = given_columns.stored()
    offsets = [batch.offset(index) for index in range(len(batch))]
    for offset in {*offsets, batch.first_offset - 1, *[one + 1 for one in offsets], batch.end_offset + 3}:
        assert batch.index_of(offset) == sum(one < offset for one in offsets)


@pytest.mark.parametrize(
    ("deltas", "span"),
    [
        ([0, 0], 5),
        ([1, 0], 5),
        ([0, 5], 5),
        ([-1, 0], 5),
        ([0, 1], None),
        ([0, 1 << 40], 1 << 41),
        ([0, None], 5),
        ([0, 1.5], 5),
    ],
)
def test_offsets_that_do_not_rise_within_their_span_are_refused(deltas: list[Any], span: int | None) -> None:
    """Before anything is encoded."""
    with pytest.raises(BadColumn):
        encode_batch([b"a", b"b"], offset_deltas=deltas, offset_span=span)


@pytest.mark.parametrize("span", [0, 1, 3, 1 << 62])
def test_a_span_without_offsets_must_be_the_count(span: int) -> None:
    """Else the encoder makes a batch that no reader takes: it covers offsets and does not say which."""
    with pytest.raises(BadColumn):
        encode_batch([b"a", b"b"], offset_span=span)
    assert encode_batch([b"a", b"b"], offset_span=2).data == encode_batch([b"a", b"b"]).data


# Extensions


@pytest.mark.parametrize("producer", [None, Producer(1, 2, 3), Producer((1 << 64) - 1, (1 << 32) - 1, (1 << 64) - 1)])
@pytest.mark.parametrize("transaction", [None, Transaction(4, 5), Transaction(0, 0)])
@pytest.mark.parametrize("schema_id", [None, 0, (1 << 64) - 1])
def test_extensions_stand_side_by_side(
    producer: Producer | None, transaction: Transaction | None, schema_id: int | None
) -> None:
    """Each combination of them, with the smallest and the largest numbers."""
    encoded = encode_batch([b"v"], producer=producer, transaction=transaction, schema_id=schema_id)
    assert encoded.producer == producer
    batch = stamped(encoded)
    assert (batch.producer, batch.transaction, batch.schema_id) == (producer, transaction, schema_id)
    assert optional_bytes(batch.value(0)) == b"v"


@pytest.mark.parametrize(
    "extension",
    [
        {"producer": Producer(-1, 0, 0)},
        {"producer": Producer(0, 1 << 32, 0)},
        {"transaction": Transaction(0, -1)},
        {"schema_id": 1 << 64},
    ],
)
def test_numbers_of_extensions_that_do_not_fit_are_refused(extension: dict[str, Any]) -> None:
    """With a typed error like any other argument."""
    with pytest.raises(BadColumn):
        encode_batch([b"v"], **extension)


# What is refused


def test_a_batch_has_at_least_one_message_and_at_most_the_limit() -> None:
    """100 000 messages fit, one more does not."""
    with pytest.raises(BadColumn):
        encode_batch([])
    with pytest.raises(BatchTooLarge):
        encode_batch([b""] * (BATCH_MESSAGES_MAX + 1))
    batch = stamped(encode_batch([b"x"] * BATCH_MESSAGES_MAX))
    assert len(batch) == BATCH_MESSAGES_MAX
    assert optional_bytes(batch.value(BATCH_MESSAGES_MAX - 1)) == b"x"


def test_keys_and_headers_have_limits() -> None:
    """The largest allowed passes, one more is refused."""
    encode_batch([b""], keys=[bytes(KEY_BYTES_MAX)])
    with pytest.raises(MessageTooLarge):
        encode_batch([b""], keys=[bytes(KEY_BYTES_MAX + 1)])
    encode_batch([b""], headers=[[("h", b"")] * HEADERS_STORED_MAX])
    with pytest.raises(MessageTooLarge):
        encode_batch([b""], headers=[[("h", b"")] * (HEADERS_STORED_MAX + 1)])
    encode_batch([b""], headers=[[("h" * HEADER_NAME_BYTES_MAX, b"")]])
    with pytest.raises(MessageTooLarge):
        encode_batch([b""], headers=[[("h" * (HEADER_NAME_BYTES_MAX + 1), b"")]])


def test_a_batch_over_the_limit_of_bytes_is_refused() -> None:
    """By both encoders."""
    too_long = bytes(BATCH_BYTES_MAX)
    with pytest.raises(BatchTooLarge):
        encode_batch([too_long])
    with pytest.raises(MessageTooLarge):
        encode_single(too_long)


def test_a_batch_that_is_too_long_when_inflated_is_refused() -> None:
    """
    A column of 65 MiB of zeros is short when it is compressed, and no reader would believe its raw length.

    Found by reading: such a batch was encoded, and could have been committed, and was `BadBytes` to every reader.
    """
    value = bytes(BATCH_BYTES_MAX + 8)
    with pytest.raises(BatchTooLarge):
        encode_batch([value], codec=Codec.ZSTD)
    with pytest.raises(BatchTooLarge):
        encode_batch([value[: len(value) // 2]] * 2, codec=Codec.LZ4)


def test_the_longest_values_that_fit_are_read_back() -> None:
    """64 MiB in one value."""
    value = bytes(64 * MIB)
    assert len(stamped(encode_batch([value], codec=Codec.LZ4)).value(0) or b"") == 64 * MIB


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": ["text"]},
        {"values": [b"a", 5]},
        {"values": [None, "text"]},
        {"values": [b"a"], "keys": ["text"]},
        {"values": [b"a"], "keys": [5]},
        {"values": [b"a"], "keys": []},
        {"values": [b"a"], "keys": [b"k", b"k"]},
        {"values": [b"a"], "headers": [5]},
        {"values": [b"a"], "headers": [[5]]},
        {"values": [b"a"], "headers": [[("name", "text")]]},
        {"values": [b"a"], "headers": [[("name", None)]]},
        {"values": [b"a"], "headers": [[(b"name", b"")]]},
        {"values": [b"a"], "headers": [[("name", b"", b"")]]},
        {"values": [b"a"], "headers": [[("\ud800", b"")]]},
        {"values": [b"a"], "headers": []},
        {"values": [b"a"], "times_us": ["text"]},
        {"values": [b"a"], "times_us": [1.5]},
        {"values": [b"a"], "times_us": [1 << 63]},
        {"values": [b"a", b"b"], "times_us": [1 << 63, None]},
        {"values": [b"a", b"b"], "times_us": [None, 1 << 63]},
        {"values": [b"a"], "times_us": []},
        {"values": [b"a"], "expires_us": [-(1 << 63) - 1]},
        {"values": [b"a"], "priorities": [256]},
        {"values": [b"a"], "priorities": [-1]},
        {"values": [b"a"], "priorities": [None]},
        {"values": [b"a"], "dedup_keys": [5]},
    ],
    ids=repr,
)
def test_columns_of_wrong_types_or_lengths_are_refused(arguments: dict[str, Any]) -> None:
    """With `BadColumn`, so that a server can answer a client with it."""
    with pytest.raises(BadColumn):
        encode_batch(**arguments)


@pytest.mark.parametrize("values", [[array("i", [1, 2, 3])], [memoryview(array("i", [1, 2, 3]))], [b"a", array("d", [1.0])]])
def test_a_buffer_of_something_larger_than_bytes_is_refused(values: list[Any]) -> None:
    """
    Its length counts its items, so that three quarters of it would be cut off silently.

    Found by reading: joining takes any buffer, and the offsets were made from `len`.
    """
    with pytest.raises(BadColumn):
        encode_batch(values)


def test_bytearrays_and_views_are_taken_like_bytes() -> None:
    """With and without nulls beside them."""
    assert encode_batch([bytearray(b"ab"), memoryview(b"cd")]).data == encode_batch([b"ab", b"cd"]).data  # type: ignore[list-item]
    assert encode_batch([None, memoryview(b"cd")]).data == encode_batch([None, b"cd"]).data  # type: ignore[list-item]


# Views


def test_a_value_is_a_view_of_the_batch_and_not_a_copy() -> None:
    """Nothing is copied while a message is read out of an uncompressed batch."""
    encoded = encode_batch([b"abc", b"def"])
    batch = stamped(encoded)
    value = batch.value(1)
    assert value is not None
    assert bytes(value) == b"def"
    at = encoded.data.index(b"def")
    assert value.obj is encoded.data
    encoded.data[at] = ord("D")
    assert bytes(value) == b"Def"


def test_a_batch_is_found_at_any_position_of_a_buffer() -> None:
    """What lies before and behind it does not matter."""
    data = bytes(stamped(encode_batch([b"abc"], keys=[b"k"])).buffer)
    for before in (0, 8, 13):
        batch = Batch(b"#" * before + data + b"rest", before)
        batch.check()
        assert bytes(batch.buffer) == data
        assert messages(batch) == messages(Batch(data))


def test_an_unstamped_batch_is_not_a_batch() -> None:
    """Its header has no checksum yet, so that nothing half-done can be stored."""
    with pytest.raises(BadBytes):
        Batch(encode_single(b"x").data)


def test_stamping_again_moves_a_batch() -> None:
    """The same bytes with another offset, time, segment and epoch; the columns are not touched."""
    encoded = encode_batch([b"abc"], keys=[b"k"])
    one = bytes(stamped(encoded, 5, 6).buffer)
    encoded.stamp(10, 11, 12, 13, 9, 15)
    batch = Batch(encoded.data)
    header = batch.header
    assert (header.first_offset, header.append_time_us, header.max_time_us) == (10, 11, 12)
    assert (header.segment_uid, header.durable_end, header.log_epoch) == (13, 9, 15)
    assert one[header.header_bytes :] == bytes(batch.buffer[header.header_bytes :])


def test_adopting_takes_exactly_one_whole_data_batch() -> None:
    """Bytes from outside are checked; a state batch, half a batch, and one with something behind it are refused."""
    data = bytes(stamped(encode_batch([b"abc", b"d"], producer=Producer(1, 2, 3)), 7).buffer)
    adopted = EncodedBatch.adopt(data)
    assert (bytes(adopted.data), adopted.count, adopted.offset_span, len(adopted)) == (data, 2, 2, len(data))
    assert adopted.producer == Producer(1, 2, 3)
    state = encode_state([], [])
    state.stamp(0, 0, 0, 0, 0, 0)
    for bad in (data[:-8], data + bytes(8), bytes(state.data), b""):
        with pytest.raises(BadBytes):
            EncodedBatch.adopt(bad)
    damaged = bytearray(data)
    damaged[-9] ^= 1
    with pytest.raises(BadBytes):
        EncodedBatch.adopt(damaged)


def test_adopting_clears_what_only_an_owner_may_say() -> None:
    """
    A batch from outside that says that it was written ahead of its frame would be cut at the next recovery.

    Found by reading. Flags that this version does not know are kept.
    """
    encoded = encode_batch([b"a"], times_us=[5])
    set_compatible_flag(encoded.data, COMPATIBLE_PREWRITTEN | COMPATIBLE_APPEND_TIMES | 1 << 20)
    adopted = EncodedBatch.adopt(stamped(encoded).buffer)
    assert stamped(adopted).header.compatible == 1 << 20


def test_a_slice_counts_from_zero() -> None:
    """It reads the messages of its batch, and nothing outside of it."""
    batch = stamped(
        encode_batch([b"0", b"1", b"2", b"3"], keys=[None, b"k", None, None], headers=[None, [("n", b"v")], None, None]), 10
    )
    part = batch.slice(1, 3)
    assert len(part) == 2
    assert (optional_bytes(part.value(0)), optional_bytes(part.key(0)), part.headers(0), part.offset(0)) == (
        b"1",
        b"k",
        [("n", b"v")],
        11,
    )
    assert (optional_bytes(part.value(1)), optional_bytes(part.key(1)), part.headers(1), part.offset(1)) == (b"2", None, [], 12)
    for start, stop in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(BadColumn):
            batch.slice(start, stop)


def test_a_column_that_this_version_does_not_know_is_passed_over() -> None:
    """A newer encoder may add one; its checksum is checked like all others."""
    from penstock.format.batch import batch_from_columns

    unknown = c.encode_records(99, b"something new")
    batch = stamped(batch_from_columns([c.encode_binary(c.VALUE, [b"v"]), unknown], 1, 1))
    batch.check()
    assert batch.column_ids == [c.VALUE, 99]
    assert optional_bytes(batch.value(0)) == b"v"
    damaged = bytearray(batch.buffer)
    damaged[damaged.index(b"new")] ^= 1
    with pytest.raises(BadBytes):
        Batch(damaged).verify()


# Truncated and too long


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_cut_at_any_byte_is_refused(codec: Codec) -> None:
    """Whole it is taken, with trailing bytes too, and one byte less is too little."""
    values = [b"value " * 100, None, b"", b"value " * 100]
    data = bytes(
        stamped(
            encode_batch(values, keys=[b"k"] * 4, headers=[[("n", b"v")]] * 4, producer=Producer(1, 2, 3), codec=codec)
        ).buffer
    )
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            Batch(data[:length])
    assert messages(Batch(data + b"trailing")) == messages(Batch(data))
