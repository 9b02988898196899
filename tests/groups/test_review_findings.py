"""What a review of the delivery code found: each test fails until its fault is mended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.queue import Queue
from penstock.errors import PenstockError, SequenceGap, StorageFull
from penstock.format.batch import encode_batch
from penstock.groups.group import Group
from penstock.store.future import CallbackThread, SentBatch
from penstock.store.store import Store
from penstock.volume.tickets import MoveLogStart
from tests.aio.helpers import until, waiting
from tests.groups.sim import Sim, numbered, offsets, one, take
from tests.one_log import replace_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock import Consumer

DAY_S = 86_400.0
SOON = 30.0
"""Seconds to wait for what a fault would keep from happening at all."""

Asleep = Callable[[int], None]


@pytest.fixture
def memory() -> Iterator[Store]:
    store = Store.open("memory:")
    yield store
    closer = threading.Thread(target=store.close, daemon=True)
    closer.start()
    closer.join(SOON)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run *work* in a thread; its result is appended to the list."""
    results: list[Any] = []

    def run() -> None:
        with contextlib.suppress(PenstockError):
            results.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Asleep:
    """Returns once so many threads have looked for messages in vain: only a wake brings them back now."""
    threads: set[int] = set()
    changed = threading.Condition()
    wait_seconds = Group.wait_seconds

    def last_step_before_sleeping(group: Group) -> float | None:
        with changed:
            threads.add(threading.get_ident())
            changed.notify_all()
        return wait_seconds(group)

    def wait_for(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(threads) >= count, SOON)

    monkeypatch.setattr(Group, "wait_seconds", last_step_before_sleeping)
    return wait_for


# -- producers ------------------------------------------------------------------------------------------------------------


def test_a_named_producer_opened_again_after_eight_days_loses_no_message() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    with sim.store.producer("t", name="p", linger=0) as producer:
        producer.send(b"first week")
        producer.flush()
    sim.clock.advance(8 * DAY_S)
    sim.restart()
    with sim.store.producer("t", name="p", linger=0) as producer:
        producer.send(b"second week")
        producer.flush()
    assert [message.value for message in sim.store.read("t")] == [b"first week", b"second week"]


def test_a_named_producer_goes_on_after_the_disk_was_full_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Sim()
    sim.store.create_topic("t")
    producer = sim.store.producer("t", name="p", linger=0)
    producer.send(b"0")
    producer.flush()
    log = sim.store._volume.log("t")

    def full(*_: object) -> None:
        raise StorageFull("/s", None, None)

    with monkeypatch.context() as patched:
        replace_of(patched, log, "make_room", full)
        replace_of(patched, log, "has_room", lambda _: False)
        refused = producer.send(b"1")
        producer.flush()
        assert isinstance(refused.exception(0), StorageFull)
    future = producer.send(b"2")
    producer.flush()
    assert not isinstance(future.exception(0), SequenceGap)


