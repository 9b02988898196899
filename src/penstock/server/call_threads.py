"""
Threads for calls that wait for the disk, in a process that is somebody else's program.

Python's own executor takes no more work once the main thread has ended, though other threads of the program may go on for hours, and
with them the store and those who share it. These threads work to the end, and keep no process from ending.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.log_events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_Work = tuple["Future[Any]", "Callable[..., Any]", tuple[Any, ...], dict[str, Any]]
_log = get_logger("penstock.server")
JOIN_SECONDS = 10.0
_FIRST_THREADS = 2
"""Begun at once: an interpreter that is ending lets no more threads begin, and these still do all that is left."""


class CallThreads(ThreadPoolExecutor):
    """An executor of up to *most* daemon threads. It is a `ThreadPoolExecutor` for asyncio only, which takes no other."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._most = most
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        for _ in range(min(_FIRST_THREADS, most)):
            self._begin_thread()
            self._idle.release()

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"penstock-call-{len(self._workers)}", daemon=True)
        thread.start()
        self._workers.append(thread)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `ThreadPoolExecutor.submit`."""
        future: Future[Any] = Future()
        with self._lock:
            if not self._idle.acquire(blocking=False) and len(self._workers) < self._most:
                with contextlib.suppress(RuntimeError):
                    self._begin_thread()
            self._work.put((future, fn, args, kwargs))
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, function, given, options = work
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*given, **options)
                except BaseException as error:  # noqa: BLE001 - raised again to who waits for it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del work, future, function, given, options
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is inherited
        """See `ThreadPoolExecutor.shutdown`; what was begun or waits is done. It waits for `JOIN_SECONDS` at most."""
        del cancel_futures
        for _ in self._workers:
            self._work.put(None)
        if wait:
            end = time.monotonic() + JOIN_SECONDS
            for thread in self._workers:
                thread.join(max(0.0, end - time.monotonic()))
            busy = [thread.name for thread in self._workers if thread.is_alive()]
            if busy:
                _log.warning("calls still run in %s; nobody waits for them any more", ", ".join(busy))
