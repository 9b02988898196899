"""The picture of a traffic table: messages, bytes, latency and dead letters over time."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from penstock.spark.pipelines.charts import Panel, svg_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.spark.pipelines.traffic import TrafficRow


def traffic_chart(rows: Sequence[TrafficRow], window_s: int, windows_max: int) -> str:
    """An SVG of the last *windows_max* windows. Topics are in the order of how much they had."""
    moments = _moments(rows, window_s, windows_max)
    kept = [row for row in rows if moments and row.window_start >= moments[0]]
    sizes: dict[str, int] = {}
    for row in kept:
        sizes[row.topic] = sizes.get(row.topic, 0) + row.messages
    topics = sorted(sizes, key=lambda name: (-sizes[name], name))
    at = {(row.topic, row.window_start): row for row in kept}

    def series(value: Callable[[TrafficRow], float | None], empty: float | None) -> dict[str, list[float | None]]:
        return {name: [value(at[name, one]) if (name, one) in at else empty for one in moments] for name in topics}

    panels = [
        Panel("Messages", f"each {_length(window_s)}", series(lambda row: row.messages, 0), "bar"),
        Panel("Bytes of keys and values", f"each {_length(window_s)}", series(lambda row: row.bytes, 0), "bar"),
    ]
    if any(row.timed for row in kept):
        latency = _latency(at, topics, moments, "publish_ms")
        panels.append(Panel("From the publisher's time until it was appended", "ms", latency))
    recorded = {row.topic for row in kept if row.delivered}
    if recorded:
        told = [name for name in topics if name in recorded]
        waits = _latency(at, told, moments, "deliver_ms")
        panels.append(Panel("From appended until it was handed to a consumer", "ms", waits))
    if any(row.dead_letters for row in kept):
        reasons: dict[str, list[float | None]] = {}
        for row in kept:
            for reason, count in row.dead_letter_reasons.items():
                values = reasons.setdefault(f"{row.topic}: {reason}", [0] * len(moments))
                values[moments.index(row.window_start)] = count
        panels.append(Panel("Dead letters", f"each {_length(window_s)}", reasons, "bar"))
    return svg_chart("Traffic", moments, panels)


def _moments(rows: Sequence[TrafficRow], window_s: int, windows_max: int) -> list[dt.datetime]:
    """All windows from the first to the last, also those in which nothing happened."""
    if not rows:
        return []
    first, last = min(row.window_start for row in rows), max(row.window_start for row in rows)
    count = min((last - first) // dt.timedelta(seconds=window_s) + 1, windows_max)
    return [last - dt.timedelta(seconds=window_s * back) for back in reversed(range(count))]


def _length(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            return name if seconds == size else f"{seconds // size} {name}s"
    return "second" if seconds == 1 else f"{seconds} s"


def _latency(
    at: Mapping[tuple[str, dt.datetime], TrafficRow], topics: Sequence[str], moments: Sequence[dt.datetime], prefix: str
) -> dict[str, list[float | None]]:
    """The median and the 99th percentile of a few topics: more lines nobody could tell apart."""
    return {
        f"{name} {share}": [getattr(at[name, one], f"{prefix}_{share}") if (name, one) in at else None for one in moments]
        for name in topics[:4]
        for share in ("p50", "p99")
    }
