"""Groups: independent of each other, begun anywhere, moved on purpose only."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed, GroupNotFound, LeaseExpired, NotFound, OffsetOutOfRange, UsageError
from tests.conformance.helpers import drain, numbered, offsets, one, position, state_of, stored, take, ten_apart, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


# -- independence ---------------------------------------------------------------------------------------------------


def test_each_group_gets_every_message(store: Store) -> None:
    """However many groups there are."""
    store.publish_many("t", numbered(20))
    for name in ("a", "b", "c"):
        with store.subscribe("t", name) as consumer:
            assert values(drain(consumer)) == numbered(20)


def test_what_one_group_does_is_nothing_to_another(backend: Backend) -> None:
    """Acks, nacks, rejects, commits, seeks, expiry and deletion of one group: the other receives all, for the first time."""
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "a", lease=10, max_deliveries=1) as a:
        store.subscribe("t", "b").close()
        messages = take(a)
        messages[0].ack()
        messages[1].nack(delay=0)
        messages[2].reject("bad")
        a.commit(5)
        store.seek("t", "a", 2)
        backend.advance(1_000)
        take(a)
    store.delete_group("t", "a")
    with store.subscribe("t", "b") as b:
        got = drain(b)
    assert values(got) == numbered(10)
    assert {message.attempt for message in got} == {1}


def test_a_group_belongs_to_its_topic(store: Store) -> None:
    """The same name on two topics is two groups."""
    store.publish_many("t", numbered(3))
    store.publish_many("u", numbered(3))
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
    assert position(store, "t", "g") == 3
    with store.subscribe("u", "g") as consumer:
        assert position(store, "u", "g") == 0
        assert values(drain(consumer)) == numbered(3)


def test_names_that_look_alike_when_joined_are_two_groups(store: Store) -> None:
    """Topic and group are two parts of a key, not one text."""
    for topic in ("a.b", "a", "a-b"):
        store.publish(topic, b"x")
    for topic, group in (("a.b", "c"), ("a", "b.c"), ("a-b", "c"), ("a", "b-c")):
        with store.subscribe(topic, group) as consumer:
            assert len(drain(consumer)) == 1
    assert sorted((info.topic, info.name) for info in store.groups()) == [
        ("a", "b-c"),
        ("a", "b.c"),
        ("a-b", "c"),
        ("a.b", "c"),
    ]


# -- making, listing, deleting --------------------------------------------------------------------------------------


def test_subscribing_makes_the_group(store: Store) -> None:
    """And it stays when its members leave."""
    store.create_topic("t")
    assert store.groups() == []
    with store.subscribe("t", "g", max_deliveries=3):
        pass
    (info,) = store.groups()
    assert (info.topic, info.name, info.ordered, info.max_deliveries) == ("t", "g", False, 3)


def test_groups_can_be_listed_by_topic(store: Store) -> None:
    """Or all of them."""
    for topic, group in (("t", "a"), ("t", "b"), ("u", "a")):
        store.create_topic(topic)
        store.subscribe(topic, group).close()
    assert sorted((info.topic, info.name) for info in store.groups()) == [("t", "a"), ("t", "b"), ("u", "a")]
    assert sorted(info.name for info in store.groups("t")) == ["a", "b"]
    assert [info.name for info in store.groups("u")] == ["a"]
    with pytest.raises(NotFound):
        store.groups("nope")


def test_a_deleted_group_is_gone_and_may_be_made_anew(store: Store) -> None:
    """The new one begins at the beginning and knows nothing of the old one's attempts."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g") as consumer:
        first, *_ = take(consumer)
        first.ack()
    store.delete_group("t", "g")
    assert store.groups() == []
    assert "g" not in store.stats().topics["t"].groups
    with store.subscribe("t", "g") as consumer:
        assert [(message.offset, message.attempt) for message in take(consumer)] == [(offset, 1) for offset in range(5)]


def test_a_group_that_is_not_there_is_not_found(store: Store) -> None:
    """The error names topic and group."""
    store.create_topic("t")
    for call in (lambda: store.delete_group("t", "nope"), lambda: store.seek("t", "nope", "earliest")):
        with pytest.raises(GroupNotFound) as caught:
            call()
        assert (caught.value.topic, caught.value.group) == ("t", "nope")
    assert store.groups() == []


