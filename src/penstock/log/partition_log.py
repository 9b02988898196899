"""
The log of one partition: segments that follow each other, of which the last one takes new batches.

Theory of operation
-------------------
A batch is appended in one of two ways.

- *Planned*, by the commit cycle, for logs with ``sync=always``: `plan` assigns the offset, stamps the batch and makes sure that
  the disk has room; then the cycle journals it; then `apply_planned` writes it to the segment and `commit_planned` shows
  it to readers. The segment itself is synced by a checkpoint later: until then the journal has the batch.
- *Directly*, for logs with a weaker mode: `append` writes the batch and shows it at once.

Readers never see anything at or behind `committed_end`. They take no lock: the writer publishes a new value of
`committed_end` after everything below it is in place.

`durable_end` is the offset up to which the log's own files are known to be synced. It is stamped into every batch; a bad
batch below it is damage and never a torn tail (recovery.py).

Segments tile the offsets from `log_start` on. Which segments there are is known from their file names; a sealed one is
looked at only when somebody reads it, so that opening costs nothing for them.

A log that nobody uses has no file open: `let_go` closes what is durable, and the next use opens it again. From the first write to the
sync that covers it the same open file is kept, since a failed sync is told to that one only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock import threads as threading
from penstock.errors import (
    Closed,
    Corrupt,
    MissingData,
    NoAccess,
    OffsetOutOfRange,
    StorageFull,
    TopicNotFound,
    Unavailable,
)
from penstock.files import is_full, is_no_access, is_out_of_descriptors
from penstock.format.batch import SINGLE_ADDED_BYTES_MAX, encode_stamped, of_stamped
from penstock.format.batch_header import (
    COMPATIBLE_PREWRITTEN,
    FLAG_PRODUCER,
    clear_compatible_flag,
    set_compatible_flag,
    stamp,
)
from penstock.format.checkpoint import LogRow
from penstock.format.frame import ENTRY_BATCH, pack_entry
from penstock.format.segment import FOOTER_BYTES, SegmentHeader
from penstock.interrupts import Held
from penstock.log.index_cache import write_index_cache
from penstock.log.log_state import LogState
from penstock.log.planned_group import AdoptedGroup, PlannedGroup
from penstock.log.sealed_segment import load_sealed
from penstock.log.segment import READ_BYTES_DEFAULT, Segment, remove_segment, segment_name
from penstock.values import SyncMode, batch_bytes_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.files import Buffer, FileSystem
    from penstock.format.batch import Batch, EncodedBatch
    from penstock.log.identity import LogIdentity
    from penstock.log.staged_segment import StagedSegment
    from penstock.settings import TopicSettings


class OpenLogs(Protocol):
    """Those that have files open."""

    def add(self, log: PartitionLog, /) -> None:
        """It opens a file."""
        ...

    def discard(self, log: PartitionLog, /) -> None:
        """It has none any more."""
        ...

    def __len__(self) -> int: ...


_LARGE_STATE_BYTES = 4 * 1024
LOADED_MAX = 64
"""Sealed segments that a log keeps open; each costs a descriptor."""
COALESCE_AGAIN = 5
"""After opening so many of the last segments are looked at again for coalescing."""


class SyncWork(NamedTuple):
    """What a checkpoint must sync of a log, and what it may then say of it."""

    segments: list[Segment]
    row: LogRow


class PartitionLog:
    """
    One log. One thread writes at a time (the cycle's leader, or whoever holds `lock`); any number read.

    `identity`, `settings` and `directory` never change.
    """

    # They are so many that without slots each log would have a table of their names of its own, where one is found more slowly.
    __slots__ = (
        "_active", "_alone", "_arrival", "_arrival_lock", "_batches_from", "_closed", "_counted", "_end", "_epoch_noted", "_files",
        "_firsts", "_groups",
        "_list_lock", "_listeners", "_load_lock", "_loaded", "_names_lock", "_names_made", "_names_synced", "_replaced",
        "_roll_position", "_rolls_by_count_or_age", "_sizes", "_tail", "_tail_position", "_ttl_us", "_unsynced", "_uses",
        "_waiting", "always", "batch_bytes_max", "cached_index", "coalesced_end", "committed_end", "deleted", "directory",
        "durable_end", "end_word", "files_lock", "floors", "identity", "interval", "lock", "log_epoch", "log_id", "log_start",
        "max_time_us", "on_replaced", "open_logs", "settings", "slot", "stale_firsts", "state",
    )  # fmt: skip

    def __init__(
        self, files: FileSystem, directory: str, identity: LogIdentity, settings: TopicSettings, log_epoch: int
    ) -> None:  # fmt: skip
        self._files = files
        self.directory = directory
        self.identity = identity
        self.log_id = identity.log_id
        self.settings = settings
        self.log_epoch = log_epoch
        self.batch_bytes_max = batch_bytes_limit(settings.max_message_bytes)
        self._ttl_us = settings.ttl_ms * 1000
        self.always = settings.sync is SyncMode.ALWAYS
        """Whether its batches are committed by the journal."""
        self.interval = settings.sync is SyncMode.INTERVAL
        self.lock = threading.Lock()
        """Held while a log with a weaker mode is written."""
        self.state = LogState()
        self._epoch_noted = -1
        self.log_start = 0
        self.committed_end = 0
        self.durable_end = 0
        self.max_time_us = 0
        self.end_word = -1
        """Which word of the positions file holds the committed end."""
        self.slot = -1
        self.stale_firsts: list[int] = []
        """First offsets of segments below the start whose files recovery found."""
        self.floors: dict[str, int] = {}
        """Offsets that retention must keep, by the name of who asked."""
        self._firsts: list[int] = []  # first offsets of all segments, rising
        self._loaded: dict[int, Segment] = {}
        self._load_lock = threading.Lock()
        self.files_lock = threading.Lock()
        """Held while segment files are replaced or removed."""
        self.coalesced_end = 0
        """Segments that end at or before this offset were looked at for coalescing."""
        self._active: Segment | None = None
        self._end = 0  # the next offset to assign
        self._tail: Segment | None = None  # the segment that the next planned batch goes to
        self._tail_position = 0
        self._batches_from = 0
        """Where the batches of the tail begin, behind the log's state; 0 if this process has not made it."""
        self._alone: tuple[Segment, EncodedBatch | bytearray, int, int, int] | None = None
        """
        The one batch that was planned, with its segment, offset, time of appending and running maximum of times. If another one comes
        in the same cycle it joins that one in `_groups`: most often none does, and a group costs as much as planning and writing.
        """
        self._groups: list[PlannedGroup] = []
        self._roll_position = settings.segment_bytes - FOOTER_BYTES
        self._rolls_by_count_or_age = bool(settings.segment_messages or settings.segment_age_ms)
        self._unsynced: list[Segment] = []  # sealed segments that are not synced yet
        self._names_made = 0
        self._names_synced = 0
        self._names_lock = threading.Lock()
        self._list_lock = threading.Lock()  # over changes of the lists of segments, which are replaced and never changed
        self._sizes: dict[int, int] = {}
        self._replaced = 0
        self._counted: tuple[list[int], int, int] = ([], 0, 0)
        """For which list of segments, after how many were rewritten, the bytes of all but the last were added up, and what they are."""
        self._uses = 0
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when a segment was rewritten."""
        self.open_logs: OpenLogs = set()
        """Where a log notes that it opens a file; shared by the logs of a store."""
        self.cached_index: tuple[int, int] = (0, 0)
        """Of which segment, up to which position, the index is cached."""
        self._closed = False
        self.deleted = False
        """Whether its topic is deleted: then nothing can be appended or read any more."""
        self._listeners: list[Callable[[], None]] = []
        self._waiting = 0
        self._arrival_lock = threading.Lock()
        self._arrival = threading.Condition(self._arrival_lock)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.identity.topic}/{self.identity.partition} [{self.log_start}, {self.committed_end})>"

    @property
    def segment_firsts(self) -> list[int]:
        """The first offsets of its segments."""
        return list(self._firsts)

    @property
    def active(self) -> Segment | None:
        """The segment that takes new batches, if there is one."""
        return self._active

    # -- taken over from recovery -----------------------------------------------------------------------------------

    def adopt(self, firsts: list[int], active: Segment | None, loaded: list[Segment], end: int) -> None:
        """Begin with what recovery found on disk; *end* is the committed end."""
        self._firsts = firsts
        self._loaded = {segment.first_offset: segment for segment in loaded}
        self._active = self._tail = active
        # Older ones were looked at by the owner that sealed them; a crash may have come before that for the last few.
        self.coalesced_end = firsts[-COALESCE_AGAIN] if len(firsts) > COALESCE_AGAIN else 0
        self._end = self.committed_end = self.durable_end = end
        if active is not None:
            self._tail_position = active.position
            self._loaded[active.first_offset] = active

    # -- appending --------------------------------------------------------------------------------------------------

    def make_room(self, batch_bytes: int, count: int, now_us: int) -> None:
        """
        Make sure that a batch of this size can be appended: begin a new segment if it is time, reserve disk blocks.

        Raises `StorageFull`, or `Unavailable` if the process may open no more files; nothing is changed then. After it returned, `plan`
        of such a batch does not fail.
        """
        if self.deleted:
            raise TopicNotFound(self.identity.topic)
        tail = self._tail
        if tail is not None and tail.file is None:
            # Also before a new one is begun: this one is sealed then, when it is too late to refuse anything.
            self._open_again(tail)
        if tail is None or tail.sealed or self._must_roll(tail, batch_bytes, count, now_us):
            tail = self._begin_segment(now_us)
        tail.reserve(self._tail_position + batch_bytes)

    def _open_again(self, segment: Segment) -> None:
        """Open the file of a segment that was let go of. Raises `Unavailable` if the process may open no more; nothing is changed."""
        if self.deleted:
            raise TopicNotFound(self.identity.topic)
        self.open_logs.add(self)
        try:
            segment.open_file()
        except OSError as error:
            raise _refusal(error, segment.path) from None

    def _must_roll(self, tail: Segment, batch_bytes: int, count: int, now_us: int) -> bool:
        planned = self._end - tail.first_offset
        if not planned:
            return False  # an empty segment takes any batch, however large
        settings = self.settings
        return (
            (self._tail_position + batch_bytes + FOOTER_BYTES > settings.segment_bytes and not self._is_mostly_state())
            or (settings.segment_messages > 0 and planned + count > settings.segment_messages)
            or (settings.segment_age_ms > 0 and now_us - tail.begun_us >= settings.segment_age_ms * 1000)
        )

    def is_overdue(self, now_us: int, newest_before_us: int | None) -> bool:
        """
        Whether the active segment is to be sealed though nothing is published: it is as old as segments may get, or too old as a whole.

        That is, its newest message was appended before *newest_before_us*. A segment without messages never is. Looks at no file.
        """
        active = self._active
        if active is None or self.committed_end <= active.first_offset or self.deleted:
            return False
        age_us = self.settings.segment_age_ms * 1000
        return bool(age_us and now_us - active.begun_us >= age_us) or (
            newest_before_us is not None and active.max_time_us < newest_before_us
        )

    def roll(self, now_us: int) -> None:
        """
        Seal the active segment and let an empty one take its place, as the first batch that does not fit would.

        The caller sees to it that nobody writes meanwhile. It is durable with the next checkpoint; recovery copes with any part of it.

        Raises:
            StorageFull, Unavailable, NoAccess: the active segment takes batches as before.
            OSError: the log must not be written any more.
        """
        active, tail = self._active, self._tail
        assert active is not None
        assert not self.has_planned
        if active.file is None and not active.sealed:
            self._open_again(active)
        if tail is None or tail is active:
            tail = self._begin_segment(now_us)
        # Else it was begun for a batch that was refused.
        try:
            self._activate(tail)
        except OSError as error:
            if is_full(error):
                raise StorageFull(active.path, None, None) from None
            raise

    def _is_mostly_state(self) -> bool:
        """
        Whether the tail has little room beside the log's state, and has not yet as much of batches as of that.

        Else, where a thousand producers are remembered in small segments, each batch would begin a segment of its own, with all of them.
        """
        state_bytes = self._batches_from
        if state_bytes < _LARGE_STATE_BYTES or state_bytes * 4 < self.settings.segment_bytes * 3:
            return False
        return self._tail_position < 2 * state_bytes

    def _header_of_next(self, now_us: int) -> SegmentHeader:
        return SegmentHeader(
            store_id=self.identity.store_id,
            topic_id=self.identity.topic_id,
            partition=self.identity.partition,
            generation=0,
            first_offset=self._end,
            segment_uid=secrets.randbits(64),
            log_epoch=self.log_epoch,
            created_us=now_us,
            base_time_us=self.max_time_us,
        )

    def _begin_segment(self, now_us: int) -> Segment:
        path = os.path.join(self.directory, segment_name(self._end))
        header = self._header_of_next(now_us)
        self.open_logs.add(self)
        try:
            segment = Segment.create(self._files, path, header, self.state.encode(), self.settings.index_interval_bytes)
        except OSError as error:
            raise _refusal(error, path) from None
        self._names_made += 1
        self._tail = segment
        self._tail_position = self._batches_from = segment.position
        return segment

    def has_room(self, batch_bytes: int) -> bool:
        """Whether `make_room` would have nothing to do: the quick look that almost always suffices."""
        tail = self._tail
        end = self._tail_position + batch_bytes
        return tail is not None and end <= tail.reserved_end and end <= self._roll_position and not self._rolls_by_count_or_age

    def plan(self, batch: EncodedBatch, now_us: int, *, prewritten: bool = False) -> int:
        """
        Give *batch* the next offset and stamp it; return the offset. `make_room` came before.

        Nothing is written and nothing is shown yet; an offset that was planned is never given to another batch, so after a
        failure the log must not be written any more.
        """
        tail = self._tail
        assert tail is not None
        first = self._end
        max_time_us = self.max_time_us
        if now_us > max_time_us:
            self.max_time_us = max_time_us = now_us
        data = batch.data
        if prewritten:
            set_compatible_flag(data, COMPATIBLE_PREWRITTEN)
        elif data[16] & COMPATIBLE_PREWRITTEN:
            clear_compatible_flag(data, COMPATIBLE_PREWRITTEN)
        epoch = self.log_epoch
        # As in `_stamp_into`, which is not called: there is one of these for every message that is published alone.
        stamp(data, batch.header_bytes, first, now_us, max_time_us, tail.uid, self.durable_end, epoch)
        if self._alone is None and not self._groups:
            self._alone = tail, batch, first, now_us, max_time_us
        else:
            self._add_planned(tail, batch, first, now_us, max_time_us)
        if epoch > self._epoch_noted or data[14] & FLAG_PRODUCER:
            self._note_state(batch, first, now_us, epoch)
        self._end = first + batch.offset_span
        self._tail_position += len(data)
        return first

    def _stamp_into(
        self, tail: Segment, batch: EncodedBatch, first: int, append_time_us: int, epoch: int, *, note: bool = True
    ) -> None:
        data, max_time_us = batch.data, self.max_time_us
        stamp(data, batch.header_bytes, first, append_time_us, max_time_us, tail.uid, self.durable_end, epoch)
        self._add_planned(tail, batch, first, append_time_us, max_time_us)
        if note and (epoch > self._epoch_noted or data[14] & FLAG_PRODUCER):
            self._note_state(batch, first, append_time_us, epoch)
        self._end = first + batch.offset_span
        self._tail_position += len(data)

    def _add_planned(self, tail: Segment, batch: EncodedBatch, first: int, append_time_us: int, max_time_us: int) -> None:
        groups = self.planned_groups
        if groups and groups[-1].segment is tail:
            groups[-1].batches.append(batch)
            groups[-1].stamps.append((first, append_time_us, max_time_us))
        else:
            groups.append(PlannedGroup(tail, [batch], [(first, append_time_us, max_time_us)]))

    def _note_state(self, batch: EncodedBatch, first: int, append_time_us: int, epoch: int) -> None:
        if epoch > self._epoch_noted:
            self.state.note_epoch(first, epoch)
            self._epoch_noted = epoch
        if batch.data[14] & FLAG_PRODUCER:
            producer = batch.producer
            assert producer is not None
            self.state.note_producer(producer, first, append_time_us, batch.count)

    def fits(self, staged: StagedSegment) -> bool:
        """Whether the log's state has room in front of the batches of *staged*."""
        return len(self.state.encode().data) <= staged.state_bytes

    def plan_adoption(self, staged: StagedSegment, now_us: int) -> int:
        """
        Give the batches of *staged* the next offsets, as a segment of their own; return the first one. `fits` was asked before.

        A batch of the same commit must have been planned before it: recovery then removes the segment's name, and never cuts the file,
        if the commit is not to be found.
        """
        first = self._end
        assert self._tail is not None
        groups = self.planned_groups
        assert groups
        assert first > self._tail.first_offset
        self.max_time_us = max(self.max_time_us, now_us)
        path = os.path.join(self.directory, segment_name(first))
        segment = staged.plan(
            path, self._header_of_next(now_us), self.state.encode(staged.state_bytes), self.settings.index_interval_bytes,
            now_us, self.max_time_us, self.durable_end,
        )  # fmt: skip
        groups.append(AdoptedGroup(segment, staged))
        self._names_made += 1
        self._tail = segment
        self._tail_position, self._batches_from = segment.position, 0
        self._end = segment.end_offset
        return first

    @property
    def planned_end(self) -> int:
        """The committed end once all that was planned is committed."""
        return self._end

    @property
    def has_planned(self) -> bool:
        """Whether anything was planned that is not written yet."""
        return self._alone is not None or bool(self._groups)

    @property
    def planned_groups(self) -> list[PlannedGroup]:
        """What was planned and is not written yet, segment by segment."""
        alone = self._alone
        if alone is not None:
            self._alone = None
            segment, planned, first, append_time_us, max_time_us = alone
            batch = of_stamped(planned) if isinstance(planned, bytearray) else planned
            self._groups = [PlannedGroup(segment, [batch], [(first, append_time_us, max_time_us)])]
        return self._groups

    def apply_planned(self) -> None:
        """Write what was planned to its segments. Raises `OSError`; the log must not be written any more then."""
        alone = self._alone
        if alone is not None:
            # As it mostly is where a commit goes to many logs.
            segment, planned, first, append_time_us, max_time_us = alone
            if segment.file is None:
                self.open_logs.add(self)
            if segment is not self._active:
                self._activate(segment)
            if isinstance(planned, bytearray):
                segment.write_value(planned, first, append_time_us, max_time_us)
            else:
                segment.write_one(planned, first, append_time_us, max_time_us)
            self._alone = None
            return
        groups = self._groups
        if groups:
            self.open_logs.add(self)  # it may have been closed to make room for others
        while groups:
            group = groups[0]
            if group.segment is not self._active:
                self._activate(group.segment)
            group.write()
            # One by one, so that a caller who made room on a full disk can call again.
            del groups[0]

    def _activate(self, segment: Segment) -> None:
        previous = self._active
        if previous is not None and not previous.sealed:
            previous.seal()
        self._loaded[segment.first_offset] = segment
        with self._list_lock:
            if previous is not None:
                self._unsynced = [*self._unsynced, previous]
            self._active = segment
            self._firsts = [*self._firsts, segment.first_offset]

    def commit_planned(self) -> int:
        """Show readers all that was written; return the new committed end."""
        self.committed_end = end = self._end
        if self._waiting or self._listeners:
            self._wake_readers()
        return end

    def appends_quickly(self, batch_bytes: int) -> bool:
        """Whether `append` would only write to the segment that is there."""
        tail = self._active
        return (
            tail is not None and tail is self._tail and not tail.sealed and self._alone is None and not self._groups
            and tail.position + batch_bytes <= self._roll_position and not self._rolls_by_count_or_age
        )  # fmt: skip

    def append(self, batch: EncodedBatch, now_us: int) -> int:
        """
        Write *batch* and show it; return its first offset. For logs with a weaker mode; the caller holds `lock`.

        Raises:
            StorageFull: there is no room, nothing was changed.
            OSError: the log must not be written any more.
        """
        data = batch.data
        length = len(data)
        tail = self._active
        if tail is not None and tail.file is None:
            self._open_again(tail)
        first = self._end
        before = self.max_time_us
        if data[16] & COMPATIBLE_PREWRITTEN:
            clear_compatible_flag(data, COMPATIBLE_PREWRITTEN)
        if now_us > before:
            self.max_time_us = now_us
        if tail is not None and self.appends_quickly(length):
            # The way that almost every append takes: no plan, one write.
            stamp(
                data, batch.header_bytes, first, now_us, self.max_time_us, tail.uid, self.durable_end, self.log_epoch
            )  # fmt: skip
            try:
                tail.write_one(batch, first, now_us, self.max_time_us)
            except OSError as error:
                if not is_full(error):
                    raise
                self.max_time_us = before
                raise StorageFull(tail.path, None, None) from None
            if self.log_epoch > self._epoch_noted or data[14] & FLAG_PRODUCER:
                with Held():
                    self._note_state(batch, first, now_us, self.log_epoch)
                    self._end = end = first + batch.offset_span
                    self._tail_position = tail.position
            else:
                self._end = end = first + batch.offset_span
                self._tail_position = tail.position
        else:
            with Held():
                self._append_slowly(batch, first, now_us, before)
            end = self._end
        self.committed_end = end
        if self._waiting or self._listeners:
            self._wake_readers()
        return first

    def settle(self, batch: EncodedBatch, now_us: int) -> bool:
        """
        `append` was interrupted by a signal: finish it if the batch is in its segment; else it never was. False: neither can be said.

        The short way through `append` is so often taken that signals are not held back there. They come between calls only, and a segment
        moves its position last: either all of it is noted there, or nothing but an entry of its index, which points where the next batch
        begins.
        """
        tail, first = self._tail, self.committed_end
        if tail is None or tail is not self._active or self._groups or self._alone is not None:
            return False
        if self._end == first and tail.position != self._tail_position:
            if tail.end_offset != first + batch.offset_span:
                return False
            self._note_state(batch, first, now_us, self.log_epoch)
            self._end, self._tail_position = tail.end_offset, tail.position
        self.committed_end = self._end
        if self._waiting or self._listeners:
            self._wake_readers()
        return True

    def _append_slowly(self, batch: EncodedBatch, first: int, now_us: int, time_before_us: int) -> None:
        if self.deleted:
            raise TopicNotFound(self.identity.topic)
        tail = self._tail
        if tail is None or tail.sealed or self._must_roll(tail, len(batch.data), batch.count, now_us):
            tail = self._begin_segment(now_us)
        # What the log remembers of producers is noted only when the batch is in: a refused one may come again.
        self._stamp_into(tail, batch, first, now_us, self.log_epoch, note=False)
        try:
            self.apply_planned()
        except OSError as error:
            if not is_full(error):
                raise
            # The segment cut the half-written batch off again, so the offset was never seen: take the plan back.
            self._groups = []
            self._end, self.max_time_us = first, time_before_us
            self._tail_position -= len(batch.data)
            raise StorageFull(tail.path, None, None) from None
        self._note_state(batch, first, now_us, self.log_epoch)

    def redo(self, batch: EncodedBatch, source: Batch) -> None:
        """Append a batch that the journal has and the log lost, with the times and the epoch it had. For recovery."""
        header = source.header
        self.make_room(len(batch.data), batch.count, header.append_time_us)
        assert self._tail is not None
        self.max_time_us = max(self.max_time_us, header.max_time_us)
        self._stamp_into(self._tail, batch, header.first_offset, header.append_time_us, header.log_epoch)
        self.apply_planned()
        self.committed_end = self._end

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _wake_readers(self) -> None:
        if self._waiting:
            with self._arrival_lock:
                self._arrival.notify_all()
        for listener in self._listeners:
            listener()

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Return True once *offset* is committed, False after *timeout* seconds; sleeps, never polls."""
        if self.committed_end > offset:
            return True
        with self._arrival_lock:
            self._waiting += 1
            try:
                return self._arrival.wait_for(lambda: self.committed_end > offset, timeout)
            finally:
                self._waiting -= 1

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call *listener* after each commit, in the committing thread, so it must be quick; returns how to stop that."""
        with self._list_lock:
            self._listeners = [*self._listeners, listener]

        def remove() -> None:
            with self._list_lock, contextlib.suppress(ValueError):
                remaining = list(self._listeners)
                remaining.remove(listener)
                self._listeners = remaining

        return remove

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int = READ_BYTES_DEFAULT, *, verify: bool = True, columns: Sequence[int] = ()
    ) -> list[Batch]:
        """
        The committed batches from the one that holds *offset* on, about *bytes_max* bytes of them but at least one.

        Empty at the committed end. The first batch may begin before *offset*: see `Batch.index_of`. Without *verify* headers and *columns*
        are checked, and nothing else is read: who wants more of a batch calls its `verify` first.

        Raises:
            OffsetOutOfRange: before the log's start or behind its end.
            Corrupt: stored bytes are wrong, or a segment is missing.
            Unavailable: the process may open no more files.
        """
        while True:
            if self.deleted:
                raise TopicNotFound(self.identity.topic)
            if self._closed:
                raise Closed(f"the log {self.identity.topic}/{self.identity.partition}")
            end = self.committed_end
            if not self.log_start <= offset <= end:
                raise OffsetOutOfRange(offset, self.log_start, end)
            if offset == end:
                return []
            try:
                segment = self._segment_of(offset)
                batches = segment.read(segment.find(offset), end, bytes_max, verify=verify, columns=columns)
            except FileNotFoundError:
                # Retention took the segment away while it was being opened.
                self._forget_missing(offset)
                continue
            except Corrupt:
                self._check_not_deleted()
                raise
            except OSError as error:
                raise _refusal(error, self.directory) from None
            if batches:
                if self._ttl_us:
                    for batch in batches:
                        batch.ttl_us = self._ttl_us
                return batches
            # Nothing at or behind the offset in this segment: its last messages were removed. Go on in the next one.
            offset = max(offset + 1, segment.end_offset)

    def _forget_missing(self, offset: int) -> None:
        if offset >= self.log_start:
            path = os.path.join(self.directory, segment_name(self._first_of(offset)))
            if not self._files.exists(path):
                self._check_not_deleted()
                raise MissingData(path, f"the segment with offset {offset} is gone")

    def _check_not_deleted(self) -> None:
        """Asked when a file is not what it should be: another topic may have the folder now. Raises `TopicNotFound`."""
        if self.deleted:
            raise TopicNotFound(self.identity.topic) from None

    def _first_of(self, offset: int) -> int:
        firsts = self._firsts
        position = bisect_right(firsts, offset) - 1
        if position < 0:
            if offset < self.log_start:
                # Retention was quicker than this reader.
                raise OffsetOutOfRange(offset, self.log_start, self.committed_end)
            path = os.path.join(self.directory, segment_name(offset))
            raise MissingData(path, f"no segment holds offset {offset}, though the log begins at {self.log_start}")
        return firsts[position]

    def _segment_of(self, offset: int) -> Segment:
        segment = self.segment(self._first_of(offset))
        if segment.sealed and offset >= segment.end_offset and segment is not self._active:
            path = os.path.join(self.directory, segment_name(segment.end_offset))
            raise MissingData(path, f"the segment with offset {offset} is gone")
        return segment

    def segment(self, first_offset: int) -> Segment:
        """The segment that begins at *first_offset*; a sealed one is looked at now. Raises `Corrupt`."""
        segment = self._loaded.get(first_offset)
        if segment is not None:
            if segment.file is None and segment.sealed:
                self.open_logs.add(self)
            self._uses += 1
            segment.last_use = self._uses
        else:
            with self._load_lock:
                segment = self._loaded.get(first_offset)
                if segment is None:
                    self.open_logs.add(self)
                    segment = load_sealed(self._files, self.directory, first_offset, self.identity, self.settings)
                    self._uses += 1
                    segment.last_use = self._uses
                    self._loaded[first_offset] = segment
                    self._unload()
        return segment

    def is_loaded(self, first_offset: int) -> bool:
        """Whether the segment that begins there is open now."""
        return first_offset in self._loaded

    def unload(self, first_offset: int) -> None:
        """Let go of a sealed segment, if it is durable; its file closes when the last reader is done with it."""
        segment = self._loaded.get(first_offset)
        if segment is not None and segment is not self._active and segment.sealed and segment.is_synced:
            self._loaded.pop(first_offset, None)

    def _unload(self) -> None:
        """Let go of the sealed segments that were not used for longest; their files close when the last reader is done with them."""
        excess = len(self._loaded) - LOADED_MAX
        if excess > 0:
            for first, segment in sorted(self._loaded.items(), key=lambda item: item[1].last_use)[:excess]:
                if segment is not self._active and segment.sealed and segment.is_synced:
                    self._loaded.pop(first, None)  # another thread may have been quicker

    @property
    def descriptors(self) -> int:
        """How many its segments have."""
        total = sum([segment.descriptors for segment in list(self._loaded.values())])
        tail = self._tail
        # It takes its place among the others when its first batch is written.
        return total if tail is None or tail is self._active else total + tail.descriptors

    @property
    def uses(self) -> tuple[int, int]:
        """Changes whenever the log is read or written."""
        return self._uses, self.committed_end

    def let_go(self) -> None:
        """
        Close all files that hold nothing but what is durable; the next use opens them again.

        The caller sees to it that nobody writes meanwhile; others may read.
        """
        self.open_logs.discard(self)
        active = self._active
        for first, segment in list(self._loaded.items()):
            if segment is not active and segment.sealed and segment.is_synced:
                self._loaded.pop(first, None)
        if active is not None and self._tail is active and not self.has_planned:
            with contextlib.suppress(OSError):
                active.let_go()
        if self.descriptors:
            self.open_logs.add(self)

    def close_files(self, *, active: bool) -> None:
        """
        Close files, with a sync of what is not durable, until they are used again. Never waits for a lock.

        Those of sealed segments, and where the caller sees to it that nobody else writes (*active*) of those that take batches too.
        Raises `OSError`: a sync failed, and whoever syncs that segment next is told, too.
        """
        now = self._active
        for first, segment in list(self._loaded.items()):
            if segment is not now and segment.sealed and (segment.is_synced or segment.close_file()):
                self._loaded.pop(first, None)
        with self._list_lock:
            self._unsynced = [segment for segment in self._unsynced if not segment.is_synced]
        if active:
            for taking in (now, self._tail):
                # One that is adopted has its file from elsewhere, and is sealed before it is written.
                if taking is not None and not taking.sealed:
                    taking.close_file()
        if not self.descriptors and not self.has_planned:
            self.open_logs.discard(self)

    def offset_of_time(self, time_us: int) -> int:
        """
        The first committed offset that was appended at or after *time_us*; the committed end if there is none.

        It goes by the running maximum of append times, so it is well defined when the clock jumped.
        """
        while True:
            try:
                return self._search_time(time_us)
            except FileNotFoundError:
                # Retention took a segment away while it was being opened: the search begins anew behind it.
                self._forget_missing(self._firsts[0])
            except Corrupt:
                self._check_not_deleted()
                raise
            except OSError as error:
                raise _refusal(error, self.directory) from None

    def _search_time(self, time_us: int) -> int:
        end = self.committed_end
        firsts = self._firsts
        low, high = 0, len(firsts)
        while low < high:
            middle = (low + high) // 2
            if self.segment(firsts[middle]).max_time_us < time_us:
                low = middle + 1
            else:
                high = middle
        while low < len(firsts):
            segment = self.segment(firsts[low])
            batches = segment.read(segment.find_time(time_us), end, 1, verify=False)
            if batches:
                batch = batches[0]
                return max(batch.offset(batch.index_of_append_time(time_us)), self.log_start)
            low += 1  # a rewriting left nothing in it
        return end

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def sync_work(self) -> SyncWork:
        """What to sync for a checkpoint of this moment. The caller sees to it that nobody writes meanwhile."""
        active = self._active
        segments = [segment for segment in self._unsynced if not segment.is_synced]
        if active is not None and not active.is_synced:
            segments.append(active)
        return SyncWork(segments, self.row())

    def row(self) -> LogRow:
        """The log as a checkpoint of this moment would describe it."""
        active = self._active
        return LogRow(
            log_id=self.identity.log_id,
            end=self.committed_end,
            log_start=self.log_start,
            segment_first=self._end if active is None else active.first_offset,
            position=0 if active is None else active.position,
            max_time_us=self.max_time_us,
        )

    def sync_names(self) -> None:
        """Make the names of new segments durable; returns when they are, whoever syncs them. Raises `OSError`."""
        with self._names_lock:
            made = self._names_made
            if self._names_synced < made:
                self._files.sync_directory(self.directory)
                self._names_synced = made

    def note_durable(self, work: SyncWork) -> None:
        """The segments of *work* are synced: offsets below its row's end are durable in the log's own files."""
        self.durable_end = max(self.durable_end, work.row.end)
        for segment in work.segments:
            if segment.sealed:
                write_index_cache(self._files, segment.index_path, segment.index_snapshot(b"").encode())
        with self._list_lock:
            self._unsynced = [segment for segment in self._unsynced if not segment.is_synced]
        self._unload()

    def cache_index(self) -> None:
        """Store the active segment's index and the log's state as a cache that speeds up the next opening."""
        active = self._active
        if active is None or not active.is_synced or self.has_planned or active.end_offset != self._end:
            return
        state = self.state.encode()
        state.stamp(self._end, 0, self.max_time_us, active.header.segment_uid, self.durable_end, self.log_epoch)
        write_index_cache(self._files, active.index_path, active.index_snapshot(bytes(state.data)).encode())
        self.cached_index = (active.uid, active.position)

    # -- removing ---------------------------------------------------------------------------------------------------

    def retention_start(
        self, *, before_time_us: int | None, bytes_max: int | None, messages_max: int | None, keep_from: int,
        without: str | None = None, empty_before_us: int | None = None,
    ) -> int:  # fmt: skip
        """
        Where the log would begin if sealed segments were dropped by these rules; the present start if none may go.

        A segment is dropped when any rule wants it gone, all before it are, and it ends at or before *keep_from* and every
        floor but the one named *without*. The active segment always stays.
        """
        limit = min([keep_from, self.durable_end, *[floor for name, floor in list(self.floors.items()) if name != without]])
        firsts = self._firsts
        sizes = {first: self.segment_bytes(first) for first in firsts} if bytes_max is not None else {}
        total = sum(sizes.values())
        start = self.log_start
        for first, following in pairwise(firsts):
            if following > limit:
                break
            try:
                too_old = before_time_us is not None and self._newest_us(first, following) < before_time_us
                if empty_before_us is not None and not too_old:
                    too_old = not self.segment(first).messages and self._newest_us(first, following) < empty_before_us
            except FileNotFoundError:
                if first in self._firsts:
                    raise
                continue  # removed at this moment
            too_big = bytes_max is not None and total > bytes_max
            too_many = messages_max is not None and self.committed_end - following >= messages_max
            if not (too_old or too_big or too_many):
                break
            total -= sizes.get(first, 0)
            start = max(start, following)
        return start

    def _newest_us(self, first: int, following: int) -> int:
        """When the last message of a sealed segment was appended, also where it is gone: then the segment behind it knows."""
        segment = self.segment(first)
        return segment.max_time_us if segment.messages else self.segment(following).header.base_time_us

    def segment_bytes(self, first: int) -> int:
        """The length of a segment's file; that of a sealed one is asked once."""
        segment = self._loaded.get(first)
        if segment is not None:
            return segment.position + (FOOTER_BYTES if segment.sealed else 0)
        size = self._sizes.get(first)
        if size is None:
            try:
                file = self._files.open(os.path.join(self.directory, segment_name(first)))
            except FileNotFoundError:
                if first in self._firsts:
                    raise
                return 0  # removed at this moment
            size = self._sizes[first] = file.size()
            file.close()
        return size

    @property
    def stored_bytes(self) -> int:
        """
        The length of its segments' files. Reads no data; the sealed ones are counted when there is another of them, or one was rewritten.

        Of a segment that is removed meanwhile nothing is counted.
        """
        firsts, replaced = self._firsts, self._replaced
        if not firsts:
            return 0
        known_firsts, known_replaced, sealed = self._counted
        # The list is never changed, but replaced by another.
        if known_firsts is not firsts or known_replaced != replaced:
            sealed = sum(map(self._bytes_if_there, firsts[:-1]))
            self._counted = firsts, replaced, sealed
        return sealed + self._bytes_if_there(firsts[-1])

    def _bytes_if_there(self, first: int) -> int:
        try:
            return self.segment_bytes(first)
        except (FileNotFoundError, PermissionError):
            return 0

    def drop_before(self, log_start: int) -> tuple[int, int]:
        """
        Remove the segments that end at or before *log_start*, which is durable already; return (segments, bytes).

        Nothing of a deleted log, whose folder may be that of another one now.

        Raises `OSError`; what is left is removed at the next opening.
        """
        self.log_start = max(self.log_start, log_start)
        freed = 0
        with self.files_lock:
            if self.deleted:
                return 0, 0
            with self._list_lock:
                firsts = self._firsts
                doomed = [first for first, following in pairwise(firsts) if following <= self.log_start]
                # Readers stop finding the segments before their files go.
                self._firsts = firsts[len(doomed) :]
            for first in doomed:
                freed += self.segment_bytes(first)
                self._sizes.pop(first, None)
                # Not closed: a reader may be in it, and its file closes when the last one lets go of it.
                self._loaded.pop(first, None)
                remove_segment(self._files, self.directory, first)
            if doomed:
                self._files.sync_directory(self.directory)
        return len(doomed), freed

    def remove_stale(self) -> None:
        """Remove the segments below the start that recovery found. Not before readers can know that start. Raises `OSError`."""
        for first in self.stale_firsts:
            remove_segment(self._files, self.directory, first)
        if self.stale_firsts:
            self._files.sync_directory(self.directory)
            self.stale_firsts = []

    def replace_segment(self, segment: Segment) -> None:
        """Let a rewritten segment, already renamed into place, take over its range."""
        # The old one is not closed: a reader may be in it, and its file goes when the last reader lets go of it.
        self._loaded[segment.first_offset] = segment
        self._sizes.pop(segment.first_offset, None)
        self._replaced += 1
        self.on_replaced()

    def delete(self) -> None:
        """
        Its topic is deleted. Nobody writes at this moment; who reads is told, or ends what he began with the files that he has open.

        The files close when the last reader lets go of them.
        """
        with self.files_lock:  # what is being removed at this moment is removed before its folder is another one's
            self.deleted = True
        # Whoever wants to append next looks closer.
        self._roll_position = -1
        self.open_logs.discard(self)
        self._wake_readers()

    def let_go_deleted(self) -> None:
        """
        Its files have left their place: let go of all of them, so that the disk has their room back.

        A file that somebody reads in at this moment closes when he is done with what he was given of it.
        """
        with self._load_lock, self._list_lock:
            loaded, self._loaded, self._unsynced = list(self._loaded.values()), {}, []
        for segment in loaded:
            segment.forget_file()
        self._sizes, self._counted = {}, ([], 0, 0)

    def undelete(self) -> None:
        """It was not deleted after all."""
        self.deleted = False
        self._roll_position = self.settings.segment_bytes - FOOTER_BYTES

    def close(self) -> None:
        """Close the files. What was committed stays."""
        self._closed = True
        for segment in list(self._loaded.values()):
            segment.close()
        self._loaded = {}
        for group in self.planned_groups:
            group.segment.close()
        self._groups = []


