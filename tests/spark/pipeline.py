"""
A driver with two queries, for tests that kill it: `python -m tests.spark.pipeline STORE FOLDER`.

One copies topic `in` to topic `out`, doubling the numbers in it; the other one archives it as Parquet with Spark's own sink. A query that
fails is started again. When FOLDER has a file `finish`, it waits until all is done, writes what the archive holds to `archived.json`,
and ends.

`FOLDER/order.json` makes the next commit of a batch kill something: {"pid": the process, "group": whether all of its group, "when":
"before", "during" (so many "delay_ms" after it began) or "after" the commit took effect, and before Spark knows}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.spark.options import WriteOptions
from penstock.spark.session import get_session
from penstock.spark.source import PenstockDataSource
from penstock.spark.stream_writer import PenstockStreamWriter
from tests.spark.broken import end_if_broken
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Deadly(PenstockStreamWriter):
    """A sink whose commits obey orders to kill."""

    def __init__(self, options: WriteOptions, schema: Any, folder: str) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        order = self._order() if any(getattr(one, "messages", 0) for one in messages) else None
        if order is None:
            super().commit(messages, batchId)
            return
        if order["when"] == "during":
            threading.Timer(order["delay_ms"] / 1000, kill, [order]).start()
        elif order["when"] == "before":
            kill(order)
        super().commit(messages, batchId)
        if order["when"] == "after":
            kill(order)

    def _order(self) -> dict[str, Any] | None:
        mine = os.path.join(self._folder, "order.taken")
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(self._folder, "order.json"), mine)
            with open(mine) as file:
                found: dict[str, Any] = json.load(file)
            return found
        return None


class DeadlySource(PenstockDataSource):
    """The data source with that sink."""

    @classmethod
    def name(cls) -> str:
        return "deadly"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        folder = os.path.dirname(self.options["checkpointLocation"])
        return Deadly(WriteOptions.parse(self.options, streaming=True), schema, folder)


def kill(order: dict[str, Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if order["group"] else os.kill)(order["pid"], signal.SIGKILL)


def source(spark: SparkSession, store: str) -> DataFrame:
    return (
        spark.readStream.format("penstock").options(store=store, retryTimeoutMs="60000", subscribe="in")
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2000").load()
    )  # fmt: skip


def start_copy(spark: SparkSession, store: str, folder: str) -> StreamingQuery:
    doubled = source(spark, store).selectExpr("key", "cast(2 * cast(cast(value as string) as int) as string) as value")
    writer = doubled.writeStream.format("deadly").options(store=store, retryTimeoutMs="60000", topic="out")
    return (
        writer.option("checkpointLocation", os.path.join(folder, "copying")).trigger(processingTime="100 milliseconds").start()
    )


def start_archive(spark: SparkSession, store: str, folder: str) -> StreamingQuery:
    writer = source(spark, store).select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", os.path.join(folder, "archiving")).trigger(processingTime="100 milliseconds")
    return writer.start(os.path.join(folder, "archive"))


def fail(error: Exception | None) -> None:
    print("failed", str(error)[:500], flush=True)
    end_if_broken(error)


def patiently(start: Callable[..., StreamingQuery], *arguments: Any) -> StreamingQuery:
    """Start a query: again where the process was killed that Spark asks for the columns of its source."""
    while True:
        try:
            return start(*arguments)
        except (PySparkException, Py4JError) as error:
            fail(error)
        time.sleep(0.1)


def main(store: str, folder: str) -> None:
    """See above."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        spark = get_session("pipeline", master="local[2,4]", settings={**SETTINGS, "spark.local.dir": scratch})
        spark.dataSource.register(DeadlySource)
        starts = (start_copy, start_archive)
        queries = [patiently(start, spark, store, folder) for start in starts]
        while True:
            finishing = os.path.exists(os.path.join(folder, "finish"))
            for number, query in enumerate(queries):
                with contextlib.suppress(PySparkException):
                    if finishing:
                        query.processAllAvailable()
                if not query.isActive:
                    fail(query.exception())
                    queries[number] = patiently(starts[number], spark, store, folder)
                    finishing = False
            if finishing:
                break
            time.sleep(0.1)
        for query in queries:
            query.stop()
        rows = spark.read.parquet(os.path.join(folder, "archive")).collect()
        with open(os.path.join(folder, "archived.json"), "w") as file:
            json.dump([[row.partition, row.offset, int(row.value)] for row in rows], file)


if __name__ == "__main__":
    main(*sys.argv[1:])
