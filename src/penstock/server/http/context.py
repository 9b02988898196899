"""What the handlers of all requests share."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import Unavailable
from penstock.server.auth import Everyone
from penstock.server.http.body import ClientGone
from penstock.server.http.consumers import Consumers
from penstock.server.http.metrics import HttpMetrics, StoreMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from penstock.aio import AsyncStore
    from penstock.broker.memory_budget import MemoryBudget
    from penstock.clock import Clock
    from penstock.server.auth import Authenticator
    from penstock.server.http.body import Body
    from penstock.server.http.settings import HttpSettings
    from penstock.store.metrics import StoreMetrics as Metrics
    from penstock.store.stats import StoreStats

Result = TypeVar("Result")
FAILURE_S = 1.0
SNAPSHOT_S = 1.0


class Context:
    """One listener's state. `draining`: no new work is begun; `stopping`: nobody waits any more; `ending`: nor for consumers to finish."""

    def __init__(
        self, store: AsyncStore, settings: HttpSettings, auth: Authenticator, clock: Clock, memory: MemoryBudget
    ) -> None:
        self.store = store
        self.memory = memory
        self.settings = settings
        self.auth = auth
        self.clock = clock
        self.anybody = Everyone()
        self.consumers = Consumers(store, settings, clock)
        self.metrics = HttpMetrics()
        self.store_metrics = StoreMetrics(store, settings.metrics_topics_max, clock)
        self.draining = False
        self.stopping = asyncio.Event()
        self.ending = asyncio.Event()
        self.waiting = 0
        self.metrics_lock = asyncio.Lock()
        self.connections: Callable[[], int] = lambda: 0
        self._trouble: tuple[float, str | None] = (-math.inf, None)
        self._snapshot: tuple[float, int, Metrics] | None = None

    async def trouble(self) -> str | None:
        """Why the store does not take all work, as of a second ago: anybody may ask, and the answer is not cheap."""
        now = self.clock.monotonic()
        if now - self._trouble[0] > FAILURE_S:
            self._trouble = (now, self._trouble[1])  # those who ask meanwhile do not look too
            self._trouble = (now, trouble_of(await asyncio.to_thread(self.store.stats)))
        return self._trouble[1]

    async def snapshot(self) -> tuple[int, Metrics]:
        """The store's metrics and when they were taken, at most a second ago."""
        async with self.metrics_lock:
            now = self.clock.monotonic()
            if self._snapshot is None or now - self._snapshot[0] > SNAPSHOT_S:
                self._snapshot = now, self.clock.now_us(), await asyncio.to_thread(self.store_metrics.collect)
            return self._snapshot[1:]

    @contextlib.contextmanager
    def may_wait(self) -> Iterator[None]:
        """A place among those that wait. Raises `Unavailable`."""
        if self.waiting >= self.settings.waiting_max:
            raise Unavailable("as many requests wait as may; ask with wait=0, or try again later")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def unless_gone(
        self, work: Coroutine[Any, Any, Result], body: Body, undo: Callable[[Result], object]
    ) -> Result | None:
        """
        What *work* gives; None if the server stops meanwhile. Raises `ClientGone` if the client goes meanwhile.

        If the work was done and nobody can get its result any more, *undo* is called with it.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(body.gone())
        stopping = asyncio.ensure_future(self.stopping.wait())
        taken = False
        try:
            await asyncio.wait({task, gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
            if not task.done():
                return None
            taken = True
            return task.result()
        finally:
            for one in (task, gone, stopping):
                one.cancel()
            results = await asyncio.gather(task, gone, stopping, return_exceptions=True)
            if not taken and not isinstance(results[0], BaseException):
                undo(results[0])


def trouble_of(stats: StoreStats) -> str | None:
    """Why a store does not take all work, in words that tell nothing of its data; None if it does."""
    if stats.failure is not None:
        return "the store takes no writes"
    if stats.is_full:
        free = (
            ""
            if stats.free_bytes is None
            else f" {stats.free_bytes:,} bytes are free, of which {stats.free_bytes_floor:,} are kept;"
        )
        return f"publishing is refused, since the disk is full:{free} consuming goes on"
    return None
