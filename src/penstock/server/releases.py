"""What a client had and lost: letting go of it waits for the disk, so threads do it, and stopping waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.log_events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger("penstock.server")


class Releases:
    """Those under way. Used in one event loop."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._futures)

    def begin(self, work: Callable[[], None]) -> None:
        """Do *work* in a thread; an error is logged, since nobody is there to be told."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._futures.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[None]) -> None:
        self._futures.discard(future)
        if not future.cancelled() and future.exception() is not None:
            _log.error("what a client had could not be released", exc_info=future.exception())
