"""
Priorities and delays: what a restart costs with many messages waiting, what each of them takes, and how they are delivered.

Memory is told three ways: what the structures say of themselves, what Python allocates for the first look (tracemalloc), and what the
process has more of its own afterwards (RssAnon); the last two in processes of their own, with all that the look leaves behind.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import penstock
from benchmarks.measure import Group, Row, at_most, microseconds, per_second
from penstock.groups.delays import Delays
from penstock.log.partition_log import PartitionLog
from penstock.store.store import Store
from penstock.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench

_BATCH = 1_000
_VALUE = b"x" * 100
_LANES = ("low", "medium", "high")
_HOUR_US = 3_600_000_000
_ACKED = 10
_IDLE_LOOKS = 1_000


def _publish(store: Store, topic: str, messages: int, **columns: object) -> None:
    for _ in range(0, messages, _BATCH):
        given = {name: made() if callable(made) else made for name, made in columns.items()}
        store.publish_many(topic, [_VALUE] * _BATCH, sync="os", **given)  # type: ignore[arg-type]


def _memory_of_a_look(path: str, how: str) -> float:
    """Bytes for the first look into topic "t" of the store at *path*, in a process of its own; *how* is rss or traced."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "benchmarks.urgency", how, path]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root).stdout))


def _look(path: str, how: str) -> float:
    with Store.open(path, background=False, clock=FakeClock()) as store, store.subscribe("t", "g") as consumer:
        gc.collect()
        if how == "traced":
            tracemalloc.start()
            consumer.get(timeout=0)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        before = _own_bytes()
        consumer.get(timeout=0)
        gc.collect()
        return _own_bytes() - before


def _own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(size) * 1024


# -- lanes ------------------------------------------------------------------------------------------------------------------


def _lanes(bench: Bench) -> Iterator[Row]:
    messages, chance = bench.sizes.urgent, random.Random(1)
    seconds: list[float] = []
    opened: list[float] = []
    each: list[float] = []
    urgent: list[int] = []

    batches = itertools.count()

    def choose() -> list[str]:
        chosen, first = chance.choices(_LANES, k=_BATCH), next(batches) * _BATCH
        urgent.extend(first + at for at, lane in enumerate(chosen) if lane == "high")
        return chosen

    with bench.folder() as folder:
        path = os.path.join(folder, "store")
        with Store.open(path, background=False) as store:
            store.create_topic("t", priorities=True, sync="os")
            _publish(store, "t", messages, priorities=choose)
            with store.subscribe("t", "g") as consumer:
                found = consumer.get_many(_ACKED, timeout=0)
                assert [message.offset for message in found] == urgent[:_ACKED]
                consumer.ack(found)
        for repeat in range(bench.sizes.repeats):
            begun = time.perf_counter()
            with penstock.open(path) as face, face.subscribe("t", "g") as consumer:
                message = consumer.get(timeout=0)
                opened.append(time.perf_counter() - begun)
                assert message is not None
                assert message.offset == urgent[_ACKED + repeat]
                message.ack()
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
        own = _memory_of_a_look(path, "rss") / messages
    yield Row(
        "lanes-rebuild", seconds, microseconds(1e6 * statistics.median(seconds)), target=at_most(1.0, "s"), unit="s",
        note=f"the first get after a restart, {messages:,} messages wait in three lanes",
    )  # fmt: skip
    yield Row(
        "lanes-open", opened, microseconds(1e6 * statistics.median(opened)), target=at_most(1.0, "s"), unit="s",
        note="from penstock.open until the first message of the highest lane is there",
    )  # fmt: skip
    yield Row(
        "lanes-memory",
        each,
        f"{each[0]:.2f} B",
        target=at_most(24.0, "B"),
        unit="B",
        note="a waiting message, bitmaps as stored",
    )
    yield Row(
        "lanes-memory-rss",
        [own],
        f"{own:.1f} B",
        unit="B",
        note="a waiting message, what the process has more after the first get",
    )


# -- delays -----------------------------------------------------------------------------------------------------------------


class _Delivered(NamedTuple):
    messages: int
    seconds: float
    reads: int
    """Calls that read the log."""
    looks: int
    """Calls that look for what is due."""


class _Counting:
    """Counts what consumers read of logs, and how often they look for what is due."""

    def __init__(self) -> None:
        self.reads = self.looks = 0
        self._read, self._pop = PartitionLog.read, Delays.pop

    def __enter__(self) -> Self:
        def read(*arguments: Any, **options: Any) -> Any:
            self.reads += 1
            return self._read(*arguments, **options)

        def pop(*arguments: Any) -> Any:
            self.looks += 1
            return self._pop(*arguments)

        self._put(read, pop)
        return self

    def __exit__(self, *error: object) -> None:
        self._put(self._read, self._pop)

    @staticmethod
    def _put(read: Any, pop: Any) -> None:
        PartitionLog.read = read  # type: ignore[method-assign]
        Delays.pop = pop  # type: ignore[method-assign]


