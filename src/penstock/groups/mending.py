"""
Setting a group right after an exception came in the middle of a change: Ctrl-C, or what else may come at any instruction.

What a group does to its memory takes several steps, and an interrupt may come between any two of them: a message is out of one place and
not in the next one yet, a count does not fit what is counted. To undo each step would cost on the way that all messages go. Instead,
whoever is interrupted lets everything be put in order as after a restart: an open offset that is neither with a member nor waiting for its
next try nor on its way to the dead letters is ready, and whoever leases finds out what is not due yet. What is counted is counted anew.

That works since the steps come in an order in which nothing is ever nowhere for good: an offset is open before `scan` passes it, and is
open until it is finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import operations as ops
from penstock.groups.book import OFFSET_END
from penstock.groups.delays import Delays
from penstock.groups.lanes import Lanes
from penstock.groups.snapshot import member_operations
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery
    from penstock.groups.member import Member


class Mending:
    """Mends one group. Guarded by the group's lock."""

    __slots__ = ("_book",)

    def __init__(self, book: Book) -> None:
        self._book = book

    def mend(self, unhanded: Iterable[Delivery], now: float) -> None:
        """
        Let each open message be in one place, and each member that is closed be gone. May be done again if it was interrupted itself.

        *unhanded* were about to be handed out, and nobody got them.
        """
        book = self._book
        for delivery in unhanded:
            member = delivery._lot.member  # noqa: SLF001
            if member.holds(delivery):
                member.drop(delivery)
        held: dict[Cursor, OffsetSet] = {cursor: OffsetSet() for cursor in book.cursors}
        for member in list(book.members.values()):
            if member.closed:
                self._let_go(member)
            else:
                _count_anew(member, held)
        for delivery, (cursor, generation) in book.committing.items():
            if generation == cursor.generation:
                held[cursor].add(delivery.offset)
        for cursor in book.cursors:
            self._mend(cursor, held[cursor])
        self._tell()
        book.look_at_all(now)
        if book.ordered:
            for cursor in book.cursors:
                if cursor.member is not None and cursor.member.closed:
                    cursor.member = None
                if cursor.successor is not None and cursor.successor.closed:
                    cursor.successor = None
            for member in book.members.values():
                member.cursors = [cursor for cursor in book.cursors if cursor.member is member]
            book.rebalance()
        book.offer_all()

    def _let_go(self, member: Member) -> None:
        """It was about to leave."""
        book = self._book
        member.lots.clear()
        member.handed, member.extended = {}, {}
        member.waiting.clear()
        book.journal.release_hand(member.hand)
        book.journal.note(ops.encode_left(book.identity, member.identity))
        del book.members[member.identity]

    def _mend(self, cursor: Cursor, held: OffsetSet) -> None:
        book = self._book
        if cursor.open and cursor.open.max() >= cursor.scan:
            cursor.scan = cursor.open.max() + 1
        cursor.schedule.mend(cursor.open - held)
        cursor.moving &= cursor.open
        cursor.delays = Delays()
        cursor.is_fired = False
        if cursor.lanes is not None:
            cursor.lanes = Lanes(cursor.lanes.age_us)
        cursor.forget_batches()
        cursor.ready = cursor.open - held - cursor.schedule.offsets - cursor.moving
        if not held & cursor.suspects:
            # Of suspects there is one at a time with anybody, and here there is none.
            book.journal.release_suspects(book.identity, cursor.partition, OFFSET_END)
        # Its arrival may be told to nobody any more; what is committed from now on is.
        cursor.has_arrivals = False

    def _tell(self) -> None:
        """What was leased may not be noted yet: without that a later lease would finish it, if the process dies."""
        book = self._book
        for member in book.members.values():
            for cursor in book.cursors:
                if cursor.open:
                    low = cursor.open.min()
                    book.note_passed(cursor, member, low, [(low, cursor.scan)])
            break  # whoever it is: it holds what is told now
        for member in book.members.values():
            for operation in member_operations(book.identity, member):
                book.journal.note(operation)


def _count_anew(member: Member, held: dict[Cursor, OffsetSet]) -> None:
    """Take back what *member* was not handed, and add what it was to *held*."""
    member.lots.clear()
    member.buffered = member.held_bytes = 0
    member.starved = member.passing = False
    for table in (member.extended, member.handed, member.waiting):
        for key, delivery in list(table.items()):
            lot, offset = delivery._lot, delivery.offset  # noqa: SLF001
            if lot.epoch != lot.cursor.epoch or offset not in lot.cursor.open or offset in held[lot.cursor]:
                del table[key]
                continue
            held[lot.cursor].add(offset)
            member.held_bytes += lot.each
    member.hand.hold([*member.handed, *member.extended])
