"""A checkpoint that is older than what its query has written: told, and nothing is lost or doubled (I41 to I43)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.cli.serving import serving
from tests.spark.conftest import open_store
from tests.spark.test_streams import copy, fill, run, source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CHANGED = r"(?s)TransactionChanged.*was committed before with other messages"


def newest(checkpoint: str) -> int:
    return max(int(name) for name in os.listdir(os.path.join(checkpoint, "commits")) if name.isdigit())


def forget(checkpoint: str, number: int) -> None:
    """What a power cut does that takes files which Spark has not synced."""
    for kind in ("offsets", "commits"):
        for name in (str(number), f".{number}.crc"):
            os.unlink(os.path.join(checkpoint, kind, name))


def found(place: str) -> list[int]:
    with penstock.open(place) as store:
        return sorted(int(message.value or b"-1") for message in store.read("out"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def offered(error: pytest.ExceptionInfo[Exception]) -> str:
    """The offsets that the error says to begin at."""
    said = re.search(r'the last committed one, ended: (\{"in": \{[^}]*\}\})', str(error.value))
    assert said is not None
    return said[1]


@pytest.mark.parametrize("through_server", [False, True])
def test_a_checkpoint_that_is_one_batch_old_is_told(
    spark: SparkSession, path: str, checkpoint: str, tmp_path: Path, *, through_server: bool
) -> None:
    """Its next batch has the number of one that was committed, and more rows; a new checkpoint goes on where that one ended."""
    old = str(tmp_path / "old")
    with contextlib.ExitStack() as stack:
        place = path
        fill(path, 0, 300)
        if through_server:
            place = stack.enter_context(serving("--data", path, "--native", "127.0.0.1:0", "--no-http")).address("native")

        def publish(start: int, stop: int) -> None:
            with penstock.open(place) as store:
                store.publish_many("in", [b"%d" % number for number in range(start, stop)])

        copy(spark, place, checkpoint)
        shutil.copytree(checkpoint, old)
        publish(300, 800)
        copy(spark, place, checkpoint)
        assert found(place) == list(range(800))
        publish(800, 1100)
        for _ in range(2):
            with pytest.raises(Exception, match=CHANGED + ".*500 then, 800 now") as told:
                copy(spark, place, old)
            assert found(place) == list(range(800))
        copy(spark, place, str(tmp_path / "new"), startingOffsets=offered(told))
        assert found(place) == list(range(1100))


def test_a_crash_that_takes_the_newest_files_of_a_checkpoint_is_told(
    spark: SparkSession, path: str, checkpoint: str, tmp_path: Path
) -> None:
    """As many rows as then, and others."""
    fill(path, 0, 1000)
    copy(spark, path, checkpoint, maxOffsetsPerTrigger="180")
    last = newest(checkpoint)
    for number in (last, last - 1):
        forget(checkpoint, number)
    with open_store(path) as store:
        written = sum(store.ends("out").values())
    assert written == 1000
    fill(path, 1000, 2000)  # other shares of the partitions in the same number of rows
    with open_store(path) as store:
        store.publish_many("in", [b"%d" % number for number in range(2000, 2500)], partition=0)
    with pytest.raises(Exception, match=CHANGED + ".*180 then, 180 now") as told:
        copy(spark, path, checkpoint, maxOffsetsPerTrigger="180")
    assert found(path) == list(range(1000))
    copy(spark, path, str(tmp_path / "new"), startingOffsets=offered(told))
    assert found(path) == list(range(2500))


def test_a_crash_that_takes_files_and_changes_nothing_is_a_repetition(spark: SparkSession, path: str, checkpoint: str) -> None:
    """The same rows come again, in other tasks and in another order."""
    fill(path, 0, 500)
    frame = source(spark, path).selectExpr("key", "value")
    run(frame, path, checkpoint)
    forget(checkpoint, newest(checkpoint))
    run(frame.repartition(3), path, checkpoint)
    assert found(path) == list(range(500))


def test_rows_that_differ_each_time_are_told_unless_what_was_committed_counts(
    spark: SparkSession, path: str, checkpoint: str
) -> None:
    """A batch that Spark runs again, of a query with a random column."""
    fill(path, 0, 50)
    frame = source(spark, path).selectExpr("uuid() as key", "value")
    run(frame, path, checkpoint)
    number = newest(checkpoint)
    for name in (str(number), f".{number}.crc"):
        os.unlink(os.path.join(checkpoint, "commits", name))
    with pytest.raises(Exception, match=CHANGED + ".*failOnChangedBatch=false"):
        run(frame, path, checkpoint)
    writer = (
        frame.writeStream.format("penstock").option("store", path).option("topic", "out").option("failOnChangedBatch", "false")
    )
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    assert found(path) == list(range(50))
