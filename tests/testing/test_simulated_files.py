"""The simulated disk: what a crash may take, what it may not, and the faults it can be told to have."""

from __future__ import annotations

import errno
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.files import LockHeld, write_fully
from penstock.testing import Operation, SimulatedFileSystem
from penstock.testing.simulated_files import PAGE, SECTOR, SHARED_CAPACITY

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 400


@pytest.fixture
def files() -> SimulatedFileSystem:
    """A file system with a durable folder /d that holds a durable file /d/old with b"old"."""
    files = SimulatedFileSystem()
    files.make_directory("/d")
    files.sync_directory("/")
    put(files, "/d/old", b"old")
    files.sync_directory("/d")
    return files


def put(files: SimulatedFileSystem, path: str, content: bytes) -> None:
    """Create a file with synced content; its name is not synced."""
    file = files.create(path)
    file.pwrite(content, 0)
    file.sync_data()
    file.close()


def crashes(files: SimulatedFileSystem, count: int = MANY) -> list[dict[str, bytes]]:
    """What *count* random power cuts leave."""
    return [files.crash(Random(seed)).files() for seed in range(count)]


def seen(files: SimulatedFileSystem, path: str) -> set[bytes | None]:
    """All contents of one file that random power cuts leave; None where the file is missing."""
    return {state.get(path) for state in crashes(files)}


# Plain files


def test_what_is_written_is_read_back(files: SimulatedFileSystem) -> None:
    """Reads are short at the end, holes are zeros."""
    file = files.create("/d/x")
    assert file.pwrite(b"hello", 0) == 5
    assert file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"ef")], 8) == 6
    assert file.pread(100, 0) == b"hello\0\0\0abcdef"
    assert file.pread(3, 12) == b"ef"
    assert file.pread(3, 99) == b""
    assert file.size() == 14
    file.truncate(4)
    file.truncate(6)
    assert file.pread(100, 0) == b"hell\0\0"
    file.pwrite(b"EL", 1)
    assert files.files()["/d/x"] == b"hELl\0\0"


def test_names_follow_the_rules_of_posix(files: SimulatedFileSystem) -> None:
    """Each wrong call gets the error that the real file system gives."""
    with pytest.raises(FileNotFoundError):
        files.open("/d/missing")
    with pytest.raises(FileExistsError):
        files.create("/d/old")
    with pytest.raises(FileNotFoundError):
        files.create("/missing/x")
    with pytest.raises(NotADirectoryError):
        files.create("/d/old/x")
    with pytest.raises(OSError, match="not a regular file"):
        files.open("/d")
    with pytest.raises(FileExistsError):
        files.make_directory("/d")
    with pytest.raises(IsADirectoryError):
        files.unlink("/d")
    with pytest.raises(NotADirectoryError):
        files.remove_directory("/d/old")
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory("/d")
    with pytest.raises(FileNotFoundError):
        files.rename("/d/missing", "/d/x")
    with pytest.raises(IsADirectoryError):
        files.rename("/d/old", "/d")
    with pytest.raises(OSError, match="Invalid"):
        files.rename("/d", "/d/inside")
    assert files.tree() == ["/d/", "/d/old"]


def test_paths_may_be_relative_or_untidy(files: SimulatedFileSystem) -> None:
    """All spellings lead to the same file."""
    for path in ("d/old", "/d/old", "//d//old", "./d/../d/./old"):
        assert files.open(path).pread(9, 0) == b"old"
    assert files.list_directory("/") == files.list_directory("") == ["d"]
    assert files.exists("/")
    assert not files.exists("/d/old/x")


def test_a_closed_or_read_only_file_refuses(files: SimulatedFileSystem) -> None:
    """EBADF, like a real descriptor."""
    file = files.open("/d/old")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite(b"x", 0)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)


def test_a_folder_can_be_renamed_with_its_files(files: SimulatedFileSystem) -> None:
    """Open files and cached paths do not lead to the old place."""
    files.rename("/d", "/e")
    assert files.tree() == ["/e/", "/e/old"]
    assert not files.exists("/d/old")
    assert files.open("/e/old").size() == 3
    assert {tuple(state) for state in crashes(files)} == {("/d/old",), ("/e/old",)}


