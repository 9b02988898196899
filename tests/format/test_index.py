"""The index file of a segment."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import targets
from penstock.errors import BadBytes
from penstock.format.checksum import crc32c
from penstock.format.index import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, IndexSnapshot
from tests.format.strategies import U32, U64

times = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def snapshots(draw):
    offsets = sorted(draw(st.sets(st.integers(0, (1 << 63) - 1), max_size=8)))
    positions = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=len(offsets), max_size=len(offsets))))
    return IndexSnapshot(
        segment_uid=draw(st.integers(0, U64)),
        valid_position=(positions[-1] if positions else 0) + draw(st.integers(1, 1 << 40)),
        end_offset=draw(st.integers(0, U64)),
        max_time_us=draw(times),
        batches=draw(st.integers(0, U32)),
        crc_of_crcs=draw(st.integers(0, U32)),
        offsets=array("q", offsets),
        times_us=array("q", draw(st.lists(times, min_size=len(offsets), max_size=len(offsets)))),
        positions=array("q", positions),
        state=draw(st.binary(max_size=50)),
    )


def sample(offsets: list[int] | None = None, positions: list[int] | None = None, valid_position: int = 1000) -> IndexSnapshot:
    return IndexSnapshot(
        1,
        valid_position,
        3,
        4,
        5,
        6,
        array("q", offsets or [10, 20]),
        array("q", [30, 40]),
        array("q", positions or [128, 500]),
        b"state",
    )


@given(snapshots())
def test_an_index_is_read_back(snapshot: IndexSnapshot) -> None:
    """With entries or without, with the state of the log or without."""
    data = snapshot.encode()
    assert len(data) == INDEX_HEADER_BYTES + len(snapshot.offsets) * INDEX_ENTRY_BYTES + len(snapshot.state)
    assert IndexSnapshot.decode(data) == snapshot


def test_the_fields_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = sample().encode()
    assert struct.unpack_from("<8sIIQQQqIII", data) == (b"PNSTKIDX", crc32c(data[12:]), 2, 1, 1000, 3, 4, 5, 5, 6)
    assert struct.unpack_from("<QqQQqQ", data, 64) == (10, 30, 128, 20, 40, 500)
    assert data[112:] == b"state"


def test_an_index_cut_at_any_byte_or_too_long_is_refused() -> None:
    """It is taken whole or not at all."""
    data = sample().encode()
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            IndexSnapshot.decode(data[:length])
    with pytest.raises(BadBytes):
        IndexSnapshot.decode(data + b"\0")


def test_each_flipped_bit_is_noticed() -> None:
    """Entries and state included."""
    data = bytearray(sample().encode())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            IndexSnapshot.decode(data)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(("at", "value"), [(12, 0), (12, 1), (12, 3), (12, U32), (48, 0), (48, 4), (48, 6), (48, U32)])
def test_lengths_that_do_not_fit_the_file_are_refused(at: int, value: int) -> None:
    """Before anything of that length is made; the checksum is right."""
    data = bytearray(sample().encode())
    struct.pack_into("<I", data, at, value)
    targets()["index"].mend(data)
    with pytest.raises(BadBytes):
        IndexSnapshot.decode(data)


@pytest.mark.parametrize(
    "snapshot",
    [
        sample(offsets=[20, 10]),
        sample(offsets=[10, 10]),
        sample(positions=[500, 128]),
        sample(positions=[128, 128]),
        sample(valid_position=500),
        sample(valid_position=0),
    ],
)
def test_entries_must_rise_and_stay_within_what_is_covered(snapshot: IndexSnapshot) -> None:
    """An index that points anywhere else would send readers there."""
    with pytest.raises(BadBytes):
        IndexSnapshot.decode(snapshot.encode())
