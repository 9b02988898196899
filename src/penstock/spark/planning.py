"""From offsets to the ranges that tasks read."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.errors import BadSetting, TopicNotFound
from penstock.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.spark.options import Bound, ReadOptions, Selection
    from penstock.store.reading import TopicPositions

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Chosen = dict[str, dict[int, int]]
"""An offset for each partition of each topic."""


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """The messages [start, end) of a partition: what one task reads. The id and the epoch say which messages these offsets mean."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Ranges(InputPartition):
    """Several small ranges that one task reads, one after the other."""

    ranges: tuple[Range, ...]


def positions_of(store: Any, selection: Selection) -> dict[str, TopicPositions]:
    """Where the chosen topics begin and end now, those that are there; of `assign` the chosen partitions only."""
    if selection.pattern is not None:
        matches = re.compile(selection.pattern).fullmatch
        names = [info.name for info in store.topics() if matches(info.name)]
    else:
        names = list(selection.names or selection.partitions or ())
    found: dict[str, TopicPositions] = store.positions(names) if names else {}
    if selection.partitions is None:
        return found
    return {name: _some(name, one, selection.partitions[name]) for name, one in found.items()}


def _some(topic: str, positions: TopicPositions, partitions: Sequence[int]) -> TopicPositions:
    for number in partitions:
        if number not in positions.ends:
            raise TopicNotFound(topic, number)
    return positions._replace(
        starts={number: positions.starts[number] for number in partitions},
        ends={number: positions.ends[number] for number in partitions},
    )


def require_all(selection: Selection, positions: Mapping[str, TopicPositions]) -> None:
    """Raise `TopicNotFound` if a topic that was named is not there."""
    for name in selection.names or selection.partitions or ():
        if name not in positions:
            raise TopicNotFound(name)


def resolve(store: Any, options: ReadOptions, bound: Bound, name: str, positions: Mapping[str, TopicPositions]) -> Chosen:
    """The offset that *bound*, given by the option *name*, means in each partition. Raises `BadSetting`."""
    if bound.offsets is not None:
        return _given(bound.offsets, name, positions)
    chosen: Chosen = {}
    for topic, one in positions.items():
        if bound.time_ms is None:
            chosen[topic] = dict(one.starts if bound.place == EARLIEST else one.ends)
            continue
        when = _EPOCH + dt.timedelta(milliseconds=bound.time_ms)
        chosen[topic] = {number: min(store.offset_of_time(topic, number, when), end) for number, end in one.ends.items()}
        if name.startswith("starting") and options.fail_without_time:
            for number, offset in chosen[topic].items():
                if offset == one.ends[number]:
                    raise BadSetting(
                        "startingTimestamp",
                        bound.time_ms,
                        f"{topic}/{number} has no message from then on; to begin at its end, "
                        "set startingOffsetsByTimestampStrategy to latest",
                    )
    return chosen


def _given(offsets: Chosen, name: str, positions: Mapping[str, TopicPositions]) -> Chosen:
    expected = {(topic, number) for topic, one in positions.items() for number in one.ends}
    given = {(topic, number) for topic, numbers in offsets.items() for number in numbers}
    if given != expected:
        missing = ", ".join(f"{topic}/{number}" for topic, number in sorted(expected - given))
        extra = ", ".join(f"{topic}/{number}" for topic, number in sorted(given - expected))
        reason = f"missing: {missing}" if missing else f"not among the chosen ones: {extra}"
        raise BadSetting(name, offsets, f"must have an offset for each partition that is read; {reason}")
    places = {EARLIEST: "starts", LATEST: "ends"}
    return {
        topic: {
            number: getattr(positions[topic], places[offset])[number] if offset < 0 else offset
            for number, offset in numbers.items()
        }
        for topic, numbers in offsets.items()
    }


TASKS_WISHED = 32
"""With more ranges than that, small ones share a task: each task costs Spark some tens of milliseconds."""
TASK_OFFSETS = 32_768
"""A task has at least so much to read where small ranges share it, and a range with so much has a task of its own."""
RANGE_OFFSETS = 256
"""What is counted for a range besides its offsets: to begin with a partition takes some tenths of a millisecond."""


def tasks(ranges: Sequence[Range], options: ReadOptions) -> list[InputPartition]:
    """
    What the tasks read: a range each, parts of long ones with `minPartitions`, several small ones where there are many.

    With `minPartitions` alone none share a task: joined again, the parts would be fewer than were asked for.
    """
    found = split(ranges, options.partitions_min)
    most = options.partitions_max
    if len(found) <= (TASKS_WISHED if most is None else most) or (most is None and options.partitions_min is not None):
        return list(found)
    total = sum([_work(one) for one in found])
    enough = -(-total // (-(-total // TASK_OFFSETS) if most is None else most))
    groups: list[list[Range]] = []
    gathered: list[Range] = []
    count = 0
    for one in found:
        work = _work(one)
        if work >= enough:
            groups.append([one])
            continue
        gathered.append(one)
        count += work
        if count >= enough:
            groups.append(gathered)
            gathered, count = [], 0
    if gathered:
        if most is not None and len(groups) >= most:
            groups[-1].extend(gathered)
        else:
            groups.append(gathered)
    return [group[0] if len(group) == 1 else Ranges(tuple(group)) for group in groups]


def _work(one: Range) -> int:
    """What a range costs to read, in offsets."""
    return one.end - one.start + RANGE_OFFSETS


def split(ranges: Sequence[Range], partitions_min: int | None) -> list[Range]:
    """At least about *partitions_min* ranges: large ones are cut into equal parts, in proportion to their length."""
    wanted = [one for one in ranges if one.start < one.end]
    if partitions_min is None or len(wanted) >= partitions_min:
        return wanted
    total = sum(one.end - one.start for one in wanted)
    found = []
    for one in wanted:
        length = one.end - one.start
        parts = min(max(round(length * partitions_min / total), 1), length)
        edges = [one.start + length * part // parts for part in range(parts + 1)]
        found += [
            Range(one.topic, one.partition, edges[part], edges[part + 1], one.topic_id, one.epoch) for part in range(parts)
        ]
    return found


def admit(begin: Chosen, end: Chosen, offsets_max: int) -> Chosen:
    """
    Ends so that at most *offsets_max* are read in all, or one a partition: each gives in proportion to what it has waiting.

    One that has anything waiting gives at least one: beside a long backlog that never ends it would wait for ever.
    """
    waiting = {
        (topic, number): last - begin[topic][number]
        for topic, numbers in end.items()
        for number, last in numbers.items()
        if last > begin[topic][number]
    }
    total = sum(waiting.values())
    if total <= offsets_max:
        return end
    granted: Chosen = {
        topic: {number: min(begin[topic][number], last) for number, last in numbers.items()} for topic, numbers in end.items()
    }
    shared = max(offsets_max - len(waiting), 0)
    left = shared
    for (topic, number), count in waiting.items():
        share = (count - 1) * shared // max(total - len(waiting), 1)
        granted[topic][number] += 1 + share
        left -= share
    # What rounding left over goes to those that still have messages.
    for (topic, number), count in waiting.items():
        more = min(left, count - (granted[topic][number] - begin[topic][number]))
        granted[topic][number] += more
        left -= more
    return granted
