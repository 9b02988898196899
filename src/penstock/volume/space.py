"""
The watch over free disk space: publishing stops before the disk is full, and a reserve lets what was begun be finished.

Asking the file system costs a few microseconds, so it is asked once for every few MiB written, and again for every publish while
there is too little.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from penstock.errors import StorageFull

if TYPE_CHECKING:
    from penstock.files import FileSystem

_ASK_EVERY_BYTES = 4 * 1024 * 1024
RESERVE_NAME = "reserve"


class Space:
    """Counts what is written against what is free. `left` may be taken down by any thread; being a little off is harmless."""

    def __init__(self, files: FileSystem, directory: str, floor_bytes: int, reserve_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._floor_bytes = floor_bytes
        self._reserve_bytes = reserve_bytes
        self._path = os.path.join(directory, RESERVE_NAME)
        self.left = 0
        self.has_reserve = files.exists(self._path)

    def ask(self, wanted_bytes: int) -> None:
        """Look how much is free. Raises `StorageFull` if writing *wanted_bytes* would go below the floor."""
        free = self._files.free_bytes(self._directory)
        above = free - self._floor_bytes
        if above < wanted_bytes:
            self.left = 0
            raise StorageFull(self._directory, free, self._floor_bytes)
        self.left = min(_ASK_EVERY_BYTES, above // 2)

    def hold_reserve(self) -> bool:
        """Set the reserve aside if there is room for it; True if it is held."""
        if self.has_reserve or not self._reserve_bytes:
            return self.has_reserve
        with contextlib.suppress(OSError):
            if self._files.free_bytes(self._directory) < self._floor_bytes + self._reserve_bytes:
                return False
            file = (
                self._files.open(self._path, write=True) if self._files.exists(self._path) else self._files.create(self._path)
            )
            try:
                self.has_reserve = file.reserve(0, self._reserve_bytes)
            finally:
                file.close()
        return self.has_reserve

    def release_reserve(self) -> bool:
        """Give the reserve to whoever needs it now; False if there is none."""
        if not self.has_reserve:
            return False
        self.has_reserve = False
        with contextlib.suppress(OSError):
            self._files.unlink(self._path)
        self.left = 0
        return True
