"""The table of the latest values."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from penstock.cli.program import program
from penstock.errors import BadArgument, Conflict, DataLost, NotFound, TopicNotFound
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.latest import Latest, latest, read_latest
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Table = dict[tuple[int, bytes], tuple[int, bytes, list[tuple[str, bytes]]]]


def publish(path: str, rng: random.Random, count: int, model: Table) -> int:
    """Publish messages to `users`, and to a model of the table; returns how many had no key."""
    keyless = 0
    with open_store(path) as store:
        for _ in range(count):
            key = rng.choice([None, *[b"user-%d" % number for number in range(8)]])
            value = rng.choice([None, b"", rng.randbytes(5)])
            headers = [("from", b"web")] if rng.random() < 0.2 else []
            receipt = store.publish("users", value, key=key, headers=headers, partition=rng.choice([None, None, 0]))
            if key is None:
                keyless += 1
            elif value is None:
                model.pop((receipt.partition, key), None)
            else:
                model[receipt.partition, key] = (receipt.offset, value, headers)
    return keyless


def table(frame: DataFrame) -> Table:
    """The rows of a table; each key once."""
    found: Table = {}
    for row in frame.collect():
        place = (row.partition, bytes(row.key))
        assert place not in found
        found[place] = (row.offset, bytes(row.value), [(one.key, bytes(one.value)) for one in row.headers or ()])
    return found


def make(path: str, **settings: Any) -> None:
    with open_store(path) as store:
        store.create_topic("users", partitions=2, segment_messages=20, **settings)


def test_the_table_is_what_a_loop_over_the_messages_gives(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """From nothing, step by step, in batches, twice, and with an archive when the log has lost its beginning."""
    to, files = str(tmp_path / "table"), str(tmp_path / "archive")
    make(path, retention_bytes=1)
    model: Table = {}
    done = latest(spark, path, "users", to)
    assert (done.messages, done.keys, done.version) == (0, 0, 1)
    assert table(spark.read.parquet(f"{to}/current")) == {}
    keyless = publish(path, rng, 60, model)
    done = Latest(path, "users", to, batch_rows=45).run(spark)
    assert (done.messages, done.without_key, done.batches, done.keys) == (60, keyless, 2, len(model))
    assert table(read_latest(spark, to)) == model
    again = latest(spark, path, "users", to)
    assert (again.messages, again.version) == (0, done.version)
    publish(path, rng, 50, model)
    archive(spark, path, "users", files)
    with open_store(path) as store:
        assert store.retain("users").segments > 0
    with pytest.raises(DataLost, match="if an archive has them, give that one"):
        Latest(path, "users", to)
    publish(path, rng, 3, model)
    assert latest(spark, path, "users", to, archive=files).messages == 53
    assert table(read_latest(spark, to)) == model
    assert sorted(name[0] for name in os.listdir(to)) == ["_", "c", "v", "v"], "old versions are removed"


def test_what_a_run_did_not_finish_does_not_count(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before the version has its name, and before the link is moved."""
    to = str(tmp_path / "a table [1]: {a,b}*%20é")  # none of it is a pattern
    make(path)
    model: Table = {}
    publish(path, rng, 30, model)
    latest(spark, path, "users", to)
    before = dict(model)
    publish(path, rng, 30, model)

    class Cut(BaseException):
        pass

    def cut(*_: object) -> None:
        raise Cut

    for name in ("os.rename", "os.symlink"):
        with monkeypatch.context() as patch, pytest.raises(Cut):
            patch.setattr(name, cut)
            latest(spark, path, "users", to)
        assert table(read_latest(spark, to)) == before
    assert latest(spark, path, "users", to).messages == 30
    assert table(read_latest(spark, to)) == model


def test_a_wrong_call_is_told_before_spark_starts(path: str, tmp_path: Path, spark: SparkSession) -> None:
    """A folder that holds something else is not touched."""
    with pytest.raises(TopicNotFound):
        Latest(path, "users", str(tmp_path / "t"))
    make(path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    for to in ("", str(tmp_path / "other"), str(tmp_path / "other" / "file"), "s3://x"):
        with pytest.raises(BadArgument):
            Latest(path, "users", to)
    with pytest.raises(NotFound):
        Latest(path, "users", str(tmp_path / "t"), archive=str(tmp_path / "none"))
    with pytest.raises(NotFound):
        read_latest(spark, tmp_path)


def test_as_a_command(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """It uses the session that is there; a folder belongs to one topic."""
    make(path)
    model: Table = {}
    publish(path, rng, 20, model)
    to = str(tmp_path / "table")
    result = CliRunner().invoke(program, ["pipeline", "latest", path, "users", "--to", to, "--buckets", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["keys"] == len(model)
    with open_store(path) as store:
        store.create_topic("others")
    with pytest.raises(Conflict, match="give each its own folder"):
        Latest(path, "others", to)
