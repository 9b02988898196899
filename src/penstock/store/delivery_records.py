"""
The records of deliveries: how long messages waited, by group and window, as messages of `TOPIC.deliveries`.

A window that is over becomes one message. The store's thread for retention writes them, all of a topic in one batch, within about a second
of the window's end, and closing the store writes the rest: so a crash loses what was not written, some ten seconds, and no record is
ever there in part. Each window is taken out of its group before it is written, and goes back only if nothing can have been stored: a record
whose outcome is not known is not written again, so none is there twice. A window that closing cut has its rest, if the store is opened
again in time, in a record of its own; they add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.errors import PenstockError, StorageFull, TopicNotFound, Unavailable
from penstock.groups.delivery_times import DeliveryTimes
from penstock.log_events import event, get_logger

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.groups.delivery_times import Window
    from penstock.groups.group import Group
    from penstock.topics.catalog import Catalog
    from penstock.topics.topic import Topic

_log = get_logger("penstock")

WRITE_SECONDS = 1.0
"""How often the store's thread looks for windows that are over."""
_BATCH_RECORDS = 200
"""So many at once; even if each fills all its buckets that is a few megabytes."""


class DeliveryRecords:
    """What one store records of deliveries. Safe to call from any thread."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._recorded: dict[int, tuple[Topic, Group, DeliveryTimes]] = {}
        self._failed = False

    def attach(self, topic: Topic, group: Group) -> None:
        """From now on see what *group* of *topic* hands out."""
        with self._lock:
            if group.identity not in self._recorded:
                times = DeliveryTimes(self._clock)
                self._recorded[group.identity] = topic, group, times
                group.record_deliveries(times)

    def forget(self, topic: Topic) -> None:
        """It is being deleted: nothing of it is written once this returns."""
        with self._lock:
            self._recorded = {identity: one for identity, one in self._recorded.items() if one[0] is not topic}

    def write(self, *, unfinished: bool = False) -> int:
        """
        Write the windows that are over, with *unfinished* also those that are not; returns how many. Durable as their topic says.

        It does not raise for a disk that is full or broken: what was certainly not stored waits, up to ten minutes of it, and the rest
        is given up.
        """
        written = 0
        with self._lock:
            waiting: dict[bytes, list[tuple[Group, DeliveryTimes, Window]]] = {}
            topics: dict[bytes, Topic] = {}
            for identity, (topic, group, times) in list(self._recorded.items()):
                with group.lock:
                    windows = times.take(unfinished=unfinished or group.deleted)
                if group.deleted:
                    del self._recorded[identity]
                if windows:
                    topics[topic.topic_id] = topic
                    waiting.setdefault(topic.topic_id, []).extend((group, times, window) for window in windows)
            for topic_id, records in waiting.items():
                for at in range(0, len(records), _BATCH_RECORDS):
                    written += self._write(topics[topic_id], records[at : at + _BATCH_RECORDS])
        return written

    def _write(self, topic: Topic, records: list[tuple[Group, DeliveryTimes, Window]]) -> int:
        values = [window.record(group.name) for group, _, window in records]
        try:
            target = self._catalog.deliveries_of(topic)
            target.publish_many(values, [group.name for group, _, _ in records], None, None, None, None, None)
        except TopicNotFound:
            return 0
        except (StorageFull, Unavailable) as error:
            for group, times, window in records:
                with group.lock:
                    times.put_back([window])
            self._tell(topic, error)
            return 0
        except (PenstockError, OSError) as error:
            self._tell(topic, error)
            return 0
        self._failed = False
        return len(values)

    def _tell(self, topic: Topic, error: Exception) -> None:
        """Once, until it works again: there is a try each second."""
        if not self._failed:
            self._failed = True
            _log.warning(
                "deliveries of topic %s could not be recorded: %s", topic.name, error,
                extra=event("deliveries_not_recorded", topic=topic.name, error=type(error).__name__),
            )  # fmt: skip
