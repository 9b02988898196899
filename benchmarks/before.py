"""
A plain topic against an earlier commit: what features cost those who do not use them.

    python -m benchmarks.before 4f29132

It unpacks the sources of the commit beside the present ones and lets both publish the same messages, by turns, each in a process of its
own; what counts is the CPU time of a message, and of each side the best of its turns, so that a busy machine does not matter much. Beside
it stand the system calls that a message takes on a real disk, counted by strace: all that have to do with files, and those that were
made before the first message taken off.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
VALUE = b"x" * 100
TOGETHER = 1_000
MESSAGES = {"publish": 20_000, "publish_many": 400_000, "send": 60_000, "get and ack": 60_000}
TURNS = 5
REPEATS = 4
"""Within a process."""
COUNTED = {"publish": 200, "publish_many": 200_000, "send": 20_000, "get and ack": 20_000, "ack and wait": 200}
"""Messages whose system calls are counted."""
CALLS = "%file,%desc"
"""What strace calls those that have to do with files."""


def _work(store: Any, what: str, count: int) -> None:
    if what == "publish":
        for _ in range(count):
            store.publish("t", VALUE)
    elif what == "publish_many":
        for _ in range(count // TOGETHER):
            store.publish_many("t", [VALUE] * TOGETHER)
    elif what == "send":
        with store.producer("t") as producer:
            for _ in range(count):
                producer.send(VALUE)
    else:
        for _ in range(-(-count // TOGETHER)):
            store.publish_many("t", [VALUE] * TOGETHER)
        with store.subscribe("t", "g") as consumer:
            for _ in range(count):
                consumer.get(timeout=0).ack(wait=what == "ack and wait")


def _measure(what: str) -> float:
    """Microseconds of CPU time a message, the best of a few."""
    import penstock

    clock: Callable[[], float] = time.process_time
    best = float("inf")
    for repeat in range(REPEATS + 1):
        with penstock.open("memory:") as store:
            store.create_topic("t")
            count = MESSAGES[what] if repeat else MESSAGES[what] // 10
            gc.collect()
            begun = clock()
            _work(store, what, count)
            spent = (clock() - begun) / count * 1e6
        if repeat:
            best = min(best, spent)
    return best


def _do(what: str, count: int) -> None:
    """The same on a disk, with nothing in the background: the same calls each time."""
    from penstock.store.store import Store

    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder, Store.open(folder, background=False) as store:
        store.create_topic("t")
        store.publish("t", VALUE)
        _work(store, what, count)


def _calls(source: Path, what: str) -> float | None:
    """How many system calls a message takes; None where there is no strace."""
    if shutil.which("strace") is None:
        return None
    totals = []
    for count in (0, COUNTED[what]):
        command = [sys.executable, str(Path(__file__)), "--do", what, str(count)]
        with tempfile.NamedTemporaryFile("r", prefix="penstock-before-") as summary:
            traced = ["strace", "-f", "-c", "-U", "calls,name", "-e", f"trace={CALLS}", "-o", summary.name, *command]
            subprocess.run(traced, env={"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}, check=True)
            (total,) = [int(line.split()[0]) for line in summary if line.split()[1:] == ["total"]]
        totals.append(total)
    return (totals[1] - totals[0]) / COUNTED[what]


def main(commit: str) -> None:
    """Compare the present sources with those of *commit*."""
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        sides = {"before": Path(folder) / "src", "now": ROOT / "src"}
        for what in MESSAGES:
            best = dict.fromkeys(sides, float("inf"))
            for _ in range(TURNS):
                for name, source in sides.items():
                    command = [sys.executable, str(Path(__file__)), "--measure", what]
                    done = subprocess.run(command, env={"PYTHONPATH": str(source)}, check=True, capture_output=True, text=True)
                    best[name] = min(best[name], float(done.stdout))
            ratio = best["now"] / best["before"]
            print(f"{what:14} before {best['before']:.3f} us, now {best['now']:.3f} us a message: {ratio:.3f}", flush=True)
        for what in COUNTED:
            counts = {name: _calls(source, what) for name, source in sides.items()}
            if None in counts.values():
                print("no strace here: system calls are not counted")
                break
            print(f"{what:14} before {counts['before']:.4f}, now {counts['now']:.4f} system calls a message", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(_measure(sys.argv[2]))
    elif sys.argv[1] == "--do":
        _do(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1])
