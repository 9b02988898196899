"""
A sibling's side: the way to whoever owns the store in a folder, now or next.

Theory of operation
-------------------
`client/connection.py` asks for a connected socket, at first and whenever the last one broke. The owner's socket is tried. If nobody
listens, the lock on the store tells why: held by an owner that shares, it is about to listen (or to close), and is tried again in a
moment; held by one that does not, the store is refused; free, the owner has gone, and a helper is started to be the next one. All siblings
do this at once, and the locks sort them out: one starts a helper, and one process owns the store.

What the connection had under way is then sent again as `client/connection.py` says; batches carry a producer's id and sequence, which
the new owner has recovered from the journal, and so knows those that were stored.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

from penstock.client.address import peer_uid
from penstock.errors import StoreLocked
from penstock.files import lock_owner
from penstock.sharing.names import owners, reach
from penstock.sharing.starting import start_helper
from penstock.volume.identity import LOCK_NAME

PAUSE_SECONDS = 0.01
SURE_SECONDS = 0.2
"""How long an owner must be seen not to share."""


class SharedFolder:
    """Where the siblings of an owner connect to. See `penstock.client.address.Place`."""

    token = None

    def __init__(self, folder: str, settings: dict[str, Any], *, create: bool = False) -> None:
        """A helper that is started from here opens the store with *settings*, and makes it where *create* allows."""
        self._folder = folder
        self._settings = settings
        self._create = create

    @property
    def url(self) -> str:
        """The folder."""
        return self._folder

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the owner; without one, see to it that there is one. Raises `OSError`, `StoreLocked`, or why it cannot be opened."""
        end = time.monotonic() + timeout_s
        refused_since: float | None = None
        while True:
            try:
                return self._checked(reach(self._folder, max(0.1, end - time.monotonic())))
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                unreachable = error
            owner = lock_owner(os.path.join(self._folder, LOCK_NAME))
            now = time.monotonic()
            if owner is None:
                start_helper(self._folder, self._settings, create=self._create, timeout_s=max(0.1, end - now))
            locked = None if owner is None else StoreLocked(self._folder, owner.get("pid"), owner.get("host"), owner.get("url"))
            if owner is None or owner.get("shares") is True or not _is_named(owner):
                refused_since = None
            elif refused_since is None:
                refused_since = now
            elif locked is not None and now - refused_since > SURE_SECONDS:
                raise locked
            if now > end:
                raise locked or unreachable
            time.sleep(PAUSE_SECONDS)

    def _checked(self, connected: socket.socket) -> socket.socket:
        """Whoever listens must be one who may own the store; else its data would go to somebody who put a socket there."""
        if peer_uid(connected) in owners(self._folder):
            return connected
        connected.close()
        raise PermissionError("another user listens there")


def _is_named(owner: dict[str, Any]) -> bool:
    """
    Whether it may be the holder who wrote this into the lock.

    One that has just taken the lock has not written yet, and a busy machine may let it stand still there: nothing is in it then, or what
    the holder before it had written, who was killed.
    """
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    if owner.get("host") != socket.gethostname():
        return True
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
