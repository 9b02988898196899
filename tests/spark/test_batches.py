"""Batch reads and writes on real Spark."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.cli.serving import serving
from tests.server.running import write_tokens
from tests.server.test_listening import Authority
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array<struct<key: string, value: binary>>"


def load(spark: SparkSession, store: str, topic: str = "t", **options: str) -> DataFrame:
    return spark.read.format("penstock").option("store", store).option("subscribe", topic).options(**options).load()


def save(frame: DataFrame, store: str, **options: str) -> None:
    frame.write.format("penstock").option("store", store).options(**options).mode("append").save()


def failure(error: BaseException) -> str:
    """What a user sees."""
    return str(error)


def test_a_topic_is_a_table(spark: SparkSession, path: str) -> None:
    """Found by its name alone, with the columns and types of the Kafka connector; SQL works on it; a schema prunes it."""
    with open_store(path) as store:
        store.create_topic("t", partitions=2)
        store.publish_many("t", [b"%d" % n for n in range(100)], keys=[b"k%d" % (n % 3) for n in range(100)])
        store.publish("t", b"100", headers={"a": b"b"}, partition=1)
    frame = load(spark, path, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    frame.createOrReplaceTempView("orders")
    [found] = spark.sql(
        "select count(*) as rows, sum(cast(cast(value as string) as int)) as total, count(distinct topic, partition, offset) as places,"
        " count(headers) as headers, min(timestamp) > timestamp '2020-01-01' as recent from orders"
    ).collect()
    assert found.asDict() == {"rows": 101, "total": 5050, "places": 101, "headers": 1, "recent": True}
    pruned = (
        spark.read.format("penstock")
        .schema("value binary, partition int")
        .option("store", path)
        .option("subscribe", "t")
        .load()
    )
    assert pruned.columns == ["value", "partition"]
    assert pruned.where("partition = 1").count() + pruned.where("partition = 0").count() == 101
    assert (frame.rdd.getNumPartitions(), load(spark, path, minPartitions="7").rdd.getNumPartitions()) == (2, 7)


def test_bad_options_and_columns_are_told_before_a_job_starts(spark: SparkSession, path: str) -> None:
    """With the text of the error, at `load` or when the job is planned."""
    rows = spark.createDataFrame([(b"v",)], "value binary")
    cases: list[tuple[Any, str]] = [
        (lambda: load(spark, path, startingOffset="earliest"), "did you mean startingOffsets?"),
        (lambda: load(spark, path, startingOffsets="latest").count(), "a batch that begins at the end"),
        (lambda: load(spark, path).count(), "there is no topic 't'"),
        (lambda: save(rows, path), "topic: is missing"),
        (lambda: save(rows.selectExpr("1 as value"), path, topic="t"), "must be binary or string"),
        (lambda: rows.write.format("penstock").option("store", path).option("topic", "t").mode("overwrite").save(), "append"),
    ]
    stages = spark.sparkContext.statusTracker()
    before = stages.getJobIdsForGroup(None)
    for run, text in cases:
        with pytest.raises(Exception, match=r"(?s)penstock\.errors") as told:
            run()
        assert text in failure(told.value)
        assert "Traceback" not in failure(told.value)
        said = [line for line in failure(told.value).splitlines() if line.strip() and "SQLSTATE" not in line]
        assert len(said) == 1, said
    assert stages.getJobIdsForGroup(None) == before
    with open_store(path) as store:
        assert store.topics() == []


def test_rows_become_messages_all_at_once(spark: SparkSession, path: str) -> None:
    """With key, headers, time and partition; to the topics of a column, which are made where they are missing."""
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    with open_store(path) as store:
        store.create_topic("a", partitions=2)
    rows = [
        ("a", b"1", b"k", 1, moment, [("h", b"x")]),
        ("a", None, None, 0, None, None),
        ("b", b"3", None, None, None, []),
    ]
    frame = spark.createDataFrame(
        rows, f"topic string, value binary, key binary, partition int, timestamp timestamp, headers {HEADERS}"
    )
    save(frame.repartition(3), path)
    with open_store(path) as store:
        [first] = store.read("a", 1)
        assert (first.value, first.key, list(first.headers), first.timestamp) == (b"1", b"k", [("h", b"x")], moment)
        [second] = store.read("a", 0)
        assert second.value is None
        assert [one.value for one in store.read("b")] == [b"3"]
        assert store._staging._stages.all() == []


def test_a_write_that_runs_again_changes_nothing(spark: SparkSession, path: str) -> None:
    """Under the same txnAppId and txnVersion; an id that was used for something else is told, never taken for a repeat (I43)."""
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    for version in ("0", "1", "1"):
        save(rows, path, topic="t", txnAppId="job", txnVersion=version)
    with open_store(path) as store:
        assert sum(store.ends("t").values()) == 20
    with pytest.raises(Exception, match=r"(?s)TransactionFenced.*comes after 1 was committed"):
        save(rows, path, topic="t", txnAppId="job", txnVersion="0")
    others = [rows.limit(3), rows.limit(0), rows.selectExpr("reverse(value || 'x') as value"), rows.union(rows)]
    for other in others:
        with pytest.raises(Exception, match=r"(?s)TransactionChanged.*another job's"):
            save(other, path, topic="t", txnAppId="job", txnVersion="1")
        save(other, path, topic="t", txnAppId="job", txnVersion="1", failOnChangedBatch="false")
    save(rows.repartition(3).orderBy("value", ascending=False), path, topic="t", txnAppId="job", txnVersion="1")
    save(rows, path, topic="t")
    save(rows, path, topic="t")
    with open_store(path) as store:
        assert sum(store.ends("t").values()) == 40


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Not a single row of the tasks that succeeded."""
    done = str(tmp_path / "done")

    def values(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        import pyarrow as pa

        for batch in batches:
            if 3 in batch.column("id").to_pylist():
                while not os.path.exists(done):
                    time.sleep(0.05)
                raise ValueError("mine")
            yield pa.RecordBatch.from_pydict({"value": ["x"] * batch.num_rows})

    over = threading.Event()

    def wait_for_others() -> None:
        """Until Spark knows that they are done: what a task that is killed has staged only expires."""
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(0.05):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            if any(stage is not None and stage.numCompletedTasks == 3 for stage in stages):
                Path(done).touch()
                return

    rows = spark.range(0, 4, numPartitions=4).mapInArrow(values, "value string")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait_for_others)
        try:
            with pytest.raises(Exception, match="mine"):
                save(rows, path, topic="t")
        finally:
            over.set()
        waiting.result()
    with open_store(path) as store:
        assert sum(store.ends("t").values()) == 0
        assert store._staging._stages.all() == []
    assert load(spark, path).count() == 0


