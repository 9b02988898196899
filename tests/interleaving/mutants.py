"""
Planted mistakes about who runs when. None of them can be seen by one thread alone, and none by a test that only crashes the disk.

A mutant replaces one function while it is active; nothing in the product knows of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock import threads
from penstock.groups.registry import Groups, _Mark
from penstock.journal.committer import Committer
from penstock.journal.ticket import Ticket
from penstock.store.consumer import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.groups.delivery import Delivery


def _patched(target: object, name: str, replacement: object) -> Any:
    return mock.patch.object(target, name, replacement)


def _all_patched(**replacements: Any) -> Any:
    """Methods of `Groups`."""
    return mock.patch.multiple(Groups, **replacements)


def _held_up(seconds: float = 0.001) -> None:
    """The thread gets no turn for a while, in the moment that its mistake is about: so a mistake does not hide from nearly all seeds."""
    threads.Event().wait(seconds)


_take_pending, _snapshot = Groups.take_pending, Groups.snapshot


def _take_slowly(self: Groups, bytes_max: int) -> bytes:
    """As it is, and the frame takes a while to get to the disk."""
    taken = _take_pending(self, bytes_max)
    if self._marks_taken:
        _held_up(0.005)
    return taken


def _taken_is_durable(self: Groups, bytes_max: int) -> bytes:
    """The same; and marks that a frame takes are durable before the disk has the frame."""
    taken = _take_pending(self, bytes_max)
    if self._marks_taken:
        for mark in self._marks_taken:
            mark.durable = True
        _held_up(0.005)
    return taken


def _snapshot_slowly(self: Groups) -> bytes:
    _held_up()
    return _snapshot(self)


def _flush_held_up(self: Groups) -> None:
    """As it is, by a thread that gets no turn between its mark and its first look at it."""
    assert self._volume is not None
    mark = _Mark()
    self._noted.append(mark)
    _held_up()
    while not mark.durable:
        self._volume.commit_changes(())


def threads_are_held_up() -> Any:
    """No mistake: only what those mistakes do besides that are about marks."""
    return _all_patched(take_pending=_take_slowly, snapshot=_snapshot_slowly, flush=_flush_held_up)


def flush_ends_when_a_frame_took_its_mark() -> Any:
    """What was shipped: the frame of another thread has taken the mark, and waits for the disk; flush looks in that moment."""

    def flush(self: Groups) -> None:
        assert self._volume is not None
        mark = _Mark()
        self._noted.append(mark)
        while True:
            self._volume.commit_changes(())
            _held_up()
            if mark.durable:
                return

    return _all_patched(take_pending=_taken_is_durable, flush=flush)


def flush_reads_its_mark_before_it_commits() -> Any:
    """Taken is as good as durable: no cycle of its own if another one has the mark."""
    return _all_patched(take_pending=_taken_is_durable, flush=_flush_held_up)


def flush_waits_for_one_cycle() -> Any:
    """The next frame has it all, or so it seems."""

    def flush(self: Groups) -> None:
        assert self._volume is not None
        self._volume.commit_changes(())

    return _patched(Groups, "flush", flush)


def a_checkpoint_takes_the_mark_early() -> Any:
    """What is in a snapshot counts as durable, though the checkpoint that holds it is not written yet."""

    def snapshot(self: Groups) -> bytes:
        for entry in self._noted:
            if type(entry) is _Mark:
                entry.durable = True
        return _snapshot_slowly(self)

    return _all_patched(snapshot=snapshot, flush=_flush_held_up)


def a_ticket_is_done_before_its_waiter_is_there() -> Any:
    """A missed wake-up: done is looked at, then the thread goes to sleep, and whoever finishes the ticket comes in between."""

    def wait(self: Ticket, timeout: float | None = None) -> None:
        if not self.done:
            self._leader.help(self)
            while not self.done:
                waiter = threads.Lock()
                waiter.acquire()
                if self._waiters is None:
                    self._waiters = []
                self._waiters.append(waiter)
                waiter.acquire(timeout=-1 if timeout is None else timeout)
                if not self.done:
                    self._leader.help(self)
        if self.error is not None:
            raise self.error

    return _patched(Ticket, "wait", wait)


def a_leader_goes_home_without_handing_on() -> Any:
    """Tickets that came while it led are left to nobody."""

    def help_it(self: Committer, ticket: Ticket) -> None:
        while not ticket.done and self._cycle_lock.acquire(blocking=False):
            try:
                self._cycle()
            finally:
                self._cycle_lock.release()

    return _patched(Committer, "help", help_it)


def a_leader_sees_its_ticket_done_before_the_sync() -> Any:
    """The answers are given while the frame is on its way to the disk."""
    plain = Committer._cycle

    def cycle(self: Committer) -> None:
        prepare = self._participant.prepare

        def prepare_and_answer(tickets: list[Any], now_us: int) -> Any:
            prepared = prepare(tickets, now_us)
            for ticket in prepared.tickets:
                ticket.finish()
            prepared.tickets = []
            return prepared

        with _patched(self._participant, "prepare", prepare_and_answer):
            plain(self)

    return _patched(Committer, "_cycle", cycle)


def close_does_not_wait_for_a_cycle() -> Any:
    """What is under way is left to itself, and the files are closed under it."""

    def close(self: Committer) -> None:
        self._closing = self._stopped = True
        if self._thread is not None:
            self._wake_up()

    return _patched(Committer, "close", close)


def a_checkpoint_does_not_hold_cycles_back() -> Any:
    """It notes the number of a frame whose batches and operations are not applied yet."""

    @contextlib.contextmanager
    def quiesce(self: Committer) -> Iterator[None]:
        yield

    return _patched(Committer, "quiesce", quiesce)


def the_background_thread_says_too_late_that_it_sleeps() -> Any:
    """A missed wake-up: it finds nothing, a ticket comes and wakes nobody, and it goes to sleep."""

    def run(self: Committer) -> None:
        while not (self._closing and not self._pending):
            if not self._pending and not self._closing:
                self._sleeping = True
                self._wake.acquire()
                self._sleeping = False
            if self._pending and self._cycle_lock.acquire(blocking=False):
                try:
                    self._cycle()
                finally:
                    self._cycle_lock.release()

    return _patched(Committer, "_run", run)


def a_consumer_looks_and_then_begins_to_wait() -> Any:
    """A missed wake-up: the message comes after the look and before the waiter is there."""

    def wait(self: Consumer, count: int, wait_s: float | None) -> list[Delivery]:
        group, member = self._group, self._member
        while True:
            found = group.take(member, count)
            if found:
                return found
            waiter = threads.Lock()
            waiter.acquire()
            group.add_waiter(waiter, member)
            woken = waiter.acquire(timeout=30_000)
            group.remove_waiter(waiter, member, woken=woken)

    return _patched(Consumer, "_wait", wait)


MUTANTS: list[Callable[[], Any]] = [
    flush_ends_when_a_frame_took_its_mark,
    flush_reads_its_mark_before_it_commits,
    flush_waits_for_one_cycle,
    a_checkpoint_takes_the_mark_early,
    a_ticket_is_done_before_its_waiter_is_there,
    a_leader_goes_home_without_handing_on,
    a_leader_sees_its_ticket_done_before_the_sync,
    close_does_not_wait_for_a_cycle,
    a_checkpoint_does_not_hold_cycles_back,
    the_background_thread_says_too_late_that_it_sleeps,
    a_consumer_looks_and_then_begins_to_wait,
]
