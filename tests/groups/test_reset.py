"""What a group does when retention took messages that it had not finished."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import LeaseExpired, OffsetOutOfRange
from penstock.volume.tickets import MoveLogStart
from tests.groups.sim import Sim, offsets, one, take
from tests.one_log import replace_of


def _published(sim: Sim, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        sim.store.publish("t", b"%d" % number)


def _retained(sim: Sim) -> int:
    """Let retention take all sealed segments; returns the first offset that is left."""
    sim.checkpoint()
    sim.checkpoint()
    sim.store.retain("t")
    return sim.store.stats().topics["t"].starts[0]


def _made(retention_bytes: int = 1) -> Sim:
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, retain="always", retention_bytes=retention_bytes)
    return sim


def test_messages_are_not_withheld_by_the_error_for_what_comes_after_them() -> None:
    """With reset=fail: what the consumer has leased already is handed to the caller, and the next call fails."""
    sim = _made()
    _published(sim, 3)
    consumer = sim.store.subscribe("t", "g", reset="fail", max_deliveries=1)
    assert one(consumer).offset == 0
    _published(sim, 40, 3)
    assert _retained(sim) > 3
    found = []
    try:
        found = consumer.get_many(10, timeout=0)
    except OffsetOutOfRange:
        assert consumer.in_flight == 1, "messages are with a consumer that never saw them"
    else:
        assert offsets(found) == [1, 2]
    with pytest.raises(OffsetOutOfRange):
        while True:
            assert consumer.get_many(10, timeout=0)


@pytest.mark.parametrize("way", ["close", "nack", "expire"])
def test_a_skipped_message_that_comes_back_does_not_skip_the_rest(way: str) -> None:
    """With reset=latest the group goes on at the end once; what is published after that is delivered."""
    sim = _made()
    _published(sim, 1)
    consumer = sim.store.subscribe("t", "g", reset="latest", lease=30)
    held = one(consumer)
    _published(sim, 40, 1)
    assert _retained(sim) > 1
    assert take(consumer) == []  # it goes on at 41
    _published(sim, 3, 41)
    if way == "close":
        consumer.close()
        consumer = sim.store.subscribe("t", "g")
    elif way == "nack":
        with pytest.raises(LeaseExpired):
            held.nack(delay=0)
    else:
        sim.clock.advance(31)
    assert offsets(take(consumer)) == [41, 42, 43]


@pytest.mark.parametrize("delay", [None, 3600], ids=["leased", "put aside"])
def test_a_store_opens_after_retention_took_messages_while_they_were_leased(
    delay: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group skips to the end in the middle of a lease; what is noted of it must be possible."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=1, retain="always", retention_messages=1)
    for _ in range(4):
        sim.store.publish("t", bytes(300_000), delay=delay)
    sim.checkpoint()
    sim.checkpoint()
    consumer = sim.store.subscribe("t", "g", reset="latest")
    log = sim.store._volume.log("t")
    read, reads = log.read, []

    def read_after_retention(*arguments: Any, **named: Any) -> Any:
        reads.append(arguments)
        if len(reads) == 2:
            # The group's lock is held, so as `retain` does it: the start first, then the files.
            sim.store._volume.commit_changes([MoveLogStart(log, 3)])
        return read(*arguments, **named)

    replace_of(monkeypatch, log, "read", read_after_retention)
    assert consumer.get(timeout=0) is None
    assert len(reads) == 2
    consumer.flush()
    store = sim.kill()
    assert store.stats().topics["t"].groups["g"].lag == 0
    store.publish("t", b"next")
    assert one(store.subscribe("t", "g")).value == b"next"
