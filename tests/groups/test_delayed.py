"""Delayed messages: never early, in the order in which they are due, and nothing lost on the way."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.groups import leasing
from penstock.groups.delays import Delays
from tests.groups.sim import Sim, numbered, offsets, one, take
from tests.one_log import replace_of

MANY: dict[str, Any] = {"segment_bytes": 700, "coalesce_below_bytes": 300, "coalesce_to_bytes": 900, "index_interval_bytes": 64}
"""Settings that make a segment of a few messages."""


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t", **MANY)
    return sim


def test_a_delayed_message_is_overtaken_and_comes_when_it_is_due(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"later", delay=10)
    sim.store.publish("t", b"now")
    assert offsets(take(consumer)) == [1]
    sim.clock.advance(9.999)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(0.001)
    assert one(consumer).value == b"later"


def test_a_datetime_is_the_moment(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    when = dt.datetime.fromtimestamp(sim.clock.now_us() / 1e6, dt.UTC) + dt.timedelta(minutes=2)
    sim.store.publish("t", b"x", delay=when)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(120)
    assert one(consumer).deliver_at == when


def test_they_come_in_the_order_of_due_times(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(6), delays=[5, 3, 9, 3, 1, 5])
    assert take(consumer) == []
    sim.clock.advance(20)
    assert offsets(take(consumer)) == [4, 1, 3, 0, 5, 2]


@pytest.mark.parametrize("restarted", [False, True])
def test_many_delayed_ones_are_passed_over_in_steps_between_which_others_have_the_group(
    sim: Sim, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """And yet who asks without waiting gets what lies behind all of them."""
    monkeypatch.setattr(leasing, "PASSES_MAX", 3)
    consumer = sim.store.subscribe("t", "g")
    for number in range(10):
        sim.store.publish("t", b"%d" % number, delay=100 + number)
    if restarted:
        assert take(consumer) == []
        consumer = sim.restart().subscribe("t", "g")
    sim.store.publish("t", b"now")
    group, calls = sim.group(), 0
    while not (found := group.take(consumer._member, 5)):
        assert consumer._member.passing
        calls += 1
    assert calls >= 3
    assert offsets(found) == [10]
    found[0].nack(delay=0)
    consumer.close()
    consumer = sim.restart().subscribe("t", "g")
    last = one(consumer)
    assert last.offset == 10
    last.ack()
    sim.clock.advance(200)
    assert offsets(take(consumer)) == list(range(10))


def test_who_waits_sleeps_until_the_next_one_is_due(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", lease=9_000)
    sim.store.publish_many("t", numbered(3), delays=[40, 20, 3_600])
    assert consumer.get(timeout=0) is None
    group = sim.group()
    assert group.wait_seconds() == 20
    sim.clock.advance(20)
    one(consumer).ack()
    assert consumer.get(timeout=0) is None
    assert group.wait_seconds() == 20
    sim.clock.advance(20)
    one(consumer).ack()
    assert consumer.get(timeout=0) is None
    assert group.wait_seconds() == 60, "who waits for long looks at the clock every minute, which may be set"


def test_firing_reads_what_is_due_and_nothing_else(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweep: who asks while nothing is due reads no batch, and what is due is read by itself, in order, of two thousand that wait."""
    consumer = sim.store.subscribe("t", "g")
    delays = [10 + (number * 7919 % 2_000) for number in range(2_000)]
    sim.store.publish_many("t", numbered(2_000), delays=delays)
    assert consumer.get(timeout=0) is None
    cursor = sim.group().cursors[0]
    assert len(cursor.delays) == 2_000
    read: list[int] = []
    looked: list[int] = []
    log, pop = cursor.log, Delays.pop
    read_log = log.read

    def counted_read(offset: int, *arguments: Any, **options: Any) -> Any:
        read.append(offset)
        return read_log(offset, *arguments, **options)

    def counted_pop(self: Delays, now_us: int) -> tuple[int, int] | None:
        looked.append(now_us)
        return pop(self, now_us)

    replace_of(monkeypatch, log, "read", counted_read)
    monkeypatch.setattr(Delays, "pop", counted_pop)
    for _ in range(50):
        assert consumer.get(timeout=0) is None
    assert (read, looked) == ([], [])
    sim.clock.advance(29)
    due = sorted(range(2_000), key=lambda number: delays[number])[:20]
    assert offsets(take(consumer)) == due
    # One more: the one that says that nothing is left.
    assert len(looked) <= 2 * len(due)
    assert len(read) <= len(due)
    assert len(cursor.delays) == 1_980


def test_a_clock_that_is_set_forward_is_noticed_within_a_minute(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"x", delay=86_400)
    assert consumer.get(timeout=0) is None
    sim.clock.jump_wall(90_000)
    sim.clock.advance(60)
    assert one(consumer).offset == 0


