"""
The simple face: a queue like `queue.Queue` that is on disk, here or on a server.

`put` returns when the item is durable. `get` takes an item; it is removed for good by `task_done`, in the order in which the
calling thread got them (one that got none finishes for another). What was got and not done when the process ends comes again: an
item may be handled twice after a crash, and is never lost. While the queue is open an item that was got stays with whoever got it,
however long that takes.

On a server any number of processes share a queue: an item goes to one of them, and sizes and `join` are about all of them. What a
process has got stays with it as long as its connection lives, a day at most; when the connection was lost it comes again, to anybody,
and `task_done` for it raises `LeaseExpired`. A server lets a process hold about 64 MiB of items that are not done: then `get` finds
nothing until one is. A bounded queue looks before each put how full it is, so processes that put in the same moment may go over the
bound by what they put in it; threads of one process never do.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.arguments import check_wait, check_whole_number
from penstock.client.address import is_url
from penstock.client.opening import open_store
from penstock.errors import BadArgument, Closed, TopicNotFound
from penstock.topics.options import options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.groups.delivery import Delivery
    from penstock.store.store import Store
    from penstock.topics.options import Options

NAME = "queue"
"""The topic of a queue that was given no name."""
GROUP = "queue"
REMOTE_LEASE_SECONDS = 86_400
"""An item of a server's queue is its getter's so long: the end of the connection gives it back, not a deadline."""
LOOK_SECONDS, REMOTE_LOOK_SECONDS = 1.0, 0.05
"""How often those who wait for room, or for the end, look again; others in this process wake them at once."""


class Queue:
    """
    A durable `queue.Queue` of bytes: in the folder *path*, in memory (``"memory:"``), or on a server.

    A folder is one process's at a time; a server, ``"penstock://host:port/jobs"``, is shared by many, and has as many queues as one
    likes, each a topic of that name. *name* is another way to say it, for Unix sockets too; without one it is ``queue``. Safe to use
    from many threads.

    *maxsize* bounds the items that wait: `put` then blocks. An item that was nacked *max_deliveries* times, see `task_failed`, becomes
    a dead letter of the queue's topic. *sync* is the topic's mode, and *priorities* lets items have one, if this makes the topic.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, name: str | None = None, maxsize: int = 0, max_deliveries: int = 5, sync: str | None = None,
        priorities: bool = False,
    ) -> None:  # fmt: skip
        self.maxsize = check_whole_number("maxsize", maxsize, 0, 1 << 62)
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
        self._is_remote = isinstance(text, str) and is_url(text)
        if self._is_remote:
            path, name = _split(text, name)
        self._topic = NAME if name is None else name
        self._store = open_store(path)
        try:
            try:
                self._store.topic(self._topic)
            except TopicNotFound:
                self._store.create_topic(self._topic, sync=sync, priorities=priorities)
            self._consumer = self._store.subscribe(
                self._topic, GROUP, prefetch=1_000_000, prefetch_bytes=1 << 40, max_deliveries=max_deliveries,
                lease=REMOTE_LEASE_SECONDS if self._is_remote else None,
            )  # fmt: skip
        except BaseException:
            self._store.close()
            raise
        self._held: dict[int, deque[Delivery]] = {}
        self._lock = threading.RLock()
        """What is entered, and not the condition: see penstock.threads."""
        self._changed = threading.Condition(self._lock)
        self._reserved = 0

    @property
    def store(self) -> Store:
        """The store below, for everything that this face does not have."""
        return self._store

    # -- putting ----------------------------------------------------------------------------------------------------

    def put(
        self, item: bytes, block: bool = True, timeout: float | None = None, *, ttl: Any = None, delay: Any = None,  # noqa: FBT001, FBT002 - as in queue.Queue
        priority: str | None = None,
    ) -> None:  # fmt: skip
        """
        Add *item*; durable when it returns. Raises `queue.Full` if there is no room (in time).

        *ttl*, *delay* and *priority* are those of `Store.publish`; an item that is not due yet takes a place too.
        """
        self._put([item], options(ttl, delay, priority, None), block=block, timeout=timeout)

    def put_nowait(self, item: bytes) -> None:
        """Add *item* or raise `queue.Full`."""
        self.put(item, block=False)

    def put_many(
        self, items: Iterable[bytes], timeout: float | None = None, *, ttl: Any = None, delay: Any = None, priority: str | None = None
    ) -> None:  # fmt: skip
        """Add several items at once, all with the same options: all of them or none."""
        chosen = list(items)
        if chosen:
            self._put(chosen, options(ttl, delay, priority, None), block=True, timeout=timeout)

    def _put(self, items: list[bytes], chosen: Options | None, *, block: bool, timeout: float | None) -> None:
        wait_s = check_wait("timeout", timeout) if block else 0.0
        for item in items:
            if item is None:
                raise BadArgument("item", "None", "must be bytes")
        if not self.maxsize:
            self._publish(items, chosen)
            return
        end = None if wait_s is None else time.monotonic() + wait_s
        with self._lock:
            while (size := self.qsize()) + self._reserved + len(items) > self.maxsize:
                if self._reserved and size + len(items) <= self.maxsize:
                    # What is on its way to the disk may be counted twice, or may not come: that is known in a moment.
                    self._changed.wait(REMOTE_LOOK_SECONDS)
                elif not self._wait(end):
                    raise queue.Full
            # Its place is taken before it is there, so that nobody else takes it while this one waits for the disk.
            self._reserved += len(items)
        try:
            self._publish(items, chosen)
        finally:
            with self._lock:
                self._reserved -= len(items)
                self._changed.notify_all()

    def _wait(self, end: float | None) -> bool:
        """Wait for a change, under the lock; False if it is past *end* already, by `time.monotonic`."""
        left = REMOTE_LOOK_SECONDS if self._is_remote else LOOK_SECONDS
        if end is not None:
            left = min(left, end - time.monotonic())
        if left <= 0:
            return False
        self._changed.wait(left)
        return True

    def _publish(self, items: list[bytes], chosen: Options | None) -> None:
        if chosen is not None:
            given: Any = {"ttls": chosen.ttl, "delays": chosen.delay, "priorities": chosen.priority}
            self._store.publish_many(self._topic, items, **given)
        elif len(items) == 1:
            self._store.publish(self._topic, items[0])
        else:
            self._store.publish_many(self._topic, items)

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
        if not self._is_remote:
            message.__enter__()  # its lease goes on until it is done
        self._mine().append(message)
        with self._lock:
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
        with self._lock:
            self._changed.notify_all()

    def task_failed(self, reason: object = None, delay: float | None = None) -> None:
        """The item that this thread got first could not be handled: it comes again after a while, or becomes a dead letter."""
        self._consumer.nack(self._finish(1), reason=reason, delay=delay)
        with self._lock:
            self._changed.notify_all()

    def _finish(self, count: int) -> list[Delivery]:
        check_whole_number("count", count, 1, 1 << 31)
        with self._lock:
            # Its own first; a thread that got none finishes for another, as with queue.Queue.
            tables = [self._mine(), *list(self._held.values())]
            if sum(len(held) for held in self._held.values()) < count:
                raise ValueError("task_done() called too many times")
            return [next(held for held in tables if held).popleft() for _ in range(count)]

    # -- looking ----------------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Items that nobody has taken; those that wait to be tried again count."""
        unfinished, held = self._consumer.backlog()
        return unfinished - held

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
        with self._lock:
            while self._consumer.backlog()[0]:
                if not self._wait(end):
                    return False
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


def _split(url: str, name: str | None) -> tuple[str, str | None]:
    """The URL of the server in that of a queue, and the queue's name. Raises `BadArgument`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadArgument("path", "a URL", f"cannot be read: {error}") from None
    named = unquote(parts.path).strip("/")
    if parts.scheme == "penstock+unix" or not named:
        return url, name
    if name not in (None, named):
        raise BadArgument("name", repr(name), f"the URL names the queue {named!r}")
    return urlunsplit(parts._replace(path="")), named
