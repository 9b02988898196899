"""Those who wait for messages of a group, in the order in which they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.groups.member import Member


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
        """Wake the first one that could take something."""
        for entry in list(self):  # first come, first served
            if entry[1].can_take:
                try:
                    self.remove(entry)
                except ValueError:
                    continue  # another thread was quicker
                if entry[0].release() is not False:
                    return

    def wake_all(self) -> None:
        """Wake all."""
        while self:
            try:
                waiter, _ = self.pop()
            except IndexError:
                return
            waiter.release()
