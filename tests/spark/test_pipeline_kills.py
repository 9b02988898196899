"""
A declared pipeline and the counting of traffic while their driver is killed: each message arrives once and is counted once.

The moments are those where two things have to agree and only one of them knows: the sink's topic has a batch and Spark's checkpoint does
not, the topic of the traffic has a window and the table does not, a batch has begun.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.spark.pipelines.declared.run import DeclaredPipeline
from penstock.spark.pipelines.traffic import Traffic
from penstock.testing.fake_clock import FakeClock
from tests.spark.broken import BROKEN, patiently
from tests.spark.test_kills import Driver

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
PIPELINE = """\
[pipeline]
name = "doubling"
store = "store"
checkpoint = "checkpoint"
trigger = "{trigger}"
[sources.numbers]
kind = "topic"
topic = "in"
max_per_batch = {most}
[steps.doubled]
from = "numbers"
sql = "select key, cast(2 * cast(cast(value as string) as int) as string) as value from numbers"
[sinks.out]
kind = "topic"
from = "doubled"
topic = "out"
[sinks.lake]
kind = "parquet"
from = "doubled"
path = "lake"
"""


def wait_until(condition: Callable[[], bool], driver: Driver) -> bool:
    """Look often: the moment is short. Returns whether it came before the driver's Spark broke."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if driver.process.poll() == BROKEN:
            return False
        if time.monotonic() > end or driver.process.poll() is not None:
            with open(driver.said) as file:
                raise AssertionError(f"it does not go on: {file.read()[-5_000:]}")
        time.sleep(0.004)
    return True


def numbers_in(folder: str) -> int:
    """The highest number that names a file there."""
    with contextlib.suppress(FileNotFoundError):
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    return -1


def test_killed_at_the_worst_moments_each_message_arrives_and_is_counted_once(
    spark: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    """Three kills; then another driver finishes both."""
    path, file, table = str(tmp_path / "store"), tmp_path / "pipeline.toml", str(tmp_path / "table")
    file.write_text(PIPELINE.format(trigger="100ms", most=100))
    stop, count = threading.Event(), 0
    published = tmp_path / "published"
    published.touch()

    def publish(store: penstock.Store) -> None:
        nonlocal count
        while not stop.wait(0.2):
            now_ns = time.time_ns()
            os.utime(published, ns=(now_ns, now_ns))
            values = [b"%d" % number for number in range(count, count + 20)]
            store.publish_many("in", values, keys=[b"%d" % (number % 7) for number in range(20)])
            count += 20

    with penstock.open(path) as store:
        for name in ("in", "out", "traffic"):
            store.create_topic(name, partitions=2)
        publisher = threading.Thread(target=publish, args=(store,))
        publisher.start()

        def grown(topic: str) -> Callable[[], bool]:
            before = sum(store.ends(topic).values())
            return lambda: sum(store.ends(topic).values()) > before

        def begun() -> Callable[[], bool]:
            offsets = str(tmp_path / "checkpoint" / "out" / "offsets")
            before = numbers_in(offsets)
            return lambda: numbers_in(offsets) > max(before, 0)

        moments = [lambda: grown("out"), lambda: grown("traffic"), begun]
        try:
            left = rng.sample(moments, len(moments))
            while left:
                driver = Driver(path, str(tmp_path), "tests.spark.endless")
                try:
                    if wait_until(left[0](), driver) and left.pop(0) is begun:
                        time.sleep(rng.uniform(0, 0.3))
                finally:
                    driver.kill()
        finally:
            stop.set()
            publisher.join()
        file.write_text(PIPELINE.format(trigger="available-now", most=1_000_000))
        patiently(lambda: DeclaredPipeline(str(file)).run(spark))
        clock = FakeClock(now_us=time.time_ns() // 1000 + 60_000_000)
        patiently(lambda: Traffic(path, ["in"], window_s=1, table=table, topic="traffic", clock=clock).run(spark))
        arrived = Counter(int(message.value or b"-1") for message in store.read("out"))
        windows = Counter(message.append_time_us // 1_000_000 for message in store.read("in"))
        told = [json.loads(message.value or b"") for message in store.read("traffic")]
    assert count > 0
    assert arrived == Counter(2 * number for number in range(count))
    lake = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert Counter(int(row.value) for row in lake) == arrived
    counted = [
        (int(row.window_start.replace(tzinfo=dt.UTC).timestamp()), row.messages) for row in spark.read.parquet(table).collect()
    ]
    assert sorted(counted) == sorted(windows.items())
    by_topic = [(int(dt.datetime.fromisoformat(one["window_start"]).timestamp()), one["messages"]) for one in told]
    assert sorted(by_topic) == sorted(windows.items())
