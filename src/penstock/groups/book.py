"""
The book of a group: which messages are with whom.

It has the cursors, the members and what they hold, and for ordered groups whose each partition is. Every way in which messages go back
or become void is here; how they are leased is told in `leasing.py`, how they are finished in `settling.py`.

A topic may have ten thousand partitions of which one has messages, so nothing that is done again and again looks at all of them. The
*rota* has those that may have something to give, in the order in which it is their turn; in an ordered group each member has its own.
A partition comes onto it when a commit adds to its log, when messages go back or are due, when its cursor is moved or it changes hands,
and when the first member joins; it leaves it when whoever leases finds that nothing is left.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from penstock.groups import operations as ops
from penstock.groups.assignment import assign
from penstock.groups.cursor import Cursor
from penstock.groups.dead_letters import is_dead_letter_topic
from penstock.groups.delivery import COMMITTING
from penstock.groups.waiters import Waiters
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.groups.delivery import Delivery
    from penstock.groups.failures import Failure
    from penstock.groups.journal import Journal
    from penstock.groups.member import Member
    from penstock.settings import GroupSettings

OFFSET_END = 1 << 63
_RANGES_PER_NOTE = ops.RANGES_PER_OPERATION
LOOK_AGAIN_S = 60.0
"""Who waits for a delayed message looks at the clock this often."""


class Counters:
    """What a group has done since the store was opened; `dead_lettered` is of all time, and stored with the group."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "delivered",
        "expired",
        "expired_messages",
        "lost",
        "nacked",
        "redelivered",
        "skipped",
    )

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.acked = self.nacked = self.expired = self.dead_lettered = 0
        self.expired_messages = 0
        """Messages that expired before anybody got them; `expired` are leases."""
        self.skipped = 0
        """Offsets that retention took before the group had finished them."""
        self.lost = 0
        """Offsets that the group had seen and that a log with a weak mode lost."""


