"""A disk that is full: appends are refused and nothing else suffers; when there is room again, they are taken again."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock.values import MIB
from penstock.volume.volume import Volume
from tests.real_disk.loop_disk import LoopDisk, loop_disk
from tests.real_disk.processes import Child, Store, inspector
from tests.real_disk.writer import LOGS

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ALL_LOGS = ",".join(f"{topic}/{partition}" for topic, partition in LOGS)
CYCLES = 6
FREED = 6 * MIB


@contextlib.contextmanager
def filler(store: Store, settings: dict[str, int], *, background: bool = False) -> Iterator[Child]:
    """The program that fills disks, with the store open."""
    config = store.config(settings=settings, background=background)
    with Child([sys.executable, "-m", "tests.real_disk.filler", json.dumps(config)]) as child:
        assert child.wait_for("ready"), child.finish()
        yield child


def ask(child: Child, command: str) -> dict[str, Any]:
    """Have a command carried out that must succeed and must not make the store fail."""
    answer = child.ask(command)
    assert "error" not in answer, f"{command}: {answer}"
    assert answer["failure"] is None, f"{command}: {answer}"
    return answer


def fill_and_free(child: Child, disk: LoopDisk, store: Store, cycle: int, *, quiet: bool) -> None:
    """One cycle: append until nothing fits, read, make room in one way or the other, append again."""
    ask(child, f"fill {ALL_LOGS}")
    ask(child, "read")
    if quiet:
        # With maintenance in the background a checkpoint may have made room meanwhile.
        assert ask(child, "append plain/0 3")["acknowledged"] == 0
        assert ask(child, "append lazy/0 3")["acknowledged"] == 0
    history = store.judge.history.read()
    assert not history.outcomes("unknown")
    assert {text.split()[2] for _, text in history.errors} == {"StorageFull"}
    if cycle % 2:
        assert ask(child, "retain")["removed"] > 0
    else:
        disk.make_room()
    for log in ("plain/0", "lazy/0", "timed/0"):
        assert ask(child, f"append {log} 5")["acknowledged"] == 5, f"cycle {cycle}: there is room, and {log} refuses"
    assert ask(child, "maintain")["reserve"], f"cycle {cycle}: there is room, and no reserve is set aside"
    disk.fill(leave=FREED)


@pytest.mark.parametrize("background", [False, True], ids=["quiet", "background"])
@pytest.mark.parametrize(("kind", "floor"), [("ext4", 0), ("ext4", MIB), ("xfs", 2 * MIB)])
def test_appending_resumes_without_reopening_once_there_is_room(
    kind: str, floor: int, background: bool, folder: str, record_property: Callable[[str, object], None]
) -> None:
    """Filled and freed several times, by others' files and by retention; then killed while full, and opened while full."""
    settings = {"free_bytes_floor": floor, "reserve_bytes": MIB}
    with inspector(folder) as server, loop_disk(kind, folder, megabytes=40 if kind == "ext4" else None) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        disk.fill(leave=8 * MIB)
        with filler(store, settings, background=background) as child:
            for cycle in range(CYCLES):
                fill_and_free(child, disk, store, cycle, quiet=not background)
            ask(child, f"fill {ALL_LOGS}")
            child.kill()
        if floor:
            # What the floor and the reserve keep free is enough to open the store, to read it, and to be killed again.
            for _ in range(3):
                assert not store.look(power_lost=False, settings=settings)
        disk.make_room()
        assert not store.check(power_lost=False)
        history = store.judge.history.read()
    totals = {"cycles": CYCLES, "acknowledged": len(history.outcomes("ok")), "refused": len(history.outcomes("fail"))}
    record_property(f"full {kind}, floor {floor}", totals)
    print(f"full {kind}, floor {floor}, {'with' if background else 'without'} maintenance: {totals}")


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_store_on_a_disk_that_others_filled_opens_by_means_of_its_reserve(kind: str, folder: str) -> None:
    """Recovery needs a journal file and a checkpoint; on a full disk the reserve that a killed owner left is what gives room."""
    settings = {"free_bytes_floor": MIB, "reserve_bytes": MIB}
    with inspector(folder) as server, loop_disk(kind, folder, megabytes=40 if kind == "ext4" else None) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        with filler(store, settings) as child:
            for log in ("plain/0", "lazy/0"):
                assert ask(child, f"append {log} 50")["acknowledged"] == 50
            disk.fill()
            ask(child, "read")
            child.kill()
        assert not store.look(power_lost=False, settings=settings)
        disk.make_room()
        assert not store.check(power_lost=False)


