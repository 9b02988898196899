"""Messages that expire: never handed out after that, finished, counted, and dead-lettered where the topic says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.sim import Sim, numbered, offsets, one, take

MANY: dict[str, Any] = {"segment_bytes": 700, "coalesce_below_bytes": 300, "coalesce_to_bytes": 900, "index_interval_bytes": 64}


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t", **MANY)
    return sim


def expired(sim: Sim, topic: str = "t") -> int:
    return sim.store.stats().topics[topic].groups["g"].expired


def lag(sim: Sim, topic: str = "t") -> int:
    return sim.store.stats().topics[topic].groups["g"].lag


def test_what_has_expired_is_passed_over_and_counted(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(5), ttls=[5, None, 10, 5, None])
    sim.clock.advance(5)
    messages = take(consumer)
    assert offsets(messages) == [1, 2, 4]
    assert expired(sim) == 2
    for message in messages:
        message.ack()
    assert (lag(sim), sim.group().position(0)) == (0, 5)


def test_a_message_lives_until_its_moment(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2), ttls=5)
    sim.clock.advance(4.999_999)
    assert one(consumer).offset == 0
    sim.clock.advance(0.000_001)
    assert consumer.get(timeout=0) is None, "also if it was leased ahead in time"
    assert expired(sim) == 1


def test_when_all_have_expired_there_is_nothing_and_no_error(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    for number in range(40):
        sim.store.publish_many("t", numbered(5, 5 * number), ttls=1)
    sim.store._volume.coalesce()
    sim.clock.advance(2)
    assert consumer.get_many(100, timeout=0) == []
    assert (expired(sim), lag(sim)) == (200, 0)
    store = sim.restart()
    assert store.subscribe("t", "g").get(timeout=0) is None
    assert expired(sim) == 0, "they were finished before, durably"


def test_one_that_expires_while_it_is_handled_may_still_be_finished(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"x", ttl=5)
    message = one(consumer)
    sim.clock.advance(6)
    message.ack()
    assert (lag(sim), expired(sim)) == (0, 0)


def test_one_that_expired_does_not_come_again_after_a_failure(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", backoff=1)
    sim.store.publish_many("t", numbered(2), ttls=[5, 50])
    for message in take(consumer):
        message.nack(delay=6)
    sim.clock.advance(7)
    assert offsets(take(consumer)) == [1]
    assert expired(sim) == 1


@pytest.mark.parametrize("how", ["kill", "lose_power", "restart"])
def test_it_does_not_come_back_after_the_end_of_the_process(sim: Sim, how: str) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(4), ttls=[5, None, 5, 20])
    assert len(consumer.get_many(4, timeout=0)) == 4
    sim.store.flush()
    sim.clock.advance(6)
    store = getattr(sim, how)()
    consumer = store.subscribe("t", "g")
    found = []
    while (message := consumer.get(timeout=0)) is not None:
        found.append(message.offset)
        message.ack()
    assert sorted(found) == [1, 3]
    assert expired(sim) == 2


def test_the_ttl_of_a_topic_counts_from_the_appending(sim: Sim) -> None:
    sim.store.create_topic("short", ttl=10, **MANY)
    consumer = sim.store.subscribe("short", "g")
    for _ in range(30):
        sim.store.publish_many("short", [b"own", b"none"], ttls=[100, None])
        sim.clock.advance(1)
    sim.store._volume.coalesce()
    found = offsets(take(consumer))
    assert found == [at for at in range(60) if at % 2 == 0 or at // 2 > 20]
    assert expired(sim, "short") == 60 - len(found)


def test_it_becomes_a_dead_letter_where_the_topic_says_so(sim: Sim) -> None:
    sim.store.create_topic("kept", expired="dead_letter", **MANY)
    consumer = sim.store.subscribe("kept", "g", max_deliveries=9, backoff=0)
    sim.store.publish_many("kept", numbered(3), ttls=[5, None, 5], keys=["a", "b", "c"])
    one(consumer).nack()
    sim.clock.advance(6)
    assert offsets(take(consumer)) == [1]
    letters = {int(one.headers["x-dlq-source-offset"]): one for one in sim.store.dead_letters("kept").list()}
    assert sorted(letters) == [0, 2]
    assert [letters[at].headers["x-dlq-reason"] for at in (0, 2)] == [b"expired", b"expired"]
    assert [letters[at].headers["x-dlq-deliveries"] for at in (0, 2)] == [b"1", b"0"]
    numbers = sim.store.stats().topics["kept"].groups["g"]
    assert (numbers.expired, numbers.dead_lettered, numbers.lag) == (2, 2, 1)
    store = sim.kill()
    store.subscribe("kept", "g").get(timeout=0)
    assert len(store.dead_letters("kept").list()) == 2


def test_very_many_dead_letters_are_written_some_at_a_time(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.groups.expiring.MOVES_MAX", 3)
    monkeypatch.setattr("penstock.groups.leasing.MOVES_MAX", 3)
    sim.store.create_topic("kept", expired="dead_letter", **MANY)
    consumer = sim.store.subscribe("kept", "g")
    sim.store.publish_many("kept", numbered(11), ttls=[1] * 10 + [None])
    sim.clock.advance(2)
    calls = 0
    while (message := consumer.get(timeout=0)) is None:
        calls += 1
        assert calls < 10
    assert (message.offset, calls) == (10, 3)
    assert len(sim.store.dead_letters("kept").list()) == 10


def test_an_ordered_group_goes_on_behind_what_expired(sim: Sim) -> None:
    sim.store.create_topic("kept", expired="dead_letter", **MANY)
    for topic in ("t", "kept"):
        consumer = sim.store.subscribe(topic, "g", ordered=True)
        sim.store.publish_many(topic, numbered(5), ttls=[1, None, 1, 1, None])
        sim.clock.advance(2)
        found = []
        for _ in range(8):
            found += offsets(take(consumer))
        assert found == [1, 4]
        assert expired(sim, topic) == 3


def test_a_delayed_message_may_expire_before_it_is_due(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2), delays=10, ttls=[5, 15])
    assert consumer.get(timeout=0) is None
    sim.clock.advance(10)
    assert offsets(take(consumer)) == [1]
    assert expired(sim) == 1


def test_what_another_consumer_takes_over_is_looked_at_too(sim: Sim) -> None:
    busy, idle = (sim.store.subscribe("t", "g", prefetch=8, lease=900) for _ in range(2))
    sim.store.publish_many("t", numbered(8), ttls=5)
    assert one(busy).offset == 0
    assert one(idle).offset > 0
    sim.clock.advance(6)
    assert (busy.get(timeout=0), idle.get(timeout=0)) == (None, None)
    assert expired(sim) == 6
