"""Old messages: compaction by key, vacuum, retention by count, by bytes and by idle groups, and deleting topics."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadSetting, Closed, GroupNotFound, NotFound, OffsetOutOfRange, ReservedName, TopicNotFound
from tests.conformance.helpers import drain, take, until, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

DAY = 86_400.0


def _latest(store: Store, topic: str = "t") -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in store.read(topic) if one.key is not None]


def _fill(store: Store, count: int, keys: int = 3, topic: str = "t") -> None:
    """Messages of a few keys, then as many without one that those are sealed."""
    for number in range(count):
        store.publish(topic, b"%d" % number, key=b"k%d" % (number % keys))
    for _ in range(10):
        store.publish(topic, b"." * 200)


# -- compaction -----------------------------------------------------------------------------------------------------


def test_compaction_keeps_the_latest_of_each_key_at_its_offset(store: Store) -> None:
    """Messages without a key stay, all of them; what it removed is told."""
    store.create_topic("t", compaction=True, segment_bytes=1_000)
    assert store.topic("t").settings.compaction
    _fill(store, 30)
    removed = store.compact("t")
    assert (removed.messages, removed.tombstones) == (27, 0)
    assert removed.segments > 0
    assert removed.bytes > 0
    assert _latest(store) == [(27, b"k0", b"27"), (28, b"k1", b"28"), (29, b"k2", b"29")]
    assert len(values(store.read("t"))) == 13
    assert store.compact("t").messages == 0
    assert store.stats().topics["t"].removed_messages == 27


def test_a_time_is_found_also_where_compaction_left_segments_empty(store: Store) -> None:
    """Who begins at a time gets all that is left from there on."""
    store.create_topic("t", compaction=True, segment_bytes=1_000, retain="always")
    _fill(store, 30)
    store.compact("t")
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert store.offset_of_time("t", 0, begin) == 27
    with store.subscribe("t", "g", start=begin) as consumer:
        assert [message.offset for message in drain(consumer)][:3] == [27, 28, 29]


def test_a_group_gets_what_compaction_left_once(store: Store) -> None:
    """Batches with holes are leased, acked and counted like any other."""
    store.create_topic("t", compaction=True, segment_bytes=1_000, retain="always")
    _fill(store, 30)
    store.compact("t")
    with store.subscribe("t", "g", prefetch=4) as consumer:
        got = drain(consumer)
        assert [message.value for message in got][:3] == [b"27", b"28", b"29"]
        assert len(got) == 13
        assert take(consumer) == []
    assert store.stats().topics["t"].groups["g"].lag == 0


def test_a_group_that_is_behind_keeps_what_it_has_not_finished(store: Store) -> None:
    """retain=until_acked: compaction waits for it too."""
    store.create_topic("t", compaction=True, segment_bytes=1_000)
    store.publish("t", b"first", key=b"k")
    with store.subscribe("t", "g") as consumer:
        _fill(store, 30)
        assert store.compact("t").messages == 0
        drain(consumer)
        store.flush()
        assert store.compact("t").messages == 27


def test_a_tombstone_goes_when_its_grace_is_over(store: Store, backend: Backend) -> None:
    """It is there for the topic's tombstone_grace from the compaction on that left nothing else of its key."""
    store.create_topic("t", compaction=True, segment_bytes=1_000, tombstone_grace=60.0)
    store.publish("t", b"value", key=b"gone")
    store.publish("t", None, key=b"gone")
    _fill(store, 3)
    assert store.compact("t").messages == 1
    assert (1, b"gone", None) in _latest(store)
    backend.advance(61)
    removed = store.compact("t")
    assert (removed.messages, removed.tombstones) == (1, 1)
    assert [key for _, key, _ in _latest(store)] == [b"k0", b"k1", b"k2"]


def test_a_topic_without_compaction_is_not_compacted(store: Store) -> None:
    """Being asked to is an error, and changes nothing."""
    store.create_topic("t", segment_bytes=1_000)
    _fill(store, 30)
    with pytest.raises(BadSetting, match="compaction"):
        store.compact("t")
    assert len(_latest(store)) == 30
    with pytest.raises(TopicNotFound):
        store.compact("nothing")


