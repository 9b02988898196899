"""Who runs next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

TIME = -1
"""The choice to let time pass until the earliest deadline, though somebody can run."""


class Strategy(Protocol):
    """Chooses among threads, which are known by their numbers."""

    def choose(self, step: int, running: int, ready: Sequence[int], timed: bool) -> int:  # noqa: FBT001 - called for each step
        """
        The next of *ready* (never empty), or `TIME` where *timed*: somebody waits with a timeout.

        *running* is the one that asks; it is not in *ready* if it is blocked or at its end.
        """
        ...


class RandomWalk:
    """At each point, with a probability of this run, another thread."""

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        self._switching = rng.choice((0.02, 0.1, 0.3, 0.7))
        self._passing = rng.choice((0.0, 0.002, 0.02, 0.1))

    def __repr__(self) -> str:
        return f"RandomWalk(switching={self._switching}, passing={self._passing})"

    def choose(self, step: int, running: int, ready: Sequence[int], timed: bool) -> int:  # noqa: ARG002, FBT001
        """See `Strategy`."""
        chance = self._random()
        if timed and chance < self._passing:
            return TIME
        if running in ready and self._random() >= self._switching:
            return running
        return ready[int(self._random() * len(ready))]


class Priorities:
    """
    PCT: the highest priority runs, and a few times the one that runs becomes the lowest.

    With *bursts* that happens again and again: one that stops in the middle of something stops until all others are blocked or had a turn.
    """

    def __init__(self, rng: Random, expected_steps: int = 5_000, *, bursts: bool = False) -> None:
        self._random = rng.random
        count = int(expected_steps / rng.choice((15, 40, 120))) if bursts else rng.choice((1, 2, 3, 5))
        self._changes = {int(expected_steps * self._random()) for _ in range(count)}
        self._passing = rng.choice((0.0, 0.002, 0.02))
        self._priority: dict[int, float] = {}
        self._lowest = 0.0

    def __repr__(self) -> str:
        return f"Priorities({len(self._changes)} changes, passing={self._passing})"

    def choose(self, step: int, running: int, ready: Sequence[int], timed: bool) -> int:  # noqa: FBT001
        """See `Strategy`."""
        priority = self._priority
        for number in ready:
            if number not in priority:
                priority[number] = self._random()
        if step in self._changes and running in priority:
            self._lowest -= 1.0
            priority[running] = self._lowest
        if timed and self._random() < self._passing:
            return TIME
        return max(ready, key=priority.__getitem__)
