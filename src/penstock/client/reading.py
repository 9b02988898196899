"""Reading a topic of a server without a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.wire.answers import log_ends, topic_id, topic_ttl_us, whole
from penstock.wire.calls import Call
from penstock.wire.deliveries import split_batches

if TYPE_CHECKING:
    from penstock.client.connection import Connection
    from penstock.format.batch import Batch

READ_BYTES = 1024 * 1024


class RemoteLog:
    """One partition, as `store/reading.py` wants it; start and end are those of the moment it was made."""

    def __init__(self, connection: Connection, asked: dict[str, Any], log_start: int, committed_end: int, ttl_us: int) -> None:
        """*asked* says which partition of which topic."""
        self._connection = connection
        self._asked = asked
        self.log_start = log_start
        self.committed_end = committed_end
        self._ttl_us = ttl_us

    def read(self, offset: int, bytes_max: int = READ_BYTES) -> list[Batch]:
        """Committed batches from the one that holds *offset* on. Raises `OffsetOutOfRange`, `Corrupt`, `TopicNotFound`."""
        fields = {**self._asked, "offset": offset, "bytes": bytes_max}
        batches = split_batches(self._connection.call(Call.READ, fields).payload, self._ttl_us)
        for batch in batches:
            batch.verify()
        return batches

    def offset_of_time(self, time_us: int) -> int:
        """The first offset appended at or after a time."""
        fields = {**self._asked, "time_us": time_us}
        return whole(self._connection.call(Call.OFFSET_OF_TIME, fields).fields, "offset")


def remote_logs(connection: Connection, topic: str) -> list[RemoteLog]:
    """All partitions of *topic*, at one moment. Raises `TopicNotFound`."""
    fields = connection.call(Call.POSITIONS, {"topic": topic}).fields
    ttl_us, identity = topic_ttl_us(fields), topic_id(fields)
    return [
        RemoteLog(connection, {"topic": topic, "partition": partition, **identity}, start, end, ttl_us)
        for partition, (start, end) in enumerate(log_ends(fields))
    ]
