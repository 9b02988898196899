"""Small words that most tests of the suite share."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from penstock import Store
    from penstock.aio import AsyncConsumer, AsyncDelivery, AsyncStore, Opening
    from penstock.groups.group import Group

PATIENCE = 60.0
"""Seconds that a test waits for something that must happen; it is never a measure of anything."""
SOON = 30.0
"""The same where waiting in vain is what a known fault looks like."""
WHOLE = 240.0
"""Seconds that a whole test may take: less than pytest gives it, so that it says where it hung."""

T = TypeVar("T")


class Opener(Protocol):
    """Opens a store; what is given are settings."""

    def __call__(self, **settings: Any) -> Opening[AsyncStore]: ...


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* in a loop of its own; what hangs is cancelled."""

    async def limited() -> T:
        async with asyncio.timeout(WHOLE):
            return await main

    return asyncio.run(limited())


async def until(holds: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it comes to hold."""
    end = asyncio.get_running_loop().time() + seconds
    while not holds():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.002)
    return True


async def done(tasks: asyncio.Future[Any] | list[asyncio.Future[Any]] | list[asyncio.Task[Any]], seconds: float = SOON) -> bool:
    """Whether they all end, however they do."""
    chosen = tasks if isinstance(tasks, list) else [tasks]
    _, waiting = await asyncio.wait(chosen, timeout=seconds)
    return not waiting


async def one(consumer: AsyncConsumer, seconds: float = PATIENCE) -> AsyncDelivery:
    """The next message; there must be one."""
    message = await consumer.get(seconds)
    assert message is not None, "a message should come"
    return message


async def take(consumer: AsyncConsumer) -> list[AsyncDelivery]:
    """Everything that is ready now."""
    return await consumer.get_many(1000, timeout=0)


def places(messages: list[AsyncDelivery]) -> list[tuple[int, int]]:
    """The offset of each message, and how often it was delivered."""
    return [(message.offset, message.attempt) for message in messages]


async def stored(store: AsyncStore, topic: str = "t") -> list[bytes | None]:
    """The values that a topic holds."""
    return [message.value async for message in store.read(topic)]


def position(store: AsyncStore, topic: str = "t", group: str = "g", partition: int = 0) -> int:
    """The next offset of a group."""
    return store.stats().topics[topic].groups[group].positions[partition]


OWNERS: dict[str, Store] = {}
"""The stores of servers in this process, by their address."""


def owner_of(store: AsyncStore) -> Store:
    """The store that does the work: the plain one below, or that of the server."""
    return OWNERS.get(store.sync.path, store.sync)


def group_of(store: AsyncStore, topic: str = "t", name: str = "g") -> Group:
    """The group below."""
    found = owner_of(store)._groups.find(store.topic(topic).topic_id, name)
    assert found is not None
    return found


def waiting(store: AsyncStore, topic: str = "t", name: str = "g") -> int:
    """How many wait for messages of a group."""
    return len(group_of(store, topic, name)._waiters)


class Gate:
    """Holds a function up in its thread, so that a test can act meanwhile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.reached = threading.Event()
        self.open = threading.Event()
        self.passed = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.reached.set()
        assert self.open.wait(PATIENCE)
        try:
            return self._function(*arguments, **options)
        finally:
            self.passed.set()


@contextmanager
def counted_threads() -> Iterator[list[int]]:
    """How many threads there were at most while the block ran beyond those of before: in a list, once it has ended."""
    before, found, stop = threading.active_count(), [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            found[0] = max(found[0], threading.active_count() - before - 1)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()
