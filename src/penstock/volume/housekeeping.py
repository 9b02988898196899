"""
What a volume does to the files of its logs besides appending: removing segments, and rewriting them with less in them.

The layers above say what may go (`Protection`, and the rules of retention); this one sees to it that nothing goes that recovery needs:
segments that a checkpoint points into, or that are not durable, stay as they are. One thread at a time compacts or vacuums. While a
segment is rewritten nobody else rewrites one; appends, reads and checkpoints go on. A log may be deleted at any moment in between, and
another topic have its folder and its files' names then: who goes on with it finds out, leaves everything alone and says that nothing went.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.errors import Corrupt, NoAccess, OffsetOutOfRange, StorageFull, TopicNotFound
from penstock.interrupts import Held
from penstock.log.compaction import CompactionState, compact, sealed_ranges
from penstock.log.expiry import ExpiryState, expire, is_active_worth_sealing
from penstock.log.filtering import Protection, Removed
from penstock.log.vacuum import vacuum
from penstock.volume.tickets import MoveLogStart

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.files import FileSystem
    from penstock.log.partition_log import PartitionLog
    from penstock.offset_set import OffsetSet
    from penstock.volume.volume import Volume

_DIRTY_LEAST = 0.5
"""Compaction is due when this part of a log's sealed bytes came since the last sweep."""


class Rules(NamedTuple):
    """Which sealed segments retention removes: those that any of these wants gone."""

    before_time_us: int | None = None
    """Those whose newest message is older."""
    bytes_max: int | None = None
    """The oldest ones, as long as the log is larger."""
    messages_max: int | None = None
    """Those behind which there are still so many offsets."""
    empty_before_us: int | None = None
    """Those in which nothing is left, and whose newest message was older."""


