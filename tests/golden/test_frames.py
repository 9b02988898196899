"""The bytes of the native protocol, pinned by a file each."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.format.batch import Batch, encode_batch
from penstock.format.batch_header import Producer
from penstock.wire.calls import Call
from penstock.wire.deliveries import decode_deliveries, encode_deliveries
from penstock.wire.failures import decode_error, encode_error
from penstock.wire.frame import ANSWER, ERROR, PUSH, REQUEST, Frame, FrameReader, decode_frame, encode_frame
from tests.golden.files import golden
from tests.wire.test_deliveries import Handed

CORRELATION = 0x0102030405060708
REQUEST_FIELDS = {"topic": "orders", "partition": 3, "sync": None, "\N{SNOWMAN}": [1, 2.5, True]}


def sent() -> bytes:
    """A batch as a client sends it."""
    batch = encode_batch([b"one", None], keys=[None, b"key"], producer=Producer(0x1111, 2, 3))
    batch.stamp(0, 0, 0, 0, 0, 0)
    return bytes(batch.data)


def stored() -> Batch:
    """A batch as it lies on the server's disk."""
    batch = encode_batch([b"a", b"b", b"c", b"d"])
    batch.stamp(1_000, 1_700_000_000_123_456, 1_700_000_000_123_456, 7, 900, 1)
    return Batch(bytes(batch.data))


def handed() -> tuple[list[Any], list[Any]]:
    """Three of its messages, one of them for the second time."""
    batch = stored()
    deliveries: Any = [Handed(batch, index, 3, 2 if index == 2 else 1) for index in (1, 2, 3)]
    return encode_deliveries(deliveries, 40)


def frames() -> dict[str, bytes]:
    """What each file holds, encoded now."""
    lots, payload = handed()
    # Its words may change; where they stand may not.
    error = {**encode_error(OffsetOutOfRange(5, 10, 20)), "text": "offset 5 is outside [10, 20)"}
    return {
        "request": b"".join(encode_frame(REQUEST, Call.PUBLISH, CORRELATION, REQUEST_FIELDS, [sent()])),
        "answer": b"".join(encode_frame(ANSWER, Call.PUBLISH, CORRELATION, {"offset": 1 << 40, "duplicate": False})),
        "error": b"".join(encode_frame(ERROR, Call.READ, CORRELATION, error)),
        "push": b"".join(encode_frame(PUSH, Call.FETCH, 12, {"lots": lots}, payload)),
    }


@pytest.mark.parametrize("name", ["request", "answer", "error", "push"])
def test_frames_are_the_bytes_that_they_always_were(name: str) -> None:
    """Encoded to the same bytes, and read from them whole and by a reader."""
    encoded = frames()[name]
    data = golden(f"frame-{name}.bin", encoded)
    assert encoded == data
    (read,) = FrameReader().feed(data)
    assert read[:4] == decode_frame(data)[:4]


def read(name: str) -> Frame:
    return decode_frame(golden(f"frame-{name}.bin", frames()[name]))


def test_the_head_is_laid_out_as_the_document_says() -> None:
    """Twenty bytes, little-endian."""
    data = golden("frame-request.bin", frames()["request"])
    length, kind, call, reserved, correlation, fields_bytes = struct.unpack_from("<IBBHQI", data)
    assert (length, kind, call, reserved, correlation) == (len(data) - 4, 1, 16, 0, CORRELATION)
    assert data[20 : 20 + fields_bytes].decode() == '{"topic":"orders","partition":3,"sync":null,"\\u2603":[1,2.5,true]}'
    assert data[20 + fields_bytes :] == sent()


def test_what_the_files_say_is_read() -> None:
    """Of each kind."""
    request = read("request")
    assert (request.kind, request.call, request.correlation, request.fields) == (REQUEST, 16, CORRELATION, REQUEST_FIELDS)
    batch = Batch(request.payload)
    assert (batch.producer, bytes(batch.value(0) or b""), batch.value(1)) == (Producer(0x1111, 2, 3), b"one", None)
    assert read("answer").fields == {"offset": 1 << 40, "duplicate": False}
    error = decode_error(read("error").fields)
    assert isinstance(error, OffsetOutOfRange)
    assert (error.offset, error.first, error.end) == (5, 10, 20)
    push = read("push")
    assert (push.kind, push.call, push.correlation) == (PUSH, 33, 12)
    found = decode_deliveries(push.fields["lots"], push.payload)
    assert [(one.tag, one.partition, one.offset, one.attempt) for one in found] == [
        (40, 3, 1_001, 1),
        (41, 3, 1_002, 2),
        (42, 3, 1_003, 1),
    ]
    assert [bytes(one.batch.value(one.index) or b"") for one in found] == [b"b", b"c", b"d"]


def test_the_numbers_of_calls_never_change() -> None:
    """A number that was given away is never given to another call."""
    assert {call.name: int(call) for call in Call} == {
        "HELLO": 1, "PING": 2, "TOPICS": 3, "TOPIC": 4, "CREATE_TOPIC": 5, "TOPIC_TO_PUBLISH": 6, "STATS": 7, "RETAIN": 8, "FLUSH": 9,
        "VACUUM": 10, "COMPACT": 11, "DELETE_TOPIC": 12, "METRICS": 13, "STOPPING": 14,
        "PUBLISH": 16, "PUBLISH_ONCE": 17, "OPEN_PRODUCER": 18, "TRANSACT": 19, "PUBLISH_MANY": 20,
        "STAGE": 24, "STAGE_ADD": 25, "STAGE_FINISH": 26,
        "STAGE_ABANDON": 27, "COMMIT": 28, "ABORT": 29, "COMMITTED": 30, "SUBSCRIBE": 32, "FETCH": 33, "CREDIT": 34, "ACK": 35,
        "NACK": 36, "EXTEND": 37, "RETURN": 38, "COMMIT_POSITION": 39, "UNSUBSCRIBE": 40, "PAUSE": 41, "CANCEL": 42, "CONSUMER": 43,
        "HEARTBEAT": 44,
        "GROUPS": 48, "DELETE_GROUP": 49, "SEEK": 50, "MEMBERS": 51, "EVICT_MEMBER": 52, "POSITIONS": 56, "READ": 57, "OFFSET_OF_TIME": 58,
        "DEAD_LETTERS": 64, "REPLAY_DEAD_LETTERS": 65, "DISCARD_DEAD_LETTERS": 66,
    }  # fmt: skip
