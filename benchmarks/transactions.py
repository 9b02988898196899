"""A small transaction against a plain durable publish."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.consume import fill
from benchmarks.load import VALUE
from benchmarks.measure import Group, Row, at_most, microseconds
from benchmarks.publish import STEADY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench

PARTITIONS = 8
CONSUMERS = ("first", "second")


def _transact(store: Any, consumers: list[Any]) -> float:
    """The seconds of one transaction; the messages it acknowledges are there before."""
    messages = [consumer.get(5) for consumer in consumers]
    start = time.perf_counter()
    with store.transaction() as transaction:
        for partition in range(PARTITIONS):
            transaction.publish("out", VALUE, partition=partition)
        for message in messages:
            transaction.ack(message)
    return time.perf_counter() - start


def _publish(store: Any) -> float:
    start = time.perf_counter()
    store.publish("plain", VALUE)
    return time.perf_counter() - start


def _transactions(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    plain: list[list[float]] = []
    whole: list[list[float]] = []
    count = sizes.bare_syncs * sizes.turns
    with bench.folder() as folder, penstock.open(os.path.join(folder, "store")) as store:
        store.create_topic("in", sync="always", **STEADY)
        store.create_topic("out", partitions=PARTITIONS, sync="always", **STEADY)
        store.create_topic("plain", sync="always", **STEADY)
        fill(store, "in", count * (sizes.repeats + 1))
        consumers = [store.subscribe("in", group, lease=3600.0) for group in CONSUMERS]
        for repeat in range(-1, sizes.repeats):
            one, other = [], []
            # One after the other, and each first in every second turn.
            for turn in range(count):
                if turn % 2:
                    one.append(_publish(store))
                    other.append(_transact(store, consumers))
                else:
                    other.append(_transact(store, consumers))
                    one.append(_publish(store))
            if repeat >= 0:
                plain.append(one)
                whole.append(other)
        for consumer in consumers:
            consumer.close()
    medians = [statistics.median(each) * 1e6 for each in plain]
    ratios = [statistics.median(ours) / statistics.median(raw) for ours, raw in zip(whole, plain, strict=True)]
    took = statistics.median([value for each in whole for value in each]) * 1e6
    yield Row(
        "transaction", ratios, microseconds(took), microseconds(statistics.median(medians)), at_most(1.5),
        note=f"{PARTITIONS} partitions, {len(CONSUMERS)} groups, sync=always; raw: one publish",
        unsteadiness=max(medians) / min(medians),
    )  # fmt: skip


GROUPS = (Group("transaction", ("transaction",), _transactions, is_durable=True),)
