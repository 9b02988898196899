"""Those who wait for messages of a group."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.groups.member import Member


LOOK_MAX = 32
"""So many of those who wait are looked at to find the best."""


class Waiter(Protocol):
    """Somebody who waits for messages: a `threading.Lock` that is held, or a thing that wakes a task."""

    def release(self) -> object:
        """Wake it up; False if it cannot be woken any more."""
        ...


class Waiters(list[tuple["Waiter", "Member"]]):
    """
    Who waits, and as which member. Not locked: a commit wakes while others come and go, so each step is one that lists do atomically.

    A list, so that looking whether anybody waits costs nothing: that is done for each message.
    """

    __slots__ = ()

    def wake_one(self) -> None:
        """Wake the one that has least in flight of those that could take something; of equals who came first."""
        while True:
            best, least = None, 0
            for entry in self._able():
                in_flight = entry[1].in_flight
                if best is None or in_flight < least:
                    best, least = entry, in_flight
                    if not in_flight:
                        break
            if best is None:
                return
            try:
                self.remove(best)
            except ValueError:
                continue  # another thread was quicker
            if best[0].release() is not False:
                return

    def _able(self) -> Iterator[tuple[Waiter, Member]]:
        """The first ones that could take something."""
        return islice((entry for entry in list(self) if entry[1].can_take), LOOK_MAX)

    def hungry(self, but: Member | None) -> list[Member]:
        """Those of the first ones that have nothing else to do, each once."""
        found = dict.fromkeys(member for _, member in self._able() if member.is_hungry and member is not but)
        return list(found)

    def wake_all(self) -> None:
        """Wake all."""
        while self:
            try:
                waiter, _ = self.pop()
            except IndexError:
                return
            waiter.release()
