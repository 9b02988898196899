"""
A file system in the memory of this process: for stores that need not outlive it.

Theory of operation
-------------------
*A file is one block of memory and a size.* The block is longer than the file, and what lies behind the size is zero: a hole costs
nothing to make, and an append copies the new bytes only. A full block is doubled, up to a limit. Small blocks are bytearrays of
fixed length. Large ones are private anonymous maps. The kernel moves them without copying when they grow, gives them memory page by
page when they are first written to, and takes it back when they are cut, so that a journal file of 64 MiB costs what was written to
it. Reserved bytes are a number that counts against the capacity, and no memory.

*`map` copies nothing.* A view shows the block itself. A block that views may show is never changed below the end of the longest
view; a file that must be changed there, or must grow while a view holds its block in place, goes on in a copy. Appending behind a
view needs no copy as long as the block has room, and as each copy has twice the room of the last, appending to a file that is
mapped over and over stays cheap too. The views keep the old block alive.

*A file mapped by `map_shared`* must stay where it is, since all who map it see one memory. Its block gets addresses for
`SHARED_ROOM_BYTES` from the start, which cost nothing either.

*Threads.* One lock guards names, sizes and blocks; nothing waits while it is held. Reads take no lock. They look at the size first
and at the block second, and changes are made in the order that suits them: the bytes before the size where a file grows, the size
before the bytes where it is cut.

Nothing is ever synced: memory is lost as a whole. An unlinked file stays usable for those who have it open, but no longer counts
against the capacity. Relative paths begin at the root.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, final

from penstock.files import LockHeld, NotRegular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.files import Buffer, FileSystem

UNLIMITED_FREE_BYTES = 1 << 60
SHARED_ROOM_BYTES = 64 * 1024 * 1024
MAPPED_FROM_BYTES = 64 * 1024
"""Blocks of this length and more are anonymous maps. Below it a map, which takes whole pages and a system call, costs more."""
_GROWTH_MOST_BYTES = 64 * 1024 * 1024

_Block = bytearray | mmap.mmap


def _error(code: int, path: str, target: str | None = None) -> OSError:
    """The error that the operating system gives; the code decides the subclass."""
    if target is not None:
        return OSError(code, os.strerror(code), path, None, target)
    return OSError(code, os.strerror(code), path)


def _new_block(length: int) -> _Block:
    if length < MAPPED_FROM_BYTES:
        return bytearray(length)
    # Private: a forked child gets a copy, as of all other memory.
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _is_shown(block: mmap.mmap) -> bool:
    """Whether a view of the block is alive: it then refuses to change its length, even to what it is."""
    try:
        block.resize(len(block))
    except BufferError:
        return True
    return False


@final
class _Inode:
    """A regular file, with or without a name. Changed under the lock only; compared by identity."""

    __slots__ = ("block", "links", "owner", "reserved", "shared", "shown", "size")

    def __init__(self) -> None:
        self.block: _Block = bytearray()
        self.size = 0
        # Below it the block may be seen by a view.
        self.shown = 0
        self.shared = False
        self.reserved = 0
        # Its names.
        self.links = 1
        # Who holds the lock on it.
        self.owner: dict[str, Any] | None = None

    @property
    def held_bytes(self) -> int:
        """What it takes of the capacity."""
        return max(self.size, self.reserved)

    def write(self, data: Buffer, position: int, end: int) -> None:
        """Put *data* there, behind a hole of zeros if the file ends earlier."""
        if position < self.shown:
            self._leave_views(end)
        if end > len(self.block):
            length = len(self.block)
            self._lengthen(max(end, length + min(length, _GROWTH_MOST_BYTES)))
        self.block[position:end] = data
        if end > self.size:  # noqa: PLR1730 - max() costs three times as much
            self.size = end

    def truncate(self, size: int) -> None:
        """Cut or extend, and give back what the block has more."""
        old_size, block = self.size, self.block
        if size > old_size:
            if size > len(block):
                self._lengthen(size)
            self.size = size
        elif self.shared:
            self.size = size
            block[size:old_size] = bytes(old_size - size)
        elif size == len(block):
            pass
        elif type(block) is mmap.mmap and size >= MAPPED_FROM_BYTES and not _is_shown(block):
            self.size = size
            # The rest of the last page would show again when the block grows.
            page_end = min(old_size, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            block[size:page_end] = bytes(page_end - size)
            block.resize(size)
            self.shown = 0
        else:
            shorter = self._copy(size, size)
            self.size = size
            self.block = shorter
            self.shown = 0

    def map(self) -> memoryview:
        """A view that later changes of the file do not touch."""
        if self.shared:
            return memoryview(self.block[: self.size]).toreadonly()
        self.shown = self.size
        return memoryview(self.block)[: self.size].toreadonly()

    def share(self, length: int) -> memoryview:
        """A view that shows all later changes of the file, which is at least *length* bytes long."""
        if not self.shared:
            self.block = self._copy(max(SHARED_ROOM_BYTES, 2 * self.size), self.size)
            self.shown = 0
            self.shared = True
        return memoryview(self.block)[:length]

    def _leave_views(self, end: int) -> None:
        """Make sure that no view sees the block."""
        block = self.block
        if type(block) is not mmap.mmap or _is_shown(block):
            self.block = self._copy(max(end, len(block)), self.size)
        self.shown = 0

    def _lengthen(self, length: int) -> None:
        block = self.block
        if type(block) is mmap.mmap:
            try:
                block.resize(length)
            except BufferError:
                if self.shared:
                    raise OSError(errno.ENOMEM, f"a mapped file cannot grow to {length} bytes") from None
            else:
                return
        self.block = self._copy(length, self.size)
        self.shown = 0

    def _copy(self, length: int, size: int) -> _Block:
        """A block of *length* bytes with the first *size* bytes of this one."""
        copy = _new_block(length)
        copy[:size] = memoryview(self.block)[:size]
        return copy


@final
class _Directory:
    """A folder."""

    __slots__ = ("entries", "parent")

    def __init__(self, parent: _Directory | None) -> None:
        self.parent = parent
        self.entries: dict[str, _Node] = {}


_Node = _Inode | _Directory


@final
class _Room:
    """What all files of one file system share: the lock, and the bytes that they may take."""

    __slots__ = ("capacity_bytes", "lock", "used_bytes")

    def __init__(self, capacity_bytes: int | None) -> None:
        self.lock = threading.Lock()
        self.capacity_bytes = capacity_bytes
        # Right only if there is a capacity: without one, writes are not counted.
        self.used_bytes = 0

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_FREE_BYTES
        return max(0, self.capacity_bytes - self.used_bytes)

    def fitting(self, inode: _Inode, position: int, length: int, path: str) -> int:
        """How many of *length* bytes the file may take at *position*; `ENOSPC` if none."""
        if not inode.links:
            return length
        room = inode.held_bytes + self.free_bytes() - position
        if room <= 0:
            raise _error(errno.ENOSPC, path)
        return min(room, length)

    def demand(self, inode: _Inode, end: int, path: str) -> None:
        """Raise `ENOSPC` unless the file may grow up to *end*."""
        if inode.links and end - inode.held_bytes > self.free_bytes():
            raise _error(errno.ENOSPC, path)

    def note(self, inode: _Inode, held_bytes: int) -> None:
        """The file took *held_bytes* until now, and its numbers say what it takes from now on."""
        if inode.links:
            self.used_bytes += inode.held_bytes - held_bytes

    def forget(self, inode: _Inode) -> None:
        """The file has lost a name; without any its bytes count as free."""
        inode.links -= 1
        if not inode.links:
            self.used_bytes -= inode.held_bytes


class MemoryFile:
    """An open file of a `MemoryFileSystem`."""

    __slots__ = ("_inode", "_room", "_writable", "path")

    def __init__(self, room: _Room, inode: _Inode, path: str, *, write: bool) -> None:
        self.path = path
        self._room = room
        self._inode: _Inode | None = inode
        self._writable = inode if write else None

    def pread(self, length: int, position: int) -> bytes:
        inode = self._inode
        if inode is None:
            raise _error(errno.EBADF, self.path)
        if position < 0 or length < 0:
            raise _error(errno.EINVAL, self.path)
        end = min(position + length, inode.size)
        # One step for other threads; and a slice of an anonymous map is bytes already.
        data = inode.block[position:end]
        return data if type(data) is bytes else bytes(data)

    def pwrite(self, data: Buffer, position: int) -> int:
        room = self._room
        with room.lock:
            inode = self._writable
            if inode is None:
                raise _error(errno.EBADF, self.path)
            if position < 0:
                raise _error(errno.EINVAL, self.path)
            if type(data) is memoryview and data.itemsize != 1:
                data = data.cast("B")
            length = len(data)
            if not length:
                return 0
            if room.capacity_bytes is None:
                inode.write(data, position, position + length)
                return length
            fitting = room.fitting(inode, position, length, self.path)
            if fitting < length:
                data = memoryview(data)[:fitting]
            held_bytes = inode.held_bytes
            inode.write(data, position, position + fitting)
            room.note(inode, held_bytes)
            return fitting

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def size(self) -> int:
        return self._open_inode().size

    def links(self) -> int:
        return self._open_inode().links

    def truncate(self, size: int) -> None:
        room = self._room
        with room.lock:
            self._open_inode()
            inode = self._writable
            if inode is None or size < 0:
                raise _error(errno.EINVAL, self.path)
            if size > inode.size:
                room.demand(inode, size, self.path)
            held_bytes = inode.held_bytes
            inode.truncate(size)
            inode.reserved = 0
            room.note(inode, held_bytes)

    def reserve(self, position: int, length: int) -> bool:
        """Count the range as used; writing there later cannot fail for want of capacity. Takes no memory."""
        room = self._room
        with room.lock:
            inode = self._writable
            if inode is None:
                raise _error(errno.EBADF, self.path)
            if position < 0 or length <= 0:
                raise _error(errno.EINVAL, self.path)
            room.demand(inode, position + length, self.path)
            held_bytes = inode.held_bytes
            inode.reserved = max(inode.reserved, position + length)
            room.note(inode, held_bytes)
            return True

    def sync_data(self) -> None:
        self._open_inode()

    def drop_cache(self) -> None:
        self._open_inode()

    def map(self) -> memoryview:
        """A view that stays as it is, whatever is written, cut or unlinked later. Copies nothing."""
        with self._room.lock:
            return self._open_inode().map()

    def close(self) -> None:
        self._inode = self._writable = None

    def _open_inode(self) -> _Inode:
        inode = self._inode
        if inode is None:
            raise _error(errno.EBADF, self.path)
        return inode


class MemoryLock:
    """A lock on a file, held against all others who use the same file system object."""

    __slots__ = ("_inode",)

    def __init__(self, inode: _Inode) -> None:
        self._inode: _Inode | None = inode

    def release(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.owner = None


class MemorySharedMap:
    """A view of the memory that a file lies in."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def close(self) -> None:
        self.view.release()


