"""
Opening a store for reading beside its owner: what Spark's tasks, the command line and backup tools do.

It takes no lock and changes no file. How far each log is committed comes from the `positions` file while an owner runs, or ran,
in this boot; after a reboot that no owner has recovered from yet it comes from the last checkpoint, which is a prefix of what
recovery will bring back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from penstock.errors import TopicNotFound, Unavailable
from penstock.files import RealFileSystem
from penstock.journal.checkpoints import Checkpoints
from penstock.log.identity import LogIdentity
from penstock.log.log_reader import LogReader
from penstock.log.positions import Position, PositionsReader
from penstock.volume.access import check_folder, naming_refusals
from penstock.volume.identity import POSITIONS_NAME, TOPICS, read_identity
from penstock.volume.topic_files import TopicRecord, read_topics, set_aside_path

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.files import FileSystem
    from penstock.format.checkpoint import Checkpoint


class VolumeReader:
    """A store that is open for reading only. One thread at a time."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self.path = path
        self.files = files
        self.store_id = read_identity(files, path)
        self._positions = PositionsReader(files, os.path.join(path, POSITIONS_NAME), self.store_id)
        self._topics: dict[str, TopicRecord] = {}
        self._logs: dict[tuple[bytes, int], LogReader] = {}
        self.is_live = False
        """Whether the ends come from an owner of this boot, and not from the last checkpoint."""
        self.refresh()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, files: FileSystem | None = None) -> VolumeReader:
        """
        Open the store in the folder *path* for reading.

        Raises:
            StoreNotFound: there is none.
            Corrupt: its identity or its checkpoints cannot be read.
            Unavailable: its owner died in the middle of a change, and nobody has opened the store since.
        """
        with naming_refusals():
            files, path = files or RealFileSystem(), os.path.abspath(os.fspath(path))
            check_folder(files, path)
            return cls(path, files)

    def refresh(self) -> bool:
        """
        Look again which topics there are and how far their logs are committed: one consistent moment for all logs.

        False if the owner is in the middle of a change, or died there, for too long: then the ends are as they were.
        """
        try:
            positions = self._positions.snapshot()
        except Unavailable:
            if not self._logs:
                raise
            # The ends known so far still hold. The starts may have moved on, and files behind them be gone.
            for key, log_start in self._positions.log_starts().items():
                if key in self._logs:
                    self._logs[key].move_start(log_start)
            return False
        if positions is None or positions.keys() != self._logs.keys():
            self._topics = {record.name: record for record in read_topics(self.files, os.path.join(self.path, TOPICS))}
            self._forget_deleted()
        self.is_live = positions is not None
        if positions is None:
            positions = self._checkpointed()
        for record in self._topics.values():
            for partition in range(record.partitions):
                key = (record.topic_id, partition)
                position = positions.get(key)
                if position is not None:
                    self._reader(record, partition).move(position)
        return True

    def refresh_topics(self, names: Collection[str]) -> bool:
        """
        Like `refresh`, of these topics alone: it costs the same however many others there are, unless topics came or went.

        For who asks again and again.
        """
        if not self.is_live and not self._positions.counts:
            # Nobody has opened the store in this boot, and before that nothing of what the checkpoint tells can change.
            return True
        records = [self._topics[name] for name in names if name in self._topics]
        if not self.is_live or len(records) < len(names):
            return self.refresh()
        positions = self._positions.some([(one.topic_id, partition) for one in records for partition in range(one.partitions)])
        if positions is None:
            return self.refresh()
        for key, position in positions.items():
            self._logs[key].move(position)
        return True

    def _forget_deleted(self) -> None:
        known = {record.topic_id for record in self._topics.values()}
        for key in [key for key in self._logs if key[0] not in known]:
            self._logs.pop(key).let_go()

    def checkpoint(self) -> Checkpoint:
        """The last checkpoint, of this moment. Raises `Corrupt`."""
        return Checkpoints(self.files, self.path, self.store_id).load()

    def _checkpointed(self) -> dict[tuple[bytes, int], Position]:
        checkpoint = self.checkpoint()
        rows = {row.log_id: row for row in checkpoint.rows}
        found = {}
        for record in self._topics.values():
            for partition in range(record.partitions):
                row = rows.get(record.first_log_id + partition)
                if row is not None:
                    found[record.topic_id, partition] = Position(row.end, checkpoint.log_epoch, row.log_start)
        return found

    def _reader(self, record: TopicRecord, partition: int) -> LogReader:
        key = (record.topic_id, partition)
        reader = self._logs.get(key)
        if reader is None:
            identity = LogIdentity(self.store_id, record.topic_id, record.name, partition, record.first_log_id + partition)
            directory = os.path.join(self.path, TOPICS, record.name, str(partition))
            aside = set_aside_path(os.path.join(self.path, TOPICS), record.topic_id)
            reader = self._logs[key] = LogReader(self.files, directory, identity, record.settings, self.refresh, aside)
        return reader

    @property
    def topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def topic(self, name: str) -> TopicRecord:
        """One topic. Raises `TopicNotFound`."""
        record = self._topics.get(name)
        if record is None:
            raise TopicNotFound(name)
        return record

    def log(self, topic: str, partition: int = 0) -> LogReader:
        """The log of a partition. Raises `TopicNotFound`."""
        record = self.topic(topic)
        if not 0 <= partition < record.partitions:
            raise TopicNotFound(topic, partition)
        return self._reader(record, partition)

    def ends(self, logs: Sequence[LogReader]) -> list[int]:
        """The committed ends of *logs* at one moment: of a change to several logs either all or none is seen."""
        self.refresh()
        return [log.committed_end for log in logs]

    def close(self) -> None:
        """Close all files."""
        for log in self._logs.values():
            log.close()
        self._positions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