def test_two_threads_that_wait_for_one_batch_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each makes the event that it waits for, if there is none yet: both must have the same."""
    both, asleep = threading.Barrier(2), threading.Semaphore(0)

    class SlowEvent(threading.Event):
        def __init__(self) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # as long as the other one may need to come here too
            super().__init__()

        def wait(self, timeout: float | None = None) -> bool:
            asleep.release()
            return super().wait(timeout)

    batch = SentBatch("t", 0, lambda: None, CallbackThread())
    future = types.SimpleNamespace(Event=SlowEvent, Lock=threading.Lock)
    monkeypatch.setattr("penstock.store.future.threading", future)
    waiting = [in_thread(lambda: batch.wait(2 * SOON)) for _ in range(2)]
    assert all(asleep.acquire(timeout=SOON) for _ in waiting)
    batch.finish(0, None)
    for thread, _ in waiting:
        thread.join(SOON)
        assert not thread.is_alive()


def test_a_callback_may_publish(memory: Store) -> None:
    memory.create_topic("t", sync="always")
    memory.create_topic("log", sync="always")
    producer = memory.producer("t", linger=0)
    told = threading.Event()

    def tell(_: object) -> None:
        memory.publish("log", b"done")
        told.set()

    producer.send(b"0", on_done=tell)
    assert told.wait(SOON), "the committing thread waits for itself, and nobody can publish any more"


def test_a_callback_may_send_while_the_producer_is_full(memory: Store) -> None:
    memory.create_topic("t", sync="always")
    producer = memory.producer("t", max_pending=1, linger=0)
    sent = threading.Event()

    def again(_: object) -> None:
        producer.send(b"1")
        sent.set()

    producer.send(b"0", on_done=again)
    assert sent.wait(SOON), "the committing thread waits for itself"


# -- waking ---------------------------------------------------------------------------------------------------------------


def test_the_owner_of_a_partition_is_woken_though_another_member_waits_too(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t", partitions=2)
    first = memory.subscribe("t", "g", ordered=True)
    second = memory.subscribe("t", "g", ordered=True)
    mine = memory._group("t", "g").cursors[0].member is first._member
    owner, other = (first, second) if mine else (second, first)
    thread, found = in_thread(owner.get)
    asleep(1)
    in_thread(other.get)
    asleep(2)
    memory.publish("t", b"x", partition=0)
    thread.join(SOON)
    assert [message.value for message in found if message] == [b"x"]


def test_a_paused_consumer_that_waits_does_not_swallow_the_wake_of_another(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    idle = memory.subscribe("t", "g")
    paused = memory.subscribe("t", "g")
    paused.pause()
    thread, found = in_thread(idle.get)
    asleep(1)
    in_thread(paused.get)
    asleep(2)
    memory.publish("t", b"x")
    thread.join(SOON)
    assert [message.value for message in found if message] == [b"x"]


def test_a_consumer_with_a_full_prefetch_does_not_swallow_the_wake_of_an_idle_one(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    busy = memory.subscribe("t", "g", prefetch=1)
    memory.publish("t", b"0")
    assert busy.get(timeout=1) is not None
    idle = memory.subscribe("t", "g")
    thread, found = in_thread(idle.get)
    asleep(1)
    in_thread(busy.get)
    asleep(2)
    memory.publish("t", b"1")
    thread.join(SOON)
    assert [message.value for message in found if message] == [b"1"]


def test_a_task_that_is_cancelled_as_it_is_woken_hands_the_wake_on() -> None:
    from penstock import aio

    async def main() -> bytes | None:
        async with aio.open("memory:") as store:
            await store.create_topic("t")
            consumer = await store.subscribe("t", "g")
            cancelled = asyncio.create_task(consumer.get())
            assert await until(lambda: waiting(store) == 1)
            patient = asyncio.create_task(consumer.get())
            assert await until(lambda: waiting(store) == 2)
            store.sync.publish("t", b"x")  # schedules the event of the first who came
            asyncio.get_running_loop().call_soon(cancelled.cancel)
            done, _ = await asyncio.wait([patient], timeout=SOON)
            value = patient.result().value if done and patient.result() else None  # type: ignore[union-attr]
            patient.cancel()
            return value

    assert asyncio.run(main()) == b"x"


def test_acking_messages_of_two_consumers_at_once_wakes_both(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    memory.publish_many("t", numbered(4))
    first = memory.subscribe("t", "g", prefetch=1)
    second = memory.subscribe("t", "g", prefetch=1)
    a, b = first.get(timeout=1), second.get(timeout=1)
    assert a is not None
    assert b is not None
    thread, found = in_thread(first.get)
    asleep(1)
    second.ack([a, b])
    thread.join(SOON)
    assert [message is not None for message in found] == [True]


def test_two_groups_that_begin_to_listen_at_the_same_time_both_listen() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    log = sim.store._volume.log("t")

    others: list[threading.Thread] = []

    class Slow(list):
        """A list during whose copying another thread gets its turn."""

        def __iter__(self) -> Iterator[Any]:
            log._listeners = list.copy(self)
            others.append(in_thread(lambda: sim.store.subscribe("t", "b"))[0])
            others[0].join(0.5)
            return super().__iter__()

    log._listeners = Slow()
    sim.store.subscribe("t", "a")
    if not others:
        sim.store.subscribe("t", "b")
    for thread in others:
        thread.join(SOON)
    assert len(log._listeners) == 2


# -- durability -----------------------------------------------------------------------------------------------------------


def test_a_waiting_ack_is_durable_though_another_threads_cycle_took_it() -> None:
    """The frame that took the mark is not synced yet: that is no reason to return."""
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g")
    message = one(consumer)
    consumer.flush()
    groups, journal = sim.store._groups, sim.store._volume._journal
    sync = journal.sync
    syncing, go_on = threading.Event(), threading.Event()

    def slow_sync() -> None:
        syncing.set()
        go_on.wait(2 * SOON)
        sync()

    journal.sync = slow_sync  # type: ignore[method-assign]

    class Noted(list):
        """As soon as the mark is there, the cycle of another thread takes it and waits for the disk."""

        def append(self, entry: Any) -> None:
            super().append(entry)
            if type(entry).__name__ == "_Mark" and not syncing.is_set():
                in_thread(lambda: sim.store._volume.commit_changes(()))
                assert syncing.wait(SOON)

    groups._noted = Noted(groups._noted)
    thread, _ = in_thread(lambda: message.ack(wait=True))
    assert syncing.wait(SOON)
    thread.join(0.3)
    returned_too_early = not thread.is_alive()
    go_on.set()
    thread.join(SOON)
    assert not returned_too_early


@pytest.mark.parametrize("split_by", ["a checkpoint's barrier", "a full frame"])
def test_a_waiting_ack_is_durable_though_its_operations_went_into_several_frames(split_by: str) -> None:
    """The first one ended the wait's ticket; the second has the ack, and another thread still waits for the disk with it."""
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(3000))
    consumer = sim.store.subscribe("t", "g", prefetch=3000)
    messages = take(consumer, 3000)
    consumer.flush()
    volume = sim.store._volume
    if split_by == "a full frame":
        noted = sim.store._groups._noted
        for message in messages[:2900:2]:
            message.nack()  # each an operation of its own: as many as go into two frames
            if sum(len(entry) for entry in noted if isinstance(entry, bytes)) > sim.settings.frame_bytes // 2 + 1024:
                break
    else:
        messages[0].ack()
        volume.checkpoint()
    sync, commit = volume._journal.sync, volume.commit_changes
    syncing, go_on = threading.Event(), threading.Event()

    def slow_sync() -> None:
        syncing.set()
        go_on.wait(2 * SOON)
        sync()

    def then_another_thread_leads(changes: Any) -> Any:
        done = commit(changes)
        if not syncing.is_set() and any(type(entry).__name__ == "_Mark" for entry in sim.store._groups._noted):
            volume._journal.sync = slow_sync  # type: ignore[method-assign]
            in_thread(lambda: commit(()))
            assert syncing.wait(SOON)
        return done

    volume.commit_changes = then_another_thread_leads  # type: ignore[method-assign]
    thread, _ = in_thread(lambda: messages[2999].ack(wait=True))
    assert syncing.wait(SOON)
    deadline = time.monotonic() + SOON
    while thread.is_alive() and not volume._committer._pending and time.monotonic() < deadline:
        time.sleep(0.001)
    returned_too_early = not thread.is_alive()
    go_on.set()
    thread.join(SOON)
    assert not returned_too_early
    sim.lose_power()
    assert 2999 not in sim.group().cursors[0].open


