"""A member of a group: what it holds of the group's messages."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from penstock.groups.delivery import COMMITTING, PARTITION_BITS
from penstock.groups.hands import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery, Lot
    from penstock.groups.group import Group
    from penstock.groups.hands import Hand
    from penstock.groups.push_window import PushWindow


LEASE_MESSAGES = 1_000
SILENT = "silent"
"""Why a member is suspended: nothing was heard from its client for as long as a lease, while it held pushed messages."""
LATE = "late"
"""Or it let a lease end."""


FETCHES = "fetches"
PUSHES = "pushes"


class Client(Protocol):
    """The client of a member that is somewhere else: a connection or a stream. Called under the group's lock: it must not wait."""

    beats: bool
    """Whether it tells what it has begun, and sends a heartbeat while it holds messages."""
    recalls: bool
    """Whether it can be asked to give messages back, and is told of those that are taken back."""

    def recall(self, count: int) -> None:
        """Ask it to give back up to *count* of the newest messages that it has not begun; it answers by `Group.recalled`."""
        ...

    def revoked(self, deliveries: Sequence[Delivery]) -> None:
        """These were taken back before it had begun them, as far as the group knows."""
        ...


class Origin:
    """Where a consumer comes from: the interface, the address of its client, whose token it has, and when the client was last heard."""

    __slots__ = ("heard", "interface", "peer", "principal")

    def __init__(self, interface: str, peer: str, principal: str, heard: float) -> None:
        self.interface = interface
        self.peer = peer
        self.principal = principal
        self.heard = heard
        """By the clock that does not jump."""


