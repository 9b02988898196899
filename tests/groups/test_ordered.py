"""Ordered groups: who gets which partition, and when."""

from __future__ import annotations

from tests.groups.sim import Sim, numbered, take


def test_a_seek_does_not_stall_a_partition_that_is_on_its_way_to_another_member() -> None:
    """What the old member held is void, so there is nothing left to wait for."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2)
    for partition in (0, 1):
        sim.store.publish_many("t", numbered(3), partition=partition)
    old = sim.store.subscribe("t", "g", ordered=True)
    held = take(old)
    assert len(held) == 6
    new = sim.store.subscribe("t", "g")
    assert take(new) == []
    sim.store.seek("t", "g", "earliest")
    found = [(message.partition, message.offset) for consumer in (old, new) for message in take(consumer)]
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(3)]
    assert new.in_flight == 3
