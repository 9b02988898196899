"""
A group: hands the messages of a topic to its members, each message to one of them, until it is finished.

Theory of operation
-------------------
Nothing is done for a message before a member asks for it. `take` hands out what the member has leased, and leases more when that is
used up: first what came back (`cursor.ready`), then what was never leased (from `cursor.scan` on), then, in a shared group, what another
member has leased and not been handed. Leases, acks and failures change the memory at once and reach the journal with the next frame
(`registry.py`): a crash forgets at most the last few milliseconds of them, which means that messages are delivered again.

Time: a lease runs from the moment a message is handed out. Nobody sweeps: whoever takes next, or waits, looks at the earliest deadline
and the earliest due time.

When a member dies with its process, the journal knows what it had leased and not which of it it was working on. As many of the
oldest as it could have been handling count as failed; the others come back uncounted. All of them become *suspects*: from now on
each of them is handed out alone, after everything before it is durable and a note that it was begun, so that the next death can be
put down to one message. This is how a poison message is found among healthy neighbours.

Locks: `lock` guards all of it. Nothing waits for a commit while holding it, and what needs one (dead letters, suspects) is done after
it was released. The cycle's leader takes it to apply committed operations.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from penstock.arguments import check_seconds
from penstock.errors import BadBytes, Closed, LeaseExpired, OffsetOutOfRange, PenstockError, UnsupportedFormat
from penstock.groups import operations as ops
from penstock.groups.assignment import assign
from penstock.groups.cursor import Cursor, Failure
from penstock.groups.dead_letters import Move, is_dead_letter_topic, reason_text
from penstock.groups.dead_member import DeadMember
from penstock.groups.delivery import PARTITION_BITS, Delivery, Lot, message_bytes
from penstock.groups.member import Member
from penstock.groups.snapshot import cursor_operations, member_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.clock import Clock
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog
    from penstock.settings import GroupSettings

_log = logging.getLogger("penstock")

COMMITTING = "committing"
"""A delivery runs in this way while a transaction that finishes it is being committed: not even its consumer's end returns it."""
JITTER = 0.2
"""A delay by default is between 80 % and 100 % of its nominal length, so that what failed together does not come back together."""
EXTEND_MAX_S = 86_400.0
DELAY_MAX_S = 3_650 * 86_400.0
LEASE_MESSAGES = 1_000
"""The most that is leased at once, unless the consumer asks for more."""
CAREFUL_LEASES = 1_000
"""After the store was not closed in order, so many leases are durable before anything of them is handed out: whatever killed the last
process may be among what comes first, and may do so again before the lease would have been noted."""
OFFSET_END = 1 << 63
MOVE_AGAIN_S = 5.0
"""When a dead letter could not be written, the message waits so long before the next try."""

Suspect = tuple[int, int, int]
"""(group id, partition, offset)"""


class Waiter(Protocol):
    """Somebody who waits for messages: a `threading.Lock` that is held, or a thing that wakes a task."""

    def release(self) -> object:
        """Wake it up; False if it cannot be woken any more."""
        ...


class Journal(Protocol):
    """Where a group's operations go."""

    def note(self, operation: bytes) -> None:
        """Buffer an operation that is made already."""
        ...

    def note_finished(self, cursor: Cursor, group_id: int, offsets: Sequence[int]) -> None:
        """Buffer that *offsets* are finished."""
        ...

    def flush(self) -> None:
        """Return when all that was noted so far is durable."""
        ...

    def claim_suspect(self, suspect: Suspect) -> bool:
        """Whether *suspect* may be handed out: no other one is with anybody in this process."""
        ...

    def release_suspect(self, suspect: Suspect) -> None:
        """It is not with anybody any more."""
        ...

    def release_suspects(self, group_id: int, partition: int, end: int) -> None:
        """Those of a partition below *end* are not with anybody any more."""
        ...

    def has_suspect(self, group_id: int, partition: int) -> bool:
        """Whether one of that partition is with somebody."""
        ...

    def wake(self) -> None:
        """Something was noted: it is to be durable soon."""
        ...


class Counters:
    """What a group has done since the store was opened."""

    __slots__ = ("acked", "dead_lettered", "delivered", "expired", "lost", "nacked", "redelivered", "skipped")

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.acked = self.nacked = self.expired = self.dead_lettered = 0
        self.skipped = 0
        """Offsets that retention took before the group had finished them."""
        self.lost = 0
        """Offsets that the group had seen and that a log with a weak mode lost."""


