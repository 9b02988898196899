"""
What groups write into the journal.

```
operation: kind u8, flags u8, partition u16, group id u32, generation u32, body length u32, then the body
  1 made        JSON: topic id, topic, name, settings, the offset at which each partition begins, in snapshots when it last had a member
                and how many of its messages became dead letters
  2 configured  JSON: settings
  3 deleted     JSON: nothing
  4 leased      member u64, concurrency u32, ranges u32, then (start u64, end u64) each
  5 finished    a 64-bit roaring bitmap of offsets
                flags 2: they became dead letters, and count as such
  6 failed      offset u64, due_us i64, first_s u32, last_s u32, count u32, reason (utf-8)
                flags 1: it is to become a dead letter
  7 returned    member u64, concurrency u32, ranges u32, then (start u64, end u64) each: not counted as deliveries
  8 begun       member u64, offset u64: a suspect is being handed out
  9 sought      offset u64: the cursor begins anew there; `generation` is the new one
 10 committed   offset u64: everything below is finished
 11 left        member u64
```

Only in snapshots, which are operations that make the groups anew:

```
 12 position    scan u64, then the roaring bitmap of open offsets
 13 suspects    a roaring bitmap of offsets
 14 failed all  as 6 with offset 0 and the length of the reason u32 before it, then the roaring bitmap of offsets that failed alike
 15 next id     u64: the next group's id; `group id` and `partition` are 0
```

First in a snapshot, and first in each entry of operations that were made in memory before:

```
 16 noted       u64: how many such operations there were, up to the end of this entry or snapshot; an entry that a snapshot covers is
                passed over
```

Operations 4 to 8, 10 and 11 are made in memory first, so a snapshot may hold them before the journal does. An operation of an older
generation than the cursor's is of before a seek, and is passed over.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadBytes
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MADE, CONFIGURED, DELETED, LEASED, FINISHED, FAILED, RETURNED, BEGUN, SOUGHT, COMMITTED, LEFT = range(1, 12)
POSITION, SUSPECTS, FAILED_ALL, NEXT_ID, NOTED = range(12, 17)

_HEAD = struct.Struct("<BBHIII")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MEMBER = struct.Struct("<QII")
_RANGE = struct.Struct("<QQ")
_BEGUN = struct.Struct("<QQ")
_FAILED = struct.Struct("<QqIII")

_FINISHED_ONE = struct.Struct("<BBHIIIQIIIHHIH")
"""A finished operation with the bitmap of one offset, as roaring's specification has it: making the bitmap takes ten times as long."""
_ROARING_NO_RUNS = 12_346

OFFSET_MAX = (1 << 62) - 1
SPAN_MAX = 1 << 32
"""No operation leases or finishes more offsets at once: beyond that it is no operation but damage, which must not cost memory."""
_CONDEMNED = 1
MOVED = 2
"""A flag of finished operations: the offsets became dead letters, and count as such. Earlier versions pass over it."""
FINISHED_PER_OPERATION = 4_096
RANGES_PER_OPERATION = 64


class Operation(NamedTuple):
    """One operation as it stands in the journal."""

    kind: int
    partition: int
    group_id: int
    generation: int
    body: memoryview
    flags: int = 0


class Failed(NamedTuple):
    """The body of a failed operation."""

    offset: int
    due_us: int
    first_s: int
    last_s: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it
    reason: str
    condemned: bool = False


