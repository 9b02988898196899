"""A group goes back, or moves on, at the very moment at which retention, vacuum or compaction remove messages."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import OffsetOutOfRange, Unavailable
from penstock.offset_set import OffsetSet
from penstock.volume.tickets import MoveLogStart
from tests.groups.sim import Sim, offsets, one, open_store, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.groups.delivery import Delivery

COUNT = 45


def _finished(**settings: Any) -> Sim:
    """A topic of several sealed segments, all of which its group has finished, and of which retention wants only the last."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retention_bytes=1, **settings)
    for number in range(COUNT):
        sim.store.publish("t", b"%d" % number, key=b"k")
    with sim.store.subscribe("t", "g", prefetch=100) as consumer:
        for message in take(consumer):
            message.ack()
    sim.checkpoint()
    sim.checkpoint()
    return sim


def _log(sim: Sim) -> Any:
    return sim.group().cursors[0].log


def _after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Once *act* happens when *name* of *owner* has decided, and before anybody goes by that."""
    original = getattr(type(owner), name)
    todo = [act]

    def with_act(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if todo:
            todo.pop()()
        return result

    monkeypatch.setattr(type(owner), name, with_act)


@pytest.mark.parametrize("target", ["earliest", 0, 15])
def test_what_a_group_was_sought_back_to_stays_though_retention_had_decided(
    monkeypatch: pytest.MonkeyPatch, target: str | int
) -> None:
    """The seek is durable before the start of the log moves."""
    sim = _finished()
    _after(monkeypatch, _log(sim), "retention_start", lambda: sim.store.seek("t", "g", target))
    sim.store.retain("t")
    first = 0 if target == "earliest" else int(target)
    assert sim.store.stats().topics["t"].starts[0] <= first
    for store in (sim.store, sim.kill()):
        with store.subscribe("t", "g", prefetch=100) as consumer:
            assert offsets(take(consumer)) == list(range(first, COUNT))
        assert store.stats().topics["t"].groups["g"].skipped == 0


def test_a_group_that_is_made_from_the_start_gets_all_though_retention_had_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when retention asked the groups."""
    sim = _finished()
    _after(monkeypatch, _log(sim), "retention_start", lambda: sim.store.subscribe("t", "new", start="earliest").close())
    sim.store.retain("t")
    with sim.store.subscribe("t", "new", prefetch=100) as consumer:
        assert offsets(take(consumer)) == list(range(COUNT))


def test_a_group_that_expired_and_is_sought_back_holds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention had left it out, and the seek shows that it is used."""
    sim = _finished(group_expiry=60.0)
    sim.clock.advance(120.0)
    _after(monkeypatch, _log(sim), "retention_start", lambda: sim.store.seek("t", "g", 0))
    sim.store.retain("t")
    with sim.store.subscribe("t", "g", prefetch=100) as consumer:
        assert offsets(take(consumer)) == list(range(COUNT))


def test_a_group_that_is_deleted_meanwhile_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more goes than was to go."""
    sim = _finished()
    sim.store.seek("t", "g", 20)
    _after(monkeypatch, _log(sim), "retention_start", lambda: sim.store.delete_group("t", "g"))
    sim.store.retain("t")
    assert sim.store.stats().topics["t"].starts[0] == 20


@pytest.mark.parametrize(("target", "error"), [("earliest", None), (0, OffsetOutOfRange), (40, None)])
def test_who_seeks_while_the_removal_is_being_committed_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, target: str | int, error: type[Exception] | None
) -> None:
    """The seek waits for it, and knows where the log begins then: no reset is needed, and none happens."""
    sim = _finished()
    volume = sim.store._volume
    outcome: list[BaseException | None] = []
    order: list[str] = []

    def seek() -> None:
        try:
            sim.store.seek("t", "g", target)
            outcome.append(None)
        except OffsetOutOfRange as refused:
            outcome.append(refused)
        order.append("sought")

    thread = threading.Thread(target=seek)
    original = type(volume).commit_changes

    def commit_changes(self: Any, changes: Any) -> Any:
        if not any(isinstance(change, MoveLogStart) for change in changes):
            return original(self, changes)
        thread.start()
        thread.join(0.2)
        ticket = original(self, changes)
        order.append("removed")
        return ticket

    monkeypatch.setattr(type(volume), "commit_changes", commit_changes)
    assert sim.store.retain("t").segments == 4
    thread.join(30)
    assert order == ["removed", "sought"]
    assert type(outcome[0]) is (type(None) if error is None else error)
    with sim.store.subscribe("t", "g", prefetch=100) as consumer:
        assert offsets(take(consumer)) == ([] if error else list(range(40, COUNT)))
    assert sim.store.stats().topics["t"].groups["g"].skipped == 0


