"""Suspects: messages that were in the hands of a process that died, and those beside them that must not suffer for it."""

from __future__ import annotations

from tests.groups.sim import Sim, numbered, one, take


def test_a_lease_ends_though_a_suspect_came_next() -> None:
    """I19. A call hands out a message of partition 0 and stops before the suspect of partition 1: the lease must end all the same."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2)
    sim.store.publish("t", b"suspect", partition=1)
    one(sim.store.subscribe("t", "g", max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    store.publish("t", b"plain", partition=0)
    consumer = store.subscribe("t", "g", lease=10)
    assert [message.value for message in consumer.get_many(2, timeout=0)] == [b"plain"]
    consumer.pause()
    other = store.subscribe("t", "g")
    sim.clock.advance(11)
    assert b"plain" in [message.value for message in take(other)]


def test_a_suspect_that_nobody_was_handed_does_not_stop_other_groups() -> None:
    """I20, I28. It lies in the prefetch of a consumer that asks for nothing more, and has no lease that would end."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    for group in ("g", "h"):
        take(sim.store.subscribe("t", group, max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    slow, quick = store.subscribe("t", "g"), store.subscribe("t", "h")
    store.publish("t", b"2")
    one(slow).ack()
    assert [message.value for message in slow.get_many(2, timeout=0)] == [b"2"]  # and 1 is in its prefetch
    slow.pause()
    seen = []
    for _ in range(5):
        sim.clock.advance(3600)
        for message in take(quick):
            seen.append(message.offset)
            message.ack()
    assert sorted(seen) == [0, 1, 2]
