"""The archive and the table of latest values while their driver is killed again and again, and retention removes what is archived."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.history import history
from penstock.spark.pipelines.latest import latest, read_latest
from tests.spark.broken import BROKEN

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 2
KEYS = 50


class Driver:
    """A driver process, in a process group of its own with all that it starts."""

    def __init__(self, store: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.keeping", store, folder],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def wait_for(self, *words: str) -> bool:
        """Read its lines until each of *words* has begun one; whether that was before its Spark broke."""
        assert self.process.stdout is not None
        missing = set(words)
        while missing:
            line = self.process.stdout.readline()
            if not line and self.process.wait() == BROKEN:
                return False
            assert line, self.lines
            self.lines.append(line)
            missing.discard(line.split()[0])
        return True

    def kill(self) -> None:
        """With Java and Python, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_killed_at_any_moment_they_have_each_message_once(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    """Then history is what was published, and the table what a loop over it gives."""
    path, folder = str(tmp_path / "store"), str(tmp_path)
    stop = threading.Event()
    published: list[tuple[int, int, bytes, bytes | None]] = []
    with penstock.open(path) as store:
        store.create_topic("in", partitions=2, segment_messages=200, retention_bytes=1)

    def publish() -> None:
        with penstock.open(path, give_up=120) as store:
            number = 0
            while not stop.is_set():
                values = [None if (number + n) % 7 == 0 else b"%d" % (number + n) for n in range(50)]
                keys = [b"user-%d" % ((number + n) * 31 % KEYS) for n in range(50)]
                for receipt, key, value in zip(store.publish_many("in", values, keys=keys), keys, values, strict=True):
                    published.append((receipt.partition, receipt.offset, key, value))
                number += 50
                if number % 500 == 0:
                    store.retain("in")
                stop.wait(0.1)

    archive(spark, path, "in", f"{folder}/archive")  # from the first message on: retention waits
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        kills = 0
        while kills < KILLS:
            driver = Driver(path, folder)
            try:
                if driver.wait_for("archive", "latest"):
                    time.sleep(rng.uniform(0.0, 1.5))
                    kills += 1
            finally:
                driver.kill()
    finally:
        stop.set()
        publisher.join()
    done = archive(spark, path, "in", f"{folder}/archive")
    latest(spark, path, "in", f"{folder}/table", archive=f"{folder}/archive")
    with penstock.open(path) as store:
        store.retain("in")
        assert min(store.stats().topics["in"].starts.values()) > 0, "retention was at work"
    assert done.total == len(published)
    found = history(spark, path, "in", f"{folder}/archive").select("partition", "offset", "key", "value").collect()
    rows = [(p, o, bytes(k), None if v is None else bytes(v)) for p, o, k, v in found]
    assert sorted(rows, key=lambda row: row[:2]) == sorted(published, key=lambda row: row[:2])
    model = {key: value for _, _, key, value in sorted(published, key=lambda row: row[:2])}
    table = [(bytes(row.key), bytes(row.value)) for row in read_latest(spark, f"{folder}/table").collect()]
    assert sorted(table) == sorted((key, value) for key, value in model.items() if value is not None)
