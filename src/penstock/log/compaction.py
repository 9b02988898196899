"""
Compaction by key: of each key the latest message stays, and messages without a key always do.

Theory of operation
-------------------
A sweep first reads the keys, and nothing else, of the sealed segments that came since the last one, into a table from key to the offset
of its latest message; a key of 15 bytes or more is there as its 128-bit hash. Then it goes through all sealed segments from the start of
the log on, in order, and takes out every message whose key has a later one in the table. The table is bounded: if it is full, it ends at
a segment, and another sweep follows for the rest. So memory goes with the number of keys and not with that of messages.

What is *protected* (`Protection`) stays though it has a successor. The first segment that has such a message is where the next sweep's
table begins again.

A tombstone is the latest message of its key like any other. When a sweep has passed a segment and nothing that has a successor is left
in it or before it, then its tombstones are all that there is of their keys, and it notes the time in the segment's header: their grace
begins. Segments are passed in order and each is durable before the next is begun, so a tombstone whose segment carries a time has no
older message of its key in front of it, now or later; once the grace is over it may go, and nothing that it deleted comes back.

Messages in the active segment neither go nor make others go: what is not sealed may not be durable yet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile
from penstock.format import columns as c
from penstock.format.checksum import crc32c
from penstock.format.select import can_select
from penstock.log.filtering import Protection, Removed, filter_segment
from penstock.log.rewriting import unchecked_batches

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from penstock.files import FileSystem
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment

KEYS_MAX = 1_000_000
"""Keys in the table of one sweep; at most those of one segment more. About 150 bytes each."""
_HASH_BYTES = 16
_PAUSE_MESSAGES = 65_536


@dataclass(slots=True)
class CompactionState:
    """How far compaction is with a log; not stored, so the first sweep after opening reads all keys."""

    clean_end: int = 0
    """Below it no message has a successor below `seen_end`."""
    seen_end: int = 0
    """The end of the last segment whose keys were read."""
    tombstones_due_us: int | None = None
    """When the first grace is over, if a tombstone was left."""


def compact(
    files: FileSystem,
    log: PartitionLog,
    state: CompactionState,
    limit: int,
    protection: Protection,
    now_us: int,
    rewriting: threading.Lock,
    *,
    keys_max: int = KEYS_MAX,
    pause: Callable[[], None] = lambda: None,
) -> Removed:
    """
    Compact the sealed segments of *log* that end at or before *limit*; returns what went.

    *rewriting* is held while a segment is rewritten. One thread at a time for each log.

    Raises:
        DamagedFile: a segment cannot be read; what was done before it stays done.
        OSError: the same, where the disk refuses.
    """
    sweep = _Sweep(files, log, protection, now_us, rewriting, pause)
    begin = state.clean_end
    while True:
        end = sweep.read_keys(begin, limit, keys_max)
        sweep.run(end)
        if end <= begin:
            break
        begin = end
    state.seen_end = max(state.seen_end, begin)
    state.clean_end = min(begin, sweep.held_from)
    state.tombstones_due_us = sweep.tombstones_due_us
    return sweep.removed


def sealed_ranges(log: PartitionLog, limit: int) -> list[tuple[int, int]]:
    """First offset and end of the sealed segments that end at or before *limit*, in order."""
    return [(first, following) for first, following in pairwise(log.segment_firsts) if following <= limit]


class _Sweep:
    """One table of keys after the other, and the segments that they are held against."""

    def __init__(
        self,
        files: FileSystem,
        log: PartitionLog,
        protection: Protection,
        now_us: int,
        rewriting: threading.Lock,
        pause: Callable[[], None],
    ) -> None:
        self._files = files
        self._log = log
        self._protection = protection
        self._now_us = now_us
        self._grace_us = log.settings.tombstone_grace_ms * 1000
        self._rewriting = rewriting
        self._pause = pause
        self._latest: dict[bytes, int] = {}
        self.held_from = 1 << 63
        """The first offset of the first segment where something was left only because it is protected."""
        self.tombstones_due_us: int | None = None
        self.removed = Removed()

    def read_keys(self, begin: int, limit: int, keys_max: int) -> int:
        """Make the table from the segments from *begin* on, until it is full; returns where it ends."""
        latest: dict[bytes, int] = {}
        end = begin
        for first, following in sealed_ranges(self._log, limit):
            if following <= begin:
                continue
            if len(latest) >= keys_max:
                break
            was_loaded = self._log.is_loaded(first)
            for keys, offsets in self._keys_of(first):
                latest.update(zip(keys, offsets, strict=True))
            if not was_loaded:
                # All of them, mapped at the same time, would be as much memory as the log is long.
                self._log.unload(first)
            end = following
        latest.pop(b"", None)
        self._latest = latest
        return end

    def _keys_of(self, first: int) -> Iterator[tuple[list[bytes], list[int]]]:
        """The keys of a segment and their offsets, batch by batch. It may have gone meanwhile."""
        try:
            segment = self._log.segment(first)
        except FileNotFoundError:
            return
        messages = 0
        for batch in unchecked_batches(segment):
            found = _read_keys(segment, batch)
            if found is not None:
                yield found
            messages += len(batch)
            if messages >= _PAUSE_MESSAGES:
                messages = 0
                self._pause()

    def run(self, end: int) -> None:
        """Hold the segments that end at or before *end* against the table."""
        self.tombstones_due_us = None
        for first, _ in sealed_ranges(self._log, end):
            was_loaded = self._log.is_loaded(first)
            with self._rewriting:
                if self._log.deleted:
                    return  # another topic may have its folder now; while this lock is held none is deleted
                try:
                    segment = self._log.segment(first)
                except FileNotFoundError:
                    continue  # retention was quicker
                self._pass(segment)
            if not was_loaded:
                self._log.unload(first)
            self._pause()

    def _pass(self, segment: Segment) -> None:
        look = _Look(self._latest, self._protection, self._expired(segment))
        messages = 0
        for batch in unchecked_batches(segment):
            found = _read_keys(segment, batch)
            if found is not None:
                look.keep(batch, *found)
            messages += len(batch)
            if messages >= _PAUSE_MESSAGES:
                messages = 0
                self._pause()
        if look.held:
            self.held_from = min(self.held_from, segment.first_offset)
        compacted_us = segment.header.compacted_us
        if look.tombstones and not compacted_us and segment.first_offset < self.held_from:
            compacted_us = self._now_us
        if look.dropped or compacted_us != segment.header.compacted_us:
            again = _Look(self._latest, self._protection, self._expired(segment))

            def keep(batch: Batch) -> list[int] | None:
                found = _read_keys(segment, batch)
                return None if found is None else again.keep(batch, *found)

            removed = filter_segment(
                self._files, self._log, segment, keep,
                compacted_us=compacted_us or None, holds=self._protection.holds, pause=self._pause,
            )  # fmt: skip
            if removed is None:
                return
            removed.tombstones = again.expired
            self.removed.add(removed)
        if look.tombstones and compacted_us:
            due = compacted_us + self._grace_us
            self.tombstones_due_us = due if self.tombstones_due_us is None else min(due, self.tombstones_due_us)

    def _expired(self, segment: Segment) -> bool:
        """Whether the grace of the tombstones of *segment* is over."""
        compacted_us = segment.header.compacted_us
        return bool(compacted_us) and self._now_us >= compacted_us + self._grace_us


class _Look:
    """Decides which messages stay, and counts."""

    def __init__(self, latest: dict[bytes, int], protection: Protection, expired: bool) -> None:  # noqa: FBT001
        self._latest = latest
        self._protection = protection
        self._expired = expired
        self.dropped = 0
        self.expired = 0
        """Tombstones that go because their grace is over."""
        self.tombstones = 0
        """Tombstones that stay."""
        self.held = False
        """Whether anything stays only because it is protected."""

    def keep(self, batch: Batch, keys: list[bytes], offsets: list[int]) -> list[int] | None:
        """The indexes of the messages that stay; None for all. *keys* is empty for a message without one."""
        get = self._latest.get
        dead = [index for index, (key, offset) in enumerate(zip(keys, offsets, strict=True)) if get(key, -1) > offset]
        tombs = _tombstones(batch, keys)
        if not dead and not tombs:
            return None
        protected: set[int] | None = set()
        if not can_select(batch):
            protected = None  # it stays whole, whatever may go, and so do the tombstones that delete something of it
        elif dead or self._expired:
            protected = self._protection.kept(batch, offsets)
        if protected is None:
            self.held |= bool(dead)
            self.tombstones += len(tombs)
            return None
        if protected:
            free = [index for index in dead if offsets[index] not in protected]
            self.held |= len(free) < len(dead)
            dead = free
        gone = set(dead)
        last = [index for index in tombs if index not in gone]
        if self._expired:
            over = [index for index in last if offsets[index] not in protected]
            self.expired += len(over)
            gone.update(over)
            self.tombstones += len(last) - len(over)
        else:
            self.tombstones += len(last)
        if not gone:
            return None
        self.dropped += len(gone)
        return [index for index in range(len(offsets)) if index not in gone]


def _tombstones(batch: Batch, keys: list[bytes]) -> list[int]:
    """The indexes of messages with a key and without a value."""
    entry = batch.entry(c.VALUE)
    if entry is None or not entry.flags & c.HAS_NULLS:
        return []
    validity = batch._column(c.VALUE).validity  # noqa: SLF001 - the bitmap, and no value
    return [index for index, key in enumerate(keys) if key and not c.is_valid(validity, index)]


def _read_keys(segment: Segment, batch: Batch) -> tuple[list[bytes], list[int]] | None:
    """
    The table's keys of all messages of *batch*, empty for those without a key, and their offsets; None if no message has one.

    Only the columns that tell are read, and checked.
    """
    entry = batch.entry(c.KEY)
    if entry is None:
        return None
    try:
        for column in (c.KEY, c.OFFSETS):
            known = batch.entry(column)
            if known is not None and crc32c(batch.stored_column(column)) != known.crc:
                raise BadBytes(f"{c.NAMES[column]} column", "checksum does not match")
        view: c.BinaryColumn = batch._column(c.KEY)  # noqa: SLF001 - all keys at once
        data = bytes(view.data.get(0, view.data.raw_bytes))
    except BadBytes as error:
        raise DamagedFile(segment.path, 0, batch.first_offset, str(error)) from None
    table = view.offsets.tolist()
    if max(map(int.__sub__, table[1:], table), default=0) < _HASH_BYTES - 1:
        # As `_table_key`, which is not called: there is one of these for every message.
        keys = [b"k" + data[start:stop] for start, stop in pairwise(table)]
    else:
        keys = [_table_key(data[start:stop]) for start, stop in pairwise(table)]
    if view.validity is not None:
        validity = view.validity
        keys = [key if c.is_valid(validity, index) else b"" for index, key in enumerate(keys)]
    return keys, batch.offsets_of(range(len(batch)))


def _table_key(key: bytes) -> bytes:
    """Short keys as they are, with a byte in front, so that an empty key is not no key; long ones as their hash."""
    if len(key) < _HASH_BYTES - 1:
        return b"k" + key
    return hashlib.blake2b(key, digest_size=_HASH_BYTES).digest()
