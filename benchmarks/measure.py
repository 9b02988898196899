"""
How the benchmarks measure: sides that take turns, medians of what they did, rows with a target.

A shared machine is noisy, and its noise lasts for seconds. So ours and the raw limit never run one after the other but in
turns of some milliseconds; each repeat gives one ratio, and the median of the ratios is the figure.

That takes out noise which slows both sides alike. It does not make a busy machine a quiet one: when others keep the disk busy a
sync takes twenty times as long, our own work beside it counts for nothing, and a row passes that would miss otherwise. So each
row says how far its raw limit moved and how many cores others used meanwhile; what is marked `noisy` proves nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KIB = 1024
MIB = 1024 * KIB

# From linux/magic.h.
_FILE_SYSTEMS = {
    0x01021994: "tmpfs", 0x858458F6: "ramfs", 0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x794C7630: "overlay",
    0x6969: "nfs", 0x65735546: "fuse", 0x2FC12FC1: "zfs", 0xF2F52010: "f2fs", 0x01021997: "9p",
}  # fmt: skip
_IN_MEMORY = ("tmpfs", "ramfs")

UNSTEADY = 1.6
"""A raw limit that moves by more than this during a row."""
OTHERS_CORES = 0.3
"""More than the kernel itself needs for what we write."""


# -- the machine --------------------------------------------------------------------------------------------------------


def file_system_of(path: str) -> str:
    """The type of the file system that *path* lies on, as statfs(2) tells it."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)  # struct statfs begins with f_type, a long
    if libc.statfs(os.fsencode(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    number = ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
    return _FILE_SYSTEMS.get(number, f"{number:#x}")


def is_in_memory(path: str) -> bool:
    """Whether a sync costs nothing there, so that a figure about durability would be worth nothing."""
    return file_system_of(path) in _IN_MEMORY


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def machine_facts(directory: str) -> dict[str, str]:
    """What a figure means nothing without."""
    load, _, _ = os.getloadavg()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
        "memory": f"{memory / 1e9:.1f} GB",
        "kernel": platform.release(),
        "file system": f"{file_system_of(directory)} ({directory})",
        "python": platform.python_version(),
        "load before": f"{load:.2f}",
    }


class OthersWatch:
    """How many cores others have used since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy, self._own = self._read()

    @staticmethod
    def _read() -> tuple[float, float]:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, interrupts, soft, steal, *_ = [int(number) for number in file.readline().split()[1:]]
        busy = (user + nice + system + interrupts + soft + steal) / os.sysconf("SC_CLK_TCK")
        times = os.times()
        return busy, times.user + times.system + times.children_user + times.children_system

    @property
    def cores(self) -> float:
        """Cores in use by others, on average."""
        busy, own = self._read()
        return max(0.0, busy - self._busy - (own - self._own)) / max(time.monotonic() - self._start, 0.001)


def wait_until_quiet(seconds: float) -> None:
    """Wait until others leave the machine alone for a second, at most so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch = OthersWatch()
        time.sleep(1)
        if watch.cores <= OTHERS_CORES:
            return


# -- figures ------------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What one turn of a side did, in units of its own (bytes, messages, calls), and how long it took."""

    amount: float
    seconds: float


if TYPE_CHECKING:
    Side = Callable[[], Work]


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """A list that holds the seconds of the block after it."""
    seconds: list[float] = []
    start = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - start)


def calls(function: Callable[[], object], count: int) -> Side:
    """A side that calls *function* so often in one turn."""

    def turn() -> Work:
        start = time.perf_counter()
        for _ in range(count):
            function()
        return Work(count, time.perf_counter() - start)

    return turn


class Rates(NamedTuple):
    """The rate (amount a second) of one side in each repeat."""

    each: list[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.each)

    def over(self, other: Rates) -> list[float]:
        """The ratio to another side, repeat by repeat."""
        return [ours / theirs for ours, theirs in zip(self.each, other.each, strict=True)]

    @property
    def unsteadiness(self) -> float:
        """How many times faster the best repeat was than the worst."""
        return max(self.each) / min(self.each)

    @property
    def microseconds(self) -> list[float]:
        """The time of one unit, repeat by repeat."""
        return [1e6 / rate for rate in self.each]


