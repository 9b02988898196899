"""The index of a segment, and the state of a log, in a file that may be lost or torn: it only speeds up the next opening."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.errors import BadBytes
from penstock.format.index import IndexSnapshot
from penstock.journal.small_file import read_small_file

if TYPE_CHECKING:
    from penstock.files import FileSystem
    from penstock.log.segment import Segment


def write_index_cache(files: FileSystem, path: str, data: bytes) -> None:
    """Store a cache file. It is not synced: a crash may lose or tear it, and its CRC tells. Errors are of no consequence."""
    temporary = path + ".tmp"
    try:
        if files.exists(temporary):
            files.unlink(temporary)
        file = files.create(temporary)
        try:
            complete = file.pwrite(data, 0) == len(data)
        finally:
            file.close()
        if complete:
            files.rename(temporary, path)
        else:
            files.unlink(temporary)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)


def read_index_cache(files: FileSystem, segment: Segment) -> IndexSnapshot | None:
    """The cached index of *segment* if it can be used."""
    path = segment.index_path
    if not files.exists(path):
        return None
    try:
        snapshot = IndexSnapshot.decode(read_small_file(files, path, cached=True))
    except (BadBytes, OSError):
        return None
    return snapshot if snapshot.segment_uid == segment.header.segment_uid else None
