"""What becomes of a message that expired before anybody got it: it is finished, or goes to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.dead_letters import EXPIRED
from penstock.groups.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.format.batch import Batch
    from penstock.groups.book import Book
    from penstock.groups.cursor import Cursor
    from penstock.groups.moves import Moves

MOVES_MAX = 1_000
"""So many messages of a partition are on their way to the dead letters at most: each of them holds memory until it is there."""


class Expiring:
    """Ends what has expired, in one group. Guarded by the group's lock."""

    __slots__ = ("_book", "_moves")

    def __init__(self, book: Book, moves: Moves) -> None:
        self._book = book
        self._moves = moves

    def must_wait(self, cursor: Cursor) -> bool:
        """Whether the dead letters have to come first that are on their way already."""
        return cursor.keeps_expired and len(cursor.moving) >= MOVES_MAX

    def end(self, cursor: Cursor, batch: Batch, index: int, offset: int, now_us: int) -> None:
        """The open message at *offset*, number *index* of *batch*, is with nobody, and has expired."""
        if not cursor.keeps_expired:
            self.drop(cursor, [offset])
            return
        now_s = now_us // 1_000_000
        known = cursor.failures.get(offset) or Failure(0, now_s, now_s, EXPIRED)
        failure = Failure(known.count, known.first_s, known.last_s, EXPIRED, condemned=True)
        self._moves.plan(cursor, offset, failure, batch, index, expired=True)

    def drop(self, cursor: Cursor, offsets: Sequence[int]) -> None:
        """These are finished."""
        for offset in offsets:
            cursor.finish(offset)
        self._book.counters.expired_messages += len(offsets)
        self._book.journal.note_finished(cursor, self._book.identity, offsets)
