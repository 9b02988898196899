"""A real cluster: a master and two workers on loopback, whose executors reach the store through a server, and are killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

import penstock
from penstock.spark.home import quick_home
from penstock.spark.java import ensure_java
from tests.cli.serving import serving
from tests.docs.pages import ROOT
from tests.server.running import write_tokens
from tests.server.test_listening import Authority
from tests.spark.broken import BROKEN
from tests.spark.cluster import HOLDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]
PATIENCE_S = 240
DRIVER_S = 600


class Daemon:
    """A process of a cluster; what it logs is in a file."""

    def __init__(self, folder: Path, name: str, environment: dict[str, str], *arguments: str) -> None:
        self._log = folder / f"{name}.txt"
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [f"{environment['SPARK_HOME']}/bin/spark-class", *arguments],
                cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def says(self, pattern: str) -> str:
        """Wait for it."""
        end = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self._log.read_text())) is None:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)
        return found[0]

    def executor(self, folder: str) -> int:
        """Which of its child processes is the executor that works in *folder*."""
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                number = int(name)
                with open(f"/proc/{number}/stat") as stat, open(f"/proc/{number}/cmdline") as command:
                    is_child = int(stat.read().rpartition(")")[2].split()[1]) == self.process.pid
                    if (
                        is_child
                        and "CoarseGrainedExecutorBackend" in command.read()
                        and os.readlink(f"/proc/{number}/cwd") == folder
                    ):
                        return number
        raise AssertionError(f"no executor works in {folder}")


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, dict[str, str], dict[str, Daemon]]]:
    """The master's address, an environment for the driver, and the workers by the names of their folders."""
    import pyspark

    environment = {
        **os.environ,
        "SPARK_HOME": quick_home() or os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    ensure_java(environment)
    daemons = []
    try:
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        daemons.append(Daemon(folder, "master", environment, "org.apache.spark.deploy.master.Master", *listen))
        master = daemons[0].says(r"spark://127\.0\.0\.1:[1-9]\d*(?=\s)")
        for name in ("one", "two"):
            room = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / name))
            daemons.append(Daemon(folder, name, environment, "org.apache.spark.deploy.worker.Worker", *listen, *room, master))
        for daemon in daemons[1:]:
            daemon.says("Successfully registered with master")
        yield master, environment, dict(zip(("one", "two"), daemons[1:], strict=True))
    finally:
        for daemon in reversed(daemons):  # a worker ends its executors
            daemon.process.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(10)
            daemon.process.kill()
            daemon.process.wait()


class Place(NamedTuple):
    """A cluster and a server."""

    folder: Path
    master: str
    environment: dict[str, str]
    workers: dict[str, Daemon]
    url: str
    options: dict[str, str]

    def follow(self, work: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        """What a driver prints that comes to its end; one that met a fault of Spark's own is started again."""
        folder = self.folder / work
        folder.mkdir()
        given = (work, self.master, str(folder / "checkpoint"), json.dumps(self.options))
        end = time.monotonic() + DRIVER_S
        while True:
            with (folder / "told").open("w") as told, (folder / "logged").open("w") as logged:
                driver = subprocess.Popen(
                    [sys.executable, "-m", "tests.spark.cluster", *given], env=self.environment, stdout=told, stderr=logged
                )
            try:
                while driver.poll() is None and time.monotonic() < end:
                    meanwhile()
                    time.sleep(0.05)
            finally:
                driver.kill()
                driver.wait()
            if driver.returncode != BROKEN:
                assert driver.returncode == 0, (folder / "logged").read_text()
                return (folder / "told").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The server asks for TLS and a token."""
    folder = tmp_path_factory.mktemp("cluster")
    authority = Authority(folder / "tls", "ours")
    certificate, key = authority.sign("server")
    tokens = write_tokens(folder / "tokens.toml", {"spark": {"publish": ["*"], "read": ["*"], "admin": ["*"]}})
    arguments = ("--data", str(folder / "data"), "--native", "127.0.0.1:0", "--no-http", "--tokens", tokens)
    with (
        serving(*arguments, "--tls-certificate", certificate, "--tls-key", key) as server,
        cluster(folder) as (master, environment, workers),
    ):
        address = server.address("native")
        options = {"store": address, "token": "spark-token", "tls.ca": authority.certificate}
        url = f"{address}?token=spark-token&ca={authority.certificate}"
        yield Place(folder, master, environment, workers, url, options)


def test_executors_of_a_cluster_read_and_write_through_the_server(place: Place) -> None:
    """With TLS and a token: they know nothing but the URL, and work in folders of their own."""
    with penstock.open(place.url) as store:
        store.create_topic("in", partitions=2)
        store.create_topic("out", partitions=2)
    found = json.loads(place.follow("copy"))
    assert found["values"] == list(range(1_000))
    # Each executor's Python works in the folder that its worker made for it.
    assert {os.path.relpath(one, place.folder).split(os.sep)[0] for one in found["folders"]} == {"one", "two"}


def test_each_message_arrives_once_when_executors_are_killed_at_work(place: Place) -> None:
    """When some rows of a task are staged; and when all are, and Spark does not know. Another executor does the task again."""
    with penstock.open(place.url) as store:
        store.create_topic("held-in", partitions=2)
        store.create_topic("held-out", partitions=2)
        numbers = range(1_000)
        store.publish_many("held-in", [b"%d" % number for number in numbers], keys=[b"%d" % (number % 7) for number in numbers])
    killed: dict[int, int] = {}

    def kill() -> None:
        for number in HOLDS.keys() - killed.keys():
            with contextlib.suppress(FileNotFoundError):
                works_in = (place.folder / "hold" / f"held-{number}").read_text()
                worker = os.path.relpath(works_in, place.folder).split(os.sep)[0]
                killed[number] = place.workers[worker].executor(works_in)
                os.kill(killed[number], signal.SIGKILL)

    place.follow("hold", kill)
    assert killed.keys() == HOLDS.keys()
    assert len(set(killed.values())) == len(HOLDS)
    with penstock.open(place.url) as store:
        arrived = list(store.read("held-out"))
    assert Counter(int(message.value or b"-1") for message in arrived) == Counter(numbers)
    for key in range(7):
        of_key = [int(message.value or b"-1") for message in arrived if message.key == b"%d" % key]
        assert of_key == sorted(of_key), "out of order"
