"""
A stream from topic to topic while its driver, its Python processes and the server are killed again and again: each message arrives once.

Everything runs as processes of their own: `penstock serve`, a driver (`pipeline.py`) with its Java and Python workers. The test publishes
meanwhile, kills at moments that its seed chooses, and in the end lets a driver finish and compares.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.cli.serving import Serving

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]

KILLS = ("worker", "server", "worker", "server", "driver", "server", "worker", "server", "worker", "server")


class Driver:
    """A driver process, in a process group of its own with all that it starts."""

    def __init__(self, store: str, checkpoint: str, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipeline", store, checkpoint, how],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("started"), line

    def kill(self) -> None:
        """With Java and Python, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def workers(self) -> list[int]:
        """The Python processes that Spark has started for it."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if os.getpgid(int(name)) == self.process.pid and int(name) != self.process.pid:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        if b"pyspark.daemon" in file.read():
                            found.append(int(name))
        return sorted(found)


def test_each_message_arrives_once_whatever_is_killed(tmp_path: Path, rng: random.Random) -> None:
    """Ten kills while it works; then output equals input (I39 to I42)."""
    data, socket, checkpoint = str(tmp_path / "data"), str(tmp_path / "s"), str(tmp_path / "checkpoint")
    arguments = ("--data", data, "--native", f"unix:{socket}", "--no-http")
    store_url = f"penstock+unix://{socket}"
    server = Serving(*arguments)
    stop = threading.Event()
    published: list[int] = []

    def publish() -> None:
        with penstock.open(store_url, give_up=120) as store:
            number = 0
            while not stop.is_set():
                numbers = range(number, number + 100)
                store.publish_many("in", [b"%d" % n for n in numbers], keys=[b"%d" % (n % 13) for n in numbers])
                number += 100
                published[:] = [number]
                stop.wait(0.05)

    with penstock.open(store_url) as store:
        store.create_topic("in", partitions=2)
        store.create_topic("out", partitions=2)
    publisher = threading.Thread(target=publish)
    publisher.start()
    driver = Driver(store_url, checkpoint, "run")
    try:
        for kind in KILLS:
            time.sleep(rng.uniform(0.5, 3.0))
            if kind == "driver":
                driver.kill()
                driver = Driver(store_url, checkpoint, "run")
            elif kind == "server":
                server.process.kill()
                server.process.communicate()
                server = Serving(*arguments)
            elif workers := driver.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
        stop.set()
        publisher.join()
        driver.kill()
        driver = Driver(store_url, checkpoint, "finish")
        driver.process.wait(timeout=300)
        with penstock.open(store_url) as store:
            arrived = Counter(int(message.value or b"-1") for message in store.read("out"))
            last: dict[tuple[int, bytes | None], int] = {}
            for message in store.read("out"):
                place = (message.partition, message.key)
                assert int(message.value or b"-1") > last.get(place, -1), "out of order"
                last[place] = int(message.value or b"-1")
    finally:
        stop.set()
        driver.kill()
        server.process.kill()
        server.process.communicate()
        publisher.join()
    assert arrived == Counter(range(published[0]))