def _encode(kind: int, partition: int, group_id: int, generation: int, body: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(kind, flags, partition, group_id, generation, len(body)) + body


def encode_document(kind: int, group_id: int, values: dict[str, Any]) -> bytes:
    """A made, configured or deleted operation."""
    return _encode(kind, 0, group_id, 0, json.dumps(values, separators=(",", ":")).encode())


def encode_ranges(
    kind: int, partition: int, group_id: int, generation: int, member: int, concurrency: int, ranges: Sequence[tuple[int, int]]
) -> bytes:
    """Leased and returned operations; several where there are many ranges."""
    return b"".join(
        [
            _encode(
                kind, partition, group_id, generation,
                _MEMBER.pack(member, concurrency, len(part)) + b"".join([_RANGE.pack(*one) for one in part]),
            )
            for part in [ranges[at : at + RANGES_PER_OPERATION] for at in range(0, len(ranges), RANGES_PER_OPERATION)]
        ]
    )  # fmt: skip


def encode_finished(partition: int, group_id: int, generation: int, offsets: Sequence[int]) -> list[bytes]:
    """Finished operations, each of a size that fits any frame."""
    if len(offsets) == 1:
        offset = offsets[0]
        return [
            _FINISHED_ONE.pack(
                FINISHED, 0, partition, group_id, generation, 30,
                1, offset >> 32, _ROARING_NO_RUNS, 1, offset >> 16 & 0xFFFF, 0, 16, offset & 0xFFFF,
            )
        ]  # fmt: skip
    return [
        _encode(FINISHED, partition, group_id, generation, OffsetSet(offsets[at : at + FINISHED_PER_OPERATION]).serialize())
        for at in range(0, len(offsets), FINISHED_PER_OPERATION)
    ]


def encode_moved(partition: int, group_id: int, generation: int, offset: int) -> bytes:
    """A finished operation of one offset that became a dead letter."""
    [operation] = encode_finished(partition, group_id, generation, (offset,))
    return operation[:1] + bytes([MOVED]) + operation[2:]


def _u32(seconds: int) -> int:
    """Seconds since 1970, of a clock that may stand before that, or behind 2106: then they are the first or the last that there are."""
    return min(max(seconds, 0), 0xFFFF_FFFF)


def encode_failed(partition: int, group_id: int, generation: int, failed: Failed) -> bytes:
    """A failed operation."""
    offset, due_us, first_s, last_s, count, reason, condemned = failed
    body = _FAILED.pack(offset, due_us, _u32(first_s), _u32(last_s), count) + reason.encode(errors="replace")
    return _encode(FAILED, partition, group_id, generation, body, _CONDEMNED if condemned else 0)


def encode_begun(partition: int, group_id: int, generation: int, member: int, offset: int) -> bytes:
    """A begun operation."""
    return _encode(BEGUN, partition, group_id, generation, _BEGUN.pack(member, offset))


def encode_offset(kind: int, partition: int, group_id: int, generation: int, offset: int) -> bytes:
    """A sought or committed operation."""
    return _encode(kind, partition, group_id, generation, _U64.pack(offset))


def encode_position(partition: int, group_id: int, generation: int, scan: int, open_offsets: OffsetSet) -> bytes:
    """A position operation."""
    return _encode(POSITION, partition, group_id, generation, _U64.pack(scan) + open_offsets.serialize())


def decode_position(operation: Operation) -> tuple[int, OffsetSet]:
    """(scan, open offsets) of a position operation. Raises `BadBytes`."""
    if len(operation.body) < _U64.size:
        raise BadBytes("group operation", "is cut off")
    (scan,) = _U64.unpack_from(operation.body)
    open_offsets = decode_bitmap(operation.body[_U64.size :])
    if scan > OFFSET_MAX or (open_offsets and open_offsets.max() >= scan):
        raise BadBytes("group operation", "offsets are open that were never leased")
    return int(scan), open_offsets


def encode_bitmap(kind: int, partition: int, group_id: int, generation: int, offsets: OffsetSet) -> bytes:
    """A suspects operation."""
    return _encode(kind, partition, group_id, generation, offsets.serialize())


def encode_failed_all(
    partition: int, group_id: int, generation: int, failed: Failed, offsets: Sequence[int] | OffsetSet
) -> bytes:
    """A failed-all operation."""
    _, due_us, first_s, last_s, count, reason, condemned = failed
    text = reason.encode(errors="replace")
    body = (
        _FAILED.pack(0, due_us, _u32(first_s), _u32(last_s), count)
        + _U32.pack(len(text))
        + text
        + OffsetSet(offsets).serialize()
    )
    return _encode(FAILED_ALL, partition, group_id, generation, body, _CONDEMNED if condemned else 0)


def decode_failed_all(operation: Operation) -> tuple[Failed, OffsetSet]:
    """What failed, and how, of a failed-all operation. Raises `BadBytes`."""
    body = operation.body
    at = _FAILED.size + _U32.size
    if len(body) < at:
        raise BadBytes("group operation", "is cut off")
    _, due_us, first_s, last_s, count = _FAILED.unpack_from(body)
    (length,) = _U32.unpack_from(body, _FAILED.size)
    if length > len(body) - at:
        raise BadBytes("group operation", f"has a reason of the impossible length {length}")
    reason = bytes(body[at : at + length]).decode(errors="replace")
    condemned = bool(operation.flags & _CONDEMNED)
    return Failed(0, due_us, first_s, last_s, count, reason, condemned), decode_bitmap(body[at + length :])


def encode_left(group_id: int, member: int) -> bytes:
    """A left operation."""
    return _encode(LEFT, 0, group_id, 0, _U64.pack(member))


def operations(body: bytes | memoryview) -> Iterator[Operation]:
    """The operations of one journal entry, in order. Raises `BadBytes`."""
    view = memoryview(body)
    at = 0
    while at < len(view):
        if len(view) - at < _HEAD.size:
            raise BadBytes("group operation", "is cut off")
        kind, flags, partition, group_id, generation, length = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        if length > len(view) - at:
            raise BadBytes("group operation", f"has the impossible length {length}")
        yield Operation(kind, partition, group_id, generation, view[at : at + length], flags)
        at += length


def decode_document(operation: Operation) -> dict[str, Any]:
    """The values of a made or configured operation. Raises `BadBytes`."""
    try:
        values = json.loads(bytes(operation.body))
    except (ValueError, RecursionError) as error:
        raise BadBytes("group operation", str(error)) from None
    if not isinstance(values, dict):
        raise BadBytes("group operation", "is no document")
    return values


def decode_ranges(operation: Operation) -> tuple[int, int, list[tuple[int, int]]]:
    """(member, concurrency, ranges) of a leased or returned operation. Raises `BadBytes`."""
    body = operation.body
    if len(body) < _MEMBER.size:
        raise BadBytes("group operation", "is cut off")
    member, concurrency, count = _MEMBER.unpack_from(body)
    if len(body) != _MEMBER.size + count * _RANGE.size:
        raise BadBytes("group operation", "its length does not fit its ranges")
    ranges = [(int(start), int(end)) for start, end in _RANGE.iter_unpack(body[_MEMBER.size :])]
    if any(not start < end <= min(start + SPAN_MAX, OFFSET_MAX) for start, end in ranges):
        raise BadBytes("group operation", "a range ends before it begins, or is impossibly long")
    return member, concurrency, ranges


def decode_bitmap(data: bytes | memoryview) -> OffsetSet:
    """A stored bitmap. Raises `BadBytes`."""
    try:
        bitmap = OffsetSet.deserialize(bytes(data))
    except (ValueError, IndexError, RuntimeError, MemoryError) as error:
        raise BadBytes("group bitmap", str(error)) from None
    if len(bitmap.serialize()) != len(data):
        raise BadBytes("group bitmap", "has bytes that belong to nothing")
    if bitmap and bitmap.max() > OFFSET_MAX:
        raise BadBytes("group bitmap", "holds what is no offset")
    return bitmap


def decode_failed(operation: Operation) -> Failed:
    """A failed operation. Raises `BadBytes`."""
    body = operation.body
    if len(body) < _FAILED.size:
        raise BadBytes("group operation", "is cut off")
    offset, due_us, first_s, last_s, count = _FAILED.unpack_from(body)
    reason = bytes(body[_FAILED.size :]).decode(errors="replace")
    return Failed(offset, due_us, first_s, last_s, count, reason, bool(operation.flags & _CONDEMNED))


def decode_begun(operation: Operation) -> tuple[int, int]:
    """(member, offset) of a begun operation. Raises `BadBytes`."""
    if len(operation.body) != _BEGUN.size:
        raise BadBytes("group operation", "has the wrong length")
    member, offset = _BEGUN.unpack(operation.body)
    return int(member), int(offset)


def decode_number(operation: Operation) -> int:
    """The one number of a sought, committed or left operation. Raises `BadBytes`."""
    if len(operation.body) != _U64.size:
        raise BadBytes("group operation", "has the wrong length")
    (number,) = _U64.unpack(operation.body)
    return int(number)


def decode_offset(operation: Operation) -> int:
    """The offset of a sought or committed operation. Raises `BadBytes`."""
    number = decode_number(operation)
    if number > OFFSET_MAX:
        raise BadBytes("group operation", f"{number} is no offset")
    return number


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Rising offsets as ranges."""
    found: list[tuple[int, int]] = []
    start = end = -1
    for offset in offsets:
        if offset == end:
            end += 1
            continue
        if end > start:
            found.append((start, end))
        start, end = offset, offset + 1
    if end > start:
        found.append((start, end))
    return found
