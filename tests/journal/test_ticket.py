"""Tickets: waiting, timing out, and a lead that is never lost."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import StorageFull, WaitTimeout
from penstock.journal.ticket import Ticket


class CountingLeader:
    """Counts who takes the lead and who hands it on."""

    def __init__(self) -> None:
        self.helped = 0
        self.handed_on = 0

    def help(self, ticket: Ticket) -> None:
        """Note that somebody came to lead."""
        del ticket
        self.helped += 1

    def hand_on(self) -> None:
        """Note that somebody could not stay."""
        self.handed_on += 1


def test_a_done_ticket_does_not_wait() -> None:
    """Success returns, an error is raised, to every waiter."""
    ticket = Ticket(CountingLeader(), 0)
    ticket.finish()
    ticket.wait()
    failed = Ticket(CountingLeader(), 0)
    failed.finish(StorageFull("/x", None, None))
    for _ in range(2):
        with pytest.raises(StorageFull):
            failed.wait()


def test_every_waiting_thread_is_woken() -> None:
    """Any number of threads may wait for one ticket."""
    ticket = Ticket(CountingLeader(), 0)
    threads = [threading.Thread(target=ticket.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    ticket.finish()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_callback_is_called_once_whether_set_before_or_after() -> None:
    """`on_done` before the end, or after it."""
    called: list[Ticket] = []
    early, late = Ticket(CountingLeader(), 0), Ticket(CountingLeader(), 0)
    early.on_done(called.append)
    early.finish()
    late.finish()
    late.on_done(called.append)
    assert called == [early, late]


def test_a_lead_that_meets_a_timeout_is_handed_on() -> None:
    """Whoever is woken to lead leads, or hands the lead on if it has just given up waiting; it is never lost."""
    leader = CountingLeader()
    ticket = Ticket(leader, 0)
    waits = 0
    stop = threading.Event()

    def wait_and_give_up() -> None:
        nonlocal waits
        while not stop.is_set():
            try:
                waits += 1
                ticket.wait(0.0002)
            except WaitTimeout:
                continue

    thread = threading.Thread(target=wait_and_give_up)
    thread.start()
    led = 0
    while led < 300:
        led += ticket.lead()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    # Each wait begins with one call of help; every further call, and every handing on, answers a lead.
    assert leader.helped - waits + leader.handed_on == led