# A function of the logs, as `PartitionLog.plan` is of one.
# ruff: noqa: SLF001
def all_have_room(logs: Sequence[PartitionLog], batches: Sequence[EncodedBatch]) -> bool:
    """Whether each of *logs* has room for its batch, as `has_room` says of one."""
    for log, batch in zip(logs, batches, strict=True):
        tail, end = log._tail, log._tail_position + len(batch.data)
        if tail is None or end > tail.reserved_end or end > log._roll_position or log._rolls_by_count_or_age:
            return False
    return True


def values_have_room(logs: Sequence[PartitionLog], values: Sequence[bytes]) -> bool:
    """The same for single values that are to be encoded; False says only that it is not sure."""
    for log, value in zip(logs, values, strict=True):
        tail, end = log._tail, log._tail_position + len(value) + SINGLE_ADDED_BYTES_MAX
        if tail is None or end > tail.reserved_end or end > log._roll_position or log._rolls_by_count_or_age:
            return False
    return True


def apply_planned(logs: Iterable[PartitionLog], on_error: Callable[[PartitionLog, OSError], None]) -> list[tuple[int, int]]:
    """`apply_planned` of each of *logs*; returns the word of each in the shared positions, and its `planned_end`."""
    ends = []
    for log in logs:
        alone = log._alone
        try:
            if alone is not None and alone[0] is log._active:
                segment, planned, first_offset, append_time_us, max_time_us = alone
                if segment.file is None:
                    log.open_logs.add(log)
                if isinstance(planned, bytearray):
                    segment.write_value(planned, first_offset, append_time_us, max_time_us)
                else:
                    segment.write_one(planned, first_offset, append_time_us, max_time_us)
                log._alone = None
            else:
                log.apply_planned()
        except OSError as error:
            on_error(log, error)
        ends.append((log.end_word, log._end))
    return ends


