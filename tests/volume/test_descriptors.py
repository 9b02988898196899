"""Files are opened when they are used and closed when there are too many; no descriptors at all is no disaster."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import OutcomeUnknown, StorageFailed, Unavailable
from penstock.files import RealFileSystem
from penstock.format.batch import encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.log.partition_log import PartitionLog

SETTINGS = StoreSettings(journal_file_bytes=1024 * 1024, frame_bytes=256 * 1024, free_bytes_floor=0, reserve_bytes=0)
TOPICS = 20


class ScarceFiles(RealFileSystem):
    """A file system that opens nothing more while `is_out` is set."""

    __slots__ = ("is_out", "opened")

    def __init__(self) -> None:
        self.is_out = False
        self.opened: list[str] = []

    def _check(self, path: str) -> None:
        self.opened.append(path)
        if self.is_out:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def open(self, path: str, *, write: bool = False) -> Any:
        self._check(path)
        return super().open(path, write=write)

    def create(self, path: str) -> Any:
        self._check(path)
        return super().create(path)

    def sync_directory(self, path: str) -> None:
        self._check(path)
        super().sync_directory(path)


@pytest.fixture
def files() -> ScarceFiles:
    return ScarceFiles()


@pytest.fixture(params=["always", "os"])
def volume(tmp_path: Path, files: ScarceFiles, request: pytest.FixtureRequest) -> Iterator[Volume]:
    """A store with twenty topics, each with a message."""
    with Volume.open(tmp_path / "store", settings=SETTINGS, files=files, background=False) as volume:
        for number in range(TOPICS):
            volume.create_topic(f"t{number}", 1, TopicSettings(sync=SyncMode.of(request.param), segment_bytes=64 * 1024))
            volume.append(volume.log(f"t{number}"), encode_single(b"0"))
        yield volume
        files.is_out = False


def _values(log: PartitionLog) -> list[bytes]:
    return [bytes(batch.value(index) or b"") for batch in log.read(0) for index in range(len(batch))]


def _open(volume: Volume) -> int:
    return sum(log.descriptors for log in volume.logs)


def test_files_beyond_the_limit_are_closed_once_they_are_durable(volume: Volume) -> None:
    assert _open(volume) == TOPICS
    volume.open_files.descriptors_max = 8
    volume.bound_descriptors()
    assert _open(volume) == TOPICS, "what is not synced keeps its file: only that one is told of a failure"
    volume.checkpoint()
    volume.bound_descriptors()
    assert _open(volume) <= 8


def test_those_not_used_for_longest_are_closed(volume: Volume) -> None:
    volume.checkpoint()
    volume.open_files.descriptors_max = TOPICS
    for _ in range(10):
        volume.bound_descriptors()
    used = [volume.log(f"t{number}") for number in (0, 7, 19)]
    used[0].read(0)
    used[1].read(0)
    volume.append(used[2], encode_single(b"1"))
    volume.checkpoint()
    volume.open_files.descriptors_max = 8
    volume.bound_descriptors()
    assert [log.descriptors for log in used] == [1, 1, 1]


def test_what_was_closed_is_read_and_written_as_before(volume: Volume, tmp_path: Path) -> None:
    volume.checkpoint()
    volume.open_files.descriptors_max = 0
    volume.bound_descriptors()
    assert _open(volume) == 0
    assert _values(volume.log("t3")) == [b"0"]
    assert volume.append(volume.log("t4"), encode_single(b"1")) == 1
    assert _values(volume.log("t4")) == [b"0", b"1"]
    # Large enough for a new segment: the one that was closed must be sealed.
    volume.checkpoint()
    volume.bound_descriptors()
    for number in range(3):
        volume.append(volume.log("t5"), encode_single(b"%d" % number * 40_000))
    volume.close()
    with Volume.open(tmp_path / "store", settings=SETTINGS, background=False) as again:
        assert _values(again.log("t4")) == [b"0", b"1"]
        assert again.log("t5").committed_end == 4
        assert len(again.log("t5").segment_firsts) > 1


def test_readers_go_on_while_files_are_closed_under_them(volume: Volume) -> None:
    volume.checkpoint()
    volume.open_files.descriptors_max = 0
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                for log in volume.logs:
                    assert _values(log)[0] == b"0"
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(30):
        volume.append(volume.log(f"t{number % TOPICS}"), encode_single(b"x"))
        volume.checkpoint()
        volume.bound_descriptors()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures, failures


def test_without_descriptors_a_publish_is_refused_and_the_store_goes_on(volume: Volume, files: ScarceFiles) -> None:
    volume.create_topic("new")
    volume.checkpoint()
    volume.open_files.descriptors_max = 0
    volume.bound_descriptors()
    files.is_out = True
    for topic in ("new", "t0"):
        with pytest.raises(Unavailable, match="as many files open"):
            volume.append(volume.log(topic), encode_single(b"1"))
    with pytest.raises(Unavailable, match="as many files open"):
        volume.create_topic("newer")
    with pytest.raises(Unavailable, match="as many files open"):
        volume.checkpoint()
    assert volume.failure is None
    files.is_out = False
    assert volume.append(volume.log("new"), encode_single(b"1")) == 0
    assert volume.append(volume.log("t0"), encode_single(b"1")) == 1
    assert _values(volume.log("t0")) == [b"0", b"1"]
    volume.create_topic("newer")


def test_opening_a_store_with_more_topics_than_descriptors_keeps_to_them(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.close()
    monkeypatch.setattr("penstock.volume.open_files.DESCRIPTORS_MAX", 4)
    monkeypatch.setattr("penstock.volume.open_files.descriptors_max", lambda: 64)
    with Volume.open(tmp_path / "store", settings=SETTINGS, background=False) as again:
        assert _open(again) <= 16
        assert all(_values(log) == [b"0"] for log in again.logs)


def test_closing_again_without_a_change_writes_no_index_anew(tmp_path: Path, files: ScarceFiles) -> None:
    path = tmp_path / "store"
    with Volume.open(path, settings=SETTINGS, background=False) as volume:
        volume.create_topic("long")
        volume.create_topic("short")
        for _ in range(100):
            volume.append(volume.log("long"), encode_single(b"x" * 100))
        volume.append(volume.log("short"), encode_single(b"x"))
    indexes = sorted(one.parent.parent.name for one in path.rglob("*.idx"))
    assert indexes == ["long"], "a short segment is scanned as soon as its index is read"
    with Volume.open(path, settings=SETTINGS, files=files, background=False):
        files.opened.clear()
    assert not [one for one in files.opened if ".idx" in one]


def test_without_descriptors_a_large_batch_is_refused_and_the_store_goes_on(volume: Volume, files: ScarceFiles) -> None:
    """It goes to its log before the journal, and the folder is synced for that: a descriptor that nobody has."""
    volume.create_topic("large", 1, TopicSettings(sync=volume.log("t0").settings.sync))
    log = volume.log("large")
    volume.append(log, encode_single(b"0"))
    files.is_out = True
    for sync in (None, SyncMode.ALWAYS) if log.always else (SyncMode.ALWAYS,):
        with pytest.raises(Unavailable, match="as many files open"):
            volume.append(log, encode_single(bytes(SETTINGS.reference_bytes)), sync=sync)
    with pytest.raises(Unavailable, match="as many files open"):
        volume.commit_changes([Append(log, encode_single(bytes(SETTINGS.reference_bytes))), Append(log, encode_single(b"1"))])
    assert volume.failure is None
    files.is_out = False
    assert volume.append(log, encode_single(b"1")) == 1
    assert volume.append(log, encode_single(bytes(SETTINGS.reference_bytes)), sync=SyncMode.ALWAYS) == 2


def test_without_descriptors_reading_is_refused(volume: Volume, files: ScarceFiles) -> None:
    volume.checkpoint()
    volume.open_files.descriptors_max = 0
    volume.bound_descriptors()
    files.is_out = True
    for read in (volume.log("t0").read, volume.log("t1").offset_of_time):
        with pytest.raises(Unavailable, match="as many files open"):
            read(0)


def test_without_descriptors_a_topic_is_not_deleted(volume: Volume, files: ScarceFiles) -> None:
    files.is_out = True
    with pytest.raises(Unavailable, match="as many files open"):
        volume.delete_topic("t0")
    files.is_out = False
    assert volume.append(volume.log("t0"), encode_single(b"1")) == 1
    volume.delete_topic("t0")
    assert volume.failure is None


def test_without_descriptors_an_interval_is_synced_later(tmp_path: Path, files: ScarceFiles) -> None:
    with Volume.open(tmp_path / "store", settings=SETTINGS, files=files, background=False) as volume:
        volume.create_topic("t", 1, TopicSettings(sync=SyncMode.INTERVAL))
        log = volume.log("t")
        volume.append(log, encode_single(b"0"))
        files.is_out = True
        with pytest.raises(Unavailable, match="as many files open"):
            volume.sync_interval_logs()
        assert volume.failure is None
        files.is_out = False
        volume.sync_interval_logs()
        assert log.durable_end == 1


def test_a_consumer_gets_what_it_has_leased_though_the_rest_cannot_be_read(tmp_path: Path, files: ScarceFiles) -> None:
    """Else it would be with nobody until its lease ended, and count as failed then."""
    with Store.open(str(tmp_path / "store"), settings=SETTINGS, files=files, background=False) as store:
        store.create_topic("t", segment_messages=2)
        for number in range(8):
            store.publish("t", b"%d" % number)
        consumer = store.subscribe("t", "g", prefetch=2)
        first = consumer.get(timeout=0)
        assert first is not None
        first.ack()
        store.retain()
        log = store._volume.log("t")
        for segment in log.segment_firsts:
            log.unload(segment)
        files.is_out = True
        assert [message.offset for message in consumer.get_many(2, timeout=0)] == [1]
        with pytest.raises(Unavailable, match="as many files open"):
            consumer.get(timeout=0)
        files.is_out = False
        assert [message.offset for message in consumer.get_many(2, timeout=0)] == [2]


def test_a_topic_whose_name_cannot_be_synced_for_want_of_descriptors_is_not_made(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_directory = ScarceFiles.sync_directory

    def refuse(files: ScarceFiles, path: str) -> None:
        if path.endswith("topics"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        sync_directory(files, path)

    with monkeypatch.context() as patched, pytest.raises(Unavailable, match="as many files open"):
        patched.setattr(ScarceFiles, "sync_directory", refuse)
        volume.create_topic("new")
    assert volume.failure is None
    assert len(os.listdir(tmp_path / "store" / "topics")) == TOPICS
    volume.create_topic("new", 2)
    assert volume.append(volume.log("new", 1), encode_single(b"0")) == 0


def test_a_checkpoint_that_was_refused_is_due_again_without_another_change(tmp_path: Path, files: ScarceFiles) -> None:
    clock = FakeClock()
    with Volume.open(tmp_path / "store", settings=SETTINGS, files=files, clock=clock, background=False) as volume:
        volume.create_topic("t")
        volume.append(volume.log("t"), encode_single(b"0"))
        clock.advance(6)
        files.is_out = True
        with pytest.raises(Unavailable, match="as many files open"):
            volume.maintain_once()
        files.is_out = False
        clock.advance(6)
        volume.maintain_once()
        assert volume.log("t").durable_end == 1


@pytest.mark.parametrize("opening", ["write", "read"])
def test_a_sync_that_fails_when_a_file_is_closed_to_make_room_stops_the_store(opening: str) -> None:
    """I5: a failed sync is never passed over. The write that needed the room fails too; a read goes on."""
    files = SimulatedFileSystem()
    topic = TopicSettings(sync=SyncMode.OS, segment_bytes=64 * 1024)
    volume = Volume.open("/store", settings=SETTINGS, files=files, clock=FakeClock(), background=False)
    for name in ("old", "new"):
        volume.create_topic(name, 1, topic)
        volume.append(volume.log(name), encode_single(b"0"))
    volume.checkpoint()
    volume.bound_descriptors()
    volume.log("new").let_go()
    volume.append(volume.log("old"), encode_single(b"1"))
    volume.open_files.descriptors_max = 0
    files.fail("sync_data", 1, errno.EIO, path_contains="topics/old")
    if opening == "write":
        with pytest.raises(OutcomeUnknown):
            volume.append(volume.log("new"), encode_single(b"1"))
    else:
        assert _values(volume.log("new")) == [b"0"]
    files.clear_faults()
    with pytest.raises(StorageFailed):
        volume.append(volume.log("old"), encode_single(b"2"))
    # The kernel has dropped what it could not write, and the next owner takes that for what it is.
    with Volume.open("/store", settings=SETTINGS, files=files.kill(), clock=FakeClock(), background=False) as again:
        assert _values(again.log("old")) == [b"0"]
