"""Spark Declarative Pipelines: the same source and sink work inside them, found by their name alone."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.spark.home import quick_home
from penstock.spark.java import ensure_java
from tests.spark.broken import patiently
from tests.spark.conftest import SETTINGS, open_store

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """\
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
place = {{"store": {store!r}}}


@dp.table
def orders():
    stream = spark.readStream.format("penstock").options(**place, subscribe="orders", startingOffsets="earliest").load()
    return stream.selectExpr("cast(key as string) as user", "cast(cast(value as string) as int) as price")


@dp.materialized_view
def all_of_them():
    return spark.read.format("penstock").options(**place, subscribe="orders").load().groupBy("partition").count()


dp.create_sink("dear", "penstock", {{**place, "topic": "dear-orders"}})


@dp.append_flow(target="dear")
def dear_orders():
    return spark.readStream.table("orders").where("price >= 50").selectExpr("user as key", "cast(price as string) as value")
"""


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_a_declarative_pipeline_reads_topics_and_writes_one(tmp_path: Path) -> None:
    """A streaming table and a materialized view of a topic, and a sink: run by Spark's own program, rows and all."""
    tries = itertools.count(1)
    patiently(lambda: _run_and_check(tmp_path / f"try-{next(tries)}"))


def _run_and_check(folder: Path) -> None:
    """The whole of it, in a new folder."""
    (folder / "transformations").mkdir(parents=True)
    path = str(folder / "store")
    with open_store(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", [b"%d" % n for n in range(100)], keys=[b"u%d" % (n % 5) for n in range(100)])
    (folder / "transformations" / "orders.py").write_text(TRANSFORMATIONS.format(store=path))
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ensure_java(environment)
    environment["SPARK_HOME"] = quick_home() or environment.get("SPARK_HOME", "")
    settings = {**SETTINGS, "spark.local.dir": str(folder / "local"), "spark.ui.showConsoleProgress": "false"}
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    program = os.path.join(os.path.dirname(sys.executable), "spark-pipelines")
    done = subprocess.run(
        [program, "run", "--remote", "local[2]", *options, "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    if done.returncode:
        # What the program said, so that a fault of Spark's own is known as such.
        raise RuntimeError(done.stdout + done.stderr)
    orders = pq.read_table(str(folder / "spark-warehouse" / "orders"))
    assert sorted(orders["price"].to_pylist()) == list(range(100))
    counts = pq.read_table(str(folder / "spark-warehouse" / "all_of_them"))
    assert sum(counts["count"].to_pylist()) == 100
    with penstock.open(path, read_only=True) as store:
        dear = [(message.key, int(message.value or b"")) for message in store.read("dear-orders")]
    assert sorted(dear, key=lambda one: one[1]) == [(b"u%d" % (n % 5), n) for n in range(50, 100)]
