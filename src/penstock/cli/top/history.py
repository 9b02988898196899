"""
What several looks at a store tell together: rates, trends, and how long things took lately.

A look (`Snapshot`) has positions and counters. Two of them make a rate. Counters begin anew when a server does, and positions when a topic
is deleted and made again: where a number has gone back nothing is known of this interval, so no rate is shown, and never a negative one.

Histograms of times count since the server began, which after a week tells nothing of now. So the difference to an earlier one is shown:
two earlier ones are kept, at least `WINDOW_S` apart, and the older one is compared with; what is shown is of the last 30 to 60 seconds,
or of all time until there is an earlier one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from penstock.cli.stats import taken_times
from penstock.groups.dead_letters import SUFFIX
from penstock.store.metrics import Latency

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.store.metrics import StoreMetrics

TREND_LENGTH = 12
"""So many rates of a topic are kept."""
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a store."""

    at_s: float
    """When, on a clock that never goes back."""
    numbers: StoreMetrics
    is_whole: bool = True
    """Whether groups, dead letters and times are told; a reader of files knows none."""
    oldest_s: dict[str, float] = field(default_factory=dict)
    """The age of the oldest message of a topic, where it is known."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the newest dead letter of a topic is one, where it is known."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic; None is not known."""

    name: str
    messages: int
    bytes: int
    in_per_s: float | None
    out_per_s: float | None
    trend: tuple[float, ...]
    """Rates of what came in, the newest last; none is 0."""
    oldest_s: float | None
    lag: int
    """Of the group that is furthest behind."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group."""

    topic: str
    name: str
    lag: int
    lag_s: float
    in_flight: int
    redelivered: int
    members: int
    out_per_s: float | None
    topic_bytes: int


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """The dead letters of a topic that has some."""

    topic: str
    count: int
    oldest_s: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class TimesRow:
    """How long something took lately."""

    what: str
    times: Latency


@dataclass(frozen=True, slots=True)
class Picture:
    """A store as it is shown: all rows by name."""

    topics: list[TopicRow]
    groups: list[GroupRow]
    dead_letters: list[DeadLetterRow]
    times: list[TimesRow]
    is_whole: bool
    failure: str | None
    is_full: bool


class History:
    """Looks, one after the other, of the topics that one of *patterns* takes; without patterns, of all."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = tuple(patterns)
        self._before: Snapshot | None = None
        self._trends: dict[str, deque[float]] = {}
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def takes(self, topic: str) -> bool:
        """Whether a topic is shown."""
        return not self._patterns or any(fnmatchcase(topic, one) for one in self._patterns)

    def add(self, snapshot: Snapshot) -> Picture:
        """One more look; returns what there is to see."""
        topics, groups, dead_letters = [], [], []
        known = snapshot.numbers.stats.topics
        for name in sorted(known):
            if not self.takes(name):
                continue
            topic, metrics = known[name], snapshot.numbers.topics.get(name)
            row_groups = [
                GroupRow(
                    name, group, one.stats.lag, one.lag_s, one.stats.in_flight, one.stats.redelivered, one.stats.members,
                    self._delivered(snapshot, name, group), topic.bytes,
                )
                for group, one in sorted(metrics.groups.items())
            ] if metrics is not None else []  # fmt: skip
            groups += row_groups
            if metrics is not None and metrics.dead_letters:
                dead_letters.append(
                    DeadLetterRow(name, metrics.dead_letters, metrics.dead_letter_age_s, snapshot.reasons.get(name))
                )
            came = self._came(snapshot, name)
            trend = self._trends.setdefault(name, deque(maxlen=TREND_LENGTH))
            if self._before is not None:
                trend.append(came or 0.0)
            # Dead letters have a table of their own; as a topic they are shown to who asks for them.
            if snapshot.is_whole and not self._patterns and name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in known:
                continue
            out = [one.out_per_s for one in row_groups if one.out_per_s is not None]
            topics.append(
                TopicRow(
                    name, topic.messages, topic.bytes, came, sum(out) if out else None, tuple(trend),
                    snapshot.oldest_s.get(name), max((one.lag for one in row_groups), default=0),
                )
            )  # fmt: skip
        times = list(self._times(snapshot))
        self._trends = {name: one for name, one in self._trends.items() if name in known}
        self._before = snapshot
        stats = snapshot.numbers.stats
        return Picture(topics, groups, dead_letters, times, snapshot.is_whole, stats.failure, stats.is_full)

    def _came(self, snapshot: Snapshot, topic: str) -> float | None:
        """How many messages a second were added. By positions: counters begin anew with the server."""
        before = None if self._before is None else self._before.numbers.stats.topics.get(topic)
        if before is None:
            return None
        return self._rate(snapshot, sum(snapshot.numbers.stats.topics[topic].ends.values()), sum(before.ends.values()))

    def _delivered(self, snapshot: Snapshot, topic: str, group: str) -> float | None:
        before = None if self._before is None else self._before.numbers.stats.topics.get(topic)
        if before is None or group not in before.groups:
            return None
        now = snapshot.numbers.stats.topics[topic].groups[group]
        return self._rate(snapshot, now.delivered, before.groups[group].delivered)

    def _rate(self, snapshot: Snapshot, now: int, before: int) -> float | None:
        assert self._before is not None
        elapsed_s = snapshot.at_s - self._before.at_s
        return None if now < before or elapsed_s <= 0 else (now - before) / elapsed_s

    def _times(self, snapshot: Snapshot) -> Iterator[TimesRow]:
        windows: dict[tuple[str, str, str], _Window] = {}
        for what, topic, group, times in taken_times(snapshot.numbers):
            if topic is not None and not self.takes(topic):
                continue
            key = (what, topic or "", group or "")
            windows[key] = window = self._windows.get(key) or _Window()
            name = f"{what} {topic}/{group}" if group else f"{what} {topic}" if topic else what
            yield TimesRow(name, window.lately(snapshot.at_s, times))
        self._windows = windows


class _Window:
    """Two earlier looks at a histogram."""

    def __init__(self) -> None:
        self._older: Latency | None = None
        self._newer: tuple[float, Latency] | None = None

    def lately(self, now_s: float, times: Latency) -> Latency:
        """What was seen since the older one."""
        if self._newer is not None and _went_back(times, self._newer[1]):
            self._older = self._newer = None
        if self._newer is None:
            self._newer = now_s, times
        elif now_s - self._newer[0] >= WINDOW_S:
            self._older, self._newer = self._newer[1], (now_s, times)
        if self._older is None:
            return times
        counts = tuple(now - was for now, was in zip(times.counts, self._older.counts, strict=True))
        return Latency(counts, times.sum_s - self._older.sum_s)


def _went_back(now: Latency, before: Latency) -> bool:
    return len(now.counts) != len(before.counts) or any(one < was for one, was in zip(now.counts, before.counts, strict=True))