def alternate(repeats: int, sides: Sequence[Side], *, turns: int = 1, warm_up: bool = True) -> list[Rates]:
    """
    Let the *sides* take turns, so many in each repeat, and return their rates.

    Who begins changes from turn to turn, so that none always runs behind the same other. The first repeat does not count.
    """
    rates: list[list[float]] = [[] for _ in sides]
    for repeat in range(-1 if warm_up else 0, repeats):
        amounts, seconds = [0.0] * len(sides), [0.0] * len(sides)
        for turn in range(turns):
            for step in range(len(sides)):
                at = (repeat + turn + step) % len(sides)
                work = sides[at]()
                amounts[at] += work.amount
                seconds[at] += work.seconds
        if repeat >= 0:
            for at in range(len(sides)):
                rates[at].append(amounts[at] / max(seconds[at], 1e-9))
    return [Rates(each) for each in rates]


# -- rows ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure must be."""

    relation: str
    limit: float
    unit: str = "x"

    def is_met(self, value: float) -> bool:
        """Whether *value* is good enough."""
        return value >= self.limit if self.relation == ">=" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.relation} {self.limit:g}{unit_text(self.unit)}"


def at_least(limit: float, unit: str = "x") -> Target:
    """More is better."""
    return Target(">=", limit, unit)


def at_most(limit: float, unit: str = "x") -> Target:
    """Less is better."""
    return Target("<=", limit, unit)


def unit_text(unit: str) -> str:
    """How a unit stands behind a number."""
    return unit if unit == "x" else f" {unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: *values* are the figure in each repeat, in *unit*."""

    name: str
    values: list[float]
    ours: str
    limit: str = ""
    target: Target | None = None
    unit: str = "x"
    note: str = ""
    also: bool | None = None
    """Another way to meet the target, where there are two."""
    refused: str = ""
    unsteadiness: float = 1.0
    """Of the raw limit, or where there is none of ours."""
    others: float = 0.0
    """Cores that others used meanwhile."""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """The median."""
        return statistics.median(self.values) if self.values else None

    @property
    def verdict(self) -> str:
        """pass, miss, info (no target), refused, absent (what to compare with) or error."""
        if self.refused:
            return self.refused.partition(":")[0]
        if self.target is None or self.value is None:
            return "info"
        return "pass" if self.also or self.target.is_met(self.value) else "miss"

    @property
    def is_noisy(self) -> bool:
        """Whether others disturbed so much that the figure proves nothing."""
        return self.unsteadiness > UNSTEADY or self.others > OTHERS_CORES

    def cells(self) -> list[str]:
        """As printed."""
        if self.value is None:
            return [self.name, "", "", "", "", "", self.verdict, self.refused.partition(": ")[2]]
        spread = f"{_short(min(self.values))}..{_short(max(self.values))}"
        value = f"{_short(self.value)}{unit_text(self.unit)}"
        noise = f" [noisy: raw moved {self.unsteadiness:.1f}x, others used {self.others:.1f} cores]"
        note = self.note + (noise if self.is_noisy else "")
        return [self.name, self.ours, self.limit, value, spread, str(self.target or ""), self.verdict, note]

    def to_json(self) -> dict[str, object]:
        """As stored by --json."""
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "values": self.values, "target": str(self.target or ""),
            "verdict": self.verdict, "ours": self.ours, "limit": self.limit, "note": self.note or self.refused,
            "unsteadiness": self.unsteadiness, "cores_of_others": self.others, **self.figures,
        }  # fmt: skip


HEADINGS = ("row", "ours", "raw limit", "figure", "spread", "target", "result", "")
_WIDTHS = (24, 15, 15, 10, 14, 12, 7, 0)


def line_of(cells: Sequence[str]) -> str:
    """A line of the table."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def per_second(rate: float) -> str:
    """A rate of messages or calls."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if rate >= limit:
            return f"{rate / limit:.3g} {letter}/s"
    return f"{rate:.3g} /s"


def bytes_per_second(rate: float) -> str:
    """A rate of bytes."""
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def microseconds(value: float) -> str:
    """A time."""
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} us"


