"""`verify` and `repair` of a store as it is opened: with its groups and its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.groups.registry import Groups
from penstock.topics.producers import Producers
from penstock.volume import repair as repairing
from penstock.volume import verification

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from penstock.files import FileSystem
    from penstock.volume.layer import Layer
    from penstock.volume.log_repair import Lost
    from penstock.volume.repair import Repair
    from penstock.volume.verification import Verification

    Path = str | os.PathLike[str]


def _layers() -> Sequence[Layer]:
    clock = SystemClock()
    return Producers(clock), Groups(clock)


def verify(path: Path, *, files: FileSystem | None = None, progress: Callable[[str], None] = lambda _: None) -> Verification:
    """
    Look whether the store at *path* opens and every committed message can be read; it changes nothing.

    *progress* is called with each segment's path before it is read. Beside a live owner what is not committed yet is left out.

    Raises:
        StoreNotFound: there is none.
        NoAccess: this user may not read it.
    """
    return verification.verify(path, files=files, progress=progress, layers=_layers)


def plan(path: Path, *, files: FileSystem | None = None) -> list[Lost]:
    """What `repair` would do, without doing it; nothing at all if the store is sound. Raises what `repair` raises."""
    return repairing.plan(path, files=files, layers=_layers)


def repair(path: Path, *, files: FileSystem | None = None) -> Repair:
    """
    Set aside what is damaged in the store at *path*, so that it opens and all that is left can be read. A sound one is not changed.

    Raises:
        StoreLocked: somebody owns it.
        StoreNotFound: there is none.
        NoAccess: this user may not change it.
        UnsupportedFormat: a newer version wrote it.
    """
    return repairing.repair(path, files=files, layers=_layers)
