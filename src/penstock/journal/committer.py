"""
The commit cycle: everybody who waits for a commit shares one sync.

Theory of operation
-------------------
Changes wait as tickets in one list. A cycle takes the list, asks the participant to prepare it (assign offsets, stamp,
build the entries of one frame), writes the frame, syncs once, asks the participant to apply it to logs and state, and
answers the tickets. While a cycle waits for the disk the next tickets gather; nobody holds a lock over a sync except the cycle
lock itself, which only cycles take.

Who runs a cycle: the thread that waits for a ticket runs it itself if nobody else does (handing work to another thread costs
Python about 50 us, as much as the sync). Tickets that nobody waits for are carried out by a background thread. A leader that
has its own ticket done hands the lead to the next waiting thread and goes home.

After a failed write or sync the committer is poisoned: that sync is never tried again, every ticket in the frame is
answered with `OutcomeUnknown`, all others with `StorageFailed`, until the store is reopened and recovery has looked at the disk.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from penstock import threads as threading
from penstock.errors import Closed, OutcomeUnknown, PenstockError, StorageFailed
from penstock.interrupts import Held
from penstock.log_events import event, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.clock import Clock
    from penstock.files import Buffer
    from penstock.journal.journal import Journal
    from penstock.journal.ticket import Ticket


_log = get_logger("penstock")

DOZE_SECONDS = 0.001
"""How much later a ticket that nobody waits for may be committed, so that those who wait can lead undisturbed."""


class Prepared(Protocol):
    """What a participant made of a list of tickets."""

    entries: int
    parts: list[Buffer]
    tickets: list[Any]


class Participant(Protocol):
    """The one who knows what the changes mean: the volume."""

    def prepare(self, tickets: list[Any], now_us: int) -> Prepared:
        """
        Turn tickets into the entries of a frame; answer those that must be refused and leave them out.

        Raises `OSError`: a batch could not be written ahead, and the store is in doubt.
        """
        ...

    def apply(self, prepared: Any) -> None:
        """Carry out what is committed now. Raises `OSError`: recovery has to finish it."""
        ...

    def abandon(self) -> None:
        """The cycle that was being prepared or applied failed: nothing of it may be shown."""
        ...


class Committer:
    """Runs the commit cycles of one store. Safe to call from any thread."""

    def __init__(
        self, journal: Journal, participant: Participant, clock: Clock, name: str, frame_bytes: int, *, background: bool = True
    ) -> None:
        self._journal = journal
        self._participant = participant
        self._clock = clock
        self._name = name
        self._frame_bytes = frame_bytes
        self._background = background
        self._pending: list[Ticket] = []
        self._cycle_lock = threading.Lock()
        self._wake = threading.Lock()
        """Released to wake the background thread; a lock costs a tenth of a `threading.Semaphore`."""
        self._wake.acquire()
        self._sleeping = False
        self._urgent = False
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closing = False
        self._stopped = False
        self.failure: str | None = None
        """Why no more writes are taken, once the disk failed."""
        self.cycles = 0
        self.tickets = 0
        self.last_tickets = 0
        """Those of the last cycle; set before they are answered."""
        self._after: list[Callable[[], None]] = []

    # -- asking for a commit ----------------------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> None:
        """
        Queue *ticket*; a background thread commits it even if nobody waits (unless the committer has none).

        Raises `StorageFailed` or `Closed`.
        """
        if self.failure is not None or self._closing:
            self._check()
        self._pending.append(ticket)
        if self._sleeping:
            self._wake_up()
        elif self._thread is None and self._background:
            self._start_thread()

    def enqueue(self, ticket: Ticket) -> None:
        """Queue *ticket*, and wake nobody: the caller calls `hand_on` when it has queued all that it has. Raises like `submit`."""
        if self.failure is not None or self._closing:
            self._check()
        self._pending.append(ticket)

    def _wake_up(self) -> None:
        self._sleeping = False
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._wake.release()

    def commit(self, ticket: Ticket) -> None:
        """Queue *ticket* and return when it is committed. Raises what `Ticket.wait` raises."""
        self._check()
        self._pending.append(ticket)
        ticket.wait()

    def _check(self) -> None:
        if self.failure is not None:
            raise StorageFailed(self._name, self.failure)
        if self._closing:
            raise Closed(self._name)

    def help(self, ticket: Ticket) -> None:
        """Lead cycles until *ticket* is done, unless another thread leads."""
        with Held():
            # Ctrl-C comes before or after: neither may a cycle stop half-way, nor the lock be held by nobody.
            while not ticket.done and self._cycle_lock.acquire(blocking=False):
                try:
                    self._cycle()
                finally:
                    self._cycle_lock.release()
            if self._pending:
                self.hand_on()

    def hand_on(self) -> None:
        """Somebody must run the next cycle: a thread that waits for it if there is one, else the background thread."""
        if self._cycle_lock.locked():
            return
        try:
            ticket = self._pending[0]
        except IndexError:
            return
        if ticket.waited_for and ticket.lead():
            return
        self._urgent = True
        if self._thread is not None:
            self._wake_up()
        else:
            self._start_thread()

    def after_cycles(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call *function* when the tickets of a cycle were answered, in the committing thread; returns how to stop that."""
        self._after = [*self._after, function]

        def remove() -> None:
            self._after = [one for one in self._after if one is not function]

        return remove

    # -- the cycle --------------------------------------------------------------------------------------------------

    def _cycle(self) -> None:
        """One cycle; the caller holds the cycle lock."""
        tickets = self._take()
        if not tickets:
            return
        if self._stopped:
            for ticket in tickets:
                ticket.finish(Closed(self._name))
            return
        if self.failure is not None:
            self._refuse(tickets)
            return
        try:
            prepared = self._participant.prepare(tickets, self._clock.now_us())
            if prepared.entries:
                self._journal.append(self._clock.now_us(), prepared.entries, prepared.parts)
                self._journal.sync()
            self._participant.apply(prepared)
        except OSError as error:
            self.poison(f"{error.strerror or error} ({error.filename or 'journal'})")
            self._participant.abandon()
            for ticket in tickets:
                if not ticket.done:
                    ticket.finish(OutcomeUnknown("the change", str(error)))
            self._refuse(self._take())
            return
        except BaseException as error:
            # A bug, or what was put into this thread from another one: what the logs hold is not known any more, so stop.
            self.poison(f"{type(error).__name__}: {error}")
            self._participant.abandon()
            for ticket in tickets:
                if not ticket.done:
                    ticket.finish(OutcomeUnknown("the change", repr(error)))
            self._refuse(self._take())
            raise
        self.cycles += 1
        self.last_tickets = len(prepared.tickets)
        self.tickets += self.last_tickets
        try:
            for ticket in prepared.tickets:
                ticket.finish()
        except BaseException:
            # They are all committed, so all are told.
            for ticket in prepared.tickets:
                if not ticket.done:
                    ticket.finish()
            raise
        finally:
            for function in self._after:
                function()

    def _take(self) -> list[Ticket]:
        # Others append to the end of the list meanwhile; taking from its front does not get in their way.
        pending = self._pending
        if not pending:
            return []
        count = len(pending)
        total = 0
        for index in range(count):
            total += pending[index].frame_bytes
            if total > self._frame_bytes and index:
                count = index
                break
        taken = pending[:count]
        del pending[:count]
        return taken

    def _refuse(self, tickets: list[Ticket]) -> None:
        error: PenstockError = StorageFailed(self._name, self.failure or "closed")
        for ticket in tickets:
            if not ticket.done:
                ticket.finish(error)

    def poison(self, reason: str) -> None:
        """Take no more writes; the first reason is kept, and told in the log."""
        if self.failure is None:
            self.failure = reason
            _log.error(
                "the store in %s takes no more writes until it is opened again: %s", self._name, reason,
                extra=event("storage_failed", path=self._name, reason=reason),
            )  # fmt: skip

    # -- the background thread --------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._closing and self._background:
                thread = threading.Thread(target=self._run, name=f"penstock-commit {self._name}", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        """
        Commit what nobody waits for.

        Most submitters wait soon and then lead themselves. So after it was woken this thread dozes for a moment, and commits only
        if nobody has led meanwhile; once nobody does, it goes on without dozing. It must not wait for the cycle lock: it would
        get it the moment the leader is done and commit the one ticket that has come since, at the price of a whole sync.
        """
        leading = False
        while not (self._closing and not self._pending):
            try:
                head = self._pending[0]
            except IndexError:
                leading = False
                self._sleeping = True
                if not self._pending and not self._closing:
                    self._wake.acquire()
                self._sleeping = False
                continue
            if not leading and not self._urgent:
                self._wake.acquire(timeout=DOZE_SECONDS)
                if not self._urgent and (not self._pending or self._pending[0] is not head):
                    continue
            self._urgent = False
            leading = self._cycle_lock.acquire(blocking=False)
            if leading:
                try:
                    # A bug has poisoned the store and answered the tickets; later ones must still be refused by somebody.
                    with contextlib.suppress(Exception):
                        self._cycle()
                finally:
                    self._cycle_lock.release()

    @contextlib.contextmanager
    def quiesce(self) -> Iterator[None]:
        """Hold cycles back: whoever is inside sees the store between two of them."""
        try:
            with self._cycle_lock:
                yield
        finally:
            if self._pending:
                self.hand_on()

    @contextlib.contextmanager
    def try_quiesce(self) -> Iterator[bool]:
        """Like `quiesce`, for a thread that must not wait: whether cycles are held back."""
        if not self._cycle_lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._cycle_lock.release()
            if self._pending:
                self.hand_on()

    def drain(self) -> None:
        """Commit all that waits, in the calling thread."""
        while self._pending:
            with Held(), self._cycle_lock:
                self._cycle()

    def close(self) -> None:
        """Commit what waits, then take no more tickets: one that comes too late is answered with `Closed`."""
        self.drain()
        self._closing = True
        thread = self._thread
        if thread is not None:
            self._wake_up()
            thread.join()
        with Held(), self._cycle_lock:
            while self._pending:
                self._cycle()
            self._stopped = True
