"""
Compaction of many messages of few keys: time, memory, what is left, and what readers and writers get done meanwhile.

`python -m benchmarks.compaction [--quick] [--messages N] [--keys N] [--json FILE]`, or `python -m benchmarks.run --only compaction`. The
store is filled first. Another process opens it and compacts it while one thread writes to the topic and one reads it. Memory is the most
that this process had meanwhile: in all, with the files that it has mapped, as the kernel keeps it (VmHWM), and for itself, sampled every
10 ms; both also over what it had before. The target is for the first.

A message is a function of its offset (`message_at`): some have no key, some are tombstones, and those that are written meanwhile too. So
the reader checks every message that it gets, and that no message without a key is missing between two of them. What is left is compared
with a simple reference, message by message: after the compaction, and after another one when the grace of the tombstones is over.

Exit codes: 0, 1 if a check failed (also in a thread), 2 if only the target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Group, Row, at_most, microseconds, per_second
from penstock import Store, StoreSettings
from penstock.format.batch import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measure import Bench

TOPIC = "prices"
BATCH = 1_000
PAYLOAD = b"." * 40
MEMORY_MAX_MB = 200
KEYLESS_EVERY, KEYLESS_AT = 50, 7
TOMBSTONE_EVERY, TOMBSTONE_AT = 31, 3
GRACE_S = 1.0
BASELINE_S = 1.0
LONG_S = 3.0
NOTHING_ELSE = StoreSettings(retention_interval_ms=3_600_000)
"""No compaction but the one that is measured."""


class CheckFailed(Exception):
    """What is stored or read is not what it must be."""


# -- the messages and the reference ---------------------------------------------------------------------------------------


def key_at(offset: int, keys: int) -> bytes | None:
    """None for some."""
    if offset % KEYLESS_EVERY == KEYLESS_AT:
        return None
    return b"key-%d" % (zlib.crc32(b"%d" % offset) % keys)


def value_at(offset: int) -> bytes | None:
    """It says its offset; None for some, which makes those with a key tombstones."""
    return None if offset % TOMBSTONE_EVERY == TOMBSTONE_AT else b"%d" % offset + PAYLOAD


def message_at(offset: int, keys: int) -> tuple[bytes | None, bytes | None]:
    """Key and value."""
    return key_at(offset, keys), value_at(offset)


def reference(end: int, keys: int, sealed_end: int, graced_end: int = 0) -> list[int]:
    """
    The offsets that are right: of *end* messages, compacted where they were sealed, below *sealed_end*.

    Below *graced_end* the grace of tombstones was over.
    """
    latest: dict[bytes, int] = {}
    left = list(range(sealed_end, end))
    for offset in range(sealed_end):
        key = key_at(offset, keys)
        if key is None:
            left.append(offset)
        else:
            latest[key] = offset
    left += [offset for offset in latest.values() if offset >= graced_end or value_at(offset) is not None]
    return sorted(left)


def fill(path: str, messages: int, keys: int, segment_bytes: int = 64 << 20) -> None:
    """Append them."""
    with Store.open(path, settings=NOTHING_ELSE) as store:
        store.create_topic(TOPIC, compaction=True, sync="os", segment_bytes=segment_bytes, tombstone_grace=GRACE_S)
        log = store._catalog.get(TOPIC).logs[0]  # noqa: SLF001
        for first in range(0, messages, BATCH):
            offsets = range(first, min(first + BATCH, messages))
            batch = encode_batch([value_at(offset) for offset in offsets], keys=[key_at(offset, keys) for offset in offsets])
            store._volume.append(log, batch)  # noqa: SLF001


def check(path: str, keys: int, done: dict[str, Any], before: dict[str, Any] | None = None) -> int:
    """
    Compare what is left with the reference; returns how many messages there are. Raises `CheckFailed`.

    *done* is what `compact` returned, *before* that of the compaction before, if the grace of tombstones is over since then.
    """
    with Store.open(path, settings=NOTHING_ELSE) as store:
        end = store.ends(TOPIC)[0]
        if end != done["end"]:
            raise CheckFailed(f"the topic ends at {end}, and {done['end']} were published")
        found = []
        for message in store.read(TOPIC):
            if (message.key, message.value) != message_at(message.offset, keys):
                raise CheckFailed(f"offset {message.offset} has key {message.key!r} and value {message.value!r}")
            found.append(message.offset)
    graced_end = 0 if before is None else before["sealed_ends"][0]
    # One, unless the writer filled a segment meanwhile: then the compaction may have seen that or not.
    references = [reference(end, keys, sealed_end, graced_end) for sealed_end in done["sealed_ends"]]
    if found not in references:
        wrong = sorted(set(found) ^ set(references[0]))
        raise CheckFailed(f"{len(found)} messages are left, {len(references[0])} are right; these differ: {wrong[:10]}")
    return len(found)


# -- what goes on meanwhile ------------------------------------------------------------------------------------------------


def memory_mb(*names: str) -> list[float]:
    """What the kernel says of this process: RssAnon is its own, VmRSS has the files that it has mapped too, VmHWM is the most of it."""
    lines = [line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()]
    sizes = {name: value for name, _, value in lines}
    return [int(sizes[name].split()[0]) / 1024 for name in names]


class Watcher:
    """Threads that write, read and look at the memory until they are stopped. The writer is the only one of the topic."""

    def __init__(self, store: Store, keys: int) -> None:
        self._store = store
        self._keys = keys
        self._stop = threading.Event()
        self._begun_s = time.monotonic()
        self.written = self.read = 0
        self.slowest_write_s = 0.0
        self.peak_own_mb = 0.0
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in (self._write, self._read, self._watch)]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by `stop`
            traceback.print_exc()
            self._errors.append(f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        offset = self._store.ends(TOPIC)[0]
        while not self._stop.wait(0.001):
            key, value = message_at(offset, self._keys)
            start = time.perf_counter()
            stored = self._store.publish(TOPIC, value, key=key).offset
            self.slowest_write_s = max(self.slowest_write_s, time.perf_counter() - start)
            if stored != offset:
                raise CheckFailed(f"the message for offset {offset} was stored at {stored}")
            self.written += 1
            offset += 1

    def _read(self) -> None:
        while not self._stop.is_set():
            end = self._store.ends(TOPIC)[0]
            start = random.Random(self.read).randrange(end)
            following, found = start, 0
            for message in self._store.read(TOPIC, 0, start=start, max_messages=1_000):
                self._check(message, following)
                following = message.offset + 1
                found += 1
            self.read += found
            if found < 1_000 and following < end:
                # The last message is in the active segment, and stays.
                raise CheckFailed(f"reading from {start} ended at {following}, before the end {end}")
            self._stop.wait(0.001)

    def _check(self, message: Any, following: int) -> None:
        if message.offset < following:
            raise CheckFailed(f"offset {message.offset} came after {following - 1}")
        if (message.key, message.value) != message_at(message.offset, self._keys):
            raise CheckFailed(f"offset {message.offset} was read with key {message.key!r} and value {message.value!r}")
        if _keyless_below(message.offset) != _keyless_below(following):
            raise CheckFailed(f"a message without a key is missing between {following} and {message.offset}")

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak_own_mb = max(self.peak_own_mb, *memory_mb("RssAnon"))

    def stop(self) -> None:
        """Let them end. Raises `CheckFailed` if one of them failed, or did nothing in a time that is long for any machine."""
        seconds = time.monotonic() - self._begun_s
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise CheckFailed(self._errors[0])
        if seconds > LONG_S and not (self.written and self.read):
            raise CheckFailed(f"in {seconds:.0f} s {self.written} messages were written, and {self.read} read")


def _keyless_below(offset: int) -> int:
    """How many messages without a key are before it."""
    return (offset - KEYLESS_AT + KEYLESS_EVERY - 1) // KEYLESS_EVERY


# -- the compaction --------------------------------------------------------------------------------------------------------


def compact(path: str, keys: int) -> dict[str, Any]:
    """Compact the store at *path* in this process. Raises `CheckFailed` if somebody was wronged meanwhile."""
    with Store.open(path, settings=NOTHING_ELSE) as store:
        log = store._catalog.get(TOPIC).logs[0]  # noqa: SLF001
        idle = Watcher(store, keys)
        start = time.perf_counter()
        time.sleep(BASELINE_S)
        idle.stop()
        idle_s = time.perf_counter() - start
        own_before, before = memory_mb("RssAnon", "VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        sealed_end = log.segment_firsts[-1]
        watcher = Watcher(store, keys)
        start = time.perf_counter()
        try:
            removed = store.compact(TOPIC)
            seconds = time.perf_counter() - start
            (peak,) = memory_mb("VmHWM")
        finally:
            watcher.stop()
        return {
            "seconds": seconds, "removed": removed._asdict(),
            "rss_mb": peak, "rss_more_mb": peak - before, "own_mb": watcher.peak_own_mb, "own_more_mb": watcher.peak_own_mb - own_before,
            "writes_per_s": watcher.written / seconds, "writes_per_s_before": idle.written / idle_s,
            "reads_per_s": watcher.read / seconds, "reads_per_s_before": idle.read / idle_s,
            "slowest_write_ms": watcher.slowest_write_s * 1000,
            "end": store.ends(TOPIC)[0], "sealed_ends": [first for first in log.segment_firsts if first >= sealed_end],
        }  # fmt: skip


def _compact_elsewhere(path: str, keys: int) -> dict[str, Any]:
    """In a process of its own, whose memory nobody else has touched. Raises `CheckFailed`."""
    command = [sys.executable, "-m", "benchmarks.compaction", "--of", path, "--keys", str(keys)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=root)
    if done.returncode:
        raise CheckFailed(f"the process that compacts ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(directory: str, messages: int, keys: int, segment_bytes: int) -> dict[str, Any]:
    """Fill a store, compact it and check what is left, in a folder that is gone afterwards. Raises `CheckFailed`."""
    folder = tempfile.mkdtemp(prefix="penstock-compaction-", dir=directory)
    try:
        path = os.path.join(folder, "store")
        start = time.perf_counter()
        fill(path, messages, keys, segment_bytes)
        filled_s = time.perf_counter() - start
        result = _compact_elsewhere(path, keys)
        result["left"] = check(path, keys, result)
        if result["removed"]["tombstones"]:
            raise CheckFailed("tombstones went before their grace was over")
        time.sleep(GRACE_S)
        again = _compact_elsewhere(path, keys)
        result["left_after_grace"] = check(path, keys, again, result)
        result["tombstones"] = again["removed"]["tombstones"]
        return {"messages": messages, "keys": keys, "filled_s": filled_s, **result}
    finally:
        shutil.rmtree(folder)


def _rows(bench: Bench) -> Iterator[Row]:
    messages, keys, segment_bytes = bench.sizes.compaction
    found = measure(bench.directory, messages, keys, segment_bytes)
    what = f"{messages:,} messages of {keys:,} keys; {found['left']:,} are left, as the reference says"
    figures = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    yield Row("compaction-memory", [found["rss_more_mb"]], f"{found['rss_mb']:.0f} MB", target=at_most(MEMORY_MAX_MB, "MB"), unit="MB",
              note=f"more than before, mapped files included; {what}", figures=figures)  # fmt: skip
    yield Row(
        "compaction-time",
        [found["seconds"]],
        per_second(messages / found["seconds"]),
        unit="s",
        note="beside a reader and a writer",
    )
    writes = f"{per_second(found['writes_per_s'])}, {per_second(found['writes_per_s_before'])} before"
    yield Row("compaction-write", [found["slowest_write_ms"]], microseconds(1e3 * found["slowest_write_ms"]), unit="ms",
              note=f"the slowest publish meanwhile; {writes}")  # fmt: skip
    yield Row("compaction-read", [found["reads_per_s"]], per_second(found["reads_per_s"]), unit="/s",
              note=f"read and checked meanwhile; {per_second(found['reads_per_s_before'])} before")  # fmt: skip


GROUPS = (Group("compaction", ("compaction-memory", "compaction-time", "compaction-write", "compaction-read"), _rows),)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction")
    parser.add_argument("--quick", action="store_true", help="500 thousand messages of 20 thousand keys")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--json", metavar="FILE", help="also store the figures")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.of:
        print(json.dumps(compact(options.of, options.keys)))
        return 0
    if options.quick:
        options.messages, options.keys, options.segment_bytes = 500_000, 20_000, 4 << 20
    try:
        result = measure(options.directory, options.messages, options.keys, options.segment_bytes)
    except CheckFailed as error:
        print(f"FAILED: {error}")
        return 1
    print(f"compaction of {options.messages:,} messages with {options.keys:,} keys: what is left equals the reference")
    for name, value in result.items():
        print(f"  {name:24} {f'{value:,.1f}' if isinstance(value, float) else value}")
    met = result["rss_more_mb"] < MEMORY_MAX_MB
    print(f"  target: rss_more_mb under {MEMORY_MAX_MB}, whatever the number of messages: {'met' if met else 'MISSED'}")
    if options.json:
        Path(options.json).write_text(json.dumps({**result, "target_mb": MEMORY_MAX_MB, "met": met}, indent=1))
    return 0 if met else 2


if __name__ == "__main__":
    sys.exit(main())