def test_messages_of_a_deleted_group_cannot_be_finished(store: Store) -> None:
    """Not even after a group of the same name was made."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g") as consumer:
        message = one(consumer)
        store.delete_group("t", "g")
        with store.subscribe("t", "g") as again:
            with pytest.raises((LeaseExpired, GroupNotFound)):
                message.ack()
            assert position(store, "t", "g") == 0
            assert len(drain(again)) == 2


def test_members_of_a_deleted_group_are_closed(store: Store) -> None:
    """They are told at their next call, and do not wait for a group that is gone."""
    store.publish_many("t", numbered(2))
    consumer = store.subscribe("t", "g")
    one(consumer)
    store.delete_group("t", "g")
    for _ in range(2):
        with pytest.raises((Closed, GroupNotFound)):
            consumer.get(timeout=0)
    consumer.close()
    assert store.groups() == []


# -- where a group begins -------------------------------------------------------------------------------------------


def test_a_group_begins_at_the_earliest_message(store: Store) -> None:
    """Unless told otherwise."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == numbered(5)


def test_a_group_may_begin_at_the_latest(store: Store) -> None:
    """It gets what is published from then on."""
    store.create_topic("t", partitions=2)
    for partition in range(2):
        store.publish_many("t", [b"old"] * 3, partition=partition)
    with store.subscribe("t", "g", start="latest") as consumer:
        assert consumer.get(timeout=0) is None
        store.publish("t", b"new", partition=1)
        assert values(drain(consumer)) == [b"new"]
        assert store.stats().topics["t"].groups["g"].lag == 0


def test_a_group_that_began_at_the_latest_misses_nothing_while_away(store: Store) -> None:
    """The beginning counts once; after that the group has a position."""
    store.publish("t", b"old")
    store.subscribe("t", "g", start="latest").close()
    store.publish("t", b"while away")
    with store.subscribe("t", "g", start="latest") as consumer:
        assert values(drain(consumer)) == [b"while away"]


@pytest.mark.parametrize("start", [0, 3, 5])
def test_a_group_may_begin_at_an_offset(store: Store, start: int) -> None:
    """The end itself is an offset to begin at."""
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", start=start) as consumer:
        assert offsets(drain(consumer)) == list(range(start, 5))


def test_a_group_cannot_begin_behind_the_end(store: Store) -> None:
    """And is not made by trying."""
    store.publish_many("t", numbered(5))
    with pytest.raises(OffsetOutOfRange) as caught:
        store.subscribe("t", "g", start=6)
    assert (caught.value.offset, caught.value.first, caught.value.end) == (6, 0, 5)
    assert store.groups() == []


def test_a_group_may_begin_at_a_time(backend: Backend) -> None:
    """With the first message that is not older."""
    store = backend.open()
    times = ten_apart(backend, store)
    for number in (0, 4, 9):
        with store.subscribe("t", f"at-{number}", start=times[number]) as consumer:
            assert offsets(drain(consumer)) == list(range(number, 10))
        with store.subscribe("t", f"before-{number}", start=times[number] - timedelta(seconds=5)) as consumer:
            assert offsets(drain(consumer)) == list(range(number, 10))
    with store.subscribe("t", "future", start=times[-1] + timedelta(days=1)) as consumer:
        assert drain(consumer) == []
        store.publish("t", b"new")
        assert values(drain(consumer)) == [b"new"]


def test_the_beginning_counts_only_when_the_group_is_made(store: Store) -> None:
    """A group that exists goes on where it was."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        drain(consumer, 4)
    for start in ("earliest", "latest", 0, 9, 10_000):
        with store.subscribe("t", "g", start=start):
            assert position(store, "t", "g") == 4


# -- seek -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "expected"), [("earliest", range(10)), ("latest", []), (0, range(10)), (7, range(7, 10)), (10, [])]
)
def test_a_group_can_be_moved_anywhere(store: Store, to: Any, expected: Any) -> None:
    """Back over what was acked, or forward over what was not; attempts begin anew."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        consumer.ack(take(consumer)[:5])
        store.seek("t", "g", to)
        got = drain(consumer)
        assert offsets(got) == list(expected)
        assert {message.attempt for message in got} <= {1}
        assert position(store, "t", "g") == 10


def test_a_group_can_be_moved_to_a_time(backend: Backend) -> None:
    """As it can begin at one."""
    store = backend.open()
    times = ten_apart(backend, store)
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
        store.seek("t", "g", times[2])
        assert offsets(drain(consumer)) == list(range(2, 10))
        store.seek("t", "g", times[-1] + timedelta(days=1))
        assert drain(consumer) == []


def test_single_partitions_can_be_moved(store: Store) -> None:
    """One by `partition=`, several by a dict; the others stay."""
    store.create_topic("t", partitions=3)
    for partition in range(3):
        store.publish_many("t", numbered(4), partition=partition)
    with store.subscribe("t", "g") as consumer:
        assert len(drain(consumer)) == 12
        store.seek("t", "g", 1, partition=2)
        assert [(message.partition, message.offset) for message in drain(consumer)] == [(2, 1), (2, 2), (2, 3)]
        store.seek("t", "g", {0: 3, 1: 2})
        assert sorted((message.partition, message.offset) for message in drain(consumer)) == [(0, 3), (1, 2), (1, 3)]


