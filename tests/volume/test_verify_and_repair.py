"""`verify` finds all damage and changes nothing; `repair` sets it aside and saves the rest."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from penstock.errors import Corrupt, DamagedFile, MissingData, StoreLocked, StoreNotFound, UnsupportedFormat
from penstock.format.batch import encode_batch, encode_single
from penstock.log import salvage as salvaging
from penstock.settings import TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.volume.document import decode_document, encode_document
from penstock.volume.repair import plan, repair
from penstock.volume.verification import verify
from penstock.volume.volume import Volume
from tests.crash.workload import ALWAYS, OS, PATH, SETTINGS
from tests.volume.simulated import LARGE, kill_at, new_volume, open_volume

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.files import File
    from penstock.testing import Operation

FOLDER = f"{PATH}/topics/t/0"


def _open(files: SimulatedFileSystem) -> Volume:
    return Volume.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False)


def _values(volume: Volume, topic: str = "t") -> dict[int, bytes]:
    log = volume.log(topic)
    found: dict[int, bytes] = {}
    at = log.log_start
    while at < log.committed_end:
        batches = log.read(at)
        if not batches:
            break
        for batch in batches:
            for index in range(len(batch)):
                found[batch.offset(index)] = bytes(batch.value(index) or b"")
        at = batches[-1].end_offset
    return found


@pytest.fixture
def files() -> SimulatedFileSystem:
    """A closed store with forty messages in several segments and a second topic; its journal has none of them any more."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, ALWAYS)
    volume.create_topic("weak", 1, OS)
    for number in range(40):
        volume.append(volume.log("t"), encode_single(b"value %d" % number))
        volume.append(volume.log("weak"), encode_batch([b"weak %d" % number, None]))
    volume.checkpoint()
    volume.close()
    for _ in range(2):
        _open(files).close()
    return files


EXPECTED = {number: b"value %d" % number for number in range(40)}


def _segments(files: SimulatedFileSystem) -> list[str]:
    return sorted(path for path in files.files() if path.startswith(FOLDER) and path.endswith(".log"))


def _damage(files: SimulatedFileSystem, path: str, position: int, length: int = 1) -> None:
    content = bytearray(files.files()[path])
    for at in range(position, position + length):
        content[at] ^= 0x55
    files.replace(path, bytes(content))


def test_a_sound_store_verifies_and_repair_changes_nothing(files: SimulatedFileSystem) -> None:
    """All messages are counted, nothing is found, and repair leaves every byte alone."""
    before = files.files()
    result = verify(PATH, files=files)
    assert result.is_sound
    assert result.findings == []
    assert (result.topics, result.messages) == (2, 120)
    assert files.files() == before
    assert repair(PATH, files=files) == ([], None)
    after = files.files()
    after.pop(f"{PATH}/LOCK")
    before.pop(f"{PATH}/LOCK")
    assert after == before


def test_verify_runs_beside_an_owner_and_leaves_out_what_is_not_committed(files: SimulatedFileSystem) -> None:
    """It takes no lock, and a live store is sound."""
    volume = _open(files)
    volume.append(volume.log("t"), encode_single(b"more"))
    assert verify(PATH, files=files).is_sound
    volume.close()


def test_repair_refuses_a_store_that_is_owned(files: SimulatedFileSystem) -> None:
    """Two programs never change one store."""
    volume = _open(files)
    with pytest.raises(StoreLocked):
        repair(PATH, files=files)
    volume.close()


def test_no_store_is_said_plainly() -> None:
    """An empty folder is not a damaged store."""
    with pytest.raises(StoreNotFound):
        verify("/nowhere", files=SimulatedFileSystem())


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_a_damaged_batch_is_set_aside_and_its_offsets_stay_a_gap(files: SimulatedFileSystem, which: int) -> None:
    """I9: the other messages are saved, the lost offset is reported and never given to another message."""
    path = _segments(files)[which]
    original = files.files()[path]
    _damage(files, path, 128 + 168 + 150)
    assert not verify(PATH, files=files).is_sound
    result = repair(PATH, files=files, clock=FakeClock())
    assert result.quarantine is not None
    assert result.lost
    kept = [content for name, content in files.files().items() if name.startswith(result.quarantine) and name.endswith(".log")]
    assert len(kept) == 1
    assert len(kept[0]) == len(original)
    assert verify(PATH, files=files).is_sound
    volume = _open(files)
    values = _values(volume)
    assert set(values.items()) <= set(EXPECTED.items())
    assert 36 <= len(values) < 40
    assert volume.append(volume.log("t"), encode_single(b"new")) == 40
    volume.close()
    assert _values(_open(files))[40] == b"new"


