"""The two checkpoint files of a store, written in turn so that the one before the last is always whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, MissingData
from penstock.format.checkpoint import Checkpoint
from penstock.journal.small_file import read_small_file, replace_small_file

if TYPE_CHECKING:
    from penstock.files import FileSystem
    from penstock.format.checkpoint import LogRow

CHECKPOINT_BYTES_MAX = 4 << 30
"""A checkpoint holds the state of all groups: many millions of messages that wait to be tried again make it large."""
NAMES = ("checkpoint-0", "checkpoint-1")


class Checkpoints:
    """
    Reads and writes the checkpoints of one store. One thread at a time.

    The journal is kept from the older of the two on, so that either file alone is enough to recover.
    """

    def __init__(self, files: FileSystem, directory: str, store_id: bytes) -> None:
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self.previous: Checkpoint | None = None
        self.latest: Checkpoint | None = None
        self._rows: tuple[dict[int, LogRow], dict[int, LogRow]] = ({}, {})
        self.problems: list[tuple[str, str]] = []
        """The files that could not be read, and why."""

    def load(self) -> Checkpoint:
        """
        Read both files and return the latest valid one; what was wrong with the other is in `problems`.

        Raises:
            MissingData: neither can be used.
        """
        found: list[Checkpoint] = []
        for name in NAMES:
            path = os.path.join(self._directory, name)
            if not self._files.exists(path):
                continue
            try:
                checkpoint = Checkpoint.decode(read_small_file(self._files, path, limit_bytes=CHECKPOINT_BYTES_MAX))
                if checkpoint.store_id != self._store_id:
                    raise BadBytes("checkpoint", "belongs to another store")
            except BadBytes as error:
                self.problems.append((path, str(error)))
                continue
            found.append(checkpoint)
        if not found:
            reason = "; ".join([f"{path}: {problem}" for path, problem in self.problems]) or "both checkpoint files are missing"
            raise MissingData(os.path.join(self._directory, NAMES[0]), f"no checkpoint can be read ({reason})")
        found.sort(key=lambda checkpoint: checkpoint.generation)
        self.latest = found[-1]
        if len(found) == 1:
            # The other one may have been newer, and what came after this one is known by the journal only.
            self.latest = self.latest._replace(clean=False)
        self.previous = found[0] if len(found) == 2 else None
        before = () if self.previous is None else self.previous.rows
        self._rows = ({row.log_id: row for row in before}, {row.log_id: row for row in self.latest.rows})
        return self.latest

    def store(self, checkpoint: Checkpoint) -> None:
        """Write *checkpoint* over the older file; durable when it returns. Raises `OSError`."""
        path = os.path.join(self._directory, NAMES[checkpoint.generation % 2])
        replace_small_file(self._files, path, checkpoint.encode())
        self.previous, self.latest = self.latest, checkpoint
        self._rows = (self._rows[1], {row.log_id: row for row in checkpoint.rows})

    def rows_of(self, log_id: int) -> tuple[LogRow | None, LogRow | None]:
        """What the checkpoint before the last, and the last one, say of a log."""
        return self._rows[0].get(log_id), self._rows[1].get(log_id)

    @property
    def is_settled(self) -> bool:
        """Whether no log has sealed segments that must stay as they are only because the checkpoint before the last points there."""
        before, rows = self._rows
        for log_id, row in rows.items():
            if row.segment_first > row.log_start:
                known = before.get(log_id)
                if known is None or known.segment_first < row.segment_first:
                    return False
        return True
