"""Tables of Spark: rows as text, as Spark shows them, and how to read files by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CELL_CHARACTERS_MAX = 200
AS_NAMED = {"__globPaths__": "false"}
"""For readers of files: a path is that of a file or a folder, and no pattern, whatever characters it has."""


def text_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a frame. Long cells are cut, and what cannot be printed is escaped."""
    cells = [[_shown(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    line = "+".join(["", *["-" * (width + 2) for width in widths], ""])
    numbers = [
        bool(rows) and all(isinstance(row[at], (int, float)) or row[at] is None for row in rows) for at in range(len(columns))
    ]
    shown = []
    for row in cells:
        padded = [
            f" {cell:>{width}} " if right else f" {cell:<{width}} "
            for cell, width, right in zip(row, widths, numbers, strict=True)
        ]
        shown.append("|".join(["", *padded, ""]))
    return "\n".join([line, shown[0], line, *shown[1:], line])


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, (bytes, bytearray)):
        cell = bytes(cell[: CELL_CHARACTERS_MAX + 1]).decode("utf-8", "backslashreplace")
    text = f"{cell:.6g}" if isinstance(cell, float) else str(cell)
    text = "".join(
        [one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[: CELL_CHARACTERS_MAX + 1]]
    )
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 3] + "..."
