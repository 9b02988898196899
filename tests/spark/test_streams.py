"""Streams from topic to topic on real Spark: each message once, whatever fails (I39 to I43)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import penstock
from penstock.errors import StoreLocked, TransactionChanged, TransactionFenced
from penstock.spark.options import WriteOptions
from penstock.spark.source import PenstockDataSource
from penstock.spark.staging import Staged, TaskStage
from penstock.spark.stream_writer import PenstockStreamWriter
from tests.cli.serving import Serving, serving
from tests.spark.broken import patiently
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def source(spark: SparkSession, store: str, **options: str) -> DataFrame:
    chosen = {"subscribe": "in", "startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").option("store", store).options(**chosen).load()


def run(frame: DataFrame, store: str, checkpoint: str, kind: str = "penstock") -> StreamingQuery:
    """Everything that is there now, into the topic `out`."""
    writer = (
        frame.writeStream.format(kind).option("store", store).option("topic", "out").option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )  # fmt: skip

    def work() -> StreamingQuery:
        query = writer.start()
        query.awaitTermination()
        return query

    return patiently(work)


def start(frame: DataFrame, store: str, checkpoint: str) -> StreamingQuery:
    """A query that goes on, and has handled what there is now."""
    writer = (
        frame.writeStream.format("penstock").option("store", store).option("topic", "out")
        .option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds")
    )  # fmt: skip

    def work() -> StreamingQuery:
        query = writer.start()
        query.processAllAvailable()
        return query

    return patiently(work)


def copy(spark: SparkSession, store: str, checkpoint: str, **options: str) -> StreamingQuery:
    return run(source(spark, store, **options).select("key", "value"), store, checkpoint)


def fill(path: str, start: int, stop: int, topic: str = "in") -> None:
    with open_store(path) as store:
        store.create_topic(topic, partitions=2)
        numbers = range(start, stop)
        store.publish_many(topic, [b"%d" % n for n in numbers], keys=[b"k%d" % (n % 10) for n in numbers])


def found(path: str, topic: str = "out") -> list[int]:
    with open_store(path) as store:
        return sorted(int(message.value or b"-1") for message in store.read(topic))


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, path: str, checkpoint: str) -> None:
    """In batches of the wanted size; the progress tells the lag."""
    fill(path, 0, 90)
    query = copy(spark, path, checkpoint, maxOffsetsPerTrigger="40")
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [40, 40, 10]
    assert '"in": {"0"' in str(query.recentProgress[-1].sources[0].latestOffset)
    fill(path, 90, 100)
    copy(spark, path, checkpoint)
    assert found(path) == list(range(100))


def test_bad_options_of_a_stream_are_told_before_a_job_starts(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """At `load`, at `start`, or by the query before its first batch, with the text of the error."""
    fill(path, 0, 1)
    rows = source(spark, path).select("value")

    def begin(frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = frame.writeStream.format("penstock").option("store", path).options(**options).outputMode(mode)
        writer.option("checkpointLocation", str(tmp_path / "bad")).trigger(availableNow=True).start().awaitTermination()

    reader = spark.readStream.format("penstock").schema("value string").option("store", path).option("subscribe", "in")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: source(spark, path, maxOffsetsPerTriger="5"), "did you mean maxOffsetsPerTrigger?"),
        (lambda: begin(source(spark, path, endingOffsets="latest").select("value"), topic="out"), "a stream has no end"),
        (lambda: begin(source(spark, path, subscribe="nothing").select("value"), topic="out"), "there is no topic 'nothing'"),
        (lambda: begin(reader.load(), topic="out"), "is binary, not string"),
        (lambda: begin(rows), "topic: is missing"),
        (lambda: begin(rows, topic="out", txnAppId="a", txnVersion="1"), "a stream numbers its batches itself"),
        (lambda: begin(rows.groupBy("value").count().select("value"), "complete", topic="out"), "messages are never replaced"),
    ]
    for work, text in cases:
        with pytest.raises(Exception, match=r"(?s)penstock\.errors") as told:
            patiently(work)
        assert text in str(told.value)
        assert "Traceback" not in str(told.value)
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
    with open_store(path) as store:
        assert [one.name for one in store.topics()] == ["in"]


def test_a_batch_that_is_replayed_changes_nothing(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Spark has forgotten that it committed the last batch, and runs it again (I41); no stage is left."""
    fill(path, 0, 50)
    copy(spark, path, checkpoint)
    commits = os.path.join(checkpoint, "commits")
    last = max(int(name) for name in os.listdir(commits) if name.isdigit())
    for name in (str(last), f".{last}.crc"):
        os.unlink(os.path.join(commits, name))
    fill(path, 50, 60)
    query = copy(spark, path, checkpoint)
    assert next(progress.batchId for progress in query.recentProgress if progress.numInputRows) == last
    assert found(path) == list(range(60))
    with open_store(path) as store:
        assert store._staging._stages.all() == []