def test_leases_of_before_a_move_are_void(store: Store) -> None:
    """A handler that was busy while the group was moved cannot finish what is delivered anew."""
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g") as consumer:
        old = take(consumer)
        store.seek("t", "g", "earliest")
        before = state_of(store)
        for message in old:
            for finish in (message.ack, message.nack, message.reject, message.extend):
                with pytest.raises(LeaseExpired):
                    finish()
        assert state_of(store) == before
        assert offsets(drain(consumer)) == [0, 1, 2]


@pytest.mark.parametrize("to", [11, 1 << 62, {0: 11}])
def test_a_group_cannot_be_moved_behind_the_end(store: Store, to: Any) -> None:
    """An error, and it stays where it was, with its leases."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        held = take(consumer)
        before = state_of(store)
        with pytest.raises(OffsetOutOfRange):
            store.seek("t", "g", to)
        assert state_of(store) == before
        consumer.ack(held)
        assert position(store, "t", "g") == 10


def test_a_move_of_several_partitions_is_all_or_nothing(store: Store) -> None:
    """One bad offset, and none is moved."""
    store.create_topic("t", partitions=2)
    for partition in range(2):
        store.publish_many("t", numbered(4), partition=partition)
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
        before = state_of(store)
        with pytest.raises(OffsetOutOfRange):
            store.seek("t", "g", {0: 1, 1: 5})
        with pytest.raises((NotFound, UsageError)):
            store.seek("t", "g", {0: 1, 2: 0})
        assert state_of(store) == before


def test_a_group_may_be_moved_without_members(store: Store) -> None:
    """The next member begins there."""
    store.publish_many("t", numbered(5))
    store.subscribe("t", "g").close()
    store.seek("t", "g", 3)
    assert position(store, "t", "g") == 3
    with store.subscribe("t", "g") as consumer:
        assert offsets(drain(consumer)) == [3, 4]


# -- commit ---------------------------------------------------------------------------------------------------------


def test_a_commit_finishes_all_below_an_offset(backend: Backend) -> None:
    """Whether handed out or not, acked or not."""
    store = backend.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=3, lease=10) as consumer:
        take(consumer)
        consumer.commit(6)
        assert position(store, "t", "g") == 6
        assert offsets(drain(consumer)) == [6, 7, 8, 9]
        backend.advance(1_000)
        assert drain(consumer) == []


def test_a_commit_of_a_message_includes_it(store: Store) -> None:
    """Up to and with it."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        messages = take(consumer)
        consumer.commit(messages[4])
        assert position(store, "t", "g") == 5
        assert consumer.in_flight == 5


def test_a_commit_never_goes_back(store: Store) -> None:
    """A lower one changes nothing."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        for offset, expected in ((5, 5), (3, 5), (0, 5), (7, 7), (7, 7)):
            consumer.commit(offset)
            assert position(store, "t", "g") == expected
        assert offsets(drain(consumer)) == [7, 8, 9]


def test_a_commit_joins_what_was_acked_above_it(store: Store) -> None:
    """Finished is finished, whichever way."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        messages = take(consumer)
        consumer.ack(messages[5:7])
        consumer.commit(5)
        assert position(store, "t", "g") == 7


def test_a_commit_behind_the_end_is_refused(store: Store) -> None:
    """Nobody has finished what is not there."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        before = state_of(store)
        with pytest.raises((OffsetOutOfRange, UsageError)):
            consumer.commit(11)
        assert state_of(store) == before
        consumer.commit(10)
        assert position(store, "t", "g") == 10


def test_a_commit_names_its_partition_where_there_are_several(store: Store) -> None:
    """A number alone says too little; a message says it all."""
    store.create_topic("t", partitions=2)
    for partition in range(2):
        store.publish_many("t", numbered(5), partition=partition)
    with store.subscribe("t", "g") as consumer:
        with pytest.raises(UsageError):
            consumer.commit(3)
        consumer.commit(3, partition=1)
        assert (position(store, "t", "g", 0), position(store, "t", "g", 1)) == (0, 3)
        message = next(message for message in take(consumer) if message.partition == 0)
        consumer.commit(message)
        assert position(store, "t", "g", 0) == message.offset + 1
        with pytest.raises((NotFound, UsageError)):
            consumer.commit(1, partition=2)


# -- what retention leaves ------------------------------------------------------------------------------------------


def filled(backend: Backend, **settings: Any) -> Store:
    """A topic of ten segments with ten messages each, of which nine are a day too old."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=86_400, **settings)
    for number in range(100):
        store.publish("t", b"%d" % number)
    return store


