"""Iterating over a consumer hands out all that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from penstock import Store


def test_iterating_hands_out_all_that_is_there(live_store: Store) -> None:
    """Fifty messages are fifty steps of one loop, with nobody publishing in between."""
    live_store.publish_many("t", numbered(50))
    seen = []
    with live_store.subscribe("t", "g") as consumer:
        for message in consumer:
            message.ack()
            seen.append(message.value)
            if len(seen) == 50:
                break
    assert seen == numbered(50)


def test_iterating_over_a_backlog_larger_than_the_window_with_acks_that_wait(live_store: Store) -> None:
    """Each ack waits for the disk while the window is full: no deadlock."""
    live_store.publish_many("t", numbered(300))
    seen = []
    with live_store.subscribe("t", "g", prefetch=8) as consumer:
        for message in consumer:
            message.ack(wait=True)
            seen.append(message.offset)
            if len(seen) == 300:
                break
    assert seen == list(range(300))