def test_a_checkpoint_that_was_set_back_is_told(spark: SparkSession, path: str, checkpoint: str, tmp_path: Path) -> None:
    """And not taken for a replay, which would lose what it reads now (I42, I43)."""
    fill(path, 0, 30)
    copy(spark, path, checkpoint)
    old = str(tmp_path / "old")
    shutil.copytree(checkpoint, old)
    for start in (30, 60):
        fill(path, start, start + 30)
        copy(spark, path, checkpoint)
    with pytest.raises(Exception, match=r"(?s)TransactionChanged.*the last committed one, ended"):
        copy(spark, path, old)
    assert found(path) == list(range(90))


def test_a_killed_worker_leaves_no_trace(spark: SparkSession, path: str, checkpoint: str, tmp_path: Path) -> None:
    """The task runs again; what the dead attempt had staged is not published."""
    fill(path, 0, 2_000)
    marker = str(tmp_path / "killed")

    class Mortal(PenstockStreamWriter):
        def write(self, iterator: Any) -> Any:
            return super().write(self.die_once(iterator))

        @staticmethod
        def die_once(batches: Any) -> Any:
            for batch in batches:
                yield batch
                if not os.path.exists(marker):
                    with open(marker, "w"):
                        pass
                    os.kill(os.getpid(), signal.SIGKILL)

    class MortalSource(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "mortal"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Mortal(WriteOptions.parse(self.options, streaming=True), schema)

    spark.dataSource.register(MortalSource)
    run(source(spark, path).select("key", "value"), path, checkpoint, kind="mortal")
    assert os.path.exists(marker)
    assert found(path) == list(range(2_000))


def test_a_commit_that_took_effect_and_failed_is_not_repeated(
    spark: SparkSession, path: str, checkpoint: str, tmp_path: Path
) -> None:
    """Spark aborts, the query fails, and on its next run it commits the same batch again."""
    marker = str(tmp_path / "failed")

    class Unlucky(PenstockStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId and not os.path.exists(marker):
                with open(marker, "w"):
                    pass
                raise RuntimeError("the answer was lost")

    class UnluckySource(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "unlucky"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Unlucky(WriteOptions.parse(self.options, streaming=True), schema)

    spark.dataSource.register(UnluckySource)
    fill(path, 0, 40)
    frame = source(spark, path).select("value")
    with pytest.raises(Exception, match="the answer was lost"):
        run(frame, path, checkpoint, kind="unlucky")
    assert found(path) == list(range(40))
    run(frame, path, checkpoint, kind="unlucky")
    assert found(path) == list(range(40))


def test_a_stream_beside_a_live_owner(spark: SparkSession, path: str, checkpoint: str) -> None:
    """A program publishes and keeps the store open; the query reads its files and commits through it, also through one that follows it."""
    with penstock.open(path) as store:
        store.create_topic("in", partitions=2)
        store.publish_many("in", [b"%d" % n for n in range(50)], keys=[b"%d" % n for n in range(50)])
        query = start(source(spark, path).select("value"), path, checkpoint)
        assert sorted(int(one.value or b"") for one in store.read("out")) == list(range(50))
    try:
        with penstock.open(path) as store:
            store.publish_many("in", [b"%d" % n for n in range(50, 60)], keys=[b"%d" % n for n in range(10)])
            query.processAllAvailable()
            assert sorted(int(one.value or b"") for one in store.read("out")) == list(range(60))
    finally:
        query.stop()


def test_topics_that_appear_later_are_read(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Under a pattern, from their first message; by a query that runs."""
    fill(path, 0, 10, "in-1")
    frame = (
        spark.readStream.format("penstock").option("store", path).option("subscribePattern", "in-.*")
        .option("startingOffsets", "earliest").load().select("value")
    )  # fmt: skip
    query = start(frame, path, checkpoint)
    try:
        fill(path, 10, 30, "in-2")
        query.processAllAvailable()
    finally:
        query.stop()
    assert found(path) == list(range(30))


def test_a_stream_fails_on_a_gap_and_goes_on_if_told_so(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Retention removed what it had not read."""
    with open_store(path) as store:
        store.create_topic("in", segment_bytes=1024 * 1024, retention_bytes=1_500_000)
        store.publish_many("in", [b"0"])
    copy(spark, path, checkpoint)
    with open_store(path) as store:
        for _ in range(40):
            store.publish_many("in", [b"1" * 100_000])
        store.retain("in")
        first = store.stats().topics["in"].starts[0]
    with pytest.raises(Exception, match=rf"(?s)DataLost.*from offset 1 to {first} were removed"):
        copy(spark, path, checkpoint)
    copy(spark, path, checkpoint, failOnDataLoss="false")
    with open_store(path) as store:
        assert sum(store.ends("out").values()) == 1 + 41 - first


def test_a_stream_through_a_server_that_restarts(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """Its processes reconnect; the query does not notice."""
    data, address = str(tmp_path / "data"), f"penstock+unix://{tmp_path}/s"
    arguments = ("--data", data, "--native", f"unix:{tmp_path}/s", "--no-http")
    server = Serving(*arguments)
    try:
        with penstock.open(address) as store:
            store.create_topic("in", partitions=2)
            query = start(source(spark, address).select("value"), address, checkpoint)
            for at in range(0, 30, 10):
                store.publish_many("in", [b"%d" % n for n in range(at, at + 10)], keys=[b"%d" % n for n in range(10)])
                query.processAllAvailable()
                server.process.kill()
                server.process.communicate()
                server = Serving(*arguments)
            query.stop()
            assert sorted(int(message.value or b"-1") for message in store.read("out")) == list(range(30))
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("kind", ["folder", "server"])
def test_messages_of_ten_megabytes_in_a_stream(spark: SparkSession, path: str, checkpoint: str, kind: str) -> None:
    """In several batches; through a server too."""
    sizes = [10_000_000, 10_000_001, 0, 10_000_002]
    with contextlib.ExitStack() as stack:
        if kind == "server":
            path = stack.enter_context(serving("--data", path, "--native", "127.0.0.1:0", "--no-http")).address("native")
        with penstock.open(path) as store:
            for name in ("in", "out"):
                store.create_topic(name, max_message_bytes=16 * 1024 * 1024)
            for number, size in enumerate(sizes):
                store.publish("in", bytes([number]) * size)
        copy(spark, path, checkpoint, maxOffsetsPerTrigger="3")
        with penstock.open(path) as store:
            found = [message.value for message in store.read("out")]
    assert [len(value or b"") for value in found] == sizes
    assert all(value == bytes([number]) * sizes[number] for number, value in enumerate(found))


def test_a_store_that_its_owner_keeps_for_itself_is_told(path: str) -> None:
    """A commit waits for it as long as `retryTimeoutMs` says; reading goes on beside it."""
    options = WriteOptions.parse({"store": path, "topic": "out", "retryTimeoutMs": "100"}, streaming=True)
    with open_store(path) as store:
        store.create_topic("out")
        table = pa.RecordBatch.from_arrays([pa.array([b"1"], pa.binary())], ["value"])
        staged = TaskStage(options, ("value",), "spark-query.q").write(iter([table]))
        sink = PenstockStreamWriter(options, StructType([StructField("value", BinaryType())]))
        with pytest.raises(StoreLocked):
            sink.commit([staged], 1)
    sink.commit([staged], 1)
    assert found(path) == [1]


def test_zombies_are_fenced(path: str) -> None:
    """The sink of a driver that was replaced: its commit is refused, or is the one that counts, whichever comes first (I41, I42)."""
    fill(path, 0, 1)
    with open_store(path) as store:
        store.create_topic("out")
    options = WriteOptions.parse({"store": path, "topic": "out"}, streaming=True)
    old, new = (PenstockStreamWriter(options, StructType([StructField("value", BinaryType())])) for _ in range(2))

    def staged(text: bytes) -> Staged:
        table = pa.RecordBatch.from_arrays([pa.array([text], pa.binary())], ["value"])
        return TaskStage(options, ("value",), "spark-query.q").write(iter([table]))

    mine, theirs, later = staged(b"1"), staged(b"2"), staged(b"3")
    new.commit([mine, None], 7)
    old.commit([staged(b"1")], 7)
    with pytest.raises(TransactionChanged):
        old.commit([theirs], 7)
    old.abort([theirs], 7)
    new.commit([later], 8)
    with pytest.raises(TransactionChanged, match="where the last committed batch ended"):
        old.commit([staged(b"4")], 7)
    with pytest.raises(TransactionFenced):
        old.commit([staged(b"1")], 7)
    with pytest.raises(TransactionFenced):
        old.commit([staged(b"5")], 2)
    new.abort([later], 8)
    assert found(path) == [1, 3]
    with open_store(path) as store:
        assert len(store._staging._stages.all()) == 2  # the refused ones; they expire
