"""
Opening a large store against opening a small one.

`python -m benchmarks.reopen STORE BATCHES` is the process that dies: it opens the store, appends, and ends without closing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.load import BATCH_MESSAGES, OS, fill
from benchmarks.measure import Group, Row, Work, alternate, at_most, microseconds
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench, Rates, Side

_TAIL_BATCHES = 10


def _open(path: str) -> Work:
    start = time.perf_counter()
    volume = Volume.open(path, background=False)
    seconds = time.perf_counter() - start
    volume.close()
    return Work(1, seconds)


def _kill_in_use(path: str) -> None:
    """Leave the store as a process leaves it that dies with a tail behind the last checkpoint."""
    subprocess.run([sys.executable, "-m", "benchmarks.reopen", path, str(_TAIL_BATCHES)], check=True)


def _append_and_die(path: str, batches: int) -> None:
    volume = Volume.open(path, background=False)
    fill(volume, volume.log("log"), batches * BATCH_MESSAGES)
    os._exit(0)


def _reopen(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder:
        paths = []
        for messages in sizes.reopen_messages:
            path = os.path.join(folder, str(messages))
            paths.append(path)
            with Volume.open(path, background=False) as volume:
                volume.create_topic("log", 1, OS)
                fill(volume, volume.log("log"), messages)

        def clean(path: str) -> Side:
            return lambda: _open(path)

        def killed(path: str) -> Side:
            def turn() -> Work:
                _kill_in_use(path)
                return _open(path)

            return turn

        large, small = alternate(sizes.opens, [clean(path) for path in paths])
        large_killed, small_killed = alternate(sizes.opens, [killed(path) for path in paths])
    yield _row("reopen-clean", large, small, sizes.reopen_messages, "closed in order")
    yield _row(
        "reopen-killed", large_killed, small_killed, sizes.reopen_messages, f"killed with {_TAIL_BATCHES} batches not synced"
    )


def _row(name: str, large: Rates, small: Rates, messages: tuple[int, int], note: str) -> Row:
    return Row(
        name, small.over(large), microseconds(1e6 / large.median), microseconds(1e6 / small.median), at_most(1.5),
        note=f"{messages[0]:,} messages, {note}; raw: {messages[1]:,} messages", unsteadiness=small.unsteadiness,
    )  # fmt: skip


GROUPS = (Group("reopen", ("reopen-clean", "reopen-killed"), _reopen, is_durable=True),)

if __name__ == "__main__":
    _append_and_die(sys.argv[1], int(sys.argv[2]))
