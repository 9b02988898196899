"""Reading: by offset, by time, across segments, beside an owner, after retention and coalescing."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import (
    BadName,
    BadSetting,
    Closed,
    OffsetOutOfRange,
    StoreLocked,
    StoreNotFound,
    TopicExists,
    TopicNotFound,
)
from penstock.format.batch import encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.journal.checkpoints import Checkpoints
from penstock.log.positions import PositionsReader
from penstock.log.segment import parse_segment_name
from penstock.settings import StoreSettings, TopicSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.volume import Volume
from tests.volume.simulated import new_volume

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.log.partition_log import PartitionLog
    from penstock.testing import Operation

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
SMALL = TopicSettings(segment_bytes=4_000, index_interval_bytes=512, coalesce_below_bytes=2_000, coalesce_to_bytes=6_000)


def _open(files: SimulatedFileSystem, clock: FakeClock | None = None) -> Volume:
    return Volume.open(PATH, settings=SETTINGS, files=files, clock=clock or FakeClock(), background=False)


def _read_all(log: PartitionLog) -> list[tuple[int, bytes | None, int]]:
    found = []
    at = log.log_start
    while at < log.committed_end:
        for batch in log.read(at, 700):
            for index in range(batch.index_of(at), len(batch)):
                value = batch.value(index)
                found.append((batch.offset(index), None if value is None else bytes(value), batch.time_us(index)))
            at = batch.end_offset
    return found


def _fill(volume: Volume, clock: FakeClock, count: int) -> list[tuple[int, bytes | None, int]]:
    log = volume.log("t")
    expected = []
    for number in range(count):
        clock.advance(1)
        value = b"value %d" % number
        if number % 7 == 3:
            first = volume.append(
                log, encode_batch([value, None, b""], keys=[b"k", None, b""], headers=[[("a", b"1")], None, []])
            )
            expected += [(first, value, clock.now_us()), (first + 1, None, clock.now_us()), (first + 2, b"", clock.now_us())]
        else:
            producer = Producer(5, 1, number)
            expected.append((volume.append(log, encode_batch([value], producer=producer)), value, clock.now_us()))
    return expected


def test_every_offset_and_every_time_is_found_in_every_segment() -> None:
    """Binary search and one index interval lead to the right batch, active or sealed, before and after reopening."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    expected = _fill(volume, clock, 120)
    for _ in range(2):
        log = volume.log("t")
        assert len(log.segment_firsts) > 5
        assert _read_all(log) == expected
        for offset, value, time_us in expected:
            batch = log.read(offset, 1)[0]
            found = batch.value(batch.index_of(offset))
            assert (None if found is None else bytes(found)) == value
            first_at_time = next(one for one, _, other in expected if other >= time_us)
            assert log.offset_of_time(time_us) == first_at_time
        assert log.offset_of_time(0) == 0
        assert log.offset_of_time(clock.now_us() + 1) == log.committed_end
        volume.close()
        volume = _open(files, clock)


def test_a_reader_finds_a_time_where_compaction_left_segments_empty(tmp_path: Path) -> None:
    """As the owner does: what begins at a time begins with the first message that is left."""
    path = str(tmp_path / "store")
    with Store.open(path, background=False) as store:
        store.create_topic("t", compaction=True, segment_messages=10, retain="always")
        for number in range(40):
            store.publish("t", b"%d" % number, key=b"k%d" % (number % 10))
        store.compact("t")
        begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        assert store.offset_of_time("t", 0, begin) == 20
        with penstock.open(path, read_only=True) as reader:
            assert reader.offset_of_time("t", 0, begin) == 20


def test_look_up_by_time_survives_a_clock_that_jumps_back() -> None:
    """I19 of times: the running maximum keeps look-up well defined."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    log = volume.log("t")
    volume.append(log, encode_single(b"first"))
    high = clock.now_us()
    clock.jump_wall(-3600)
    volume.append(log, encode_single(b"in the past"))
    clock.jump_wall(7200)
    volume.append(log, encode_single(b"later"))
    assert log.offset_of_time(high) == 0
    assert log.offset_of_time(high + 1) == 2
    assert log.read(1)[0].header.max_time_us == high


def test_rolling_by_bytes_messages_and_age() -> None:
    """A segment is sealed on a batch boundary; a batch that is larger than a segment gets one of its own."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("bytes", 1, TopicSettings(segment_bytes=1_000))
    volume.create_topic("messages", 1, TopicSettings(segment_messages=2))
    volume.create_topic("age", 1, TopicSettings(segment_age_ms=1_000))
    for _ in range(5):
        for topic in ("bytes", "messages", "age"):
            volume.append(volume.log(topic), encode_single(bytes(100)))
        clock.advance(0.6)
    assert volume.log("messages").segment_firsts == [0, 2, 4]
    assert volume.log("age").segment_firsts == [0, 2, 4]
    assert volume.log("bytes").segment_firsts == [0, 2, 4]
    volume.append(volume.log("bytes"), encode_single(bytes(5_000)))
    volume.append(volume.log("bytes"), encode_single(bytes(100)))
    assert volume.log("bytes").segment_firsts == [0, 2, 4, 5, 6]


