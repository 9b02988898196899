"""What a process and its folder take: looked at again and again, and judged by whether it still grows."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from pathlib import Path
from typing import NamedTuple, Self

PERIOD_S = 2.0


class Vitals(NamedTuple):
    """One look at a process."""

    anonymous_kib: int
    """Memory of its own: mapped files come and go with the kernel's mood."""
    descriptors: int
    threads: int
    disk_kib: int
    """Blocks of its folder, without those of dead letters, which are kept."""


def look(pid: int, folder: Path) -> Vitals:
    """Look once."""
    process = Path(f"/proc/{pid}")
    memory = next(line for line in (process / "smaps_rollup").read_text().splitlines() if line.startswith("Anonymous:"))
    return Vitals(
        anonymous_kib=int(memory.split()[1]),
        descriptors=sum(1 for _ in (process / "fd").iterdir()),
        threads=sum(1 for _ in (process / "task").iterdir()),
        disk_kib=_disk_kib(folder),
    )


def _disk_kib(folder: Path) -> int:
    blocks = 0
    for place, folders, names in os.walk(folder):  # passes over what is removed meanwhile
        folders[:] = [name for name in folders if not name.endswith(".dlq")]
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # retention was quicker
                blocks += os.lstat(os.path.join(place, name)).st_blocks
    return blocks // 2


class Watch:
    """Looks at a process every `PERIOD_S` seconds, in a thread of its own."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak watch", daemon=True)
        self.seen: list[Vitals] = []

    def _run(self) -> None:
        while not self._ends.wait(PERIOD_S):
            self.seen.append(look(self._pid, self._folder))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()


def growth(values: list[int]) -> int:
    """How much higher the last fifth lies than the third: by their medians, so that a moment's peak says nothing."""
    fifth = len(values) // 5
    if not fifth:
        raise ValueError("too few looks to judge")
    return round(statistics.median(values[-fifth:]) - statistics.median(values[2 * fifth : 3 * fifth]))
