"""Twenty thousand inputs that nobody meant: only the errors that bytes may have come out."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any

from penstock.errors import BadArgument, BadBytes, PenstockError, UnsupportedFormat
from penstock.wire import documents
from penstock.wire.calls import Call
from penstock.wire.deliveries import decode_deliveries, split_batches
from penstock.wire.failures import decode_error
from penstock.wire.frame import ANSWER, ERROR, PUSH, REQUEST, FrameReader, decode_frame, encode_frame
from tests.wire.test_deliveries import PAYLOAD, RIGHT

if TYPE_CHECKING:
    from random import Random

MUTATIONS = 20_000
SEEDS = [
    b"".join(encode_frame(REQUEST, Call.PUBLISH, 1, {"topic": "orders", "partition": 0, "sync": None}, [PAYLOAD])),
    b"".join(encode_frame(ANSWER, Call.FETCH, 2, {"lots": [RIGHT]}, [PAYLOAD])),
    b"".join(encode_frame(PUSH, Call.FETCH, 3, {"lots": [RIGHT, RIGHT]}, [PAYLOAD, PAYLOAD])),
    b"".join(encode_frame(ERROR, Call.TOPIC, 4, {"code": "BAD_NAME", "arguments": ["topic", "x"], "text": "no"})),
]


def mutate(rng: Random, data: bytes) -> bytes:
    """Flip, cut, repeat or replace a few places."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0:
                if at < len(found):
                    found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at : at + rng.randrange(1, 9)]
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                found[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(32))))
            case 4:
                found[at:at] = rng.choice((b"[", b"{", b'"', b"null", b"-1", b"1e999", b"NaN", b"\xff", b'"lots":'))
            case 5:
                other = rng.randrange(len(found) + 1)
                found[at:at] = found[other : other + rng.randrange(1, 40)]
    return bytes(found)


def look(frame: Any) -> None:
    """Do with a frame what the other side does."""
    if frame.kind == ERROR:
        assert isinstance(decode_error(frame.fields), PenstockError)
    elif frame.call == Call.FETCH:
        decode_deliveries(frame.fields.get("lots"), frame.payload)
    else:
        split_batches(frame.payload)


def mend(data: bytes) -> bytes:
    """Give a frame the length that it has, so that the rest of it is looked at."""
    return struct.pack("<I", len(data) - 4) + data[4:] if len(data) >= 20 else data


def test_mutated_frames_raise_only_what_bytes_may_raise(rng: Random) -> None:
    """Decoded whole, and by a reader."""
    taken = 0
    for number in range(MUTATIONS):
        data = mutate(rng, SEEDS[number % len(SEEDS)])
        if rng.random() < 0.7:
            data = mend(data)
        try:
            if number % 2:
                look(decode_frame(data))
            else:
                for frame in FrameReader(1 << 20).feed(data):
                    look(frame)
            taken += 1
        except (BadBytes, UnsupportedFormat):
            pass
    assert 100 < taken < MUTATIONS


def test_mutated_fields_raise_only_what_fields_may_raise(rng: Random) -> None:
    """Where the JSON is right, and its values are anything."""
    odd: list[Any] = [None, True, -1, 0, 1, 2, 3, 50, 1 << 70, 0.5, "", "x", [], {}, [1], [50, 3], {"0": 1}, [[]]]
    for _ in range(MUTATIONS // 4):
        lot = [rng.choice(odd) if rng.random() < 0.3 else one for one in RIGHT]
        if rng.random() < 0.1:
            lot = lot[: rng.randrange(7)]
        try:
            found = decode_deliveries([lot] * rng.randrange(3), memoryview(PAYLOAD))
            for one in found:
                one.batch.value(one.index)
        except (BadBytes, UnsupportedFormat):
            pass
        fields = {
            "code": rng.choice(["BAD_NAME", "CLOSED", "STORAGE_FULL", *odd]),
            "arguments": rng.choice(odd),
            "text": rng.choice(odd),
        }
        assert isinstance(decode_error(fields), PenstockError)
        with contextlib.suppress(BadArgument):
            documents.decode_place("start", rng.choice(odd + [{"time_us": one} for one in odd]))


def test_random_bytes_are_no_frame(rng: Random) -> None:
    """But by chance, and then a short one that says nothing."""
    for _ in range(2_000):
        data = rng.randbytes(rng.randrange(200))
        try:
            for frame in FrameReader(1 << 16).feed(data):
                assert json.dumps(frame.fields)
        except BadBytes:
            pass
