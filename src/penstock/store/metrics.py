"""
A snapshot of what a store does: counts, lag in messages and seconds, dead letters, and how long things take.

Counts and positions are kept anyway (`stats.py`), and what is older than a message is read when somebody asks. Times are taken only while
somebody measures (`Store.measure`): the calls are then replaced by ones that look at the clock, and without that they are the plain
ones, so that measuring costs nothing where it is off. Nothing is done for each message: a call, or a commit cycle, is one observation.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import NotFound, PenstockError
from penstock.groups.dead_letters import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.store.stats import GroupStats, StoreStats, TopicStats

BOUNDS_S = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


_HANDED_MAX = 10_000
"""So many messages of a group are remembered until they are acked."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took: observations in each bucket, the last one without a bound."""

    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The seconds within which that *share* was done: 0.5, 0.95, 0.99. Between the bounds of a bucket it is guessed; 0 without any."""
        wanted, seen, low = share * self.count, 0, 0.0
        for at, count in enumerate(self.counts):
            high = BOUNDS_S[at] if at < len(BOUNDS_S) else BOUNDS_S[-1]
            if count and seen + count >= wanted:
                return low + (high - low) * (wanted - seen) / count
            seen, low = seen + count, high
        return 0.0

    @property
    def p50(self) -> float:
        """The median, in seconds."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float:
        """Seconds within which 95 of 100 were done."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float:
        """Seconds within which 99 of 100 were done."""
        return self.quantile(0.99)


class Histogram:
    """Counts how long something takes. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """It took so long."""
        at = bisect_left(BOUNDS_S, seconds)
        with self._lock:
            self._counts[at] += 1
            self._sum_s += seconds

    def snapshot(self) -> Latency:
        """What was seen so far."""
        with self._lock:
            return Latency(tuple(self._counts), self._sum_s)


class Meter:
    """The times that are taken while a store is measured."""

    def __init__(self) -> None:
        self.fsync = Histogram()
        self.publish: dict[str, Histogram] = {}
        self.ack: dict[tuple[str, str], Histogram] = {}

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """*call*, which takes a topic first, with a look at the clock before and after."""
        histograms = self.publish

        def timed_call(topic: str, *arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            answer = call(topic, *arguments, **options)
            found = histograms.get(topic)
            if found is None:
                found = histograms.setdefault(topic, Histogram())
            found.observe(time.perf_counter() - began)
            return answer

        return timed_call

    def attach(self, group: Any) -> None:
        """From now on see how long the messages of *group* take: the first one of each call that hands some out, until it is acked."""
        name = (group.topic, group.name)
        if name in self.ack:
            return
        histogram = self.ack[name] = Histogram()
        handed: dict[tuple[int, int], float] = {}
        take, ack = group.take, group.ack

        def timed_take(member: Any, count: int) -> Any:
            found = take(member, count)
            if found:
                if len(handed) >= _HANDED_MAX:
                    handed.clear()  # others failed, or were never acked; some observations are lost
                handed[found[0].partition, found[0].offset] = time.perf_counter()
            return found

        def timed_ack(deliveries: Any, *, wait: bool = False) -> None:
            ack(deliveries, wait=wait)
            began = handed.pop((deliveries[0].partition, deliveries[0].offset), None) if deliveries else None
            if began is not None:
                histogram.observe(time.perf_counter() - began)

        group.__dict__.update(take=timed_take, ack=timed_ack)

    @staticmethod
    def detach(group: Any) -> None:
        """See no more of *group*."""
        group.__dict__.pop("take", None)
        group.__dict__.pop("ack", None)


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """A group: its numbers, and how far behind it is."""

    stats: GroupStats
    lag_s: float
    """The age of the oldest message that is not finished; 0 without lag."""
    deliver_to_ack: Latency | None
    """From handing a message out to its ack, one observation for each call; None unless the store is measured."""


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """A topic."""

    stats: TopicStats
    groups: dict[str, GroupMetrics]
    dead_letters: int
    """Those that are there."""
    dead_letter_age_s: float
    """The age of the oldest of them; 0 if there is none."""
    publish: Latency | None
    """Calls of `publish` and `publish_many`, until they return; None unless the store is measured."""


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """A store at one moment."""

    stats: StoreStats
    topics: dict[str, TopicMetrics] = field(default_factory=dict)
    fsync: Latency | None = None
    """Syncs of the journal, one for each commit cycle; None unless the store is measured."""


def collect(store: Any, now_us: int, meter: Meter | None = None) -> StoreMetrics:
    """The metrics of *store*, which is any that has the calls; it reads one message for each partition that a group is behind in."""
    stats: StoreStats = store.stats()
    topics = {}
    for name, topic in stats.topics.items():
        count, age_s = _dead_letters(store, name, stats, now_us)
        timed = None if meter is None else meter.publish.get(name)
        topics[name] = TopicMetrics(
            topic,
            {group: _group(store, name, topic, group, found, now_us, meter) for group, found in topic.groups.items()},
            count,
            age_s,
            None if timed is None else timed.snapshot(),
        )
    return StoreMetrics(stats, topics, None if meter is None else meter.fsync.snapshot())


def _group(
    store: Any, name: str, topic: TopicStats, group: str, found: GroupStats, now_us: int, meter: Meter | None
) -> GroupMetrics:
    oldest_us = now_us
    for partition, position in found.positions.items() if found.lag else ():
        offset = max(position, topic.starts[partition])
        if offset < topic.ends[partition]:
            with contextlib.suppress(PenstockError):  # retention may take it at any moment
                for message in store.read(name, partition, start=offset, max_messages=1):
                    oldest_us = min(oldest_us, message.append_time_us)
    timed = None if meter is None else meter.ack.get((name, group))
    return GroupMetrics(found, (now_us - oldest_us) / 1e6, None if timed is None else timed.snapshot())


def _dead_letters(store: Any, name: str, stats: StoreStats, now_us: int) -> tuple[int, float]:
    if name + SUFFIX not in stats.topics:
        return 0, 0.0
    with contextlib.suppress(NotFound):
        letters = store.dead_letters(name)
        oldest = letters.list(1)
        if oldest:
            return len(letters), max(0, now_us - oldest[0].append_time_us) / 1e6
    return 0, 0.0
