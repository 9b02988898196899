"""Groups over dead letters and their box: one note, and no lock taken in two orders."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import penstock
from penstock.groups import operations as ops
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import PATIENCE, Running
from tests.groups.sim import Sim, numbered

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
