"""Deduplication keys, where retention and restarts come in between."""

from __future__ import annotations

from tests.groups.sim import Sim


def test_a_deduplication_key_outlives_retention_and_a_restart() -> None:
    """I29. Within its window: retention keeps the segment that it lies in so long, and takes it after that."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=4, retain="always", retention_bytes=1, dedup_window=1_000)
    first = sim.store.publish("t", b"x", dedup_key="k")
    for number in range(40):
        sim.store.publish("t", b"%d" % number)
    sim.store.retain("t")
    for reopen in (False, True):
        store = sim.restart() if reopen else sim.store
        again = store.publish("t", b"x", dedup_key="k")
        assert (again.offset, again.duplicate) == (first.offset, True)
        store.retain("t")
    sim.clock.advance(1_001)
    assert sim.store.retain("t").segments > 0
    assert sim.store.stats().topics["t"].starts[0] > first.offset
    assert not sim.store.publish("t", b"x", dedup_key="k").duplicate
