"""Damage to what was durable is reported, never cut off; damage behind it is a torn tail."""

from __future__ import annotations

import random

import pytest

from penstock.errors import Corrupt, DamagedFile, MissingData
from penstock.format.batch import encode_single
from penstock.testing import SimulatedFileSystem
from penstock.volume.volume import Volume
from tests.crash.workload import ALWAYS, PATH, SETTINGS

LOG = f"{PATH}/topics/t/0/{0:020d}.log"


def _store(files: SimulatedFileSystem, *, before: int, after: int) -> Volume:
    """A store with *before* messages under a checkpoint and *after* behind it, not closed."""
    volume = Volume.open(PATH, settings=SETTINGS, files=files, background=False)
    volume.create_topic("t", 1, ALWAYS)
    log = volume.log("t")
    for number in range(before):
        volume.append(log, encode_single(b"before %d" % number))
    volume.checkpoint()
    for number in range(after):
        volume.append(log, encode_single(b"after %d" % number))
    return volume


def _flip(files: SimulatedFileSystem, path: str, position: int) -> None:
    content = bytearray(files.files()[path])
    content[position] ^= 0x10
    files.replace(path, bytes(content))


def flip_in_durable_part(files: SimulatedFileSystem) -> str:
    """Flip a bit of a checkpointed batch behind the cached index, and say what opening makes of it."""
    _store(files, before=6, after=0)
    disk = files.crash(random.Random(1), keep="nothing")
    _flip(disk, LOG, 560)
    try:
        volume = Volume.open(PATH, settings=SETTINGS, files=disk, background=False)
    except Corrupt:
        return "reported"
    return "silent loss" if volume.log("t").committed_end < 6 else "intact"


def test_damage_below_the_durable_end_is_reported_with_its_place() -> None:
    """I9, R3: the error names file, byte and offset, and nothing is changed."""
    files = SimulatedFileSystem()
    _store(files, before=4, after=2)
    disk = files.crash(random.Random(1), keep="everything")
    _flip(disk, LOG, 560)
    before = disk.files()[LOG]
    with pytest.raises(DamagedFile) as caught:
        Volume.open(PATH, settings=SETTINGS, files=disk, background=False)
    assert caught.value.path == LOG
    assert caught.value.offset in (0, 1)
    assert disk.files()[LOG] == before


def test_a_torn_tail_is_cut_and_redone_from_the_journal() -> None:
    """R3: behind the checkpoint a bad batch is a torn tail, and the journal has what was acknowledged."""
    files = SimulatedFileSystem()
    _store(files, before=2, after=3)
    disk = files.crash(random.Random(1), keep="everything")
    content = disk.files()[LOG]
    disk.replace(LOG, content[:-20])
    volume = Volume.open(PATH, settings=SETTINGS, files=disk, background=False)
    log = volume.log("t")
    values = [bytes(batch.value(0) or b"") for batch in log.read(0)]
    assert values == [b"before 0", b"before 1", b"after 0", b"after 1", b"after 2"]


def test_torn_tail_is_truncated_and_the_second_reopening_keeps_what_came_after() -> None:
    """Garbage behind the last batch is cut; what is published then is there after the next restart (Messager lost it)."""
    files = SimulatedFileSystem()
    volume = _store(files, before=5, after=0)
    volume.close()
    size = len(files.files()[LOG])
    files.replace(LOG, files.files()[LOG] + b"garbage")
    volume = Volume.open(PATH, settings=SETTINGS, files=files, background=False)
    assert len(files.files()[LOG]) == size
    assert volume.append(volume.log("t"), encode_single(b"sixth")) == 5
    volume.close()
    volume = Volume.open(PATH, settings=SETTINGS, files=files, background=False)
    assert volume.log("t").committed_end == 6
    assert bytes(volume.log("t").read(5)[-1].value(0) or b"") == b"sixth"


def test_a_missing_segment_is_an_error_and_never_a_gap() -> None:
    """I11: a segment that is gone from the middle is reported when its offsets are read."""
    files = SimulatedFileSystem()
    volume = _store(files, before=40, after=0)
    firsts = volume.log("t").segment_firsts
    volume.close()
    assert len(firsts) > 3
    disk = files.kill()
    disk.unlink(f"{PATH}/topics/t/0/{firsts[1]:020d}.log")
    with pytest.raises(MissingData):
        volume = Volume.open(PATH, settings=SETTINGS, files=disk, background=False)
        at = 0
        while at < volume.log("t").committed_end:
            at = volume.log("t").read(at)[-1].end_offset


def test_a_lost_journal_is_an_error_and_never_an_empty_one() -> None:
    """I11: without the journal that the checkpoint names the store does not open."""
    files = SimulatedFileSystem()
    _store(files, before=2, after=2)
    disk = files.kill()
    for path in [path for path in disk.files() if "/journal/" in path]:
        disk.unlink(path)
    with pytest.raises(MissingData):
        Volume.open(PATH, settings=SETTINGS, files=disk, background=False)


def test_a_damaged_frame_before_a_good_one_is_reported() -> None:
    """R3: only the last frame can be torn; a bad one with a good one behind it was acknowledged."""
    files = SimulatedFileSystem()
    _store(files, before=0, after=4)
    disk = files.crash(random.Random(1), keep="everything")
    wal = max(path for path in disk.files() if path.endswith(".wal"))
    first = disk.files()[wal].find(b"PSF1")
    _flip(disk, wal, first + 50)
    with pytest.raises(DamagedFile):
        Volume.open(PATH, settings=SETTINGS, files=disk, background=False)


def test_a_lost_last_frame_is_noticed_by_the_log_that_has_its_batch() -> None:
    """I9: a batch in the log whose frame is gone proves that the frame was committed."""
    files = SimulatedFileSystem()
    _store(files, before=1, after=3)
    disk = files.crash(random.Random(1), keep="everything")
    wal = max(path for path in disk.files() if path.endswith(".wal"))
    content = disk.files()[wal]
    last = content.rfind(b"PSF1")
    disk.replace(wal, content[:last] + bytes(len(content) - last))
    with pytest.raises(Corrupt):
        Volume.open(PATH, settings=SETTINGS, files=disk, background=False)
