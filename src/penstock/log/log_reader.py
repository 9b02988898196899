"""
Reading one log beside its owner, from another process or another host's job on the same machine.

The reader is given a committed end by whoever knows it (the positions file, or the last checkpoint) and serves nothing at or
behind it. Everything below is complete in the file, because the owner moves the end after it wrote. So the reader judges no
tails: a bad batch below the end is damage, and what lies behind the end is not looked at.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, Corrupt, DamagedFile, MissingData, OffsetOutOfRange, TopicNotFound, Unavailable
from penstock.format.batch_header import HEADER_BYTES_MAX, KIND_STATE, parse_header
from penstock.format.segment import FOOTER_BYTES, FOOTER_MAGIC, SEGMENT_HEADER_BYTES
from penstock.log.index_cache import read_index_cache
from penstock.log.offset_index import OffsetIndex
from penstock.log.partition_log import LOADED_MAX
from penstock.log.sealed_segment import check_header, load_sealed
from penstock.log.segment import READ_BYTES_DEFAULT, Segment, parse_segment_name, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import FileSystem
    from penstock.format.batch import Batch
    from penstock.log.identity import LogIdentity
    from penstock.log.positions import Position
    from penstock.settings import TopicSettings

_CHUNK_BYTES = 1024 * 1024


class LogReader:
    """One log, read-only. One thread at a time."""

    def __init__(
        self, files: FileSystem, directory: str, identity: LogIdentity, settings: TopicSettings, refresh: Callable[[], bool],
        set_aside: str,
    ) -> None:  # fmt: skip
        """
        *refresh* moves this and other logs on to where they are now; False if that cannot be told at this moment.

        *set_aside* is the name that the folder of its topic is given when the owner deletes it.
        """
        self._refresh = refresh
        self._set_aside = set_aside
        self._files = files
        self._directory = self.directory = directory
        self.identity = identity
        self._settings = settings
        self._firsts: list[int] = []
        self._segments: dict[int, Segment] = {}
        self._damaged: dict[int, DamagedFile] = {}
        """Where the look ahead in an active segment ended, by its first offset."""
        self.committed_end = 0
        self.log_start = 0
        self.log_epoch = 0
        self._rewrites = 0
        self.deleted = False
        """Whether the owner deleted its topic."""

    def move(self, position: Position) -> None:
        """Take note of how far the log is committed now. Within one log epoch it never goes back."""
        if position.log_epoch > self.log_epoch:
            # The owner crashed in between. A weaker mode may have lost a tail, and other messages have its offsets now.
            self.log_epoch = position.log_epoch
            self._firsts = []
            self._segments = {}
            self.committed_end = position.end
        if position.rewrites != self._rewrites:
            # What is open may hold messages that are gone, and whose tombstones are gone too.
            self._rewrites = position.rewrites
            self._segments = {}
        self.committed_end = max(self.committed_end, position.end)
        self.move_start(position.log_start)

    def move_start(self, log_start: int) -> None:
        """Take note of where the log begins now; not behind the end that is known."""
        self.log_start = max(self.log_start, min(log_start, self.committed_end))

    def read(self, offset: int, bytes_max: int = READ_BYTES_DEFAULT, *, verify: bool = True) -> list[Batch]:
        """
        The committed batches from the one that holds *offset* on; empty at the committed end.

        Raises:
            OffsetOutOfRange: removed by retention, maybe at this moment, or not committed yet.
            Unavailable: the segment is gone, and where the log begins cannot be told while its owner opens the store.
            Corrupt: stored bytes are wrong, or a segment is missing.
        """
        if not self.log_start <= offset <= self.committed_end:
            raise OffsetOutOfRange(offset, self.log_start, self.committed_end)
        if offset == self.committed_end:
            return []
        failures = 0
        while failures < 3:
            try:
                segment = self._segment_of(offset)
                batches = segment.read(segment.find(offset), self.committed_end, bytes_max, verify=verify)
            except FileNotFoundError:
                # Retention or a rewriting took the file away: look again.
                self._firsts = []
                self._segments.clear()
                failures += 1
                continue
            except Corrupt:
                self._check_not_deleted()
                raise
            if batches:
                for batch in batches:
                    batch.ttl_us = self._settings.ttl_ms * 1000
                return batches
            if segment.end_offset >= self.committed_end:
                return []
            # Nothing at or behind the offset is left in this segment. Go on in the next one.
            offset = max(offset + 1, segment.end_offset)
        self._check_not_removed(offset)
        path = os.path.join(self._directory, segment_name(offset))
        raise MissingData(path, f"no segment holds offset {offset}")

    def _check_not_removed(self, offset: int) -> None:
        """Raises unless the owner says that *offset* is still there."""
        settled = self._check_not_deleted()
        if not self.log_start <= offset < self.committed_end:
            raise OffsetOutOfRange(offset, self.log_start, self.committed_end)
        if not settled:
            raise Unavailable(f"{self._directory} is being opened by its owner, or was when that died; try again")

    def _check_not_deleted(self) -> bool:
        """
        Asked when a file is not there, or not what it should be: another topic may have the folder now. Raises `TopicNotFound`.

        Returns whether where the log begins and ends is known.
        """
        settled = self._refresh()
        # The folder goes before the positions say so.
        if self.deleted or self._files.exists(self._set_aside):
            raise TopicNotFound(self.identity.topic) from None
        return settled

    def offset_of_time(self, time_us: int) -> int:
        """The first committed offset appended at or after *time_us*; the committed end if there is none. See `PartitionLog`."""
        for _ in range(3):
            try:
                return self._search_time(time_us)
            except FileNotFoundError:
                # Retention or a rewriting took a file away: look again.
                self._firsts = []
                self._segments.clear()
            except Corrupt:
                self._check_not_deleted()
                raise
        self._check_not_deleted()
        raise Unavailable(f"the segments in {self._directory} go faster than they can be read; try again")

    def _search_time(self, time_us: int) -> int:
        end = self.committed_end
        self._list()
        firsts = [first for first in self._firsts if first < end]
        low, high = 0, len(firsts)
        while low < high:
            middle = (low + high) // 2
            segment = self._known_segment(firsts[middle])
            if segment is None or segment.max_time_us < time_us:
                low = middle + 1
            else:
                high = middle
        while low < len(firsts):
            segment = self._known_segment(firsts[low])
            batches = [] if segment is None else segment.read(segment.find_time(time_us), end, 1, verify=False)
            if batches:
                batch = batches[0]
                return max(batch.offset(batch.index_of_append_time(time_us)), self.log_start)
            low += 1  # a rewriting left nothing in it
        for damage in self._damaged.values():
            raise damage  # it may lie behind that
        return end

    def _segment_of(self, offset: int) -> Segment:
        segment = self._known_segment(offset)
        if segment is None or offset >= segment.end_offset:
            self._list()
            segment = self._known_segment(offset)
        if segment is None:
            raise FileNotFoundError(self._directory)
        if offset >= segment.end_offset:
            if segment.first_offset in self._damaged:
                raise self._damaged[segment.first_offset]
            raise MissingData(
                os.path.join(self._directory, segment_name(segment.end_offset)), f"the segment with offset {offset} is gone"
            )
        return segment

    def _list(self) -> None:
        names = self._files.list_directory(self._directory)
        self._firsts = sorted(first for name in names if (first := parse_segment_name(name)) is not None)

    def _known_segment(self, offset: int) -> Segment | None:
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        first = self._firsts[at]
        segment = self._segments.get(first)
        if segment is None:
            segment = self._segments[first] = self._load(first)
            if len(self._segments) > LOADED_MAX:
                # The one that was loaded first; its file closes when the last batch read from it is let go of.
                del self._segments[next(iter(self._segments))]
        if not segment.sealed and segment.end_offset < self.committed_end:
            self._damaged.pop(first, None)
            try:
                self._advance(segment)
            except DamagedFile as error:
                # It hides what lies behind it, and nothing before it.
                self._damaged[first] = error
        return segment

    def next_segment(self, offset: int) -> int:
        """Where the segment behind the one with *offset* begins; the committed end if it is the last."""
        self._list()
        return next((first for first in self._firsts if offset < first < self.committed_end), self.committed_end)

    def _load(self, first: int) -> Segment:
        """A segment that is sealed within the committed range is mapped; any other is read as far as it is committed."""
        path = os.path.join(self._directory, segment_name(first))
        file = self._files.open(path)
        try:
            size = file.size()
            tail = file.pread(FOOTER_BYTES, max(size - FOOTER_BYTES, 0))
            header = check_header(path, file.pread(SEGMENT_HEADER_BYTES, 0), first, self.identity)
        except BaseException:
            file.close()
            raise
        at = self._firsts.index(first)
        if tail[:4] == FOOTER_MAGIC and at + 1 < len(self._firsts) and self._firsts[at + 1] <= self.committed_end:
            file.close()
            return load_sealed(self._files, self._directory, first, self.identity, self._settings, cache=False)
        segment = Segment(self._files, path, header, OffsetIndex(self._settings.index_interval_bytes))
        segment.file = file
        snapshot = read_index_cache(self._files, segment)
        if (
            snapshot is not None
            and snapshot.valid_position > SEGMENT_HEADER_BYTES
            and snapshot.end_offset <= self.committed_end
        ):
            segment.index.restore(snapshot.offsets, snapshot.times_us, snapshot.positions)
            segment.position = snapshot.valid_position
            segment.end_offset = snapshot.end_offset
            segment.max_time_us = snapshot.max_time_us
            segment.batches = snapshot.batches
        return segment

    def _advance(self, segment: Segment) -> None:
        """Hop over the batches that were committed since the last look."""
        file = segment.open_file()
        view, base = memoryview(b""), segment.position
        while segment.end_offset < self.committed_end:
            at = segment.position - base
            if len(view) - at < HEADER_BYTES_MAX:
                view, base, at = memoryview(file.pread(_CHUNK_BYTES, segment.position)), segment.position, 0
            if at >= len(view) or view[at : at + 4] == FOOTER_MAGIC:
                # The owner sealed it: what is committed goes on in the next one.
                return
            try:
                header = parse_header(view, at)
                if header.segment_uid != segment.header.segment_uid:
                    raise BadBytes("batch", "belongs to another segment")
            except BadBytes as error:
                raise DamagedFile(segment.path, segment.position, segment.end_offset, str(error)) from None
            if header.kind == KIND_STATE:
                segment.position += header.total_bytes
            else:
                segment.note_header(header)

    @property
    def stored_bytes(self) -> int:
        """The length of its segments' files. Looks at each of them: the owner may have rewritten any."""
        self._list()
        total = 0
        for first in self._firsts:
            with contextlib.suppress(FileNotFoundError):  # retention took it meanwhile
                file = self._files.open(os.path.join(self._directory, segment_name(first)))
                total += file.size()
                file.close()
        return total

    def let_go(self) -> None:
        """The owner deleted the topic: its files close, so that the disk has their room, when the last batch of them is let go of."""
        self.deleted = True
        self._segments = {}

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
