"""
A plain topic against an earlier commit: what features cost those who do not use them.

    python -m benchmarks.before [COMMIT] [--quick] [--json FILE] [--docs]

It unpacks the sources of the commit (unless told otherwise the last one without priorities, delays, expiry, compaction and the rest) beside
the present ones. For each row both do the same, by turns of a fraction of a second, each in a process of its own, on a topic with
``sync="os"`` in memory and in a folder; who begins changes. Each pair of turns gives a ratio, the time of a message now to before, and the
row's figure is the median of the ratios, over a few pairs of processes; it must not be over 1.10. The ratio of CPU time stands beside it:
it hardly depends on what else the machine does.

Below it are the system calls that a message takes on a real disk, counted by strace: all that have to do with files, and those that were
made before the first message taken off. They must not be more.

The exit code is 0, or 1 if a row misses its limit. `--docs` writes the table of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- before:start -->", "<!-- before:end -->"
COMMIT = "4f29132"
"""Where the branches with priorities, delays, expiry, compaction and database helpers begin."""
LIMIT = 1.10
CALLS_LIMIT = 0.01
"""So much more system calls a message than before are still none: a checkpoint falls on one side, or the other."""
VALUE = b"x" * 100
TOGETHER = 1_000
PLACES = ("memory:", "folder")
MESSAGES = {"publish": 10_000, "publish_many": 200_000, "send": 100_000, "get_many and ack": 400_000, "get and ack": 15_000}
"""In one turn."""
COUNTED = {"publish": 200, "publish_many": 200_000, "send": 20_000, "get and ack": 20_000, "ack and wait": 200}
"""Messages whose system calls are counted."""
CALLS = "%file,%desc"
"""What strace calls those that have to do with files."""


# -- one side, in a process of its own: nothing but what the earlier commit has too ---------------------------------------


def _prepare(store: Any, topic: str, what: str, count: int) -> Callable[[], None]:
    """What is to be timed."""

    def publish() -> None:
        for _ in range(count):
            store.publish(topic, VALUE)

    def publish_many() -> None:
        for _ in range(-(-count // TOGETHER)):
            store.publish_many(topic, [VALUE] * TOGETHER)

    def send() -> None:
        with store.producer(topic) as producer:
            for _ in range(count):
                producer.send(VALUE)

    if what in ("publish", "publish_many", "send"):
        return {"publish": publish, "publish_many": publish_many, "send": send}[what]
    publish_many()
    consumer = store.subscribe(topic, "g")

    def get_and_ack() -> None:
        with consumer:
            for _ in range(count):
                consumer.get(timeout=0).ack(wait=what == "ack and wait")

    def get_many_and_ack() -> None:
        with consumer:
            for _ in range(-(-count // TOGETHER)):
                consumer.ack(consumer.get_many(TOGETHER, timeout=0))

    return get_many_and_ack if what == "get_many and ack" else get_and_ack


def _serve(what: str, place: str, count: int) -> None:
    """For each line that is read one turn, whose seconds and seconds of CPU time a message are written."""
    import penstock

    print(penstock.__file__, flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-before-", dir=None if place == "memory:" else place) as folder:
        for number, _ in enumerate(sys.stdin):
            # A store in memory holds all that was published; one in a folder takes long to make.
            path = place if place == "memory:" else os.path.join(folder, "store")
            with penstock.open(path) as store:
                store.create_topic(f"t{number}", sync="os")
                work = _prepare(store, f"t{number}", what, count)
                gc.collect()
                begun, cpu = time.perf_counter(), time.process_time()
                work()
                print((time.perf_counter() - begun) / count, (time.process_time() - cpu) / count, flush=True)


def _do(what: str, count: int) -> None:
    """The same on a disk, with nothing in the background: the same calls each time."""
    from penstock.store.store import Store

    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder, Store.open(folder, background=False) as store:
        store.create_topic("t")
        store.publish("t", VALUE)
        _prepare(store, "t", what, count)()


# -- both sides -------------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """Of a message."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Row:
    """What was measured of one kind of work, and whether that is good enough."""

    name: str
    place: str
    before: list[Turn] = field(repr=False)
    now: list[Turn] = field(repr=False)

    @property
    def ratios(self) -> list[float]:
        """Time now to time before, pair by pair."""
        return [now.seconds / before.seconds for now, before in zip(self.now, self.before, strict=True)]

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float:
        """The same of CPU time."""
        pairs = zip(self.now, self.before, strict=True)
        return statistics.median(now.cpu_seconds / max(before.cpu_seconds, 1e-12) for now, before in pairs)

    @property
    def is_met(self) -> bool:
        """Whether it costs no more than the limit says."""
        return self.ratio <= LIMIT

    def cells(self) -> list[str]:
        """As printed."""
        before, now = (f"{1e6 * statistics.median(turn.seconds for turn in side):.3g} us" for side in (self.before, self.now))
        spread = f"{min(self.ratios):.2f}..{max(self.ratios):.2f}"
        verdict = "met" if self.is_met else "missed"
        return [
            self.name,
            self.place,
            before,
            now,
            f"{self.ratio:.3f}",
            spread,
            f"{self.cpu_ratio:.3f}",
            f"<= {LIMIT:.2f}",
            verdict,
        ]


