"""Compaction of many messages of few keys equals a simple reference, while others write and read; and what is wrong is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks import compaction
from penstock import Store

if TYPE_CHECKING:
    from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_200_thousand_messages_are_compacted_to_the_reference_beside_readers_and_writers(tmp_path: Path) -> None:
    """The memory is that of a process that does nothing else."""
    found = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.compaction", "--messages", "200000", "--keys", "5000", "--segment-bytes", "1048576",
            "--directory", str(tmp_path), "--json", str(found),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(found.read_text())
    assert result["left"] < 40_000
    assert 0 < result["tombstones"] <= 5_000
    assert result["left_after_grace"] < result["left"] + 5_000
    assert result["own_more_mb"] < 50
    assert result["rss_more_mb"] < 120


def test_the_reference_keeps_messages_without_a_key_the_latest_of_each_key_and_what_is_not_sealed() -> None:
    messages = [(offset, *compaction.message_at(offset, 5)) for offset in range(400)]
    sealed = [message for message in messages if message[0] < 300]
    left = [
        offset
        for offset, key, _ in messages
        if offset >= 300 or key is None or not [later for later, other, _ in sealed if other == key and later > offset]
    ]
    assert compaction.reference(400, 5, 300) == left
    latest = [message for message in sealed if message[0] in left and message[1] is not None]
    tombstones = {offset for offset, _, value in latest if value is None}
    assert compaction.reference(400, 5, 300, 300) == [offset for offset in left if offset not in tombstones]


def filled(tmp_path: Path, messages: int = 5_000) -> str:
    path = str(tmp_path / "store")
    compaction.fill(path, messages, 50, segment_bytes=64 << 10)
    return path


def test_messages_that_should_have_gone_are_told(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with Store.open(path, background=False) as store:
        sealed_end = store._catalog.get(compaction.TOPIC).logs[0].segment_firsts[-1]
    assert sealed_end > 0
    with pytest.raises(compaction.CheckFailed, match="5000 messages are left"):
        compaction.check(path, 50, {"end": 5_000, "sealed_ends": [sealed_end]})
    with pytest.raises(compaction.CheckFailed, match="ends at 5000"):
        compaction.check(path, 50, {"end": 5_001, "sealed_ends": [sealed_end]})


def test_a_wrong_message_that_is_read_meanwhile_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path)
    with Store.open(path, background=False) as store:
        store.publish(compaction.TOPIC, b"not what belongs here")
        watcher = compaction.Watcher(store, 50)
        watcher._threads[1].join(60)
        with pytest.raises(compaction.CheckFailed, match="offset 5000 was read"):
            watcher.stop()


def test_a_writer_that_fails_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = filled(tmp_path)
    with Store.open(path, background=False) as store:
        watcher = compaction.Watcher(store, 50)
        while not watcher.written:
            assert watcher._threads[0].is_alive()
            time.sleep(0.001)
        store.publish(compaction.TOPIC, b"of another writer")
        watcher._threads[0].join(60)
        with pytest.raises(compaction.CheckFailed):
            watcher.stop()


def test_a_check_that_fails_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise compaction.CheckFailed("something is missing")

    monkeypatch.setattr(compaction, "measure", fail)
    assert compaction.main(["--quick"]) == 1
    assert "something is missing" in capsys.readouterr().out