def test_a_damaged_segment_header_loses_no_message(files: SimulatedFileSystem) -> None:
    """The batches carry all that is needed."""
    _damage(files, _segments(files)[1], 20, 30)
    repair(PATH, files=files)
    assert _values(_open(files)) == EXPECTED


def test_a_damaged_footer_loses_no_message(files: SimulatedFileSystem) -> None:
    """What was sealed is sealed again."""
    path = _segments(files)[0]
    _damage(files, path, len(files.files()[path]) - 50)
    assert not verify(PATH, files=files).is_sound
    repair(PATH, files=files)
    assert _values(_open(files)) == EXPECTED


def test_a_missing_segment_becomes_an_empty_one(files: SimulatedFileSystem) -> None:
    """Its offsets are reported as lost; the rest is read across the gap."""
    segments = _segments(files)
    files.unlink(segments[1])
    assert not verify(PATH, files=files).is_sound
    result = repair(PATH, files=files)
    assert [lost.path for lost in result.lost] == [segments[1]]
    values = _values(_open(files))
    first, end = result.lost[0].first_offset, result.lost[0].end_offset
    assert first is not None
    assert end is not None
    assert values == {offset: value for offset, value in EXPECTED.items() if not first <= offset < end}


def test_a_damaged_journal_frame_is_given_up_with_all_behind_it() -> None:
    """What the logs have of the later frames stays; the store opens again."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, ALWAYS)
    for number in range(6):
        volume.append(volume.log("t"), encode_single(b"value %d" % number))
    disk = files.crash(random.Random(3), keep="everything")
    wal = max(path for path in disk.files() if path.endswith(".wal"))
    frame = disk.files()[wal].find(b"PSF1")
    _damage(disk, wal, frame + 60)
    with pytest.raises(DamagedFile):
        _open(disk.clone())
    assert not verify(PATH, files=disk).is_sound
    assert repair(PATH, files=disk).lost
    assert _values(_open(disk)) == {number: b"value %d" % number for number in range(6)}


def test_lost_checkpoints_are_made_anew_from_the_logs(files: SimulatedFileSystem) -> None:
    """Both files are gone or damaged: the logs know enough."""
    for name in ("checkpoint-0", "checkpoint-1"):
        files.replace(f"{PATH}/{name}", b"")
    with pytest.raises(Corrupt):
        _open(files.clone())
    repair(PATH, files=files)
    assert _values(_open(files)) == EXPECTED


def test_one_damaged_checkpoint_needs_no_repair(files: SimulatedFileSystem) -> None:
    """R8: the generation before is still there, and the journal from it on."""
    for name in ("checkpoint-0", "checkpoint-1"):
        disk = files.clone()
        disk.replace(f"{PATH}/{name}", b"")
        assert _values(_open(disk)) == EXPECTED


def test_a_damaged_index_is_a_cache_and_no_damage(files: SimulatedFileSystem) -> None:
    """I12: verify tells it as a bad cache, opening mends it."""
    index = next(path for path in files.files() if path.endswith(".idx"))
    files.replace(index, b"nonsense")
    result = verify(PATH, files=files)
    assert result.is_sound
    assert [finding.path for finding in result.findings] == [index]
    assert _values(_open(files)) == EXPECTED


def test_a_lost_topic_file_costs_the_settings_and_no_message(files: SimulatedFileSystem) -> None:
    """They are known by nothing else, and repair says so."""
    files.replace(f"{PATH}/topics/t/topic.json", b"{}")
    with pytest.raises(Corrupt):
        _open(files.clone())
    [lost, *_] = repair(PATH, files=files).lost
    assert "settings of the topic were lost" in lost.reason
    volume = _open(files)
    assert _values(volume) == EXPECTED
    assert volume.topics[0].settings == TopicSettings()


def test_a_flipped_bit_in_a_topic_file_costs_nothing(files: SimulatedFileSystem) -> None:
    """The checksum says which one it was."""
    path = f"{PATH}/topics/t/topic.json"
    good = files.files()[path]
    for position in range(0, len(good), 29):
        disk = files.clone()
        disk.replace(path, good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        repair(PATH, files=disk)
        volume = _open(disk)
        assert volume.topics[0].settings == ALWAYS
        assert _values(volume) == EXPECTED


@pytest.mark.parametrize("bit", [4, 35])
def test_a_flipped_bit_in_the_positions_makes_no_partitions(files: SimulatedFileSystem, bit: int) -> None:
    """Where `topic.json` is lost, they say how many there were; a number that others do not lead up to is none of them."""
    volume = _open(files)
    topic_id = volume.topics[0].topic_id
    files = files.kill()
    path = f"{PATH}/positions"
    content = bytearray(files.files()[path])
    partition = content.index(topic_id) + len(topic_id)
    content[partition + bit // 8] ^= 1 << bit % 8
    files.replace(path, bytes(content))
    files.replace(f"{PATH}/topics/t/topic.json", b"{}")
    repair(PATH, files=files)
    assert [(record.name, record.partitions) for record in _open(files).topics] == [("t", 1), ("weak", 1)]


def test_a_lost_identity_is_made_anew(files: SimulatedFileSystem) -> None:
    """Each file of the store knows it."""
    good = files.files()[f"{PATH}/store.json"]
    for content in (b"", b"{}", good[:-20]):
        disk = files.clone()
        disk.replace(f"{PATH}/store.json", content)
        assert not verify(PATH, files=disk).is_sound
        repair(PATH, files=disk)
        assert disk.files()[f"{PATH}/store.json"] == good
        assert _values(_open(disk)) == EXPECTED


def test_a_store_of_a_newer_version_is_not_repaired(files: SimulatedFileSystem) -> None:
    """What this version does not know it does not touch."""
    newer = decode_document("store", files.files()[f"{PATH}/store.json"]) | {"required": ["something new"]}
    files.replace(f"{PATH}/store.json", encode_document(newer))
    before = files.files()
    with pytest.raises(UnsupportedFormat):
        repair(PATH, files=files)
    assert not verify(PATH, files=files).is_sound
    assert files.files() == before


def test_a_new_segment_of_no_bytes_whose_data_is_in_the_journal_is_sound() -> None:
    """As after a power cut: opening redoes it, verify says so, and repair leaves it alone."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, ALWAYS)
    volume.checkpoint()
    for number in range(30):
        volume.append(volume.log("t"), encode_single(b"value %d" % number))
    last = _segments(files)[-1]
    disk = files.crash(random.Random(1), keep="everything")
    disk.replace(last, b"")
    before = disk.files()
    assert verify(PATH, files=disk).is_sound
    assert repair(PATH, files=disk) == ([], None)
    assert {**disk.files(), f"{PATH}/LOCK": b""} == {**before, f"{PATH}/LOCK": b""}
    assert _values(_open(disk)) == {number: b"value %d" % number for number in range(30)}


