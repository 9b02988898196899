"""A ticket: the promise of a commit that was asked for. `concurrent.futures.Future` costs ten times as much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock import threads as threading
from penstock.errors import WaitTimeout
from penstock.log_events import get_logger

_log = get_logger("penstock")

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.errors import PenstockError


class Leader(Protocol):
    """Who can carry a ticket out: the commit cycle."""

    def help(self, ticket: Ticket) -> None:
        """Run commit cycles in the calling thread if nobody else does, until *ticket* is done or another thread leads."""
        ...

    def hand_on(self) -> None:
        """See to it that somebody runs the next cycle, if there is anything to commit and nobody does."""
        ...


class Ticket:
    """
    One change that waits for its commit.

    `done` turns True once, after `error` and the results were set. `wait` may be called by any number of threads. Subclasses
    say what the change is.
    """

    __slots__ = ("_callback", "_leader", "_waiters", "done", "error", "frame_bytes")

    def __init__(self, leader: Leader, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.done = False
        self.error: PenstockError | None = None
        self._leader = leader
        self._waiters: list[threading.Lock] | None = None
        self._callback: Callable[[Ticket], None] | None = None

    def wait(self, timeout: float | None = None) -> None:
        """
        Return when the change is committed.

        Raises:
            WaitTimeout: not yet; the change goes on.
            PenstockError: it was refused, or its outcome is unknown.
        """
        if not self.done:
            self._leader.help(self)
            while not self.done:
                waiter = threading.Lock()
                waiter.acquire()
                if self._waiters is None:
                    self._waiters = []
                self._waiters.append(waiter)
                # Both orders are safe: whoever finishes the ticket sets `done` before it looks for waiters.
                if self._is_done():
                    break
                try:
                    woken = waiter.acquire(timeout=-1 if timeout is None else timeout)
                except BaseException:
                    self._leave(waiter)
                    raise
                if not woken:
                    self._leave(waiter)
                    if self._is_done():
                        break
                    raise WaitTimeout("the commit", timeout or 0.0)
                if not self._is_done():
                    # Woken, and not done: it is this thread's turn to lead.
                    self._leader.help(self)
        if self.error is not None:
            raise self.error

    def _is_done(self) -> bool:
        return self.done

    def _leave(self, waiter: threading.Lock) -> None:
        """Stop waiting; if the lead was handed to this thread in this very moment, hand it on: somebody must take it."""
        assert self._waiters is not None
        try:
            self._waiters.remove(waiter)
        except ValueError:
            if not self.done:
                self._leader.hand_on()

    def on_done(self, callback: Callable[[Ticket], None]) -> None:
        """Call *callback* once with this ticket when it is done: in the committing thread, or here if it is done already."""
        self._callback = callback
        if not self.done:
            # Nobody may ever wait for it, so the background thread need not give anybody time to lead.
            self._leader.hand_on()
        elif self._callback is not None:
            self._callback = None
            callback(self)

    def set_callback(self, callback: Callable[[Ticket], None]) -> None:
        """The same for a ticket that nobody has submitted yet."""
        self._callback = callback

    @property
    def waited_for(self) -> bool:
        """Whether some thread is blocked on it."""
        return bool(self._waiters)

    def lead(self) -> bool:
        """Ask a thread that waits for this ticket to run the next cycle; False if none waits."""
        return self._wake()

    def finish(self, error: PenstockError | None = None) -> None:
        """Mark it as done and wake whoever waits."""
        self.error = error
        self.done = True
        if self._waiters is not None:
            self._wake()
        callback = self._callback
        if callback is not None:
            self._callback = None
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - whatever it is, it is the caller's
                # The commit is done, and others wait for their answers: a caller's bug must not cost them theirs.
                _log.exception("a callback of a commit failed")

    def _wake(self) -> bool:
        waiters = self._waiters
        woken = False
        # Those who wait now, and not one who was woken by this and waits again already.
        for _ in range(len(waiters or ())):
            assert waiters is not None
            try:
                waiter = waiters.pop()
            except IndexError:
                break  # it has just left
            waiter.release()
            woken = True
        return woken