def test_a_map_is_a_snapshot_that_outlives_the_file(files: SimulatedFileSystem) -> None:
    """Later writes do not show, and the view cannot be written to."""
    file = files.open("/d/old", write=True)
    view = file.map()
    file.pwrite(b"new", 0)
    file.close()
    assert bytes(view) == b"old"
    assert view.readonly


# Crashes: data


def test_synced_data_under_synced_names_survives_every_crash(files: SimulatedFileSystem) -> None:
    """The one promise."""
    assert seen(files, "/d/old") == {b"old"}


def test_unsynced_appends_may_be_lost_kept_or_zero(files: SimulatedFileSystem) -> None:
    """The size may be kept without the data."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"+new", 3)
    assert seen(files, "/d/old") == {b"old", b"old+new", b"old\0\0\0\0"}


def test_a_long_write_is_torn_at_sectors_in_any_pattern(files: SimulatedFileSystem) -> None:
    """Each sector is whole, old or new; and all sixteen patterns of four come up."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"a" * 4 * SECTOR, 0)
    file.sync_data()
    file.pwrite(b"b" * 4 * SECTOR, 0)
    patterns = set()
    for content in seen(files, "/d/old"):
        assert content is not None
        sectors = [content[start : start + SECTOR] for start in range(0, len(content), SECTOR)]
        assert all(sector in (b"a" * SECTOR, b"b" * SECTOR) for sector in sectors)
        patterns.add(b"".join(sector[:1] for sector in sectors))
    assert len(patterns) == 16


def test_a_later_write_may_survive_without_an_earlier_one(files: SimulatedFileSystem) -> None:
    """Sectors are written back in any order."""
    file = files.open("/d/old", write=True)
    file.truncate(2 * SECTOR)
    file.sync_data()
    file.pwrite(b"first", 10)
    file.pwrite(b"second", SECTOR + 10)
    states = {(content[10:15], content[SECTOR + 10 : SECTOR + 16]) for content in seen(files, "/d/old") if content}
    assert states == {(one, two) for one in (b"first", bytes(5)) for two in (b"second", bytes(6))}


def test_one_sector_never_shows_a_later_write_without_an_earlier_one(files: SimulatedFileSystem) -> None:
    """The cache has no such sector to write back."""
    file = files.open("/d/old", write=True)
    file.truncate(SECTOR)
    file.sync_data()
    file.pwrite(b"1", 10)
    file.pwrite(b"2", 20)
    file.pwrite(b"3", 10)
    states = {content[10:11] + content[20:21] for content in seen(files, "/d/old") if content}
    assert states == {b"\0\0", b"1\0", b"12", b"32"}


def test_an_unsynced_truncation_may_be_undone(files: SimulatedFileSystem) -> None:
    """Old bytes can come back; the rest of the cut sector may be zeros by then."""
    file = files.open("/d/old", write=True)
    file.truncate(1)
    assert seen(files, "/d/old") == {b"o", b"old", b"o\0\0"}
    file.sync_data()
    assert seen(files, "/d/old") == {b"o"}


