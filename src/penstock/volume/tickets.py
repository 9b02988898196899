"""The changes that a volume commits, as tickets of the commit cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.journal.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.format.batch import EncodedBatch
    from penstock.journal.ticket import Leader
    from penstock.log.partition_log import PartitionLog
    from penstock.log.staged_segment import StagedSegment

ENTRY_OVERHEAD_BYTES = 96
"""More than any entry of a frame takes besides its batch."""


class AppendTicket(Ticket):
    """One batch for one log; after the commit `first_offset` and `append_time_us` are set."""

    __slots__ = ("append_time_us", "batch", "first_offset", "log")

    def __init__(self, leader: Leader, log: PartitionLog, batch: EncodedBatch) -> None:
        # As in Ticket.__init__, which is not called: there is one such ticket for every publish.
        self.done = False
        self.error = self._waiters = self._callback = None
        self._leader = leader
        self.frame_bytes = len(batch.data) + ENTRY_OVERHEAD_BYTES
        self.log = log
        self.batch = batch
        self.first_offset: int | None = None
        self.append_time_us: int | None = None


class Append(NamedTuple):
    """A batch for a log, as one of several changes."""

    log: PartitionLog
    batch: EncodedBatch


class Adopt(NamedTuple):
    """A staged file that becomes a segment of a log, behind an append to the same log in the same changes."""

    log: PartitionLog
    staged: StagedSegment


class MoveLogStart(NamedTuple):
    """Messages of a log before *offset* are removed."""

    log: PartitionLog
    offset: int


class Other(NamedTuple):
    """A change that a layer above understands."""

    owner: int
    body: bytes


Change = Append | Adopt | MoveLogStart | Other


class ChangesTicket(Ticket):
    """Several changes that happen together or not at all; after the commit `first_offsets` has one for each append and adoption."""

    __slots__ = ("append_time_us", "changes", "first_offsets")

    def __init__(self, leader: Leader, changes: Sequence[Change]) -> None:
        size = sum(
            len(change.batch.data) if isinstance(change, Append) else len(change.body) if isinstance(change, Other) else 0
            for change in changes
        )
        super().__init__(leader, size + ENTRY_OVERHEAD_BYTES * len(changes))
        self.changes = list(changes)
        self.first_offsets: list[int] = []
        self.append_time_us: int | None = None
