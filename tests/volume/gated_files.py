"""A real file system whose syncs can be held back, counted and failed, to see what happens while a commit waits for the disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.files import RealFileSystem

if TYPE_CHECKING:
    from penstock.files import RealFile


class GatedFile:
    """A file that asks its file system before it syncs."""

    def __init__(self, file: RealFile, files: GatedFileSystem) -> None:
        self._file = file
        self._files = files

    def sync_data(self) -> None:
        """Wait at the gate, then sync."""
        if self._file.path.endswith((".wal", ".new")):
            self._files.at_gate.set()
            self._files.gate.wait(120)
            self._files.journal_syncs += 1
        self._file.sync_data()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class GatedFileSystem(RealFileSystem):
    """`gate` is open at first; clear it to hold the journal's syncs back."""

    __slots__ = ("at_gate", "gate", "journal_syncs")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.journal_syncs = 0

    def open(self, path: str, *, write: bool = False) -> Any:
        """Open, behind the gate."""
        return GatedFile(super().open(path, write=write), self)

    def create(self, path: str) -> Any:
        """Create, behind the gate."""
        return GatedFile(super().create(path), self)
