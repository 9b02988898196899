"""What a file system hands out: open files, locks and maps."""

# ruff: noqa: SLF001 (the file system and its open files are one thing in several classes)

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.files import Buffer
    from penstock.testing.simulated_files.file_system import SimulatedFileSystem
    from penstock.testing.simulated_files.inode import Inode
    from penstock.testing.simulated_files.operation import OperationKind


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    __slots__ = ("_files", "_inode", "_writable", "path")

    def __init__(self, files: SimulatedFileSystem, inode: Inode, path: str, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._inode: Inode | None = inode
        self._writable = writable

    def pread(self, length: int, position: int) -> bytes:
        """Read without taking the lock: a slice of a bytearray is atomic."""
        inode = self._inode
        if inode is None:
            raise self._bad_descriptor()
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        return bytes(inode.content[position : position + length])

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write *data*; short only by a fault or for want of room."""
        return self._write("pwrite", bytes(data), position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all *buffers*; short only by a fault or for want of room."""
        return self._write("pwritev", b"".join(buffers), position)

    def _write(self, kind: OperationKind, data: bytes, position: int) -> int:
        files = self._files
        with files._lock:
            inode = self._inode
            if inode is None or not self._writable:
                raise self._bad_descriptor()
            if position < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
            length = len(data)
            files.operations += 1
            if files.on_operation is not None or files.recording or files._faults:
                short = files._announce(kind, self.path, position, length)
                if short is not None and short < length:
                    length = short
                    data = data[:length]
            if files.capacity_bytes is not None:
                room = files._room(inode, position, length, self.path)
                if room < length:
                    length = room
                    data = data[:length]
            if not length:
                return 0
            files._cache.write(inode, position, data, self.path)
            return length

    def size(self) -> int:
        """The length as every opener sees it, synced or not."""
        inode = self._inode
        if inode is None:
            raise self._bad_descriptor()
        return len(inode.content)

    def links(self) -> int:
        """How many names the file has, synced or not."""
        inode = self._inode
        if inode is None:
            raise self._bad_descriptor()
        with self._files._lock:
            return self._files._names.count_of(inode)

    def truncate(self, size: int) -> None:
        """Cut or extend the file. Unlike on Linux the zeros of an extension take space."""
        files = self._files
        with files._lock:
            inode = self._inode
            if inode is None or not self._writable:
                raise self._bad_descriptor()
            if size < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
            files._begin("truncate", self.path, size)
            old_size = len(inode.content)
            if size > old_size and files.capacity_bytes is not None:
                files._demand(inode, size, self.path)
            inode.reserved = 0
            files._cache.truncate(inode, size, self.path)

    def reserve(self, position: int, length: int) -> bool:
        """Reserve room; a fault with `EOPNOTSUPP` stands for a file system that cannot, and gives False."""
        files = self._files
        with files._lock:
            inode = self._inode
            if inode is None or not self._writable:
                raise self._bad_descriptor()
            try:
                files._begin("reserve", self.path, position, length)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                    return False
                raise
            if files.capacity_bytes is not None:
                files._demand(inode, position + length, self.path)
            inode.reserved = max(inode.reserved, position + length)
            return True

    def sync_data(self) -> None:
        """Make the content durable. If it fails, the content counts as clean and is not durable, now or later."""
        files = self._files
        with files._lock:
            inode = self._inode
            if inode is None:
                raise self._bad_descriptor()
            try:
                files._begin("sync_data", self.path)
            except OSError:
                files._cache.lose_dirty_pages(inode)
                raise
            files._cache.sync(inode)

    def drop_cache(self) -> None:
        """Show what the disk holds wherever a failed sync left clean pages; dirty pages stay, as on Linux."""
        with self._files._lock:
            inode = self._inode
            if inode is None:
                raise self._bad_descriptor()
            self._files._cache.drop_clean_pages(inode)

    def map(self) -> memoryview:
        """A snapshot: later writes do not show in it."""
        with self._files._lock:
            inode = self._inode
            if inode is None:
                raise self._bad_descriptor()
            return memoryview(inode.freeze())

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._inode = None

    def _bad_descriptor(self) -> OSError:
        return OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)


class SimulatedLock:
    """A lock held in one file system object; copies of the file system do not hold it."""

    __slots__ = ("_files", "_inode")

    def __init__(self, files: SimulatedFileSystem, inode: Inode) -> None:
        self._files = files
        self._inode: Inode | None = inode

    def release(self) -> None:
        """Give the lock up; releasing twice does nothing."""
        inode, self._inode = self._inode, None
        if inode is not None:
            with self._files._lock:
                self._files._locks.pop(inode, None)


class SimulatedSharedMap:
    """A view of the memory of a mapped file, the same memory for each opener."""

    __slots__ = ("_files", "_inode", "view")

    def __init__(self, files: SimulatedFileSystem, inode: Inode, view: memoryview) -> None:
        self.view = view
        self._files = files
        self._inode: Inode | None = inode
        inode.maps += 1

    def close(self) -> None:
        """Unmap; closing twice does nothing. What was stored stays in the file, un-synced."""
        inode, self._inode = self._inode, None
        if inode is not None:
            with self._files._lock:
                inode.maps -= 1
            # A cast of the view may still be alive in a thread that is ending.
            with contextlib.suppress(BufferError):
                self.view.release()