def _deliver(path: str, dues: array[int], wanted: int) -> _Delivered:
    """
    Let a consumer have the messages as they become due, until it has so many.

    It has them all, none before its time, and in the order in which they are due. Raises `AssertionError`.
    """
    clock = FakeClock()
    order = sorted(range(len(dues)), key=lambda offset: (dues[offset], offset))
    with Store.open(path, background=False, clock=clock) as store, store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None
        with _Counting() as counting:
            for _ in range(_IDLE_LOOKS):
                assert consumer.get(timeout=0) is None
            assert counting.reads == 0, "who asks while nothing is due reads nothing"
            assert counting.looks <= _IDLE_LOOKS
            counting.looks = 0
            done = 0
            spent = 0.0
            while done < wanted:
                clock.advance(1.0)
                start = time.perf_counter()
                while found := consumer.get_many(_BATCH, timeout=0):
                    offsets = [message.offset for message in found]
                    consumer.ack(found)
                    assert offsets == order[done : done + len(offsets)], "in the order in which they are due"
                    done += len(offsets)
                spent += time.perf_counter() - start
                now_us = clock.now_us()
                assert done == 0 or dues[order[done - 1]] <= now_us
                assert done == len(order) or dues[order[done]] > now_us, "all that is due is delivered"
            return _Delivered(done, spent, counting.reads, counting.looks)


def _delays(bench: Bench) -> Iterator[Row]:
    messages, chance = bench.sizes.urgent, random.Random(1)
    clock = FakeClock()
    dues = array("q")

    def choose() -> list[float]:
        chosen = [chance.randrange(1, _HOUR_US) for _ in range(_BATCH)]
        dues.extend(clock.now_us() + delay_us for delay_us in chosen)
        return [delay_us / 1e6 for delay_us in chosen]

    with bench.folder() as folder:
        path = os.path.join(folder, "store")
        with Store.open(path, background=False, clock=clock) as store:
            store.create_topic("t", sync="os")
            _publish(store, "t", messages, delays=choose)
            with store.subscribe("t", "g") as consumer:
                assert consumer.get(timeout=0) is None
        traced, own = (_memory_of_a_look(path, how) / messages for how in ("traced", "rss"))
        with Store.open(path, background=False, clock=FakeClock()) as store, store.subscribe("t", "g") as consumer:
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
        done = _deliver(path, dues, min(messages, bench.sizes.fired))
    yield Row("delays-memory", [held / messages], f"{held / messages:.1f} B", target=at_most(24.0, "B"), unit="B",
              note=f"a message that is not due, of {messages:,} over an hour; the sizes of the structure")  # fmt: skip
    yield Row("delays-memory-traced", [traced], f"{traced:.1f} B", target=at_most(24.0, "B"), unit="B",
              note="the same, what Python allocates for the first get and keeps")  # fmt: skip
    yield Row("delays-memory-rss", [own], f"{own:.1f} B", target=at_most(24.0, "B"), unit="B",
              note="the same, what the process has more after the first get")  # fmt: skip
    yield Row("delays-rebuild", [rebuilt], microseconds(1e6 * rebuilt), unit="s", note="the first get after a restart")
    yield Row(
        "delays-fire", [1e6 * fired / messages], microseconds(1e6 * fired / messages), unit="us", note="a message, in order"
    )
    each = 1e6 * done.seconds / done.messages
    yield Row("delays-deliver", [each], per_second(done.messages / done.seconds), unit="us",
              note=f"a message, got and acked: {done.messages:,}, each when it is due, in order, by a clock moved by seconds")  # fmt: skip
    yield Row("delays-reads", [done.reads / done.messages], f"{done.reads:,}", target=at_most(1.0), unit="x",
              note="reads of the log for each message delivered; none while nothing is due")  # fmt: skip
    yield Row("delays-looks", [done.looks / done.messages], f"{done.looks:,}", target=at_most(2.0), unit="x",
              note="looks for what is due for each message delivered")  # fmt: skip


GROUPS = (
    Group("lanes", ("lanes-rebuild", "lanes-open", "lanes-memory", "lanes-memory-rss"), _lanes),
    Group(
        "delays",
        (
            "delays-memory", "delays-memory-traced", "delays-memory-rss", "delays-rebuild", "delays-fire", "delays-deliver",
            "delays-reads", "delays-looks",
        ),
        _delays,
    ),
)  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_look(sys.argv[2], sys.argv[1])))