def test_old_bytes_do_not_come_back_behind_a_kept_truncation(files: SimulatedFileSystem) -> None:
    """If the size shows the extension after the cut, what was cut off is zeros or new."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"x" * 4 * SECTOR, 0)
    file.sync_data()
    file.truncate(SECTOR)
    file.pwrite(b"y" * 10, 5 * SECTOR)
    for content in seen(files, "/d/old"):
        assert content is not None
        if len(content) == 5 * SECTOR + 10:
            assert not content[SECTOR : 5 * SECTOR].strip(b"\0")


def test_every_sector_after_a_crash_is_one_that_the_cache_once_held() -> None:
    """Random writes, truncations and syncs, held against a list of every version since the last sync."""
    for seed in range(60):
        rng = Random(seed)
        files = SimulatedFileSystem()
        file = files.create("/f")
        files.sync_directory("/")
        versions = [b""]
        for _ in range(rng.randrange(1, 25)):
            action = rng.random()
            if action < 0.15:
                file.sync_data()
                versions = [files.files()["/f"]]
                continue
            if action < 0.3:
                file.truncate(rng.randrange(5 * SECTOR))
            else:
                file.pwrite(rng.randbytes(rng.randrange(1, 3 * SECTOR)), rng.randrange(4 * SECTOR))
            versions.append(files.files()["/f"])
        longest = max(map(len, versions)) + SECTOR
        padded = [version.ljust(longest, b"\0") for version in versions]
        for state in crashes(files, 40):
            content = state["/f"]
            assert len(content) in map(len, versions)
            for start in range(0, len(content), SECTOR):
                end = min(start + SECTOR, len(content))
                allowed = {version[start:end] for version in padded} | {bytes(end - start)}
                # Where the size of one moment meets a sector of another, the end of the sector is zeros.
                assert any(_agrees(content[start:end], version) for version in allowed)
        assert files.crash(rng, keep="everything").files()["/f"] == versions[-1]
        assert files.crash(rng, keep="nothing").files()["/f"] == versions[0]


def _agrees(sector: bytes, version: bytes) -> bool:
    kept = sector.rstrip(b"\0")
    return version.startswith(kept)


# Crashes: names


def test_an_unsynced_file_may_be_lost_although_its_data_is_synced(files: SimulatedFileSystem) -> None:
    """Neither ext4 nor XFS shows this bug; only here does it come out."""
    put(files, "/d/new", b"data")
    assert seen(files, "/d/new") == {None, b"data"}
    files.sync_directory("/d")
    assert seen(files, "/d/new") == {b"data"}


def test_a_link_is_lost_or_kept_on_its_own_and_shows_the_same_content(files: SimulatedFileSystem) -> None:
    files.make_directory("/other")
    files.sync_directory("/")
    files.link("/d/old", "/other/new")
    lost = files.crash(Random(1), keep="nothing")
    assert lost.exists("/d/old")
    assert not lost.exists("/other/new")
    files.sync_directory("/other")
    file = files.open("/d/old", write=True)
    file.pwrite(b"changed", 0)
    for seed in range(20):
        after = files.crash(Random(seed))
        content = after.files()
        assert content["/d/old"] == content["/other/new"]
        assert after.open("/d/old").links() == 2
    files.unlink("/d/old")
    files.sync_directory("/d")
    assert list(files.crash(Random(1), keep="everything").files()) == ["/other/new"]


def test_an_unsynced_unlink_may_come_back(files: SimulatedFileSystem) -> None:
    """Retention must recognise segments that return."""
    files.unlink("/d/old")
    assert seen(files, "/d/old") == {None, b"old"}
    files.sync_directory("/d")
    assert seen(files, "/d/old") == {None}


def test_an_unsynced_rename_may_be_undone(files: SimulatedFileSystem) -> None:
    """The target shows its old file and the source is back; never a mixture."""
    put(files, "/d/temporary", b"new")
    files.sync_directory("/d")
    files.rename("/d/temporary", "/d/old")
    states = {(state.get("/d/temporary"), state.get("/d/old")) for state in crashes(files)}
    assert states == {(b"new", b"old"), (None, b"new")}
    files.sync_directory("/d")
    assert seen(files, "/d/old") == {b"new"}


def test_a_rename_without_sync_of_the_data_may_show_an_empty_file(files: SimulatedFileSystem) -> None:
    """The name is durable and the content is not."""
    files.create("/d/temporary").pwrite(b"new", 0)
    files.rename("/d/temporary", "/d/old")
    files.sync_directory("/d")
    assert seen(files, "/d/old") == {b"", b"new", b"\0\0\0"}


@pytest.mark.parametrize("synced", [None, "/d", "/e"])
def test_a_rename_across_folders_shows_one_name_never_both_or_neither(files: SimulatedFileSystem, synced: str | None) -> None:
    """Also when the folder moved to is itself new, and one of the two is synced."""
    files.make_directory("/e")
    files.rename("/d/old", "/e/moved")
    if synced:
        files.sync_directory(synced)
    states = {tuple(state) for state in crashes(files)}
    assert states == ({("/e/moved",)} if synced else {("/e/moved",), ("/d/old",)})


def test_a_file_is_not_lost_when_its_old_name_is_used_again(files: SimulatedFileSystem) -> None:
    """The second creation needs the rename, so that the renamed file always has a name."""
    files.rename("/d/old", "/d/kept")
    put(files, "/d/old", b"second")
    for state in crashes(files):
        assert b"old" in state.values()


def test_syncing_a_folder_does_not_sync_its_own_name(files: SimulatedFileSystem) -> None:
    """That is in the parent."""
    files.make_directory("/d/sub")
    put(files, "/d/sub/x", b"x")
    files.sync_directory("/d/sub")
    assert seen(files, "/d/sub/x") == {None, b"x"}
    files.sync_directory("/d")
    assert seen(files, "/d/sub/x") == {b"x"}


def test_a_removed_folder_may_come_back_with_its_files(files: SimulatedFileSystem) -> None:
    """But is never removed while a file in it stays."""
    files.unlink("/d/old")
    files.remove_directory("/d")
    states = {tuple(files.crash(Random(seed)).tree()) for seed in range(MANY)}
    assert states == {(), ("/d/",), ("/d/", "/d/old")}


def test_folders_moved_into_each_other_never_vanish(files: SimulatedFileSystem) -> None:
    """Losing the middle one of three moves would leave a folder inside itself."""
    files.make_directory("/e")
    files.sync_directory("/")
    files.rename("/d", "/e/d")
    files.rename("/e/d", "/d")
    files.rename("/e", "/d/e")
    for state in crashes(files):
        assert list(state.values()) == [b"old"]


def test_names_may_survive_out_of_order(files: SimulatedFileSystem) -> None:
    """Two creations with nothing in common: all four outcomes."""
    put(files, "/d/a", b"a")
    put(files, "/d/b", b"b")
    assert len({("/d/a" in state, "/d/b" in state) for state in crashes(files)}) == 4


def test_keep_nothing_and_keep_everything_are_the_two_ends(files: SimulatedFileSystem) -> None:
    """And what a crash left is durable: a second one takes nothing more."""
    files.open("/d/old", write=True).pwrite(b"changed", 0)
    put(files, "/d/new", b"new")
    nothing = files.crash(Random(0), keep="nothing")
    assert nothing.files() == {"/d/old": b"old"}
    everything = files.crash(Random(0), keep="everything")
    assert everything.files() == files.files() == {"/d/old": b"changed", "/d/new": b"new"}
    assert everything.crash(Random(0), keep="nothing").files() == everything.files()


# Copies


def test_the_same_seed_gives_the_same_crash(files: SimulatedFileSystem) -> None:
    """A failure can be shown again."""
    for number in range(20):
        files.create(f"/d/{number}").pwrite(bytes([number]) * 2000, 0)
    assert crashes(files, 30) == crashes(files, 30)


def test_copies_and_originals_do_not_disturb_each_other(files: SimulatedFileSystem) -> None:
    """They share bytes, but nobody can tell."""
    writer = files.open("/d/old", write=True)
    copies: list[SimulatedFileSystem] = [files.clone(), files.kill(), files.crash(Random(1))]
    writer.pwrite(b"X", 0)
    for copy in copies:
        assert copy.files() == {"/d/old": b"old"}
        copy.open("/d/old", write=True).pwrite(b"Y", 1)
        copy.unlink("/d/old")
    assert files.files() == {"/d/old": b"Xld"}


def test_after_a_kill_everything_is_there_but_still_unsynced(files: SimulatedFileSystem) -> None:
    """The page cache outlives the process, and not the power."""
    files.open("/d/old", write=True).pwrite(b"changed", 0)
    put(files, "/d/new", b"new")
    files.rename("/d/new", "/d/newer")
    files.lock("/d/LOCK")
    killed = files.kill()
    assert killed.files() == files.files()
    assert killed.boot_id() == files.boot_id()
    assert killed.crash(Random(0), keep="nothing").files() == {"/d/old": b"old"}
    killed.lock("/d/LOCK")
    killed.open("/d/old").sync_data()
    assert killed.crash(Random(0), keep="nothing").files() == {"/d/old": b"changed"}
    killed.sync_directory("/d")
    assert set(killed.crash(Random(0), keep="nothing").files()) == {"/d/old", "/d/newer", "/d/LOCK"}
    assert files.crash(Random(0), keep="nothing").files() == {"/d/old": b"old"}


def test_a_removal_can_be_undone_by_a_crash_after_a_kill(files: SimulatedFileSystem) -> None:
    """The copy holds nodes that have no name any more."""
    files.unlink("/d/old")
    files.remove_directory("/d")
    killed = files.kill()
    assert killed.tree() == []
    assert killed.crash(Random(0), keep="nothing").files() == {"/d/old": b"old"}


def test_each_crash_is_a_new_boot_without_locks(files: SimulatedFileSystem) -> None:
    """Also with the same seed twice."""
    files.lock("/d/LOCK")
    once = files.crash(Random(0))
    twice = once.crash(Random(0))
    assert len({files.boot_id(), once.boot_id(), twice.boot_id()}) == 3
    assert len(files.boot_id()) == 16
    once.lock("/d/LOCK").release()
    assert once.origin.startswith("crash: ")


# The hook


def one_of_each(files: SimulatedFileSystem) -> None:
    """Call every mutating operation once."""
    files.make_directory("/x")
    file = files.create("/x/a")
    file.pwrite(b"12345", 0)
    file.pwritev([b"6", b"7"], 5)
    file.reserve(0, 100)
    file.truncate(6)
    file.sync_data()
    files.rename("/x/a", "/x/b")
    files.sync_directory("/x")
    files.unlink("/x/b")
    files.remove_directory("/x")


def test_the_record_names_every_mutating_operation() -> None:
    """With place and length; reads are not operations."""
    files = SimulatedFileSystem(recording=True)
    one_of_each(files)
    assert files.record == [
        Operation(1, "mkdir", "/x"),
        Operation(2, "create", "/x/a"),
        Operation(3, "pwrite", "/x/a", 0, 5),
        Operation(4, "pwritev", "/x/a", 5, 2),
        Operation(5, "reserve", "/x/a", 0, 100),
        Operation(6, "truncate", "/x/a", 6),
        Operation(7, "sync_data", "/x/a"),
        Operation(8, "rename", "/x/a", target="/x/b"),
        Operation(9, "sync_directory", "/x"),
        Operation(10, "unlink", "/x/b"),
        Operation(11, "rmdir", "/x"),
    ]
    assert files.operations == 11


def test_the_hook_sees_the_state_before_the_operation_and_may_crash_it() -> None:
    """Crashing and killing inside the hook neither changes nor blocks the operation."""
    files = SimulatedFileSystem()
    states: list[tuple[str, dict[str, bytes]]] = []

    def look(operation: Operation) -> None:
        files.crash(Random(operation.index))
        states.append((operation.kind, files.kill().files()))

    files.on_operation = look
    one_of_each(files)
    assert states[2:5] == [("pwrite", {"/x/a": b""}), ("pwritev", {"/x/a": b"12345"}), ("reserve", {"/x/a": b"1234567"})]
    assert files.tree() == []


def test_an_operation_does_not_happen_if_the_hook_raises(files: SimulatedFileSystem) -> None:
    """So a test can stop the engine dead at operation N."""

    class PowerCut(BaseException):
        pass

    def stop(operation: Operation) -> None:
        raise PowerCut

    before = files.files()
    file = files.open("/d/old", write=True)
    files.on_operation = stop
    attempts: list[Callable[[], object]] = [
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: files.create("/d/x"),
        lambda: files.rename("/d/old", "/d/x"),
        lambda: files.unlink("/d/old"),
        lambda: files.make_directory("/y"),
    ]
    for attempt in attempts:
        with pytest.raises(PowerCut):
            attempt()
    assert files.files() == before
    assert files.tree() == ["/d/", "/d/old"]


# Faults


def test_the_nth_matching_operation_fails(files: SimulatedFileSystem) -> None:
    """Counted from the call, among operations of that kind and path only."""
    files.fail("pwrite", 2, errno.EIO, path_contains="old")
    file, other = files.open("/d/old", write=True), files.create("/d/other")
    other.pwrite(b"x", 0)
    file.pwrite(b"x", 0)
    other.pwrite(b"x", 0)
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.pwrite(b"y", 0)
    assert caught.value.errno == errno.EIO
    assert file.pwrite(b"z", 0) == 1


@pytest.mark.parametrize(("count", "failures"), [(1, 1), (3, 3), (None, 9)])
def test_faults_last_as_long_as_told(files: SimulatedFileSystem, count: int | None, failures: int) -> None:
    """None is for ever, or until they are cleared."""
    files.fail("any", 2, errno.ENOSPC, count=count)
    failed = 0
    for number in range(10):
        try:
            files.create(f"/d/{number}")
        except OSError:
            failed += 1
    assert failed == failures
    assert len(files.list_directory("/d")) == 11 - failures
    files.clear_faults()
    files.create("/d/last")


def test_a_write_can_be_short_and_then_fail(files: SimulatedFileSystem) -> None:
    """As on a disk that fills up."""
    files.fail("write", 1, errno.ENOSPC, short=3)
    file = files.create("/d/x")
    assert file.pwritev([b"ab", b"cd"], 0) == 3
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"d", 3)
    assert files.files()["/d/x"] == b"abc"


def test_a_short_write_alone_is_continued_by_careful_callers(files: SimulatedFileSystem) -> None:
    """`write_fully` is one."""
    files.fail("write", 1, None, short=3)
    file = files.create("/d/x")
    write_fully(file, b"abcdef", 0)
    assert files.files()["/d/x"] == b"abcdef"


def test_after_a_failed_sync_a_retry_succeeds_and_means_nothing(files: SimulatedFileSystem) -> None:
    """The bytes are shown by the cache, lost at the crash, and never durable."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"new", 0)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    file.sync_data()
    assert file.pread(9, 0) == b"new"
    assert seen(files, "/d/old") == {b"old"}
    assert files.crash(Random(0), keep="everything").files()["/d/old"] == b"old"


