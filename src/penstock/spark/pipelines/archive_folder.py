"""
The folder of an archive: Parquet files of messages, and how far they reach.

```text
DIR/topic=orders/date=2026-11-16/00000-00000000000000001000-00000000000000002000.1of1.parquet
DIR/_penstock/orders/state.json     how far the archive reaches; what counts
DIR/_penstock/orders/pending.json   the files of the last commit, where they were staged and where they go
DIR/_penstock/orders/staged/        files of batches that are not committed
```

A file's name is its partition, the range of offsets [start, end) that its task read, and which of how many files of that range it
is: one for each date. So the names alone tell whether something is missing.

A commit: the files are staged and synced; `pending.json` is written; the files are renamed to their places; `state.json` is written.
After a crash the next run finishes what `pending.json` says, so nothing that was in its place ever goes away or comes twice, also for
those who read the folder without knowing of `state.json`. Whoever knows of it takes no message at or behind the offsets it has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadArgument, DataLost, UnsupportedFormat
from penstock.spark.offsets import Offsets
from penstock.spark.pipelines.durable import make_folder, only_one, read_document, sync, sync_all, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

FORMAT = 1
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_NAME = re.compile(r"(\d{5,9})-(\d{20})-(\d{20})\.(\d+)of(\d+)\.parquet", re.ASCII)


class Written(NamedTuple):
    """A file that a task has staged and synced: messages of one date of the range [start, end) of a partition."""

    path: str
    partition: int
    start: int
    end: int
    date: str
    rows: int
    bytes: int


class ArchivedFile(NamedTuple):
    """A file in its place."""

    path: str
    partition: int
    start: int
    end: int


class ArchiveState(NamedTuple):
    """How far the archive of a topic reaches."""

    identity: str
    version: int
    starts: dict[int, int]
    """The first offset of each partition that the archive has, or would have."""
    offsets: Offsets | None
    """The first that it does not have; None until the first run has looked at the topic."""
    rows: int
    files: int
    bytes: int

    @property
    def group(self) -> str:
        """The group that keeps retention from removing what is not archived."""
        return f"archive-{self.identity[:12]}"


class ArchiveFolder:
    """The archive of one topic in a folder."""

    def __init__(self, path: str | os.PathLike[str], topic: str) -> None:
        path = os.fspath(path)
        if not path or "\0" in path or "://" in path:
            raise BadArgument("to", path, "must be a folder of this machine, or one that is mounted on it")
        self.path = os.path.abspath(path)
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise BadArgument("to", path, "is not a folder")
        self.topic = topic
        self.files = os.path.join(self.path, f"topic={topic}")
        self._own = os.path.join(self.path, "_penstock", topic)
        self._state = os.path.join(self._own, "state.json")
        self._pending = os.path.join(self._own, "pending.json")

    # -- the state --------------------------------------------------------------------------------------------------

    def state(self) -> ArchiveState | None:
        """What is committed; None if there is no archive of the topic. Raises `BadBytes`, `UnsupportedFormat`."""
        document = read_document(self._state)
        return None if document is None else self._decode(document)

    def begin(self) -> ArchiveState:
        """The same, finished after a crash, and made if there is none. Only under `lock`."""
        make_folder(self._own)
        state = self.state()
        if state is None:
            state = ArchiveState(uuid.uuid4().hex, 0, {}, None, 0, 0, 0)
            self._write(state)
        pending = read_document(self._pending)
        if pending is not None and pending["state"]["version"] > state.version:
            state = self._settle(pending)
        shutil.rmtree(os.path.join(self._own, "staged"), ignore_errors=True)
        return state

    def lock(self) -> AbstractContextManager[None]:
        """One writer at a time. Raises `Unavailable`."""
        make_folder(self._own)
        return only_one(os.path.join(self._own, "lock"), f"the archive of {self.topic} in {self.path}")

    def set_start(self, state: ArchiveState, starts: dict[int, int], offsets: Offsets) -> ArchiveState:
        """Begin at *starts*; durable when it returns."""
        state = state._replace(version=state.version + 1, starts=starts, offsets=offsets)
        self._write(state)
        return state

    def stage(self) -> str:
        """A new folder for the files of a batch: what is in it means nothing until it is committed."""
        path = os.path.join(self._own, "staged", uuid.uuid4().hex)
        make_folder(path)
        return path

    def commit(self, state: ArchiveState, written: Sequence[Written], offsets: Offsets) -> ArchiveState:
        """Take the staged files in, and reach up to *offsets*; durable when it returns. Only under `lock`."""
        sync_all(os.path.dirname(one.path) for one in written)
        counts: dict[tuple[int, int, int], int] = {}
        for one in written:
            counts[one[1:4]] = counts.get(one[1:4], 0) + 1
        moves, numbers = [], dict.fromkeys(counts, 0)
        for one in written:
            numbers[one[1:4]] += 1
            name = f"{one.partition:05}-{one.start:020}-{one.end:020}.{numbers[one[1:4]]}of{counts[one[1:4]]}.parquet"
            source = os.path.relpath(one.path, self.path)
            moves.append([source, os.path.join(f"topic={self.topic}", f"date={one.date}", name)])
        new = ArchiveState(
            state.identity, state.version + 1, state.starts, offsets, state.rows + sum(one.rows for one in written),
            state.files + len(written), state.bytes + sum(one.bytes for one in written),
        )  # fmt: skip
        pending = {"state": self._encode(new), "moves": moves}
        write_document(self._pending, pending)
        settled = self._settle(pending)
        for stage in {os.path.dirname(one.path) for one in written}:
            shutil.rmtree(stage, ignore_errors=True)  # attempts of tasks that failed may have left something
        return settled

    def _settle(self, pending: dict[str, Any]) -> ArchiveState:
        """Rename what is not renamed yet, then let it count."""
        folders = []
        for source, target in pending["moves"]:
            final = os.path.join(self.path, target)
            make_folder(os.path.dirname(final))
            # Where it is not, an earlier attempt has renamed it.
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(self.path, source), final)
            os.stat(final)
            folders.append(os.path.dirname(final))
        sync_all(folders)
        state = self._decode(pending["state"])
        self._write(state)
        return state

    def _write(self, state: ArchiveState) -> None:
        write_document(self._state, self._encode(state))

    def _encode(self, state: ArchiveState) -> dict[str, Any]:
        return {
            "format": FORMAT, "id": state.identity, "topic": self.topic, "version": state.version,
            "starts": {str(number): start for number, start in state.starts.items()},
            "offsets": None if state.offsets is None else state.offsets.to_json(),
            "rows": state.rows, "files": state.files, "bytes": state.bytes,
        }  # fmt: skip

    def _decode(self, document: dict[str, Any]) -> ArchiveState:
        if document.get("format") != FORMAT:
            raise UnsupportedFormat(self._state, f"format {document.get('format')}; this program knows {FORMAT}")
        offsets = document["offsets"]
        return ArchiveState(
            document["id"], document["version"], {int(number): start for number, start in document["starts"].items()},
            None if offsets is None else Offsets.from_json(offsets), document["rows"], document["files"], document["bytes"],
        )  # fmt: skip

    # -- the files --------------------------------------------------------------------------------------------------

    def archived(self, state: ArchiveState) -> list[ArchivedFile]:
        """The files up to where *state* reaches, by partition and offset. Raises `DataLost` if one of them is not there."""
        reach = {} if state.offsets is None else state.offsets.topics[self.topic]
        found: dict[int, dict[tuple[int, int], dict[int, str]]] = {number: {} for number in reach}
        totals: dict[tuple[int, int, int], int] = {}
        for path, (partition, start, end, index, count) in self._names():
            if end <= reach.get(partition, 0):
                found[partition].setdefault((start, end), {})[index] = path
                totals[partition, start, end] = count
        chosen = []
        for partition, ranges in sorted(found.items()):
            at = state.starts.get(partition, 0)
            for (start, end), paths in sorted(ranges.items()):
                if start != at:
                    raise self._gap(partition, at, start)
                if len(paths) != totals[partition, start, end]:
                    raise self._gap(partition, start, end)
                chosen += [ArchivedFile(path, partition, start, end) for _, path in sorted(paths.items())]
                at = end
            if at != reach[partition]:
                raise self._gap(partition, at, reach[partition])
        return chosen

    def _gap(self, partition: int, start: int, end: int) -> DataLost:
        return DataLost(
            self.topic,
            partition,
            f"the archive in {self.path} lacks files for the offsets from {start} to {end}",
            "bring them back from a backup, or archive what the log has in another folder",
        )

    def _names(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        if not os.path.isdir(self.files):
            return
        for date in os.scandir(self.files):
            if date.is_dir():
                for file in os.scandir(date.path):
                    parts = _NAME.fullmatch(file.name)
                    if parts is not None:
                        yield file.path, tuple(map(int, parts.groups()))


def finish_file(path: str) -> int:
    """Sync a file that was just written; returns its length."""
    sync(path)
    return os.stat(path).st_size