def commit_planned(logs: Iterable[PartitionLog]) -> None:
    """`commit_planned` of each of *logs*."""
    for log in logs:
        log.committed_end = log._end
        if log._waiting or log._listeners:
            log._wake_readers()


def plan_together(logs: Sequence[PartitionLog], batches: Sequence[EncodedBatch], now_us: int, parts: list[Buffer]) -> list[int]:
    """
    `plan` one batch in each of *logs*, none of them twice; add the batches to the *parts* of a frame and return their offsets.

    A transaction goes to many logs, so that the calls for each of them would take longer than what they do.
    """
    first_offsets = []
    for log, batch in zip(logs, batches, strict=True):
        tail, data, first, epoch, max_time_us = log._tail, batch.data, log._end, log.log_epoch, log.max_time_us
        if now_us > max_time_us:
            log.max_time_us = max_time_us = now_us
        if data[16] & COMPATIBLE_PREWRITTEN:
            clear_compatible_flag(data, COMPATIBLE_PREWRITTEN)
        assert tail is not None
        stamp(data, batch.header_bytes, first, now_us, max_time_us, tail.uid, log.durable_end, epoch)
        if log._alone is None and not log._groups:
            log._alone = tail, batch, first, now_us, max_time_us
        else:
            log._add_planned(tail, batch, first, now_us, max_time_us)
        if epoch > log._epoch_noted or data[14] & FLAG_PRODUCER:
            log._note_state(batch, first, now_us, epoch)
        log._end = first + batch.offset_span
        length = len(data)
        log._tail_position += length
        first_offsets.append(first)
        # As `batch_entry`.
        parts += pack_entry(ENTRY_BATCH, 0, 0, 8 + length, log.log_id, 0), data
    return first_offsets


