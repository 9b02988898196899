"""
The batch: the unit that is published, journaled, stored, sent and read.

`encode_batch` makes one from columns; `EncodedBatch.stamp` lets the owner of a log write offset and time into its header;
`Batch` is a lazy view over the bytes of one: parsing it reads the header and the directory, and a message is sliced out of its
columns only when it is asked for. Layouts: batch_header.py and columns.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.errors import BadBytes, BadColumn, BatchTooLarge, MessageTooLarge
from penstock.format import columns as c
from penstock.format.batch_header import (
    COMPATIBLE_APPEND_TIMES,
    COMPATIBLE_PREWRITTEN,
    FIXED_BYTES,
    FLAG_PRODUCER,
    KIND_DATA,
    MAGIC,
    BatchHeader,
    Producer,
    Transaction,
    build_header,
    clear_compatible_flag,
    directory_at,
    parse_header,
    read_producer,
    read_schema_id,
    read_transaction,
    stamp,
)
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec
from penstock.values import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.files import Buffer

_join_bytearray = bytearray().join


class EncodedBatch:
    """
    The bytes of a batch that a log has not taken yet, with what the log needs to know of it.

    `data` is one mutable buffer so that stamping writes in place: nothing is copied between encoding and the disk.
    """

    __slots__ = ("count", "data", "header_bytes", "offset_span")

    def __init__(self, data: bytearray, header_bytes: int, count: int, offset_span: int) -> None:
        self.data = data
        self.header_bytes = header_bytes
        self.count = count
        self.offset_span = offset_span

    def __len__(self) -> int:
        return len(self.data)

    def stamp(
        self, first_offset: int, append_time_us: int, max_time_us: int, segment_uid: int, durable_end: int, log_epoch: int
    ) -> None:
        """Write the fields that the owner of the log decides, and the header's CRC."""
        stamp(self.data, self.header_bytes, first_offset, append_time_us, max_time_us, segment_uid, durable_end, log_epoch)

    @classmethod
    def adopt(cls, data: Buffer) -> EncodedBatch:
        """
        Take the bytes of a whole batch that somebody else encoded, after checking them.

        Raises:
            BadBytes: not exactly one whole, undamaged data batch.
        """
        if _is_single(data):
            return cls(bytearray(data), _SINGLE_PRODUCER.size - 8, 1, 1)
        batch = Batch(data)
        if batch.header.kind != KIND_DATA or batch.header.total_bytes != len(data):
            raise BadBytes("batch", "these bytes are not exactly one data batch")
        batch.verify()
        batch.check_tables()
        header = batch.header
        if header.offset_span != header.count or not _FROM_OUTSIDE.isdisjoint(batch.column_ids):
            raise BadBytes("batch", "only the owner of a log may leave out offsets or merge batches")
        copy = cls(bytearray(data), header.header_bytes, header.count, header.offset_span)
        # Set by the owner of the log that it came from, and of no meaning in another.
        clear_compatible_flag(copy.data, COMPATIBLE_PREWRITTEN | COMPATIBLE_APPEND_TIMES)
        return copy

    def with_producer(self, producer: Producer) -> EncodedBatch:
        """The same batch, not stamped yet, saying who publishes it. It must not say that already."""
        data = self.data
        assert not data[14] & FLAG_PRODUCER
        added = _PRODUCER_EXTENSION.pack(producer.id, producer.sequence, producer.incarnation, 0)
        found = bytearray().join([data[:FIXED_BYTES], added, data[FIXED_BYTES:]])
        header_bytes = self.header_bytes + len(added)
        found[14] |= FLAG_PRODUCER
        _U32.pack_into(found, 8, header_bytes)
        _U64.pack_into(found, 24, len(found))
        # The columns lie as much farther back.
        for at in range(header_bytes - found[13] * c.ENTRY.size + 8, header_bytes, c.ENTRY.size):
            _U32.pack_into(found, at, _U32.unpack_from(found, at)[0] + len(added))
        return EncodedBatch(found, header_bytes, self.count, self.offset_span)

    @property
    def is_bare(self) -> bool:
        """Whether it has values that are not compressed, and no other column."""
        data = self.data
        return data[13] == 1 and not data[self.header_bytes - c.ENTRY.size + 1]

    @property
    def raw_bytes(self) -> int:
        """How long its columns are when they are inflated."""
        columns, at = self.data[13], self.header_bytes
        first = at - columns * c.ENTRY.size
        return sum([max(entry[5], entry[6]) for entry in c.ENTRY.iter_unpack(memoryview(self.data)[first:at])])

    @property
    def producer(self) -> Producer | None:
        """Who published the batch, if it says so."""
        if not self.data[14] & FLAG_PRODUCER:
            return None
        identity, sequence, incarnation = _PRODUCER_FIELDS.unpack_from(self.data, FIXED_BYTES)
        return Producer(identity, incarnation, sequence)


