"""
`verify`: whether a store opens, and whether every committed message can be read. It changes nothing and may run beside an owner.

Theory of operation
-------------------
There is one rule: a store is sound exactly when opening it succeeds and all that is committed can be read. So there are no rules here
of what is torn and what is damaged. The store is opened, by the recovery that every opening goes through, on an overlay of its files
(`overlay_files.py`) that keeps what recovery writes; then every log is read from its start to its end. What opening would raise is a
finding in the words of that error; what cannot be read is one with the range of bytes, which `salvage` finds out.

Beside a live owner there is nothing to open: recovery is for stores that nobody owns. Then every log is read as any reader beside the owner
reads it (`volume/reader.py`): up to its committed end, and from where it begins when the reader comes there, since retention goes on.
If an owner comes or goes meanwhile, the look begins anew.

A bad cache (an index), or one bad checkpoint of two, is told of too. It is no damage: the store mends it by itself.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import (
    BadBytes,
    Corrupt,
    DamagedFile,
    MissingData,
    OffsetOutOfRange,
    StoreLocked,
    TopicNotFound,
    Unavailable,
)
from penstock.files import NotRegular, RealFileSystem
from penstock.format.checksum import crc32c
from penstock.format.index import IndexSnapshot
from penstock.journal.checkpoints import CHECKPOINT_BYTES_MAX, NAMES, Checkpoints
from penstock.journal.small_file import read_small_file
from penstock.log.salvage import FilePieces, Walk
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, READ_BYTES_DEFAULT, index_path, parse_segment_name, segment_name
from penstock.overlay_files import OverlayFileSystem
from penstock.settings import StoreSettings
from penstock.volume.access import check_folder, naming_refusals
from penstock.volume.identity import LOCK_NAME, read_identity
from penstock.volume.reader import VolumeReader
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.files import File, FileSystem
    from penstock.format.batch import Batch
    from penstock.log.log_reader import LogReader
    from penstock.log.partition_log import PartitionLog
    from penstock.volume.layer import Layer

    Layers = Callable[[], Sequence[Layer]]

_ATTEMPTS = 5
_SETTINGS = StoreSettings(free_bytes_floor=0, reserve_bytes=0)


class Finding(NamedTuple):
    """One thing that is wrong."""

    path: str
    start: int
    end: int
    offset: int | None
    is_damage: bool
    reason: str

    def __str__(self) -> str:
        kind = "damage" if self.is_damage else "harmless"
        if self.start == self.end:
            return f"{kind}: {self.reason}" if self.path in self.reason else f"{kind}: {self.path}: {self.reason}"
        where = f" from offset {self.offset}" if self.offset is not None else ""
        return f"{kind}: {self.path} bytes [{self.start}, {self.end}){where}: {self.reason}"


class Verification(NamedTuple):
    """What `verify` saw."""

    findings: list[Finding]
    topics: int
    segments: int
    batches: int
    messages: int
    bytes: int

    @property
    def is_sound(self) -> bool:
        """Whether the store opens and all that is committed can be read; what it mends by itself does not count."""
        return not any(finding.is_damage for finding in self.findings)


class Verifier:
    """Looks at one store. Used once."""

    def __init__(
        self, files: FileSystem, path: str, progress: Callable[[str], None] = lambda _: None, layers: Layers = tuple,
        *, is_owner: bool = False,
    ) -> None:  # fmt: skip
        """*layers* makes the layers above that the store is opened with. *is_owner*: the caller has its lock."""
        self._is_owner = is_owner
        self._files = files
        self._path = path
        self._progress = progress
        self._layers = layers
        self._begin()

    def _begin(self) -> None:
        self.errors: list[Corrupt] = []
        """What opening and reading raised, of damage."""
        self.is_open = False
        """Whether opening succeeded."""
        self.cut_ends: dict[tuple[str, int], int] = {}
        """Where the logs end of which opening would cut something off, by topic and partition."""
        self._findings: list[Finding] = []
        self._topics = self._segments = self._batches = self._messages = self._bytes = 0

    def run(self) -> Verification:
        """Look at everything. Raises `StoreNotFound`, `NoAccess`; all else is reported."""
        with naming_refusals():
            check_folder(self._files, self._path)
            for _ in range(_ATTEMPTS):
                self._begin()
                before = self._owner()
                if before is None:
                    self._open_and_read()
                else:
                    self._read_beside_owner()
                after = self._owner()
                if before == after or (before is not None and after is not None):
                    break
        return Verification(self._findings, self._topics, self._segments, self._batches, self._messages, self._bytes)

    def examine(self) -> list[Corrupt]:
        """Open and read once, and return what was raised. For `repair`, which owns the store."""
        self._open_and_read()
        return self.errors

    def _owner(self) -> object | None:
        """Whoever owns the store now; None if nobody does and nobody did since the last time that this was asked."""
        try:
            holder = self._files.lock_holder(os.path.join(self._path, LOCK_NAME))
        except NotRegular:
            return None
        if holder is not None:
            return holder
        marks = []
        for name in NAMES:
            with contextlib.suppress(OSError, BadBytes):
                data = read_small_file(self._files, os.path.join(self._path, name), limit_bytes=CHECKPOINT_BYTES_MAX)
                marks.append(crc32c(data))
        if marks == getattr(self, "_marks", marks):
            self._marks = marks
            return None
        self._marks = marks
        return marks

    def _damage(self, error: Corrupt) -> None:
        self.errors.append(error)
        path: str = getattr(error, "path", self._path)
        position: int = getattr(error, "position", 0)
        offset: int | None = getattr(error, "offset", None)
        self._findings.append(Finding(path, position, position, offset, is_damage=True, reason=str(error)))

    # -- nobody owns it ---------------------------------------------------------------------------------------------

    def _open_and_read(self) -> None:
        overlay = OverlayFileSystem(
            self._files, discarded=(INDEX_SUFFIX + ".tmp",), unmapped=(LOG_SUFFIX,), is_owner=self._is_owner
        )
        problems: list[Corrupt] = []
        try:
            volume = Volume.open(
                self._path, settings=_SETTINGS, files=overlay, create=False, background=False, layers=self._layers(),
                problems=problems,
            )  # fmt: skip
        except StoreLocked:
            return  # an owner came in this moment; the caller sees that
        except Corrupt as error:
            for problem in problems or [error]:
                self._damage(problem)
            return
        self.is_open = True
        self.cut_ends = {
            (log.identity.topic, log.identity.partition): log.committed_end
            for log in volume.logs
            if (report := volume.reports[log.log_id]).cut_bytes or report.removed_segments
        }
        try:
            self._check_checkpoints(volume.store_id)
            self._topics = len(volume.topics)
            for log in volume.logs:
                self._read_log(overlay, log)
                log.let_go()
        finally:
            volume.abandon()

    def _check_checkpoints(self, store_id: bytes) -> None:
        """Opening needs one of the two, and does not say so."""
        checkpoints = Checkpoints(self._files, self._path, store_id)
        checkpoints.load()
        for path, problem in checkpoints.problems:
            self._findings.append(Finding(path, 0, 0, None, is_damage=False, reason=f"{problem}; the other one is enough"))

    def _read_log(self, files: FileSystem, log: PartitionLog) -> None:
        firsts = log.segment_firsts
        for first in firsts:
            path = os.path.join(log.directory, segment_name(first))
            with contextlib.suppress(FileNotFoundError, NotRegular):
                file = files.open(path)
                file.drop_cache()
                self._bytes += file.size()
                file.close()
                self._segments += 1
            self._check_index(path)
        at, announced = log.log_start, -1
        while at < log.committed_end:
            place = bisect_right(firsts, at) - 1
            if place != announced:
                announced = place
                self._progress(os.path.join(log.directory, segment_name(firsts[max(place, 0)] if firsts else 0)))
            try:
                batches = log.read(at, READ_BYTES_DEFAULT)
            except Corrupt as error:
                following = next((first for first in firsts if first > at), log.committed_end)
                self._damaged_segment(files, log, error, firsts[place] if place >= 0 else None, at, following)
                at = following
                continue
            if not batches:
                break
            self._count(batches)
            at = batches[-1].end_offset

    def _count(self, batches: Sequence[Batch]) -> None:
        self._batches += len(batches)
        self._messages += sum(map(len, batches))

    def _damaged_segment(
        self, files: FileSystem, log: PartitionLog, error: Corrupt, first: int | None, at: int, end: int
    ) -> None:
        """Say which ranges of a segment cannot be read, and count what can be behind *at*."""
        self.errors.append(error)
        found = len(self._findings)
        path = "" if first is None else os.path.join(log.directory, segment_name(first))
        if first is not None and isinstance(error, DamagedFile) and (file := _find_file(files, path)) is not None:
            try:
                walk = Walk(FilePieces(file), first, log.identity)
                walk.run(
                    end,
                    sealed=end != log.committed_end,
                    keep=lambda batch, _: self._count([batch]) if batch.first_offset >= at else None,
                )
            finally:
                file.close()
            for bad in walk.bad:
                if bad.offset is None or bad.offset < end:
                    self._findings.append(Finding(path, bad.start, bad.end, bad.offset, is_damage=True, reason=bad.reason))
        if len(self._findings) == found:
            self.errors.pop()
            self._damage(error)

    def _check_index(self, path: str) -> None:
        index = index_path(path)
        try:
            if self._files.exists(index):
                IndexSnapshot.decode(read_small_file(self._files, index))
        except FileNotFoundError:
            return
        except (BadBytes, OSError) as error:
            self._findings.append(Finding(index, 0, 0, None, is_damage=False, reason=str(error)))

    # -- beside an owner --------------------------------------------------------------------------------------------

    def _read_beside_owner(self) -> None:
        files = OverlayFileSystem(self._files, unmapped=(LOG_SUFFIX,))
        try:
            read_identity(files, self._path)
            reader = VolumeReader.open(self._path, files=files)
        except Corrupt as error:
            self._damage(error)
            return
        except Unavailable:
            return  # its owner is opening it, or closing it, for long: it is judged as far as it can be
        self.is_open = True
        self._topics = len(reader.topics)
        for record in reader.topics:
            for partition in range(record.partitions):
                with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                    self._read_beside(reader.log(record.name, partition))
        reader.close()

    def _read_beside(self, log: LogReader) -> None:
        directory = log.directory
        names = self._files.list_directory(directory)
        for name in names:
            if parse_segment_name(name) is not None:
                self._segments += 1
                self._progress(os.path.join(directory, name))
        self._bytes += log.stored_bytes
        at, doubted = log.log_start, -1
        while at < log.committed_end:
            at = max(at, log.log_start)
            try:
                batches = log.read(at)
            except OffsetOutOfRange:
                if log.log_start <= at:
                    break
                continue
            except Unavailable:
                break
            except Corrupt as error:
                if doubted != at:
                    # A file may have been replaced in this moment: look once more, with nothing kept.
                    doubted = at
                    log.close()
                    continue
                self._damage(error)
                at = log.next_segment(at)
                continue
            if not batches:
                break
            self._count(batches)
            at = batches[-1].end_offset


def _find_file(files: FileSystem, path: str) -> File | None:
    try:
        return files.open(path)
    except (FileNotFoundError, NotRegular):
        return None


def verify(
    path: str | os.PathLike[str],
    *,
    files: FileSystem | None = None,
    progress: Callable[[str], None] = lambda _: None,
    layers: Layers = tuple,
) -> Verification:
    """
    Look whether the store at *path* opens and all of it can be read; *progress* is called with each segment's path before it is read.

    *layers* makes the layers above that it is opened with: `penstock.store.checking.verify` gives those that every store has.

    Raises `StoreNotFound`, `NoAccess`. Beside a live owner what is not committed yet is left out.
    """
    return Verifier(files or RealFileSystem(), os.path.abspath(os.fspath(path)), progress, layers).run()


__all__ = ["Finding", "MissingData", "Verification", "Verifier", "verify"]
