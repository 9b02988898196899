"""Dead letters: which messages become one, how a group and its box agree on them, and how they are taken out."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import StorageFull
from penstock.groups import operations as ops
from penstock.store.dead_letter_box import DeadLetters
from penstock.topics.message import Message
from penstock.volume.tickets import MoveLogStart
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import PATIENCE, Running
from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Store
    from tests.groups.sim import Sim as _Sim


def bury(store: Store, count: int) -> None:
    store.publish_many("t", numbered(count))
    with store.subscribe("t", "failing", prefetch=10_000) as consumer:
        for message in consumer.get_many(count, timeout=0):
            message.reject("no good")


def bodies(store: Store) -> list[set[int]]:
    """Of each entry that waits for a frame: the groups that it finishes something in."""
    return [
        {one.group_id for one in ops.operations(entry) if one.kind in (ops.FINISHED, ops.COMMITTED)}
        for entry in store._groups._noted
        if isinstance(entry, bytes)
    ]


def test_a_letter_is_finished_in_its_group_and_in_the_box_by_one_note() -> None:
    """No frame can have half of it, however small frames are."""
    sim: _Sim = Sim()
    store = sim.store
    bury(store, 5)
    consumer = store.subscribe("t.dlq", "mourners")
    box = store._groups.find(store._catalog.get("t.dlq").topic_id, ".box")
    group = store._groups.find(store._catalog.get("t.dlq").topic_id, "mourners")
    assert box is not None
    assert group is not None
    both = {box.identity, group.identity}
    first, second, third, *_ = consumer.get_many(5, timeout=0)
    store.flush()
    first.ack()
    consumer.ack([second, third])
    assert [one for one in bodies(store) if one] == [both, both]
    store.flush()
    group.commit(0, 4)
    assert [one for one in bodies(store) if one] == [both]
    assert len(store.dead_letters("t")) == 1
    sim.store.close()


def test_two_groups_that_finish_the_same_letters_at_once_leave_none(tmp_path: Path) -> None:
    """Whoever is second takes the letter out; meanwhile snapshots are taken, and nobody waits for ever."""
    count = 300
    with penstock.Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        bury(store, count)
        groups = [store.subscribe("t.dlq", name, prefetch=count) for name in ("alerts", "repair")]
        taken = [group.get_many(count, timeout=PATIENCE) for group in groups]
        together, done = threading.Barrier(3), threading.Event()

        def finish(number: int) -> None:
            together.wait()
            for letter in taken[number]:
                letter.ack()

        def checkpoint() -> None:
            together.wait()
            while not done.is_set():
                store._volume.checkpoint()
                store.stats()

        runs = [Running(lambda: finish(0)), Running(lambda: finish(1))]
        other = Running(checkpoint)
        for run in runs:
            run.result()
        done.set()
        other.result()
        assert len(store.dead_letters("t")) == 0
    with penstock.Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        assert len(store.dead_letters("t")) == 0


@pytest.mark.parametrize("republish", [False, True], ids=["discarded", "sent back"])
def test_dead_letters_are_not_all_in_memory_while_they_are_taken_out(
    sim: Sim, monkeypatch: pytest.MonkeyPatch, republish: bool
) -> None:
    """A million of them, as after an outage, would take gigabytes."""
    sim.store.publish_many("t", numbered(1_000))
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    for message in consumer.get_many(1_000, timeout=0):
        message.reject("bad")
    others = [
        one for one in gc.get_objects() if type(one) is Message
    ]  # what tests before this one left; held, so that they stay
    counts = []
    take_out_part = DeadLetters._take_out_part

    def counted(*arguments: Any, **named: Any) -> None:
        counts.append(sum(type(one) is Message for one in gc.get_objects()) - len(others))
        take_out_part(*arguments, **named)

    monkeypatch.setattr(DeadLetters, "_take_out_part", counted)
    box = sim.store.dead_letters("t")
    assert (box.replay() if republish else box.discard()) == 1_000
    assert len(counts) == 10
    assert max(counts) < 300
    assert len(box) == 0
    assert len([*sim.store.read("t")]) == (2_000 if republish else 1_000)


def test_what_a_filter_raises_keeps_all_dead_letters_where_they_are(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(300))
    consumer = sim.store.subscribe("t", "g", prefetch=300)
    for message in consumer.get_many(300, timeout=0):
        message.reject("bad")
    box = sim.store.dead_letters("t")
    with pytest.raises(ZeroDivisionError):
        box.discard(lambda letter: bool(1 // (299 - letter.offset)) or True)
    assert len(box) == 300
    assert box.discard(lambda letter: letter.offset % 2 == 1) == 150
    assert [letter.offset for letter in box] == [*range(0, 300, 2)]


@pytest.mark.parametrize("how", ["extend", "transaction"])
def test_what_fails_for_the_last_time_in_any_call_is_dead_lettered_by_it(how: str) -> None:
    """Its lease ended, and the call that noticed was not a get, an ack or a nack: nobody need ever make one of those."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g", lease=10, max_deliveries=1)
    one(consumer)
    sim.clock.advance(6)
    second = one(consumer)
    sim.clock.advance(6)
    if how == "extend":
        second.extend()
    else:
        with sim.store.transaction() as transaction:
            transaction.ack(second)
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"0"]


@pytest.mark.parametrize("how", ["commit", "seek"])
def test_what_was_finished_or_sought_meanwhile_is_not_dead_lettered(how: str) -> None:
    """The dead letter was planned and not written yet: then the group was moved, and what comes now counts anew."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g", lease=10, max_deliveries=1)
    one(consumer)
    sim.clock.advance(6)
    second = one(consumer)
    sim.clock.advance(6)
    second.extend()
    before = len(sim.store.dead_letters("t"))
    if how == "commit":
        consumer.commit(1)
    else:
        sim.store.seek("t", "g", 0)
    consumer.get(timeout=0)
    assert len(sim.store.dead_letters("t")) == before


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
