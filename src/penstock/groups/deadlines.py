"""
The moments at which groups are to be looked at, though nobody asks them for anything.

A lease that ends must end by itself: its message is ready for others, or becomes a dead letter, and what is counted and shown is true,
whether a consumer asks or not. A group that has something with a consumer tells the earliest moment at which that may change, once; then it
is looked at, and says when the next look is due, if one is. So a group without consumers, or with nothing in their hands, costs nothing,
and one with a million messages in their hands has one entry here. A moment that a group adds takes the place of the one it added before,
and a group that is deleted is let go of at once, though a lease of its own may have hours to go.

Whoever adds a moment may be interrupted, or hold the group's lock: adding is one step of a list, and waking the thread one of a lock.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Protocol

from penstock import threads as threading
from penstock.log_events import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.clock import Clock

_log = get_logger("penstock")
LOOK_SECONDS = 1.0
"""The clock is looked at this often while anything is due: it may be one that does not run as time does."""
_NEAR_SECONDS = 0.001
_REPLACED_MAX = 64


class Looked(Protocol):
    """What is looked at: a group."""

    def look(self, moment: float) -> None:
        """*moment* has come: see what is due, and add the next moment."""
        ...


class Deadlines:
    """Calls groups when their moments come: in a thread of its own, or in `look` where there is none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._added: list[tuple[float, Looked]] = []
        self._gone: list[Looked] = []
        self._next: dict[Looked, float] = {}
        """The moment of each; what else is in the heap was replaced."""
        self._errands: list[Callable[[], None]] = []
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Looked]] = []
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._wake = threading.Lock()
        """Released to wake the thread."""
        self._wake.acquire()
        self._background = False
        self._stopped = False

    def start(self) -> None:
        """From now on a thread looks; it begins with the first moment."""
        self._background = True

    def soon(self, errand: Callable[[], None]) -> None:
        """
        Run *errand* in the thread, soon; without a thread now.

        For a line of the log that comes up in the middle of a commit: whoever publishes must not wait for a log that nobody reads.
        """
        if not self._background or self._stopped:
            errand()
            return
        self._errands.append(errand)
        self._start()
        self._wake_up()

    def add(self, moment: float, looked: Looked) -> None:
        """Look at it at *moment* of the monotonic clock."""
        self._added.append((moment, looked))
        self._start()
        self._wake_up()

    def discard(self, looked: Looked) -> None:
        """Look at it no more: it is deleted, and adds nothing any more."""
        if self._thread is None and not self._added and not self._heap:
            return  # nothing is kept, and no thread would take it from the list
        self._gone.append(looked)
        self._wake_up()

    def __len__(self) -> int:
        """How many moments are kept, those that were replaced among them."""
        return len(self._added) + len(self._heap)

    def _start(self) -> None:
        if self._thread is None and self._background:
            with self._start_lock:
                if self._thread is None and not self._stopped:
                    thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
                    thread.start()
                    self._thread = thread

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._wake.release()

    def stop(self) -> None:
        """Look no more; returns when the thread has ended."""
        with self._start_lock:
            self._stopped = True
            thread = self._thread
        self._wake_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._run_errands()

    def _run_errands(self) -> None:
        while self._errands:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._errands.pop(0)()

    def look(self) -> None:
        """Look at all whose moment has come."""
        while self._added:
            moment, looked = self._added.pop(0)
            self._next[looked] = moment
            heapq.heappush(self._heap, (moment, next(self._numbers), looked))
        self._tidy()
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now and not self._stopped:
            moment, _, looked = heapq.heappop(self._heap)
            if self._next.get(looked) != moment:
                continue
            del self._next[looked]
            try:
                looked.look(moment)
            except Exception as error:  # noqa: BLE001 - the others have theirs; whoever asks the group next meets it again
                _log.warning("the leases of %s could not be looked at: %s", looked, error)

    def _tidy(self) -> None:
        """Let go of what is deleted, and of moments that were replaced where they are the most."""
        is_less = bool(self._gone)
        while self._gone:
            self._next.pop(self._gone.pop(), None)
        if is_less or len(self._heap) > 2 * len(self._next) + _REPLACED_MAX:
            self._heap = [entry for entry in self._heap if self._next.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def _run(self) -> None:
        while not self._stopped:
            wait_s = -1.0
            if self._heap:
                wait_s = min(max(self._heap[0][0] - self._clock.monotonic(), _NEAR_SECONDS), LOOK_SECONDS)
            self._wake.acquire(timeout=wait_s)
            self._run_errands()
            self.look()
