"""Reading topics without a group: replay, inspection, Arrow."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.arguments import check_moment_us, check_whole_number, shown
from penstock.errors import BadArgument, OffsetOutOfRange
from penstock.format.arrow import COLUMNS, library, schema_of, with_partition
from penstock.format.arrow_singles import Singles
from penstock.topics.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.format.batch import Batch

OFFSET_MAX = (1 << 63) - 1


class TopicPositions(NamedTuple):
    """
    How far each partition of a topic reaches at one moment.

    An offset means the same message as long as the topic's id is the same and the batch that holds it was not written in a later
    *log_epoch* than the one in which the offset was seen: the epoch grows whenever a store is opened after a crash.
    """

    topic_id: bytes
    log_epoch: int
    starts: dict[int, int]
    ends: dict[int, int]


class Extent(Protocol):
    """Where a log begins and ends, and where a time lies in it: enough to say what a place means."""

    @property
    def log_start(self) -> int:
        """The first offset that is kept."""
        ...

    @property
    def committed_end(self) -> int:
        """The offset after the last committed one."""
        ...

    def offset_of_time(self, time_us: int) -> int:
        """The first offset appended at or after a time."""
        ...


class ReadableLog(Extent, Protocol):
    """What reading needs of a log: the owner's and a reader's have it."""

    def read(self, offset: int, bytes_max: int = ...) -> list[Batch]:
        """Committed batches from the one that holds *offset* on."""
        ...


def place(name: str, where: object, log: Extent, *, bounded: bool = True) -> int:
    """
    The offset that *where* means in *log*: "earliest", "latest", an offset, or an aware datetime.

    Raises `BadArgument`; with *bounded* also `OffsetOutOfRange` for an offset that the log does not have.
    """
    if isinstance(where, str):
        if where == "earliest":
            return log.log_start
        if where == "latest":
            return log.committed_end
        raise BadArgument(name, shown(where), 'use "earliest", "latest", an offset or a datetime')
    if isinstance(where, dt.datetime):
        return max(log.offset_of_time(check_moment_us(name, where)), log.log_start)
    if isinstance(where, bool) or not isinstance(where, int):
        raise BadArgument(name, shown(where), 'use "earliest", "latest", an offset or a datetime')
    if where < 0 or where > OFFSET_MAX:
        raise BadArgument(name, shown(where), "an offset is a whole number from 0 on")
    if bounded and not log.log_start <= where <= log.committed_end:
        raise OffsetOutOfRange(where, log.log_start, log.committed_end)
    return where


def span(log: Extent, start: object, end: object) -> tuple[int, int]:
    """The half-open range of offsets that *start* and *end* mean; *end* None is the committed end of now."""
    first = place("start", start, log)
    last = log.committed_end if end is None else min(place("end", end, log, bounded=False), log.committed_end)
    return first, last


def messages(
    topic: str, logs: Sequence[tuple[int, ReadableLog]], start: object, end: object, max_messages: object
) -> Iterator[Message]:
    """The messages of *logs*, one log after the other. The arguments are checked now, and the range is fixed now."""
    left = OFFSET_MAX if max_messages is None else check_whole_number("max_messages", max_messages, 0, OFFSET_MAX)
    spans = [(partition, log, *span(log, start, end)) for partition, log in logs]
    return _messages(topic, spans, left)


def _messages(topic: str, spans: list[tuple[int, ReadableLog, int, int]], left: int) -> Iterator[Message]:
    for partition, log, first, last in spans:
        for batch, begin, stop in _slices(first, last, _reader(log, left)):
            for index in range(begin, min(stop, begin + left)):
                yield Message(topic, partition, batch, index, batch.offset(index))
            left -= stop - begin
            if left <= 0:
                return


def _reader(log: ReadableLog, left: int) -> Callable[[int], list[Batch]]:
    # Who looks at one message needs one batch, and not a megabyte of them from a server.
    return log.read if left > 1 else lambda offset: log.read(offset, 1)


def _slices(first: int, last: int, read: Callable[[int], list[Batch]]) -> Iterator[tuple[Batch, int, int]]:
    offset = first
    while offset < last:
        batches = read(offset)
        if not batches:
            return
        for batch in batches:
            begin, stop = batch.index_of(offset), batch.index_of(last)
            if begin < stop:
                yield batch, begin, stop
            offset = batch.end_offset
            if offset >= last:
                return


def epoch_at(log: ReadableLog, offset: object) -> int | None:
    """The log epoch in which *offset* was written; None if the log does not have it, or not any more: the next message tells nothing."""
    wanted = check_whole_number("offset", offset, 0, OFFSET_MAX)
    if not log.log_start <= wanted < log.committed_end:
        return None
    batches = log.read(wanted, 1)
    # Where compaction took it the log goes on behind it, perhaps in another epoch.
    return batches[0].header.log_epoch if batches and batches[0].first_offset <= wanted else None


def arrow(logs: Sequence[tuple[int, ReadableLog]], start: object, end: object, columns: Sequence[str] | None) -> Iterator[Any]:
    """
    The same as `pyarrow.RecordBatch`es, one for each stored batch; messages that were stored one by one may come together.

    Where there are none an empty one tells the columns. Raises `BadColumn`.
    """
    wanted = ("partition", *COLUMNS) if columns is None else tuple(columns)
    schema = schema_of(wanted)
    empty = library().RecordBatch.from_arrays([library().array([], field.type) for field in schema], schema=schema)
    spans = [(number, log, *span(log, start, end)) for number, log in logs]
    return _never_nothing(_arrow(spans, wanted), empty)


def _never_nothing(batches: Iterator[Any], empty: Any) -> Iterator[Any]:
    first = next(batches, empty)
    yield first
    yield from batches


def _arrow(spans: list[tuple[int, ReadableLog, int, int]], wanted: tuple[str, ...]) -> Iterator[Any]:
    # A batch does not know its partition; it needs some column to have rows.
    stored = tuple(name for name in wanted if name != "partition") or ("offset",)
    for number, log, first, last in spans:
        for table in _stored_arrow(log, first, last, stored):
            yield table if stored == wanted else with_partition(table, number, wanted)


def _stored_arrow(log: ReadableLog, first: int, last: int, columns: tuple[str, ...]) -> Iterator[Any]:
    singles = Singles(columns)
    for batch, begin, stop in _slices(first, last, log.read):
        if singles.add(batch):
            if singles.full:
                yield singles.take()
            continue
        if singles:
            yield singles.take()
        table = batch.to_arrow(columns)
        yield table if stop - begin == len(batch) else table.slice(begin, stop - begin)
    if singles:
        yield singles.take()
