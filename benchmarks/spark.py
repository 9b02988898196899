"""
Spark reading and writing topics, against Spark with Parquet and against sources that do nothing: `python -m benchmarks.spark`.

Rows have a key of 16 bytes and a value of 100, half of which is random; reads go to Spark's `noop` sink, on two cores. The variants of a
table run in turn, several rounds, so that a noisy machine is noisy for all of them; the best round counts, and all of them are in the
file that `--json` names. A target that is missed is followed by a profile of the reader alone. Needs the extra `spark`.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import io
import json
import os
import pstats
import shutil
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import penstock
from penstock.spark.session import get_session
from penstock.spark.source import PenstockDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key binary, value binary, offset long"
ROWS_A_BATCH = 10_000
PARTITIONS = 2
SCALING = (1, 2, 4, 8)
OF_PARQUET, OF_PREBUILT, OF_TUPLES, WRITTEN = 0.6, 0.8, 5.0, 500_000
OF_BULK = 0.8
"""How quickly a topic reads that was written one message at a time and merged since, of one that was written in bulk."""


class Sizes(NamedTuple):
    """How much is measured."""

    rows: int
    single_rows: int
    rounds: int
    batches: int
    topics: int
    topic_rows: int


FULL = Sizes(rows=10_000_000, single_rows=10_000_000, rounds=5, batches=30, topics=1_000, topic_rows=50)
QUICK = Sizes(rows=400_000, single_rows=40_000, rounds=1, batches=5, topics=40, topic_rows=50)


# -- data ---------------------------------------------------------------------------------------------------------------


def table(first: int, count: int) -> pa.RecordBatch:
    """Messages as they could be: some text that repeats, and some that does not."""
    random = pa.py_buffer(os.urandom(25 * count).hex().encode())
    parts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(50), count, [None, random]).cast(pa.binary())
    values = pc.binary_join_element_wise(b'{"kind": "order", "customer": "', parts, b'", "items": [1, 2]}', b"")
    keys = pa.array([b"key-%012d" % (number % 1_000) for number in range(first, first + count)], pa.binary())
    offsets = pa.array(range(first, first + count), pa.int64())
    return pa.RecordBatch.from_arrays([keys, values, offsets], names=["key", "value", "offset"])


def fill(path: str, name: str, rows: int, partitions: int) -> None:
    """A topic with *rows* messages, staged as Arrow."""
    with penstock.open(path) as store:
        store.create_topic(name, partitions=partitions)
        for part in range(partitions):
            with store.stage(f"bench-{name}") as stage:
                number = pa.array([part] * ROWS_A_BATCH, pa.int32())
                for at in range(rows // partitions // ROWS_A_BATCH):
                    messages = table(at * ROWS_A_BATCH, ROWS_A_BATCH).select(["key", "value"])
                    stage.publish_arrow(name, messages.append_column("partition", number))
            store.commit(f"bench-{name}", part, [stage.identity])


def fill_singly(path: str, name: str, rows: int) -> None:
    """A topic that was written one message at a time, after its segments were merged."""
    from penstock.format.batch import encode_batch
    from penstock.settings import StoreSettings
    from penstock.volume.volume import Volume

    with penstock.open(path) as store:
        store.create_topic(name, partitions=PARTITIONS, sync="os", segment_bytes=1024 * 1024)
    with Volume.open(path, settings=StoreSettings(checkpoint_interval_ms=600_000)) as volume:
        for part in range(PARTITIONS):
            log = volume.log(name, part)
            for at in range(0, rows // PARTITIONS, ROWS_A_BATCH):
                messages = table(at, min(ROWS_A_BATCH, rows // PARTITIONS - at))
                for key, value in zip(messages["key"].to_pylist(), messages["value"].to_pylist(), strict=True):
                    volume.append(log, encode_batch([value], keys=[key]))
        volume.checkpoint()
        volume.checkpoint()
        volume.coalesce()


def fill_topics(path: str, topics: int, rows: int, times: int) -> None:
    """Topics with *times* as many messages as a micro-batch takes of each; and one topic with all of that."""
    messages = table(0, rows * times)["value"].to_pylist()
    with penstock.open(path) as store:
        store.create_topic("all", sync="os")
        for number in range(topics):
            store.create_topic(f"many.{number}", sync="os")
            store.publish_many(f"many.{number}", messages)
            store.publish_many("all", messages)


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


class UndigestedWriter(DataSourceArrowWriter):
    """Our writer, whose tasks make no digest of what they stage: what that costs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from penstock.format import digest

        kept, digest.digest_of = digest.digest_of, lambda _topic, _batch: 0
        try:
            message: WriterCommitMessage = self.inner.write(iterator)
            return message
        finally:
            digest.digest_of = kept

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.abort(messages)