_FROM_OUTSIDE = {c.OFFSETS, c.RUNS}
_PRODUCER_FIELDS = struct.Struct("<QQI")
_PRODUCER_EXTENSION = struct.Struct("<QQII")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# The header, one directory entry and the two offsets of a batch with one value and nothing else, in one pack call:
# publishing one message at a time is common, and three calls cost more than the disk write.
_put_u32 = _U32.pack_into
_SINGLE = struct.Struct("<4sIIBBHIIQQQqqQQIIBBHIIIIIqqii")
_SINGLE_HEADER_BYTES = FIXED_BYTES + c.ENTRY.size
_PAIR = struct.Struct("<ii")
_ZEROS = [bytes(count) for count in range(8)]
_SINGLE_CRC_AT = FIXED_BYTES + 4
_SHAPES_MAX = 4096
_COPY_BYTES_MAX = 4096
"""To copy a shorter value is cheaper than to go twice about it and the zeros behind it."""
_STAMPED = struct.Struct("<32sQqqQQI8sI32s")
"""All of such a header behind its CRC: what is known before, the stamp, what is known, the CRC of the value, what is known."""
_pack_stamped = _STAMPED.pack
_pack_u32 = _U32.pack
SINGLE_ADDED_BYTES_MAX = _SINGLE_HEADER_BYTES + 8 + 7
"""How much longer such a batch is than its value, at most."""
_shapes: dict[int, tuple[bytes, int, bytes]] = {}
"""By the length of the value: all that comes before it, the CRC of the two offsets, the zeros behind it. Lengths repeat."""


def _shape(length: int) -> tuple[bytes, int, bytes]:
    zeros = _ZEROS[-length & 7]
    stored = 8 + length + len(zeros)
    head = _SINGLE.pack(
        MAGIC, 0, _SINGLE_HEADER_BYTES, KIND_DATA, 1, 0, 0, 1, _SINGLE_HEADER_BYTES + stored, 1, 0, 0, 0, 0, 0, 0, 0,
        c.VALUE, 0, 0, 0, _SINGLE_HEADER_BYTES, stored, length, 0, 0, 0, 0, length,
    )  # fmt: skip
    shape = head, crc32c(_PAIR.pack(0, length)), zeros
    if len(_shapes) < _SHAPES_MAX:
        _shapes[length] = shape
    return shape


_SINGLE_PRODUCER = struct.Struct("<4sIIBBHIIQQQqqQQIIQQIIBBHIIIIIqqii")


