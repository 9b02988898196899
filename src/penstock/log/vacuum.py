"""
Vacuum: a sealed segment that must stay because of a few messages is rewritten without the rest.

With ``retain="until_acked"`` one message that some group has not finished keeps its segment, and all behind it, on the disk: only whole
segments are removed, and only from the front. Vacuum takes what is finished and past its retention out of such segments, where that
is most of them. A segment of which nothing is left becomes an empty file of a few hundred bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.format import columns as c
from penstock.log.compaction import sealed_ranges
from penstock.log.filtering import Protection, Removed, filter_segment
from penstock.log.rewriting import unchecked_batches

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock.files import FileSystem
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment

DEAD_LEAST = 0.5
"""A segment is rewritten if this part of its messages goes: else the gain is not worth the work."""


def vacuum(
    files: FileSystem,
    log: PartitionLog,
    limit: int,
    protection: Protection,
    rewriting: threading.Lock,
    *,
    pause: Callable[[], None] = lambda: None,
) -> Removed:
    """
    Take all but what is protected out of the sealed segments of *log* that end at or before *limit*; returns what went.

    *rewriting* is held while a segment is rewritten. One thread at a time for each log. Raises as `rewrite` does.
    """
    removed = Removed()

    def keep(batch: Batch) -> list[int] | None:
        offsets = batch.offsets_of(range(len(batch)))
        kept = protection.kept(batch, offsets)
        return None if kept is None else [index for index, offset in enumerate(offsets) if offset in kept]

    for first, following in sealed_ranges(log, limit):
        with rewriting:
            if log.deleted:
                break  # another topic may have its folder now; while this lock is held none is deleted
            try:
                segment = log.segment(first)
            except FileNotFoundError:
                continue  # retention was quicker
            alive = protection.unfinished.range_cardinality(first, following) + max(0, following - max(first, protection.floor))
            dead = segment.messages - alive
            if dead > 0 and segment.max_time_us >= protection.dedup_from_us:
                # As many as may have a key that must be known; those of them that are not finished are counted twice.
                dead -= _messages_with_keys(segment, protection.dedup_from_us)
            if dead > 0 and dead >= segment.messages * DEAD_LEAST:
                found = filter_segment(files, log, segment, keep, holds=protection.holds, pause=pause)
                if found is not None:
                    removed.add(found)
        pause()
    return removed


def _messages_with_keys(segment: Segment, from_us: int) -> int:
    """The messages of batches that were appended at *from_us* or later and in which one has a dedup key. Reads headers only."""
    return sum(
        len(batch)
        for batch in unchecked_batches(segment)
        if batch.header.max_time_us >= from_us and batch.entry(c.DEDUP_KEY) is not None
    )
