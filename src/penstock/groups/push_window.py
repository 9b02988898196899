"""
How far ahead a client is pushed that cannot be asked to give messages back.

What waits with such a client is lost to the others until the client comes to it. So it is pushed no more than it handles at once, and
what it finishes in about `AHEAD_S` besides: a slow one has hardly anything waiting, and a fast one never waits for the next push. It begins
small and grows as messages are finished, twice as much at a time at most. Only the time between two that were there together tells how
fast the client is: the way there and back, however long, is in neither.

While there is no other member, a client that said how much it wants gets it. One that left that to the server (`always`) has a window then
too, of `AHEAD_ALONE_S`: the next member may come at any moment, and the client may be far away.
"""

from __future__ import annotations

AHEAD_S = 0.05
AHEAD_ALONE_S = 0.5
FIRST = 1
"""How many it is pushed ahead before anything is known of it."""
FIRST_ALONE = 10
"""How many it is pushed before anything is known of it while there is no other member: also who finishes nothing sees what there is."""


class PushWindow:
    """
    The window of one member. Guarded by its group's lock.

    Attributes:
        size: how many messages the member may be pushed and not finish.
        always: whether that holds also while there is no other member.
    """

    __slots__ = ("_each_s", "_is_busy", "_last_s", "_least", "_pushed_s", "always", "size")

    def __init__(self, concurrency: int, *, always: bool = False) -> None:
        self.always = always
        self._least = concurrency
        self.size = concurrency + FIRST
        self._each_s: float | None = None
        """About how long it takes for a message."""
        self._is_busy = False
        """Whether it had something left to do when it last finished something."""
        self._last_s = 0.0
        self._pushed_s = 0.0

    def room(self, in_flight: int, *, alone: bool) -> int:
        """How many more it may be pushed; *alone*: there is no other member."""
        size = max(self.size, FIRST_ALONE) if alone and not self._last_s else self.size
        return size - in_flight

    def pushed(self, now: float) -> None:
        """It was pushed something."""
        self._pushed_s = now

    def finished(self, count: int, now: float, left: int, *, alone: bool = False) -> None:
        """It finished *count* messages, and has *left* others; *alone*: there is no other member."""
        ahead_s = AHEAD_ALONE_S if alone else AHEAD_S
        if self._is_busy:
            each_s = max(now - self._last_s, 1e-6) / count
            self._each_s = each_s if self._each_s is None else (self._each_s + each_s) / 2
            wanted = self._least + int(ahead_s / self._each_s)
            self.size = max(self._least, min(wanted, 2 * self.size))
        elif now - self._pushed_s < ahead_s:
            # It had no more, and was quick: it may be quicker than what it is pushed.
            self.size = 2 * self.size
        self._is_busy = left > 0
        self._last_s = now