@pytest.mark.parametrize("kind", ["compact", "vacuum"])
def test_a_segment_is_not_rewritten_without_what_a_group_was_sought_back_to(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Who seeks between the question whether all groups are where they were and the rename comes after the rename."""
    sim = _finished(compaction=kind == "compact")
    if kind == "vacuum":
        sim.store.seek("t", "g", 0)
        with sim.store.subscribe("t", "g", prefetch=100) as consumer:
            for message in take(consumer)[1:]:
                message.ack()
        sim.clock.advance(86_400.0)  # no dedup key is remembered so long
    started: list[threading.Thread] = []
    order: list[str] = []

    def seek() -> None:
        sim.store.seek("t", "g", 0)
        order.append("sought")

    housekeeper = sim.store._housekeeper
    original = type(housekeeper)._protected_groups

    def protected_groups(self: Any, topic: Any, now_us: int) -> Any:
        groups = original(self, topic, now_us)
        generations = [group.unfinished(0)[2] for group in groups]
        if started or not sim.store._volume._rewrite_lock.locked():
            return groups  # while a segment is rewritten it is asked once: before the rename
        started.append(threading.Thread(target=seek))
        started[0].start()
        started[0].join(0.2)
        assert [group.unfinished(0)[2] for group in groups] == generations, "it was sought while somebody went by where it is"
        return groups

    monkeypatch.setattr(type(housekeeper), "_protected_groups", protected_groups)
    rename = sim.files.rename

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        order.append("renamed")

    monkeypatch.setattr(sim.files, "rename", renamed)
    with contextlib.suppress(Unavailable):  # of the next segment, which is left as it was after the seek
        getattr(sim.store, kind)("t")
    started[0].join(30)
    assert "sought" in order
    assert order.index("sought") > order.index("renamed")


def test_compaction_keeps_what_a_group_that_was_made_anew_meanwhile_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Sim()
    sim.store.create_topic("c", segment_messages=2, compaction=True)
    for number in range(6):
        sim.store.publish("c", b"%d" % number, key="k")
    with sim.store.subscribe("c", "g") as consumer:
        consumer.ack(consumer.get_many(6, timeout=0))
    protection = sim.store._housekeeper._protection
    again = []

    def then_made_anew(*arguments: Any) -> Any:
        found = protection(*arguments)
        sim.store.delete_group("c", "g")
        again.append(sim.store.subscribe("c", "g"))
        return found

    monkeypatch.setattr(sim.store._housekeeper, "_protection", then_made_anew)
    with pytest.raises(Unavailable):
        sim.store.compact("c")
    assert offsets(take(again[0])) == [0, 1, 2, 3, 4, 5]


def test_retention_takes_a_position_that_nobody_changes_while_it_looks() -> None:
    """Between two looks at a cursor another thread leases all there is: what is leased now is not finished."""
    store = open_store()
    store.publish_many("t", [b"%d" % number for number in range(10)])
    consumer = store.subscribe("t", "g")
    cursor = store._groups.all()[0].cursors[0]
    taken: list[Delivery] = []
    thread = threading.Thread(target=lambda: taken.append(one(consumer)))

    class Interrupted(OffsetSet):
        """Lets the other thread run while it is being asked whether it is empty; one that needs a lock has to wait."""

        def __bool__(self) -> bool:
            empty = len(self) == 0
            if thread.ident is None:
                thread.start()
                thread.join(1)
            return not empty

    cursor.open = Interrupted()
    store.retain("t")
    thread.join()
    assert [message.offset for message in taken] == [0]
    assert store._catalog.get("t").logs[0].floors["groups"] == 0