def test_dropping_the_cache_reveals_what_a_failed_sync_lost(files: SimulatedFileSystem) -> None:
    """Also in the next process; until then that one sees the lost bytes too."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"new+", 0)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    killed = files.kill()
    reopened = killed.open("/d/old")
    assert reopened.pread(9, 0) == b"new+"
    reopened.drop_cache()
    assert reopened.pread(9, 0) == b"old\0"
    assert file.pread(9, 0) == b"new+"
    file.drop_cache()
    assert file.pread(9, 0) == b"old\0"


def test_dropping_the_cache_keeps_dirty_pages(files: SimulatedFileSystem) -> None:
    """Only clean pages can be dropped."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"new", 0)
    file.drop_cache()
    assert file.pread(9, 0) == b"new"


def test_writing_to_a_lost_page_makes_the_whole_page_dirty_again(files: SimulatedFileSystem) -> None:
    """A later sync stores that page, and not the other one."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"a" * 2 * PAGE, 0)
    file.sync_data()
    file.pwrite(b"b" * 2 * PAGE, 0)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    file.pwrite(b"c", 0)
    assert files.crash(Random(0), keep="nothing").files()["/d/old"] == b"a" * 2 * PAGE
    file.sync_data()
    assert seen(files, "/d/old") == {b"c" + b"b" * (PAGE - 1) + b"a" * PAGE}


def test_a_failed_sync_of_an_append_leaves_zeros_behind_a_later_sync(files: SimulatedFileSystem) -> None:
    """The size is stored by the sync that works, the data is not."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"+1", 3)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    assert seen(files, "/d/old") == {b"old", b"old\0\0"}
    file.sync_data()
    assert seen(files, "/d/old") == {b"old\0\0"}


