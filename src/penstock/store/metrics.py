"""
A snapshot of what a store does: counts, lag in messages and seconds, dead letters, and how long things take.

Counts and positions are kept anyway (`stats.py`), and how old a message is, is read when somebody asks: of the first unfinished one only,
and not again while it stays the first, so that asking costs the same however much waits. Times are taken only while somebody measures
(`Store.measure`): tickets and calls are then replaced by ones that look at the clock, and without that they are the plain ones, so that
measuring costs nothing where it is off. Nothing is done for each message: a batch, a call, or a commit cycle, is one observation.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock import threads as threading
from penstock.errors import PenstockError
from penstock.groups.dead_letters import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.groups.registry import Groups
    from penstock.store.stats import GroupStats, StoreStats, TopicStats
    from penstock.store.store import Store

BOUNDS_S = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


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

    def published(self, topic: str, seconds: float) -> None:
        """A batch of *topic* was committed after so long."""
        found = self.publish.get(topic)
        if found is None:
            found = self.publish.setdefault(topic, Histogram())
        found.observe(seconds)

    def forget(self, topic: str) -> None:
        """It is deleted."""
        self.publish.pop(topic, None)

    def forget_others(self, topics: Collection[str]) -> None:
        """There are only these *topics*: nothing is kept of others, which were published to while they were deleted."""
        for name in [name for name in list(self.publish) if name not in topics]:
            self.publish.pop(name, None)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """*call*, which takes a topic first, with a look at the clock before and after."""
        published = self.published

        def timed_call(topic: str, *arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            answer = call(topic, *arguments, **options)
            published(topic, time.perf_counter() - began)
            return answer

        return timed_call

    def attach(self, group: Any) -> None:
        """From now on see how long the messages of *group* take: the first one of each call that hands some out, until it is acked."""
        if "take" in group.__dict__:
            return
        histogram = Histogram()
        take, ack = group.take, group.ack

        def timed_take(member: Any, count: int, *, pushed: bool = False) -> Any:
            found = take(member, count, pushed=pushed)
            if found:
                # In the delivery itself: most ways that a message can go (nack, a lost lease, a transaction) are not seen here.
                found[0]._taken_s = time.perf_counter()  # noqa: SLF001
            return found

        def timed_ack(deliveries: Any, *, wait: bool = False) -> None:
            ack(deliveries, wait=wait)
            began = getattr(deliveries[0], "_taken_s", None) if deliveries else None
            if began is not None:
                histogram.observe(time.perf_counter() - began)

        # With the group, and not in a table by its name: clients make and delete groups under names of their own.
        group.__dict__.update(take=timed_take, ack=timed_ack, ack_times=histogram)

    @staticmethod
    def detach(group: Any) -> None:
        """See no more of *group*."""
        group.__dict__.pop("take", None)
        group.__dict__.pop("ack", None)
        group.__dict__.pop("ack_times", None)


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
    """Batches, from when they are handed to the store until they are committed, whoever published them; None unless it is measured."""


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """A store at one moment."""

    stats: StoreStats
    topics: dict[str, TopicMetrics] = field(default_factory=dict)
    fsync: Latency | None = None
    """Syncs of the journal, one for each commit cycle; None unless the store is measured."""


class Collector:
    """Collects the metrics of one store. Safe to use from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times: dict[tuple[bytes, int, int], int] = {}
        """When the message at an offset of a partition was appended, of those that were first in a group when it was last asked."""
        self._oldest: dict[bytes, tuple[tuple[int, int], int]] = {}
        """When the oldest dead letter of a topic was appended, and how many there were, and the end of their log, then."""

    def collect(self, now_us: int, meter: Meter | None, topics_max: int | None = None) -> StoreMetrics:
        """The metrics of now; of the first *topics_max* topics by name, if it is given."""
        stats = self._store.stats()
        if meter is not None:
            meter.forget_others(stats.topics)
        identities = {info.name: info.topic_id for info in self._store.topics()}
        names = [name for name in sorted(stats.topics) if name in identities][:topics_max]
        groups = None if meter is None else self._store._groups  # noqa: SLF001 - a store that is only read has none, and no meter
        times: dict[tuple[bytes, int, int], int] = {}
        oldest: dict[bytes, tuple[tuple[int, int], int]] = {}
        topics = {}
        for name in names:
            topic, identity = stats.topics[name], identities[name]
            dead = stats.topics.get(name + SUFFIX)
            count, age_s = (0, 0.0) if dead is None else self._dead_letters(name, identity, dead, oldest, now_us)
            timed = None if meter is None else meter.publish.get(name)
            topics[name] = TopicMetrics(
                topic,
                {
                    group: GroupMetrics(one, self._lag_s(name, identity, topic, one, times, now_us), _ack_times(groups, identity, group))
                    for group, one in topic.groups.items()
                },
                count,
                age_s,
                None if timed is None else timed.snapshot(),
            )  # fmt: skip
        self._times, self._oldest = times, oldest
        return StoreMetrics(stats, topics, None if meter is None else meter.fsync.snapshot())

    def _lag_s(
        self, name: str, identity: bytes, topic: TopicStats, group: GroupStats, times: dict[tuple[bytes, int, int], int], now_us: int
    ) -> float:  # fmt: skip
        oldest_us = now_us
        for partition, position in group.positions.items() if group.lag else ():
            offset = max(position, topic.starts[partition])
            if offset >= topic.ends[partition]:
                continue
            key = (identity, partition, offset)
            time_us = self._times.get(key)
            if time_us is None:
                with contextlib.suppress(PenstockError):  # retention may take it at any moment
                    for message in self._store.read(name, partition, start=offset, max_messages=1):
                        time_us = message.append_time_us
            if time_us is not None:
                times[key] = time_us
                oldest_us = min(oldest_us, time_us)
        return (now_us - oldest_us) / 1e6

    def _dead_letters(
        self, name: str, identity: bytes, dead: TopicStats, oldest: dict[bytes, tuple[tuple[int, int], int]], now_us: int
    ) -> tuple[int, float]:
        count = 0
        with contextlib.suppress(PenstockError):  # the topic may be deleted at any moment
            letters = self._store.dead_letters(name)
            count = len(letters)
            if count:
                state = (count, dead.ends[0])
                known = self._oldest.get(identity)
                if known is None or known[0] != state:
                    oldest_letter = letters._oldest()  # noqa: SLF001 - a call that only metrics need
                    known = state, now_us if oldest_letter is None else oldest_letter.append_time_us
                oldest[identity] = known
                return count, max(0, now_us - known[1]) / 1e6
        return count, 0.0


def _ack_times(groups: Groups | None, identity: bytes, group: str) -> Latency | None:
    found = None if groups is None else groups.find(identity, group)
    timed: Histogram | None = None if found is None else found.__dict__.get("ack_times")
    return None if timed is None else timed.snapshot()