@pytest.mark.parametrize("gone", ["journal", "topics", "topics/t", "topics/t/0"])
def test_a_missing_folder_is_told_by_opening_and_by_verify_in_the_same_words(files: SimulatedFileSystem, gone: str) -> None:
    """A typed error, and none of the operating system."""
    for path in sorted(files.tree(), reverse=True):
        if path.startswith(f"{PATH}/{gone}/"):
            files.remove_directory(path.rstrip("/")) if path.endswith("/") else files.unlink(path)
    with pytest.raises(MissingData) as caught:
        _open(files.clone())
    assert str(caught.value) in [finding.reason for finding in verify(PATH, files=files).findings]
    assert plan(PATH, files=files)
    repair(PATH, files=files)
    assert verify(PATH, files=files).is_sound
    if gone == "journal":
        assert _values(_open(files)) == EXPECTED


def test_bytes_behind_a_sealed_footer_are_told_and_taken_away(files: SimulatedFileSystem) -> None:
    """A reader does not find the footer any more; no message is lost."""
    path = _segments(files)[0]
    files.replace(path, files.files()[path] + b"behind the footer")
    assert not verify(PATH, files=files).is_sound
    repair(PATH, files=files)
    assert verify(PATH, files=files).is_sound
    assert _values(_open(files)) == EXPECTED


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_flipped_byte_in_the_last_frame_is_no_dead_end(*, rebooted: bool) -> None:
    """The logs have its messages: opening says that the journal lacks a frame, and repair keeps what the logs hold."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, ALWAYS)
    for number in range(6):
        volume.append(volume.log("t"), encode_single(b"value %d" % number))
    disk = files.crash(random.Random(3), keep="everything") if rebooted else files.kill()
    wal = max(path for path in disk.files() if path.endswith(".wal"))
    _damage(disk, wal, disk.files()[wal].rfind(b"PSF1") + 60)
    with pytest.raises(MissingData) as caught:
        _open(disk.clone())
    assert [finding.reason for finding in verify(PATH, files=disk).findings] == [str(caught.value)]
    assert repair(PATH, files=disk).lost
    assert _values(_open(disk)) == {number: b"value %d" % number for number in range(6)}


def _stop_at(disk: SimulatedFileSystem, at: int, states: list[SimulatedFileSystem], _: Operation) -> None:
    """The power goes before the operation with this number, and the process with it."""
    if disk.operations > at:
        states.append(disk.crash(random.Random(at)))
        raise KeyboardInterrupt


def test_an_interrupted_repair_is_begun_anew(files: SimulatedFileSystem) -> None:
    """Power goes at each of its operations: the next repair ends what it began, and no message is lost that was not."""
    files.unlink(_segments(files)[1])
    wal = max(path for path in files.files() if path.endswith(".wal"))
    files.replace(wal, bytes(100))
    files = files.crash(random.Random(0), keep="everything")
    spare = files.clone()
    repair(PATH, files=spare)
    expected = _values(_open(spare))
    stops = 0
    while True:
        disk = files.clone()
        states: list[SimulatedFileSystem] = []
        disk.on_operation = partial(_stop_at, disk, stops, states)
        try:
            repair(PATH, files=disk)
        except KeyboardInterrupt:
            disk.on_operation = None
        else:
            break
        repair(PATH, files=states[-1])
        assert verify(PATH, files=states[-1]).is_sound
        assert _values(_open(states[-1])) == expected
        stops += 1
    assert stops > 20


# -- piece by piece -------------------------------------------------------------------------------------------------


class _Bytes:
    """A file of these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, length: int, position: int) -> bytes:
        return self._data[position : position + length]


