"""The real file system: private files, no links, no pipes, locks that die with their owner, short writes finished."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock.files import LockHeld, RealFileSystem, RealLock, write_buffers_fully, write_fully
from penstock.settings import StoreSettings
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def files() -> RealFileSystem:
    """The operating system's files."""
    return RealFileSystem()


def test_a_store_is_private_to_its_user(tmp_path: Path) -> None:
    """Files are 0600 and folders 0700, all of them."""
    settings = StoreSettings(
        journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, reserve_bytes=4096, free_bytes_floor=0
    )
    with Volume.open(tmp_path / "store", settings=settings) as volume:
        volume.create_topic("t", 2)
    seen = 0
    for folder, _, names in os.walk(tmp_path / "store"):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for name in names:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600, name
            seen += 1
    assert seen >= 6


def test_links_pipes_and_folders_are_not_opened_as_files(tmp_path: Path, files: RealFileSystem) -> None:
    """What is planted in place of a segment is refused, and nothing hangs."""
    target = tmp_path / "target"
    target.write_bytes(b"x")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(OSError):
            files.open(str(tmp_path / name))
    with pytest.raises(FileExistsError):
        files.create(str(tmp_path / "link"))


def test_a_lock_is_held_once_and_names_its_owner(tmp_path: Path, files: RealFileSystem) -> None:
    """A second taker, in this process or another, learns the pid; release lets the next one in."""
    path = str(tmp_path / "LOCK")
    lock = files.lock(path)
    with pytest.raises(LockHeld) as caught:
        files.lock(path)
    assert caught.value.owner["pid"] == os.getpid()
    lock.release()
    lock.release()
    files.lock(path).release()


def test_a_released_lock_is_free_though_a_child_has_a_copy_of_its_file(tmp_path: Path, files: RealFileSystem) -> None:
    """As one has for a moment that another thread just starts."""
    path = str(tmp_path / "LOCK")
    lock = RealLock(path)
    copy = os.dup(lock.descriptor)
    lock.release()
    files.lock(path).release()
    os.close(copy)


def test_a_forked_child_does_not_take_the_lock_from_its_parent(tmp_path: Path, files: RealFileSystem) -> None:
    path = str(tmp_path / "LOCK")
    lock = files.lock(path)
    pid = os.fork()
    if not pid:
        lock.release()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(LockHeld):
        files.lock(path)
    lock.release()


def test_a_lock_goes_with_a_killed_process(tmp_path: Path, files: RealFileSystem) -> None:
    """SIGKILL leaves a lock file and no lock."""
    path = str(tmp_path / "LOCK")
    script = (
        "import sys; from penstock.files import RealFileSystem; "
        f"lock = RealFileSystem().lock({path!r}); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(LockHeld) as caught:
        files.lock(path)
    assert caught.value.owner["pid"] == child.pid
    child.kill()
    child.wait()
    child.stdout.close()
    assert child.stdin is not None
    child.stdin.close()
    files.lock(path).release()


class _Reluctant:
    """A file that takes at most three bytes a write."""

    path = "reluctant"

    def __init__(self) -> None:
        self.content = bytearray()

    def pwrite(self, data: Any, position: int) -> int:
        """Take three bytes."""
        taken = bytes(data[:3])
        self.content[position : position + len(taken)] = taken
        return len(taken)

    def pwritev(self, buffers: Sequence[Any], position: int) -> int:
        """Take three bytes."""
        return self.pwrite(b"".join(buffers), position)


def test_short_writes_are_finished() -> None:
    """R7: the count of every write is looked at."""
    file: Any = _Reluctant()
    write_fully(file, b"0123456789", 0)
    assert file.content == b"0123456789"
    write_buffers_fully(file, [b"abcd", b"efgh", b"ij"], 10)
    assert file.content == b"0123456789abcdefghij"


def test_a_write_that_takes_nothing_is_an_error() -> None:
    """No endless loop on a file that takes no bytes."""

    class Dead(_Reluctant):
        def pwrite(self, data: Any, position: int) -> int:
            del data, position
            return 0

    with pytest.raises(OSError, match="no bytes") as caught:
        write_fully(Dead(), b"x", 0)  # type: ignore[arg-type]
    assert caught.value.errno == errno.EIO


def test_blocks_are_reserved_without_changing_the_size(tmp_path: Path, files: RealFileSystem) -> None:
    """`reserve` takes disk space ahead; `truncate` gives it back."""
    file = files.create(str(tmp_path / "f"))
    assert file.reserve(0, 1 << 20)
    assert file.size() == 0
    assert os.stat(tmp_path / "f").st_blocks * 512 >= 1 << 20
    file.truncate(0)
    assert os.stat(tmp_path / "f").st_blocks * 512 < 1 << 20
    file.close()
    file.close()


def test_a_shared_map_is_seen_by_others_and_never_shrinks(tmp_path: Path, files: RealFileSystem) -> None:
    """Two maps of one file show the same memory; growing keeps the contents."""
    path = str(tmp_path / "positions")
    writer = files.map_shared(path, 4096, write=True)
    reader = files.map_shared(path, 4096, write=False)
    writer.view.cast("Q")[3] = 77
    assert reader.view.cast("Q")[3] == 77
    grown = files.map_shared(path, 8192, write=True)
    assert grown.view.cast("Q")[3] == 77
    assert os.stat(path).st_size == 8192
    files.map_shared(path, 4096, write=True)
    assert os.stat(path).st_size == 8192
    with pytest.raises(OSError, match="shorter"):
        files.map_shared(path, 1 << 20, write=False)
