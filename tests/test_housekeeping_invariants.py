"""
Invariants I33-I38 of the reliability page, each by a test that carries its number: compaction, retention, deletion.

They are small and direct. tests/crash/test_housekeeping.py checks the same in the states that a crash at any operation leaves.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import OffsetOutOfRange, TopicNotFound
from penstock.settings import StoreSettings
from penstock.store.read_only import ReadOnlyStore
from penstock.testing import FakeClock, SimulatedFileSystem

if TYPE_CHECKING:
    from penstock import Message

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=4_096, free_bytes_floor=0, reserve_bytes=0
)
HOUR = 3_600.0


class Place:
    """A store on a simulated disk, with its own time."""

    def __init__(self) -> None:
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.store = self.open()

    def open(self) -> Store:
        """Open the store on the disk as it is."""
        self.store = Store.open(PATH, settings=SETTINGS, files=self.files, clock=self.clock, background=False)
        return self.store

    def lose_power(self) -> Store:
        """Open what is left of it when nothing survived that was not synced."""
        self.files = self.files.crash(random.Random(1), keep="nothing")
        return self.open()

    def seal(self, topic: str) -> None:
        """Publish without a key until what was published before is sealed."""
        before = self.store.ends(topic)[0]
        while self.store._catalog.get(topic).logs[0].segment_firsts[-1] < before:
            self.store.publish(topic, b"." * 200)


def _row(message: Message) -> tuple[Any, ...]:
    return message.offset, message.key, message.value, message.headers, message.timestamp


def test_i33_compaction_keeps_the_latest_of_each_key_unchanged_and_all_without_one() -> None:
    """Offset, key, value, headers and time of what stays are as they were; order too; keys "" and none are two things."""
    place, rng = Place(), random.Random(33)
    store = place.store
    store.create_topic("t", compaction=True, segment_bytes=2_000)
    for number in range(150):
        key = rng.choice([None, b"", b"a", b"b", b"k" * 100])
        value = rng.choice([None, b"", b"%d" % number])
        store.publish("t", value, key=key, headers=[("n", b"%d" % number)], timestamp=number + 0.5)
        place.clock.advance(0.1)
    place.seal("t")
    before = [_row(message) for message in store.read("t")]
    limit = store._catalog.get("t").logs[0].segment_firsts[-1]
    last = {key: offset for offset, key, *_ in before if key is not None}
    expected = [row for row in before if row[0] >= limit or row[1] is None or last[row[1]] == row[0]]
    removed = store.compact("t")
    assert removed.messages == len(before) - len(expected) > 50
    assert [_row(message) for message in store.read("t")] == expected
    assert [_row(message) for message in ReadOnlyStore(PATH, files=place.files).read("t")] == expected
    assert [_row(message) for message in place.lose_power().read("t")] == expected
    assert place.store.compact("t").messages == 0


def test_i34_a_tombstone_stays_for_its_grace_after_compaction_made_it_the_last() -> None:
    """However old it was before: a reader that saw what it deletes has that long to see it."""
    place = Place()
    store = place.store
    store.create_topic("t", compaction=True, segment_bytes=1_000, tombstone_grace=HOUR)
    store.publish("t", b"value", key=b"k")
    place.seal("t")
    store.publish("t", None, key=b"k")
    place.seal("t")
    place.clock.advance(100 * HOUR)

    def of_the_key() -> list[bytes | None]:
        return [message.value for message in place.store.read("t") if message.key == b"k"]

    assert of_the_key() == [b"value", None]
    store.compact("t")
    assert of_the_key() == [None]
    place.clock.advance(HOUR - 1)
    place.lose_power().compact("t")
    assert of_the_key() == [None]
    place.clock.advance(2)
    assert place.store.compact("t").tombstones == 1
    assert of_the_key() == []
    assert place.lose_power().compact("t").messages == 0


def test_i35_compaction_leaves_the_active_segment_and_what_a_group_has_not_finished() -> None:
    """With retain=until_acked a superseded message stays until its group is done; with retain=always it does not."""
    for retain, kept in (("until_acked", 4), ("always", 1)):
        place = Place()
        store = place.store
        store.create_topic("t", compaction=True, segment_bytes=1_000, retain=retain)
        for number in range(4):
            store.publish("t", b"%d" % number, key=b"k")
        consumer = store.subscribe("t", "g")
        place.seal("t")
        store.compact("t")
        assert len([one for one in store.read("t") if one.key == b"k"]) == kept
        while (message := consumer.get(timeout=0)) is not None:
            consumer.ack(message)
        store.publish("t", b"active", key=b"k")
        store.compact("t")
        # The last one is in the active segment: it stays, and so does the last sealed one.
        assert [one.value for one in store.read("t") if one.key == b"k"] == [b"3", b"active"]


def test_i35_a_message_whose_dedup_key_is_remembered_stays() -> None:
    """After a restart the key is known from the message alone: until its window ends a repetition is a duplicate."""
    place = Place()
    place.store.create_topic("t", compaction=True, segment_bytes=1_000, dedup_window=60.0)
    first = place.store.publish("t", b"one", key=b"k", dedup_key="d")
    place.store.publish("t", b"two", key=b"k")
    place.seal("t")
    assert place.store.compact("t").messages == 0
    again = place.lose_power().publish("t", b"one", key=b"k", dedup_key="d")
    assert (again.duplicate, again.offset) == (True, first.offset)
    place.clock.advance(61)
    assert place.store.compact("t").messages == 1


def test_i35_what_was_kept_for_a_group_goes_later_and_no_tombstone_before_it() -> None:
    """The grace of a tombstone does not begin while what it deletes is still there: else the value would come back."""
    place = Place()
    store = place.store
    store.create_topic("t", compaction=True, segment_bytes=1_000, tombstone_grace=HOUR)
    store.publish("t", b"value", key=b"k")
    consumer = store.subscribe("t", "g")
    place.seal("t")
    store.publish("t", None, key=b"k")
    place.seal("t")
    for _ in range(3):
        store.compact("t")
        place.clock.advance(10 * HOUR)
        assert [one.value for one in store.read("t") if one.key == b"k"] == [b"value", None]
    while (message := consumer.get(timeout=0)) is not None:
        consumer.ack(message)
    for left in ([None], []):
        store.compact("t")
        assert [one.value for one in store.read("t") if one.key == b"k"] == left
        place.clock.advance(2 * HOUR)


def test_i36_a_segment_that_comes_back_is_below_the_start_and_never_served() -> None:
    """The file of a removed segment is put back, as power loss may do: it is not read, and goes when the store is opened."""
    place = Place()
    store = place.store
    store.create_topic("t", segment_bytes=1_000, retention_age=HOUR)
    for number in range(40):
        store.publish("t", b"%d" % number + b"." * 50)
    kept = {path: data for path, data in place.files.files().items() if path.endswith(".log")}
    place.clock.advance(2 * HOUR)
    store.publish("t", b"new")  # else all of it would go
    removed = store.retain("t")
    assert removed.segments == len(kept) - 1
    assert removed.bytes == sum(len(data) for data in kept.values()) - len(kept[max(kept)])
    start = store._catalog.get("t").logs[0].log_start
    expected = [message.offset for message in store.read("t")]
    place.files = place.files.crash(random.Random(1), keep="nothing")
    for path, data in kept.items():
        if path not in place.files.files():
            place.files.replace(path, data)
    reader = ReadOnlyStore(PATH, files=place.files)
    assert [message.offset for message in reader.read("t")] == expected
    _assert_out_of_range(reader, start)
    store = place.open()
    _assert_out_of_range(store, start)
    assert store._catalog.get("t").logs[0].log_start == start
    assert [message.offset for message in store.read("t")] == expected
    assert [path for path in place.files.files() if path.endswith(".log")] == [max(kept)]


def _assert_out_of_range(store: Store | ReadOnlyStore, start: int) -> None:
    """I38: of each offset below the start it is said where the log begins."""
    for offset in (0, start // 2, start - 1):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(store.read("t", 0, start=offset))
        assert caught.value.first == start
        assert caught.value.code == "OFFSET_OUT_OF_RANGE"


def test_i37_a_topic_that_is_made_again_has_nothing_of_the_deleted_one() -> None:
    """No message, position, dead letter, dedup key or id, also after power loss."""
    place = Place()
    store = place.store
    old = store.create_topic("t")
    store.publish("t", b"old", dedup_key="d")
    consumer = store.subscribe("t", "g", max_deliveries=1)
    message = consumer.get(timeout=0)
    assert message is not None
    consumer.reject(message, "no")
    assert len(list(store.dead_letters("t"))) == 1
    store.delete_topic("t")
    assert consumer.closed
    with pytest.raises(TopicNotFound):
        store.read("t")
    with pytest.raises(TopicNotFound):
        store.subscribe("t", "g", create=False)
    assert store.topics() == []
    assert place.lose_power().topics() == []
    new = place.store.create_topic("t")
    assert new.topic_id != old.topic_id
    assert place.store.groups("t") == []
    assert not place.store.publish("t", b"new", dedup_key="d").duplicate
    assert [one.value for one in place.lose_power().read("t")] == [b"new"]
    assert list(place.store.dead_letters("t")) == []


def test_i38_below_the_start_is_out_of_range_and_never_empty() -> None:
    """For the owner, for a reader beside it and for one that was in the middle."""
    place = Place()
    store = place.store
    store.create_topic("t", segment_bytes=1_000, retention_messages=5)
    for number in range(40):
        store.publish("t", b"%d" % number + b"." * 50)
    reader = ReadOnlyStore(PATH, files=place.files)
    late = reader.read("t")
    assert next(late).offset == 0
    assert store.retain("t").segments > 1
    start = store._catalog.get("t").logs[0].log_start
    for read in (store.read, ReadOnlyStore(PATH, files=place.files).read):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(read("t", 0, start=0))
        assert caught.value.first == start
        assert next(iter(read("t", 0))).offset == start
    with pytest.raises(OffsetOutOfRange):
        list(reader.read("t", 0, start=start - 1))