class Book:
    """Who holds what of one group. Guarded by the group's lock."""

    __slots__ = (
        "_arrivals", "_changing", "_delayed", "_failure", "_rota", "_scheduled", "committing", "counters", "cursors", "deadline", "due",
        "has_lanes", "identity", "journal", "max_deliveries", "members", "name", "ordered", "settings", "suspected", "topic", "waiters",
    )  # fmt: skip

    def __init__(
        self, identity: int, topic: str, name: str, settings: GroupSettings, starts: Sequence[int], journal: Journal
    ) -> None:
        self.identity = identity
        self.topic = topic
        self.name = name
        self.journal = journal
        self.cursors = [Cursor(partition, start) for partition, start in enumerate(starts)]
        self.members: dict[int, Member] = {}
        self.waiters = Waiters()
        self.counters = Counters()
        self.deadline = math.inf
        """No lease ends before this moment (monotonic seconds)."""
        self.due = math.inf
        """Nothing that waits for its next delivery is due before this moment."""
        self.suspected: list[Cursor] = []
        """The partitions in which there were suspects when the store was opened; later there are no others."""
        self.committing: dict[Delivery, tuple[Cursor, int]] = {}
        """What transactions are finishing, with its cursor and the generation that this had."""
        self._failure: Failure | None = None
        self._rota: OrderedDict[Cursor, None] = OrderedDict()
        self._arrivals: deque[Cursor] = deque()
        self._scheduled: dict[Cursor, None] = {}
        self._delayed: dict[Cursor, None] = {}
        self.has_lanes = False
        """Whether its topic has priorities."""
        self._changing: list[Cursor] = []
        self.configure(settings)

    def configure(self, settings: GroupSettings) -> None:
        """Work by *settings* from now on."""
        self.settings = settings
        # The dead letters of dead letters would never end.
        self.max_deliveries = 0 if is_dead_letter_topic(self.topic) else settings.max_deliveries
        self.ordered = settings.ordered

    def note_ranges(self, kind: int, cursor: Cursor, member: Member, ranges: list[tuple[int, int]]) -> None:
        """Note for the journal what *member* has leased, or given back."""
        head = kind, cursor.partition, self.identity, cursor.generation, member.identity, member.concurrency
        # As many notes as it takes: each must fit into a frame, and there may be a range for each of a million messages.
        for at in range(0, len(ranges), _RANGES_PER_NOTE):
            self.journal.note(ops.encode_ranges(*head, ranges[at : at + _RANGES_PER_NOTE]))

    def note_passed(self, cursor: Cursor, member: Member, start: int, passed: Sequence[tuple[int, int]]) -> None:
        """Note that the scan came from *start* to where it is, and that what it *passed* on the way is with nobody."""
        head = cursor.partition, self.identity, cursor.generation, member.identity, member.concurrency
        # As if it had been leased and given back; in one note, so that no frame has half of it, or as many as it takes.
        for at in range(0, len(passed), _RANGES_PER_NOTE):
            part = passed[at : at + _RANGES_PER_NOTE]
            end = cursor.scan if at + len(part) == len(passed) else part[-1][1]
            self.journal.note(
                ops.encode_ranges(ops.LEASED, *head, [(start, end)]) + ops.encode_ranges(ops.RETURNED, *head, part)
            )
            start = end

    def shared_failure(self, failure: Failure) -> Failure:
        """One object for all that failed alike, one after the other."""
        if self._failure == failure:
            return self._failure
        self._failure = failure
        return failure

    # -- who has something to give ----------------------------------------------------------------------------------

    def arrived(self, cursor: Cursor) -> None:
        """A commit added to the partition. Called by the committing thread, without the group's lock."""
        # Two threads may both find it unset: then it is there twice, which changes nothing.
        if not cursor.has_arrivals:
            cursor.has_arrivals = True
            self._arrivals.append(cursor)

    def offer(self, cursor: Cursor) -> None:
        """The partition may have something to give."""
        if not self.ordered:
            self._rota[cursor] = None
        elif cursor.member is not None:
            cursor.member.rota[cursor] = None

    def forget_offers(self) -> None:
        """All is replayed. The order of the partitions begins anew, whatever the journal happened to tell of."""
        self._rota.clear()

    def offer_all(self) -> None:
        """The first member joins: look at all partitions, once. Commits from now on are told by `arrived`."""
        for cursor in self.cursors:
            if cursor.has_more():
                self.offer(cursor)

    def rota_of(self, member: Member) -> OrderedDict[Cursor, None]:
        """The partitions that *member* may lease from."""
        while self._arrivals:
            cursor = self._arrivals.popleft()
            # Before anybody looks at it: what is committed from now on puts it here again.
            cursor.has_arrivals = False
            self.offer(cursor)
        return member.rota if self.ordered else self._rota

    # -- going back -------------------------------------------------------------------------------------------------

    def make_ready(self, cursor: Cursor, offset: int) -> None:
        """It may be leased again, if it is not finished meanwhile."""
        if offset in cursor.open:
            cursor.ready.add(offset)
            self.offer(cursor)
        if cursor.suspects and offset in cursor.suspects:
            self.release_suspect(cursor, offset)

    def release_suspect(self, cursor: Cursor, offset: int) -> None:
        """A suspect is not with anybody any more: the next one may go."""
        self.journal.release_suspect((self.identity, cursor.partition, offset))

    def return_all(self, member: Member) -> None:
        """What *member* holds is ready for others. That it left is noted, which says the same."""
        self.return_lots(member, note=False)
        for delivery in [*member.handed.values(), *member.extended.values(), *member.waiting.values()]:
            if delivery._lot.epoch == delivery._lot.cursor.epoch and delivery._running is not COMMITTING:  # noqa: SLF001
                self.make_ready(delivery._lot.cursor, delivery.offset)  # noqa: SLF001
        for key in (*member.handed, *member.extended):
            member.hand.put_down(key)
        member.handed = {}
        member.extended = {}
        member.waiting.clear()

    def return_waiting(self, member: Member) -> list[Delivery]:
        """What was pushed to *member* and waits there is ready for others, uncounted; its client is told. Returns it."""
        returned: list[Delivery] = []
        by_cursor: dict[Cursor, list[int]] = {}
        for key, delivery in list(member.waiting.items()):
            if delivery._running is COMMITTING:  # noqa: SLF001
                continue
            lot = delivery._lot  # noqa: SLF001
            del member.waiting[key]
            member.held_bytes -= lot.each
            returned.append(delivery)
            if lot.epoch == lot.cursor.epoch:
                self.make_ready(lot.cursor, delivery.offset)
                by_cursor.setdefault(lot.cursor, []).append(delivery.offset)
        for cursor, offsets in by_cursor.items():
            self.note_ranges(ops.RETURNED, cursor, member, ops.ranges_of(sorted(offsets)))
        self.tell_revoked(member, returned)
        return returned

    @staticmethod
    def tell_revoked(member: Member, deliveries: Sequence[Delivery]) -> None:
        """Its client does not have them any more, if it had not begun them."""
        if deliveries and member.client is not None:
            member.client.revoked(deliveries)

    def return_lots(self, member: Member, of: Cursor | None = None, *, note: bool = True) -> None:
        """What *member* was not handed yet is ready for others."""
        kept = []
        for lot in member.lots:
            cursor = lot.cursor
            if of is not None and cursor is not of:
                kept.append(lot)
                continue
            member.buffered -= len(lot)
            member.held_bytes -= len(lot) * lot.each
            if lot.epoch != cursor.epoch:
                continue
            offsets = OffsetSet([lot.offset(index) for index in range(lot.index, lot.stop)]) & cursor.open
            cursor.ready |= offsets
            self.offer(cursor)
            if cursor.suspects:
                for offset in offsets & cursor.suspects:
                    self.release_suspect(cursor, offset)
            if note and offsets:
                self.note_ranges(ops.RETURNED, cursor, member, ops.ranges_of(offsets))
        member.lots.clear()
        member.lots.extend(kept)

    def return_waiting_suspects(self, member: Member) -> None:
        """A suspect that is not handed out now goes back: while it waits, no other one may be handed out, in any group."""
        for lot in [lot for lot in member.lots if lot.cursor.suspects and lot.offset(lot.index) in lot.cursor.suspects]:
            member.lots.remove(lot)
            offsets = OffsetSet([lot.offset(at) for at in range(lot.index, lot.stop)])
            member.buffered -= len(lot)
            member.held_bytes -= len(lot) * lot.each
            if lot.epoch == lot.cursor.epoch:
                for offset in offsets:
                    self.make_ready(lot.cursor, offset)
                self.note_ranges(ops.RETURNED, lot.cursor, member, ops.ranges_of(offsets))

    # -- becoming void ----------------------------------------------------------------------------------------------

    def finish_below(self, cursor: Cursor, offset: int) -> int:
        """Everything below *offset* is finished, whoever holds it; returns how many messages members were handed of that."""
        count = self._void_below(cursor, offset)
        cursor.finish_below(offset)
        self.journal.note(ops.encode_offset(ops.COMMITTED, cursor.partition, self.identity, cursor.generation, offset))
        return count

    def _void_below(self, cursor: Cursor, offset: int) -> int:
        count = 0
        for member in self.members.values():
            revoked = []
            for table in (member.handed, member.extended, member.waiting):
                for key, delivery in list(table.items()):
                    if delivery._lot.cursor is cursor and delivery.offset < offset:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
                        delivery._running = False  # noqa: SLF001
                        count += 1
                        if table is member.waiting:
                            revoked.append(delivery)
                        else:
                            member.hand.put_down(key)
            self.tell_revoked(member, revoked)
            member.starved = False
            for lot in list(member.lots):
                if lot.cursor is not cursor:
                    continue
                while lot.index < lot.stop and lot.offset(lot.index) < offset:
                    lot.index += 1
                    member.buffered -= 1
                    member.held_bytes -= lot.each
                if lot.index >= lot.stop:
                    member.lots.remove(lot)
        if cursor.suspects:
            self.journal.release_suspects(self.identity, cursor.partition, offset)
        return count

    def void(self, cursor: Cursor) -> None:
        """The cursor was moved: members hold nothing of it any more."""
        self.journal.release_suspects(self.identity, cursor.partition, OFFSET_END)
        for member in self.members.values():
            revoked = []
            for table in (member.handed, member.extended, member.waiting):
                for key, delivery in list(table.items()):
                    if delivery._lot.cursor is cursor:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
                        if table is member.waiting:
                            revoked.append(delivery)
                        else:
                            member.hand.put_down(key)
            self.tell_revoked(member, revoked)
            for lot in [lot for lot in member.lots if lot.cursor is cursor]:
                member.lots.remove(lot)
                member.buffered -= len(lot)
                member.held_bytes -= len(lot) * lot.each
            member.starved = False
        self.hand_over_if_idle(cursor)
        self.offer(cursor)

    # -- waiting for their time -------------------------------------------------------------------------------------

    def schedule(self, cursor: Cursor, offset: int, now: float, delay_s: float) -> None:
        """*offset* may be leased again *delay_s* seconds from *now*."""
        self.due = min(self.due, cursor.schedule.add(offset, now, delay_s))
        self._scheduled[cursor] = None

    def delay(self, cursor: Cursor, now: float, now_us: int) -> None:
        """Messages of the partition are delayed, or were: see when the next one is due."""
        due_us = cursor.next_due_us()
        cursor.is_fired = due_us is not None and due_us <= now_us
        if due_us is None:
            self._delayed.pop(cursor, None)
            return
        self._delayed[cursor] = None
        if not cursor.is_fired:
            # Times of delivery are by the wall clock, which may be set while somebody sleeps.
            self.due = min(self.due, now + min((due_us - now_us) / 1e6, LOOK_AGAIN_S))

    def collect_due(self, now: float, now_us: int) -> None:
        """What is due may be leased again, or for the first time."""
        self.due = math.inf
        for cursor in list(self._delayed):
            self.delay(cursor, now, now_us)
            if cursor.is_fired:
                self.offer(cursor)
        for cursor in list(self._scheduled):
            due = cursor.schedule.due(now)
            if due is not None:
                cursor.ready |= due
                self.offer(cursor)
            following = cursor.schedule.next_due()
            if following is None:
                del self._scheduled[cursor]
            elif following < self.due:
                self.due = following

    def look_at_all(self, now: float) -> None:
        """Whoever comes next looks at all leases, and at all that waits for its time."""
        self.deadline = self.due = now
        self._scheduled = dict.fromkeys([cursor for cursor in self.cursors if cursor.schedule.offsets])
        self._delayed = {}

    # -- whose a partition is, in an ordered group ------------------------------------------------------------------

    def rebalance(self) -> None:
        """A member came or went, or was suspended: give each partition to one of those that are there."""
        current = {
            cursor.partition: (cursor.successor or cursor.member).identity  # type: ignore[union-attr]
            for cursor in self.cursors
            if (cursor.successor or cursor.member) is not None
        }
        # Who is suspended keeps nothing that another one can work on.
        active = [identity for identity, member in self.members.items() if not member.suspended] or list(self.members)
        target = assign(len(self.cursors), active, current)
        for cursor in self.cursors:
            new = self.members.get(target.get(cursor.partition, -1))
            if new is cursor.member:
                cursor.successor = None
                continue
            if cursor.member is not None and self._is_busy(cursor.member, cursor):
                # It finishes what it was handed first, or its lease ends: nobody else works on the partition meanwhile.
                cursor.successor = new
                self.return_lots(cursor.member, of=cursor)
                continue
            self._hand_over(cursor, new)
        self._changing = [cursor for cursor in self.cursors if cursor.successor is not None]

    def _hand_over(self, cursor: Cursor, new: Member | None) -> None:
        old = cursor.member
        if old is not None:
            if not old.closed:
                self.return_lots(old, of=cursor)
            if cursor in old.cursors:
                old.cursors.remove(cursor)
            old.rota.pop(cursor, None)
        cursor.member, cursor.successor = new, None
        if new is not None:
            new.cursors.append(cursor)
            if cursor.has_more():
                self.offer(cursor)

    def hand_over_if_idle(self, cursor: Cursor) -> None:
        """If the partition is to change hands, it does so as soon as its member has finished what it was handed."""
        if cursor.successor is not None:
            assert cursor.member is not None
            if not self._is_busy(cursor.member, cursor):
                self._hand_over(cursor, cursor.successor)
                self.waiters.wake_all()

    def hand_over_all_idle(self) -> None:
        """The same for all partitions."""
        for cursor in self._changing:
            self.hand_over_if_idle(cursor)

    def _is_busy(self, member: Member, cursor: Cursor) -> bool:
        # A member that has left holds nothing, but a transaction may still be finishing what it held.
        return any(of is cursor for of, _ in self.committing.values()) or any(
            delivery._lot.cursor is cursor and delivery._lot.epoch == cursor.epoch  # noqa: SLF001
            for table in (member.handed, member.extended, member.waiting)
            for delivery in table.values()
        )
