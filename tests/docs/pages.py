"""The documents of the project, as tests look at them."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
_PAGES_OF_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
PAGES = [*(ROOT / name for name in _PAGES_OF_ROOT), *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """How a page is called in the name of a test."""
    return str(page.relative_to(ROOT))


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of this kind (the word behind the fence)."""
    return [content for word, content in _FENCE.findall(text) if word == kind]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first heading is *heading*, for every such table."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == heading:
            inside = True
        elif inside and not set(cells[0]) <= set("- "):
            found.append(cells)
    return found


@functools.cache
def drawings() -> dict[str, str]:
    """Every fenced drawing in a docstring of the source, by where it stands."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                for number, block in enumerate(blocks(text, "")):
                    place = f"{path.relative_to(SOURCE)}:{getattr(node, 'name', 'module')}:{number}"
                    found[place] = block
    return found
