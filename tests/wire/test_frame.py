"""Frames: what is sent comes out again, however it is cut up, and nothing else does."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadBytes
from penstock.wire.frame import (
    ANSWER,
    ERROR,
    FIELDS_BYTES_MAX,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    HELLO_BYTES_MAX,
    PUSH,
    REQUEST,
    Frame,
    FrameReader,
    decode_frame,
    encode_frame,
)

values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
frames = st.tuples(
    st.sampled_from((REQUEST, ANSWER, ERROR, PUSH)),
    st.integers(0, 255),
    st.integers(0, (1 << 64) - 1),
    st.dictionaries(st.text(max_size=6), values, max_size=4),
    st.lists(st.binary(max_size=40), max_size=3),
)


def joined(kind: int, call: int, correlation: int, fields: dict[str, Any], payload: list[bytes]) -> bytes:
    return b"".join(encode_frame(kind, call, correlation, fields, payload))


def plain(frame: Frame) -> tuple[int, int, int, dict[str, Any], bytes]:
    return (*frame[:4], bytes(frame.payload))


def head(length: int, kind: int = REQUEST, reserved: int = 0, fields_bytes: int = 2) -> bytes:
    return struct.pack("<IBBHQI", length, kind, 2, reserved, 7, fields_bytes)


def with_fields(text: bytes) -> bytes:
    return head(HEAD_BYTES - 4 + len(text), fields_bytes=len(text)) + text


@given(frames)
def test_a_frame_comes_out_as_it_was_sent(sent: Any) -> None:
    """Kind, call, correlation, fields and the payload, which is joined."""
    expected = (*sent[:4], b"".join(sent[4]))
    assert plain(decode_frame(joined(*sent))) == expected
    (read,) = FrameReader().feed(joined(*sent))
    assert plain(read) == expected


@given(st.lists(frames, min_size=1, max_size=4))
def test_frames_come_out_however_they_are_cut_up(sent: list[Any]) -> None:
    """Byte by byte."""
    reader = FrameReader()
    data = b"".join(joined(*one) for one in sent)
    found = [plain(frame) for at in range(len(data)) for frame in reader.feed(data[at : at + 1])]
    assert found == [(*one[:4], b"".join(one[4])) for one in sent]


@given(st.lists(frames, max_size=5), st.data())
def test_frames_come_out_in_pieces_of_any_length(sent: list[Any], data: st.DataObject) -> None:
    """And each as soon as its last byte is there."""
    reader = FrameReader()
    encoded = [joined(*one) for one in sent]
    stream, position, found = b"".join(encoded), 0, []
    while position < len(stream):
        size = data.draw(st.integers(1, 60))
        found += [plain(frame) for frame in reader.feed(stream[position : position + size])]
        position += size
        whole = next((n for n in range(len(encoded)) if sum(map(len, encoded[: n + 1])) > position), len(encoded))
        assert len(found) == whole
    assert found == [(*one[:4], b"".join(one[4])) for one in sent]


def test_a_payload_is_kept_when_more_comes() -> None:
    """It is a view of a buffer that nobody writes into again."""
    reader = FrameReader()
    first, second = (joined(PUSH, 1, number, {}, [bytes([number]) * 1_000]) for number in (1, 2))
    (one,) = reader.feed(first + second[:100])
    kept = one.payload
    list(reader.feed(second[100:]))
    list(reader.feed(first * 10))
    assert bytes(kept) == b"\x01" * 1_000


def test_an_empty_frame_has_empty_fields() -> None:
    """The shortest there is."""
    data = joined(REQUEST, 2, 1, {}, [])
    assert len(data) == HEAD_BYTES + 2
    assert plain(decode_frame(data)) == (REQUEST, 2, 1, {}, b"")


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [FRAME_BYTES_MAX, HELLO_BYTES_MAX, 100])
def test_a_frame_that_is_too_long_is_refused_by_its_head(limit: int) -> None:
    """Nothing of its length is awaited or allocated."""
    reader = FrameReader(limit)
    assert list(reader.feed(head(limit))) == []
    tracemalloc.start()
    with pytest.raises(BadBytes):
        list(FrameReader(limit).feed(head(limit + 1)))
    with pytest.raises(BadBytes):
        list(FrameReader(limit).feed(head(0xFFFFFFFF)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000


def test_a_long_frame_that_has_not_come_allocates_nothing() -> None:
    """Its head may promise what it likes."""
    tracemalloc.start()
    reader = FrameReader()
    assert list(reader.feed(head(FRAME_BYTES_MAX) + bytes(1_000))) == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000


@pytest.mark.parametrize("length", range(HEAD_BYTES - 4))
def test_a_frame_that_is_too_short_for_its_head_is_refused(length: int) -> None:
    """There is no such frame."""
    with pytest.raises(BadBytes):
        list(FrameReader().feed(head(length) + bytes(30)))


def test_the_limit_may_be_raised_between_frames() -> None:
    """As when a hello was taken."""
    reader = FrameReader(100)
    long = joined(REQUEST, 2, 2, {}, [bytes(1_000)])
    found = []
    for frame in reader.feed(joined(REQUEST, 1, 1, {}, []) + long):
        found.append(frame.correlation)
        reader.bytes_max = 10_000
    assert found == [1, 2]


@pytest.mark.parametrize("fields_bytes", [3, 100, FIELDS_BYTES_MAX + 1, 0xFFFFFFFF])
def test_fields_must_lie_within_the_frame(fields_bytes: int) -> None:
    """And be no longer than fields may be."""
    with pytest.raises(BadBytes):
        decode_frame(head(18, fields_bytes=fields_bytes) + b"{}")


def test_fields_over_their_limit_are_refused_without_being_read() -> None:
    """Even where the frame is as long."""
    text = b'{"x":"' + b"a" * FIELDS_BYTES_MAX + b'"}'
    with pytest.raises(BadBytes, match="impossible length"):
        decode_frame(with_fields(text))


@pytest.mark.parametrize("kind", sorted({0, 5, 6, 127, 128, 255}))
def test_unknown_kinds_are_refused(kind: int) -> None:
    """There are four."""
    with pytest.raises(BadBytes):
        decode_frame(head(18, kind) + b"{}")


@pytest.mark.parametrize("bit", range(16))
def test_reserved_bits_must_be_zero(bit: int) -> None:
    """So that they can mean something one day."""
    with pytest.raises(BadBytes):
        decode_frame(head(18, reserved=1 << bit) + b"{}")


@pytest.mark.parametrize("length", range(HEAD_BYTES + 2))
def test_a_frame_that_is_cut_off_is_refused(length: int) -> None:
    """Where it is given whole; a reader waits for the rest."""
    data = joined(REQUEST, 2, 1, {}, [])
    with pytest.raises(BadBytes):
        decode_frame(data[:length])
    assert list(FrameReader().feed(data[:length])) == []


def test_a_frame_with_more_behind_it_is_refused() -> None:
    """Where it is given whole."""
    with pytest.raises(BadBytes):
        decode_frame(joined(REQUEST, 2, 1, {}, []) + b"x")


# -- fields ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"null", b"[]", b"1", b'"x"', b"true", b"{", b"}", b"{}x", b"{} {}", b'{"a"}', b'{"a":}', b"{'a':1}", b'{"a":1,}',
        b"\x00\x00", b"\xff\xff", b'{"a":"\xff"}', b'{"a":"\xc3"}', b'{"a":"\xc0\x80"}', b'{"\xf5":1}',
    ],
)  # fmt: skip
def test_fields_that_are_no_object_are_refused(text: bytes) -> None:
    """Or that are no JSON, or no utf-8."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields(text))


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_fields_are_refused(opening: bytes) -> None:
    """Not by a crash of the interpreter."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields(b'{"a":' + opening * 200_000))


def test_whole_numbers_that_take_long_to_read_are_refused() -> None:
    """A million digits take a second and more."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields(b'{"a":' + b"9" * 1_000_000 + b"}"))


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_json_does_not_know_is_refused(text: bytes) -> None:
    """Other languages could not read it, and no field means it."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields(b'{"a":' + text + b"}"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-8-sig"])
def test_only_utf_8_is_read(encoding: str) -> None:
    """The protocol says so."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields('{"a":1}'.encode(encoding)))


def test_half_a_character_is_refused() -> None:
    """It could not be sent on, nor stored."""
    with pytest.raises(BadBytes):
        decode_frame(with_fields(b'{"a":"\xed\xa0\x80"}'))


def test_what_is_encoded_is_json_that_everybody_reads() -> None:
    """No NaN leaves."""
    with pytest.raises(ValueError):
        encode_frame(ANSWER, 1, 1, {"a": float("nan")})


def test_unknown_fields_are_kept() -> None:
    """A newer program may send more."""
    fields = {"topic": "a", "some day": [1, {"b": None}]}
    assert decode_frame(joined(REQUEST, 16, 1, fields, [])).fields == json.loads(json.dumps(fields))
