"""
The columns of a batch: the directory entry, and the encoder and the view of each kind of column.

```
directory entry, 40 bytes
 byte  size  field
    0     1  column            1 value, 2 key, 3 headers, 4 time, 5 expires, 6 deliver, 7 priority, 8 dedup key,
                               9 offsets, 10 runs; in state batches 32 producers, 33 epochs
    1     1  codec             0 none, 1 gzip, 2 zstd, 3 lz4 (only value, key and headers)
    2     2  flags             1 has nulls: a validity bitmap comes first; 2 relative: times count from append_time_us;
                               4 sorted: the numbers never fall
    4     4  crc               CRC-32C of the stored bytes
    8     4  position          from the start of the batch; a multiple of 8; columns follow each other without a gap
   12     4  stored_bytes      with padding; a multiple of 8
   16     4  raw_bytes         binary and headers: data bytes before compression; else equal to stored_bytes
   20     4  reserved          0
   24     8  min               fixed-width columns: the smallest and largest value that is not null (0 and 0 where all
   32     8  max               are null); other columns 0

binary column (value, key, dedup key)              headers column
  [validity]  a bit a message, lowest first          list offsets    i32 * (n + 1)
  offsets     i32 * (n + 1)                          name offsets    i32 * (m + 1), m = last list offset
  data        data, or block table and blocks        value offsets   i32 * (m + 1)
                                                     data            names, then values, each padded
fixed-width column (times i64, priority u8, offsets u32)
  [validity]                                       block table: the end of each block, u32, from the first block's start;
  values                                             blocks of 256 KiB raw, the last one shorter
```

Each part is padded with zeros to a multiple of 8, as Arrow wants it, so that an uncompressed column is wrapped as an Arrow
array without copying. Encoders take columns, not messages: lists of bytes, arrays of numbers.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from penstock.errors import BadBytes, BadColumn, MessageTooLarge, UnsupportedFormat
from penstock.format.checksum import crc32c
from penstock.format.compression import BLOCK_BYTES, COMPRESS_FROM_BYTES, COMPRESS_GAIN, Codec, compress_block, inflate_block
from penstock.values import BATCH_BYTES_MAX, HEADER_NAME_BYTES_MAX, HEADERS_STORED_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.files import Buffer

    Headers = Sequence[tuple[str, bytes]]

VALUE, KEY, HEADERS, TIME, EXPIRES, DELIVER, PRIORITY, DEDUP_KEY, OFFSETS, RUNS = range(1, 11)
PRODUCERS, EPOCHS = 32, 33

NAMES = {
    VALUE: "value", KEY: "key", HEADERS: "headers", TIME: "time", EXPIRES: "expires", DELIVER: "deliver",
    PRIORITY: "priority", DEDUP_KEY: "dedup_key", OFFSETS: "offsets", RUNS: "runs", PRODUCERS: "producers", EPOCHS: "epochs",
}  # fmt: skip

HAS_NULLS = 1
RELATIVE = 2
SORTED = 4
_FLAGS = {
    VALUE: HAS_NULLS, KEY: HAS_NULLS, DEDUP_KEY: HAS_NULLS, HEADERS: 0, TIME: HAS_NULLS | SORTED, EXPIRES: HAS_NULLS | RELATIVE,
    DELIVER: HAS_NULLS | RELATIVE, PRIORITY: 0, OFFSETS: 0, RUNS: 0, PRODUCERS: 0, EPOCHS: 0,
}  # fmt: skip
TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1

ENTRY = struct.Struct("<BBHIIIIIqq")
_PADDING = [bytes(count) for count in range(8)]
_I32_MAX = (1 << 31) - 1


class Entry(NamedTuple):
    """One entry of the column directory."""

    column: int
    codec: int
    flags: int
    crc: int
    position: int
    stored_bytes: int
    raw_bytes: int
    reserved: int
    min: int
    max: int


def padding(length: int) -> bytes:
    """The zeros that bring *length* to a multiple of 8."""
    return _PADDING[-length & 7]


class EncodedColumn(NamedTuple):
    """The stored bytes of a column, in parts that are joined only once, and what its directory entry says of them."""

    column: int
    codec: int
    flags: int
    parts: list[bytes]
    raw_bytes: int
    min: int
    max: int

    def entry(self, position: int) -> tuple[bytes, int]:
        """The directory entry for this column at *position* of its batch, and where the next column begins."""
        crc = stored_bytes = 0
        for part in self.parts:
            crc = crc32c(part, crc)
            stored_bytes += len(part)
        packed = ENTRY.pack(
            self.column, self.codec, self.flags, crc, position, stored_bytes, self.raw_bytes, 0, self.min, self.max
        )
        return packed, position + stored_bytes


def bitmap(present: Sequence[bool]) -> bytes:
    """A validity bitmap, lowest bit first, padded."""
    count = len(present)
    # One big integer from text: the fastest way from bools to bits that the standard library has.
    number = int("".join(["1" if flag else "0" for flag in reversed(present)]) or "0", 2)
    return number.to_bytes((count + 63) // 64 * 8, "little")


def bitmap_bytes(count: int) -> int:
    """The length of a padded validity bitmap of *count* messages."""
    return (count + 63) // 64 * 8


def is_valid(validity: memoryview, index: int) -> bool:
    """Whether bit *index* is set."""
    return bool(validity[index >> 3] >> (index & 7) & 1)


def encode_binary(
    column: int, values: Sequence[bytes | None], codec: Codec = Codec.NONE, level: int | None = None
) -> EncodedColumn:
    """Encode a column of byte strings; None is null, which is not the same as empty."""
    validity = b""
    flags = 0
    try:
        data = b"".join(values)  # type: ignore[arg-type]  # fails on None, and then the slower way is taken
        table = offset_table(map(len, values), len(values))  # type: ignore[arg-type]
    except TypeError:
        _check_byte_strings(column, values)
        validity = bitmap([value is not None for value in values])
        flags = HAS_NULLS
        data = b"".join([value for value in values if value is not None])
        table = offset_table([0 if value is None else len(value) for value in values], len(values))
    if int.from_bytes(table[-4:], "little") != len(data):
        raise BadColumn(NAMES[column], "must be bytes, or views of single bytes")
    return binary_from_parts(column, flags, validity, table, data, codec, level)


def offset_table(lengths: Iterable[int], count: int) -> bytes:
    """The i32 offsets of *count* entries with these *lengths*, beginning with 0."""
    try:
        return struct.pack(f"<{count + 1}i", *accumulate(lengths, initial=0))
    except struct.error:
        raise MessageTooLarge("a column", _I32_MAX, BATCH_BYTES_MAX) from None


def binary_from_parts(
    column: int, flags: int, validity: bytes, table: bytes, data: bytes, codec: Codec, level: int | None
) -> EncodedColumn:
    """Put a binary column together from its bitmap, offset table and data."""
    codec, packed = pack_data(data, codec, level)
    return EncodedColumn(column, codec, flags, [validity, table, padding(len(table)), *packed], len(data), 0, 0)


def _check_byte_strings(column: int, values: Sequence[object]) -> None:
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, (bytes, bytearray, memoryview)):
            raise BadColumn(NAMES[column], f"entry {index} is {type(value).__name__}, not bytes or None")


def pack_data(data: bytes, codec: Codec, level: int | None) -> tuple[Codec, list[bytes]]:
    """The data part of a column: as it is, or as block table and blocks where that pays; padded."""
    if codec is not Codec.NONE and len(data) >= COMPRESS_FROM_BYTES:
        view = memoryview(data)
        blocks = [compress_block(codec, level, view[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
        table = array("I", accumulate(map(len, blocks))).tobytes()
        length = len(table) + sum(map(len, blocks))
        if length <= len(data) * COMPRESS_GAIN:
            return codec, [table, padding(len(table)), *blocks, padding(length + len(padding(len(table))))]
    return Codec.NONE, [data, padding(len(data))]


def encode_headers(messages: Sequence[Headers | None], codec: Codec = Codec.NONE, level: int | None = None) -> EncodedColumn:
    """Encode the headers of each message: ordered (name, value) pairs, repeats allowed."""
    try:
        counts = [0 if pairs is None else len(pairs) for pairs in messages]
    except TypeError as error:
        raise BadColumn("headers", f"must be lists of pairs of str and bytes ({error})") from None
    if counts and max(counts) > HEADERS_STORED_MAX:
        raise MessageTooLarge("the number of headers of a message", max(counts), HEADERS_STORED_MAX)
    flat = [pair for pairs in messages if pairs for pair in pairs]
    try:
        names = [name.encode() for name, _ in flat]
        values = [value for _, value in flat]
        value_data = b"".join(values)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadColumn("headers", f"must be pairs of str and bytes ({error})") from None
    longest = max(map(len, names), default=0)
    if longest > HEADER_NAME_BYTES_MAX:
        raise MessageTooLarge("a header name", longest, HEADER_NAME_BYTES_MAX)
    return headers_from_parts(
        [
            offset_table(counts, len(counts)),
            offset_table(map(len, names), len(names)),
            offset_table(map(len, values), len(values)),
        ],
        b"".join(names),
        value_data,
        codec,
        level,
    )


def headers_from_parts(tables: list[bytes], names: bytes, values: bytes, codec: Codec, level: int | None) -> EncodedColumn:
    """Put a headers column together from its three offset tables (lists, names, values) and its data."""
    head = [part for table in tables for part in (table, padding(len(table)))]
    data = names + padding(len(names)) + values + padding(len(values))
    codec, packed = pack_data(data, codec, level)
    return EncodedColumn(HEADERS, codec, 0, head + packed, len(data), 0, 0)


_TYPECODES: dict[int, Literal["q", "B", "I"]] = {TIME: "q", EXPIRES: "q", DELIVER: "q", PRIORITY: "B", OFFSETS: "I"}


def encode_numbers(column: int, values: Sequence[int | None], flags: int = 0) -> EncodedColumn:
    """Encode a fixed-width column of numbers; None is null, except in the priority and offsets columns."""
    typecode = _TYPECODES[column]
    validity = b""
    numbers: array[int]
    known: Sequence[int]
    try:
        numbers = array(typecode, cast("Sequence[int]", values))  # fails on None
        known = numbers
    except TypeError:
        if column in (PRIORITY, OFFSETS):
            raise BadColumn(NAMES[column], "must be whole numbers without None") from None
        known = [value for value in values if value is not None]
        if not all(isinstance(value, int) for value in known):
            raise BadColumn(NAMES[column], "must be whole numbers or None") from None
        validity = bitmap([value is not None for value in values])
        flags |= HAS_NULLS
        try:
            numbers = array(typecode, [0 if value is None else value for value in values])
        except OverflowError:
            raise BadColumn(NAMES[column], "a number is out of range") from None
    except OverflowError:
        raise BadColumn(NAMES[column], "a number is out of range") from None
    table = numbers.tobytes()
    parts = [validity, table, padding(len(table))]
    if column == TIME and not validity and not any(map(int.__gt__, numbers, islice(numbers, 1, None))):
        flags |= SORTED
    low, high = (min(known), max(known)) if known else (0, 0)
    return EncodedColumn(column, Codec.NONE, flags, parts, sum(map(len, parts)), low, high)


def encode_records(column: int, records: bytes) -> EncodedColumn:
    """Encode a column of fixed-size records (runs, producers, epochs)."""
    return EncodedColumn(column, Codec.NONE, 0, [records, padding(len(records))], len(records), 0, 0)


def _take(buffer: memoryview, at: int, length: int, column: int) -> memoryview:
    if length < 0 or at + length > len(buffer):
        raise BadBytes(f"{NAMES.get(column, column)} column", f"needs {at + length} bytes, has {len(buffer)}")
    return buffer[at : at + length]


def _i32_table(buffer: memoryview, at: int, entries: int, column: int) -> tuple[memoryview, int]:
    length = entries * 4
    table = _take(buffer, at, length, column).cast("i")
    return table, at + length + (-length & 7)


class PackedData:
    """The data part of a column: plain bytes, or compressed blocks that are inflated when they are touched."""

    __slots__ = ("_at", "_blocks", "_codec", "_ends", "_stored", "plain", "raw_bytes")

    def __init__(self, stored: memoryview, at: int, codec: int, raw_bytes: int, column: int) -> None:
        self.raw_bytes = raw_bytes
        self._codec = codec
        self._blocks: dict[int, bytes] = {}
        self.plain: memoryview | None = None
        if codec == Codec.NONE:
            self.plain = _take(stored, at, raw_bytes, column)
            return
        count = (raw_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
        table_bytes = count * 4
        self._ends = _take(stored, at, table_bytes, column).cast("I")
        self._at = at + table_bytes + (-table_bytes & 7)
        self._stored = stored
        _take(stored, self._at, self._ends[count - 1] if count else 0, column)

    def get(self, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of the raw data; inflates only the blocks that hold them."""
        if not 0 <= start <= stop <= self.raw_bytes:
            raise BadBytes("column", f"points to bytes [{start}, {stop}) of {self.raw_bytes}")
        if self.plain is not None:
            return self.plain[start:stop]
        if start == stop:
            return memoryview(b"")
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        if first == last:
            return memoryview(self._block(first))[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]
        joined = b"".join([self._block(index) for index in range(first, last + 1)])
        return memoryview(joined)[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    def _block(self, index: int) -> bytes:
        block = self._blocks.get(index)
        if block is None:
            begin = self._ends[index - 1] if index else 0
            end = self._ends[index]
            if begin > end:
                raise BadBytes("column", f"block {index} ends before it begins")
            stored = _take(self._stored, self._at + begin, end - begin, 0)
            raw_bytes = min(BLOCK_BYTES, self.raw_bytes - index * BLOCK_BYTES)
            block = self._blocks[index] = inflate_block(self._codec, stored, raw_bytes)
        return block


class BinaryColumn:
    """A view of a binary column; nothing is decoded until a message is asked for."""

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, stored: memoryview, entry: Entry, count: int) -> None:
        at = 0
        self.validity: memoryview | None = None
        if entry.flags & HAS_NULLS:
            at = bitmap_bytes(count)
            self.validity = _take(stored, 0, at, entry.column)
        self.offsets, at = _i32_table(stored, at, count + 1, entry.column)
        self.data = PackedData(stored, at, entry.codec, entry.raw_bytes, entry.column)

    def get(self, index: int) -> memoryview | None:
        """The bytes of one message, or None where it has none."""
        if self.validity is not None and not is_valid(self.validity, index):
            return None
        offsets = self.offsets
        return self.data.get(offsets[index], offsets[index + 1])

    def check(self) -> None:
        """Raise `BadBytes` unless the offsets rise from 0 to the end of the data."""
        _check_offsets(self.offsets, self.data.raw_bytes)


