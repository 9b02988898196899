"""
What sharing leaves in a store's folder, and how to reach it there.

None of it is data: each may be missing, left over from a process that was killed, or removed while nobody owns the store.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET_NAME = "share.socket"
"""The owner listens on it. Made and removed under the store's lock only."""
STARTING_NAME = "share.lock"
"""Locked while somebody starts a helper, so that eight siblings start one."""
LOG_NAME = "share.log"
"""What helpers have to say."""
SOCKET_MODE = 0o600
PATH_BYTES_MAX = 107
BACKLOG = 1_024


@contextlib.contextmanager
def socket_path(folder: str) -> Iterator[str]:
    """The path of the socket, short enough for the kernel: where it is too long, by way of a descriptor of the folder."""
    path = os.path.join(folder, SOCKET_NAME)
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def listen(folder: str) -> socket.socket:
    """Listen in *folder*, in place of an owner that died. Under the store's lock. Raises `OSError`."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The name appears with these rights: nobody gets in between, and no other thread's files are touched, as by a umask.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        remove_socket(folder)
        with socket_path(folder) as path:
            listening.bind(path)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def remove_socket(folder: str) -> None:
    """Remove the socket's name, if it is a socket's. Under the store's lock. Raises `OSError`."""
    path = os.path.join(folder, SOCKET_NAME)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def owners(folder: str) -> frozenset[int]:
    """The users whose processes may own the store in *folder*, and come to it: root, ours, and the folder's. Raises `OSError`."""
    return frozenset({0, os.geteuid(), os.stat(folder).st_uid})


def reach(folder: str, timeout_s: float) -> socket.socket:
    """Connect to who listens in *folder*. Raises `OSError`."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        with socket_path(folder) as path:
            connected.connect(path)
        connected.settimeout(None)
    except BaseException:
        connected.close()
        raise
    return connected
