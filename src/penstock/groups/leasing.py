"""
How a member of a group gets messages: it leases some of them at once, and is handed one after the other.

First what came back (`cursor.ready`), then what was delayed and is due, then what was never leased (from `cursor.scan` on), then, in a
shared group, what another member has leased and was not handed. A lease is noted for the journal by ranges, so the work for each message
is one object and one entry in the member's table.

A batch whose messages expire or are delayed is looked at more closely (`_lease_timed`): what expired is finished, what is not due yet is
put aside, and both are passed over. In a topic with priorities all this goes by lanes, and nothing is leased ahead (`_refill_by_lanes`).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING

from penstock.clock import ended_us
from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.format.lifetime import dues_us, expiries_us, first_expiry_us, last_due_us, last_expiry_us
from penstock.groups import operations as ops
from penstock.groups.delivery import PARTITION_BITS, Delivery, Lot, MortalLot, message_bytes
from penstock.groups.expiring import MOVES_MAX, Expiring
from penstock.groups.hands import EMPTY
from penstock.groups.intake import Intake
from penstock.groups.lanes import HIGH, LOW, MEDIUM
from penstock.groups.sources import Due, Lane, Returned
from penstock.log_events import event, get_logger
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.clock import Clock
    from penstock.format.batch import Batch
    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.member import Member
    from penstock.groups.moves import Moves
    from penstock.groups.sources import Source

_log = get_logger("penstock")


_LOOK_AT = 1_024
"""So many messages of a batch are looked at together to see which are due."""
PASSES_MAX = 500
"""After passing over so many batches of which nothing is due a call comes back with what it has, so that others get the group's lock."""


