"""Opening a store replays what its groups noted: over a checkpoint or without one, to the same end."""

from __future__ import annotations

import gc
import time

import pytest

from penstock.journal import checkpoints, small_file
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


def test_opening_a_volume_without_its_groups_keeps_them_for_the_next() -> None:
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


def test_a_checkpoint_does_not_change_who_is_blamed() -> None:
    """0 was handed out first, and its handler asked for more time: it is the one that was being handled, snapshot or not."""
    blamed = []
    for snapshot in (False, True):
        sim = Sim()
        sim.store.publish_many("t", numbered(3))
        consumer = sim.store.subscribe("t", "g", max_deliveries=0)
        first = one(consumer)
        one(consumer)
        first.extend(60)
        sim.store.flush()
        if snapshot:
            sim.checkpoint()
        sim.kill()
        blamed.append(sim.failures())
    assert blamed[0] == blamed[1]


def test_a_checkpoint_does_not_change_who_is_blamed_of_what_was_stolen() -> None:
    """The thief was handed the first of what it took; that the lots were taken from the other end says nothing."""
    blamed = []
    for snapshot in (False, True):
        sim = Sim()
        for value in numbered(6):
            sim.store.publish("t", value)
        busy = sim.store.subscribe("t", "g", max_deliveries=0)
        assert one(busy).offset == 0
        thief = sim.store.subscribe("t", "g")
        stolen = one(thief).offset
        one(thief)
        sim.store.flush()
        if snapshot:
            sim.checkpoint()
        sim.kill()
        blamed.append(sim.failures())
        assert blamed[-1] == {0: 1, stolen: 1}
    assert blamed[0] == blamed[1]


def test_counts_that_a_checkpoint_has_do_not_go_back_in_replay() -> None:
    """I17, I21. The journal got the first part only of what was noted, and the snapshot before it had all: no prefix gives that."""
    sim = Sim()
    store = sim.restart()
    store.publish_many("t", numbered(60))
    consumer = store.subscribe("t", "g", max_deliveries=0)
    for _ in range(2):
        for message in consumer.get_many(60, timeout=0):
            message.nack(delay=0, reason="x" * 250)
    sim.checkpoint()
    store._volume.commit_pending().wait()  # one frame: it has room for some of it
    assert sim.store._groups.pending
    sim.kill()
    found = sim.failures()
    assert {offset: count for offset, count in found.items() if count < 2} == {}
    assert {offset: count for offset, count in found.items() if count > 2} == {}, "nobody held it when the process died"


def test_recovery_takes_time_in_proportion_to_the_leases() -> None:
    def reopened_s(count: int) -> float:
        sim = Sim()
        sim.store.create_topic("t")
        sim.store.publish_many("t", numbered(count))
        consumer = sim.store.subscribe("t", "g", prefetch=1)
        for number in range(count):
            one(consumer).ack()
            if number % 50 == 0:
                consumer.flush()
        consumer.flush()
        gc.disable()  # what other tests left would be gone through in the middle of it
        begin = time.thread_time()
        sim.kill()
        used = time.thread_time() - begin
        gc.enable()
        return used

    seen: list[tuple[float, float]] = []
    while len(seen) < 3:  # a machine that stands still makes one of them long, and what is wrong all of them
        seen.append((reopened_s(500), reopened_s(4_000)))
        if seen[-1][1] < seen[-1][0] * 8 * 2.5:
            return
    pytest.fail(f"seconds for 500 and for 4,000: {seen}")
