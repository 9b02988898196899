"""
How far a group is in one partition.

Theory of operation
-------------------
`scan` is the first offset that was never leased; what lies behind it costs nothing, however much it is. `open` holds the offsets below
`scan` that are not finished: leased, waiting for their next delivery, or on their way to the dead letters. So the set of finished
offsets is never stored: it is all below `scan` that is not open, and the group's position, its *next offset*, is the smallest open one.

An open offset is in exactly one place: `ready` (may be leased again), `schedule` (failed, and waits until it is due again), `delays` (was
never to be delivered before some moment), `moving` (being dead-lettered), or with a member. In a topic with priorities `lanes` hold what
is ready, sorted, and `ready` is their inbox.

After a restart all that waits is ready. Whoever leases finds out what is not due yet, and puts it where it belongs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, Unavailable
from penstock.format import columns as c
from penstock.groups.delays import Delays
from penstock.groups.failures import Failures
from penstock.groups.lanes import Lanes
from penstock.groups.schedule import Schedule
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from penstock.format.batch import Batch
    from penstock.groups.member import Member
    from penstock.log.partition_log import PartitionLog

READ_BYTES = 256 * 1024
TELLING = (c.OFFSETS, c.DELIVER, c.EXPIRES, c.PRIORITY, c.TIME, c.RUNS)
"""The columns that tell which messages there are, and whether they are to be handed out now."""
_NEAR_BYTES = 1024
_NEAR_OFFSETS = 64


class Cursor:
    """One partition of a group. Guarded by the group's lock."""

    __slots__ = (
        "_batches", "_near", "_near_bytes", "delays", "epoch", "failures", "generation", "has_arrivals", "is_fired",
        "keeps_expired", "lanes", "log", "member", "moving", "open", "partition", "ready", "scan", "schedule", "successor", "suspects",
    )  # fmt: skip

    def __init__(self, partition: int, scan: int) -> None:
        self.partition = partition
        self.generation = 0
        """+1 with each seek."""
        self.epoch = 0
        """+1 whenever what members hold of it becomes void: seeks, and in ordered groups failures and moves."""
        self.scan = scan
        self.open = OffsetSet()
        self.ready = OffsetSet()
        self.schedule = Schedule()
        self.moving = OffsetSet()
        self.suspects = OffsetSet()
        """Offsets that a dead member held: one of them may have killed it, so they are handed out one at a time, and that is noted."""
        self.failures = Failures()
        self.log: PartitionLog = None  # type: ignore[assignment]  # set before the group is used
        self.member: Member | None = None
        """Whose it is, in an ordered group."""
        self.successor: Member | None = None
        """To whom it goes as soon as its member has finished what it was handed."""
        self.has_arrivals = False
        """Whether it is in the book's `arrivals`."""
        self._batches: list[Batch] = []
        self._near: list[Batch] = []
        self._near_bytes = 1
        self.delays = Delays()
        self.is_fired = False
        """Whether something that was delayed is due."""
        self.lanes: Lanes | None = None
        self.keeps_expired = False
        """Whether what expires becomes a dead letter."""

    def attach(self, log: PartitionLog, *, nests: bool) -> None:
        """Give it its log. *nests*: its topic is one of dead letters, and has none itself."""
        self.log = log
        if log is not None:
            settings = log.settings
            self.keeps_expired = settings.expired == "dead_letter" and not nests
            if settings.priorities and self.lanes is None:
                self.lanes = Lanes(settings.aging_ms * 1_000)

    @property
    def next_offset(self) -> int:
        """The first offset that is not finished."""
        return self.open.min() if self.open else self.scan

    def backlog(self) -> int:
        """How many messages could be leased now, about."""
        waiting = len(self.ready) if self.lanes is None else len(self.ready) + len(self.lanes)
        return max(self.log.committed_end - self.scan, 0) + waiting + self.is_fired

    def has_more(self) -> bool:
        """Whether there is something to lease, now or when nothing stands in its way any more."""
        return (
            bool(self.ready)
            or self.log.committed_end > self.scan
            or self.is_fired
            or (self.lanes is not None and bool(self.lanes))
        )

    def next_due_us(self) -> int | None:
        """When the next message that is delayed is due."""
        if self.lanes is None:
            return self.delays.next_due()
        return min([due_us for due_us in (one.next_due() for one in self.lanes.delays) if due_us is not None], default=None)

    def unfinished(self) -> int:
        """How many messages are not finished; what retention took does not count."""
        start = self.log.log_start
        count = max(self.log.committed_end - max(self.scan, start), 0) + len(self.open)
        if self.open and self.open.min() < start:
            count -= self.open.range_cardinality(0, start)
        return count

    def lease_range(self, start: int, end: int) -> None:
        """Offsets [start, end) are leased; what lies below `scan` was leased before, and is open or finished already."""
        if end > self.scan:
            self.open.add_range(max(start, self.scan), end)
            self.scan = end

    def finish(self, offset: int) -> None:
        """*offset* is done, however."""
        self.open.discard(offset)
        if self.failures.offsets:
            self.failures.discard(offset)
        if self.suspects:
            self.suspects.discard(offset)

    def finish_all(self, offsets: OffsetSet) -> None:
        """All of *offsets* are done."""
        if offsets and offsets.max() >= self.scan:
            # Acknowledged, so it was leased; the record of that came too late for the crash.
            self.lease_range(self.scan, offsets.max() + 1)
        self.open -= offsets
        self.ready -= offsets
        self.schedule.offsets -= offsets
        self.moving -= offsets
        self.suspects -= offsets
        for offset in offsets & self.failures.offsets:
            self.failures.discard(offset)

    def finish_below(self, offset: int) -> None:
        """Everything below *offset* is done."""
        for bitmap in (self.open, self.ready, self.schedule.offsets, self.moving, self.suspects):
            if bitmap:
                bitmap.remove_range(0, offset)
        if self.failures.offsets:
            self.failures.remove_range(0, offset)
        if self.scan < offset:
            self.scan = offset
            self._batches = []

    def move_to(self, offset: int, generation: int) -> None:
        """Begin anew at *offset*."""
        self.generation = generation
        self.epoch += 1
        self.scan = offset
        for bitmap in (self.open, self.ready, self.moving, self.suspects):
            bitmap.clear()
        self.schedule.clear()
        self.failures.clear()
        self._batches = []
        self.delays = Delays()
        self.is_fired = False
        if self.lanes is not None:
            self.lanes = Lanes(self.lanes.age_us)

    def cut_at(self, end: int) -> int:
        """The log ends at *end*, before what the cursor has seen: a weak mode lost the rest. Returns how many offsets that were."""
        lost = self.scan - end
        if lost <= 0:
            return 0
        self.scan = end
        for bitmap in (self.open, self.ready, self.schedule.offsets, self.moving, self.suspects):
            if bitmap:
                bitmap.remove_range(end, end + lost)
        self.failures.remove_range(end, end + lost)
        return lost

    def cold_offset(self) -> int | None:
        """The offset to be read next, if it lies in a segment that is not written to any more, and so perhaps only on the disk."""
        offset = self.ready.min() if self.ready else self.scan
        active = self.log.active
        if active is None or offset >= active.first_offset or offset >= self.log.committed_end:
            return None
        if not self.ready and self._batches and self._batches[-1].end_offset > offset:
            return None
        return offset

    def fresh_batch(self) -> Batch | None:
        """
        The batch that holds the first message at or behind `scan`; None at the end of the log.

        In a topic with priorities only what tells is verified: nothing is handed out of this batch, and all that is committed is looked at.

        Raises what `PartitionLog.read` raises.
        """
        batches = self._batches
        while batches:
            if batches[-1].end_offset > self.scan:
                return batches[-1]
            batches.pop()
        if self.scan >= self.log.committed_end and self.scan >= self.log.log_start:
            return None
        # Kept in reverse, so that the next one is taken off the end.
        if self.lanes is None:
            self._batches = self.log.read(self.scan, READ_BYTES)[::-1]
        else:
            self._batches = self.log.read(self.scan, READ_BYTES, verify=False, columns=TELLING)[::-1]
        return self._batches[-1] if self._batches else None

    def pass_empty_tail(self, end: int) -> None:
        """
        Move `scan` to *end*, the committed end from before `fresh_batch` returned None: everything between was removed.

        Vacuum, expiry and compaction remove messages from the middle and the end of a log. A gap in the middle is passed with the next
        batch. After a gap at the end there is none, and the group would lag for ever. Nothing is journaled: a process that opens the
        store finds the same gap. Call it after noting what was leased, since notes must not name offsets that are gone.
        """
        self.scan = max(self.scan, end)

    def batch_at(self, offset: int) -> Batch | None:
        """The batch that holds *offset*; None if the message is gone."""
        batches = self.log.read(offset, 1)
        if not batches:
            return None
        batch = batches[0]
        index = batch.index_of(offset)
        if index >= len(batch) or batch.offset(index) != offset:
            return None
        return batch

    def batch_near(self, offset: int) -> Batch | None:
        """
        `batch_at` for one who goes forward in jumps: what was read stays, and more is read at once if that helps.

        Only what tells is verified: `verify` it before anything of it is handed out.
        """
        near = self._near
        at = bisect_right(near, offset, key=_first_offset) - 1
        if at < 0 or offset >= near[at].end_offset:
            # Twice as much where the last read ended, and little after a jump.
            goes_on = bool(near) and near[-1].end_offset <= offset < near[-1].end_offset + _NEAR_OFFSETS
            self._near_bytes = min(self._near_bytes * 4, READ_BYTES) if goes_on else _NEAR_BYTES
            self._near = near = self.log.read(offset, self._near_bytes, verify=False, columns=TELLING)
            at = 0
            if not near:
                return None
        batch = near[at]
        index = batch.index_of(offset)
        return batch if index < len(batch) and batch.offset(index) == offset else None

    def verify(self, batch: Batch) -> None:
        """See that all of *batch*, which `batch_near` gave, is as it was written. Raises what `PartitionLog.read` raises."""
        try:
            batch.verify()
        except BadBytes:
            # It says in which file, and where. If it finds nothing, then the file was repaired, or another one has taken over.
            self._near = []
            self.log.read(batch.first_offset, 1)
            raise Unavailable(f"offset {batch.first_offset} was being changed while it was read") from None

    def forget_batches(self) -> None:
        """Let go of what was read ahead."""
        self._batches = []
        self._near = []


def _first_offset(batch: Batch) -> int:
    return batch.header.first_offset
