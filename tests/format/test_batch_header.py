"""The batch header: its layout, its flags, and lengths that cannot be."""

from __future__ import annotations

import struct

import pytest

from benchmarks.fuzz import mend_batch
from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch import Batch, encode_batch, encode_single
from penstock.format.batch_header import (
    COMPATIBLE_APPEND_TIMES,
    COMPATIBLE_PREWRITTEN,
    FIXED_BYTES,
    FLAG_ENCRYPTION,
    HEADER_BYTES_MAX,
    KIND_DATA,
    KIND_STATE,
    Producer,
    clear_compatible_flag,
    directory_at,
    parse_header,
    set_compatible_flag,
    stamp,
)
from penstock.values import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from tests.format.strategies import messages, stamped


def valid() -> bytearray:
    return bytearray(stamped(encode_batch([b"abc", b"d"], keys=[b"k", None], producer=Producer(1, 2, 3)), 1000).buffer)


def forged(at: int, layout: str, value: int) -> bytearray:
    """A batch with one field changed, and every checksum right."""
    data = valid()
    struct.pack_into(layout, data, at, value)
    mend_batch(data)
    return data


def test_the_fields_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    encoded = encode_batch([b"abc"], keys=[b"k"], schema_id=9)
    encoded.stamp(11, 22, 33, 44, 10, 66)
    fields = struct.unpack_from("<4sIIBBHIIQQQqqQQII", encoded.data)
    header_bytes = FIXED_BYTES + 8 + 2 * 40
    assert fields[0] == b"PSB1"
    assert fields[2:] == (header_bytes, KIND_DATA, 2, 4, 0, 1, len(encoded.data), 1, 11, 22, 33, 44, 10, 66, 0)
    assert struct.unpack_from("<Q", encoded.data, FIXED_BYTES) == (9,)
    assert directory_at(parse_header(encoded.data)) == FIXED_BYTES + 8


def test_a_header_says_what_it_was_stamped_with() -> None:
    """And where the batch ends."""
    encoded = encode_batch([b"a", b"b"])
    stamp(encoded.data, encoded.header_bytes, 5, 6, 7, 8, 4, 10)
    header = parse_header(encoded.data)
    assert (header.kind, header.count, header.first_offset, header.offset_span, header.end_offset) == (KIND_DATA, 2, 5, 2, 7)
    assert (header.append_time_us, header.max_time_us, header.segment_uid, header.durable_end, header.log_epoch) == (
        6,
        7,
        8,
        4,
        10,
    )


@pytest.mark.parametrize("flag", [FLAG_ENCRYPTION, *[1 << bit for bit in range(4, 16)]])
def test_an_unknown_incompatible_flag_is_refused(flag: int) -> None:
    """A newer version wrote something that this one would misread: `UnsupportedFormat`, not `BadBytes`."""
    data = forged(14, "<H", 1 | flag)
    with pytest.raises(UnsupportedFormat):
        parse_header(data)
    with pytest.raises(UnsupportedFormat):
        Batch(data)


@pytest.mark.parametrize("bit", [bit for bit in range(32) if 1 << bit != COMPATIBLE_APPEND_TIMES])
def test_a_compatible_flag_is_kept_and_else_ignored(bit: int) -> None:
    """Whoever does not know it reads the batch, and stamping leaves it in place."""
    data = forged(16, "<I", 1 << bit)
    batch = Batch(data)
    batch.check()
    assert batch.header.compatible == 1 << bit
    assert messages(batch) == messages(Batch(valid()))
    stamp(data, batch.header.header_bytes, 2000, 0, 0, 0, 0, 0)
    assert parse_header(data).compatible == 1 << bit


def test_a_batch_that_should_list_append_times_and_does_not_is_refused() -> None:
    """
    The flag says that the time column tells when each message was appended, so there must be one, without nulls.

    Found by the fuzzer: without one, asking for a time raised `AttributeError`, and the check did not look.
    """
    without = forged(16, "<I", COMPATIBLE_APPEND_TIMES)
    with pytest.raises(BadBytes):
        Batch(without).check()
    encoded = encode_batch([b"a", b"b"], times_us=[None, 5])
    set_compatible_flag(encoded.data, COMPATIBLE_APPEND_TIMES)
    with pytest.raises(BadBytes):
        stamped(encoded).check()
    encoded = encode_batch([b"a", b"b"], times_us=[6, 5])
    set_compatible_flag(encoded.data, COMPATIBLE_APPEND_TIMES)
    batch = stamped(encoded)
    batch.check()
    assert [batch.append_time_us(index) for index in range(2)] == [6, 5]


