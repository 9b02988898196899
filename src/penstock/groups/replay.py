"""
What the journal tells of the time before the store was opened, and what follows from it for a group.

When a member dies with its process, the journal knows what it had leased and not which of it it was working on. That is what the file
of hands is for (`hands.py`): what was in somebody's hands counts as failed, and the rest comes back as if nothing had been. If several
messages were in the hands of the process, nobody knows which of them it was. So they become *suspects*: from now on each of them is
handed out alone, after everything before it is durable and a note that it was begun, and the next death is put down to it and not to
what else is handled meanwhile. This is how a poison message is found among healthy neighbours.

Where that file does not tell, because the power failed or the member held more than it said it would handle at once, the journal must do:
as many of the oldest as the member could have been handling count as failed, and all that it had leased become suspects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.groups import operations as ops
from penstock.groups.book import OFFSET_END
from penstock.groups.dead_member import DeadMember
from penstock.groups.failures import Failure
from penstock.log_events import event, get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.hands import HandsBefore
    from penstock.offset_set import OffsetSet

_log = get_logger("penstock")


class _Found(NamedTuple):
    """What a member had in its hands and is not finished."""

    places: list[tuple[int, int]]
    many: bool


class Replay:
    """
    Carries out the journal's operations on one group, replayed or just committed. Guarded by the group's lock.

    It remembers the members of before, and when what failed is due, until all is replayed. Operations that are committed later
    only finish messages and move cursors: the others are made already when they are noted.
    """

    __slots__ = ("_book", "_dead", "_due_us")

    def __init__(self, book: Book) -> None:
        self._book = book
        self._dead: dict[int, DeadMember] = {}
        self._due_us: dict[int, dict[int, int]] = {}
        """By partition and offset, in wall-clock time."""

    # -- operations -------------------------------------------------------------------------------------------------

    def left(self, member: int) -> None:
        """It left in order."""
        self._dead.pop(member, None)

    def moved(self, cursor: Cursor) -> None:
        """The cursor was moved: nobody holds anything of it."""
        for dead in self._dead.values():
            dead.let_go(cursor.partition, 0, OFFSET_END)
        self._due_us.pop(cursor.partition, None)

    def apply(self, cursor: Cursor, operation: ops.Operation) -> None:
        """Carry out an operation on *cursor*, of its generation. Raises `Corrupt`."""
        kind = operation.kind
        if kind == ops.FINISHED:
            self._finished(cursor, ops.decode_bitmap(operation.body))
        elif kind == ops.POSITION:
            cursor.scan, cursor.open = ops.decode_position(operation)
        elif kind == ops.SUSPECTS:
            cursor.suspects = ops.decode_bitmap(operation.body) & cursor.open
        elif kind == ops.COMMITTED:
            offset = ops.decode_offset(operation)
            if offset > cursor.next_offset:
                cursor.finish_below(offset)
        elif kind == ops.LEASED:
            self._leased(cursor, operation)
        elif kind == ops.RETURNED:
            self._returned(cursor, operation)
        elif kind == ops.BEGUN:
            self._begun(cursor, operation)
        else:
            raise UnsupportedFormat("the journal", f"group operation {kind}")

    def _finished(self, cursor: Cursor, offsets: OffsetSet) -> None:
        if offsets and offsets.max() - cursor.scan > ops.SPAN_MAX:
            raise BadBytes("group operation", "finishes what lies impossibly far ahead")
        cursor.finish_all(offsets)
        for dead in self._dead.values():
            dead.held[cursor.partition] -= offsets

    def failed(self, cursor: Cursor, operation: ops.Operation) -> None:
        """One message failed, or a snapshot tells of many that had failed alike."""
        if operation.kind == ops.FAILED:
            failed = ops.decode_failed(operation)
            offsets: Sequence[int] | OffsetSet = (failed.offset,)
        else:
            failed, all_offsets = ops.decode_failed_all(operation)
            offsets = all_offsets & cursor.open
        failure = self._book.shared_failure(
            Failure(failed.count, failed.first_s, failed.last_s, failed.reason, failed.condemned)
        )
        due_us = self._due_us.setdefault(cursor.partition, {})
        for offset in offsets:
            if offset in cursor.open:
                cursor.failures[offset] = failure
                due_us[offset] = failed.due_us
                if operation.kind == ops.FAILED:
                    cursor.suspects.discard(offset)
                    for dead in self._dead.values():
                        dead.let_go(cursor.partition, offset, offset + 1)

    def _leased(self, cursor: Cursor, operation: ops.Operation) -> None:
        """A member leased messages, perhaps some that another one had."""
        member, concurrency, ranges = ops.decode_ranges(operation)
        if member not in self._dead:
            self._dead[member] = DeadMember(concurrency, len(self._book.cursors))
        for start, end in ranges:
            cursor.lease_range(start, end)
            for identity, dead in self._dead.items():
                if identity != member:
                    dead.let_go(cursor.partition, start, end)
        self._dead[member].lease(cursor.partition, ranges)

    def _returned(self, cursor: Cursor, operation: ops.Operation) -> None:
        """A member gave messages back, which is nobody's fault."""
        member, _, ranges = ops.decode_ranges(operation)
        if member in self._dead:
            for start, end in ranges:
                self._dead[member].let_go(cursor.partition, start, end)

    def _begun(self, cursor: Cursor, operation: ops.Operation) -> None:
        """A member was about to be handed a suspect."""
        member, offset = ops.decode_begun(operation)
        if member in self._dead:
            self._dead[member].begun.add((cursor.partition, offset))

    # -- the end ----------------------------------------------------------------------------------------------------

    def _find_hands(self, ends: Sequence[int], before: HandsBefore) -> dict[int, _Found]:
        """What the members of this group had in their hands and is not finished, by member."""
        book = self._book
        hands: dict[int, _Found] = {}
        for (group_id, member), (places, many) in before.members.items():
            if group_id != book.identity:
                continue
            found = hands[member] = _Found([], many)
            for partition, offset in places:
                if partition >= len(book.cursors) or offset >= ends[partition]:
                    continue  # lost by a log with a weak mode
                cursor = book.cursors[partition]
                # It was handed out, so it was leased; the record of that came too late for the crash.
                cursor.lease_range(cursor.scan, offset + 1)
                if offset in cursor.open:
                    found.places.append((partition, offset))
        return hands

    def end(self, ends: Sequence[int], now: float, now_us: int, before: HandsBefore | None) -> None:
        """All is replayed, and the logs end at *ends*. Count what the dead were working on, and let the rest come again."""
        book = self._book
        for cursor, end in zip(book.cursors, ends, strict=True):
            lost = cursor.cut_at(end)
            if lost:
                book.counters.lost += lost
                _log.warning(
                    "group %s of topic %s had seen offsets [%d, %d) of partition %d, which the log has lost",
                    book.name, book.topic, end, end + lost, cursor.partition,
                    extra=event("messages_lost", topic=book.topic, group=book.name, partition=cursor.partition, messages=lost),
                )  # fmt: skip
        hands = {} if before is None else self._find_hands(ends, before)
        for member in {**self._dead, **hands}:
            found = hands.get(member)
            if found is not None and not found.many:
                self._bury_with_hands(found.places, now_us)
            elif member in self._dead and (found is not None or before is None or not before.complete):
                self._bury(self._dead[member], now_us)
        if any(found.many for found in hands.values()):
            # Who held more than words can name may have had them from another whose lease had ended, which the journal does not tell yet.
            for dead in self._dead.values():
                for offsets, cursor in zip(dead.held, book.cursors, strict=True):
                    cursor.suspects |= offsets & cursor.open
        self._dead = {}
        for cursor in book.cursors:
            for offset, due_us in self._due_us.get(cursor.partition, {}).items():
                delay_s = (due_us - now_us) / 1e6
                failure = cursor.failures.get(offset)
                if delay_s > 0 and failure is not None and offset not in cursor.suspects:
                    # The wall clock may have been set back meanwhile: it waits no longer than it was told to.
                    told_s = due_us / 1e6 - failure.last_s
                    book.schedule(cursor, offset, now, max(0.0, min(delay_s, told_s)))
            cursor.ready = cursor.open - cursor.schedule.offsets
        self._due_us = {}
        book.forget_offers()
        book.suspected = [cursor for cursor in book.cursors if cursor.suspects]

    def _bury_with_hands(self, places: list[tuple[int, int]], now_us: int) -> None:
        """It is known what the dead had in its hands: all else it held comes back as if it had never been leased."""
        cursors = self._book.cursors
        begun = [(partition, offset) for partition, offset in places if offset in cursors[partition].suspects]
        for partition, offset in begun or places:
            self._count(cursors[partition], offset, now_us)
        for partition, offset in places:
            cursors[partition].suspects.add(offset)

    def _bury(self, dead: DeadMember, now_us: int) -> None:
        """Only the journal tells of the dead: as many as it handled at once count, the oldest, and all are suspects."""
        cursors = self._book.cursors
        unfinished = [offsets & cursor.open for offsets, cursor in zip(dead.held, cursors, strict=True)]
        guilty = [(partition, offset) for partition, offset in dead.begun if offset in unfinished[partition]]
        if not guilty:
            # A suspect that was not begun was not handed out: it cannot have done it.
            possible = [offsets - cursor.suspects for offsets, cursor in zip(unfinished, cursors, strict=True)]
            guilty = dead.oldest(possible)
        for partition, offset in guilty:
            self._count(cursors[partition], offset, now_us)
        for cursor, offsets in zip(cursors, unfinished, strict=True):
            cursor.suspects |= offsets

    def _count(self, cursor: Cursor, offset: int, now_us: int) -> None:
        known = cursor.failures.get(offset)
        cursor.failures[offset] = self._book.shared_failure(
            Failure(
                1 if known is None else known.count + 1,
                now_us // 1_000_000 if known is None else known.first_s,
                now_us // 1_000_000,
                "the consumer's process died",
            )
        )
