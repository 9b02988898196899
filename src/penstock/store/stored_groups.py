"""
Groups as the last checkpoint has them, for readers of files: nothing is opened, and nobody is asked.

After an orderly closing that is all there is to know. While an owner runs it is some seconds old, and after a crash it lacks what only the
journal has. Who is there, and what they hold, is known to the owner alone: here there are no members and nothing is in flight.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.groups.dead_letters import BOX_GROUP, is_dead_letter_topic
from penstock.groups.letters import unfinished
from penstock.groups.registry import GROUPS_OWNER, Groups
from penstock.store.stats import GroupStats

if TYPE_CHECKING:
    from penstock.groups.group import Group
    from penstock.log.log_reader import LogReader
    from penstock.offset_set import OffsetSet
    from penstock.volume.reader import VolumeReader


class StoredGroups:
    """The groups of one store, as its checkpoint has them now."""

    def __init__(self, reader: VolumeReader) -> None:
        self._groups = Groups(SystemClock())
        # A reader must go on where an owner would stop: then no groups are told.
        with contextlib.suppress(PenstockError, OSError):
            self._groups.restore(dict(reader.checkpoint().sections).get(GROUPS_OWNER, b""))

    def of_topic(self, topic_id: bytes, logs: list[LogReader]) -> dict[str, GroupStats]:
        """The numbers of a topic's groups, by name."""
        return {
            group.name: self._stats(group, logs)
            for group in self._groups.of_topic(topic_id)
            if not group.name.startswith(".") and len(group.cursors) == len(logs)
        }

    def dead_letters(self, topic_id: bytes, logs: list[LogReader]) -> int:
        """How many of the letters of a topic of dead letters are there."""
        box = self._groups.find(topic_id, BOX_GROUP)
        if box is None:
            return sum(log.committed_end - log.log_start for log in logs)
        return sum(map(len, self._unfinished(box, logs)))

    def first_dead_letter(self, topic_id: bytes, logs: list[LogReader]) -> int | None:
        """The offset of the oldest of them, in the first partition."""
        box = self._groups.find(topic_id, BOX_GROUP)
        if box is None:
            return logs[0].log_start if logs[0].committed_end > logs[0].log_start else None
        there = self._unfinished(box, logs)[0]
        return there.min() if there else None

    @staticmethod
    def _unfinished(group: Group, logs: list[LogReader]) -> list[OffsetSet]:
        return [unfinished(cursor, log.log_start, log.committed_end) for cursor, log in zip(group.cursors, logs, strict=True)]

    def _stats(self, group: Group, logs: list[LogReader]) -> GroupStats:
        left = self._unfinished(group, logs)
        box = self._groups.find(group.topic_id, BOX_GROUP) if is_dead_letter_topic(group.topic) else None
        if box is not None:
            left = [one & there for one, there in zip(left, self._unfinished(box, logs), strict=True)]
        return GroupStats(
            lag=sum(map(len, left)), in_flight=0, retrying=sum(len(cursor.failures.offsets) for cursor in group.cursors), members=0,
            positions={number: one.min() if one else logs[number].committed_end for number, one in enumerate(left)},
            delivered=0, redelivered=0, acked=0, nacked=0, expired_leases=0, dead_lettered=group.counters.dead_lettered, skipped=0, lost=0,
        )  # fmt: skip
