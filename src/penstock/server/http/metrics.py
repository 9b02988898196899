"""What Prometheus is told: counters and gauges with few labels, never one for each message or client."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.store.metrics import BOUNDS_S, Collector
from penstock.topics.catalog import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.aio import AsyncStore
    from penstock.clock import Clock
    from penstock.store.metrics import StoreMetrics as Metrics

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOPIC_NUMBERS = (
    ("messages_published_total", "published", "Messages published, duplicates not counted."),
    ("topic_messages", "messages", "Messages that can be read."),
    ("topic_bytes", "bytes", "Bytes of its segments on disk."),
    ("topic_partitions", "partitions", "Partitions of the topic."),
    ("dedup_keys_evicted_total", "dedup_evicted", "Deduplication keys that were forgotten before their window ended."),
    ("retention_segments_removed_total", "removed_segments", "Segments that retention removed."),
    ("messages_removed_total", "removed_messages", "Messages that vacuum, expiry and compaction removed."),
    (
        "retention_unfinished_total",
        "removed_unfinished",
        "Segments that retention_bytes_hard took from unfinished groups.",
    ),
    ("topic_expired_groups", "expired_groups", "Groups that hold nothing back, since nobody used them for too long."),
)
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

    def histogram(
        self, name: str, labels: dict[str, str], bounds: Sequence[float], counts: Sequence[int], sum_s: float
    ) -> None:
        """The samples of a histogram; *counts* has one more than *bounds*, for what lies above all of them."""
        total = 0
        for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
            total += count
            self.sample(f"{name}_bucket", {**labels, "le": bound}, total)
        self.sample(f"{name}_sum", labels, sum_s)
        self.sample(f"{name}_count", labels, total)

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
            text.histogram(name, {"path": path}, BUCKETS_S, times, self._sums[path])


class StoreMetrics:
    """The store's numbers. Reads the disk where a group is behind, or there are dead letters: one message of each, once."""

    def __init__(self, store: AsyncStore, topics_max: int, clock: Clock) -> None:
        self._store = store.sync
        self._topics_max = topics_max
        self._clock = clock
        self._collector = Collector(store.sync)

    def collect(self) -> Metrics:
        """The numbers of now, of the first topics by name."""
        meter = self._store._meter  # noqa: SLF001
        return self._collector.collect(self._clock.now_us(), meter, self._topics_max)

    def write(self, text: Text) -> None:
        """Add them to *text*."""
        found = self.collect()
        self._write_store(text, found)
        for metric, field, explained in _TOPIC_NUMBERS:
            text.metric(f"penstock_{metric}", "counter" if metric.endswith("_total") else "gauge", explained)
            for name, topic in found.topics.items():
                text.sample(f"penstock_{metric}", {"topic": name}, getattr(topic.stats, field))
        self._write_groups(text, found)
        self._write_dead_letters(text, found)
        self._write_times(text, found)

    @staticmethod
    def _write_store(text: Text, found: Metrics) -> None:
        stats = found.stats
        text.single("penstock_commits_total", "counter", "Commit cycles of the journal, each one sync.", stats.commits)
        text.single(
            "penstock_store_failed", "gauge", "1 if the disk failed and the store takes no writes.", stats.failure is not None
        )
        text.single(
            "penstock_storage_full",
            "gauge",
            "1 if publishing is refused for want of disk space; consuming goes on.",
            stats.is_full,
        )
        if stats.free_bytes is not None:
            text.single("penstock_storage_free_bytes", "gauge", "Bytes free on the file system of the store.", stats.free_bytes)
        text.single(
            "penstock_storage_floor_bytes",
            "gauge",
            "Bytes that publishing leaves free (free_bytes_floor).",
            stats.free_bytes_floor,
        )
        text.single("penstock_storage_refused_total", "counter", "Publishes refused for want of disk space.", stats.refused)
        text.single("penstock_topics", "gauge", "Topics of the store.", len(stats.topics))
        left_out = len(stats.topics) - len(found.topics)
        text.single("penstock_topics_left_out", "gauge", "Topics that are not listed here.", left_out)

    @staticmethod
    def _write_groups(text: Text, found: Metrics) -> None:
        groups = [
            ({"topic": name, "group": group}, one)
            for name, topic in found.topics.items()
            for group, one in topic.groups.items()
        ]
        for kind, suffix, table in (("counter", "_total", _GROUP_COUNTERS), ("gauge", "", _GROUP_GAUGES)):
            for metric, field, explained in table:
                text.metric(f"penstock_{metric}{suffix}", kind, explained)
                for labels, one in groups:
                    text.sample(f"penstock_{metric}{suffix}", labels, getattr(one.stats, field))
        name = "penstock_group_oldest_unacked_age_seconds"
        text.metric(name, "gauge", "Age of the oldest message that is not finished: the lag in seconds; 0 without lag.")
        for labels, one in groups:
            text.sample(name, labels, max(0.0, one.lag_s))

    @staticmethod
    def _write_dead_letters(text: Text, found: Metrics) -> None:
        topics = {name: topic for name, topic in found.topics.items() if name + DEAD_LETTER_SUFFIX in found.stats.topics}
        for metric, field, explained in (
            ("penstock_dead_letters", "dead_letters", "Dead letters of the topic that are there."),
            (
                "penstock_dead_letters_oldest_age_seconds",
                "dead_letter_age_s",
                "Age of the oldest dead letter; 0 if there is none.",
            ),
        ):
            text.metric(metric, "gauge", explained)
            for name, topic in topics.items():
                text.sample(metric, {"topic": name}, getattr(topic, field))

    @staticmethod
    def _write_times(text: Text, found: Metrics) -> None:
        name = "penstock_fsync_duration_seconds"
        text.metric(name, "histogram", "Syncs of the journal, one for each commit cycle.")
        if found.fsync is not None:
            text.histogram(name, {}, BOUNDS_S, found.fsync.counts, found.fsync.sum_s)
        name = "penstock_publish_duration_seconds"
        text.metric(name, "histogram", "From when a batch is handed to the store until it is committed.")
        for topic, one in found.topics.items():
            if one.publish is not None:
                text.histogram(name, {"topic": topic}, BOUNDS_S, one.publish.counts, one.publish.sum_s)
        name = "penstock_deliver_to_ack_duration_seconds"
        text.metric(name, "histogram", "From handing a message out to its ack, one for each call that hands some out.")
        for topic, one in found.topics.items():
            for group, times in one.groups.items():
                if times.deliver_to_ack is not None:
                    labels = {"topic": topic, "group": group}
                    text.histogram(name, labels, BOUNDS_S, times.deliver_to_ack.counts, times.deliver_to_ack.sum_s)
