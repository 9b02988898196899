"""
Taking expired messages out of a log.

Theory of operation
-------------------
Nothing on the disk says when the messages of a segment expire but the segment itself. So each sealed segment is looked at once in the life
of a process: headers and directories of its batches, and of batches with expiry times of their own that column. In a topic without a `ttl`
that is done only if one of a few batches, drawn from all parts of the segment, has such times: else less than half of its messages expire,
almost certainly. What is remembered (`Lifetime`) is when half of them will have expired. Until then the segment costs nothing.

A segment of which half has expired is rewritten without that half, as vacuum does (filtering.py). Where all of it expires soon after, as in
a topic with one `ttl` for all, it is left until then, since nothing need be copied. A segment of which nothing is left is an empty file.

The active segment is looked at too, when no message came for a while or when it is large; the caller seals it if that is worth it. What is
*protected* (`Protection`) stays, expired or not: then the segment is looked at again later, each time after twice as long.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, Corrupt, DamagedFile, OffsetOutOfRange
from penstock.format.columns import EXPIRES
from penstock.format.lifetime import expiries_us, first_expiry_us, last_expiry_us
from penstock.log.compaction import sealed_ranges
from penstock.log.filtering import Protection, Removed, filter_segment
from penstock.log.rewriting import all_batches, unchecked_batches
from penstock.log.segment import READ_BYTES_DEFAULT
from penstock.log.vacuum import DEAD_LEAST

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from penstock.files import FileSystem
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment
    from penstock.offset_set import OffsetSet

LOOKS_MAX = 32
"""Segments of a log that are looked at for the first time in one turn in the background: after opening there may be very many."""
QUIET_US = 60_000_000
"""The active segment is looked at in the background when its newest message is older than this."""
LARGE_BYTES = 1024 * 1024
"""Or when it is larger than this and, in a topic with a ttl, was begun two of them ago."""
_AGAIN_US = 60_000_000
_DRAWN = 16
"""If half of the messages expire, one in 65,536 segments is passed over by mistake; `store.vacuum` looks at all batches."""


@dataclass(slots=True)
class Lifetime:
    """When the messages of one segment expire."""

    messages: int
    half_us: int | None
    """From this moment on at least half of them have; None: that never comes."""
    due_us: int | None
    """When the background looks closer."""
    position: int = 0
    """How much of the segment was there."""
    drawn: bool = False
    """Whether only a few batches were looked at."""

    def put_off(self, now_us: int) -> None:
        """Too much of it is protected now."""
        assert self.due_us is not None
        self.due_us = now_us + max(_AGAIN_US, now_us - self.due_us)


@dataclass(slots=True)
class ExpiryState:
    """What is known of the segments of a log; not stored."""

    sealed: dict[int, Lifetime] = field(default_factory=dict)
    """By first offset."""
    active: tuple[int, Lifetime] | None = None
    """The first offset of the active segment, and what is known of it."""

    def is_due(self, log: PartitionLog, now_us: int) -> bool:
        """Whether there is something to look at. Looks at no file."""
        if self.wants_active(log, now_us) or any(first not in self.sealed for first in log.segment_firsts[:-1]):
            return True
        lifetimes = list(self.sealed.values())
        known = self.active_lifetime(log)
        if known is not None:
            lifetimes.append(known)
        return any(one.due_us is not None and one.due_us <= now_us for one in lifetimes)

    def active_lifetime(self, log: PartitionLog) -> Lifetime | None:
        """What is known of the segment that is active now."""
        active = log.active
        return (
            self.active[1] if self.active is not None and active is not None and self.active[0] == active.first_offset else None
        )

    def wants_active(self, log: PartitionLog, now_us: int) -> bool:
        """Whether the active segment has changed since the last look, and is worth another one."""
        segment = log.active
        if segment is None or log.committed_end <= segment.first_offset:
            return False
        known = self.active_lifetime(log)
        if known is not None and known.position == segment.position:
            return False
        if segment.max_time_us <= now_us - QUIET_US:
            return True
        ttl_us = log.settings.ttl_ms * 1000
        has_grown = known is None or segment.position >= 2 * known.position
        return bool(ttl_us) and has_grown and segment.position >= LARGE_BYTES and segment.begun_us <= now_us - 2 * ttl_us

    def forget_removed(self, log: PartitionLog) -> None:
        """Keep nothing of segments that are gone."""
        firsts = set(log.segment_firsts)
        self.sealed = {first: one for first, one in self.sealed.items() if first in firsts}


class Expiry:
    """Which messages of a log have expired at one moment, and may go."""

    def __init__(self, log: PartitionLog, protection: Protection, now_us: int) -> None:
        self._protection = protection
        self._now_us = now_us
        self._ttl_us = log.settings.ttl_ms * 1000

    def going(self, batch: Batch) -> list[int]:
        """The offsets that go."""
        batch.ttl_us = self._ttl_us
        first_us = first_expiry_us(batch)
        if first_us is None or first_us > self._now_us:
            return []
        offsets = batch.offsets_of(range(len(batch)))
        held = self._protection.kept(batch, offsets)
        if held is None:
            return []
        now_us, ends_us = self._now_us, expiries_us(batch, 0, len(batch))
        return [
            offset
            for offset, end_us in zip(offsets, ends_us, strict=True)
            if end_us is not None and end_us <= now_us and offset not in held
        ]

    def is_worth_it(self, batches: Iterable[Batch], messages: int, pause: Callable[[], None]) -> bool:
        """Whether so many of the *messages* in *batches* go that the rest should be copied."""
        count = 0
        for batch in batches:
            count += len(self.going(batch))
            pause()
        return count > 0 and count >= messages * DEAD_LEAST


def look(segment: Segment, batches: Iterable[Batch], messages: int, ttl_us: int, pause: Callable[[], None]) -> Lifetime:
    """See when the *messages* in *batches*, all of *segment*, expire. Raises `DamagedFile`."""
    ends: list[tuple[int, int]] = []
    for batch in batches:
        batch.ttl_us = ttl_us
        try:
            first_us, last_us = first_expiry_us(batch), last_expiry_us(batch)
            if first_us is None:
                continue
            if last_us is not None and (first_us == last_us or batch.entry(EXPIRES) is None):
                ends.append((last_us, len(batch)))
            else:
                ends += [(end_us, 1) for end_us in expiries_us(batch, 0, len(batch)) if end_us is not None]
        except BadBytes as error:
            raise DamagedFile(segment.path, 0, batch.first_offset, str(error)) from None
        pause()
    ends.sort()
    count, half_us, last_us = 0, None, None
    for end_us, number in ends:
        count += number
        if half_us is None and count >= messages * DEAD_LEAST:
            half_us = end_us
        if count >= messages:
            last_us = end_us
    due_us = half_us
    if half_us is not None and last_us is not None and last_us - half_us <= half_us - segment.begun_us:
        due_us = last_us  # soon nothing is left of it, and nothing need be copied
    return Lifetime(messages, half_us, due_us)


def may_expire(log: PartitionLog, first: int, end: int) -> bool:
    """Whether one of a few batches in [first, end) of *log* has expiry times of its own. Raises as `PartitionLog.read` does."""
    rng = random.Random(first)  # the same ones each time
    parts = min(_DRAWN, end - first)
    for part in range(parts):
        low, high = first + (end - first) * part // parts, first + (end - first) * (part + 1) // parts
        batches = log.read(rng.randrange(low, high), 1, verify=False)
        if batches and batches[0].entry(EXPIRES) is not None:
            return True
    return False


def active_batches(log: PartitionLog, segment: Segment) -> Iterator[Batch]:
    """The committed batches of the active segment of *log*. Raises as `PartitionLog.read` does."""
    at = segment.first_offset
    end = log.committed_end
    while at < end:
        batches = log.read(at, READ_BYTES_DEFAULT)
        if not batches:
            return
        for batch in batches:
            if batch.first_offset < end:
                yield batch
        at = batches[-1].end_offset


def is_active_worth_sealing(
    log: PartitionLog, state: ExpiryState, protection: Protection, now_us: int, *, asked: bool, pause: Callable[[], None]
) -> bool:
    """Whether enough of the active segment has expired that it should be sealed and rewritten; in the background only if it is time."""
    segment = log.active
    if segment is None or log.committed_end <= segment.first_offset:
        return False
    lifetime = state.active_lifetime(log)
    if asked or lifetime is None or state.wants_active(log, now_us):
        if not asked and not state.wants_active(log, now_us):
            return False
        first, end, ttl_us, position = segment.first_offset, log.committed_end, log.settings.ttl_ms * 1000, segment.position
        if asked or ttl_us or may_expire(log, first, end):
            lifetime = look(segment, active_batches(log, segment), end - first, ttl_us, pause)
        else:
            lifetime = Lifetime(end - first, None, None, drawn=True)
        lifetime.position = position
        state.active = first, lifetime
    due_us = lifetime.half_us if asked else lifetime.due_us
    if due_us is None or due_us > now_us:
        return False
    if Expiry(log, protection, now_us).is_worth_it(active_batches(log, segment), lifetime.messages, pause):
        return True
    lifetime.put_off(now_us)
    return False


def expire(
    files: FileSystem,
    log: PartitionLog,
    state: ExpiryState,
    limit: int,
    protection: Protection,
    taken: OffsetSet,
    now_us: int,
    rewriting: threading.Lock,
    *,
    asked: bool,
    pause: Callable[[], None] = lambda: None,
) -> Removed:
    """
    Take what has expired at *now_us*, and is not protected, out of the sealed segments of *log* that end at or before *limit*.

    Only segments of which that is most are rewritten. *taken* holds the offsets that go with the segment that is being rewritten, for
    `Protection.holds`. One thread at a time for each log. Raises as `rewrite` does.
    """
    removed = Removed()
    expiry = Expiry(log, protection, now_us)
    looks = 0
    state.forget_removed(log)

    def keep(batch: Batch) -> list[int] | None:
        gone = set(expiry.going(batch))
        if not gone:
            return None
        taken.update(gone)
        return [index for index, offset in enumerate(batch.offsets_of(range(len(batch)))) if offset not in gone]

    def look_at(segment: Segment) -> Lifetime:
        if asked or ttl_us or may_expire(log, segment.first_offset, segment.end_offset):
            return look(segment, unchecked_batches(segment), segment.messages, ttl_us, pause)
        return Lifetime(segment.messages, None, None, drawn=True)

    ttl_us = log.settings.ttl_ms * 1000
    for first, following in sealed_ranges(log, limit):
        known = state.sealed.get(first)
        if known is not None and known.drawn and asked:
            known = None
        due_us = None if known is None else known.half_us if asked else known.due_us
        if known is not None and (due_us is None or due_us > now_us):
            continue
        with rewriting:
            if log.deleted:
                break  # another topic may have its folder now; while this lock is held none is deleted
            try:
                if known is None:
                    if looks >= LOOKS_MAX and not asked:
                        break
                    looks += 1
                    try:
                        known = state.sealed[first] = look_at(log.segment(first))
                    except Corrupt:
                        if asked:
                            raise
                        # Left alone, and what comes behind it is not: damage is told by who needs the messages, and by `verify`.
                        state.sealed[first] = Lifetime(following - first, None, None, drawn=True)
                        continue
                    due_us = known.half_us if asked else known.due_us
                segment = log.segment(first)
                if due_us is None or due_us > now_us or not segment.messages:
                    continue
                if not expiry.is_worth_it(all_batches(segment), segment.messages, pause):
                    known.put_off(now_us)
                    continue
                taken.clear()
                found = filter_segment(files, log, segment, keep, holds=protection.holds, pause=pause)
            except (FileNotFoundError, OffsetOutOfRange):
                continue  # retention was quicker
            if found is not None:
                removed.add(found)
                known = state.sealed[first] = look_at(log.segment(first))
                if not found.messages and known.due_us is not None:
                    known.put_off(now_us)  # batches that cannot be taken apart
        pause()
    return removed