def test_a_failed_sync_of_a_truncation_leaves_it_unsynced(files: SimulatedFileSystem) -> None:
    """Old bytes may be back after a crash."""
    file = files.open("/d/old", write=True)
    file.pwrite(b"x" * 3 * PAGE, 0)
    file.sync_data()
    file.truncate(10)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_data()
    assert files.crash(Random(0), keep="nothing").files()["/d/old"] == b"x" * 3 * PAGE
    file.pwrite(b"y", 10)
    assert files.crash(Random(0), keep="nothing").files()["/d/old"] == b"x" * 3 * PAGE
    file.sync_data()
    assert seen(files, "/d/old") == {b"x" * 10 + b"y"}


def test_a_disk_that_cannot_reserve_says_so(files: SimulatedFileSystem) -> None:
    """EOPNOTSUPP is an answer, not an error."""
    files.fail("reserve", 1, errno.EOPNOTSUPP)
    file = files.open("/d/old", write=True)
    assert not file.reserve(0, 10)
    assert file.reserve(0, 10)


# Capacity


def test_a_full_disk_takes_a_part_and_then_nothing() -> None:
    """First a short write, then ENOSPC; overwriting still works."""
    files = SimulatedFileSystem(capacity_bytes=10)
    file = files.create("/f")
    assert file.pwrite(b"x" * 8, 0) == 8
    assert file.pwrite(b"y" * 8, 8) == 2
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"y", 10)
    assert file.pwrite(b"z" * 10, 0) == 10
    assert files.free_bytes("/") == 0


