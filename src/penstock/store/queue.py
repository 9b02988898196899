"""
The simple face: a queue like `queue.Queue` that is on disk.

`put` returns when the item is durable. `get` takes an item; it is removed for good by `task_done`, in the order in which the
calling thread got them (one that got none finishes for another). What was got and not done when the process ends comes again: an
item may be handled twice after a crash, and is never lost. While the queue is open an item that was got stays with whoever got it,
however long that takes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from penstock.arguments import check_wait, check_whole_number
from penstock.errors import BadArgument, Closed
from penstock.store.store import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from penstock.groups.delivery import Delivery

TOPIC = "queue"
GROUP = "queue"


class Queue:
    """
    A durable `queue.Queue` of bytes in the folder *path* (or ``"memory:"``); one process at a time. Safe to use from many threads.

    *maxsize* bounds the items that wait: `put` then blocks. An item that was nacked *max_deliveries* times, see `task_failed`, becomes
    a dead letter of the queue's topic.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, maxsize: int = 0, max_deliveries: int = 5, sync: str | None = None
    ) -> None:
        self.maxsize = check_whole_number("maxsize", maxsize, 0, 1 << 62)
        self._store = Store.open(path)
        try:
            if TOPIC not in {info.name for info in self._store.topics()}:
                self._store.create_topic(TOPIC, sync=sync)
            self._consumer = self._store.subscribe(
                TOPIC, GROUP, prefetch=1_000_000, prefetch_bytes=1 << 40, max_deliveries=max_deliveries
            )
        except BaseException:
            self._store.close()
            raise
        self._held: dict[int, deque[Delivery]] = {}
        self._changed = threading.Condition()
        self._reserved = 0

    @property
    def store(self) -> Store:
        """The store below, for everything that this face does not have."""
        return self._store

    # -- putting ----------------------------------------------------------------------------------------------------

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - as in queue.Queue
        """Add *item*; durable when it returns. Raises `queue.Full` if there is no room (in time)."""
        self._put([item], block=block, timeout=timeout)

    def put_nowait(self, item: bytes) -> None:
        """Add *item* or raise `queue.Full`."""
        self.put(item, block=False)

    def put_many(self, items: Iterable[bytes], timeout: float | None = None) -> None:
        """Add several items at once: all of them or none."""
        chosen = list(items)
        if chosen:
            self._put(chosen, block=True, timeout=timeout)

    def _put(self, items: list[bytes], *, block: bool, timeout: float | None) -> None:
        wait_s = check_wait("timeout", timeout) if block else 0.0
        for item in items:
            if item is None:
                raise BadArgument("item", "None", "must be bytes")
        if not self.maxsize:
            self._publish(items)
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self.qsize() + self._reserved + len(items) <= self.maxsize, wait_s):
                raise queue.Full
            # Its place is taken before it is there, so that nobody else takes it while this one waits for the disk.
            self._reserved += len(items)
        try:
            self._publish(items)
        finally:
            with self._changed:
                self._reserved -= len(items)
                self._changed.notify_all()

    def _publish(self, items: list[bytes]) -> None:
        if len(items) == 1:
            self._store.publish(TOPIC, items[0])
        else:
            self._store.publish_many(TOPIC, items)

    # -- getting ----------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:  # noqa: FBT001, FBT002 - as in queue.Queue
        """Take the next item; raises `queue.Empty` if there is none (in time)."""
        message = self._consumer.get(timeout if block else 0)
        if message is None:
            raise queue.Empty
        return self._take(message)

    def get_nowait(self) -> bytes:
        """Take the next item or raise `queue.Empty`."""
        return self.get(block=False)

    def get_many(self, count: int, timeout: float | None = None) -> list[bytes]:
        """Take up to *count* items: those that are there, and if there is none, the first that come in time. May be empty."""
        return [self._take(message) for message in self._consumer.get_many(count, timeout)]

    def _take(self, message: Delivery) -> bytes:
        message.__enter__()  # its lease goes on until it is done
        self._mine().append(message)
        with self._changed:
            self._changed.notify_all()
        value = message.value
        return b"" if value is None else value

    def _mine(self) -> deque[Delivery]:
        identity = threading.get_ident()
        held = self._held.get(identity)
        if held is None:
            held = self._held.setdefault(identity, deque())
        return held

    def task_done(self, count: int = 1) -> None:
        """The *count* items that this thread got first, and has not finished yet, are done."""
        self._consumer.ack(self._finish(count))
        with self._changed:
            self._changed.notify_all()

    def task_failed(self, reason: object = None, delay: float | None = None) -> None:
        """The item that this thread got first could not be handled: it comes again after a while, or becomes a dead letter."""
        self._consumer.nack(self._finish(1), reason=reason, delay=delay)
        with self._changed:
            self._changed.notify_all()

    def _finish(self, count: int) -> list[Delivery]:
        check_whole_number("count", count, 1, 1 << 31)
        with self._changed:
            # Its own first; a thread that got none finishes for another, as with queue.Queue.
            tables = [self._mine(), *list(self._held.values())]
            if sum(len(held) for held in self._held.values()) < count:
                raise ValueError("task_done() called too many times")
            return [next(held for held in tables if held).popleft() for _ in range(count)]

    # -- looking ----------------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Items that nobody has taken; those that wait to be tried again count."""
        return self._unfinished() - self._consumer.in_flight

    def _unfinished(self) -> int:
        return self._store.stats().topics[TOPIC].groups[GROUP].lag

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        return True

    def empty(self) -> bool:
        """Whether nobody could take an item now."""
        return self.qsize() <= 0

    def full(self) -> bool:
        """Whether there is no room now."""
        return bool(self.maxsize) and self.qsize() >= self.maxsize

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every item that was put is done; False if that took longer than *timeout* seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._unfinished():
                left = 1.0 if end is None else min(1.0, end - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    # -- the end ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all that was done is durable."""
        self._consumer.flush()

    def close(self) -> None:
        """Let go of the queue. What was got and not done comes again at the next opening."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return f"<Queue {self._store.path}, {self.qsize()} items>"
        except Closed:
            return f"<Queue {self._store.path}, closed>"
