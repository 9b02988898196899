"""What the commit cycle is about to write to a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.format.frame import Reference

if TYPE_CHECKING:
    from penstock.format.batch import EncodedBatch
    from penstock.log.segment import Segment
    from penstock.log.staged_segment import StagedSegment


class PlannedGroup:
    """Planned batches that go to one segment."""

    __slots__ = ("batches", "segment", "stamps")

    def __init__(self, segment: Segment, batches: list[EncodedBatch], stamps: list[tuple[int, int, int]]) -> None:
        self.segment = segment
        self.batches = batches
        self.stamps = stamps

    def write(self) -> None:
        """Write the batches. Raises `OSError`; it may be called again."""
        self.segment.write(self.batches, self.stamps)

    def references(self, log_id: int) -> list[Reference]:
        """What a frame says of the batches, before they are written."""
        position = self.segment.position
        found = []
        for batch, (first, _, _) in zip(self.batches, self.stamps, strict=True):
            data = batch.data
            crc = int.from_bytes(data[4:8], "little")
            found.append(Reference(log_id, batch.count, first, batch.offset_span, self.segment.uid, position, len(data), crc))
            position += len(data)
        return found


class AdoptedGroup(PlannedGroup):
    """A whole segment, of a staged file."""

    __slots__ = ("_staged",)

    def __init__(self, segment: Segment, staged: StagedSegment) -> None:
        super().__init__(segment, [], [])
        self._staged = staged

    def write(self) -> None:
        """Give the file its place. Raises `OSError`; it may be called again."""
        self._staged.write(self.segment)

    def references(self, log_id: int) -> list[Reference]:
        """One for all of its batches."""
        staged, segment = self._staged, self.segment
        size = staged.data_end - staged.data_start
        return [
            Reference(
                log_id, staged.messages, segment.first_offset, staged.offset_span, segment.uid, staged.data_start, size, staged.header_crc
            )
        ]  # fmt: skip