# -- where and how much ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    repeats: int
    """Of each row."""
    turns: int
    """In each repeat."""
    opens: int
    """Of each store, for the rows about reopening."""
    turn_seconds: float
    """The length of one turn where threads run against the clock."""
    append_bytes: int
    """Written in one repeat by each side, batches of 1000."""
    singles: int
    """Messages in one turn, batches of 1."""
    bare_syncs: int
    """In one turn."""
    tickets: dict[int, int]
    """Outstanding tickets: messages in one turn."""
    read_bytes: int
    lookup_bytes: int
    lookups: int
    """In one turn."""
    decodes: int
    """In one turn."""
    reopen_messages: tuple[int, int]
    """A large store and a small one."""
    coalesce_bytes: int
    publish_batches: int
    """Batches of 1000 in one turn, published through the public interface."""
    sends: int
    """Messages in one turn of a producer."""
    consumes: int
    """Messages in one turn of a consumer."""
    peer_puts: int
    """Messages in one turn of another queue."""
    peer_batches: int
    """Batches of 1000 in one turn of another queue."""
    backlog: tuple[int, int]
    """Messages that wait: many and few; the few are what one turn takes."""
    backlog_turns: int
    nacked: int
    """Messages that wait for their time."""
    wakes: int
    """In one turn."""
    urgent: int
    """Messages that wait in lanes, or until they are due."""
    fired: int
    """Of those that wait until they are due, so many are delivered."""
    compaction: tuple[int, int, int]
    """Messages, keys, bytes of a segment."""


FULL = Sizes(
    repeats=9, turns=8, opens=15, turn_seconds=0.5, append_bytes=48 * MIB, singles=4000, bare_syncs=60,
    tickets={1: 60, 8: 400, 64: 2400, 512: 6000}, read_bytes=512 * MIB, lookup_bytes=1024 * MIB, lookups=500, decodes=500,
    reopen_messages=(10_000_000, 100_000), coalesce_bytes=32 * MIB,
    publish_batches=20, sends=20_000, consumes=10_000, peer_puts=200, peer_batches=2, backlog=(10_000_000, 10_000),
    backlog_turns=8, nacked=100_000, wakes=300, urgent=1_000_000, fired=1_000_000, compaction=(10_000_000, 100_000, 64 * MIB),
)  # fmt: skip
QUICK = Sizes(
    repeats=5, turns=4, opens=9, turn_seconds=0.2, append_bytes=32 * MIB, singles=2000, bare_syncs=30,
    tickets={1: 30, 8: 200, 64: 1200, 512: 4000}, read_bytes=128 * MIB, lookup_bytes=128 * MIB, lookups=200, decodes=200,
    reopen_messages=(1_000_000, 100_000), coalesce_bytes=8 * MIB,
    publish_batches=20, sends=20_000, consumes=5_000, peer_puts=100, peer_batches=1, backlog=(1_000_000, 10_000),
    backlog_turns=4, nacked=100_000, wakes=200, urgent=1_000_000, fired=50_000, compaction=(500_000, 20_000, 4 * MIB),
)  # fmt: skip
TINY = Sizes(
    repeats=1, turns=1, opens=1, turn_seconds=0.02, append_bytes=MIB, singles=20, bare_syncs=2,
    tickets={1: 2, 8: 16, 64: 64, 512: 512}, read_bytes=2 * MIB, lookup_bytes=4 * MIB, lookups=5, decodes=2,
    reopen_messages=(5_000, 1_000), coalesce_bytes=MIB // 4,
    publish_batches=1, sends=50, consumes=200, peer_puts=3, peer_batches=1, backlog=(10_000, 1_000), backlog_turns=1,
    nacked=500, wakes=3, urgent=2_000, fired=2_000, compaction=(5_000, 100, 64 * KIB),
)  # fmt: skip


class Bench(NamedTuple):
    """What a group of rows is given."""

    directory: str
    sizes: Sizes

    @contextmanager
    def folder(self) -> Iterator[str]:
        """A folder for files, gone afterwards."""
        path = tempfile.mkdtemp(prefix="penstock-bench-", dir=self.directory)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


class Group(NamedTuple):
    """Rows that are measured together."""

    name: str
    rows: tuple[str, ...]
    run: Callable[[Bench], Iterator[Row]]
    is_durable: bool = False
    """Means nothing on a file system in memory."""
