"""
Starting a helper: a small process that owns a store for others.

It is not the child of who starts it, has none of its descriptors, and ends by itself some seconds after the last sibling has left
(`server/helper.py`). One is started at a time: whoever starts one holds `share.lock`, and hands it to the helper, which lets go of it when
it serves, or dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import StoreLocked, StoreNotFound
from penstock.files import LockHeld, RealLock, lock_owner
from penstock.sharing import names
from penstock.volume.identity import LOCK_NAME
from penstock.wire.failures import decode_error

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "penstock.server.helper"
LOG_BYTES_MAX = 1024 * 1024
REPLY_BYTES_MAX = 64 * 1024


def start_helper(folder: str, settings: dict[str, Any], *, create: bool, timeout_s: float) -> None:
    """
    Start a helper for the store in *folder*, unless somebody else does so now; returns when it listens, or is not needed any more.

    Raises:
        PenstockError: the helper could not open the store, and says why.
        OSError: it could not be started, or is not ready yet.
    """
    try:
        starting = RealLock(os.path.join(folder, names.STARTING_NAME))
    except LockHeld:
        return
    except FileNotFoundError:
        raise StoreNotFound(folder) from None
    end = time.monotonic() + timeout_s
    try:
        if lock_owner(os.path.join(folder, LOCK_NAME)) is not None:
            return  # one that was being started when we looked has begun since
        with _log(folder) as log:
            helper = subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs us
                [
                    _interpreter(), "-P", "-m", MODULE, folder, str(starting.descriptor),
                    json.dumps({"settings": settings, "create": create}),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/", start_new_session=True,
                pass_fds=(starting.descriptor,), env=_environment(),
            )  # fmt: skip
    finally:
        starting.leave()  # the helper has it now, if it began
    assert helper.stdout is not None
    with helper.stdout as replies:
        reply = _read_line(replies.fileno(), end)
    if helper.poll() is None and not reply:
        helper.kill()  # only if it has not begun; what it has begun is no child of ours any more
    helper.wait()
    _judge(reply, folder)


def _interpreter() -> str:
    """Python; where it is part of another program (a web server, say), the one that this program's folders belong to."""
    if os.path.basename(sys.executable or "").startswith(("python", "pypy")):
        return sys.executable
    return os.path.join(sys.prefix, "bin", "python3")


def _environment() -> dict[str, str]:
    """Ours, with the modules that we see: it must find the same Penstock, whatever this program did to its path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)}


@contextlib.contextmanager
def _log(folder: str) -> Iterator[int]:
    """Where the helper writes what goes wrong; nowhere on a disk that takes no more."""
    path = os.path.join(folder, names.LOG_NAME)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
        if os.fstat(descriptor).st_size > LOG_BYTES_MAX:
            os.ftruncate(descriptor, 0)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_line(descriptor: int, end: float) -> bytes:
    """One line, or what came of it before *end*."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    found = b""
    while not found.endswith(b"\n") and len(found) < REPLY_BYTES_MAX:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        data = os.read(descriptor, REPLY_BYTES_MAX)
        if not data:
            break
        found += data
    return found


def _judge(reply: bytes, folder: str) -> None:
    if not reply.endswith(b"\n"):
        raise OSError(f"no helper is ready to own it yet; {os.path.join(folder, names.LOG_NAME)} may say why")
    fields = json.loads(reply)
    if "code" not in fields:
        return
    error = decode_error(fields)
    if not isinstance(error, StoreLocked):  # then somebody owns it, which is as good
        raise error
