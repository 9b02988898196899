"""Pipelines that files declare, on real Spark: each row once, on a folder and on a server."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import BadPipeline, PipelineFailed, TopicNotFound
from penstock.spark.pipelines.declared.run import DeclaredPipeline
from tests.cli.conftest import SCRIPT, Commands
from tests.cli.serving import serving
from tests.spark.conftest import open_store
from tests.spark.interrupting import interrupted_at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import Progress

ORDERS = """\
[pipeline]
name = "orders"
store = "{store}"
checkpoint = "checkpoint"
[sources.orders]
kind = "topic"
topic = "orders"
max_per_batch = 60
[sources.users]
kind = "parquet"
path = "users"
[steps.priced]
from = "orders"
sql = "select cast(key as string) as user, cast(cast(value as string) as int) as price from orders"
[steps.named]
from = ["priced", "users"]
function = "declared_shop:with_names"
[steps.messages]
from = "named"
sql = "select user as key, to_json(struct(name, price)) as value from named"
[sinks.out]
kind = "topic"
from = "messages"
topic = "named-orders"
[sinks.lake]
kind = "parquet"
from = "named"
path = "lake"
partition_by = ["user"]
"""
SHOP = """\
from pyspark.sql.functions import udf


@udf("string", useArrow=False)
def shout(name):
    return name.upper()


def with_names(orders, users):
    return orders.where("price >= 50").join(users, "user").withColumn("name", shout("name"))
"""


def publish(path: str, numbers: range) -> None:
    with open_store(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", [b"%d" % number for number in numbers], keys=[b"u%d" % (number % 3) for number in numbers])


def written(store: str, topic: str) -> list[bytes]:
    with penstock.open(store) as opened:
        return sorted(message.value or b"" for message in opened.read(topic))


def declare(tmp_path: Path, text: str) -> DeclaredPipeline:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return DeclaredPipeline(str(file))


def test_rows_go_through_sql_and_python_into_a_topic_and_parquet_once(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Run again it writes what has come since: through SQL, a function with a UDF, and a table of users."""
    (tmp_path / "declared_shop.py").write_text(SHOP)
    (tmp_path / "users").mkdir()
    pq.write_table(pa.table({"user": ["u0", "u1", "u2"], "name": ["ada", "bob", "cy"]}), str(tmp_path / "users" / "1.parquet"))
    publish(path, range(100))
    pipeline = declare(tmp_path, ORDERS.format(store="store"))
    seen: list[Progress] = []
    done = pipeline.run(spark, seen.append)
    assert {name: progress.rows for name, progress in done.items()} == {"out": 100, "lake": 100}
    assert done["out"].batches == 2
    assert (seen[-1].rows, seen[-1].lag) == (200, 0)
    assert 0 < seen[-1].batch_seconds < 600
    assert seen[-1].rows_per_second > 0
    names = ["ADA", "BOB", "CY"]
    expected = sorted(json.dumps({"name": names[n % 3], "price": n}, separators=(",", ":")).encode() for n in range(50, 100))
    assert written(path, "named-orders") == expected
    publish(path, range(100, 110))
    assert {name: progress.rows for name, progress in pipeline.run(spark).items()} == {"out": 10, "lake": 10}
    assert len(written(path, "named-orders")) == 60
    lake = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.price for row in lake.select("price").collect()) == list(range(50, 110))
    assert {row.user for row in lake.select("user").distinct().collect()} == {"u0", "u1", "u2"}


COPY = """\
[pipeline]
name = "copy"
store = "{store}"
checkpoint = "checkpoint"
trigger = "{trigger}"
[sources.orders]
kind = "topic"
topic = "orders"
[sinks.out]
kind = "topic"
from = "orders"
topic = "copy"
"""


