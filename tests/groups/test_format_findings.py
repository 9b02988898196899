"""What the work on the formats found in the engine: large and unknown state, layers that are not open, producers without threads."""

from __future__ import annotations

import json
import struct

import pytest

from penstock.clock import SystemClock
from penstock.errors import UnsupportedFormat
from penstock.groups import operations as ops
from penstock.groups.registry import Groups
from penstock.journal import checkpoints, small_file
from penstock.store.store import Store
from penstock.topics.producers import Producers
from penstock.volume.volume import Volume
from tests.groups.sim import Sim, numbered, one, take


def test_a_store_whose_checkpoint_is_larger_than_other_small_files_may_be_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many messages that wait with a reason each make it large; the limit of the other small files is not the checkpoint's."""
    monkeypatch.setattr(small_file, "READ_LIMIT_BYTES", 4096)
    monkeypatch.setattr(small_file.read_small_file, "__kwdefaults__", {"cached": False, "limit_bytes": 4096})
    sim = Sim()
    sim.store.publish_many("t", numbered(100))
    consumer = sim.store.subscribe("t", "g", max_deliveries=0)
    for number, message in enumerate(take(consumer)):
        message.nack(delay=60, reason=f"{number} " + "x" * 200)
    assert len(sim.store._groups.snapshot()) > 4096
    assert checkpoints.CHECKPOINT_BYTES_MAX > small_file.READ_LIMIT_BYTES
    sim.restart()
    assert len(sim.failures()) == 100


@pytest.mark.parametrize("kind", [0, 17, 255])
def test_an_operation_of_a_group_that_is_not_known_is_refused(kind: int) -> None:
    """It was written by a newer version, and passing it over could lose what it says."""
    groups = Groups(SystemClock())
    document = {"topic_id": "00" * 16, "topic": "t", "name": "g", "settings": {}, "starts": [0]}
    groups.restore(ops.encode_document(ops.MADE, 1, document))
    with pytest.raises(UnsupportedFormat):
        groups.replay(ops._encode(kind, 0, 1, 0, b""))


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_entry_of_a_producer_that_is_not_known_is_refused(kind: int) -> None:
    body = json.dumps({}).encode()
    with pytest.raises(UnsupportedFormat):
        Producers(SystemClock()).replay(struct.pack("<B3xI", kind, len(body)) + body)


def test_who_opens_a_volume_without_its_groups_keeps_them_for_the_next() -> None:
    """What came after the last checkpoint too, and over a second opening."""
    sim = Sim()
    sim.store.publish_many("t", numbered(5))
    consumer = sim.store.subscribe("t", "g")
    sim.checkpoint()
    one(consumer).ack()
    one(consumer).ack(wait=True)
    sim.files = sim.files.kill()
    for _ in range(2):
        Volume.open("/s", settings=sim.store._volume.settings, files=sim.files, clock=sim.clock, background=False).close()
    sim.store = sim._open()
    assert sim.store.stats().topics["t"].groups["g"].positions == {0: 2}


def test_a_future_of_a_store_without_threads_commits_what_it_waits_for() -> None:
    with Store.open("memory:", background=False) as store:
        store.create_topic("t", sync="always")
        with store.producer("t") as producer:
            assert producer.send(b"x").result(5).offset == 0
