"""Consumers that wait: whoever knows of the next moment leaves it to somebody else when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import StorageFull
from penstock.groups.group import MOVE_AGAIN_S
from tests.groups.sim import Sim, one

if TYPE_CHECKING:
    from penstock import Consumer
    from penstock.groups.dead_letters import Move


class Sleeper:
    """A consumer that waits: when it is woken it looks, finds nothing, and knows by then how long it may sleep."""

    def __init__(self, sim: Sim, consumer: Consumer) -> None:
        self.group = sim.group()
        self.member = consumer._member
        self.clock = sim.clock
        self.is_woken = False
        self._until = float("inf")
        self._look()

    def _look(self) -> None:
        """As `Consumer.get` does before it sleeps."""
        self.group.add_waiter(self, self.member)
        assert not self.group.take(self.member, 1)
        seconds = self.group.wait_seconds()
        self._until = float("inf") if seconds is None else self.clock.monotonic() + seconds

    def release(self) -> None:
        """It is woken."""
        self.is_woken = True

    @property
    def until(self) -> float:
        """When it looks again, if nobody wakes it."""
        while self.is_woken:
            self.is_woken = False
            self.group.remove_waiter(self, self.member, woken=True)
            self._look()
        return self._until

    def leave(self) -> None:
        """Its time is over."""
        self.group.remove_waiter(self, self.member, woken=False)


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t")
    return sim


def test_who_leaves_tells_another_when_a_delayed_message_is_due(sim: Sim) -> None:
    first, second = (Sleeper(sim, sim.store.subscribe("t", "g")) for _ in range(2))
    sim.store.publish("t", b"later", delay=20)
    assert {first.until, second.until} == {sim.clock.monotonic() + 20, float("inf")}, "a commit wakes one of them"
    knows, other = (first, second) if first.until < second.until else (second, first)
    knows.leave()
    assert other.until == sim.clock.monotonic() + 20


def test_a_lease_that_is_made_shorter_ends_sooner_for_those_who_wait(sim: Sim) -> None:
    sim.store.publish("t", b"held")
    message = one(sim.store.subscribe("t", "g", lease=30))
    sleeper = Sleeper(sim, sim.store.subscribe("t", "g"))
    message.extend(1)
    assert sleeper.until == sim.clock.monotonic() + 1
    message.extend(60)
    assert not sleeper.is_woken, "a longer one is no news"


def test_who_waits_hears_of_a_dead_letter_that_is_to_be_tried_again(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was being written when the consumer went to sleep, and then there was no room for it."""
    sim.store.publish("t", b"bad")
    message = one(sim.store.subscribe("t", "g", lease=3_600))
    sleeper = Sleeper(sim, sim.store.subscribe("t", "g"))
    moves: list[Move] = []
    monkeypatch.setattr(sim.group(), "_mover", moves.append)
    message.reject("no good")
    assert sleeper.until > sim.clock.monotonic() + 2 * MOVE_AGAIN_S
    sim.group().move_failed(moves[0], StorageFull("/s", None, None))
    assert sleeper.until <= sim.clock.monotonic() + 1.1 * MOVE_AGAIN_S