def test_a_disk_without_inodes_is_a_full_disk(folder: str, record_property: Callable[[str, object], None]) -> None:
    """There are blocks, and no new file can be made: no segment, no journal file, no topic, no checkpoint."""
    settings = {"free_bytes_floor": MIB, "reserve_bytes": MIB}
    with inspector(folder) as server, loop_disk("ext4", folder, megabytes=40, options=("-N", "256")) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        with filler(store, settings) as child:
            for log in ("plain/0", "lazy/0", "small/0"):
                assert ask(child, f"append {log} 3")["acknowledged"] == 3
            for cycle in range(3):
                taken = _take_inodes(disk.path)
                sent = ask(child, f"fill {ALL_LOGS}")["sent"]
                ask(child, "read")
                assert child.ask("topic another")["error"] == "StorageFull"
                history = store.judge.history.read()
                assert {text.split()[2] for _, text in history.errors} == {"StorageFull"}
                for path in taken:
                    os.unlink(path)
                for log in ("plain/0", "lazy/0", "small/0"):
                    assert ask(child, f"append {log} 5")["acknowledged"] == 5, f"cycle {cycle}"
                print(f"without inodes: {sent} appends until all logs refused, {len(taken)} files in the way")
            child.kill()
        assert not store.check(power_lost=False)


def _take_inodes(folder: str) -> list[str]:
    taken = []
    with contextlib.suppress(OSError):
        for number in range(100_000):
            path = os.path.join(folder, f"file-{number}")
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            taken.append(path)
    return taken


def test_a_topic_made_with_the_last_blocks_does_not_kill_the_process(folder: str) -> None:
    """
    The positions file is mapped. If it had holes, storing a number into one on a full disk would be answered by SIGBUS.

    With 62 logs its first page is full; the next topic needs the second one.
    """
    settings = {"free_bytes_floor": 0, "reserve_bytes": 0}
    with inspector(folder) as server, loop_disk("ext4", folder, megabytes=40) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        with filler(store, settings) as child:
            for number in range((62 - len(LOGS)) // 4):
                ask(child, f"topic t{number}")
            for blocks in range(60):
                disk.fill()
                disk.fill(leave=blocks * os.statvfs(disk.path).f_frsize)
                answer = child.ask("topic last")
                if "made" in answer:
                    break
                assert answer["error"] == "StorageFull", answer
            assert "made" in answer
            ask(child, "read")
            child.kill()
        disk.make_room()
        assert not store.check(power_lost=False)


def test_an_owner_that_is_killed_again_and_again_does_not_fill_the_disk_with_journal_files(tmp_path: pathlib.Path) -> None:
    """Each opening makes a preallocated file of 64 MiB; those that no checkpoint needs any more must go at the next one."""
    path = tmp_path / "store"
    for _ in range(8):
        child = os.posix_spawn(
            sys.executable,
            [
                sys.executable,
                "-c",
                f"import os; from penstock.volume.volume import Volume; Volume.open({str(path)!r}); os._exit(0)",
            ],
            os.environ,
        )
        assert os.waitpid(child, 0)[1] == 0
    assert len(os.listdir(path / "journal")) <= 4
    Volume.open(path).close()
