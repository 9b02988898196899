"""
How messages of a topic with priorities come into its lanes (`lanes.py`).

Everything that is committed is taken in when somebody asks for messages, and is open from then on, however much it is: which of it is most
urgent cannot be known otherwise. Only the directory and the columns of priorities and due times are looked at, and no values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import ended_us
from penstock.format.lifetime import dues_us, last_due_us, last_expiry_us
from penstock.groups.cursor import READ_BYTES, TELLING
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.format.batch import Batch
    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.expiring import Expiring
    from penstock.groups.lanes import Lanes
    from penstock.groups.member import Member


LEARN_MAX = 100_000
"""After learning of so many messages a call comes back, so that others get the group's lock: about a hundredth of a second."""
BATCH_COST = 100
"""A batch costs as much as so many messages."""


class Intake:
    """Fills the lanes of one group. Guarded by the group's lock."""

    __slots__ = ("_book", "_expiring")

    def __init__(self, book: Book, expiring: Expiring) -> None:
        self._book = book
        self._expiring = expiring

    def take_in(self, cursor: Cursor, member: Member, clock: Clock) -> bool:
        """
        See that all that may be leased now waits in its lane. What is new is noted in the name of *member*.

        False: there is so much to learn after a restart that others get the group's lock first. Nothing may be leased before all is known.

        Raises what `PartitionLog.read` raises; what came before that is taken in.
        """
        lanes = cursor.lanes
        assert lanes is not None
        now, now_us = clock.monotonic(), clock.now_us()
        failed: Exception | None = None
        try:
            if not lanes.is_indexed and not self._index_open(cursor, lanes, now_us):
                return False
            if cursor.log.committed_end > cursor.scan:
                self._take_in_fresh(cursor, lanes, member, clock, now_us)
        except Exception as error:  # noqa: BLE001 - raised below; after an interrupt the lanes may be in the middle of a change
            failed = error
        lanes.fire(now_us, cursor.open)
        if lanes.is_indexed:
            lanes.sort(cursor.ready)
        else:
            # Of the rest nobody knows yet how urgent it is, nor whether it is due: it stays until it can be read.
            known = cursor.ready & _range(0, lanes.indexed_end)
            cursor.ready -= known
            lanes.sort(known)
        lanes.advance(now_us)
        lanes.prune(cursor.open)
        self._book.delay(cursor, now, now_us)
        if failed is not None:
            raise failed
        return True

    def _index_open(self, cursor: Cursor, lanes: Lanes, now_us: int) -> bool:
        """After a restart, or a seek: learn where each open message belongs, and whether it is due. False: there is more."""
        at = next(iter(cursor.open.iter_equal_or_larger(lanes.indexed_end)), cursor.scan)
        learned = 0
        while at < cursor.scan:
            lanes.indexed_end = at
            if learned >= LEARN_MAX:
                return False
            batches = cursor.log.read(at, READ_BYTES, verify=False, columns=TELLING)
            for batch in batches:
                among = _range(batch.first_offset, batch.end_offset) & cursor.open
                if among:
                    self._learn(cursor, lanes, batch, among, now_us)
                    learned += BATCH_COST + len(among)
            end = batches[-1].end_offset if batches else cursor.scan
            at = next(iter(cursor.open.iter_equal_or_larger(end)), cursor.scan)
        lanes.is_indexed = True
        return True

    def _take_in_fresh(self, cursor: Cursor, lanes: Lanes, member: Member, clock: Clock, now_us: int) -> None:
        start, end = cursor.scan, cursor.log.committed_end
        try:
            while (batch := cursor.fresh_batch()) is not None:
                index = batch.index_of(cursor.scan)
                last_us = last_expiry_us(batch) if batch.ttl_us or batch.has_moments else None
                # They are gone for good: a wall clock that has just jumped ahead is not believed.
                if (
                    last_us is not None
                    and last_us <= now_us
                    and not cursor.keeps_expired
                    and last_us <= ended_us(clock, batch.append_time_us(0))
                ):
                    self._expiring.drop(cursor, [batch.offset(at) for at in range(index, len(batch))])
                else:
                    if batch.header.offset_span == len(batch):
                        among = _range(max(cursor.scan, batch.first_offset), batch.end_offset)
                    else:
                        among = OffsetSet([batch.offset(at) for at in range(index, len(batch))])
                    cursor.open |= among
                    cursor.ready |= among
                    self._learn(cursor, lanes, batch, among, now_us)
                cursor.scan = batch.end_offset
        finally:
            if cursor.scan > start:
                self._book.note_passed(cursor, member, start, [(start, cursor.scan)])
                self._book.journal.wake()
        cursor.pass_empty_tail(end)

    @staticmethod
    def _learn(cursor: Cursor, lanes: Lanes, batch: Batch, among: OffsetSet, now_us: int) -> None:
        """Learn of *batch* where the messages *among* it belong; those that are not due are ready no more."""
        lanes.index(batch, among)
        lanes.age(batch, now_us)
        due_us = last_due_us(batch)
        if due_us is None or due_us <= now_us - 2 * lanes.age_us:
            return
        dues = [
            (due_us, batch.offset(at))
            for at, due_us in enumerate(dues_us(batch, 0, len(batch)))
            if due_us is not None and due_us > now_us - 2 * lanes.age_us
        ]
        for due_us, offset in dues:
            # Also those that have failed and come back later: they too wait since they were due, and not since they were published.
            if due_us <= now_us and offset in among:
                lanes.late(due_us, (offset,), now_us)
        delayed = sorted([entry for entry in dues if entry[0] > now_us and entry[1] in among and entry[1] in cursor.ready])
        lanes.delay(delayed)
        cursor.ready -= OffsetSet([offset for _, offset in delayed])


def _range(start: int, end: int) -> OffsetSet:
    found = OffsetSet()
    found.add_range(start, end)
    return found
