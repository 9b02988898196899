"""
Sixteen threads on one store: publishing, consuming with failures and leases that end, seeking, retention, with segments that roll.

Nobody may wait for ever, no message may be lost, none may be with two consumers at once, and memory must not grow.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import itertools
import os
import random
import statistics
import threading
import time
import traceback
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import LeaseExpired, OffsetOutOfRange
from penstock.settings import StoreSettings
from penstock.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.groups.delivery import Delivery

KIB, MIB = 1024, 1024 * 1024
SETTINGS = StoreSettings(
    journal_file_bytes=MIB, frame_bytes=64 * KIB, reference_bytes=16 * KIB, checkpoint_bytes=512 * KIB, checkpoint_interval_ms=50,
    free_bytes_floor=0, reserve_bytes=0,
)  # fmt: skip
PARTITIONS = 4
LEASE = 0.15
MAX_DELIVERIES = 4
STALL_SECONDS = 60
DRAIN_SECONDS = 60
_ERRORS = 2
"""The descriptor of the error output: pytest puts another object in the place of sys.stderr."""
WORKING = {"publish": 4, "work": 6, "follow": 4, "seek": 1, "tend": 1}


_LIBC = ctypes.CDLL(None)
LEAK_BYTES_MAX = 16 * MIB
"""The most that memory may grow in a minute, by its trend."""


def settled_bytes() -> int:
    """The memory of this process without what is only waiting to be given back."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # not every C library has it
        _LIBC.malloc_trim(0)
    return resident_bytes()


def growth_per_second(samples: list[tuple[float, int]]) -> float:
    """The trend of (time, bytes): the median of the slopes between all of them, which single peaks do not change."""
    slopes = [(more - bytes_) / (later - at) for (at, bytes_), (later, more) in itertools.combinations(samples, 2)]
    return statistics.median(slopes)