@dataclass(frozen=True)
class CallsRow:
    """System calls of a message."""

    name: str
    before: float
    now: float

    @property
    def is_met(self) -> bool:
        """Whether there are no more than before."""
        return self.now <= self.before + CALLS_LIMIT

    def cells(self) -> list[str]:
        """As printed."""
        return [self.name, f"{self.before:.4f}", f"{self.now:.4f}", "met" if self.is_met else "missed"]


class Side:
    """A process with one of the two sources."""

    def __init__(self, source: Path, what: str, place: str, count: int) -> None:
        command = [sys.executable, str(Path(__file__)), "--serve", what, place, str(count)]
        self._process = subprocess.Popen(
            command, env=_environment(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found = Path(self._line())
        if not found.is_relative_to(source):
            raise RuntimeError(f"the side that should run {source} runs {found}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"a side ended with {self._process.wait()}")
        return line

    def turn(self) -> Turn:
        """Let it work once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        seconds, cpu_seconds = map(float, self._line().split())
        return Turn(seconds, cpu_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _environment(source: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}


def _compare(sides: dict[str, Path], what: str, place: str, options: argparse.Namespace) -> Row:
    turns: dict[str, list[Turn]] = {"before": [], "now": []}
    count = max(1, int(MESSAGES[what] * options.share))
    for number in range(options.processes):
        where = place if place == "memory:" else options.directory
        with Side(sides["before"], what, where, count) as before, Side(sides["now"], what, where, count) as now:
            for turn in range(-1, options.turns):
                both = [("before", before), ("now", now)]
                for name, side in both if (number + turn) % 2 else reversed(both):
                    found = side.turn()
                    if turn >= 0:  # the first is to warm up
                        turns[name].append(found)
    return Row(what, place, turns["before"], turns["now"])


def _count_calls(source: Path, what: str) -> float:
    totals = []
    for count in (0, COUNTED[what]):
        command = [sys.executable, str(Path(__file__)), "--do", what, str(count)]
        with tempfile.NamedTemporaryFile("r", prefix="penstock-before-") as summary:
            traced = ["strace", "-f", "-c", "-U", "calls,name", "-e", f"trace={CALLS}", "-o", summary.name, *command]
            subprocess.run(traced, env=_environment(source), check=True)
            (total,) = [int(line.split()[0]) for line in summary if line.split()[1:] == ["total"]]
        totals.append(total)
    return (totals[1] - totals[0]) / COUNTED[what]


def unpack(commit: str, folder: Path) -> Path:
    """The sources of *commit*, in *folder*. Raises `SystemExit` if this is no repository that has it."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"the sources of {commit} cannot be had: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder / "src"


# -- what is told -------------------------------------------------------------------------------------------------------------

HEADINGS = ("row", "topic in", "before", "now", "ratio", "spread", "CPU time", "limit", "result")
CALLS_HEADINGS = ("row", "system calls before", "now", "result")


def table(rows: list[Row], calls: list[CallsRow], facts: dict[str, str], commit: str) -> str:
    """For docs/benchmarks.md."""

    def lines(headings: tuple[str, ...], cells: list[list[str]]) -> Iterator[str]:
        for one in (headings, ["---"] * len(headings), *cells):
            yield "| " + " | ".join(one) + " |"

    parts = [
        f"Now and {commit}: {', '.join(f'{name} {fact}' for name, fact in facts.items())}.",
        "\n".join(lines(HEADINGS, [row.cells() for row in rows])),
    ]
    if calls:
        parts.append("\n".join(lines(CALLS_HEADINGS, [row.cells() for row in calls])))
    return "\n\n".join(parts)


def write_page(text: str, page: Path = PAGE) -> None:
    """Put it between the marks."""
    old = page.read_text(encoding="utf-8")
    head, _, rest = old.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page} has no place for it: {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before", description="A plain topic, now and at an earlier commit."
    )
    parser.add_argument("commit", nargs="?", default=COMMIT, help=f"what to compare with (default {COMMIT})")
    parser.add_argument("--quick", action="store_true", help="less of everything; the figures mean little")
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes of each row")
    parser.add_argument("--turns", type=int, default=8, help="of each process, in each row")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of a turn")
    parser.add_argument("--only", action="append", choices=list(MESSAGES), help="one kind of work, may be repeated")
    parser.add_argument("--directory", default="/var/tmp", help="for the stores in folders")
    parser.add_argument("--no-calls", action="store_true", help="do not count system calls")
    parser.add_argument("--json", metavar="FILE", help="also store every turn")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.quick:
        options.processes, options.turns, options.share = 1, 3, 0.2
    return options


def main(arguments: list[str] | None = None) -> int:
    """Compare; returns the exit code."""
    from benchmarks.measure import line_of, machine_facts

    options = _parse(arguments)
    facts = machine_facts(options.directory)
    rows: list[Row] = []
    calls: list[CallsRow] = []
    chosen = options.only or list(MESSAGES)
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder:
        sides = {"before": unpack(options.commit, Path(folder)), "now": ROOT / "src"}
        print(", ".join(f"{name} {fact}" for name, fact in facts.items()), end="\n\n")
        _print(HEADINGS)
        for what in chosen:
            for place in PLACES:
                rows.append(_compare(sides, what, place, options))
                _print(rows[-1].cells())
        if options.no_calls or shutil.which("strace") is None:
            print("\nsystem calls are not counted" + ("" if options.no_calls else ": there is no strace"))
        else:
            print()
            print(line_of([*CALLS_HEADINGS, "", "", "", ""]))
            for what in COUNTED:
                if options.only is None or what in chosen:
                    counts = {name: _count_calls(source, what) for name, source in sides.items()}
                    calls.append(CallsRow(what, counts["before"], counts["now"]))
                    print(line_of([*calls[-1].cells(), "", "", "", ""]), flush=True)
    both: list[Row | CallsRow] = [*rows, *calls]
    missed = [row for row in both if not row.is_met]
    print(f"\n{len(both) - len(missed)} limits met, {len(missed)} missed")
    if options.json:
        stored = {
            "commit": options.commit, "facts": facts, "limit": LIMIT,
            "rows": [{**asdict(row), "ratio": row.ratio, "cpu_ratio": row.cpu_ratio, "met": row.is_met} for row in rows],
            "calls": [{**asdict(row), "met": row.is_met} for row in calls],
        }  # fmt: skip
        Path(options.json).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if options.docs:
        write_page(table(rows, calls, facts, options.commit))
    return 1 if missed else 0


def _print(cells: list[str] | tuple[str, ...]) -> None:
    widths = (18, 10, 10, 10, 7, 12, 9, 8, 0)
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["--do"]:
        _do(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
