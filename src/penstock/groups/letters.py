"""
Groups over the dead letters of a topic: they get the letters that are there, and finishing one there takes it out.

Which letters are there is the state of one group, the *box* (`dead_letters.BOX_GROUP`), and of nothing else: `dlq list`, counts, metrics
and these groups all ask it. A letter that was replayed, discarded or has expired is passed over when a group comes to it. A letter that
a group finishes, by an ack, a commit or a transaction, is finished in the box too, in the same frame, unless another group of the topic
has not finished it: then it stays until that one has. So no group loses a letter by what another one does, and with one group an ack
discards it.

Locks: the box's lock is taken under the lock of a group, never the other way round, and is the last one of all (see `registry.snapshot`).
Other groups are looked at without their locks: who finishes a letter changes its own cursor first, then looks at the others under the
box's lock, so of two that finish the same letter at once the second one sees both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.groups import operations as ops
from penstock.groups.dead_letters import BOX_GROUP
from penstock.groups.group import Group
from penstock.groups.reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery
    from penstock.groups.member import Member
    from penstock.groups.registry import Groups
    from penstock.offset_set import OffsetSet
    from penstock.settings import GroupSettings

_TOGETHER = ops.FINISHED_PER_OPERATION // 2
"""So many letters are finished by one note, which has them twice and must fit into a frame."""


def is_there(box: Group, partition: int, offset: int) -> bool:
    """Whether the letter at *offset* was neither sent back, nor thrown away, nor finished by those who wanted it."""
    with box.lock:
        return _is_unfinished(box.cursors[partition], offset)


def _is_unfinished(cursor: Cursor, offset: int) -> bool:
    return offset >= cursor.scan or offset in cursor.open


def unfinished(cursor: Cursor, start: int, end: int) -> OffsetSet:
    """The offsets from *start* up to, not with, *end* that a cursor has not finished."""
    found = cursor.open.copy()
    if found:
        found.remove_range(0, start)
        found.remove_range(end, ops.OFFSET_MAX)
    if end > max(start, cursor.scan):
        found.add_range(max(start, cursor.scan), end)
    return found


class LetterGroup(Group):
    """A group of users over dead letters. See `Group`."""

    def __init__(
        self, identity: int, topic_id: bytes, topic: str, name: str, settings: GroupSettings, starts: Sequence[int], registry: Groups,
        seen_us: int = 0,
    ) -> None:  # fmt: skip
        self._registry = registry
        super().__init__(identity, topic_id, topic, name, settings, starts, LetterJournal(registry, self), seen_us)

    @property
    def box(self) -> Group | None:
        """What knows which letters are there; None as long as nobody asked for them or subscribed."""
        return self._registry.find(self.topic_id, BOX_GROUP)

    @property
    def others(self) -> list[Group]:
        """The other groups of users over the same letters."""
        return [one for one in self._registry.of_topic(self.topic_id) if isinstance(one, LetterGroup) and one is not self]

    def take(self, member: Member, count: int, *, pushed: bool = False) -> list[Delivery]:
        while True:
            found = super().take(member, count, pushed=pushed)
            box = self.box
            if box is None or not found:
                return found
            there = [one for one in found if is_there(box, one.partition, one.offset)]
            if len(there) < len(found):
                self._pass_over([one for one in found if not any(one is kept for kept in there)])
            if there:
                return there

    def _pass_over(self, deliveries: Sequence[Delivery]) -> None:
        """Their letters are gone: they are finished here too, and nobody was given them."""
        try:
            with self.lock:
                for delivery in deliveries:
                    self.counters.acked -= self._settling.ack_one(delivery)
                    self.counters.delivered -= 1
                    self.counters.redelivered -= delivery.attempt > 1
            self._journal.wake()
        except BaseException as error:
            self._mend_after(error)
            raise

    def reserve_acks(self, deliveries: Sequence[Delivery], reserved: list[Reservation]) -> Reservation:
        plain = super().reserve_acks(deliveries, reserved)
        box = self.box
        if box is None:
            return plain
        by_partition: dict[int, list[int]] = {}
        for delivery in deliveries:
            by_partition.setdefault(delivery.partition, []).append(delivery.offset)
        with box.lock:
            boxed = [self.box_operations(box, partition, offsets) for partition, offsets in by_partition.items()]
        found = LetterReservation(self, plain.places, plain.operations, b"".join(boxed))
        reserved[reserved.index(plain)] = found
        return found

    def box_operations(self, box: Group, partition: int, offsets: Sequence[int]) -> bytes:
        """What finishes those of *offsets* in the box that every other group has finished; the caller holds the box's lock."""
        cursor, others = box.cursors[partition], [one.cursors[partition] for one in self.others]
        done = sorted(
            offset
            for offset in offsets
            if _is_unfinished(cursor, offset) and not any(_is_unfinished(other, offset) for other in others)
        )
        return b"".join(ops.encode_finished(partition, box.identity, cursor.generation, done)) if done else b""

    def box_operations_below(self, box: Group, partition: int, end: int) -> bytes:
        """The same for all letters below *end*."""
        wanted = unfinished(box.cursors[partition], 0, end)
        for other in self.others:
            wanted -= unfinished(other.cursors[partition], 0, end)
        if not wanted:
            return b""
        return b"".join(ops.encode_finished(partition, box.identity, box.cursors[partition].generation, list(wanted)))

    def finish_in_box(self, places: Sequence[Any], boxed: bytes) -> None:
        """A transaction is committed whose frame has *boxed*: the box knows it, and what others finished meanwhile."""
        box = self.box
        if box is None:
            return
        with box.lock:
            apply_to(box, boxed)
            late = b"".join([self.box_operations(box, delivery.partition, [delivery.offset]) for delivery, *_ in places])
            if late:
                apply_to(box, late)
                self._registry.note(late)
        self._journal.wake()

    def _common(self) -> dict[int, OffsetSet]:
        """The letters of each partition that are there and that this group has not finished. The caller holds the lock."""
        box = self.box
        found: dict[int, OffsetSet] = {}
        for cursor in self.cursors:
            start, end = cursor.log.log_start, cursor.log.committed_end
            own = unfinished(cursor, start, end)
            if box is not None:
                with box.lock:
                    own &= unfinished(box.cursors[cursor.partition], start, end)
            found[cursor.partition] = own
        return found

    def lag(self) -> int:
        return sum(len(letters) for letters in self._common().values())

    def positions(self) -> dict[int, int]:
        found = self._common()
        return {
            cursor.partition: found[cursor.partition].min() if found[cursor.partition] else cursor.log.committed_end
            for cursor in self.cursors
        }


