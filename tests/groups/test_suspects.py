"""Suspects: messages that were in the hands of a process that died, and those beside them that must not suffer for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockError
from penstock.format.batch import encode_batch
from penstock.testing import SimulatedFileSystem
from tests.groups.sim import SOON_S, Sim, numbered, offsets, one, open_store, take

if TYPE_CHECKING:
    from penstock.groups.delivery import Delivery


def test_a_lease_ends_though_a_suspect_came_next() -> None:
    """I19. A call hands out a message of partition 0 and stops before the suspect of partition 1: the lease must end all the same."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2)
    sim.store.publish("t", b"suspect", partition=1)
    one(sim.store.subscribe("t", "g", max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    store.publish("t", b"plain", partition=0)
    consumer = store.subscribe("t", "g", lease=10)
    assert [message.value for message in consumer.get_many(2, timeout=0)] == [b"plain"]
    consumer.pause()
    other = store.subscribe("t", "g")
    sim.clock.advance(11)
    assert b"plain" in [message.value for message in take(other)]


def test_a_suspect_that_nobody_was_handed_does_not_stop_other_groups() -> None:
    """I20, I28. It lies in the prefetch of a consumer that asks for nothing more, and has no lease that would end."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    for group in ("g", "h"):
        take(sim.store.subscribe("t", group, max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    slow, quick = store.subscribe("t", "g"), store.subscribe("t", "h")
    store.publish("t", b"2")
    one(slow).ack()
    assert [message.value for message in slow.get_many(2, timeout=0)] == [b"2"]  # and 1 is in its prefetch
    slow.pause()
    seen = []
    for _ in range(5):
        sim.clock.advance(3600)
        for message in take(quick):
            seen.append(message.offset)
            message.ack()
    assert sorted(seen) == [0, 1, 2]


def test_a_message_that_kills_its_process_at_once_is_counted() -> None:
    """The lease was noted, and nothing of it was durable: then every start is the first one, for ever."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish_many("t", [b"0", b"1"])
    deaths = 0
    while deaths < 8:
        consumer = store.subscribe("t", "g", max_deliveries=3)
        message = consumer.get(timeout=0)
        if message is None or message.value != b"0":
            break
        files = files.kill()
        deaths += 1
        store = open_store(files)
    # Three that count, and one that may be put down to a neighbour whose ack was not durable yet.
    assert deaths <= 4
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"0"]


def test_messages_handled_beside_a_poison_are_not_condemned_with_it() -> None:
    """Four at once: those that were still being handled when the fourth killed them all are not dead letters in the end."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish_many("t", [b"%d" % number for number in range(8)])
    deaths = 0
    while deaths < 8:
        consumer = store.subscribe("t", "g", max_deliveries=3, concurrency=4)
        handled: list[Delivery] = []
        while len(handled) < 4 and (message := consumer.get(timeout=0)) is not None:
            handled.append(message)
        store.flush()
        if b"0" not in [message.value for message in handled]:
            break
        # The handler of 0 kills the process; the three beside it one longer than that, every time.
        files = files.kill()
        deaths += 1
        store = open_store(files)
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"0"]


def test_a_poison_of_one_group_condemns_nothing_in_another() -> None:
    """Both groups work in the process that dies; the other one's message takes longer than the poison does, every time."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish("t", b"0")
    deaths = 0
    while deaths < 8:
        healthy = store.subscribe("t", "healthy", max_deliveries=3)
        deadly = store.subscribe("t", "deadly", max_deliveries=3)
        slow = healthy.get(timeout=0)
        poison = deadly.get(timeout=0)
        if poison is None and slow is not None:
            # It has to wait until the other one is done: then there is no doubt whose fault it is.
            slow.ack()
            poison = deadly.get(timeout=0)
        if poison is None:
            break
        store.flush()
        files = files.kill()
        deaths += 1
        store = open_store(files)
    assert deaths <= 4
    assert [letter.headers["x-dlq-group"] for letter in store.dead_letters("t").list()] == [b"deadly"]


def suspects(sim: Sim, group: str, count: int = 2) -> None:
    """Make the first messages suspects of *group*: its member dies with them."""
    consumer = sim.store.subscribe("t", group, concurrency=count)
    assert len(consumer.get_many(count, timeout=0)) == count
    consumer.flush()


def test_a_suspect_that_retention_took_does_not_block_the_suspects_of_other_groups() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_messages=2, retain="always", retention_bytes=1)
    for number in range(4):
        sim.store.publish("t", b"%d" % number)
    suspects(sim, "a")
    suspects(sim, "b", 4)
    sim.kill()
    sim.clock.advance(10)
    sim.store.retain("t")
    assert sim.store._volume.log("t").log_start == 2
    a = sim.store.subscribe("t", "a", reset="fail")
    with pytest.raises(PenstockError):
        a.get(timeout=0)
    b = sim.store.subscribe("t", "b")
    assert offsets(take(b, 1)) == [2]


def test_a_suspect_that_compaction_took_does_not_block_the_next_one() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    log = sim.store._volume.log("t")
    sim.store._volume.append(log, encode_batch([b"0", b"2", b"3"], offset_deltas=[0, 2, 3], offset_span=4))
    consumer = sim.store.subscribe("t", "g")
    consumer.get_many(3, timeout=0)
    consumer.flush()
    sim.kill()
    consumer = sim.store.subscribe("t", "g")
    seen = []
    for _ in range(6):
        message = consumer.get(timeout=0)
        if message is not None:
            seen.append(message.offset)
            message.ack()
    assert seen == [0, 2, 3]


def test_a_cancelled_get_after_a_crash_counts_nothing() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(2))
    suspects(sim, "g")
    sim.kill()
    from penstock.aio import AsyncConsumer

    before = sim.failures()
    consumer = AsyncConsumer(sim.store.subscribe("t", "g"))
    groups = sim.store._groups
    flush = groups.flush
    entered, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        entered.set()
        go_on.wait(2 * SOON_S)
        flush()

    groups.flush = slowly  # type: ignore[method-assign]

    async def main() -> None:
        task = asyncio.create_task(consumer.get())
        assert await asyncio.to_thread(entered.wait, SOON_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(main())
    groups.flush = flush  # type: ignore[method-assign]
    sim.clock.advance(31)
    take(consumer.sync, 1)
    assert sim.failures() == before
