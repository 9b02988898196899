"""
What a server may have open. Each connection costs a descriptor, and the store needs some for its files: those are kept for it.

A service manager gives a process two limits (`ulimit -n`): one that holds, often 1,024, and one up to which the process may raise it. A
server raises it at its start, and says so where even that is little.
"""

from __future__ import annotations

import contextlib
import resource

from penstock.files import descriptors_max
from penstock.volume.open_files import DESCRIPTORS_MAX

KEPT_LEAST = 128
"""Kept besides what logs have: the journal, checkpoints, folders that are synced, stages, the program's own files."""
FEW_CONNECTIONS = 1_000


def raise_limit() -> None:
    """Let this process have as many descriptors as it may give itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A system may not let a process have as many as it says.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max() -> int:
    """How many connections there is room for, all listeners together."""
    limit = descriptors_max()
    # Logs have a quarter, and while they are being closed a little more.
    kept = KEPT_LEAST + min(2 * DESCRIPTORS_MAX, limit // 2)
    return max(10, limit - kept)


class Connections:
    """The connections of all listeners of a server, counted. For one event loop."""

    def __init__(self, most: int | None = None) -> None:
        self.most = connections_max() if most is None else most
        self.count = 0

    @property
    def advice(self) -> str | None:
        """What to tell who started the server; None if there is room for many."""
        if self.most >= FEW_CONNECTIONS:
            return None
        return f"room for {self.most} connections only: the limit of open files is {descriptors_max()}, raise it (ulimit -n)"

    def set_aside(self, share: float) -> int:
        """Leave a *share* of them to a listener that counts its own; returns how many that are."""
        part = max(1, int(self.most * share))
        self.most -= part
        return part

    def take(self) -> bool:
        """One more; False if there is no room for it."""
        if self.count >= self.most:
            return False
        self.count += 1
        return True

    def give_back(self) -> None:
        """One of those that were taken is gone."""
        self.count -= 1