def test_it_works_on_a_server_and_goes_on_until_it_is_stopped(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Every 100 ms; the one who watches stops it by raising."""
    publish(path, range(10))
    text = '[sinks.out]\nkind = "topic"\nfrom = "other"\ntopic = "copy"\n'
    with serving("--data", path, "--native", "127.0.0.1:0", "--no-http") as server:
        url = server.address("native")
        step = '[steps.other]\nfrom = "orders"\nsql = "select key, value from orders"\n'
        pipeline = declare(tmp_path, COPY.format(store=url, trigger="100ms").partition("[sinks")[0] + step + text)

        class Enough(Exception):
            pass

        def watch(progress: Progress) -> None:
            if progress.rows >= 10:
                raise Enough

        with ThreadPoolExecutor(1) as thread, pytest.raises(Enough):  # as a program with other things to do runs it
            thread.submit(pipeline.run, spark, watch).result()
        assert not spark.streams.active
        assert written(url, "copy") == sorted(b"%d" % number for number in range(10))


@pytest.mark.usefixtures("spark")
def test_ctrl_c_ends_it_with_its_summary(path: str, tmp_path: Path) -> None:
    """A line for each sink, and the exit code says that it was interrupted."""
    publish(path, range(10))
    text = COPY.format(store="store", trigger="100ms").partition("[sinks")[0]
    declare(tmp_path, text + '[sinks.lake]\nkind = "parquet"\nfrom = "orders"\npath = "lake"\n')
    with interrupted_at(10):
        done = Commands()("pipeline", "run", tmp_path / "pipeline.toml", "--json")
    assert done.exit_code == 130, done.output
    assert json.loads(done.stdout) == {"sink": "lake", "batches": 1, "rows_read": 10}


@pytest.mark.long
def test_files_that_appear_are_a_stream_and_windows_are_aggregated(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Parquet to a topic, with a watermark, in one batch each time (`once`): windows are written when they can get no more rows."""
    (tmp_path / "arrivals").mkdir()

    def arrive(name: str, *seconds: int) -> None:
        times = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"at": times}), str(tmp_path / "arrivals" / name))

    arrive("1.parquet", 1, 2, 61)
    pipeline = declare(tmp_path, """\
[pipeline]
name = "windows"
checkpoint = "checkpoint"
trigger = "once"
[sources.arrivals]
kind = "parquet"
path = "arrivals"
stream = true
watermark = { column = "at", delay = "10 seconds" }
[steps.counted]
from = "arrivals"
sql = "select to_json(struct(unix_seconds(window.start) as start, count(*) as rows)) as value from arrivals group by window(at, '1 minute')"
[sinks.out]
kind = "topic"
store = "store"
from = "counted"
topic = "counts"
""")  # fmt: skip
    pipeline.run(spark)
    arrive("2.parquet", 62, 200)
    pipeline.run(spark)
    arrive("3.parquet", 300)
    pipeline.run(spark)
    assert written(path, "counts") == [b'{"start":0,"rows":2}', b'{"start":60,"rows":2}']


