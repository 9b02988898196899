"""
Where in a TOML file a key stands. Python's reader does not tell, and a person wants the line.

A file that reads well is scanned once more for its headings and keys. The scan knows strings and brackets over several lines, so that
nothing in them passes as a key; of keys in inline tables it knows the line of the table.
"""

from __future__ import annotations

import re

_HEADING = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_MARK = re.compile(r'''"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*|[\[\]{}]|\n''', re.DOTALL)


class Lines:
    """The lines of the keys of a text that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in _statements(text.replace("\r\n", "\n")):
            heading = _HEADING.match(line)
            key = None if heading else _KEY.match(line)
            if heading is not None:
                table = _parts(heading[1])
                self._note(table, number)
            elif key is not None:
                self._note((*table, *_parts(key[1])), number)

    def _note(self, path: tuple[str, ...], number: int) -> None:
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], number)

    def of(self, path: tuple[str, ...]) -> int | None:
        """The line of a key, else of the nearest table around it; None if none of them is in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._found:
                return self._found[path[:length]]
        return None


def _statements(text: str) -> list[tuple[int, str]]:
    """The first lines of headings and assignments, each with its number: lines inside of strings and brackets are none."""
    begins = [0]
    depth = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif mark == "\n" and depth == 0:
            begins.append(found.end())
    number, at, statements = 1, 0, []
    for begin in begins:
        number += text.count("\n", at, begin)
        at = begin
        end = text.find("\n", begin)
        statements.append((number, text[begin:] if end < 0 else text[begin:end]))
    return statements


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