def plan_values(logs: Sequence[PartitionLog], values: Sequence[bytes], now_us: int, parts: list[Buffer]) -> list[int]:
    """`plan_together` of values of which each is a batch of its own: encoded only now, when all that is stamped is known."""
    first_offsets = []
    for log, value in zip(logs, values, strict=True):
        tail, first, epoch, max_time_us = log._tail, log._end, log.log_epoch, log.max_time_us
        if now_us > max_time_us:
            log.max_time_us = max_time_us = now_us
        assert tail is not None
        data = encode_stamped(value, first, now_us, max_time_us, tail.uid, log.durable_end, epoch)
        if log._alone is None and not log._groups:
            log._alone = tail, data, first, now_us, max_time_us
        else:
            log._add_planned(tail, of_stamped(data), first, now_us, max_time_us)
        if epoch > log._epoch_noted:
            log._note_state(of_stamped(data), first, now_us, epoch)
        log._end = first + 1
        length = len(data)
        log._tail_position += length
        first_offsets.append(first)
        parts += pack_entry(ENTRY_BATCH, 0, 0, 8 + length, log.log_id, 0), data
    return first_offsets


def _refusal(error: OSError, path: str) -> Exception:
    """What to raise where a file could not be opened or made: nothing was changed, unless the disk failed, which is told as it is."""
    if is_out_of_descriptors(error):
        return out_of_descriptors(path)
    if is_no_access(error):
        return no_access(path, error)
    return StorageFull(path) if is_full(error) else error


def no_access(path: str, error: OSError) -> NoAccess:
    """The error for it: it concerns what lies there alone, and passes when the rights are mended."""
    return NoAccess(str(error.filename or path), error.strerror or "it cannot be opened", os.geteuid())


def out_of_descriptors(path: str) -> Unavailable:
    """The error for it: nothing was changed, and it passes."""
    return Unavailable(
        f"{path}: this process has as many files open as it may (ulimit -n); nothing was changed, try again later"
    )
