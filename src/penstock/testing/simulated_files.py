"""
A file system in memory that can say what the disk may hold after a crash.

Theory of operation
-------------------

*The page cache is the truth, the disk is derived.* An inode holds its current bytes and the list of the data operations
since the last `sync_data`, each with what it overwrote. The durable content is the current content with that list undone,
so a sync costs nothing (the list is emptied) and only files with un-synced operations cost anything at a crash. The
namespace works alike: directories hold their current entries, and one list for the whole file system holds the un-synced
changes of entries, in order, each with the entries it replaced.

*What a power cut keeps of un-synced data.* An inode on a real disk is a size and sectors. Each sector of 512 bytes was last
written back at some moment, independently of the others, so it shows all operations on it up to that moment and none
after; and the size (with the truncations, which are changes of the size) shows some moment too. So a long write may be
torn in any pattern, a later write may be there without an earlier one, and a file may be longer than its data: the lost
sectors then read as zeros, or as what was there before. A single sector never mixes a later write with the absence of an
earlier one, because the cache has no such sector to write back.

*What a power cut keeps of un-synced names.* Any subset of the changes in which each kept change finds what it was built on:
a change needs the earlier changes of the same names, a rename into a folder needs that folder's creation, and a removal
of a folder needs the changes inside it. One rename is one change, also across folders, so a file is never under both
names or under neither; a link is a change too, which gives a file one name more or is lost. `sync_directory` makes durable the
changes that touch the folder, with what they need. It does not make the folder's own entry durable: that is in the parent, and
without it the folder and all in it are gone.

*A failed sync* does what Linux does. The pages are marked clean: reads still show the new bytes, the next `sync_data`
succeeds, and the disk still holds the old ones. They show again after `drop_cache` or a crash. Writing to such a page makes
it dirty as a whole (4096 bytes), so that the next sync does store it. The size, which is not in those pages, stays
un-synced until a sync succeeds.

*Cheap copies.* Content is `bytes` while nobody writes, shared with every copy of the file system, and becomes a `bytearray`
with the first write. Files mapped by `map_shared` are the exception: their memory is allocated once with room to grow,
because a `bytearray` cannot be resized while a view of it is out.

Simplifications: an unlinked file frees its space at once, even while open; a hole takes space like data does; a failed
`sync_directory` leaves the changes un-synced, and so does a failed `sync_data` of a mapped file.
"""

# ruff: noqa: SLF001 (the file system and its open files are one thing in three classes)

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from penstock.files import LockHeld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from penstock.files import Buffer, FileSystem

OperationKind = Literal[
    "pwrite",
    "pwritev",
    "truncate",
    "reserve",
    "sync_data",
    "create",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "sync_directory",
]
Keep = Literal["nothing", "everything", "random"]

SECTOR = 512
PAGE = 4096
SHARED_CAPACITY = 1 << 20
UNLIMITED_FREE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Operation:
    """One mutating call. *index* counts from 1; *target* is the new name of a rename or a link."""

    index: int
    kind: OperationKind
    path: str
    position: int = 0
    length: int = 0
    target: str = ""


class _Write(NamedTuple):
    """An un-synced operation on data; without *data* a change of size. *old* is what stood at *position* before."""

    sequence: int
    position: int
    data: bytes | None
    old: bytes
    old_size: int
    new_size: int


@final
class _Inode:
    """A regular file. Compared by identity; `content` is only ever replaced or changed under the file system's lock."""

    __slots__ = ("buffer", "content", "durable", "maps", "pending", "reserved", "stale")

    def __init__(self, content: bytes | bytearray | memoryview, reserved: int) -> None:
        # bytes: shared with copies; bytearray: written to; memoryview: a part of `buffer`, mapped.
        self.content = content
        self.pending: list[_Write] = []
        self.reserved = reserved
        # What the disk holds in pages that a failed sync marked clean.
        self.stale: dict[int, bytes] = {}
        # For mapped files only, which have no pending list: the memory, its views, and what the disk holds.
        self.buffer: bytearray | None = None
        self.maps = 0
        self.durable = b""

    def freeze(self) -> bytes:
        """The content as bytes that can be shared, without a copy the second time."""
        content = self.content
        if type(content) is bytes:
            return content
        frozen = bytes(content)
        if self.buffer is None:
            self.content = frozen
        return frozen

    def thaw(self) -> bytearray:
        content = self.content
        if type(content) is not bytearray:
            self.content = content = bytearray(content)
        return content

    def unsynced(self) -> Sequence[_Write]:
        """The operations that the disk may lack; for a mapped file one that stands for all."""
        if self.buffer is None:
            return self.pending
        current = bytes(self.content)
        if current == self.durable:
            return ()
        return (_Write(0, 0, current, self.durable, len(self.durable), len(current)),)

    def disk(self) -> bytearray:
        """What the disk certainly holds."""
        if self.buffer is not None:
            return bytearray(self.durable)
        disk = bytearray(self.content)
        _undo(disk, self.pending)
        _overlay(disk, self.stale)
        return disk


