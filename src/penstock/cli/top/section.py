"""A table that fits: columns with fixed widths, of which the least important are left out where there is no room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = TypeVar("Row")
_GAP = 2
_NAME_LEAST = 16
"""Columns are left out until the first one has so many cells, or is as wide as its longest name."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column behind the first."""

    title: str
    width: int
    cell: Callable[[Row], str]
    keep: int
    """How important it is: the lowest goes first."""
    style: Callable[[Row], str] = lambda _row: ""
    is_text: bool = False
    """Stands to the left, and takes what room is left."""


@dataclass(frozen=True, slots=True)
class Section(Generic[Row]):
    """A table with the names of its rows in the first column."""

    title: str
    rows: Sequence[Row]
    name: Callable[[Row], str]
    columns: Sequence[Column[Row]]
    otherwise: str
    """What is said without rows."""

    @property
    def height(self) -> int:
        """Its lines."""
        return 1 + max(1, len(self.rows))

    def lines(self, first: int, end: int, width: int | None, ellipsis: str) -> list[Text]:
        """The lines from *first* up to, not with, *end*, each at most *width* cells wide; None is as wide as they need."""
        widest = max((cell_len(self.name(row)) for row in self.rows), default=0)
        chosen, name_width = self._fit(max(widest, cell_len(self.title)), width)
        found = []
        for at in range(max(first, 0), min(end, self.height)):
            if at == 0:
                heading = [(_fitted(self.title, name_width, ellipsis), "bold cyan")]
                heading += [(_placed(one, one.title, size, ellipsis), "bold cyan") for one, size in chosen]
                found.append(_joined(heading, width))
            elif not self.rows:
                found.append(_joined([(f"  {self.otherwise}", "dim")], width))
            else:
                row = self.rows[at - 1]
                cells = [(_fitted(self.name(row), name_width, ellipsis), "")]
                cells += [(_placed(one, one.cell(row), size, ellipsis), one.style(row)) for one, size in chosen]
                found.append(_joined(cells, width))
        return found

    def _fit(self, wanted: int, width: int | None) -> tuple[list[tuple[Column[Row], int]], int]:
        """The columns that there is room for, with their widths, and the width of the first."""
        columns = list(self.columns)
        if width is None:
            return [
                (one, max([one.width, *[cell_len(one.cell(row)) for row in self.rows]]) if one.is_text else one.width)
                for one in columns
            ], wanted
        while columns and width - sum(one.width + _GAP for one in columns) < min(wanted, _NAME_LEAST):
            columns.remove(min(columns, key=lambda one: one.keep))
        left = width - sum(one.width + _GAP for one in columns)
        # Text takes what is left; otherwise tables are no wider than they need, so that a row can be followed by the eye.
        texts = [one for one in columns if one.is_text]
        name_width = max(min(left, wanted), 1)
        return [(one, one.width + (left - name_width if one in texts[:1] else 0)) for one in columns], name_width


def _fitted(text: str, width: int, ellipsis: str) -> str:
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + ellipsis if width > 1 else ellipsis[:width]


def _placed(column: Column[Row], text: str, width: int, ellipsis: str) -> str:
    if column.is_text:
        return _fitted(text, width, ellipsis)
    return " " * max(0, width - cell_len(text)) + _fitted(text, min(width, cell_len(text)), ellipsis)


def _joined(cells: Sequence[tuple[str, str]], width: int | None) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for at, (text, style) in enumerate(cells):
        if at:
            line.append(" " * _GAP)
        line.append(text, style)
    if width is not None:
        line.truncate(width, overflow="crop")
    line.rstrip()
    return line
