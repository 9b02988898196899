"""Topics with priorities: high before medium before low, first in first out in each, and nothing starves or is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadSetting
from tests.groups.sim import Sim, numbered, offsets, one, take

if TYPE_CHECKING:
    import random

MANY: dict[str, Any] = {"segment_bytes": 700, "coalesce_below_bytes": 300, "coalesce_to_bytes": 900, "index_interval_bytes": 64}
LOW, MEDIUM, HIGH = LANES = ["low", "medium", "high"]
MIXED = [LOW, HIGH, MEDIUM, LOW, HIGH, MEDIUM]


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t", priorities=True, **MANY)
    return sim


def served(priorities: list[str], done: frozenset[int] | set[int] = frozenset()) -> list[int]:
    """The offsets in the order in which they should come."""
    left = [at for at in range(len(priorities)) if at not in done]
    return sorted(left, key=lambda at: (-LANES.index(priorities[at]), at))


def test_high_comes_before_medium_and_that_before_low(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    assert offsets(take(consumer)) == [1, 4, 2, 5, 0, 3]


def test_batches_honour_it_too(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    assert offsets(consumer.get_many(4, timeout=0)) == [1, 4, 2, 5]
    sim.store.publish("t", b"urgent", priority=HIGH)
    assert offsets(consumer.get_many(9, timeout=0)) == [6, 0, 3]


def test_a_message_without_a_priority_is_low(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"x")
    sim.store.publish("t", b"y", priority=MEDIUM)
    assert offsets(take(consumer)) == [1, 0]


def test_a_later_one_does_not_wait_behind_what_was_fetched_ahead(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    sim.store.publish_many("t", numbered(500))
    one(consumer).ack()
    sim.store.publish("t", b"urgent", priority=HIGH)
    assert one(consumer).value == b"urgent"


def test_the_most_urgent_of_all_partitions_comes_first(sim: Sim) -> None:
    sim.store.create_topic("wide", partitions=4, priorities=True)
    consumer = sim.store.subscribe("wide", "g")
    for partition in range(4):
        sim.store.publish_many("wide", numbered(5), partition=partition, priorities=LANES[partition % 3])
    assert [message.priority for message in consumer.get_many(20, timeout=0)] == [HIGH] * 5 + [MEDIUM] * 5 + [LOW] * 10


@pytest.mark.parametrize("how", ["restart", "kill", "lose_power", "merge"])
def test_nothing_is_lost_when_it_is_partly_drained_and_opened_again(sim: Sim, how: str, rng: random.Random) -> None:
    """Over many segments, whichever way the store ended."""
    consumer = sim.store.subscribe("t", "g")
    priorities = rng.choices(LANES, k=200)
    for at in range(0, 200, 4):
        sim.store.publish_many("t", numbered(4, at), priorities=priorities[at : at + 4])
    done = set()
    for message in consumer.get_many(90, timeout=0):
        done.add(message.offset)
        message.ack()
    assert sorted(done) == sorted(served(priorities)[:90])
    sim.store.flush()
    if how == "merge":
        sim.checkpoint()
        sim.store._volume.coalesce()
    store = getattr(sim, "kill" if how == "merge" else how)()
    assert len(store._catalog.get("t").logs[0].segment_firsts) > 5
    found = []
    consumer = store.subscribe("t", "g")
    while (message := consumer.get(timeout=0)) is not None:
        assert message.value == b"%d" % message.offset
        found.append(message.offset)
        message.ack()
    assert found == served(priorities, done)


def test_what_failed_goes_back_into_its_lane(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    for message in consumer.get_many(3, timeout=0):
        message.nack(delay=0)
    assert offsets(take(consumer)) == [1, 4, 2, 5, 0, 3]


def test_what_was_not_handled_goes_back_into_its_lane(sim: Sim) -> None:
    first, second = (sim.store.subscribe("t", "g") for _ in range(2))
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    assert offsets(first.get_many(3, timeout=0)) == [1, 4, 2]
    first.close()
    assert offsets(take(second)) == [1, 4, 2, 5, 0, 3]


def test_a_seek_begins_anew_and_each_group_has_its_own(sim: Sim) -> None:
    """All from the new place on comes again, by lane; the other group goes on where it was."""
    consumer, other = sim.store.subscribe("t", "g"), sim.store.subscribe("t", "other")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    for message in consumer.get_many(4, timeout=0):
        message.ack()
    sim.store.seek("t", "g", {0: 2})
    assert offsets(take(consumer)) == [4, 2, 5, 3]
    assert offsets(take(other)) == [1, 4, 2, 5, 0, 3]
    consumer.commit(5, 0)
    sim.store.seek("t", "g", "latest")
    sim.store.publish("t", b"x")
    assert offsets(take(consumer)) == [6]


def test_a_commit_takes_what_lies_below_out_of_the_lanes(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    one(consumer).ack()
    consumer.commit(4, 0)
    assert offsets(take(consumer)) == [4, 5]


def test_what_fails_for_the_last_time_becomes_a_dead_letter(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", max_deliveries=2, backoff=0)
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    for _ in range(2):
        assert one(consumer).offset == 1
        consumer.nack([message for member in sim.group().members for message in member.handed.values()], delay=0)
    assert offsets(take(consumer)) == [4, 2, 5, 0, 3]
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"1"]


def test_who_waits_too_long_is_served_as_the_next_lane_up(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"0 low")
    sim.clock.advance(31)
    sim.store.publish("t", b"1 medium", priority=MEDIUM)
    sim.store.publish("t", b"2 high", priority=HIGH)
    assert [message.value for message in take(consumer)] == [b"2 high", b"0 low", b"1 medium"]


def test_and_then_as_the_next(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"0 low")
    sim.store.publish("t", b"1 medium", priority=MEDIUM)
    sim.clock.advance(61)
    sim.store.publish("t", b"2 high", priority=HIGH)
    sim.store.publish("t", b"3 high", priority=HIGH)
    assert offsets(take(consumer)) == [0, 2, 1, 3]


def test_nothing_starves_and_an_old_backlog_does_not_invert_the_order(sim: Sim) -> None:
    """What has aged and what is urgent take turns."""
    consumer = sim.store.subscribe("t", "g", prefetch=10_000)
    sim.store.publish_many("t", numbered(100))
    sim.clock.advance(100)
    found = []
    for _ in range(30):
        sim.store.publish_many("t", [b"urgent"] * 2, priorities=HIGH)
        found += [message.priority for message in consumer.get_many(2, timeout=0)]
    assert (found.count(LOW), found.count(HIGH)) == (30, 30)


def test_a_low_message_is_served_in_time_while_high_ones_go_on_for_ever(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"low")
    for second in range(70):
        sim.store.publish_many("t", [b"urgent"] * 2, priorities=HIGH)
        message = one(consumer)
        message.ack()
        if message.value == b"low":
            assert second >= 60
            return
        sim.clock.advance(1)
    pytest.fail("it starved")


def test_aging_is_a_setting_and_can_be_off(sim: Sim) -> None:
    for aging_ms, expected in ((0, [2, 3, 1, 0]), (1_000, [0, 2, 1, 3])):
        topic = f"aging-{aging_ms}"
        sim.store.create_topic(topic, priorities=True, aging_ms=aging_ms)
        consumer = sim.store.subscribe(topic, "g")
        sim.store.publish_many(topic, numbered(2), priorities=[LOW, MEDIUM])
        sim.clock.advance(3)
        sim.store.publish_many(topic, numbered(2), priorities=HIGH)
        assert offsets(take(consumer)) == expected


def test_ages_are_known_after_a_restart_too(sim: Sim) -> None:
    sim.store.subscribe("t", "g").get(timeout=0)
    for at in range(0, 40, 2):
        sim.store.publish_many("t", numbered(2, at), priorities=[LOW, MEDIUM])
        sim.clock.advance(2)
    sim.store._volume.coalesce()
    store = sim.restart()
    found = offsets(take(store.subscribe("t", "g")))
    old = [at for at in range(1, 40, 2) if 40 - at + 1 > 31]  # medium ones that have waited for more than 30 s
    assert found[: len(old)] == old
    assert sorted(found) == list(range(40))


def test_an_ordered_group_is_refused(sim: Sim) -> None:
    with pytest.raises(BadSetting, match="a topic with priorities has no order to keep"):
        sim.store.subscribe("t", "g", ordered=True)


def test_what_was_delayed_waits_since_it_was_due(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"later", delay=600)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(600)
    sim.store.publish("t", b"medium", priority=MEDIUM)
    assert offsets(take(consumer)) == [1, 0], "it has not aged though it is old"


def test_delay_lane_expiry_failure_and_restart_across_segments(sim: Sim) -> None:
    """All of them together; the model does the same at random."""
    consumer = sim.store.subscribe("t", "g", backoff=1, lease=900)
    for number in range(20):
        sim.store.publish_many(
            "t",
            numbered(4, 4 * number),
            priorities=[LOW, HIGH, MEDIUM, HIGH],
            delays=[None, 10, None, 20],
            ttls=[None, 15, 5, None],
        )
    first = consumer.get_many(10, timeout=0)
    assert {message.priority for message in first} == {MEDIUM}
    for message in first[:5]:
        message.nack(delay=8)
    consumer.ack(first[5:], wait=True)
    sim.clock.advance(10)
    store = sim.kill()
    consumer = store.subscribe("t", "g", lease=900)
    due = consumer.get_many(20, timeout=0)
    assert offsets(due) == [4 * number + 1 for number in range(20)], "due by now, and high; what is medium has expired"
    consumer.ack(due, wait=True)
    store = sim.restart()
    consumer = store.subscribe("t", "g", lease=900)
    assert offsets(take(consumer)) == [4 * number for number in range(20)]
    assert store.stats().topics["t"].groups["g"].lag == 40
    sim.clock.advance(10)
    assert offsets(take(consumer)) == [4 * number + 3 for number in range(20)]


def test_a_suspect_comes_alone_and_the_lanes_go_on(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), priorities=MIXED)
    assert len(consumer.get_many(2, timeout=0)) == 2
    sim.store.flush()
    store = sim.lose_power(keep="everything")
    consumer = store.subscribe("t", "g", concurrency=9)
    assert list(sim.group().cursors[0].suspects) == [1, 4]
    found = [offsets(consumer.get_many(9, timeout=0)) for _ in range(3)]
    assert found == [[1], [2, 5, 0, 3], []]
