"""The file system itself: it gives each call its turn, its fault and its room; what a call changes is names and cache."""

# ruff: noqa: SLF001 (the file system and its open files are one thing in several classes)

from __future__ import annotations

import errno
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from penstock.files import LockHeld, NotRegular
from penstock.testing.simulated_files.fault import Fault
from penstock.testing.simulated_files.inode import Inode
from penstock.testing.simulated_files.names import SHAPE, Directory, Names, upwards
from penstock.testing.simulated_files.open_file import SimulatedFile, SimulatedLock, SimulatedSharedMap
from penstock.testing.simulated_files.operation import Operation
from penstock.testing.simulated_files.page_cache import PageCache
from penstock.testing.simulated_files.power_cut import STYLES, PowerCut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from penstock.files import FileSystem
    from penstock.testing.simulated_files.names import Change, Key, Node
    from penstock.testing.simulated_files.operation import OperationKind

Keep = Literal["nothing", "everything", "random"]

UNLIMITED_FREE_BYTES = 1 << 40


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
        self._boot = 1
        self._names = Names()
        self._cache = PageCache()
        self._faults: list[Fault] = []
        self._locks: dict[Inode, dict[str, Any]] = {}

    # The FileSystem protocol

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        """Open an existing file; a folder is refused."""
        with self._lock:
            directory, name = self._names.locate(path)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not Inode:
                raise NotRegular(path)
            return SimulatedFile(self, node, path, writable=write)

    def create(self, path: str) -> SimulatedFile:
        """Create an empty file; un-synced until `sync_directory` of its folder."""
        with self._lock:
            directory, name = self._names.locate(path)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._begin("create", path)
            inode = Inode(b"", 0)
            self._change(((directory, name, None, inode),))
            return SimulatedFile(self, inode, path, writable=True)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder; one change, also from one folder to another."""
        with self._lock:
            source_directory, source_name = self._names.locate(source)
            node = source_directory.entries.get(source_name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            target_directory, target_name = self._names.locate(target)
            if not target_name:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), source, None, target)
            replaced = target_directory.entries.get(target_name)
            if replaced is node:
                return
            ancestors = list(upwards(target_directory))
            needs: set[Key] = set()
            if type(node) is Directory:
                if node in ancestors:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), source, None, target)
                if type(replaced) is Inode:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source, None, target)
            elif type(replaced) is Directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), source, None, target)
            if type(replaced) is Directory:
                if replaced.entries:
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
                needs.add(-replaced.identifier)
            affects: set[Key] = set()
            if target_directory is not source_directory:
                needs.update(ancestor.identifier for ancestor in ancestors)
                if type(node) is Directory:
                    # Folders move in order, or one could end up inside itself.
                    affects.add(SHAPE)
                    needs.add(SHAPE)
            self._begin("rename", source, target=target)
            self._change(
                (
                    (source_directory, source_name, node, None),
                    (target_directory, target_name, replaced, node),
                ),
                affects=affects,
                needs=needs,
            )
            if type(node) is Directory:
                node.parent = target_directory
                self._names.forget_paths()

    def link(self, source: str, target: str) -> None:
        """Give a file one more name; un-synced until `sync_directory` of the target's folder."""
        with self._lock:
            directory, name = self._names.locate(source)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
            if type(node) is not Inode:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)
            directory, name = self._names.locate(target)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
            self._begin("link", source, target=target)
            self._change(((directory, name, None, node),), needs={above.identifier for above in upwards(directory)})

    def unlink(self, path: str) -> None:
        """Remove a file's name; it may come back after a crash until its folder is synced."""
        with self._lock:
            directory, name = self._names.locate(path)
            node = directory.entries.get(name) if name else directory
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not Inode:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._begin("unlink", path)
            self._change(((directory, name, node, None),))

    def make_directory(self, path: str) -> None:
        """Create a folder; it is durable after `sync_directory` of its parent."""
        with self._lock:
            directory, name = self._names.locate(path)
            if not name or name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._begin("mkdir", path)
            self._names.last_identifier += 1
            made = Directory(self._names.last_identifier, directory)
            self._change(((directory, name, None, made),), affects={made.identifier})

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        with self._lock:
            directory, name = self._names.locate(path)
            if not name:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            node = directory.entries.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if type(node) is not Directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if node.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._begin("rmdir", path)
            self._change(((directory, name, node, None),), needs={-node.identifier})
            self._names.forget_paths()

    def list_directory(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        with self._lock:
            return sorted(self._names.get_directory(path).entries)

    def exists(self, path: str) -> bool:
        """Whether the name exists now, synced or not."""
        with self._lock:
            try:
                directory, name = self._names.locate(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return not name or name in directory.entries

    def sync_directory(self, path: str) -> None:
        """Make the changes that touch this folder durable, and those in other folders that they need."""
        with self._lock:
            directory = self._names.get_directory(path)
            self._begin("sync_directory", path)
            self._names.settle(-directory.identifier, self._cache.dirty)

    def free_bytes(self, path: str) -> int:
        """What is left of `capacity_bytes`; a tebibyte if that is unlimited."""
        with self._lock:
            self._names.locate(path)
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

    def lock_holder(self, path: str) -> dict[str, Any] | None:
        """Who holds the lock; None if nobody does."""
        with self._lock:
            if not self.exists(path):
                return None
            inode = self.open(path)._inode
            held = None if inode is None else self._locks.get(inode)
            return None if held is None else dict(held)

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
                buffer = self._cache.share(inode, length)
                file.truncate(length)
            else:
                buffer = self._cache.share(inode, length)
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
            style = STYLES[int(rng.random() * len(STYLES))] if keep == "random" else keep
            cut = PowerCut(style, rng, self._names.unsynced, self._cache.dirty)
            before: dict[Directory, dict[str, Node | None]] = {}
            if self._names.unsynced:
                for operation in reversed(cut.lost_names()):
                    for directory, name, old, _ in operation.changes:
                        before.setdefault(directory, {})[name] = old
            result = SimulatedFileSystem(capacity_bytes=self.capacity_bytes)
            result._boot = self._boot + 1
            result._names.last_identifier = self._names.last_identifier
            result.origin = f"crash: {style} at {cut.point}" if cut.point else f"crash: {style}"
            waiting = [(self._names.root, result._names.root)]
            inodes: dict[Inode, Inode] = {}
            while waiting:
                directory, copy = waiting.pop()
                entries: dict[str, Node | None] = dict(directory.entries)
                undone = before.get(directory)
                if undone is not None:
                    entries.update(undone)
                for name, node in entries.items():
                    if type(node) is Inode:
                        survivor = inodes.get(node)
                        if survivor is None:
                            # The quick way out is for the many files that are as they were at their last sync.
                            content = node.content
                            if type(content) is not bytes or node.pending or node.stale:
                                content = cut.content(node)
                            survivor = inodes[node] = Inode(content, node.reserved)
                        copy.entries[name] = survivor
                    elif type(node) is Directory:
                        made = Directory(node.identifier, copy)
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
            result._names.last_identifier = self._names.last_identifier
            result._cache.sequence = self._cache.sequence
            result.origin = self.origin
            # Nodes are remembered because some have a name and a place in an un-synced change, and some only the latter.
            inodes: dict[Inode, Inode] = {}
            root = self._names.root
            directories = {root: result._names.root}
            waiting = [root]

            def copy_of_directory(directory: Directory) -> Directory:
                copy = directories.get(directory)
                if copy is None:
                    parent = directory.parent
                    copy = Directory(directory.identifier, parent and copy_of_directory(parent))
                    directories[directory] = copy
                    waiting.append(directory)
                return copy

            def copy_of(node: Node) -> Node:
                if type(node) is Directory:
                    return copy_of_directory(node)
                copy = inodes.get(node)
                if copy is None:
                    inodes[node] = copy = _copy_inode(node)
                    if copy.pending:
                        result._cache.dirty[copy] = None
                return copy

            for operation in self._names.unsynced:
                changes = tuple(
                    (copy_of_directory(directory), name, old and copy_of(old), new and copy_of(new))
                    for directory, name, old, new in operation.changes
                )
                result._names.unsynced.append(operation._replace(changes=changes))
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
            self._faults.append(Fault(kind, at, error, count, path_contains, short))

    def clear_faults(self) -> None:
        """Forget all faults; what they did stays done."""
        with self._lock:
            self._faults.clear()

    # For tests to look and meddle

    def files(self) -> dict[str, bytes]:
        """The current content of every file, synced or not, by absolute path in sorted order."""
        with self._lock:
            return {path: node.freeze() for path, node in self._names.walk() if type(node) is Inode}

    def tree(self) -> list[str]:
        """Every absolute path but the root's, sorted within each folder; folders end with a slash."""
        with self._lock:
            return [path if type(node) is Inode else path + "/" for path, node in self._names.walk()]

    def replace(self, path: str, content: bytes) -> None:
        """Put *content* into a file behind the engine's back, durable at once; the file is created if missing."""
        with self._lock:
            directory, name = self._names.locate(path)
            node = directory.entries.get(name) if name else directory
            if type(node) is Directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if node is None:
                node = Inode(b"", 0)
                self._change(((directory, name, None, node),), needs=[above.identifier for above in upwards(directory)])
                self._names.settle((directory.identifier, name), self._cache.dirty)
            self._cache.replace(node, content, path)

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

    def _change(self, changes: tuple[Change, ...], *, affects: Iterable[Key] = (), needs: Iterable[Key] = ()) -> None:
        self._names.change(self._cache.next_sequence(), changes, affects=affects, needs=needs)

    def _used_bytes(self) -> int:
        return sum(max(len(inode.content), inode.reserved) for inode in self._names.inodes())

    def _room(self, inode: Inode, position: int, length: int, path: str) -> int:
        """How many of *length* bytes fit at *position*; `ENOSPC` if none does."""
        held = max(len(inode.content), inode.reserved)
        if position + length <= held or self.capacity_bytes is None:
            return length
        room = held + max(0, self.capacity_bytes - self._used_bytes()) - position
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return min(room, length)

    def _demand(self, inode: Inode, end: int, path: str) -> None:
        """Raise `ENOSPC` unless the file can grow up to *end*."""
        growth = end - max(len(inode.content), inode.reserved)
        if growth > 0 and self.capacity_bytes is not None and growth > self.capacity_bytes - self._used_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _copy_inode(inode: Inode) -> Inode:
    copy = Inode(inode.freeze(), inode.reserved)
    if inode.pending or inode.buffer is not None:
        copy.pending = list(inode.unsynced())
    if inode.stale:
        copy.stale = dict(inode.stale)
    return copy


if TYPE_CHECKING:
    _conforms: FileSystem = SimulatedFileSystem()