def test_messages_of_ten_megabytes(spark: SparkSession, path: str) -> None:
    """There and back."""
    with open_store(path) as store:
        store.create_topic("t", max_message_bytes=16 * 1024 * 1024)
    rows = spark.range(0, 3, numPartitions=1).selectExpr("repeat(cast(id as string), 10000000) as value")
    save(rows, path, topic="t")
    found = load(spark, path).selectExpr("length(value) as size", "cast(substring(value, 1, 1) as string) as id").collect()
    assert sorted((row.size, row.id) for row in found) == [(10_000_000, "0"), (10_000_000, "1"), (10_000_000, "2")]


def test_a_store_on_a_server(spark: SparkSession, tmp_path: Path) -> None:
    """Executors read and stage through it, with TLS and a token; without the token they are refused."""
    authority = Authority(tmp_path / "tls", "ours")
    certificate, key = authority.sign("server")
    tokens = write_tokens(tmp_path / "tokens.toml", {"spark": {"publish": ["*"], "read": ["*"], "admin": ["*"]}})
    arguments = ("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", "--tokens", tokens)
    with serving(*arguments, "--tls-certificate", certificate, "--tls-key", key) as server:
        address = server.address("native")
        secure = {"token": "spark-token", "tls.ca": authority.certificate}
        with penstock.open(f"{address}?token=spark-token&ca={authority.certificate}") as store:
            store.create_topic("t", partitions=2)
        rows = spark.range(0, 1_000, numPartitions=2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
        save(rows, address, topic="t", **secure)
        save(rows.selectExpr("value", "'made' as topic"), address, **secure)
        assert load(spark, address, "t,made", **secure).count() == 2_000
        with pytest.raises(Exception, match="Unauthenticated"):
            load(spark, address, "made", **{"tls.ca": authority.certificate}).count()


def test_a_write_beside_a_live_owner_goes_through_it(spark: SparkSession, path: str) -> None:
    """A program that has the store open, and shares it as ever, sees the rows; topics are made by it."""
    with penstock.open(path) as store:
        rows = spark.range(0, 100, numPartitions=2).selectExpr("cast(id as string) as value")
        save(rows, path, topic="t")
        save(rows.selectExpr("value", "'u' as topic"), path)
        assert sorted(int(one.value or b"") for one in store.read("t")) == list(range(100))
        assert len(list(store.read("u"))) == 100
        assert load(spark, path, "t,u").count() == 200