def _is_single(data: Buffer) -> bool:
    """
    Whether these are the bytes of one batch as `encode_single` and `with_producer` make it, undamaged and not stamped.

    What a client that publishes one message after the other sends; the thorough look at it costs five times as much. False says nothing.
    """
    size = len(data)
    if size < _SINGLE_PRODUCER.size:
        return False
    (
        magic, header_crc, header_bytes, kind, columns, incompatible, compatible, count, total, span, *stamps,
        _, _, _, nothing, column, codec, flags, crc, position, stored, raw, zero, minimum, maximum, first, length,
    ) = _SINGLE_PRODUCER.unpack_from(data)  # fmt: skip
    expected = _SINGLE_PRODUCER.size - 8
    view = memoryview(data)
    return (
        magic == MAGIC and header_bytes == expected == position and kind == KIND_DATA and columns == 1
        and incompatible == FLAG_PRODUCER and not compatible and count == 1 == span and total == size <= BATCH_BYTES_MAX
        and not any(stamps) and not nothing and column == c.VALUE and not codec and not flags
        and stored == size - expected and raw == length >= 0 and stored == 8 + length + (-length & 7)
        and not zero and not minimum and not maximum and not first
        and crc32c(view[8:expected]) == header_crc and crc32c(view[expected:]) == crc
    )  # fmt: skip


def is_compressed(data: Buffer) -> bool:
    """Whether a column of the batch in *data*, which nobody has checked yet, claims to be compressed."""
    if len(data) < FIXED_BYTES:
        return False
    end: int = _U32.unpack_from(data, 8)[0]
    return any(memoryview(data)[max(0, end - data[13] * c.ENTRY.size) + 1 : end : c.ENTRY.size])


def encode_single(value: bytes) -> EncodedBatch:
    """The same bytes as ``encode_batch([value])``, sooner."""
    length = len(value)
    shape = _shapes.get(length)
    if shape is None:
        if length > BATCH_BYTES_MAX - 4096:
            raise MessageTooLarge("a message", length, BATCH_BYTES_MAX - 4096)
        shape = _shape(length)
    head, crc, zeros = shape
    data = bytearray(head)
    if zeros and length < _COPY_BYTES_MAX:
        value += zeros
        zeros = b""
    data += value
    crc = crc32c(value, crc)
    if zeros:
        data += zeros
        crc = crc32c(zeros, crc)
    _put_u32(data, _SINGLE_CRC_AT, crc)
    return EncodedBatch(data, _SINGLE_HEADER_BYTES, 1, 1)


_stamped_shapes: dict[int, tuple[bytes, bytes, bytes, bytes, int, bytes]] = {}
"""By the length of the value: the three known parts of `_STAMPED`, the two offsets, their CRC, the zeros behind the value."""


def _stamped_shape(length: int) -> tuple[bytes, bytes, bytes, bytes, int, bytes]:
    head, crc, zeros = _shape(length)
    shape = head[8:40], head[84:92], head[96:128], head[128:], crc, zeros
    if len(_stamped_shapes) < _SHAPES_MAX:
        _stamped_shapes[length] = shape
    return shape


def encode_stamped(
    value: bytes, first_offset: int, append_time_us: int, max_time_us: int, segment_uid: int, durable_end: int, log_epoch: int
) -> bytearray:
    """The bytes that `encode_single` and `stamp` make, sooner; *value* is not too long for it. `of_stamped` makes a batch of them."""
    shape = _stamped_shapes.get(len(value)) or _stamped_shape(len(value))
    before, between, behind, offsets, crc, zeros = shape
    value += zeros
    header = _pack_stamped(
        before,
        first_offset,
        append_time_us,
        max_time_us,
        segment_uid,
        durable_end,
        log_epoch,
        between,
        crc32c(value, crc),
        behind,
    )
    return _join_bytearray((MAGIC, _pack_u32(crc32c(header)), header, offsets, value))