class Housekeeping:
    """Compacts, vacuums and cuts the logs of one volume. Safe to call from any thread."""

    def __init__(self, volume: Volume, files: FileSystem, rewriting: threading.Lock) -> None:
        self._volume = volume
        self._files = files
        self._rewriting = rewriting
        self._turn = threading.Lock()
        self._states: dict[PartitionLog, CompactionState] = {}
        self._expiry: dict[PartitionLog, ExpiryState] = {}

    def compact(
        self, log: PartitionLog, protection: Protection, now_us: int, pause: Callable[[], None] = lambda: None
    ) -> Removed:
        """Compact the sealed segments of *log*; see `log/compaction.py`. Raises as `rewrite` does."""
        with self._turn:
            self._volume.check_usable()
            state = self._states.setdefault(log, CompactionState())
            limit = min(self._volume.keep_from(log), log.durable_end)
            try:
                return compact(self._files, log, state, limit, protection, now_us, self._rewriting, pause=pause)
            except (Corrupt, NoAccess, OSError):
                if log.deleted:
                    return Removed()
                raise

    def is_compaction_due(self, log: PartitionLog, now_us: int) -> bool:
        """Whether much came since the last sweep, or the grace of a tombstone is over."""
        state = self._states.get(log)
        ranges = sealed_ranges(log, min(self._volume.keep_from(log), log.durable_end))
        if not ranges:
            return False
        if state is None:
            return True
        if state.tombstones_due_us is not None and now_us >= state.tombstones_due_us:
            return True
        sizes = [(following, log.segment_bytes(first)) for first, following in ranges]
        dirty = sum(size for following, size in sizes if following > state.seen_end)
        return dirty > 0 and dirty >= _DIRTY_LEAST * sum(size for _, size in sizes)

    def vacuum(
        self, log: PartitionLog, rules: Rules, protection: Protection, pause: Callable[[], None] = lambda: None
    ) -> Removed:
        """Take what *rules* want gone and is not protected out of segments that groups keep. Raises as `rewrite` does."""
        with self._turn:
            self._volume.check_usable()
            keep_from = self._volume.keep_from(log)
            try:
                limit = log.retention_start(**rules._asdict(), keep_from=keep_from, without="groups")
                if limit <= log.log_start:
                    return Removed()
                return vacuum(self._files, log, limit, protection, self._rewriting, pause=pause)
            except (Corrupt, NoAccess, OSError):
                if log.deleted:
                    return Removed()
                raise

    def is_expiry_due(self, log: PartitionLog, now_us: int) -> bool:
        """Whether messages of *log* may have expired, or it is not known when they do. Looks at no file."""
        state = self._expiry.get(log)
        # A log that never had a message has nothing to look at, and there may be very many of them.
        return log.active is not None if state is None else state.is_due(log, now_us)

    def begins_empty(self, log: PartitionLog) -> bool:
        """Whether nothing is left in the first sealed segment of *log*, as far as that is known."""
        state = self._expiry.get(log)
        if state is None:
            return False
        known = state.sealed.get(next(iter(log.segment_firsts), -1))
        return known is not None and not known.messages

    def seal_expired(
        self, log: PartitionLog, protection: Protection, now_us: int, pause: Callable[[], None] = lambda: None, *, asked: bool
    ) -> bool:
        """
        Seal the active segment of *log* if enough of it has expired and is not protected; whether it was.

        It is *asked* for by a user, or else looked at only if it is time. Raises as `Volume.roll` does, and `Corrupt`.
        """
        with self._turn:
            self._volume.check_usable()
            state = self._expiry.setdefault(log, ExpiryState())
            try:
                if is_active_worth_sealing(log, state, protection, now_us, asked=asked, pause=pause):
                    active = log.active
                    return self._volume.roll(log, lambda: log.active is active)
            except OffsetOutOfRange:
                return False  # retention was quicker
            except (Corrupt, NoAccess, TopicNotFound, OSError):
                if not log.deleted:
                    raise
            return False

    def expire(
        self,
        log: PartitionLog,
        protection: Protection,
        taken: OffsetSet,
        now_us: int,
        pause: Callable[[], None] = lambda: None,
        *,
        asked: bool,
    ) -> Removed:
        """Take what has expired and is not protected out of sealed segments; see `log/expiry.py`. Raises as `rewrite` does."""
        with self._turn:
            self._volume.check_usable()
            state = self._expiry.setdefault(log, ExpiryState())
            limit = min(self._volume.keep_from(log), log.durable_end)
            try:
                return expire(
                    self._files, log, state, limit, protection, taken, now_us, self._rewriting, asked=asked, pause=pause
                )
            except (Corrupt, NoAccess, OSError):
                if log.deleted:
                    return Removed()
                raise

    def retain(
        self,
        log: PartitionLog,
        rules: Rules,
        *,
        without: str | None = None,
        floors_hold: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> tuple[int, int]:
        """
        Remove whole sealed segments from the front of *log*; returns (segments, bytes).

        The new start of the log is durable before the first file goes. The floor named *without* is passed over. *floors_hold* is entered
        when there is something to remove: it sets the log's floors anew, which hold until it is left. The new start is durable then.
        """
        try:
            return self._retain(log, rules, without, floors_hold)
        except (TopicNotFound, Corrupt, NoAccess, OSError):
            if log.deleted:
                return 0, 0
            raise

    def _retain(
        self,
        log: PartitionLog,
        rules: Rules,
        without: str | None,
        floors_hold: Callable[[], AbstractContextManager[object]],
    ) -> tuple[int, int]:
        volume = self._volume
        volume.check_usable()

        def start_by_rules() -> int:
            return log.retention_start(**rules._asdict(), keep_from=volume.keep_from(log), without=without)

        if start_by_rules() <= log.log_start:
            return 0, 0
        with floors_hold():
            # Once more: a group may have been sought back since, to what was to go.
            start = start_by_rules()
            if start <= log.log_start:
                return 0, 0
            volume.commit_changes([MoveLogStart(log, start)])
        # A file that power loss brings back is known by the start in the journal; who reads without an owner looks at checkpoints only.
        with contextlib.suppress(StorageFull):
            volume.checkpoint()
        with Held():
            return log.drop_before(start)

    def forget(self, log: PartitionLog) -> None:
        """The log is deleted."""
        self._states.pop(log, None)
        self._expiry.pop(log, None)
