"""
What a commit does with its stages: which parts become segments, what is copied, and what is gathered anew because it is too much.

A part is adopted where that is worth it, and a commit holds the rest in memory while it copies it, so that is bounded. Where it would be
too much, or would have more pieces than a frame can name, parts are adopted that are not worth it otherwise; and what is still left is
written into one new stage, which has a few large parts instead of many small pieces. That needs little memory, and happens before anything
is decided: what a commit that dies leaves of it is removed when the store is opened again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadArgument, BadBytes, CommitTooLarge, DamagedFile, PenstockError, TopicNotFound
from penstock.format import digest
from penstock.format.batch import EncodedBatch
from penstock.volume.tickets import Adopt, Append

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.files import Buffer
    from penstock.format.stage import StagePart
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.catalog import Catalog
    from penstock.topics.stages import Stages
    from penstock.volume.tickets import Change


class CommitLimits(NamedTuple):
    """What one commit copies at most, how many changes it has, and how many files it adopts."""

    bytes_max: int
    changes_max: int
    files_max: int


class _Share:
    """The parts of one stage for one log: all of them are adopted, or none, so that they keep their order."""

    __slots__ = ("batches", "bytes", "identity", "is_adopted", "log", "may_adopt", "parts")

    def __init__(self, identity: str, log: PartitionLog) -> None:
        self.identity = identity
        self.log = log
        self.parts: list[StagePart] = []
        self.bytes = self.batches = 0
        self.may_adopt = True
        self.is_adopted = False


class StagedContents:
    """
    The changes that publish some stages: appends first, then whole segments, so that nothing can fail between them.

    Stages are added, then `settle` decides what becomes of them, then there are `changes`. For one commit.
    """

    def __init__(
        self, stages: Stages, catalog: Catalog, producer: str, limits: CommitLimits, outgrown: Collection[str] = ()
    ) -> None:
        """*outgrown* are the paths of parts that have no room for the state of their log, so that they cannot be adopted."""
        self._stages = stages
        self._catalog = catalog
        self._producer = producer
        self._limits = limits
        self._outgrown = outgrown
        self._added: list[str] = []
        self._appends: list[Append] = []
        self._inline_bytes: dict[PartitionLog, int] = {}
        self._inline_batches = 0
        # What there would be to copy, how many changes, and how many of them are files that are adopted.
        self._copied_bytes = self._changes = self._files = 0
        self._shares: list[_Share] = []
        self._adoptions: list[Adopt] = []
        self.made: str | None = None
        """The stage that was made of what was too much to copy; to be removed with the others."""
        self.messages = 0
        self.digest: int | None = 0
        """Of all messages; None if a stage does not tell."""

    @property
    def changes(self) -> list[Change]:
        """All of them, once it is settled."""
        return [*self._appends, *self._adoptions]

    def add(self, identity: str) -> None:
        """Take in a stage. Raises `StageNotFound`, `Corrupt`, `TopicNotFound`, `Unavailable`."""
        stage = self._stages.load(identity)
        if stage.producer != self._producer:
            raise BadArgument("stages", identity, f"was staged by {stage.producer!r}, not by {self._producer!r}")
        self._added.append(identity)
        if identity != self.made:
            self.digest = None if self.digest is None or stage.digest is None else digest.add(self.digest, stage.digest)
        path = self._stages.path_of(identity)
        for entry in stage.entries:
            log = self._log(entry.topic_id, entry.partition)
            self._inline_bytes[log] = self._inline_bytes.get(log, 0) + len(entry.batch)
            self._inline_batches += 1
            self._copied_bytes += len(entry.batch)
            if self._copied_bytes <= self._limits.bytes_max:
                self._append(log, entry.batch, path)
            else:
                self._appends.clear()  # they are read again
        shares: dict[PartitionLog, _Share] = {}
        for part in stage.parts:
            log = self._log(part.topic_id, part.partition)
            share = shares.get(log)
            if share is None:
                share = shares[log] = _Share(identity, log)
            share.parts.append(part)
            staged = self._stages.open_part(identity, part)
            with contextlib.closing(staged.file):
                share.bytes += staged.data_end - staged.data_start
                share.batches += staged.count
                # A file that has other names already is left alone: writing to it could change a segment, or somebody's copy of the store.
                share.may_adopt = share.may_adopt and staged.file.links() == 1 and staged.path not in self._outgrown
        self._shares += shares.values()

    def _log(self, topic_id: bytes, partition: int) -> PartitionLog:
        topic = self._catalog.find(topic_id)
        if topic is None or partition >= topic.partitions:
            raise TopicNotFound(topic_id.hex(), partition)
        return topic.logs[partition]

    # -- deciding ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """
        Decide what is adopted and read what is copied. Raises what `add` raises, and `CommitTooLarge`, `StorageFull`.

        Nothing is changed but that there may be another stage, see `made`.
        """
        self._choose()
        if not self._fits and (self._copied_bytes <= self._limits.bytes_max or self._stages.can_link()):
            if self._copied_bytes > self._limits.bytes_max:
                self._make_way()
            self._gather()
            self._choose()
        if self._copied_bytes > self._limits.bytes_max:
            raise CommitTooLarge("bytes that cannot become segments", self._copied_bytes, self._limits.bytes_max)
        if self._changes > self._limits.changes_max:
            raise CommitTooLarge("pieces", self._changes, self._limits.changes_max)
        for share in self._shares:
            if not share.is_adopted:
                for data, path in self._batches(share):
                    self._append(share.log, data, path)
        self.messages = sum([append.batch.count for append in self._appends])
        for share in self._shares:
            if share.is_adopted:
                for part in share.parts:
                    staged = self._stages.open_part(share.identity, part)
                    self._adoptions.append(Adopt(share.log, staged))
                    self.messages += staged.messages

    def _choose(self) -> None:
        """What is worth it is adopted, largest first as long as there may be files; then as much as must be."""
        self._copied_bytes, self._changes, self._files = sum(self._inline_bytes.values()), self._inline_batches, 0
        candidates = []
        for share in self._shares:
            if share.is_adopted:
                self._files += len(share.parts)
                self._changes += len(share.parts)
            else:
                self._copied_bytes += share.bytes
                self._changes += share.batches
                if share.may_adopt:
                    candidates.append(share)
        candidates.sort(key=lambda share: share.bytes, reverse=True)
        for share in candidates:
            if self._is_worth(share):
                self._adopt(share)
        forced = []
        for share in candidates:
            if self._fits:
                return
            if not share.is_adopted and (self._copied_bytes > self._limits.bytes_max or share.batches > len(share.parts)):
                self._adopt(share)
                forced.append(share)
        if not self._fits and self.made is None:
            # It does not help, so rather gather them, into few.
            for share in forced:
                self._give_back(share)

    def _adopt(self, share: _Share) -> None:
        """Let it be adopted, if there may be so many files."""
        files = len(share.parts)
        if self._files + files <= self._limits.files_max:
            share.is_adopted = True
            self._files += files
            self._changes += files - share.batches
            self._copied_bytes -= share.bytes

    def _give_back(self, share: _Share) -> None:
        """Let it not be adopted."""
        if share.is_adopted:
            share.is_adopted = False
            self._files -= len(share.parts)
            self._changes -= len(share.parts) - share.batches
            self._copied_bytes += share.bytes

    def _is_worth(self, share: _Share) -> bool:
        """Whether adopting is worth it: small segments and small batches are better copied, into few of both."""
        limits = self._stages.limits
        return share.bytes >= limits.adopt_bytes_min and share.bytes >= limits.adopt_batch_bytes_min * share.batches

    @property
    def _fits(self) -> bool:
        return self._copied_bytes <= self._limits.bytes_max and self._changes <= self._limits.changes_max

    def _make_way(self) -> None:
        """Let the smallest shares not be adopted, so that there may be files for what is gathered."""
        gathered = dict(self._inline_bytes)
        adopted = []
        for share in self._shares:
            if share.is_adopted:
                adopted.append(share)
            else:
                gathered[share.log] = gathered.get(share.log, 0) + share.bytes
        files = self._files + sum([self._files_of(log, size) for log, size in gathered.items()])
        for share in sorted(adopted, key=lambda share: share.bytes):
            if files <= self._limits.files_max:
                return
            self._give_back(share)
            before = gathered.get(share.log, 0)
            gathered[share.log] = before + share.bytes
            files += self._files_of(share.log, before + share.bytes) - self._files_of(share.log, before) - len(share.parts)

    def _files_of(self, log: PartitionLog, size: int) -> int:
        """How many parts so many bytes become at most."""
        return -(-size // max(log.settings.segment_bytes // 2, self._stages.limits.joined_bytes, 1))

    def _gather(self) -> None:
        """Write all that is not adopted into one new stage, and take that in its place."""
        copied: dict[str, list[_Share]] = {}
        for share in self._shares:
            if not share.is_adopted:
                copied.setdefault(share.identity, []).append(share)
        self._appends.clear()
        writer = self._stages.begin(self._producer, with_digest=False)
        try:
            for identity in self._added:
                path = self._stages.path_of(identity)
                for entry in self._stages.load(identity).entries:
                    writer.add(self._log(entry.topic_id, entry.partition), _checked(entry.batch, path))
                for share in copied.get(identity, ()):
                    for data, part_path in self._batches(share):
                        writer.add(share.log, _checked(data, part_path))
            self.made = writer.finish(for_now=True)
        except BaseException:
            writer.abandon()
            raise
        adopted = [share for share in self._shares if share.is_adopted]
        self._shares = []
        self._inline_bytes = {}
        self._inline_batches = self._copied_bytes = 0
        self.add(self.made)
        # The parts of a stage come behind what the stage itself held, which is in the new one now.
        self._shares += adopted

    def _batches(self, share: _Share) -> Iterator[tuple[Buffer, str]]:
        for part in share.parts:
            staged = self._stages.open_part(share.identity, part)
            with contextlib.closing(staged.file):
                for data in staged.batches():
                    yield data, staged.path

    def _append(self, log: PartitionLog, data: Buffer, path: str) -> None:
        self._appends.append(Append(log, _checked(data, path)))

    # -- afterwards -------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Close the files of segments that were not adopted, and remove what was made: the commit was refused."""
        for adoption in self._adoptions:
            adoption.staged.file.close()
        if self.made is not None:
            with contextlib.suppress(OSError, PenstockError):
                self._stages.remove(self.made)


def _checked(data: Buffer, path: str) -> EncodedBatch:
    try:
        return EncodedBatch.adopt(data)
    except BadBytes as error:
        raise DamagedFile(path, 0, None, str(error)) from None
