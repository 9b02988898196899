"""How far a pipeline is, and how it is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.spark.offsets import Offsets, is_start
from penstock.spark.pipelines.failures import told_as_ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

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


Report: TypeAlias = "Callable[[Progress], None]"


def quiet(_progress: Progress) -> None:
    """A report for who does not want one."""


def follow(query: StreamingQuery, report: Report = quiet) -> Progress:
    """
    Wait until *query* ends, and tell meanwhile how far it is; what *report* raises stops the query.

    Raises `PipelineFailed`, or the error of Penstock that ended the query.
    """
    progress, seen = Progress(), -1
    try:
        with told_as_ours():
            while True:
                ended = query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type]  # seconds with a part are fine
                for one in query.recentProgress:
                    if one.batchId <= seen:
                        continue
                    seen = one.batchId
                    if one.numInputRows:
                        lag = sum(lag_of(source.endOffset, source.latestOffset) for source in one.sources)
                        progress = progress.after(one.numInputRows, one.batchDuration / 1000, lag)
                report(progress)
                if ended:
                    return progress
    finally:
        if query.isActive:
            query.stop()


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
