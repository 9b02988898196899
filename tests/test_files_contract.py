"""What every file system does alike: the operating system's, the one in memory, and the simulated one."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.files import LockHeld, NotRegular, RealFileSystem, write_buffers_fully, write_fully
from penstock.memory_files import MemoryFileSystem
from penstock.testing import SimulatedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.files import FileSystem

LARGE = 300_000
"""More than any block that a file begins with."""


@pytest.fixture(params=[RealFileSystem, MemoryFileSystem, SimulatedFileSystem])
def files(request: pytest.FixtureRequest) -> FileSystem:
    """Each file system in turn."""
    made: FileSystem = request.param()
    return made


@pytest.fixture(params=[MemoryFileSystem, SimulatedFileSystem])
def small(request: pytest.FixtureRequest) -> FileSystem:
    """Those that can be given a size, with 100 bytes and a folder /d."""
    made: FileSystem = request.param(capacity_bytes=100)
    made.make_directory("/d")
    return made


@pytest.fixture
def folder(files: FileSystem, tmp_path: Path) -> str:
    """An empty folder."""
    if isinstance(files, RealFileSystem):
        return str(tmp_path)
    files.make_directory("/folder")
    return "/folder"


def put(files: FileSystem, path: str, content: bytes) -> None:
    """Make a file with this content."""
    file = files.create(path)
    write_fully(file, content, 0)
    file.close()


def get(files: FileSystem, path: str) -> bytes:
    """The content of a file."""
    file = files.open(path)
    try:
        return file.pread(file.size() + 1, 0)
    finally:
        file.close()


# Content


def test_what_is_written_is_read_back(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    assert file.pwrite(b"hello", 0) == 5
    assert file.pread(5, 0) == b"hello"
    assert file.pread(3, 1) == b"ell"
    assert isinstance(file.pread(3, 1), bytes)
    assert file.size() == 5
    file.close()


def test_reading_past_the_end_gives_less_or_nothing(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"hello")
    file = files.open(f"{folder}/f")
    assert file.pread(100, 3) == b"lo"
    assert file.pread(100, 5) == b""
    assert file.pread(100, 500) == b""
    assert file.pread(0, 0) == b""
    file.close()


def test_an_empty_file_has_no_bytes(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    assert file.size() == 0
    assert file.pread(10, 0) == b""
    assert bytes(file.map()) == b""
    file.close()


def test_bytes_can_be_overwritten_in_the_middle_and_across_the_end(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"abcdef", 0)
    file.pwrite(b"XY", 2)
    file.pwrite(b"12345", 4)
    assert file.pread(100, 0) == b"abXY12345"
    file.close()


def test_any_kind_of_buffer_is_taken_in_order(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    assert file.pwritev([b"ab", bytearray(b"cd"), b"", memoryview(b"xefx")[1:3]], 1) == 6
    assert file.pwrite(memoryview(bytearray(b"gh")), 7) == 2
    assert file.pread(100, 0) == b"\0abcdefgh"
    assert file.pwrite(memoryview(b"12345678").cast("I"), 0) == 8
    assert file.pread(100, 0) == b"12345678h"
    file.close()


def test_more_buffers_than_the_kernel_takes_at_once_are_taken(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    buffers = [b"%d," % number for number in range(3000)]
    write_buffers_fully(file, buffers, 0)
    assert file.pread(LARGE, 0) == b"".join(buffers)
    file.close()


def test_writing_nothing_does_not_make_a_file_longer(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    assert file.pwrite(b"", 50) == 0
    assert file.pwritev([], 50) == 0
    assert file.size() == 0
    file.close()


@pytest.mark.parametrize("position", [10, LARGE])
def test_a_hole_reads_as_zeros(files: FileSystem, folder: str, position: int) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"start", 0)
    file.pwrite(b"end", position)
    assert file.size() == position + 3
    assert file.pread(2 * LARGE, 0) == b"start" + bytes(position - 5) + b"end"
    file.close()


def test_a_file_that_grows_by_many_appends_keeps_every_byte(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    expected = bytearray()
    for number in range(3000):
        piece = b"%d-" % number * (number % 60)
        assert file.pwrite(piece, len(expected)) == len(piece)
        expected += piece
    assert len(expected) > LARGE
    assert file.pread(len(expected) + 1, 0) == expected
    file.close()


@pytest.mark.parametrize("size", [0, 3, 5, 70_001, LARGE - 1])
def test_bytes_that_were_cut_off_do_not_come_back(files: FileSystem, folder: str, size: int) -> None:
    """Neither when the file is extended, nor behind a hole."""
    file = files.create(f"{folder}/f")
    content = b"x" * LARGE
    file.pwrite(content, 0)
    file.truncate(size)
    assert file.size() == size
    assert file.pread(LARGE, 0) == content[:size]
    file.truncate(size + 5000)
    assert file.pread(2 * LARGE, 0) == content[:size] + bytes(5000)
    file.truncate(size)
    file.pwrite(b"y", size + 9000)
    assert file.pread(2 * LARGE, 0) == content[:size] + bytes(9000) + b"y"
    file.close()


def test_truncating_to_the_same_size_changes_nothing(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"hello", 0)
    file.reserve(0, 1 << 20)
    file.truncate(5)
    file.truncate(5)
    file.pwrite(b"!", 5)
    assert file.pread(100, 0) == b"hello!"
    file.close()


def test_reserving_changes_neither_size_nor_content(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"hello", 0)
    assert file.reserve(2, 1 << 20)
    assert file.size() == 5
    assert file.pread(100, 0) == b"hello"
    file.pwrite(b"far", 1 << 16)
    assert file.pread(1 << 17, 0) == b"hello" + bytes((1 << 16) - 5) + b"far"
    file.close()


def test_syncing_and_dropping_the_cache_keep_the_content(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"hello", 0)
    file.sync_data()
    file.drop_cache()
    files.sync_directory(folder)
    assert file.pread(100, 0) == b"hello"
    file.close()


# Maps


def test_a_map_shows_the_whole_file_and_cannot_be_written_to(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"hello")
    file = files.open(f"{folder}/f")
    view = file.map()
    assert view.readonly
    assert len(view) == 5
    assert bytes(view) == b"hello"
    with pytest.raises(TypeError):
        view[0] = 1
    file.close()


@pytest.mark.parametrize("length", [1000, LARGE])
def test_a_map_outlives_closing_appending_and_unlinking(files: FileSystem, folder: str, length: int) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"x" * length, 0)
    views = [file.map()]
    for number in range(50):
        file.pwrite(b"y" * length, (number + 1) * length)
        if number % 10 == 0:
            views.append(file.map())
    file.close()
    files.unlink(f"{folder}/f")
    assert views[0] == b"x" * length
    assert [len(view) // length for view in views] == [1, 2, 12, 22, 32, 42]
    assert all(bytes(view[length:]).strip(b"y") == b"" for view in views)


def test_a_file_replaced_under_a_map_leaves_the_map_alone(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"old")
    put(files, f"{folder}/g", b"new!")
    file = files.open(f"{folder}/f")
    view = file.map()
    files.rename(f"{folder}/g", f"{folder}/f")
    assert bytes(view) == b"old"
    assert file.pread(9, 0) == b"old"
    assert get(files, f"{folder}/f") == b"new!"
    file.close()


def test_all_who_map_a_file_shared_see_the_same_memory(files: FileSystem, folder: str) -> None:
    """Also after it has grown, and by reading the file."""
    path = f"{folder}/positions"
    first = files.map_shared(path, 4096, write=True)
    second = files.map_shared(path, 4096, write=False)
    assert second.view.readonly
    words = first.view.cast("Q")
    words[3] = 77
    assert second.view.cast("Q")[3] == 77
    larger = files.map_shared(path, 20_000, write=True)
    larger.view.cast("Q")[4] = 78
    assert words[3:5].tolist() == [77, 78]
    assert get(files, path)[24:40] == (77).to_bytes(8, "little") + (78).to_bytes(8, "little")
    assert len(get(files, path)) == 20_000
    words.release()
    for shared in (first, second, larger):
        shared.close()


def test_a_shared_map_begins_with_what_the_file_holds_and_never_shrinks_it(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"hello world")
    shared = files.map_shared(f"{folder}/f", 5, write=True)
    assert bytes(shared.view) == b"hello"
    shared.view[0] = ord("j")
    shared.close()
    assert get(files, f"{folder}/f") == b"jello world"


def test_writing_to_and_cutting_a_file_show_in_its_shared_map(files: FileSystem, folder: str) -> None:
    """Whether or not it is mapped in the other way too."""
    file = files.create(f"{folder}/f")
    file.pwrite(b"12345", 0)
    before = file.map()
    shared = files.map_shared(f"{folder}/f", 5, write=True)
    file.pwrite(b"hello world", 0)
    assert bytes(shared.view) == b"hello"
    file.truncate(2)
    file.truncate(5)
    assert bytes(shared.view) == b"he\0\0\0"
    file.pwrite(b"y", 1)
    assert bytes(shared.view) == b"hy\0\0\0"
    assert len(before) == 5
    file.close()
    shared.close()


def test_a_shared_map_of_a_short_or_missing_file_needs_write(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"hello")
    with pytest.raises(OSError, match="shorter than 6 bytes"):
        files.map_shared(f"{folder}/f", 6, write=False)
    with pytest.raises(FileNotFoundError):
        files.map_shared(f"{folder}/missing", 6, write=False)
    assert not files.exists(f"{folder}/missing")


# Open files


def test_two_openers_see_each_others_writes(files: FileSystem, folder: str) -> None:
    first = files.create(f"{folder}/f")
    second = files.open(f"{folder}/f", write=True)
    first.pwrite(b"first", 0)
    second.pwrite(b"second", 5)
    assert first.pread(100, 0) == second.pread(100, 0) == b"firstsecond"
    second.truncate(2)
    assert first.size() == 2
    first.close()
    assert second.pread(100, 0) == b"fi"
    second.close()


def test_an_unlinked_file_goes_on_for_those_who_have_it_open(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    file.pwrite(b"old", 0)
    files.unlink(f"{folder}/f")
    put(files, f"{folder}/f", b"another")
    file.pwrite(b" file", 3)
    assert file.pread(100, 0) == b"old file"
    file.truncate(1)
    assert file.size() == 1
    assert get(files, f"{folder}/f") == b"another"
    file.close()


def test_a_file_opened_for_reading_refuses_to_be_changed(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"hello")
    file = files.open(f"{folder}/f")
    with pytest.raises(OSError) as caught:
        file.pwrite(b"x", 0)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError):
        file.truncate(0)
    with pytest.raises(OSError):
        file.reserve(0, 10)
    assert file.pread(100, 0) == b"hello"
    file.close()


def test_a_closed_file_refuses_everything_but_closing(files: FileSystem, folder: str) -> None:
    """`sync_data` is not among them: Python has a `ValueError` of its own for it, where the file is a real one."""
    file = files.create(f"{folder}/f")
    file.close()
    file.close()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        file.size,
        lambda: file.truncate(0),
        lambda: file.reserve(0, 1),
        file.drop_cache,
        file.map,
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


def test_positions_below_zero_are_invalid(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    for call in (lambda: file.pread(1, -1), lambda: file.pwrite(b"x", -1), lambda: file.truncate(-1)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    file.close()


# Names


def test_names_are_listed_in_order(files: FileSystem, folder: str) -> None:
    for name in ("b", "a", "c"):
        put(files, f"{folder}/{name}", b"")
    files.make_directory(f"{folder}/aa")
    assert files.list_directory(folder) == ["a", "aa", "b", "c"]
    assert files.list_directory(f"{folder}/aa") == []


def test_a_name_exists_until_it_is_removed(files: FileSystem, folder: str) -> None:
    path = f"{folder}/f"
    assert not files.exists(path)
    put(files, path, b"")
    assert files.exists(path)
    assert files.exists(folder)
    assert not files.exists(f"{path}/x")
    assert not files.exists(f"{folder}/missing/x")
    files.unlink(path)
    assert not files.exists(path)


def test_a_missing_name_is_not_found(files: FileSystem, folder: str) -> None:
    missing = f"{folder}/missing"
    for call in (
        lambda: files.open(missing),
        lambda: files.open(missing, write=True),
        lambda: files.unlink(missing),
        lambda: files.rename(missing, f"{folder}/x"),
        lambda: files.remove_directory(missing),
        lambda: files.list_directory(missing),
        lambda: files.sync_directory(missing),
        lambda: files.create(f"{missing}/x"),
        lambda: files.make_directory(f"{missing}/x"),
        lambda: files.lock(f"{missing}/x"),
        lambda: files.map_shared(f"{missing}/x", 10, write=True),
        lambda: files.free_bytes(f"{missing}/x"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.filename.startswith(missing)
    assert files.list_directory(folder) == []


def test_a_taken_name_is_not_created_again(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"f")
    files.make_directory(f"{folder}/d")
    for name in ("f", "d"):
        with pytest.raises(FileExistsError):
            files.create(f"{folder}/{name}")
        with pytest.raises(FileExistsError):
            files.make_directory(f"{folder}/{name}")
    assert get(files, f"{folder}/f") == b"f"


def test_a_file_is_no_folder(files: FileSystem, folder: str) -> None:
    path = f"{folder}/f"
    put(files, path, b"")
    for call in (
        lambda: files.open(f"{path}/x"),
        lambda: files.create(f"{path}/x"),
        lambda: files.unlink(f"{path}/x"),
        lambda: files.make_directory(f"{path}/x"),
        lambda: files.remove_directory(path),
        lambda: files.list_directory(path),
        lambda: files.sync_directory(path),
    ):
        with pytest.raises(NotADirectoryError):
            call()


def test_a_folder_is_no_file(files: FileSystem, folder: str) -> None:
    path = f"{folder}/d"
    files.make_directory(path)
    with pytest.raises(IsADirectoryError):
        files.unlink(path)
    for call in (
        lambda: files.open(path),
        lambda: files.open(path, write=True),
        lambda: files.lock(path),
        lambda: files.map_shared(path, 10, write=True),
    ):
        with pytest.raises(NotRegular, match="not a regular file"):
            call()


def test_who_holds_a_lock_can_be_asked_without_taking_it(files: FileSystem, folder: str) -> None:
    path = f"{folder}/LOCK"
    assert files.lock_holder(path) is None
    lock = files.lock(path, shares=True)
    holder = files.lock_holder(path)
    assert holder is not None
    assert holder["shares"] is True
    lock.release()
    assert files.lock_holder(path) is None


def test_only_an_empty_folder_is_removed(files: FileSystem, folder: str) -> None:
    files.make_directory(f"{folder}/d")
    put(files, f"{folder}/d/f", b"")
    with pytest.raises(OSError) as caught:
        files.remove_directory(f"{folder}/d")
    assert caught.value.errno == errno.ENOTEMPTY
    files.unlink(f"{folder}/d/f")
    files.remove_directory(f"{folder}/d")
    assert not files.exists(f"{folder}/d")


def test_renaming_replaces_the_target(files: FileSystem, folder: str) -> None:
    files.make_directory(f"{folder}/d")
    put(files, f"{folder}/f", b"new")
    put(files, f"{folder}/d/g", b"old")
    files.rename(f"{folder}/f", f"{folder}/d/g")
    assert get(files, f"{folder}/d/g") == b"new"
    assert files.list_directory(folder) == ["d"]
    assert files.list_directory(f"{folder}/d") == ["g"]


def test_a_link_is_one_more_name_of_the_same_file(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/a", b"one")
    files.make_directory(f"{folder}/d")
    files.link(f"{folder}/a", f"{folder}/d/b")
    file = files.open(f"{folder}/d/b", write=True)
    assert file.links() == 2
    file.pwrite(b"two", 0)
    assert get(files, f"{folder}/a") == b"two"
    files.unlink(f"{folder}/a")
    assert file.links() == 1
    assert get(files, f"{folder}/d/b") == b"two"
    files.unlink(f"{folder}/d/b")
    assert file.links() == 0
    assert file.pread(3, 0) == b"two"


def test_a_link_needs_a_file_and_a_free_name(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/a", b"one")
    put(files, f"{folder}/b", b"two")
    with pytest.raises(FileExistsError):
        files.link(f"{folder}/a", f"{folder}/b")
    with pytest.raises(FileNotFoundError):
        files.link(f"{folder}/missing", f"{folder}/c")
    with pytest.raises(FileNotFoundError):
        files.link(f"{folder}/a", f"{folder}/missing/c")
    with pytest.raises(OSError):
        files.link(folder, f"{folder}/c")
    assert get(files, f"{folder}/b") == b"two"
    assert files.list_directory(folder) == ["a", "b"]


def test_a_file_with_two_names_takes_its_room_once(small: FileSystem) -> None:
    put(small, "/d/a", bytes(60))
    small.link("/d/a", "/d/b")
    assert small.free_bytes("/d") == 40
    small.unlink("/d/a")
    assert small.free_bytes("/d") == 40
    small.unlink("/d/b")
    assert small.free_bytes("/d") == 100


def test_renaming_to_the_same_name_changes_nothing(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"content")
    files.rename(f"{folder}/f", f"{folder}/f")
    assert get(files, f"{folder}/f") == b"content"


def test_an_open_file_follows_its_new_name(files: FileSystem, folder: str) -> None:
    file = files.create(f"{folder}/f")
    files.rename(f"{folder}/f", f"{folder}/g")
    file.pwrite(b"late", 0)
    file.close()
    assert get(files, f"{folder}/g") == b"late"


def test_a_folder_is_renamed_with_all_that_is_in_it(files: FileSystem, folder: str) -> None:
    """Over an empty folder too."""
    files.make_directory(f"{folder}/d")
    files.make_directory(f"{folder}/d/inner")
    put(files, f"{folder}/d/inner/f", b"f")
    files.make_directory(f"{folder}/e")
    files.rename(f"{folder}/d", f"{folder}/e")
    assert files.list_directory(folder) == ["e"]
    assert get(files, f"{folder}/e/inner/f") == b"f"
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/d/inner/f")


def test_a_rename_that_makes_no_sense_is_refused_and_changes_nothing(files: FileSystem, folder: str) -> None:
    put(files, f"{folder}/f", b"f")
    files.make_directory(f"{folder}/d")
    files.make_directory(f"{folder}/e")
    put(files, f"{folder}/e/x", b"x")
    with pytest.raises(IsADirectoryError):
        files.rename(f"{folder}/f", f"{folder}/d")
    with pytest.raises(NotADirectoryError):
        files.rename(f"{folder}/d", f"{folder}/f")
    with pytest.raises(NotADirectoryError):
        files.rename(f"{folder}/d", f"{folder}/f/x")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{folder}/f", f"{folder}/missing/f")
    for source, target, code in (("d", "e", errno.ENOTEMPTY), ("e", "e/inside", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            files.rename(f"{folder}/{source}", f"{folder}/{target}")
        assert caught.value.errno == code
    assert files.list_directory(folder) == ["d", "e", "f"]
    assert files.list_directory(f"{folder}/e") == ["x"]


def test_a_folder_that_moved_can_not_swallow_the_one_it_moved_into(files: FileSystem, folder: str) -> None:
    files.make_directory(f"{folder}/d")
    files.make_directory(f"{folder}/e")
    files.rename(f"{folder}/d", f"{folder}/e/d")
    with pytest.raises(OSError) as caught:
        files.rename(f"{folder}/e", f"{folder}/e/d/e")
    assert caught.value.errno == errno.EINVAL
    assert files.list_directory(f"{folder}/e") == ["d"]


# Locks, boots, space


def test_a_lock_is_held_once_and_names_its_owner(files: FileSystem, folder: str) -> None:
    lock = files.lock(f"{folder}/LOCK")
    with pytest.raises(LockHeld) as caught:
        files.lock(f"{folder}/LOCK")
    assert set(caught.value.owner) == {"pid", "host"}
    assert isinstance(caught.value.owner["pid"], int)
    assert caught.value.errno == errno.EAGAIN
    lock.release()
    lock.release()
    files.lock(f"{folder}/LOCK").release()


def test_a_lock_belongs_to_the_file_and_not_to_its_name(files: FileSystem, folder: str) -> None:
    first = files.lock(f"{folder}/LOCK")
    files.rename(f"{folder}/LOCK", f"{folder}/OTHER")
    second = files.lock(f"{folder}/LOCK")
    with pytest.raises(LockHeld):
        files.lock(f"{folder}/OTHER")
    first.release()
    files.lock(f"{folder}/OTHER").release()
    with pytest.raises(LockHeld):
        files.lock(f"{folder}/LOCK")
    second.release()


def test_a_boot_has_one_identity_of_sixteen_bytes(files: FileSystem) -> None:
    assert len(files.boot_id()) == 16
    assert files.boot_id() == files.boot_id()


def test_there_is_room_for_something(files: FileSystem, folder: str) -> None:
    assert files.free_bytes(folder) > 0


def test_a_full_file_system_takes_a_part_and_then_nothing(small: FileSystem) -> None:
    file = small.create("/d/f")
    assert file.pwrite(bytes(80), 0) == 80
    assert file.pwritev([b"x" * 15, b"y" * 15], 80) == 20
    assert small.free_bytes("/") == 0
    with pytest.raises(OSError) as caught:
        file.pwrite(b"z", 100)
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(200, 80) == b"x" * 15 + b"y" * 5
    assert file.pwrite(b"w" * 100, 0) == 100
    assert file.pwrite(b"", 100) == 0


def test_cutting_replacing_and_unlinking_give_room_back(small: FileSystem) -> None:
    put(small, "/d/f", bytes(60))
    put(small, "/d/g", bytes(30))
    small.rename("/d/g", "/d/g")
    assert small.free_bytes("/d") == 10
    small.rename("/d/g", "/d/f")
    assert small.free_bytes("/d") == 70
    small.open("/d/f", write=True).truncate(10)
    assert small.free_bytes("/d") == 90
    small.unlink("/d/f")
    assert small.free_bytes("/d") == 100


def test_a_file_without_a_name_gives_its_room_back_once(small: FileSystem) -> None:
    file = small.create("/d/f")
    file.pwrite(bytes(60), 0)
    small.unlink("/d/f")
    file.pwrite(bytes(30), 60)
    file.truncate(5)
    file.close()
    assert small.free_bytes("/d") == 100


def test_reserved_room_is_kept_for_the_file_until_it_is_cut(small: FileSystem) -> None:
    file, other = small.create("/d/f"), small.create("/d/g")
    assert file.reserve(10, 70)
    assert small.free_bytes("/") == 20
    assert other.pwrite(bytes(30), 0) == 20
    for call in (lambda: file.reserve(0, 81), lambda: file.truncate(81), lambda: other.pwrite(b"x", 20)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    assert file.pwrite(bytes(80), 0) == 80
    file.truncate(5)
    assert small.free_bytes("/") == 75


def test_a_shared_map_needs_room_to_grow(small: FileSystem) -> None:
    small.map_shared("/d/f", 80, write=True).close()
    assert small.free_bytes("/") == 20
    with pytest.raises(OSError) as caught:
        small.map_shared("/d/f", 101, write=True)
    assert caught.value.errno == errno.ENOSPC
    small.map_shared("/d/f", 80, write=False).close()


# Threads


def test_threads_that_write_apart_from_each_other_lose_nothing(files: FileSystem, folder: str) -> None:
    """Four write their own stripes of one file, which grows under them, while two read and map it."""
    file = files.create(f"{folder}/f")
    errors: list[BaseException] = []
    done = threading.Event()
    stripe, rounds = 100, 400

    def write(number: int) -> None:
        try:
            for turn in range(rounds):
                write_fully(file, bytes([number + 1]) * stripe, (turn * 4 + number) * stripe)
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            while not done.is_set():
                size = file.size()
                content = file.pread(size, 0)
                assert len(content) == size
                view = file.map()
                assert len(view) >= size
                for at in range(0, size - size % stripe, stripe):
                    number = at // stripe % 4
                    assert set(content[at : at + stripe]) <= {0, number + 1}
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    for thread in readers:
        thread.join(60)
    assert errors == []
    assert file.pread(stripe * 4 * rounds + 1, 0) == b"".join(bytes([number + 1]) * stripe for number in range(4)) * rounds
    file.close()


def test_one_of_many_threads_creates_a_name_and_one_takes_a_lock(files: FileSystem, folder: str) -> None:
    created: list[int] = []
    locked: list[int] = []
    start = threading.Barrier(8)
    errors: list[BaseException] = []

    def race(number: int) -> None:
        try:
            start.wait(60)
            try:
                files.create(f"{folder}/f").close()
                created.append(number)
            except FileExistsError:
                pass
            try:
                files.lock(f"{folder}/LOCK")
                locked.append(number)
            except LockHeld:
                pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(created) == len(locked) == 1
