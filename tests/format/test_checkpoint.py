"""The checkpoint file."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import targets
from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.checkpoint import Checkpoint, LogRow
from penstock.format.checksum import crc32c
from tests.format.strategies import U32, U64

u64, u32 = st.integers(0, U64), st.integers(0, U32)
log_rows = st.builds(LogRow, u32, u64, u64, u64, u64, st.integers(-(1 << 63), (1 << 63) - 1))
checkpoints = st.builds(
    Checkpoint,
    st.binary(min_size=16, max_size=16),
    u64,
    u64,
    u64,
    u64,
    u32,
    st.booleans(),
    u32,
    st.lists(log_rows, max_size=5).map(tuple),
    st.lists(st.tuples(u32, st.binary(max_size=40)), max_size=4).map(tuple),
)
ROWS = (LogRow(7, 8, 9, 10, 11, 12), LogRow(13, 14, 15, 16, 17, -18))
SECTIONS = ((1, b"groups"), (2, b""), (U32, b"a multiple of 8."))
SAMPLE = Checkpoint(b"s" * 16, 1, 2, 3, 4, 5, clean=True, next_log_id=6, rows=ROWS, sections=SECTIONS)
SECTIONS_AT = 88 + 2 * 48
"""Where the first section of the sample begins; the others follow 24 and 40 bytes behind it."""


@given(checkpoints)
def test_a_checkpoint_is_read_back(checkpoint: Checkpoint) -> None:
    """With any number of logs and sections, of any length."""
    data = checkpoint.encode()
    padded = [16 + (len(state) + 7) // 8 * 8 for _, state in checkpoint.sections]
    assert len(data) == 88 + 48 * len(checkpoint.rows) + sum(padded)
    assert Checkpoint.decode(data) == checkpoint


def test_the_fields_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = SAMPLE.encode()
    assert struct.unpack_from("<8sII16sQQQQIIIIII", data) == (
        b"PNSTKCKP",
        crc32c(data[12:]),
        1,
        b"s" * 16,
        1,
        2,
        3,
        4,
        5,
        1,
        6,
        2,
        3,
        0,
    )
    assert struct.unpack_from("<IIQQQQqIIQQQQq", data, 88) == (7, 0, 8, 9, 10, 11, 12, 13, 0, 14, 15, 16, 17, -18)
    assert struct.unpack_from("<IIQ6s2s", data, SECTIONS_AT) == (1, 0, 6, b"groups", b"\0\0")
    assert struct.unpack_from("<IIQ", data, SECTIONS_AT + 24) == (2, 0, 0)
    assert struct.unpack_from("<IIQ16s", data, SECTIONS_AT + 40) == (U32, 0, 16, b"a multiple of 8.")
    assert len(data) == SECTIONS_AT + 72


def test_a_checkpoint_cut_at_any_byte_or_too_long_is_refused() -> None:
    """It is taken whole or not at all, also when the checksum is right for what is left."""
    for sample in (SAMPLE, SAMPLE._replace(sections=()), SAMPLE._replace(rows=()), SAMPLE._replace(sections=((1, b"x"),))):
        data = sample.encode()
        for wrong in (*[data[:length] for length in range(len(data))], data + b"\0", data + bytes(8), data + data[-48:]):
            with pytest.raises(BadBytes):
                Checkpoint.decode(wrong)
            mended = bytearray(wrong)
            targets()["checkpoint"].mend(mended)
            with pytest.raises(BadBytes):
                Checkpoint.decode(mended)


def test_each_flipped_bit_is_noticed() -> None:
    """In every row and section too."""
    data = bytearray(SAMPLE.encode())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            Checkpoint.decode(data)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("rows", [0, 1, 3, U32])
def test_a_number_of_rows_that_does_not_fit_is_refused(rows: int) -> None:
    """Before anything of that length is made; the checksum is right."""
    data = bytearray(SAMPLE.encode())
    struct.pack_into("<I", data, 76, rows)
    targets()["checkpoint"].mend(data)
    with pytest.raises(BadBytes):
        Checkpoint.decode(data)


@pytest.mark.parametrize("sections", [0, 1, 2, 4, U32])
def test_a_number_of_sections_that_does_not_fit_is_refused(sections: int) -> None:
    """Fewer than there are leave bytes behind, more are not there; the checksum is right."""
    data = bytearray(SAMPLE.encode())
    struct.pack_into("<I", data, 80, sections)
    targets()["checkpoint"].mend(data)
    with pytest.raises(BadBytes):
        Checkpoint.decode(data)


@pytest.mark.parametrize("at", [SECTIONS_AT, SECTIONS_AT + 24, SECTIONS_AT + 40])
@pytest.mark.parametrize("length", [17, 24, 33, 100, U32, 1 << 63, U64])
def test_a_section_of_a_forged_length_is_refused(at: int, length: int) -> None:
    """Too long for the file, or so that the next section or the end is missed; the checksum is right."""
    data = bytearray(SAMPLE.encode())
    struct.pack_into("<Q", data, at + 8, length)
    targets()["checkpoint"].mend(data)
    with pytest.raises(BadBytes):
        Checkpoint.decode(data)


def test_a_checkpoint_without_sections_is_that_of_a_store_without_layers() -> None:
    """As the storage core alone writes it; sections of an owner that nobody knows are kept as they are."""
    assert Checkpoint.decode(SAMPLE._replace(sections=()).encode()).sections == ()
    assert Checkpoint.decode(SAMPLE.encode()).sections == SECTIONS


@pytest.mark.parametrize("version", [0, 2, U32])
def test_a_checkpoint_of_another_version_is_refused(version: int) -> None:
    """`UnsupportedFormat`, not `BadBytes`: the other checkpoint must not be taken instead."""
    data = bytearray(SAMPLE.encode())
    struct.pack_into("<I", data, 12, version)
    targets()["checkpoint"].mend(data)
    with pytest.raises(UnsupportedFormat):
        Checkpoint.decode(data)
