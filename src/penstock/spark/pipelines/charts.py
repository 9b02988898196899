"""
Charts as SVG files and as text, of nothing but Python. The same data always gives the same bytes.

They are for one look at a pipeline's result, so they can do little: panels of lines or bars over time, one below the other. Who wants
more has the table.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLOURS = ("#2563a8", "#d97706", "#2f8f5b", "#b4373f", "#7c5aa6", "#4b5563", "#0f9aa8", "#a1662f")
"""Of series, in their order; told apart also by those who do not see red and green."""
SERIES_MAX = len(COLOURS)
_WIDTH, _LEFT, _RIGHT, _TOP, _PLOT, _GAP = 920, 78, 210, 54, 150, 62
_FONT = 'font-family="system-ui, sans-serif"'
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TINY = 1e-300
"""Below it a power of ten may be zero."""


class Panel(NamedTuple):
    """Series over the same moments. A value is None where there is none: a line is broken there, a bar left out."""

    title: str
    unit: str
    series: Mapping[str, Sequence[float | None]]
    kind: str = "line"
    """`line`, or `bar`: bars stand on each other."""


def svg_chart(title: str, moments: Sequence[dt.datetime], panels: Sequence[Panel]) -> str:
    """A picture of *panels* over *moments*, which are evenly spaced beginnings of windows. Series beyond the eighth are added up."""
    height = _TOP + len(panels) * (_PLOT + _GAP)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(title)}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="28" {_FONT} font-size="17" font-weight="600" fill="#111827">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _drawn(panel, moments, _TOP + number * (_PLOT + _GAP) + 16)
    return "\n".join([*parts, "</svg>\n"])


def _drawn(panel: Panel, moments: Sequence[dt.datetime], top: int) -> list[str]:
    series = _few(panel.series)
    width = _WIDTH - _LEFT - _RIGHT
    step = width / max(len(moments), 1)
    highest = _round_up(_highest(series, stacked=panel.kind == "bar"))
    bottom = top + _PLOT
    parts = [_text(20, top - 8, f"{panel.title} ({panel.unit})", size=13, weight=600)]
    for part in range(5):
        y = bottom - _PLOT * part / 4
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(_text(_LEFT - 8, y + 4, short_number(highest * part / 4), anchor="end"))
    parts += [_text(_LEFT + step * at, bottom + 17, _moment(moments, at)) for at in _ticks(len(moments))]
    floor = [0.0] * len(moments)
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number]
        if panel.kind == "bar":
            parts += _bars(values, floor, step, bottom, highest, colour)
        else:
            parts += _lines(values, step, bottom, highest, colour)
        y = top + 8 + number * 17
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 18}" y="{y - 8}" width="11" height="11" rx="2" fill="{colour}"/>')
        parts.append(_text(_WIDTH - _RIGHT + 35, y + 2, name if len(name) <= 26 else name[:25] + "…"))
    return parts


def _bars(
    values: Sequence[float | None], floor: list[float], step: float, bottom: int, highest: float, colour: str
) -> list[str]:
    parts = []
    for at, value in enumerate(values):
        if value:
            high = _PLOT * value / highest
            y = bottom - _PLOT * floor[at] / highest - high
            x, width = _LEFT + step * (at + 0.08), step * 0.84
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{colour}"/>')
            floor[at] += value
    return parts


def _lines(values: Sequence[float | None], step: float, bottom: int, highest: float, colour: str) -> list[str]:
    parts: list[str] = []
    points: list[str] = []
    for at, value in enumerate([*values, None]):
        if value is not None:
            points.append(f"{_LEFT + step * (at + 0.5):.1f},{bottom - _PLOT * value / highest:.1f}")
        elif points:
            if len(points) == 1:
                x, _, y = points[0].partition(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
            points = []
    return parts


def _text(x: float, y: float, text: str, *, size: int = 11, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}" font-weight="{weight}" fill="#374151" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _few(series: Mapping[str, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
    """No more series than colours; what is too many is one of them."""
    if len(series) <= SERIES_MAX:
        return dict(series)
    names = list(series)
    rest = [series[name] for name in names[SERIES_MAX - 1 :]]
    added = [sum(value or 0 for value in values) for values in zip(*rest, strict=True)]
    return {**{name: series[name] for name in names[: SERIES_MAX - 1]}, f"{len(rest)} others": added}


def _highest(series: Mapping[str, Sequence[float | None]], *, stacked: bool) -> float:
    if stacked:
        return max((sum(value or 0 for value in values) for values in zip(*series.values(), strict=True)), default=0)
    return max((value for values in series.values() for value in values if value is not None), default=0)


def _round_up(value: float) -> float:
    """The next number that reads well on an axis."""
    if value <= 0:
        return 1.0
    value = max(value, _TINY)
    size = 10.0 ** math.floor(math.log10(value))
    return next(factor * size for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if factor * size >= value * 0.9999)


def _ticks(count: int) -> range:
    return range(0, count, max(1, math.ceil(count / 6)))


def _moment(moments: Sequence[dt.datetime], at: int) -> str:
    """The time, and the date where a new one begins."""
    moment = moments[at].astimezone(dt.UTC)
    ticks = list(_ticks(len(moments)))
    before = moments[ticks[ticks.index(at) - 1]].astimezone(dt.UTC) if at else None
    shown = "%H:%M" if moment.second == 0 and not moment.microsecond else "%H:%M:%S"
    return moment.strftime(shown if before is not None and before.date() == moment.date() else f"%Y-%m-%d {shown}")


def short_number(value: float) -> str:
    """A number of few characters: 1.2k, 3M, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def text_bars(rows: Sequence[tuple[str, float]], *, width: int = 40) -> str:
    """A bar for each row, with its name and its number."""
    longest = max((len(name) for name, _ in rows), default=0)
    highest = max((value for _, value in rows), default=0) or 1
    return "\n".join([f"{name:<{longest}}  {_bar(value / highest, width)} {short_number(value)}" for name, value in rows])


def _bar(share: float, width: int) -> str:
    eighths = round(max(share, 0) * width * 8)
    partly = "▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else ""
    return ("█" * (eighths // 8) + partly).ljust(width)


def spark_line(values: Sequence[float]) -> str:
    """The course of *values* in one line of text."""
    highest = max(values, default=0) or 1
    return "".join([_BLOCKS[max(1, math.ceil(value / highest * 8))] if value > 0 else _BLOCKS[1] for value in values])
