"""
Our server against others at the same durability, on this machine and in this run: `python -m benchmarks.server_peers`.

It starts `penstock serve` and each peer on the disk to measure (benchmarks/server_systems.py), and two processes of clients for each
(benchmarks/server_clients.py). In each repeat ours and a peer take turns, one pair after the other, and who begins changes; the first
repeat does not count. A row's figure is the median of the ratios to the peer that did best in it. A peer that cannot be installed or
started has a column that says so, and the reason stands below the table.

One publish at a time by 1 client runs in one process of clients; 16 and 128 clients are shared by two. The result does not change
the exit code, unless --strict is given; a row that breaks for ours does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pstats
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.load import BATCH_MESSAGES, VALUE, SyncedFile
from benchmarks.measure import at_least, at_most, file_system_of, is_in_memory, machine_facts, microseconds, per_second
from benchmarks.server_clients import LOT
from benchmarks.server_report import ServerRow, markdown_table, percentile, replace_block, svg_plot, top_functions
from benchmarks.server_systems import OURS, PEERS, CannotStart, System, launch_penstock_profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.measure import Target
    from benchmarks.server_systems import Running

DIRECTORY = "/var/tmp"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATE = 200.0
"""
Messages a second of the rows about latency: moderate for all.

Some sync twice for each, publish and ack; when others use the disk too, it may do no more than some hundred syncs a second, and above
that one measures a queue that grows.
"""
_BARE_SYNCS = 60
TITLES = {system.name: system.title for system in (OURS, *PEERS)}


class Amount(NamedTuple):
    """How much is measured."""

    repeats: int
    turn_seconds: float
    """About how long one turn of one server takes."""
    most: int
    """Messages in one turn, at most."""


FULL = Amount(5, 0.8, 200_000)
QUICK = Amount(3, 0.3, 50_000)
TINY = Amount(1, 0.05, 2_000)


class ClientError(Exception):
    """A process of clients could not do what it was asked; the message says why."""


class Worker:
    """A process of clients of one server."""

    def __init__(self, system: str, port: int) -> None:
        self.system = system
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server_clients", system, str(port)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.answer()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, do: str, **fields: Any) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ClientError(f"the clients of {self.system} are gone: {error}") from None

    def answer(self) -> dict[str, Any]:
        """Wait until it has finished what was asked. Raises `ClientError`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ClientError(f"the clients of {self.system} ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise ClientError(found["error"])
        return found

    def call(self, do: str, **fields: Any) -> dict[str, Any]:
        """Ask and wait."""
        self.ask(do, **fields)
        return self.answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Side:
    """A server that runs, with its clients."""

    def __init__(self, system: System, running: Running, workers: Sequence[Worker]) -> None:
        self.system = system
        self.running = running
        self.workers = workers
        self.paces: dict[str, float] = {}
        """Messages a second by row, as far as known: how many fit into a turn."""

    def messages(self, row: str, amount: Amount) -> int:
        """How many messages a turn of *row* takes, in whole batches."""
        return whole_batches(self.paces.get(row, 0.0) * amount.turn_seconds, amount.most)


def whole_batches(messages: float, most: int) -> int:
    """So many *messages* in batches of 1000, at least one of them and no more than *most*."""
    return max(1, min(int(messages), most) // BATCH_MESSAGES) * BATCH_MESSAGES


@contextlib.contextmanager
def started(system: System, folder: str) -> Iterator[Side]:
    """Run a server and two processes of clients. Raises `CannotStart`, `ClientError`."""
    with ExitStack() as stack:
        running = system.start(os.path.join(folder, system.name))
        stack.callback(running.stop)
        workers = []
        for _ in range(2):
            workers.append(Worker(system.name, running.port))
            stack.callback(workers[-1].close)
        workers[0].call("create")
        yield Side(system, running, workers)


# -- turns: each returns the figures of its rows --------------------------------------------------------------------------


def _publish(side: Side, amount: Amount, clients: int) -> list[float]:
    if clients == 1:
        found = [side.workers[0].call("publish", clients=1, seconds=amount.turn_seconds)]
    else:
        for worker in side.workers:
            worker.ask("publish", clients=clients // len(side.workers), seconds=amount.turn_seconds)
        found = [worker.answer() for worker in side.workers]
    return [sum(one["amount"] for one in found) / max(one["seconds"] for one in found)]


def _many(side: Side, amount: Amount) -> list[float]:
    done = side.workers[0].call("publish_many", topic="many", count=side.messages("many", amount))
    side.paces["many"] = done["amount"] / done["seconds"]
    return [side.paces["many"]]


def _consume(side: Side, amount: Amount) -> list[float]:
    count = side.messages("consume", amount)
    side.workers[0].call("publish_many", topic="backlog", count=count)
    done = side.workers[1].call("consume", topic="backlog", count=count)
    side.paces["consume"] = done["amount"] / done["seconds"]
    return [side.paces["consume"]]


def _flow(side: Side, amount: Amount) -> list[float]:
    count = side.messages("flow", amount)
    producer, consumer = side.workers
    consumer.ask("consume", topic="flow", count=count)
    producer.ask("publish_many", topic="flow", count=count)
    begun, ended = producer.answer(), consumer.answer()
    side.paces["flow"] = count / (ended["end"] - begun["start"])
    return [side.paces["flow"]]


def _latency(side: Side, amount: Amount) -> list[float]:
    count = max(10, int(RATE * max(amount.turn_seconds * 3, 0.2)))
    producer, consumer = side.workers
    consumer.ask("receive", count=count)
    # Some see only what is published after they have subscribed.
    time.sleep(0.3)
    producer.ask("send_paced", rate=RATE, count=count)
    producer.answer()
    ages = consumer.answer()["ages"]
    return [percentile(ages, 50), percentile(ages, 99)]


class Group(NamedTuple):
    """Rows that one kind of turn gives."""

    name: str
    rows: tuple[tuple[str, str, Target | None], ...]
    """Name, title, target."""
    turn: Callable[[Side, Amount], list[float]]
    is_time: bool = False
    learns: bool = False
    """A turn takes as many messages as fit into its time, which is known only after one turn."""


GROUPS = (
    Group("publish-1", (("publish-1", "durable publish, 1 client", at_least(1.2)),), lambda side, much: _publish(side, much, 1)),
    Group("publish-16", (("publish-16", "durable publish, 16 clients", at_least(1.5)),), lambda side, much: _publish(side, much, 16)),
    Group("publish-128", (("publish-128", "durable publish, 128 clients", at_least(2)),), lambda side, much: _publish(side, much, 128)),
    Group("many", (("many", "batched publish", at_least(3)),), _many, learns=True),
    Group("consume", (("consume", "batched consume and ack", at_least(2)),), _consume, learns=True),
    Group("flow", (("flow", "produce, consume, ack", None),), _flow, learns=True),
    Group(
        "latency", (("latency-p50", "push latency, p50", None), ("latency-p99", "push latency, p99", at_most(1))), _latency, is_time=True
    ),
)  # fmt: skip


# -- measuring ------------------------------------------------------------------------------------------------------------


class OwnWatch:
    """How many cores others have used since it was made; ours are this process and all below it, with servers that still run."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy, self._own = self._read()

    @staticmethod
    def _read() -> tuple[float, float]:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, interrupts, soft, steal, *_ = [int(number) for number in file.readline().split()[1:]]
        parents: dict[int, int] = {}
        used: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    cells = file.read().rpartition(")")[2].split()
                    parents[int(name)], used[int(name)] = int(cells[1]), sum(int(cell) for cell in cells[11:15])
        own = {os.getpid()}
        for _ in range(8):  # as deep as any server starts others
            own |= {one for one, parent in parents.items() if parent in own}
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + interrupts + soft + steal) / ticks, sum(used.get(one, 0) for one in own) / ticks

    @property
    def cores(self) -> float:
        """Cores in use by others, on average."""
        busy, own = self._read()
        return max(0.0, busy - self._busy - (own - self._own)) / max(time.monotonic() - self._start, 0.001)


def measure(group: Group, ours: Side, peers: Sequence[Side], amount: Amount, bare: Callable[[], float]) -> list[ServerRow]:
    """Let ours take turns with each peer, and return the rows."""
    rows = [ServerRow(name, title, target, group.is_time) for name, title, target in group.rows]
    watch = OwnWatch()
    failed: dict[str, str] = {}
    for repeat in range(-2 if group.learns else -1, amount.repeats):
        if repeat >= 0:
            rate = bare()
            for row in rows:
                row.bare.append(rate)
        for peer in peers:
            name = peer.system.name
            if name in failed:
                continue
            order = (ours, peer) if repeat % 2 else (peer, ours)
            found: dict[str, list[float]] = {}
            for side in order:
                try:
                    found[side.system.name] = group.turn(side, amount)
                except ClientError as error:
                    if side is ours:
                        for row in rows:
                            row.error = str(error)
                        return rows
                    failed[name] = str(error)
                    break
            if repeat >= 0 and len(found) == 2:
                for at, row in enumerate(rows):
                    row.pairs.setdefault(name, []).append((found[ours.system.name][at], found[name][at]))
    for row in rows:
        row.failed = {peer: reason for peer, reason in failed.items() if peer not in row.pairs}
        row.others = watch.cores
    return rows


def profile(row: str, folder: str, amount: Amount) -> str:
    """What the event loop of our server did in one turn, by the time of each function itself."""
    group = next(group for group in GROUPS if row in [name for name, _, _ in group.rows])
    place = os.path.join(folder, f"profile-{row}")
    stored = os.path.join(place, OURS.name, "profile")
    with started(OURS._replace(launch=launch_penstock_profiled), place) as side:
        for _ in range(2):
            group.turn(side, amount)
        side.running.send_signal(signal.SIGUSR1)
        group.turn(side, amount)
        side.running.send_signal(signal.SIGUSR1)
        until = time.monotonic() + 10
        while not os.path.exists(stored) and time.monotonic() < until:
            time.sleep(0.05)
            # It notices the signal when its loop wakes.
            side.workers[0].call("publish", clients=1, seconds=0.01)
    return top_functions(pstats.Stats(stored))


# -- the command ----------------------------------------------------------------------------------------------------------


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_peers", description="Measure our server against others at the same durability."
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less of everything: about two minutes")
    size.add_argument("--tiny", action="store_true", help="hardly anything, to see that it runs; the figures mean nothing")
    parser.add_argument("--directory", default=DIRECTORY, help=f"where to write, on the disk to measure (default {DIRECTORY})")
    names = ", ".join(group.name for group in GROUPS)
    parser.add_argument("--only", action="append", choices=[group.name for group in GROUPS], help=f"may be repeated: {names}")
    peers = [peer.name for peer in PEERS]
    parser.add_argument("--peer", action="append", choices=peers, help="only with this peer, may be repeated")
    parser.add_argument("--json", metavar="FILE", help="also store facts, rows and every repeat")
    parser.add_argument("--profile", action="store_true", help="profile our server once more for each target that was missed")
    parser.add_argument(
        "--docs", action="store_true", help="write the result into docs/benchmarks.md, its plot and benchmarks/results/"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _start_all(stack: ExitStack, folder: str, wanted: list[str] | None) -> tuple[Side, list[Side], dict[str, str]]:
    """Ours, the peers that could be started, and why the others are missing."""
    ours = stack.enter_context(started(OURS, folder))
    peers: list[Side] = []
    missing: dict[str, str] = {}
    for peer in PEERS:
        if wanted and peer.name not in wanted:
            missing[peer.name] = "it was not asked for"
            continue
        reason = peer.missing
        if not reason:
            _say(f"starting {peer.title} ...")
            try:
                peers.append(stack.enter_context(started(peer, folder)))
            except (CannotStart, ClientError) as error:
                reason = str(error)
        if reason:
            missing[peer.name] = reason
            _say(f"{peer.title} is missing: {reason}")
    return ours, peers, missing


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _parse(arguments)
    amount = TINY if options.tiny else QUICK if options.quick else FULL
    # So that servers end and files are removed when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = os.path.abspath(options.directory)
    if is_in_memory(directory) and not options.tiny:
        _say(f"refused: {file_system_of(directory)} makes nothing durable, use --directory")
        return 2
    facts = machine_facts(directory)
    groups = [group for group in GROUPS if not options.only or group.name in options.only]
    rows: list[ServerRow] = []
    profiles: dict[str, str] = {}
    begun = time.monotonic()
    folder = tempfile.mkdtemp(prefix="penstock-bench-", dir=directory)
    try:
        with ExitStack() as stack:
            ours, peers, missing = _start_all(stack, folder, options.peer)
            file = SyncedFile(os.path.join(folder, "bare"))
            stack.callback(file.close)
            sync = file.side(VALUE, _BARE_SYNCS)

            def bare() -> float:
                work = sync()
                return work.amount / work.seconds

            for group in groups:
                _say(f"measuring {group.name} ...")
                rows += measure(group, ours, peers, amount, bare)
        if options.profile:
            for row in rows:
                if row.verdict == "miss":
                    _say(f"profiling {row.name} ...")
                    profiles[row.name] = profile(row.name, folder, amount)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = report(rows, facts, missing, profiles, time.monotonic() - begun)
    print(text)
    stored = {"facts": facts, "missing": missing, "rows": [row.to_json() for row in rows], "profiles": profiles}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as target:
            json.dump(stored, target, indent=1)
    if options.docs:
        write_docs(text, stored)
    verdicts = [row.verdict for row in rows]
    return 1 if "error" in verdicts or (options.strict and "miss" in verdicts) else 0


def report(
    rows: Sequence[ServerRow], facts: dict[str, str], missing: dict[str, str], profiles: dict[str, str], seconds: float
) -> str:
    """The result as Markdown."""
    syncs = [rate for row in rows for rate in row.bare]
    alone = next((row for row in rows if row.name == "publish-1" and row.ours is not None), None)
    ceiling = ""
    if syncs:
        middle = statistics.median(syncs)
        ceiling = (
            f"The disk's bare write and fdatasync meanwhile: {per_second(middle)} (median; {per_second(min(syncs))} to "
            f"{per_second(max(syncs))}), {microseconds(1e6 / middle)} each."
        )
        if alone is not None and alone.ours is not None:
            share = alone.ours / statistics.median(alone.bare)
            ceiling += f" It is the ceiling for one client: ours reached {share:.2f} of it."
    verdicts = [row.verdict for row in rows]
    noisy = sum(row.is_noisy for row in rows)
    lines = [
        ", ".join(f"{name} {fact}" for name, fact in facts.items()) + f"; {seconds:.0f} s.", "",
        markdown_table(rows, TITLES, missing), "", ceiling, "",
        f"{verdicts.count('pass')} targets met, {verdicts.count('miss')} missed; {noisy} of {len(rows)} rows are noisy and prove nothing.",
        (f"Messages of {len(VALUE)} bytes, batches of {BATCH_MESSAGES}, consumed in lots of {LOT}, latency at {RATE:g}/s from the moment a "
        "message was due."),
        "Clients: " + "; ".join(f"{system.title}: {system.how}" for system in (OURS, *PEERS)) + ".",
    ]  # fmt: skip
    for name, text in profiles.items():
        lines += ["", f"Profile of the server's event loop, {name} (missed):", "", "```text", text, "```"]
    return "\n".join(lines)


def write_docs(text: str, stored: dict[str, Any]) -> None:
    """Put the result into the page, all figures into benchmarks/results, and the plot of them beside the page."""
    page = os.path.join(ROOT, "docs", "benchmarks.md")
    with open(page, encoding="utf-8") as file:
        changed = replace_block(file.read(), text)
    # The plot is made of the results as they are stored, as `benchmarks.plot` does it.
    plot = svg_plot([ServerRow.from_json(row) for row in json.loads(json.dumps(stored))["rows"]], TITLES)
    for path, content in (
        (page, changed),
        (os.path.join(ROOT, "benchmarks", "results", "server.json"), json.dumps(stored, indent=1) + "\n"),
        (os.path.join(ROOT, "docs", "benchmarks", "server.svg"), plot),
    ):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)


if __name__ == "__main__":
    sys.exit(main())
