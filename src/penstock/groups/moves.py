"""Messages of a group that are on their way to the dead letters."""

from __future__ import annotations

from collections import deque
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
        self.planned: deque[Move] = deque()
        """In order. Whoever carries one out takes it off the front, and sees to what becomes of it."""

    def plan(self, cursor: Cursor, offset: int, failure: Failure, batch: Batch, index: int, *, expired: bool = False) -> None:
        """The message at *offset*, number *index* of *batch*, is to become a dead letter."""
        # In this order: a move that is planned and whose offset is not moving is none, while one that is moving must be planned.
        self.planned.append(Move(self._group, cursor, cursor.generation, offset, failure, batch, index, expired))
        cursor.moving.add(offset)
