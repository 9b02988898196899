"""
Stages on disk: what the first phase of a two-phase transaction leaves, and the second takes.

A process that does not own the store may stage as well: what it writes is not touched by the owner before it is finished (or a day
old), and is committed by the owner like any other stage.

A stage belongs to a producer and has an id. It is durable once it is finished, survives restarts, and goes away when it is committed
or aborted, when its producer has committed twice since, or after `EXPIRY_US`. What it holds for a log beyond the first megabyte lies
in parts, files that the log can adopt as segments (log/staged_segment.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple

from penstock.arguments import shown
from penstock.errors import BadBytes, DamagedFile, MissingData, StageNotFound, StorageFull
from penstock.files import is_full, write_fully
from penstock.format.checksum import crc32c
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from penstock.format.stage import (
    PRODUCER_BYTES_MAX,
    STAGE_FOOTER_BYTES,
    Stage,
    StagePart,
    decode_stage,
    decode_stage_header,
    encode_stage_entry,
    encode_stage_footer,
    encode_stage_header,
    encode_stage_part,
)
from penstock.log.staged_segment import StagedSegment

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.files import Buffer, File, FileSystem
    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog

STAGING = "staging"
_SUFFIX = ".stage"
_NEW = ".new"
_PART_SUFFIX = ".part"
_PROBE = ".probe"
_OUTSIDE_NAME = re.compile(r"([0-9a-f]{32})\.([0-9]{1,19})\.outside")
OUTSIDE_EXPIRY_US = 86_400 * 1_000_000
"""A process beside the owner that has not finished its stage by then is taken for dead."""
_NAME = re.compile(r"[0-9a-f]{32}")
_PART_NAME = re.compile(r"([0-9a-f]{32})\.[0-9]+\.part")
_PAGE_BYTES = 4096
EXPIRY_US = 3 * 86_400 * 1_000_000
"""A stage that nobody committed for so long is removed."""


class StageLimits(NamedTuple):
    """
    What becomes a part, and what is adopted.

    A stage holds *inline_bytes_max* for one log itself, and more in parts. Those are copied when they are committed if they have fewer
    bytes, or smaller batches on average, than given here.
    """

    inline_bytes_max: int = 1024 * 1024
    adopt_bytes_min: int = 4 * 1024 * 1024
    adopt_batch_bytes_min: int = 16 * 1024


class _Part:
    """A file that takes the batches of a stage for one log."""

    def __init__(self, files: FileSystem, path: str, number: int, log: PartitionLog) -> None:
        self.number = number
        self.log = log
        self.path = path
        self.file = files.create(path)
        self.headers: list[bytes] = []
        # Room for a segment's header and the log's state; on a page of its own, so that writing them leaves the batches alone.
        self.data_start = -(-(SEGMENT_HEADER_BYTES + log.state.room_bytes) // _PAGE_BYTES) * _PAGE_BYTES
        self.position = self.data_start

    def write(self, data: Buffer) -> None:
        try:
            write_fully(self.file, data, self.position)
        except OSError as error:
            if is_full(error):
                raise StorageFull(self.path, None, None) from None
            raise
        self.position += len(data)

    def finish(self) -> StagePart:
        """Make it durable, but for its name. Everything that a commit will write into it has its blocks already."""
        self.write(bytes(FOOTER_BYTES))
        write_fully(self.file, bytes(self.data_start), 0)
        self.file.sync_data()
        self.file.close()
        identity = self.log.identity
        headers = [memoryview(header) for header in self.headers]
        return StagePart(identity.topic_id, identity.partition, self.number, self.data_start, headers)


class StageWriter:
    """One stage that is being written. One thread at a time; nothing is there before `finish` returns."""

    def __init__(self, stages: Stages, producer: str) -> None:
        self._stages = stages
        self.identity = secrets.token_hex(16)
        self._path = os.path.join(stages.directory, self.identity + stages.unfinished_suffix())
        self._file: File | None = stages.files.create(self._path)
        self._crc = 0
        self._position = 0
        self._entries = 0
        self._bytes: dict[PartitionLog, int] = {}  # what the stage itself holds for each log
        self._parts: dict[PartitionLog, _Part] = {}
        self._made: list[_Part] = []
        self._finished: list[StagePart] = []
        try:
            self._write(encode_stage_header(stages.store_id, producer, stages.clock.now_us()))
        except BaseException:
            self.abandon()
            raise

    def _write(self, data: Buffer) -> None:
        assert self._file is not None
        try:
            write_fully(self._file, data, self._position)
        except OSError as error:
            if is_full(error):
                raise StorageFull(self._path, None, None) from None
            raise
        self._crc = crc32c(data, self._crc)
        self._position += len(data)

    def add(self, log: PartitionLog, batch: EncodedBatch) -> None:
        """Add a batch. Raises `StorageFull`; the stage is of no use then."""
        # The header's checksum is written when a batch is stamped; here nobody knows where it will lie.
        batch.stamp(0, 0, 0, 0, 0, 0)
        part = self._part_for(log, len(batch.data))
        if part is None:
            self._write(encode_stage_entry(log.identity.topic_id, log.identity.partition))
            self._write(batch.data)
            self._entries += 1
        else:
            part.write(batch.data)
            part.headers.append(bytes(batch.data[: batch.header_bytes]))

    def _part_for(self, log: PartitionLog, size: int) -> _Part | None:
        """
        The file that takes the next batch for *log*: None is the stage itself.

        The first batch for a log is always there: an adopted segment must not be the first thing that a commit adds to a log.
        """
        part = self._parts.get(log)
        if part is None:
            held = self._bytes.get(log, 0)
            self._bytes[log] = held + size
            if not held or held + size <= self._stages.limits.inline_bytes_max or not self._stages.can_link():
                return None
        elif part.position + size + FOOTER_BYTES > log.settings.segment_bytes and part.headers:
            self._finished.append(part.finish())
        else:
            return part
        number = len(self._made)
        part = _Part(self._stages.files, self._stages.part_path(self.identity, number), number, log)
        self._made.append(part)
        self._parts[log] = part
        return part

    def finish(self) -> str:
        """Make the stage durable; returns its id."""
        for part in self._parts.values():
            self._finished.append(part.finish())
        self._parts = {}
        for entry in self._finished:
            self._write(encode_stage_part(entry))
        length = self._position + STAGE_FOOTER_BYTES
        self._write(encode_stage_footer(self._crc, self._entries + len(self._finished), length))
        assert self._file is not None
        self._file.sync_data()
        self._file.close()
        self._file = None
        self._stages.files.rename(self._path, self._stages.path_of(self.identity))
        self._stages.files.sync_directory(self._stages.directory)
        return self.identity

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._stages.files.unlink(self._path)
        for part in self._made:
            part.file.close()
            with contextlib.suppress(OSError):
                self._stages.files.unlink(part.path)
        self._made = []


class Stages:
    """The stages of one store. Safe to call from any thread."""

    def __init__(self, files: FileSystem, store_path: str, store_id: bytes, clock: Clock, *, outside: bool = False) -> None:
        """*outside*: this process does not own the store; it stages, and the owner commits."""
        self.files = files
        self._outside = outside
        self.store_id = store_id
        self.clock = clock
        self.directory = os.path.join(store_path, STAGING)
        self.limits = StageLimits()
        self._can_link: bool | None = None
        self._made = files.exists(self.directory)
        if self._made and not outside:
            # A process that was killed may have made it, and not its name durable.
            files.sync_directory(store_path)
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        names = set(self.files.list_directory(self.directory))
        outside = self._remove_dead(names)
        for name in names:
            found = _PART_NAME.fullmatch(name)
            if name.endswith((_NEW, _PROBE)) or (
                found is not None and found[1] not in outside and found[1] + _SUFFIX not in names
            ):
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(os.path.join(self.directory, name))

    def _remove_dead(self, names: set[str]) -> set[str]:
        """Remove unfinished stages of processes beside the owner that have died; returns the ids of the others."""
        living = set()
        oldest = self.clock.now_us() - OUTSIDE_EXPIRY_US
        for name in names:
            found = _OUTSIDE_NAME.fullmatch(name)
            if found is None:
                continue
            if int(found[2]) >= oldest:
                living.add(found[1])
                continue
            with contextlib.suppress(FileNotFoundError):
                self.files.unlink(os.path.join(self.directory, name))
            self._remove_parts(found[1])
        return living

    def unfinished_suffix(self) -> str:
        """How the name of a stage ends that is being written."""
        return f".{self.clock.now_us()}.outside" if self._outside else _NEW

    @property
    def _is_there(self) -> bool:
        # A process beside the owner may have made the folder meanwhile.
        self._made = self._made or self.files.exists(self.directory)
        return self._made

    def can_link(self) -> bool:
        """Whether files here can have two names; not all file systems have that."""
        if self._can_link is None:
            path = os.path.join(self.directory, secrets.token_hex(16) + self.unfinished_suffix())
            self.files.create(path).close()
            try:
                self.files.link(path, path + _PROBE)
            except OSError:
                self._can_link = False
            else:
                self.files.unlink(path + _PROBE)
                self._can_link = True
            self.files.unlink(path)
        return self._can_link

    def part_path(self, identity: str, number: int) -> str:
        """Where a part of a stage lies."""
        return os.path.join(self.directory, f"{identity}.{number}{_PART_SUFFIX}")

    def path_of(self, identity: str) -> str:
        """Where a stage lies. Raises `StageNotFound` for what cannot be an id."""
        if not isinstance(identity, str) or _NAME.fullmatch(identity) is None:
            raise StageNotFound(shown(identity))
        return os.path.join(self.directory, identity + _SUFFIX)

    def begin(self, producer: str) -> StageWriter:
        """A new stage."""
        assert len(producer.encode()) <= PRODUCER_BYTES_MAX
        if not self._made:
            with contextlib.suppress(FileExistsError):
                self.files.make_directory(self.directory)
            self.files.sync_directory(os.path.dirname(self.directory))
            self._made = True
        return StageWriter(self, producer)

    def load(self, identity: str) -> Stage:
        """A finished stage. Raises `StageNotFound` or `Corrupt`."""
        path = self.path_of(identity)
        try:
            file = self.files.open(path)
        except FileNotFoundError:
            raise StageNotFound(identity) from None
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        try:
            stage = decode_stage(data)
        except BadBytes as error:
            raise DamagedFile(path, 0, None, str(error)) from None
        if stage.store_id != self.store_id:
            raise DamagedFile(path, 0, None, "this stage belongs to another store")
        return stage

    def open_part(self, identity: str, part: StagePart) -> StagedSegment:
        """A part of a stage, to be adopted or read; who gets it closes its file. Raises `Corrupt`."""
        path = self.part_path(identity, part.number)
        try:
            file = self.files.open(path, write=True)
        except FileNotFoundError:
            raise MissingData(path, "the stage names this part") from None
        staged = StagedSegment(self.files, path, file, part.data_start, part.headers)
        size = file.size()
        if size != staged.data_end + FOOTER_BYTES:
            file.close()
            raise DamagedFile(path, size, None, f"it has {size} bytes where the stage names {staged.data_end + FOOTER_BYTES}")
        return staged

    def remove(self, identity: str) -> bool:
        """Remove a stage; False if it is not there."""
        path = self.path_of(identity)
        if not self._is_there or not self.files.exists(path):
            return False
        # Its parts have no meaning without it, and go at the next opening if they cannot go now.
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(path)
        self._remove_parts(identity)
        return True

    def _remove_parts(self, identity: str) -> None:
        number = 0
        while self.files.exists(part_path := self.part_path(identity, number)):
            with contextlib.suppress(FileNotFoundError):
                self.files.unlink(part_path)
            number += 1

    def all(self) -> list[tuple[str, str, int]]:
        """(id, producer, created_us) of each finished stage; what cannot be read is left out, and left alone."""
        if not self._is_there:
            return []
        found = []
        for name in self.files.list_directory(self.directory):
            identity = name.removesuffix(_SUFFIX)
            if not name.endswith(_SUFFIX) or _NAME.fullmatch(identity) is None:
                continue
            try:
                file = self.files.open(os.path.join(self.directory, name))
                try:
                    _, producer, created_us, _ = decode_stage_header(file.pread(4096, 0))
                finally:
                    file.close()
            except (FileNotFoundError, BadBytes):
                continue
            found.append((identity, producer, created_us))
        return found

    def remove_expired(self, producer: str | None = None, before_us: int | None = None) -> int:
        """Remove the stages of *producer* made before a moment, or all that have expired; returns how many."""
        limit = self.clock.now_us() - EXPIRY_US if before_us is None else before_us
        count = 0
        if producer is None and self._is_there:
            self._remove_dead(set(self.files.list_directory(self.directory)))
        for identity, owner, created_us in self.all():
            if created_us < limit and (producer is None or owner == producer):
                count += self.remove(identity)
        return count
