"""
What the audience sees: sentences, pictures that move on a terminal, and in a pipe their last state.

A picture is a function that returns its lines as they are at this moment. It is called from another thread while the play goes on, so
it only looks at lists and counters, which never shrink.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from penstock.cli import interrupts, output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.text import Text

WIDTH = 44
"""Cells of a full bar, where there is room for it."""
_BESIDE = 46
"""Cells for what stands left and right of a bar."""
FRAMES_PER_SECOND = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def line(*parts: str | tuple[str, str]) -> Text:
    """One line of a picture: texts, or texts with a style."""
    from rich.text import Text

    return Text.assemble(*parts, no_wrap=True, overflow="crop")


def bar(label: str, amount: float, most: float, note: str, style: str = "cyan") -> Text:
    """A bar that is full when *amount* is *most*."""
    width = max(10, min(WIDTH, shutil.get_terminal_size().columns - _BESIDE)) if output.is_terminal() else WIDTH
    eighths = round(width * 8 * min(1.0, amount / most)) if most else 0
    drawn = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return line(f"  {label:<26}", (f"{drawn:<{width}}", style), f" {note}")


def heights(amounts: Sequence[float]) -> str:
    """A row of bars, one cell each; nothing is a space."""
    most = max(amounts, default=0) or 1
    return "".join(_HEIGHTS[min(7, int(amount / most * 7.99))] if amount else " " for amount in amounts)


class Screen:
    """Shows a demonstration; with *silent*, nothing of it."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        self.show([line((text, style))])

    def show(self, lines: Sequence[Text]) -> None:
        """Several lines, which do not move."""
        if self._silent:
            return
        if output.is_terminal():
            from rich.console import Console

            with interrupts.allowed():
                console = Console(highlight=False)
                for one in lines:
                    console.print(one)
        else:
            for one in lines:
                output.write_line(one.plain.rstrip())
            output.flush()

    @contextlib.contextmanager
    def moving(self, picture: Callable[[], Sequence[Text]]) -> Iterator[None]:
        """Show *picture* while the block runs, and how it was at the end."""
        if self._silent:
            yield
        elif not output.is_terminal():
            yield
            self.show(picture())
        else:
            from rich.console import Group
            from rich.live import Live

            live = Live(
                get_renderable=lambda: Group(*picture()), refresh_per_second=FRAMES_PER_SECOND, redirect_stdout=False, redirect_stderr=False
            )  # fmt: skip
            with live:
                yield
