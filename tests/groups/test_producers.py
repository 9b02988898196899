"""Producers: what is remembered of named ones, and the futures and callbacks of what they send."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import types

import pytest

from penstock.clock import SystemClock
from penstock.errors import SequenceGap, StorageFull, UnsupportedFormat
from penstock.store.future import CallbackThread, SentBatch
from penstock.store.store import Store
from penstock.topics.producers import Producers
from tests.groups.sim import DAY_S, SOON_S, Sim, in_thread
from tests.one_log import replace_of


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_entry_of_a_producer_that_is_not_known_is_refused(kind: int) -> None:
    body = json.dumps({}).encode()
    with pytest.raises(UnsupportedFormat):
        Producers(SystemClock()).replay(struct.pack("<B3xI", kind, len(body)) + body)


def test_a_future_of_a_store_without_threads_commits_what_it_waits_for() -> None:
    with Store.open("memory:", background=False) as store:
        store.create_topic("t", sync="always")
        with store.producer("t") as producer:
            assert producer.send(b"x").result(5).offset == 0


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
    waiting = [in_thread(lambda: batch.wait(2 * SOON_S)) for _ in range(2)]
    assert all(asleep.acquire(timeout=SOON_S) for _ in waiting)
    batch.finish(0, None)
    for thread, _ in waiting:
        thread.join(SOON_S)
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
    assert told.wait(SOON_S), "the committing thread waits for itself, and nobody can publish any more"


def test_a_callback_may_send_while_the_producer_is_full(memory: Store) -> None:
    memory.create_topic("t", sync="always")
    producer = memory.producer("t", max_pending=1, linger=0)
    sent = threading.Event()

    def again(_: object) -> None:
        producer.send(b"1")
        sent.set()

    producer.send(b"0", on_done=again)
    assert sent.wait(SOON_S), "the committing thread waits for itself"