def of_stamped(data: bytearray) -> EncodedBatch:
    """The batch whose bytes `encode_stamped` made."""
    return EncodedBatch(data, _SINGLE_HEADER_BYTES, 1, 1)


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[c.Headers | None] | None = None,
    times_us: Sequence[int | None] | None = None,
    expires_us: Sequence[int | None] | None = None,
    expires_relative: bool = False,
    deliver_us: Sequence[int | None] | None = None,
    deliver_relative: bool = False,
    priorities: Sequence[int] | None = None,
    dedup_keys: Sequence[bytes | None] | None = None,
    offset_deltas: Sequence[int] | None = None,
    offset_span: int | None = None,
    producer: Producer | None = None,
    transaction: Transaction | None = None,
    schema_id: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> EncodedBatch:
    """
    Encode columns, one entry a message, as a batch.

    *expires_us* and *deliver_us* are absolute times, or with the `_relative` flag microseconds from the time of appending.
    *offset_deltas* (rising, from 0 up to below *offset_span*) are for batches whose offsets are not dense any more.

    Raises:
        BadColumn: columns of different lengths or of wrong types.
        BatchTooLarge, MessageTooLarge: over the limits of the format.
    """
    count = len(values)
    if not 0 < count <= BATCH_MESSAGES_MAX:
        if count == 0:
            raise BadColumn("value", "a batch has at least one message")
        raise BatchTooLarge("messages", count, BATCH_MESSAGES_MAX)
    parts = [c.encode_binary(c.VALUE, values, codec, level)]
    if keys is not None:
        parts.append(_encode_keys(keys, codec, level))
    if headers is not None:
        parts.append(c.encode_headers(headers, codec, level))
    for column, numbers, relative in (
        (c.TIME, times_us, False),
        (c.EXPIRES, expires_us, expires_relative),
        (c.DELIVER, deliver_us, deliver_relative),
        (c.PRIORITY, priorities, False),
    ):
        if numbers is not None:
            parts.append(c.encode_numbers(column, numbers, c.RELATIVE if relative else 0))
    if dedup_keys is not None:
        parts.append(c.encode_binary(c.DEDUP_KEY, dedup_keys))
    if offset_deltas is None and offset_span not in (None, count):
        raise BadColumn("offsets", f"a span of {offset_span} needs a list of the offsets of {count} messages")
    if offset_deltas is not None:
        _check_deltas(offset_deltas, offset_span)
        parts.append(c.encode_numbers(c.OFFSETS, offset_deltas))
    given = (keys, headers, times_us, expires_us, deliver_us, priorities, dedup_keys, offset_deltas)
    for given_column in given:
        if given_column is not None and len(given_column) != count:
            raise BadColumn("all columns", f"must have {count} entries like the values, one has {len(given_column)}")
    return batch_from_columns(
        parts, count, count if offset_span is None else offset_span, producer=producer, transaction=transaction, schema_id=schema_id
    )  # fmt: skip


def _encode_keys(keys: Sequence[bytes | None], codec: Codec, level: int | None) -> c.EncodedColumn:
    encoded = c.encode_binary(c.KEY, keys, codec, level)
    longest = max([0 if key is None else len(key) for key in keys], default=0)
    if longest > KEY_BYTES_MAX:
        raise MessageTooLarge("a key", longest, KEY_BYTES_MAX)
    return encoded


def _check_deltas(deltas: Sequence[int], span: int | None) -> None:
    numbers = list(deltas)
    if not all(isinstance(number, int) for number in numbers):
        raise BadColumn("offsets", "must be whole numbers")
    if (
        span is None
        or not numbers
        or numbers[0] < 0
        or numbers[-1] >= span
        or any(one >= other for one, other in pairwise(numbers))
    ):
        raise BadColumn("offsets", "must rise and stay below the span of the batch")


def batch_from_columns(
    parts: list[c.EncodedColumn],
    count: int,
    offset_span: int,
    *,
    kind: int = KIND_DATA,
    producer: Producer | None = None,
    transaction: Transaction | None = None,
    schema_id: int | None = None,
) -> EncodedBatch:
    """Put encoded columns together as a batch. Raises `BatchTooLarge`."""
    fixed = FIXED_BYTES
    if producer is not None:
        fixed += 24
    if transaction is not None:
        fixed += 16
    if schema_id is not None:
        fixed += 8
    position = fixed + c.ENTRY.size * len(parts)
    raw_bytes = sum([part.raw_bytes for part in parts])
    if raw_bytes > BATCH_BYTES_MAX:
        raise BatchTooLarge("bytes", raw_bytes, BATCH_BYTES_MAX)
    entries = []
    for part in parts:
        entry, position = part.entry(position)
        entries.append(entry)
        if position > BATCH_BYTES_MAX:
            raise BatchTooLarge("bytes", position, BATCH_BYTES_MAX)
    directory = b"".join(entries)
    head = build_header(
        kind=kind,
        count=count,
        offset_span=offset_span,
        body_bytes=position - fixed - len(directory),
        directory=directory,
        producer=producer,
        transaction=transaction,
        schema_id=schema_id,
    )
    data = _join_bytearray([head, *[piece for part in parts for piece in part.parts]])
    return EncodedBatch(data, len(head), count, offset_span)


