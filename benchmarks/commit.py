"""Appending with ``sync=always`` against a bare write and fdatasync."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.load import ALWAYS, OS, VALUE, SyncedFile, singles
from benchmarks.measure import Group, Row, Work, alternate, at_least, per_second
from benchmarks.publish import threads_side
from penstock.format.batch import encode_single
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.measure import Bench, Side
    from penstock.log.partition_log import PartitionLog
    from penstock.volume.tickets import AppendTicket

OUTSTANDING = (1, 8, 64, 512)
THREADS = (1, 4, 8, 64)
PARTITIONS = 64


@contextmanager
def _store(bench: Bench) -> Iterator[tuple[Volume, str]]:
    with bench.folder() as folder, Volume.open(os.path.join(folder, "store")) as volume:
        yield volume, folder


def tickets(volume: Volume, logs: Sequence[PartitionLog], outstanding: int, count: int) -> Side:
    """Submit so many messages, one batch each, the logs in turn: when *outstanding* of them wait, wait for the oldest."""

    def turn() -> Work:
        submit, many = volume.submit, len(logs)
        waiting: deque[AppendTicket] = deque()
        start = time.perf_counter()
        for index in range(count):
            if len(waiting) >= outstanding:
                waiting.popleft().wait()
            waiting.append(submit(logs[index % many], encode_single(VALUE)))
        while waiting:
            waiting.popleft().wait()
        return Work(count, time.perf_counter() - start)

    return turn


def _outstanding(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    data = encode_single(VALUE).data
    with _store(bench) as (volume, folder):
        volume.create_topic("always", 1, ALWAYS)
        volume.create_topic("os", 1, OS)
        file = SyncedFile(os.path.join(folder, "raw"))
        sides: list[Side] = [file.side(data, sizes.bare_syncs), singles(volume, volume.log("os"), sizes.singles)]
        sides += [tickets(volume, [volume.log("always")], count, sizes.tickets[count]) for count in OUTSTANDING]
        bare, plain, *ours = alternate(sizes.repeats, sides, turns=sizes.turns)
        file.close()
    for count, rates in zip(OUTSTANDING, ours, strict=True):
        limits = [min(count * one, other) for one, other in zip(bare.each, plain.each, strict=True)]
        by_sync = count * bare.median < plain.median
        yield Row(
            f"always-{count}",
            [rate / most for rate, most in zip(rates.each, limits, strict=True)],
            per_second(rates.median),
            per_second(count * bare.median if by_sync else plain.median),
            at_least(0.7),
            note=f"{count} outstanding; raw: " + (f"{count} x pwrite+fdatasync" if by_sync else "own os rate"),
            unsteadiness=(bare if by_sync else plain).unsteadiness,
            figures={"bare_per_second": bare.median, "os_per_second": plain.median},
        )


def _partitions(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    outstanding = OUTSTANDING[-1]
    count = sizes.tickets[outstanding]
    with _store(bench) as (volume, _):
        volume.create_topic("one", 1, ALWAYS)
        volume.create_topic("many", PARTITIONS, ALWAYS)
        many = [volume.log("many", partition) for partition in range(PARTITIONS)]
        one, spread = alternate(
            sizes.repeats,
            [tickets(volume, [volume.log("one")], outstanding, count), tickets(volume, many, outstanding, count)],
            turns=sizes.turns,
        )
    yield Row(
        "always-64-partitions", spread.over(one), per_second(spread.median), per_second(one.median), at_least(0.5),
        note=f"{outstanding} outstanding, {PARTITIONS} partitions in turn; raw: the same with one partition",
        unsteadiness=one.unsteadiness,
    )  # fmt: skip


def _threads(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    data = encode_single(VALUE).data
    with _store(bench) as (volume, folder):
        volume.create_topic("always", 1, ALWAYS)
        log = volume.log("always")
        file = SyncedFile(os.path.join(folder, "raw"))

        def append() -> None:
            volume.append(log, encode_single(VALUE))

        sides = [file.side(data, sizes.bare_syncs), *[threads_side(append, count, sizes.turn_seconds) for count in THREADS]]
        bare, *ours = alternate(sizes.repeats, sides)
        file.close()
    rates = dict(zip(THREADS, ours, strict=True))
    for count in (1, 4):
        yield Row(
            f"threads-{count}", rates[count].over(bare), per_second(rates[count].median), per_second(bare.median),
            note="blocking append; raw: pwrite+fdatasync", unsteadiness=bare.unsteadiness,
        )  # fmt: skip
    for count in (8, 64):
        yield Row(
            f"threads-{count}", rates[count].over(rates[4]), per_second(rates[count].median), per_second(rates[4].median),
            at_least(1.0), note="raw: the rate of 4 threads", unsteadiness=rates[4].unsteadiness,
        )  # fmt: skip


GROUPS = (
    Group("always", tuple(f"always-{count}" for count in OUTSTANDING), _outstanding, is_durable=True),
    Group("partitions", ("always-64-partitions",), _partitions, is_durable=True),
    Group("threads", tuple(f"threads-{count}" for count in THREADS), _threads, is_durable=True),
)
