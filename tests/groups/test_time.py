"""Leases and delays of a group, where settings, members or the process change in between."""

from __future__ import annotations

import pytest

from penstock.testing import FakeClock
from tests.groups.sim import DAY_S, Sim, numbered, one, open_store, take


def test_a_lease_that_was_made_shorter_holds_for_what_is_handed_out_after_it() -> None:
    """Also where the consumer holds an older message with the long lease."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    slow = sim.store.subscribe("t", "g", lease=300)
    assert one(slow).offset == 0
    other = sim.store.subscribe("t", "g", lease=1)
    assert one(slow).offset == 1
    sim.clock.advance(2)
    found = one(other)
    assert (found.offset, found.attempt) == (1, 2)


def test_the_delay_of_a_suspect_survives_a_kill() -> None:
    """It was asked for by the consumer, and holds for a message that was with a dead consumer before too."""
    sim = Sim()
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g", max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    consumer = store.subscribe("t", "g")
    one(consumer).nack(delay=100)
    consumer.flush()
    store = sim.kill()
    consumer = store.subscribe("t", "g")
    sim.clock.advance(99)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(5)
    assert one(consumer).attempt == 3


def test_a_delay_is_not_cut_short_by_a_checkpoint_and_a_kill() -> None:
    """Never early, not even by a tenth of a second."""
    sim = Sim()
    sim.clock.advance(0.06)
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g")
    one(consumer).nack(delay=0.09)
    consumer.flush()
    sim.checkpoint()
    store = sim.kill()
    consumer = store.subscribe("t", "g")
    sim.clock.advance(0.08)
    assert take(consumer) == []
    sim.clock.advance(0.2)
    assert one(consumer).attempt == 2


@pytest.mark.parametrize("delay", [5e-324, 1e-300, 1e-9, 0.031, 0.033])
def test_a_message_comes_again_after_the_shortest_delays(sim: Sim, delay: float) -> None:
    sim.store.publish("t", b"")
    consumer = sim.store.subscribe("t", "g")
    one(consumer).nack(delay=delay)
    sim.clock.advance(0.04)
    assert one(consumer).attempt == 2


def test_a_shorter_lease_ends_when_it_says_so() -> None:
    """Though a message with a longer one was handed out before it."""
    clock = FakeClock()
    store = open_store(clock=clock)
    store.publish_many("t", [b"0", b"1"])
    consumer = store.subscribe("t", "g", lease=100)
    one(consumer)
    other = store.subscribe("t", "g", lease=5)
    second = one(consumer)
    clock.advance(6)
    message = other.get(timeout=0)
    assert message is not None
    assert message.offset == second.offset


def test_a_message_nacked_for_a_week_does_not_come_after_a_day_because_of_a_restart() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    consumer = sim.store.subscribe("t", "g")
    one(consumer).nack(delay=7 * DAY_S)
    sim.restart()
    sim.clock.advance(2 * DAY_S)
    assert take(sim.store.subscribe("t", "g")) == []