class HeadersColumn:
    """A view of a headers column."""

    __slots__ = ("data", "list_offsets", "name_offsets", "name_region_bytes", "value_offsets")

    def __init__(self, stored: memoryview, entry: Entry, count: int) -> None:
        self.list_offsets, at = _i32_table(stored, 0, count + 1, HEADERS)
        pairs = self.list_offsets[count]
        if pairs < 0:
            raise BadBytes("headers column", "has a negative count")
        self.name_offsets, at = _i32_table(stored, at, pairs + 1, HEADERS)
        self.value_offsets, at = _i32_table(stored, at, pairs + 1, HEADERS)
        self.data = PackedData(stored, at, entry.codec, entry.raw_bytes, HEADERS)
        names = self.name_offsets[pairs]
        self.name_region_bytes = names + (-names & 7)

    def get(self, index: int) -> list[tuple[str, bytes]]:
        """The headers of one message in their order."""
        begin, end = self.list_offsets[index], self.list_offsets[index + 1]
        if not 0 <= begin <= end < len(self.name_offsets):
            raise BadBytes("headers column", f"message {index} has headers [{begin}, {end})")
        names, values, base = self.name_offsets, self.value_offsets, self.name_region_bytes
        try:
            return [
                (
                    str(self.data.get(names[at], names[at + 1]), "utf-8"),
                    bytes(self.data.get(base + values[at], base + values[at + 1])),
                )
                for at in range(begin, end)
            ]
        except UnicodeDecodeError as error:
            raise BadBytes("headers column", f"a name is not UTF-8: {error.reason}") from None

    def check(self) -> None:
        """Raise `BadBytes` unless all offsets rise from 0 and end where their data ends."""
        _check_offsets(self.list_offsets, len(self.name_offsets) - 1)
        _check_offsets(self.name_offsets, self.name_offsets[len(self.name_offsets) - 1])
        _check_offsets(self.value_offsets, self.value_offsets[len(self.value_offsets) - 1])
        values = self.value_offsets[len(self.value_offsets) - 1]
        if self.name_region_bytes + values + (-values & 7) != self.data.raw_bytes:
            raise BadBytes("headers column", "its offsets do not cover its data")
        for index in range(len(self.list_offsets) - 1):
            self.get(index)