def test_truncating_and_unlinking_free_space() -> None:
    """And free_bytes tells the truth."""
    files = SimulatedFileSystem(capacity_bytes=100)
    file = files.create("/f")
    file.pwrite(bytes(60), 0)
    assert files.free_bytes("/f") == 40
    file.truncate(10)
    assert files.free_bytes("/") == 90
    files.unlink("/f")
    assert files.free_bytes("/") == 100
    assert SimulatedFileSystem().free_bytes("/") > 1 << 30


def test_reserved_space_is_used_space_for_everyone_else() -> None:
    """It can be written to when the disk is full, and truncation gives it back."""
    files = SimulatedFileSystem(capacity_bytes=100)
    file, other = files.create("/f"), files.create("/g")
    assert file.reserve(0, 80)
    assert file.size() == 0
    assert files.free_bytes("/") == 20
    assert other.pwrite(bytes(30), 0) == 20
    with pytest.raises(OSError, match="No space"):
        file.reserve(0, 81)
    assert file.pwrite(bytes(80), 0) == 80
    file.truncate(5)
    assert files.free_bytes("/") == 75
    with pytest.raises(OSError, match="No space"):
        file.truncate(81)


# Locks and shared maps


def test_a_lock_is_held_once_and_names_its_owner(files: SimulatedFileSystem) -> None:
    """Until it is released, twice if need be."""
    lock = files.lock("/d/LOCK")
    with pytest.raises(LockHeld) as caught:
        files.lock("/d/LOCK")
    assert set(caught.value.owner) == {"pid", "host"}
    lock.release()
    lock.release()
    files.lock("/d/LOCK")


