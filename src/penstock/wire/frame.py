"""
The frame of the native protocol.

```
 byte  size  field
    0     4  length          of all that follows
    4     1  kind            1 request, 2 answer, 3 error, 4 push
    5     1  call            which call; of an answer or error: that of its request
    6     2  reserved        0
    8     8  correlation     chosen by who asks, and repeated in the answer; of a push: the consumer
   16     4  fields bytes
   20        fields          JSON object, utf-8
             payload         bytes, to the end: batches as they are on disk, one behind the other
```

All numbers are little-endian. A frame is checked before anything of its length is allocated: the receiver knows how long it may be.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock.errors import BadBytes
from penstock.values import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.files import Buffer

Fields: TypeAlias = dict[str, Any] | bytes
"""What is told in a frame: an object, or the JSON of one, for who says the same again and again."""
REQUEST, ANSWER, ERROR, PUSH = 1, 2, 3, 4
FRAME_BYTES_MAX = BATCH_BYTES_MAX + 16 * 1024 * 1024
"""The longest frame: a batch of the longest kind, and fields."""
FIELDS_BYTES_MAX = 16 * 1024 * 1024
HELLO_BYTES_MAX = 64 * 1024
"""What may be sent before the other side knows who it is."""
_HEAD = struct.Struct("<IBBHQI")
HEAD_BYTES = _HEAD.size
assert HEAD_BYTES == 20
_LENGTH_BYTES = 4


class Frame(NamedTuple):
    """One frame that was received. The payload is a view of the receiver's buffer and keeps it alive."""

    kind: int
    call: int
    correlation: int
    fields: dict[str, Any]
    payload: memoryview


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


# Made once: json.dumps and json.loads make theirs anew for each call, which costs more than the call.
_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


def encode_fields(fields: dict[str, Any]) -> bytes:
    """As they travel. Raises `TypeError` or `ValueError`: no JSON has that."""
    return _encode_json(fields).encode()


def encode_frame(kind: int, call: int, correlation: int, fields: Fields, payload: Iterable[Buffer] = ()) -> list[Buffer]:
    """A frame as buffers that follow each other; the payload is not copied. Raises `TypeError` or `ValueError`: no JSON has that."""
    text = (fields if type(fields) is bytes else encode_fields(fields)) if fields else b"{}"  # type: ignore[arg-type]
    parts = list(payload)
    length = HEAD_BYTES - _LENGTH_BYTES + len(text) + sum(map(len, parts))
    return [_HEAD.pack(length, kind, call, 0, correlation, len(text)) + text, *parts]


def _any_fields(call: int) -> int:  # noqa: ARG001
    return FIELDS_BYTES_MAX


class FrameReader:
    """
    Cuts what comes over a connection into frames. One thread at a time.

    Attributes:
        bytes_max: the longest frame.
        partial_bytes: what is held of a frame that is not whole yet.
        count: how many whole frames there were.
    """

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX, fields_max: Callable[[int], int] = _any_fields) -> None:
        """*fields_max* says how long the fields of a call may be."""
        self.bytes_max = bytes_max
        self._fields_max = fields_max
        self._buffer = bytearray()
        self.count = 0

    @property
    def partial_bytes(self) -> int:
        """See the class."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """
        Take what has come; gives the frames that are whole.

        Raises `BadBytes`: it is no frame, or too long; the connection is of no more use.
        """
        return map(decode_frame, self.cut(data))

    def cut(self, data: Buffer) -> Iterator[Buffer]:
        """
        The same, but the frames are not decoded yet: their fields may be long.

        What is wrong with a frame's lengths is told as soon as its head is there.
        """
        if not self._buffer and len(data) >= HEAD_BYTES:
            # Most often one whole frame comes, and need not be gathered.
            length = int.from_bytes(data[:_LENGTH_BYTES], "little")
            if length + _LENGTH_BYTES == len(data) <= self.bytes_max:
                self._check_head(data)
                self.count += 1
                yield data
                return
        view = memoryview(data)
        while view:
            buffer = self._buffer
            if len(buffer) < HEAD_BYTES:
                wanted = HEAD_BYTES - len(buffer)
                buffer += view[:wanted]
                view = view[wanted:]
                if len(buffer) < HEAD_BYTES:
                    return
                self._check_head(buffer)
            # Only what belongs to this frame: so it never has to be copied out of a longer buffer.
            wanted = int.from_bytes(buffer[:_LENGTH_BYTES], "little") + _LENGTH_BYTES - len(buffer)
            buffer += view[:wanted]
            view = view[wanted:]
            if len(view) or len(buffer) == int.from_bytes(buffer[:_LENGTH_BYTES], "little") + _LENGTH_BYTES:
                self._buffer = bytearray()
                self.count += 1
                yield buffer

    def _check_head(self, data: Buffer) -> None:
        length, _, call, _, _, fields_bytes = _HEAD.unpack_from(data)
        if not HEAD_BYTES - _LENGTH_BYTES <= length <= self.bytes_max:
            raise BadBytes("frame", f"has the impossible length {length}")
        most = self._fields_max(call)
        if fields_bytes > most:
            raise BadBytes("frame", f"has {fields_bytes:,} bytes of fields, and call {call} may have {most:,}")


def fields_bytes_of(data: Buffer) -> int:
    """How long the fields of a whole frame are."""
    return int(_HEAD.unpack_from(data)[5])


def decode_frame(data: Buffer) -> Frame:
    """Read a whole frame. Raises `BadBytes`."""
    if len(data) < HEAD_BYTES:
        raise BadBytes("frame", "is cut off")
    length, kind, call, reserved, correlation, fields_bytes = _HEAD.unpack_from(data)
    if length != len(data) - _LENGTH_BYTES:
        raise BadBytes("frame", f"says that it has {length} bytes behind its length, and has {len(data) - _LENGTH_BYTES}")
    if kind not in (REQUEST, ANSWER, ERROR, PUSH) or reserved:
        raise BadBytes("frame", f"is of the unknown kind {kind}")
    end = HEAD_BYTES + fields_bytes
    if fields_bytes > FIELDS_BYTES_MAX or end > len(data):
        raise BadBytes("frame", f"has fields of the impossible length {fields_bytes}")
    view = memoryview(data)
    try:
        # Decoded here: json would guess the encoding, and let half characters and NaN pass.
        fields = _decode_json(str(view[HEAD_BYTES:end], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadBytes("frame", f"its fields are no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadBytes("frame", "its fields are no object")
    return Frame(kind, call, correlation, fields, view[end:])
