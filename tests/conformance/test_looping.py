"""The loop that every user writes first: `for message in consumer`, with handlers that take longer than a lease has for all together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.conformance.helpers import group_stats, numbered, until

if TYPE_CHECKING:
    from penstock import Store

LEASE_S = 2.0


def test_a_loop_goes_on_for_many_leases(live_store: Store) -> None:
    """Every message waits for its turn, most of them longer than a lease; none fails for that."""
    live_store.publish_many("t", numbered(24))
    seen = []
    with live_store.subscribe("t", "g", lease=LEASE_S) as consumer:
        for message in consumer:
            time.sleep(LEASE_S / 8)
            message.ack(wait=True)
            seen.append((message.offset, message.attempt))
            if len(seen) == 24:
                break
    assert seen == [(number, 1) for number in range(24)]
    stats = group_stats(live_store)
    assert (stats.acked, stats.expired_leases, stats.redelivered, stats.dead_lettered) == (24, 0, 0, 0)


def test_a_loop_with_blocks_goes_on_for_many_leases(live_store: Store) -> None:
    """The README's: a block keeps the lease of its message, however long it runs."""
    live_store.publish_many("t", numbered(10))
    seen: list[tuple[int, int]] = []
    with live_store.subscribe("t", "g", lease=0.5) as consumer:
        for message in consumer:
            with message:
                time.sleep(0.75 if len(seen) == 3 else 0.2)
            seen.append((message.offset, message.attempt))
            if len(seen) == 10:
                break
    assert seen == [(number, 1) for number in range(10)]
    stats = group_stats(live_store)
    assert (stats.expired_leases, stats.redelivered, stats.dead_lettered) == (0, 0, 0)


def test_who_stops_asking_for_a_while_goes_on_where_it_was(live_store: Store) -> None:
    """Between two messages the program does something else, for longer than a lease: what was fetched ahead is still its own."""
    live_store.publish_many("t", numbered(5))
    with live_store.subscribe("t", "g", lease=0.5) as consumer:
        messages = iter(consumer)
        next(messages).ack(wait=True)
        time.sleep(1.5)
        for number in range(1, 5):
            message = next(messages)
            assert (message.offset, message.attempt) == (number, 1)
            message.ack(wait=True)
    assert group_stats(live_store).expired_leases == 0


def test_the_end_of_a_lease_is_seen_though_nobody_asks(live_store: Store) -> None:
    """What is shown is true, and the dead letter is there, while no consumer asks for anything."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g", lease=0.5, max_deliveries=1) as consumer:
        assert consumer.get(timeout=60) is not None
        assert until(lambda: group_stats(live_store).dead_lettered == 1)
        stats = group_stats(live_store)
        assert (stats.in_flight, stats.lag, stats.expired_leases) == (0, 0, 1)
        assert len(live_store.dead_letters("t")) == 1