def test_retention_keeps_what_a_group_has_not_finished(backend: Backend) -> None:
    """`until_acked` is the default: age alone removes nothing that somebody waits for."""
    store = filled(backend)
    with store.subscribe("t", "g") as consumer:
        consumer.ack(take(consumer, 35), wait=True)
        backend.advance(10 * 86_400)
        dropped = store.retain("t")
        assert dropped.segments == 3
        assert dropped.bytes > 0
        (first, *_) = store.read("t")
        assert first.offset == 30
        assert offsets(drain(consumer)) == list(range(35, 100))


def test_retention_takes_the_active_segment_only_when_its_newest_message_is_too_old(backend: Backend) -> None:
    """Though all is acked; then nothing is left, and the log goes on where it was."""
    store = filled(backend)
    backend.advance(100 * 86_400)
    store.publish("t", b"last")
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
        consumer.flush()
    store.retain()
    assert stored(store, "t")[-1:] == [b"last"]
    backend.advance(100 * 86_400)
    store.retain()
    assert stored(store, "t") == []
    assert store.publish("t", b"next").offset == 101


def test_retention_takes_what_is_old_from_a_topic_that_always_drops(backend: Backend) -> None:
    """Reading below the beginning says where the beginning is."""
    store = filled(backend, retain="always")
    backend.advance(2 * 86_400)
    store.publish("t", b"new")
    assert store.retain("t").segments >= 9
    first = next(iter(store.read("t"))).offset
    assert first >= 90
    with pytest.raises(OffsetOutOfRange) as caught:
        list(store.read("t", 0, start=0))
    assert (caught.value.offset, caught.value.first) == (0, first)


def test_retention_by_bytes_keeps_the_newest(backend: Backend) -> None:
    """The oldest segments go until the rest is small enough."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_bytes=20_000, retain="always")
    for number in range(100):
        store.publish("t", b"%03d" % number + bytes(997))
    assert store.retain("t").segments > 0
    kept = offsets(store.read("t"))
    assert kept == list(range(kept[0], 100))
    assert 1 <= len(kept) <= 30
    assert store.retain("t") == (0, 0)


def test_a_beginning_below_the_floor_does_not_shut_out_a_group_that_is_far_above(backend: Backend) -> None:
    """A program that says `start=0` each time it subscribes goes on working when offset 0 is gone."""
    store = filled(backend, retain="always")
    with store.subscribe("t", "g", start=0) as consumer:
        drain(consumer)
    backend.advance(2 * 86_400)
    store.publish("t", b"new")
    store.retain("t")
    with store.subscribe("t", "g", start=0) as consumer:
        assert values(drain(consumer)) == [b"new"]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_below_what_is_kept_is_moved_by_its_policy(backend: Backend, reset: str) -> None:
    """To the first message that is left, or to the end; and its acks count from there."""
    store = filled(backend, retain="always")
    with store.subscribe("t", "g", reset=reset) as consumer:
        drain(consumer, 5)
    backend.advance(2 * 86_400)
    store.publish("t", b"new")
    store.retain("t")
    first = next(iter(store.read("t"))).offset
    with store.subscribe("t", "g", reset=reset) as consumer:
        expected = list(range(first, 101)) if reset == "earliest" else []
        assert offsets(drain(consumer)) == expected
        store.publish("t", b"newer")
        assert offsets(drain(consumer)) == [101]
        assert position(store, "t", "g") == 102


def test_a_group_below_what_is_kept_may_want_to_know(backend: Backend) -> None:
    """`reset="fail"`: OffsetOutOfRange with the first offset kept, until somebody moves the group."""
    store = filled(backend, retain="always")
    with store.subscribe("t", "g", reset="fail") as consumer:
        drain(consumer, 5)
    backend.advance(2 * 86_400)
    store.publish("t", b"new")
    store.retain("t")
    first = next(iter(store.read("t"))).offset
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange) as caught, store.subscribe("t", "g", reset="fail") as consumer:
            consumer.get(timeout=0)
        assert (caught.value.offset, caught.value.first) == (5, first)
    store.seek("t", "g", "earliest")
    with store.subscribe("t", "g", reset="fail") as consumer:
        assert offsets(drain(consumer)) == list(range(first, 101))


def test_a_new_group_behind_a_floor_makes_progress(backend: Backend) -> None:
    """It begins at the first message kept, and its acks stay."""
    store = filled(backend, retain="always")
    backend.advance(2 * 86_400)
    store.publish("t", b"new")
    store.retain("t")
    first = next(iter(store.read("t"))).offset
    with store.subscribe("t", "fresh") as consumer:
        assert position(store, "t", "fresh") == first
        assert one(consumer).offset == first
    with store.subscribe("t", "fresh") as consumer:
        one(consumer).ack(wait=True)
        assert position(store, "t", "fresh") == first + 1
