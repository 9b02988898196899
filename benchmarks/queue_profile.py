"""
Where the time of a message goes in the embedded queue: `python -m benchmarks.queue_profile [publish|send|get-ack|transaction ...]`.

The rows of `make bench` that miss their target, each under a profiler, on a store of its own. A profiler makes calls of Python dearer
than they are and system calls not, so the first line has the time without it; what counts below is which steps there are.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.load import VALUE
from benchmarks.publish import STEADY
from benchmarks.transactions import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = 14


def _publish(store: Any) -> Callable[[int], None]:
    store.create_topic("t", sync="os", **STEADY)

    def work(count: int) -> None:
        for _ in range(count):
            store.publish("t", VALUE)

    return work


def _send(store: Any) -> Callable[[int], None]:
    store.create_topic("t", sync="os", **STEADY)

    def work(count: int) -> None:
        with store.producer("t") as producer:
            futures = [producer.send(VALUE) for _ in range(count)]
        for future in futures:
            future.result()

    return work


def _get_ack(store: Any) -> Callable[[int], None]:
    store.create_topic("t", sync="os", **STEADY)
    consumer = store.subscribe("t", "g")

    def work(count: int) -> None:
        for _ in range(count):
            consumer.get(0).ack()

    for _ in range(100):
        store.publish_many("t", [VALUE] * 1_000)
    return work


def _transaction(store: Any) -> Callable[[int], None]:
    store.create_topic("in", sync="os", **STEADY)
    store.create_topic("out", partitions=PARTITIONS, sync="always", **STEADY)
    consumers = [store.subscribe("in", group) for group in ("first", "second")]
    store.publish_many("in", [VALUE] * 10_000)

    def work(count: int) -> None:
        for _ in range(count):
            with store.transaction() as transaction:
                for partition in range(PARTITIONS):
                    transaction.publish("out", VALUE, partition=partition)
                for consumer in consumers:
                    transaction.ack(consumer.get(0))

    return work


WORKS: dict[str, tuple[Callable[[Any], Callable[[int], None]], int]] = {
    "publish": (_publish, 20_000),
    "send": (_send, 50_000),
    "get-ack": (_get_ack, 20_000),
    "transaction": (_transaction, 1_000),
}


def main() -> None:
    """Print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*WORKS, []], help="all of them if none is named")
    for name in parser.parse_args().names or WORKS:
        prepare, count = WORKS[name]
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, penstock.open(os.path.join(folder, "data")) as store:
            work = prepare(store)
            work(count // 4)
            began = time.perf_counter()
            work(count)
            plain_us = (time.perf_counter() - began) / count * 1e6
            profile = cProfile.Profile()
            profile.runcall(work, count)
        print(f"\n{name}: {plain_us:.1f} us each without a profiler; {count:,} of them with one:\n")
        pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main()
