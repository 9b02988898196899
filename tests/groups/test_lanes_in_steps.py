"""After a restart the lanes of a large backlog are built in steps, and nothing is handed out before all of it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import intake
from tests.groups.sim import Sim, one, take

if TYPE_CHECKING:
    import pytest

COUNT = 300


def _restarted(monkeypatch: pytest.MonkeyPatch) -> Sim:
    """Everything was seen before, in batches of ten, and the last ones are the most urgent."""
    sim = Sim()
    sim.store.create_topic("t", priorities=True, aging=0)
    for first in range(0, COUNT, 10):
        sim.store.publish_many("t", [b"%d" % at for at in range(first, first + 10)], priorities=["low"] * 10)
    sim.store.publish_many("t", [b"soon", b"now"], priorities=["medium", "high"])
    with sim.store.subscribe("t", "g") as consumer:
        one(consumer)
    monkeypatch.setattr(intake, "LEARN_MAX", 500)
    sim.restart()
    return sim


def test_a_call_comes_back_before_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing, and says that it should be asked again; whoever waits for the group's lock gets it meanwhile."""
    sim = _restarted(monkeypatch)
    monkeypatch.setattr("penstock.groups.intake.READ_BYTES", 1)
    sim.store.subscribe("t", "g", prefetch=1_000)
    group = sim.group()
    (member,) = group.members
    steps = 0
    while not (found := group.take(member, 1)):
        assert member.passing
        assert not group.lock.locked()
        steps += 1
    assert steps >= 3
    assert not member.passing
    assert [message.value for message in found] == [b"now"]


def test_who_asks_gets_the_most_urgent_first_however_many_steps_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without waiting; and each message once."""
    sim = _restarted(monkeypatch)
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    messages = take(consumer)
    assert [message.value for message in messages[:3]] == [b"now", b"soon", b"0"]
    assert sorted(message.offset for message in messages) == list(range(COUNT + 2))


def test_what_retention_takes_between_two_steps_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the group's rule, as ever."""
    sim = Sim()
    sim.store.create_topic("t", priorities=True, segment_messages=10, retain="always", retention_bytes=1)
    for number in range(60):
        sim.store.publish("t", b"%d" % number, priority="high" if number > 50 else "low")
    with sim.store.subscribe("t", "g") as consumer:
        one(consumer)
    monkeypatch.setattr(intake, "LEARN_MAX", 300)
    monkeypatch.setattr("penstock.groups.intake.READ_BYTES", 1)
    sim.restart()
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    group = sim.group()
    assert group.take(group.members[0], 1) == []
    sim.checkpoint()
    sim.store.retain("t")
    first = sim.store.stats().topics["t"].starts[0]
    assert first > 0
    messages = take(consumer)
    assert messages[0].offset == 51
    assert sorted(message.offset for message in messages) == list(range(first, 60))
