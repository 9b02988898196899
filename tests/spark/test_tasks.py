"""What tasks read: a range each, and many small ranges together; the same messages as ever, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import BadSetting, DataLost
from penstock.spark import planning
from penstock.spark.options import ReadOptions
from penstock.spark.planning import Range, Ranges
from penstock.spark.reader import PenstockReader
from penstock.spark.schema import read_schema
from penstock.spark.stream_reader import PenstockStreamReader
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    import random

SCHEMA = read_schema(include_headers=False, include_delivery=False)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"store": "/nowhere", "subscribe": "t", **given})


def ranges(*lengths: int) -> list[Range]:
    return [Range(f"t{number}", 0, 5, 5 + length, "00", 1) for number, length in enumerate(lengths)]


def flat(tasks: list[Any]) -> list[Range]:
    return [one for task in tasks for one in (task.ranges if isinstance(task, Ranges) else [task])]


def rows_of(task: Any) -> int:
    return sum(one.end - one.start for one in flat([task]))


def test_few_ranges_are_a_task_each() -> None:
    """As many as there may be, however small; and those with nothing are none."""
    wanted = ranges(*[1] * planning.TASKS_WISHED)
    assert planning.tasks([*wanted, *ranges(0)], options()) == wanted


def test_many_small_ranges_share_tasks_and_large_ones_have_their_own() -> None:
    """So that each task has about the same, and none that is worth a task waits for another."""
    wanted = ranges(*[50] * 1000)
    found = planning.tasks(wanted, options())
    assert len(found) <= 12
    assert flat(found) == wanted
    assert max(rows_of(task) for task in found) <= 2 * 50_000 / len(found)
    large = ranges(*[planning.TASK_OFFSETS] * 100)
    assert planning.tasks(large, options()) == large
    mixed = planning.tasks(ranges(*[10] * 100, 1_000_000), options())
    assert [rows_of(task) for task in mixed if isinstance(task, Range)] == [1_000_000]


def test_the_tasks_grow_with_the_work_and_not_with_the_topics(rng: random.Random) -> None:
    """However many ranges there are: one task for each `TASK_OFFSETS` of work, at most one more, and each message once."""
    for count, length in ((33, 1), (1_000, 1), (10_000, 5), (1_000, 5_000), (200, 2 * planning.TASK_OFFSETS)):
        wanted = ranges(*[rng.randint(1, length) for _ in range(count)])
        work = sum(one.end - one.start + planning.RANGE_OFFSETS for one in wanted)
        found = planning.tasks(wanted, options())
        assert len(found) <= -(-work // planning.TASK_OFFSETS) + 1
        assert sorted(flat(found), key=lambda one: int(one.topic[1:])) == wanted


def test_as_many_tasks_as_are_asked_for_are_not_joined_again(rng: random.Random) -> None:
    """By `minPartitions`, about: parts of a range, and small ranges beside a large one."""
    for least in (33, 40, 100, 1000):
        length = rng.randrange(10_000, 20_000)
        assert len(planning.tasks(ranges(length), options(minPartitions=str(least)))) == least
        uneven = ranges(1_000_000, *[10] * (least - 1))
        assert planning.tasks(uneven, options(minPartitions=str(least))) == uneven


def test_the_tasks_are_bounded_where_that_is_asked_for(rng: random.Random) -> None:
    """By `maxPartitions`, whatever the ranges are; none is lost, cut or moved."""
    for _ in range(200):
        wanted = ranges(*[rng.choice([0, 1, 7, 1000, 200_000]) for _ in range(rng.randrange(1, 60))])
        most = rng.randrange(1, 20)
        found = planning.tasks(wanted, options(maxPartitions=str(most)))
        assert len(found) <= most
        assert sorted(flat(found), key=lambda one: int(one.topic[1:])) == [one for one in wanted if one.start < one.end]
    assert len(planning.tasks(ranges(1000), options(minPartitions="4", maxPartitions="4"))) == 4
    with pytest.raises(BadSetting, match="must not be more than maxPartitions"):
        options(minPartitions="5", maxPartitions="4")


def test_a_task_of_many_topics_reads_each_message_once_in_few_batches(path: str) -> None:
    """Of batches and streams, with topic, partition and offset of each; what is lost in one of them is told."""
    topics = [f"ev.{number}" for number in range(50)]
    with open_store(path) as store:
        for name in topics:
            store.create_topic(name, partitions=2)
            for part in range(2):
                store.publish_many(name, [b"%s/%d/%d" % (name.encode(), part, at) for at in range(3)], partition=part)
    given = {"store": path, "subscribePattern": r"ev\..*", "startingOffsets": "earliest", "maxPartitions": "3"}
    batch = PenstockReader(ReadOptions.parse(given).for_batch(), SCHEMA)
    stream = PenstockStreamReader(given, SCHEMA)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    end = stream.latestOffset(start, ReadAllAvailable())
    for reader, tasks in ((batch, batch.partitions()), (stream, stream.partitions(start, end))):
        assert len(tasks) == 3
        tables = [list(reader.read(task)) for task in tasks]
        assert [len(found) for found in tables] == [1, 1, 1]
        rows = [row for found in tables for table in found for row in table.to_pylist()]
        assert sorted(row["value"] for row in rows) == sorted(
            b"%s/%d/%d" % (name.encode(), part, at) for name in topics for part in range(2) for at in range(3)
        )
        assert all(row["value"] == f"{row['topic']}/{row['partition']}/{row['offset']}".encode() for row in rows)
    with open_store(path) as store:
        store.delete_topic("ev.7")
    with pytest.raises(DataLost):
        [list(stream.read(task)) for task in tasks]
    with pytest.raises(DataLost):
        stream.partitions(start, end)
