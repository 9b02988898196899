"""
`verify`: walk everything that a store holds and report what is wrong. It changes nothing and may run beside an owner.

Damage to the truth (identity, topics, segments, checkpoints, journal) is told apart from a bad cache (an index), which the
store mends by itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, Corrupt, PenstockError
from penstock.files import RealFileSystem
from penstock.format.checkpoint import Checkpoint
from penstock.format.frame import ENTRY_LOG_START, decode_log_start
from penstock.format.index import IndexSnapshot
from penstock.journal.checkpoints import NAMES
from penstock.journal.journal import Journal
from penstock.journal.small_file import read_small_file
from penstock.log.identity import LogIdentity
from penstock.log.positions import Position, PositionsReader
from penstock.log.salvage import FilePieces, Walk
from penstock.log.segment import index_path, parse_segment_name, segment_name
from penstock.volume.identity import JOURNAL, POSITIONS_NAME, TOPICS, read_identity
from penstock.volume.topic_files import TopicRecord, read_listed_topic, topic_folders

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import FileSystem

_END = (1 << 63) - 1


class Finding(NamedTuple):
    """One thing that is wrong."""

    path: str
    start: int
    end: int
    offset: int | None
    is_damage: bool
    reason: str

    def __str__(self) -> str:
        kind = "damage" if self.is_damage else "cache"
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
        """Whether nothing is damaged; a bad cache does not count."""
        return not any(finding.is_damage for finding in self.findings)


class Verifier:
    """Walks one store. Used once."""

    def __init__(self, files: FileSystem, path: str, progress: Callable[[str], None]) -> None:
        self._files = files
        self._path = path
        self._progress = progress
        self._findings: list[Finding] = []
        self._log_starts: dict[int, int] = {}
        self._topics = self._segments = self._batches = self._messages = self._bytes = 0

    def run(self) -> Verification:
        """Walk everything. Raises `StoreNotFound`; all else is reported."""
        try:
            store_id = read_identity(self._files, self._path)
        except Corrupt as error:
            self._damage(os.path.join(self._path, "store.json"), str(error))
            return self._result()
        checkpoint = self._checkpoints(store_id)
        self._journal(store_id, checkpoint)
        ends = self._ends(store_id)
        directory = os.path.join(self._path, TOPICS)
        for name in topic_folders(self._files, directory):
            try:
                record = read_listed_topic(self._files, directory, name)
            except PenstockError as error:
                self._damage(os.path.join(directory, name, "topic.json"), str(error))
                continue
            if record is None:
                continue
            self._topics += 1
            for partition in range(record.partitions):
                self._log(store_id, record, partition, checkpoint, ends)
        return self._result()

    def _result(self) -> Verification:
        return Verification(self._findings, self._topics, self._segments, self._batches, self._messages, self._bytes)

    def _damage(self, path: str, reason: str, start: int = 0, end: int = 0, offset: int | None = None) -> None:
        self._findings.append(Finding(path, start, end, offset, is_damage=True, reason=reason))

    def _checkpoints(self, store_id: bytes) -> Checkpoint | None:
        found: list[Checkpoint] = []
        for name in NAMES:
            path = os.path.join(self._path, name)
            try:
                checkpoint = Checkpoint.decode(read_small_file(self._files, path))
                if checkpoint.store_id != store_id:
                    raise BadBytes("checkpoint", "belongs to another store")
                found.append(checkpoint)
            except FileNotFoundError:
                continue
            except (Corrupt, OSError) as error:
                self._damage(path, str(error))
        if not found:
            self._damage(os.path.join(self._path, NAMES[0]), "no checkpoint can be read")
            return None
        return max(found, key=lambda checkpoint: checkpoint.generation)

    def _journal(self, store_id: bytes, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None or checkpoint.clean:
            return
        for attempt in (1, 2):
            journal = Journal(self._files, os.path.join(self._path, JOURNAL), store_id, 0, read_only=True)
            try:
                for frame in journal.replay(checkpoint.journal_sequence, checkpoint.frame_number):
                    for entry in frame.entries:
                        if entry.kind == ENTRY_LOG_START:
                            start = max(self._log_starts.get(entry.owner, 0), decode_log_start(entry))
                            self._log_starts[entry.owner] = start
            except (Corrupt, FileNotFoundError) as error:
                if attempt == 1:
                    # A live owner may have freed files, or begun a new one, in the middle of this look.
                    checkpoint = self._checkpoints(store_id) or checkpoint
                    continue
                self._damage(getattr(error, "path", self._path), str(error), getattr(error, "position", 0))
            return

    def _ends(self, store_id: bytes) -> dict[tuple[bytes, int], Position]:
        """How far each log is committed, as far as that is known without recovery."""
        reader = PositionsReader(self._files, os.path.join(self._path, POSITIONS_NAME), store_id)
        try:
            positions = reader.snapshot()
        except PenstockError:
            positions = None
        finally:
            reader.close()
        return positions or {}

    def _log(
        self,
        store_id: bytes,
        record: TopicRecord,
        partition: int,
        checkpoint: Checkpoint | None,
        ends: dict[tuple[bytes, int], Position],
    ) -> None:
        identity = LogIdentity(store_id, record.topic_id, record.name, partition, record.first_log_id + partition)
        directory = os.path.join(self._path, TOPICS, record.name, str(partition))
        rows = {} if checkpoint is None else {row.log_id: row for row in checkpoint.rows}
        row = rows.get(identity.log_id)
        position = ends.get((record.topic_id, partition), Position(0, 0, 0))
        known = max(position.end, 0 if row is None else row.end)
        log_start = max(position.log_start, self._log_starts.get(identity.log_id, 0), 0 if row is None else row.log_start)
        names = self._files.list_directory(directory)
        firsts = sorted(first for name in names if (first := parse_segment_name(name)) is not None)
        while len(firsts) > 1 and firsts[1] <= log_start:
            firsts.pop(0)
        expected = min(log_start, firsts[0]) if firsts else log_start
        for at, first in enumerate(firsts):
            path = os.path.join(directory, segment_name(first))
            self._progress(path)
            if first > expected and expected < known:
                missing = os.path.join(directory, segment_name(expected))
                self._damage(missing, f"offsets [{expected}, {first}) are missing", offset=expected)
            last = at + 1 == len(firsts)
            expected = self._segment(
                path, first, identity, known if last else firsts[at + 1], sealed=not last and firsts[at + 1] <= known
            )
            if not last and expected < firsts[at + 1] and expected >= known:
                break
        if expected < known:
            self._damage(
                os.path.join(directory, segment_name(expected)), f"offsets [{expected}, {known}) are missing", offset=expected
            )

    def _segment(self, path: str, first: int, identity: LogIdentity, stop: int, *, sealed: bool) -> int:
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return stop  # Retention removed it in this moment.
        try:
            file.drop_cache()
            pieces = FilePieces(file)
            found = Walk(pieces, first, identity)
            found.run(stop, sealed=sealed)
        finally:
            file.close()
        self._segments += 1
        self._batches += found.batches
        self._messages += found.messages
        self._bytes += pieces.size
        for bad in found.bad:
            if bad.offset is None or bad.offset < stop:
                self._damage(path, bad.reason, bad.start, bad.end, bad.offset)
        index = index_path(path)
        if self._files.exists(index):
            try:
                IndexSnapshot.decode(read_small_file(self._files, index))
            except (BadBytes, OSError) as error:
                self._findings.append(Finding(index, 0, 0, None, is_damage=False, reason=str(error)))
        return found.end_offset


def read_segment(files: FileSystem, path: str) -> bytes:
    """The whole of a segment, as the disk has it."""
    file = files.open(path)
    try:
        file.drop_cache()
        return file.pread(file.size(), 0)
    finally:
        file.close()


def verify(
    path: str | os.PathLike[str], *, files: FileSystem | None = None, progress: Callable[[str], None] = lambda _: None
) -> Verification:
    """
    Check everything in the store at *path*; *progress* is called with each segment's path before it is read.

    Raises `StoreNotFound`. Beside a live owner what is not committed yet is left out.
    """
    return Verifier(files or RealFileSystem(), os.path.abspath(os.fspath(path)), progress).run()
