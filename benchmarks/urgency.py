"""Priorities and delays: what a restart costs with many messages waiting, and what each of them takes."""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.measure import Group, Row, at_most, microseconds
from penstock.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench

_BATCH = 1_000
_VALUE = b"x" * 100
_LANES = ("low", "medium", "high")
_HOUR_S = 3_600.0


def _publish(store: Store, topic: str, messages: int, **columns: object) -> None:
    for _ in range(0, messages, _BATCH):
        given = {name: made() if callable(made) else made for name, made in columns.items()}
        store.publish_many(topic, [_VALUE] * _BATCH, sync="os", **given)  # type: ignore[arg-type]


def _lanes(bench: Bench) -> Iterator[Row]:
    messages, chance = bench.sizes.urgent, random.Random(1)
    seconds: list[float] = []
    each: list[float] = []
    with bench.folder() as folder:
        path = os.path.join(folder, "store")
        with Store.open(path, background=False) as store:
            store.create_topic("t", priorities=True, sync="os")
            _publish(store, "t", messages, priorities=lambda: chance.choices(_LANES, k=_BATCH))
            with store.subscribe("t", "g") as consumer:
                consumer.ack(consumer.get_many(10, timeout=0))
        for _ in range(bench.sizes.repeats):
            with Store.open(path, background=False) as store, store.subscribe("t", "g") as consumer:
                start = time.perf_counter()
                assert consumer.get(timeout=0) is not None
                seconds.append(time.perf_counter() - start)
                cursor = store._group("t", "g").cursors[0]  # noqa: SLF001
                lanes = cursor.lanes
                assert lanes is not None
                bitmaps = (cursor.open, *lanes._index, *lanes._waiting)  # noqa: SLF001
                each.append(sum(len(one.serialize()) for one in bitmaps) / messages)
    yield Row(
        "lanes-rebuild", seconds, microseconds(1e6 * statistics.median(seconds)), target=at_most(1.0, "s"), unit="s",
        note=f"the first get after a restart, {messages:,} messages wait in three lanes",
    )  # fmt: skip
    yield Row(
        "lanes-memory",
        each,
        f"{each[0]:.2f} B",
        target=at_most(24.0, "B"),
        unit="B",
        note="a waiting message, bitmaps as stored",
    )


def _delays(bench: Bench) -> Iterator[Row]:
    messages, chance = bench.sizes.urgent, random.Random(1)
    with bench.folder() as folder:
        path = os.path.join(folder, "store")
        with Store.open(path, background=False) as store:
            store.create_topic("t", sync="os")
            _publish(store, "t", messages, delays=lambda: [_HOUR_S * (1 + chance.random()) for _ in range(_BATCH)])
            with store.subscribe("t", "g") as consumer:
                assert consumer.get(timeout=0) is None
        with Store.open(path, background=False) as store, store.subscribe("t", "g") as consumer:
            cursor = store._group("t", "g").cursors[0]  # noqa: SLF001
            start = time.perf_counter()
            assert consumer.get(timeout=0) is None
            rebuilt = time.perf_counter() - start
            waiting, delays = len(cursor.delays), cursor.delays
            assert waiting == messages
            blocks = delays._blocks  # noqa: SLF001
            held = sum(sys.getsizeof(part) for block in blocks for part in (block, block.base, block.dues, block.offsets))
            held += sys.getsizeof(blocks) + sys.getsizeof(delays._firsts) + 32 * len(blocks) + len(cursor.open.serialize())  # noqa: SLF001
            start, last = time.perf_counter(), (0, -1)
            while (entry := delays.pop(1 << 62)) is not None:
                assert entry > last
                last = entry
            fired = time.perf_counter() - start
    yield Row("delays-memory", [held / messages], f"{held / messages:.1f} B", target=at_most(24.0, "B"), unit="B",
              note=f"a message that is not due, of {messages:,} over an hour")  # fmt: skip
    yield Row("delays-rebuild", [rebuilt], microseconds(1e6 * rebuilt), unit="s", note="the first get after a restart")
    yield Row(
        "delays-fire", [1e6 * fired / messages], microseconds(1e6 * fired / messages), unit="us", note="a message, in order"
    )


GROUPS = (
    Group("lanes", ("lanes-rebuild", "lanes-memory"), _lanes),
    Group("delays", ("delays-memory", "delays-rebuild", "delays-fire"), _delays),
)