def _damaged(good: bytes, rng: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(0, 4)):
        if len(data) < 2:
            break
        at, kind = rng.randrange(len(data)), rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 300)]
        elif kind == 2:
            del data[max(1, at) :]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
    return bytes(data)


@pytest.mark.parametrize("piece_bytes", [5, 100, 5_000])
def test_a_segment_that_is_read_by_pieces_is_told_of_as_one_that_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, piece_bytes: int
) -> None:
    """However it is damaged, and wherever a piece ends."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, ALWAYS)
    log = volume.log("t")
    for _ in range(25):
        volume.append(log, encode_batch([rng.randbytes(rng.choice([3, 50, 700])) for _ in range(rng.randint(1, 4))]))
    monkeypatch.setattr(salvaging, "PIECE_BYTES", piece_bytes)
    for first in log.segment_firsts:
        file = files.open(log.segment(first).path)
        good = file.pread(file.size(), 0)
        for _ in range(40):
            data, stop, sealed = _damaged(good, rng), rng.choice([1 << 60, first + 20]), rng.random() < 0.5
            whole = salvaging.salvage(data, first, log.identity, stop, sealed=sealed)
            walk = salvaging.Walk(salvaging.FilePieces(cast("File", _Bytes(data))), first, log.identity)
            walk.run(stop, sealed=sealed)
            assert (walk.header, walk.footer, walk.bad, walk.end_offset) == (
                whole.header, whole.footer, whole.bad, whole.end_offset,
            )  # fmt: skip
            assert (walk.batches, walk.messages) == (len(whole.batches), sum(map(len, whole.batches)))


@pytest.mark.parametrize("damaged", [False, True])
def test_verifying_takes_as_much_memory_as_the_largest_batch(tmp_path: Path, *, damaged: bool) -> None:
    """And not as much as the largest segment; also where it looks for the next good batch."""
    store = str(tmp_path / "store")
    volume = Volume.open(store, settings=SETTINGS, background=False)
    volume.create_topic("t", 1, replace(OS, segment_bytes=64 << 20))
    log = volume.log("t")
    for _ in range(24):
        volume.append(log, encode_batch([b"." * (1 << 20)]))
    for _ in range(500):
        volume.append(log, encode_single(b"small"))
    assert log.segment_firsts == [0]
    path = log.segment(0).path
    volume.close()
    if damaged:
        with open(path, "r+b") as file:
            file.seek(100_000)
            file.write(b"damage")
    tracemalloc.start()
    try:
        found = verify(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.is_sound is not damaged
    assert found.messages == 524 - damaged
    assert peak < 6 << 20


def test_repair_without_checkpoints_does_not_go_back_in_log_epochs() -> None:
    """New messages of an older epoch behind those of a newer one would look like damage."""
    files, volume, _ = new_volume()
    for number in range(4):
        volume.append(volume.log("a"), encode_single(b"%d" % number))
        files = files.kill()
        volume = open_volume(files)
    volume.append(volume.log("a"), encode_single(b"last"))
    before = volume.log_epoch
    volume.close()
    for name in ("checkpoint-0", "checkpoint-1"):
        files.replace(f"{PATH}/{name}", b"bad")
    repair(PATH, files=files)
    volume = open_volume(files)
    assert volume.log_epoch > before
    volume.append(volume.log("a"), encode_single(b"new"))
    volume.checkpoint()
    volume.append(volume.log("a"), encode_single(b"newer"))
    assert open_volume(files.kill()).log("a").committed_end == 7


def test_verify_and_repair_know_of_retention_behind_the_checkpoint() -> None:
    """What was removed by rule is not missing."""
    files, volume, log = new_volume(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    for number in range(13):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.checkpoint()
    assert volume.retain(log, messages_max=4)[0] > 0
    assert verify(PATH, files=files).is_sound
    disk = files.kill()
    assert verify(PATH, files=disk).is_sound
    assert repair(PATH, files=disk).lost == []
    assert open_volume(disk).log("a").log_start == log.log_start


def test_a_store_whose_newest_segment_is_missing_and_was_empty_is_repaired() -> None:
    """Nothing is lost, and opening it says that a file is gone: so repair must do something about it."""
    files, volume, log = new_volume(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    volume.append(log, encode_single(b"1" * 500))
    files = kill_at(files, "reserve", f"{1:020d}.log", lambda: volume.append(log, encode_single(LARGE)))
    open_volume(files)
    files = files.kill()
    gone = f"{PATH}/topics/a/0/{1:020d}.log"
    files.unlink(gone)
    with pytest.raises(MissingData, match="the last checkpoint names this segment"):
        open_volume(files)
    [lost] = repair(PATH, files=files).lost
    assert "no message is lost" in lost.reason
    volume = open_volume(files)
    assert volume.append(volume.log("a"), encode_single(b"2")) == 1
    volume.close()
    assert verify(PATH, files=files).is_sound
    log = open_volume(files).log("a")
    assert [bytes(log.read(offset)[0].value(0) or b"") for offset in (0, 1)] == [b"1" * 500, b"2"]
