"""
Invariants I39-I43 of the reliability page, each by a test that carries its number: small and direct, the parts called as Spark calls them.

The same promises are kept on real Spark in `test_streams.py`, and under kills in `test_kills.py`.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.errors import DataLost, TransactionChanged, TransactionFenced
from penstock.spark.options import WriteOptions
from penstock.spark.source import PenstockDataSource
from penstock.spark.staging import Staged, TaskStage
from penstock.spark.stream_writer import PenstockStreamWriter
from penstock.spark.writer import PenstockWriter
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    from pathlib import Path

ALL = ReadAllAvailable()
VALUE = StructType([StructField("value", BinaryType())])
QUERY = "spark-query.q"


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, stop)]


def publish(path: str, *values: bytes, topic: str = "t") -> None:
    with open_store(path) as store:
        store.publish_many(topic, values)


def stream(path: str, **options: str) -> Any:
    return PenstockDataSource({"store": path, "subscribe": "t", "startingOffsets": "earliest", **options}).streamReader(VALUE)


def read(reader: Any, start: Any, end: Any) -> list[bytes]:
    return [
        value for one in reader.partitions(start, end) for table in reader.read(one) for value in table["value"].to_pylist()
    ]


def sink(path: str, **options: str) -> PenstockStreamWriter:
    return PenstockStreamWriter(WriteOptions.parse({"store": path, "topic": "out", **options}, streaming=True), VALUE)


def staged(path: str, *values: bytes, producer: str = QUERY) -> Staged:
    options = WriteOptions.parse({"store": path, "topic": "out"}, streaming=True)
    tables = [pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])] if values else []
    return TaskStage(options, ("value",), producer).write(iter(tables))


def found(path: str) -> list[bytes | None]:
    with open_store(path) as store:
        return [message.value for message in store.read("out")]


def test_i39_a_range_is_the_same_rows_in_the_same_order_or_a_loss(path: str) -> None:
    """Whoever asks, however often, whatever was published since; when the messages are gone it is told, and never fewer rows."""
    with open_store(path) as store:
        store.create_topic("t", segment_bytes=1024 * 1024, retention_bytes=1_500_000)
    publish(path, *numbered(0, 100))
    reader = stream(path)
    start = reader.latestOffset(reader.latestOffset(reader.initialOffset(), ALL), ReadMaxRows(10))
    end = reader.latestOffset(start, ReadMaxRows(50))
    first = read(reader, start, end)
    assert first == numbered(10, 60)
    publish(path, *numbered(100, 120))
    assert read(reader, start, end) == read(stream(path, minPartitions="7"), start, end) == first
    for _ in range(4):
        publish(path, *[bytes(100_000)] * 10)
    with open_store(path) as store:
        store.retain("t")
    with pytest.raises(DataLost):
        read(stream(path), start, end)


def test_i40_no_cursor_is_kept_that_could_be_ahead_of_sparks_commits(path: str) -> None:
    """The checkpoint is the only one: neither planning nor reading nor `commit` leaves anything in the store."""
    publish(path, *numbered(0, 10))
    reader = stream(path)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    end = reader.latestOffset(start, ALL)
    assert read(reader, start, end) == numbered(0, 10)
    reader.commit(start)
    reader.stop()
    with open_store(path) as store:
        assert store.groups() == []
    again = stream(path)
    assert read(again, start, again.latestOffset(start, ALL)) == numbered(0, 10)


def test_i41_a_batch_is_written_once_by_whatever_attempts_in_whatever_order(path: str) -> None:
    """Attempts of tasks that lost or died, a commit that is repeated by the same driver or a zombie; visible all or nothing."""
    mine, lost, other = staged(path, b"1", b"2"), staged(path, b"1", b"2"), staged(path, b"3")
    assert found(path) == []
    sink(path).commit([mine, other], 1)
    assert found(path) == [b"1", b"2", b"3"]
    sink(path).commit([mine, other], 1)
    sink(path).commit([lost, staged(path, b"3")], 1)
    sink(path).abort([mine, other], 1)  # as Spark does after a commit whose answer was lost
    assert found(path) == [b"1", b"2", b"3"]


def test_i42_fencing_survives_the_store_and_a_lower_number_is_refused(path: str, tmp_path: Path) -> None:
    """Closed in order, or killed: a copy of the folder is what a killed owner leaves."""
    sink(path).commit([staged(path, b"7")], 7)
    store = open_store(path)
    killed = str(tmp_path / "killed")
    shutil.copytree(path, killed, ignore=shutil.ignore_patterns("*.socket"))
    store.close()
    for place in (path, killed):
        late = staged(place, b"6")
        with pytest.raises(TransactionFenced):
            sink(place).commit([late], 6)
        sink(place).commit([staged(place, b"8")], 8)
        assert found(place) == [b"7", b"8"]


def test_i43_a_query_that_begins_anew_under_its_old_id_is_refused(path: str) -> None:
    """An emptied checkpoint: its batches are counted from 0 again, and would be taken for repeats of those that were committed."""
    new = sink(path)
    new.commit([staged(path)], 0)
    new.commit([staged(path, b"1")], 1)
    new.commit([staged(path)], 2)
    with pytest.raises(TransactionFenced):
        sink(path).commit([staged(path)], 0)
    with pytest.raises(TransactionFenced):
        sink(path).commit([staged(path, b"2")], 0)
    sink(path).commit([staged(path, producer="spark-query.other")], 0)
    assert found(path) == [b"1"]


def test_i43_a_batch_with_other_rows_than_were_committed_is_refused(path: str) -> None:
    """Also where only batch 0 was committed, and where it has none now; the same rows in other tasks are a repetition."""
    sink(path).commit([staged(path, b"1", b"2"), staged(path, b"3")], 0)
    for rows in ((b"1", b"2", b"4"), (b"1", b"2"), (b"1", b"2", b"3", b"4")):
        with pytest.raises(TransactionChanged, match="a new checkpointLocation"):
            sink(path).commit([staged(path, *rows)], 0)
    sink(path).commit([staged(path, b"3", b"2"), staged(path, b"1")], 0)
    sink(path).commit([staged(path, b"4")], 1)
    with pytest.raises(TransactionChanged):
        sink(path).commit([staged(path)], 1)
    sink(path, failOnChangedBatch="false").commit([staged(path, b"5")], 1)
    sink(path, failOnChangedBatch="false").commit([staged(path)], 1)
    sink(path).commit([staged(path)], 2)
    assert found(path) == [b"1", b"2", b"3", b"4"]


def test_i43_how_far_a_batch_read_is_kept_beside_its_commit(path: str, tmp_path: Path) -> None:
    """From the checkpoint, a line for each source; nothing is kept where that cannot be read."""
    offsets = tmp_path / "a checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    ours = '{"_epoch": 1, "_ids": {"in": "00"}, "in": {"0": 5}}'
    offsets.joinpath("1").write_text("v1\n{}\n" + ours + "\n17")
    place = {"checkpointLocation": f"file://{tmp_path}/a%20checkpoint"}
    sink(path, **place).commit([staged(path, b"1")], 1)
    with open_store(path) as store:
        done = store.committed(QUERY, 1)
        assert done is not None
        assert done.note == '{"in": {"0": 5}}\n17'
    with pytest.raises(
        TransactionChanged, match=re.escape('batch 1, the last committed one, ended: {"in": {"0": 5}} and 17. ')
    ):
        sink(path, **place).commit([staged(path, b"2")], 1)
    for number, unreadable in enumerate(("file:///nowhere", "s3://bucket/x", str(tmp_path)), 2):
        sink(path, checkpointLocation=unreadable).commit([staged(path, b"2")], number)
        with open_store(path) as store:
            done = store.committed(QUERY, number)
            assert done is not None
            assert done.note is None


def test_i43_a_reused_application_id_is_detected(path: str) -> None:
    """A lower version, or the same one with other rows; the same rows again are a repeated run, and change nothing."""

    def write(version: int, *values: bytes) -> None:
        chosen = {"store": path, "topic": "out", "txnAppId": "job", "txnVersion": str(version)}
        writer = PenstockWriter(WriteOptions.parse(chosen, streaming=False), VALUE)
        writer.commit([staged(path, *values, producer="spark-txn.job")])

    write(5, b"a", b"b")
    write(5, b"a", b"b")
    write(5, b"b", b"a")
    for other in ((b"c",), (b"a", b"c"), ()):
        with pytest.raises(TransactionChanged, match="another job's"):
            write(5, *other)
    with pytest.raises(TransactionFenced):
        write(4, b"a", b"b")
    write(6, b"d")
    with pytest.raises(TransactionFenced):
        write(5, b"a", b"b")
    assert found(path) == [b"a", b"b", b"d"]


def test_i43_a_topic_that_was_made_again_or_lost_its_end_is_reported(path: str) -> None:
    """Though the offsets exist again: by the topic's id, and by the log epoch."""
    with open_store(path) as store:
        store.create_topic("t", sync="os")
        store.publish_many("t", numbered(0, 10))
        store._volume.checkpoint()
        shutil.copytree(path, path + ".before")
        store.publish_many("t", numbered(10, 20))
        reader = stream(path)
        start = reader.latestOffset(reader.initialOffset(), ALL)
        end = reader.latestOffset(start, ALL)
    shutil.rmtree(path)
    os.rename(path + ".before", path)
    publish(path, *numbered(100, 130))
    for ask in (lambda: stream(path).latestOffset(end, ALL), lambda: read(stream(path), start, end)):
        with pytest.raises(DataLost, match="lost when the store died"):
            ask()
    shutil.rmtree(path)
    publish(path, *numbered(0, 50))
    for ask in (lambda: stream(path).latestOffset(end, ALL), lambda: read(stream(path), start, end)):
        with pytest.raises(DataLost, match="made again"):
            ask()
