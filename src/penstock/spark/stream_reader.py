"""
Reading topics as a stream: `spark.readStream.format("penstock")`.

Per micro-batch Spark asks `latestOffset` how far to go, makes the answer durable, and has `partitions` plan the ranges between two such
answers, once or more often, also after a crash. So `partitions` looks at nothing but the two offsets, and whether they still mean the
same messages.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.spark import connections, planning
from penstock.spark.loss import LossCheck
from penstock.spark.offsets import START, Offsets, is_start
from penstock.spark.options import ReadOptions
from penstock.spark.planning import Range
from penstock.spark.reader import read_range
from penstock.spark.schema import check_read
from penstock.spark.telling import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from penstock.store.reading import TopicPositions


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process for each query, which Spark kills without a word when the query ends."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Checked when Spark first asks for something: it hides what is raised here behind an error of its own.
        self._given = dict(options)
        self._schema = schema
        self._checked: ReadOptions | None = None
        self._available: dict[str, TopicPositions] | None = None
        self._latest: dict[str, Any] | None = None

    @property
    def _options(self) -> ReadOptions:
        if self._checked is None:
            check_read(self._schema)
            self._checked = ReadOptions.parse(self._given).for_stream()
        return self._checked

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """A symbol: what it stands for is fixed by the first batch."""
        assert self._options
        return dict(START)

    @in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the option `maxOffsetsPerTrigger` says."""
        limit = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on nothing that comes later is read."""
        self._available = self._positions()

    def _positions(self) -> dict[str, TopicPositions]:
        options = self._options
        store = connections.reader(options.place)
        return connections.patiently(options.place, lambda: planning.positions_of(store, options.selection))

    @in_one_line
    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch reads from *start* on. Raises `DataLost`; Spark ends the query then."""
        options = self._options
        store = connections.reader(options.place)
        positions = self._positions()
        if is_start(start):
            planning.require_all(options.selection, positions)
            assert options.start is not None
            first = planning.resolve(store, options, options.start, "startingOffsets", positions)
            self._latest = _offsets(positions, first).to_json()
            return self._latest
        known = Offsets.from_json(start)
        begin = LossCheck(store, fail=options.fail_on_data_loss).begin(known, positions)
        end = {topic: dict(now.ends) for topic, now in positions.items()}
        self._latest = _offsets(positions, end).to_json()
        if self._available is not None:
            end = _capped(begin, end, self._available)
        if isinstance(limit, ReadMaxRows):
            end = planning.admit(begin, end, limit.max_rows)
        if end == known.topics and all(begin[topic] == numbers for topic, numbers in end.items()):
            return dict(start)  # the same text: there is nothing new
        return _offsets(positions, end).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the topics reach, for the query's progress: the lag is what lies between it and the end of the batch."""
        return self._latest

    @in_one_line
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets. Raises `DataLost`."""
        if is_start(start):
            return []  # this batch only makes the start durable
        options = self._options
        store = connections.reader(options.place)
        check = LossCheck(store, fail=options.fail_on_data_loss)
        origin, target = Offsets.from_json(start), Offsets.from_json(end)
        found = {topic: now for topic, now in self._positions().items() if topic in target.topics or topic in origin.topics}
        positions = {topic: now for topic, now in found.items() if topic in target.topics}
        for topic in target.topics:
            if topic not in positions:
                check.lost(topic, None, "the topic is gone")
        first = check.begin(origin, found)
        ranges = []
        for topic, now in positions.items():
            if target.ids.get(topic, now.topic_id.hex()) != now.topic_id.hex():
                check.lost(topic, None, "the topic was deleted and made again since this batch was planned")
                continue
            for number, last in target.topics[topic].items():
                if number not in now.ends:
                    check.lost(topic, number, "the partition is gone")
                    continue
                stop = min(check.resume(topic, number, max(last, now.starts[number]), target.epoch, now), last)
                ranges.append(Range(topic, number, first[topic][number], stop, now.topic_id.hex(), now.log_epoch))
        return planning.tasks(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a range, as Arrow batches. Runs in a task."""
        return read_range(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark's checkpoint is what counts: nothing is kept elsewhere."""

    def stop(self) -> None:
        """
        Nothing is held. Where Spark has hung up, its process ends here.

        It is the usual end of a query. Spark's runner takes the end of its input for a failure, reports that to the Spark that is gone, and
        its daemon prints a traceback of a `BrokenPipeError`, unless the process is killed before.
        """
        if _is_end_of_input(sys.exception()):
            os._exit(0)


def _is_end_of_input(error: BaseException | None) -> bool:
    """Whether *error* is that Spark's own reading from its socket met the end, and nothing of ours."""
    if not isinstance(error, EOFError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == "pyspark.serializers"


def _offsets(positions: Mapping[str, TopicPositions], chosen: planning.Chosen) -> Offsets:
    return Offsets(
        max((now.log_epoch for now in positions.values()), default=0),
        {topic: positions[topic].topic_id.hex() for topic in chosen},
        chosen,
    )


def _capped(begin: planning.Chosen, end: planning.Chosen, available: Mapping[str, TopicPositions]) -> planning.Chosen:
    """*end*, but not beyond what was there when the query began, and not before *begin*."""
    capped: planning.Chosen = {}
    for topic, numbers in end.items():
        if topic in available and available[topic].ends.keys() == numbers.keys():
            capped[topic] = {
                number: min(last, max(available[topic].ends[number], begin[topic][number])) for number, last in numbers.items()
            }
    return capped
