"""
The end of a server that does not end.

Stopping goes through stages, and each is given a time that it never needs when all is well. One that takes longer hangs, for a reason
that nobody thought of. Then the log gets its name, what every thread and task is doing, and the process ends: to be killed later by a
service manager loses no more, and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from penstock.log_events import event, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger("penstock.server")
EXIT_CODE = 1
GRACE_SECONDS = 10.0
"""So much later the process is ended by a thread that needs nothing of Python, if this module could not do it."""


class LastResort:
    """Watches the stages of one stop. Used from one thread."""

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = end
        self._changed = threading.Condition()
        self._stage = ""
        self._until: float | None = None
        self._thread: threading.Thread | None = None

    def watch_tasks_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the tasks of *loop* too if something hangs."""
        self._loop = loop

    def expect(self, stage: str, seconds: float) -> None:
        """*stage* begins, and ends within *seconds*, when the next one begins or `done` is called."""
        with self._changed:
            self._stage, self._until = stage, time.monotonic() + seconds
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="penstock-last-resort", daemon=True)
            self._thread.start()
        with contextlib.suppress(RuntimeError, ValueError, AttributeError, OSError):  # there is no standard error
            faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True)

    def done(self) -> None:
        """All stages have ended."""
        faulthandler.cancel_dump_traceback_later()
        with self._changed:
            self._until = None
            self._changed.notify_all()

    def _watch(self) -> None:
        with self._changed:
            while self._until is not None:
                left = self._until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
            stage = self._stage
        self._tell(stage)
        self._end(EXIT_CODE)

    def _tell(self, stage: str) -> None:
        threads = sorted(one.name for one in threading.enumerate() if one is not threading.current_thread())
        tasks: list[str] = []
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # they change while they are listed
                tasks = [str(one.get_coro()) for one in asyncio.all_tasks(self._loop)]
        _log.critical(
            "the server does not stop: %s takes too long, so the process ends now; nothing that was acknowledged is lost. "
            "Threads: %s. Tasks: %s", stage, ", ".join(threads), ", ".join(tasks) or "none",
            extra=event("stop_forced", stage=stage, threads=threads, tasks=tasks),
        )  # fmt: skip
        with contextlib.suppress(RuntimeError, ValueError, AttributeError, OSError):
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        with contextlib.suppress(Exception):
            sys.stderr.flush()
