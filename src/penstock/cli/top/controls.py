"""What a person at the terminal has chosen by keys, and which keys bytes of a terminal are."""

from __future__ import annotations

import re
from dataclasses import dataclass

SORTS = ("lag", "rate", "bytes", "name")
SUSPEND = "\x1a"
"""Ctrl-Z."""
_ESCAPES = {
    "A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "4~": "end", "7~": "home", "8~": "end", "5~": "page up",
    "6~": "page down",
}  # fmt: skip
_KEY = re.compile(rb"\x1b(?:\[([0-?]*)([ -/]*[@-~])|O([@-~]))|([^\x1b])", re.DOTALL)
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?")
"""A sequence whose end has not come yet."""
_BEGUN_BYTES_MAX = 32


class Keys:
    """Bytes of a terminal to keys: characters, and ``up``, ``down``, ``page up``, ``page down``, ``home``, ``end``."""

    def __init__(self) -> None:
        self._begun = b""

    def decode(self, data: bytes) -> list[str]:
        """The keys of *data*. A sequence that is cut off is kept for the next call; what means nothing is left out."""
        data, self._begun, found, at = self._begun + data, b"", [], 0
        while at < len(data):
            match = _KEY.match(data, at)
            if match is None:
                begun = _BEGUN.match(data, at)
                assert begun is not None
                if begun.end() == len(data) and len(data) - at <= _BEGUN_BYTES_MAX:
                    self._begun = data[at:]
                    break
                at += 1  # Escape alone
                continue
            at = match.end()
            if match[4] is not None:
                found.append(match[4].decode("latin-1"))
            else:
                name = match[3] if match[3] is not None else match[1] + match[2] if match[2] == b"~" else match[2]
                found += [_ESCAPES[key] for key in [name.decode()] if key in _ESCAPES]
        return found


@dataclass(slots=True)
class Controls:
    """The state that keys change."""

    sort: str = "lag"
    paused: bool = False
    help: bool = False
    first: int = 0
    """The first line of the body that is shown."""
    quit: bool = False

    def press(self, key: str, *, page: int, last: int) -> bool:
        """
        Obey a key; returns whether there is something new to draw.

        *page*: lines of the body that fit. *last*: the greatest `first` that makes sense; it may be smaller than before.
        """
        moves = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": page, " ": page, "page up": -page, "home": -last, "g": -last,
                 "end": last, "G": last}  # fmt: skip
        if key in moves:
            # From what is seen: the list may have become shorter.
            self.first = min(max(min(self.first, last) + moves[key], 0), last)
        elif key in {"q", "Q"}:
            self.quit = True
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "p":
            self.paused = not self.paused
        elif key in {"?", "h"}:
            self.help = not self.help
            self.first = 0
        else:
            return False
        return True
