"""
Messages that were stored one by one, as Arrow: what a topic holds that is published to message by message, until its segments are merged.

Making a RecordBatch costs as much for one message as for a thousand. So plain batches of one message are gathered, and make one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from penstock.errors import BadBytes
from penstock.format import columns as c
from penstock.format.arrow import library, schema_of
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.format.batch import Batch

ROWS_MAX = 4_096
BYTES_MAX = 4 * 1024 * 1024
_PLAIN = {c.VALUE, c.KEY, c.DEDUP_KEY}
_BOUNDS = struct.Struct("<ii")


class Singles:
    """Gathers batches of one message. Without a column that plain batches need not have a value for, else `add` takes none."""

    def __init__(self, names: Sequence[str] | None) -> None:
        # When a message expires may depend on its topic.
        known = names is not None and not set(names) - {"offset", "value", "key", "timestamp", "timestamp_type", "headers"}
        self._names = tuple(names) if known and names is not None else None
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        """Whether it is time to `take` them."""
        return len(self._offsets) >= ROWS_MAX or self._size >= BYTES_MAX

    def add(self, batch: Batch) -> bool:
        """Take the message of *batch*, if it is one and a plain one. Raises `BadBytes`."""
        header = batch.header
        if self._names is None or header.count != 1 or header.offset_span != 1 or not _PLAIN.issuperset(batch.column_ids):
            return False
        value, key = batch.entry(c.VALUE), batch.entry(c.KEY)
        if value is None or value.codec != Codec.NONE or (key is not None and key.codec != Codec.NONE):
            return False
        self._offsets.append(header.first_offset)
        self._times.append(header.append_time_us)
        self._values.append(_only(batch, value))
        self._keys.append(None if key is None else _only(batch, key))
        self._size += header.total_bytes
        return True

    def take(self) -> Any:
        """A RecordBatch of those that were added since the last time."""
        pa = library()
        assert self._names is not None
        schema = schema_of(self._names)
        count = len(self._offsets)
        arrays = []
        for name, kind in zip(self._names, schema.types, strict=True):
            if name == "value":
                arrays.append(pa.array(self._values, kind))
            elif name == "key":
                arrays.append(pa.array(self._keys, kind))
            elif name == "offset":
                arrays.append(pa.array(self._offsets, kind))
            elif name == "timestamp":
                arrays.append(pa.array(self._times, pa.int64()).cast(kind))
            elif name == "timestamp_type":
                arrays.append(pa.repeat(pa.scalar(1, kind), count))
            else:
                arrays.append(pa.nulls(count, kind))
        self._offsets, self._times, self._values, self._keys, self._size = [], [], [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _only(batch: Batch, entry: c.Entry) -> bytes | None:
    """The one entry of a binary column: a bitmap if it may be null, two offsets, the data."""
    buffer, at = batch.buffer, entry.position
    if entry.flags & c.HAS_NULLS:
        if not buffer[at] & 1:
            return None
        at += c.bitmap_bytes(1)
    if at + 8 > len(buffer):
        raise BadBytes("batch", "a column ends too early")
    first, last = _BOUNDS.unpack_from(buffer, at)
    if not 0 <= first <= last <= entry.raw_bytes or at + 8 + last > len(buffer):
        raise BadBytes("batch", f"a message from {first} to {last} of {entry.raw_bytes} bytes")
    return bytes(buffer[at + 8 + first : at + 8 + last])
