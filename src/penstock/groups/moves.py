"""Messages of a group that are on their way to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.dead_letters import Move

if TYPE_CHECKING:
    from penstock.format.batch import Batch
    from penstock.groups.cursor import Cursor
    from penstock.groups.failures import Failure
    from penstock.groups.group import Group


class Moves:
    """Planned while the group's lock is held, carried out after it was released: writing a dead letter waits for a commit."""

    __slots__ = ("_group", "planned")

    def __init__(self, group: Group) -> None:
        self._group = group
        self.planned: list[Move] = []

    def plan(self, cursor: Cursor, offset: int, failure: Failure, batch: Batch, index: int, *, expired: bool = False) -> None:
        """The message at *offset*, number *index* of *batch*, is to become a dead letter."""
        cursor.moving.add(offset)
        self.planned.append(Move(self._group, cursor, cursor.generation, offset, failure, batch, index, expired))

    def take(self) -> list[Move]:
        """What was planned since the last call."""
        taken, self.planned = self.planned, []
        return taken
