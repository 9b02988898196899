"""Reading topics as a batch: `spark.read.format("penstock")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark import connections, planning
from penstock.spark.loss import LossCheck
from penstock.spark.planning import Range, Ranges
from penstock.spark.telling import in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from penstock.spark.options import ReadOptions


class PenstockReader(DataSourceReader):
    """
    Plans the ranges once, when the DataFrame is first used; from then on it means these messages.

    It has no `pushFilters`: Spark keeps what was pushed beyond the query it was pushed for, and gives wrong rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @in_one_line
    def partitions(self) -> list[InputPartition]:
        """The ranges that tasks read. Raises `PenstockError` before any task runs."""
        options = self._options
        assert options.start is not None
        assert options.end is not None
        store = connections.reader(options.place)
        positions = planning.positions_of(store, options.selection)
        planning.require_all(options.selection, positions)
        start = planning.resolve(store, options, options.start, "startingOffsets", positions)
        end = planning.resolve(store, options, options.end, "endingOffsets", positions)
        check = LossCheck(store, fail=options.fail_on_data_loss, advice=options.loss_advice)
        ranges: list[Range] = []
        for topic, now in positions.items():
            for number in now.ends:
                first = check.resume(topic, number, start[topic][number], now.log_epoch, now)
                last = end[topic][number]
                if last > now.ends[number]:
                    check.lost(topic, number, f"offset {last}, where to end, is beyond its end {now.ends[number]}")
                    last = now.ends[number]
                ranges.append(Range(topic, number, first, last, now.topic_id.hex(), now.log_epoch))
        return planning.tasks(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a range, as Arrow batches."""
        return read_range(self._options, self._schema, partition)


def read_range(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """The rows of a task, as Arrow batches; none where Spark made up a partition since there was nothing to read."""
    from penstock.spark.rows import batches, join

    store = connections.reader(options.place)

    def rows(wanted: Range) -> Iterator[Any]:
        return batches(store, wanted, schema, fail_on_data_loss=options.fail_on_data_loss, loss_advice=options.loss_advice)

    if isinstance(partition, Range):
        yield from rows(partition)
    elif isinstance(partition, Ranges):
        yield from join(batch for one in partition.ranges for batch in rows(one))
