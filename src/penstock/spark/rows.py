"""The messages of a range as the Arrow batches that Spark wants: the columns of the asked schema, in its exact types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import DataLost, MissingData, OffsetOutOfRange, TopicNotFound
from penstock.spark.loss import LossCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from penstock.spark.planning import Range
    from penstock.store.reading import TopicPositions

_STORED = {"timestampType": "timestamp_type"}
_CONSTANT = ("topic", "partition")
ROWS_MIN, ROWS_MAX = 8_192, 65_536
"""Smaller batches are joined, since each costs Spark as much as a thousand rows; larger ones are cut."""
_BYTES_MAX = 16 * 1024 * 1024


def batches(
    store: Any, wanted: Range, schema: StructType, *, fail_on_data_loss: bool, loss_advice: str = DataLost.ADVICE
) -> Iterator[pa.RecordBatch]:
    """
    The messages of *wanted*.

    Raises `DataLost`, with *loss_advice*, when some of them are gone, unless *fail_on_data_loss* is false: then they are left out.
    """
    shape = _Shape(wanted, schema)
    yield from _read(store, wanted, shape, LossCheck(store, fail=fail_on_data_loss, advice=loss_advice))


def _read(store: Any, wanted: Range, shape: _Shape, check: LossCheck) -> Iterator[pa.RecordBatch]:
    """
    Rows are given when the topic and the log's epoch were still the same after they had been read.

    A server reads by the topic's name and the offset. Where the topic is made again meanwhile, or the server comes back without messages
    that its disk had not kept, other messages have these offsets. Neither an id nor an epoch ever comes back, so one look behind each
    read tells.
    """
    offset = wanted.start
    while offset < wanted.end:
        now = store.positions([wanted.topic]).get(wanted.topic)
        if now is None or now.topic_id.hex() != wanted.topic_id:
            check.lost(wanted.topic, None, "the topic is gone" if now is None else "the topic was deleted and made again")
            return
        end = min(check.resume(wanted.topic, wanted.partition, wanted.end, wanted.epoch, now), wanted.end)
        first = now.starts[wanted.partition]
        if offset < first:
            check.lost(
                wanted.topic, wanted.partition, f"the messages from offset {offset} to {first} were removed by retention"
            )
            offset = first
        if offset >= end:
            return
        try:
            stored = store.read_arrow(wanted.topic, wanted.partition, start=offset, end=end, columns=shape.columns)
            for found in join(stored):
                if not _is_same(now, store.positions([wanted.topic]).get(wanted.topic)):
                    break
                yield shape.rows(found)
                offset = found[0][-1].as_py() + 1
            else:
                if offset >= end or _is_same(now, store.positions([wanted.topic]).get(wanted.topic)):
                    return  # where the range ends in a hole there is nothing more to come
        except (OffsetOutOfRange, MissingData, TopicNotFound):
            # Retention was faster than this reader, or the topic is gone: see what is left, unless nothing has changed.
            after = store.positions([wanted.topic]).get(wanted.topic)
            if _is_same(now, after) and after.starts[wanted.partition] <= offset:
                raise


def _is_same(before: TopicPositions, after: TopicPositions | None) -> TypeGuard[TopicPositions]:
    """Whether offsets still mean what they meant."""
    return after is not None and after.topic_id == before.topic_id and after.log_epoch == before.log_epoch


class _Shape:
    """What the asked schema means for a range: which columns are read, and how they become Spark's."""

    def __init__(self, wanted: Range, schema: StructType) -> None:
        self._schema = _arrow_schema(schema)
        names = [_STORED.get(name, name) for name in schema.names]
        # The offset comes first: it tells how far the reading is.
        self.columns = ["offset", *[name for name in names if name not in _CONSTANT and name != "offset"]]
        self._names = names
        self._values: dict[str, Any] = {"topic": wanted.topic, "partition": wanted.partition}
        self._constants: dict[tuple[str, int], Any] = {}

    def rows(self, found: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the store as Spark wants it."""
        arrays = [self._column(name, field, found) for name, field in zip(self._names, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, field: pa.Field, found: pa.RecordBatch) -> Any:
        if name in _CONSTANT:
            return self._constant(name, field, found.num_rows)
        column = found.column(self.columns.index(name))
        if name == "headers":
            return _headers(column, field.type)
        return column if column.type == field.type else column.cast(field.type)

    def _constant(self, name: str, field: pa.Field, count: int) -> Any:
        """The same value for all rows; kept, since the batches of a range are mostly of a few lengths."""
        key = (name, count)
        if key not in self._constants:
            if len(self._constants) > 64:
                self._constants.clear()
            self._constants[key] = pa.repeat(pa.scalar(self._values[name], field.type), count)
        return self._constants[key]


_schemas: dict[int, tuple[StructType, pa.Schema]] = {}
"""The last schema that was asked for, by its id."""


def _arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark wants for *schema*; kept, since a task may read a thousand ranges."""
    known = _schemas.get(id(schema))
    if known is None or known[0] is not schema:
        _schemas.clear()
        known = _schemas[id(schema)] = (schema, to_arrow_schema(schema, timezone="UTC"))
    return known[1]


def _headers(column: Any, kind: pa.DataType) -> Any:
    """As in the Kafka connector: a message without headers has null."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    pairs = column.flatten()
    key, value = pairs.flatten()
    struct = pa.StructArray.from_arrays([key, value], fields=list(kind.value_type))
    counts = pc.fill_null(pc.list_value_length(column), 0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
    return pa.ListArray.from_arrays(ends, struct, type=kind, mask=pc.equal(counts, 0))


def join(source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size."""
    gathered: list[pa.RecordBatch] = []
    count = size = 0
    for batch in source:
        if not batch.num_rows:
            continue
        length = batch.nbytes
        if batch.num_rows >= ROWS_MIN or length > _BYTES_MAX:
            if gathered:
                yield _joined(gathered)
                gathered, count, size = [], 0, 0
            for start in range(0, batch.num_rows, ROWS_MAX):
                yield batch.slice(start, ROWS_MAX)
            continue
        gathered.append(batch)
        count += batch.num_rows
        size += length
        if count >= ROWS_MIN or size >= _BYTES_MAX:
            yield _joined(gathered)
            gathered, count, size = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _joined(gathered: list[pa.RecordBatch]) -> pa.RecordBatch:
    return gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
