"""
A file system that shows another one and keeps every change to itself: what would happen, without its happening.

Theory of operation
-------------------
`verify` opens a store for real, with the recovery that every opening goes through, on an overlay of the store's files: recovery cuts,
redoes, writes checkpoints, and the disk stays as it is. `repair` plans on an overlay and carries the same steps out on the disk.

*A changed file* is the file below it, as far as that still shows, and pages of `PAGE_BYTES` that were written. A page that is
written as it was is not kept: recovery writes what it keeps once more, and that may be a whole store. So an overlay takes as
much memory as what recovery changes: about the journal behind the last checkpoint.

*Names* are those of the file system below, without those that were removed, and with those that were made. A folder, a link or whatever
else is no regular file can be renamed, since `repair` moves such things away; what lies in it cannot be read at its new name.

*Nothing is synced*, and reading drops the cached pages of the files below, as on the file system below.

Used by one thread. The files below must stay as they are; who looks on beside a live owner reads as a reader does (`volume/reader.py`).
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any

from penstock.files import LockHeld, NotRegular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.files import Buffer, File, FileSystem, SharedMap

PAGE_BYTES = 4096
SHARED_ROOM_BYTES = 64 * 1024 * 1024
_SPILL_BYTES = 16 * 1024 * 1024
"""A changed file of this length and more is mapped by way of a temporary file, and not held in memory as a whole."""


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class _Node:
    """A file: what shows of the one below, and the pages that were written over it."""

    __slots__ = ("below", "changed", "opened", "pages", "shown", "size")

    def __init__(self, below: str | None, size: int) -> None:
        self.below = below
        self.size = size
        self.shown = size  # so many bytes of the file below still show
        self.pages: dict[int, bytearray] = {}
        self.changed = below is None
        self.opened = 0


class OverlayFile:
    """An open file of an `OverlayFileSystem`."""

    __slots__ = ("_below", "_files", "_node", "_writable", "path")

    def __init__(self, files: OverlayFileSystem, path: str, node: _Node, below: File | None, *, write: bool) -> None:
        self.path = path
        self._files = files
        self._node: _Node | None = node
        self._below = below
        self._writable = write
        node.opened += 1

    def _open_node(self) -> _Node:
        if self._node is None:
            raise _error(errno.EBADF, self.path)
        return self._node

    def _written_node(self) -> _Node:
        node = self._open_node()
        if not self._writable:
            raise _error(errno.EBADF, self.path)
        return node

    def pread(self, length: int, position: int) -> bytes:
        node = self._open_node()
        if position < 0 or length < 0:
            raise _error(errno.EINVAL, self.path)
        end = min(position + length, node.size)
        if position >= end:
            return b""
        pages = node.pages
        first, last = position // PAGE_BYTES, (end - 1) // PAGE_BYTES
        touched = [page for page in range(first, last + 1) if page in pages] if pages else []
        if not touched and end <= node.shown:
            assert self._below is not None
            return self._below.pread(end - position, position)
        data = bytearray(end - position)
        if position < node.shown:
            assert self._below is not None
            part = self._below.pread(min(end, node.shown) - position, position)
            data[: len(part)] = part
        for page in touched:
            start = page * PAGE_BYTES
            begin, stop = max(start, position), min(start + PAGE_BYTES, end)
            data[begin - position : stop - position] = pages[page][begin - start : stop - start]
        return bytes(data)

    def pwrite(self, data: Buffer, position: int) -> int:
        node = self._written_node()
        if position < 0:
            raise _error(errno.EINVAL, self.path)
        view = memoryview(data).cast("B")
        end = position + len(view)
        if not view:
            return 0
        if end <= node.size and self.pread(len(view), position) == view:
            return len(view)
        node.changed = True
        size, node.size = node.size, max(node.size, end)
        for page in range(position // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1):
            start = page * PAGE_BYTES
            begin, stop = max(start, position), min(start + PAGE_BYTES, end)
            kept = node.pages.get(page)
            if kept is None:
                kept = bytearray(PAGE_BYTES)
                if start < min(size, node.shown):
                    assert self._below is not None
                    old = self._below.pread(min(PAGE_BYTES, node.shown - start), start)
                    kept[: len(old)] = old
                node.pages[page] = kept
            kept[begin - start : stop - start] = view[begin - position : stop - position]
        return len(view)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self.pwrite(b"".join(buffers), position)

    def size(self) -> int:
        return self._open_node().size

    def links(self) -> int:
        node = self._open_node()
        return 1 if node.changed or self._below is None else self._below.links()

    def truncate(self, size: int) -> None:
        node = self._written_node()
        if size == node.size:
            return
        node.changed = True
        if size < node.size:
            node.shown = min(node.shown, size)
            last = size // PAGE_BYTES
            for page in [page for page in node.pages if page > last or page * PAGE_BYTES >= size]:
                del node.pages[page]
            if last in node.pages:
                cut = size - last * PAGE_BYTES
                node.pages[last][cut:] = bytes(PAGE_BYTES - cut)
        node.size = size

    def reserve(self, position: int, length: int) -> bool:
        """Takes nothing."""
        del position, length
        self._written_node()
        return True

    def sync_data(self) -> None:
        self._open_node()

    def drop_cache(self) -> None:
        self._open_node()
        if self._below is not None:
            self._below.drop_cache()

    def map(self) -> memoryview:
        node = self._open_node()
        if self.path.endswith(self._files.unmapped):
            # Where a disk cannot be read, a page that is touched would end the process instead of raising.
            raise _error(errno.ENODEV, self.path)
        if not node.changed:
            assert self._below is not None
            return self._below.map()
        if node.size < _SPILL_BYTES:
            return memoryview(self.pread(node.size, 0))
        with tempfile.TemporaryFile() as spilled:
            spilled.truncate(node.size)
            for start in range(0, node.size, PAGE_BYTES):
                data = self.pread(PAGE_BYTES, start)
                if any(data):
                    os.pwrite(spilled.fileno(), data, start)
            return memoryview(mmap.mmap(spilled.fileno(), node.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.opened -= 1
            self._files.closed(self.path, node)
        below, self._below = self._below, None
        if below is not None:
            below.close()

    def __del__(self) -> None:
        self.close()


class _NoLock:
    """A lock that keeps nobody out: what it guards is seen by nobody else."""

    def release(self) -> None:
        """Nothing is held."""


class _Memory:
    """A mapped file that only its users see."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def close(self) -> None:
        """Let go of the view; the memory stays for others that have mapped it."""
        self.view.release()


