"""`penstock bench`: figures of a folder and of a server, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.cli.bench import command, place, rows
from penstock.cli.bench.rows import percentile
from penstock.errors import StorageFull
from tests.cli.conftest import SCRIPT, Commands
from tests.cli.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--seconds", "50ms")
NAMES = [
    "publish one by one", "publish by 16 threads", "publish in batches of 1,000", "consume and ack in lots of 500",
    "push latency at 200/s",
]  # fmt: skip


def check_figures(found: list[dict[str, Any]]) -> None:
    for row in found:
        has_rate = not row["name"].startswith("push latency")
        assert (row["per_second"] is not None) == has_rate
        assert row["per_second"] is None or row["per_second"] > 0
        if row["p50_us"] is not None:
            assert 0 < row["p50_us"] <= row["p99_us"]


def test_a_folder_is_measured_and_left_as_it_was(run: Commands, tmp_path: Path) -> None:
    (found,) = run.json("bench", tmp_path, *QUICK)
    assert [row["name"] for row in found["rows"]] == ["bare write and fdatasync", *NAMES]
    check_figures(found["rows"])
    assert found["rows"][1]["of_disk"] > 0
    assert found["message_bytes"] == 100
    assert found["file_system"]
    assert os.listdir(tmp_path) == []


def test_it_says_first_what_it_writes_where(run: Commands, tmp_path: Path) -> None:
    result = run("bench", tmp_path, *QUICK, "--bytes", "1KiB")
    assert result.stderr.splitlines()[0] == (f"note: writes a store into a new folder in {tmp_path}, and removes it afterwards")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["ROW", "PER", "SECOND", "P50", "P99", "OF", "THE", "BARE", "DISK"]
    assert len(lines) == 6


def test_a_server_is_measured_and_keeps_one_small_topic(run: Commands, tmp_path: Path) -> None:
    alone = {"PENSTOCK_SERVE_NO_HTTP": "1", "PENSTOCK_SERVE_NO_GRPC": "1"}
    with serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", environment=alone) as server:
        url = server.address("native")
        (found,) = run.json("bench", url, *QUICK)
        assert [row["name"] for row in found["rows"]] == NAMES
        assert all(row["of_disk"] is None for row in found["rows"])
        check_figures(found["rows"])
        (compared,) = run.json("bench", url, *QUICK, "--disk", tmp_path)
        assert compared["rows"][1]["of_disk"] > 0
        assert os.listdir(tmp_path) == ["data"]
        with penstock.open(url) as store:
            assert [topic.name for topic in store.topics()] == [place.TOPIC]
            assert store.groups() == []
    logs = (tmp_path / "data" / "topics" / place.TOPIC / "0").glob("*.log")
    assert sum(log.stat().st_size for log in logs) <= place.SEGMENT_BYTES + 1024 * 1024


def test_threads_that_begin_when_the_time_is_over_publish_once(tmp_path: Path) -> None:
    """As on a machine that was busy meanwhile."""
    with penstock.open(tmp_path / "store") as store:
        (row,) = rows.at_once(SimpleNamespace(store=store), rows.Load(0.0, 100, 200.0))  # type: ignore[arg-type]
        assert store.ends(place.TOPIC) == {0: rows.THREADS}
    assert row.per_second is not None
    assert row.per_second > 0


def test_an_error_in_the_middle_leaves_nothing(run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(where: place.Place, _load: rows.Load) -> list[rows.Row]:
        raise StorageFull(str(where.folder), 0, 1)

    monkeypatch.setattr(command, "ROWS", (rows.one_by_one, broken))
    run.fails(4, "bench", tmp_path, *QUICK)
    assert os.listdir(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([SCRIPT, "bench", str(tmp_path), "--seconds", "60s"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("note: writes a store")
    while not any("store" in names for _, names, _ in os.walk(tmp_path)):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert os.listdir(tmp_path) == []


def test_a_store_is_not_written_into(run: Commands, path: str) -> None:
    with penstock.open(path) as store:
        store.publish("orders", b"x")
    assert "is a store" in run.fails(2, "bench", path)
    with penstock.open(path) as store:
        assert [topic.name for topic in store.topics()] == ["orders"]


@pytest.mark.parametrize(
    "wrong", [("--seconds", "0"), ("--seconds", "1h"), ("--bytes", "7"), ("--bytes", "1GiB"), ("--rate", "0"), ("--disk", ".")]
)
def test_wrong_use_is_told_before_anything_is_written(run: Commands, tmp_path: Path, wrong: tuple[str, str]) -> None:
    result = run("bench", tmp_path, *wrong)
    assert result.exit_code == 2
    assert os.listdir(tmp_path) == []


def test_a_file_system_in_memory_is_told(run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "file_system_of", lambda _: "tmpfs")
    assert "warning: tmpfs is a file system in memory" in run("bench", tmp_path, *QUICK).stderr
    assert place.is_in_memory("tmpfs")
    assert not place.is_in_memory("ext4")


def test_the_file_system_is_that_of_the_longest_mount() -> None:
    assert place.file_system_of("/proc/self") == "proc"


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (1, 50, 99)] == [1.0, 2.0, 3.0]
