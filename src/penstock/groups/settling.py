"""
What becomes of a message that was handed out: it is finished, or fails and comes again, or its lease goes on.

Only who holds a message may say so. What was taken away meanwhile, because its lease ended, its cursor was moved, or in an ordered group
something before it failed, is *late*: it changes nothing.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from penstock.groups import operations as ops
from penstock.groups.dead_letters import is_dead_letter_topic
from penstock.groups.delivery import COMMITTING, PARTITION_BITS, Lot
from penstock.groups.failures import Failure
from penstock.groups.member import LATE, SILENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery
    from penstock.groups.member import Member
    from penstock.groups.moves import Moves
    from penstock.groups.reservation import Place
    from penstock.settings import GroupSettings

JITTER = 0.2
"""A delay by default is between 80 % and 100 % of its nominal length, so that what failed together does not come back together."""


class Settling:
    """Settles the deliveries of one group. Guarded by the group's lock."""

    __slots__ = ("_book", "_moves", "_random")

    def __init__(self, book: Book, moves: Moves) -> None:
        self._book = book
        self._moves = moves
        self._random = random.Random()

    # -- finishing --------------------------------------------------------------------------------------------------

    def ack_one(self, delivery: Delivery) -> bool:
        """It is done; False if it is late."""
        lot = delivery._lot  # noqa: SLF001
        member, cursor = lot.member, lot.cursor
        released = member.release(delivery)
        if member.hand.many:
            member.hand.recount(member.in_hand)
        if not released:
            return False
        book = self._book
        offset = delivery.offset
        cursor.open.discard(offset)
        if cursor.failures.offsets:
            cursor.failures.discard(offset)
        if cursor.suspects and offset in cursor.suspects:
            cursor.suspects.discard(offset)
            book.release_suspect(cursor, offset)
        book.counters.acked += 1
        book.journal.note_finished(cursor, book.identity, (offset,))
        if cursor.successor is not None:
            book.hand_over_if_idle(cursor)
        if member.starved:
            member.starved = False
            book.waiters.wake_all()
        return True

    def ack_many(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """They are done; returns those that are late."""
        late: list[Delivery] = []
        by_cursor: dict[Cursor, list[int]] = {}
        last: Lot | None = None
        for delivery in deliveries:
            lot = delivery._lot  # noqa: SLF001
            if lot is not last:
                last = lot
                member, partition, each = lot.member, lot.partition, lot.each
                handed, waiting, hand = member.handed, member.waiting, member.hand
                # If no word names any of the member's messages, and its lot is not void, there is little to do for each of them.
                plain = lot.epoch == lot.cursor.epoch and hand.first < 0 and not hand.others
                offsets = by_cursor.setdefault(lot.cursor, [])
            offset = delivery.offset
            key = offset << PARTITION_BITS | partition
            if plain and delivery._running is False and handed.get(key) is delivery:  # noqa: SLF001
                # As `Member.release`.
                del handed[key]
                member.held_bytes -= each
                offsets.append(offset)
            elif plain and delivery._running is False and waiting.get(key) is delivery:  # noqa: SLF001
                del waiting[key]
                member.held_bytes -= each
                offsets.append(offset)
            elif member.release(delivery):
                offsets.append(offset)
            else:
                late.append(delivery)
        book = self._book
        for cursor, offsets in by_cursor.items():
            if not offsets:
                continue
            if (
                not cursor.failures.offsets
                and not cursor.suspects
                and offsets == [*range(offsets[0], offsets[0] + len(offsets))]
            ):
                # One run, as it almost always is: they were handed out in this order.
                cursor.open.remove_range(offsets[0], offsets[-1] + 1)
            else:
                for offset in offsets:
                    if cursor.suspects and offset in cursor.suspects:
                        book.release_suspect(cursor, offset)
                    cursor.finish(offset)
            book.counters.acked += len(offsets)
            book.journal.note_finished(cursor, book.identity, offsets)
            if cursor.successor is not None:
                book.hand_over_if_idle(cursor)
        for one in book.members.values():
            if one.hand.many:
                one.hand.recount(one.in_hand)
        if any(one.starved for one in book.members.values()):
            for one in book.members.values():
                one.starved = False
            book.waiters.wake_all()
        return late

    # -- failing ----------------------------------------------------------------------------------------------------

    def fail(
        self, delivery: Delivery, reason: str, now: float, now_us: int, delay_s: float | None, *, reject: bool = False
    ) -> None:
        """A delivery, which its member holds no more, failed: count it, and see what becomes of the message."""
        book = self._book
        cursor, offset = delivery._lot.cursor, delivery.offset  # noqa: SLF001
        known = cursor.failures.get(offset)
        count = 1 if known is None else known.count + 1
        exhausted = (reject or 0 < book.max_deliveries <= count) and not is_dead_letter_topic(book.topic)
        first_s = now_us // 1_000_000 if known is None else known.first_s
        failure = book.shared_failure(Failure(count, first_s, now_us // 1_000_000, reason, exhausted))
        cursor.failures[offset] = failure
        if cursor.suspects and offset in cursor.suspects:
            # It failed, and whoever handled it is alive.
            cursor.suspects.discard(offset)
            book.release_suspect(cursor, offset)
        if exhausted:
            delay_s = 0.0
        elif delay_s is None:
            delay_s = self._backoff_s(book.settings, count)
        book.journal.note(
            ops.encode_failed(
                cursor.partition, book.identity, cursor.generation,
                ops.Failed(offset, now_us + round(delay_s * 1e6), failure.first_s, failure.last_s, count, reason, exhausted),
            )
        )  # fmt: skip
        if exhausted:
            self._moves.plan(cursor, offset, failure, delivery._batch, delivery._index)  # noqa: SLF001
        elif delay_s > 0:
            book.schedule(cursor, offset, now, delay_s)
        else:
            book.make_ready(cursor, offset)

    def _backoff_s(self, settings: GroupSettings, count: int) -> float:
        nominal_s = min(settings.backoff_ms / 1000 * 2.0 ** min(count - 1, 60), settings.backoff_max_ms / 1000)
        return nominal_s * (1 - JITTER * self._random.random())

    def give_back(self, delivery: Delivery) -> None:
        """It was not handled, and that is nobody's fault: ready again at once, uncounted."""
        lot = delivery._lot  # noqa: SLF001
        self._book.make_ready(lot.cursor, delivery.offset)
        self._book.note_ranges(ops.RETURNED, lot.cursor, lot.member, [(delivery.offset, delivery.offset + 1)])

    def withdraw_behind(self, cursor: Cursor, offset: int) -> None:
        """Take back everything behind *offset* in the partition of an ordered group, also what handlers have."""
        book, member = self._book, cursor.member
        if member is None:
            return
        kept = []
        withdrawn = []
        revoked = []
        for table in (member.handed, member.extended, member.waiting):
            for key, delivery in list(table.items()):
                if delivery._lot.cursor is cursor and delivery._lot.epoch == cursor.epoch:  # noqa: SLF001
                    if delivery.offset > offset and delivery._running is not COMMITTING:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
                        book.make_ready(cursor, delivery.offset)
                        withdrawn.append(delivery.offset)
                        if table is member.waiting:
                            revoked.append(delivery)
                        else:
                            member.hand.put_down(key)
                    else:
                        kept.append(delivery)
        if withdrawn:
            book.note_ranges(ops.RETURNED, cursor, member, ops.ranges_of(sorted(withdrawn)))
        book.tell_revoked(member, revoked)
        book.return_lots(member, of=cursor)
        cursor.ready &= cursor.open
        cursor.epoch += 1
        for delivery in kept:
            # Before the failed one, and still being handled, or being finished by a transaction: it stays valid.
            lot = delivery._lot  # noqa: SLF001
            renewed = Lot(member, cursor, lot.batch, delivery._index, delivery._index + 1)  # noqa: SLF001
            renewed.number = lot.number
            delivery._lot = renewed  # noqa: SLF001
        book.hand_over_if_idle(cursor)

    # -- leases -----------------------------------------------------------------------------------------------------

    def renew(self, delivery: Delivery, deadline: float, *, own_length: bool) -> None:
        """Its lease ends at *deadline*; *own_length*: not as long after now as others."""
        member = delivery._lot.member  # noqa: SLF001
        key = delivery.offset << PARTITION_BITS | delivery.partition
        if member.waiting.get(key) is delivery:
            del member.waiting[key]
            member.hand.pick_up(key)
        else:
            # It stays in the member's hand, and goes to the end of its table.
            del (member.handed if member.handed.get(key) is delivery else member.extended)[key]
        delivery._deadline = deadline  # noqa: SLF001
        table = member.extended if own_length else member.handed
        table[key] = delivery
        self._book.deadline = min(self._book.deadline, deadline)

    def ended(self, now: float, lease_s: float) -> Iterator[Delivery]:
        """
        Take out what has an ended lease, one after the other: each has failed. Leases of running handlers go on.

        The caller lets each fail before it asks for the next, since that may take others away.
        """
        book = self._book
        earliest = math.inf
        suspended = False
        for member in list(book.members.values()):
            if member.waiting and member.silent_at <= now:
                suspended |= self._suspend(member, SILENT)
            elif member.waiting and member.answer_by <= now:
                # It sends heartbeats, and reads nothing: only who acts is given messages again.
                suspended |= self._suspend(member, LATE)
            ended = []
            for delivery in member.handed.values():
                if delivery._deadline > now:  # noqa: SLF001
                    break
                ended.append(delivery)
            ended += [delivery for delivery in member.extended.values() if delivery._deadline <= now]  # noqa: SLF001
            for delivery in ended:
                if not member.holds(delivery):
                    continue  # withdrawn with one before it
                if delivery._running:  # noqa: SLF001
                    if delivery._running is COMMITTING or member.client is None or not member.client.beats:  # noqa: SLF001
                        self.renew(delivery, now + lease_s, own_length=False)
                        continue
                    if member.silent_at > now:
                        # As long as its client is heard.
                        self.renew(delivery, member.silent_at, own_length=True)
                        continue
                member.drop(delivery)
                lot = delivery._lot  # noqa: SLF001
                if lot.epoch == lot.cursor.epoch:
                    book.counters.expired += 1
                    # It may be in the buffer still, where the client does not say what its user has.
                    book.tell_revoked(member, [delivery])
                    yield delivery
                if member.client is not None and member.idle_at <= now:
                    # It did nothing else meanwhile: who is busy with others goes on.
                    suspended |= self._suspend(member, LATE)
                if member.starved:
                    member.starved = False
            if member.handed:
                earliest = min(earliest, next(iter(member.handed.values()))._deadline)  # noqa: SLF001
            for delivery in member.extended.values():
                earliest = min(earliest, delivery._deadline)  # noqa: SLF001
            if member.waiting:
                earliest = min(earliest, member.silent_at, member.answer_by)
        if suspended and book.ordered:
            book.rebalance()
        book.hand_over_all_idle()
        book.deadline = earliest

    def _suspend(self, member: Member, why: str) -> bool:
        """Give *member* nothing more until its client is heard, and take back what waits there, uncounted. False if it is so already."""
        if member.suspended and not member.waiting:
            return False
        member.suspended = why
        member.is_recalled = False
        self._book.return_waiting(member)
        self._book.return_lots(member)
        self._book.waiters.wake_all()
        return True

    def begin_turns(self, member: Member, deadline: float) -> None:
        """The leases of the oldest messages that wait with its client run to *deadline*, as many as it handles at once."""
        while member.waiting and member.in_hand < member.concurrency:
            self.renew(next(iter(member.waiting.values())), deadline, own_length=member.lease_s is not None)

    # -- transactions -----------------------------------------------------------------------------------------------

    def reserve(self, deliveries: Sequence[Delivery]) -> tuple[list[Place], list[bytes]]:
        """The places of *deliveries*, for `hold`, and the operations that finish them. Changes nothing."""
        # With the generation of now: what was leased before a seek finishes nothing behind it.
        identity = self._book.identity
        if len(deliveries) == 1:
            delivery = deliveries[0]
            cursor = delivery._lot.cursor  # noqa: SLF001
            generation = cursor.generation
            running = delivery._running  # noqa: SLF001
            return [(delivery, cursor, generation, running)], ops.encode_finished(
                cursor.partition, identity, generation, (delivery.offset,)
            )
        places: list[Place] = []
        found: dict[Cursor, list[int]] = {}
        for delivery in deliveries:
            cursor = delivery._lot.cursor  # noqa: SLF001
            places.append((delivery, cursor, cursor.generation, delivery._running))  # noqa: SLF001
            found.setdefault(cursor, []).append(delivery.offset)
        operations: list[bytes] = []
        for cursor, offsets in found.items():
            if len(offsets) > 1:
                offsets.sort()
            operations += ops.encode_finished(cursor.partition, identity, cursor.generation, offsets)
        return places, operations

    def hold(self, places: Sequence[Place]) -> None:
        """Their leases do not end before `finish_reserved` or `release`, which undoes it also if only some of it was done."""
        committing = self._book.committing
        for delivery, cursor, generation, _ in places:
            committing[delivery] = cursor, generation
            delivery._running = COMMITTING  # noqa: SLF001

    def finish_reserved(self, places: Sequence[Place]) -> None:
        """The frame with the operations that `reserve` gave is committed: do what they say."""
        book = self._book
        for delivery, cursor, generation, _ in places:
            book.committing.pop(delivery, None)
            offset = delivery.offset
            if generation == cursor.generation:
                # It may be ready, or on its way to the dead letters, if its consumer got it back before the commit was told.
                cursor.ready.discard(offset)
                cursor.schedule.offsets.discard(offset)
                cursor.moving.discard(offset)
                cursor.finish(offset)
            delivery._running = False  # noqa: SLF001
            member = delivery._lot.member  # noqa: SLF001
            member.drop_if_held(delivery)
            member.starved = False
            book.release_suspect(cursor, offset)
        book.counters.acked += len(places)  # also if the consumer was closed meanwhile
        book.hand_over_all_idle()

    def release(self, places: Sequence[Place]) -> None:
        """The transaction that reserved them was not committed: they are back with their consumer, and with what ran there."""
        committing = self._book.committing
        for delivery, _, _, running in places:
            if delivery not in committing:
                continue  # never reserved, or finished
            if delivery._running is COMMITTING:  # noqa: SLF001
                delivery._running = running  # noqa: SLF001
            lot = delivery._lot  # noqa: SLF001
            if lot.member.closed and lot.epoch == lot.cursor.epoch:
                self._book.make_ready(lot.cursor, delivery.offset)
            del committing[delivery]  # last: what is interrupted before is released again
        self._book.hand_over_all_idle()