def _check_offsets(offsets: memoryview, end: int) -> None:
    numbers = offsets.tolist()
    if numbers[0] != 0 or numbers[-1] != end or any(map(int.__gt__, numbers, numbers[1:])):
        raise BadBytes("column", "its offsets do not rise from 0 to the end of its data")


class NumberColumn:
    """A view of a fixed-width column of numbers."""

    __slots__ = ("flags", "numbers", "validity")

    def __init__(self, stored: memoryview, entry: Entry, count: int) -> None:
        typecode = _TYPECODES[entry.column]
        at = 0
        self.flags = entry.flags
        self.validity: memoryview | None = None
        if entry.flags & HAS_NULLS:
            at = bitmap_bytes(count)
            self.validity = _take(stored, 0, at, entry.column)
        width = array(typecode).itemsize
        self.numbers = _take(stored, at, count * width, entry.column).cast(typecode)

    def get(self, index: int) -> int | None:
        """The number of one message, or None where it has none."""
        if self.validity is not None and not is_valid(self.validity, index):
            return None
        return int(self.numbers[index])


class Run(NamedTuple):
    """
    What a merged batch remembers of one batch that went into it; 64 bytes each in the runs column.

    ```
    end_index u32, flags u32 (1 producer, 2 transaction), append_time_us i64, max_time_us i64,
    producer id u64, producer sequence u64, producer incarnation u32, transaction part u32, transaction number u64, offset u64
    ```
    """

    end_index: int
    flags: int
    append_time_us: int
    max_time_us: int
    producer_id: int
    producer_sequence: int
    producer_incarnation: int
    transaction_part: int
    transaction_number: int
    first_offset: int


