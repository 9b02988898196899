"""The archive of a topic, and history over archive and log."""

from __future__ import annotations

import datetime as dt
import glob
import json
import os
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from penstock.cli import interrupts
from penstock.cli.pipeline import running
from penstock.cli.program import program
from penstock.errors import BadArgument, DataLost, NotFound, TopicNotFound, Unavailable, UsageError
from penstock.server.running import RunningServer
from penstock.spark.pipelines import archive_task
from penstock.spark.pipelines.archive import Archive, archive
from penstock.spark.pipelines.archive_folder import ArchiveFolder
from penstock.spark.pipelines.archive_task import write_range
from penstock.spark.pipelines.history import history, plan
from penstock.spark.pipelines.place import place_of
from penstock.spark.pipelines.tables import AS_NAMED
from penstock.spark.planning import Range
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipelines.progress import Progress

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...], int]


def fill(path: str, rng: random.Random, count: int, topic: str = "orders") -> None:
    """Publish some messages with keys, tombstones, headers and times on several days, also long ago."""
    with open_store(path) as store:
        if topic not in [one.name for one in store.topics()]:
            store.create_topic(topic, partitions=2, segment_messages=20)
        for _ in range(count):
            day = rng.choice([-3, 0, 0, 1, 20_000])
            store.publish(
                topic,
                rng.choice([None, b"", rng.randbytes(rng.randrange(20))]),
                key=rng.choice([None, b"a", b"b", b"c"]),
                headers=[("h", b"1"), ("h", b"2")] if rng.random() < 0.3 else None,
                timestamp=EPOCH + dt.timedelta(days=day, microseconds=rng.choice([0, 1, 86_399_999_999])),
                partition=rng.randrange(2),
            )


