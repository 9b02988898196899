"""One bound for what all clients together make a server hold."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from penstock.broker import memory_budget
from penstock.broker.memory_budget import LOOK_SECONDS, PATIENCE_SECONDS, TRIMS, Account, MemoryBudget
from penstock.errors import Unavailable
from penstock.values import MIB

if TYPE_CHECKING:
    import random


class Loop:
    """A clock, a timer and an allocator that stand still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.trims = 0
        self._due: list[tuple[float, object]] = []

    def call_later(self, seconds: float, function: object) -> None:
        self._due.append((self.now + seconds, function))

    def trim(self) -> None:
        self.trims += 1

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self._due if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self._due.remove(first)
            self.now = first[0]
            first[1]()  # type: ignore[operator]
        self.now = end


class Client:
    """A connection that does what it is told."""

    def __init__(self, budget: MemoryBudget, principal: str | None = None) -> None:
        self.is_held_back = False
        self.error: Unavailable | None = None
        self.unread = 0
        self.account: Account = budget.open(self, "a test")
        if principal is not None:
            self.account.set_principal(principal)

    def hold_back(self) -> None:
        self.is_held_back = True

    def go_on(self) -> None:
        self.is_held_back = False

    def cut(self, error: Unavailable) -> None:
        self.error = error
        self.account.close()

    def look(self) -> None:
        self.account.set_sending(self.unread)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def budget(loop: Loop) -> MemoryBudget:
    return MemoryBudget(256 * MIB, now=lambda: loop.now, call_later=loop.call_later, give_back=loop.trim)


def test_a_client_that_fills_its_share_is_held_back_and_goes_on_when_it_shrank(budget: MemoryBudget) -> None:
    client = Client(budget)
    client.account.begin(100 * MIB)
    assert [client.is_held_back] == [False]
    client.account.begin(100 * MIB)
    assert [client.is_held_back] == [True]
    client.account.end(50 * MIB)
    assert [client.is_held_back] == [True]
    client.account.end(50 * MIB)
    assert [client.is_held_back] == [False]


def test_small_clients_are_read_from_while_big_ones_fill_the_budget(budget: MemoryBudget) -> None:
    big = [Client(budget, f"tenant {number}") for number in range(4)]
    for client in big:
        client.account.set_receiving(50 * MIB)
    assert big[-1].is_held_back
    small = Client(budget, "another")
    small.account.set_receiving(64 * 1024)
    assert not small.is_held_back
    small.account.set_receiving(20 * MIB)
    assert small.is_held_back


def test_a_principal_cannot_fill_the_budget_alone(budget: MemoryBudget) -> None:
    greedy = [Client(budget, "greedy") for _ in range(4)]
    for client in greedy:
        client.account.set_receiving(45 * MIB)
    assert greedy[-1].is_held_back
    other = Client(budget, "other")
    other.account.set_receiving(10 * MIB)
    assert not other.is_held_back
    assert budget.held < 256 * MIB


