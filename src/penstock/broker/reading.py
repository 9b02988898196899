"""Calls that read logs as they are, beside all groups. They keep nothing of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number
from penstock.broker.calls_under_way import READ_BYTES_MAX
from penstock.broker.fields import texts
from penstock.errors import TopicNotFound
from penstock.wire import documents

if TYPE_CHECKING:
    from penstock.broker.replies import Answer
    from penstock.broker.topics import Topics
    from penstock.log.partition_log import PartitionLog
    from penstock.store.store import Store
    from penstock.wire.frame import Frame


class Reading:
    """The logs of a store for its remote readers. All calls wait for the disk."""

    def __init__(self, store: Store, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    def positions(self, frame: Frame) -> Answer:
        """Where the logs of one topic, or of several, begin and end."""
        if "topics" in frame.fields:
            found = self._store.positions(texts(frame, "topics"))
            return {"topics": {name: documents.encode_positions(one) for name, one in found.items()}}, []
        topic = self._topics.named(frame)
        ends = self._store._volume.ends(topic.logs)  # noqa: SLF001
        starts = [log.log_start for log in topic.logs]
        return {"topic_id": topic.topic_id.hex(), "starts": starts, "ends": ends, "ttl_ms": topic.settings.ttl_ms}, []

    def read(self, frame: Frame) -> Answer:
        """Whole batches from an offset on."""
        log = self._log(frame)
        offset = check_whole_number("offset", frame.fields.get("offset"), 0, (1 << 63) - 1)
        size = check_whole_number("bytes", frame.fields.get("bytes", 1 << 20), 1, READ_BYTES_MAX)
        return {}, [batch.buffer for batch in log.read(offset, size)]

    def offset_of_time(self, frame: Frame) -> Answer:
        """The first offset at or after a time."""
        log = self._log(frame)
        time_us = check_whole_number("time_us", frame.fields.get("time_us"), -(1 << 63), (1 << 63) - 1)
        return {"offset": log.offset_of_time(time_us)}, []

    def _log(self, frame: Frame) -> PartitionLog:
        topic = self._topics.named(frame)
        wanted = frame.fields.get("topic_id")
        if wanted is not None and wanted != topic.topic_id.hex():
            # The client's is gone, and another one has its name: the client's offsets mean nothing in it.
            raise TopicNotFound(topic.name)
        return topic.logs[topic.check_partition(frame.fields.get("partition"))]
