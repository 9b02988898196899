"""A wall clock that jumps ahead expires no message: a message that a group passed over as expired would be lost for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.clock import WatchedClock
from penstock.database import following
from penstock.server.running import RunningServer
from penstock.store.store import Store
from penstock.testing import FakeClock
from tests.client.served import PATIENCE_S
from tests.conformance.backends import SETTINGS
from tests.groups.sim import Sim, numbered, offsets, one, take

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3_600.0
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priorities": {"priorities": True},
    "dead letters": {"expired": "dead_letter"},
}


def expired(store: Any) -> int:
    return int(store.stats().topics["t"].groups["g"].expired)


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("ttls", [60, [60, 120, None, 60, 60]])
def test_a_jump_ahead_expires_nothing_and_what_is_old_by_both_clocks_expires(kind: str, ttls: Any) -> None:
    sim = Sim()
    sim.store.create_topic("t", **TOPICS[kind])
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(5), ttls=ttls)
    sim.clock.jump_wall(HOUR_S)
    messages = take(consumer)
    assert (offsets(messages), expired(sim.store)) == ([0, 1, 2, 3, 4], 0)
    for message in messages:
        message.ack()
    sim.store.publish_many("t", numbered(2), ttls=60)
    sim.clock.advance(61)
    assert (take(consumer), expired(sim.store)) == ([], 2), "what is stored after a jump goes by the new time"
    sim.store.publish_many("t", numbered(2), ttls=60)
    sim.clock.jump_wall(HOUR_S)
    messages = take(consumer)
    assert (offsets(messages), expired(sim.store)) == ([7, 8], 2), "and lives on over the next jump"


def test_nor_what_was_leased_ahead_nor_what_failed_nor_what_was_delayed() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    consumer = sim.store.subscribe("t", "g", lease=600)
    sim.store.publish_many("t", numbered(4), ttls=600, delays=[None, None, None, 30])
    one(consumer).nack(delay=1)
    assert one(consumer).offset == 1
    sim.clock.advance(60)
    sim.clock.jump_wall(HOUR_S)
    assert sorted(offsets(take(consumer))) == [0, 2, 3]
    assert expired(sim.store) == 0


def test_a_jump_that_goes_on_is_believed_after_an_hour() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2), ttls=3 * HOUR_S)
    sim.clock.jump_wall(4 * HOUR_S)
    assert one(consumer).offset == 0
    sim.clock.advance(HOUR_S + 1)
    assert consumer.get(timeout=0) is None
    assert expired(sim.store) == 2, "also the one whose lease ended meanwhile"


def test_a_store_that_was_closed_for_longer_delivers_nothing_that_has_expired() -> None:
    """The time at opening is believed: else each restart would hand out for a minute what is over."""
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(3), ttls=60)
    sim.store.close()
    sim.clock.advance(HOUR_S)
    store = sim._open()
    assert store.subscribe("t", "g").get(timeout=0) is None


def test_over_a_server(tmp_path: Path) -> None:
    clock = FakeClock()
    with Store.open(str(tmp_path / "s"), settings=SETTINGS, clock=clock) as store:
        store.create_topic("t")
        with RunningServer(store) as server, penstock.open(server.address) as client:
            client.publish_many("t", numbered(3), ttls=60)
            clock.jump_wall(HOUR_S)
            with client.subscribe("t", "g") as consumer:
                for offset in range(3):
                    message = consumer.get(timeout=PATIENCE_S)
                    assert message is not None
                    assert message.offset == offset
                    message.ack(wait=True)
            clock.jump_wall(-HOUR_S)
            client.publish_many("t", numbered(2), ttls=60)
            clock.advance(61)
            client.publish("t", b"lives")
            with client.subscribe("t", "g") as consumer:
                message = consumer.get(timeout=PATIENCE_S)
                assert message is not None
                assert message.value == b"lives"
        assert expired(store) == 2


def test_a_consumer_with_a_database_passes_over_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(following, "_clock", WatchedClock(clock, HOUR_S))
    before = clock.now_us()
    clock.jump_wall(2 * HOUR_S)
    assert following._now_us(before) == before
    clock.advance(60)
    assert following._now_us(before) == before + 60_000_000
    assert following._now_us(clock.now_us() - 1) == clock.now_us()
