"""
Stages on disk: what the first phase of a two-phase transaction leaves, and the second takes.

A process that does not own the store may stage as well: what it writes is not touched by the owner before it is finished (or a day
old), and is committed by the owner like any other stage.

A stage belongs to a producer and has an id. It is durable once it is finished, survives restarts, and goes away when it is committed
or aborted, when its producer has committed twice since, or after `EXPIRY_US`. What it holds for a log lies in the stage itself where it
is little, and else in parts, files that the log can adopt as segments (log/staged_segment.py).

While a stage is written, what it holds for a log is gathered in memory: small batches are joined (stage_batches.py), and a share that
grows goes to a part as a whole, but for its first messages. Memory is bounded for each stage and for all stages of a store together.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import weakref
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.arguments import shown
from penstock.clock import settled_us
from penstock.errors import BadBytes, DamagedFile, MissingData, StageNotFound, StorageFull, UsageError
from penstock.files import descriptors_max, is_full, is_out_of_descriptors, read_fully, write_fully
from penstock.format import digest
from penstock.format.batch import Batch
from penstock.format.checksum import crc32c
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from penstock.format.stage import (
    PRODUCER_BYTES_MAX,
    STAGE_FOOTER_BYTES,
    Stage,
    StagePart,
    decode_stage,
    decode_stage_header,
    encode_stage_digest,
    encode_stage_entry,
    encode_stage_footer,
    encode_stage_header,
    encode_stage_part,
)
from penstock.log.partition_log import out_of_descriptors
from penstock.log.staged_segment import StagedSegment
from penstock.topics.stage_batches import cut_first, join_small

if TYPE_CHECKING:
    from collections.abc import Sequence

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


_FIRST_BYTES_MAX = 16 * 1024
"""Of a share that goes to a part the first batch stays in the stage, which is copied: the first message of a longer one."""
_OBJECT_BYTES = 256
"""More than a batch takes in memory besides its bytes."""


class StageLimits(NamedTuple):
    """
    What becomes a part, what is adopted, and what is gathered before it is written.

    A stage holds *inline_bytes_max* for one log itself, and a larger share in parts. Those are copied when they are committed if they have
    fewer bytes, or smaller batches on average, than given here. Small batches are joined to such of about *joined_bytes*; a stage gathers
    at most *gathered_bytes_max* in memory, and all of a store together *all_gathered_bytes_max*, unless there are very many. It has files
    open for *parts_max* logs at most, and not more than the process may have.
    """

    inline_bytes_max: int = 1024 * 1024
    adopt_bytes_min: int = 4 * 1024 * 1024
    adopt_batch_bytes_min: int = 16 * 1024
    joined_bytes: int = 512 * 1024
    gathered_bytes_max: int = 32 * 1024 * 1024
    all_gathered_bytes_max: int = 64 * 1024 * 1024
    parts_max: int = 4_096


class _Share:
    """What a stage has for one log."""

    __slots__ = ("batches", "gathered_bytes", "in_parts", "inline_bytes", "is_placed", "log")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.batches: list[EncodedBatch] = []
        """What is gathered and not written yet."""
        self.gathered_bytes = 0
        self.inline_bytes = 0
        """What the stage itself has of it."""
        self.is_placed = False
        """Whether it was decided where a share goes that is large."""
        self.in_parts = False
        """Whether what is gathered goes to parts: its beginning is in the stage."""


class _Part:
    """A file that takes the batches of a stage for one log."""

    def __init__(self, stages: Stages, path: str, number: int, log: PartitionLog) -> None:
        self.number = number
        self.log = log
        self.path = path
        self.file = stages.create(path)
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

    def __init__(self, stages: Stages, producer: str, *, with_digest: bool) -> None:
        self._stages = stages
        self._digest: int | None = 0 if with_digest else None
        self._messages = 0
        self._counts_early = False
        """Whether batches are counted in the digest when they are added: their client has done it. Else when they are joined."""
        self.identity = secrets.token_hex(16)
        self._path = os.path.join(stages.directory, self.identity + stages.unfinished_suffix())
        self._file: File | None = stages.create(self._path)
        self._crc = 0
        self._position = 0
        self._entries = 0
        self._shares: dict[PartitionLog, _Share] = {}
        self._gathered_bytes = 0
        self._is_whole = True
        self._parts: dict[PartitionLog, _Part] = {}
        self._made: list[_Part] = []
        self._finished: list[StagePart] = []
        try:
            self._write(encode_stage_header(stages.store_id, producer, stages.clock.now_us()))
        except BaseException:
            self.abandon()
            raise
        stages.note_open(self)

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

    def add(self, log: PartitionLog, batch: EncodedBatch, known_digest: int | None = None) -> None:
        """
        Add a batch, which is the stage's from now on. Raises `StorageFull`, `Unavailable`; the stage is of no use then.

        *known_digest* is that of its messages, where the client has it: either of the first batch and all others, or of none.
        """
        self._check_whole()
        if self._digest is not None:
            if known_digest is not None and not self._messages:
                self._counts_early = True
            if self._counts_early:
                self._digest = digest.add(self._digest, self._digest_of(log, batch) if known_digest is None else known_digest)
        self._messages += batch.count
        # Until it is where it belongs: it would be missing, or there twice, without anybody's notice.
        self._is_whole = False
        share = self._shares.get(log)
        if share is None:
            share = self._shares[log] = _Share(log)
        size = len(batch.data)
        share.batches.append(batch)
        share.gathered_bytes += size
        self._gathered_bytes += size + _OBJECT_BYTES
        limits = self._stages.limits
        if share.is_placed:
            if share.gathered_bytes >= limits.joined_bytes:
                self._write_out(share, all_of_it=False)
        elif share.inline_bytes + share.gathered_bytes > limits.inline_bytes_max:
            self._place(share)
            self._write_out(share, all_of_it=False)
        if self._gathered_bytes > limits.joined_bytes and self._gathered_bytes > self._stages.gathered_bytes_max:
            self._make_room(self._stages.gathered_bytes_max)
        self._is_whole = True

    def _digest_of(self, log: PartitionLog, batch: EncodedBatch) -> int:
        batch.stamp(0, 0, 0, 0, 0, 0)
        return digest.digest_of(log.identity.topic, Batch(batch.data))

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise UsageError("the stage could not be written as a whole; abandon it and begin another one")

    def _make_room(self, bytes_max: int) -> None:
        """Write out the largest shares until clearly less than *bytes_max* is gathered."""
        for share in sorted(self._shares.values(), key=lambda one: one.gathered_bytes, reverse=True):
            if self._gathered_bytes <= bytes_max * 3 // 4:
                return
            # Not a file for each of very many logs that get little.
            if not share.is_placed and share.inline_bytes + share.gathered_bytes > self._stages.limits.inline_bytes_max // 4:
                self._place(share)
            self._write_out(share, all_of_it=True)

    def _place(self, share: _Share) -> None:
        """
        Let what is gathered for a log, and what will come, go to parts, if that can be; else it stays in the stage.

        The first batch for a log is always in the stage: an adopted segment must not be the first thing that a commit adds to a log.
        """
        share.is_placed = True
        if not self._stages.can_link():
            return
        if not share.inline_bytes:
            first, *others = share.batches
            cut = cut_first(first) if len(first.data) > _FIRST_BYTES_MAX else None
            if cut is not None:
                first, rest = cut
                others.insert(0, rest)
            self._keep(share, others)
            self._store(share, [first])
        share.in_parts = True

    def _write_out(self, share: _Share, *, all_of_it: bool) -> None:
        """Write what is gathered for a log; without *all_of_it* not the last small batches, which more may join."""
        batches, rest = join_small(share.batches, share.log.settings, self._stages.limits.joined_bytes, all_of_them=all_of_it)
        self._keep(share, rest)
        self._store(share, batches)

    def _keep(self, share: _Share, batches: list[EncodedBatch]) -> None:
        """Of a share only *batches* are gathered now."""
        size = sum([len(batch.data) for batch in batches])
        self._gathered_bytes += size - share.gathered_bytes + _OBJECT_BYTES * (len(batches) - len(share.batches))
        share.gathered_bytes = size
        share.batches = batches

    def _store(self, share: _Share, batches: Sequence[EncodedBatch]) -> None:
        """Write batches to the stage, or to a part of it."""
        log = share.log
        for batch in batches:
            # The header's checksum is written when a batch is stamped; here nobody knows where it will lie.
            batch.stamp(0, 0, 0, 0, 0, 0)
            if self._digest is not None and not self._counts_early:
                self._digest = digest.add(self._digest, digest.digest_of(log.identity.topic, Batch(batch.data)))
            if share.in_parts:
                part = self._part_for(log, len(batch.data))
                part.write(batch.data)
                part.headers.append(bytes(batch.data[: batch.header_bytes]))
            else:
                self._write(encode_stage_entry(log.identity.topic_id, log.identity.partition))
                self._write(batch.data)
                self._entries += 1
                share.inline_bytes += len(batch.data)

    def _part_for(self, log: PartitionLog, size: int) -> _Part:
        """The file that takes the next batch for *log*."""
        part = self._parts.get(log)
        if part is not None:
            if part.position + size + FOOTER_BYTES <= log.settings.segment_bytes or not part.headers:
                return part
            self._finished.append(self._parts.pop(log).finish())
        while len(self._parts) >= self._stages.parts_max:
            # Another log begins a new one when it gets more.
            self._finished.append(self._parts.pop(next(iter(self._parts))).finish())
        number = len(self._made)
        part = _Part(self._stages, self._stages.part_path(self.identity, number), number, log)
        self._made.append(part)
        self._parts[log] = part
        return part

    def finish(self, *, for_now: bool = False) -> str:
        """
        Make the stage durable; returns its id. Raises `StorageFull`, `Unavailable`.

        *for_now*: it is for the commit that goes on, and is removed when the store is opened again.
        """
        self._check_whole()
        for share in self._shares.values():
            self._write_out(share, all_of_it=True)
        for part in self._parts.values():
            self._finished.append(part.finish())
        self._parts = {}
        for entry in self._finished:
            self._write(encode_stage_part(entry))
        entries = self._entries + len(self._finished)
        if self._digest is not None:
            self._write(encode_stage_digest(self._messages, self._digest))
            entries += 1
        length = self._position + STAGE_FOOTER_BYTES
        self._write(encode_stage_footer(self._crc, entries, length))
        assert self._file is not None
        self._file.sync_data()
        self._file.close()
        self._file = None
        if for_now:
            self._stages.note_for_now(self.identity)
        else:
            self._stages.files.rename(self._path, self._stages.path_of(self.identity))
            self._stages.files.sync_directory(self._stages.directory)
        self._stages.note_ended(self)
        return self.identity

    def abandon(self) -> None:
        """Remove what was written."""
        self._shares = {}
        self._stages.note_ended(self)
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
        self._open_lock = threading.Lock()
        self._open: weakref.WeakSet[StageWriter] = weakref.WeakSet()
        self._for_now: set[str] = set()
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
        oldest = settled_us(self.clock) - OUTSIDE_EXPIRY_US
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

    def note_open(self, writer: StageWriter) -> None:
        """It gathers from now on."""
        with self._open_lock:
            self._open.add(writer)

    def note_ended(self, writer: StageWriter) -> None:
        """It gathers no more."""
        with self._open_lock:
            self._open.discard(writer)

    def note_for_now(self, identity: str) -> None:
        """A stage that was finished for one commit keeps the name of one that is being written: whoever dies leaves nothing."""
        self._for_now.add(identity)

    @property
    def gathered_bytes_max(self) -> int:
        """What each stage that is being written may gather in memory: its part of what all may."""
        limits = self.limits
        part = limits.all_gathered_bytes_max // max(1, len(self._open))
        return min(limits.gathered_bytes_max, max(part, limits.inline_bytes_max))

    @property
    def parts_max(self) -> int:
        """How many files each stage that is being written may have open."""
        return max(1, min(self.limits.parts_max, descriptors_max() // 2 // max(1, len(self._open))))

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
            self.create(path).close()
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
        return os.path.join(self.directory, identity + (_NEW if identity in self._for_now else _SUFFIX))

    def begin(self, producer: str, *, with_digest: bool = True) -> StageWriter:
        """A new stage. One that is made of others needs no digest: theirs count."""
        assert len(producer.encode()) <= PRODUCER_BYTES_MAX
        if not self._made:
            with contextlib.suppress(FileExistsError):
                self.files.make_directory(self.directory)
            self.files.sync_directory(os.path.dirname(self.directory))
            self._made = True
        return StageWriter(self, producer, with_digest=with_digest)

    def create(self, path: str) -> File:
        """A new file. Raises `StorageFull`, or `Unavailable`: the process may open no more files."""
        try:
            return self.files.create(path)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(path) from None
            if is_full(error):
                raise StorageFull(path, None, None) from None
            raise

    def _open_file(self, path: str, *, write: bool = False) -> File:
        try:
            return self.files.open(path, write=write)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors(path) from None
            raise

    def load(self, identity: str) -> Stage:
        """A finished stage. Raises `StageNotFound`, `Corrupt`, or `Unavailable`: the process may open no more files."""
        path = self.path_of(identity)
        try:
            file = self._open_file(path)
        except FileNotFoundError:
            raise StageNotFound(identity) from None
        try:
            data = read_fully(file, file.size(), 0)
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
        """A part of a stage, to be adopted or read; who gets it closes its file. Raises `Corrupt`, `Unavailable`."""
        path = self.part_path(identity, part.number)
        try:
            file = self._open_file(path, write=True)
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
        self._for_now.discard(identity)
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
        limit = settled_us(self.clock) - EXPIRY_US if before_us is None else before_us
        count = 0
        if producer is None and self._is_there:
            self._remove_dead(set(self.files.list_directory(self.directory)))
        for identity, owner, created_us in self.all():
            if created_us < limit and (producer is None or owner == producer):
                count += self.remove(identity)
        return count