def test_coalescing_changes_nothing_that_can_be_read() -> None:
    """Fewer, larger batches with the same offsets, values, keys, headers, times and producers, in a live store and after reopening."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    expected = _fill(volume, clock, 120)
    log = volume.log("t")
    before = len(log.read(0, 1 << 20))
    volume.checkpoint()
    volume.checkpoint()
    assert volume.coalesce() >= 4
    assert len(log.read(0, 1 << 20)) < before / 2
    assert _read_all(log) == expected
    for _, _, time_us in expected:
        assert log.offset_of_time(time_us) == next(one for one, _, other in expected if other >= time_us)
    producers = dict(log.state.recent)
    volume.close()
    volume = _open(files, clock)
    log = volume.log("t")
    assert _read_all(log) == expected
    assert log.state.recent == producers
    batch = log.read(3, 1)[0]
    assert bytes(batch.key(batch.index_of(3)) or b"") == b"k"
    assert batch.key(batch.index_of(4)) is None
    empty = batch.key(batch.index_of(5))
    assert empty is not None
    assert bytes(empty) == b""
    assert batch.headers(batch.index_of(3)) == [("a", b"1")]


def test_retention_removes_whole_sealed_segments_up_to_the_floors() -> None:
    """By age, bytes and messages; never the active segment, never past a floor; the log start is durable."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    expected = _fill(volume, clock, 120)
    log = volume.log("t")
    volume.checkpoint()
    volume.checkpoint()
    firsts = log.segment_firsts
    log.floors["a reader"] = firsts[2]
    assert volume.retain(log, messages_max=0)[0] == 2
    assert log.log_start == firsts[2]
    del log.floors["a reader"]
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(0)
    assert (caught.value.first, caught.value.end) == (firsts[2], log.committed_end)
    removed, freed = volume.retain(log, before_time_us=expected[-1][2] - 60_000_000)
    assert removed > 0
    assert freed > 1_000 * removed
    kept = log.log_start
    assert volume.retain(log, bytes_max=1 << 30) == (0, 0)
    assert volume.retain(log, messages_max=0)[0] > 0
    assert log.segment_firsts == [firsts[-1]]
    assert log.log_start > kept
    start = log.log_start
    volume.close()
    volume = _open(files, clock)
    assert volume.log("t").log_start == start
    assert _read_all(volume.log("t")) == [row for row in expected if row[0] >= start]


def test_segments_that_come_back_after_power_loss_are_not_served() -> None:
    """I36, R9: unlinked files that a crash resurrects lie below the log start and are removed again."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    _fill(volume, clock, 60)
    log = volume.log("t")
    volume.checkpoint()
    volume.checkpoint()
    copies = {path: content for path, content in files.files().items() if path.endswith(".log")}
    volume.retain(log, messages_max=5)
    start = log.log_start
    gone = [path for path in copies if not files.exists(path)]
    assert gone
    for path in gone:
        files.replace(path, copies[path])
    again = _open(files.crash(random.Random(1), keep="everything"), clock)
    assert again.log("t").log_start == start
    assert again.log("t").segment_firsts[0] <= start
    with pytest.raises(OffsetOutOfRange):
        again.log("t").read(0)


def test_a_reader_sees_what_is_committed_and_nothing_else() -> None:
    """Beside a live owner: each commit is seen after a refresh, ends of one change move together."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 2, SMALL)
    reader = VolumeReader.open(PATH, files=files)
    log = volume.log("t")
    at = 0
    for number in range(80):
        volume.append(log, encode_single(b"%d" % number))
        view = reader.log("t")
        assert view.committed_end == number
        with pytest.raises(OffsetOutOfRange):
            view.read(number + 1)
        reader.refresh()
        while at < view.committed_end:
            for batch in view.read(at):
                assert bytes(batch.value(0) or b"") == b"%d" % at
                at += 1
        assert at == number + 1
        if number % 20 == 10:
            volume.checkpoint()
            volume.coalesce()
    assert reader.is_live
    assert reader.ends([reader.log("t"), reader.log("t", 1)]) == [80, 0]
    with pytest.raises(TopicNotFound):
        reader.log("other")
    with pytest.raises(TopicNotFound):
        reader.log("t", 2)
    reader.close()