class MemoryFileSystem:
    """
    Files that live as long as this object does and are seen through it only. Safe to use from many threads.

    With *capacity_bytes* it is full when its files together have, or reserved, so many bytes; holes count, names do not.
    """

    __slots__ = ("_boot_id", "_room", "_root")

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self._room = _Room(capacity_bytes)
        self._root = _Directory(None)
        self._boot_id = secrets.token_bytes(16)

    def open(self, path: str, *, write: bool = False) -> MemoryFile:
        with self._room.lock:
            return MemoryFile(self._room, self._get_inode(path), path, write=write)

    def create(self, path: str) -> MemoryFile:
        with self._room.lock:
            directory, name = self._locate(path)
            if not name or name in directory.entries:
                raise _error(errno.EEXIST, path)
            inode = directory.entries[name] = _Inode()
            return MemoryFile(self._room, inode, path, write=True)

    def rename(self, source: str, target: str) -> None:
        with self._room.lock:
            source_directory, source_name = self._locate(source)
            target_directory, target_name = self._locate(target)
            if not source_name or not target_name:
                raise _error(errno.EBUSY, source, target)
            node = source_directory.entries.get(source_name)
            if node is None:
                raise _error(errno.ENOENT, source, target)
            replaced = target_directory.entries.get(target_name)
            if replaced is node:
                return
            if type(node) is _Directory:
                above: _Directory | None = target_directory
                while above is not None:
                    if above is node:
                        raise _error(errno.EINVAL, source, target)
                    above = above.parent
                if type(replaced) is _Inode:
                    raise _error(errno.ENOTDIR, source, target)
                if type(replaced) is _Directory and replaced.entries:
                    raise _error(errno.ENOTEMPTY, source, target)
                node.parent = target_directory
            elif type(replaced) is _Directory:
                raise _error(errno.EISDIR, source, target)
            if type(replaced) is _Inode:
                self._room.forget(replaced)
            del source_directory.entries[source_name]
            target_directory.entries[target_name] = node

    def link(self, source: str, target: str) -> None:
        with self._room.lock:
            inode = self._get_named(source)
            directory, name = self._locate(target)
            if not name or name in directory.entries:
                raise _error(errno.EEXIST, source, target)
            directory.entries[name] = inode
            inode.links += 1

    def unlink(self, path: str) -> None:
        """Remove a file's name. Those who have it open or mapped keep it, but its bytes count as free at once."""
        with self._room.lock:
            inode = self._get_named(path)
            directory, name = self._locate(path)
            del directory.entries[name]
            self._room.forget(inode)

    def make_directory(self, path: str) -> None:
        with self._room.lock:
            directory, name = self._locate(path)
            if not name or name in directory.entries:
                raise _error(errno.EEXIST, path)
            directory.entries[name] = _Directory(directory)

    def remove_directory(self, path: str) -> None:
        with self._room.lock:
            removed = self._get_directory(path)
            directory, name = self._locate(path)
            if not name:
                raise _error(errno.EBUSY, path)
            if removed.entries:
                raise _error(errno.ENOTEMPTY, path)
            del directory.entries[name]

    def list_directory(self, path: str) -> list[str]:
        with self._room.lock:
            return sorted(self._get_directory(path).entries)

    def exists(self, path: str) -> bool:
        with self._room.lock:
            try:
                self._get_node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def sync_directory(self, path: str) -> None:
        with self._room.lock:
            self._get_directory(path)

    def free_bytes(self, path: str) -> int:
        """What is left of the capacity; if that is unlimited, more than any store asks for."""
        with self._room.lock:
            self._get_node(path)
            return self._room.free_bytes()

    def lock(self, path: str, *, shares: bool = False) -> MemoryLock:
        """Take the owner lock, or raise `LockHeld`. It goes with this object, which no other process has."""
        owner = {"pid": os.getpid(), "host": socket.gethostname(), **({"shares": True} if shares else {})}
        content = json.dumps(owner).encode()
        with self._room.lock:
            inode = self._open_inode(path)
            if inode.owner is not None:
                raise LockHeld(path, dict(inode.owner))
            self._room.demand(inode, len(content), path)
            held_bytes = inode.held_bytes
            inode.truncate(0)
            inode.write(content, 0, len(content))
            self._room.note(inode, held_bytes)
            inode.owner = owner
            return MemoryLock(inode)

    def lock_holder(self, path: str) -> dict[str, Any] | None:
        with self._room.lock:
            try:
                owner = self._get_inode(path).owner
            except FileNotFoundError:
                return None
            return None if owner is None else dict(owner)

    def map_shared(self, path: str, length: int, *, write: bool) -> MemorySharedMap:
        """
        Map a small file; with *write* it is created or grown to *length* first, never shrunk.

        Raises:
            OSError: among others `ENOMEM`, if the file must grow over `SHARED_ROOM_BYTES` while it is mapped.
        """
        with self._room.lock:
            inode = self._open_inode(path) if write else self._get_inode(path)
            if inode.size < length:
                if not write:
                    raise OSError(errno.EINVAL, f"shorter than {length} bytes", path)
                self._room.demand(inode, length, path)
                held_bytes = inode.held_bytes
                inode.truncate(length)
                self._room.note(inode, held_bytes)
            view = inode.share(length)
            return MemorySharedMap(view if write else view.toreadonly())

    def note_read(self, view: memoryview, length: int) -> None:
        """There is nothing but memory, and no page of it may go."""

    def boot_id(self) -> bytes:
        """Random for each object, and the same as long as it lives."""
        return self._boot_id

    # Names; the caller holds the lock.

    def _locate(self, path: str) -> tuple[_Directory, str]:
        """The folder and the name in it that *path* stands for; the name of the root is empty."""
        parts: list[str] = []
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        directory = self._root
        for part in parts[:-1]:
            node = directory.entries.get(part)
            if node is None:
                raise _error(errno.ENOENT, path)
            if type(node) is not _Directory:
                raise _error(errno.ENOTDIR, path)
            directory = node
        return directory, parts[-1] if parts else ""

    def _get_node(self, path: str) -> _Node:
        directory, name = self._locate(path)
        node = directory.entries.get(name) if name else directory
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _get_directory(self, path: str) -> _Directory:
        node = self._get_node(path)
        if type(node) is not _Directory:
            raise _error(errno.ENOTDIR, path)
        return node

    def _get_inode(self, path: str) -> _Inode:
        node = self._get_node(path)
        if type(node) is not _Inode:
            raise NotRegular(path)
        return node

    def _get_named(self, path: str) -> _Inode:
        """A file whose name is to be changed."""
        try:
            return self._get_inode(path)
        except NotRegular:
            raise _error(errno.EISDIR, path) from None

    def _open_inode(self, path: str) -> _Inode:
        """The file for writing, created if it is missing."""
        directory, name = self._locate(path)
        if name and name not in directory.entries:
            directory.entries[name] = _Inode()
        return self._get_inode(path)


if TYPE_CHECKING:
    _conforms: FileSystem = MemoryFileSystem()
