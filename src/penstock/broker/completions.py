"""What other threads have finished, brought into the event loop: one wake-up for all that finished meanwhile."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Completions:
    """Calls functions in the event loop that other threads give. One wake-up of the loop costs more than many of the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, function: Callable[[], None]) -> None:
        """Call *function* in the loop soon. From any thread."""
        self._waiting.append(function)
        if not self._scheduled:
            # Two threads may both schedule it; the second run finds nothing.
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._scheduled = False
        waiting = self._waiting
        while waiting:
            waiting.popleft()()