class Batch:
    """
    A view of one batch in a buffer.

    Creating it checks the header and its CRC, the directory, and that the buffer holds the whole batch; `verify` checks the
    CRC of each column. Columns are decoded when a message in them is asked for. Not for use from several threads at once.

    Raises:
        BadBytes: these bytes are not a whole batch.
        UnsupportedFormat: a newer version wrote it.
    """

    __slots__ = ("_arrow", "_columns", "_entries", "_runs", "buffer", "header", "is_verified", "ttl_us")

    def __init__(self, buffer: Buffer, position: int = 0, header: BatchHeader | None = None) -> None:
        view = memoryview(buffer)
        if header is None:
            header = parse_header(view, position)
        end = position + header.total_bytes
        if end > len(view):
            raise BadBytes("batch", f"needs {header.total_bytes} bytes, {len(view) - position} are left")
        self.header = header
        self.buffer = view[position:end]
        self._entries = c.read_directory(
            self.buffer, directory_at(header), header.columns, header.header_bytes, header.total_bytes
        )
        if header.kind == KIND_DATA and c.VALUE not in self._entries:
            raise BadBytes("batch", "has no value column")
        if header.compatible & COMPATIBLE_APPEND_TIMES:
            times = self._entries.get(c.TIME)
            if times is None or times.flags & c.HAS_NULLS:
                raise BadBytes("batch", "does not tell when each of its messages was appended")
        self._columns: dict[int, Any] = {}
        self._runs: list[c.Run] | None = None
        self._arrow: Any = None
        self.is_verified = False
        """Whether all of it was found as it was written."""
        self.ttl_us = 0
        """How long messages live that do not say it themselves, 0 for ever: of the topic, set by whoever reads its log."""

    def __len__(self) -> int:
        return self.header.count

    def __repr__(self) -> str:
        header = self.header
        return f"<Batch of {header.count} at offset {header.first_offset}, {header.total_bytes} bytes>"

    @property
    def first_offset(self) -> int:
        """The first offset that the batch covers."""
        return self.header.first_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.header.first_offset + self.header.offset_span

    @property
    def producer(self) -> Producer | None:
        """Who published it, if it says so."""
        return read_producer(self.buffer, 0, self.header)

    @property
    def transaction(self) -> Transaction | None:
        """The transaction it belongs to, if any."""
        return read_transaction(self.buffer, 0, self.header)

    @property
    def schema_id(self) -> int | None:
        """The schema of its values, if it names one."""
        return read_schema_id(self.buffer, 0, self.header)

    @property
    def column_ids(self) -> list[int]:
        """The columns that are there, in stored order."""
        return list(self._entries)

    def entry(self, column: int) -> c.Entry | None:
        """The directory entry of a column, or None."""
        return self._entries.get(column)

    def stored_column(self, column: int) -> memoryview:
        """The stored bytes of a column that is there."""
        entry = self._entries[column]
        return self.buffer[entry.position : entry.position + entry.stored_bytes]

    def verify(self) -> None:
        """Check the CRC of every column. Raises `BadBytes`."""
        buffer = self.buffer
        for column, _, _, crc, position, stored_bytes, _, _, _, _ in self._entries.values():
            if crc32c(buffer[position : position + stored_bytes]) != crc:
                raise BadBytes(f"{c.NAMES.get(column, column)} column", "checksum does not match")
        self.is_verified = True

    def verify_columns(self, columns: Iterable[int]) -> None:
        """The same of some columns only, as far as they are there: nothing else is read."""
        for column in columns:
            entry = self._entries.get(column)
            if entry is not None and crc32c(self.stored_column(column)) != entry.crc:
                raise BadBytes(f"{c.NAMES.get(column, column)} column", "checksum does not match")

    def check(self) -> None:
        """
        Check everything about the contents, as must be done once with a batch from outside.

        It costs time for each message; bytes that this program encoded and whose CRC match need only `verify`.
        """
        self.verify()
        self.check_tables()
        try:
            deltas = self._column(c.OFFSETS)
            if deltas is not None:
                _check_deltas(deltas.numbers.tolist(), self.header.offset_span)
            elif self.header.kind == KIND_DATA and self.header.offset_span != self.header.count:
                raise BadBytes("batch", "covers more offsets than it has messages but does not list them")
            for index in range(self.header.count):
                self.value(index)
                self.key(index)
            if c.RUNS in self._entries:
                self.runs()
        except BadColumn as error:
            raise BadBytes("batch", str(error)) from None

    @property
    def is_compressed(self) -> bool:
        """Whether a column of it is."""
        return any(entry.codec for entry in self._entries.values())

    def check_numbers(self) -> None:
        """Check that expires, deliver and priority lie within the bounds that the directory tells, exactly. Raises `BadBytes`."""
        for column in (c.EXPIRES, c.DELIVER, c.PRIORITY):
            view: c.NumberColumn | None = self._column(column)
            if view is None:
                continue
            numbers = view.numbers
            known = (
                numbers if view.validity is None else [one for at, one in enumerate(numbers) if c.is_valid(view.validity, at)]
            )
            entry = self._entries[column]
            if (entry.min, entry.max) != ((min(known), max(known)) if len(known) else (0, 0)):
                raise BadBytes(f"{c.NAMES[column]} column", "its bounds are not those of its numbers")

    def check_tables(self) -> None:
        """
        Check that the tables of the columns fit together, so that every message can be found: the least for a batch of a client.

        What it does not see is a compressed block that does not inflate. Raises `BadBytes`.
        """
        try:
            for column in self._entries:
                view = self._column(column)
                if isinstance(view, (c.BinaryColumn, c.HeadersColumn)):
                    view.check()
        except BadColumn as error:
            raise BadBytes("batch", str(error)) from None

    def _column(self, column: int) -> Any:
        view = self._columns.get(column)
        if view is None:
            entry = self._entries.get(column)
            if entry is None:
                return None
            stored = self.stored_column(column)
            if column in (c.VALUE, c.KEY, c.DEDUP_KEY):
                view = c.BinaryColumn(stored, entry, self.header.count)
            elif column == c.HEADERS:
                view = c.HeadersColumn(stored, entry, self.header.count)
            elif column in (c.TIME, c.EXPIRES, c.DELIVER, c.PRIORITY, c.OFFSETS):
                view = c.NumberColumn(stored, entry, self.header.count)
            else:
                view = stored
            self._columns[column] = view
        return view

    def value(self, index: int) -> memoryview | None:
        """The value of message *index* (0 is the first of the batch), None for a tombstone."""
        view: memoryview | None = self._column(c.VALUE).get(index)
        return view

    def key(self, index: int) -> memoryview | None:
        """The key of message *index*, None if it has none."""
        return self._optional(c.KEY, index)

    def dedup_key(self, index: int) -> memoryview | None:
        """The deduplication key of message *index*, None if it has none."""
        return self._optional(c.DEDUP_KEY, index)

    def _optional(self, column: int, index: int) -> memoryview | None:
        view = self._column(column)
        return None if view is None else view.get(index)

    def headers(self, index: int) -> list[tuple[str, bytes]]:
        """The headers of message *index*, in their order."""
        view = self._column(c.HEADERS)
        return [] if view is None else view.get(index)

    def offset(self, index: int) -> int:
        """The offset of message *index*."""
        view = self._column(c.OFFSETS)
        return self.header.first_offset + (index if view is None else int(view.numbers[index]))

    def offsets_of(self, indexes: Sequence[int]) -> list[int]:
        """The offsets of several messages."""
        view = self._column(c.OFFSETS)
        first = self.header.first_offset
        if view is None:
            return [first + index for index in indexes]
        deltas = view.numbers.tolist()
        return [first + deltas[index] for index in indexes]

    def index_of(self, offset: int) -> int:
        """The index of the first message at or after *offset*; the count if there is none."""
        delta = offset - self.header.first_offset
        if delta <= 0:
            return 0
        view = self._column(c.OFFSETS)
        if view is None:
            return min(delta, self.header.count)
        return bisect_left(view.numbers, delta)

    def time_us(self, index: int) -> int:
        """When message *index* was made: what its publisher said, else when it was appended."""
        view = self._column(c.TIME)
        if view is not None:
            given = view.get(index)
            if given is not None:
                return int(given)
        return self.append_time_us(index)

    def given_time_us(self, index: int) -> int | None:
        """When message *index* was made, if its publisher said so."""
        view = None if self.header.compatible & COMPATIBLE_APPEND_TIMES else self._column(c.TIME)
        given = None if view is None else view.get(index)
        return None if given is None else int(given)

    def append_time_us(self, index: int) -> int:
        """When message *index* was appended to the log."""
        if self.header.compatible & COMPATIBLE_APPEND_TIMES:
            return int(self._column(c.TIME).numbers[index])
        if c.RUNS in self._entries:
            return c.run_of(self.runs(), index).append_time_us
        return self.header.append_time_us

    def index_of_append_time(self, time_us: int) -> int:
        """The first message by whose appending the log's running maximum of append times had reached *time_us*."""
        if self.header.compatible & COMPATIBLE_APPEND_TIMES:
            view: c.NumberColumn = self._column(c.TIME)
            if view.flags & c.SORTED:
                return min(bisect_left(view.numbers, time_us), self.header.count - 1)
            return next((at for at, one in enumerate(view.numbers) if one >= time_us), 0)
        begin = 0
        for run in self.runs():
            if run.max_time_us >= time_us:
                return begin
            begin = run.end_index
        return 0

    def expires_us(self, index: int) -> int | None:
        """When message *index* expires: as its publisher said, else by the topic's `ttl_us`; None for never."""
        moment = self.moment(c.EXPIRES, index)
        if moment is None and self.ttl_us:
            return min(self.append_time_us(index) + self.ttl_us, c.TIME_MAX)
        return moment

    def deliver_us(self, index: int) -> int | None:
        """Before when message *index* is not to be delivered, None for at once."""
        return self.moment(c.DELIVER, index)

    def moment(self, column: int, index: int) -> int | None:
        """What the expires or deliver column says of message *index*, as a time; None where it says nothing."""
        view = self._column(column)
        if view is None:
            return None
        moment = view.get(index)
        if moment is None:
            return None
        if not view.flags & c.RELATIVE:
            return int(moment)
        return min(max(int(moment) + self.header.append_time_us, c.TIME_MIN), c.TIME_MAX)

    @property
    def has_moments(self) -> bool:
        """Whether some of it may expire, or is not to be delivered at once."""
        return c.EXPIRES in self._entries or c.DELIVER in self._entries

    def moments(self, column: int, start: int, stop: int) -> list[int | None]:
        """`expires_us` or `deliver_us` of messages [start, stop); *column* says which, and is there."""
        view: c.NumberColumn = self._column(column)
        base = self.header.append_time_us if view.flags & c.RELATIVE else 0
        moments = [number + base for number in view.numbers[start:stop].tolist()]
        if moments and (min(moments) < c.TIME_MIN or max(moments) > c.TIME_MAX):
            moments = [min(max(one, c.TIME_MIN), c.TIME_MAX) for one in moments]
        found: list[int | None] = [*moments]
        if view.validity is not None:
            validity = view.validity
            found = [one if c.is_valid(validity, start + at) else None for at, one in enumerate(found)]
        return found

    def moment_span(self, column: int) -> tuple[int, int, bool] | None:
        """The earliest and the latest of `moments`, and whether some messages have none; None if the batch has no such column."""
        entry = self._entries.get(column)
        if entry is None:
            return None
        base = self.header.append_time_us if entry.flags & c.RELATIVE else 0
        return entry.min + base, entry.max + base, bool(entry.flags & c.HAS_NULLS)

    @property
    def is_merged(self) -> bool:
        """Whether its messages were appended at different times."""
        return bool(self.header.compatible & COMPATIBLE_APPEND_TIMES) or c.RUNS in self._entries

    def append_time_span(self) -> tuple[int, int]:
        """When the earliest and the latest of its messages was appended."""
        if self.header.compatible & COMPATIBLE_APPEND_TIMES:
            entry = self._entries[c.TIME]
            return entry.min, entry.max
        times = [run.append_time_us for run in self.runs()] if c.RUNS in self._entries else [self.header.append_time_us]
        return min(times), max(times)

    def priorities(self) -> bytes | None:
        """The priority of each message, a byte each; None if all are low."""
        view = self._column(c.PRIORITY)
        return None if view is None or not self._entries[c.PRIORITY].max else bytes(view.numbers)

    def priority(self, index: int) -> int:
        """The priority of message *index*: 0 is low, the default."""
        view = self._column(c.PRIORITY)
        return 0 if view is None else int(view.numbers[index])

    def runs(self) -> list[c.Run]:
        """What the batch remembers of the batches merged into it; empty if it was not merged."""
        if self._runs is None:
            entry = self._entries.get(c.RUNS)
            self._runs = [] if entry is None else c.read_runs(self.stored_column(c.RUNS), entry, self.header.count)
        return self._runs

    def slice(self, start: int, stop: int) -> Slice:
        """The messages [start, stop) of this batch as a view; nothing is copied."""
        if not 0 <= start <= stop <= self.header.count:
            raise BadColumn("slice", f"[{start}, {stop}) is outside a batch of {self.header.count}")
        return Slice(self, start, stop)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """
        The messages as a `pyarrow.RecordBatch`; uncompressed columns are wrapped, not copied.

        *columns* names what is wanted, see `penstock.format.arrow.COLUMNS`; default: all of them. Needs pyarrow.
        """
        from penstock.format.arrow import to_arrow

        if columns is None:
            if self._arrow is None:
                self._arrow = to_arrow(self, None)
            return self._arrow
        return to_arrow(self, columns)


class Slice:
    """Messages [start, stop) of a batch, counted from 0 again."""

    __slots__ = ("batch", "start", "stop")

    def __init__(self, batch: Batch, start: int, stop: int) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start

    def value(self, index: int) -> memoryview | None:
        """The value of message *index* of the slice."""
        return self.batch.value(self.start + index)

    def key(self, index: int) -> memoryview | None:
        """The key of message *index* of the slice."""
        return self.batch.key(self.start + index)

    def headers(self, index: int) -> list[tuple[str, bytes]]:
        """The headers of message *index* of the slice."""
        return self.batch.headers(self.start + index)

    def offset(self, index: int) -> int:
        """The offset of message *index* of the slice."""
        return self.batch.offset(self.start + index)

    def to_arrow(self) -> Any:
        """The messages of the slice as a `pyarrow.RecordBatch` over the batch's buffers."""
        return self.batch.to_arrow().slice(self.start, self.stop - self.start)

    def encode(self) -> EncodedBatch:
        """The slice as a batch of its own, made by cutting columns; only blocks of the slice are inflated."""
        from penstock.format.merge import cut

        if self.start == self.stop:
            raise BadColumn("slice", "an empty slice is no batch")
        return cut(self.batch, self.start, self.stop)
