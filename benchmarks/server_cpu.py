"""
Speed and processor time of single publishes: our server, perhaps an older checkout of it, and Redis, which take turns.

`python -m benchmarks.server_cpu [--before CHECKOUT] [--directory /dev/shm]`, in the environment of `make bench-server`. On a machine that
others use too the speed of one server says little; what each message costs server and clients, and the ratio of turns that follow
each other, say more. In memory nobody waits for a disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.server_peers import ROOT, started
from benchmarks.server_systems import OURS, PEERS

if TYPE_CHECKING:
    from benchmarks.server_peers import Side

_TICKS = os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """What one turn did."""

    messages: int
    rate: float
    server_s: float
    client_s: float


def processor_s(processes: list[int]) -> float:
    """The processor time that *processes* have used."""
    total = 0
    for process in processes:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def take_turn(side: Side, clients: int, seconds: float) -> Turn:
    """Let so many clients publish one message after the other."""
    servers = [one.pid for one in side.running.processes]
    workers = side.workers[:1] if clients == 1 else side.workers
    theirs = [one.pid for one in side.workers]
    server_s, client_s = processor_s(servers), processor_s(theirs)
    for worker in workers:
        worker.ask("publish", clients=max(1, clients // len(workers)), seconds=seconds)
    found = [worker.answer() for worker in workers]
    messages = int(sum(one["amount"] for one in found))
    return Turn(
        messages,
        messages / max(one["seconds"] for one in found),
        processor_s(servers) - server_s,
        processor_s(theirs) - client_s,
    )


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_cpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--before", metavar="CHECKOUT", help="another checkout of ours, to compare with")
    parser.add_argument("--directory", default="/dev/shm", help="where the servers write (default /dev/shm)")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a turn is")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args(arguments)
    sources = {"before": options.before, "after": ROOT} if options.before else {"ours": ROOT}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cpu-", dir=options.directory))
        sides: dict[str, Side] = {}
        for name, checkout in sources.items():
            os.environ["PYTHONPATH"] = os.path.join(os.path.abspath(checkout), "src")
            own = os.path.join(folder, name)
            os.mkdir(own)
            sides[name] = stack.enter_context(started(OURS, own))
        sides["redis"] = stack.enter_context(started(PEERS[0], folder))
        for clients in (1, 16, 128):
            turns: dict[str, list[Turn]] = {name: [] for name in sides}
            for number in range(options.turns + 1):
                first = number % len(sides)
                for name in [*list(sides)[first:], *list(sides)[:first]]:
                    turn = take_turn(sides[name], clients, options.seconds)
                    if number:  # the first one warms up
                        turns[name].append(turn)
            for name, taken in turns.items():
                messages = max(1, sum(turn.messages for turn in taken))
                ratio = statistics.median(ours.rate / other.rate for ours, other in zip(taken, turns["redis"], strict=True))
                print(
                    f"{clients:4} clients  {name:7} {statistics.median(turn.rate for turn in taken):8.0f}/s  {ratio:5.2f}x redis"
                    f"  server {sum(turn.server_s for turn in taken) / messages * 1e6:6.1f} us"
                    f"  clients {sum(turn.client_s for turn in taken) / messages * 1e6:6.1f} us",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
