"""
One bound for what all clients together make a server hold in memory, whichever protocol they speak.

Theory of operation
-------------------
Each connection has an `Account` of the server's one `MemoryBudget`, and keeps it up to date with three numbers:

- `receiving`: bytes of requests that have begun and are not whole yet. Only the client can end them.
- `sending`: bytes of answers and deliveries that wait for the client to read. Only the client can end them.
- `working`: bytes of requests that the server is carrying out. The server ends them by itself.

A budget is full when all accounts together hold more than three quarters of `bytes_max`; for a principal (a token's name) when its accounts
hold more than five eighths, so that none can fill it alone; for one account when it holds more than half. Then:

1. Whoever wants more is *held back*: its `Holder` stops reading from that client. A client that holds next to nothing is let through, so
   that small calls (a ping, an ack) work while others fill the server. The room left above three quarters is divided among all
   accounts for that, so the whole is never more than `bytes_max` and what was read at a time. Where all together are the reason, `is_full`
   is set, and those who gave `on_full` a function are called: they make no more large answers and deliveries until it is not full.
2. They go on as soon as there is room again.
3. If somebody was held back, or all was full, for `PATIENCE_SECONDS`, the account with the most bytes in `receiving` and `sending` is
   *cut*: its client is told `Unavailable`, its connection ends, a warning is logged (event `client_cut`). Then the next one, each
   `LOOK_SECONDS`, until there is room. What the server works on is never a reason to cut: it ends by itself.

An answer whose size is not known before it is made, and may be large, is made in `making`: it waits until nothing is full, and counts as
work, with the most that it may take, until it is made. Those that ask are let in one after the other, in their order.

Nothing here knows sockets. All methods run in one event loop, that of the server; only `making` waits.

When much was given back, freed memory is returned to the operating system too (`malloc_trim`), off the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import time
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import Unavailable
from penstock.log_events import event, get_logger
from penstock.values import MIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_log = get_logger("penstock.server")
BYTES_MAX_DEFAULT = 256 * MIB
BYTES_MAX_LEAST = 192 * MIB
"""The least that a budget may have: the share of one connection must have room for a frame of 80 MiB."""
FULL_SHARE, ROOM_SHARE = 3 / 4, 2 / 3
"""Of `bytes_max`: from where on it is full, and down to where those that were held back wait."""
PRINCIPAL_SHARE = 5 / 8
"""Of `bytes_max`: what the connections of one principal may hold together."""
CONNECTION_SHARE = 1 / 2
"""Of `bytes_max`: what one connection may hold."""
PATIENCE_SECONDS = 5.0
ROOM_SECONDS = 10.0
"""How long a call waits for room to make its answer."""
LOOK_SECONDS = 1.0
LARGE_BLOCK_BYTES = 1 * MIB
_M_MMAP_THRESHOLD = -3
TRIMS = 8
TRIM_FROM_BYTES = 32 * MIB
"""After so much was given back the process asks the allocator to return it to the system."""


class Holder(Protocol):
    """Whoever has an account: the connection of one client."""

    def hold_back(self) -> None:
        """Read nothing more from the client until `go_on`. May be called twice."""
        ...

    def go_on(self) -> None:
        """Read on, as far as the budget is concerned."""
        ...

    def cut(self, error: Unavailable) -> None:
        """Tell the client *error*, and end its connection soon; what it holds is given back by `Account.close`."""
        ...

    def look(self) -> None:
        """Bring `sending` of its account up to date: sockets take bytes without saying so. Called now and then."""
        ...


class Account:
    """What one connection makes the server hold. Made by `MemoryBudget.open`; `close` it when the connection is gone."""

    __slots__ = (
        "_budget",
        "holder",
        "is_closed",
        "is_held_back",
        "name",
        "principal",
        "receiving",
        "sending",
        "since",
        "working",
    )

    def __init__(self, budget: MemoryBudget, holder: Holder, name: str) -> None:
        self._budget = budget
        self.holder = holder
        self.name = name
        """What the log calls it."""
        self.principal: _Principal | None = None
        self.receiving = self.sending = self.working = 0
        self.is_held_back = self.is_closed = False
        self.since = 0.0
        """Since when it is held back."""

    @property
    def held(self) -> int:
        """All its bytes."""
        return self.receiving + self.sending + self.working

    @property
    def idle(self) -> int:
        """Those that only its client can end."""
        return self.receiving + self.sending

    def set_principal(self, name: str) -> None:
        """Who the client is, once that is known; what it holds counts for that principal too."""
        if not self.is_closed and (self.principal is None or self.principal.name != name):
            self._budget.assign(self, name)

    def set_receiving(self, count: int) -> None:
        """So many bytes of unfinished requests are held now."""
        change, self.receiving = count - self.receiving, count
        self._budget.change(self, change)

    def set_sending(self, count: int) -> None:
        """So many bytes wait to be sent now."""
        change, self.sending = count - self.sending, count
        self._budget.change(self, change)

    def begin(self, count: int) -> None:
        """The server begins to work on a request of *count* bytes."""
        self.working += count
        self._budget.change(self, count)

    def end(self, count: int) -> None:
        """It has ended; after `close` this does nothing."""
        if not self.is_closed:
            self.working -= count
            self._budget.change(self, -count)

    def close(self) -> None:
        """The connection is gone, and all that it held."""
        if not self.is_closed:
            self._budget.remove(self)
            self.is_closed = True


class _Principal:
    __slots__ = ("accounts", "held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.accounts = 0


class _Asking:
    """A call that waits for room to make its answer."""

    __slots__ = ("account", "since", "size", "turn")

    def __init__(self, account: Account, size: int, turn: asyncio.Future[None], since: float) -> None:
        self.account, self.size, self.turn, self.since = account, size, turn, since


class MemoryBudget:
    """
    The bound of one server. See the top of this module.

    Attributes:
        bytes_max: the bound.
        held: what all accounts hold now.
        cuts: how many connections were cut.
        is_full: whether no large answers should be made.
    """

    def __init__(
        self, bytes_max: int = BYTES_MAX_DEFAULT, *, now: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None, give_back: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """*now*, *call_later* and *give_back* stand in for the clock, the event loop's timer and the allocator in tests."""
        self.bytes_max = bytes_max
        self.held = 0
        self.cuts = 0
        self.is_full = False
        self._full_since = 0.0
        self._on_full: list[Callable[[], None]] = []
        self._full = int(bytes_max * FULL_SHARE)
        self._room = int(bytes_max * ROOM_SHARE)
        self._principal_max = int(bytes_max * PRINCIPAL_SHARE)
        self._connection_max = int(bytes_max * CONNECTION_SHARE)
        self._now = now
        self._call_later = call_later
        self._give_back = give_back
        self._accounts: set[Account] = set()
        self._principals: dict[str, _Principal] = {}
        self._held_back: dict[Account, None] = {}
        self._asking: list[_Asking] = []
        self._is_watched = False
        self._peak = 0
        self._trims_due = 0

    def open(self, holder: Holder, name: str = "a client") -> Account:
        """An account for a connection; *name* is what the log calls it."""
        account = Account(self, holder, name)
        self._accounts.add(account)
        return account

    def on_full(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call *function* whenever `is_full` has changed; returns how to stop that."""
        self._on_full.append(function)
        return lambda: self._on_full.remove(function)

    @property
    def allowance(self) -> int:
        """What an account may hold while the budget is full: its part of what is left."""
        return (self.bytes_max - self._full) // max(1, len(self._accounts))

    @contextlib.asynccontextmanager
    async def making(self, account: Account, size: int) -> AsyncIterator[None]:
        """Make an answer of at most *size* bytes in the block, when there is room. Raises `Unavailable`: there was none for long."""
        if self._asking or not self._may_make(account):
            await self._ask(account, size)
        else:
            account.begin(size)
        try:
            yield
        finally:
            account.end(size)

    async def _ask(self, account: Account, size: int) -> None:
        asking = _Asking(account, size, asyncio.get_running_loop().create_future(), self._now())
        self._asking.append(asking)
        if not self._is_watched:
            self._watch()
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await asking.turn
        except BaseException as error:
            if asking in self._asking:
                self._asking.remove(asking)
            elif not asking.turn.cancelled():
                account.end(size)  # it got room at the moment when it gave up
            self._let_in()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"the server's memory for its clients was full for {ROOM_SECONDS:g} s; try again later"
                ) from None
            raise

    def _may_make(self, account: Account) -> bool:
        principal = account.principal
        return not self.is_full and not account.is_held_back and (principal is None or principal.held <= self._principal_max)

    def _let_in(self) -> None:
        for asking in list(self._asking):
            if self.is_full:
                return
            if asking in self._asking and self._may_make(asking.account):
                self._asking.remove(asking)
                if not asking.turn.done():
                    asking.turn.set_result(None)
                    asking.account.begin(asking.size)

    # -- of the accounts --------------------------------------------------------------------------------------------

    def assign(self, account: Account, name: str) -> None:
        """See `Account.set_principal`."""
        self._leave(account)
        principal = account.principal = self._principals.setdefault(name, _Principal(name))
        principal.accounts += 1
        principal.held += account.held

    def _leave(self, account: Account) -> None:
        principal, account.principal = account.principal, None
        if principal is not None:
            principal.held -= account.held
            principal.accounts -= 1
            if not principal.accounts:
                self._principals.pop(principal.name, None)

    def change(self, account: Account, change: int) -> None:
        """An account holds *change* bytes more."""
        if not change or account.is_closed:
            return
        self.held += change
        if account.principal is not None:
            account.principal.held += change
        self._peak = max(self._peak, self.held)
        self._look_whether_full()
        if change > 0:
            if self._is_over(account):
                self._hold_back(account)
            elif account.sending and not self._is_watched:
                self._watch()
        elif self._held_back or self._asking:
            self._let_go_on()
        if change < 0 and self._peak - self.held >= TRIM_FROM_BYTES and not self._is_watched:
            self._watch()

    def remove(self, account: Account) -> None:
        """See `Account.close`."""
        self._held_back.pop(account, None)
        self._leave(account)
        self._accounts.discard(account)
        held = account.held
        account.receiving = account.sending = account.working = 0
        self.held -= held
        self._look_whether_full()
        if self._held_back or self._asking:
            self._let_go_on()
        if self._peak - self.held >= TRIM_FROM_BYTES and not self._is_watched:
            self._watch()

    # -- full and not full ------------------------------------------------------------------------------------------

    def _look_whether_full(self) -> None:
        if self.held <= self._room if self.is_full else self.held > self._full:
            self.is_full = not self.is_full
            self._full_since = self._now()
            if self.is_full and not self._is_watched:
                self._watch()
            for function in list(self._on_full):
                function()

    def _is_over(self, account: Account) -> bool:
        """Whether there is no room for what *account* holds; one that holds next to nothing always has room."""
        principal = account.principal
        if self.held <= self._full and account.held <= self._connection_max and (
            principal is None or principal.held <= self._principal_max
        ):  # fmt: skip
            return False
        return account.held > self.allowance

    def _has_room_for(self, account: Account) -> bool:
        """Whether an account that was held back may go on."""
        share = ROOM_SHARE / FULL_SHARE
        principal = account.principal
        return account.held <= self.allowance or (
            self.held <= self._room
            and account.held <= self._connection_max * share
            and (principal is None or principal.held <= self._principal_max * share)
        )

    def _hold_back(self, account: Account) -> None:
        if not account.is_held_back:
            account.is_held_back = True
            account.since = self._now()
            self._held_back[account] = None
            account.holder.hold_back()
        if not self._is_watched:
            self._watch()

    def _let_go_on(self) -> None:
        for account in [one for one in self._held_back if self._has_room_for(one)]:
            # Those before it may have begun to fill the room already.
            if account in self._held_back and self._has_room_for(account):
                del self._held_back[account]
                account.is_held_back = False
                account.holder.go_on()
        self._let_in()

    # -- now and then -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._is_watched = True
        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_watched = False
        for account in [one for one in self._accounts if one.sending]:
            account.holder.look()
        long_ago = self._now() - PATIENCE_SECONDS
        waited = [one for one in self._held_back if one.since <= long_ago]
        waited += [one.account for one in self._asking if one.since <= long_ago]
        if waited or (self.is_full and self._now() - self._full_since >= PATIENCE_SECONDS):
            self._cut_one(waited)
        if self._peak - self.held >= TRIM_FROM_BYTES:
            self._peak = self.held
            self._trims_due = TRIMS
        if self._trims_due:
            # Several times: threads may end a little later that worked for clients that are gone.
            self._trims_due -= 1
            self._trim()
        if not self._is_watched and (
            self._held_back or self._asking or self._trims_due or self.is_full or any(one.sending for one in self._accounts)
        ):
            self._watch()

    def _cut_one(self, waited: list[Account]) -> None:
        """Make room for those who have waited long enough: cut whoever holds most of what only clients can end."""
        accounts = self._accounts
        if waited and self.held <= self._room:
            # The whole has room, only a principal or a connection has used up its share.
            principals = {one.principal for one in waited}
            accounts = {one for one in accounts if one in waited or (one.principal is not None and one.principal in principals)}
        biggest = max(accounts, key=lambda one: one.idle, default=None)
        if biggest is None or biggest.idle <= self.allowance:
            return  # what is held is work: it ends by itself
        self.cuts += 1
        who = biggest.name if biggest.principal is None else f"{biggest.name} of {biggest.principal.name}"
        _log.warning(
            "cut %s: it held %d bytes (%d of unfinished requests, %d of answers that it did not read) while clients hold %d of %d",
            who, biggest.held, biggest.receiving, biggest.sending, self.held, self.bytes_max,
            extra=event(
                "client_cut", client=biggest.name, principal=None if biggest.principal is None else biggest.principal.name,
                receiving=biggest.receiving, sending=biggest.sending, held=self.held, bytes_max=self.bytes_max,
            ),
        )  # fmt: skip
        text = (
            f"the server's memory for its clients is full, and this connection held most of it: {biggest.receiving:,} bytes of "
            f"unfinished requests, {biggest.sending:,} bytes of answers that were not read"
        )
        biggest.holder.cut(Unavailable(text))

    def _trim(self) -> None:
        if self._give_back is not None:
            self._give_back()
        elif _MALLOC_TRIM is not None:
            # In a thread: it may take some milliseconds, and lets others run meanwhile.
            asyncio.get_running_loop().run_in_executor(None, _return_freed, 2 if not self._trims_due else 1)


def _return_freed(generation: int) -> None:
    # Calls that were cancelled leave cycles, with the bytes that they had; most are young.
    gc.collect(generation)
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


def return_large_blocks() -> None:
    """
    Let this process give large blocks back to the system when they are freed, and not keep them for later; for a server's own process.

    The allocator of glibc would learn from the first large block that is freed to keep those of that size, for each thread by itself.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    except (AttributeError, OSError):  # not glibc
        return


def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return None
    return found


_MALLOC_TRIM = _malloc_trim()
