"""
The stores that a process has open: one for each place, kept from task to task, since Spark's processes work for many of them.

A folder is read beside its owner, whoever that is. Who commits owns the store for that moment, or reaches its owner: see `owner`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.opening import open_store
from penstock.errors import StoreLocked, Unavailable
from penstock.sharing.opening import open_store as open_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.spark.options import StorePlace

T = TypeVar("T")
_PAUSE_FIRST_S, _PAUSE_MOST_S = 0.02, 0.5
_open: dict[tuple[Any, ...], Any] = {}


def patiently(place: StorePlace, work: Callable[[], T], *, when: type[Exception] = Unavailable) -> T:
    """What *work* gives, which is tried again while it raises *when*, as long as the option `retryTimeoutMs` says."""
    end = time.monotonic() + place.retry_ms / 1000
    pause = _PAUSE_FIRST_S
    while True:
        try:
            return work()
        except when:
            if time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(pause * 2, _PAUSE_MOST_S)


def reader(place: StorePlace) -> Any:
    """
    The store at *place*, to read and to stage: opened once in this process.

    Raises `StoreNotFound`, `Unavailable`, `Unauthenticated`.
    """
    key = (os.getpid(), place, None if place.is_server else _identity(place.path))
    found = _open.get(key)
    if found is None:
        for old in [one for one in _open if one[0] != key[0] or one[1] == place]:
            # Of the process that this one was forked from, or another store that was in the same folder.
            stale = _open.pop(old)
            if old[0] == key[0]:
                stale.close()
        if place.is_server:
            found = open_store(place.path, give_up=place.retry_ms / 1000)
        else:
            found = patiently(place, lambda: open_store(place.path, read_only=True))
        _open[key] = found
    return found


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(os.path.join(path, "store.json"))
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def owner(place: StorePlace) -> Iterator[Any]:
    """
    The store at *place*, to change it.

    A folder is owned for as long as the block takes, and made a store if it is none; beside an owner that shares it, the owner does the
    work. Raises `StoreLocked` if another process keeps it for itself for longer than the option `retryTimeoutMs` says.
    """
    if place.is_server:
        yield reader(place)
        return
    give_up_s = place.retry_ms / 1000
    with (
        _turn(place),
        patiently(place, lambda: open_shared(place.path, give_up=give_up_s), when=StoreLocked) as store,
    ):
        yield store


@contextlib.contextmanager
def _turn(place: StorePlace) -> Iterator[None]:
    """
    Spark's processes own a folder one after the other, by a lock on the folder itself.

    Nothing depends on it but time: those that come while another one owns the store for a moment would reach it through that one, and a
    helper would have to follow it.
    """
    try:
        folder = os.open(place.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it is made, or told, when it is opened
        yield
        return
    try:
        with contextlib.suppress(OSError):  # too late, or a file system that cannot
            patiently(place, lambda: fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB), when=BlockingIOError)
        yield
    finally:
        os.close(folder)