RUN = struct.Struct("<IIqqQQIIQQ")
RUN_PRODUCER = 1
RUN_TRANSACTION = 2
assert RUN.size == 64


def read_runs(stored: memoryview, entry: Entry, count: int) -> list[Run]:
    """Decode a runs column."""
    if entry.raw_bytes % RUN.size or entry.raw_bytes > len(stored):
        raise BadBytes("runs column", f"impossible length {entry.raw_bytes}")
    runs = [Run._make(fields) for fields in RUN.iter_unpack(stored[: entry.raw_bytes])]
    ends = [run.end_index for run in runs]
    if not ends or ends[-1] != count or sorted(set(ends)) != ends:
        raise BadBytes("runs column", "does not cover the batch")
    return runs


def run_of(runs: list[Run], index: int) -> Run:
    """The run that message *index* belongs to."""
    return runs[bisect_right(runs, index, key=lambda run: run.end_index)]


def read_directory(buffer: Buffer, at: int, columns: int, header_bytes: int, total_bytes: int) -> dict[int, Entry]:
    """
    Read and check the directory at *at*: columns must follow each other from the end of the header to the end of the batch.

    Positions in the entries count from the start of the batch. Raises `BadBytes`.
    """
    entries: dict[int, Entry] = {}
    expected = header_bytes
    for index in range(columns):
        entry = Entry._make(ENTRY.unpack_from(buffer, at + index * ENTRY.size))
        if entry.position != expected or entry.stored_bytes & 7 or entry.raw_bytes > BATCH_BYTES_MAX:
            raise BadBytes("column directory", f"entry {index} has impossible lengths")
        if entry.column in entries:
            raise BadBytes("column directory", f"column {entry.column} is there twice")
        if entry.codec > Codec.LZ4:
            raise UnsupportedFormat("a column", f"compression {entry.codec}")
        if entry.codec and entry.column not in (VALUE, KEY, HEADERS):
            raise BadBytes("column directory", f"column {entry.column} is never compressed")
        if entry.flags & ~_FLAGS.get(entry.column, 0xFFFF):
            raise BadBytes("column directory", f"column {entry.column} cannot have the flags {entry.flags:#x}")
        entries[entry.column] = entry
        expected += entry.stored_bytes
    if expected != total_bytes:
        raise BadBytes("column directory", "its columns do not fill the batch")
    return entries
