"""Reading a topic of a server without a group, for asyncio."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from penstock.arguments import check_moment_us, check_whole_number
from penstock.client.reading import READ_BYTES
from penstock.client.store import check_topic_name
from penstock.errors import TopicNotFound
from penstock.store import reading
from penstock.topics.message import Message
from penstock.wire.answers import log_ends, topic_id, topic_ttl_us, whole
from penstock.wire.calls import Call
from penstock.wire.deliveries import split_batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.aio.remote_calls import RemoteCalls


class _Extent:
    """Where a log begins and ends at one moment, and the times that were looked up: a `reading.Extent`."""

    def __init__(self, log_start: int, committed_end: int, offsets_of_times: dict[int, int]) -> None:
        self.log_start = log_start
        self.committed_end = committed_end
        self._offsets_of_times = offsets_of_times

    def offset_of_time(self, time_us: int) -> int:
        """The first offset appended at or after a time."""
        return self._offsets_of_times[time_us]


async def messages(
    calls: RemoteCalls, topic: str, partition: int | None, *, start: object, end: object, max_messages: object
) -> AsyncIterator[Message]:
    """See `Store.read`."""
    check_topic_name(topic)
    left = (
        reading.OFFSET_MAX if max_messages is None else check_whole_number("max_messages", max_messages, 0, reading.OFFSET_MAX)
    )
    fields = (await calls.ask(Call.POSITIONS, {"topic": topic})).fields
    ends = list(enumerate(log_ends(fields)))
    if partition is not None:
        number = check_whole_number("partition", partition, 0, 1 << 31)
        if number >= len(ends):
            raise TopicNotFound(topic, number)
        ends = [ends[number]]
    spans = []
    for number, (log_start, committed_end) in ends:
        times: dict[int, int] = {}
        for name, where in (("start", start), ("end", end)):
            if isinstance(where, dt.datetime):
                time_us = check_moment_us(name, where)
                asked = {"topic": topic, "partition": number, "time_us": time_us, **topic_id(fields)}
                times[time_us] = whole((await calls.ask(Call.OFFSET_OF_TIME, asked)).fields, "offset")
        spans.append((number, *reading.span(_Extent(log_start, committed_end, times), start, end)))
    for number, first, last in spans:
        offset = first
        while offset < last and left > 0:
            asked = {"topic": topic, "partition": number, "offset": offset, "bytes": READ_BYTES, **topic_id(fields)}
            batches = split_batches((await calls.ask(Call.READ, asked)).payload, topic_ttl_us(fields))
            if not batches:
                break
            for batch in batches:
                batch.verify()
                begin, stop = batch.index_of(offset), batch.index_of(last)
                for index in range(begin, min(stop, begin + left)):
                    yield Message(topic, number, batch, index, batch.offset(index))
                left -= max(0, stop - begin)
                offset = batch.end_offset
                if offset >= last or left <= 0:
                    break
