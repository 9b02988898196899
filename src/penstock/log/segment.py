"""
One segment file: written at its end while it is active, sealed with a footer, then never written again.

The log that owns it decides when to write; a segment knows its file, its index, and how much of it is synced. Layout:
`format/segment.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.errors import BadBytes, DamagedFile, StorageFull, UnsupportedFormat
from penstock.files import is_full, write_buffers_fully, write_fully
from penstock.format.batch import Batch
from penstock.format.batch_header import FIXED_BYTES, HEADER_BYTES_MAX, KIND_DATA, MAGIC, BatchHeader, parse_header
from penstock.format.checksum import crc32c
from penstock.format.index import IndexSnapshot
from penstock.format.segment import (
    FOOTER_BYTES,
    FOOTER_MAGIC,
    SEGMENT_HEADER_BYTES,
    Footer,
    SegmentHeader,
    add_header_crc,
)
from penstock.interrupts import Held
from penstock.log.offset_index import OffsetIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.files import Buffer, File, FileSystem
    from penstock.format.batch import EncodedBatch

    _Found = Callable[[BatchHeader], bool]

READ_BYTES_DEFAULT = 1024 * 1024
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"
_RESERVE_LEAST_BYTES = 64 * 1024
_RESERVE_MOST_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 8 * 1024
_U32 = struct.Struct("<I")


def segment_name(first_offset: int) -> str:
    """The name of the segment that begins at this offset; twenty digits, so that names sort."""
    return f"{first_offset:020d}{LOG_SUFFIX}"


def index_path(path: str) -> str:
    """Where the index of the segment at *path* is cached."""
    return path[: -len(LOG_SUFFIX)] + INDEX_SUFFIX


def parse_segment_name(name: str) -> int | None:
    """The first offset that a file name says, or None if it is not the name of a segment."""
    digits = name[: -len(LOG_SUFFIX)]
    return int(digits) if name.endswith(LOG_SUFFIX) and len(digits) == 20 and digits.isdecimal() and digits.isascii() else None


def remove_segment(files: FileSystem, directory: str, first_offset: int) -> None:
    """Remove a segment that nobody has open for writing, and its index, as far as they are there. Raises `OSError`."""
    path = os.path.join(directory, segment_name(first_offset))
    for name in (index_path(path), path):
        if files.exists(name):
            files.unlink(name)


class Segment:
    """
    A segment file and what is known of it.

    `position` is where the next batch goes (or, once sealed, where the footer lies), `end_offset` the offset it will get.
    """

    __slots__ = (
        "_crc", "_crc_pending", "_files", "_sync_failure", "_sync_lock", "_view", "batches", "end_offset", "file", "header", "index",
        "last_use", "max_time_us", "messages", "min_time_us", "path", "position", "reserved_end", "sealed", "synced_position", "uid",
    )  # fmt: skip

    def __init__(self, files: FileSystem, path: str, header: SegmentHeader, index: OffsetIndex) -> None:
        self._files = files
        self._view: memoryview | None = None
        self.path = path
        self.header = header
        self.uid = header.segment_uid
        self.index = index
        self.file: File | None = None
        self.position = SEGMENT_HEADER_BYTES
        self.end_offset = header.first_offset
        self.max_time_us = header.base_time_us
        self.min_time_us = 0
        self.batches = 0
        self.messages = 0
        self._crc = 0
        self._crc_pending = bytearray()
        self.sealed = False
        self.synced_position = 0
        self.reserved_end = 0
        self._sync_lock = threading.Lock()
        self._sync_failure: int | None = None
        self.last_use = 0
        """When its log last used it, counted in uses; those not used for longest are let go of."""

    @property
    def first_offset(self) -> int:
        """The first offset of its range."""
        return self.header.first_offset

    @property
    def begun_us(self) -> int:
        """When its first batch was appended; where an index cache alone knows of that, when it was made, which is not later."""
        return max(self.header.created_us, self.min_time_us)

    @property
    def crc_of_crcs(self) -> int:
        """The CRC over the header CRCs of all batches so far, which are gathered and folded in now and then."""
        if self._crc_pending:
            self._crc = crc32c(self._crc_pending, self._crc)
            self._crc_pending = bytearray()
        return self._crc

    @crc_of_crcs.setter
    def crc_of_crcs(self, value: int) -> None:
        self._crc_pending = bytearray()
        self._crc = value

    # -- making and writing -----------------------------------------------------------------------------------------

    @classmethod
    def create(cls, files: FileSystem, path: str, header: SegmentHeader, state: EncodedBatch, interval_bytes: int) -> Segment:
        """
        Make a new file with header and state batch; nothing is durable yet.

        Raises `OSError`; the half-made file is removed again.
        """
        segment = cls(files, path, header, OffsetIndex(interval_bytes))
        state.stamp(header.first_offset, header.created_us, header.base_time_us, header.segment_uid, 0, header.log_epoch)
        segment.file = files.create(path)
        try:
            write_fully(segment.file, header.encode() + state.data, 0)
        except OSError:
            segment.file.close()
            files.unlink(path)
            raise
        segment.position = SEGMENT_HEADER_BYTES + len(state.data)
        segment.crc_of_crcs = add_header_crc(0, state.data)
        return segment

    def reserve(self, end: int) -> None:
        """
        Make sure that the disk has blocks for this file up to *end*, so that a later write cannot run out of space.

        Raises `StorageFull`; nothing is changed then.
        """
        if end <= self.reserved_end:
            return
        file = self.open_file()
        start = max(self.reserved_end, self.position)
        ahead = min(max(_RESERVE_LEAST_BYTES, start // 4), _RESERVE_MOST_BYTES)
        try:
            # Try to reserve ahead so that this is rare; near the end of the disk take just what is needed.
            try:
                file.reserve(start, end - start + ahead)
                self.reserved_end = end + ahead
            except OSError as error:
                if not is_full(error):
                    raise
                file.reserve(start, end - start)
                self.reserved_end = end
        except OSError as error:
            if is_full(error):
                raise StorageFull(self.path, None, None) from None
            raise

    def write(self, batches: Sequence[EncodedBatch], stamps: Sequence[tuple[int, int, int]]) -> None:
        """
        Append stamped batches; *stamps* holds (first offset, append time, max time) of each.

        Returns when the kernel has them. Raises `OSError`; the file is then as it was before.
        """
        file = self.file or self.open_file()
        assert not self.sealed
        start = self.position
        try:
            if len(batches) == 1:
                write_fully(file, batches[0].data, start)
            else:
                write_buffers_fully(file, [batch.data for batch in batches], start)
        except OSError:
            self._roll_back()
            raise
        position, max_time_us, messages = start, self.max_time_us, self.messages
        index, crcs = self.index, self._crc_pending
        if not self.batches:
            self.min_time_us = stamps[0][1]
        for batch, (first_offset, _, time_us) in zip(batches, stamps, strict=True):
            data = batch.data
            if position >= index.next_position:
                index.add(first_offset, max_time_us, position)
            crcs += data[4:8]
            position += len(data)
            max_time_us = time_us
            messages += batch.count
        self._wrote(position, first_offset + batch.offset_span, max_time_us, messages, len(batches))

    def write_one(self, batch: EncodedBatch, first_offset: int, append_time_us: int, max_time_us: int) -> None:
        """Like `write`, for one batch, sooner."""
        file, data, position = self.file, batch.data, self.position
        if file is None:  # it was closed since it was planned, to make room for others
            file = self.open_file()
        length = len(data)
        try:
            if file.pwrite(data, position) != length:
                write_fully(file, data, position)
        except OSError:
            self._roll_back()
            raise
        if not self.batches:
            self.min_time_us = append_time_us
        index = self.index
        if position >= index.next_position:
            with Held():  # an entry is several lists
                index.add(first_offset, self.max_time_us, position)
        # From here on there is no call, so no signal gets in: see `PartitionLog.settle`.
        self._crc_pending += data[4:8]
        self.batches += 1
        self.messages += batch.count
        self.max_time_us = max_time_us
        self.end_offset = first_offset + batch.offset_span
        # Last, as in `_wrote`.
        self.position = position + length

    def write_value(self, data: bytearray, first_offset: int, append_time_us: int, max_time_us: int) -> None:
        """Like `write_one`, for the bytes of a batch with one value."""
        file, position = self.file, self.position
        if file is None:
            file = self.open_file()
        length = len(data)
        try:
            if file.pwrite(data, position) != length:
                write_fully(file, data, position)
        except OSError:
            self._roll_back()
            raise
        if not self.batches:
            self.min_time_us = append_time_us
        index = self.index
        if position >= index.next_position:
            index.add(first_offset, self.max_time_us, position)
        self._crc_pending += data[4:8]
        self.batches += 1
        self.messages += 1
        self.max_time_us = max_time_us
        self.end_offset = first_offset + 1
        # Last, as in `_wrote`.
        self.position = position + length

    def _wrote(self, position: int, end_offset: int, max_time_us: int, messages: int, batches: int) -> None:
        self.batches += batches
        self.messages = messages
        self.max_time_us = max_time_us
        self.end_offset = end_offset
        # Last: a reader that sees the new position finds everything else in place.
        self.position = position

    def _roll_back(self) -> None:
        # Half a batch must not stay: what is appended later would lie behind it and be cut at the next recovery.
        assert self.file is not None
        self.file.truncate(self.position)
        self.reserved_end = 0

    def note_scanned(self, batch: Batch) -> None:
        """Move on past a data batch that a scan found at `position`."""
        self.crc_of_crcs = add_header_crc(self.crc_of_crcs, batch.buffer)
        self.note_header(batch.header)

    def note_header(self, header: BatchHeader) -> None:
        """Move on past the data batch at `position` that has this header."""
        if not self.batches:
            self.min_time_us = header.append_time_us
        self.index.add(header.first_offset, self.max_time_us, self.position)
        self.batches += 1
        self.messages += header.count
        self.max_time_us = header.max_time_us
        self.end_offset = header.first_offset + header.offset_span
        self.position += header.total_bytes

    def footer(self, end_offset: int | None = None) -> Footer:
        """The footer that fits what is in the file now."""
        return Footer(
            segment_uid=self.header.segment_uid,
            first_offset=self.header.first_offset,
            end_offset=self.end_offset if end_offset is None else end_offset,
            data_end=self.position,
            max_time_us=self.max_time_us,
            messages=self.messages,
            batches=self.batches,
            crc_of_crcs=self.crc_of_crcs,
            min_time_us=self.min_time_us,
        )

    def seal(self, end_offset: int | None = None) -> None:
        """
        Write the footer; durable with the next sync. Raises `OSError`; the file is then as it was before.

        *end_offset* is the end of the segment's range, where that is more than the end of its last batch.
        """
        file = self.file or self.open_file()
        try:
            write_fully(file, self.footer(end_offset).encode(), self.position)
            # Frees what was reserved ahead.
            file.truncate(self.position + FOOTER_BYTES)
        except OSError:
            file.truncate(self.position)
            raise
        self.reserved_end = 0
        self.end_offset = self.end_offset if end_offset is None else end_offset
        self.sealed = True

    def sync(self) -> None:
        """
        Make all that was written durable. Any thread may call it.

        Raises `OSError`, after which the segment must not be written any more; it is then raised to every later caller too, because
        the kernel reports a failed sync once, and would tell the next one that all is well.
        """
        with self._sync_lock:
            if self._sync_failure is not None:
                raise OSError(self._sync_failure, "an earlier sync of this file failed", self.path)
            if self.file is None:
                if self.is_synced:
                    return  # another thread was quicker, and it was let go of
                raise FileNotFoundError(errno.ENOENT, "its topic is deleted", self.path)
            self._sync(self.file)

    def _sync(self, file: File) -> None:
        position = self.position + (FOOTER_BYTES if self.sealed else 0)
        try:
            file.sync_data()
        except OSError as error:
            self._sync_failure = error.errno or errno.EIO
            raise
        self.synced_position = max(self.synced_position, position)

    @property
    def is_synced(self) -> bool:
        """Whether all of it is durable."""
        return self.synced_position >= self.position + (FOOTER_BYTES if self.sealed else 0)

    # -- reading ----------------------------------------------------------------------------------------------------

    def open_file(self) -> File:
        """The open file; opened now if it is not, one that takes more batches for writing too. Raises `OSError`."""
        file = self.file
        if file is None:
            # One for all: who writes must not be given another one than who syncs, which tells of failures of its own time only.
            with self._sync_lock:
                file = self.file
                if file is None:
                    file = self.file = self._files.open(self.path, write=not self.sealed)
        return file

    def let_go(self) -> bool:
        """
        Close the file of a segment that takes more batches, until it is needed again; False if something of it is not durable.

        Who reads it meanwhile keeps his own. The caller sees to it that nobody writes.
        """
        with self._sync_lock:
            file = self.file
            if file is None or self._sync_failure is not None or self.sealed or not self.is_synced:
                return False
            if self.reserved_end:
                file.truncate(self.position)  # what was reserved ahead
                self.reserved_end = 0
            # Not closed: it closes when the last reader lets go of it.
            self.file = None
            return True

    def give_back_reserved(self) -> None:
        """Free the blocks that were reserved ahead; nobody writes any more. Raises `OSError`."""
        file = self.file
        if file is not None:
            file.truncate(self.position)
        else:
            with contextlib.suppress(OSError):  # closed, so all that is in it is durable; the next owner does it
                file = self._files.open(self.path, write=True)
                try:
                    file.truncate(self.position)
                finally:
                    file.close()
        self.reserved_end = 0

    def close_file(self) -> bool:
        """
        Close the file until it is needed again, and make all of it durable first; False if that cannot be now. Never waits for a lock.

        What is reserved stays reserved: a batch may be planned for it. The caller sees to it that nobody writes. Raises `OSError`; it is
        raised to whoever syncs it next, too.
        """
        if self.file is None or not self._sync_lock.acquire(blocking=False):
            return False
        try:
            if self.file is None or self._sync_failure is not None:
                return False
            if not self.is_synced:
                self._sync(self.file)
            # Not closed: it closes when the last reader lets go of it.
            self.file = self._view = None
            return True
        finally:
            self._sync_lock.release()

    def forget_file(self) -> None:
        """Let go of file and map for good: the topic is deleted. They close when the last reader lets go of them."""
        with self._sync_lock:
            self.file = None
            self._view = None

    @property
    def descriptors(self) -> int:
        """How many it has; a map has one of its own."""
        return (self.file is not None) + (self._view is not None)

    def view(self) -> memoryview | None:
        """
        The mapped file, if it may be mapped: sealed and synced.

        An unsynced page that is mapped could not be dropped from the cache by recovery after a failed sync.
        """
        if self._view is None and self.sealed and self.is_synced:
            try:
                self._view = self.open_file().map()
            except FileNotFoundError:
                raise
            except OSError:
                return None  # A file system that gave up may refuse to map what it still lets be read.
        return self._view

    def content(self) -> memoryview:
        """The whole file: mapped if that may be, else read."""
        view = self.view()
        if view is not None:
            return view
        file = self.open_file()
        return memoryview(file.pread(file.size(), 0))

    def note_read(self, length: int) -> None:
        """So many bytes of what `view` or `content` gave were read: see `FileSystem.note_read`."""
        view = self._view
        if view is not None:
            self._files.note_read(view, length)

    def find(self, offset: int) -> int:
        """
        The position of the batch that holds *offset* (or of the first one behind, where offsets are missing).

        A damaged batch before it is passed over: what holds the offset is known by its own header.
        """
        start = self.index.position_of(offset)
        first = -1

        def holds(header: BatchHeader) -> bool:
            nonlocal first
            first = header.first_offset
            return first + header.offset_span > offset

        try:
            position = self._hop(start, holds)
            if first > offset and position < self.position and not self.header.generation:
                raise DamagedFile(self.path, position, offset, f"the batch with offset {offset} is not there")
        except DamagedFile as damage:
            behind = self._resume(damage.position + 1)
            while behind is not None:
                position, header = behind
                if header.first_offset <= offset < header.first_offset + header.offset_span:
                    return position
                if header.first_offset > offset:
                    break
                behind = self._resume(position + header.total_bytes)
            raise
        return position

    def _resume(self, start: int) -> tuple[int, BatchHeader] | None:
        """The first good header of a data batch at or behind *start*, and where it is; None if there is none."""
        return find_header(self.window, start, self.position, self.uid)

    def find_time(self, time_us: int) -> int:
        """The position of the first batch whose running max time reaches *time_us*; `position` if there is none."""
        return self._hop(self.index.position_of_time(time_us), lambda header: header.max_time_us >= time_us)

    def _hop(self, start: int | None, found: _Found) -> int:
        """
        Go from batch to batch until one is *found*: at most one index interval of them.

        Each header is checked: a flipped bit in one that is only passed over could lead past the batch that is looked for.
        """
        end = self.position
        if start is None or start >= end:
            return end
        view, base = self.window(start, min(end, start + 2 * _WINDOW_BYTES))
        position = start
        due = -1
        while position < end:
            if position + HEADER_BYTES_MAX > base + len(view) and base + len(view) < end:
                view, base = self.window(position, min(end, position + _WINDOW_BYTES))
            try:
                header = parse_header(view, position - base)
                if header.segment_uid != self.uid:
                    raise BadBytes("batch", "belongs to another segment")
                if header.kind == KIND_DATA:
                    self._check_follows(header, due)
                    due = header.first_offset + header.offset_span
            except BadBytes as error:
                raise DamagedFile(self.path, position, None if due < 0 else due, str(error)) from None
            if found(header):
                return position
            position += header.total_bytes
        return end

    def _check_follows(self, header: BatchHeader, due: int) -> None:
        """Raise `BadBytes` unless the batch may follow one that ended at *due*; -1: whatever came before it."""
        first = header.first_offset
        if first != due and due >= 0 and (first < due or not self.header.generation):
            raise BadBytes("batch", f"has offset {first} where {due} is next")

    def window(self, start: int, stop: int) -> tuple[memoryview, int]:
        """The bytes from *start* to *stop*, or the whole data if it is mapped; and where what it gives begins."""
        view = self.view()
        if view is not None:
            return view[: self.position], 0
        data = self._pread(stop - start, start)
        if len(data) < min(FIXED_BYTES, stop - start):
            raise DamagedFile(self.path, start, None, "the file is shorter than it was")
        return memoryview(data), start

    def read(
        self, position: int, end_offset: int, bytes_max: int, *, verify: bool, columns: Sequence[int] = ()
    ) -> list[Batch]:  # fmt: skip
        """
        The batches from *position* on that end at or before *end_offset*, about *bytes_max* bytes but at least one.

        Headers are always checked; with *verify* all columns are too, else only *columns*.

        Raises `DamagedFile`: the first of them is not as it was written. Damage behind a good one ends what is given, and is raised to who
        asks for what comes next.
        """
        batches: list[Batch] = []
        end = self.position
        view, base = self._chunk(position, min(end, position + max(bytes_max, HEADER_BYTES_MAX)))
        taken = 0
        while position < end and (taken < bytes_max or not batches):
            try:
                header = self._header_in(view, position - base)
                if header is None or position - base + header.total_bytes > len(view):
                    if batches:
                        break
                    length = HEADER_BYTES_MAX if header is None else header.total_bytes
                    view, base = self._chunk(position, min(end, position + length))
                    # The whole file may be mapped meanwhile, if it was sealed: then the base is 0.
                    header = parse_header(view, position - base)
                    if header.total_bytes > len(view) - (position - base):
                        view, base = self._chunk(position, min(end, position + header.total_bytes))
                if header.kind == KIND_DATA and header.first_offset + header.offset_span > end_offset:
                    break
                if header.segment_uid != self.header.segment_uid:
                    raise BadBytes("batch", "belongs to another segment")
                if batches:
                    self._check_follows(header, batches[-1].end_offset)
                batch = Batch(view, position - base, header)
                if verify:
                    batch.verify()
                elif columns:
                    batch.verify_columns(columns)
            except BadBytes as error:
                if batches:
                    break
                raise DamagedFile(self.path, position, None, str(error)) from None
            if header.kind == KIND_DATA:
                batches.append(batch)
                taken += header.total_bytes
            position += header.total_bytes
        if self._view is not None:
            self.note_read(taken)
        return batches

    @staticmethod
    def _header_in(view: memoryview, at: int) -> BatchHeader | None:
        """The header at *at*, or None if the view ends before it does."""
        if len(view) - at < FIXED_BYTES:
            return None
        if len(view) - at < HEADER_BYTES_MAX:
            (header_bytes,) = _U32.unpack_from(view, at + 8)
            if FIXED_BYTES <= header_bytes <= HEADER_BYTES_MAX and header_bytes > len(view) - at:
                return None
        return parse_header(view, at)

    def _chunk(self, start: int, stop: int) -> tuple[memoryview, int]:
        view = self.view()
        if view is not None:
            return view[: self.position], 0
        return memoryview(self._pread(stop - start, start)), start

    def _pread(self, length: int, position: int) -> bytes:
        """
        Read; of a segment that takes batches and whose file is closed, by one that is closed again.

        So files that take batches are opened by who writes alone, who knows when they may be closed.
        """
        file = self.file
        if file is not None:
            return file.pread(length, position)
        if self.sealed:
            return self.open_file().pread(length, position)
        file = self._files.open(self.path)
        try:
            return file.pread(length, position)
        finally:
            file.close()

    # -- index cache ------------------------------------------------------------------------------------------------

    @property
    def index_path(self) -> str:
        """Where the index is cached."""
        return index_path(self.path)

    def index_snapshot(self, state: bytes) -> IndexSnapshot:
        """The index as it is now, with the log's *state* at `position`."""
        index = self.index
        return IndexSnapshot(
            segment_uid=self.header.segment_uid,
            valid_position=self.position,
            end_offset=self.end_offset,
            max_time_us=self.max_time_us,
            batches=self.batches,
            crc_of_crcs=self.crc_of_crcs,
            offsets=index.offsets[:],
            times_us=index.times_us[:],
            positions=index.positions[:],
            state=state,
        )

    def close(self) -> None:
        """Close the file; views of it that are in use stay valid."""
        file, self.file = self.file, None
        if file is not None:
            file.close()
        self._view = None

    def delete(self) -> None:
        """Remove the file and its index; durable with the next sync of the folder."""
        self.close()
        if self._files.exists(self.index_path):
            self._files.unlink(self.index_path)
        self._files.unlink(self.path)

    @property
    def directory(self) -> str:
        """The folder that it lies in."""
        return os.path.dirname(self.path)


def find_header(
    read: Callable[[int, int], tuple[memoryview, int]], start: int, end: int, segment_uid: int
) -> tuple[int, BatchHeader] | None:
    """
    Where the first good header of a data batch of this segment lies in [start, end), and the header; None if there is none.

    *read* gives the bytes from one position to another, or more, and where what it gives begins.
    """
    while start < end:
        view, base = read(start, min(end, start + READ_BYTES_DEFAULT))
        at = start - base
        content = bytes(view[at : at + READ_BYTES_DEFAULT])
        found = content.find(MAGIC)
        while found >= 0:
            try:
                near, near_base = read(start + found, min(end, start + found + HEADER_BYTES_MAX))
                header = parse_header(near, start + found - near_base)
            except (BadBytes, DamagedFile, UnsupportedFormat):
                pass
            else:
                if header.segment_uid == segment_uid and header.kind == KIND_DATA:
                    return start + found, header
            found = content.find(MAGIC, found + 1)
        # A word may lie across two parts.
        start += max(1, len(content) - len(MAGIC) + 1)
    return None


def is_footer(data: Buffer, at: int) -> bool:
    """Whether a footer, and no batch, begins at *at*."""
    return data[at : at + 4] == FOOTER_MAGIC
