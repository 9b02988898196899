"""
Writing a DataFrame to topics: `df.write.format("penstock").mode("append").save()`.

All rows become visible at once, when the job has succeeded. With `txnAppId` and `txnVersion` a job that runs again changes nothing.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.errors import TransactionChanged, TransactionFenced
from penstock.log_events import get_logger
from penstock.spark import staging
from penstock.spark.schema import check_write
from penstock.spark.telling import in_one_line
from penstock.topics.producers import ONCE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from penstock.spark.options import WriteOptions

_log = get_logger("penstock")


class PenstockWriter(DataSourceArrowWriter):
    """One write. Made once beside the driver; copies of it run in the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_write(schema, options.topic)
        if options.txn_app_id is None:
            self._producer, self._number = f"{ONCE_PREFIX}spark-{uuid.uuid4().hex}", 0
        else:
            assert options.txn_version is not None
            self._producer, self._number = f"spark-txn.{options.txn_app_id}", options.txn_version
        if options.topic is not None and not options.place.is_server:
            staging.make_topic(options.place, options.topic)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return staging.TaskStage(self._options, self._columns, self._producer).write(iterator)

    @in_one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Publish all of them.

        Raises `TransactionFenced` and `TransactionChanged` if the transaction's id was used for something else; nothing was published.
        """
        _, stages, rows = staging.stages_of(messages)
        app = self._options.txn_app_id
        if not stages and app is None:
            return
        advice = (
            f"Is txnAppId {app!r} another job's? Give each job an id of its own, and each run a higher version; if the rows differ "
            "each time (rand(), uuid(), the clock): failOnChangedBatch=false, and what was committed counts"
        )
        try:
            done = staging.commit(self._options, self._producer, self._number, stages)
        except TransactionChanged as error:
            raise error.advising(advice) from None
        if not done.duplicate or app is None:
            return
        if done.newest > self._number:
            raise TransactionFenced(self._producer, self._number, done.newest)
        if not rows and done.messages and self._options.fail_on_changed_batch:
            raise TransactionChanged(self._producer, self._number, done.messages, 0, advice)
        _log.warning("%s: version %d was written before; nothing was changed", app, self._number)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what tasks have staged. What a commit has published stays: it has no stages any more."""
        staging.abort(self._options.place, messages)