def test_what_spark_does_not_understand_is_told_before_anything_is_read(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """SQL with its line; what a function returns; columns; and a step sees only what it names."""
    publish(path, range(1))
    base = COPY.format(store="store", trigger="once").partition("[sinks")[0]
    sink = '[sinks.out]\nkind = "{kind}"\nfrom = "step"\n{more}\n'
    (tmp_path / "declared_wrong.py").write_text(
        "def nothing(orders):\n    return 1\n\ndef plain(orders):\n    return orders.sparkSession.range(1)\n"
    )
    topic, parquet = (
        sink.format(kind="topic", more='topic = "copy"'),
        sink.format(kind="parquet", more='path = "x"\npartition_by = ["day"]'),
    )
    cases = {
        '[steps.step]\nfrom = "orders"\nsql = "selekt 1"\n' + topic: r"line 11: \[steps\.step\] sql: .*PARSE_SYNTAX_ERROR",
        '[steps.step]\nfrom = "orders"\nsql = "select nothing from orders"\n' + topic: r"line 11: \[steps\.step\] sql: .*nothing",
        '[steps.a]\nfrom = "orders"\nsql = "select 1"\n[steps.step]\nfrom = "a"\nsql = "select * from orders"\n'
        + topic: r"line 14: .*TABLE_OR_VIEW_NOT_FOUND",
        '[steps.step]\nfrom = "orders"\nfunction = "declared_wrong:nothing"\n' + topic:
            r"function: it returned int and no DataFrame",
        '[steps.step]\nfrom = "orders"\nfunction = "declared_wrong:plain"\n' + topic:
            r"\[sinks\.out\] from: 'step' is no stream, but a plain DataFrame",
        '[steps.step]\nfrom = "orders"\nsql = "select value from orders"\n' + parquet:
            r"partition_by: there is no column day; there are value",
    }  # fmt: skip
    for text, expected in cases.items():
        with pytest.raises(BadPipeline, match=expected):
            declare(tmp_path, base + text).run(spark)
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(PipelineFailed, match="column extra: is no part of a message"):
        declare(tmp_path, base + '[steps.step]\nfrom = "orders"\nsql = "select 1 as extra, value from orders"\n' + topic).run(
            spark
        )
    assert not spark.streams.active
    with pytest.raises(TopicNotFound):
        declare(tmp_path, base.replace('topic = "orders"', 'topic = "nowhere"') + topic.replace("step", "orders")).run(spark)


def test_the_console_gets_a_table(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """By the command: as many rows as asked for, and none of a batch that has none; aggregates in full each time."""
    publish(path, range(9))
    text = COPY.format(store="store", trigger="available-now").partition("[sinks")[0]
    text += '[steps.counted]\nfrom = "orders"\n'
    text += 'sql = "select cast(key as string) as user, count(*) as n from orders group by key order by user"\n'
    text += '[sinks.screen]\nkind = "console"\nfrom = "counted"\nmode = "complete"\nrows = 2\n'
    declare(tmp_path, text)
    done = Commands()("pipeline", "run", tmp_path / "pipeline.toml")
    assert done.exit_code == 0, done.output
    out, _, summary = done.stdout.partition("sink:")
    assert summary.split() == ["screen", "batches:", "1", "rows", "read:", "9"]
    table = """\
screen, batch 1:
+------+---+
| user | n |
+------+---+
| u0   | 3 |
| u1   | 3 |
+------+---+
only the first 2 rows are shown
"""
    assert out == table


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which every start of a Java is noted in the file `java.log`, and fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "java").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/java.log\necho \'openjdk version "17.0.1"\' >&2\n')
    (folder / "java").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return {**kept, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_no_java_starts_for_a_bad_file_or_a_check(path: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Nor for a topic that is not there; one starts for a good file, so this would be seen."""

    def run(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pipeline.toml").write_text(text)
        command = [SCRIPT, "pipeline", "run", "pipeline.toml", *options]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)

    publish(path, range(1))
    good = COPY.format(store="store", trigger="once")
    bad = run(good.replace("from =", "form ="))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == (
        "note: pipeline.toml: line 11: [sinks.out] form: there is no such key; did you mean from?\n"
        "note: pipeline.toml: line 9: [sinks.out] from: is missing: the source or step whose rows it writes\n"
        "error: pipeline.toml has 2 problems; nothing was started [USAGE_ERROR]\n"
    )
    checked = run(good, "--check", "--json")
    assert json.loads(checked.stdout) == {"pipeline": "copy", "sources": 1, "steps": 0, "sinks": 1}
    missing = run(good.replace('topic = "orders"', 'topic = "nowhere"'))
    assert missing.returncode == 3
    assert "there is no topic 'nowhere'" in missing.stderr
    assert not (tmp_path / "java.log").exists()
    assert run(good).returncode != 0
    assert "-version" in (tmp_path / "java.log").read_text()