# -- after a crash --------------------------------------------------------------------------------------------------------


def test_messages_that_nobody_got_because_the_disk_was_full_are_not_counted_as_failed() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(3))
    sim.store.subscribe("t", "g", max_deliveries=1)
    sim.kill()
    consumer = sim.store.subscribe("t", "g")
    groups = sim.store._groups
    flush = groups.flush

    def full() -> None:
        raise StorageFull("/s", None, None)

    groups.flush = full  # type: ignore[method-assign]
    with pytest.raises(StorageFull):
        consumer.get(timeout=0)
    groups.flush = flush  # type: ignore[method-assign]
    sim.clock.advance(31)
    assert {message.value for message in take(consumer)} == {b"0", b"1", b"2"}


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


# -- time -----------------------------------------------------------------------------------------------------------------


def test_a_message_nacked_for_a_week_does_not_come_after_a_day_because_of_a_restart() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g")
    one(consumer).nack(delay=7 * DAY_S)
    sim.restart()
    sim.clock.advance(2 * DAY_S)
    assert take(sim.store.subscribe("t", "g")) == []


# -- dead letters ---------------------------------------------------------------------------------------------------------


def test_a_rejected_message_is_not_handed_out_again_because_the_dead_letter_had_no_room() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g")
    group = sim.group()
    mover = group._mover

    def full(_: object) -> None:
        raise StorageFull("/s", None, None)

    group._mover = full
    one(consumer).reject("never")
    group._mover = mover
    sim.clock.advance(10)
    assert take(consumer) == []
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"x"]