class Member:
    """
    One consumer as its group sees it. Guarded by the group's lock.

    `lots` are leased and not handed out; `handed` are with the user, in the order of their deadlines, since all have the same lease;
    `extended` are those with a lease of their own length; `waiting` were pushed to a client and wait there, without a running lease.
    """

    __slots__ = (
        "ahead", "asks", "buffered", "client", "closed", "concurrency", "cursors", "evicted", "extended", "group", "hand", "handed",
        "held_bytes", "identity", "idle_at", "is_recalled", "is_spent", "lease_s", "lots", "name", "on_evicted", "origin", "passing",
        "patience_s", "paused", "prefetch", "prefetch_bytes", "recalled_at", "rota", "silent_at", "since_us", "starved", "suspended",
        "took", "waiting", "window",
    )  # fmt: skip

    def __init__(self, group: Group, identity: int, prefetch: int, prefetch_bytes: int, concurrency: int, hand: Hand) -> None:
        self.group = group
        self.hand = hand
        """The same as its two tables, where the next owner of the store finds it if this process dies."""
        self.identity = identity
        self.name: str | None = None
        """What its user calls it."""
        self.origin: Origin | None = None
        """Where its client is; None in this process."""
        self.since_us = 0
        self.took = 0.0
        """When messages were last taken for it, by the clock that does not jump."""
        self.evicted = False
        self.on_evicted: Callable[[], None] | None = None
        """Called, in any thread, when it was evicted, for a client that does not ask by itself."""
        self.prefetch = prefetch
        self.prefetch_bytes = prefetch_bytes
        self.concurrency = concurrency
        self.ahead = LEASE_MESSAGES
        """The most that is leased for it at once, unless it asks for more."""
        self.lots: deque[Lot] = deque()
        self.buffered = 0
        self.held_bytes = 0
        """About how much its lots and what it was handed take."""
        self.handed: dict[int, Delivery] = {}
        self.extended: dict[int, Delivery] = {}
        self.waiting: OrderedDict[int, Delivery] = OrderedDict()
        """In the order in which they were pushed; kept while its client is heard."""
        self.client: Client | None = None
        """None: the user is in this process, and alive as long as it is."""
        self.window: PushWindow | None = None
        """How far ahead its client is pushed, if it cannot be asked to give messages back."""
        self.lease_s: float | None = None
        """How long leases of what its client is pushed are, if not as the group's."""
        self.patience_s = 0.0
        """For how long its client may be silent: the lease that it knows of."""
        self.silent_at = math.inf
        """When that is over."""
        self.idle_at = math.inf
        """When it has done nothing for so long, whether it is alive or not."""
        self.suspended = ""
        """Why it is given nothing until its client is heard; empty if it is not."""
        self.asks = ""
        """How it asked when it last got nothing: `FETCHES` or `PUSHES`; empty if it got something."""
        self.is_recalled = False
        """Whether its client was asked to give messages back, and has not answered."""
        self.recalled_at = 0.0
        """When that was."""
        self.is_spent = False
        """Whether its client has given back all that it could, and was pushed nothing since."""
        self.cursors: list[Cursor] = []
        """In an ordered group: the partitions that are its own."""
        self.rota: OrderedDict[Cursor, None] = OrderedDict()
        """Those of them that have something to give; see `Book`."""
        self.paused = False
        self.passing = False
        """Whether its last call ended because it had passed over enough: there is more to look at, and it should ask again at once."""
        self.closed = False
        self.starved = False
        """Whether it asked and got nothing because it holds as much as it may."""

    @property
    def in_flight(self) -> int:
        """Messages that it was handed and has not finished."""
        return len(self.handed) + len(self.extended) + len(self.waiting)

    @property
    def in_hand(self) -> int:
        """Those of them whose lease runs."""
        return len(self.handed) + len(self.extended)

    @property
    def answer_by(self) -> float:
        """When its client must have answered a recall, or done something else: it may send heartbeats, and read nothing."""
        return max(self.recalled_at + self.patience_s, self.idle_at) if self.is_recalled else math.inf

    @property
    def is_hungry(self) -> bool:
        """Whether it asked, got nothing, and has nothing else to do. Where it is pushed to, that is when its client has no more."""
        return self.asks == FETCHES or (self.asks == PUSHES and not self.waiting and self.in_hand < self.concurrency)

    @property
    def can_take(self) -> bool:
        """Whether it may be given more."""
        return (
            not self.paused
            and not self.closed
            and not self.suspended
            and self.in_flight < self.prefetch
            and (self.buffered > 0 or self.held_bytes < self.prefetch_bytes)
        )

    def holds(self, delivery: Delivery) -> bool:
        """Whether *delivery* is still its own."""
        key = delivery.offset << PARTITION_BITS | delivery.partition
        return (
            self.handed.get(key) is delivery
            or (bool(self.extended) and self.extended.get(key) is delivery)
            or (bool(self.waiting) and self.waiting.get(key) is delivery)
        )

    def drop_if_held(self, delivery: Delivery) -> None:
        """`drop` it, if it is still its own."""
        if self.holds(delivery):
            self.drop(delivery)

    def drop(self, delivery: Delivery) -> None:
        """Take *delivery* out of its table."""
        key = delivery.offset << PARTITION_BITS | delivery.partition
        if self.waiting.get(key) is delivery:
            del self.waiting[key]
        else:
            if self.handed.get(key) is delivery:
                del self.handed[key]
            else:
                del self.extended[key]
            self.hand.put_down(key)
        self.held_bytes -= delivery._lot.each  # noqa: SLF001

    def release(self, delivery: Delivery) -> bool:
        """
        Take *delivery* out of its table, to settle it; False if it may not be: it is late, or a transaction finishes it.

        If its hand holds many, the caller tells it afterwards how many are left (`Hand.recount`).
        """
        # As one step, and not by holds, is_valid and drop: this is done for each message.
        running = delivery._running  # noqa: SLF001
        if running is COMMITTING:
            return False
        lot, handed = delivery._lot, self.handed  # noqa: SLF001
        key = delivery.offset << PARTITION_BITS | delivery.partition
        if handed.get(key) is delivery:
            del handed[key]
        elif self.extended.get(key) is delivery:
            del self.extended[key]
        elif self.waiting.get(key) is delivery:
            del self.waiting[key]
            self.held_bytes -= lot.each
            return lot.epoch == lot.cursor.epoch
        else:
            return False
        hand = self.hand
        if hand.first == key:
            # As `put_down`.
            hand.first = EMPTY
            hand.words[hand.first_at] = 0  # type: ignore[index]
        elif hand.others:
            hand.put_down(key)
        self.held_bytes -= lot.each
        if lot.epoch != lot.cursor.epoch:
            return False
        if running:
            delivery._running = False  # noqa: SLF001
        return True