@final
class _Directory:
    """A folder. The identifier is the same in every copy of the file system."""

    __slots__ = ("entries", "identifier", "parent")

    def __init__(self, identifier: int, parent: _Directory | None) -> None:
        self.identifier = identifier
        self.parent = parent
        self.entries: dict[str, _Node] = {}


_Node = _Inode | _Directory
_Change = tuple[_Directory, str, _Node | None, _Node | None]

# What a change of names is about: an entry (folder, name); the existence of a folder (its identifier); anything inside a
# folder (minus its identifier); or the shape of the tree. Root has the identifier 1.
_Key = tuple[int, str] | int
_SHAPE = 0


class _Renaming(NamedTuple):
    """An un-synced change of entries: (folder, name, node before, node after) for each entry, all or none of them."""

    sequence: int
    changes: tuple[_Change, ...]
    affects: frozenset[_Key]
    needs: frozenset[_Key]


class _Fault:
    __slots__ = ("at", "count", "error", "kind", "path_contains", "seen", "short")

    def __init__(
        self, kind: str, at: int, error: int | None, count: int | None, path_contains: str | None, short: int | None
    ) -> None:
        self.kind = kind
        self.at = at
        self.error = error
        self.count = count
        self.path_contains = path_contains
        self.short = short
        self.seen = 0

    def strikes(self, operation: Operation) -> int | None:
        """Raise if it is this operation's turn, or return how many bytes to take, or None to leave it alone."""
        kind = operation.kind
        if self.kind not in (kind, "any") and not (self.kind == "write" and kind in ("pwrite", "pwritev")):
            return None
        wanted = self.path_contains
        if wanted is not None and wanted not in operation.path and wanted not in operation.target:
            return None
        self.seen += 1
        first = self.at
        if self.short is not None:
            if self.seen == first:
                return self.short
            first += 1
        if self.error is None or self.seen < first or (self.count is not None and self.seen >= first + self.count):
            return None
        raise OSError(self.error, os.strerror(self.error), operation.path)


def _undo(buffer: bytearray, operations: Sequence[_Write]) -> None:
    for operation in reversed(operations):
        old = operation.old
        if old:
            position = operation.position
            buffer[position : position + len(old)] = old
        del buffer[operation.old_size :]


def _overlay(buffer: bytearray, stale: dict[int, bytes]) -> None:
    for page, disk in stale.items():
        start = page * PAGE
        length = min(PAGE, len(buffer) - start)
        if length > 0:
            buffer[start : start + length] = disk[:length]


def _put(buffer: bytearray, position: int, data: bytes) -> None:
    if position > len(buffer):
        buffer.extend(bytes(position - len(buffer)))
    buffer[position : position + len(data)] = data


def _moment(rng: Random, total: int) -> int:
    """How many of *total* operations something shows: often none or all, else anything between."""
    chance = rng.random()
    if chance < 0.35:
        return 0
    if chance < 0.7:
        return total
    return int((chance - 0.7) / 0.3 * (total + 1))


