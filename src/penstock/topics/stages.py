"""
Stages on disk: what the first phase of a two-phase transaction leaves, and the second takes.

A stage belongs to a producer and has an id. It is durable once it is finished, survives restarts, and goes away when it is committed
or aborted, when its producer has committed twice since, or after `EXPIRY_US`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile, StageNotFound, StorageFull
from penstock.files import is_full, write_fully
from penstock.format.checksum import crc32c
from penstock.format.stage import (
    PRODUCER_BYTES_MAX,
    STAGE_FOOTER_BYTES,
    Stage,
    decode_stage,
    decode_stage_header,
    encode_stage_entry,
    encode_stage_footer,
    encode_stage_header,
)

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.files import File, FileSystem
    from penstock.format.batch import EncodedBatch

STAGING = "staging"
_SUFFIX = ".stage"
_NEW = ".new"
_NAME = re.compile(r"[0-9a-f]{32}")
EXPIRY_US = 3 * 86_400 * 1_000_000
"""A stage that nobody committed for so long is removed."""


class StageWriter:
    """One stage that is being written. One thread at a time; nothing is there before `finish` returns."""

    def __init__(self, stages: Stages, producer: str) -> None:
        self._stages = stages
        self.identity = secrets.token_hex(16)
        self._path = os.path.join(stages.directory, self.identity + _NEW)
        self._file: File | None = stages.files.create(self._path)
        self._crc = 0
        self._position = 0
        self._entries = 0
        try:
            self._write(encode_stage_header(stages.store_id, producer, stages.clock.now_us()))
        except BaseException:
            self.abandon()
            raise

    def _write(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        try:
            write_fully(self._file, data, self._position)
        except OSError as error:
            if is_full(error):
                raise StorageFull(self._path, None, None) from None
            raise
        self._crc = crc32c(data, self._crc)
        self._position += len(data)

    def add(self, topic_id: bytes, partition: int, batch: EncodedBatch) -> None:
        """Add a batch. Raises `StorageFull`; the stage is of no use then."""
        # The header's checksum is written when a batch is stamped; here nobody knows where it will lie.
        batch.stamp(0, 0, 0, 0, 0, 0)
        self._write(encode_stage_entry(topic_id, partition))
        self._write(batch.data)
        self._entries += 1

    def finish(self) -> str:
        """Make the stage durable; returns its id."""
        length = self._position + STAGE_FOOTER_BYTES
        self._write(encode_stage_footer(self._crc, self._entries, length))
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


class Stages:
    """The stages of one store. Safe to call from any thread."""

    def __init__(self, files: FileSystem, store_path: str, store_id: bytes, clock: Clock) -> None:
        self.files = files
        self.store_id = store_id
        self.clock = clock
        self.directory = os.path.join(store_path, STAGING)
        self._made = files.exists(self.directory)
        if self._made:
            # A process that was killed may have made it, and not its name durable.
            files.sync_directory(store_path)
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for name in self.files.list_directory(self.directory):
            if name.endswith(_NEW):
                self.files.unlink(os.path.join(self.directory, name))

    def path_of(self, identity: str) -> str:
        """Where a stage lies. Raises `StageNotFound` for what cannot be an id."""
        if not isinstance(identity, str) or _NAME.fullmatch(identity) is None:
            raise StageNotFound(str(identity))
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

    def remove(self, identity: str) -> bool:
        """Remove a stage; False if it is not there."""
        path = self.path_of(identity)
        if not self._made or not self.files.exists(path):
            return False
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(path)
        return True

    def all(self) -> list[tuple[str, str, int]]:
        """(id, producer, created_us) of each finished stage; what cannot be read is left out, and left alone."""
        if not self._made:
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
        for identity, owner, created_us in self.all():
            if created_us < limit and (producer is None or owner == producer):
                count += self.remove(identity)
        return count