def test_what_compaction_left_is_there_after_a_restart(lasting: Backend) -> None:
    """And a reader beside the owner sees the same."""
    store = lasting.open()
    store.create_topic("t", compaction=True, segment_bytes=1_000)
    _fill(store, 30)
    store.compact("t")
    left = _latest(store)
    assert _latest(lasting.kill()) == left
    assert _latest(lasting.reopen()) == left


def test_a_reader_beside_the_owner_sees_what_compaction_left(shared: Backend) -> None:
    """Also one that was open before, and over many segments of which nothing is left."""
    store = shared.open()
    store.create_topic("t", compaction=True, segment_bytes=1_000)
    for number in range(60):
        store.publish("t", b"%d" % number + b"." * 100, key=b"k")
    reader = shared.reader()
    late = reader.read("t")
    assert next(late).offset == 0
    store.compact("t")
    for again in (reader, shared.reader()):
        assert [message.offset for message in again.read("t")] == [message.offset for message in store.read("t")]
        assert len(list(again.read("t"))) < 20
    assert [message.offset for message in late][-1] == 59


# -- vacuum ---------------------------------------------------------------------------------------------------------


def test_vacuum_frees_what_one_unfinished_message_holds_back(store: Store, backend: Backend) -> None:
    """The message itself stays, and can be finished later."""
    store.create_topic("t", segment_bytes=1_000, retention_age=DAY)
    _fill(store, 30)
    with store.subscribe("t", "g", lease=10.0) as consumer:
        first, *others = take(consumer)
        for message in others:
            message.ack()
        if backend.name != "memory":  # which keeps nothing that is finished
            assert store.vacuum("t").messages == 0  # nothing is past its retention yet
        consumer.extend(first, 0.5 * DAY)
        backend.advance(0.4 * DAY)
        consumer.extend(first, 0.9 * DAY)
        backend.advance(0.8 * DAY)
        assert store.retain("t").segments == 0
        removed = store.vacuum("t")
        assert removed.messages > 25
        assert next(iter(store.read("t"))).offset == 0
        first.ack()
    assert store.retain("t").segments > 1


def test_vacuum_removes_what_has_expired_also_what_came_last(store: Store, backend: Backend) -> None:
    """By the ttl of the topic and by that of messages; what lives, or a consumer has, stays, and groups go on."""
    store.create_topic("t", ttl=60.0)
    with store.subscribe("t", "g", prefetch=1, lease=1_000.0) as consumer:
        store.publish_many("t", [b"%d" % number for number in range(20)], ttls=[5.0] * 10 + [None] * 5 + [600.0] * 5)
        [held] = take(consumer, 1)
        assert store.vacuum("t").messages == 0
        backend.advance(5)
        assert store.vacuum("t").messages == 0, "that is less than half"
        backend.advance(60)
        removed = store.vacuum("t")
        assert (removed.segments, removed.messages) == (1, 14)
        assert removed.bytes > 0
        assert [message.offset for message in store.read("t")] == [0, 15, 16, 17, 18, 19]
        held.ack()
        assert [message.offset for message in drain(consumer)] == [15, 16, 17, 18, 19]
    assert store.stats().topics["t"].removed_messages >= 14
    assert store.publish("t", b"later").offset == 20


def test_vacuum_leaves_what_must_become_a_dead_letter(store: Store, backend: Backend) -> None:
    """Until the group has moved it there."""
    store.create_topic("t", ttl=60.0, expired="dead_letter")
    store.publish_many("t", [b"a", b"b"])
    store.subscribe("t", "g").close()
    backend.advance(100)
    assert store.vacuum("t").messages == 0
    with store.subscribe("t", "g") as consumer:
        assert take(consumer) == []
    store.flush()
    assert len(store.dead_letters("t")) == 2
    assert store.vacuum("t").messages == 2
    assert values(store.read("t")) == []


# -- retention ------------------------------------------------------------------------------------------------------


def test_retention_takes_the_last_messages_of_a_topic_to_which_nothing_is_published(store: Store, backend: Backend) -> None:
    """Then the log begins where it ends, and goes on there."""
    store.create_topic("t", retention_age=DAY)
    store.publish_many("t", [b"." * 100] * 50)
    assert store.retain("t").segments == 0
    backend.advance(DAY + 1)
    removed = store.retain("t")
    assert removed.segments == 1
    assert removed.bytes > 5_000
    assert values(store.read("t")) == []
    stats = store.stats().topics["t"]
    assert (stats.messages, stats.starts, stats.ends) == (0, {0: 50}, {0: 50})
    assert store.retain("t").segments == 0
    with store.subscribe("t", "g", reset="fail") as consumer:
        assert take(consumer) == []
        assert store.publish("t", b"new").offset == 50
        assert [message.offset for message in drain(consumer)] == [50]


