"""What a file system was asked to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Operation:
    """One mutating call. *index* counts from 1; *target* is the new name of a rename or a link."""

    index: int
    kind: OperationKind
    path: str
    position: int = 0
    length: int = 0
    target: str = ""
