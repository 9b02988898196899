"""Replacing a small file so that a crash leaves the old one or the new one, whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.errors import BadBytes
from penstock.files import write_fully

if TYPE_CHECKING:
    from penstock.files import FileSystem

TEMPORARY_SUFFIX = ".tmp"
READ_LIMIT_BYTES = 64 * 1024 * 1024
"""Larger than any small file: nothing longer is read into memory."""


def replace_small_file(files: FileSystem, path: str, data: bytes) -> None:
    """
    Put *data* at *path*: temp file in the same folder, sync, rename, sync of the folder.

    Returns when the new contents are durable. Raises `OSError`; the old file is then still there, unless only the last
    step failed, in which case a crash decides which of the two remains.
    """
    temporary = path + TEMPORARY_SUFFIX
    if files.exists(temporary):
        files.unlink(temporary)
    file = files.create(temporary)
    try:
        write_fully(file, data, 0)
        # Before the rename: else a crash can leave an empty file under the final name.
        file.sync_data()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(os.path.dirname(path))


def read_small_file(files: FileSystem, path: str, *, cached: bool = False, limit_bytes: int = READ_LIMIT_BYTES) -> bytes:
    """
    The whole of a small file, read from the disk and not from the page cache, which may be wrong after an I/O error.

    *cached* allows the page cache: for files that are only caches themselves. Raises `BadBytes` for one over *limit_bytes*.
    """
    file = files.open(path)
    try:
        if not cached:
            file.drop_cache()
        size = file.size()
        if size > limit_bytes:
            raise BadBytes(os.path.basename(path), f"{size:,} bytes are too many for a file of this kind")
        return file.pread(size, 0)
    finally:
        file.close()
