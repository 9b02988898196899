"""
How a member of a group gets messages: it leases some of them at once, and is handed one after the other.

First what came back (`cursor.ready`), then what was never leased (from `cursor.scan` on), then, in a shared group, what another member
has leased and was not handed. A lease is noted for the journal by ranges, so the work for each message is one object and one entry in
the member's table.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from penstock.errors import OffsetOutOfRange
from penstock.groups import operations as ops
from penstock.groups.delivery import PARTITION_BITS, Delivery, Lot, message_bytes
from penstock.groups.hands import EMPTY
from penstock.log_events import event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.format.batch import Batch
    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.member import Member
    from penstock.groups.moves import Moves

_log = logging.getLogger("penstock")


class Leasing:
    """Leases and hands out the messages of one group. Guarded by the group's lock."""

    __slots__ = ("_book", "_moves")

    def __init__(self, book: Book, moves: Moves) -> None:
        self._book = book
        self._moves = moves

    # -- handing out ------------------------------------------------------------------------------------------------

    def hand_out(self, member: Member, count: int, deadline: float, found: list[Delivery]) -> bool:
        """Hand out of the member's lots; True if the last one is a suspect, whose beginning must be made durable."""
        book, handed, lots = self._book, member.handed, member.lots
        count = min(count, member.prefetch - len(handed) - len(member.extended))
        while lots and count > 0:
            lot = lots[0]
            cursor = lot.cursor
            if lot.epoch != cursor.epoch:
                member.buffered -= len(lot)
                member.held_bytes -= len(lot) * lot.each
                lots.popleft()
                continue
            if cursor.suspects or cursor.failures.offsets or lot.shift is None:
                taken = self._hand_out_carefully(member, lot, count, deadline, found)
                if taken < 0:
                    return True
                if taken == 0 and lot.index < lot.stop:
                    return False
                count -= taken
            else:
                index = lot.index
                stop = min(lot.stop, index + count)
                shift, partition = lot.shift, cursor.partition
                for at in range(index, stop):
                    offset = at + shift
                    handed[offset << PARTITION_BITS | partition] = delivery = Delivery(lot, at, offset, deadline, 1)
                    found.append(delivery)
                key = (index + shift) << PARTITION_BITS | partition
                hand = member.hand
                if stop - index == 1 and hand.first == EMPTY:
                    # As `pick_up`: for each message that is taken alone.
                    hand.first = key
                    hand.words[hand.first_at] = key + 1  # type: ignore[index]  # where a word is empty there are words
                else:
                    hand.pick_up(key, stop - index)
                book.deadline = min(book.deadline, deadline)
                lot.index = stop
                taken = stop - index
                count -= taken
                member.buffered -= taken
                book.counters.delivered += taken
            if lot.index >= lot.stop:
                lots.popleft()
        return False

    def _hand_out_carefully(self, member: Member, lot: Lot, count: int, deadline: float, found: list[Delivery]) -> int:
        """
        The same, looking at each message.

        Returns how many, or -1 if the last one is a suspect; 0 with messages left in the lot if a suspect comes next and is not alone.
        """
        book, cursor = self._book, lot.cursor
        taken = 0
        while lot.index < lot.stop and taken < count:
            offset = lot.offset(lot.index)
            suspect = offset in cursor.suspects
            if suspect and found:
                return taken
            failure = cursor.failures.get(offset)
            attempt = 1 if failure is None else failure.count + 1
            delivery = Delivery(lot, lot.index, offset, deadline, attempt)
            lot.index += 1
            member.buffered -= 1
            if offset not in cursor.open:
                member.held_bytes -= lot.each
                continue  # finished meanwhile, by a commit
            key = offset << PARTITION_BITS | cursor.partition
            member.handed[key] = delivery
            member.hand.pick_up(key)
            found.append(delivery)
            taken += 1
            book.counters.delivered += 1
            book.counters.redelivered += attempt > 1 or suspect
            book.deadline = min(book.deadline, deadline)
            if suspect:
                if lot.index >= lot.stop:
                    member.lots.popleft()
                book.journal.note(ops.encode_begun(cursor.partition, book.identity, cursor.generation, member.identity, offset))
                return -1
        return taken

    # -- leasing ----------------------------------------------------------------------------------------------------

    def refill(self, member: Member, count: int) -> bool:
        """Lease more for *member*, which wants *count*; returns whether anything was noted."""
        book = self._book
        room = min(member.prefetch - member.in_flight - member.buffered, max(count, member.ahead))
        if room <= 0:
            return False
        room_bytes = member.prefetch_bytes - member.held_bytes
        if room_bytes <= 0:
            return False
        rota = book.rota_of(member)
        if len(book.members) > 1 and not book.ordered:
            room = _share(room, rota, len(book.members))
        leased = False
        for _ in range(len(rota)):
            cursor, _ = rota.popitem(last=False)
            try:
                taken, used = self._lease_of(cursor, member, room, room_bytes)
            finally:
                if cursor.has_more():
                    # Behind the others: now it is their turn. Also if it is damaged, else nobody would get to them.
                    rota[cursor] = None
            leased |= taken > 0
            room -= taken
            room_bytes -= used
            if room <= 0 or room_bytes <= 0:
                break
        if not leased and not book.ordered and len(book.members) > 1:
            leased = self._steal(member)
        return leased

    def _lease_of(self, cursor: Cursor, member: Member, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease up to *room* messages of one partition, about *room_bytes* of them; returns how much of both it took."""
        ordered = self._book.ordered
        if ordered and self._is_blocked(cursor):
            return 0, 0
        taken = used = 0
        if cursor.ready:
            taken, used = self._lease_ready(member, cursor, room, room_bytes)
            if ordered and (cursor.ready or cursor.moving or cursor.suspects):
                return taken, used
        if taken < room and used < room_bytes:
            more, more_used = self._lease_fresh(member, cursor, room - taken, room_bytes - used)
            taken += more
            used += more_used
        return taken, used

    def _is_blocked(self, cursor: Cursor) -> bool:
        """In an ordered group what failed comes first, and it is not due yet; or the partition is about to change hands."""
        return (
            bool(cursor.schedule.offsets)
            or bool(cursor.moving)
            or cursor.successor is not None
            or (bool(cursor.suspects) and self._book.journal.has_suspect(self._book.identity, cursor.partition))
        )

    def _lease_fresh(self, member: Member, cursor: Cursor, room: int, room_bytes: int) -> tuple[int, int]:
        taken = used = 0
        start = cursor.scan
        while taken < room and used < room_bytes:
            try:
                batch = cursor.fresh_batch()
            except OffsetOutOfRange as gap:
                if not self._reset(cursor, gap):
                    if taken:
                        break
                    raise
                start = cursor.scan
                continue
            if batch is None:
                break
            index = batch.index_of(cursor.scan)
            each = message_bytes(batch)
            stop = min(len(batch), index + room - taken, index + max(1, (room_bytes - used) // each))
            if stop > index:
                lot = Lot(member, cursor, batch, index, stop)
                member.lots.append(lot)
                member.buffered += stop - index
                member.held_bytes += (stop - index) * each
                if lot.shift is None:
                    # Compacted: only the offsets that are there are open.
                    cursor.open |= BitMap64([lot.offset(at) for at in range(index, stop)])
                    cursor.scan = batch.end_offset if stop == len(batch) else batch.offset(stop)
                else:
                    cursor.lease_range(batch.first_offset + index, batch.first_offset + stop)
                taken += stop - index
                used += (stop - index) * each
            if stop == len(batch):
                cursor.scan = max(cursor.scan, batch.end_offset)
        if taken:
            self._book.note_ranges(ops.LEASED, cursor, member, [(start, cursor.scan)])
        return taken, used

    def _lease_ready(self, member: Member, cursor: Cursor, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease what came back, lowest offsets first; what must be dead-lettered goes its way instead."""
        book = self._book
        taken = used = 0
        leased: list[int] = []
        batch: Batch | None = None
        lot: Lot | None = None
        ready = cursor.ready
        while ready and taken < room and used < room_bytes:
            offset = ready.min()
            suspect = bool(cursor.suspects) and offset in cursor.suspects
            failure = cursor.failures.get(offset)
            exhausted = failure is not None and (failure.condemned or 0 < book.max_deliveries <= failure.count)
            if suspect and not exhausted and book.ordered and taken:
                break
            if batch is None or not batch.first_offset <= offset < batch.end_offset:
                lot = None
                try:
                    batch = cursor.batch_at(offset)
                except OffsetOutOfRange as gap:
                    if not self._reset(cursor, gap):
                        if taken:
                            break
                        raise
                    ready = cursor.ready
                    continue
            index = -1 if batch is None else batch.index_of(offset)
            if batch is None or index >= len(batch) or batch.offset(index) != offset:
                # Compaction took it: there is nothing to deliver any more.
                ready.discard(offset)
                cursor.ready.discard(offset)
                cursor.finish(offset)
                book.journal.note_finished(cursor, book.identity, [offset])
                batch = None
                continue
            if suspect and not exhausted and not book.journal.claim_suspect((book.identity, cursor.partition, offset)):
                # Of suspects there is one at a time with anybody: else the next death could not be put down to one of them.
                if book.ordered:
                    break
                ready = cursor.ready - cursor.suspects
                continue
            ready.discard(offset)
            cursor.ready.discard(offset)
            if failure is not None and exhausted:
                self._moves.plan(cursor, offset, failure, batch, index)
                if book.ordered:
                    break
                continue
            if lot is not None and not suspect and lot.batch is batch and lot.stop == index:
                lot.stop += 1
            else:
                lot = Lot(member, cursor, batch, index, index + 1)
                member.lots.append(lot)
            member.buffered += 1
            member.held_bytes += lot.each
            leased.append(offset)
            taken += 1
            used += lot.each
            if suspect:
                lot = None
                if book.ordered:
                    break
                ready = cursor.ready - cursor.suspects
        if leased:
            book.note_ranges(ops.LEASED, cursor, member, ops.ranges_of(leased))
        return taken, used

    def _steal(self, member: Member) -> bool:
        """Take half of what the member with the most has leased and was not handed: it is busy, and this one is not."""
        victim = max(self._book.members.values(), key=lambda one: one.buffered)
        if victim is member or victim.buffered == 0:
            return False
        wanted = min(-(-victim.buffered // 2), member.prefetch - member.in_flight)
        stolen: list[Lot] = []
        while wanted > 0 and victim.lots:
            lot = victim.lots[-1]
            if lot.epoch != lot.cursor.epoch:
                victim.buffered -= len(lot)
                victim.held_bytes -= len(lot) * lot.each
                victim.lots.pop()
                continue
            count = min(wanted, len(lot))
            stolen.append(Lot(member, lot.cursor, lot.batch, lot.stop - count, lot.stop))
            lot.stop -= count
            victim.buffered -= count
            victim.held_bytes -= count * lot.each
            wanted -= count
            if not len(lot):
                victim.lots.pop()
        for lot in reversed(stolen):
            lot.renumber()
            member.lots.append(lot)
            member.buffered += len(lot)
            member.held_bytes += len(lot) * lot.each
            offsets = [lot.offset(at) for at in range(lot.index, lot.stop)]
            self._book.note_ranges(ops.LEASED, lot.cursor, member, ops.ranges_of(offsets))
        return bool(stolen)

    def _reset(self, cursor: Cursor, gap: OffsetOutOfRange) -> bool:
        """Retention took what comes next: go on by the group's rule. False if the rule is to fail."""
        book = self._book
        if book.settings.reset == "fail":
            return False
        target = gap.first if book.settings.reset == "earliest" else cursor.log.committed_end
        skipped = max(0, target - cursor.scan) + cursor.open.range_cardinality(0, target)
        _log.warning(
            "group %s of topic %s skips %d messages of partition %d: retention removed them (first kept: %d)",
            book.name, book.topic, skipped, cursor.partition, gap.first,
            extra=event("messages_skipped", topic=book.topic, group=book.name, partition=cursor.partition, messages=skipped),
        )  # fmt: skip
        book.counters.skipped += skipped
        book.finish_below(cursor, target)
        return True


def _share(room: int, cursors: Iterable[Cursor], members: int) -> int:
    """How many of *room* messages one of *members* may lease, so that there are as many for each of the others; at least one."""
    backlog = 0
    for cursor in cursors:
        backlog += cursor.backlog()
        if backlog >= room * members:
            return room
    return max(1, -(-backlog // members))
