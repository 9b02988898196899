"""
A file of batches that becomes a segment of a log without being copied.

Whoever stages many messages for one log writes them, encoded and synced, into a file that leaves room for a segment's header and
state batch in front and for its footer behind. Everything that depends on the place in the log (offsets, times, checksums of the
headers) is decided when the stage is committed: `plan` works it out in memory, and `write` puts it into the file, syncs it, and gives
the file a second name among the log's segments. The first name stays until the commit is durable: if the frame never comes, recovery
removes the second name, as it does with all that was written ahead of a frame, and the staged file can be committed again. So that a
header torn by a power loss does no harm to that, the headers as they were staged are kept elsewhere (`format/stage.py`), and what
the file has in their place is never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.files import write_fully
from penstock.format.batch_header import COMPATIBLE_PREWRITTEN, parse_header, set_compatible_flag, stamp
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, add_header_crc
from penstock.log.offset_index import OffsetIndex
from penstock.log.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.files import Buffer, File, FileSystem
    from penstock.format.batch import EncodedBatch
    from penstock.format.segment import SegmentHeader


class StagedSegment:
    """
    A staged file, open for writing, and the headers of its batches as they were staged.

    The batches follow each other from *data_start* on; the file is as long as they are, and a footer more. For one commit.
    """

    __slots__ = (
        "_files",
        "_headers",
        "_parts",
        "count",
        "data_end",
        "data_start",
        "file",
        "header_crc",
        "messages",
        "offset_span",
        "path",
    )

    def __init__(self, files: FileSystem, path: str, file: File, data_start: int, headers: Sequence[Buffer]) -> None:
        self._files = files
        self.path = path
        self.file = file
        self.data_start = data_start
        self._headers = headers
        self.count = len(headers)
        """How many batches it has."""
        self._parts: list[tuple[int, Buffer]] = []
        self.messages = self.offset_span = 0
        self.data_end = data_start
        self.header_crc = 0
        """The checksum of the first batch's header, once it is planned."""
        for data in headers:
            header = parse_header(data)
            self.messages += header.count
            self.offset_span += header.offset_span
            self.data_end += header.total_bytes

    def batches(self) -> Iterator[bytes]:
        """The batches as they were staged. Who takes them checks them."""
        position = self.data_start
        for header in self._headers:
            length = parse_header(header).total_bytes
            yield bytes(header) + self.file.pread(length - len(header), position + len(header))
            position += length

    @property
    def state_bytes(self) -> int:
        """The length that the state batch must have."""
        return self.data_start - SEGMENT_HEADER_BYTES

    def plan(
        self, path: str, header: SegmentHeader, state: EncodedBatch, interval_bytes: int, now_us: int, max_time_us: int, durable_end: int
    ) -> Segment:  # fmt: skip
        """The sealed segment that the file will be at *path*; nothing is written yet."""
        assert len(state.data) == self.state_bytes
        segment = Segment(self._files, path, header, OffsetIndex(interval_bytes))
        state.stamp(header.first_offset, header.created_us, header.base_time_us, header.segment_uid, 0, header.log_epoch)
        segment.position = self.data_start
        segment.crc_of_crcs = add_header_crc(0, state.data)
        parts: list[tuple[int, Buffer]] = [(0, header.encode() + state.data)]
        for staged in self._headers:
            data = bytearray(staged)
            set_compatible_flag(data, COMPATIBLE_PREWRITTEN)
            stamp(data, len(data), segment.end_offset, now_us, max_time_us, header.segment_uid, durable_end, header.log_epoch)
            parts.append((segment.position, data))
            segment.crc_of_crcs = add_header_crc(segment.crc_of_crcs, data)
            segment.note_header(parse_header(data))
        self.header_crc = int.from_bytes(parts[1][1][4:8], "little")
        parts.append((self.data_end, segment.footer().encode()))
        segment.file = self.file
        segment.sealed = True
        self._parts = parts
        return segment

    def write(self, segment: Segment) -> None:
        """
        Make the file the planned *segment*: whole and synced first, then under its name, which is not durable yet.

        Raises `OSError`; it may be called again.
        """
        for position, data in self._parts:
            write_fully(self.file, data, position)
        segment.sync()
        assert segment.synced_position == self.data_end + FOOTER_BYTES
        self._files.link(self.path, segment.path)
