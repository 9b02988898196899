"""
The stores that a process has open: one for each place, kept from task to task, since Spark's processes work for many of them.

A folder is read beside its owner, whoever that is. Who commits must own the store, or reach its owner: see `owner`.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.opening import open_store
from penstock.errors import StoreLocked, Unavailable

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
    The store at *place*, to change it. A folder is owned for as long as the block takes, and made if it is not there.

    Raises `StoreLocked` if another process keeps it for longer than the option `retryTimeoutMs` says.
    """
    if place.is_server:
        yield reader(place)
        return
    with patiently(place, lambda: open_store(place.path), when=StoreLocked) as store:
        yield store
