"""Topics that are deleted while others use them; the moments are forced."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import Closed, LeaseExpired, StorageFull, TopicNotFound
from tests.groups.sim import Sim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 30.0


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with a topic that has dead letters."""
    with Store.open("memory:") as store:
        store.create_topic("t", record_deliveries=True)
        store.publish_many("t", [b"0", b"1"])
        yield store


def during_delete(store: Store, monkeypatch: pytest.MonkeyPatch, topic: str, work: Callable[[], Any]) -> threading.Thread:
    """Let *work* begin, in another thread, before *topic* is deleted; it is given time to end, unless it waits for a lock."""
    delete, forget = store._volume.delete_topic, store._housekeeper.forget
    thread = threading.Thread(target=work, daemon=True)

    def begin_and_delete(name: str) -> Any:
        if name == topic:
            thread.start()
            thread.join(0.1)
        return delete(name)

    def wait_and_forget(one: Any) -> None:
        if thread.ident is not None:
            thread.join(PATIENCE_S)
        forget(one)

    monkeypatch.setattr(store._volume, "delete_topic", begin_and_delete)
    monkeypatch.setattr(store._housekeeper, "forget", wait_and_forget)
    return thread


def test_a_reject_while_its_topic_is_deleted_leaves_no_dead_letters_of_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a topic for them, nor any in a topic that is made under the same name."""
    consumer = store.subscribe("t", "g", max_deliveries=1)
    first, second = consumer.get_many(2, timeout=PATIENCE_S)
    first.reject("bad")

    def reject() -> None:
        with contextlib.suppress(Closed, LeaseExpired):  # if its turn comes when the topic is gone
            second.reject("bad too")

    thread = during_delete(store, monkeypatch, "t", reject)
    store.delete_topic("t")
    thread.join(PATIENCE_S)
    assert [one.name for one in store.topics()] == []
    store.create_topic("t")
    assert len(store.dead_letters("t")) == 0


def test_records_of_deliveries_are_not_made_again_while_their_topic_is_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever writes the last ones just then."""
    topic = store._catalog.get("t")
    store._catalog.deliveries_of(topic)
    store._catalog.dead_letters_of(topic)
    told: list[Exception] = []

    def record() -> None:
        try:
            store._catalog.deliveries_of(topic)
        except TopicNotFound as error:
            told.append(error)

    thread = during_delete(store, monkeypatch, "t.dlq", record)
    store.delete_topic("t")
    thread.join(PATIENCE_S)
    assert len(told) == 1
    assert [one.name for one in store.topics()] == []


def test_a_deleted_topic_has_no_dead_letters_though_another_one_of_its_name_has(store: Store) -> None:
    """They are not mixed up."""
    old = store._catalog.get("t")
    store.delete_topic("t")
    with pytest.raises(TopicNotFound):
        store._catalog.dead_letters_of(old)
    store.create_topic("t")
    assert store._catalog.dead_letters_of(store._catalog.get("t")).name == "t.dlq"
    with pytest.raises(TopicNotFound):
        store._catalog.dead_letters_of(old)


def test_whoever_joins_a_group_while_the_topic_is_deleted_is_told_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the store goes on."""
    commit = store._groups.commit

    def commit_late(body: bytes) -> None:
        monkeypatch.undo()
        store.delete_topic("t")
        commit(body)

    monkeypatch.setattr(store._groups, "commit", commit_late)
    with pytest.raises((TopicNotFound, Closed)):
        store.subscribe("t", "g")
    store.create_topic("t")
    assert store.groups("t") == []
    assert store.publish("t", b"x").offset == 0


@pytest.mark.parametrize("failures", [1, 2], ids=["once", "for a while"])
def test_a_topic_is_deleted_where_the_disk_has_no_room_for_a_checkpoint(failures: int) -> None:
    """That is when topics are deleted. Its files go as soon as there is room, and one of its name can be made at once."""
    sim = Sim()
    sim.store.publish("t", b"old")
    consumer = sim.store.subscribe("t", "g")
    sim.files.fail("write", 1, errno.ENOSPC, count=failures, path_contains="checkpoint")
    sim.store.delete_topic("t")
    with pytest.raises(Closed):
        consumer.get(timeout=0)
    assert sim.store.topics() == []
    sim.store.create_topic("t")
    sim.store.publish("t", b"new")
    sim.clock.advance(6)
    sim.store._volume.maintain_once()
    assert sim.files.list_directory("/s/topics") == ["t"]
    assert [message.value for message in sim.kill().read("t")] == [b"new"]


def test_consumers_of_a_deleted_topic_are_closed_where_the_journal_has_no_room_to_say_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who waits there waits for ever: nothing comes any more."""

    def full(_: bytes) -> None:
        raise StorageFull("/s", None, None)

    consumer = store.subscribe("t", "g")
    consumer.ack(consumer.get_many(2, timeout=PATIENCE_S))
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(list(consumer) == []), daemon=True)
    thread.start()
    monkeypatch.setattr(store._groups, "commit", full)
    store.delete_topic("t")
    thread.join(PATIENCE_S)
    assert ended == [True]
    assert store.topics() == []