def published(path: str, topic: str = "orders", **where: Any) -> list[Row]:
    """What the log has, by the engine itself."""
    with open_store(path) as store:
        return sorted(
            (m.partition, m.offset, m.key, m.value, tuple(m.headers), (m.timestamp - EPOCH) // dt.timedelta(microseconds=1))
            for m in store.read(topic, **where)
        )


def rows(frame: DataFrame) -> list[Row]:
    """The same of a DataFrame; each row's date must be that of its time."""
    found = []
    for row in frame.selectExpr("*", "unix_micros(timestamp) as micros", "unix_date(date) as day").collect():
        assert row.day == row.micros // 86_400_000_000
        assert row.topic == "orders"
        headers = tuple((one.key, bytes(one.value)) for one in row.headers or ())
        key, value = (None if one is None else bytes(one) for one in (row.key, row.value))
        found.append((row.partition, row.offset, key, value, headers, row.micros))
    return sorted(found)


def test_history_is_archive_and_log_at_every_step(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """Messages come, are archived, and leave the log by retention, in any order: history always has each of them once."""
    to = str(tmp_path / "an archive [1]: {a,b}*%20é")  # none of it is a pattern
    expected: list[Row] = []
    for step in ("empty", "fill", "archive", "again", "fill", "retain", "archive", "retain"):
        if step == "fill":
            before = len(expected)
            fill(path, rng, rng.randrange(30, 60))
            tail = published(path)
            known = {row[:2] for row in expected}
            expected = sorted(expected + [row for row in tail if row[:2] not in known])
            assert len(expected) > before
        elif step == "retain":
            with open_store(path) as store:
                store.retain("orders")
                starts = store.stats().topics["orders"].starts
        else:
            if step == "empty":
                with open_store(path) as store:
                    store.create_topic("orders", partitions=2, segment_messages=20, retention_bytes=1)
            done = archive(spark, path, "orders", to)
            assert done.messages == (len(expected) - done.total + done.messages)
            assert done.total == len(expected)
            assert done.held
            assert (done.messages == 0) == (step in ("empty", "again"))
        assert rows(history(spark, path, "orders", to)) == expected
    assert min(starts.values()) > 0, "retention removed what was archived"
    archived = spark.read.options(**AS_NAMED).parquet(to).select("partition", "offset")
    assert sorted(map(tuple, archived.collect())) == [row[:2] for row in expected], "also for who reads the files alone"


def test_retention_waits_for_the_archive(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """Another group is far ahead, and all messages are over the limit of bytes: the archive's group keeps them."""
    to = str(tmp_path / "archive")
    with open_store(path) as store:
        store.create_topic("orders", partitions=2, segment_messages=20, retention_bytes=1)
        store.subscribe("orders", "billing").close()
    archive(spark, path, "orders", to)
    fill(path, rng, 100)
    expected = published(path)
    with open_store(path) as store:
        store.seek("orders", "billing", "latest")
        assert store.retain("orders").segments == 0
    done = archive(spark, path, "orders", to)
    with open_store(path) as store:
        assert store.retain("orders").segments > 0
        assert [one.name for one in store.groups("orders")] == ["billing", done.group] or done.group
    assert rows(history(spark, path, "orders", to)) == expected


def test_a_gap_between_archive_and_log_is_an_error(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """As when the group that holds retention was deleted."""
    to = str(tmp_path / "archive")
    with open_store(path) as store:
        store.create_topic("orders", partitions=2, segment_messages=20, retention_bytes=1)
    fill(path, rng, 50)
    group = archive(spark, path, "orders", to).group
    fill(path, rng, 100)
    made_before = history(spark, path, "orders", to)
    with open_store(path) as store:
        store.delete_group("orders", group)
        assert store.retain("orders").segments > 0
    with pytest.raises(PySparkException, match=r"were removed by retention; call history\(\) again") as told:
        made_before.count()
    assert "failOnDataLoss" not in str(told.value)
    for attempt in (lambda: history(spark, path, "orders", to), lambda: Archive(path, "orders", to)):
        with pytest.raises(DataLost, match=r"were removed by retention; .*another folder"):
            attempt()


def test_a_file_that_is_missing_in_the_archive_is_an_error(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """Whichever it is."""
    to = tmp_path / "archive"
    fill(path, rng, 40)
    archive(spark, path, "orders", str(to))
    fill(path, rng, 10)
    archive(spark, path, "orders", str(to))
    files = sorted(glob.glob(str(to / "topic=orders" / "*" / "*.parquet")))
    assert len(files) >= 6
    for file in rng.sample(files, 3):
        os.rename(file, tmp_path / "away")
        with pytest.raises(DataLost, match=r"lacks files.*; bring them back"):
            plan(path, "orders", str(to))
        os.rename(tmp_path / "away", file)
    plan(path, "orders", str(to))


def test_a_topic_that_was_made_again_does_not_fit_its_old_archive(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """The offsets are those of other messages."""
    to = str(tmp_path / "archive")
    fill(path, rng, 10)
    archive(spark, path, "orders", to)
    shutil.rmtree(path)
    fill(path, rng, 20)
    for attempt in (lambda: plan(path, "orders", to), lambda: Archive(path, "orders", to)):
        with pytest.raises(DataLost, match="made again"):
            attempt()


def commit_all(path: str, folder: ArchiveFolder) -> None:
    """What a run of the archive does in one batch, without Spark around its task."""
    with folder.lock():
        state = folder.begin()
        found = plan(path, "orders")
        reached = {0: 0, 1: 0} if state.offsets is None else state.offsets.topics["orders"]
        now = found.now
        ranges = [Range("orders", p, reached[p], now.ends[p], now.topic_id.hex(), now.log_epoch) for p in (0, 1)]
        ranges = [one for one in ranges if one.start < one.end]
        if ranges:
            stage = folder.stage()
            written = [file for one in ranges for file in write_range(place_of(path), stage, one)]
            folder.commit(state, written, found.offsets)


def archived(folder: ArchiveFolder) -> list[tuple[int, int]]:
    """(partition, offset) of all rows in the archive's files, by another reader than Spark."""
    table = pq.read_table(folder.files, columns=["partition", "offset"], partitioning=None)
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_a_commit_that_is_cut_short_is_finished_by_the_next_run(path: str, tmp_path: Path, rng: random.Random) -> None:
    """Before each step of it: pending.json, each rename, state.json. What counts then is either the old or the new state."""
    fill(path, rng, 20)
    before = str(tmp_path / "before")
    commit_all(path, ArchiveFolder(before, "orders"))
    fill(path, rng, 30)
    for at in range(100):
        folder = ArchiveFolder(shutil.copytree(before, tmp_path / f"archive{at}"), "orders")
        steps = 0

        class Cut(BaseException):
            pass

        def cutting(real: Any, cut: type[Cut] = Cut, at: int = at) -> Any:
            def step(source: str, target: str) -> None:
                nonlocal steps
                if steps == at:
                    raise cut
                steps += 1
                real(source, target)

            return step

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.replace", cutting(os.replace))
            patch.setattr("os.rename", cutting(os.rename))
            try:
                commit_all(path, folder)
            except Cut:
                pass
            else:
                break
        assert sum(plan(path, "orders", folder.path).border.values()) == 20, "the log still has what is not committed"
        fill(path, rng, 2)  # so that the next run would read other ranges
        expected = [row[:2] for row in published(path)]
        found = plan(path, "orders", folder.path)
        assert found.messages == len(expected)
        commit_all(path, folder)
        state = folder.state()
        assert state is not None
        assert state.rows == len(expected)
        assert archived(folder) == expected
        assert not glob.glob(f"{folder.path}/_penstock/orders/staged/*"), "nothing is left behind"
        assert sum(plan(path, "orders", folder.path).border.values()) == len(expected)
    assert at >= 6


def test_batches_are_of_the_wanted_size_and_told(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """Each is reported with what is left."""
    fill(path, rng, 50)
    seen: list[Progress] = []
    done = Archive(path, "orders", str(tmp_path / "archive"), batch_rows=20).run(spark, seen.append)
    assert done.batches == 3
    assert [(one.rows, one.lag) for one in seen[:3]] == [(20, 30), (40, 10), (50, 0)]


def test_a_continuous_archive_goes_on_until_it_is_told_to_end(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """It takes in what comes while it runs."""
    to = str(tmp_path / "archive")
    fill(path, rng, 10)
    later = [5]  # it tells how far it is more than once, where a batch takes no longer than the pause between two of them

    def report(progress: Progress) -> bool:
        if progress.rows == 10 and later:
            fill(path, rng, later.pop())
        return progress.rows == 15

    done = archive(spark, path, "orders", to, every_s=0.05, report=report)
    assert (done.messages, done.batches) == (15, 2)
    state = ArchiveFolder(to, "orders").state()
    assert state is not None
    assert state.rows == 15


def test_what_is_wrong_is_said_before_spark_starts(path: str, tmp_path: Path) -> None:
    """There is no session in these calls."""
    with pytest.raises(TopicNotFound):
        Archive(path, "nothing", str(tmp_path / "a"))
    with open_store(path) as store:
        store.create_topic("orders")
    (tmp_path / "file").write_text("")
    for to in ("", "s3://bucket/x", str(tmp_path / "file")):
        with pytest.raises(BadArgument):
            Archive(path, "orders", to)
    with pytest.raises(NotFound, match="holds no archive"):
        plan(path, "orders", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="NAME=VALUE"):
        running.check_spark(("spark.x",))
    folder = ArchiveFolder(str(tmp_path / "a"), "orders")
    with folder.lock(), pytest.raises(Unavailable, match="another process"), folder.lock():
        pass


def test_through_a_server_and_as_a_command(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """The server owns the store; the command prints a summary."""
    fill(path, rng, 30)
    expected = published(path)
    to = str(tmp_path / "archive")
    with open_store(path) as store:
        server = RunningServer(store)
        result = CliRunner().invoke(program, ["pipeline", "archive", server.address, "orders", "--to", to, "--json"])
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert (summary["messages"], summary["total"], summary["held"]) == (30, 30, True)
        assert rows(history(spark, server.address, "orders", to)) == expected
        [group] = store.groups("orders")
        assert group.name == summary["group"]
        result = CliRunner().invoke(program, ["pipeline", "archive", server.address, "orders", "--to", to])
        assert "messages:" in result.stdout
        server.close()


def test_ctrl_c_ends_a_continuous_archive_with_its_summary(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """In order, between two batches; and the exit code says that it was interrupted."""
    fill(path, rng, 10)
    folder = ArchiveFolder(tmp_path / "archive", "orders")

    def interrupt() -> None:
        while (state := folder.state()) is None or not state.rows:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=interrupt)
    interrupts.install()
    try:
        thread.start()
        command = ["pipeline", "archive", path, "orders", "--to", folder.path, "--continuous", "--every", "100ms", "--json"]
        result = CliRunner().invoke(program, command)
        thread.join()
    finally:
        interrupts.forget()
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert result.exit_code == 130
    assert json.loads(result.stdout)["messages"] == 10


def test_a_day_has_a_folder_if_it_has_a_name() -> None:
    """Publishers' times may be anything."""
    assert archive_task.date_text(0) == "1970-01-01"
    assert archive_task.date_text(-719_162) == "0001-01-01"
    assert archive_task.date_text(-719_163) == archive_task.date_text(10**9) == "__HIVE_DEFAULT_PARTITION__"


def test_what_is_archived_and_removed_while_history_is_planned_is_found_in_the_archive(
    path: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive's state is read, and grows old while its files are listed."""
    with open_store(path) as store:
        store.create_topic("orders", partitions=2, segment_messages=20, retention_bytes=1)
        store.subscribe("orders", "holds").close()

    def remove() -> None:
        with open_store(path) as store:
            store.seek("orders", "holds", "latest")
            assert store.retain("orders").segments > 0

    fill(path, rng, 50)
    folder = ArchiveFolder(tmp_path / "archive", "orders")
    commit_all(path, folder)
    for _ in range(2):
        fill(path, rng, 50)
    expected = len(published(path))
    listed = ArchiveFolder.archived

    def go_on(*arguments: Any) -> Any:
        monkeypatch.undo()
        commit_all(path, folder)
        remove()
        return listed(*arguments)

    monkeypatch.setattr(ArchiveFolder, "archived", go_on)
    found = plan(path, "orders", folder.path)
    assert found.messages == expected
    fill(path, rng, 100)
    remove()
    with pytest.raises(DataLost, match="removed by retention"):
        plan(path, "orders", folder.path)
