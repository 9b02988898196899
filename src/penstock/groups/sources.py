"""Where messages come from that were seen before: one after the other, each out of its place as soon as it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.format.batch import Batch
    from penstock.groups.cursor import Cursor
    from penstock.groups.lanes import Lanes


class Source(Protocol):
    """Offsets of one partition in the order in which they are to be leased. What is not leased goes back to `cursor.ready`."""

    def pop(self) -> int | None:
        """Take out the next one, which may be finished by now; None if there is none."""
        ...

    def batch(self, offset: int) -> Batch | None:
        """The batch with the one that was taken; None if it is gone. Raises what `PartitionLog.read` raises."""
        ...

    def begin_anew(self) -> None:
        """The cursor was changed meanwhile."""
        ...

    def leave_suspects(self) -> None:
        """Of suspects no other one may be leased now."""
        ...


class Returned:
    """What came back, lowest offsets first."""

    __slots__ = ("_cursor", "_left")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._left = cursor.ready

    def pop(self) -> int | None:
        """See `Source`."""
        if not self._left:
            return None
        offset = self._left.min()
        self._left.discard(offset)
        self._cursor.ready.discard(offset)
        return offset

    def batch(self, offset: int) -> Batch | None:
        """See `Source`."""
        return self._cursor.batch_near(offset)

    def begin_anew(self) -> None:
        """See `Source`."""
        self._left = self._cursor.ready

    def leave_suspects(self) -> None:
        """See `Source`."""
        self._left = self._cursor.ready - self._cursor.suspects


class Due:
    """What was delayed, in the order in which it is due."""

    __slots__ = ("_cursor", "_now_us")

    def __init__(self, cursor: Cursor, now_us: int) -> None:
        self._cursor = cursor
        self._now_us = now_us

    def pop(self) -> int | None:
        """See `Source`."""
        entry = self._cursor.delays.pop(self._now_us)
        return None if entry is None else entry[1]

    def batch(self, offset: int) -> Batch | None:
        """See `Source`."""
        return self._cursor.batch_near(offset)

    def begin_anew(self) -> None:
        """See `Source`."""

    def leave_suspects(self) -> None:
        """See `Source`."""


class Lane:
    """What waits in one lane."""

    __slots__ = ("_cursor", "_lanes", "_level")

    def __init__(self, cursor: Cursor, lanes: Lanes, level: int) -> None:
        self._cursor = cursor
        self._lanes = lanes
        self._level = level

    def pop(self) -> int | None:
        """See `Source`."""
        return self._lanes.pop(self._level)

    def batch(self, offset: int) -> Batch | None:
        """See `Source`."""
        return self._cursor.batch_near(offset)

    def begin_anew(self) -> None:
        """See `Source`."""

    def leave_suspects(self) -> None:
        """See `Source`."""
