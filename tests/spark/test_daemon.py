"""Spark hangs up on Python workers that have more rows than it wants: nothing is printed of that, and every error is."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.spark.daemon import quiet
from penstock.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORKER = """
import time

def main(infile, outfile):
    infile.read()  # until Spark has hung up
    {then}
    for _ in range(1000):
        outfile.write(bytes(65536))
        time.sleep(0.001)
"""
"""What a task does that has much to give, without a Spark."""

LIMITS = """
import sys
from penstock.spark.session import get_session
spark = get_session("limits", master="local[2]", settings={"spark.ui.enabled": "false", "spark.local.dir": sys.argv[2]})
for _ in range(2):
    rows = spark.read.format("penstock").options(store=sys.argv[1], subscribe="long").load().limit(3).collect()
    assert [bytes(row.value) for row in rows] == [b"x" * 1000] * 3
spark.stop()
"""


@pytest.fixture
def stderr_of(tmp_path: Path) -> Callable[[str, str], str]:
    """What a daemon prints whose worker does *then* when Spark has hung up."""

    def run(module: str, then: str) -> str:
        (tmp_path / "pyspark_for_test.py").write_text(WORKER.format(then=then))
        environment = {
            **os.environ, "PYTHONPATH": str(tmp_path), "PYTHON_WORKER_FACTORY_SECRET": "s", "SPARK_REUSE_WORKER": "1",
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        }  # fmt: skip
        daemon = subprocess.Popen(
            [sys.executable, "-m", module, "pyspark_for_test"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert daemon.stdin
        assert daemon.stdout
        [port] = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as spark, spark.makefile("rb") as answers:
            [worker] = struct.unpack("!i", answers.read(4))
            spark.sendall(struct.pack("!i", 1) + b"s")
            assert answers.read(6) == struct.pack("!i", 2) + b"ok"
            watch = os.pidfd_open(worker)
        try:
            # Not before the worker has ended: the daemon ends its workers with itself.
            assert select.select([watch], [], [], 60)[0]
        finally:
            os.close(watch)
        _, printed = daemon.communicate(timeout=60)  # it ends when its input does
        return printed.decode()

    return run


def test_a_worker_that_spark_hung_up_on_ends_in_silence(stderr_of: Callable[[str, str], str]) -> None:
    """Spark's own daemon prints a traceback of it: once it no longer does, ours has no use."""
    assert "BrokenPipeError" in stderr_of("pyspark.daemon", "pass")
    assert stderr_of("penstock.spark.daemon", "pass") == ""


def test_errors_of_a_worker_are_printed_all_the_same(stderr_of: Callable[[str, str], str]) -> None:
    assert "ValueError: mine" in stderr_of("penstock.spark.daemon", "raise ValueError('mine')")
    after = "try:\n        raise ValueError('mine')\n    except ValueError:\n        raise BrokenPipeError('of something else')"
    assert "ValueError: mine" in stderr_of("penstock.spark.daemon", after)


def test_a_broken_pipe_of_something_else_is_printed() -> None:
    """One that a task met while Spark was still there."""
    ours, theirs = socket.socketpair()

    def worker(_: socket.socket, __: bool) -> int:
        raise BrokenPipeError("of something else")

    with ours, theirs, pytest.raises(BrokenPipeError, match="of something else"):
        quiet(worker)(ours, False)


def test_the_daemon_loads_nothing_that_starts_threads() -> None:
    """It forks."""
    program = (
        "import sys, penstock.spark.daemon; "
        "print('numpy' in sys.modules, 'pyarrow' in sys.modules, len(__import__('os').listdir('/proc/self/task')))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "False", "1"]


@pytest.mark.timeout(600)
def test_a_limit_over_a_long_topic_prints_nothing(tmp_path: Path) -> None:
    """As a user runs it: each task has twenty megabytes, of which Spark wants a few rows."""
    path = str(tmp_path / "store")
    with Store.open(path) as store:
        store.create_topic("long", partitions=2, sync="os")
        for part in (0, 1):
            for _ in range(4):
                store.publish_many("long", [b"x" * 1000] * 5000, partition=part)
    done = subprocess.run([sys.executable, "-c", LIMITS, path, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