def _redo(
    buffer: bytearray,
    operations: Sequence[_Write],
    moments: dict[int, int],
    default: int | None,
    size_moment: int,
    rng: Random,
) -> None:
    """
    Apply to durable content what survived of *operations*.

    *moments* says for a sector how many of the operations it shows; a sector that is not in it shows *default* of them, or
    is drawn. *size_moment* says the same for the size.
    """
    total = len(operations)
    # Sectors behind a lost truncation still hold old bytes, but the cache writes them back with zeros around new ones.
    freed: set[int] = set()
    for index, (_, position, data, _, _, new_size) in enumerate(operations):
        if data is None:
            if index < size_moment:
                del buffer[new_size:]
            elif new_size < len(buffer):
                # The truncation is lost, but the rest of its sector was filled with zeros in the cache.
                sector = new_size // SECTOR
                moment = moments.get(sector)
                if moment is None:
                    moment = moments[sector] = _moment(rng, total) if default is None else default
                end = min((sector + 1) * SECTOR, len(buffer))
                if index < moment:
                    buffer[new_size:end] = bytes(end - new_size)
                freed.update(range(sector + 1, (len(buffer) - 1) // SECTOR + 1))
            continue
        end = position + len(data)
        run = position
        for sector in range(position // SECTOR, (end - 1) // SECTOR + 1):
            moment = moments.get(sector)
            if moment is None:
                moment = moments[sector] = _moment(rng, total) if default is None else default
            if index >= moment:
                start = sector * SECTOR
                if start > run:
                    _put(buffer, run, data[run - position : start - position])
                run = start + SECTOR
            elif sector in freed:
                freed.remove(sector)
                start = sector * SECTOR
                length = min(SECTOR, len(buffer) - start)
                buffer[start : start + length] = bytes(length)
        if run < end:
            _put(buffer, run, data[run - position :])
    size = operations[size_moment - 1].new_size if size_moment else operations[0].old_size
    if size < len(buffer):
        del buffer[size:]
    else:
        buffer.extend(bytes(size - len(buffer)))


class _PowerCut:
    """The choice of what one crash keeps, asked once for the names and once for each file with un-synced data."""

    __slots__ = ("chosen", "names", "names_kept", "point", "rng", "style")

    def __init__(self, style: str, rng: Random, names: Sequence[_Renaming], dirty: Iterable[_Inode]) -> None:
        self.style = style
        self.rng = rng
        self.names = names
        self.chosen: _Write | _Renaming | None = None
        self.point = 0
        self.names_kept = 0.5
        if style in ("prefix", "all but one", "nothing but one"):
            operations: list[_Write | _Renaming] = [operation for inode in dirty for operation in inode.pending]
            operations += names
            if operations:
                self.chosen = operations[int(rng.random() * len(operations))]
                self.point = self.chosen.sequence
        if style in ("independent", "nothing but one"):
            self.names_kept = (0.0, 0.5, 0.5, 1.0)[int(rng.random() * 4)]

    def lost_names(self) -> list[_Renaming]:
        """The changes of names that are lost, with all that need them, in order."""
        style, rng, chosen = self.style, self.rng, self.chosen
        if style in ("everything", "only metadata"):
            return []
        if style in ("nothing", "only data"):
            return list(self.names)
        kept: set[int] | None = None
        if style == "nothing but one" and type(chosen) is _Renaming:
            kept = _with_needs(self.names, lambda operation: operation is chosen)
        lost: list[_Renaming] = []
        broken: set[_Key] = set()
        for operation in self.names:
            if not broken.isdisjoint(operation.needs):
                keeps = False
            elif kept is not None:
                keeps = operation.sequence in kept
            elif style == "prefix":
                keeps = operation.sequence < self.point or (operation is chosen and rng.random() < 0.5)
            elif style == "all but one":
                keeps = operation is not chosen
            else:
                keeps = rng.random() < self.names_kept
            if not keeps:
                lost.append(operation)
                broken |= operation.affects
        return lost

    def content(self, inode: _Inode) -> bytes:
        """What of a file's content the disk shows."""
        operations = inode.unsynced()
        if not operations and not inode.stale:
            return inode.freeze()
        buffer = bytearray(inode.content)
        if operations:
            self._lose(buffer, operations, self.style if inode.buffer is None else self._style_of_mapped())
        _overlay(buffer, inode.stale)
        return bytes(buffer)

    def _style_of_mapped(self) -> str:
        # Stores into mapped memory are no operations: they have no place in the order, and may be anywhere in it.
        return self.style if self.style in ("nothing", "everything", "only metadata") else "independent"

    def _lose(self, buffer: bytearray, operations: Sequence[_Write], style: str) -> None:
        rng, total, chosen = self.rng, len(operations), self.chosen
        if style in ("everything", "only data"):
            return
        if style == "prefix":
            kept = 0
            while kept < total and operations[kept].sequence < self.point:
                kept += 1
            _undo(buffer, operations[kept:])
            if kept < total and operations[kept] is chosen:
                _redo(buffer, operations[kept : kept + 1], {}, None, _moment(rng, 1), rng)
            return
        single = -1
        if style in ("all but one", "nothing but one") and type(chosen) is _Write:
            single = next((index for index, operation in enumerate(operations) if operation is chosen), -1)
        if style == "all but one" and single < 0:
            return
        _undo(buffer, operations)
        if style == "independent":
            _redo(buffer, operations, {}, None, _moment(rng, total), rng)
        elif style == "only metadata":
            _redo(buffer, operations, {}, 0, total, rng)
        elif style == "all but one":
            sectors = _sectors(operations[single])
            moments = {sector: single for sector in sectors if len(sectors) == 1 or rng.random() < 0.5}
            # If a change of size is what is missing, later ones are missing too: the disk holds one size.
            size_moment = total if operations[single].data is not None else single
            _redo(buffer, operations, moments, total, size_moment, rng)
        elif single >= 0:
            moments = dict.fromkeys(_sectors(operations[single]), single + 1)
            _redo(buffer, operations, moments, 0, single + 1, rng)


def _sectors(operation: _Write) -> range:
    if operation.data is None:
        return range(0)
    return range(operation.position // SECTOR, (operation.position + len(operation.data) - 1) // SECTOR + 1)


def _with_needs(names: Sequence[_Renaming], wanted: Callable[[_Renaming], bool]) -> set[int]:
    """The sequence numbers of the *wanted* changes and of all earlier ones that they need."""
    found: set[int] = set()
    needs: set[_Key] = set()
    for operation in reversed(names):
        if wanted(operation) or not needs.isdisjoint(operation.affects):
            found.add(operation.sequence)
            needs |= operation.needs
    return found


# How often each style is drawn. Orderly losses find missing syncs, single ones find wrong assumptions on order.
_STYLES = (
    ["prefix"] * 6
    + ["independent"] * 6
    + ["only metadata"] * 2
    + ["only data"] * 2
    + ["all but one"] * 2
    + ["nothing but one"] * 2
)


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    __slots__ = ("_files", "_inode", "_writable", "path")

    def __init__(self, files: SimulatedFileSystem, inode: _Inode, path: str, *, writable: bool) -> None:
        self.path = path
        self._files = files
        self._inode: _Inode | None = inode
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
            end = position + length
            if inode.buffer is not None:
                size = len(inode.content)
                if end > size:
                    files._resize_shared(inode, end, self.path)
                inode.buffer[position:end] = data
                return length
            if inode.stale:
                files._make_dirty(inode, position, end)
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
                files._dirty[inode] = None
            files._sequence = sequence = files._sequence + 1
            pending.append(_Write(sequence, position, data, old, size, max(size, end)))
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
            return self._files._names_of(inode)

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
            if size == old_size:
                return
            if inode.buffer is not None:
                files._resize_shared(inode, size, self.path)
                return
            if inode.stale:
                files._make_dirty(inode, min(size, old_size), max(size, old_size))
            content = inode.thaw()
            old = bytes(content[size:])
            if size < old_size:
                del content[size:]
            else:
                content += bytes(size - old_size)
            if not inode.pending:
                files._dirty[inode] = None
            files._sequence += 1
            inode.pending.append(_Write(files._sequence, min(size, old_size), None, old, old_size, size))

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
                files._lose_dirty_pages(inode)
                raise
            if inode.buffer is not None:
                inode.durable = bytes(inode.content)
            elif inode.pending:
                inode.pending = []
                files._dirty.pop(inode, None)

    def drop_cache(self) -> None:
        """Show what the disk holds wherever a failed sync left clean pages; dirty pages stay, as on Linux."""
        with self._files._lock:
            inode = self._inode
            if inode is None:
                raise self._bad_descriptor()
            if inode.stale:
                _overlay(inode.thaw(), inode.stale)
                inode.stale = {}

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

    def __init__(self, files: SimulatedFileSystem, inode: _Inode) -> None:
        self._files = files
        self._inode: _Inode | None = inode

    def release(self) -> None:
        """Give the lock up; releasing twice does nothing."""
        inode, self._inode = self._inode, None
        if inode is not None:
            with self._files._lock:
                self._files._locks.pop(inode, None)


class SimulatedSharedMap:
    """A view of the memory of a mapped file, the same memory for each opener."""

    __slots__ = ("_files", "_inode", "view")

    def __init__(self, files: SimulatedFileSystem, inode: _Inode, view: memoryview) -> None:
        self.view = view
        self._files = files
        self._inode: _Inode | None = inode
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


class SimulatedFileSystem:
    """
    A deterministic file system in memory, for one or many threads.

    Attributes:
        on_operation: called before each mutating operation takes effect, with the lock held. It may call `crash`, `kill`
            and `files` on this file system. If it raises, the operation does not happen; an `OSError` counts as the
            operation's own failure.
        operations: how many mutating operations were begun. Calls refused for their arguments do not count.
        record: the operations so far, if *recording*.
        capacity_bytes: the size of the disk; None is unlimited.
        origin: how this state came to be ("new", "killed", "crash: prefix up to 17"), for messages of failed tests.
    """

    def __init__(self, *, capacity_bytes: int | None = None, recording: bool = False) -> None:
        self.on_operation: Callable[[Operation], None] | None = None
        self.operations = 0
        self.recording = recording
        self.record: list[Operation] = []
        self.capacity_bytes = capacity_bytes
        self.origin = "new"
        self._lock = threading.RLock()
        self._root = _Directory(1, None)
        self._last_identifier = 1
        self._boot = 1
        self._sequence = 0
        self._names: list[_Renaming] = []
        self._dirty: dict[_Inode, None] = {}
        self._faults: list[_Fault] = []
        self._locks: dict[_Inode, dict[str, Any]] = {}
        self._directories: dict[str, _Directory] = {"": self._root}

    # The FileSystem protocol

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        """Open an existing file; a folder is refused."""
        with self._lock:
            directory, name = self._locate(path)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not _Inode:
                code = errno.EISDIR if write else errno.EINVAL
                raise OSError(code, "not a regular file", path)
            return SimulatedFile(self, node, path, writable=write)

    def create(self, path: str) -> SimulatedFile:
        """Create an empty file; un-synced until `sync_directory` of its folder."""
        with self._lock:
            directory, name = self._locate(path)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._begin("create", path)
            inode = _Inode(b"", 0)
            self._change(((directory, name, None, inode),))
            return SimulatedFile(self, inode, path, writable=True)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder; one change, also from one folder to another."""
        with self._lock:
            source_directory, source_name = self._locate(source)
            node = source_directory.entries.get(source_name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            target_directory, target_name = self._locate(target)
            if not target_name:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), source, None, target)
            replaced = target_directory.entries.get(target_name)
            if replaced is node:
                return
            ancestors = list(_upwards(target_directory))
            needs: set[_Key] = set()
            if type(node) is _Directory:
                if node in ancestors:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), source, None, target)
                if type(replaced) is _Inode:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source, None, target)
            elif type(replaced) is _Directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), source, None, target)
            if type(replaced) is _Directory:
                if replaced.entries:
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
                needs.add(-replaced.identifier)
            affects: set[_Key] = set()
            if target_directory is not source_directory:
                needs.update(ancestor.identifier for ancestor in ancestors)
                if type(node) is _Directory:
                    # Folders move in order, or one could end up inside itself.
                    affects.add(_SHAPE)
                    needs.add(_SHAPE)
            self._begin("rename", source, target=target)
            self._change(
                (
                    (source_directory, source_name, node, None),
                    (target_directory, target_name, replaced, node),
                ),
                affects=affects,
                needs=needs,
            )
            if type(node) is _Directory:
                node.parent = target_directory
                self._directories = {"": self._root}

    def link(self, source: str, target: str) -> None:
        """Give a file one more name; un-synced until `sync_directory` of the target's folder."""
        with self._lock:
            directory, name = self._locate(source)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            if type(node) is not _Inode:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)
            directory, name = self._locate(target)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
            self._begin("link", source, target=target)
            self._change(((directory, name, None, node),), needs={above.identifier for above in _upwards(directory)})

    def unlink(self, path: str) -> None:
        """Remove a file's name; it may come back after a crash until its folder is synced."""
        with self._lock:
            directory, name = self._locate(path)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not _Inode:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._begin("unlink", path)
            self._change(((directory, name, node, None),))

    def make_directory(self, path: str) -> None:
        """Create a folder; it is durable after `sync_directory` of its parent."""
        with self._lock:
            directory, name = self._locate(path)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._begin("mkdir", path)
            self._last_identifier += 1
            made = _Directory(self._last_identifier, directory)
            self._change(((directory, name, None, made),), affects={made.identifier})

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        with self._lock:
            directory, name = self._locate(path)
            if not name:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            node = directory.entries.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not _Directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if node.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._begin("rmdir", path)
            self._change(((directory, name, node, None),), needs={-node.identifier})
            self._directories = {"": self._root}

    def list_directory(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        with self._lock:
            return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        """Whether the name exists now, synced or not."""
        with self._lock:
            try:
                directory, name = self._locate(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return not name or name in directory.entries

    def sync_directory(self, path: str) -> None:
        """Make the changes that touch this folder durable, and those in other folders that they need."""
        with self._lock:
            directory = self._directory(path)
            self._begin("sync_directory", path)
            if self._names:
                key = -directory.identifier
                self._settle(_with_needs(self._names, lambda operation: key in operation.affects))

    def free_bytes(self, path: str) -> int:
        """What is left of `capacity_bytes`; a tebibyte if that is unlimited."""
        with self._lock:
            self._locate(path)
            if self.capacity_bytes is None:
                return UNLIMITED_FREE_BYTES
            return max(0, self.capacity_bytes - self._used_bytes())

    def lock(self, path: str, *, shares: bool = False) -> SimulatedLock:
        """Take the lock. The file is created and written like any other, so these are operations that can fail."""
        with self._lock:
            file = self.open(path, write=True) if self.exists(path) else self.create(path)
            inode = file._inode
            if inode is None:
                raise file._bad_descriptor()
            held = self._locks.get(inode)
            if held is not None:
                raise LockHeld(path, dict(held))
            owner = {"pid": 1, "host": "simulated", **({"shares": True} if shares else {})}
            file.truncate(0)
            file.pwrite(json.dumps(owner).encode(), 0)
            self._locks[inode] = owner
            return SimulatedLock(self, inode)

    def map_shared(self, path: str, length: int, *, write: bool) -> SimulatedSharedMap:
        """
        Map a file. Stores into the view are not operations: no hook sees them, and no sync is needed for others to.

        Raises:
            OSError: `ENOMEM` if the file must grow over `SHARED_CAPACITY` while it is mapped.
        """
        with self._lock:
            file = self.create(path) if write and not self.exists(path) else self.open(path, write=write)
            inode = file._inode
            if inode is None:
                raise file._bad_descriptor()
            if file.size() < length:
                if not write:
                    raise OSError(errno.EINVAL, f"shorter than {length} bytes", path)
                buffer = self._share(inode, length)
                file.truncate(length)
            else:
                buffer = self._share(inode, length)
            view = memoryview(buffer)[:length]
            return SimulatedSharedMap(self, inode, view if write else view.toreadonly())

    def note_read(self, view: memoryview, length: int) -> None:
        """There is nothing but memory, and no page of it may go."""

    def boot_id(self) -> bytes:
        """Counts the crashes that led here, so that it is the same in each run."""
        return self._boot.to_bytes(16, "big")

    # Crashes

    def crash(self, rng: Random, *, keep: Keep = "random") -> SimulatedFileSystem:
        """
        A new file system as the disk may be after a power cut now; this one is not changed.

        What survives of the un-synced changes is drawn from *rng*, in one of several styles; the new file system's `origin`
        names it. All that is there afterwards is durable. The hook, the faults and the record are not taken over.
        """
        with self._lock:
            style = _STYLES[int(rng.random() * len(_STYLES))] if keep == "random" else keep
            cut = _PowerCut(style, rng, self._names, self._dirty)
            before: dict[_Directory, dict[str, _Node | None]] = {}
            if self._names:
                for operation in reversed(cut.lost_names()):
                    for directory, name, old, _ in operation.changes:
                        before.setdefault(directory, {})[name] = old
            result = SimulatedFileSystem(capacity_bytes=self.capacity_bytes)
            result._boot = self._boot + 1
            result._last_identifier = self._last_identifier
            result.origin = f"crash: {style} at {cut.point}" if cut.point else f"crash: {style}"
            waiting = [(self._root, result._root)]
            inodes: dict[_Inode, _Inode] = {}
            while waiting:
                directory, copy = waiting.pop()
                entries: dict[str, _Node | None] = dict(directory.entries)
                undone = before.get(directory)
                if undone is not None:
                    entries.update(undone)
                for name, node in entries.items():
                    if type(node) is _Inode:
                        survivor = inodes.get(node)
                        if survivor is None:
                            # The quick way out is for the many files that are as they were at their last sync.
                            content = node.content
                            if type(content) is not bytes or node.pending or node.stale:
                                content = cut.content(node)
                            survivor = inodes[node] = _Inode(content, node.reserved)
                        copy.entries[name] = survivor
                    elif type(node) is _Directory:
                        made = _Directory(node.identifier, copy)
                        copy.entries[name] = made
                        waiting.append((node, made))
            return result

    def kill(self) -> SimulatedFileSystem:
        """
        A new file system as the next process finds it after SIGKILL; this one is not changed.

        All that was written is there and what was un-synced still is: a `crash` of the result can lose it. Locks are free.
        """
        result = self.clone()
        result.origin = "killed"
        return result

    def clone(self) -> SimulatedFileSystem:
        """An independent copy of cache and disk, with no locks, maps, hook, faults or record."""
        with self._lock:
            result = SimulatedFileSystem(capacity_bytes=self.capacity_bytes)
            result._boot = self._boot
            result._last_identifier = self._last_identifier
            result._sequence = self._sequence
            result.origin = self.origin
            # Nodes are remembered because some have a name and a place in an un-synced change, and some only the latter.
            inodes: dict[_Inode, _Inode] = {}
            directories = {self._root: result._root}
            waiting = [self._root]

            def copy_of_directory(directory: _Directory) -> _Directory:
                copy = directories.get(directory)
                if copy is None:
                    parent = directory.parent
                    copy = _Directory(directory.identifier, parent and copy_of_directory(parent))
                    directories[directory] = copy
                    waiting.append(directory)
                return copy

            def copy_of(node: _Node) -> _Node:
                if type(node) is _Directory:
                    return copy_of_directory(node)
                copy = inodes.get(node)
                if copy is None:
                    inodes[node] = copy = _copy_inode(node)
                    if copy.pending:
                        result._dirty[copy] = None
                return copy

            for operation in self._names:
                changes = tuple(
                    (copy_of_directory(directory), name, old and copy_of(old), new and copy_of(new))
                    for directory, name, old, new in operation.changes
                )
                result._names.append(operation._replace(changes=changes))
            while waiting:
                directory = waiting.pop()
                entries = directories[directory].entries
                for name, node in directory.entries.items():
                    entries[name] = copy_of(node)
            return result

    # Faults

    def fail(
        self,
        kind: OperationKind | Literal["write", "any"],
        at: int,
        error: int | None,
        *,
        count: int | None = 1,
        path_contains: str | None = None,
        short: int | None = None,
    ) -> None:
        """
        Let the *at*-th matching operation from now (the next is 1) fail with the number *error*.

        The kind "write" matches `pwrite` and `pwritev`. *count* operations in a row fail, with None all later ones. With
        *short* the *at*-th write takes that many bytes and returns, and the failures begin with the one after it, unless
        *error* is None. A failed operation changes nothing, but see `SimulatedFile.sync_data`.
        """
        with self._lock:
            self._faults.append(_Fault(kind, at, error, count, path_contains, short))

    def clear_faults(self) -> None:
        """Forget all faults; what they did stays done."""
        with self._lock:
            self._faults.clear()

    # For tests to look and meddle

    def files(self) -> dict[str, bytes]:
        """The current content of every file, synced or not, by absolute path in sorted order."""
        with self._lock:
            return {path: node.freeze() for path, node in self._walk(self._root, "") if type(node) is _Inode}

    def tree(self) -> list[str]:
        """Every absolute path but the root's, sorted within each folder; folders end with a slash."""
        with self._lock:
            return [path if type(node) is _Inode else path + "/" for path, node in self._walk(self._root, "")]

    def replace(self, path: str, content: bytes) -> None:
        """Put *content* into a file behind the engine's back, durable at once; the file is created if missing."""
        with self._lock:
            directory, name = self._locate(path)
            node = directory.entries.get(name) if name else directory
            if type(node) is _Directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if node is None:
                node = _Inode(b"", 0)
                self._change(((directory, name, None, node),), needs=[above.identifier for above in _upwards(directory)])
                key = (directory.identifier, name)
                self._settle(_with_needs(self._names, lambda operation: key in operation.affects))
            if type(node) is _Inode:
                if node.buffer is not None:
                    self._resize_shared(node, len(content), path)
                    node.buffer[: len(content)] = content
                    node.durable = bytes(content)
                else:
                    node.content = bytes(content)
                    node.pending = []
                    node.stale = {}
                    self._dirty.pop(node, None)

    # Inside

    def _begin(self, kind: OperationKind, path: str, position: int = 0, length: int = 0, target: str = "") -> None:
        self.operations += 1
        if self.on_operation is not None or self.recording or self._faults:
            self._announce(kind, path, position, length, target)

    def _announce(self, kind: OperationKind, path: str, position: int, length: int, target: str = "") -> int | None:
        """Tell the record, the hook and the faults; return how many bytes a short write is to take."""
        operation = Operation(self.operations, kind, path, position, length, target)
        if self.recording:
            self.record.append(operation)
        if self.on_operation is not None:
            self.on_operation(operation)
        short: int | None = None
        failure: OSError | None = None
        # All faults count the operation, also those behind one that strikes.
        for fault in self._faults:
            try:
                taken = fault.strikes(operation)
            except OSError as error:
                failure = failure or error
            else:
                short = taken if short is None else short
        if failure is not None:
            raise failure
        return short

    def _locate(self, path: str) -> tuple[_Directory, str]:
        """The folder and the name in it that *path* stands for; the name of the root is empty."""
        head, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            parts = _parts(path)
            if not parts:
                return self._root, ""
            name = parts.pop()
            head = "/".join(parts)
        directory = self._directories.get(head)
        if directory is None:
            directory = self._root
            for part in _parts(head):
                node = directory.entries.get(part)
                if node is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                if type(node) is not _Directory:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = node
            self._directories[head] = directory
        return directory, name

    def _directory(self, path: str) -> _Directory:
        directory, name = self._locate(path)
        node = directory.entries.get(name) if name else directory
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if type(node) is not _Directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _change(self, changes: tuple[_Change, ...], *, affects: Iterable[_Key] = (), needs: Iterable[_Key] = ()) -> None:
        entries: list[_Key] = []
        inside: list[_Key] = []
        for directory, name, _, new in changes:
            entries.append((directory.identifier, name))
            inside.append(-directory.identifier)
            if new is None:
                del directory.entries[name]
            else:
                directory.entries[name] = new
        self._sequence += 1
        self._names.append(
            _Renaming(self._sequence, changes, frozenset((*entries, *inside, *affects)), frozenset((*entries, *needs)))
        )

    def _settle(self, sequences: set[int]) -> None:
        """Make these changes of names durable."""
        remaining: list[_Renaming] = []
        for operation in self._names:
            if operation.sequence not in sequences:
                remaining.append(operation)
                continue
            for _, _, old, _ in operation.changes:
                # A file that lost its last name for good cannot come back, and needs no care at a crash.
                if type(old) is _Inode and old in self._dirty and not self._names_of(old):
                    self._dirty.pop(old)
        self._names = remaining

    def _names_of(self, inode: _Inode) -> int:
        return sum(node is inode for _, node in self._walk(self._root, ""))

    def _used_bytes(self) -> int:
        inodes: set[_Inode] = set()
        waiting = [self._root]
        while waiting:
            for node in waiting.pop().entries.values():
                if type(node) is _Inode:
                    inodes.add(node)
                elif type(node) is _Directory:
                    waiting.append(node)
        return sum(max(len(inode.content), inode.reserved) for inode in inodes)

    def _room(self, inode: _Inode, position: int, length: int, path: str) -> int:
        """How many of *length* bytes fit at *position*; `ENOSPC` if none does."""
        held = max(len(inode.content), inode.reserved)
        if position + length <= held or self.capacity_bytes is None:
            return length
        room = held + max(0, self.capacity_bytes - self._used_bytes()) - position
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return min(room, length)

    def _demand(self, inode: _Inode, end: int, path: str) -> None:
        """Raise `ENOSPC` unless the file can grow up to *end*."""
        growth = end - max(len(inode.content), inode.reserved)
        if growth > 0 and self.capacity_bytes is not None and growth > self.capacity_bytes - self._used_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _make_dirty(self, inode: _Inode, position: int, end: int) -> None:
        """Make pages dirty again that a failed sync marked clean and that an operation on this range is about to touch."""
        content = inode.content
        size = len(content)
        first = min(position, size) // PAGE
        last = max(end - 1, 0) // PAGE
        for page in [page for page in inode.stale if first <= page <= last]:
            disk = inode.stale.pop(page)
            now = bytes(content[page * PAGE : page * PAGE + PAGE])
            if now:
                self._dirty[inode] = None
                self._sequence += 1
                inode.pending.append(_Write(self._sequence, page * PAGE, now, disk[: len(now)], size, size))

    def _lose_dirty_pages(self, inode: _Inode) -> None:
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
        self._dirty.pop(inode, None)
        if len(disk) != size:
            self._sequence += 1
            shorter = min(len(disk), size)
            inode.pending.append(_Write(self._sequence, shorter, None, bytes(disk[size:]), len(disk), size))
            self._dirty[inode] = None

    def _share(self, inode: _Inode, length: int) -> bytearray:
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
        inode.pending = []
        inode.stale = {}
        self._dirty.pop(inode, None)
        return buffer

    def _resize_shared(self, inode: _Inode, size: int, path: str) -> None:
        buffer = inode.buffer
        if buffer is None or size > len(buffer):
            raise OSError(errno.ENOMEM, f"a mapped file cannot grow to {size} bytes", path)
        old_size = len(inode.content)
        if size < old_size:
            buffer[size:old_size] = bytes(old_size - size)
        inode.content = memoryview(buffer)[:size]

    def _walk(self, directory: _Directory, prefix: str) -> Iterator[tuple[str, _Node]]:
        for name, node in sorted(directory.entries.items()):
            path = f"{prefix}/{name}"
            yield path, node
            if type(node) is _Directory:
                yield from self._walk(node, path)


def _copy_inode(inode: _Inode) -> _Inode:
    copy = _Inode(inode.freeze(), inode.reserved)
    if inode.pending or inode.buffer is not None:
        copy.pending = list(inode.unsynced())
    if inode.stale:
        copy.stale = dict(inode.stale)
    return copy


def _upwards(directory: _Directory | None) -> Iterator[_Directory]:
    while directory is not None:
        yield directory
        directory = directory.parent


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


if TYPE_CHECKING:
    _conforms: FileSystem = SimulatedFileSystem()
