"""
Compaction of many messages of few keys: time, memory, what is left, and what readers and writers get done meanwhile.

`python -m benchmarks.compaction [--quick] [--messages N] [--keys N]`. The store is filled first. Another process opens it and compacts it
while one thread writes to the topic and one reads it. Memory is the most that this process had meanwhile: in all, with the files that it
has mapped, as the kernel keeps it (VmHWM), and for itself, sampled every 10 ms; both also over what it had before. The target is for the
first. What is left is compared with a reference, message by message.
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
from pathlib import Path
from typing import Any

from penstock import Store, StoreSettings
from penstock.format.batch import encode_batch

TOPIC = "prices"
BATCH = 1_000
PAYLOAD = b"." * 40
MEMORY_MAX_MB = 200


def keys_of(messages: int, keys: int) -> Any:
    """The numbers of the keys, batch by batch, the same each time."""
    rng = random.Random(messages)
    for _ in range(messages // BATCH):
        yield [rng.randrange(keys) for _ in range(BATCH)]


def fill(path: str, messages: int, keys: int, segment_bytes: int = 64 << 20) -> None:
    """Publish them; each value says its number."""
    with Store.open(path) as store:
        store.create_topic(TOPIC, compaction=True, sync="os", segment_bytes=segment_bytes)
        log = store._catalog.get(TOPIC).logs[0]  # noqa: SLF001
        for number, chosen in enumerate(keys_of(messages, keys)):
            values = [b"%d" % (number * BATCH + at) + PAYLOAD for at in range(BATCH)]
            store._volume.append(log, encode_batch(values, keys=[b"key-%d" % key for key in chosen]))  # noqa: SLF001


def memory_mb(*names: str) -> list[float]:
    """What the kernel says of this process: RssAnon is its own, VmRSS has the files that it has mapped too, VmHWM is the most of it."""
    lines = [line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()]
    sizes = {name: value for name, _, value in lines}
    return [int(sizes[name].split()[0]) / 1024 for name in names]


class Watcher:
    """Threads that write, read and look at the memory until they are stopped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self.written = self.read = 0
        self.slowest_write_s = 0.0
        self.peak_own_mb = 0.0
        self._threads = [threading.Thread(target=one) for one in (self._write, self._read, self._watch)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.001):
            start = time.perf_counter()
            self._store.publish(TOPIC, b"meanwhile")
            self.slowest_write_s = max(self.slowest_write_s, time.perf_counter() - start)
            self.written += 1

    def _read(self) -> None:
        while not self._stop.is_set():
            start = random.Random(self.read).randrange(self._store.ends(TOPIC)[0])
            last = -1
            for message in self._store.read(TOPIC, 0, start=start, max_messages=1_000):
                assert message.offset > last
                last = message.offset
                self.read += 1
            self._stop.wait(0.001)

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak_own_mb = max(self.peak_own_mb, *memory_mb("RssAnon"))

    def stop(self) -> None:
        """Let them end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def compact(path: str) -> dict[str, Any]:
    """Compact the store at *path* in this process."""
    baseline_s = 1.0
    with Store.open(path, settings=StoreSettings(retention_interval_ms=3_600_000)) as store:
        idle = Watcher(store)
        start = time.perf_counter()
        time.sleep(baseline_s)
        idle.stop()
        idle_s = time.perf_counter() - start
        own_before, before = memory_mb("RssAnon", "VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        watcher = Watcher(store)
        start = time.perf_counter()
        removed = store.compact(TOPIC)
        seconds = time.perf_counter() - start
        (peak,) = memory_mb("VmHWM")
        watcher.stop()
        return {
            "seconds": seconds, "removed": removed._asdict(),
            "rss_mb": peak, "rss_more_mb": peak - before, "own_mb": watcher.peak_own_mb, "own_more_mb": watcher.peak_own_mb - own_before,
            "writes_per_s": watcher.written / seconds, "writes_per_s_before": idle.written / idle_s,
            "reads_per_s": watcher.read / seconds, "reads_per_s_before": idle.read / idle_s,
            "slowest_write_ms": watcher.slowest_write_s * 1000,
        }  # fmt: skip


def check(path: str, messages: int, keys: int) -> int:
    """Compare what is left with the reference; returns how many messages of keys there are. Raises `AssertionError`."""
    last = {}
    for number, chosen in enumerate(keys_of(messages, keys)):
        for at, key in enumerate(chosen):
            last[key] = number * BATCH + at
    with Store.open(path) as store:
        limit = store._catalog.get(TOPIC).logs[0].segment_firsts  # noqa: SLF001
        sealed_end = max([first for first in limit if first < messages])
        # What the last sealed segment knows of: a key whose latest lies in the one that was active keeps its latest before it too.
        sealed: dict[int, int] = {}
        for number, chosen in enumerate(keys_of(messages, keys)):
            for at, key in enumerate(chosen):
                if number * BATCH + at < sealed_end:
                    sealed[key] = number * BATCH + at
        found = []
        for message in store.read(TOPIC):
            if message.key is None:
                continue
            offset = message.offset
            assert message.value == b"%d" % offset + PAYLOAD
            found.append(offset)
        expected = sorted([*sealed.values(), *range(sealed_end, messages)])
        assert found == expected, f"{len(found)} messages are left, {len(expected)} are right"
        assert set(last.values()) <= set(found)
        return len(found)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction")
    parser.add_argument("--quick", action="store_true", help="500 thousand messages of 20 thousand keys")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.of:
        print(json.dumps(compact(options.of)))
        return 0
    if options.quick:
        options.messages, options.keys = 500_000, 20_000
    folder = tempfile.mkdtemp(prefix="penstock-compaction-", dir=options.directory)
    try:
        path = os.path.join(folder, "store")
        fill(path, options.messages, options.keys, 4 << 20 if options.quick else 64 << 20)
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.compaction", "--of", path], check=True, stdout=subprocess.PIPE, text=True
        )
        result = json.loads(answer.stdout)
        result["left"] = check(path, options.messages, options.keys)
    finally:
        shutil.rmtree(folder)
    print(f"compaction of {options.messages:,} messages with {options.keys:,} keys: what is left equals the reference")
    for name, value in result.items():
        print(f"  {name:24} {value if isinstance(value, dict) else f'{value:,.1f}'}")
    met = result["rss_more_mb"] < MEMORY_MAX_MB
    print(f"  target: rss_more_mb under {MEMORY_MAX_MB}, whatever the number of messages: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
