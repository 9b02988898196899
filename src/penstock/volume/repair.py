"""
`repair`: set damaged ranges aside, by explicit order only, so that the rest of a store can be used again.

Nothing is thrown away: each file that is changed is first copied into `quarantine/`, together with a report that says which bytes
and which offsets were given up. A damaged segment is rewritten with its good batches; the offsets that are lost stay a gap, which
readers pass over, and are never given to other messages. A missing segment becomes an empty one. A damaged journal is cut
before its first bad frame. If no checkpoint can be read, one is made from what the logs hold.

`store.json` and `topic.json` cannot be repaired: they hold what nothing else knows (the settings). Bring them back from a copy.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, NamedTuple

from penstock.clock import SystemClock
from penstock.errors import Corrupt, DamagedFile, StoreLocked
from penstock.files import LockHeld, RealFileSystem, write_fully
from penstock.format.batch import EncodedBatch
from penstock.format.checkpoint import Checkpoint, LogRow
from penstock.format.frame import ENTRY_LOG_START, JOURNAL_HEADER_BYTES, decode_log_start
from penstock.format.segment import FOOTER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader
from penstock.format.state import encode_state
from penstock.journal.checkpoints import Checkpoints
from penstock.journal.journal import Journal
from penstock.journal.small_file import replace_small_file
from penstock.log.identity import LogIdentity
from penstock.log.salvage import Salvage, salvage
from penstock.log.segment import Segment, index_path, parse_segment_name, segment_name
from penstock.volume.document import encode_document
from penstock.volume.identity import JOURNAL, LOCK_NAME, POSITIONS_NAME, TOPICS, read_identity
from penstock.volume.topic_files import TopicRecord, read_topics
from penstock.volume.verification import read_segment

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.files import FileSystem

QUARANTINE = "quarantine"


class Lost(NamedTuple):
    """What was given up in one place."""

    path: str
    first_offset: int | None
    end_offset: int | None
    reason: str


class Repair(NamedTuple):
    """What `repair` did."""

    lost: list[Lost]
    quarantine: str | None
    """The folder with the files as they were; None if nothing had to be changed."""


class Repairer:
    """Repairs one store that nobody owns. Used once."""

    def __init__(self, files: FileSystem, path: str, clock: Clock) -> None:
        self._files = files
        self._path = path
        self._clock = clock
        self._quarantine: str | None = None
        self._lost: list[Lost] = []
        self._log_starts: dict[int, int] = {}
        self._epoch = 0

    def run(self) -> Repair:
        """Repair. Raises `StoreLocked`, `StoreNotFound`, or `Corrupt` for what cannot be repaired."""
        try:
            lock = self._files.lock(os.path.join(self._path, LOCK_NAME))
        except LockHeld as held:
            raise StoreLocked(self._path, held.owner.get("pid"), held.owner.get("host")) from None
        try:
            store_id = read_identity(self._files, self._path)
            topics = read_topics(self._files, os.path.join(self._path, TOPICS))
            checkpoint = self._checkpoint(store_id)
            number, sequence = self._journal(store_id, checkpoint)
            rows = [
                self._log(
                    LogIdentity(store_id, record.topic_id, record.name, partition, record.first_log_id + partition),
                    record,
                    checkpoint,
                )
                for record in topics
                for partition in range(record.partitions)
            ]
            if self._lost or (checkpoint.clean and self._differs(checkpoint, rows)):
                self._finish(store_id, checkpoint, number, sequence, rows, topics)
        finally:
            lock.release()
        return Repair(self._lost, self._quarantine)

    # -- setting aside ----------------------------------------------------------------------------------------------

    def _set_aside(self, path: str) -> None:
        """Copy a file into the quarantine folder before it is changed."""
        if self._quarantine is None:
            top = os.path.join(self._path, QUARANTINE)
            if not self._files.exists(top):
                self._files.make_directory(top)
                self._files.sync_directory(self._path)
            self._quarantine = os.path.join(top, f"{self._clock.now_us()}-{secrets.token_hex(4)}")
            self._files.make_directory(self._quarantine)
            self._files.sync_directory(top)
        name = os.path.relpath(path, self._path).replace("/", "_")
        replace_small_file(self._files, os.path.join(self._quarantine, name), read_segment(self._files, path))

    # -- checkpoint and journal -------------------------------------------------------------------------------------

    def _checkpoint(self, store_id: bytes) -> Checkpoint:
        checkpoints = Checkpoints(self._files, self._path, store_id)
        try:
            return checkpoints.load()
        except Corrupt as error:
            self._lost.append(Lost(self._path, None, None, f"no checkpoint could be read, one was made from the logs: {error}"))
        sequences = self._journal_sequences()
        return Checkpoint(store_id, 1, 1, 0, sequences[0] if sequences else 0, 0, clean=False, next_log_id=0, rows=())

    def _journal_sequences(self) -> list[int]:
        names = self._files.list_directory(os.path.join(self._path, JOURNAL))
        return sorted(int(name[:-4]) for name in names if name.endswith(".wal") and name[:-4].isdecimal())

    def _journal(self, store_id: bytes, checkpoint: Checkpoint) -> tuple[int, int]:
        """Cut the journal before its first bad frame; returns the frame number and file that recovery goes on from."""
        directory = os.path.join(self._path, JOURNAL)
        sequences = self._journal_sequences()
        if checkpoint.clean or not sequences:
            return checkpoint.frame_number, checkpoint.journal_sequence
        start = checkpoint.journal_sequence if checkpoint.journal_sequence in sequences else sequences[0]
        number = checkpoint.frame_number
        journal = Journal(self._files, directory, store_id, 0)
        try:
            for frame in journal.replay(start, checkpoint.frame_number):
                number = frame.number
                for entry in frame.entries:
                    if entry.kind == ENTRY_LOG_START:
                        self._log_starts[entry.owner] = max(self._log_starts.get(entry.owner, 0), decode_log_start(entry))
        except DamagedFile as error:
            self._lost.append(Lost(error.path, None, None, f"frames behind {number} were given up: {error.reason}"))
            bad_sequence = int(os.path.basename(error.path)[:-4])
            for sequence in [one for one in sequences if one >= bad_sequence]:
                path = os.path.join(directory, f"{sequence:06d}.wal")
                self._set_aside(path)
                if sequence > bad_sequence or error.position < JOURNAL_HEADER_BYTES:
                    self._files.unlink(path)
                else:
                    file = self._files.open(path, write=True)
                    write_fully(file, bytes(file.size() - error.position), error.position)
                    file.sync_data()
                    file.close()
            self._files.sync_directory(directory)
        return checkpoint.frame_number, start

    # -- one log ----------------------------------------------------------------------------------------------------

    def _log(self, identity: LogIdentity, record: TopicRecord, checkpoint: Checkpoint) -> LogRow:
        directory = os.path.join(self._path, TOPICS, identity.topic, str(identity.partition))
        row = next((one for one in checkpoint.rows if one.log_id == identity.log_id), None)
        known = 0 if row is None else row.end
        log_start = max(self._log_starts.get(identity.log_id, 0), 0 if row is None else row.log_start)
        names = self._files.list_directory(directory)
        firsts = sorted(first for name in names if (first := parse_segment_name(name)) is not None)
        while len(firsts) > 1 and firsts[1] <= log_start:
            firsts.pop(0)
        expected = log_start if not firsts else min(firsts[0], log_start)
        result = LogRow(identity.log_id, known, log_start, known, 0, 0 if row is None else row.max_time_us)
        for at, first in enumerate(firsts):
            if first > expected:
                result = self._fill(identity, record, directory, expected, first, result)
            end = firsts[at + 1] if at + 1 < len(firsts) else max(known, first)
            result = self._segment(identity, record, directory, first, end, result, last=at + 1 == len(firsts))
            expected = result.end
        if expected < known:
            result = self._fill(identity, record, directory, expected, known, result)
        elif row is not None and row.position and row.segment_first == known and known not in firsts:
            # Noted, so that a checkpoint is made that does not name it.
            path = os.path.join(directory, segment_name(known))
            self._lost.append(Lost(path, known, known, "the segment was missing; it held no messages"))
        return result

    def _fill(self, identity: LogIdentity, record: TopicRecord, directory: str, first: int, end: int, before: LogRow) -> LogRow:
        """An empty segment for offsets [first, end), of which nothing is left."""
        path = os.path.join(directory, segment_name(first))
        self._lost.append(Lost(path, first, end, "the segment was missing; an empty one takes its place"))
        return self._rewrite(identity, record, path, Salvage(None, None, [], None, [], first), first, end, before)

    def _segment(
        self, identity: LogIdentity, record: TopicRecord, directory: str, first: int, end: int, before: LogRow, *, last: bool
    ) -> LogRow:
        path = os.path.join(directory, segment_name(first))
        data = read_segment(self._files, path)
        found = salvage(data, first, identity, (1 << 63) - 1, sealed=not last)
        epochs = [batch.header.log_epoch for batch in found.batches]
        self._epoch = max([self._epoch, 0 if found.header is None else found.header.log_epoch, *epochs])
        known_end = max(end, found.end_offset) if last else end
        # A bad range at the very end of the last segment, behind all that was durable, is a torn tail: recovery cuts it.
        bad = [one for one in found.bad if not (last and one.end == len(data) and one.offset is not None and one.offset >= end)]
        if not bad and (found.end_offset >= end or found.footer is not None):
            tail = found.batches[-1] if found.batches else None
            position = (len(data) - FOOTER_BYTES) if found.footer else _end_of(found)
            time_us = tail.header.max_time_us if tail else before.max_time_us
            return LogRow(
                identity.log_id, found.end_offset, before.log_start, first, position, max(time_us, before.max_time_us)
            )
        self._set_aside(path)
        for one in bad:
            self._lost.append(Lost(path, one.offset, None, f"bytes [{one.start}, {one.end}): {one.reason}"))
        if not bad:
            self._lost.append(Lost(path, found.end_offset, end, "the segment ends too early"))
        return self._rewrite(identity, record, path, found, first, known_end, before)

    def _rewrite(
        self, identity: LogIdentity, record: TopicRecord, path: str, found: Salvage, first: int, end: int, before: LogRow
    ) -> LogRow:
        """Write what was saved as a sealed segment of a higher generation for [first, end)."""
        old = found.header
        header = SegmentHeader(
            identity.store_id, identity.topic_id, identity.partition, 1 if old is None else old.generation + 1, first,
            secrets.randbits(64), 0 if old is None else old.log_epoch, self._clock.now_us(),
            before.max_time_us if old is None else old.base_time_us,
        )  # fmt: skip
        if found.state is None:
            state = encode_state([], [])
        else:
            state = EncodedBatch(bytearray(found.state.buffer), found.state.header.header_bytes, 0, 0)
        temporary = path + ".tmp"
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        segment = Segment.create(self._files, temporary, header, state, record.settings.index_interval_bytes)
        for batch in found.batches:
            one = batch.header
            copy = EncodedBatch(bytearray(batch.buffer), one.header_bytes, one.count, one.offset_span)
            copy.stamp(one.first_offset, one.append_time_us, one.max_time_us, header.segment_uid, 0, one.log_epoch)
            segment.write([copy], [(one.first_offset, one.append_time_us, one.max_time_us)])
        assert segment.file is not None
        segment.seal(end)
        segment.sync()
        segment.close()
        self._files.rename(temporary, path)
        if self._files.exists(index_path(path)):
            self._files.unlink(index_path(path))
        self._files.sync_directory(os.path.dirname(path))
        time_us = max(before.max_time_us, segment.max_time_us)
        return LogRow(identity.log_id, end, before.log_start, first, segment.position, time_us)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _differs(self, checkpoint: Checkpoint, rows: list[LogRow]) -> bool:
        """Whether a store that says it was closed in order holds something else than it says."""
        ends = {row.log_id: row.end for row in checkpoint.rows}
        differing = [row.log_id for row in rows if ends.get(row.log_id, 0) != row.end]
        if differing:
            self._lost.append(
                Lost(self._path, None, None, f"the last checkpoint did not fit the logs {differing}; nothing is lost")
            )
        return bool(differing)

    def _finish(
        self,
        store_id: bytes,
        checkpoint: Checkpoint,
        number: int,
        sequence: int,
        rows: list[LogRow],
        topics: list[TopicRecord],
    ) -> None:
        """A checkpoint that fits what is there now, in both files; the positions of the last owner do not count any more."""
        positions = os.path.join(self._path, POSITIONS_NAME)
        if self._files.exists(positions):
            self._files.unlink(positions)
            self._files.sync_directory(self._path)
        checkpoints = Checkpoints(self._files, self._path, store_id)
        next_log_id = max([checkpoint.next_log_id, *[record.first_log_id + record.partitions for record in topics]])
        epoch = max(checkpoint.log_epoch, self._epoch)
        for generation in (checkpoint.generation + 1, checkpoint.generation + 2):
            checkpoints.store(
                checkpoint._replace(
                    generation=generation,
                    frame_number=number,
                    journal_sequence=sequence,
                    rows=tuple(rows),
                    log_epoch=epoch,
                    next_log_id=next_log_id,
                )
            )
        if self._quarantine is not None:
            report = {"lost": [list(lost) for lost in self._lost], "store": self._path}
            replace_small_file(self._files, os.path.join(self._quarantine, "report.json"), encode_document(report))


def _end_of(found: Salvage) -> int:
    total = SEGMENT_HEADER_BYTES + sum(batch.header.total_bytes for batch in found.batches)
    return total + (found.state.header.total_bytes if found.state is not None else 0)


def repair(path: str | os.PathLike[str], *, files: FileSystem | None = None, clock: Clock | None = None) -> Repair:
    """
    Set aside what is damaged in the store at *path*, which nobody may own meanwhile, so that it opens again.

    Raises:
        StoreLocked: somebody owns it.
        Corrupt: `store.json` or a `topic.json` is damaged, which cannot be repaired.
    """
    return Repairer(files or RealFileSystem(), os.path.abspath(os.fspath(path)), clock or SystemClock()).run()
