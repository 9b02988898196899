"""
What a set of messages is, as one number: equal for the same messages in any order, in any batches and partitions.

A transaction that is repeated must have the same messages, and whoever repeats it may have cut them into other batches and in another
order. So each message has a hash of its own, and the digest is the sum of them modulo 2^64:

```
bytes       up to 2,048: the sum of its words of 4 bytes, padded with zeros, each times a number of 8 bytes from a fixed table;
            longer: BLAKE2b of 8 bytes; then mix(that + (length + 1) * LENGTH)
message     mix(topic + the sum over what it has of mix(bytes or number + the constant of its column))
header      mix(3 * name + value + its place * the constant of headers)
```

All modulo 2^64; mix is the finalizer of splitmix64. It is made to notice accidents, not forgers. Where numpy and pyarrow are there a
batch is hashed as a whole, at 60 ns for a message of 100 bytes; else one message after the other. Never change what it gives: it is stored.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING, Any

from penstock.format import columns as c

if TYPE_CHECKING:
    from penstock.format.batch import Batch

BYTES_MAX = 2048
"""Longer values are hashed one by one."""
_CLASSES = (64, 256, BYTES_MAX)
"""Values of very different lengths are hashed apart: all of one go are padded to the longest."""
_CHUNK_WORDS = 32_768
_VECTOR_FROM, _IMPORT_FROM = 32, 512
"""From so many messages on a batch is hashed as a whole; and the libraries for it are loaded if they are not yet."""
_MASK = (1 << 64) - 1
_LENGTH, _HEADER = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_COLUMNS = {
    column: int.from_bytes(hashlib.sha256(f"penstock column {column}".encode()).digest()[:8], "little")
    for column in (c.VALUE, c.KEY, c.TIME, c.EXPIRES, c.DELIVER, c.PRIORITY, c.DEDUP_KEY)
}
_RELATIVE = 0xA5CB3B1F9E3D4D27
_FACTORS = [
    one | 1 for one in struct.unpack(f"<{BYTES_MAX // 4}Q", hashlib.shake_256(b"penstock digest").digest(BYTES_MAX * 2))
]


def add(digest: int, other: int) -> int:
    """The digest of the messages of both."""
    return (digest + other) & _MASK


def digest_of(topic: str, batch: Batch) -> int:
    """The digest of the messages of *batch*, which goes to *topic*. Raises `BadBytes` if a column does not inflate."""
    count = batch.header.count
    libraries = _libraries(is_large=count >= _IMPORT_FROM) if count >= _VECTOR_FROM else None
    seed = _topic_seed(topic)
    return _sum_of_each(seed, batch) if libraries is None else _sum_of_all(libraries, seed, batch)


def prepare() -> None:
    """Load what hashes batches as a whole, if it is there: for who will stage many messages."""
    _load()


def is_quick() -> bool:
    """Whether batches are hashed as a whole here: what that needs is loaded already."""
    return _libraries(is_large=False) is not None


@lru_cache(maxsize=1024)
def _topic_seed(topic: str) -> int:
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:8], "little")


def _libraries(*, is_large: bool) -> tuple[Any, Any] | None:
    """Numpy and pyarrow; not loaded for a few messages."""
    if not is_large and not ("numpy" in sys.modules and "pyarrow.compute" in sys.modules):
        return None
    return _load()


@lru_cache(maxsize=1)
def _load() -> tuple[Any, Any] | None:
    try:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        return None
    return np, pa


# -- one message after the other ------------------------------------------------------------------------------------


def _mix(number: int) -> int:
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def _hash(data: bytes | memoryview) -> int:
    length = len(data)
    if length > BYTES_MAX:
        found = _hash_of_long(data)
    else:
        words = struct.unpack(f"<{(length + 3) // 4}I", bytes(data) + bytes(-length & 3))
        found = sum(map(mul, words, _FACTORS))
    return _mix((found + (length + 1) * _LENGTH) & _MASK)


def _hash_of_long(data: bytes | memoryview) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _sum_of_each(seed: int, batch: Batch) -> int:
    binaries = [
        (_COLUMNS[column], view) for column in (c.VALUE, c.KEY, c.DEDUP_KEY) if (view := _view(batch, column)) is not None
    ]
    numbers = [
        (_constant(column, view), view)
        for column in (c.TIME, c.EXPIRES, c.DELIVER)
        if (view := _view(batch, column)) is not None
    ]
    headers, priorities = _view(batch, c.HEADERS), _view(batch, c.PRIORITY)
    total = 0
    for index in range(batch.header.count):
        message = seed
        for constant, view in binaries:
            data = view.get(index)
            if data is not None:
                message += _mix((_hash(data) + constant) & _MASK)
        for constant, view in numbers:
            number = view.get(index)
            if number is not None:
                message += _mix((number + constant) & _MASK)
        if priorities is not None and priorities.numbers[index]:
            message += _mix((priorities.numbers[index] + _COLUMNS[c.PRIORITY]) & _MASK)
        if headers is not None:
            for place, (name, value) in enumerate(headers.get(index), 1):
                message += _mix((3 * _hash(name.encode()) + _hash(value) + place * _HEADER) & _MASK)
        total += _mix(message & _MASK)
    return total & _MASK


def _view(batch: Batch, column: int) -> Any:
    return batch._column(column)  # noqa: SLF001 - same package, and columns are not public


def _constant(column: int, view: c.NumberColumn) -> int:
    return (_COLUMNS[column] + (_RELATIVE if view.flags & c.RELATIVE else 0)) & _MASK


# -- a batch as a whole ---------------------------------------------------------------------------------------------


def _sum_of_all(libraries: tuple[Any, Any], seed: int, batch: Batch) -> int:
    np, _ = libraries
    count = batch.header.count
    total = np.full(count, seed, np.uint64)
    for column in (c.VALUE, c.KEY, c.DEDUP_KEY):
        view = _view(batch, column)
        if view is not None:
            table = np.frombuffer(view.offsets, np.int32)
            hashes = _hashes(libraries, table, view.data.get(0, view.data.raw_bytes))
            total += _present(np, view, _mix_all(np, hashes + np.uint64(_COLUMNS[column])))
    for column in (c.TIME, c.EXPIRES, c.DELIVER):
        view = _view(batch, column)
        if view is not None:
            numbers = np.frombuffer(view.numbers, np.uint64) + np.uint64(_constant(column, view))
            total += _present(np, view, _mix_all(np, numbers))
    priorities = _view(batch, c.PRIORITY)
    if priorities is not None:
        given = np.frombuffer(priorities.numbers, np.uint8)
        hashes = _mix_all(np, given.astype(np.uint64) + np.uint64(_COLUMNS[c.PRIORITY]))
        hashes[given == 0] = 0
        total += hashes
    headers = _view(batch, c.HEADERS)
    if headers is not None:
        total += _header_sums(libraries, headers)
    return int(np.add.reduce(_mix_all(np, total)))


def _present(np: Any, view: Any, hashes: Any) -> Any:
    """Hashes with zeros where there is nothing."""
    if view.validity is not None:
        bits = np.unpackbits(np.frombuffer(view.validity, np.uint8), count=len(hashes), bitorder="little")
        hashes[bits == 0] = 0
    return hashes


def _mix_all(np: Any, numbers: Any) -> Any:
    """The same as `_mix`; *numbers* are used up."""
    shifted = numbers >> np.uint64(30)
    numbers ^= shifted
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(numbers, np.uint64(27), out=shifted)
    numbers ^= shifted
    numbers *= np.uint64(0x94D049BB133111EB)
    np.right_shift(numbers, np.uint64(31), out=shifted)
    numbers ^= shifted
    return numbers


def _header_sums(libraries: tuple[Any, Any], view: c.HeadersColumn) -> Any:
    np, _ = libraries
    lists = np.frombuffer(view.list_offsets, np.int32).astype(np.int64)
    data = view.data.get(0, view.data.raw_bytes)
    names = _hashes(libraries, np.frombuffer(view.name_offsets, np.int32), data[: view.name_region_bytes])
    values = _hashes(libraries, np.frombuffer(view.value_offsets, np.int32), data[view.name_region_bytes :])
    places = np.arange(1, len(names) + 1) - np.repeat(lists[:-1], np.diff(lists))
    pairs = names * np.uint64(3) + values + places.astype(np.uint64) * np.uint64(_HEADER)
    sums = np.concatenate([np.zeros(1, np.uint64), np.add.accumulate(_mix_all(np, pairs), dtype=np.uint64)])
    return sums[lists[1:]] - sums[lists[:-1]]


def _hashes(libraries: tuple[Any, Any], table: Any, data: memoryview) -> Any:
    """The same as `_hash`, of all entries of a column with these offsets."""
    np, pa = libraries
    lengths = np.diff(table).astype(np.int64)
    count = len(lengths)
    found = np.zeros(count, np.uint64)
    if count:
        entries = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(table), pa.py_buffer(data)])
        longest = int(lengths.max())
        if longest <= BYTES_MAX and longest * count <= 2 * int(table[-1] - table[0]) + _CLASSES[0] * count:
            found = _sums_of_words(libraries, entries, longest)
        else:
            below = -1
            for highest in _CLASSES:
                some = np.flatnonzero((lengths > below) & (lengths <= highest))
                if len(some):
                    found[some] = _sums_of_words(libraries, entries.take(pa.array(some)), int(lengths[some].max()))
                below = highest
            for index in np.flatnonzero(lengths > BYTES_MAX).tolist():
                found[index] = _hash_of_long(data[int(table[index]) : int(table[index + 1])])
    found += (lengths.astype(np.uint64) + np.uint64(1)) * np.uint64(_LENGTH)
    return _mix_all(np, found)


def _sums_of_words(libraries: tuple[Any, Any], entries: Any, longest: int) -> Any:
    """The sums over the words of entries of up to *longest* bytes."""
    np, pa = libraries
    count, width = len(entries), (longest + 3) // 4
    found = np.zeros(count, np.uint64)
    if not width:
        return found
    factors = np.array(_FACTORS[:width], np.uint64)
    rows = max(1, _CHUNK_WORDS // width)
    for start in range(0, count, rows):
        some = entries.slice(start, rows)
        padded = pa.compute.ascii_rpad(some, width * 4, padding="\0")
        words = np.frombuffer(padded.buffers()[2], np.uint32, len(some) * width).reshape(len(some), width)
        np.einsum("ij,j->i", words.astype(np.uint64), factors, out=found[start : start + rows])
    return found
