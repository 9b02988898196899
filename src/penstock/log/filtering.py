"""
Taking messages out of a sealed segment: what compaction and vacuum have in common.

A filter says of each batch which messages stay. What stays keeps its offset, its times and its place; small batches that are left are
merged. The new file is compared with what should be in it, offsets and values, before it takes over (rewriting.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import DamagedFile, Unavailable
from penstock.format import columns as c
from penstock.format.checksum import crc32c
from penstock.format.segment import FOOTER_BYTES
from penstock.format.select import can_select, select
from penstock.log.coalescing import merge_small
from penstock.log.rewriting import all_batches, rewrite, unchecked_batches
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock.files import FileSystem
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment

    Keep = Callable[[Batch], "list[int] | None"]
    """Which messages of a batch stay, by index; None for all of them."""

EVERYTHING = (1 << 63) - 1


class Protection(NamedTuple):
    """What neither compaction nor vacuum may take out of a log, whatever else says so."""

    floor: int = EVERYTHING
    """Offsets from here on stay."""
    unfinished: OffsetSet = OffsetSet()
    """Offsets below the floor that stay: some group has not finished them."""
    dedup_from_us: int = EVERYTHING
    """Messages with a dedup key that were appended at this time or later stay: after a restart the key is known from them alone."""
    holds: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(True)
    """
    Entered before a rewritten segment takes over: whether all this is still so, and it stays so until it is left.

    A group that went back needs what it had finished.
    """

    def kept(self, batch: Batch, offsets: list[int]) -> set[int] | None:
        """Which of *offsets*, those of all messages of *batch*, stay; None for all of them."""
        if offsets[0] >= self.floor:
            return None
        found: set[int] = set()
        if offsets[-1] >= self.floor:
            found.update([offset for offset in offsets if offset >= self.floor])
        if self.unfinished and self.unfinished.range_cardinality(offsets[0], offsets[-1] + 1):
            found.update(self.unfinished & OffsetSet(offsets))
        if batch.header.max_time_us >= self.dedup_from_us and batch.entry(c.DEDUP_KEY) is not None:
            found.update([offset for index, offset in enumerate(offsets) if batch.dedup_key(index) is not None])
        return found


@dataclass(slots=True)
class Removed:
    """What was taken out of segments."""

    segments: int = 0
    """Segments that were rewritten."""
    messages: int = 0
    tombstones: int = 0
    """How many of the messages were tombstones whose grace was over."""
    bytes: int = 0

    def add(self, other: Removed) -> None:
        """Count *other* too."""
        self.segments += other.segments
        self.messages += other.messages
        self.tombstones += other.tombstones
        self.bytes += other.bytes


class _Content:
    """What a segment holds, as far as it is compared: the offsets, and a checksum over all values."""

    def __init__(self) -> None:
        self.offsets = OffsetSet()
        self.crc = 0

    def add(self, batch: Batch) -> None:
        self.offsets |= OffsetSet(batch.offsets_of(range(len(batch))))
        data = batch._column(c.VALUE).data  # noqa: SLF001 - the raw bytes of all values at once
        self.crc = crc32c(data.get(0, data.raw_bytes), self.crc)


def filter_segment(
    files: FileSystem,
    log: PartitionLog,
    segment: Segment,
    keep: Keep,
    *,
    compacted_us: int | None = None,
    holds: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(True),
    pause: Callable[[], None] = lambda: None,
) -> Removed | None:
    """
    Rewrite *segment* with what *keep* leaves of it; None if retention removed it meanwhile.

    Raises as `rewrite` does, and `Unavailable` if what *keep* went by does not hold any more.
    """
    content = _Content()

    def left() -> Iterator[Batch]:
        for batch in all_batches(segment):
            chosen = keep(batch) if can_select(batch) else None
            if chosen is None or len(chosen) == len(batch):
                content.add(batch)
                yield batch
            elif chosen:
                selected = select(batch, chosen)
                content.add(selected)
                yield selected
            else:
                pause()

    def check(rewritten: Segment) -> None:
        found = _Content()
        for batch in unchecked_batches(rewritten):
            found.add(batch)
            pause()
        if found.offsets != content.offsets or found.crc != content.crc:
            raise DamagedFile(
                rewritten.path, 0, rewritten.first_offset, "the rewritten segment holds other messages than it should"
            )

    @contextlib.contextmanager
    def takes_over() -> Iterator[None]:
        with holds() as still:
            if not still:
                raise Unavailable(f"{segment.path} was not rewritten: a group went back meanwhile")
            yield

    before, size = segment.messages, segment.position + FOOTER_BYTES
    batches = merge_small(left(), log.settings)
    rewritten = rewrite(
        files, log, segment, batches, compacted_us=compacted_us, check=check, takes_over=takes_over, pause=pause
    )
    if rewritten is None:
        return None
    return Removed(segments=1, messages=before - rewritten.messages, bytes=size - rewritten.position - FOOTER_BYTES)
