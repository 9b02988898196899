"""
Writing a stream to topics: `df.writeStream.format("penstock")`. Exactly once.

Spark numbers the batches of a query, runs a batch again after a crash under the same number, and tells what the tasks of the successful
attempts returned. So tasks stage, and the commit publishes the stages under (query id, batch id) in one frame of the journal: a batch
is visible as a whole or not at all, and committing it again gives the first answer. A driver that was replaced and does not know it is
refused as soon as the other one has committed a later batch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import PenstockError, TransactionFenced
from penstock.spark import staging
from penstock.spark.schema import check_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from penstock.spark.options import WriteOptions

_log = logging.getLogger("penstock")


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one for each batch, to plan it, and another one to commit it."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_write(schema, options.topic)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise PenstockError("Spark does not tell the id of the query; this needs PySpark 4.2 or later")
        return staging.TaskStage(self._options, self._columns, f"spark-query.{query}").write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """
        Publish what the tasks have staged.

        Raises `TransactionFenced` if the query has gone on elsewhere, or its checkpoint was set back; nothing was published.
        """
        producer, stages, rows = staging.stages_of(messages)
        if producer is None:
            return
        if not stages:
            if batchId == 0:
                staging.check_new(self._options.place, producer)
            return  # nothing to publish, and nothing was published before that this could repeat
        done = staging.commit(self._options.place, producer, batchId, stages)
        if done.newest > batchId:
            raise TransactionFenced(producer, batchId, done.newest)
        if done.duplicate and done.messages != rows:
            _log.warning(
                "%s: batch %d was committed before with %d rows, and has %d now: what was committed counts",
                producer, batchId, done.messages, rows,
            )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Drop what tasks have staged. Spark calls it after a failed commit too, whatever became of that."""
        staging.abort(self._options.place, messages)
