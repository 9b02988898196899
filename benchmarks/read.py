"""Reading in order against bare reads from the page cache, and finding a place by offset and by time."""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.load import BATCH_BYTES, BATCH_MESSAGES, OS, SINGLE_BYTES, VALUE, batches, fill
from benchmarks.measure import MIB, Group, Row, Work, alternate, at_least, at_most, bytes_per_second, microseconds
from penstock.format.batch import encode_single
from penstock.log.segment import INDEX_SUFFIX
from penstock.settings import TopicSettings
from penstock.values import SyncMode
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measure import Bench, Rates, Side
    from penstock.log.partition_log import PartitionLog

_ENOUGH_BYTES_PER_SECOND = 1.5e9
_STRIPES = 8
_SEGMENTS = 16


def read_all(log: PartitionLog, start: int, end: int, *, verify: bool) -> int:
    """Read [start, end) in order and return how many bytes that was."""
    total, offset = 0, start
    while offset < end:
        found = log.read(offset, verify=verify)
        total += sum([batch.header.total_bytes for batch in found])
        offset = found[-1].end_offset
    return total


def _sequential(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder:
        path = os.path.join(folder, "store")
        with Volume.open(path, background=False) as volume:
            volume.create_topic("log", 1, OS)
            log = volume.log("log")
            messages = max(sizes.read_bytes // BATCH_BYTES, 1) * BATCH_MESSAGES
            fill(volume, log, messages)
            while len(log.segment_firsts) < 2 or log.active is None or log.active.batches > 1:
                # The last full segment is sealed when the next one begins.
                fill(volume, log, BATCH_MESSAGES)
            end = log.segment_firsts[-1]
            names = [log.segment(first).path for first in log.segment_firsts[:-1]]
        buffer = bytearray(MIB)

        def bare() -> Work:
            total = 0
            start = time.perf_counter()
            for name in names:
                descriptor = os.open(name, os.O_RDONLY)
                position = 0
                while count := os.preadv(descriptor, [buffer], position):
                    position += count
                os.close(descriptor)
                total += position
            return Work(total, time.perf_counter() - start)

        def passes(*, again: bool, verify: bool) -> Side:
            def turn() -> Work:
                with Volume.open(path, background=False) as volume:
                    log = volume.log("log")
                    if again:
                        read_all(log, 0, end, verify=verify)
                    start = time.perf_counter()
                    total = read_all(log, 0, end, verify=verify)
                    return Work(total, time.perf_counter() - start)

            return turn

        raw, fresh, again, unchecked = alternate(
            sizes.repeats,
            [bare, passes(again=False, verify=True), passes(again=True, verify=True), passes(again=False, verify=False)],
        )
    limit = bytes_per_second(raw.median)
    yield Row(
        "read", fresh.over(raw), bytes_per_second(fresh.median), limit, at_least(0.5),
        also=fresh.median >= _ENOUGH_BYTES_PER_SECOND, unsteadiness=raw.unsteadiness,
        note="first pass after opening, with CRC, or >= 1.5 GB/s; raw: preadv of 1 MiB",
        figures={"bytes_per_second": fresh.median},
    )  # fmt: skip
    for name, ours, note in (
        ("read-again", again, "second pass: the files are mapped already"),
        ("read-unchecked", unchecked, "first pass without CRC"),
    ):
        yield Row(name, ours.over(raw), bytes_per_second(ours.median), limit, note=note, unsteadiness=raw.unsteadiness)


class _SteppingClock:
    """A millisecond for each look at it, so that every batch has a time of its own."""

    def __init__(self) -> None:
        self.time_us = 1_700_000_000_000_000

    def now_us(self) -> int:
        self.time_us += 1000
        return self.time_us

    def monotonic(self) -> float:
        return self.time_us / 1e6


class _Mixed:
    """
    A log of batches of 1000 with stretches of batches of one, which are an eighth of the bytes.

    In the stretches an index interval holds many batches that a look-up has to walk over.
    """

    def __init__(self, path: str, size: int, segment_bytes: int) -> None:
        clock = _SteppingClock()
        self.volume = Volume.open(path, background=False, clock=clock)
        settings = TopicSettings(sync=SyncMode.OS, coalesce_below_bytes=0, segment_bytes=segment_bytes)
        self.volume.create_topic("log", 1, settings)
        self.log = self.volume.log("log")
        self.offsets: dict[str, list[range]] = {"single": [], "batch": []}
        self.times: dict[str, list[range]] = {"single": [], "batch": []}
        pool = batches(8)
        large = max(1, size * 7 // 8 // _STRIPES // BATCH_BYTES)
        small = max(1, size // 8 // _STRIPES // SINGLE_BYTES)
        for _ in range(_STRIPES):
            with self._noted("batch", clock):
                for index in range(large):
                    self.volume.append(self.log, pool[index % len(pool)])
            with self._noted("single", clock):
                for _ in range(small):
                    self.volume.append(self.log, encode_single(VALUE))
        # Sealed segments are mapped once they are synced.
        self.volume.checkpoint()
        for first in self.log.segment_firsts:
            self.log.read(first)

    def _noted(self, kind: str, clock: _SteppingClock) -> _Noted:
        return _Noted(self, kind, clock)

    def side(self, find: Callable[[PartitionLog, int], int], ranges: list[range], count: int, rng: random.Random) -> Side:
        """Find so many places in the *ranges*."""
        log = self.log

        def turn() -> Work:
            places = [rng.choice(rng.choice(ranges)) for _ in range(count)]
            start = time.perf_counter()
            for place in places:
                find(log, place)
            return Work(count, time.perf_counter() - start)

        return turn


class _Noted:
    """Notes which offsets and times the block after it writes."""

    def __init__(self, mixed: _Mixed, kind: str, clock: _SteppingClock) -> None:
        self._mixed, self._kind, self._clock = mixed, kind, clock
        self._offset = self._time = 0

    def __enter__(self) -> None:
        self._offset, self._time = self._mixed.log.committed_end, self._clock.time_us

    def __exit__(self, *error: object) -> None:
        self._mixed.offsets[self._kind].append(range(self._offset, self._mixed.log.committed_end))
        self._mixed.times[self._kind].append(range(self._time, self._clock.time_us))


def find_position(log: PartitionLog, offset: int) -> int:
    """Where the batch with *offset* begins in its segment."""
    return log._segment_of(offset).find(offset)  # noqa: SLF001


def find_time(log: PartitionLog, time_us: int) -> int:
    """The first offset from that time on."""
    return log.offset_of_time(time_us)


def _lookup(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    rng = random.Random(7)
    with bench.folder() as folder:
        # As many segments in a quick run as in a full one: what is kept in memory goes by their number.
        segment_bytes = sizes.lookup_bytes // _SEGMENTS
        large = _Mixed(os.path.join(folder, "large"), sizes.lookup_bytes, segment_bytes)
        small = _Mixed(os.path.join(folder, "small"), sizes.lookup_bytes // 10, segment_bytes)
        kinds = [
            (f"{what}-{kind}", find, getattr(large, places)[kind], getattr(small, places)[kind])
            for what, find, places in (("offset", find_position, "offsets"), ("time", find_time, "times"))
            for kind in ("single", "batch")
        ]
        sides: list[Side] = []
        for _, find, in_large, in_small in kinds:
            sides += [large.side(find, in_large, sizes.lookups, rng), small.side(find, in_small, sizes.lookups, rng)]
        rates = alternate(sizes.repeats, sides, turns=sizes.turns)
        small.volume.close()
        large.volume.close()
        for name in os.listdir(large.log.directory):
            if name.endswith(INDEX_SUFFIX):
                os.unlink(os.path.join(large.log.directory, name))
        cold = [_first_looks(large.volume.path) for _ in range(2)]
    for at, (name, _, _, _) in enumerate(kinds):
        yield from _lookup_rows(f"find-{name}", rates[2 * at], rates[2 * at + 1], sizes.lookup_bytes)
    for name, took, note in (("find-first", cold[0], "no index cached"), ("find-first-cached", cold[1], "index cached")):
        median = microseconds(statistics.median(took))
        yield Row(name, took, median, unit="us", note=f"first look into a sealed segment after opening, {note}")


def _first_looks(path: str) -> list[float]:
    """Open the store anew and look into each sealed segment for the first time: the microseconds of each."""
    took = []
    with Volume.open(path, background=False) as volume:
        log = volume.log("log")
        firsts = log.segment_firsts
        for first in firsts[:-1] or firsts:
            start = time.perf_counter()
            find_position(log, first + 1)
            took.append((time.perf_counter() - start) * 1e6)
    return took


def _lookup_rows(name: str, large: Rates, small: Rates, size: int) -> Iterator[Row]:
    took, took_small = microseconds(1e6 / large.median), microseconds(1e6 / small.median)
    yield Row(
        name, large.microseconds, took, "", at_most(50, "us"), "us", unsteadiness=large.unsteadiness,
        note=f"in a log of {size / 1e6:.0f} MB, each segment looked at before",
    )  # fmt: skip
    yield Row(
        f"{name}-size", small.over(large), took, took_small, at_most(1.5), unsteadiness=small.unsteadiness,
        note="raw: in a log of a tenth of the size",
    )  # fmt: skip


_FIND = [f"find-{what}-{kind}{end}" for what in ("offset", "time") for kind in ("single", "batch") for end in ("", "-size")]

GROUPS = (
    Group("read", ("read", "read-again", "read-unchecked"), _sequential),
    Group("lookup", (*_FIND, "find-first", "find-first-cached"), _lookup),
)
