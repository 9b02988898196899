"""
The names of a file system: folders, and the changes of entries that the disk may lack.

Folders hold their current entries; one list holds the un-synced changes, in order, each with the entries it replaced. Which of
them can survive without which others is said by keys: a change *affects* some and *needs* some.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple, final

from penstock.testing.simulated_files.inode import Inode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@final
class Directory:
    """A folder. The identifier is the same in every copy of the file system."""

    __slots__ = ("entries", "identifier", "parent")

    def __init__(self, identifier: int, parent: Directory | None) -> None:
        self.identifier = identifier
        self.parent = parent
        self.entries: dict[str, Node] = {}


Node = Inode | Directory
Change = tuple[Directory, str, Node | None, Node | None]

# What a change of names is about: an entry (folder, name); the existence of a folder (its identifier); anything inside a
# folder (minus its identifier); or the shape of the tree. Root has the identifier 1.
Key = tuple[int, str] | int
SHAPE = 0


class Renaming(NamedTuple):
    """An un-synced change of entries: (folder, name, node before, node after) for each entry, all or none of them."""

    sequence: int
    changes: tuple[Change, ...]
    affects: frozenset[Key]
    needs: frozenset[Key]


@final
class Names:
    """
    The tree of one file system. All calls are made under the file system's lock.

    Attributes:
        unsynced: the changes that the disk may lack, in order.
        last_identifier: that of the folder made last.
    """

    __slots__ = ("_known", "last_identifier", "root", "unsynced")

    def __init__(self) -> None:
        self.root = Directory(1, None)
        self.last_identifier = 1
        self.unsynced: list[Renaming] = []
        self._known: dict[str, Directory] = {"": self.root}

    def locate(self, path: str) -> tuple[Directory, str]:
        """The folder and the name in it that *path* stands for; the name of the root is empty."""
        head, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            parts = _parts(path)
            if not parts:
                return self.root, ""
            name = parts.pop()
            head = "/".join(parts)
        directory = self._known.get(head)
        if directory is None:
            directory = self.root
            for part in _parts(head):
                node = directory.entries.get(part)
                if node is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                if type(node) is not Directory:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = node
            self._known[head] = directory
        return directory, name

    def get_directory(self, path: str) -> Directory:
        """The folder itself."""
        directory, name = self.locate(path)
        node = directory.entries.get(name) if name else directory
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if type(node) is not Directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def change(
        self, sequence: int, changes: tuple[Change, ...], *, affects: Iterable[Key] = (), needs: Iterable[Key] = ()
    ) -> None:
        """Change entries, un-synced."""
        entries: list[Key] = []
        inside: list[Key] = []
        for directory, name, _, new in changes:
            entries.append((directory.identifier, name))
            inside.append(-directory.identifier)
            if new is None:
                del directory.entries[name]
            else:
                directory.entries[name] = new
        self.unsynced.append(
            Renaming(sequence, changes, frozenset((*entries, *inside, *affects)), frozenset((*entries, *needs)))
        )

    def forget_paths(self) -> None:
        """A folder was moved or removed: what paths lead to must be looked up again."""
        self._known = {"": self.root}

    def settle(self, key: Key, dirty: dict[Inode, None]) -> None:
        """Make the changes durable that affect *key*, with all they need. Files that are gone for good leave *dirty*."""
        sequences = with_needs(self.unsynced, lambda operation: key in operation.affects)
        remaining: list[Renaming] = []
        for operation in self.unsynced:
            if operation.sequence not in sequences:
                remaining.append(operation)
                continue
            for _, _, old, _ in operation.changes:
                # A file that lost its last name for good cannot come back, and needs no care at a crash.
                if type(old) is Inode and old in dirty and not self.count_of(old):
                    dirty.pop(old)
        self.unsynced = remaining

    def count_of(self, inode: Inode) -> int:
        """How many names a file has."""
        return sum(node is inode for _, node in self.walk())

    def inodes(self) -> set[Inode]:
        """Every file that has a name."""
        found: set[Inode] = set()
        waiting = [self.root]
        while waiting:
            for node in waiting.pop().entries.values():
                if type(node) is Inode:
                    found.add(node)
                elif type(node) is Directory:
                    waiting.append(node)
        return found

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every absolute path but the root's with what it names, sorted within each folder."""
        return _walk(self.root, "")


def with_needs(names: Sequence[Renaming], wanted: Callable[[Renaming], bool]) -> set[int]:
    """The sequence numbers of the *wanted* changes and of all earlier ones that they need."""
    found: set[int] = set()
    needs: set[Key] = set()
    for operation in reversed(names):
        if wanted(operation) or not needs.isdisjoint(operation.affects):
            found.add(operation.sequence)
            needs |= operation.needs
    return found


def upwards(directory: Directory | None) -> Iterator[Directory]:
    """The folder and all above it."""
    while directory is not None:
        yield directory
        directory = directory.parent


def _walk(directory: Directory, prefix: str) -> Iterator[tuple[str, Node]]:
    for name, node in sorted(directory.entries.items()):
        path = f"{prefix}/{name}"
        yield path, node
        if type(node) is Directory:
            yield from _walk(node, path)


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts
