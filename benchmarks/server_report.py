"""What `benchmarks.server_peers` found: rows, a Markdown table, JSON, and a plot as SVG. Nothing here measures."""

from __future__ import annotations

import io
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from benchmarks.measure import OTHERS_CORES, UNSTEADY, microseconds, per_second

if TYPE_CHECKING:
    import pstats
    from collections.abc import Sequence

    from benchmarks.measure import Target

BEGIN = "<!-- begin: written by make bench-server -->"
END = "<!-- end: written by make bench-server -->"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of *values* do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(slots=True)
class ServerRow:
    """
    One line of the result.

    *pairs* holds for each peer what ours and the peer did in turns beside each other, repeat by repeat: rates, or microseconds if
    *is_time*. *failed* holds why a peer has no figure.
    """

    name: str
    title: str
    target: Target | None = None
    is_time: bool = False
    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""
    """Why ours has no figure."""
    bare: list[float] = field(default_factory=list)
    """The disk's bare rate of write and fdatasync meanwhile."""
    others: float = 0.0
    """Cores that others used meanwhile."""

    @property
    def ours(self) -> float | None:
        """The median of all turns of ours."""
        found = [one for pairs in self.pairs.values() for one, _ in pairs]
        return statistics.median(found) if found else None

    def theirs(self, peer: str) -> float | None:
        """The median of a peer's turns."""
        found = [other for _, other in self.pairs.get(peer, [])]
        return statistics.median(found) if found else None

    @property
    def best(self) -> str | None:
        """The peer that did best."""
        medians = {peer: self.theirs(peer) for peer in self.pairs}
        there = {peer: value for peer, value in medians.items() if value is not None}
        if not there:
            return None
        return (min if self.is_time else max)(there, key=lambda peer: there[peer])

    @property
    def ratios(self) -> list[float]:
        """Ours to the best peer, repeat by repeat."""
        best = self.best
        return [] if best is None else [one / other for one, other in self.pairs[best]]

    @property
    def ratio(self) -> float | None:
        """The median of the ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def unsteadiness(self) -> float:
        """How far the disk's bare rate moved."""
        return max(self.bare) / min(self.bare) if self.bare else 1.0

    @property
    def is_noisy(self) -> bool:
        """Whether the figure proves nothing, because others used the machine."""
        return self.unsteadiness > UNSTEADY or self.others > OTHERS_CORES

    @property
    def verdict(self) -> str:
        """pass, miss, info (no target, or nothing to compare with) or error."""
        if self.error:
            return "error"
        if self.target is None or self.ratio is None:
            return "info"
        return "pass" if self.target.is_met(self.ratio) else "miss"

    def shown(self, value: float | None) -> str:
        """A figure as a person reads it."""
        if value is None:
            return "-"
        return microseconds(value) if self.is_time else per_second(value)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> ServerRow:
        """The row that was stored, without its target: what was found stays so when targets change."""
        return cls(
            stored["name"], stored["title"], None, stored["unit"] == "us",
            {peer: [(one, other) for one, other in pairs] for peer, pairs in stored["pairs"].items()}, stored["failed"], stored["error"],
            stored["bare_syncs_per_second"], stored["cores_of_others"],
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        return {
            "name": self.name, "title": self.title, "target": str(self.target or ""), "verdict": self.verdict,
            "unit": "us" if self.is_time else "/s", "ours": self.ours, "peers": {peer: self.theirs(peer) for peer in self.pairs},
            "best": self.best, "ratio": self.ratio, "ratios": self.ratios, "failed": self.failed, "error": self.error,
            "pairs": self.pairs, "bare_syncs_per_second": self.bare, "unsteadiness": self.unsteadiness,
            "cores_of_others": self.others, "noisy": self.is_noisy,
        }  # fmt: skip


def markdown_table(rows: Sequence[ServerRow], titles: dict[str, str], missing: dict[str, str]) -> str:
    """The table: a column for each of *titles* (the first is ours), and below it why figures are *missing*."""
    ours, *peers = titles
    head = ["row", *titles.values(), "to the best peer", "spread", "target", "result", "noise"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows:
        figures = [row.shown(row.ours) if row.ours is not None else "error" if row.error else "-"]
        figures += [
            "missing" if peer in missing else "error" if peer in row.failed else row.shown(row.theirs(peer)) for peer in peers
        ]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x {titles[row.best or ours]}"
        spread = f"{min(row.ratios):.2f}..{max(row.ratios):.2f}" if row.ratios else "-"
        noise = f"disk moved {row.unsteadiness:.1f}x, others {row.others:.1f} cores" + (": noisy" if row.is_noisy else "")
        lines.append(_line([row.title, *figures, ratio, spread, str(row.target or ""), row.verdict, noise]))
    lines += [f"\n{titles[peer]} is missing: {reason}." for peer, reason in missing.items()]
    for row in rows:
        lines += [f"\n{row.title}, {titles[peer]}: {reason}" for peer, reason in {**row.failed, **_own(ours, row)}.items()]
    return "\n".join(lines)


def _own(ours: str, row: ServerRow) -> dict[str, str]:
    return {ours: row.error} if row.error else {}


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def replace_block(page: str, block: str) -> str:
    """The *page* with what stands between the two marks replaced. Raises `ValueError` if they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


def top_functions(profile: pstats.Stats, count: int = 12) -> str:
    """The functions with the most time of their own, as pstats prints them, with short paths."""
    text = io.StringIO()
    profile.stream = text  # type: ignore[attr-defined]
    profile.strip_dirs().sort_stats("tottime").print_stats(count)
    lines = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    heading = next(at for at, line in enumerate(lines) if "tottime" in line)
    return "\n".join(lines[heading:])


# -- the plot -------------------------------------------------------------------------------------------------------------

_COLOURS = ("#1d6fb8", "#c0392b", "#2e8b57", "#d68910", "#7d3c98", "#17a2b8", "#8d6e63", "#7f8c8d")
_WIDTH, _LABEL, _FIGURE, _BAR, _GAP = 860, 230, 90, 15, 18


def svg_plot(
    rows: Sequence[ServerRow], titles: dict[str, str], *, heading: str = "Every acknowledged publish synced to disk; messages of 100 bytes",
    label: str = "Penstock and other servers, every publish synced",
) -> str:  # fmt: skip
    """
    Bars for each row, one for each server, as long as its share of the row's largest figure.

    Rows are scaled one by one, since their figures lie orders of magnitude apart. Longer is better, except where it says otherwise.
    """
    ours, *peers = titles
    room = _WIDTH - _LABEL - _FIGURE
    parts: list[str] = []
    y = 58
    for row in rows:
        figures = {ours: row.ours, **{peer: row.theirs(peer) for peer in peers}}
        there = {name: value for name, value in figures.items() if value is not None}
        if not there:
            continue
        most = max(there.values()) or 1.0
        middle = y + _BAR * len(there) / 2
        parts.append(_text(_LABEL - 12, middle - 2, row.title, anchor="end", weight="600"))
        note = "less is better" if row.is_time else "more is better"
        if row.ratio is not None and row.best is not None:
            note = f"{row.ratio:.2f}x the best peer; {note}"
        parts.append(_text(_LABEL - 12, middle + 12, note, anchor="end", size=10, colour="#666"))
        for name, value in there.items():
            length = max(2.0, room * value / most)
            colour = _COLOURS[list(titles).index(name) % len(_COLOURS)]
            parts.append(f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR - 3}" rx="2" fill="{colour}"/>')
            parts.append(_text(_LABEL + length + 6, y + _BAR - 5, row.shown(value), size=10))
            y += _BAR
        y += _GAP
    legend, x = [], 20
    for at, title in enumerate(titles.values()):
        legend.append(f'<rect x="{x}" y="30" width="11" height="11" rx="2" fill="{_COLOURS[at % len(_COLOURS)]}"/>')
        legend.append(_text(x + 16, 40, title, size=11))
        x += 30 + 7 * len(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        'font-family="system-ui, sans-serif" role="img" ' f'aria-label="{escape(label)}">\n'
        f'<rect width="{_WIDTH}" height="{y}" fill="#fff"/>\n'
        + _text(20, 20, heading, weight="600", size=13)
        + "\n" + "\n".join([*legend, *parts]) + "\n</svg>\n"
    )  # fmt: skip


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "400", size: int = 12, colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
