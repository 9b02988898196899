"""Looking at a store from a thread of its own, so that keys are obeyed while a server does not answer."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from penstock.cli.top.frame import Link
from penstock.cli.top.history import Snapshot
from penstock.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.top.source import Source
    from penstock.clock import Clock

SILENT_S = 1.0
"""An answer that takes longer is said to be missing."""
_LEAVE_S = 0.5


class Watch:
    """Makes looks when it is asked to. Used by one thread; looks are made by another one."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._asked = threading.Event()
        self._closing = False
        self._began_s: float | None = None
        self._outcome: Snapshot | Exception | None = None
        self._away_s: float | None = None
        self._reason = ""
        self._lost = 0
        self._heard, self._tell = os.pipe()
        self._thread = threading.Thread(target=self._run, name="penstock-top", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Begin a look, unless one is under way."""
        if self._began_s is None:
            self._began_s = self._clock.monotonic()
            self._asked.set()

    def fileno(self) -> int:
        """Can be read from when a look has ended, until `take`."""
        return self._heard

    def take(self) -> Snapshot | None:
        """The look that has ended, if it saw something. Raises what it raised, but for `Unavailable`: then the server is away."""
        outcome = self._outcome
        if outcome is None:
            return None
        os.read(self._heard, 1)
        began_s, self._began_s, self._outcome = self._began_s, None, None
        if isinstance(outcome, Snapshot):
            self._lost += self._away_s is not None
            self._away_s = None
            return outcome
        if not isinstance(outcome, Unavailable):
            raise outcome
        self._reason = str(outcome)
        if self._away_s is None:
            self._away_s = began_s
        return None

    @property
    def link(self) -> Link:
        """How the connection is now."""
        now_s = self._clock.monotonic()
        if self._away_s is not None:
            return Link("away", now_s - self._away_s, self._reason, self._lost)
        if self._began_s is not None and now_s - self._began_s >= SILENT_S:
            return Link("silent", now_s - self._began_s, lost=self._lost)
        return Link("connected" if self._source.is_whole else "folder", lost=self._lost)

    def close(self, close_store: Callable[[], object]) -> None:
        """
        End; *close_store* ends a look that waits for its server.

        Returns soon, whether they have ended or not: a connection that is just being made may take seconds to close, and a person who
        leaves waits for nothing. What only looks leaves nothing behind.
        """
        self._closing = True
        self._asked.set()
        self._thread.join(0.05)
        closer = threading.Thread(target=close_store, name="penstock-top-close", daemon=True)
        closer.start()
        closer.join(_LEAVE_S)
        self._thread.join(_LEAVE_S)
        if not self._thread.is_alive():
            os.close(self._heard)
            os.close(self._tell)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closing:
                return
            try:
                self._outcome = self._source.look()
            except Exception as error:  # noqa: BLE001 - it is raised where it can be told
                self._outcome = error
            with contextlib.suppress(OSError):
                os.write(self._tell, b"!")
