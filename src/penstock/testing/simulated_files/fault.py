"""Operations that are to fail, or to do less than asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.simulated_files.operation import Operation


class Fault:
    """One call of `SimulatedFileSystem.fail`."""

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
