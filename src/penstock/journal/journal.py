"""
The journal: the files that make a commit durable with one sync.

Theory of operation
-------------------
Frames are written one behind the other into preallocated files `journal/000001.wal`, `000002.wal`, ... A frame is written
only after the sync of the one before it returned, so at a crash only the last frame can be in doubt. Syncing a write into a
preallocated file is the cheapest durable write there is: neither size nor block map changes.

A file gets its final name only when it is whole: it is made (or recycled) under a temporary name, gets its blocks and its header,
is synced, renamed, and the folder is synced. So a `.wal` file without a valid header is damage and never "not begun yet".
The next file is prepared in the background before it is needed.

Files are used again: one that no checkpoint needs any more is kept as the next one (`.spare`). So a store at rest has two of them, and on
a full disk it goes on with these two for ever. Where there is none to use again, and no room for a whole file, a shorter one is made.

Replay reads frames in order of their numbers. Where no valid frame with the next number lies, the journal ends, and then it
must be shown that nothing valid lies behind: a frame with a higher number anywhere later means that an acknowledged frame
is gone, and that is reported as damage and not passed over.
"""

from __future__ import annotations

import mmap
import os
import secrets
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.errors import BadBytes, DamagedFile, MissingData
from penstock.files import is_full, write_fully
from penstock.format.frame import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    JOURNAL_HEADER_BYTES,
    FrameEntry,
    FrameHeader,
    JournalFileHeader,
    encode_frame,
    frame_entries,
    parse_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.files import Buffer, File, FileSystem

SUFFIX = ".wal"
SPARE_SUFFIX = ".spare"
NEW_SUFFIX = ".new"
SPARES_KEPT = 1
_AHEAD_BYTES = 1024 * 1024
_SHORT_BYTES = 1024 * 1024
"""The shortest file that is made on a full disk, if a whole one is not shorter."""


def file_name(sequence: int) -> str:
    """The name of the journal file with this sequence number."""
    return f"{sequence:06d}{SUFFIX}"


class Replayed(NamedTuple):
    """A frame that replay found."""

    number: int
    entries: list[FrameEntry]


class _OpenFile:
    __slots__ = ("file", "header", "position", "size", "written_end")

    def __init__(self, file: File, header: JournalFileHeader, size: int, written_end: int) -> None:
        self.file = file
        self.header = header
        self.position = JOURNAL_HEADER_BYTES
        self.size = size
        self.written_end = written_end

    def has_room(self, frame_bytes: int) -> bool:
        return self.position + frame_bytes + FRAME_HEADER_BYTES <= self.size


