"""Options and columns on real Spark that say which messages a stream reads, and where and as what rows are written."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing.fake_clock import FakeClock
from tests.spark.conftest import open_store
from tests.spark.test_batches import load, save
from tests.spark.test_streams import run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MORNING = dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC)


def read_stream(spark: SparkSession, store: str, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").option("store", store).options(**options).load()


def arrived(path: str) -> list[tuple[str, list[tuple[str, bytes]]]]:
    with open_store(path) as store:
        return sorted(((message.value or b"").decode(), list(message.headers)) for message in store.read("out"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_us=int(MORNING.timestamp()) * 1_000_000)


def publish(path: str, clock: FakeClock, name: str) -> None:
    """Five messages with headers to each of three partitions: `a.1.4` is the last one of the second."""
    with open_store(path, clock=clock) as store:
        store.create_topic("in", partitions=3)
        for partition in range(3):
            values = [f"{name}.{partition}.{number}".encode() for number in range(5)]
            store.publish_many("in", values, headers=[{"of": value} for value in values], partition=partition)


def named(name: str, partition: int, *numbers: int, headers: bool = False) -> list[tuple[str, list[tuple[str, bytes]]]]:
    values = [f"{name}.{partition}.{number}" for number in numbers]
    return [(value, [("of", value.encode())] if headers else []) for value in values]


def test_a_stream_reads_assigned_partitions_from_given_offsets_with_headers(
    spark: SparkSession, path: str, tmp_path: Path, clock: FakeClock
) -> None:
    """-2 is the earliest, -1 the latest; when it goes on the checkpoint counts, and the partitions stay the chosen ones."""
    publish(path, clock, "a")
    offsets = json.dumps({"in": {"0": 3, "2": -2}})
    frame = read_stream(spark, path, assign='{"in": [0, 2]}', startingOffsets=offsets, includeHeaders="true")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    rows = frame.select("value", "headers")
    run(rows, path, str(tmp_path / "checkpoint"))
    expected = [*named("a", 0, 3, 4, headers=True), *named("a", 2, *range(5), headers=True)]
    assert arrived(path) == expected
    publish(path, clock, "b")
    run(rows, path, str(tmp_path / "checkpoint"))
    expected += [*named("b", 0, *range(5), headers=True), *named("b", 2, *range(5), headers=True)]
    assert arrived(path) == expected


def test_a_stream_begins_at_a_time(spark: SparkSession, path: str, tmp_path: Path, clock: FakeClock) -> None:
    """With the first message of each partition that is not older; without headers, which it was not asked for."""
    publish(path, clock, "a")
    clock.advance(3600)
    publish(path, clock, "b")
    middle = str(int(MORNING.timestamp() * 1000) + 1_800_000)
    frame = read_stream(spark, path, subscribe="in", startingTimestamp=middle)
    assert "headers" not in frame.columns
    run(frame.select("value"), path, str(tmp_path / "checkpoint"))
    assert arrived(path) == [one for partition in range(3) for one in named("b", partition, *range(5))]
    late = str(int(MORNING.timestamp() * 1000) + 7_200_000)
    with pytest.raises(Exception, match="has no message from then on"):
        run(read_stream(spark, path, subscribe="in", startingTimestamp=late).select("value"), path, str(tmp_path / "late"))


def test_the_option_topic_counts_more_than_the_column(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """As in the Kafka connector, in a batch and in a stream; what the column names is not made."""
    rows = spark.range(10).selectExpr("cast(id as string) as value", "case when id < 5 then 'other' end as topic")
    save(rows, path, topic="chosen")
    stream = read_stream(spark, path, subscribe="chosen", startingOffsets="earliest").selectExpr("value", "'other' as topic")
    run(stream, path, str(tmp_path / "checkpoint"))
    assert arrived(path) == [(str(number), []) for number in range(10)]
    with open_store(path) as store:
        assert sorted(one.name for one in store.topics()) == ["chosen", "out"]
        assert sum(store.ends("chosen").values()) == 10


def test_numbers_of_any_size_are_partitions_and_priorities(spark: SparkSession, path: str) -> None:
    """Null is no priority."""
    with open_store(path) as store:
        store.create_topic("t", partitions=3, priorities=True)
    rows: list[Any] = [(2, 1), (0, 2), (1, None), (2, 0)]
    kinds = ("tinyint", "smallint", "bigint")
    for kind in kinds:
        frame = (
            spark.createDataFrame(rows, f"partition {kind}, priority {kind}").selectExpr("*", f"'{kind}' as value").coalesce(1)
        )
        save(frame, path, topic="t")
    found = load(spark, path, includeDelivery="true").selectExpr("cast(value as string)", "partition", "priority").collect()
    expected = [(kind, partition, priority or 0) for kind in kinds for partition, priority in rows]
    assert sorted(map(tuple, found)) == sorted(expected)


def test_a_number_that_is_too_large_is_no_other_number(spark: SparkSession, path: str) -> None:
    """Such as the one that is left of it when its upper half is cut off."""
    with open_store(path) as store:
        store.create_topic("t", priorities=True)
    for column in ("partition", "priority"):
        frame = spark.range(1).selectExpr("'x' as value", f"{2**32}L as {column}")
        with pytest.raises(Exception, match=r"penstock\.errors\."):
            save(frame, path, topic="t")
    assert load(spark, path).count() == 0


def test_times_without_a_zone_are_utc(spark: SparkSession, path: str) -> None:
    """Also where the session has another zone: that is the one of times which have one."""
    there = spark.newSession()
    there.conf.set("spark.sql.session.timeZone", "America/New_York")
    for kind, time in (("timestamp_ntz", "timestamp"), ("timestamp", "timestamp_ntz")):
        columns = [
            f"{kind}'2026-01-31 08:00:00.123456' as timestamp", f"{kind}'2999-01-31 09:00:00' as expires_at",
            f"{time}'2998-07-31 10:00:00' as deliver_at",
        ]  # fmt: skip
        save(there.range(1).selectExpr(f"'{kind}' as value", *columns), path, topic="t")
    found = load(spark, path, includeDelivery="true").selectExpr(
        "cast(value as string)",
        *(f"cast({name} as string)" for name in ("timestamp", "expires_at", "deliver_at")),
        "timestampType",
    )
    assert sorted(map(tuple, found.collect())) == [
        ("timestamp", "2026-01-31 13:00:00.123456", "2999-01-31 14:00:00", "2998-07-31 10:00:00", 0),
        ("timestamp_ntz", "2026-01-31 08:00:00.123456", "2999-01-31 09:00:00", "2998-07-31 14:00:00", 0),
    ]
