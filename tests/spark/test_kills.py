"""
Streams from topic to topic and from topic to Parquet while their driver, its Python processes and the server are killed again and again,
also in the middle of a commit: each message arrives once.

Everything runs as processes of their own: `penstock serve`, a driver (`pipeline.py`) with its Java and Python workers. The test publishes
meanwhile and kills, one after the other, at moments that its seed chooses; after each kill both streams must go on before the next one. In
the end it compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.cli.serving import Serving
from tests.spark.broken import BROKEN

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("spark")]

KILLS = ["driver", "driver during", "driver after"] + ["worker"] * 13 + ["server"] * 6
KILLS += ["server before"] * 2 + ["server during"] * 4 + ["server after"] * 2
"""What is killed; of those with two words, when in the commit of a batch."""
PATIENCE_S = 300.0


class Driver:
    """A driver process, in a session of its own with all that it starts (Spark's Python processes leave its process group)."""

    def __init__(self, store: str, folder: str, module: str = "tests.spark.pipeline") -> None:
        self.said = f"{folder}/driver.txt"
        with open(self.said, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, store, folder],
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """With Java and Python, at once."""
        for number in [self.process.pid, *self._session()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[int]:
        """The Python processes that Spark has started for it: those of tasks, of planners, of sources, and what they are forked from."""
        found = []
        for number in self._session():
            with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
                if b"\0-m\0pyspark." in file.read():
                    found.append(number)
        return found

    def _session(self) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if os.getsid(int(name)) == self.process.pid:
                    found.append(int(name))
        return sorted(found)


class Publisher(threading.Thread):
    """Publishes numbers from 0 on until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        with penstock.open(self._url, give_up=PATIENCE_S) as store:
            while not self._stopping.is_set():
                numbers = range(self.count, self.count + 50)
                store.publish_many("in", [b"%d" % n for n in numbers], keys=[b"%d" % (n % 13) for n in numbers])
                self.count += 50
                self._stopping.wait(0.1)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Killing:
    """The processes, and what is done to them."""

    def __init__(self, folder: str, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self._arguments = ("--data", f"{folder}/data", "--native", f"unix:{folder}/s", "--no-http")
        self.url = f"penstock+unix://{folder}/s"
        self.server = Serving(*self._arguments)
        self.driver: Driver | None = None

    def serve_again(self) -> None:
        self.server.process.kill()
        self.server.process.communicate()
        self.server = Serving(*self._arguments)

    def drive_again(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.driver = Driver(self.url, self.folder)

    def kill(self, what: str) -> None:
        """And start again what does not come back by itself."""
        assert self.driver is not None
        time.sleep(self.rng.uniform(0, 0.5))
        kind, _, when = what.partition(" ")
        if when:
            self._at_commit(kind, when)
        if kind == "worker":
            self._kill_worker()
        elif kind == "server":
            self.serve_again()
        else:
            self.drive_again()

    def _kill_worker(self) -> None:
        """One of those that are there; as a driver begins there may be none."""
        killed: list[int] = []

        def kill() -> bool:
            assert self.driver is not None
            if workers := self.driver.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(workers), signal.SIGKILL)
                    killed.append(1)
            return bool(killed)

        self.wait_for(kill, "there is no worker to kill")

    def _at_commit(self, kind: str, when: str) -> None:
        """Let the next commit do it, and wait until it has."""
        assert self.driver is not None
        process = self.driver.process if kind == "driver" else self.server.process
        order = {"pid": process.pid, "group": kind == "driver", "when": when, "delay_ms": self.rng.uniform(0, 15)}
        with open(f"{self.folder}/order.new", "w") as file:
            json.dump(order, file)
        os.rename(f"{self.folder}/order.new", f"{self.folder}/order.json")
        self.wait_for(lambda: process.poll() is not None, f"no commit killed the {kind}")

    def progress(self, store: Any) -> tuple[int, int]:
        """How far the two streams are."""
        archived = [int(name) for name in listed(f"{self.folder}/archive/_spark_metadata") if name.isdigit()]
        return sum(store.ends("out").values()), max(archived, default=-1)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if self.driver is not None and self.driver.process.poll() == BROKEN:
                self.drive_again()
            if time.monotonic() > end:
                assert self.driver is not None
                with open(self.driver.said) as file:
                    told = file.read()[-5_000:]
                raise AssertionError(
                    f"{what}; driver {self.driver.process.poll()}, server {self.server.process.poll()}; {told}"
                )
            time.sleep(0.02)

    def wait_for_progress(self, store: Any) -> None:
        """Both streams commit something new."""
        before = self.progress(store)
        self.wait_for(
            lambda: all(new > old for new, old in zip(self.progress(store), before, strict=True)), "it does not go on"
        )

    def wait_for_the_end(self) -> None:
        """The driver has done everything."""

        def has_ended() -> bool:
            assert self.driver is not None
            return self.driver.process.poll() not in (None, BROKEN)

        self.wait_for(has_ended, "it does not end")

    def end(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.server.process.kill()
        self.server.process.communicate()


def listed(folder: str) -> list[str]:
    """What is in it: `9.compact` and `10` are the names of batches."""
    try:
        return [name.removesuffix(".compact") for name in os.listdir(folder)]
    except FileNotFoundError:
        return []


def test_each_message_arrives_once_whatever_is_killed(tmp_path: Path, rng: random.Random) -> None:
    """Thirty kills while it works; then output equals input (I39 to I42)."""
    assert len(KILLS) == 30
    assert sum(one.startswith("driver") for one in KILLS) <= 8
    killing = Killing(str(tmp_path), rng)
    with penstock.open(killing.url, give_up=PATIENCE_S) as store:
        store.create_topic("in", partitions=2)
        store.create_topic("out", partitions=2)
        publisher = Publisher(killing.url)
        publisher.start()
        try:
            killing.drive_again()
            for number, what in enumerate(rng.sample(KILLS, len(KILLS))):
                began = time.monotonic()
                killing.wait_for_progress(store)
                went_on = time.monotonic()
                killing.kill(what)
                print(f"{number}: {went_on - began:.1f} s to go on, {time.monotonic() - went_on:.1f} s for {what}", flush=True)
            publisher.stop()
            (tmp_path / "finish").touch()
            killing.wait_for_the_end()
            arrived = Counter(int(message.value or b"-1") for message in store.read("out"))
            last: dict[tuple[int, bytes | None], int] = {}
            for message in store.read("out"):
                place = (message.partition, message.key)
                assert int(message.value or b"-1") > last.get(place, -1), "out of order"
                last[place] = int(message.value or b"-1")
            published = [(one.partition, one.offset, int(one.value or b"-1")) for one in store.read("in")]
        finally:
            publisher.stop()
            killing.end()
    assert sorted(one[2] for one in published) == list(range(publisher.count))
    assert arrived == Counter(2 * n for n in range(publisher.count))
    assert Counter(map(tuple, json.loads((tmp_path / "archived.json").read_text()))) == Counter(published)
