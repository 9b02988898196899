"""A store on the simulated file system that can be killed, cut off from power, or closed in order, and opened again; and small helpers."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Consumer, Delivery
    from penstock.groups.group import Group

PATH = "/s"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
DAY_S = 86_400.0
SOON_S = 30.0
"""Seconds to wait for what a fault would keep from happening at all."""


class Sim:
    """One disk, one clock, one store at a time. Nothing happens that the test does not do."""

    def __init__(self, settings: StoreSettings = SETTINGS) -> None:
        self.settings = settings
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(PATH, settings=self.settings, files=self.files, clock=self.clock, background=False)

    def kill(self) -> Store:
        """SIGKILL, and the next process opens the store."""
        self.files = self.files.kill()
        self.store = self._open()
        return self.store

    def lose_power(self, seed: int = 0, keep: Any = "nothing") -> Store:
        """The power goes; of what was not synced *keep* survives."""
        self.files = self.files.crash(random.Random(seed), keep=keep)
        self.store = self._open()
        return self.store

    def restart(self) -> Store:
        """An orderly restart."""
        self.store.close()
        self.store = self._open()
        return self.store

    def checkpoint(self) -> None:
        """Everything so far goes into a checkpoint."""
        self.store._volume.checkpoint()

    def group(self, topic: str = "t", name: str = "g") -> Group:
        """The group as the engine sees it."""
        return self.store._group(topic, name)

    def failures(self, partition: int = 0, topic: str = "t", name: str = "g") -> dict[int, int]:
        """How often each unfinished message of a partition has failed."""
        return {at: failure.count for at, failure in self.group(topic, name).cursors[partition].failures.items()}


def one(consumer: Consumer) -> Delivery:
    """The next message; there must be one."""
    message = consumer.get(timeout=0)
    assert message is not None, "a message should be ready"
    return message


def take(consumer: Consumer, at_most: int = 1_000) -> list[Delivery]:
    """Everything that is ready, handed out one by one and not finished."""
    messages: list[Delivery] = []
    while len(messages) < at_most and (message := consumer.get(timeout=0)) is not None:
        messages.append(message)
    return messages


def offsets(messages: list[Delivery]) -> list[int]:
    """Where they stand."""
    return [message.offset for message in messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Values that say their place."""
    return [b"%d" % number for number in range(first, first + count)]


def open_store(files: SimulatedFileSystem | None = None, clock: FakeClock | None = None) -> Store:
    """A store with the default settings, on *files* or in memory, in which nothing happens by itself."""
    if files is None:
        return Store.open("memory:", clock=clock or FakeClock(), background=False)
    return Store.open("/store", files=files, clock=clock or FakeClock(), background=False)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run *work* in a thread; its result is appended to the list."""
    results: list[Any] = []

    def run() -> None:
        with contextlib.suppress(PenstockError):
            results.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results
