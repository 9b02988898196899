"""What a process maps of its files does not pile up in its memory, however long the topic is."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import resident_pages as module
from penstock.files import RealFileSystem
from penstock.format.batch import encode_batch
from penstock.log import recovery
from penstock.log.filtering import Protection
from penstock.offset_set import OffsetSet
from penstock.resident_pages import ResidentPages
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.housekeeping import Rules
from penstock.volume.reader import VolumeReader
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.log.log_reader import LogReader
    from penstock.log.partition_log import PartitionLog

MIB = 1024 * 1024
TOPIC_MIB = 128
RESIDENT_MIB = 8
ALLOWED_MIB = 32
"""What may come on top of `RESIDENT_MIB`: what is in use, and what the process takes for itself meanwhile."""
SETTINGS = StoreSettings(journal_file_bytes=4 * MIB, frame_bytes=MIB, free_bytes_floor=0, reserve_bytes=0)
BATCHES_PER_MIB = 16


def _memory_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


def _peak_mib(act: Callable[[], object]) -> float:
    """How much more memory this process had at the most while it did *act*, as the kernel keeps it."""
    gc.collect()
    before = _memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    act()
    return _memory_mib("VmHWM") - before


def _open(path: str) -> Volume:
    return Volume.open(path, settings=SETTINGS, background=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a topic of two sealed segments, each more than is allowed, and an active one; two messages of a key in each batch."""
    path = str(tmp_path_factory.mktemp("resident") / "store")
    with _open(path) as volume:
        settings = TopicSettings(sync=SyncMode.OS, segment_bytes=64 * MIB, compaction=True, coalesce_below_bytes=0)
        volume.create_topic("t", 1, settings)
        log = volume.log("t")
        for number in range((TOPIC_MIB + 4) * BATCHES_PER_MIB):
            value = bytes([number % 251]) * (MIB // BATCHES_PER_MIB // 2 - 200)
            volume.append(log, encode_batch([value, value], keys=[b"%d" % number] * 2))
        volume.checkpoint()
        volume.checkpoint()
        assert len(log.segment_firsts) == 3
    return path


@pytest.fixture(autouse=True)
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.resident_pages, "bytes_max", RESIDENT_MIB * MIB)


def _read_all(log: PartitionLog | LogReader) -> None:
    at = log.log_start
    while at < log.committed_end:
        at = log.read(at)[-1].end_offset


@pytest.fixture
def volume(path: str) -> Iterator[Volume]:
    with _open(path) as volume:
        yield volume


def test_without_letting_go_the_pages_do_pile_up(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests rule out can be seen."""
    monkeypatch.setattr(module.resident_pages, "bytes_max", 1024 * MIB)
    assert _peak_mib(lambda: _read_all(volume.log("t"))) > TOPIC_MIB - 16


def test_reading_a_topic_from_end_to_end_takes_no_memory_of_its_size(volume: Volume) -> None:
    assert _peak_mib(lambda: _read_all(volume.log("t"))) < RESIDENT_MIB + ALLOWED_MIB


def test_a_reader_beside_the_owner_takes_none_either(volume: Volume) -> None:
    """As Spark reads, and tools."""
    with VolumeReader.open(volume.path) as reader:
        assert _peak_mib(lambda: _read_all(reader.log("t"))) < RESIDENT_MIB + ALLOWED_MIB


def test_opening_segments_whose_index_is_lost_takes_none(volume: Volume) -> None:
    log = volume.log("t")
    for index in Path(log.directory).glob("*.idx"):
        index.unlink()
    assert _peak_mib(lambda: [log.segment(first) for first in log.segment_firsts]) < RESIDENT_MIB + ALLOWED_MIB


def test_recovery_takes_none(volume: Volume, tmp_path: Path) -> None:
    """All of it lies in one segment that no checkpoint knows, as after a crash."""
    files = RealFileSystem()
    path = str(tmp_path / "store")
    crashed = _open(path)
    crashed.create_topic("t", 1, TopicSettings(sync=SyncMode.OS, segment_bytes=256 * MIB))
    for _ in range(TOPIC_MIB):
        crashed.append(crashed.log("t"), encode_batch([b"." * (MIB - 200)]))
    assert crashed._lock is not None
    crashed._lock.release()  # as the kernel does when the process dies

    def recover() -> None:
        with Volume.open(path, settings=SETTINGS, background=False, files=files) as recovered:
            assert recovered.log("t").committed_end == TOPIC_MIB

    assert _peak_mib(recover) < RESIDENT_MIB + ALLOWED_MIB


@pytest.mark.parametrize("window_bytes", [300, 1_000, 5_000])
def test_recovery_finds_every_batch_and_every_claim_wherever_its_window_ends(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and batches lie across windows, or are longer than one."""
    files = SimulatedFileSystem()
    settings = TopicSettings(sync=SyncMode.OS)
    volume = Volume.open("/store", settings=SETTINGS, files=files, background=False)
    volume.create_topic("t", 1, settings)
    for number in range(30):
        volume.append(volume.log("t"), encode_batch([b"%d" % number * (1 + number * number % 700)]))
        if number == 12:
            volume.checkpoint()
    monkeypatch.setattr(recovery, "_WINDOW_BYTES", window_bytes)
    left = files.kill()
    name = "/store/topics/t/0/00000000000000000000.log"
    file = left.open(name)
    uid = volume.log("t").segment(0).uid
    claims = [recovery.durable_claim(file, start, file.size(), uid) for start in range(0, file.size(), 8)]
    assert claims[0] == 13
    assert sorted(claims, reverse=True) == claims
    again = Volume.open("/store", settings=SETTINGS, files=left, background=False)
    assert [bytes(batch.value(0) or b"") for batch in again.log("t").read(0)] == [
        b"%d" % number * (1 + number * number % 700) for number in range(30)
    ]


def test_compaction_and_vacuum_take_none(volume: Volume) -> None:
    """Each reads all segments more than once, and what it has written too."""
    log = volume.log("t")
    messages = 2 * TOPIC_MIB * BATCHES_PER_MIB
    unfinished = OffsetSet(range(0, messages, 4))
    assert _peak_mib(lambda: volume.housekeeping.compact(log, Protection(), 1 << 62)) < RESIDENT_MIB + ALLOWED_MIB
    log.floors["groups"] = 1

    def vacuum() -> None:
        removed = volume.housekeeping.vacuum(log, Rules(messages_max=0), Protection(log.segment_firsts[-1], unfinished))
        assert removed.messages > messages // 4

    assert _peak_mib(vacuum) < RESIDENT_MIB + ALLOWED_MIB


def test_views_that_are_held_show_the_same_bytes_after_their_pages_went(tmp_path: Path) -> None:
    """And maps that are gone are no trouble."""
    (tmp_path / "file").write_bytes(b"abc" * MIB)
    file = RealFileSystem().open(str(tmp_path / "file"))
    pages = ResidentPages(MIB)
    view, other = file.map(), file.map()
    file.close()
    assert isinstance(view.obj, mmap.mmap)
    assert isinstance(other.obj, mmap.mmap)
    slices = [view[:6], view[3 * MIB - 6 :]]
    pages.note_read(other.obj, 10)
    del other
    before = _memory_mib("RssFile")
    assert bytes(view) == b"abc" * MIB
    assert _memory_mib("RssFile") > before + 2
    pages.note_read(view.obj, 3 * MIB)
    assert _memory_mib("RssFile") < before + 1
    assert [bytes(one) for one in slices] == [b"abcabc"] * 2
