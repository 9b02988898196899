"""Where a group goes on when retention took what it had not finished: at the first that is left, at the end, or not at all."""

from __future__ import annotations

import pytest

from penstock.errors import LeaseExpired, OffsetOutOfRange
from tests.groups.sim import Sim, offsets, one, take


def _made(reset: str, *, handed: int = 0) -> tuple[Sim, int]:
    """A group that was handed *handed* messages, and a log that has lost its beginning since; returns its first offset."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retain="always", retention_bytes=1)
    consumer = sim.store.subscribe("t", "g", reset=reset, prefetch=max(handed, 1), max_deliveries=0)
    _published(sim, 0, 45)
    assert len(take(consumer, handed)) == handed
    sim.store.retain("t")
    first = sim.store.stats().topics["t"].starts[0]
    assert handed < first < 45
    return sim, first


def _published(sim: Sim, first: int, end: int) -> None:
    for number in range(first, end):
        sim.store.publish("t", b"%d" % number)


def _consumer(sim: Sim):
    return next(iter(sim.store._consumers))


def test_earliest_goes_on_with_the_first_that_is_left() -> None:
    """And says how many it skipped."""
    sim, first = _made("earliest")
    consumer = sim.store.subscribe("t", "g", prefetch=100)
    assert offsets(take(consumer)) == list(range(first, 45))
    assert sim.store.stats().topics["t"].groups["g"].skipped == first


def test_latest_goes_on_with_what_is_published_from_now_on() -> None:
    """What is left is skipped, too."""
    sim, _ = _made("latest")
    consumer = sim.store.subscribe("t", "g", prefetch=100)
    assert take(consumer) == []
    _published(sim, 45, 48)
    assert offsets(take(consumer)) == [45, 46, 47]
    assert sim.store.stats().topics["t"].groups["g"].skipped == 45


def test_fail_tells_everybody_until_somebody_seeks() -> None:
    """Each call, each consumer, also after a restart; nothing is skipped."""
    sim, first = _made("fail")
    for reopen in (lambda: sim.store, sim.restart, sim.kill):
        store = reopen()
        for _ in range(2):
            consumer = store.subscribe("t", "g", prefetch=100)
            with pytest.raises(OffsetOutOfRange) as caught:
                consumer.get(timeout=0)
            assert caught.value.first == first
    assert sim.store.stats().topics["t"].groups["g"].positions == {0: 0}
    sim.store.seek("t", "g", "earliest")
    assert offsets(take(consumer)) == list(range(first, 45))


@pytest.mark.parametrize("how", ["restart", "kill", "lose_power"])
def test_a_reset_is_remembered(how: str) -> None:
    """Once its frame is durable: the group does not go back, and does not skip twice."""
    sim, _ = _made("latest")
    assert take(sim.store.subscribe("t", "g")) == []
    sim.store.flush()
    getattr(sim, how)()
    _published(sim, 45, 47)
    assert offsets(take(sim.store.subscribe("t", "g"))) == [45, 46]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_what_was_handed_out_is_void_once_the_group_has_skipped_it(reset: str) -> None:
    """Its consumer is told so; before the group has noticed it may still finish it."""
    sim, first = _made(reset, handed=3)
    consumer = _consumer(sim)
    messages = list(consumer._member.handed.values())
    messages[0].ack()
    other = sim.store.subscribe("t", "g", prefetch=100)
    assert offsets(take(other)) == (list(range(first, 45)) if reset == "earliest" else [])
    for message in messages[1:]:
        with pytest.raises(LeaseExpired):
            message.ack()
    assert consumer.in_flight == 0


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("way", ["nack", "expire", "close", "kill"])
def test_what_comes_back_and_is_gone_is_skipped(reset: str, way: str) -> None:
    """It failed, or its consumer did, and retention has taken it meanwhile: the group goes on behind it."""
    sim, first = _made(reset, handed=3)
    consumer = _consumer(sim)
    messages = list(consumer._member.handed.values())
    if way == "nack":
        consumer.nack(messages, delay=0)
    elif way == "expire":
        sim.clock.advance(31)
    elif way == "close":
        consumer.close()
    else:
        sim.store.flush()
        sim.kill()
    consumer = sim.store.subscribe("t", "g", prefetch=100)
    _published(sim, 45, 47)
    expected = range(first, 47) if reset == "earliest" else range(47, 47)
    found = take(consumer)
    # With "latest" it depends on when the group notices whether it gets the two that came since.
    assert offsets(found) == list(expected) or (reset == "latest" and offsets(found) == [45, 46])
    consumer.ack(found, wait=True)
    _published(sim, 47, 49)
    assert offsets(take(consumer)) == [47, 48]
    assert sim.store.stats().topics["t"].groups["g"].retrying == 0


def test_an_ordered_group_skips_in_each_partition_by_itself() -> None:
    """A partition that has lost nothing goes on where it was."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2, segment_messages=10, retain="always", retention_bytes=1)
    consumer = sim.store.subscribe("t", "g", ordered=True, reset="earliest", prefetch=100)
    for number in range(45):
        sim.store.publish("t", b"%d" % number, partition=0)
    sim.store.publish("t", b"x", partition=1)
    sim.store.retain("t")
    first = sim.store.stats().topics["t"].starts[0]
    found = take(consumer)
    assert sorted((message.partition, message.offset) for message in found) == [*[(0, at) for at in range(first, 45)], (1, 0)]


def test_retention_until_acked_waits_for_the_slowest_group() -> None:
    """With the default nothing is skipped by anybody, however little is to be kept."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retention_bytes=1)
    quick, slow = sim.store.subscribe("t", "quick", prefetch=100), sim.store.subscribe("t", "slow")
    _published(sim, 0, 45)
    quick.ack(take(quick), wait=True)
    held = take(slow, 12)
    slow.ack(held[:11], wait=True)
    sim.store.retain("t")
    assert sim.store.stats().topics["t"].starts[0] == 10
    assert one(slow).offset == 12
    held[11].ack()
    assert sim.store.stats().topics["t"].groups["slow"].skipped == 0
