"""
The watch over free disk space: publishing stops before the disk is full, and a reserve lets everything else go on.

Asking the file system costs a few microseconds, so it is asked once for every few MiB written, and again for every publish while
there is too little.

The reserve is a file whose blocks are given up, half of them at a time, when something that is no publish finds the disk full: opening, a
journal file for acks, a checkpoint, the last steps of a commit. A dead letter may have half of it. Whatever becomes free goes to the
reserve first, and publishing needs the floor and what is missing of it: so what was drawn is there again before it is needed again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock import threads as threading
from penstock.errors import StorageFull
from penstock.files import is_full
from penstock.log_events import event, get_logger
from penstock.values import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.clock import Clock
    from penstock.files import File, FileSystem

    _Made = TypeVar("_Made")

_ASK_EVERY_BYTES = 4 * MIB
_STEP_LEAST_BYTES = MIB
"""A smaller reserve is given up as a whole."""
_GROW_LEAST_BYTES = 64 * KIB
_QUIET_S = 1.0
"""A full disk has room again when so long nothing was refused."""
RESERVE_NAME = "reserve"

_log = get_logger("penstock")


class SpaceReport(NamedTuple):
    """What is known of the disk that a store lies on."""

    free_bytes: int | None
    """None where the file system does not tell."""
    floor_bytes: int
    """Publishing needs more than this."""
    reserve_bytes: int
    """What is set aside, of the reserve that there should be."""
    is_full: bool
    """Whether publishing is refused."""
    refused: int
    """Publishes, and other changes that need room, that were refused since the store was opened."""


class Space:
    """Counts what is written against what is free. `left` may be taken down by any thread; being a little off is harmless."""

    def __init__(self, files: FileSystem, directory: str, floor_bytes: int, reserve_bytes: int, clock: Clock) -> None:
        self._files = files
        self._directory = directory
        self._floor_bytes = floor_bytes
        self._reserve_bytes = reserve_bytes
        self._clock = clock
        self._path = os.path.join(directory, RESERVE_NAME)
        self._lock = threading.Lock()
        self._held = 0
        self._whole = False
        self.left = 0
        self.refused = 0
        self._refused_at = 0.0
        self.is_full = False
        """Whether publishing is refused, as far as that is known."""

    def find_reserve(self) -> None:
        """Look what the last owner has set aside. Under the store's lock. Raises `OSError`."""
        with self._lock:
            self._held, self._whole = 0, False
            if self._files.exists(self._path):
                file = self._files.open(self._path)
                # Older versions reserved blocks behind the end of an empty file.
                self._held = file.size() or self._reserve_bytes
                file.close()

    @property
    def has_reserve(self) -> bool:
        """Whether all of the reserve is set aside."""
        return self._whole

    def report(self) -> SpaceReport:
        """How it is now."""
        free: int | None = None
        with contextlib.suppress(OSError):
            free = self._files.free_bytes(self._directory)
        is_full = self.is_full or (free is not None and free < self._floor_bytes)
        return SpaceReport(free, self._floor_bytes, self._held, is_full, self.refused)

    # -- publishing -------------------------------------------------------------------------------------------------

    def ask(self, wanted_bytes: int) -> None:
        """Look how much is free. Raises `StorageFull` if writing *wanted_bytes* would go below the floor."""
        free = self._files.free_bytes(self._directory)
        kept = self._floor_bytes + (0 if self._whole else max(0, self._reserve_bytes - self._held))
        above = free - kept
        if above < wanted_bytes:
            self.left = 0
            error = StorageFull(self._directory, free, kept, wanted_bytes)
            self.refuse(error)
            raise error
        self.left = min(_ASK_EVERY_BYTES, above // 2)
        if self.is_full:
            self._end(free)

    def refuse(self, error: StorageFull) -> None:
        """Something was refused for want of room."""
        self.refused += 1
        self._refused_at = self._clock.monotonic()
        if not self.is_full and (error.free_bytes is None or error.free_bytes < (error.floor_bytes or 0) + _GROW_LEAST_BYTES):
            self._begin(error)

    def look(self) -> None:
        """Notice by itself that the disk is full, and that it is not any more. The maintenance thread calls it. Raises `OSError`."""
        free = self._files.free_bytes(self._directory)
        if free < self._floor_bytes:
            self.left = 0
            if not self.is_full:
                self._begin(StorageFull(self._directory, free, self._floor_bytes, 0))
        elif (
            self.is_full and (self._whole or not self._reserve_bytes) and self._clock.monotonic() - self._refused_at >= _QUIET_S
        ):
            self._end(free)

    def _begin(self, error: StorageFull) -> None:
        with self._lock:
            if self.is_full:
                return
            self.is_full = True
        _log.warning(
            "publishing is refused, consuming goes on: %s", error,
            extra=event("storage_full", path=self._directory, free_bytes=error.free_bytes, floor_bytes=self._floor_bytes),
        )  # fmt: skip

    def _end(self, free: int) -> None:
        with self._lock:
            if not self.is_full:
                return
            self.is_full = False
        _log.warning(
            "publishing goes on: %d bytes are free on the file system of %s", free, self._directory,
            extra=event("storage_has_room", path=self._directory, free_bytes=free, floor_bytes=self._floor_bytes),
        )  # fmt: skip

    # -- the reserve ------------------------------------------------------------------------------------------------

    @property
    def kept_from_letters(self) -> int:
        """What of the reserve dead letters leave alone: for opening, acks and checkpoints."""
        return self._reserve_bytes // 2

    def make(self, work: Callable[[], _Made], *, keep: int = 0) -> _Made:
        """
        Do *work*, which may be done again; where the disk is full, once more with some of the reserve, down to *keep* bytes of it.

        Raises what *work* raises.
        """
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self.draw(keep=keep):
                    raise
            except StorageFull:
                if not self.draw(keep=keep):
                    raise

    def draw(self, *, keep: int = 0) -> bool:
        """Give half of the reserve, but not what is to be *kept* of it, to whoever needs room now; False if there is nothing to give."""
        with self._lock:
            if self._held <= keep:
                return False
            left = max(keep, self._held // 2 if self._held > _STEP_LEAST_BYTES else 0)
            self._whole = False
            self.left = 0
            try:
                file = self._files.open(self._path, write=True)
                try:
                    if not file.size():
                        left = 0  # of an older version: its blocks lie behind its end
                    elif left:
                        file.truncate(left)
                finally:
                    file.close()
                if not left:
                    self._files.unlink(self._path)
            except OSError:
                left = 0
                with contextlib.suppress(OSError):
                    self._files.unlink(self._path)
            self._held = left
            return True

    def hold_reserve(self) -> bool:
        """Set the reserve aside, or as much of it as there is room for; True if all of it is held."""
        if self._whole or not self._reserve_bytes:
            return self._whole
        with self._lock, contextlib.suppress(OSError):
            free = self._files.free_bytes(self._directory)
            exists = self._files.exists(self._path)
            if not exists and free < _GROW_LEAST_BYTES:
                return False
            file = self._files.open(self._path, write=True) if exists else self._files.create(self._path)
            try:
                self._hold(file, free)
            finally:
                file.close()
        return self._whole

    def _hold(self, file: File, free: int) -> None:
        size = min(file.size(), self._reserve_bytes)
        wanted = self._reserve_bytes
        while wanted > size:
            if wanted - size <= free:
                try:
                    file.reserve(0, wanted)
                    break
                except OSError as error:
                    if not is_full(error):
                        raise
            wanted = size + (wanted - size) // 2
            if wanted - size < _GROW_LEAST_BYTES:
                wanted = size
        if wanted == size and size:
            # It may be a copy without blocks.
            file.reserve(0, size)
        if file.size() != wanted:
            file.truncate(wanted)
        self._held = wanted
        self._whole = wanted >= self._reserve_bytes
