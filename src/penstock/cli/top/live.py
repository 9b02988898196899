"""The view that goes on: looks, keys and the terminal's size come as they like, and what changed is drawn."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.top.controls import SUSPEND, Keys
from penstock.cli.top.frame import draw
from penstock.cli.top.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.top.controls import Controls
    from penstock.cli.top.history import History, Picture
    from penstock.cli.top.watch import Watch
    from penstock.clock import Clock

_LOOK_ROUND_S = 0.25
"""How often the size of the terminal is looked at, and how long a server has been away."""
_AWAY_S = 1.0
"""How often a server that is away is asked, at least."""
_WARNINGS_MAX = 20


def run(
    target: str, watch: Watch, history: History, picture: Picture, controls: Controls, clock: Clock, *, every_s: float, looks: int | None
) -> None:  # fmt: skip
    """Show *picture* and what follows it, until somebody quits, or after so many *looks*. Raises what a look raises."""
    keys = Keys()
    seen, next_s, drawn = 1, clock.monotonic() + every_s, None
    with _warnings_later(), Terminal() as terminal:
        while True:
            width, height = terminal.size()
            link = watch.link
            state = (width, height, link)
            if state != drawn:
                frame = draw(target, link, picture, controls, width, height, every_s=every_s, ascii_only=terminal.ascii_only)
                terminal.show(frame.lines, width, height)
                drawn = state
            if controls.quit or (looks is not None and seen >= looks):
                return
            now_s = clock.monotonic()
            if link.state == "away":
                next_s = min(next_s, now_s + _AWAY_S)
            if now_s >= next_s and not controls.paused:
                watch.ask()
                next_s = now_s + every_s
            typed = terminal.wait(min(_LOOK_ROUND_S, next_s - now_s) if not controls.paused else _LOOK_ROUND_S, watch.fileno())
            if typed is None:
                return
            for key in keys.decode(typed):
                if key == SUSPEND:
                    terminal.suspend()
                    drawn = None
                elif controls.press(key, page=frame.page, last=frame.last):
                    drawn = None
            snapshot = watch.take()
            if snapshot is not None:
                picture, seen, drawn = history.add(snapshot), seen + 1, None


@contextlib.contextmanager
def _warnings_later() -> Iterator[None]:
    """What the engine warns of while the block runs is said behind it: the screen is not ours to write on."""
    log, kept = logging.getLogger("penstock"), _Kept()
    handlers, log.handlers = log.handlers, [kept]
    try:
        yield
    finally:
        log.handlers = handlers
        for line in kept.lines:
            output.say("warning", line)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < _WARNINGS_MAX:
            self.lines.append(record.getMessage())