class OverlayFileSystem:
    """
    The files of *below*, and changes that nobody else sees.

    Of what ends with one of *discarded* nothing is kept (caches: making one fails); what ends with one of *unmapped* is read and
    never mapped. With *is_owner* the lock below is the caller's own, and says nothing.
    """

    def __init__(
        self, below: FileSystem, *, discarded: tuple[str, ...] = (), unmapped: tuple[str, ...] = (), is_owner: bool = False
    ) -> None:
        self._base = below
        self._nodes: dict[str, _Node] = {}
        self._folders: set[str] = set()
        self._removed: set[str] = set()
        self._closed: set[str] = set()
        """The new names of what is no regular file."""
        self._shared: dict[str, mmap.mmap] = {}
        self._made: dict[str, set[str]] = {}
        """The names that were made, by the folder that they are in."""
        self._discarded = discarded
        self.unmapped = unmapped
        self._is_owner = is_owner

    # -- files ------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False) -> OverlayFile:
        node = self._nodes.get(path)
        if node is not None:
            below = None if node.below is None or not node.shown else self._base.open(node.below)
            return OverlayFile(self, path, node, below, write=write)
        if path in self._folders or path in self._closed:
            raise NotRegular(path)
        if self._is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        below = self._base.open(path)
        try:
            node = _Node(path, below.size())
        except BaseException:
            below.close()
            raise
        if write:
            self._nodes[path] = node
        return OverlayFile(self, path, node, below, write=write)

    def closed(self, path: str, node: _Node) -> None:
        """A file that was not changed is again the one below."""
        if not node.opened and not node.changed and self._nodes.get(path) is node:
            del self._nodes[path]

    def create(self, path: str) -> OverlayFile:
        if path.endswith(self._discarded):
            raise _error(errno.EROFS, path)
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._check_parent(path)
        node = self._nodes[path] = _Node(None, 0)
        self._note_made(path)
        return OverlayFile(self, path, node, None, write=True)

    def rename(self, source: str, target: str) -> None:
        if source == target:
            return
        self._check_parent(target)
        node = self._nodes.get(source)
        if node is None:
            try:
                file = self.open(source)
            except NotRegular:
                self._rename_closed(source, target)
                return
            node = file._open_node()  # noqa: SLF001
            file.close()
        if target in self._folders or (not self._is_gone(target) and target not in self._nodes and self._is_folder(target)):
            raise _error(errno.EISDIR, target)
        node.changed = True
        self._hide(source)
        self._nodes[target] = node
        self._note_made(target)

    def _rename_closed(self, source: str, target: str) -> None:
        """Rename what is no regular file, to a name that is free."""
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        inside = source + os.sep
        for path in [path for path in [*self._nodes, *self._folders, *self._closed, *self._shared] if path.startswith(inside)]:
            self._hide(path)
        self._hide(source)
        self._closed.add(target)
        self._note_made(target)

    def link(self, source: str, target: str) -> None:
        """No recovery makes links."""
        del target
        raise _error(errno.EPERM, source)

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path not in self._nodes and self._is_folder(path):
            raise _error(errno.EISDIR, path)
        self._hide(path)

    def _hide(self, path: str) -> None:
        self._nodes.pop(path, None)
        self._folders.discard(path)
        self._closed.discard(path)
        self._shared.pop(path, None)
        folder, name = os.path.split(path)
        self._made.get(folder, set()).discard(name)
        if self._base.exists(path):
            self._removed.add(path)

    # -- folders ----------------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._check_parent(path)
        self._folders.add(path)
        self._note_made(path)

    def remove_directory(self, path: str) -> None:
        if self.list_directory(path):
            raise _error(errno.ENOTEMPTY, path)
        self._hide(path)

    def list_directory(self, path: str) -> list[str]:
        if path in self._nodes or path in self._closed:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if path in self._folders:
            names = set()
        elif self._is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        else:
            names = {name for name in self._base.list_directory(path) if os.path.join(path, name) not in self._removed}
        return sorted(names | self._made.get(path, set()))

    def _note_made(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._made.setdefault(folder, set()).add(name)

    def exists(self, path: str) -> bool:
        if path in self._nodes or path in self._folders or path in self._shared or path in self._closed:
            return True
        return not self._is_gone(path) and self._base.exists(path)

    def sync_directory(self, path: str) -> None:
        if path not in self._folders and (self._is_gone(path) or not self._is_folder(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _is_gone(self, path: str) -> bool:
        """Whether the name below, if there is one, or a folder that it lies in, was removed."""
        if not self._removed and not self._folders:
            return False
        while path not in self._removed and path not in self._folders:
            above = os.path.dirname(path)
            if above == path:
                return False
            path = above
        return True

    def _is_folder(self, path: str) -> bool:
        if path in self._folders:
            return True
        try:
            self._base.list_directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _check_parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if not self.exists(parent):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def free_bytes(self, path: str) -> int:
        while not self._base.exists(path):
            path = os.path.dirname(path)
        return self._base.free_bytes(path)

    def lock(self, path: str, *, shares: bool = False) -> _NoLock:
        """Take nothing; raises `LockHeld` where the lock below is held."""
        del shares
        holder = self.lock_holder(path)
        if holder is not None:
            raise LockHeld(path, holder)
        return _NoLock()

    def lock_holder(self, path: str) -> dict[str, Any] | None:
        return None if self._is_owner or self._is_gone(path) else self._base.lock_holder(path)

    def map_shared(self, path: str, length: int, *, write: bool) -> SharedMap:
        memory = self._shared.get(path)
        if memory is None and not write and path not in self._nodes:
            if self._is_gone(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return self._base.map_shared(path, length, write=False)
        if memory is None:
            content = b""
            if self.exists(path):
                file = self.open(path)
                content = file.pread(min(file.size(), SHARED_ROOM_BYTES), 0)
                file.close()
            elif not write:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            memory = self._shared[path] = mmap.mmap(-1, SHARED_ROOM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory[: len(content)] = content
            self._note_made(path)
        if length > SHARED_ROOM_BYTES:
            raise _error(errno.ENOMEM, path)
        return _Memory(memoryview(memory)[:length])

    def note_read(self, view: memoryview, length: int) -> None:
        self._base.note_read(view, length)

    def boot_id(self) -> bytes:
        return self._base.boot_id()


if TYPE_CHECKING:
    from typing import cast

    _conforms: FileSystem = OverlayFileSystem(cast("FileSystem", None))
