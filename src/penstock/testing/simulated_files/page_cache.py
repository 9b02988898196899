"""
The page cache: every change of a file's bytes goes through it, and is remembered until it is synced.

An inode holds its current bytes and the data operations since its last sync, each with what it overwrote. Mapped files have no
such list: stores into their memory are seen by nobody, so what the disk holds of them is kept as a copy.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, final

from penstock.testing.simulated_files.inode import PAGE, Write, overlay

if TYPE_CHECKING:
    from penstock.testing.simulated_files.inode import Inode

SHARED_CAPACITY = 1 << 20


@final
class PageCache:
    """
    Which files have un-synced data, and the one order of all changes. All calls are made under the file system's lock.

    Attributes:
        dirty: the files with un-synced operations.
        sequence: the number of the last change, of data or names.
    """

    __slots__ = ("dirty", "sequence")

    def __init__(self) -> None:
        self.dirty: dict[Inode, None] = {}
        self.sequence = 0

    def next_sequence(self) -> int:
        """The number of the next change."""
        self.sequence = sequence = self.sequence + 1
        return sequence

    def write(self, inode: Inode, position: int, data: bytes, path: str) -> None:
        """Store *data*, at least one byte."""
        end = position + len(data)
        if inode.buffer is not None:
            if end > len(inode.content):
                self._resize_shared(inode, end, path)
            inode.buffer[position:end] = data
            return
        if inode.stale:
            self._make_dirty(inode, position, end)
        content = inode.content
        if type(content) is not bytearray:
            content = inode.thaw()
        size = len(content)
        old = b""
        if position == size:
            content += data
        elif position < size:
            old = bytes(content[position:end])
            content[position:end] = data
        else:
            content += bytes(position - size)
            content += data
        pending = inode.pending
        if not pending:
            self.dirty[inode] = None
        self.sequence = sequence = self.sequence + 1
        pending.append(Write(sequence, position, data, old, size, max(size, end)))

    def truncate(self, inode: Inode, size: int, path: str) -> None:
        """Cut or extend a file to *size*."""
        old_size = len(inode.content)
        if size == old_size:
            return
        if inode.buffer is not None:
            self._resize_shared(inode, size, path)
            return
        if inode.stale:
            self._make_dirty(inode, min(size, old_size), max(size, old_size))
        content = inode.thaw()
        old = bytes(content[size:])
        if size < old_size:
            del content[size:]
        else:
            content += bytes(size - old_size)
        if not inode.pending:
            self.dirty[inode] = None
        inode.pending.append(Write(self.next_sequence(), min(size, old_size), None, old, old_size, size))

    def sync(self, inode: Inode) -> None:
        """The disk has it all now, but for pages that a failed sync marked clean."""
        if inode.buffer is not None:
            inode.durable = bytes(inode.content)
        elif inode.pending:
            inode.pending = []
            self.dirty.pop(inode, None)

    def replace(self, inode: Inode, content: bytes, path: str) -> None:
        """Give a file another content, durable at once."""
        if inode.buffer is not None:
            self._resize_shared(inode, len(content), path)
            inode.buffer[: len(content)] = content
            inode.durable = bytes(content)
        else:
            inode.content = bytes(content)
            self._forget_changes(inode)

    def lose_dirty_pages(self, inode: Inode) -> None:
        """Mark the un-synced pages clean although the disk does not have them."""
        if inode.buffer is not None or not inode.pending:
            return
        disk = inode.disk()
        size = len(inode.content)
        for _, position, data, _, old_size, new_size in inode.pending:
            end = max(old_size, new_size) if data is None else position + len(data)
            for page in range(position // PAGE, (min(end, size) - 1) // PAGE + 1):
                if page not in inode.stale:
                    inode.stale[page] = bytes(disk[page * PAGE : page * PAGE + PAGE]).ljust(PAGE, b"\0")
        inode.pending = []
        self.dirty.pop(inode, None)
        if len(disk) != size:
            shorter = min(len(disk), size)
            inode.pending.append(Write(self.next_sequence(), shorter, None, bytes(disk[size:]), len(disk), size))
            self.dirty[inode] = None

    @staticmethod
    def drop_clean_pages(inode: Inode) -> None:
        """Read again from the disk what a failed sync marked clean."""
        if inode.stale:
            overlay(inode.thaw(), inode.stale)
            inode.stale = {}

    def share(self, inode: Inode, length: int) -> bytearray:
        """Give a file memory that can be mapped up to *length*."""
        size = len(inode.content)
        if inode.buffer is not None and len(inode.buffer) >= length:
            return inode.buffer
        if inode.maps:
            raise OSError(errno.ENOMEM, f"a mapped file cannot grow to {length} bytes")
        durable = bytes(inode.disk())
        buffer = bytearray(max(SHARED_CAPACITY, 2 * max(length, size)))
        buffer[:size] = inode.content
        inode.durable = durable
        inode.buffer = buffer
        inode.content = memoryview(buffer)[:size]
        self._forget_changes(inode)
        return buffer

    def _make_dirty(self, inode: Inode, position: int, end: int) -> None:
        """Make pages dirty again that a failed sync marked clean and that an operation on this range is about to touch."""
        content = inode.content
        size = len(content)
        first = min(position, size) // PAGE
        last = max(end - 1, 0) // PAGE
        for page in [page for page in inode.stale if first <= page <= last]:
            disk = inode.stale.pop(page)
            now = bytes(content[page * PAGE : page * PAGE + PAGE])
            if now:
                self.dirty[inode] = None
                inode.pending.append(Write(self.next_sequence(), page * PAGE, now, disk[: len(now)], size, size))

    def _forget_changes(self, inode: Inode) -> None:
        inode.pending = []
        inode.stale = {}
        self.dirty.pop(inode, None)

    @staticmethod
    def _resize_shared(inode: Inode, size: int, path: str) -> None:
        buffer = inode.buffer
        if buffer is None or size > len(buffer):
            raise OSError(errno.ENOMEM, f"a mapped file cannot grow to {size} bytes", path)
        old_size = len(inode.content)
        if size < old_size:
            buffer[size:old_size] = bytes(old_size - size)
        inode.content = memoryview(buffer)[:size]