def test_a_compatible_flag_is_set_and_cleared_alone() -> None:
    """The other flags stay."""
    data = forged(16, "<I", 0b1010)
    header_bytes = parse_header(data).header_bytes
    set_compatible_flag(data, COMPATIBLE_PREWRITTEN)
    stamp(data, header_bytes, 0, 0, 0, 0, 0, 0)
    assert parse_header(data).compatible == 0b1011
    clear_compatible_flag(data, COMPATIBLE_PREWRITTEN)
    stamp(data, header_bytes, 0, 0, 0, 0, 0, 0)
    assert parse_header(data).compatible == 0b1010


@pytest.mark.parametrize("kind", [0, 3, 4, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    """It comes from a newer version."""
    with pytest.raises(UnsupportedFormat):
        parse_header(forged(12, "<B", kind))


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (8, "<I", 0),
        (8, "<I", FIXED_BYTES - 8),
        (8, "<I", FIXED_BYTES + 4),
        (8, "<I", HEADER_BYTES_MAX + 8),
        (8, "<I", (1 << 32) - 1),
        (8, "<I", FIXED_BYTES),
        (13, "<B", 0),
        (13, "<B", 3),
        (13, "<B", 255),
        (14, "<H", 0),
        (14, "<H", 3),
        (20, "<I", 0),
        (20, "<I", BATCH_MESSAGES_MAX + 1),
        (20, "<I", (1 << 32) - 1),
        (20, "<I", 3),
        (24, "<Q", 0),
        (24, "<Q", 80),
        (24, "<Q", 260),
        (24, "<Q", BATCH_BYTES_MAX + 8),
        (24, "<Q", (1 << 64) - 1),
        (32, "<Q", 0),
        (32, "<Q", 1),
        (32, "<Q", 1 << 63),
        (32, "<Q", (1 << 64) - 1),
        (40, "<Q", (1 << 63) - 1),
        (40, "<Q", (1 << 64) - 1),
        (72, "<Q", 1 << 63),
        (72, "<Q", (1 << 64) - 1),
    ],
)
def test_an_impossible_number_is_refused_although_the_checksum_is_right(at: int, layout: str, value: int) -> None:
    """Lengths, counts and offsets are checked by themselves: a checksum says nothing about who wrote it."""
    with pytest.raises(BadBytes):
        parse_header(forged(at, layout, value))


@pytest.mark.parametrize(("at", "layout", "value"), [(20, "<I", 1), (32, "<Q", 1)])
def test_a_state_batch_takes_no_offsets(at: int, layout: str, value: int) -> None:
    """Neither messages nor offsets."""
    from penstock.format.state import encode_state

    state = encode_state([], [])
    state.stamp(0, 0, 0, 0, 0, 0)
    assert parse_header(state.data).kind == KIND_STATE
    struct.pack_into(layout, state.data, at, value)
    mend_batch(state.data)
    with pytest.raises(BadBytes):
        parse_header(state.data)


def test_each_flipped_bit_of_a_header_is_noticed() -> None:
    """Magic, checksum, fields, extensions and directory."""
    data = valid()
    for bit in range(parse_header(data).header_bytes * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            parse_header(data)
        data[bit // 8] ^= 1 << bit % 8


def test_a_header_cut_at_any_byte_is_refused() -> None:
    """The header alone is enough, however much of the body is missing; one byte less is not."""
    data = bytes(valid())
    header_bytes = parse_header(data).header_bytes
    for length in range(header_bytes):
        with pytest.raises(BadBytes):
            parse_header(data[:length])
    assert parse_header(data[:header_bytes]) == parse_header(data)
    assert parse_header(b"12345" + data, 5) == parse_header(data)


def test_a_position_behind_the_end_is_refused() -> None:
    """Not an error of Python's."""
    data = bytes(stamped(encode_single(b"x")).buffer)
    with pytest.raises(BadBytes):
        parse_header(data, len(data))
    with pytest.raises(BadBytes):
        parse_header(data, len(data) + 100)
