"""Topics are deleted and made again, and segments removed, while compaction, vacuum and retention are at work on them."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed, OffsetOutOfRange, PenstockError, TopicNotFound, Unavailable
from penstock.format import columns as c
from penstock.format import select
from penstock.format.batch import encode_batch
from penstock.log.filtering import Protection
from penstock.offset_set import OffsetSet
from penstock.settings import StoreSettings, TopicSettings
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.volume import topic_files
from penstock.volume import volume as volumes
from penstock.volume.housekeeping import Rules
from penstock.volume.reader import VolumeReader
from penstock.volume.verification import verify
from penstock.volume.volume import Volume
from tests.one_log import replace_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.log.partition_log import PartitionLog

SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=4_096, free_bytes_floor=0, reserve_bytes=0
)
TOPIC = TopicSettings(segment_bytes=1_000, compaction=True, coalesce_below_bytes=0)


class Place:
    """A volume with a topic of several sealed segments that a reader has open, and one that takes its name."""

    def __init__(self) -> None:
        self.files = SimulatedFileSystem()
        self.volume = self.open()
        self.volume.create_topic("t", 1, TOPIC)
        self.log = self.fill(b"old", 20)
        self.volume.checkpoint()
        self.volume.checkpoint()
        assert len(self.log.segment_firsts) > 4
        for first in self.log.segment_firsts:
            self.log.segment(first).content()
        self.remade = False

    def open(self) -> Volume:
        """Open the store on the disk as it is."""
        return Volume.open("/store", settings=SETTINGS, files=self.files, clock=FakeClock(), background=False)

    def fill(self, word: bytes, count: int) -> PartitionLog:
        """Publish with one key."""
        log = self.volume.log("t")
        for number in range(count):
            self.volume.append(log, encode_batch([word + b"%d" % number + b"." * 100], keys=[b"k"]))
        return log

    def remake(self) -> None:
        """The topic goes, and another one of its name has segments that begin at the same offsets; once, and not within a rewriting."""
        if self.remade or self.volume._rewrite_lock.locked():
            return
        self.remade = True
        self.volume.delete_topic("t")
        self.volume.create_topic("t", 1, TOPIC)
        self.fill(b"new", 20)

    def check_new(self) -> None:
        """The new topic has all of its messages, now and after a restart, and no file of the old one."""
        assert self.remade
        for _ in range(2):
            log, values, at = self.volume.log("t"), [], 0
            while at < log.committed_end:
                for batch in log.read(at):
                    values.append(bytes(batch.value(0) or b"")[:3])
                    at = batch.end_offset
            assert values == [b"new"] * 20
            assert not [name for name in self.files.files() if name.endswith(".tmp")]
            self.files = self.files.kill()
            self.volume = self.open()


def test_compaction_leaves_a_topic_alone_that_took_the_name_of_a_deleted_one() -> None:
    """Between two segments the topic is deleted and made again: the next one must not be written into the new one's folder."""
    place = Place()
    place.volume.housekeeping.compact(place.log, Protection(), 1 << 50, place.remake)
    place.check_new()


def test_vacuum_leaves_it_alone_too() -> None:
    place = Place()
    place.log.floors["groups"] = 1
    protection = Protection(place.log.segment_firsts[-1], OffsetSet([1]))
    place.volume.housekeeping.vacuum(place.log, Rules(messages_max=0), protection, place.remake)
    place.check_new()


def test_retention_removes_no_file_of_a_topic_that_took_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is deleted and made again when the new start is durable, and before the files go."""
    place = Place()
    original = place.volume.checkpoint

    def checkpoint() -> None:
        original()
        place.remake()

    monkeypatch.setattr(place.volume, "checkpoint", checkpoint)
    assert place.volume.housekeeping.retain(place.log, Rules(messages_max=0)) == (0, 0)
    monkeypatch.undo()
    place.check_new()


@pytest.mark.parametrize("act", ["retain", "vacuum", "compact"])
def test_who_looks_at_segments_while_retention_removes_them_goes_on_behind_them(
    act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that look after a topic at once, one asked to and one in the background: neither fails."""
    place = Place()
    log, firsts = place.log, place.log.segment_firsts
    place.log.let_go()
    look: Callable[[int], Any] = log.segment
    size: Callable[[int], int] = log.segment_bytes
    gone: list[object] = []

    def first_let_go() -> None:
        if not gone:
            gone.append(place.volume)
            log.drop_before(firsts[3])
            log.let_go()

    def segment(first: int) -> Any:
        first_let_go()
        return look(first)

    def segment_bytes(first: int) -> int:
        first_let_go()
        return size(first)

    replace_of(monkeypatch, log, "segment", segment)
    replace_of(monkeypatch, log, "segment_bytes", segment_bytes)
    housekeeping = place.volume.housekeeping
    if act == "retain":
        assert housekeeping.retain(log, Rules(before_time_us=1 << 60, bytes_max=1))[0] > 0
    elif act == "vacuum":
        housekeeping.vacuum(log, Rules(before_time_us=1 << 60, bytes_max=1), Protection(unfinished=OffsetSet([1])))
    else:
        assert housekeeping.is_compaction_due(log, 0)
        housekeeping.compact(log, Protection(), 1 << 50)
        assert not housekeeping.is_compaction_due(log, 0)
    assert gone
    assert log.log_start >= firsts[3]


