"""
Penstock beside others at the same durability, by one command: `python benchmarks/peers.py`.

It makes an environment of its own (.venv-bench) with the peers that come from Python's registry, and installs Redis and RabbitMQ from
Debian where it is root; what cannot be had is reported as missing. Then it measures, in turns on the same disk:

- the embedded queue beside sqlite3, litequeue, diskcache, huey and persist-queue (`benchmarks.run`, the rows with peers),
- the server beside Redis Streams, NATS JetStream and RabbitMQ (`benchmarks.server_peers`).

With --docs the results are stored in benchmarks/results, and the page and its plots are made of them. Any Python can start it: until
the environment is there it needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENVIRONMENT = ".venv-bench"
PARTS = ("queue", "server")
QUEUE_GROUPS = ("publish", "publish-many", "durable", "ack-wait")


def parse(arguments: list[str]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks/peers.py", description="Measure Penstock beside others.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less of everything: about five minutes")
    size.add_argument("--tiny", action="store_true", help="hardly anything, to see that it runs; the figures mean nothing")
    parser.add_argument("--only", choices=PARTS, action="append", help="one of the two; may be repeated")
    parser.add_argument("--directory", default="/var/tmp", help="where to write, on the disk to measure (default /var/tmp)")
    parser.add_argument("--profile", action="store_true", help="profile our server for each target that was missed")
    parser.add_argument("--docs", action="store_true", help="store the results, and make the page and the plots of them")
    parser.add_argument("--no-setup", action="store_true", help="measure in this environment, with what it has")
    return parser.parse_args(arguments)


def commands(options: argparse.Namespace, results: str) -> dict[str, list[str]]:
    """What is run for each part, with its results stored in the folder *results*."""
    size = ["--quick"] if options.quick else ["--tiny"] if options.tiny else []
    place = ["--directory", options.directory]
    queue = [word for group in QUEUE_GROUPS for word in ("--only", group)]
    server = ["--docs"] * options.docs + ["--profile"] * options.profile
    found = {
        "queue": [
            "benchmarks.run",
            *size,
            *place,
            *queue,
            *(["--json", os.path.join(results, "queue.json")] if options.docs else []),
        ],
        "server": ["benchmarks.server_peers", *size, *place, *server],
    }
    return {part: found[part] for part in PARTS if not options.only or part in options.only}


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code: that of the first part that failed."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    here = os.path.join(ROOT, ENVIRONMENT)
    if not options.no_setup and os.path.realpath(sys.prefix) != os.path.realpath(here):
        subprocess.run([os.path.join(ROOT, "scripts", "setup"), ENVIRONMENT, "bench"], cwd=ROOT, check=True)
        python = os.path.join(here, "bin", "python")
        return subprocess.run([python, "-m", "benchmarks.peers", *given], cwd=ROOT, check=False).returncode
    failed = 0
    for part, command in commands(options, os.path.join(ROOT, "benchmarks", "results")).items():
        print(f"\n== {part}\n", flush=True)
        failed = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode or failed
    if options.docs:
        # Only now: this needs the environment.
        from benchmarks import plot

        plot.main([])
    return failed


if __name__ == "__main__":
    sys.exit(main())
