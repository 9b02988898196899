"""
What is measured: each function is a row, takes about as long as it is told, and returns its figures.

Publishing one by one and the bare disk take turns in short slices, so that their ratio holds also while others use the disk. Producer
and consumer run in this process, and share its interpreter: on a server the figures are those of one client process.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import interrupts
from penstock.cli.bench.place import TOPIC
from penstock.errors import PenstockError, WaitTimeout
from penstock.values import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cli.bench.place import Place
    from penstock.store.store import Store

THREADS = 16
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 * MIB
LOT = 500
WRITE_BYTES_MAX = 256 * MIB
"""What one row writes at most, however quick the disk is."""
SLICES = 8
PATIENCE_SECONDS = 30.0


class Row(NamedTuple):
    """One line of the result. Times are in microseconds."""

    name: str
    per_second: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    of_disk: float | None = None
    """Its rate to that of the bare disk, in turns with it."""


class Load(NamedTuple):
    """How much is measured."""

    seconds: float
    message_bytes: int
    rate: float

    @property
    def value(self) -> bytes:
        """A message."""
        return bytes(self.message_bytes)

    @property
    def batch(self) -> list[bytes]:
        """Messages that are published at once."""
        return [self.value] * max(1, min(BATCH_MESSAGES, BATCH_BYTES // max(self.message_bytes, 1)))

    @property
    def most(self) -> int:
        """The most messages of one row."""
        return max(1, WRITE_BYTES_MAX // max(self.message_bytes, 1))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of *values* do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


class BareDisk:
    """A file that was written before: the cheapest durable write is one into it, and fdatasync."""

    def __init__(self, folder: str, size: int = 4 * MIB) -> None:
        self._size = size
        self._at = 0
        self._descriptor = os.open(os.path.join(folder, "bare"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.pwrite(self._descriptor, bytes(size), 0)
        os.fsync(self._descriptor)

    def write(self, data: bytes) -> None:
        """Return when *data* is on disk."""
        if self._at + len(data) > self._size:
            self._at = 0
        os.pwrite(self._descriptor, data, self._at)
        os.fdatasync(self._descriptor)
        self._at += len(data)

    def close(self) -> None:
        """Let go of it; its folder is removed by others."""
        os.close(self._descriptor)


def one_by_one(place: Place, load: Load) -> list[Row]:
    """Publish a message, wait until it is durable, publish the next; in turns with the bare disk, where that is known."""
    value = load.value
    slice_seconds = load.seconds / SLICES
    disk = None if place.folder is None else BareDisk(place.folder)
    published: list[float] = []
    bare: list[float] = []
    ratios: list[float] = []

    def publish() -> None:
        place.store.publish(TOPIC, value)

    try:
        publish()
        for _ in range(SLICES):
            ours = _timed(publish, slice_seconds)
            published += ours
            if disk is not None:
                theirs = _timed(lambda: disk.write(value[:MIB]), slice_seconds)
                bare += theirs
                ratios.append(statistics.fmean(theirs) / statistics.fmean(ours))
    finally:
        if disk is not None:
            disk.close()
    share = statistics.median(ratios) if ratios else None
    rows = [_row("publish one by one", published)._replace(of_disk=share)]
    return [_row("bare write and fdatasync", bare), *rows] if bare else rows


def at_once(place: Place, load: Load) -> list[Row]:
    """The same by several threads at once: they share syncs."""
    value, store = load.value, place.store
    ends = time.monotonic() + load.seconds
    times: list[list[float]] = [[] for _ in range(THREADS)]
    errors: list[PenstockError] = []
    stopped = threading.Event()

    def work(own: list[float]) -> None:
        try:
            # Once at least, also where the machine has let this thread begin when the time is over.
            while (not own or time.monotonic() < ends) and not stopped.is_set() and not errors:
                begun = time.perf_counter()
                store.publish(TOPIC, value)
                own.append(time.perf_counter() - begun)
        except PenstockError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in times]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.05)
            interrupts.check()
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    elapsed = time.perf_counter() - begun
    if errors:
        raise errors[0]
    every = [one for own in times for one in own]
    return [_row(f"publish by {THREADS} threads", every)._replace(per_second=len(every) / elapsed)]


def batched(place: Place, load: Load) -> list[Row]:
    """Publish batches, one after the other."""
    batch = load.batch
    limit = max(1, load.most // len(batch))
    times = _timed(lambda: place.store.publish_many(TOPIC, batch), load.seconds, limit)
    return [_row(f"publish in batches of {len(batch):,}", times, len(batch))]


def consumed(place: Place, load: Load) -> list[Row]:
    """Take what is there in lots, acknowledge each lot, and wait until the last ack is durable."""
    group = place.fresh()
    batch = load.batch
    # Enough for about the time that is wanted: what it takes to publish is more than to consume.
    _timed(lambda: place.store.publish_many(TOPIC, batch), load.seconds, max(1, load.most // len(batch)))
    left = _lag(place.store, group)
    total = left
    with place.store.subscribe(TOPIC, group, prefetch=2 * LOT) as consumer:
        begun = time.perf_counter()
        while left:
            interrupts.check()
            messages = consumer.get_many(LOT, timeout=PATIENCE_SECONDS)
            if not messages:
                raise WaitTimeout("delivering what was published", PATIENCE_SECONDS)
            consumer.ack(messages)
            left -= len(messages)
        consumer.flush()
        elapsed = time.perf_counter() - begun
    return [Row(f"consume and ack in lots of {LOT}", total / elapsed)]


def pushed(place: Place, load: Load) -> list[Row]:
    """From when a message was due to be sent until a waiting consumer has it, at a moderate rate."""
    count = max(10, int(load.rate * load.seconds * 2))
    group = place.fresh()
    ages: list[float] = []
    done = threading.Event()
    consumer = place.store.subscribe(TOPIC, group)
    padding = bytes(max(0, load.message_bytes - 8))

    def receive() -> None:
        for message in consumer:
            # By the clock that stamped it: both are in this process.
            ages.append((time.monotonic_ns() - int.from_bytes(bytes(message.value or b"")[:8], "little")) / 1e9)
            with contextlib.suppress(PenstockError):
                message.ack()
            if len(ages) == count:
                done.set()

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    try:
        start = time.monotonic_ns() + 50_000_000
        for number in range(count):
            # A sender that is held up delays all that follow, and that is not hidden: it counts from when a message was due.
            due = start + round(number * 1e9 / load.rate)
            time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
            interrupts.check()
            place.store.publish(TOPIC, due.to_bytes(8, "little") + padding)
        end = time.monotonic() + PATIENCE_SECONDS
        while not done.wait(0.1):
            interrupts.check()
            if time.monotonic() > end:
                raise WaitTimeout("delivering what was published", PATIENCE_SECONDS)
    finally:
        consumer.close()
        receiver.join(PATIENCE_SECONDS)
    return [_row(f"push latency at {load.rate:g}/s", ages)._replace(per_second=None)]


ROWS: tuple[Callable[[Place, Load], list[Row]], ...] = (one_by_one, at_once, batched, consumed, pushed)


def _timed(call: Callable[[], Any], seconds: float, most: int | None = None) -> list[float]:
    """Call it again and again, at least once; returns how long each took, in seconds."""
    times: list[float] = []
    ends = time.monotonic() + seconds
    while not times or (time.monotonic() < ends and (most is None or len(times) < most)):
        interrupts.check()
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def _row(name: str, times: Sequence[float], messages: int = 1) -> Row:
    return Row(name, messages * len(times) / sum(times), percentile(times, 50) * 1e6, percentile(times, 99) * 1e6)


def _lag(store: Store, group: str) -> int:
    return store.stats().topics[TOPIC].groups[group].lag
