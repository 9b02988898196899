"""Acks: which messages they finish, and when they are durable."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Unavailable
from penstock.store.store import Store
from tests.groups.sim import SOON_S, Sim, in_thread, numbered, one, open_store, take

if TYPE_CHECKING:
    from pathlib import Path


def test_acks_become_durable_by_themselves_after_a_process_had_no_descriptors(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish("t", b"")
    refused, done = threading.Event(), threading.Event()
    commit_pending = store._volume.commit_pending

    def refuse_once() -> Any:
        if not refused.is_set():
            done.clear()  # here, and not by who waits for it: the thread may try again before that one is on its feet
            refused.set()
            raise Unavailable("as many files open as it may")
        return commit_pending()

    monkeypatch.setattr(store._volume, "commit_pending", refuse_once)
    take_pending = store._groups.take_pending

    def taken(bytes_max: int) -> bytes:
        done.set()
        return take_pending(bytes_max)

    monkeypatch.setattr(store._groups, "take_pending", taken)
    one(store.subscribe("t", "g")).ack()
    assert refused.wait(SOON_S)
    assert done.wait(SOON_S)


def test_a_list_of_acks_in_any_order_finishes_those_and_no_others() -> None:
    """0, 5 and 2 span as much as 0, 1 and 2 do, and are not that."""
    store = open_store()
    store.publish_many("t", [b"%d" % number for number in range(6)])
    consumer = store.subscribe("t", "g")
    messages = [one(consumer) for _ in range(6)]
    consumer.ack([messages[0], messages[5], messages[2]])
    assert store.stats().topics["t"].groups["g"].positions == {0: 1}
    for message in (messages[1], messages[3], messages[4]):
        message.ack()
    assert store.stats().topics["t"].groups["g"].lag == 0


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
        go_on.wait(2 * SOON_S)
        sync()

    journal.sync = slow_sync  # type: ignore[method-assign]

    class Noted(list):
        """As soon as the mark is there, the cycle of another thread takes it and waits for the disk."""

        def append(self, entry: Any) -> None:
            super().append(entry)
            if type(entry).__name__ == "_Mark" and not syncing.is_set():
                in_thread(lambda: sim.store._volume.commit_changes(()))
                assert syncing.wait(SOON_S)

    groups._noted = Noted(groups._noted)
    thread, _ = in_thread(lambda: message.ack(wait=True))
    assert syncing.wait(SOON_S)
    thread.join(0.3)
    returned_too_early = not thread.is_alive()
    go_on.set()
    thread.join(SOON_S)
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
        go_on.wait(2 * SOON_S)
        sync()

    def then_another_thread_leads(changes: Any) -> Any:
        done = commit(changes)
        if not syncing.is_set() and any(type(entry).__name__ == "_Mark" for entry in sim.store._groups._noted):
            volume._journal.sync = slow_sync  # type: ignore[method-assign]
            in_thread(lambda: commit(()))
            assert syncing.wait(SOON_S)
        return done

    volume.commit_changes = then_another_thread_leads  # type: ignore[method-assign]
    thread, _ = in_thread(lambda: messages[2999].ack(wait=True))
    assert syncing.wait(SOON_S)
    deadline = time.monotonic() + SOON_S
    while thread.is_alive() and not volume._committer._pending and time.monotonic() < deadline:
        time.sleep(0.001)
    returned_too_early = not thread.is_alive()
    go_on.set()
    thread.join(SOON_S)
    assert not returned_too_early
    sim.lose_power()
    assert 2999 not in sim.group().cursors[0].open


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