def test_who_waits_long_gets_room_and_the_biggest_is_cut_with_an_error_and_an_event(
    budget: MemoryBudget, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    biggest, second, third = (Client(budget, name) for name in ("a", "b", "c"))
    biggest.account.set_receiving(90 * MIB)
    second.account.set_receiving(60 * MIB)
    third.account.set_receiving(50 * MIB)
    assert third.is_held_back
    loop.pass_time(PATIENCE_SECONDS - 1)
    assert third.is_held_back
    with caplog.at_level(logging.WARNING, "penstock.server"):
        loop.pass_time(1 + LOOK_SECONDS)
    assert isinstance(biggest.error, Unavailable)
    assert "94,371,840 bytes of unfinished requests" in str(biggest.error)
    assert (second.error, third.error, third.is_held_back, budget.cuts) == (None, None, False, 1)
    facts = caplog.records[0].penstock  # type: ignore[attr-defined]
    assert (facts["event"], facts["principal"], facts["receiving"]) == ("client_cut", "a", 90 * MIB)


def test_work_of_the_server_is_waited_for_and_never_cut(budget: MemoryBudget, loop: Loop) -> None:
    clients = [Client(budget, f"tenant {number}") for number in range(4)]
    for client in clients:
        client.account.begin(50 * MIB)
    loop.pass_time(60)
    assert budget.cuts == 0
    for client in clients:
        client.account.end(50 * MIB)
    assert (budget.held, [client.is_held_back for client in clients]) == (0, [False] * 4)


def test_what_a_socket_took_meanwhile_is_noticed(budget: MemoryBudget, loop: Loop) -> None:
    reader = Client(budget)
    reader.unread = 100 * MIB
    reader.account.set_sending(100 * MIB)
    reader.unread = 0
    loop.pass_time(LOOK_SECONDS)
    assert budget.held == 0


def test_memory_goes_back_to_the_system_after_much_was_freed(budget: MemoryBudget, loop: Loop) -> None:
    client = Client(budget)
    client.account.set_receiving(80 * MIB)
    client.account.close()
    loop.pass_time(20 * LOOK_SECONDS)
    assert (budget.held, loop.trims) == (0, TRIMS)
    other = Client(budget)
    other.account.set_receiving(1 * MIB)
    other.account.close()
    loop.pass_time(60)
    assert loop.trims == TRIMS


def test_whatever_clients_do_the_bound_holds_and_all_is_given_back(loop: Loop, rng: random.Random) -> None:
    step = 1 * MIB
    budget = MemoryBudget(64 * MIB, now=lambda: loop.now, call_later=loop.call_later, give_back=loop.trim)
    clients = [Client(budget, f"tenant {number % 3}") for number in range(12)]
    for _ in range(5_000):
        number = rng.randrange(len(clients))
        client = clients[number]
        if client.account.is_closed:
            clients[number] = Client(budget, f"tenant {number % 3}")
            continue
        match rng.randrange(5):
            case 0 if not client.is_held_back:
                client.account.set_receiving(client.account.receiving + rng.randrange(step))
            case 1 if not client.is_held_back:
                client.account.begin(rng.randrange(step))
            case 2:
                client.account.end(client.account.working)
            case 3 if rng.random() < 0.1:
                client.account.set_receiving(0)
            case 4:
                loop.pass_time(rng.random())
        assert budget.held == sum(one.account.held for one in clients) <= 64 * MIB + len(clients) * step
    for client in clients:
        client.account.close()
    assert budget.held == 0


def test_an_answer_is_made_when_there_is_room_and_counts_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they ask; one that waits for too long, or gives up, takes nothing."""
    monkeypatch.setattr(memory_budget, "ROOM_SECONDS", 0.05)

    async def main() -> None:
        budget = MemoryBudget(256 * MIB)
        full, asks = Client(budget), Client(budget, "a")
        full.account.begin(200 * MIB)
        with pytest.raises(Unavailable, match=r"full for 0\.05 s"):
            async with budget.making(asks.account, 20 * MIB):
                pass
        monkeypatch.setattr(memory_budget, "ROOM_SECONDS", 60.0)
        order: list[int] = []

        async def make(number: int) -> None:
            async with budget.making(asks.account, 20 * MIB):
                order.append(number)
                assert asks.account.working >= 20 * MIB

        tasks = [asyncio.create_task(make(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        assert (order, budget.held) == ([], 200 * MIB)
        full.account.end(200 * MIB)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (order, budget.held, asks.account.working) == ([0, 2, 3, 4], 0, 0)

    asyncio.run(main())


def test_who_waits_for_room_to_make_an_answer_gets_it_by_a_cut_too(budget: MemoryBudget, loop: Loop) -> None:
    async def main() -> None:
        unread, asks = [Client(budget, name) for name in ("a", "b", "c")], Client(budget, "d")
        for client in unread:
            client.unread = 80 * MIB
            client.look()
        task = asyncio.create_task(_make(budget, asks.account))
        await asyncio.sleep(0)
        assert not task.done()
        loop.pass_time(PATIENCE_SECONDS + LOOK_SECONDS)
        await task
        assert any(client.error for client in unread)

    asyncio.run(main())


async def _make(budget: MemoryBudget, account: Account) -> None:
    async with budget.making(account, MIB):
        pass
