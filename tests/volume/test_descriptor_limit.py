"""A store with many more files than its process may open: nothing is refused, and no more are open at any time than there may be."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, os, resource, sys, threading
path, limit, partitions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import penstock

most = 0


def look(stop):
    global most
    while not stop.wait(0.002):
        most = max(most, len(os.listdir("/proc/self/fd")))


stop = threading.Event()
thread = threading.Thread(target=look, args=(stop,))
thread.start()
count = partitions * 3
keys = [b"%d" % number for number in range(count)]
with penstock.open(path, free_bytes_floor=0) as store:
    store.create_topic("wide", partitions=partitions)
    for turn in range(2):
        store.publish_many("wide", keys, keys=keys)
    got = set()
    with store.subscribe("wide", "g") as consumer:
        while messages := consumer.get_many(500, timeout=5):
            got |= {(message.partition, message.offset) for message in messages}
            consumer.ack(messages)
    store.create_topic("rolling", segment_bytes=512)
    for _ in range(count // 2):
        store.publish("rolling", bytes(300))
    for sync in ("os", "interval"):
        store.create_topic(sync, partitions=partitions, sync=sync)
        for number in range(partitions + partitions // 2):
            store.publish(sync, b"x", partition=number % partitions)
    with store.transaction() as transaction:
        for number in range(100):
            transaction.publish("wide", b"together", partition=number % partitions)
with penstock.open(path, free_bytes_floor=0) as store:
    found = {name: topic.messages for name, topic in store.stats().topics.items()}
    read = sum(1 for _ in store.read("wide"))
stop.set()
thread.join()
print(json.dumps({"consumed": len(got), "found": found, "read": read, "most": most}))
"""


def run(path: Path, limit: int, partitions: int) -> dict[str, Any]:
    """What the program saw."""
    command = [sys.executable, "-c", PROGRAM, str(path / "s"), str(limit), str(partitions)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("limit", "partitions"), [(96, 150), pytest.param(1024, 2_000, marks=pytest.mark.long)], ids=["small", "2,000 of 1,024"]
)
def test_publishing_consuming_and_rolling_keep_to_the_limit_of_open_files(tmp_path: Path, limit: int, partitions: int) -> None:
    """Also in one commit to more partitions than that."""
    told = run(tmp_path, limit, partitions)
    count = partitions * 3
    assert told["consumed"] == 2 * count
    assert told["found"] == {
        "wide": 2 * count + 100, "rolling": count // 2, "os": count // 2, "interval": count // 2,
    }  # fmt: skip
    assert told["read"] == 2 * count + 100
    # A quarter for logs; sockets, journal and the rest are few.
    assert told["most"] < limit // 4 * 2 + 40
