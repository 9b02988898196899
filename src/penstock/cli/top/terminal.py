"""
A terminal that is drawn on: its other screen, its keys, its size.

It is put back as it was however the program leaves: at the end, by an error, Ctrl-C, SIGTERM, and while it is suspended by Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from penstock.cli import interrupts, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
"""The other screen, no cursor, no new line where a line is too long."""
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
"""A terminal that knows them shows what is between them at once; the others pass over them."""
_LEAVE = b"\x1b[?2026l\x1b[?7h\x1b[?25h\x1b[?1049l"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminal:
    """stdout, which is a terminal, and stdin if it is one too; without it there are no keys. A context manager."""

    def __init__(self) -> None:
        self._keys: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] | None = None
        self.ascii_only = "utf" not in (sys.stdout.encoding or "").lower()

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _enter(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
            changed = termios.tcgetattr(self._keys)
            changed[6][termios.VSUSP] = b"\0"  # Ctrl-Z comes as a key: the screen must be left before.
            termios.tcsetattr(self._keys, termios.TCSADRAIN, changed)
        output.write(_ENTER)
        output.flush()

    def _leave(self) -> None:
        # A signal that comes now is obeyed when this is done.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with contextlib.suppress(OSError, ValueError):
                # Past what stands in the buffer, which a terminal that takes nothing may never take.
                os.write(sys.stdout.fileno(), _LEAVE)
            if self._keys is not None and self._before is not None:
                with contextlib.suppress(termios.error, OSError):
                    # What was typed here is not for the shell.
                    termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._before)
                self._before = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)

    def suspend(self) -> None:
        """Stop the process as Ctrl-Z does, with the terminal as it was before; returns when it goes on."""
        self._leave()
        os.kill(os.getpid(), signal.SIGTSTP)
        self._enter()

    @staticmethod
    def size() -> tuple[int, int]:
        """Columns and lines, now."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            found = os.terminal_size((0, 0))
        fallback = shutil.get_terminal_size()
        return found.columns or fallback.columns, found.lines or fallback.lines

    @staticmethod
    def show(lines: Sequence[Text], width: int, height: int) -> None:
        """Draw over what is there."""
        console = Console(
            file=io.StringIO(), width=max(width, 1), force_terminal=True, color_system="standard", no_color=not output.has_colour(),
            highlight=False, legacy_windows=False,
        )  # fmt: skip
        with console.capture() as captured:
            for line in lines:
                console.print(line, soft_wrap=True)
        # Each line is wiped before it is written: behind a full line the cursor is still on its last cell.
        drawn = captured.get().split("\n")[:-1]
        data = _BEGIN_FRAME + "\x1b[H" + "\r\n".join(f"\x1b[0m\x1b[2K{line}" for line in drawn)
        if len(drawn) < height:
            data += "\r\n\x1b[J"
        data += _END_FRAME
        output.write(data.encode("ascii" if all(line.isascii() for line in drawn) else "utf-8", "backslashreplace"))
        output.flush()

    def wait(self, timeout_s: float, other: int) -> bytes | None:
        """What is typed, until it is, *other* can be read from, or the time is over; None if nobody can type any more."""
        watched = [other] if self._keys is None else [other, self._keys]
        with interrupts.allowed():
            ready, _, _ = select.select(watched, [], [], max(0.0, timeout_s))
            return os.read(self._keys, 1024) or None if self._keys is not None and self._keys in ready else b""
