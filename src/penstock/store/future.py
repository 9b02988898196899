"""The promise of a receipt. `concurrent.futures.Future` costs ten times as much."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from penstock import threads as threading
from penstock.arguments import check_wait
from penstock.errors import WaitTimeout
from penstock.log_events import get_logger
from penstock.topics.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.errors import PenstockError

_log = get_logger("penstock")
IDLE_SECONDS = 1.0
"""So long a thread for callbacks waits for more of them."""


_making = threading.Lock()
"""Held while the event of a batch is made: two threads that wait for the same batch must wait for the same event."""


class SentBatch:
    """The messages that a producer sent together, and what became of them."""

    __slots__ = ("_event", "_runner", "callbacks", "done", "error", "first_offset", "flush", "partition", "promises", "topic")

    def __init__(self, topic: str, partition: int, flush: Callable[[], None], runner: CallbackThread) -> None:
        self._runner = runner
        self.topic = topic
        self.partition = partition
        self.first_offset = -1
        self.error: PenstockError | None = None
        self.done = False
        self.flush = flush
        self.callbacks: list[tuple[Callable[[Future], object], Future]] = []
        self.promises: list[tuple[Promise, Future]] = []
        """Filled before the batch goes, and told before anybody is woken."""
        self._event: threading.Event | None = None

    def finish(self, first_offset: int, error: PenstockError | None) -> None:
        """Tell all who wait; in the committing thread."""
        self.first_offset, self.error = first_offset, error
        if self.promises:
            promises, self.promises = self.promises, []
            promises[0][0].tell(promises)
        # Not run here: this is the committing thread, and a callback may want to commit something itself. Handed on before anybody
        # is woken: whoever closes the producer then waits for them.
        self._hand_on_callbacks()
        self.done = True
        event = self._event
        if event is not None:
            event.set()
        self._hand_on_callbacks()  # those that were added meanwhile

    def _hand_on_callbacks(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        if callbacks:
            self._runner.run(callbacks)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is done."""
        if not self.done:
            self.flush()
            if self._event is None:
                with _making:
                    self._event = self._event or threading.Event()
            if not self.done:  # finish sets `done` before it looks for the event
                return self._event.wait(timeout_s) or self.done
        return True


class Promise(ABC):
    """
    What may be told by the committing thread itself, and does not wait for a thread of callbacks, which users may block.

    All promises of a batch are of one kind.
    """

    @staticmethod
    @abstractmethod
    def tell(promises: list[tuple[Any, Future]]) -> None:
        """Their futures have an `outcome` now. Must neither wait nor raise."""


def run_callback(callback: Callable[[Future], object], future: Future) -> None:
    """Call a user's callback; what it raises is logged and goes no further."""
    while not future.done():
        time.sleep(0)  # for a moment: it was handed on just before
    try:
        callback(future)
    except Exception:  # noqa: BLE001 - whatever it is, it is the user's
        _log.exception("a delivery callback failed")


class CallbackThread:
    """
    Runs the callbacks of one producer, in the order in which they became due. What another producer's callback does keeps nobody waiting.

    There is a thread while there is something to run, and for a while after.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[list[tuple[Callable[[Future], object], Future]] | threading.Event]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, callbacks: list[tuple[Callable[[Future], object], Future]]) -> None:
        """Run them soon."""
        with self._lock:
            self._waiting.put(callbacks)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="penstock-callbacks", daemon=True)
                self._thread.start()

    def drain(self, timeout_s: float) -> None:
        """Return when those that are due now have run; a callback that hangs is not waited for longer than *timeout_s*."""
        ran = threading.Event()
        with self._lock:
            if self._thread is None or self._thread is threading.current_thread() or not self._thread.is_alive():
                return
            self._waiting.put(ran)
        ran.wait(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                due = self._waiting.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            if isinstance(due, threading.Event):
                due.set()
                continue
            for callback, future in due:
                run_callback(callback, future)


class Future:
    """The receipt of one message that was sent, once it is committed."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: SentBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether it was committed, or failed."""
        return self._batch.done

    def send_now(self) -> None:
        """Do not linger any longer; returns at once."""
        if not self._batch.done:
            self._batch.flush()

    def result(self, timeout: object = None) -> Receipt:
        """
        Wait for the commit, *timeout* seconds at most, and return the receipt. Sends at once what still lingers.

        Raises `WaitTimeout`, or the error that kept the message from being stored.
        """
        batch = self._batch
        wait_s = check_wait("timeout", timeout)
        if not batch.done and not batch.wait(wait_s):
            raise WaitTimeout("the publish", wait_s or 0.0)
        if batch.error is not None:
            raise batch.error
        return Receipt(batch.topic, batch.partition, batch.first_offset + self._index)

    @property
    def outcome(self) -> Receipt | PenstockError:
        """The receipt or the error, without waiting; for whoever was told that it is there."""
        batch = self._batch
        return Receipt(batch.topic, batch.partition, batch.first_offset + self._index) if batch.error is None else batch.error

    def exception(self, timeout: object = None) -> PenstockError | None:
        """Wait like `result`, and return its error, None if there is none."""
        batch = self._batch
        wait_s = check_wait("timeout", timeout)
        if not batch.done and not batch.wait(wait_s):
            raise WaitTimeout("the publish", wait_s or 0.0)
        return batch.error

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Call *callback* with this future when it is done: in a thread for callbacks, or now and here."""
        batch = self._batch
        entry = (callback, self)
        batch.callbacks.append(entry)
        if batch.done:
            try:
                batch.callbacks.remove(entry)
            except ValueError:
                return  # the committing thread has taken it
            run_callback(callback, self)
