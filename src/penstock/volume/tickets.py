"""The changes that a volume commits, as tickets of the commit cycle."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.errors import BatchTooLarge
from penstock.journal.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.errors import PenstockError
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


class TimedAppendTicket(AppendTicket):
    """The same while somebody measures: *observe* is told the topic, and the seconds until it was committed; nothing if it was refused."""

    __slots__ = ("_began", "_observe")

    def __init__(self, observe: Callable[[str, float], None], leader: Leader, log: PartitionLog, batch: EncodedBatch) -> None:
        # As in AppendTicket.__init__, for the same reason.
        self.done = False
        self.error = self._waiters = self._callback = None
        self._leader = leader
        self.frame_bytes = len(batch.data) + ENTRY_OVERHEAD_BYTES
        self.log = log
        self.batch = batch
        self.first_offset = self.append_time_us = None
        self._observe = observe
        self._began = time.perf_counter()

    def finish(self, error: PenstockError | None = None) -> None:
        """Mark it as done and wake whoever waits."""
        if error is None:
            self._observe(self.log.identity.topic, time.perf_counter() - self._began)
        super().finish(error)


class Append(NamedTuple):
    """A batch for a log, as one of several changes."""

    log: PartitionLog
    batch: EncodedBatch


class Adopt(NamedTuple):
    """A staged file that becomes a segment of a log, behind an append to the same log in the same changes."""

    log: PartitionLog
    staged: StagedSegment


class Outgrown(BatchTooLarge):
    """The state of logs has outgrown the room in front of the batches of staged files; nothing was changed. Never leaves the store."""

    def __init__(self, what: str, size: int, limit: int, paths: Sequence[str]) -> None:
        super().__init__(what, size, limit)
        self.args = (what, size, limit, paths)
        self.paths = paths


class MoveLogStart(NamedTuple):
    """Messages of a log before *offset* are removed."""

    log: PartitionLog
    offset: int


class Other(NamedTuple):
    """A change that a layer above understands; *carry_out* does to its memory what the body says, else the layer reads the body."""

    owner: int
    body: bytes
    carry_out: Callable[[], None] | None = None


Change = Append | Adopt | MoveLogStart | Other


class ChangesTicket(Ticket):
    """Several changes that happen together or not at all; after the commit `first_offsets` has one for each append and adoption."""

    __slots__ = (
        "append_time_us", "changes", "distinct", "entry_bytes", "essential", "first_offsets", "largest_bytes", "written_ahead",
    )  # fmt: skip

    def __init__(self, leader: Leader, changes: Sequence[Change]) -> None:
        logs: set[PartitionLog] = set()
        appends = batch_bytes = largest_bytes = body_bytes = 0
        written_ahead = False
        for change in changes:
            kind = type(change)
            if kind is Append:
                log, batch = cast("Append", change)
                size = len(batch.data)
                appends += 1
                batch_bytes += size
                largest_bytes = max(largest_bytes, size)
                logs.add(log)
                written_ahead |= not log.always
            elif kind is Other:
                body_bytes += len(change.body)  # type: ignore[union-attr]
            elif kind is Adopt:
                written_ahead = True
        super().__init__(leader, batch_bytes + body_bytes + ENTRY_OVERHEAD_BYTES * len(changes))
        self.changes = changes
        self.essential = False
        """Whether its batches may have a part of the reserve on a full disk."""
        self.first_offsets: list[int] = []
        self.append_time_us: int | None = None
        self.entry_bytes = body_bytes + ENTRY_OVERHEAD_BYTES * len(changes)
        """What a frame must hold of it in any case: batches that do not fit travel by reference."""
        self.largest_bytes = largest_bytes
        """The length of its largest batch; 0 if there is none."""
        self.distinct = len(logs) == appends
        """Whether no log gets more than one batch."""
        self.written_ahead = written_ahead
        """Whether something of it goes to its log before the frame, however small it is."""


class TimedChangesTicket(ChangesTicket):
    """The same for batches that one publish has for several partitions, while somebody measures; see `TimedAppendTicket`."""

    __slots__ = ("_began", "_observe")

    def __init__(self, observe: Callable[[str, float], None], leader: Leader, changes: Sequence[Change]) -> None:
        super().__init__(leader, changes)
        self._observe = observe
        self._began = time.perf_counter()

    def finish(self, error: PenstockError | None = None) -> None:
        """Mark it as done and wake whoever waits."""
        if error is None:
            seconds = time.perf_counter() - self._began
            for topic in {cast("Append", change).log.identity.topic for change in self.changes}:
                self._observe(topic, seconds)
        super().finish(error)


class TogetherTicket(Ticket):
    """
    Small batches, none for the same log as another, and entries of layers above: together or not at all.

    The batches are either all encoded, or all of them still single values (and *batches* is empty then): see `plan_values`.

    What most transactions are: a `ChangesTicket` of which nothing need be asked. After the commit `first_offsets` has one for each batch.
    """

    __slots__ = ("batches", "first_offsets", "logs", "others", "values")

    def __init__(
        self,
        leader: Leader,
        logs: Sequence[PartitionLog],
        batches: Sequence[EncodedBatch],
        values: Sequence[bytes],
        others: Sequence[Other],
        frame_bytes: int,
    ) -> None:
        super().__init__(leader, frame_bytes)
        self.logs = logs
        self.batches = batches
        self.values = values
        self.others = others
        self.first_offsets: list[int] = []
