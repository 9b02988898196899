"""
A process is killed before every change of the disk in compaction, vacuum, expiry, retention and deletion: writes, syncs, names, all of it.

What the kernel has got outlives the process on any file system, so the stores lie in memory where that can be had: nothing waits for a
disk then, and there is time for all of it. What power loss leaves of the same changes is in tests/crash/test_housekeeping.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.files import RealFile, RealFileSystem
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock
from penstock.volume.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=4_096, free_bytes_floor=0, reserve_bytes=0
)
DAY = 86_400.0


class KillingFiles(RealFileSystem):
    """Kills the process before one of the operations that change the disk, counted from when it is armed."""

    left = 0
    """Operations until then; 0: it is not armed."""
    done: Counter[str]

    def count(self, kind: str) -> None:
        """One of *kind* is about to be done."""
        if self.left:
            self.done[kind] += 1
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: str, *, write: bool = False) -> Any:
        return self._counted(super().open(path, write=write))

    def create(self, path: str) -> Any:
        self.count("create")
        return self._counted(super().create(path))

    def _counted(self, file: RealFile) -> KillingFile:
        counted = KillingFile(file.path, file._descriptor)
        file._descriptor = -1
        counted.files = self
        return counted


class KillingFile(RealFile):
    """One of its files."""

    __slots__ = ("files",)

    files: KillingFiles


def _counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        (self.files if isinstance(self, KillingFile) else self).count(name)
        return original(self, *arguments)

    return method


for _name in ("pwrite", "pwritev", "truncate", "reserve", "sync_data"):
    setattr(KillingFile, _name, _counting(_name, getattr(RealFile, _name)))
for _name in ("rename", "link", "unlink", "make_directory", "remove_directory", "sync_directory"):
    setattr(KillingFiles, _name, _counting(_name, getattr(RealFileSystem, _name)))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory; an ordinary one where there is none such."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-kill-", dir=folder) as path:
        yield Path(path)


def _open(path: str, files: RealFileSystem | None = None, *, days: float = 10) -> Store:
    clock = FakeClock()
    clock.advance(days * DAY)
    return Store.open(path, settings=SETTINGS, files=files, clock=clock, background=False)


def _prepare(path: str) -> None:
    """Keys that came again, one that was deleted, and a group that has finished all but one message, on its first day."""
    with _open(path, days=0) as store:
        store.create_topic("t", compaction=True, segment_bytes=1_500, retention_age=DAY)
        for number in range(30):
            store.publish("t", b"%d" % number + b"." * 50, key=b"k%d" % (number % 5))
        consumer = store.subscribe("t", "g", prefetch=100)
        for message in consumer.get_many(100, timeout=0):
            if message.offset != 15:
                consumer.ack(message)
        store.create_topic("graves", compaction=True, segment_messages=2)
        for value in (b"x", None, b"y"):
            store.publish("graves", value, key="k" if value != b"y" else "other")
        store.create_topic("mortal", segment_bytes=1_500)
        store.publish_many("mortal", [b"." * 50] * 30, ttls=[60.0] * 29 + [None])
        for number in range(12):
            store.publish("mortal", b"." * 50, ttl=None if number == 4 else 60.0)
        store.create_topic("gone")
        store.publish("gone", b"x")


ACTIONS: dict[str, Callable[[Store], object]] = {
    "compaction": lambda store: store.compact(),
    "vacuum": lambda store: store.vacuum("t"),
    "expiry": lambda store: store.vacuum("mortal"),
    "retention": lambda store: store.retain("t"),
    "deletion": lambda store: store.delete_topic("gone"),
}

LIVING = {29, 34}
"""Messages that do not expire."""
LEAST = {"compaction": 40, "vacuum": 40, "expiry": 30, "retention": 15, "deletion": 10}
"""Operations that there are, at least."""


def _kill(path: str, act: Callable[[Store], object], operation: int, end: str) -> bool:
    """Act in a child that is killed before so many operations; False if it came to its end, and wrote to *end* what it had done."""
    pid = os.fork()
    if pid == 0:
        try:
            files = KillingFiles()
            files.done = Counter()
            store = _open(path, files)
            files.left = operation
            act(store)
            files.left = 0
            Path(end).write_text(json.dumps(files.done))
        finally:
            os._exit(0)
    return bool(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("what", ACTIONS)
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_state(what: str, memory: Path) -> None:
    """The latest of each key, also a tombstone, and the unfinished message are there, nothing is damaged, and doing it again ends it."""
    prepared, path, end = (str(memory / name) for name in ("prepared", "store", "end"))
    _prepare(prepared)
    # What vacuum takes is finished, and past its retention; all others keep the latest of each key.
    needed = {15} if what == "vacuum" else {15, *range(25, 30)}
    kills = 0
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(prepared, path)
        if not _kill(path, ACTIONS[what], kills + 1, end):
            break
        kills += 1
        assert not verify(path).findings
        with _open(path) as store:
            stored = {message.offset: message.key for message in store.read("t")}
            assert all(key == b"k%d" % (offset % 5) for offset, key in stored.items())
            assert needed <= set(stored)
            topics = [info.name for info in store.topics()]
            assert topics in (["gone", "graves", "mortal", "t"], ["graves", "mortal", "t"])
            if "gone" in topics:
                assert [message.value for message in store.read("gone")] == [b"x"]
            graves = {message.offset: message.value for message in store.read("graves")}
            assert graves in ({0: b"x", 1: None, 2: b"y"}, {1: None, 2: b"y"})
            assert {message.offset for message in store.read("mortal")} >= LIVING
            if what != "deletion" or "gone" in topics:
                ACTIONS[what](store)
            if what == "compaction":
                # The tombstone, whose grace began when nothing else of its key was left, is there, and what it deletes is not.
                assert {message.offset: message.value for message in store.read("graves")} == {1: None, 2: b"y"}
            assert needed <= {message.offset for message in store.read("t")}
            if what == "expiry":
                assert {message.offset for message in store.read("mortal")} == LIVING
    done = json.loads(Path(end).read_text())
    print(f"{what}: killed before each of {kills} operations: {done}")
    assert sum(done.values()) == kills
    assert kills >= LEAST[what]
    assert done.keys() >= {"create", "pwrite", "sync_data", "rename", "sync_directory"}
