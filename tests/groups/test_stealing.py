"""A member with nothing to do takes what another one has leased and was not handed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import LeaseExpired
from tests.groups.sim import Sim, numbered, offsets, one, take

if TYPE_CHECKING:
    import random


def _busy(count: int, prefetch: int = 100) -> tuple[Sim, list[int]]:
    """A store whose one consumer leases all of *count* messages and is handed the first."""
    sim = Sim()
    sim.store.publish_many("t", numbered(count))
    busy = sim.store.subscribe("t", "g", prefetch=prefetch, max_deliveries=0)
    return sim, [one(busy).offset]


def test_an_idle_member_gets_half_of_what_waits_with_a_busy_one() -> None:
    """The last half, so that what is nearest to being handled stays; in order."""
    sim, _ = _busy(9)
    idle = sim.store.subscribe("t", "g")
    assert offsets([one(idle)]) == [5]
    busy, thief = sim.group().members
    assert (busy.buffered, thief.buffered) == (4, 3)
    assert offsets(take(idle, 3)) == [6, 7, 8]


def test_a_member_whose_loot_has_expired_takes_more() -> None:
    """Else it would wait, though there is a message that nobody has in hand."""
    sim = Sim()
    sim.store.publish_many("t", numbered(4), ttls=[100, 100, 5, 5])
    busy = sim.store.subscribe("t", "g", lease=60)
    assert one(busy).offset == 0
    idle = sim.store.subscribe("t", "g")
    sim.clock.advance(10)
    assert offsets([one(idle)]) == [1]


def test_what_was_handed_out_is_not_stolen() -> None:
    """Every message is with one consumer, whatever the others take."""
    sim, held = _busy(10)
    others = [sim.store.subscribe("t", "g") for _ in range(3)]
    found = [offset for _ in range(12) for other in others for offset in offsets(other.get_many(1, timeout=0))]
    assert sorted(found) == sorted(set(range(10)) - set(held))


def test_a_paused_member_keeps_nothing_from_the_others() -> None:
    """Its prefetch goes to those who ask, to the last message."""
    sim = Sim()
    sim.store.publish_many("t", numbered(6))
    paused = sim.store.subscribe("t", "g")
    first = one(paused)
    paused.pause()
    other = sim.store.subscribe("t", "g")
    assert sorted(offsets(take(other))) == [1, 2, 3, 4, 5]
    paused.resume()
    assert paused.get(timeout=0) is None
    first.ack()


def test_a_thief_takes_no_more_than_it_may_hold() -> None:
    """Its prefetch counts what it has, too."""
    sim, _ = _busy(30)
    thief = sim.store.subscribe("t", "g", prefetch=3)
    assert len(take(thief)) == 3
    _, member = sim.group().members
    assert (member.in_flight, member.buffered) == (3, 0)


def test_what_is_fresh_comes_before_what_could_be_stolen() -> None:
    """As long as there is something that nobody has, nobody loses anything."""
    sim, _ = _busy(4)
    sim.store.publish_many("t", numbered(2, 4))
    other = sim.store.subscribe("t", "g")
    assert one(other).offset == 4
    busy, _ = sim.group().members
    assert busy.buffered == 3


def test_an_ordered_group_steals_nothing() -> None:
    """A partition is with one consumer; another one without a partition waits."""
    sim = Sim()
    sim.store.publish_many("t", numbered(5))
    busy = sim.store.subscribe("t", "g", ordered=True)
    assert one(busy).offset == 0
    other = sim.store.subscribe("t", "g")
    assert take(other) == []
    assert offsets(take(busy)) == [1, 2, 3, 4]


def test_the_victim_may_leave_and_the_thief_keeps_its_own() -> None:
    """Leaving gives back what the member has, not what it had."""
    sim, _ = _busy(8)
    thief = sim.store.subscribe("t", "g")
    stolen = take(thief, 4)
    sim.store.flush()
    busy = next(iter(sim.store._consumers - {thief}))
    busy.close()
    rest = take(thief)
    assert sorted(offsets(stolen + rest)) == list(range(8))
    thief.ack(stolen + rest, wait=True)
    assert sim.store.stats().topics["t"].groups["g"].lag == 0


def test_a_death_is_put_down_to_what_each_was_handling() -> None:
    """The victim had 0 in its hands and the thief the first of what it took; nothing else is blamed, or suspect."""
    sim, _ = _busy(8)
    stolen = one(sim.store.subscribe("t", "g")).offset
    sim.store.flush()
    sim.kill()
    assert sim.failures() == {0: 1, stolen: 1}
    assert set(sim.group().cursors[0].suspects) == {0, stolen}


def test_a_lease_begins_when_it_is_handed_out_not_when_it_is_stolen() -> None:
    """What lies in a prefetch has no deadline."""
    sim, _ = _busy(6)
    thief = sim.store.subscribe("t", "g", lease=10)
    first = one(thief)
    sim.clock.advance(8)
    second = one(thief)
    sim.clock.advance(4)
    second.ack()
    try:
        first.ack()
    except LeaseExpired:
        pass
    else:
        raise AssertionError("its lease has ended")


def test_every_message_comes_once_however_many_steal(rng: random.Random) -> None:
    """Members come, take, pause, and go; no message is with two, and all are finished once."""
    for _ in range(40):
        sim = Sim()
        sim.store.create_topic("t", partitions=2)
        sim.store.publish_many("t", numbered(20), partition=0)
        sim.store.publish_many("t", numbered(20), partition=1)
        consumers = [sim.store.subscribe("t", "g", prefetch=rng.choice([1, 4, 30]), max_deliveries=0)]
        held: dict[tuple[int, int], object] = {}
        done: set[tuple[int, int]] = set()
        while len(done) < 40:
            consumer = rng.choice(consumers)
            kind = rng.choices(["get", "ack", "join", "leave", "pause"], [10, 6, 2, 1, 1])[0]
            if kind == "get":
                for message in consumer.get_many(rng.randint(1, 5), timeout=0):
                    place = (message.partition, message.offset)
                    assert place not in held
                    assert place not in done
                    held[place] = message
            elif kind == "ack" and held:
                place = rng.choice(list(held))
                held.pop(place).ack()  # type: ignore[attr-defined]
                done.add(place)
            elif kind == "join" and len(consumers) < 4:
                consumers.append(sim.store.subscribe("t", "g", prefetch=rng.choice([1, 4, 30])))
            elif kind == "leave" and len(consumers) > 1:
                consumers.remove(consumer)
                held = {place: one for place, one in held.items() if one._lot.member is not consumer._member}  # type: ignore[attr-defined]
                consumer.close()
            elif kind == "pause" and consumer is not consumers[0]:
                (consumer.resume if consumer.paused else consumer.pause)()
        assert sim.store.stats().topics["t"].groups["g"].lag == 0
