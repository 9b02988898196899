"""The command that measures runs and prints every row; what it measures is not tested."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.measure import is_in_memory

ROWS = [
    "os-batch", "os-batch-encode", "os-single",
    "always-1", "always-8", "always-64", "always-512", "always-64-partitions",
    "threads-1", "threads-4", "threads-8", "threads-64",
    "read", "read-again", "read-unchecked",
    "find-offset-single", "find-offset-single-size", "find-offset-batch", "find-offset-batch-size",
    "find-time-single", "find-time-single-size", "find-time-batch", "find-time-batch-size",
    "find-first", "find-first-cached",
    "arrow-key-value", "arrow-all", "arrow-slice",
    "reopen-clean", "reopen-killed",
    "coalesce", "coalesce-read",
    "publish-os", "publish-os-best-peer",
    "os-sqlite3", "os-litequeue", "os-diskcache", "os-huey", "os-persist-sqlite", "os-persist-ack", "os-persist-file",
    "publish-many", "many-sqlite3", "many-litequeue", "many-diskcache",
    "producer-send", "producer-send-always",
    "durable-threads",
    "fsync-sqlite3", "fsync-litequeue", "fsync-diskcache", "fsync-huey", "fsync-persist-sqlite", "fsync-persist-ack",
    "fsync-persist-file",
    "durable-single", "durable-outstanding", "durable-vs-batches",
    "get-ack", "get-many-ack", "get-ack-best-peer", "get-many-best-peer",
    "ack-wait", "ack-wait-100",
    "get-sqlite3", "get-litequeue", "get-diskcache", "get-huey", "get-persist-sqlite", "get-persist-ack", "get-persist-file",
    "get-many-sqlite3", "get-many-litequeue", "get-many-diskcache", "get-many-persist-sqlite", "get-many-persist-file",
    "drain-backlog", "memory-pending", "memory-published", "memory-nacked",
    "wake-os", "wake-always",
    "transaction",
    "lanes-rebuild", "lanes-open", "lanes-memory", "lanes-memory-rss",
    "delays-memory", "delays-memory-traced", "delays-memory-rss", "delays-rebuild", "delays-fire", "delays-deliver",
    "delays-reads", "delays-looks",
    "compaction-memory", "compaction-time", "compaction-write", "compaction-read",
]  # fmt: skip
MEMORY = "/dev/shm"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--tiny", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def printed_rows(output):
    lines = output.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.startswith("row "))
    return [line.split()[0] for line in lines[heading + 1 : lines.index("", heading)]]


@pytest.mark.timeout(900)
def test_every_row_is_printed_and_no_file_is_left(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    result = tmp_path / "result.json"
    done = run("--directory", str(folder), "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert printed_rows(done.stdout) == ROWS
    assert " targets met, " in done.stdout
    stored = json.loads(result.read_text())
    assert [row["name"] for row in stored["rows"]] == ROWS
    assert all(row["verdict"] in ("pass", "miss", "info", "refused", "absent") for row in stored["rows"])
    assert not list(folder.iterdir())


def test_only_one_group_is_measured_when_asked(tmp_path):
    done = run("--directory", str(tmp_path), "--only", "arrow")
    assert done.returncode == 0, done.stderr
    assert printed_rows(done.stdout) == ["arrow-key-value", "arrow-all", "arrow-slice"]


@pytest.mark.skipif(not os.path.isdir(MEMORY) or not is_in_memory(MEMORY), reason="needs a tmpfs")
def test_rows_about_durability_are_refused_in_memory():
    done = run("--directory", MEMORY, "--only", "partitions")
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
    assert "0 targets met, 0 missed, 1 rows refused" in done.stdout
