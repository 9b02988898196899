"""
Spark reading and writing topics, against Spark with Parquet and against sources that do nothing: `python -m benchmarks.spark`.

All rows have a key of 16 bytes and a value of 100; reads go to Spark's `noop` sink. The variants run in turn, several rounds, so that a
noisy machine is noisy for all of them; the best round counts, and all are in the file that `--json` names. Needs the extra `spark`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import penstock
from penstock.spark.session import get_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key binary, value binary, offset long"
ROWS_A_BATCH = 10_000
PARTITIONS = 2


def table(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    keys = pa.array([b"key-%012d" % (number % 1_000) for number in numbers], pa.binary())
    values = pa.array([b"%0100d" % number for number in numbers], pa.binary())
    return pa.RecordBatch.from_arrays([keys, values, pa.array(numbers, pa.int64())], names=["key", "value", "offset"])


def fill(path: str, rows: int) -> None:
    """A topic with *rows* messages, staged as Arrow."""
    with penstock.open(path) as store:
        store.create_topic("t", partitions=PARTITIONS)
        prepared = table(0, ROWS_A_BATCH).select(["key", "value"])
        for number, part in enumerate(range(PARTITIONS)):
            with store.stage("bench") as stage:
                chosen = prepared.append_column("partition", pa.array([part] * ROWS_A_BATCH, pa.int32()))
                for _ in range(rows // PARTITIONS // ROWS_A_BATCH):
                    stage.publish_arrow("t", chosen)
            store.commit("bench", number, [stage.identity])


def fill_singly(path: str, rows: int) -> None:
    """A topic that was written one message at a time, after its segments were merged."""
    from penstock.format.batch import encode_batch
    from penstock.settings import StoreSettings
    from penstock.volume.volume import Volume

    with penstock.open(path) as store:
        store.create_topic("single", partitions=PARTITIONS, sync="os", segment_bytes=1024 * 1024)
    with Volume.open(path, settings=StoreSettings(checkpoint_interval_ms=600_000)) as volume:
        for part in range(PARTITIONS):
            log = volume.log("single", part)
            for number in range(rows // PARTITIONS):
                volume.append(log, encode_batch([b"%0100d" % number], keys=[b"key-%012d" % (number % 1_000)]))
        volume.checkpoint()
        volume.checkpoint()
        volume.coalesce()


class MadeUpReader(DataSourceReader):
    """Gives the same rows again and again, prepared as one batch or as tuples."""

    def __init__(self, rows: int, kind: str) -> None:
        self.rows = rows
        self.kind = kind

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        batch = table(0, ROWS_A_BATCH)
        times = self.rows // PARTITIONS // ROWS_A_BATCH
        if self.kind == "prebuilt":
            for _ in range(times):
                yield batch
            return
        rows = list(zip(*[column.to_pylist() for column in batch.columns], strict=True))
        for _ in range(times):
            yield from rows


class MadeUp(DataSource):
    """The ceiling and the floor."""

    @classmethod
    def name(cls) -> str:
        return "madeup"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return MadeUpReader(int(self.options["rows"]), self.options["kind"])


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def topic(spark: SparkSession, path: str, name: str) -> DataFrame:
    return spark.read.format("penstock").schema(SCHEMA).options(store=path, subscribe=name).load()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--single-rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    chosen = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="penstock-spark-", dir="/var/tmp")
    try:
        results = measure(folder, chosen.rows, chosen.single_rows, chosen.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, found in results.items():
        print(f"{name:<44} {max(found):>12,.0f} rows/s   (rounds: {', '.join(f'{one:,.0f}' for one in found)})")
    best = {name: max(found) for name, found in results.items()}
    ours = best["read topic"]
    print(f"topic / Parquet {ours / best['read Parquet']:.2f}   topic / prebuilt {ours / best['read prebuilt batch']:.2f}   "
          f"topic / tuples {ours / best['read tuples']:.1f}")  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(results, file, indent=1)


def measure(folder: str, rows: int, single_rows: int, rounds: int) -> dict[str, list[float]]:
    path = os.path.join(folder, "store")
    fill(path, rows)
    fill_singly(path, single_rows)
    spark = get_session(
        "bench",
        master="local[2]",
        settings={"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.local.dir": folder},
    )
    spark.dataSource.register(MadeUp)
    parquet = os.path.join(folder, "parquet")
    topic(spark, path, "t").write.parquet(parquet)
    tuple_rows = max(rows // 10, ROWS_A_BATCH * PARTITIONS)
    made = spark.read.format("madeup")
    written = {"number": 0}

    def write() -> None:
        frame = spark.range(0, rows // 4, numPartitions=2).selectExpr("lpad(cast(id as string), 100, '0') as value")
        written["number"] += 1
        frame.write.format("penstock").options(store=path, topic=f"written-{written['number']}").mode("append").save()

    variants: dict[str, tuple[int, Callable[[], None]]] = {
        "read topic": (rows, lambda: consume(topic(spark, path, "t"))),
        "read Parquet": (rows, lambda: consume(spark.read.parquet(parquet))),
        "read prebuilt batch": (rows, lambda: consume(made.options(rows=rows, kind="prebuilt").load())),
        "read tuples": (tuple_rows, lambda: consume(made.options(rows=tuple_rows, kind="tuples").load())),
        "read topic written singly, after merging": (single_rows, lambda: consume(topic(spark, path, "single"))),
        "write to a topic": (rows // 4, write),
    }
    results: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, (count, work) in variants.items():
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
            if number:  # the first round warms up
                results[name].append(count / seconds)
    spark.stop()
    return results


if __name__ == "__main__":
    main()