class Group:
    """
    One group of one topic. Safe to call from any thread.

    `identity` is its number in the journal and never used again.
    """

    def __init__(
        self,
        identity: int,
        topic_id: bytes,
        topic: str,
        name: str,
        settings: GroupSettings,
        starts: Sequence[int],
        journal: Journal,
    ) -> None:
        self.identity = identity
        self.topic_id = topic_id
        self.topic = topic
        self.name = name
        self.cursors = [Cursor(partition, start) for partition, start in enumerate(starts)]
        self.counters = Counters()
        self.deleted = False
        self.settings = settings
        self.lock = threading.Lock()
        self._journal = journal
        self._clock: Clock = None  # type: ignore[assignment]  # set by attach
        self._mover: Callable[[Move], None] = None  # type: ignore[assignment]
        self._random = random.Random()
        self._members: dict[int, Member] = {}
        self._waiters: list[tuple[Waiter, Member]] = []
        self._deadline = math.inf
        self._due = math.inf
        self._turn = 0
        self._moves: list[Move] = []
        self._unlisten: list[Callable[[], None]] = []
        self._failure: Failure | None = None
        self._dead: dict[int, DeadMember] = {}  # while replaying
        self._careful = 0
        self._due_us: list[dict[int, int]] = [{} for _ in self.cursors]
        self.configure(settings)

    def __repr__(self) -> str:
        return f"<Group {self.topic}/{self.name}>"

    def configure(self, settings: GroupSettings) -> None:
        """Work by *settings* from now on; the caller holds the lock, or has the group for itself."""
        if self._members and settings.lease_ms != self.settings.lease_ms:
            # What was handed out keeps the lease it was handed out with; the tables are in the order of deadlines.
            for member in self._members.values():
                member.extended |= member.handed
                member.handed = {}
        self.settings = settings
        self._lease_s = settings.lease_ms / 1000
        self._backoff_s = settings.backoff_ms / 1000
        self._backoff_max_s = settings.backoff_max_ms / 1000
        # The dead letters of dead letters would never end.
        self.max_deliveries = 0 if is_dead_letter_topic(self.topic) else settings.max_deliveries
        self.ordered = settings.ordered

    def attach(
        self, logs: Sequence[PartitionLog], clock: Clock, mover: Callable[[Move], None], *, careful: bool = False
    ) -> None:
        """
        Give the group what it needs to deliver. *mover* writes dead letters, and may wait for that.

        *careful*: the process before this one died, perhaps by what is handed out next, and perhaps before it could note anything.
        """
        self._clock = clock
        self._careful = CAREFUL_LEASES if careful else 0
        self._mover = mover
        for cursor, log in zip(self.cursors, logs, strict=True):
            cursor.log = log

    # -- members ----------------------------------------------------------------------------------------------------

    def join(self, identity: int, prefetch: int, prefetch_bytes: int, concurrency: int) -> Member:
        """A new member."""
        member = Member(self, identity, prefetch, prefetch_bytes, concurrency)
        with self.lock:
            if self.deleted:
                raise Closed(f"group {self.name}")
            if not self._members:
                self._unlisten = [cursor.log.add_listener(self.wake) for cursor in self.cursors]
            self._members[identity] = member
            if self.ordered:
                self._rebalance()
        return member

    def leave(self, member: Member) -> None:
        """The member is gone in order: what it had goes back at once, and none of it counts as failed."""
        with self.lock:
            if member.closed:
                return
            member.closed = True
            del self._members[member.identity]
            self._return_lots(member, note=False)
            for delivery in [*member.handed.values(), *member.extended.values()]:
                if delivery._lot.epoch == delivery._lot.cursor.epoch and delivery._running is not COMMITTING:  # noqa: SLF001
                    self._make_ready(delivery._lot.cursor, delivery.offset)  # noqa: SLF001
            member.handed = {}
            member.extended = {}
            self._journal.note(ops.encode_left(self.identity, member.identity))
            if self.ordered:
                self._rebalance()
            if not self._members:
                for stop in self._unlisten:
                    stop()
                self._unlisten = []
                for cursor in self.cursors:
                    cursor.forget_batches()
        self._journal.wake()
        self.wake_all()

    @property
    def may_wait(self) -> bool:
        """Whether handing out may have to wait for the disk, as it does for a while after a crash."""
        return self._careful > 0 or any(cursor.suspects for cursor in self.cursors)

    def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        self._journal.flush()

    @property
    def members(self) -> list[Member]:
        """Who is there now."""
        return list(self._members.values())

    def _rebalance(self) -> None:
        current = {
            cursor.partition: (cursor.successor or cursor.member).identity  # type: ignore[union-attr]
            for cursor in self.cursors
            if (cursor.successor or cursor.member) is not None
        }
        target = assign(len(self.cursors), list(self._members), current)
        for cursor in self.cursors:
            new = self._members.get(target.get(cursor.partition, -1))
            if new is cursor.member:
                cursor.successor = None
                continue
            if cursor.member is not None and not cursor.member.closed and self._is_busy(cursor):
                # It finishes what it was handed first, or its lease ends: nobody else works on the partition meanwhile.
                cursor.successor = new
                self._return_lots(cursor.member, of=cursor)
                continue
            self._hand_over(cursor, new)

    def _is_busy(self, cursor: Cursor) -> bool:
        member = cursor.member
        assert member is not None
        return any(
            delivery._lot.cursor is cursor and delivery._lot.epoch == cursor.epoch  # noqa: SLF001
            for table in (member.handed, member.extended)
            for delivery in table.values()
        )

    def _hand_over(self, cursor: Cursor, new: Member | None) -> None:
        old = cursor.member
        if old is not None:
            if not old.closed:
                self._return_lots(old, of=cursor)
            if cursor in old.cursors:
                old.cursors.remove(cursor)
        cursor.member, cursor.successor = new, None
        if new is not None:
            new.cursors.append(cursor)

    def _hand_over_if_idle(self, cursor: Cursor) -> None:
        if cursor.successor is not None and not self._is_busy(cursor):
            self._hand_over(cursor, cursor.successor)
            self.wake_all()

    def _return_lots(self, member: Member, of: Cursor | None = None, *, note: bool = True) -> None:
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
            offsets = BitMap64([lot.offset(index) for index in range(lot.index, lot.stop)]) & cursor.open
            cursor.ready |= offsets
            self._release_suspects(cursor, offsets)
            if note and offsets:
                self._note_ranges(ops.RETURNED, cursor, member, ops.ranges_of(offsets))
        member.lots.clear()
        member.lots.extend(kept)

    def _make_ready(self, cursor: Cursor, offset: int) -> None:
        """It may be leased again, if it is not finished meanwhile."""
        if offset in cursor.open:
            cursor.ready.add(offset)
        if cursor.suspects and offset in cursor.suspects:
            self._journal.release_suspect((self.identity, cursor.partition, offset))

    def _release_suspects(self, cursor: Cursor, offsets: BitMap64) -> None:
        if cursor.suspects:
            for offset in offsets & cursor.suspects:
                self._journal.release_suspect((self.identity, cursor.partition, offset))

    def _note_ranges(self, kind: int, cursor: Cursor, member: Member, ranges: list[tuple[int, int]]) -> None:
        self._journal.note(
            ops.encode_ranges(
                kind, cursor.partition, self.identity, cursor.generation, member.identity, member.concurrency, ranges
            )
        )

    # -- handing out ------------------------------------------------------------------------------------------------

    def take(self, member: Member, count: int) -> list[Delivery]:
        """
        Up to *count* messages for *member*; empty if there are none, or it holds as many as it may, or it is paused.

        Raises:
            OffsetOutOfRange: retention took what comes next, and the group's `reset` is ``fail``.
            Corrupt: the log is damaged there.
            Closed: the member has left.
        """
        now = self._clock.monotonic()
        noted = begun = False
        with self.lock:
            if member.closed:
                raise Closed(f"the consumer of {self.topic}/{self.name}")
            if now >= self._deadline:
                self._expire(now)
            if now >= self._due:
                self._collect_due(now)
            found: list[Delivery] = []
            if not member.paused:
                if member.lots:
                    begun = self._hand_out(member, count, now, found)
                if len(found) < count and not begun and not member.lots:
                    try:
                        noted = self._refill(member, count)
                    except PenstockError:
                        if not found:
                            raise
                        # The caller gets what there is, and the error with the next call.
                    if member.lots:
                        begun = self._hand_out(member, count - len(found), now, found)
                if not found:
                    member.starved = (
                        member.in_flight + member.buffered >= member.prefetch or member.held_bytes >= member.prefetch_bytes
                    )
            if member.lots and not begun:
                self._return_waiting_suspects(member)
            moves = self._take_moves()
            more = bool(found) and bool(self._waiters)
            if noted and self._careful:
                self._careful -= 1
                begun = True
        if noted or begun:
            self._journal.wake()
        if moves:
            self._move(moves)
        if more:
            # The next one who waits may find more: a commit wakes one waiter only.
            self.wake()
        if begun:
            # Whatever happens now can be put down to this message.
            try:
                self._journal.flush()
            except BaseException:
                # Nobody gets them, so nobody failed.
                for delivery in found:
                    self.give_back(delivery)
                raise
        return found

    def _hand_out(self, member: Member, count: int, now: float, found: list[Delivery]) -> bool:
        """Hand out of the member's lots; True if the last one is a suspect, whose beginning must be made durable."""
        handed = member.handed
        count = min(count, member.prefetch - member.in_flight)
        deadline = now + self._lease_s
        lots = member.lots
        while lots and count > 0:
            lot = lots[0]
            cursor = lot.cursor
            if lot.epoch != cursor.epoch:
                member.buffered -= len(lot)
                member.held_bytes -= len(lot) * lot.each
                lots.popleft()
                continue
            if cursor.suspects or cursor.failures or lot.shift is None:
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
                    delivery = Delivery(lot, at, offset, deadline, 1)
                    handed[offset << PARTITION_BITS | partition] = delivery
                    found.append(delivery)
                self._deadline = min(self._deadline, deadline)
                lot.index = stop
                count -= stop - index
                member.buffered -= stop - index
                self.counters.delivered += stop - index
            if lot.index >= lot.stop:
                lots.popleft()
        return False

    def _return_waiting_suspects(self, member: Member) -> None:
        """A suspect that is not handed out now goes back: while it waits, no other one may be handed out, in any group."""
        for lot in [lot for lot in member.lots if lot.cursor.suspects and lot.offset(lot.index) in lot.cursor.suspects]:
            member.lots.remove(lot)
            offsets = BitMap64([lot.offset(at) for at in range(lot.index, lot.stop)])
            member.buffered -= len(lot)
            member.held_bytes -= len(lot) * lot.each
            if lot.epoch == lot.cursor.epoch:
                for offset in offsets:
                    self._make_ready(lot.cursor, offset)
                self._note_ranges(ops.RETURNED, lot.cursor, member, ops.ranges_of(offsets))

    def _hand_out_carefully(self, member: Member, lot: Lot, count: int, deadline: float, found: list[Delivery]) -> int:
        """
        The same, looking at each message.

        Returns how many, or -1 if the last one is a suspect; 0 with messages left in the lot if a suspect comes next and is not alone.
        """
        cursor = lot.cursor
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
            member.handed[offset << PARTITION_BITS | cursor.partition] = delivery
            found.append(delivery)
            taken += 1
            self.counters.delivered += 1
            self.counters.redelivered += attempt > 1 or suspect
            self._deadline = min(self._deadline, deadline)
            if suspect:
                if lot.index >= lot.stop:
                    member.lots.popleft()
                self._journal.note(
                    ops.encode_begun(cursor.partition, self.identity, cursor.generation, member.identity, offset)
                )
                return -1
        return taken

    # -- leasing ----------------------------------------------------------------------------------------------------

    def _refill(self, member: Member, count: int) -> bool:
        """Lease more for *member*, which wants *count*; returns whether anything was noted."""
        room = min(member.prefetch - member.in_flight - member.buffered, max(count, LEASE_MESSAGES))
        if room <= 0:
            return False
        cursors = member.cursors if self.ordered else self.cursors
        if not cursors:
            return False
        if len(self._members) > 1 and not self.ordered:
            backlog = sum([cursor.backlog() for cursor in cursors])
            room = min(room, max(1, -(-backlog // len(self._members))))
        leased = False
        room_bytes = member.prefetch_bytes - member.held_bytes
        if room_bytes <= 0:
            return False
        turn = self._turn
        for step in range(len(cursors)):
            cursor = cursors[(turn + step) % len(cursors)]
            if self.ordered and (
                cursor.schedule.offsets
                or cursor.moving
                or cursor.successor is not None
                or (cursor.suspects and self._journal.has_suspect(self.identity, cursor.partition))
            ):
                continue  # What failed comes first, and it is not due yet.
            if cursor.ready:
                taken, used = self._lease_ready(member, cursor, room, room_bytes)
                leased |= taken > 0
                room -= taken
                room_bytes -= used
                if self.ordered and (cursor.ready or cursor.moving or cursor.suspects):
                    continue
            if room > 0 and room_bytes > 0:
                taken, used = self._lease_fresh(member, cursor, room, room_bytes)
                leased |= taken > 0
                room -= taken
                room_bytes -= used
            if room <= 0 or room_bytes <= 0:
                self._turn = turn + step + 1
                break
        if not leased and not self.ordered and len(self._members) > 1:
            leased = self._steal(member)
        return leased

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
            self._note_ranges(ops.LEASED, cursor, member, [(start, cursor.scan)])
        return taken, used

    def _lease_ready(self, member: Member, cursor: Cursor, room: int, room_bytes: int) -> tuple[int, int]:
        """Lease what came back, lowest offsets first; what must be dead-lettered goes its way instead."""
        taken = used = 0
        leased: list[int] = []
        batch: Batch | None = None
        lot: Lot | None = None
        ready = cursor.ready
        while ready and taken < room and used < room_bytes:
            offset = ready.min()
            suspect = bool(cursor.suspects) and offset in cursor.suspects
            failure = cursor.failures.get(offset)
            exhausted = failure is not None and (failure.condemned or 0 < self.max_deliveries <= failure.count)
            if suspect and not exhausted and self.ordered and taken:
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
                self._journal.note_finished(cursor, self.identity, [offset])
                batch = None
                continue
            if suspect and not exhausted and not self._journal.claim_suspect((self.identity, cursor.partition, offset)):
                # Of suspects there is one at a time with anybody: else the next death could not be put down to one of them.
                if self.ordered:
                    break
                ready = cursor.ready - cursor.suspects
                continue
            ready.discard(offset)
            cursor.ready.discard(offset)
            if failure is not None and exhausted:
                self._plan_move(cursor, offset, failure, batch, index)
                if self.ordered:
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
                if self.ordered:
                    break
                ready = cursor.ready - cursor.suspects
        if leased:
            self._note_ranges(ops.LEASED, cursor, member, ops.ranges_of(leased))
        return taken, used

    def _steal(self, member: Member) -> bool:
        """Take half of what the member with the most has leased and was not handed: it is busy, and this one is not."""
        victim = max(self._members.values(), key=lambda one: one.buffered)
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
            self._note_ranges(ops.LEASED, lot.cursor, member, ops.ranges_of(offsets))
        return bool(stolen)

    def _reset(self, cursor: Cursor, gap: OffsetOutOfRange) -> bool:
        """Retention took what comes next: go on by the group's rule. False if the rule is to fail."""
        if self.settings.reset == "fail":
            return False
        target = gap.first if self.settings.reset == "earliest" else cursor.log.committed_end
        skipped = max(0, target - cursor.scan) + cursor.open.range_cardinality(0, target)
        _log.warning(
            "group %s of topic %s skips %d messages of partition %d: retention removed them (first kept: %d)",
            self.name, self.topic, skipped, cursor.partition, gap.first,
        )  # fmt: skip
        self.counters.skipped += skipped
        self._void_below(cursor, target)
        cursor.finish_below(target)
        self._journal.note(ops.encode_offset(ops.COMMITTED, cursor.partition, self.identity, cursor.generation, target))
        return True

    # -- finishing --------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], *, wait: bool = False) -> None:
        """
        They are done. Those that are not the member's any more change nothing.

        Raises `LeaseExpired` if there are such; all others are done nevertheless.
        """
        late: list[Delivery] = []
        now = self._clock.monotonic()
        with self.lock:
            if now >= self._deadline:
                self._expire(now)
            if len(deliveries) == 1:
                self._ack_one(deliveries[0], late)
            else:
                self._ack_many(deliveries, late)
            moves = self._take_moves()
        self._journal.wake()
        if moves:
            self._move(moves)
        if wait:
            self._journal.flush()
        if late:
            raise self._expired(late)

    def _ack_one(self, delivery: Delivery, late: list[Delivery]) -> None:
        lot = delivery._lot  # noqa: SLF001
        member, cursor = lot.member, lot.cursor
        offset = delivery.offset
        key = offset << PARTITION_BITS | cursor.partition
        if delivery._running is COMMITTING:  # noqa: SLF001
            late.append(delivery)
            return
        if member.handed.get(key) is delivery:
            del member.handed[key]
        elif member.extended.get(key) is delivery:
            del member.extended[key]
        else:
            late.append(delivery)
            return
        member.held_bytes -= lot.each
        if lot.epoch != cursor.epoch:
            late.append(delivery)
            return
        delivery._running = False  # noqa: SLF001
        cursor.open.discard(offset)
        if cursor.failures:
            cursor.failures.pop(offset, None)
        if cursor.suspects and offset in cursor.suspects:
            cursor.suspects.discard(offset)
            self._suspect_ended(cursor, offset)
        self.counters.acked += 1
        self._journal.note_finished(cursor, self.identity, (offset,))
        if cursor.successor is not None:
            self._hand_over_if_idle(cursor)
        if member.starved:
            member.starved = False
            self.wake_all()

    def _suspect_ended(self, cursor: Cursor, offset: int) -> None:
        """A suspect is finished, or failed without killing anybody: the next one may go."""
        self._journal.release_suspect((self.identity, cursor.partition, offset))

    def _ack_many(self, deliveries: Sequence[Delivery], late: list[Delivery]) -> None:
        by_cursor: dict[Cursor, list[int]] = {}
        for delivery in deliveries:
            lot = delivery._lot  # noqa: SLF001
            member, cursor = lot.member, lot.cursor
            offset = delivery.offset
            key = offset << PARTITION_BITS | cursor.partition
            if member.handed.get(key) is delivery and delivery._running is not COMMITTING:  # noqa: SLF001
                del member.handed[key]
            elif member.extended.get(key) is delivery and delivery._running is not COMMITTING:  # noqa: SLF001
                del member.extended[key]
            else:
                late.append(delivery)
                continue
            member.held_bytes -= lot.each
            if lot.epoch != cursor.epoch:
                late.append(delivery)
                continue
            delivery._running = False  # noqa: SLF001
            offsets = by_cursor.get(cursor)
            if offsets is None:
                offsets = by_cursor[cursor] = []
            offsets.append(offset)
        for cursor, offsets in by_cursor.items():
            if not cursor.failures and not cursor.suspects and offsets == [*range(offsets[0], offsets[0] + len(offsets))]:
                # One run, as it almost always is: they were handed out in this order.
                cursor.open.remove_range(offsets[0], offsets[-1] + 1)
            else:
                for offset in offsets:
                    if cursor.suspects and offset in cursor.suspects:
                        self._suspect_ended(cursor, offset)
                    cursor.finish(offset)
            self.counters.acked += len(offsets)
            self._journal.note_finished(cursor, self.identity, offsets)
            if cursor.successor is not None:
                self._hand_over_if_idle(cursor)
        if any(one.starved for one in self._members.values()):
            for one in self._members.values():
                one.starved = False
            self.wake_all()

    def _expired(self, late: Sequence[Delivery]) -> LeaseExpired:
        return LeaseExpired(self.topic, late[0].partition, late[0].offset, len(late))

    def nack(
        self, deliveries: Sequence[Delivery], *, delay: object = None, reason: object = None, reject: bool = False
    ) -> None:
        """They failed: deliver them again later, or dead-letter them. Raises `LeaseExpired` like `ack`."""
        delay_s = None if delay is None else check_seconds("delay", delay, 0, DELAY_MAX_S)
        text = reason_text(reason)
        now = self._clock.monotonic()
        late: list[Delivery] = []
        with self.lock:
            if now >= self._deadline:
                self._expire(now)
            for delivery in deliveries:
                lot = delivery._lot  # noqa: SLF001
                member, cursor = lot.member, lot.cursor
                if not member.holds(delivery) or delivery._running is COMMITTING:  # noqa: SLF001
                    late.append(delivery)
                    continue
                member.drop(delivery)
                if lot.epoch != cursor.epoch:
                    late.append(delivery)
                    continue
                delivery._running = False  # noqa: SLF001
                self.counters.nacked += 1
                self._fail(cursor, delivery.offset, text, now, delay_s, delivery, reject=reject)
                if member.starved:
                    member.starved = False
            moves = self._take_moves()
        self._journal.wake()
        if moves:
            self._move(moves)
        self.wake_all()
        if late:
            raise self._expired(late)

    def _fail(
        self,
        cursor: Cursor,
        offset: int,
        reason: str,
        now: float,
        delay_s: float | None,
        delivery: Delivery | None,
        *,
        reject: bool = False,
    ) -> None:
        """A delivery failed: count it, and see what becomes of the message."""
        now_us = self._clock.now_us()
        known = cursor.failures.get(offset)
        count = 1 if known is None else known.count + 1
        exhausted = (reject or 0 < self.max_deliveries <= count) and not is_dead_letter_topic(self.topic)
        first_s = now_us // 1_000_000 if known is None else known.first_s
        failure = self._shared_failure(Failure(count, first_s, now_us // 1_000_000, reason, exhausted))
        cursor.failures[offset] = failure
        if cursor.suspects and offset in cursor.suspects:
            # It failed, and whoever handled it is alive.
            cursor.suspects.discard(offset)
            self._suspect_ended(cursor, offset)
        if exhausted:
            delay_s = 0.0
        elif delay_s is None:
            delay_s = min(self._backoff_s * 2.0 ** min(count - 1, 60), self._backoff_max_s)
            delay_s *= 1 - JITTER * self._random.random()
        self._journal.note(
            ops.encode_failed(
                cursor.partition, self.identity, cursor.generation,
                ops.Failed(offset, now_us + round(delay_s * 1e6), failure.first_s, failure.last_s, count, reason, exhausted),
            )
        )  # fmt: skip
        if exhausted and delivery is not None:
            self._plan_move(cursor, offset, failure, delivery._batch, delivery._index)  # noqa: SLF001
        elif delay_s > 0:
            self._schedule(cursor, offset, now, delay_s)
        else:
            cursor.ready.add(offset)
        if self.ordered:
            self._withdraw_behind(cursor, offset)

    def _shared_failure(self, failure: Failure) -> Failure:
        if self._failure == failure:
            return self._failure
        self._failure = failure
        return failure

    def _withdraw_behind(self, cursor: Cursor, offset: int) -> None:
        """In an ordered group nothing behind a failed message may be finished before it: take it all back."""
        member = cursor.member
        if member is None:
            return
        kept = []
        withdrawn = []
        for table in (member.handed, member.extended):
            for key, delivery in list(table.items()):
                if delivery._lot.cursor is cursor and delivery._lot.epoch == cursor.epoch:  # noqa: SLF001
                    if delivery.offset > offset and delivery._running is not COMMITTING:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
                        self._make_ready(cursor, delivery.offset)
                        withdrawn.append(delivery.offset)
                    else:
                        kept.append(delivery)
        if withdrawn:
            self._note_ranges(ops.RETURNED, cursor, member, ops.ranges_of(sorted(withdrawn)))
        self._return_lots(member, of=cursor)
        cursor.ready &= cursor.open
        cursor.epoch += 1
        for delivery in kept:
            # Before the failed one, and still being handled, or being finished by a transaction: it stays valid.
            lot = delivery._lot  # noqa: SLF001
            renewed = Lot(member, cursor, lot.batch, delivery._index, delivery._index + 1)  # noqa: SLF001
            renewed.number = lot.number
            delivery._lot = renewed  # noqa: SLF001
        self._hand_over_if_idle(cursor)

    def give_back(self, delivery: Delivery) -> None:
        """It was not handled, and that is nobody's fault: ready again at once, uncounted. Late ones change nothing."""
        with self.lock:
            lot = delivery._lot  # noqa: SLF001
            member, cursor = lot.member, lot.cursor
            if not member.holds(delivery):
                return
            member.drop(delivery)
            if lot.epoch == cursor.epoch:
                self._make_ready(cursor, delivery.offset)
                self._note_ranges(ops.RETURNED, cursor, member, [(delivery.offset, delivery.offset + 1)])
                if self.ordered:
                    self._withdraw_behind(cursor, delivery.offset)
        self._journal.wake()
        self.wake_all()

    def begin(self, delivery: Delivery) -> None:
        """A handler runs: the lease goes on as long as it does. Raises `LeaseExpired`."""
        with self.lock:
            if not self._is_valid(delivery):
                raise self._expired([delivery])
            delivery._running = True  # noqa: SLF001

    def end(self, delivery: Delivery) -> bool:
        """The handler ended; returns whether the delivery is still to be finished. Raises `LeaseExpired` if it was taken away."""
        with self.lock:
            running, delivery._running = delivery._running, False  # noqa: SLF001
            if delivery._lot.member.holds(delivery):  # noqa: SLF001
                if running:
                    # Its lease went on while it ran, whether anybody looked or not.
                    self._renew(delivery, self._clock.monotonic() + self._lease_s, own_length=False)
                return True
        if running:
            raise self._expired([delivery])
        return False

    @staticmethod
    def _is_valid(delivery: Delivery) -> bool:
        lot = delivery._lot  # noqa: SLF001
        return (
            lot.member.holds(delivery) and lot.epoch == lot.cursor.epoch and delivery._running is not COMMITTING  # noqa: SLF001
        )

    def extend(self, delivery: Delivery, seconds: object = None) -> None:
        """Its lease ends *seconds* from now. Raises `LeaseExpired`."""
        length = self._lease_s if seconds is None else check_seconds("seconds", seconds, 0.001, EXTEND_MAX_S)
        now = self._clock.monotonic()
        with self.lock:
            if now >= self._deadline:
                self._expire(now)
            valid = self._is_valid(delivery)
            if valid:
                self._renew(delivery, now + length, own_length=seconds is not None)
            moves = self._take_moves()
        if moves:
            self._move(moves)
        if not valid:
            raise self._expired([delivery])

    def _renew(self, delivery: Delivery, deadline: float, *, own_length: bool) -> None:
        member = delivery._lot.member  # noqa: SLF001
        member.drop(delivery)
        member.held_bytes += delivery._lot.each  # noqa: SLF001
        delivery._deadline = deadline  # noqa: SLF001
        table = member.extended if own_length else member.handed
        table[delivery.offset << PARTITION_BITS | delivery.partition] = delivery
        self._deadline = min(self._deadline, deadline)

    # -- time -------------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        """Leases that have ended are failures; those of running handlers go on."""
        earliest = math.inf
        for member in list(self._members.values()):
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
                    self._renew(delivery, now + self._lease_s, own_length=False)
                    continue
                member.drop(delivery)
                lot = delivery._lot  # noqa: SLF001
                if lot.epoch == lot.cursor.epoch:
                    self.counters.expired += 1
                    # It has waited long enough: the lease was the delay.
                    self._fail(lot.cursor, delivery.offset, "lease expired", now, 0.0, delivery)
                if member.starved:
                    member.starved = False
            if member.handed:
                earliest = min(earliest, next(iter(member.handed.values()))._deadline)  # noqa: SLF001
            for delivery in member.extended.values():
                earliest = min(earliest, delivery._deadline)  # noqa: SLF001
        for cursor in self.cursors:
            if cursor.successor is not None:
                self._hand_over_if_idle(cursor)
        self._deadline = earliest

    def _schedule(self, cursor: Cursor, offset: int, now: float, delay_s: float) -> None:
        """*offset* may be leased again *delay_s* seconds from now."""
        self._due = min(self._due, cursor.schedule.add(offset, now, delay_s))

    def _collect_due(self, now: float) -> None:
        """What is due may be leased again."""
        self._due = math.inf
        for cursor in self.cursors:
            due = cursor.schedule.due(now)
            if due is not None:
                cursor.ready |= due
            following = cursor.schedule.next_due()
            if following is not None and following < self._due:
                self._due = following

    def wait_seconds(self) -> float | None:
        """How long until time alone may make a message ready; None if only an event can."""
        earliest = min(self._deadline, self._due)
        if earliest == math.inf:
            return None
        return max(0.0, earliest - self._clock.monotonic())

    # -- waiting ----------------------------------------------------------------------------------------------------

    def add_waiter(self, waiter: Waiter, member: Member) -> None:
        """Wake *waiter* when there may be something to take for *member*. Look once more after adding it."""
        self._waiters.append((waiter, member))

    def remove_waiter(self, waiter: Waiter, member: Member, *, woken: bool) -> None:
        """It waits no more. If somebody woke it and it did not notice, or could not take, another one is woken in its place."""
        try:
            self._waiters.remove((waiter, member))
        except ValueError:
            if not woken or not member.can_take:
                self.wake()

    def wake(self) -> None:
        """Wake one who waits and could take something; in an ordered group all, since each has partitions of its own."""
        if not self._waiters:
            return
        if self.ordered:
            self.wake_all()
            return
        for entry in list(self._waiters):  # first come, first served
            if entry[1].can_take:
                try:
                    self._waiters.remove(entry)
                except ValueError:
                    continue  # another thread was quicker
                if entry[0].release() is not False:
                    return

    def wake_all(self) -> None:
        """Wake all who wait."""
        while self._waiters:
            try:
                waiter, _ = self._waiters.pop()
            except IndexError:
                return
            waiter.release()

    # -- dead letters -----------------------------------------------------------------------------------------------

    def _plan_move(self, cursor: Cursor, offset: int, failure: Failure, batch: Batch, index: int) -> None:
        cursor.moving.add(offset)
        self._moves.append(Move(self, cursor, cursor.generation, offset, failure, batch, index))

    def _take_moves(self) -> list[Move]:
        if not self._moves:
            return []
        moves, self._moves = self._moves, []
        return moves

    def _move(self, moves: list[Move]) -> None:
        for move in moves:
            with self.lock:
                cursor = move.cursor
                if cursor.generation != move.generation or move.offset not in cursor.moving:
                    continue  # finished, or sought, meanwhile
            try:
                self._mover(move)
            except PenstockError as error:
                self.move_failed(move, error)

    def move_failed(self, move: Move, error: PenstockError) -> None:
        """A dead letter could not be written: the message stays, and is tried again later."""
        _log.warning(
            "cannot dead-letter offset %d of %s/%d for group %s, trying again in %g s: %s",
            move.offset, self.topic, move.cursor.partition, self.name, MOVE_AGAIN_S, error,
        )  # fmt: skip
        with self.lock:
            cursor = move.cursor
            if cursor.generation == move.generation and move.offset in cursor.moving:
                cursor.moving.discard(move.offset)
                self._schedule(cursor, move.offset, self._clock.monotonic(), MOVE_AGAIN_S)

    def finished_by_move(self, move: Move) -> bytes:
        """The operation that finishes the source of a dead letter, for the frame that writes it."""
        return ops.encode_finished(move.cursor.partition, self.identity, move.generation, [move.offset])[0]

    def moved(self) -> None:
        """A dead letter was written."""
        self.counters.dead_lettered += 1
        self.wake_all()

    # -- transactions -----------------------------------------------------------------------------------------------

    def reserve_acks(self, deliveries: Sequence[Delivery]) -> list[bytes]:
        """
        Take *deliveries* into a transaction: their leases do not end while it is being committed.

        Returns the operations that finish them. Raises `LeaseExpired`; nothing was changed then.
        """
        now = self._clock.monotonic()
        with self.lock:
            if now >= self._deadline:
                self._expire(now)
            late = [delivery for delivery in deliveries if not self._is_valid(delivery)]
            moves = self._take_moves()
            # With the generation of now: what was leased before a seek finishes nothing behind it.
            found: dict[tuple[Cursor, int], list[int]] = {}
            for delivery in () if late else deliveries:
                delivery._running = COMMITTING  # noqa: SLF001
                cursor = delivery._lot.cursor  # noqa: SLF001
                found.setdefault((cursor, cursor.generation), []).append(delivery.offset)
        if moves:
            self._move(moves)
        if late:
            raise self._expired(late)
        return [
            operation
            for (cursor, generation), offsets in found.items()
            for operation in ops.encode_finished(cursor.partition, self.identity, generation, sorted(offsets))
        ]

    def release_acks(self, deliveries: Sequence[Delivery], *, committed: bool) -> None:
        """The transaction ended: its deliveries are finished, or back with their consumer."""
        with self.lock:
            for delivery in deliveries:
                delivery._running = False  # noqa: SLF001
                member = delivery._lot.member  # noqa: SLF001
                if committed and member.holds(delivery):
                    member.drop(delivery)
                    self.counters.acked += 1
                if not committed and member.closed and delivery._lot.epoch == delivery._lot.cursor.epoch:  # noqa: SLF001
                    self._make_ready(delivery._lot.cursor, delivery.offset)  # noqa: SLF001
                if committed:
                    self._journal.release_suspect((self.identity, delivery.partition, delivery.offset))
                if committed and member.starved:
                    member.starved = False
            if committed:
                for cursor in self.cursors:
                    if cursor.successor is not None:
                        self._hand_over_if_idle(cursor)
        self.wake_all()

    # -- moving the cursor ------------------------------------------------------------------------------------------

    def commit(self, partition: int, offset: int) -> None:
        """Everything below *offset* is finished; never goes back. Buffered like an ack. Raises `OffsetOutOfRange`."""
        with self.lock:
            cursor = self.cursors[partition]
            if not 0 <= offset <= cursor.log.committed_end:
                raise OffsetOutOfRange(offset, cursor.log.log_start, cursor.log.committed_end)
            if offset <= cursor.next_offset:
                return
            self.counters.acked += self._void_below(cursor, offset)
            cursor.finish_below(offset)
            self._journal.note(ops.encode_offset(ops.COMMITTED, partition, self.identity, cursor.generation, offset))
            if cursor.successor is not None:
                self._hand_over_if_idle(cursor)
        self._journal.wake()
        self.wake_all()

    def _void_below(self, cursor: Cursor, offset: int) -> int:
        """Members hold nothing below *offset* any more; returns how many messages they were handed of that."""
        count = 0
        for member in self._members.values():
            for table in (member.handed, member.extended):
                for key, delivery in list(table.items()):
                    if delivery._lot.cursor is cursor and delivery.offset < offset:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
                        delivery._running = False  # noqa: SLF001
                        count += 1
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
            self._journal.release_suspects(self.identity, cursor.partition, offset)
        return count

    def position(self, partition: int) -> int:
        """The first offset of a partition that is not finished."""
        with self.lock:
            return self.cursors[partition].next_offset

    def seek_operations(self, targets: dict[int, int]) -> bytes:
        """The operations that move the cursor of each partition to its target."""
        with self.lock:
            return b"".join(
                [
                    ops.encode_offset(ops.SOUGHT, partition, self.identity, self.cursors[partition].generation + 1, offset)
                    for partition, offset in targets.items()
                ]
            )

    def finish_unleased(self, partition: int, offsets: Sequence[int]) -> list[bytes]:
        """The operations that finish *offsets* though nobody leased them, for a transaction of the group's own."""
        return ops.encode_finished(partition, self.identity, self.cursors[partition].generation, sorted(offsets))

    # -- committed operations ---------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[ops.Operation]) -> None:
        """Carry out operations from the journal, just committed or replayed, as one: nobody sees some of them. Raises `Corrupt`."""
        with self.lock:
            for operation in operations:
                self._apply(operation)

    def _apply(self, operation: ops.Operation) -> None:
        kind = operation.kind
        if kind == ops.LEFT:
            self._dead.pop(ops.decode_number(operation), None)
            return
        if operation.partition >= len(self.cursors):
            return
        cursor = self.cursors[operation.partition]
        if kind == ops.SOUGHT:
            if operation.generation > cursor.generation:
                cursor.move_to(ops.decode_offset(operation), operation.generation)
                self._forget_held(cursor)
                self.wake_all()
            return
        if operation.generation != cursor.generation:
            return
        if kind == ops.FINISHED:
            offsets = ops.decode_bitmap(operation.body)
            if offsets and offsets.max() - cursor.scan > ops.SPAN_MAX:
                raise BadBytes("group operation", "finishes what lies impossibly far ahead")
            cursor.finish_all(offsets)
            for dead in self._dead.values():
                dead.held[cursor.partition] -= offsets
        elif kind == ops.POSITION:
            scan, open_offsets = ops.decode_position(operation)
            cursor.scan, cursor.open = scan, open_offsets
        elif kind == ops.SUSPECTS:
            cursor.suspects = ops.decode_bitmap(operation.body) & cursor.open
        elif kind == ops.COMMITTED:
            offset = ops.decode_offset(operation)
            if offset > cursor.next_offset:
                cursor.finish_below(offset)
        elif kind in (ops.FAILED, ops.FAILED_ALL):
            self._replay_failed(cursor, operation)
        elif kind == ops.LEASED:
            self._replay_leased(cursor, operation)
        elif kind == ops.RETURNED:
            member, _, ranges = ops.decode_ranges(operation)
            if member in self._dead:
                for start, end in ranges:
                    self._dead[member].let_go(cursor.partition, start, end)
        elif kind == ops.BEGUN:
            member, offset = ops.decode_begun(operation)
            if member in self._dead:
                self._dead[member].begun.add((cursor.partition, offset))
        else:
            raise UnsupportedFormat("the journal", f"group operation {kind}")

    def _forget_held(self, cursor: Cursor) -> None:
        for dead in self._dead.values():
            dead.let_go(cursor.partition, 0, OFFSET_END)
        self._journal.release_suspects(self.identity, cursor.partition, OFFSET_END)
        self._due_us[cursor.partition].clear()
        for member in self._members.values():
            for table in (member.handed, member.extended):
                for key, delivery in list(table.items()):
                    if delivery._lot.cursor is cursor:  # noqa: SLF001
                        del table[key]
                        member.held_bytes -= delivery._lot.each  # noqa: SLF001
            for lot in [lot for lot in member.lots if lot.cursor is cursor]:
                member.lots.remove(lot)
                member.buffered -= len(lot)
                member.held_bytes -= len(lot) * lot.each
            member.starved = False
        if cursor.successor is not None:
            self._hand_over_if_idle(cursor)

    def _replay_failed(self, cursor: Cursor, operation: ops.Operation) -> None:
        if operation.kind == ops.FAILED:
            failed = ops.decode_failed(operation)
            offsets: Sequence[int] | BitMap64 = (failed.offset,)
        else:
            failed, all_offsets = ops.decode_failed_all(operation)
            offsets = all_offsets & cursor.open
        failure = self._shared_failure(Failure(failed.count, failed.first_s, failed.last_s, failed.reason, failed.condemned))
        for offset in offsets:
            if offset in cursor.open:
                cursor.failures[offset] = failure
                self._due_us[cursor.partition][offset] = failed.due_us
                if operation.kind == ops.FAILED:
                    cursor.suspects.discard(offset)
                    for dead in self._dead.values():
                        dead.let_go(cursor.partition, offset, offset + 1)

    def _replay_leased(self, cursor: Cursor, operation: ops.Operation) -> None:
        member, concurrency, ranges = ops.decode_ranges(operation)
        if member not in self._dead:
            self._dead[member] = DeadMember(concurrency, len(self.cursors))
        for start, end in ranges:
            cursor.lease_range(start, end)
            for identity, dead in self._dead.items():
                if identity != member:
                    dead.let_go(cursor.partition, start, end)
            self._dead[member].lease(cursor.partition, start, end)

    def recovered(self, ends: Sequence[int], clock: Clock) -> None:
        """All is replayed. The members of before are gone: count what they were working on, and let the rest come again."""
        now, now_us = clock.monotonic(), clock.now_us()
        with self.lock:
            for cursor, end in zip(self.cursors, ends, strict=True):
                lost = cursor.cut_at(end)
                if lost:
                    self.counters.lost += lost
                    _log.warning(
                        "group %s of topic %s had seen offsets [%d, %d) of partition %d, which the log has lost",
                        self.name, self.topic, end, end + lost, cursor.partition,
                    )  # fmt: skip
            for dead in self._dead.values():
                self._bury(dead, now_us)
            self._dead = {}
            for cursor, due in zip(self.cursors, self._due_us, strict=True):
                for offset, due_us in due.items():
                    delay_s = (due_us - now_us) / 1e6
                    if delay_s > 0 and offset in cursor.open and offset not in cursor.suspects:
                        # The wall clock may have been set back meanwhile: it waits no longer than it was told to.
                        told_s = due_us / 1e6 - cursor.failures[offset].last_s
                        self._schedule(cursor, offset, now, max(0.0, min(delay_s, told_s)))
                cursor.ready = cursor.open - cursor.schedule.offsets
            self._due_us = [{} for _ in self.cursors]

    def _bury(self, dead: DeadMember, now_us: int) -> None:
        unfinished = [offsets & cursor.open for offsets, cursor in zip(dead.held, self.cursors, strict=True)]
        guilty = [(partition, offset) for partition, offset in dead.begun if offset in unfinished[partition]]
        if not guilty:
            # A suspect that was not begun was not handed out: it cannot have done it.
            possible = [offsets - cursor.suspects for offsets, cursor in zip(unfinished, self.cursors, strict=True)]
            guilty = dead.oldest(possible)
        for partition, offset in guilty:
            cursor = self.cursors[partition]
            known = cursor.failures.get(offset)
            cursor.failures[offset] = self._shared_failure(
                Failure(
                    1 if known is None else known.count + 1,
                    now_us // 1_000_000 if known is None else known.first_s,
                    now_us // 1_000_000,
                    "the consumer's process died",
                )
            )
        for cursor, offsets in zip(self.cursors, unfinished, strict=True):
            cursor.suspects |= offsets

    # -- snapshot ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The group as operations that make it anew; the caller holds the lock."""
        parts = [
            ops.encode_document(
                ops.MADE,
                self.identity,
                {
                    "topic_id": self.topic_id.hex(),
                    "topic": self.topic,
                    "name": self.name,
                    "settings": self.settings.to_json(),
                    "starts": [cursor.scan for cursor in self.cursors],
                },
            )
        ]
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        for cursor in self.cursors:
            parts += cursor_operations(self.identity, cursor, now, now_us)
        for member in self._members.values():
            parts += member_operations(self.identity, member)
        return b"".join(parts)