def resident_bytes() -> int:
    """The memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Bench:
    """The store, its threads, and what they have seen."""

    def __init__(self, path: str, seed: int) -> None:
        self.store = Store.open(path, settings=SETTINGS)
        self.store.create_topic(
            "jobs", partitions=PARTITIONS, segment_bytes=32 * KIB, coalesce_below_bytes=4 * KIB, retention_bytes=128 * KIB
        )
        for group in ("work", "follow"):
            self.store.subscribe("jobs", group).close()
        self._seed = seed
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []
        self._flags = {"publishing": True, "stopping": False}
        self.behind = False
        self.progress: dict[str, int] = {}
        self.held: dict[tuple[int, int], tuple[float, float, Delivery]] = {}
        """By message of the group ``work``: (when it was asked for, when it was there, its delivery)."""
        self.acked_at: dict[tuple[int, int], float] = {}
        """When messages were acked, since `forgotten`."""
        self.forgotten = 0.0
        # One byte for each message: whatever this test remembers must not look like a leak.
        self.published = [0] * PARTITIONS
        self.acked = [bytearray() for _ in range(PARTITIONS)]
        self.followed = [bytearray() for _ in range(PARTITIONS)]
        self.counts: dict[str, int] = defaultdict(int)

    def publishing(self) -> bool:
        """Whether publishers go on, and the one who seeks and the one who tends."""
        return self._flags["publishing"]

    def stopping(self) -> bool:
        """Whether consumers are to end."""
        return self._flags["stopping"]

    def stop(self) -> None:
        """Let all threads end."""
        self._flags = {"publishing": False, "stopping": True}

    def start(self) -> None:
        """Start all sixteen."""
        for kind, count in WORKING.items():
            for number in range(count):
                name = f"{kind}-{number}"
                work = getattr(self, f"_{kind}")
                self.progress[name] = 0
                thread = threading.Thread(target=self._run, args=(work, name), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        assert len(self._threads) == 16

    def _run(self, work: Callable[[str, random.Random], None], name: str) -> None:
        try:
            work(name, random.Random(f"{self._seed} {name}"))
        except BaseException:
            self.errors.append(f"{name}: {traceback.format_exc()}")
        finally:
            del self.progress[name]

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    # -- what the threads do ----------------------------------------------------------------------------------------

    def _publish(self, name: str, rng: random.Random) -> None:
        while self.publishing():
            partition = rng.randrange(PARTITIONS)
            count = rng.choice([1, 1, 5, 50])
            values = [b"x" * rng.choice([20, 20, 200]) for _ in range(count)]
            receipts = self.store.publish_many("jobs", values, partition=partition)
            assert len(receipts) == count
            self._count("published", count)
            self.progress[name] += 1
            time.sleep(0.1 if self.behind else rng.uniform(0, 0.02))

    def _work(self, name: str, rng: random.Random) -> None:
        options: dict[str, Any] = {"lease": LEASE, "max_deliveries": MAX_DELIVERIES, "backoff": 0.005, "backoff_max": 0.02}
        while not self.stopping():
            with self.store.subscribe("jobs", "work", prefetch=rng.choice([1, 20, 200]), **options) as consumer:
                for _ in range(rng.choice([20, 500])):
                    if self.stopping():
                        break
                    asked = time.monotonic()
                    messages = consumer.get_many(rng.choice([1, 1, 10]), timeout=0.05)
                    self._check_taken(messages, asked, time.monotonic())
                    self._handle(messages, rng)
                    self.progress[name] += 1

    def _check_taken(self, messages: list[Delivery], asked: float, got: float) -> None:
        with self._lock:
            for message in messages:
                key = (message.partition, message.offset)
                acked = self.acked[message.partition]
                if message.offset < len(acked) and acked[message.offset] and asked > self.acked_at.get(key, self.forgotten):
                    self.errors.append(f"{key} is given out after it was acked")
                known = self.held.get(key)
                # Each lease began between asking and getting, and threads may be slow to say so, in any order: whichever of the two
                # came first, it certainly still ran when the other one began if they began in a shorter time than a lease is.
                if known is not None and (apart := max(got - known[0], known[1] - asked)) < LEASE:
                    self.errors.append(f"{key} is given to two consumers within {apart:.3f} s")
                if known is None or known[0] <= asked:
                    self.held[key] = (asked, got, message)

    def _handle(self, messages: list[Delivery], rng: random.Random) -> None:
        if messages and rng.random() < 0.01:
            self._count("slow")
            time.sleep(LEASE * 1.5)
        for message in messages:
            key = (message.partition, message.offset)
            chance = rng.random()
            with self._lock:
                if self.held.get(key, (0, 0, None))[2] is message:
                    del self.held[key]
            try:
                if chance < 0.1 or message.offset % 97 == 0:
                    message.nack(delay=rng.choice([None, 0, 0.01]))
                    self._count("nacked")
                    continue
                if chance < 0.13:
                    message.extend(LEASE)
                message.ack(wait=chance > 0.995)
            except LeaseExpired:
                self._count("late")
                continue
            with self._lock:
                self.counts["acked"] += 1
                acked = self.acked[message.partition]
                if len(acked) <= message.offset:
                    acked.extend(bytes(message.offset + 1 - len(acked)))
                acked[message.offset] += 1
                self.acked_at[message.partition, message.offset] = time.monotonic()
                if len(self.acked_at) > 20_000:
                    self.forgotten = time.monotonic() - 10
                    self.acked_at = {key: at for key, at in self.acked_at.items() if at > self.forgotten}

    def _follow(self, name: str, rng: random.Random) -> None:
        """The second group, which somebody moves about: what counts is that it goes on."""
        with self.store.subscribe("jobs", "follow", prefetch=50, max_deliveries=0) as consumer:
            while not self.stopping():
                messages = consumer.get_many(20, timeout=0.05)
                if messages:
                    self._count("followed", len(messages))
                with contextlib.suppress(LeaseExpired):
                    consumer.ack(rng.sample(messages, len(messages)))
                    with self._lock:
                        for message in messages:
                            followed = self.followed[message.partition]
                            if len(followed) <= message.offset:
                                followed.extend(bytes(message.offset + 1 - len(followed)))
                            followed[message.offset] = 1
                self.progress[name] += 1

    def _seek(self, name: str, rng: random.Random) -> None:
        while self.publishing():
            partition = rng.randrange(PARTITIONS)
            places: list[int | str] = ["earliest", "latest", rng.randrange(max(self.store.ends("jobs")[partition], 1))]
            to = rng.choice(places)
            with contextlib.suppress(OffsetOutOfRange):
                self.store.seek("jobs", "follow", to, partition=rng.choice([None, partition]))
                self._count("seeks")
            self.progress[name] += 1
            time.sleep(rng.uniform(0, 0.2))

    def _tend(self, name: str, rng: random.Random) -> None:
        while self.publishing():
            self._count("segments removed", self.store.retain().segments)
            # The publishers wait for the group that works, or the end would take long.
            self.behind = self.store.stats().topics["jobs"].groups["work"].lag > 5_000
            self.store.flush()
            self.progress[name] += 1
            time.sleep(0.02)

    # -- watching them ----------------------------------------------------------------------------------------------

    def watch(self, seconds: float, wanted: tuple[str, ...]) -> tuple[list[int], list[tuple[float, int]]]:
        """
        Let them work for *seconds*, and until all *wanted* was seen.

        Returns how much memory there was ten times a second, and thirty times in all with the time, after garbage was collected.
        """
        memory: list[int] = []
        settled: list[tuple[float, int]] = []
        last, since = dict(self.progress), dict.fromkeys(self.progress, time.monotonic())
        deadline = time.monotonic() + seconds
        while not self.errors:
            late = time.monotonic() - deadline
            # A machine that stands still for seconds must not leave too little to judge by.
            enough = len(memory) >= 5 * seconds and all(self.counts.get(what) for what in wanted)
            if late > 0 and (enough or late > DRAIN_SECONDS):
                break
            time.sleep(0.1)
            memory.append(resident_bytes())
            now = time.monotonic()
            if not settled or now - settled[-1][0] > seconds / 30:
                settled.append((now, settled_bytes()))
            for name, count in dict(self.progress).items():
                if count != last[name]:
                    last[name], since[name] = count, now
                elif now - since[name] > STALL_SECONDS:
                    self._give_up(f"{name} did nothing for {STALL_SECONDS} s")
        return memory, settled

    def _give_up(self, why: str) -> None:
        faulthandler.dump_traceback(_ERRORS, all_threads=True)
        pytest.fail(f"{why}; all stacks are on the error output")

    def finish(self) -> None:
        """Publish no more, let the groups finish everything, and end all threads."""
        self._flags["publishing"] = False
        self._wait(lambda: not [name for name in self.progress if name.split("-")[0] in {"publish", "seek", "tend"}], "to stop")
        for partition in range(PARTITIONS):
            self.followed[partition].clear()
        self.store.seek("jobs", "follow", "earliest")
        self._wait(lambda: all(group.lag == 0 for group in self.store.stats().topics["jobs"].groups.values()), "to be done")
        self.stop()
        self._wait(lambda: not self.progress, "to end")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while not condition() and not self.errors:
            if time.monotonic() > deadline:
                groups = self.store.stats().topics["jobs"].groups
                self._give_up(f"{sorted(self.progress)} took more than {DRAIN_SECONDS} s {what}; {groups}")
            time.sleep(0.02)

    def judge(self) -> None:
        """Every message was finished once: acked, or a dead letter."""
        assert not self.errors, "\n".join(self.errors[:5])
        ends, starts = self.store.ends("jobs"), self.store.stats().topics["jobs"].starts
        assert sum(ends.values()) == self.counts["published"]
        dead: list[set[int]] = [set() for _ in range(PARTITIONS)]
        for letter in self.store.dead_letters("jobs"):
            assert letter.headers["x-dlq-group"] == b"work"
            partition, offset = (int(letter.headers[f"x-dlq-source-{name}"]) for name in ("partition", "offset"))
            assert offset not in dead[partition], f"{partition}/{offset} has two dead letters"
            dead[partition].add(offset)
        for partition, end in ends.items():
            acked = self.acked[partition].ljust(end, b"\0")
            wrong = [offset for offset in range(end) if acked[offset] + (offset in dead[partition]) != 1]
            assert not wrong, (
                f"partition {partition}: {[(offset, acked[offset], offset in dead[partition]) for offset in wrong[:10]]}"
            )
            followed = self.followed[partition].ljust(end, b"\0")
            missed = [offset for offset in range(starts[partition], end) if not followed[offset]]
            assert not missed, f"partition {partition}: after the last seek {len(missed)} were not delivered: {missed[:10]}"
        self.counts["dead letters"] = sum(map(len, dead))


def test_the_trend_tells_a_leak_from_noise(rng: random.Random) -> None:
    """A megabyte a second, or half of it, is seen through peaks of many; what only goes up and down is none."""
    for _ in range(100):
        peaks = rng.sample(range(15), rng.randrange(3))
        noise = [(2.0 * at, 100 * MIB + rng.randrange(3 * MIB) + (40 * MIB if at in peaks else 0)) for at in range(15)]
        assert growth_per_second(noise) * 60 < LEAK_BYTES_MAX
        for leak in (MIB, MIB // 2):
            assert growth_per_second([(at, taken + int(at * leak)) for at, taken in noise]) * 60 > LEAK_BYTES_MAX


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_sixteen_threads(seconds: int, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    bench = Bench(str(tmp_path / "store"), seed)
    # Whatever hangs, and wherever: the stacks are seen before the time limit of the test ends everything.
    faulthandler.dump_traceback_later(280, file=_ERRORS)
    try:
        bench.start()
        wanted = ("acked", "nacked", "late", "slow", "seeks", "followed")
        memory, settled = bench.watch(seconds, wanted if seconds < 60 else (*wanted, "segments removed"))
        if not bench.errors:
            bench.finish()
        bench.judge()
    finally:
        faulthandler.cancel_dump_traceback_later()
        bench.stop()
        bench.store.close()
    counts = dict(bench.counts)
    record_property(f"sixteen threads for {seconds} s", counts)
    third, last = memory[len(memory) // 2 : len(memory) * 3 // 4], memory[len(memory) * 3 // 4 :]
    growth = sorted(last)[len(last) // 2] - sorted(third)[len(third) // 2]
    print(f"sixteen threads for {seconds} s: {counts}; {max(memory) / MIB:.0f} MiB, the last quarter {growth / MIB:+.1f} MiB")
    trend = growth_per_second(settled[len(settled) // 2 :])
    print(f"the trend of the second half: {trend * 60 / MIB:+.2f} MiB in a minute, by {len(settled) // 2} samples")
    assert growth < 16 * MIB
    if seconds >= 60:
        # Seconds are too few to tell a leak from caches that fill.
        assert trend * 60 < LEAK_BYTES_MAX
    assert all(counts.get(what) for what in (*wanted, "dead letters"))
    if seconds >= 60:
        assert counts["segments removed"] > 0