def test_a_reader_after_a_reboot_serves_the_last_checkpoint() -> None:
    """Positions of another boot do not count: the checkpoint's ends are a prefix of what recovery will bring."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, SMALL)
    log = volume.log("t")
    for number in range(5):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.append(log, encode_single(b"after"))
    disk = files.crash(random.Random(2), keep="everything")
    reader = VolumeReader.open(PATH, files=disk)
    assert not reader.is_live
    assert reader.log("t").committed_end == 5
    assert [bytes(batch.value(0) or b"") for batch in reader.log("t").read(0)] == [b"0", b"1", b"2", b"3", b"4"]
    assert _open(disk).log("t").committed_end == 6


def _look(reader: VolumeReader, name: str) -> tuple[bytes, list[tuple[int, int, int]]] | None:
    """What *reader* knows of a topic."""
    try:
        record = reader.topic(name)
    except TopicNotFound:
        return None
    logs = [reader.log(name, partition) for partition in range(record.partitions)]
    return record.topic_id, [(log.log_epoch, log.log_start, log.committed_end) for log in logs]


def test_a_reader_that_asks_for_some_topics_sees_of_them_what_one_that_asks_for_all_sees(rng: random.Random) -> None:
    """Whatever the owner does meanwhile: topics that come, go and come again, retention, another owner."""
    files, names = SimulatedFileSystem(), ["a", "b", "c", "d"]
    volume = _open(files)
    volume.create_topic("a", 2, SMALL)
    some, every = VolumeReader.open(PATH, files=files), VolumeReader.open(PATH, files=files)
    done: set[str] = set()
    for _ in range(600):
        name = rng.choice(names)
        step = rng.choices(["append", "create", "delete", "retain", "restart"], [20, 2, 1, 3, 1])[0]
        there = name in {record.name for record in volume.topics}
        if step == "restart":
            volume.close()
            volume = _open(files)
        elif step == "create" and not there:
            volume.create_topic(name, rng.randint(1, 3), SMALL)
        elif there and step == "delete":
            volume.delete_topic(name)
        elif there and step == "append":
            for _ in range(rng.randint(1, 20)):
                volume.append(volume.log(name), encode_single(b"v" * 300))
        elif there and step == "retain":
            volume.checkpoint()
            volume.checkpoint()
            step = "retain" if volume.retain(volume.log(name), messages_max=5)[0] else "nothing"
        else:
            continue
        done.add(step)
        wanted = rng.sample(names, rng.randint(1, 4))
        assert some.refresh_topics(wanted)
        assert every.refresh()
        assert [_look(some, name) for name in wanted] == [_look(every, name) for name in wanted]
    assert done >= {"append", "create", "delete", "retain", "restart"}


def test_asking_for_one_topic_costs_nothing_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their positions nor their files are looked at; nor is the checkpoint, which may be large, before the store has an owner."""
    files = SimulatedFileSystem()
    volume = _open(files)
    for name in ("t", "other"):
        volume.create_topic(name, 1, SMALL)
    reader = VolumeReader.open(PATH, files=files)
    reader.refresh_topics(["t"])
    volume.checkpoint()
    disk = files.crash(random.Random(2), keep="everything")
    rebooted = VolumeReader.open(PATH, files=disk)
    assert not rebooted.is_live

    def refuse(*_: object) -> None:
        raise AssertionError("all of them are looked at")

    with monkeypatch.context() as patch:
        for place, name in ((PositionsReader, "_decode"), (PositionsReader, "_find_places"), (Checkpoints, "load")):
            patch.setattr(place, name, refuse)
        patch.setattr("penstock.volume.reader.read_topics", refuse)
        for number in range(10):
            volume.append(volume.log("t"), encode_single(b"1"))
            assert reader.refresh_topics(["t"])
            assert reader.log("t").committed_end == number + 1
            assert rebooted.refresh_topics(["t"])
    owner = _open(disk)
    owner.append(owner.log("t"), encode_single(b"2"))
    assert rebooted.refresh_topics(["t"])
    assert (rebooted.is_live, rebooted.log("t").committed_end) == (True, 1)


