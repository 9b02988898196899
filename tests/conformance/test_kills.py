"""A process that publishes and consumes is killed again and again: what was answered is stored once."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import Store
from tests.conformance.backends import SETTINGS, Backend, DirectoryBackend, HttpBackend, skip_unless
from tests.conformance.helpers import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

SOAK = """
import json, os, sys, threading
import penstock

folder, sync = sys.argv[1:]
store = penstock.open(os.path.join(folder, "store"), free_bytes_floor=0, reserve_bytes=0, journal_file_bytes=1 << 20, frame_bytes=1 << 18,
                      reference_bytes=1 << 16)
store.create_topic("t", sync=sync, dedup_window=3600, segment_messages=500)

def consume():
    seen = open(os.path.join(folder, "seen"), "ab", buffering=0)
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        for message in consumer:
            seen.write(message.value + b"\\n")
            message.ack()

threading.Thread(target=consume, daemon=True).start()
answered = open(os.path.join(folder, "answered"), "ab", buffering=0)
number = int(open(os.path.join(folder, "next")).read()) if os.path.exists(os.path.join(folder, "next")) else 0
while True:
    # A producer that keeps its keys: what was in doubt when the process died is published again under the same key.
    receipt = store.publish("t", b"%d" % number, dedup_key=b"%d" % number)
    answered.write(b"%d %d\\n" % (number, receipt.offset))
    number += 1
"""


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_what_was_answered_before_kills_is_stored_once_and_seen(live: Backend, tmp_path: Path, sync: str) -> None:
    """Producer and consumer are killed again and again; every message that was answered is stored once and seen at least once."""
    skip_unless(isinstance(live, DirectoryBackend), "kills a process that owns a folder")
    skip_unless(not isinstance(live, HttpBackend), "there is no HTTP in it")
    script = tmp_path / "soak.py"
    script.write_text(SOAK)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, str(script), str(tmp_path), sync])
        _wait_for_answers(process, tmp_path / "answered", 40)
        process.send_signal(signal.SIGKILL)
        process.wait()
        answered = [line.split() for line in _lines(tmp_path / "answered")]
        (tmp_path / "next").write_text(str(int(answered[-1][0]) + 1))
    store = Store.open(str(tmp_path / "store"), settings=SETTINGS)
    try:
        place = {int(message.value or b""): message.offset for message in store.read("t")}
        assert len(place) == len(list(store.read("t"))), "a message is stored twice"
        assert {int(number): int(offset) for number, offset in answered} == {
            number: offset for number, offset in place.items() if number <= int(answered[-1][0])
        }
        seen = {int(line) for line in _lines(tmp_path / "seen")}
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            while (message := consumer.get(timeout=1)) is not None:
                seen.add(int(message.value or b""))
                message.ack()
        assert {int(number) for number, _ in answered} <= seen
    finally:
        store.close()


def _wait_for_answers(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    """Until *process* has written so many lines more."""
    enough = len(_lines(path)) + count
    assert until(lambda: process.poll() is not None or len(_lines(path)) >= enough, 2 * PATIENCE)
    assert process.poll() is None


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a file; the last may be cut off by a kill."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]