def test_the_store_seals_and_removes_by_itself_when_nothing_is_published(live: Backend) -> None:
    """With its threads, by time alone: what is old, and what has expired."""
    store = live.open(retention_interval_ms=10, checkpoint_interval_ms=10)
    store.create_topic("aged", retention_age=0.5)
    store.create_topic("sealed", segment_age=0.5)
    for name in ("aged", "sealed"):
        store.publish_many(name, [b"." * 100] * 50)
    # The log begins where it ends before its files go.
    assert until(lambda: store.stats().topics["aged"].bytes < 1_000)
    assert store.stats().topics["aged"].messages == 0
    log = live.owner()._catalog.get("sealed").logs[0]
    assert until(lambda: log.segment_firsts == [0, 50])
    assert len(values(store.read("sealed"))) == 50
    assert values(store.read("aged")) == []
    for name in ("aged", "sealed"):
        assert store.publish(name, b"new").offset == 50


def test_a_reader_beside_the_owner_sees_segments_that_time_sealed(shared: Backend) -> None:
    """One that was open before, and one that is opened afterwards."""
    store = shared.open()
    store.create_topic("t", segment_age=60.0, retention_age=DAY)
    store.publish_many("t", [b"%d" % number for number in range(10)])
    log = shared.owner()._catalog.get("t").logs[0]
    reader = shared.reader()
    late = reader.read("t")
    assert next(late).offset == 0
    shared.advance(100)
    store.retain("t")
    assert log.segment_firsts == [0, 10]
    assert [message.offset for message in late] == list(range(1, 10))
    for one in (reader, shared.reader()):
        assert len(values(one.read("t"))) == 10
    store.publish("t", b"later")
    for one in (reader, shared.reader()):
        assert len(values(one.read("t"))) == 11
    shared.advance(DAY + 1)
    store.retain("t")
    for one in (reader, shared.reader()):
        assert values(one.read("t")) == []
        with pytest.raises(OffsetOutOfRange):
            list(one.read("t", start=3))
    store.publish("t", b"last")
    for one in (reader, shared.reader()):
        assert values(one.read("t")) == [b"last"]


def test_retention_by_count_keeps_at_least_so_many(store: Store) -> None:
    """Whole segments go, oldest first."""
    store.create_topic("t", segment_bytes=1_000, retention_messages=10)
    _fill(store, 40)
    removed = store.retain("t")
    assert removed.segments > 0
    assert removed.bytes > 0
    left = len(values(store.read("t")))
    assert 10 <= left < 40
    assert store.stats().topics["t"].removed_segments == removed.segments


def test_the_hard_limit_takes_from_groups_that_are_behind(store: Store) -> None:
    """retention_bytes stops at what a group has not finished; retention_bytes_hard does not, and that is counted."""
    for name, hard in (("soft", 0), ("hard", 3_000)):
        store.create_topic(name, segment_bytes=1_000, retention_bytes=1_000, retention_bytes_hard=hard)
        store.publish(name, b"x")
        store.subscribe(name, "g").close()
        _fill(store, 60, topic=name)
    assert store.retain("soft").segments == 0
    assert store.retain("hard").segments > 0
    stats = store.stats().topics
    assert stats["soft"].removed_unfinished == 0
    assert stats["hard"].removed_unfinished > 0
    with store.subscribe("hard", "g") as consumer:
        assert drain(consumer)[0].offset == stats["hard"].starts[0]


def test_a_group_that_nobody_uses_holds_nothing_back_after_its_expiry(store: Store, backend: Backend) -> None:
    """Until then it does, and one with a member always."""
    store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY)
    store.publish("t", b"x")
    store.subscribe("t", "idle").close()
    _fill(store, 30)
    backend.advance(29 * DAY)
    assert store.retain("t").segments == 0
    backend.advance(2 * DAY)
    assert store.retain("t").segments > 0
    assert store.stats().topics["t"].expired_groups == 1