def test_a_second_opener_sees_stores_into_a_shared_map_at_once(files: SimulatedFileSystem) -> None:
    """Also when the file has grown since, and by reading the file."""
    first = files.map_shared("/d/positions", 16, write=True)
    second = files.map_shared("/d/positions", 16, write=False)
    first.view[3] = 7
    assert second.view[3] == 7
    assert second.view.readonly
    larger = files.map_shared("/d/positions", 4096, write=True)
    larger.view[3] = 8
    larger.view[4000] = 9
    assert first.view[3] == second.view[3] == 8
    file = files.open("/d/positions")
    assert file.size() == 4096
    assert file.pread(1, 4000) == b"\x09"
    for shared in (first, second, larger):
        shared.close()
        shared.close()
    assert len(files.map_shared("/d/positions", 16, write=False).view) == 16
    assert len(files.files()["/d/positions"]) == 4096


def test_a_shared_map_keeps_what_the_file_held(files: SimulatedFileSystem) -> None:
    """Mapping reads the file, and writing the file shows in the map."""
    shared = files.map_shared("/d/old", 3, write=True)
    assert bytes(shared.view) == b"old"
    files.open("/d/old", write=True).pwrite(b"new", 0)
    assert bytes(shared.view) == b"new"


def test_mapping_more_than_there_is_needs_write(files: SimulatedFileSystem) -> None:
    """And the file must be there."""
    with pytest.raises(OSError, match="shorter than 9"):
        files.map_shared("/d/old", 9, write=False)
    with pytest.raises(FileNotFoundError):
        files.map_shared("/d/missing", 9, write=False)