class Journal:
    """
    The journal of one store, owned by one process.

    `append` and `sync` are called by one thread at a time (the leader of the commit cycle); `prepare_next` and `free` by the
    maintenance thread beside them.
    """

    def __init__(self, files: FileSystem, directory: str, store_id: bytes, file_bytes: int, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._files = files
        self._directory = self.directory = directory
        self._store_id = store_id
        self._file_bytes = file_bytes
        self._current: _OpenFile | None = None
        self._next: _OpenFile | None = None
        self._file_lock = threading.Lock()
        self._kept: list[int] = []  # sequence numbers of the finished files, oldest first
        self._last_sequence = 0
        self.number = 0
        """The number of the last frame written."""
        self.bytes_written = 0
        self.syncs = 0

    @property
    def sequence(self) -> int:
        """The sequence number of the file that takes frames now."""
        assert self._current is not None
        return self._current.header.sequence

    # -- recovery ---------------------------------------------------------------------------------------------------

    def check_names(self) -> None:
        """Before anything is changed: raises `NotRegular` if one of the names is not that of a file, and `MissingData`."""
        self._list_files()
        for name in self._files.list_directory(self._directory):
            if name.endswith((SUFFIX, SPARE_SUFFIX, NEW_SUFFIX)):
                self._files.open(os.path.join(self._directory, name)).close()

    def replay(self, from_sequence: int, after_number: int) -> Iterator[Replayed]:
        """
        The frames with numbers above *after_number*, in order.

        Raises:
            MissingData: the file they begin in is not there.
            DamagedFile: a frame that was acknowledged cannot be read.
            UnsupportedFormat: a newer version wrote it.
        """
        sequences = self._list_files()
        if from_sequence == 0:
            # The checkpoint of a new store: the journal begins with its first file, or has not begun.
            from_sequence = sequences[0] if sequences else 0
        elif from_sequence not in sequences:
            path = os.path.join(self._directory, file_name(from_sequence))
            raise MissingData(path, "the last checkpoint says that the journal goes on in this file, and it is not there")
        number = 0
        stop: tuple[str, int] | None = None
        for sequence in [one for one in sequences if one >= from_sequence]:
            path = os.path.join(self._directory, file_name(sequence))
            view, header = self._read_file(path, sequence)
            position = JOURNAL_HEADER_BYTES
            while (frame := _frame_at(view, position, header.file_uid)) is not None:
                if (
                    stop is not None
                    or (number and frame.number != number + 1)
                    or (not number and frame.number > after_number + 1)
                ):
                    break
                number = frame.number
                if number > after_number:
                    try:
                        entries = list(frame_entries(view, position, frame))
                    except BadBytes as error:
                        raise DamagedFile(path, position, None, f"frame {number}: {error}") from None
                    yield Replayed(number, entries)
                position += frame.frame_bytes
            found = _later_frame(view, position, header.file_uid, max(number, after_number))
            if found is not None:
                bad_path, bad_position = stop or (path, position)
                raise DamagedFile(
                    bad_path, bad_position, None, f"frame {max(number, after_number) + 1} cannot be read, but frame {found} after it can"
                )  # fmt: skip
            # A file may end early because the next frame did not fit: the next file then begins with the next number.
            # If it does not, the journal ends here, and no frame of a later file may be newer.
            following = os.path.join(self._directory, file_name(sequence + 1))
            if stop is None and not self._begins_with(following, sequence + 1, max(number, after_number) + 1):
                stop = (path, position)
        self.number = max(number, after_number)

    def has_frames_behind(self, sequence: int, number: int) -> bool:
        """
        Whether a file behind *sequence* begins with a frame newer than *number*.

        Every opening begins a new file, so this tells whether the store was opened and written after a checkpoint that says it
        was closed in order.
        """
        for later in [one for one in self._list_files() if one > sequence]:
            view, header = self._read_file(os.path.join(self._directory, file_name(later)), later)
            frame = _frame_at(view, JOURNAL_HEADER_BYTES, header.file_uid)
            if frame is not None and frame.number > number:
                return True
        return False

    def _begins_with(self, path: str, sequence: int, number: int) -> bool:
        if not self._files.exists(path):
            return False
        view, header = self._read_file(path, sequence)
        frame = _frame_at(view, JOURNAL_HEADER_BYTES, header.file_uid)
        return frame is not None and frame.number <= number

    def _read_file(self, path: str, sequence: int) -> tuple[memoryview, JournalFileHeader]:
        file = self._files.open(path, write=not self._read_only)
        try:
            if not self._read_only:
                # What replay finds is acted on, so it must be durable first; and after a failed sync the cache may show
                # bytes that the disk does not have, so it is dropped.
                file.sync_data()
                file.drop_cache()
            view = file.map()
        finally:
            file.close()
        try:
            header = JournalFileHeader.decode(view)
        except BadBytes as error:
            raise DamagedFile(path, 0, None, str(error)) from None
        if header.store_id != self._store_id or header.sequence != sequence:
            raise DamagedFile(path, 0, None, "the file belongs to another store or has another name")
        return view, header

    def _list_files(self) -> list[int]:
        try:
            names = self._files.list_directory(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingData(self._directory, "the folder of the journal is missing") from None
        return sorted(int(name[: -len(SUFFIX)]) for name in names if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdecimal())

    # -- writing ----------------------------------------------------------------------------------------------------

    def find_files(self, number: int) -> list[int]:
        """Replay is done, and the last frame had *number*: take note of the files that are there, and return their sequence numbers."""
        self.number = number
        self._kept = self._list_files()
        self._last_sequence = max([self._last_sequence, *self._kept])
        return list(self._kept)

    @property
    def has_spare(self) -> bool:
        """Whether there is a file that the next one can be made of."""
        return self._take_spare() is not None

    def start(self, number: int) -> None:
        """
        Begin a new file behind all that are there; the next frame gets *number* + 1.

        Files found on disk are never appended to: what a crash left at their end stays as it was.
        """
        self.find_files(number)
        self._current = self._make_file()

    def append(self, time_us: int, entries: int, parts: list[Buffer]) -> int:
        """
        Write one frame and return its number; not durable before `sync`.

        Raises `OSError`: the journal must not be used any more, the frame may or may not be found later.
        """
        current = self._current
        assert current is not None
        data = encode_frame(self.number + 1, current.header.file_uid, time_us, entries, parts)
        if current.position + len(data) > current.size:
            self._switch()
            return self.append(time_us, entries, parts)
        length = len(data)
        if current.position + length > current.written_end:
            # The first write into a reserved block changes the file's block map, and syncing that is dear. So zeros are
            # written far ahead together with a frame now and then, and all other frames overwrite them.
            current.written_end = min(current.position + length + _AHEAD_BYTES, current.size)
            data += bytes(current.written_end - current.position - length)
        write_fully(current.file, data, current.position)
        current.position += length
        self.number += 1
        self.bytes_written += length
        return self.number

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a frame of this length can be written without making a new file first."""
        current, following = self._current, self._next
        assert current is not None
        return current.has_room(frame_bytes) or (
            current.position > JOURNAL_HEADER_BYTES and following is not None and following.has_room(frame_bytes)
        )

    def sync(self) -> None:
        """Make all frames written so far durable. Raises `OSError`, after which nothing may be acknowledged any more."""
        assert self._current is not None
        self._current.file.sync_data()
        self.syncs += 1

    def _switch(self) -> None:
        finished = self._current
        assert finished is not None
        if finished.position == JOURNAL_HEADER_BYTES:
            raise AssertionError("a frame is longer than a journal file")
        with self._file_lock:
            following, self._next = self._next, None
            if following is None:
                following = self._make_file()
        # Every frame in the finished file was synced before the next one was written, so it can be closed.
        finished.file.close()
        self._kept.append(finished.header.sequence)
        self._current = following

    def prepare_next(self, frame_bytes: int = 0) -> None:
        """
        Make the next file ahead of its need, or let a short one grow, so that there is room for a frame of this length.

        Only the leader of a cycle names a length. Raises `OSError`; nothing is changed then.
        """
        with self._file_lock:
            current = self._current
            if frame_bytes and current is not None and current.position == JOURNAL_HEADER_BYTES:
                # A file without a frame is never followed by another one: replay would take it for the end.
                self._grow(current, frame_bytes)
            elif self._next is None:
                self._next = self._make_file(frame_bytes)
            elif not self._next.has_room(frame_bytes):
                self._grow(self._next, frame_bytes)

    def _grow(self, short: _OpenFile, frame_bytes: int) -> None:
        least = short.position + frame_bytes + FRAME_HEADER_BYTES
        try:
            size = max(self._file_bytes, least)
            short.file.reserve(0, size)
        except OSError as error:
            if not is_full(error):
                raise
            size = least
            short.file.reserve(0, size)
        short.file.truncate(size)
        short.size = size

    @property
    def wants_next(self) -> bool:
        """Whether the file that takes frames is half full and the next one is not made yet."""
        current = self._current
        return self._next is None and current is not None and current.position * 2 > current.size

    def _make_file(self, frame_bytes: int = 0) -> _OpenFile:
        """A new file with room for a frame of this length: a whole one, or a shorter one where there is no room. Raises `OSError`."""
        least = min(max(_SHORT_BYTES, JOURNAL_HEADER_BYTES + frame_bytes + FRAME_HEADER_BYTES), self._file_bytes)
        size = self._file_bytes
        while True:
            try:
                return self._make_file_of(size)
            except OSError as error:
                if not is_full(error) or size <= least:
                    raise
                size = max(size // 2, least)

    def _make_file_of(self, size: int) -> _OpenFile:
        sequence = self._last_sequence + 1
        final = os.path.join(self._directory, file_name(sequence))
        path = final + NEW_SUFFIX
        header = JournalFileHeader(self._store_id, sequence, secrets.randbits(64) | 1, 0)
        if self._files.exists(path):
            self._files.unlink(path)
        spare = self._take_spare()
        if spare is not None:
            self._files.rename(spare, path)
            file = self._files.open(path, write=True)
        else:
            file = self._files.create(path)
        try:
            written_end = size
            if file.size() != size:
                file.truncate(size)
                written_end = 0
            # One that is used again has its blocks, unless it is a copy with holes.
            file.reserve(0, size)
            write_fully(file, header.encode(), 0)
            file.sync_data()
            self._files.rename(path, final)
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            if self._files.exists(path):
                self._files.unlink(path)
            raise
        self._last_sequence = sequence
        return _OpenFile(file, header, size, written_end)

    def _take_spare(self) -> str | None:
        for name in self._files.list_directory(self._directory):
            if name.endswith(SPARE_SUFFIX):
                return os.path.join(self._directory, name)
        return None

    def free(self, before_sequence: int) -> int:
        """
        Recycle or remove the files before the one with this sequence number; return how many.

        Only for files before the one that the older of the two checkpoints names. A file that comes back after a crash holds
        numbers that replay passes over.
        """
        freed = 0
        while self._kept and self._kept[0] < before_sequence:
            path = os.path.join(self._directory, file_name(self._kept[0]))
            # The next file, if it is made already, was the spare.
            spares = sum(name.endswith(SPARE_SUFFIX) for name in self._files.list_directory(self._directory))
            if spares < SPARES_KEPT and self._next is None:
                self._files.rename(path, path + SPARE_SUFFIX)
            else:
                self._files.unlink(path)
            self._kept.pop(0)
            freed += 1
        if freed:
            self._files.sync_directory(self._directory)
        return freed

    def drop_spare(self) -> bool:
        """Give up the file that the next one would be made of, for its room; False if there is none. Raises `OSError`."""
        spare = self._take_spare()
        if spare is None:
            return False
        self._files.unlink(spare)
        return True

    def retire_next(self) -> None:
        """Nothing more is written: the file that was made ahead is the next owner's spare. Raises `OSError`."""
        following, self._next = self._next, None
        if following is not None:
            following.file.close()
            path = os.path.join(self._directory, file_name(following.header.sequence))
            if self._take_spare() is None:
                self._files.rename(path, path + SPARE_SUFFIX)
            else:
                self._files.unlink(path)

    def close(self) -> None:
        """Close the files; what was synced stays."""
        for one in (self._current, self._next):
            if one is not None:
                one.file.close()
        self._current = self._next = None


def _frame_at(view: memoryview, position: int, file_uid: int) -> FrameHeader | None:
    try:
        frame = parse_frame(view, position)
    except BadBytes:
        return None
    return frame if frame.file_uid == file_uid else None


def _later_frame(view: memoryview, position: int, file_uid: int, number: int) -> int | None:
    """The number of a valid frame of this use of the file at or behind *position* that is newer than *number*, if any."""
    # A mapped file can be searched in place; anything else is copied once.
    content = view.obj if isinstance(view.obj, (bytes, mmap.mmap)) and view.nbytes == len(view.obj) else bytes(view)
    uid = file_uid.to_bytes(8, "little")
    at = content.find(FRAME_MAGIC, position)
    while at >= 0:
        if not at & 7 and view[at + 24 : at + 32] == uid:
            frame = _frame_at(view, at, file_uid)
            if frame is not None and frame.number > number:
                return frame.number
        at = content.find(FRAME_MAGIC, at + 1)
    return None