def test_a_clock_that_is_set_back_makes_nothing_early(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"x", delay=10)
    assert consumer.get(timeout=0) is None
    sim.clock.jump_wall(-100)
    sim.clock.advance(50)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(60)
    assert one(consumer).offset == 0


@pytest.mark.parametrize("end", ["restart", "kill", "lose_power", "checkpoint"])
def test_the_delay_goes_on_over_an_end_of_any_kind(sim: Sim, end: str) -> None:
    consumer = sim.store.subscribe("t", "g", lease=9_000)
    for number in range(20):
        sim.store.publish_many("t", numbered(3, 3 * number), delays=[30 - number, None, 60])
    for message in take(consumer):
        message.ack()
    sim.store.flush()
    sim.clock.advance(12)
    if end == "checkpoint":
        sim.checkpoint()
        sim.store._volume.coalesce()
        end = "kill"
    store = getattr(sim, end)()
    consumer = store.subscribe("t", "g")
    due = [3 * number for number in range(20) if 30 - number <= 12]
    assert sorted(offsets(take(consumer))) == due
    sim.clock.advance(18)
    assert offsets(take(consumer)) == [3 * number for number in reversed(range(20)) if 30 - number > 12]
    sim.clock.advance(30)
    assert offsets(take(consumer)) == [3 * number + 2 for number in range(20)]
    assert sim.failures() == {}, "nobody had them when it ended"


def test_what_was_delayed_is_not_blamed_for_a_death(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(4), delays=[5, None, 5, None])
    assert one(consumer).offset == 1
    sim.store.flush()
    sim.lose_power(keep="everything")
    assert set(sim.failures()) <= {1, 3}
    assert list(sim.group().cursors[0].suspects) == [1, 3]


def test_a_delayed_message_that_fails_waits_by_the_backoff_from_then_on(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", backoff=1)
    sim.store.publish("t", b"x", delay=5)
    assert consumer.get(timeout=0) is None
    sim.clock.advance(5)
    one(consumer).nack()
    assert consumer.get(timeout=0) is None
    sim.clock.advance(2)
    assert one(consumer).attempt == 2


def test_retention_keeps_the_segment_of_an_undelivered_message(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish("t", b"later", delay=90 * 86_400)
    for number in range(40):
        sim.store.publish("t", b"%d" % number * 20)
    for message in take(consumer):
        message.ack(wait=True)
    sim.clock.advance(89 * 86_400)
    sim.store.retain("t")
    assert sim.store.stats().topics["t"].starts[0] == 0
    sim.clock.advance(86_400)
    one(consumer).ack(wait=True)
    sim.store.retain("t")
    assert sim.store.stats().topics["t"].starts[0] > 0


def test_each_group_has_its_own_and_a_seek_brings_them_back(sim: Sim) -> None:
    first = sim.store.subscribe("t", "first")
    sim.store.publish_many("t", numbered(3), delays=[10, None, 20])
    assert offsets(take(first)) == [1]
    sim.clock.advance(10)
    second = sim.store.subscribe("t", "second")
    assert offsets(take(second)) == [0, 1], "to one that starts later it is a message like others"
    assert offsets(take(first)) == [0]
    sim.store.seek("t", "first", "earliest")
    assert offsets(take(first)) == [0, 1]
    sim.clock.advance(10)
    assert (offsets(take(first)), offsets(take(second))) == ([2], [2])


def test_a_commit_finishes_what_is_delayed_too(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(3), delays=[10, None, 20])
    assert offsets(take(consumer)) == [1]
    consumer.commit(2)
    sim.clock.advance(30)
    assert offsets(take(consumer)) == [2]


def test_an_ordered_group_is_overtaken_too(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g", ordered=True)
    sim.store.publish_many("t", numbered(4), delays=[None, 5, None, None])
    assert offsets(take(consumer)) == [0, 2, 3]
    sim.clock.advance(5)
    assert offsets(take(consumer)) == [1]


def test_what_retention_took_is_skipped(sim: Sim) -> None:
    sim.store.create_topic("always", retain="always", retention_bytes=1, **MANY)
    consumer = sim.store.subscribe("always", "g")
    failing = sim.store.subscribe("always", "strict", reset="fail")
    sim.store.publish("always", b"x", delay=5)
    assert consumer.get(timeout=0) is None
    assert failing.get(timeout=0) is None
    for number in range(40):
        sim.store.publish("always", b"%d" % number * 20)
    sim.store.retain("always")
    sim.clock.advance(5)
    assert offsets(take(consumer))[0] > 0
    assert sim.store.stats().topics["always"].groups["g"].skipped > 0
    with pytest.raises(OffsetOutOfRange):
        failing.get(timeout=0)