def test_two_replays_at_the_same_time_send_each_dead_letter_back_once() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g", max_deliveries=1)
    one(consumer).nack()
    box = sim.store.dead_letters("t")
    assert len(box) == 1

    def choose(_: object) -> bool:
        sim.store.dead_letters("t").replay()  # another thread could
        return True

    box.replay(filter=choose)
    assert [message.value for message in sim.store.read("t")] == [b"x", b"x"]


def test_the_number_of_dead_letters_is_right_after_retention() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g", max_deliveries=1)
    for message in take(consumer):
        message.nack()
    box = sim.store.dead_letters("t")
    assert len(box) == 3
    sim.store._volume.commit_changes([MoveLogStart(sim.store._volume.log("t.dlq"), 2)])  # what retention does
    assert [letter.value for letter in box.list()] == [b"2"]
    assert len(box) == 1


# -- the queue ------------------------------------------------------------------------------------------------------------


def test_a_queue_gives_out_more_than_eight_mebibytes_before_the_first_task_is_done() -> None:
    with Queue("memory:") as queue:
        for _ in range(12):
            queue.put(bytes(1_000_000))
        assert len([queue.get(timeout=SOON) for _ in range(12)]) == 12


# -- asyncio --------------------------------------------------------------------------------------------------------------


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
        go_on.wait(2 * SOON)
        flush()

    groups.flush = slowly  # type: ignore[method-assign]

    async def main() -> None:
        task = asyncio.create_task(consumer.get())
        assert await asyncio.to_thread(entered.wait, SOON)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(main())
    groups.flush = flush  # type: ignore[method-assign]
    sim.clock.advance(31)
    take(consumer.sync, 1)
    assert sim.failures() == before


def test_a_cancelled_subscribe_leaves_no_member_behind(memory: Store) -> None:
    from penstock.aio import AsyncStore

    memory.create_topic("t", partitions=2)
    subscribe = memory.subscribe
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Consumer:
        entered.set()
        go_on.wait(2 * SOON)
        try:
            return subscribe(*args, **options)
        finally:
            left.set()

    memory.subscribe = slowly  # type: ignore[method-assign]

    async def main() -> None:
        task = asyncio.ensure_future(AsyncStore(memory).subscribe("t", "g", ordered=True)._open())
        assert await asyncio.to_thread(entered.wait, SOON)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(left.wait, SOON)
        assert await until(lambda: memory._group("t", "g").members == [])

    asyncio.run(main())
    memory.subscribe = subscribe  # type: ignore[method-assign]


# -- workers --------------------------------------------------------------------------------------------------------------


def test_a_worker_goes_on_after_taking_failed_once(memory: Store) -> None:
    memory.create_topic("t")
    memory.publish("t", b"x")
    handled = threading.Event()

    @memory.worker("t", group="g")
    def handle(_: object) -> None:
        handled.set()

    memory.subscribe("t", "g").close()
    group = memory._group("t", "g")
    take_now = group.take
    failed = threading.Event()

    def full_once(*args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise StorageFull("/s", None, None)
        return take_now(*args)

    group.take = full_once  # type: ignore[assignment, method-assign]
    runner, _ = in_thread(memory.run)
    assert failed.wait(SOON)
    ok = handled.wait(SOON) or not runner.is_alive()
    memory.stop()
    runner.join(SOON)
    assert ok, "its thread is dead, and run() goes on as if nothing were"


# -- a fork ---------------------------------------------------------------------------------------------------------------


def test_an_ack_in_a_forked_child_does_not_write_into_the_journal_of_its_parent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    store.create_topic("t")
    store.publish("t", b"0")
    consumer = store.subscribe("t", "g")
    message = one(consumer)
    consumer.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.read(reading, 1)
            message.ack(wait=True)
        os._exit(0)
    store.publish("t", b"1")
    os.write(writing, b"x")
    os.waitpid(child, 0)
    shutil.copytree(tmp_path / "s", tmp_path / "as after a crash")
    store.close()
    with Store.open(tmp_path / "as after a crash") as again:
        assert [kept.value for kept in again.read("t")] == [b"0", b"1"]
