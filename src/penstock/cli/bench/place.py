"""
Where a measurement writes, and what is left of it.

In a folder: a store in a new folder below it, which is removed afterwards, whatever happens. On a server: one topic, since a server's
clients cannot make stores; its messages are removed afterwards, except for the segment that is being written, and its name stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from penstock.cli.target import local_path, open_target
from penstock.client.address import is_url, parse_address
from penstock.errors import PenstockError, UsageError
from penstock.values import MIB
from penstock.volume.identity import STORE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.store.store import Store

TOPIC = "penstock-bench"
SEGMENT_BYTES = 4 * MIB
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


class Place:
    """An open store to measure, and the folder on the disk below it, None where nobody knows that disk."""

    def __init__(self, store: Store, folder: str | None) -> None:
        self.store = store
        self.folder = folder
        self._groups: list[str] = []

    def fresh(self) -> str:
        """The name of a new group that begins at the end of the topic; it is gone when the measurement is over."""
        name = f"bench-{os.urandom(8).hex()}"
        with self.store.subscribe(TOPIC, name, start="latest"):
            self._groups.append(name)
        return name

    def clean(self) -> None:
        """Remove what was written into a topic that stays."""
        for name in self._groups:
            self.store.delete_group(TOPIC, name)
        self.store.retain(TOPIC)


def said(target: str) -> str:
    """What will be written where, in one sentence."""
    if is_url(target):
        return (
            f"writes into the topic {TOPIC} on {parse_address(target).url}, and removes its messages afterwards; the topic stays, "
            f"with up to {SEGMENT_BYTES // MIB} MiB in its last segment"
        )
    return f"writes a store into a new folder in {os.path.abspath(target)}, and removes it afterwards"


@contextlib.contextmanager
def prepared(target: str, disk: str | None) -> Iterator[Place]:
    """A place to measure at; what was written is removed when the block ends. Raises `UsageError`."""
    if is_url(target):
        with open_target(target, create=True) as store, _folder_in(disk) as folder:
            _create(store)
            place = Place(store, folder)
            try:
                yield place
            finally:
                # Also after an error, which matters more than what is left.
                with contextlib.suppress(PenstockError):
                    place.clean()
        return
    if disk is not None:
        raise UsageError("--disk is for a server; a folder is measured on its own disk")
    parent = local_path(target) or "."
    if os.path.exists(os.path.join(parent, STORE_FILE)):
        raise UsageError(f"{target} is a store; name another folder on its disk, so that nothing is mixed into its data")
    with _folder_in(parent) as folder:
        assert folder is not None
        with open_target(os.path.join(folder, "store"), create=True) as store:
            _create(store)
            yield Place(store, folder)


@contextlib.contextmanager
def _folder_in(parent: str | None) -> Iterator[str | None]:
    if parent is None:
        yield None
        return
    folder = tempfile.mkdtemp(prefix="penstock-bench-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create(store: Store) -> None:
    # Of what was written all but the last segment goes at once, when nobody wants it any more.
    store.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, retain="until_acked", retention_bytes=1, sync="always")


def file_system_of(path: str) -> str:
    """The type of the file system that *path* lies on."""
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for row in mounts:
            _, point, found, *_ = row.split()
            mounted = point.replace("\\040", " ")
            if (real == mounted or real.startswith(mounted.rstrip("/") + "/")) and len(mounted) >= len(best):
                best, kind = mounted, found
    return kind


def is_in_memory(kind: str) -> bool:
    """Whether a sync costs nothing on such a file system, so that a figure about durability says nothing about a disk."""
    return kind in _IN_MEMORY
