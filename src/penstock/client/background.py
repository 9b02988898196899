"""What a connection does in threads of its own beside its watch: answers that may take a lock, and work that is gathered."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.log_events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_log = get_logger("penstock")
SOON_SECONDS = 0.005
"""How long acks that nobody waits for are gathered."""


class Deferred:
    """
    Work that is done in a thread of its own, in order: what takes a lock that somebody may hold while he sends.

    Who reads must not wait for such a lock: it could be held until the server reads on, and that until we do.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: Callable[[], None]) -> None:
        """Do *work* when all that was added before is done. Called by who reads, so by one thread at a time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-client-answers", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Let the thread end when it has done all."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001 - the next ones still want theirs
                _log.exception("an answer could not be handled")


class Soon:
    """
    Work that is called every `SOON_SECONDS`, and whenever `run` is, until it says that there is nothing to do.

    Attributes:
        waiting: the work that is to be done.
    """

    def __init__(self) -> None:
        self.waiting: dict[Callable[[], bool], None] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()

    def add(self, work: Callable[[], bool]) -> None:
        """Call *work* soon, in any thread, and maybe in two at once."""
        self.waiting[work] = None
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stop.is_set():
                    self._thread = threading.Thread(target=self._run, name="penstock-client-soon", daemon=True)
                    self._thread.start()
        self._wake.set()

    def run(self) -> None:
        """Do now what is to be done soon."""
        for work in list(self.waiting):
            self.waiting.pop(work, None)
            if work():
                self.waiting[work] = None
                self._wake.set()  # its thread may have seen that there was nothing

    def close(self) -> None:
        """Let the thread end; what waits is not done."""
        self._stop.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            while self.waiting and not self._stop.wait(SOON_SECONDS):
                self.run()