class Leasing:
    """Leases and hands out the messages of one group. Guarded by the group's lock."""

    __slots__ = ("_book", "_expiring", "_intake", "_moves", "_passes", "clock")

    def __init__(self, book: Book, moves: Moves) -> None:
        self._book = book
        self._moves = moves
        self._passes = 0
        self._expiring = Expiring(book, moves)
        self._intake = Intake(book, self._expiring)
        self.clock: Clock = None  # type: ignore[assignment]  # set before the group is used

    # -- handing out ------------------------------------------------------------------------------------------------

    def hand_out(self, member: Member, count: int, deadline: float, found: list[Delivery], *, pushed: bool = False) -> bool:
        """
        Hand out of the member's lots; True if the last one is a suspect, whose beginning must be made durable.

        *pushed*: to a client, where they wait for their turn; their leases do not run yet.
        """
        book, lots = self._book, member.lots
        handed = member.waiting if pushed else member.handed
        count = min(count, member.prefetch - member.in_flight)
        while lots and count > 0:
            lot = lots[0]
            cursor = lot.cursor
            if lot.epoch != cursor.epoch:
                member.buffered -= len(lot)
                member.held_bytes -= len(lot) * lot.each
                lots.popleft()
                continue
            if cursor.suspects or cursor.failures.offsets or lot.shift is None:
                taken = self._hand_out_carefully(member, lot, count, deadline, found, pushed=pushed)
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
                    delivery = Delivery(lot, at, offset, deadline, 1)
                    # First: whoever is interrupted knows by it what nobody got.
                    found.append(delivery)
                    handed[offset << PARTITION_BITS | partition] = delivery
                if not pushed:
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

    def undo(self, delivery: Delivery, handed_s: float) -> None:
        """Nobody got what was handed out at *handed_s*; for who keeps times."""

    def _hand_out_carefully(
        self, member: Member, lot: Lot, count: int, deadline: float, found: list[Delivery], *, pushed: bool
    ) -> int:
        """
        The same, looking at each message.

        Returns how many, or -1 if the last one is a suspect; 0 with messages left in the lot if a suspect comes next and is not alone.
        """
        book, cursor = self._book, lot.cursor
        taken = 0
        now_us = 0 if lot.expires_us is None else self._ended_us(lot.batch, lot.expires_us, self.clock.now_us())
        mortal = lot.expires_us is not None and lot.expires_us <= now_us
        while lot.index < lot.stop and taken < count:
            offset = lot.offset(lot.index)
            if mortal and _has_expired(lot.batch, lot.index, now_us):
                lot.index += 1
                member.buffered -= 1
                member.held_bytes -= lot.each
                if offset in cursor.open:
                    book.release_suspect(cursor, offset)
                    self._expiring.end(cursor, lot.batch, lot.index - 1, offset, now_us)
                continue
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
            found.append(delivery)
            if pushed:
                member.waiting[key] = delivery
            else:
                member.handed[key] = delivery
                member.hand.pick_up(key)
                book.deadline = min(book.deadline, deadline)
            taken += 1
            book.counters.delivered += 1
            book.counters.redelivered += attempt > 1 or suspect
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
        if book.has_lanes:
            return self._refill_by_lanes(member, count)
        room = min(member.prefetch - member.in_flight - member.buffered, max(count, member.ahead))
        if room <= 0:
            return False
        room_bytes = member.prefetch_bytes - member.held_bytes
        if room_bytes <= 0:
            return False
        rota = book.rota_of(member)
        if len(book.members) > 1 and not book.ordered:
            room = _share(room, rota, self._sharers(member))
        leased = False
        self._passes = 0
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
            if room <= 0 or room_bytes <= 0 or self._passes >= PASSES_MAX:
                break
        member.passing = self._passes >= PASSES_MAX
        if not leased and not book.ordered and len(book.members) > 1:
            leased = self._steal(member)
        return leased

    def _sharers(self, member: Member) -> int:
        """How many members share what there is: all of them, or, where messages are pushed, those who wait for them and are idle."""
        book = self._book
        idle = 0 if member.client is None else len(book.waiters.hungry(member))
        if idle or (member.client is not None and member.is_hungry):
            return idle + 1
        return max(1, sum([not one.suspended for one in book.members.values()]))

    def _lease_of(self, cursor: Cursor, member: Member, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease up to *room* messages of one partition, about *room_bytes* of them; returns how much of both it took."""
        ordered = self._book.ordered
        if ordered and self._is_blocked(cursor):
            return 0, 0
        taken = used = 0
        if cursor.ready:
            taken, used = self._lease_each(member, cursor, Returned(cursor), room, room_bytes)
            if ordered and (cursor.ready or cursor.moving or cursor.suspects):
                return taken, used
        if cursor.is_fired and taken < room and used < room_bytes:
            more, more_used = self._lease_due(member, cursor, room - taken, room_bytes - used)
            taken += more
            used += more_used
            if ordered and cursor.moving:
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
        start, end = cursor.scan, cursor.log.committed_end
        is_at_end = False
        passed: list[int] = []
        while taken < room and used < room_bytes and self._passes < PASSES_MAX:
            try:
                batch = cursor.fresh_batch()
            except OffsetOutOfRange as gap:
                if not self._reset(cursor, gap):
                    if taken:
                        break
                    raise
                # What came before is noted as finished, and what was leased of it is void.
                start = cursor.scan
                passed.clear()
                continue
            if batch is None:
                is_at_end = True
                break
            index = batch.index_of(cursor.scan)
            if batch.ttl_us or (batch.header.columns > 1 and batch.has_moments):
                if self._book.ordered and cursor.moving:
                    break  # what expired goes to the dead letters first
                count = self._lease_timed(member, cursor, batch, index, room - taken, room_bytes - used, passed)
                if count is None:
                    break
                self._passes += not count
                taken += count
                used += count * message_bytes(batch)
                continue
            each = message_bytes(batch)
            stop = min(len(batch), index + room - taken, index + max(1, (room_bytes - used) // each))
            if stop > index:
                lot = Lot(member, cursor, batch, index, stop)
                member.lots.append(lot)
                member.buffered += stop - index
                member.held_bytes += (stop - index) * each
                if lot.shift is None:
                    # Compacted: only the offsets that are there are open.
                    cursor.open |= OffsetSet([lot.offset(at) for at in range(index, stop)])
                    cursor.scan = batch.end_offset if stop == len(batch) else batch.offset(stop)
                else:
                    cursor.lease_range(batch.first_offset + index, batch.first_offset + stop)
                taken += stop - index
                used += (stop - index) * each
            if stop == len(batch):
                cursor.scan = max(cursor.scan, batch.end_offset)
        if passed:
            self._book.note_passed(cursor, member, start, ops.ranges_of(passed))
            self._book.journal.wake()
        elif taken and cursor.scan > start:
            self._book.note_ranges(ops.LEASED, cursor, member, [(start, cursor.scan)])
        if is_at_end:
            cursor.pass_empty_tail(end)
        return taken, used

    def _ended_us(self, batch: Batch, mortal_us: int | None, now_us: int) -> int:
        """
        The time by which messages of *batch* have expired, the first of them at *mortal_us*; *now_us* is the wall clock's time.

        A message that expires is gone for its group, so a wall clock that has just jumped ahead is not believed. Asking costs a lock, so
        only batches pay for it in which something has expired by the wall clock.
        """
        return now_us if mortal_us is None or mortal_us > now_us else ended_us(self.clock, batch.append_time_us(0))

    def _lease_timed(
        self, member: Member, cursor: Cursor, batch: Batch, index: int, room: int, room_bytes: int, passed: list[int]
    ) -> int | None:
        """
        Lease of a batch in which messages expire or are delayed, from *index* on; returns how many it took.

        The offsets of those that were not leased are added to *passed*. None: too many are on their way to the dead letters.
        """
        now_us, each = self.clock.now_us(), message_bytes(batch)
        if self._expiring.must_wait(cursor):
            return None
        mortal_us, due_us = first_expiry_us(batch), last_due_us(batch)
        stop = min(len(batch), index + max(room, _LOOK_AT))
        ends = dues = None
        ended_us = self._ended_us(batch, mortal_us, now_us)
        if mortal_us is not None and mortal_us <= ended_us:
            last_us = last_expiry_us(batch)
            if last_us is not None and last_us <= ended_us and not cursor.keeps_expired:
                offsets = [batch.offset(at) for at in range(index, len(batch))]
                cursor.scan = batch.end_offset
                self._expiring.drop(cursor, offsets)
                passed += offsets
                return 0
            ends = expiries_us(batch, index, stop)
        if due_us is not None and due_us > now_us:
            dues = dues_us(batch, index, stop)
        expired: list[int] = []
        delayed: list[tuple[int, int]] = []
        taken, at, begin = 0, index, index
        limit = min(room, max(1, room_bytes // each))
        while at < stop and taken < limit:
            end_us = None if ends is None else ends[at - index]
            due_us = None if dues is None else dues[at - index]
            if (end_us is None or end_us > ended_us) and (due_us is None or due_us <= now_us):
                taken += 1
                at += 1
                continue
            if begin < at:
                self._add_lot(member, cursor, batch, begin, at, mortal_us)
            if end_us is not None and end_us <= ended_us:
                expired.append(at)
            else:
                assert due_us is not None
                delayed.append((due_us, batch.offset(at)))
            passed.append(batch.offset(at))
            at += 1
            begin = at
            if expired and cursor.keeps_expired and (self._book.ordered or len(cursor.moving) + len(expired) >= MOVES_MAX):
                break
        if begin < at:
            self._add_lot(member, cursor, batch, begin, at, mortal_us)
        if batch.header.offset_span == len(batch):
            # From the batch on: before it compaction may have left a hole, and what is not there cannot be finished.
            cursor.lease_range(batch.first_offset + index, batch.first_offset + at)
        else:
            cursor.open |= OffsetSet([batch.offset(one) for one in range(index, at)])
        cursor.scan = batch.end_offset if at == len(batch) else batch.offset(at)
        for one in expired:
            self._expiring.end(cursor, batch, one, batch.offset(one), ended_us)
        if delayed:
            delayed.sort()
            cursor.delays.add(delayed)
            self._book.delay(cursor, self.clock.monotonic(), now_us)
        return taken

    @staticmethod
    def _add_lot(member: Member, cursor: Cursor, batch: Batch, index: int, stop: int, mortal_us: int | None) -> Lot:
        lot = (
            Lot(member, cursor, batch, index, stop)
            if mortal_us is None
            else MortalLot(member, cursor, batch, index, stop, mortal_us)
        )
        member.lots.append(lot)
        member.buffered += stop - index
        member.held_bytes += (stop - index) * lot.each
        return lot

    def _lease_due(self, member: Member, cursor: Cursor, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease what was delayed and is due."""
        now_us = self.clock.now_us()
        try:
            return self._lease_each(member, cursor, Due(cursor, now_us), room, room_bytes)
        finally:
            self._book.delay(cursor, self.clock.monotonic(), now_us)

    def _lease_each(self, member: Member, cursor: Cursor, source: Source, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease what *source* names, one after the other; what must be dead-lettered goes its way instead, and what expired too."""
        book = self._book
        taken = used = 0
        leased: list[int] = []
        kept: list[int] = []
        batch: Batch | None = None
        lot: Lot | None = None
        mortal_us: int | None = None
        late_us: int | None = None
        now_us = ended_us = 0
        try:
            while taken < room and used < room_bytes:
                offset = source.pop()
                if offset is None:
                    break
                if offset not in cursor.open:
                    continue
                kept.append(offset)
                suspect = bool(cursor.suspects) and offset in cursor.suspects
                failure = cursor.failures.get(offset)
                exhausted = failure is not None and (failure.condemned or 0 < book.max_deliveries <= failure.count)
                if suspect and not exhausted and book.ordered and taken:
                    break
                if batch is None or not batch.first_offset <= offset < batch.end_offset:
                    lot = mortal_us = late_us = None
                    try:
                        batch = source.batch(offset)
                    except OffsetOutOfRange as gap:
                        if not self._reset(cursor, gap):
                            if taken:
                                break
                            raise
                        kept = [one for one in kept if one in cursor.open]
                        source.begin_anew()
                        continue
                    if batch is not None and (batch.ttl_us or batch.has_moments):
                        now_us, mortal_us, late_us = self.clock.now_us(), first_expiry_us(batch), last_due_us(batch)
                        ended_us = self._ended_us(batch, mortal_us, now_us)
                index = -1 if batch is None else batch.index_of(offset)
                if batch is None or index >= len(batch) or batch.offset(index) != offset:
                    # Compaction took it: there is nothing to deliver any more.
                    kept.pop()
                    cursor.finish(offset)
                    book.journal.note_finished(cursor, book.identity, [offset])
                    batch = None
                    continue
                if mortal_us is not None and mortal_us <= ended_us and not exhausted and _has_expired(batch, index, ended_us):
                    if self._expiring.must_wait(cursor):
                        break
                    if cursor.keeps_expired and not batch.is_verified:
                        cursor.verify(batch)
                    kept.pop()
                    self._expiring.end(cursor, batch, index, offset, ended_us)
                    if book.ordered and cursor.keeps_expired:
                        break
                    continue
                if late_us is not None and late_us > now_us and cursor.lanes is None and _is_delayed(batch, index, now_us):
                    # As after a restart: what waits was ready then.
                    kept.pop()
                    self._put_aside(cursor, batch, offset, now_us)
                    source.begin_anew()
                    self._passes += 1
                    if self._passes >= PASSES_MAX:
                        break
                    continue
                if not batch.is_verified:
                    cursor.verify(batch)
                if suspect and not exhausted and not book.journal.claim_suspect((book.identity, cursor.partition, offset)):
                    # Of suspects there is one at a time with anybody: else the next death could not be put down to one of them.
                    if book.ordered:
                        break
                    source.leave_suspects()
                    continue
                kept.pop()
                if failure is not None and exhausted:
                    self._moves.plan(cursor, offset, failure, batch, index)
                    if book.ordered:
                        break
                    continue
                if lot is not None and not suspect and lot.batch is batch and lot.stop == index:
                    lot.stop += 1
                    member.buffered += 1
                    member.held_bytes += lot.each
                else:
                    lot = self._add_lot(member, cursor, batch, index, index + 1, mortal_us)
                leased.append(offset)
                taken += 1
                used += lot.each
                if suspect:
                    lot = None
                    if book.ordered:
                        break
                    source.leave_suspects()
        finally:
            for offset in kept:
                cursor.ready.add(offset)
            if leased:
                book.note_ranges(ops.LEASED, cursor, member, ops.ranges_of(leased))
        return taken, used

    def _put_aside(self, cursor: Cursor, batch: Batch, offset: int, now_us: int) -> None:
        """*offset* is not due, and perhaps others of *batch* that are ready: they wait until they are."""
        offsets = [offset, *islice(cursor.ready.iter_equal_or_larger(offset), _LOOK_AT)]
        if offsets[-1] >= batch.end_offset:
            del offsets[bisect_left(offsets, batch.end_offset) :]
        first = batch.index_of(offset)
        dues = dues_us(batch, first, min(batch.index_of(offsets[-1]) + 1, len(batch)))
        found: Iterable[tuple[int | None, int]]
        if batch.header.offset_span != len(batch):
            due_of = {batch.offset(at): due_us for at, due_us in enumerate(dues, first)}
            found = [(due_of.get(one), one) for one in offsets]
        elif len(offsets) == len(dues):
            found = zip(dues, offsets, strict=True)  # all of them, one after the other
        else:
            found = [(dues[one - offset], one) for one in offsets]
        delayed = [(due_us, one) for due_us, one in found if due_us is not None and due_us > now_us]
        cursor.ready -= OffsetSet([one for _, one in delayed])
        delayed.sort()
        cursor.delays.add(delayed)
        self._book.delay(cursor, self.clock.monotonic(), now_us)

    # -- by lanes ---------------------------------------------------------------------------------------------------

    def _refill_by_lanes(self, member: Member, count: int) -> bool:
        """Lease up to *count* for *member*, the most urgent ones of all partitions; returns whether anything was noted."""
        book = self._book
        rota = book.rota_of(member)
        room, room_bytes = min(count, member.prefetch - member.in_flight), member.prefetch_bytes - member.held_bytes
        if room <= 0 or room_bytes <= 0 or not rota:
            return False
        if len(book.members) > 1:
            room = _share(room, rota, self._sharers(member))
        cursors = list(rota)
        leased = False
        failed: PenstockError | None = None
        for cursor in cursors:
            try:
                while True:
                    try:
                        if not self._intake.take_in(cursor, member, self.clock):
                            member.passing = True
                            return False
                        break
                    except OffsetOutOfRange as gap:
                        if not self._reset(cursor, gap):
                            raise
            except PenstockError as error:
                failed = error  # what else there is comes first
        try:
            for level in (HIGH, MEDIUM, LOW):
                for cursor in cursors:
                    lanes = cursor.lanes
                    if lanes is not None and room > 0 and room_bytes > 0 and lanes.has(level):
                        before = member.buffered
                        try:
                            taken, used = self._lease_each(member, cursor, Lane(cursor, lanes, level), room, room_bytes)
                        except PenstockError as error:
                            failed, taken, used = error, member.buffered - before, 0  # here too
                        leased |= taken > 0
                        room -= taken
                        room_bytes -= used
        finally:
            # The first goes behind the others: then it is their turn.
            for cursor in [*cursors[1:], cursors[0]]:
                rota.pop(cursor, None)
                if cursor.has_more():
                    rota[cursor] = None
        if failed is not None and not leased:
            raise failed
        return leased

    # -- taking over ------------------------------------------------------------------------------------------------

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
            stolen.append(lot.part(member, lot.stop - count, lot.stop))
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


def _has_expired(batch: Batch, index: int, now_us: int) -> bool:
    end_us = batch.expires_us(index)
    return end_us is not None and end_us <= now_us


def _is_delayed(batch: Batch, index: int, now_us: int) -> bool:
    due_us = batch.deliver_us(index)
    return due_us is not None and due_us > now_us