def test_a_mapped_file_does_not_grow_over_its_memory_while_it_is_mapped(files: SimulatedFileSystem) -> None:
    """A limit of the simulation, told and not hidden."""
    shared = files.map_shared("/d/positions", 16, write=True)
    with pytest.raises(OSError, match="cannot grow"):
        files.map_shared("/d/positions", SHARED_CAPACITY + 1, write=True)
    shared.close()
    assert len(files.map_shared("/d/positions", SHARED_CAPACITY + 1, write=True).view) == SHARED_CAPACITY + 1


def test_a_crash_leaves_any_mixture_of_sectors_in_a_mapped_file(files: SimulatedFileSystem) -> None:
    """Old, new or zero, as nobody synced it; a kill leaves all of it, still un-synced."""
    shared = files.map_shared("/d/positions", 2 * SECTOR, write=True)
    files.sync_directory("/d")
    shared.view[:] = b"n" * 2 * SECTOR
    whole, zero = b"n" * SECTOR, bytes(SECTOR)
    expected = {b"", whole + whole, whole + zero, zero + whole, zero + zero}
    assert seen(files, "/d/positions") == expected
    killed = files.kill()
    assert killed.files()["/d/positions"] == whole + whole
    assert seen(killed, "/d/positions") == expected
    remapped = killed.map_shared("/d/positions", 2 * SECTOR, write=True)
    remapped.view[0] = 1
    assert shared.view[0] == ord("n")
    killed.open("/d/positions", write=True).sync_data()
    assert seen(killed, "/d/positions") == {b"\1" + whole[1:] + whole}


# Meddling


def test_replace_edits_behind_the_engines_back(files: SimulatedFileSystem) -> None:
    """Durable at once, without an operation, also under new names in new folders and in mapped files."""
    files.open("/d/old", write=True).pwrite(b"unsynced", 0)
    files.make_directory("/d/sub")
    shared = files.map_shared("/d/positions", 4, write=True)
    files.sync_directory("/d")
    files.make_directory("/d/sub/sub")
    before = files.operations
    files.replace("/d/old", b"damaged")
    files.replace("/d/sub/sub/new", b"planted")
    files.replace("/d/positions", b"1234")
    assert files.operations == before
    assert bytes(shared.view) == b"1234"
    assert files.crash(Random(0), keep="nothing").files() == {
        "/d/old": b"damaged",
        "/d/positions": b"1234",
        "/d/sub/sub/new": b"planted",
    }


# Threads


def test_many_threads_may_write_while_others_crash_and_read(files: SimulatedFileSystem) -> None:
    """Nothing is lost, and no copy is half made."""
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            file = files.create(f"/d/{number}")
            for step in range(300):
                file.pwrite(bytes([step % 251]) * 10, step * 10)
                if step % 10 == 0:
                    file.sync_data()
                assert file.pread(10, step * 10) == bytes([step % 251]) * 10
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for seed in range(100):
        for content in files.crash(Random(seed)).kill().files().values():
            assert content == b"old" or len(content) % 10 == 0
    for thread in threads:
        thread.join()
    assert not failures
    assert all(len(content) == 3000 for path, content in files.files().items() if path != "/d/old")
