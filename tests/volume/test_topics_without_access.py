"""A topic whose folder cannot be reached: it alone is refused, and it works again when its rights are mended, without reopening."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys
import penstock
from penstock.errors import NoAccess

path, sync = sys.argv[1], sys.argv[2]
VALUES = [bytes(1000)] * 40


def refused(call):
    try:
        call()
    except NoAccess as error:
        assert "topics/bad/0" in str(error) and "Permission denied" in str(error), error
        assert f"uid {os.geteuid()}" in str(error), error
    else:
        raise AssertionError("it was taken")


# No checkpoint and no retention by themselves, which would be made by root in one moment and by nobody in the next.
store = penstock.open(path, free_bytes_floor=0, checkpoint_interval_ms=3_600_000, retention_interval_ms=86_400_000)
for topic in ("bad", "good"):
    store.create_topic(topic, segment_bytes=65536, sync=sync)
    for _ in range(5):
        store.publish_many(topic, VALUES)
store._volume.checkpoint()
for folder, folders, names in os.walk(os.path.dirname(path)):
    os.chown(folder, 65534, 65534)
    for name in names:
        os.chown(os.path.join(folder, name), 65534, 65534)
os.setegid(65534)
os.seteuid(65534)
bad = os.path.join(path, "topics", "bad", "0")
for turn in range(2):
    store._volume.log("bad").close_files(active=True)  # what is open is not asked for rights
    os.chmod(bad, 0)
    for _ in range(3):
        refused(lambda: store.publish_many("bad", VALUES))
        refused(lambda: list(store.read("bad", start=0)))
        store.publish_many("good", VALUES)
    with store.transaction() as transaction:
        transaction.publish("good", b"x")
    with store.subscribe("good", f"g{turn}") as consumer:
        consumer.get(timeout=20).ack(wait=True)
    with store.subscribe("bad", f"g{turn}") as consumer:
        refused(lambda: consumer.get(timeout=1))
    assert store.stats().topics["good"].messages == 200 + 121 * (turn + 1)
    store._volume.checkpoint()
    refused(store.retain)
    assert store._volume.failure is None
    os.chmod(bad, 0o700)
    store.publish_many("bad", VALUES)
    assert sum(1 for _ in store.read("bad")) == 200 + 40 * (turn + 1)
    store._volume.checkpoint()
os.chmod(bad, 0)
store.delete_topic("bad")
store.publish_many("good", VALUES)
store.close()
with penstock.open(path, free_bytes_floor=0) as store:
    assert [topic.name for topic in store.topics()] == ["good"]
    assert sum(1 for _ in store.read("good")) == 200 + 242 + 40
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody without rights")
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_folder_without_rights_concerns_its_topic_alone(tmp_path: Path, sync: str) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 != 0o005 and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o005)
    (tmp_path / "store").mkdir()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store" / "s"), sync]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
