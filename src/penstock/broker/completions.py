"""
What other threads have finished, brought into the event loop: one wake-up for all that finished meanwhile.

Beside that the other way: what the loop has submitted is handed to the thread that commits when the loop has read all that came, so that
one sync is for all of it. If the last sync was for one publish only, probably nothing else comes, and it is handed over at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.volume.volume import Volume


class Completions:
    """Calls functions in the event loop that other threads give. One wake-up of the loop costs more than many of the calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, volume: Volume) -> None:
        self._loop = loop
        self._volume = volume
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._wanted = False
        """Whether something waits that the loop must be woken for."""
        self._commits_soon = False
        self.is_running = False
        """Whether functions are being called: what they send may wait until all were."""
        self._at_end: list[Callable[[], None]] = []
        self._stop = volume.after_cycles(self.wake)

    def add(self, function: Callable[[], None]) -> None:
        """Call *function* in the loop soon. From any thread."""
        self._waiting.append(function)
        self._wanted = True
        self.wake()

    def add_of_cycle(self, function: Callable[[], None]) -> None:
        """The same for a callback of a ticket: the loop is woken when all tickets of its commit cycle were answered."""
        self._waiting.append(function)
        self._wanted = True

    def add_quietly(self, function: Callable[[], None]) -> None:
        """Call *function* with the next ones, or by `run`; the loop is not woken for it. From any thread."""
        self._waiting.append(function)

    def wake(self) -> None:
        """Let what waits be called."""
        if self._wanted and not self._scheduled:
            # Two threads may both schedule it; the second run finds nothing.
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.run)

    def close(self) -> None:
        """No more comes."""
        self._stop()

    def at_end(self, function: Callable[[], None]) -> None:
        """Call *function* when the others were, while `is_running`."""
        self._at_end.append(function)

    def run(self) -> None:
        """Call all that wait. In the loop."""
        self._scheduled = self._wanted = False
        waiting = self._waiting
        if self.is_running or not waiting:
            return
        self.is_running = True
        try:
            while waiting:
                waiting.popleft()()
        finally:
            self.is_running = False
            ends, self._at_end = self._at_end, []
            for function in ends:
                function()

    def commit_soon(self) -> None:
        """Something was submitted: let it be committed. In the loop."""
        if self._volume.last_tickets <= 1:
            self._volume.hand_on()
        elif not self._commits_soon:
            self._commits_soon = True
            self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._commits_soon = False
        self._volume.hand_on()
