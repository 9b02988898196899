"""A real cluster: a master and two workers on loopback, whose executors reach the store through a server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.spark.home import quick_home
from penstock.spark.java import ensure_java
from tests.cli.serving import serving
from tests.docs.pages import ROOT
from tests.server.running import write_tokens
from tests.server.test_listening import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]
PATIENCE_S = 240


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


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The master's address, and an environment for the driver."""
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
        yield master, environment
    finally:
        for daemon in reversed(daemons):  # a worker ends its executors
            daemon.process.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(10)
            daemon.process.kill()
            daemon.process.wait()


def test_executors_of_a_cluster_read_and_write_through_the_server(tmp_path: Path) -> None:
    """With TLS and a token: they know nothing but the URL, and work in folders of their own."""
    authority = Authority(tmp_path / "tls", "ours")
    certificate, key = authority.sign("server")
    tokens = write_tokens(tmp_path / "tokens.toml", {"spark": {"publish": ["*"], "read": ["*"], "admin": ["*"]}})
    arguments = ("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", "--tokens", tokens)
    with (
        serving(*arguments, "--tls-certificate", certificate, "--tls-key", key) as server,
        cluster(tmp_path) as (master, environment),
    ):
        address = server.address("native")
        with penstock.open(f"{address}?token=spark-token&ca={authority.certificate}") as store:
            store.create_topic("in", partitions=2)
            store.create_topic("out", partitions=2)
        options = {"store": address, "token": "spark-token", "tls.ca": authority.certificate}
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster", master, str(tmp_path / "checkpoint"), json.dumps(options)],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["values"] == list(range(1_000))
    # Each executor's Python works in the folder that its worker made for it.
    assert {os.path.relpath(one, tmp_path).split(os.sep)[0] for one in found["folders"]} == {"one", "two"}
