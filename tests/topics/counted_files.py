"""The real file system, which counts what is asked of it: each operation is one system call, or a fixed number of them."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.files import RealFile, RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_FILES = ("pread", "pwrite", "pwritev", "size", "truncate", "reserve", "sync_data", "drop_cache", "map")
_OF_FOLDERS = (
    "rename", "link", "unlink", "make_directory", "remove_directory", "list_directory", "exists", "sync_directory", "free_bytes",
)  # fmt: skip


class CountedFile(RealFile):
    """A file of which every operation is counted."""

    __slots__ = ("counts",)

    counts: Counter[str]


class CountedFiles(RealFileSystem):
    """`counts` has how often each operation was done, by its name and the kind of file."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def open(self, path: str, *, write: bool = False) -> RealFile:
        self.counts[f"open {_kind(path)}"] += 1
        return self._counted(super().open(path, write=write))

    def create(self, path: str) -> RealFile:
        self.counts[f"create {_kind(path)}"] += 1
        return self._counted(super().create(path))

    def _counted(self, file: RealFile) -> RealFile:
        counted: Any = CountedFile(file.path, file._descriptor)
        file._descriptor = -1
        counted.counts = self.counts
        return counted  # type: ignore[no-any-return]


def _kind(path: str) -> str:
    """Where it lies, "journal", or the end of its name: "log", "idx", "tmp"; a folder is one."""
    if os.path.basename(os.path.dirname(path)) == "journal":
        return "journal"
    return os.path.splitext(path)[1][1:] or "folder"


def _counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        path = self.path if isinstance(self, RealFile) else arguments[0]
        self.counts[f"{name} {_kind(path)}"] += 1
        return original(self, *arguments)

    return method


for _name in _OF_FILES:
    setattr(CountedFile, _name, _counting(_name, getattr(RealFile, _name)))
for _name in _OF_FOLDERS:
    setattr(CountedFiles, _name, _counting(_name, getattr(RealFileSystem, _name)))
