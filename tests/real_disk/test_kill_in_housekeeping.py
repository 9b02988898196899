"""A process is killed before changes of a folder in compaction, vacuum, retention and deletion, on a real disk."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from penstock.files import RealFileSystem
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock
from penstock.volume.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=4_096, free_bytes_floor=0, reserve_bytes=0
)
DAY = 86_400.0


class KillingFiles(RealFileSystem):
    """Kills the process before one of the operations that change a folder, counted from when it is armed."""

    left = 0
    """Operations until then; 0: it is not armed."""

    def _count(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: str) -> Any:
        self._count()
        return super().create(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def remove_directory(self, path: str) -> None:
        self._count()
        super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


def _open(path: str, files: RealFileSystem | None = None, *, days: float = 10) -> Store:
    clock = FakeClock()
    clock.advance(days * DAY)
    return Store.open(path, settings=SETTINGS, files=files, clock=clock, background=False)


def _prepare(path: str) -> None:
    """Keys that came again, and a group that has finished all but one message, on its first day."""
    with _open(path, days=0) as store:
        store.create_topic("t", compaction=True, segment_bytes=1_500, retention_age=DAY)
        for number in range(60):
            store.publish("t", b"%d" % number + b"." * 50, key=b"k%d" % (number % 5))
        consumer = store.subscribe("t", "g", prefetch=100)
        for message in consumer.get_many(100, timeout=0):
            if message.offset != 30:
                consumer.ack(message)
        store.create_topic("gone")
        store.publish("gone", b"x")


ACTIONS: dict[str, Callable[[Store], object]] = {
    "compaction": lambda store: store.compact("t"),
    "vacuum": lambda store: store.vacuum("t"),
    "retention": lambda store: store.retain("t"),
    "deletion": lambda store: store.delete_topic("gone"),
}


def _kill(path: str, act: Callable[[Store], object], operation: int) -> bool:
    """Act in a child that is killed before so many operations; False if it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            files = KillingFiles()
            store = _open(path, files)
            files.left = operation
            act(store)
            files.left = 0
        finally:
            os._exit(0)
    return bool(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("what", ACTIONS)
def test_a_kill_leaves_the_old_or_the_new_state(what: str, tmp_path: Path) -> None:
    """The latest of each key and the unfinished message are there, nothing is damaged, and doing it again ends it."""
    prepared, path = str(tmp_path / "prepared"), str(tmp_path / "store")
    _prepare(prepared)
    # What vacuum takes is finished, and past its retention; all others keep the latest of each key.
    needed = {30, 59} if what == "vacuum" else {30, *range(55, 60)}
    kills = 0
    for operation in itertools.count(1, 4 if what == "compaction" else 2):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(prepared, path)
        if not _kill(path, ACTIONS[what], operation):
            break
        kills += 1
        assert not verify(path).findings
        with _open(path) as store:
            stored = {message.offset: message.key for message in store.read("t")}
            assert all(key == b"k%d" % (offset % 5) for offset, key in stored.items())
            assert needed <= set(stored)
            topics = [info.name for info in store.topics()]
            assert topics in (["gone", "t"], ["t"])
            if "gone" in topics:
                assert [message.value for message in store.read("gone")] == [b"x"]
            if what != "deletion" or "gone" in topics:
                ACTIONS[what](store)
            assert needed <= {message.offset for message in store.read("t")}
    assert kills >= 4
