"""The two ends of a segment file."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import targets
from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch import encode_single
from penstock.format.checksum import crc32c
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, Footer, SegmentHeader, add_header_crc
from tests.format.strategies import U32, U64, stamped

u64, u32, i64 = st.integers(0, U64), st.integers(0, U32), st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.binary(min_size=16, max_size=16)
headers = st.builds(SegmentHeader, ids, ids, u32, u32, u64, u64, u32, i64, i64, i64)
footers = st.builds(Footer, u64, u64, u64, u64, i64, u64, u32, u32, i64)

HEADER = SegmentHeader(b"s" * 16, b"t" * 16, 1, 2, 3, 4, 5, 6, 7)
FOOTER = Footer(1, 2, 3, 4, 5, 6, 7, 8, 9)


@given(headers)
def test_a_header_is_read_back(header: SegmentHeader) -> None:
    """128 bytes; what lies behind them is not looked at."""
    data = header.encode()
    assert len(data) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.decode(data) == SegmentHeader.decode(data + b"batches") == header


@given(footers)
def test_a_footer_is_read_back(footer: Footer) -> None:
    """96 bytes."""
    data = footer.encode()
    assert len(data) == FOOTER_BYTES
    assert Footer.decode(data) == Footer.decode(data + b"rest") == footer


def test_the_fields_of_a_header_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = HEADER.encode()
    assert struct.unpack_from("<8sIHHII16s16sIIQQIIqq", data) == (
        b"PNSTKSEG", crc32c(data[12:]), 1, 128, 0, 0, b"s" * 16, b"t" * 16, 1, 2, 3, 4, 5, 0, 6, 7,
    )  # fmt: skip
    assert data[104:] == bytes(24)
    compacted = HEADER._replace(compacted_us=8).encode()
    assert compacted[20:24] == b"\1\0\0\0"
    assert compacted[104:] == struct.pack("<q16x", 8)


def test_the_fields_of_a_footer_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = FOOTER.encode()
    assert struct.unpack_from("<4sIQQQQqQIIq", data) == (b"PSEN", crc32c(data[8:]), 1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert data[72:] == bytes(24)


@pytest.mark.parametrize("decode", [SegmentHeader.decode, Footer.decode])
def test_an_end_cut_at_any_byte_is_refused(decode: object) -> None:
    """Half a header is what a crash leaves."""
    data = HEADER.encode() if decode == SegmentHeader.decode else FOOTER.encode()
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            decode(data[:length])  # type: ignore[operator]


@pytest.mark.parametrize("decode", [SegmentHeader.decode, Footer.decode])
def test_each_flipped_bit_is_noticed(decode: object) -> None:
    """In reserved bytes too."""
    data = bytearray(HEADER.encode() if decode == SegmentHeader.decode else FOOTER.encode())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            decode(data)  # type: ignore[operator]
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [(12, "<H", 0), (12, "<H", 2), (14, "<H", 120), (14, "<H", 136), *[(16, "<I", 1 << bit) for bit in range(32)]],
)
def test_a_newer_header_is_refused(at: int, layout: str, value: int) -> None:
    """Another version, another length, or an incompatible flag: `UnsupportedFormat`."""
    data = bytearray(HEADER.encode())
    struct.pack_into(layout, data, at, value)
    targets()["segment header"].mend(data)
    with pytest.raises(UnsupportedFormat):
        SegmentHeader.decode(data)


@pytest.mark.parametrize("bit", range(32))
def test_a_compatible_flag_in_a_header_is_ignored(bit: int) -> None:
    """A newer version may say more than this one understands."""
    data = bytearray(HEADER.encode())
    struct.pack_into("<I", data, 20, 1 << bit)
    targets()["segment header"].mend(data)
    assert SegmentHeader.decode(data) == HEADER


def test_the_crc_of_crcs_depends_on_every_batch_and_their_order() -> None:
    """It is the CRC-32C over the header CRCs, four bytes each, as they are stored."""
    one, other = bytes(stamped(encode_single(b"1"), 1).buffer), bytes(stamped(encode_single(b"2"), 2).buffer)
    assert add_header_crc(add_header_crc(0, one), other) == crc32c(one[4:8] + other[4:8])
    assert add_header_crc(add_header_crc(0, other), one) != crc32c(one[4:8] + other[4:8])
