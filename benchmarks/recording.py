"""
What recording deliveries costs: CPU time of taking and acking a message, in a topic with `record_deliveries` and in one without.

    python -m benchmarks.recording

Rounds of both are interleaved, in memory and without threads, so that nothing but the work itself counts.
"""

from __future__ import annotations

import statistics
import time

from penstock.store.store import Store

MESSAGES = 20_000
BATCH = 100
ROUNDS = 9


def open_store(*, recorded: bool) -> Store:
    store = Store.open("memory:", background=False)
    store.create_topic("t", record_deliveries=recorded)
    for _ in range(MESSAGES // BATCH):
        store.publish_many("t", [b"x" * 100] * BATCH)
    return store


def consume_us(store: Store, group: str, at_once: int) -> float:
    """Microseconds of CPU for each message, by a group of its own."""
    with store.subscribe("t", group, prefetch=1_000) as consumer:
        began = time.process_time()
        for _ in range(MESSAGES // at_once):
            consumer.ack(consumer.get_many(at_once, 0))
        took = time.process_time() - began
    store.delete_group("t", group)
    return took / MESSAGES * 1e6


def main() -> None:
    plain, recorded = open_store(recorded=False), open_store(recorded=True)
    for at_once in (1, 100):
        pairs = [
            (consume_us(plain, f"{at_once}.{number}", at_once), consume_us(recorded, f"{at_once}.{number}", at_once))
            for number in range(ROUNDS)
        ]
        without, with_it = (min(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(two / one for one, two in pairs)
        times = f"{with_it / without:.2f} times, median {ratio:.2f}"
        print(f"{at_once:>4} at once: {without:.2f} us a message, recorded {with_it:.2f} us; {times}")


if __name__ == "__main__":
    main()
