"""The journal's files: frames in order over many files, recycling, and an end that is proven."""

from __future__ import annotations

import random

import pytest

from penstock.errors import DamagedFile, MissingData
from penstock.format.frame import other_entry
from penstock.journal.journal import Journal
from penstock.testing import SimulatedFileSystem

STORE = bytes(16)
FOLDER = "/journal"
FILE_BYTES = 4096


def _journal(files: SimulatedFileSystem) -> Journal:
    return Journal(files, FOLDER, STORE, FILE_BYTES)


@pytest.fixture
def files() -> SimulatedFileSystem:
    """A disk with an empty journal folder."""
    files = SimulatedFileSystem()
    files.make_directory(FOLDER)
    files.sync_directory("/")
    return files


def _write(journal: Journal, count: int, size: int = 300) -> None:
    for _ in range(count):
        number = journal.append(0, 1, [other_entry(1, b"%d" % (journal.number + 1) + bytes(size))])
        assert number == journal.number
        journal.sync()


def _replay(files: SimulatedFileSystem, sequence: int = 1, after: int = 0) -> list[int]:
    found = []
    for frame in _journal(files).replay(sequence, after):
        assert bytes(frame.entries[0].body).startswith(b"%d" % frame.number)
        found.append(frame.number)
    return found


def test_frames_come_back_in_order_over_many_files(files: SimulatedFileSystem) -> None:
    """A frame that does not fit goes to the next file, and replay follows."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 50)
    assert journal.sequence > 3
    assert _replay(files) == list(range(1, 51))
    assert _replay(files, after=20) == list(range(21, 51))


def test_only_synced_frames_must_survive_and_a_torn_last_one_ends_the_journal(files: SimulatedFileSystem) -> None:
    """Power loss keeps every synced frame; the one in flight is there whole or not at all."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 20)
    journal.append(0, 1, [other_entry(1, b"21" + bytes(1500))])
    for seed in range(40):
        found = _replay(files.crash(random.Random(seed)))
        assert found in (list(range(1, 21)), list(range(1, 22)))


def test_recycled_files_do_not_show_frames_of_their_earlier_use(files: SimulatedFileSystem) -> None:
    """Old frames lie behind the end of a recycled file; their file uid tells."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 40)
    assert journal.free(journal.sequence) > 2
    first = journal.number + 1
    _write(journal, 15)
    assert any("spare" in name for name in files.list_directory(FOLDER)) or journal.sequence > 4
    sequences = sorted(int(name[:6]) for name in files.list_directory(FOLDER) if name.endswith(".wal"))
    assert _replay(files, sequences[0], first - 1) == list(range(first, first + 15))


def test_a_new_opening_never_appends_to_an_old_file(files: SimulatedFileSystem) -> None:
    """What a crash left at the end of a file stays as it was."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 3)
    before = files.files()[f"{FOLDER}/000001.wal"]
    again = _journal(files)
    assert [frame.number for frame in again.replay(1, 0)] == [1, 2, 3]
    again.start(3)
    _write(again, 2)
    assert files.files()[f"{FOLDER}/000001.wal"] == before
    assert _replay(files) == [1, 2, 3, 4, 5]


def test_a_missing_file_is_reported(files: SimulatedFileSystem) -> None:
    """The file that the checkpoint names must be there."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 30)
    with pytest.raises(MissingData):
        _replay(files, sequence=99)
    files.unlink(f"{FOLDER}/000002.wal")
    with pytest.raises(DamagedFile):
        _replay(files)


@pytest.mark.parametrize("frame", [0, 1, 5])
def test_a_bad_frame_before_a_good_one_is_damage(files: SimulatedFileSystem, frame: int) -> None:
    """Whatever part of it is bad: magic, length, number or body."""
    journal = _journal(files)
    journal.start(0)
    _write(journal, 9)
    path = f"{FOLDER}/000001.wal"
    content = files.files()[path]
    position = 64
    for _ in range(frame):
        position += int.from_bytes(content[position + 8 : position + 12], "little")
    for at in (0, 9, 17, 25, 60):
        damaged = bytearray(content)
        damaged[position + at] ^= 0xFF
        disk = files.clone()
        disk.replace(path, bytes(damaged))
        with pytest.raises(DamagedFile):
            _replay(disk)


def test_the_next_file_is_made_ahead(files: SimulatedFileSystem) -> None:
    """Once half of a file is used the next one can be prepared, and switching then makes no file."""
    journal = _journal(files)
    journal.start(0)
    wanted = [journal.wants_next]
    _write(journal, 7)
    wanted.append(journal.wants_next)
    journal.prepare_next()
    wanted.append(journal.wants_next)
    assert wanted == [False, True, False]
    names = files.list_directory(FOLDER)
    _write(journal, 8)
    assert journal.sequence == 2
    assert files.list_directory(FOLDER) == names
    assert _replay(files) == list(range(1, 16))