def test_what_cannot_be_taken_out_of_its_batch_keeps_the_tombstone_that_deletes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a column that this version does not know stays whole: if the tombstone behind it went, its value would come back."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = Store.open("/store", settings=SETTINGS, files=files, clock=clock, background=False)
    store.create_topic("t", compaction=True, segment_bytes=1_000, tombstone_grace=60)
    store.publish("t", b"value", key=b"k", headers={"h": b"v"})
    for _ in range(10):
        store.publish("t", b"." * 150)
    store.publish("t", None, key=b"k")
    for _ in range(10):
        store.publish("t", b"." * 150)
    monkeypatch.setattr(select, "_KNOWN", select._KNOWN - {c.HEADERS})
    for _ in range(3):
        store.compact("t")
        assert [message.value for message in store.read("t") if message.key == b"k"] == [b"value", None]
        clock.advance(120)
    monkeypatch.undo()
    for left in ([None], []):
        store.compact("t")
        assert [message.value for message in store.read("t") if message.key == b"k"] == left
        clock.advance(120)


@pytest.mark.parametrize("after", ["t.dlq", "t"])
def test_a_message_that_fails_while_its_topic_is_deleted_leaves_no_dead_letter_behind(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the deletion of the dead letters, of their topic, and of its groups: else the next topic of that name would have it."""
    store = Store.open("/store", settings=SETTINGS, files=SimulatedFileSystem(), clock=FakeClock(), background=False)
    store.create_topic("t")
    store.publish_many("t", [b"one", b"two"])
    consumer = store.subscribe("t", "g", max_deliveries=1)
    first, second = consumer.get(timeout=0), consumer.get(timeout=0)
    assert first is not None
    assert second is not None
    consumer.reject(first, "no")
    assert [letter.value for letter in store.dead_letters("t")] == [b"one"]
    delete = store._catalog.delete

    def delete_and_fail(name: str) -> Any:
        deleted = delete(name)
        if name == after:
            try:
                consumer.reject(second, "no")
            except PenstockError as error:
                print(f"refused: {error}")
        return deleted

    monkeypatch.setattr(store._catalog, "delete", delete_and_fail)
    store.delete_topic("t")
    assert [info.name for info in store.topics()] == []
    store.create_topic("t")
    assert list(store.dead_letters("t")) == []


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("who", ["owner", "reader"])
@pytest.mark.parametrize("what", ["read", "offset_of_time"])
def test_who_reads_while_a_topic_is_deleted_is_told_that_and_not_of_damage(
    who: str, what: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are gone, or are those of another topic of that name, when they are about to be opened."""
    place = Place()
    reader = VolumeReader.open("/store", files=place.files)
    log: Any = place.log if who == "owner" else reader.log("t")
    if who == "owner":
        log.let_go()
    name = "_segment_of" if what == "read" else "_search_time"
    look = getattr(type(log), name)

    def look_after_deletion(wanted: int) -> Any:
        monkeypatch.undo()
        if again:
            place.remake()
        else:
            place.volume.delete_topic("t")
        return look(log, wanted)

    replace_of(monkeypatch, log, name, look_after_deletion)
    with pytest.raises(TopicNotFound):
        log.read(5) if what == "read" else log.offset_of_time(5)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_group_that_is_made_while_its_topic_is_deleted_is_refused_and_the_store_goes_on(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic goes right before the group's frame is written, or right after it: TopicNotFound, and nothing is left of the group."""
    files = SimulatedFileSystem()
    store = Store.open("/store", settings=SETTINGS, files=files, clock=FakeClock(), background=False)
    store.create_topic("t")
    store.create_topic("other")
    commit = store._groups.commit

    def commit_beside_deletion(body: bytes) -> None:
        monkeypatch.undo()
        if moment == "before":
            store.delete_topic("t")
        commit(body)
        if moment == "after":
            store.delete_topic("t")

    monkeypatch.setattr(store._groups, "commit", commit_beside_deletion)
    with pytest.raises(TopicNotFound):
        store.subscribe("t", "g")
    for _ in range(2):
        store.publish("other", b"x")
        store.create_topic("t")
        assert [group.topic for group in store._groups.all()] == []
        store.delete_topic("t")
        files = files.kill()
        store = Store.open("/store", settings=SETTINGS, files=files, clock=FakeClock(), background=False)
    assert len(list(store.read("other"))) == 2


@pytest.mark.parametrize("what", ["read", "offset_of_time"])
def test_a_reader_is_told_so_between_the_renaming_of_the_folder_and_the_word_of_the_positions(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    log = VolumeReader.open("/store", files=place.files).log("t")
    told: list[str] = []
    rename = topic_files.set_aside

    def rename_and_read(*arguments: Any) -> None:
        rename(*arguments)
        with pytest.raises(TopicNotFound):
            log.read(5) if what == "read" else log.offset_of_time(5)
        told.append(what)

    monkeypatch.setattr(volumes, "set_aside", rename_and_read)
    place.volume.delete_topic("t")
    assert told == [what]


class DeletingFiles(SimulatedFileSystem):
    """Does something, once, right after somebody has listed a folder."""

    folder = ""
    then: Callable[[], None] | None = None

    def list_directory(self, path: str) -> list[str]:
        names = super().list_directory(path)
        if path == self.folder and self.then is not None:
            then, self.then = self.then, None
            then()
        return names


@pytest.mark.parametrize("folder", ["/store/topics", "/store/topics/t"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("who", ["reader", "verify"])
def test_a_topic_that_is_deleted_while_others_list_the_topics_is_no_damage(who: str, again: bool, folder: str) -> None:
    files = DeletingFiles()
    with Volume.open("/store", settings=SETTINGS, files=files, clock=FakeClock(), background=False) as volume:
        volume.create_topic("t", 1, TOPIC)
        volume.create_topic("other", 1, TOPIC)

        def delete() -> None:
            volume.delete_topic("t")
            if again:
                volume.create_topic("t", 1, TOPIC)

        files.folder, files.then = folder, delete
        if who == "reader":
            reader = VolumeReader.open("/store", files=files)
            assert [record.name for record in reader.topics] == ["other", *(["t"] if again else [])]
        else:
            assert not verify("/store", files=files).findings
        assert files.then is None


def test_retention_of_all_topics_goes_on_when_one_of_them_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open("/store", settings=SETTINGS, files=SimulatedFileSystem(), clock=FakeClock(), background=False)
    for name in ("a", "b"):
        store.create_topic(name, segment_bytes=1_000, retention_messages=1)
        for _ in range(20):
            store.publish(name, b"." * 150)
    topic = store._catalog.get("a")
    floor = type(topic).dedup_floor

    def deleted_meanwhile(partition: int) -> int | None:
        store.delete_topic("a")
        topic.logs[0].read(0)
        return floor(topic, partition)

    monkeypatch.setattr(topic, "dedup_floor", deleted_meanwhile)
    assert store.retain().segments > 2
    assert [info.name for info in store.topics()] == ["b"]


@pytest.mark.long
def test_everything_at_once_beside_a_topic_that_comes_and_goes(tmp_path: Path, rng: random.Random) -> None:
    """Threads look after topics, consume, fail, read and read beside the owner: each is told that the topic is gone, or nothing."""
    path = str(tmp_path / "store")
    settings = replace(SETTINGS, checkpoint_interval_ms=50, retention_interval_ms=100)
    store = Store.open(path, settings=settings)
    store.create_topic("other", sync="os")
    end, published, unexpected = time.monotonic() + 5, [0], []

    def come_and_go(rng: random.Random) -> None:
        kept = rng.choice(["always", "until_acked"])
        messages = rng.choice([5, 100_000])
        store.create_topic("t", compaction=True, segment_bytes=1_500, retain=kept, retention_messages=messages, sync="os")
        for _ in range(rng.randrange(60)):
            store.publish("t", rng.choice([None, b"." * 100]), key=rng.choice(["a", "b", None]))
        store.delete_topic("t")

    def look_after(rng: random.Random) -> None:
        rng.choice([store.compact, store.vacuum, store.retain])()

    def consume(rng: random.Random) -> None:
        with store.subscribe("t", rng.choice("gh"), max_deliveries=2, create=False) as consumer:
            while (message := consumer.get(timeout=0.001)) is not None:
                endings: list[Callable[[Any], object]] = [consumer.ack, consumer.nack, lambda one: consumer.reject(one, "no")]
                rng.choice(endings)(message)

    def read(_: random.Random) -> None:
        for message in store.read("t"):
            assert message.key in (None, b"a", b"b")

    def read_beside(_: random.Random) -> None:
        with ReadOnlyStore(path) as reader:
            list(reader.read("t"))

    def publish(_: random.Random) -> None:
        store.publish("other", b"x")
        published[0] += 1

    def run(act: Callable[[random.Random], None], rng: random.Random) -> None:
        while time.monotonic() < end:
            try:
                act(rng)
            except (TopicNotFound, OffsetOutOfRange, Closed, Unavailable):
                continue
            except BaseException as error:
                unexpected.append(error)
                raise

    acts = [come_and_go, look_after, consume, consume, read, read_beside, publish]
    threads = [threading.Thread(target=run, args=(act, random.Random(rng.random()))) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
    assert store._volume.failure is None
    assert [info.name for info in store.topics()] == ["other"]
    assert len(list(store.read("other"))) == published[0]
    store.close()
    assert not verify(path).findings