class LetterReservation(Reservation):
    """Acks of letters in a transaction: the box is changed by the same frame."""

    __slots__ = ("_boxed",)

    def __init__(self, group: LetterGroup, places: list[Any], operations: list[bytes], boxed: bytes) -> None:
        super().__init__(group, places, [*operations, boxed] if boxed else operations)
        self._boxed = boxed

    def finish(self) -> None:
        super().finish()
        assert isinstance(self.group, LetterGroup)
        self.group.finish_in_box(self.places, self._boxed)


class LetterJournal:
    """The journal of such a group: what it finishes is finished in the box by the same note, so that no frame has half of it."""

    def __init__(self, registry: Groups, group: LetterGroup) -> None:
        self._registry = registry
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def note(self, operation: bytes) -> None:
        """See `Journal`."""
        first = next(iter(ops.operations(operation)))
        box = self._group.box if first.kind == ops.COMMITTED else None
        if box is None:
            self._registry.note(operation)
            return
        with box.lock:
            boxed = self._group.box_operations_below(box, first.partition, ops.decode_offset(first))
            self._registry.note(operation + boxed)
            apply_to(box, boxed)

    def note_finished(self, cursor: Cursor, group_id: int, offsets: Sequence[int]) -> None:
        """See `Journal`."""
        box = self._group.box
        if box is None:
            self._registry.note_finished(cursor, group_id, offsets)
            return
        with box.lock:
            for at in range(0, len(offsets), _TOGETHER):
                part = offsets[at : at + _TOGETHER]
                boxed = self._group.box_operations(box, cursor.partition, part)
                own = ops.encode_finished(cursor.partition, group_id, cursor.generation, part)
                self._registry.note(b"".join(own) + boxed)
                apply_to(box, boxed)


def apply_to(box: Group, operations: bytes) -> None:
    """Carry out *operations* of the box, as when they are replayed; the caller holds its lock."""
    for operation in ops.operations(operations):
        box._apply(operation)  # noqa: SLF001
