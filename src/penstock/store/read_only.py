"""A store that is open for reading only, beside its owner or without one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

from penstock import threads as threading
from penstock.arguments import check_texts
from penstock.clock import SystemClock
from penstock.errors import Closed, PenstockError, ReadOnly, TopicNotFound
from penstock.groups.dead_letters import SUFFIX
from penstock.store import reading
from penstock.store.metrics import Collector
from penstock.store.reading import TopicPositions
from penstock.store.stats import StoreStats, TopicStats
from penstock.store.store import TopicInfo
from penstock.store.stored_groups import StoredGroups
from penstock.values import check_name
from penstock.volume.reader import VolumeReader

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Collection, Iterator, Sequence

    from penstock.files import FileSystem
    from penstock.log.log_reader import LogReader
    from penstock.store.metrics import StoreMetrics
    from penstock.topics.message import Message


class ReadOnlyStore:
    """
    Reads committed messages; changes no file and takes no lock, so it never disturbs the owner. Safe to use from any thread.

    Each call sees what is committed at that moment, of all partitions alike. What would change something raises `ReadOnly`.
    """

    def __init__(self, path: str | os.PathLike[str], *, files: FileSystem | None = None) -> None:
        self._reader = VolumeReader.open(path, files=files)
        self.path = self._reader.path
        self._lock = threading.Lock()
        self._closed = False

    @property
    def volume(self) -> VolumeReader:
        """The files behind it."""
        return self._reader

    def _refresh(self, names: Collection[str] | None = None) -> None:
        """See what is committed now; with *names*, of these topics alone."""
        if self._closed:
            raise Closed(self.path)
        if names is None:
            self._reader.refresh()
        else:
            self._reader.refresh_topics(names)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        with self._lock:
            self._refresh()
            return [TopicInfo(one.name, one.topic_id, one.partitions, one.settings) for one in self._reader.topics]

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises `TopicNotFound`."""
        with self._lock:
            self._refresh([name])
            one = self._reader.topic(name)
            return TopicInfo(one.name, one.topic_id, one.partitions, one.settings)

    def _logs(self, topic: str, partition: int | None) -> list[tuple[int, LogReader]]:
        self._refresh([topic])
        if partition is not None:
            return [(partition, self._reader.log(topic, partition))]
        return [(number, self._reader.log(topic, number)) for number in range(self._reader.topic(topic).partitions)]

    def read(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Any = "earliest",
        end: Any = None,
        max_messages: int | None = None,
    ) -> Iterator[Message]:
        """See `Store.read`."""
        with self._lock:
            return reading.messages(topic, self._logs(topic, partition), start, end, max_messages)

    def read_arrow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Any = "earliest",
        end: Any = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """See `Store.read_arrow`."""
        with self._lock:
            return reading.arrow(self._logs(topic, partition), start, end, columns)

    def ends(self, topic: str) -> dict[int, int]:
        """The committed end of each partition, at one moment."""
        with self._lock:
            return {number: log.committed_end for number, log in self._logs(topic, None)}

    def positions(self, topics: Sequence[str]) -> dict[str, TopicPositions]:
        """See `Store.positions`."""
        wanted = {check_name("topic", name) for name in check_texts("topics", topics, "names of topics")}
        with self._lock:
            self._refresh(wanted)
            found = {}
            for name in sorted(wanted):
                with contextlib.suppress(TopicNotFound):
                    one = self._reader.topic(name)
                    logs = [self._reader.log(name, number) for number in range(one.partitions)]
                    found[name] = TopicPositions(
                        one.topic_id,
                        max(log.log_epoch for log in logs),
                        {number: log.log_start for number, log in enumerate(logs)},
                        {number: log.committed_end for number, log in enumerate(logs)},
                    )
            return found

    def offset_of_time(self, topic: str, partition: int, when: dt.datetime) -> int:
        """See `Store.offset_of_time`."""
        with self._lock:
            [(_, log)] = self._logs(topic, partition)
            return reading.place("when", when, log)

    def epoch_at(self, topic: str, partition: int, offset: int) -> int | None:
        """See `Store.epoch_at`."""
        with self._lock:
            [(_, log)] = self._logs(topic, partition)
            return reading.epoch_at(log, offset)

    def stats(self) -> StoreStats:
        """
        Numbers of this moment; groups are as of the last checkpoint, some seconds ago while an owner runs.

        Members, what is in flight, and what was counted since the store was opened, are known to the owner only.
        """
        with self._lock:
            self._refresh()
            groups = StoredGroups(self._reader)
            topics = {}
            for one in self._reader.topics:
                logs = [self._reader.log(one.name, number) for number in range(one.partitions)]
                topics[one.name] = TopicStats(
                    partitions=one.partitions,
                    messages=sum(log.committed_end - log.log_start for log in logs),
                    bytes=sum(log.stored_bytes for log in logs),
                    published=0,
                    starts={number: log.log_start for number, log in enumerate(logs)},
                    ends={number: log.committed_end for number, log in enumerate(logs)},
                    dedup_evicted=0,
                    groups=groups.of_topic(one.topic_id, logs),
                )
            return StoreStats(self.path, topics, 0, None, free_bytes=self._reader.files.free_bytes(self.path))

    def stored_metrics(self) -> StoreMetrics:
        """What `Store.metrics` has, as far as files tell it: lag in seconds and dead letters, as of the last checkpoint."""
        now_us = SystemClock().now_us()
        found = Collector(self).collect(now_us, None)  # type: ignore[arg-type]  # it reads, and nothing else
        with self._lock:
            groups = StoredGroups(self._reader)
            topics = {}
            for name, metrics in found.topics.items():
                count, age_s = 0, 0.0
                with contextlib.suppress(TopicNotFound):
                    dead = self._reader.topic(name + SUFFIX)
                    logs = [self._reader.log(dead.name, number) for number in range(dead.partitions)]
                    count, first = groups.dead_letters(dead.topic_id, logs), groups.first_dead_letter(dead.topic_id, logs)
                    if first is not None:
                        with contextlib.suppress(PenstockError):  # retention may take it at any moment
                            [letter] = reading.messages(dead.name, [(0, logs[0])], first, None, 1)
                            age_s = max(0, now_us - letter.append_time_us) / 1e6
                topics[name] = replace(metrics, dead_letters=count, dead_letter_age_s=age_s)
        return replace(found, topics=topics)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ReadOnly(self.path)

    create_topic = publish = publish_many = producer = subscribe = seek = transaction = _refuse
    begin_publish = groups = stage = commit = abort = committed = _refuse
    delete_group = dead_letters = retain = worker = run = flush = _refuse
    delete_topic = vacuum = compact = members = evict_member = _refuse

    def close(self) -> None:
        """Close the files. Closing twice does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReadOnlyStore {self.path}>"
