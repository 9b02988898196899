"""A member of a group: what it holds of the group's messages."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from penstock.groups.delivery import COMMITTING, PARTITION_BITS
from penstock.groups.hands import EMPTY

if TYPE_CHECKING:
    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery, Lot
    from penstock.groups.group import Group
    from penstock.groups.hands import Hand


LEASE_MESSAGES = 1_000


class Member:
    """
    One consumer as its group sees it. Guarded by the group's lock.

    `lots` are leased and not handed out; `handed` are with the user, in the order of their deadlines, since all have the same lease;
    `extended` are those with a lease of their own length.
    """

    __slots__ = (
        "ahead", "buffered", "closed", "concurrency", "cursors", "extended", "group", "hand", "handed", "held_bytes", "identity", "lots",
        "passing", "paused",
        "prefetch", "prefetch_bytes", "rota", "starved",
    )  # fmt: skip

    def __init__(self, group: Group, identity: int, prefetch: int, prefetch_bytes: int, concurrency: int, hand: Hand) -> None:
        self.group = group
        self.hand = hand
        """The same as its two tables, where the next owner of the store finds it if this process dies."""
        self.identity = identity
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
        return len(self.handed) + len(self.extended)

    @property
    def can_take(self) -> bool:
        """Whether it may be given more."""
        return (
            not self.paused
            and not self.closed
            and len(self.handed) + len(self.extended) < self.prefetch
            and (self.buffered > 0 or self.held_bytes < self.prefetch_bytes)
        )

    def holds(self, delivery: Delivery) -> bool:
        """Whether *delivery* is still its own."""
        key = delivery.offset << PARTITION_BITS | delivery.partition
        return self.handed.get(key) is delivery or (bool(self.extended) and self.extended.get(key) is delivery)

    def drop_if_held(self, delivery: Delivery) -> None:
        """`drop` it, if it is still its own."""
        key = delivery.offset << PARTITION_BITS | delivery.partition
        table = self.handed
        if table.get(key) is not delivery:
            table = self.extended
            if table.get(key) is not delivery:
                return
        del table[key]
        self.hand.put_down(key)
        self.held_bytes -= delivery._lot.each  # noqa: SLF001

    def drop(self, delivery: Delivery) -> None:
        """Take *delivery* out of its table."""
        key = delivery.offset << PARTITION_BITS | delivery.partition
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
