"""Reading a journal that may be damaged: every frame that is whole, wherever it lies; and writing it anew without the others."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, UnsupportedFormat
from penstock.files import write_fully
from penstock.format.batch_header import parse_header
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_OTHER,
    ENTRY_REFERENCE,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    JOURNAL_HEADER_BYTES,
    FrameEntry,
    JournalFileHeader,
    batch_entry,
    decode_log_start,
    decode_reference,
    encode_frame,
    frame_entries,
    log_start_entry,
    other_entry,
    parse_frame,
    reference_entry,
)
from penstock.journal.journal import NEW_SUFFIX, SUFFIX, file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.files import Buffer, FileSystem


class WholeFrame(NamedTuple):
    """A frame that can be read; `body` is all of it behind its header."""

    number: int
    time_us: int
    entries: list[FrameEntry]
    body: memoryview


def journal_sequences(files: FileSystem, directory: str) -> list[int]:
    """The numbers of the journal files."""
    try:
        names = files.list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name[: -len(SUFFIX)]) for name in names if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdecimal())


def journal_identities(files: FileSystem, directory: str) -> list[bytes]:
    """The store that each journal file says it belongs to."""
    found = []
    for sequence in journal_sequences(files, directory):
        file = files.open(os.path.join(directory, file_name(sequence)))
        try:
            found.append(JournalFileHeader.decode(file.pread(JOURNAL_HEADER_BYTES, 0)).store_id)
        except (BadBytes, UnsupportedFormat):
            continue
        finally:
            file.close()
    return found


def whole_frames(files: FileSystem, directory: str, store_id: bytes, after_number: int) -> list[WholeFrame]:
    """
    All frames above *after_number* that can be read, by their numbers, which may have gaps.

    Raises `UnsupportedFormat`: a newer version wrote one.
    """
    found: dict[int, WholeFrame] = {}
    for sequence in journal_sequences(files, directory):
        file = files.open(os.path.join(directory, file_name(sequence)))
        try:
            view = memoryview(file.pread(file.size(), 0))
        finally:
            file.close()
        uid = _file_uid(view, store_id)
        if uid == 0:
            continue
        for frame in _frames_in(view, uid):
            if frame.number > after_number:
                found.setdefault(frame.number, frame)
    return [found[number] for number in sorted(found)]


def _file_uid(view: memoryview, store_id: bytes) -> int | None:
    """What the frames of a journal file carry; None if that is not known, 0 if the file is of another store."""
    try:
        header = JournalFileHeader.decode(view)
    except BadBytes:
        return None
    return header.file_uid if header.store_id == store_id else 0


def _frames_in(view: memoryview, uid: int | None) -> Iterable[WholeFrame]:
    content = bytes(view)
    at = content.find(FRAME_MAGIC)
    while at >= 0:
        following = at + 1
        if not at & 7:
            try:
                frame = parse_frame(view, at)
                entries = list(frame_entries(view, at, frame))
                for entry in entries:
                    if entry.kind == ENTRY_BATCH:
                        parse_header(entry.body)
            except BadBytes:
                pass
            else:
                if uid is None or frame.file_uid == uid:
                    body = view[at + FRAME_HEADER_BYTES : at + frame.frame_bytes]
                    yield WholeFrame(frame.number, frame.time_us, entries, body)
                    following = at + frame.frame_bytes
        at = content.find(FRAME_MAGIC, following)


def write_journal(
    files: FileSystem,
    directory: str,
    store_id: bytes,
    after_number: int,
    frames: Iterable[WholeFrame],
    wanted: Callable[[FrameEntry], bool],
    before_rename: Callable[[int], None],
) -> None:
    """
    Write *frames*, of each what is *wanted*, as one new journal file behind all others, numbered on from *after_number*.

    *before_rename* is called with its sequence number when the file is durable and does not have its name yet: it writes the checkpoint
    that names it. If that is all that happens, the file is missing, and the old ones are still there to begin anew from.
    """
    sequence = max([0, *journal_sequences(files, directory)]) + 1
    final = os.path.join(directory, file_name(sequence))
    path = final + NEW_SUFFIX
    if files.exists(path):
        files.unlink(path)
    header = JournalFileHeader(store_id, sequence, secrets.randbits(64) | 1, 0)
    file = files.create(path)
    try:
        write_fully(file, header.encode(), 0)
        position, number = JOURNAL_HEADER_BYTES, after_number
        for frame in frames:
            number += 1
            data = _encoded(frame, number, header.file_uid, wanted)
            write_fully(file, data, position)
            position += len(data)
        # Where no frame is, the journal ends.
        write_fully(file, bytes(FRAME_HEADER_BYTES), position)
        file.sync_data()
    finally:
        file.close()
    before_rename(sequence)
    files.rename(path, final)
    files.sync_directory(directory)


def _encoded(frame: WholeFrame, number: int, file_uid: int, wanted: Callable[[FrameEntry], bool]) -> bytearray:
    kept = [entry for entry in frame.entries if wanted(entry)]
    if len(kept) == len(frame.entries):
        return encode_frame(number, file_uid, frame.time_us, len(kept), [frame.body])
    parts: list[Buffer] = []
    for entry in kept:
        if entry.kind == ENTRY_BATCH:
            parts += batch_entry(entry.owner, bytearray(entry.body))
        elif entry.kind == ENTRY_OTHER:
            parts.append(other_entry(entry.owner, bytes(entry.body)))
        elif entry.kind == ENTRY_REFERENCE:
            parts.append(reference_entry(decode_reference(entry)))
        else:
            parts.append(log_start_entry(entry.owner, decode_log_start(entry)))
    return encode_frame(number, file_uid, frame.time_us, len(kept), parts)
