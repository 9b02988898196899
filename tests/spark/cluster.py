"""
Drivers of a cluster, for `test_cluster.py`: `python -m tests.spark.cluster WORK MASTER CHECKPOINT OPTIONS`, the options of a store as JSON.

`copy` writes numbers to topic `in`, streams them to topic `out`, reads that, and prints what it found as JSON. `hold` streams topic
`held-in` to topic `held-out` in batches; tasks that have certain numbers (`HOLDS`) stop there, each once, for the one who kills them.
A driver that met one of Spark's own faults ends with `BROKEN`, and is to be started again: nothing comes twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock.spark.options import WriteOptions
from penstock.spark.session import get_session
from penstock.spark.source import PenstockDataSource
from penstock.spark.stream_writer import PenstockStreamWriter
from tests.spark.broken import LATE, end_if_broken
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HOLDS = {100: "during", 700: "after"}
"""At which numbers a task stops: when they are staged and others are not, or when all is staged and Spark does not know."""
HELD_S = 300


def open_session(master: str) -> SparkSession:
    settings = {
        **SETTINGS,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
        # Not before both executors are there: those that Spark waits for are as many cores as it may have.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        # So that tasks have several batches to stage.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    return get_session("cluster", master=master, settings=settings)


def copy(spark: SparkSession, checkpoint: str, options: dict[str, str]) -> None:
    """See above."""
    numbers = spark.range(0, 1_000, numPartitions=4).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    writer = numbers.write.format("penstock").options(**options).option("topic", "in").mode("append")
    writer.option("txnAppId", "numbers").option("txnVersion", "0").save()
    stream = (
        spark.readStream.format("penstock").options(**options).option("subscribe", "in").option("startingOffsets", "earliest")
    )
    sink = stream.load().select("key", "value").writeStream.format("penstock").options(**options).option("topic", "out")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    found = spark.read.format("penstock").options(**options).option("subscribe", "out").load()
    rows = found.rdd.map(lambda row: (int(row.value), os.getcwd())).collect()
    print(json.dumps({"values": sorted(row[0] for row in rows), "folders": sorted({row[1] for row in rows})}))


class Held(PenstockStreamWriter):
    """A sink whose tasks stop at certain numbers, and tell in a file of *folder* which folder they work in."""

    def __init__(self, options: WriteOptions, schema: Any, folder: str) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> Any:
        met: list[int] = []

        def passing() -> Iterator[Any]:
            for batch in iterator:
                yield batch  # it is staged when this goes on
                numbers = {int(value) for value in batch["value"].to_pylist()}
                met.extend(numbers & HOLDS.keys())
                for number in numbers & HOLDS.keys():
                    if HOLDS[number] == "during":
                        self._hold(number)

        staged = super().write(passing())
        for number in met:
            if HOLDS[number] == "after":
                self._hold(number)
        return staged

    def _hold(self, number: int) -> None:
        """Until this process is killed. The next attempt goes on."""
        mine = os.path.join(self._folder, f"held-{number}.{os.getpid()}")
        with open(mine, "w") as file:
            file.write(os.getcwd())
        try:
            os.link(mine, os.path.join(self._folder, f"held-{number}"))
        except FileExistsError:
            return
        time.sleep(HELD_S)
        raise RuntimeError("nobody has killed it")


class HeldSource(PenstockDataSource):
    """The data source with that sink."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return Held(
            WriteOptions.parse(self.options, streaming=True), schema, os.path.dirname(self.options["checkpointLocation"])
        )


def hold(spark: SparkSession, checkpoint: str, options: dict[str, str]) -> None:
    """See above."""
    spark.dataSource.register(HeldSource)
    stream = spark.readStream.format("penstock").options(**options, subscribe="held-in", startingOffsets="earliest")
    rows = stream.option("maxOffsetsPerTrigger", "500").load().select("key", "value")
    sink = rows.writeStream.format("held").options(**options, topic="held-out", checkpointLocation=checkpoint)
    sink.trigger(availableNow=True).start().awaitTermination()


def main(work: str, master: str, checkpoint: str, given: str) -> None:
    """See above."""
    try:
        spark = open_session(master)
        {"copy": copy, "hold": hold}[work](spark, checkpoint, json.loads(given))
    except Exception as error:
        end_if_broken(error, LATE)
        raise
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
