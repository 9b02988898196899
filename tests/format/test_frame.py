"""Journal files and frames: entries go in and come out, and what is not exactly one frame is refused."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import mend_frame, targets
from penstock.errors import BadBytes, UnsupportedFormat
from penstock.format.batch import encode_single
from penstock.format.checksum import crc32c
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_LOG_START,
    ENTRY_OTHER,
    ENTRY_REFERENCE,
    FRAME_HEADER_BYTES,
    JOURNAL_HEADER_BYTES,
    JournalFileHeader,
    Reference,
    batch_entry,
    decode_log_start,
    decode_reference,
    encode_frame,
    frame_entries,
    log_start_entry,
    other_entry,
    parse_frame,
    reference_entry,
)
from tests.format.strategies import U32, U64, stamped

if TYPE_CHECKING:
    from penstock.files import Buffer

u64, u32 = st.integers(0, U64), st.integers(0, U32)
references = st.builds(Reference, u32, u32, u64, u64, u64, u64, u64, u32)
BATCH = bytearray(stamped(encode_single(b"journaled"), 5).buffer)
REFERENCE = Reference(2, 3, 4, 5, 6, 7, 8, 9)


def frame(*entries: bytes) -> bytearray:
    return encode_frame(7, 0xABCD, 99, len(entries), list(entries))


def four_entries() -> bytearray:
    return frame(
        b"".join(batch_entry(1, BATCH)), reference_entry(REFERENCE), log_start_entry(3, 77), other_entry(4, b"layer above")
    )


# The file header


@given(st.builds(JournalFileHeader, st.binary(min_size=16, max_size=16), u64, u64, u64))
def test_a_file_header_is_read_back(header: JournalFileHeader) -> None:
    """64 bytes; the frames behind them are not looked at."""
    data = header.encode()
    assert len(data) == JOURNAL_HEADER_BYTES
    assert JournalFileHeader.decode(data) == JournalFileHeader.decode(data + b"frames") == header


def test_the_fields_of_a_file_header_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = JournalFileHeader(b"s" * 16, 1, 2, 3).encode()
    assert struct.unpack("<8sII16sQQQQ", data) == (b"PNSTKJNL", crc32c(data[12:]), 1, b"s" * 16, 1, 2, 3, 0)


def test_a_file_header_cut_at_any_byte_is_refused() -> None:
    """A file gets its name when its header is whole, so that a cut one is damage."""
    data = JournalFileHeader(b"s" * 16, 1, 2, 3).encode()
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            JournalFileHeader.decode(data[:length])


def test_each_flipped_bit_of_a_file_header_is_noticed() -> None:
    """In reserved bytes too."""
    data = bytearray(JournalFileHeader(b"s" * 16, 1, 2, 3).encode())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            JournalFileHeader.decode(data)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("version", [0, 2, U32])
def test_a_journal_of_another_version_is_refused(version: int) -> None:
    """`UnsupportedFormat`, not `BadBytes`."""
    data = bytearray(JournalFileHeader(b"s" * 16, 1, 2, 3).encode())
    struct.pack_into("<I", data, 12, version)
    targets()["journal header"].mend(data)
    with pytest.raises(UnsupportedFormat):
        JournalFileHeader.decode(data)


# Frames


@given(st.lists(st.one_of(references, st.tuples(u32, u64), st.tuples(u32, st.binary(max_size=40)), u32), max_size=6), u64, u64)
def test_entries_are_read_back_in_order(things: list[object], number: int, file_uid: int) -> None:
    """Batches, references, log starts and what belongs to layers above, in any mixture."""
    parts: list[Buffer] = []
    for thing in things:
        if isinstance(thing, Reference):
            parts.append(reference_entry(thing))
        elif isinstance(thing, int):
            parts += batch_entry(thing, BATCH)
        elif isinstance(thing, tuple) and isinstance(thing[1], int):
            parts.append(log_start_entry(*thing))
        else:
            parts.append(other_entry(*thing))  # type: ignore[misc]
    data = encode_frame(number, file_uid, 123, len(things), parts)
    header = parse_frame(data, 0)
    assert (header.frame_bytes, header.entries, header.number, header.file_uid, header.time_us) == (
        len(data),
        len(things),
        number,
        file_uid,
        123,
    )
    entries = list(frame_entries(data, 0, header))
    assert len(entries) == len(things)
    for entry, thing in zip(entries, things, strict=True):
        if isinstance(thing, Reference):
            assert entry.kind == ENTRY_REFERENCE
            assert decode_reference(entry) == thing
        elif isinstance(thing, int):
            assert (entry.kind, entry.owner, bytes(entry.body)) == (ENTRY_BATCH, thing, bytes(BATCH))
        elif isinstance(thing, tuple) and isinstance(thing[1], int):
            assert (entry.kind, entry.owner, decode_log_start(entry)) == (ENTRY_LOG_START, *thing)
        else:
            assert (entry.kind, entry.owner, bytes(entry.body)) == (ENTRY_OTHER, *thing)  # type: ignore[misc]


def test_the_fields_of_a_frame_lie_where_the_layout_says() -> None:
    """Read by hand, without the codec."""
    data = four_entries()
    assert struct.unpack_from("<4sIIIQQq", data) == (b"PSF1", crc32c(data[8:]), len(data), 4, 7, 0xABCD, 99)
    at = FRAME_HEADER_BYTES
    assert struct.unpack_from("<BBHIII", data, at) == (1, 0, 0, 8 + len(BATCH), 1, 0)
    assert data[at + 16 : at + 16 + len(BATCH)] == BATCH
    at += 16 + len(BATCH)
    assert struct.unpack_from("<BBHIIIQQQQQII", data, at) == (2, 0, 0, 56, 2, 3, 4, 5, 6, 7, 8, 9, 0)
    at += 64
    assert struct.unpack_from("<BBHIIIQ", data, at) == (3, 0, 0, 16, 3, 0, 77)
    at += 24
    assert struct.unpack_from("<BBHIII11s5x", data, at) == (4, 0, 0, 19, 4, 0, b"layer above")
    assert at + 32 == len(data)


def test_a_frame_is_found_at_its_position() -> None:
    """Frames follow each other; what lies before and behind one does not matter."""
    one, other = frame(log_start_entry(1, 2)), four_entries()
    data = bytes(one + other + b"\0" * 40)
    first = parse_frame(data, 0)
    second = parse_frame(data, first.frame_bytes)
    assert [entry.kind for entry in frame_entries(data, 0, first)] == [ENTRY_LOG_START]
    assert [entry.kind for entry in frame_entries(data, first.frame_bytes, second)] == [1, 2, 3, 4]
    with pytest.raises(BadBytes):
        parse_frame(data, first.frame_bytes + second.frame_bytes)


def test_a_frame_cut_at_any_byte_is_refused() -> None:
    """The last one of a journal may be torn anywhere."""
    data = bytes(four_entries())
    for length in range(len(data)):
        with pytest.raises(BadBytes):
            parse_frame(data[:length], 0)
    assert parse_frame(data + b"more", 0) == parse_frame(data, 0)


def test_each_flipped_bit_of_a_frame_is_noticed() -> None:
    """Header, entries and padding."""
    data = four_entries()
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBytes):
            parse_frame(data, 0)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("length", [0, 8, 32, 39, 41, 44, U32, U32 - 7])
def test_a_frame_of_an_impossible_length_is_refused(length: int) -> None:
    """Before its checksum is computed over that many bytes."""
    data = four_entries()
    struct.pack_into("<I", data, 8, length)
    mend_frame(data)
    with pytest.raises(BadBytes):
        parse_frame(data, 0)


def entries_of(data: bytearray) -> None:
    mend_frame(data)
    for entry in frame_entries(data, 0, parse_frame(data, 0)):
        if entry.kind == ENTRY_REFERENCE:
            decode_reference(entry)
        elif entry.kind == ENTRY_LOG_START:
            decode_log_start(entry)


@pytest.mark.parametrize("count", [0, 3, 5, U32])
def test_the_entries_must_fill_the_frame(count: int) -> None:
    """Neither more nor fewer than it says."""
    data = four_entries()
    struct.pack_into("<I", data, 12, count)
    with pytest.raises(BadBytes):
        entries_of(data)


@pytest.mark.parametrize("length", [0, 7, 8, 72, 1 << 16, 1 << 31, U32])
@pytest.mark.parametrize("entry", range(4))
def test_an_entry_of_a_forged_length_is_refused(entry: int, length: int) -> None:
    """It is outside the frame, or the entries behind it are not where they should be, or it is not as long as its kind."""
    sizes = [16 + len(BATCH), 64, 24, 32]
    data = four_entries()
    struct.pack_into("<I", data, FRAME_HEADER_BYTES + sum(sizes[:entry]) + 4, length)
    with pytest.raises((BadBytes, UnsupportedFormat)):
        entries_of(data)


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_an_entry_of_an_unknown_kind_is_refused(kind: int) -> None:
    """A newer version committed something that this one cannot carry out."""
    data = four_entries()
    data[FRAME_HEADER_BYTES] = kind
    with pytest.raises(UnsupportedFormat):
        entries_of(data)


def test_an_empty_frame_is_a_frame() -> None:
    """It has no entries and forty bytes."""
    data = frame()
    assert len(data) == FRAME_HEADER_BYTES
    assert list(frame_entries(data, 0, parse_frame(data, 0))) == []
