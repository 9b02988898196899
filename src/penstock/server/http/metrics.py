"""What Prometheus is told: counters and gauges with few labels, never one for each message or client."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.errors import NotFound, PenstockError
from penstock.topics.catalog import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from penstock.aio import AsyncStore
    from penstock.clock import Clock
    from penstock.store.stats import GroupStats, StoreStats, TopicStats

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GROUP_COUNTERS = (
    ("messages_delivered", "delivered", "Messages handed to consumers."),
    ("messages_redelivered", "redelivered", "Messages handed out once more."),
    ("messages_acked", "acked", "Messages finished."),
    ("messages_nacked", "nacked", "Messages that consumers gave back as failed."),
    ("leases_expired", "expired_leases", "Messages whose lease ended before they were finished."),
    ("messages_dead_lettered", "dead_lettered", "Messages moved to the dead letters."),
    ("messages_expired", "expired", "Messages that expired before anybody got them."),
    ("messages_skipped", "skipped", "Messages that retention took before the group had finished them."),
    ("messages_lost", "lost", "Messages that a log with a weak sync mode lost after the group had seen them."),
)
_GROUP_GAUGES = (
    ("group_lag_messages", "lag", "Messages that the group has not finished."),
    ("group_in_flight_messages", "in_flight", "Messages with consumers, not finished."),
    ("group_retrying_messages", "retrying", "Messages that failed and wait for their next delivery."),
    ("group_members", "members", "Consumers of the group."),
)


class Text:
    """Builds the text format: all samples of a metric under its help and type."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def metric(self, name: str, kind: str, explained: str) -> None:
        """Begin a metric."""
        self._lines += [f"# HELP {name} {explained}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, labels: dict[str, str], value: float) -> None:
        """One sample; the values of our labels never need escaping, and are escaped nevertheless."""
        shown = ",".join([f'{label}="{_escaped(text)}"' for label, text in labels.items()])
        self._lines.append(f"{name}{{{shown}}} {value:.17g}" if shown else f"{name} {value:.17g}")

    def single(self, name: str, kind: str, explained: str, value: float) -> None:
        """A metric with one sample."""
        self.metric(name, kind, explained)
        self.sample(name, {}, value)

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class HttpMetrics:
    """Requests since the listener was started, by the path's template."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        key = (method, path, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        times = self._times.setdefault(path, [0] * (len(BUCKETS_S) + 1))
        times[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[path] = self._sums.get(path, 0.0) + seconds

    def write(self, text: Text) -> None:
        """Add them to *text*."""
        text.metric("penstock_http_requests_total", "counter", "Requests answered.")
        for (method, path, status), count in sorted(self._requests.items()):
            text.sample("penstock_http_requests_total", {"method": method, "path": path, "status": str(status)}, count)
        name = "penstock_http_request_duration_seconds"
        text.metric(name, "histogram", "Time from a request's headers to its answer, waiting included.")
        for path, times in sorted(self._times.items()):
            total = 0
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], times, strict=True):
                total += count
                text.sample(f"{name}_bucket", {"path": path, "le": bound}, total)
            text.sample(f"{name}_sum", {"path": path}, self._sums[path])
            text.sample(f"{name}_count", {"path": path}, total)


class StoreMetrics:
    """The store's numbers. Use it from one thread at a time: it reads the disk, and remembers what it found."""

    def __init__(self, store: AsyncStore, topics_max: int, clock: Clock) -> None:
        self._store = store.sync
        self._topics_max = topics_max
        self._clock = clock
        self._times: dict[tuple[str, int, int], int] = {}
        self._oldest_dead: dict[str, tuple[tuple[int, int], int]] = {}

    def write(self, text: Text) -> None:
        """Add them to *text*."""
        stats = self._store.stats()
        names = sorted(stats.topics)[: self._topics_max]
        topics = {name: stats.topics[name] for name in names}
        self._write_store(text, stats, len(topics))
        for metric, field, explained in (
            ("messages_published_total", "published", "Messages published, duplicates not counted."),
            ("topic_messages", "messages", "Messages that can be read."),
            ("topic_partitions", "partitions", "Partitions of the topic."),
        ):
            text.metric(f"penstock_{metric}", "counter" if metric.endswith("_total") else "gauge", explained)
            for name, topic in topics.items():
                text.sample(f"penstock_{metric}", {"topic": name}, getattr(topic, field))
        self._write_groups(text, topics)
        self._write_dead_letters(text, topics)

    @staticmethod
    def _write_store(text: Text, stats: StoreStats, shown: int) -> None:
        text.single("penstock_commits_total", "counter", "Commit cycles of the journal, each one sync.", stats.commits)
        text.single(
            "penstock_store_failed", "gauge", "1 if the disk failed and the store takes no writes.", stats.failure is not None
        )
        text.single("penstock_topics", "gauge", "Topics of the store.", len(stats.topics))
        text.single("penstock_topics_left_out", "gauge", "Topics that are not listed here.", len(stats.topics) - shown)

    def _write_groups(self, text: Text, topics: dict[str, TopicStats]) -> None:
        groups = [(name, group, found) for name, topic in topics.items() for group, found in topic.groups.items()]
        for metric, field, explained in _GROUP_COUNTERS:
            text.metric(f"penstock_{metric}_total", "counter", explained)
            for topic, group, found in groups:
                text.sample(f"penstock_{metric}_total", {"topic": topic, "group": group}, getattr(found, field))
        for metric, field, explained in _GROUP_GAUGES:
            text.metric(f"penstock_{metric}", "gauge", explained)
            for topic, group, found in groups:
                text.sample(f"penstock_{metric}", {"topic": topic, "group": group}, getattr(found, field))
        name = "penstock_group_oldest_unacked_age_seconds"
        text.metric(name, "gauge", "Age of the oldest message that is not finished: the lag in seconds; 0 without lag.")
        times: dict[tuple[str, int, int], int] = {}
        now_us = self._clock.now_us()
        for topic, group, found in groups:
            oldest_us = min(self._append_times(topic, topics[topic], found, times), default=now_us)
            text.sample(name, {"topic": topic, "group": group}, max(0, now_us - oldest_us) / 1e6)
        self._times = times

    def _append_times(
        self, name: str, topic: TopicStats, group: GroupStats, times: dict[tuple[str, int, int], int]
    ) -> list[int]:
        """When the first unfinished message of each partition was appended."""
        if not group.lag:
            return []
        found = []
        for partition, position in group.positions.items():
            offset = max(position, topic.starts[partition])
            if offset >= topic.ends[partition]:
                continue
            key = (name, partition, offset)
            time_us = self._times.get(key)
            if time_us is None:
                # Retention may take it, or the store be closed, at any moment.
                with contextlib.suppress(PenstockError):
                    for message in self._store.read(name, partition, start=offset, max_messages=1):
                        time_us = message.append_time_us
            if time_us is not None:
                times[key] = time_us
                found.append(time_us)
        return found

    def _write_dead_letters(self, text: Text, topics: dict[str, TopicStats]) -> None:
        counts: dict[str, int] = {}
        ages: dict[str, float] = {}
        kept: dict[str, tuple[tuple[int, int], int]] = {}
        for name, dead in topics.items():
            topic = name.removesuffix(DEAD_LETTER_SUFFIX)
            if topic == name:
                continue
            with contextlib.suppress(NotFound):
                letters = self._store.dead_letters(topic)
                counts[topic] = len(letters)
                state = (counts[topic], dead.ends[0])
                known = self._oldest_dead.get(topic)
                if known is not None and known[0] == state:
                    time_us = known[1]
                else:
                    time_us = next((message.append_time_us for message in letters), self._clock.now_us())
                kept[topic] = (state, time_us)
                ages[topic] = max(0, self._clock.now_us() - time_us) / 1e6 if counts[topic] else 0.0
        self._oldest_dead = kept
        for metric, explained, values in (
            ("penstock_dead_letters", "Dead letters of the topic that are there.", counts),
            ("penstock_dead_letters_oldest_age_seconds", "Age of the oldest dead letter; 0 if there is none.", ages),
        ):
            text.metric(metric, "gauge", explained)
            for topic, value in values.items():
                text.sample(metric, {"topic": topic}, value)