def test_the_time_of_an_idle_group_goes_on_over_a_restart(lasting: Backend) -> None:
    """A store that is opened anew every day is no reason to keep everything for ever."""
    store = lasting.open()
    store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY)
    store.publish("t", b"x")
    store.subscribe("t", "idle").close()
    _fill(store, 30)
    for _ in range(2):
        assert store.retain("t").segments == 0
        lasting.advance(20 * DAY)
        store = lasting.reopen()
    assert store.retain("t").segments > 0


def test_a_group_that_is_only_sought_is_in_use(store: Store, backend: Backend) -> None:
    """As the archive of Spark does after each batch, without ever having a consumer; it counts from the last time."""
    store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY)
    store.subscribe("t", "archive").close()
    for _ in range(3):
        _fill(store, 10)
        backend.advance(20 * DAY)
        store.seek("t", "archive", 0)
        assert store.retain("t").segments == 0
    backend.advance(31 * DAY)
    assert store.retain("t").segments > 0


def test_a_seek_counts_as_use_over_a_restart_once(lasting: Backend) -> None:
    """Whoever sought it just before the store was opened anew is not forgotten; its time goes on over the next ones."""
    store = lasting.open()
    store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY)
    store.subscribe("t", "archive").close()
    _fill(store, 30)
    lasting.advance(29 * DAY)
    store.seek("t", "archive", 0)
    store = lasting.reopen()
    lasting.advance(20 * DAY)
    assert store.retain("t").segments == 0
    store = lasting.reopen()
    lasting.advance(20 * DAY)
    store = lasting.reopen()
    assert store.retain("t").segments > 0


# -- deleting topics ------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_for_everybody(store: Store) -> None:
    """Its messages, its groups and its dead letters."""
    first = store.create_topic("t")
    store.publish("t", b"old")
    consumer = store.subscribe("t", "g", max_deliveries=1)
    [message] = take(consumer)
    consumer.reject(message, "no")
    store.delete_topic("t")
    assert [one.name for one in store.topics()] == []
    with pytest.raises(TopicNotFound):
        list(store.read("t"))
    with pytest.raises((TopicNotFound, Closed, GroupNotFound, NotFound)):
        for _ in range(3):
            consumer.get(timeout=0)
    second = store.create_topic("t", partitions=2)
    assert second.topic_id != first.topic_id
    assert values(store.read("t")) == []
    assert store.groups("t") == []
    assert len(store.dead_letters("t")) == 0


def test_deleting_what_is_not_there_or_not_ours_is_refused(store: Store) -> None:
    """A topic that is not there, and dead letters, which go with their topic."""
    with pytest.raises(TopicNotFound):
        store.delete_topic("nothing")
    store.create_topic("t")
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        consumer.reject(take(consumer)[0], "no")
    with pytest.raises(ReservedName):
        store.delete_topic("t.dlq")
    assert len(store.dead_letters("t")) == 1


def test_a_deleted_topic_does_not_come_back(lasting: Backend) -> None:
    """Neither after a kill nor after an orderly restart, and one of the same name keeps its own messages."""
    store = lasting.open()
    store.create_topic("t")
    store.create_topic("other")
    store.publish("t", b"old")
    store.delete_topic("t")
    store = lasting.kill()
    assert [one.name for one in store.topics()] == ["other"]
    store.create_topic("t")
    store.publish("t", b"new")
    store = lasting.reopen()
    assert values(store.read("t")) == [b"new"]
    store.delete_topic("t")
    assert [one.name for one in lasting.reopen().topics()] == ["other"]


def test_a_group_goes_on_over_the_holes_after_a_kill(lasting: Backend) -> None:
    """What was leased comes again, once; what compaction took is neither delivered nor left unfinished."""
    store = lasting.open()
    store.create_topic("t", compaction=True, segment_bytes=1_000, retain="always")
    _fill(store, 30)
    store.compact("t")
    consumer = store.subscribe("t", "g", prefetch=100)
    first, *_ = take(consumer, 5)
    first.ack()
    store.flush()
    store = lasting.kill()
    with store.subscribe("t", "g") as again:
        assert [message.offset for message in drain(again)] == [28, 29, *range(30, 40)]
        assert take(again) == []
    assert store.stats().topics["t"].groups["g"].lag == 0