class Undigested(DataSource):
    """The sink without digests."""

    @classmethod
    def name(cls) -> str:
        return "undigested"

    def writer(self, schema: StructType, overwrite: bool) -> UndigestedWriter:  # noqa: FBT001
        return UndigestedWriter(PenstockDataSource(self.options).writer(schema, overwrite))


# -- measuring ----------------------------------------------------------------------------------------------------------


Variants = dict[str, tuple[int, "Callable[[], None]"]]
"""What is measured, with its number of rows."""


def in_turn(variants: Variants, rounds: int) -> dict[str, list[float]]:
    """Rows a second of each round; a first one, which warms up, does not count."""
    results: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, (count, work) in variants.items():
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
            if number:
                results[name].append(count / seconds)
    return results


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """A store with its topics, the same rows as Parquet, and a Spark."""

    def __init__(self, folder: str, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.path = os.path.join(folder, "store")
        self.spark: SparkSession = get_session(
            "bench",
            master="local[2]",
            settings={
                "spark.ui.enabled": "false", "spark.log.level": "FATAL", "spark.local.dir": folder,
                "spark.sql.streaming.noDataProgressEventInterval": "100",
            },
        )  # fmt: skip
        self.spark.dataSource.register(MadeUp)
        self.spark.dataSource.register(Undigested)
        self._written = 0

    def topic(self, name: str) -> DataFrame:
        return self.spark.read.format("penstock").schema(SCHEMA).options(store=self.path, subscribe=name).load()

    def made_up(self, rows: int, kind: str) -> DataFrame:
        return self.spark.read.format("madeup").options(rows=rows, kind=kind).load()

    def against(self, name: str, rows: int) -> Variants:
        """A topic, and what it is compared with, with as many rows."""
        parquet = os.path.join(self.folder, f"parquet-{name}")
        self.topic(name).write.parquet(parquet)
        return {
            "topic": (rows, lambda: consume(self.topic(name))),
            "Parquet": (rows, lambda: consume(self.spark.read.parquet(parquet))),
            "one prebuilt batch": (rows, lambda: consume(self.made_up(rows, "prebuilt"))),
            "tuples": (rows, lambda: consume(self.made_up(rows, "tuples"))),
        }

    def scaling(self) -> Variants:
        """Topics with the same rows in more and more partitions, of which a task reads one."""
        rows = self.sizes.rows // 2 // (ROWS_A_BATCH * max(SCALING)) * ROWS_A_BATCH * max(SCALING)
        for count in SCALING:
            fill(self.path, f"p{count}", rows, count)
        return {f"{n} partitions": (rows, functools.partial(self._read, f"p{n}")) for n in SCALING}

    def _read(self, name: str) -> None:
        consume(self.topic(name))

    def writing(self) -> Variants:
        """Into a new topic each time, from numbers that Spark makes."""
        rows = self.sizes.rows // 4

        def write(target: str) -> None:
            frame = self.spark.range(0, rows, numPartitions=2).selectExpr("lpad(cast(id as string), 100, '0') as value")
            if target == "noop":
                consume(frame)
                return
            self._written += 1
            frame.write.format(target).options(store=self.path, topic=f"w{self._written}").mode("append").save()

        return {
            "to a topic": (rows, functools.partial(write, "penstock")),
            "to a topic, without a digest": (rows, functools.partial(write, "undigested")),
            "nowhere (making the rows)": (rows, functools.partial(write, "noop")),
        }

    def many_topics(self) -> dict[str, list[float]]:
        """Milliseconds of a micro-batch of as many rows from very many topics and from one, in turn."""
        sizes, found = self.sizes, dict[str, list[float]]()
        fill_topics(self.path, sizes.topics, sizes.topic_rows, 4)
        for number in range(sizes.rounds):
            for name, pattern in ((f"{sizes.topics:,} topics", r"many\..*"), ("one topic", "all")):
                options = {"store": self.path, "subscribePattern": pattern, "startingOffsets": "earliest"}
                limited = {**options, "maxOffsetsPerTrigger": str(sizes.topics * sizes.topic_rows)}
                writer = self.spark.readStream.format("penstock").options(**limited).load().writeStream.format("noop")
                place = os.path.join(self.folder, f"many-{len(pattern)}-{number}")
                query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
                query.awaitTermination()
                busy = [float(one.durationMs["triggerExecution"]) for one in query.recentProgress if one.numInputRows]
                found.setdefault(name, []).extend(busy[1:])  # in the first one each process opens each topic
        return found

    def micro_batches(self) -> dict[str, list[float]]:
        """Milliseconds of a trigger: batches of one row, and triggers that find nothing new."""
        found: dict[str, list[float]] = {}
        made = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
        query = made.writeStream.format("noop").option("checkpointLocation", os.path.join(self.folder, "c0")).start()
        while sum(one.numInputRows > 0 for one in query.recentProgress) < self.sizes.batches:
            time.sleep(0.1)
        found["Spark's own source to noop"], _ = _triggers(query.recentProgress)
        query.stop()
        with penstock.open(self.path) as store:
            store.create_topic("ticks")
            frame = self.spark.readStream.format("penstock").options(store=self.path, subscribe="ticks").load().select("value")
            for number, sink in enumerate(("noop", "penstock"), 1):
                writer = frame.writeStream.format(sink).options(store=self.path, topic="tocks") if number > 1 else (
                    frame.writeStream.format(sink)
                )  # fmt: skip
                query = writer.option("checkpointLocation", os.path.join(self.folder, f"c{number}")).start()
                query.processAllAvailable()
                for _ in range(self.sizes.batches):
                    store.publish("ticks", b"tick")
                    query.processAllAvailable()
                time.sleep(2)
                name = f"topic to {'noop' if sink == 'noop' else 'topic'}"
                found[name], idle = _triggers(query.recentProgress)
                if sink == "noop":
                    found["nothing new"] = idle
                query.stop()
        return found


def _triggers(progress: list[Any]) -> tuple[list[float], list[float]]:
    """How long triggers with rows took, without the first ones, and those without."""
    busy = [float(one.durationMs["triggerExecution"]) for one in progress if one.numInputRows]
    idle = [float(one.durationMs["triggerExecution"]) for one in progress if not one.numInputRows]
    return busy[2:] or busy, idle[1:] or idle


def profile(path: str, name: str) -> str:
    """Where the reader spends its time, in one process and without a Spark."""
    options = {"store": path, "subscribe": name}
    kinds = {"binary": BinaryType(), "long": LongType()}
    fields = [field.split(" ") for field in SCHEMA.split(", ")]
    reader: Any = PenstockDataSource(options).reader(StructType([StructField(name, kinds[kind]) for name, kind in fields]))
    ranges = reader.partitions()

    def read() -> int:
        return sum(batch.num_rows for one in ranges for batch in reader.read(one))

    return f"The reader alone: {_profiled(read)}"


def profile_writing(path: str, rows: int) -> str:
    """Where a task that writes spends its time, in one process and without a Spark."""
    writer: Any = PenstockDataSource({"store": path, "topic": "written"}).writer(
        StructType([StructField("value", BinaryType())]), False
    )
    batches = [table(0, ROWS_A_BATCH).select(["value"])] * (rows // ROWS_A_BATCH)

    def write() -> int:
        writer.abort([writer.write(iter(batches))])
        return len(batches) * ROWS_A_BATCH

    return f"The staging of a task alone: {_profiled(write)}"


def _profiled(work: Callable[[], int]) -> str:
    """How quick *work* is, which returns its rows, and what takes the time."""
    began = time.process_time()
    rows = work()
    seconds = time.process_time() - began
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(work)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(15)
    return f"{rows / seconds:,.0f} rows/s of processor time.\n{text.getvalue()}"


# -- telling ------------------------------------------------------------------------------------------------------------


def show(title: str, results: Mapping[str, list[float]], unit: str, best: Callable[[list[float]], float]) -> None:
    print(f"\n{title}\n")
    for name, found in results.items():
        print(f"  {name:<30} {best(found):>14,.0f} {unit}   (from {min(found):,.0f} to {max(found):,.0f})")


def check(results: Mapping[str, list[float]]) -> list[tuple[str, bool]]:
    """What the targets say about a topic among what it is compared with."""
    best = {name: max(found) for name, found in results.items()}
    ours = best["topic"]
    parquet, prebuilt, tuples = (ours / best[name] for name in ("Parquet", "one prebuilt batch", "tuples"))
    ceiling = best["one prebuilt batch"] / best["tuples"]
    return [
        (
            f"{parquet:.2f} of Parquet, {prebuilt:.2f} of one prebuilt batch (target: {OF_PARQUET} or {OF_PREBUILT})",
            parquet >= OF_PARQUET or prebuilt >= OF_PREBUILT,
        ),
        (f"{tuples:.1f} times tuples (target: {OF_TUPLES:.0f}; one prebuilt batch: {ceiling:.1f})", tuples >= OF_TUPLES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little data, one round: whether it runs, not how fast")
    parser.add_argument("--rows", type=int, help="rows of the large topic")
    parser.add_argument("--single-rows", type=int, help="rows of the topic that is written one message at a time")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", help="a file for all rounds")
    chosen = parser.parse_args()
    given = {name: value for name in ("rows", "single_rows", "rounds") if (value := getattr(chosen, name)) is not None}
    sizes = (QUICK if chosen.quick else FULL)._replace(**given)
    folder = tempfile.mkdtemp(prefix="penstock-spark-", dir="/var/tmp")
    try:
        results = run(folder, sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"cores": os.cpu_count(), "sizes": sizes._asdict(), "results": results}, file, indent=1)


def run(folder: str, sizes: Sizes) -> dict[str, Any]:
    bench = Bench(folder, sizes)
    results: dict[str, Any] = {}
    missed = []
    for name, title, rows in (
        ("large", f"Reading {sizes.rows:,} rows", sizes.rows),
        ("single", f"Reading {sizes.single_rows:,} rows that were written one at a time, after merging", sizes.single_rows),
    ):
        fill(bench.path, name, rows, PARTITIONS) if name == "large" else fill_singly(bench.path, name, rows)
        results[name] = in_turn(bench.against(name, rows), sizes.rounds)
        show(title, results[name], "rows/s", max)
        for text, reached in check(results[name]):
            print(f"  {'reached' if reached else 'MISSED'}: {text}")
            if not reached:
                missed.append(name)
    if sizes.rows == sizes.single_rows:
        of_bulk = max(results["single"]["topic"]) / max(results["large"]["topic"])
        print(
            f"  {'reached' if of_bulk >= OF_BULK else 'MISSED'}: {of_bulk:.2f} of a topic written in bulk (target: {OF_BULK})"
        )
    results["partitions"] = in_turn(bench.scaling(), sizes.rounds)
    show("Reading topics of more and more partitions, two tasks at a time", results["partitions"], "rows/s", max)
    results["writing"] = in_turn(bench.writing(), sizes.rounds)
    show("Writing", results["writing"], "rows/s", max)
    written = max(results["writing"]["to a topic"])
    print(f"  {'reached' if written >= WRITTEN else 'MISSED'}: {written:,.0f} rows/s (target: {WRITTEN:,})")
    rates = {name: statistics.median(found) for name, found in results["writing"].items()}
    digests = 1 - rates["to a topic"] / rates["to a topic, without a digest"]
    print(f"  digests take {digests:.0%} of the time (medians of this run)")
    results["many_topics"] = bench.many_topics()
    show(
        f"Micro-batches of {sizes.topics * sizes.topic_rows:,} rows, from many topics and from one", results["many_topics"], "ms",
        statistics.median,
    )  # fmt: skip
    results["micro_batches"] = bench.micro_batches()
    show("Triggers of a stream: batches of one row, and nothing new", results["micro_batches"], "ms", statistics.median)
    bench.spark.stop()
    for name in dict.fromkeys(missed):
        print(f"\nWhy {name} missed its target:\n{profile(bench.path, name)}")
    if written < WRITTEN:
        print(f"\nWhy writing missed its target:\n{profile_writing(bench.path, sizes.rows // 4)}")
    return results


if __name__ == "__main__":
    main()
