"""Messages of one group that a transaction finishes, from the moment it takes them until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from penstock.groups.cursor import Cursor
    from penstock.groups.delivery import Delivery
    from penstock.groups.group import Group

Place: TypeAlias = "tuple[Delivery, Cursor, int, bool | str]"
"""
A delivery, its cursor, the generation that the cursor had (what a seek came before is not finished), and what ran with it.

A plain tuple: a named one costs as much as all else that a small transaction does for an ack.
"""


class Reservation:
    """Made by `Group.reserve_acks`. Either `finish` or `release` ends it."""

    __slots__ = ("group", "operations", "places")

    def __init__(self, group: Group, places: list[Place], operations: list[bytes]) -> None:
        self.group = group
        self.places = places
        self.operations = operations
        """What a frame says of it; `finish` does the same to the memory, without decoding anything."""

    def finish(self) -> None:
        """It is committed. Called by the cycle's leader."""
        self.group.finish_reserved(self.places)

    def release(self) -> None:
        """It was not committed, as far as its caller knows: the deliveries are back with their consumer."""
        self.group.release_acks(self.places)
