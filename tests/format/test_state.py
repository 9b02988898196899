"""The state batch at the start of a segment."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import mend_batch
from penstock.errors import BadBytes
from penstock.format import columns as c
from penstock.format.batch import Batch, encode_single
from penstock.format.batch_header import KIND_STATE
from penstock.format.state import EpochStart, ProducerRecord, decode_state, encode_state
from tests.format.strategies import U32, U64, stamped

u64, u32 = st.integers(0, U64), st.integers(0, U32)
records = st.builds(ProducerRecord, u64, u64, u64, st.integers(-(1 << 63), (1 << 63) - 1), u32, u32)
epochs = st.builds(EpochStart, u64, u32)


@given(st.lists(records, max_size=5), st.lists(epochs, max_size=5))
def test_a_state_is_read_back(producers: list[ProducerRecord], starts: list[EpochStart]) -> None:
    """In its order; it takes no offsets and has no messages."""
    batch = stamped(encode_state(producers, starts), 77)
    batch.check()
    assert decode_state(batch) == (producers, starts)
    assert (batch.header.kind, len(batch), batch.first_offset, batch.end_offset) == (KIND_STATE, 0, 77, 77)


def test_the_records_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    batch = stamped(encode_state([ProducerRecord(1, 2, 3, 4, 5, 6)], [EpochStart(7, 8), EpochStart(9, 10)]))
    assert struct.unpack("<QQQqII", batch.stored_column(c.PRODUCERS)) == (1, 2, 3, 4, 5, 6)
    assert struct.unpack("<QIIQII", batch.stored_column(c.EPOCHS)) == (7, 8, 0, 9, 10, 0)


def test_a_data_batch_is_no_state() -> None:
    """Whoever asks for the state of a segment gets an error and not an empty state."""
    with pytest.raises(BadBytes):
        decode_state(stamped(encode_single(b"x")))


@pytest.mark.parametrize("raw_bytes", [1, 39, 41, 80, 1 << 20])
def test_records_of_an_impossible_length_are_refused(raw_bytes: int) -> None:
    """Not whole records, or more than there are; the checksum is right."""
    batch = stamped(encode_state([ProducerRecord(1, 2, 3, 4, 5, 6)], []))
    data = bytearray(batch.buffer)
    struct.pack_into("<I", data, batch.header.header_bytes - 80 + 16, raw_bytes)
    mend_batch(data)
    with pytest.raises(BadBytes):
        decode_state(Batch(data))


def test_a_state_cut_at_any_byte_is_refused() -> None:
    """Whole, it is taken with anything behind it."""
    producers = [ProducerRecord(1, 2, 3, 4, 5, 6)]
    data = bytes(stamped(encode_state(producers, [EpochStart(7, 8)])).buffer)
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            Batch(data[:length])
    assert decode_state(Batch(data + b"rest")) == (producers, [EpochStart(7, 8)])