def test_a_reader_learns_of_retention_from_an_owner_that_died_in_a_change() -> None:
    """Its ends stay as they were, but the start must move: else files that retention took would look lost."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    _fill(volume, clock, 120)
    reader = VolumeReader.open(PATH, files=files)
    log, end = reader.log("t"), volume.log("t").committed_end
    assert (log.log_start, log.committed_end) == (0, end)
    volume.checkpoint()
    volume.checkpoint()
    assert volume.retain(volume.log("t"), messages_max=20)[0] > 0
    words = volume._positions.words
    words[7] += 1  # Several ends were about to move.
    assert not reader.refresh_topics(["t"])
    assert (log.log_start, log.committed_end) == (volume.log("t").log_start, end)
    with pytest.raises(OffsetOutOfRange):
        log.read(0)
    assert log.read(log.log_start)[0].header.first_offset <= log.log_start


def test_a_reader_learns_of_retention_before_the_next_owner_removes_what_is_left() -> None:
    """The last owner died when its retention was durable and its readers had not been told yet."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, SMALL)
    _fill(volume, clock, 120)
    volume.checkpoint()
    volume.checkpoint()
    states: list[SimulatedFileSystem] = []
    files.on_operation = lambda _: states.append(files.kill())
    assert volume.retain(volume.log("t"), messages_max=20)[0] > 0
    files.on_operation = None
    removed = 0
    for state in states:
        reader = VolumeReader.open(PATH, files=state)

        def look(operation: Operation, reader: VolumeReader = reader) -> None:
            nonlocal removed
            first = parse_segment_name(operation.path.rpartition("/")[2])
            if operation.kind == "unlink" and first is not None:
                removed += 1
                reader.refresh()
                assert first < reader.log("t").log_start

        state.on_operation = look
        _open(state, clock)
    assert removed > 0


def test_a_reader_leaves_no_trace() -> None:
    """Opening for reading changes no file."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, SMALL)
    for number in range(50):
        volume.append(volume.log("t"), encode_single(b"%d" % number))
    volume.close()
    for path in [path for path in files.files() if path.endswith(".idx")]:
        files.unlink(path)
    before = files.files()
    with VolumeReader.open(PATH, files=files) as reader:
        at = 0
        while at < reader.log("t").committed_end:
            at = reader.log("t").read(at)[-1].end_offset
        assert at == 50
    assert files.files() == before


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    """I14: a second opener is told who owns the store; a reader is always welcome; a dead owner's lock is gone."""
    with Volume.open(tmp_path / "s", settings=SETTINGS) as volume:
        volume.create_topic("t")
        with pytest.raises(StoreLocked) as caught:
            Volume.open(tmp_path / "s", settings=SETTINGS)
        assert caught.value.owner_pid is not None
        VolumeReader.open(tmp_path / "s").close()
    Volume.open(tmp_path / "s", settings=SETTINGS).close()


def test_nothing_is_created_by_looking(tmp_path: Path) -> None:
    """create=False and readers refuse an empty folder."""
    with pytest.raises(StoreNotFound):
        Volume.open(tmp_path / "none", create=False)
    with pytest.raises(StoreNotFound):
        VolumeReader.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "name", ["..", "../x", "/etc/x", "a/b", "", ".hidden", "-x", "a\x00b", "a\nb", "ü", "x" * 197, "a b", "٣"]
)
def test_bad_topic_names_are_refused_before_they_touch_a_path(name: str) -> None:
    """Names are checked before paths are made of them."""
    volume = _open(SimulatedFileSystem())
    with pytest.raises(BadName):
        volume.create_topic(name)
    assert volume.topics == []


def test_creating_a_topic_again_is_a_no_op_or_an_error() -> None:
    """The same settings: nothing happens. Others: they are fixed at creation."""
    volume = _open(SimulatedFileSystem())
    first = volume.create_topic("t", 2, SMALL)
    assert volume.create_topic("t", 2, SMALL) == first
    with pytest.raises(TopicExists):
        volume.create_topic("t", 3, SMALL)
    with pytest.raises(TopicExists):
        volume.create_topic("t", 2, TopicSettings(sync=SyncMode.OS))
    with pytest.raises(BadSetting):
        volume.create_topic("u", 0)
    with pytest.raises(BadSetting):
        TopicSettings(segment_bytes=1)
    with pytest.raises(TopicNotFound):
        volume.log("nope")


def test_the_log_epoch_grows_at_each_unclean_opening_only() -> None:
    """A clean restart keeps it; a crash bumps it, and the log remembers where each epoch began."""
    files = SimulatedFileSystem()
    volume = _open(files)
    volume.create_topic("t", 1, SMALL)
    volume.append(volume.log("t"), encode_single(b"a"))
    first = volume.log_epoch
    volume.close()
    volume = _open(files)
    assert volume.log_epoch == first
    volume.append(volume.log("t"), encode_single(b"b"))
    volume = _open(files.crash(random.Random(0), keep="nothing"))
    assert volume.log_epoch == first + 1
    log = volume.log("t")
    volume.append(log, encode_single(b"c"))
    assert [log.state.epoch_at(offset) for offset in range(3)] == [first, first, first + 1]
    assert [batch.header.log_epoch for batch in log.read(0)] == [first, first, first + 1]


def test_a_closed_log_says_that_it_is_closed() -> None:
    """Not that its files are damaged."""
    _, volume, log = new_volume()
    volume.append(log, encode_single(b"1"))
    volume.close()
    with pytest.raises(Closed):
        log.read(0)
