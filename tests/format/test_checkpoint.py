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
)
SAMPLE = Checkpoint(
    b"s" * 16, 1, 2, 3, 4, 5, clean=True, next_log_id=6, rows=(LogRow(7, 8, 9, 10, 11, 12), LogRow(13, 14, 15, 16, 17, -18))
)


@given(checkpoints)
def test_a_checkpoint_is_read_back(checkpoint: Checkpoint) -> None:
    """With any number of logs."""
    data = checkpoint.encode()
    assert len(data) == 80 + 48 * len(checkpoint.rows)
    assert Checkpoint.decode(data) == checkpoint


def test_the_fields_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = SAMPLE.encode()
    assert struct.unpack_from("<8sII16sQQQQIIII", data) == (
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
    )
    assert struct.unpack_from("<IIQQQQqIIQQQQq", data, 80) == (7, 0, 8, 9, 10, 11, 12, 13, 0, 14, 15, 16, 17, -18)


def test_a_checkpoint_cut_at_any_byte_or_too_long_is_refused() -> None:
    """It is taken whole or not at all."""
    data = SAMPLE.encode()
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            Checkpoint.decode(data[:length])
    with pytest.raises(BadBytes):
        Checkpoint.decode(data + b"\0")
    with pytest.raises(BadBytes):
        Checkpoint.decode(data + data[-48:])


def test_each_flipped_bit_is_noticed() -> None:
    """In every row too."""
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


@pytest.mark.parametrize("version", [0, 2, U32])
def test_a_checkpoint_of_another_version_is_refused(version: int) -> None:
    """`UnsupportedFormat`, not `BadBytes`: the other checkpoint must not be taken instead."""
    data = bytearray(SAMPLE.encode())
    struct.pack_into("<I", data, 12, version)
    targets()["checkpoint"].mend(data)
    with pytest.raises(UnsupportedFormat):
        Checkpoint.decode(data)
