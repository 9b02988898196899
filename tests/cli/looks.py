"""Looks at stores that do not exist: numbers as the test wants them."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cli.top.history import Snapshot
from penstock.store.metrics import BOUNDS_S, GroupMetrics, Latency, StoreMetrics, TopicMetrics
from penstock.store.stats import GroupStats, StoreStats, TopicStats


def group(*, lag: int = 0, delivered: int = 0, redelivered: int = 0, in_flight: int = 0, members: int = 1) -> GroupStats:
    return GroupStats(lag, in_flight, 0, members, {0: 0}, delivered, redelivered, 0, 0, 0, 0, 0, 0)


def times(*in_buckets: int) -> Latency:
    """So many observations in the first buckets."""
    return Latency((*in_buckets, *[0] * (len(BOUNDS_S) + 1 - len(in_buckets))), sum(in_buckets) * 0.001)


@dataclass
class Seen:
    """One topic of a look."""

    end: int
    groups: dict[str, GroupStats] = field(default_factory=dict)
    dead: int = 0
    bytes: int = 0
    publish: Latency | None = None
    acks: Latency | None = None
    lag_s: float = 0.0


def look(
    at_s: float, topics: dict[str, Seen], *, fsync: Latency | None = None, is_whole: bool = True, failure: str | None = None,
    oldest_s: dict[str, float] | None = None, reasons: dict[str, str] | None = None,
) -> Snapshot:  # fmt: skip
    stats = {
        name: TopicStats(1, one.end, one.end, {0: 0}, {0: one.end}, 0, one.groups, bytes=one.bytes)
        for name, one in topics.items()
    }
    metrics = {
        name: TopicMetrics(
            stats[name], {key: GroupMetrics(of, one.lag_s if of.lag else 0.0, one.acks) for key, of in one.groups.items()}, one.dead,
            90.0 if one.dead else 0.0, one.publish,
        )
        for name, one in topics.items()
    }  # fmt: skip
    store = StoreStats("/data", stats, 0, failure)
    numbers = StoreMetrics(store, metrics, fsync) if is_whole else StoreMetrics(store)
    return Snapshot(at_s, numbers, is_whole, oldest_s or {}, reasons or {})
