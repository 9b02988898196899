"""The files that the logs of a store have open: those not used for longest are closed when there are too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.files import descriptors_max

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from penstock.log.partition_log import PartitionLog

_EVERY_TURNS = 5
DESCRIPTORS_MAX = 2_048
"""What the files of logs may have together, and a quarter of what the process may have."""


class OpenFiles:
    """
    Which logs have files open.

    Attributes:
        logs: those that opened one; each log adds itself.
        descriptors_max: how many descriptors they may have together.
    """

    def __init__(self) -> None:
        self.logs: set[PartitionLog] = set()
        self.descriptors_max = max(16, min(DESCRIPTORS_MAX, descriptors_max() // 4))
        self._last_uses: dict[PartitionLog, tuple[tuple[int, int], int]] = {}
        self._turn = 0

    def bound(self, hold: Callable[[], AbstractContextManager[None]]) -> bool:
        """
        Close the files of logs not used for longest, if there are too many open. One thread calls it.

        *hold* keeps commit cycles away, and raises if the store is of no more use. False: what is open is not durable, and can be
        closed after a checkpoint.
        """
        self._turn += 1
        if self._turn % _EVERY_TURNS and len(self.logs) <= self.descriptors_max:
            return True
        logs = list(self.logs)
        last_uses = {}
        total = 0
        for log in logs:
            uses, turn = self._last_uses.get(log, (None, 0))
            last_uses[log] = (uses, turn) if uses == log.uses else (log.uses, self._turn)
            total += log.descriptors
        self._last_uses = last_uses
        if total <= self.descriptors_max:
            return True
        logs.sort(key=lambda log: last_uses[log][1])
        for log in logs:
            before = log.descriptors
            # One by one, so that nobody who publishes waits for all of them.
            with hold(), log.lock:
                log.let_go()
            total -= before - log.descriptors
            if total <= self.descriptors_max * 3 // 4:
                return True
        return False
