"""How far a pipeline is, and how it is told."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.spark.offsets import Offsets, is_start

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.5
"""How often a pipeline that waits tells how far it is."""


class Progress(NamedTuple):
    """How far a pipeline is."""

    batches: int = 0
    """Micro-batches that had messages."""
    rows: int = 0
    """Messages so far."""
    rows_per_second: float = 0.0
    """In the last batch."""
    lag: int | None = None
    """Messages that wait; None: not known."""
    batch_seconds: float = 0.0
    """What the last batch took."""

    def after(self, rows: int, seconds: float, lag: int | None) -> Progress:
        """The same after one more batch."""
        return Progress(self.batches + 1, self.rows + rows, rows / max(seconds, 1e-6), lag, seconds)


Report: TypeAlias = "Callable[[Progress], bool | None]"
"""Who is told how far a pipeline is. A true answer ends it in order, with its summary; what it raises ends it too."""


def quiet(_progress: Progress) -> None:
    """A report for who does not want one."""


def lag_of(end: str | None, latest: str | None) -> int:
    """How many messages lie between two offsets of a query as Spark tells them; 0 for sources that are not ours."""
    try:
        first, last = json.loads(end or ""), json.loads(latest or "")
        if is_start(first) or is_start(last):
            return 0
        reached, there = Offsets.from_json(first).topics, Offsets.from_json(last).topics
    except Exception:  # noqa: BLE001 - it is only for the eye
        return 0
    return sum(
        max(offset - reached.get(topic, {}).get(number, 0), 0)
        for topic, numbers in there.items()
        for number, offset in numbers.items()
    )


def wait(seconds: float, progress: Progress, report: Report) -> bool:
    """Wait so long, and tell meanwhile how far it is; whether *report* wants the pipeline to end."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_SECONDS))
        if report(progress):
            return True
    return False
