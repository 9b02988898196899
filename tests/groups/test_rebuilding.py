"""After a restart lanes and delays are learned from the columns that tell, and values are looked at when they are handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import DamagedFile
from penstock.format import batch as batches
from penstock.format import columns as c
from penstock.format.checksum import crc32c as crc32c_of
from tests.groups.sim import Sim, one, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Consumer

COUNT = 200
HOUR = 3600.0


def _values(length: int) -> list[bytes]:
    return [b"%d." % at + b"." * length for at in range(10)]


def _publish_lanes(sim: Sim, length: int, compression: str) -> None:
    """Twenty batches; the last message is the most urgent one."""
    sim.store.create_topic("t", priorities=True, aging=0, segment_messages=50, compression=compression, coalesce_below_bytes=0)
    for _ in range(COUNT // 10):
        sim.store.publish_many("t", _values(length), priorities=["low"] * 9 + ["medium"])
    sim.store.publish("t", b"last", priority="high")


def _publish_delayed(sim: Sim, length: int, compression: str) -> None:
    """Twenty batches that are due in an hour, and a message that is due at once."""
    sim.store.create_topic("t", segment_messages=50, compression=compression, coalesce_below_bytes=0)
    for _ in range(COUNT // 10):
        sim.store.publish_many("t", _values(length), delays=[HOUR] * 10)
    sim.store.publish("t", b"last")


BOTH = pytest.mark.parametrize("publish", [_publish_lanes, _publish_delayed])
CODECS = pytest.mark.parametrize("compression", ["none", "gzip"])


def _seen(publish: Callable[[Sim, int, str], None], length: int = 100, compression: str = "none") -> Sim:
    """A group has passed over all of it, and finished nothing."""
    sim = Sim()
    publish(sim, length, compression)
    with sim.store.subscribe("t", "g", prefetch=1_000) as consumer:
        assert one(consumer).value == b"last"
    return sim


def _damage_values(sim: Sim, offset: int) -> None:
    """The value column of the batch with *offset* is not what was written, on the disk; the store is opened anew."""
    log = sim.store._volume.log("t")
    segment = log.segment(max(first for first in log.segment_firsts if first <= offset))
    position = segment.find(offset)
    batch = segment.read(position, log.committed_end, 1, verify=False)[0]
    entry = batch.entry(c.VALUE)
    assert entry is not None
    sim.store.close()
    file = sim.files.open(segment.path, write=True)
    at = position + entry.position + entry.stored_bytes - 4
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.sync_data()
    file.close()
    sim.restart()


def _drain(consumer: Consumer) -> tuple[list[int], DamagedFile]:
    """All offsets that are handed out, until there is nothing but the damage, which must be told."""
    found: list[int] = []
    told: DamagedFile | None = None
    while True:
        try:
            message = consumer.get(timeout=0)
        except DamagedFile as error:
            if told is not None:
                return found, told
            told = error
        else:
            assert message is not None
            found.append(message.offset)
            told = None


class _Count:
    """How many bytes were checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0

        def crc32c(data: Any, before: int = 0) -> int:
            self.bytes += len(data)
            return crc32c_of(data, before)

        monkeypatch.setattr(batches, "crc32c", crc32c)


@BOTH
@CODECS
def test_rebuilding_reads_no_values(publish: Any, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked does not grow with them, but for the message that is handed out."""
    counted = []
    for length in (10, 10_000):
        sim = _seen(publish, length, compression)
        sim.restart()
        consumer = sim.store.subscribe("t", "g", prefetch=1_000)
        count = _Count(monkeypatch)
        assert one(consumer).value == b"last"
        counted.append(count.bytes)
        monkeypatch.undo()
    assert counted[0] == counted[1] > 0


@BOTH
@CODECS
def test_values_that_are_damaged_are_told_when_they_would_be_handed_out(publish: Any, compression: str) -> None:
    """Not when lanes and delays are learned: everything else comes first."""
    sim = _seen(publish, 100, compression)
    _damage_values(sim, 20)
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    assert one(consumer).value == b"last"
    sim.clock.advance(HOUR + 1)
    found, told = _drain(consumer)
    assert told.path.endswith(f"{0:020}.log")
    assert {*range(20)} <= set(found)
    assert not set(range(20, 30)) & set(found)


def test_a_damaged_value_keeps_back_its_lane_only() -> None:
    """What is more or less urgent, and other partitions, are handed out; then it is told."""
    sim = _seen(_publish_lanes)
    _damage_values(sim, 20)
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    assert set(_drain(consumer)[0]) == {COUNT, *range(20)}


def test_a_message_that_failed_is_verified_before_it_is_delivered_again() -> None:
    """In a plain topic too."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, coalesce_below_bytes=0)
    sim.store.publish_many("t", _values(100))
    sim.store.publish("t", b"last")
    with sim.store.subscribe("t", "g", prefetch=1) as consumer:
        consumer.nack(one(consumer), delay=0)
        sim.store.flush()
    _damage_values(sim, 0)
    consumer = sim.store.subscribe("t", "g")
    with pytest.raises(DamagedFile):
        consumer.get_many(10, timeout=0)


def test_a_damaged_value_does_not_become_a_dead_letter() -> None:
    """Neither of what expired nor of what failed too often."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=10, coalesce_below_bytes=0, expired="dead_letter", ttl=HOUR)
    sim.store.publish_many("t", _values(100))
    sim.store.publish("t", b"last")
    with sim.store.subscribe("t", "g", prefetch=10) as consumer:
        take(consumer)
    _damage_values(sim, 0)
    sim.clock.advance(HOUR + 1)
    consumer = sim.store.subscribe("t", "g")
    with pytest.raises(DamagedFile):
        consumer.get_many(10, timeout=0)
    assert list(sim.store.dead_letters("t").list()) == []


@BOTH
def test_damaged_priorities_and_due_times_are_told_when_they_are_learned(publish: Any) -> None:
    """Nobody goes by them."""
    sim = _seen(publish)
    log = sim.store._volume.log("t")
    segment = log.segment(0)
    position = segment.find(20)
    batch = segment.read(position, log.committed_end, 1, verify=False)[0]
    entry = batch.entry(c.PRIORITY) or batch.entry(c.DELIVER)
    assert entry is not None
    sim.store.close()
    file = sim.files.open(segment.path, write=True)
    file.pwrite(b"\xff", position + entry.position)
    file.sync_data()
    file.close()
    sim.restart()
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    with pytest.raises(DamagedFile):
        while True:
            take(consumer)
