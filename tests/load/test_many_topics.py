"""Ten thousand topics on one server: files are opened when they are used, and closed when others are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.volume.open_files import DESCRIPTORS_MAX
from tests.cli.serving import serving
from tests.client.served import eventually
from tests.load.process import MB, cpu_s, descriptors, rss_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TOPICS = 10_000
USED = 2_500
PATIENCE_S = 120.0
ROOT = str(Path(__file__).parents[2])


def test_ten_thousand_topics_cost_little_memory_few_descriptors_and_no_long_start(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = str(tmp_path / "data")
    command = [sys.executable, "-m", "tests.load.make_topics", folder, str(TOPICS)]
    made = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    # What is not durable yet keeps its file until the next checkpoint, so how many there are at most is a matter of the disk's speed.
    assert made["descriptors_max"] < TOPICS
    assert made["last_s"] < 3 * made["first_s"], "making a topic costs more the more there are"
    assert made["last_s"] < 0.01
    with serving("--data", folder, "--native", "127.0.0.1:0", "--no-http") as server:
        pid = server.process.pid
        counts = {
            "start_cpu_s": round(cpu_s(pid), 2),
            "start_rss_mb": rss_bytes(pid) // MB,
            "start_descriptors": descriptors(pid),
        }
        assert counts["start_cpu_s"] < 15
        assert counts["start_descriptors"] < DESCRIPTORS_MAX + 200
        with penstock.open(server.address("native")) as store:
            assert len(store.topics()) == TOPICS
            for number in range(USED):
                assert store.publish(f"t{number}", b"second").offset == 1
            for number in range(0, TOPICS, TOPICS // 50):
                with store.subscribe(f"t{number}", "g") as consumer:
                    message = consumer.get(60)
                    assert message is not None
                    assert message.value == b"%d" % number
                    message.ack()
            eventually(lambda: descriptors(pid) < DESCRIPTORS_MAX + 200, "files are not closed", PATIENCE_S)
            for number in range(50):
                store.create_topic(f"new-{number}")
            counts |= {"rss_mb": rss_bytes(pid) // MB, "descriptors": descriptors(pid)}
        begun_s = time.monotonic()
        server.signal(signal.SIGTERM)
        _, logged = server.process.communicate(timeout=PATIENCE_S)
        counts["stop_s"] = round(time.monotonic() - begun_s, 2)
        assert server.process.returncode == 0, logged
    record_property("ten thousand topics", counts | made)
    print(counts | made)
    assert counts["rss_mb"] < 250
    assert counts["stop_s"] < 60
    with penstock.open(folder, read_only=True) as store:
        assert len(store.topics()) == TOPICS + 50
        assert [message.value for message in store.read(f"t{USED - 1}")] == [b"%d" % (USED - 1), b"second"]
