"""
Writing a stream to topics: `df.writeStream.format("penstock")`. Exactly once.

Spark numbers the batches of a query, runs a batch again after a crash under the same number, and tells what the tasks of the successful
attempts returned. So tasks stage, and the commit publishes the stages under (query id, batch id) in one frame of the journal: a batch
is visible as a whole or not at all, and committing it again gives the first answer. A driver that was replaced and does not know it is
refused as soon as the other one has committed a later batch.

A number alone does not make a batch the same: a checkpoint that was put back from a copy, or lost its newest files in a power cut, gives
the number to other rows. So the store compares the rows, in whatever order they come, and refuses others.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import PenstockError, TransactionChanged, TransactionFenced
from penstock.spark import staging
from penstock.spark.schema import check_write
from penstock.spark.telling import in_one_line
from penstock.store.staging import NOTE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from penstock.spark.options import WriteOptions

_looked_at: dict[tuple[str, str], int] = {}
"""By store and query: the last batch up to which this process knows what was committed. Spark keeps it from batch to batch."""


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

    @in_one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """
        Publish what the tasks have staged.

        Raises `TransactionFenced` if the query has gone on elsewhere, or its checkpoint was set back, and `TransactionChanged` if this
        batch was committed with other rows; nothing was published.
        """
        producer, stages, _ = staging.stages_of(messages)
        if producer is None:
            return
        options = self._options
        key = options.place.path, producer
        if not stages:
            # Nothing to publish. Whether something was published under this number before is asked once: behind what this process has
            # committed nothing can be.
            if not _looked_at.get(key, batchId) < batchId:
                self._check_empty(producer, batchId)
                _looked_at[key] = batchId
            return
        try:
            done = staging.commit(options, producer, batchId, stages, _reached(options.checkpoint, batchId))
        except TransactionChanged as error:
            raise error.advising(self._advice(producer, batchId)) from None
        if done.newest > batchId:
            raise TransactionFenced(producer, batchId, done.newest)
        _looked_at[key] = batchId

    def _check_empty(self, producer: str, number: int) -> None:
        """
        Raise `TransactionFenced` or `TransactionChanged` if *producer* has committed anything from this batch on, which has no rows now.

        A query that begins anew under the id of one that has committed (its checkpoint was emptied, and kept its id) counts its batches
        from 0 again: its first one has no rows, and comes before all others.
        """
        found = staging.committed(self._options.place, producer, number)
        if found is None:
            return
        if found.newest > number or number == 0:
            raise TransactionFenced(producer, number, found.newest)
        if found.messages and self._options.fail_on_changed_batch:
            raise TransactionChanged(producer, number, found.messages, 0, self._advice(producer, number))

    def _advice(self, producer: str, number: int) -> str:
        """What can be done: begin where the last batch that was committed ended, as far as that is known."""
        try:
            found = staging.committed(self._options.place, producer, number)
            if found is not None and found.newest > number:
                found = staging.committed(self._options.place, producer, found.newest)
        except PenstockError:
            found = None
        where = "where the last committed batch ended"
        if found is not None and found.note:
            ends = found.note.replace("\n", " and ")  # a line for each source
            where = f"where batch {found.number}, the last committed one, ended: {ends}"
        return (
            "The checkpoint is older than what was written (a copy was put back, or a crash took its newest files), or the query gives "
            f"other rows each time it runs. To go on without loss: a new checkpointLocation, and the source's startingOffsets {where}. "
            "If the rows differ each time (rand(), uuid(), the clock): failOnChangedBatch=false, and what was committed counts"
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Drop what tasks have staged. Spark calls it after a failed commit too, whatever became of that."""
        staging.abort(self._options.place, messages)


def _reached(checkpoint: str | None, number: int) -> str | None:
    """
    How far a batch reads its sources, for the note beside its commit: as `startingOffsets` take it, a line for each source.

    Spark has it in the checkpoint. None if that is not a folder that can be read here, or if it is too long.
    """
    if checkpoint is None:
        return None
    parts = urllib.parse.urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    folder = urllib.parse.unquote(parts.path) if parts.scheme else checkpoint
    try:
        with open(os.path.join(folder, "offsets", str(number)), encoding="utf-8") as file:
            lines = file.read().splitlines()[2:]  # the version, and what Spark keeps for itself
    except (OSError, UnicodeDecodeError):
        return None
    found = "\n".join([_as_option(line) for line in lines])
    return found if found and len(found.encode()) <= NOTE_BYTES_MAX else None


def _as_option(line: str) -> str:
    """One source's offsets, without what ours keeps in them beside the offsets."""
    try:
        document = json.loads(line)
    except ValueError:
        return line
    if not isinstance(document, dict):
        return line
    return json.dumps({name: value for name, value in document.items() if not name.startswith("_")})
