"""Topics: made once, found by name, never made by looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ReservedName, TopicExists, TopicNotFound
from tests.conformance.helpers import all_of, state_of, stored

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_a_new_topic_says_its_name_and_its_partitions(store: Store) -> None:
    """`create_topic` returns what `topic` returns later."""
    info = store.create_topic("orders", partitions=4)
    assert (info.name, info.partitions) == ("orders", 4)
    assert store.topic("orders") == info
    assert store.topics() == [info]


def test_a_topic_has_one_partition_unless_told(store: Store) -> None:
    """The default is the simplest: one order for everything."""
    assert store.create_topic("t").partitions == 1


def test_each_topic_has_an_id_of_its_own(store: Store) -> None:
    """Two topics never share an id, however alike they are."""
    assert len({store.create_topic(f"t{number}").topic_id for number in range(20)}) == 20


def test_topics_lists_all_of_them(store: Store) -> None:
    """Each topic once."""
    for name in ("b", "a", "c.d-e_f", "0"):
        store.create_topic(name)
    assert sorted(info.name for info in store.topics()) == ["0", "a", "b", "c.d-e_f"]


def test_an_empty_store_has_no_topics(store: Store) -> None:
    """And says so with an empty list."""
    assert store.topics() == []


def test_creating_a_topic_again_with_the_same_settings_is_a_no_op(store: Store) -> None:
    """The same topic comes back, with its id and its messages."""
    first = store.create_topic("t", partitions=2, segment_messages=10, sync="os")
    store.publish("t", b"x", partition=0)
    assert store.create_topic("t", partitions=2, segment_messages=10, sync="os") == first
    assert stored(store, "t") == [b"x"]


@pytest.mark.parametrize(
    "other",
    [
        {"partitions": 3},
        {"sync": "interval"},
        {"segment_messages": 7},
        {"max_message_bytes": 99},
        {"dedup_window": 60},
        {"retain": "always"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_creating_a_topic_again_with_other_settings_is_an_error(store: Store, other: dict[str, Any]) -> None:
    """Settings are fixed at creation: the topic stays as it was, and the error names what differs."""
    store.create_topic("t", partitions=2)
    store.publish("t", b"x")
    before = state_of(store)
    with pytest.raises(TopicExists) as caught:
        store.create_topic("t", **({"partitions": 2} | other))
    assert caught.value.topic == "t"
    assert next(iter(other)) in str(caught.value)
    assert state_of(store) == before


def test_a_topic_remembers_its_settings(store: Store) -> None:
    """What was given at creation is what `topic` tells."""
    store.create_topic("t", segment_messages=10, max_message_bytes=2_000)
    settings = store.topic("t").settings
    assert (settings.segment_messages, settings.max_message_bytes) == (10, 2_000)


def test_an_unknown_topic_is_not_found(store: Store) -> None:
    """The error names it."""
    with pytest.raises(TopicNotFound) as caught:
        store.topic("nope")
    assert caught.value.topic == "nope"


def test_the_first_publish_makes_the_topic(store: Store) -> None:
    """With the settings of a topic made without any."""
    store.publish("t", b"x")
    assert store.topic("t").partitions == 1
    assert store.create_topic("t") == store.topic("t")


def test_publishing_makes_no_topic_where_the_store_forbids_it(backend: Backend) -> None:
    """With `auto_create=False` every way of publishing says TopicNotFound and makes nothing."""
    store = backend.open(auto_create=False)
    with pytest.raises(TopicNotFound):
        store.publish("t", b"x")
    with pytest.raises(TopicNotFound):
        store.publish_many("t", [b"x"])
    with pytest.raises(TopicNotFound), store.transaction() as t:
        t.publish("t", b"x")
    assert store.topics() == []
    store.create_topic("t")
    assert store.publish("t", b"x").offset == 0


def test_looking_makes_no_topic(store: Store) -> None:
    """Reading, seeking and asking for dead letters are no reason for a topic to exist; see test_topics_to_come.py for subscribing."""
    for look in (
        lambda: list(store.read("t")),
        lambda: store.subscribe("t", "g", create=False),
        lambda: store.seek("t", "g", "earliest"),
        lambda: store.dead_letters("t"),
        lambda: store.topic("t"),
    ):
        with pytest.raises(TopicNotFound):
            look()
    store.stats()
    store.groups()
    assert store.topics() == []


@pytest.mark.parametrize("name", ["orders.dlq", "a.dlq.dlq", "x.y.dlq"])
def test_names_of_dead_letters_are_reserved(store: Store, name: str) -> None:
    """Nobody makes such a topic or publishes to one, by any way."""
    store.create_topic("orders")
    before = state_of(store)
    with pytest.raises(ReservedName):
        store.create_topic(name)
    with pytest.raises(ReservedName):
        store.publish(name, b"x")
    with pytest.raises(ReservedName):
        store.publish_many(name, [b"x"])
    with pytest.raises(ReservedName):
        store.producer(name)
    with pytest.raises(ReservedName), store.transaction() as t:
        t.publish(name, b"x")
    assert state_of(store) == before


def test_a_name_that_only_resembles_dead_letters_is_free(store: Store) -> None:
    """The suffix is reserved, not the word."""
    for name in ("dlq", "a.dlq.b", "a-dlq"):
        store.create_topic(name)
        assert store.publish(name, b"x").offset == 0


def test_names_differ_by_case(store: Store) -> None:
    """`TOPIC` and `topic` are two topics with messages of their own."""
    store.publish("topic", b"small")
    store.publish("TOPIC", b"large")
    assert stored(store, "topic") == [b"small"]
    assert stored(store, "TOPIC") == [b"large"]
    assert store.topic("topic").topic_id != store.topic("TOPIC").topic_id


def test_the_longest_name_works(store: Store) -> None:
    """196 characters, as the rule says; its dead letters have room too."""
    name = "n" * 192
    store.create_topic(name)
    store.publish(name, b"x")
    with store.subscribe(name, "g", max_deliveries=1) as consumer:
        message = consumer.get(timeout=0)
        assert message is not None
        message.reject("no")
    assert [one.value for one in store.dead_letters(name).list()] == [b"x"]


def test_offsets_of_each_topic_begin_at_zero(store: Store) -> None:
    """Topics share no counter."""
    store.publish_many("a", [b"x"] * 5)
    assert store.publish("b", b"x").offset == 0
    assert store.publish("a", b"x").offset == 5


def test_a_topic_may_have_many_partitions(store: Store) -> None:
    """Each has offsets of its own."""
    store.create_topic("t", partitions=64)
    for partition in range(64):
        assert store.publish("t", b"%d" % partition, partition=partition).offset == 0
    assert stored(store, "t") == [b"%d" % partition for partition in range(64)]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_each_sync_mode_publishes_and_delivers(store: Store, sync: str) -> None:
    """The mode changes what power loss takes, not what is seen."""
    store.create_topic("t", sync=sync)
    assert [store.publish("t", b"x").offset for _ in range(3)] == [0, 1, 2]
    with store.subscribe("t", "g") as consumer:
        messages = [consumer.get(timeout=0) for _ in range(4)]
    assert [message.offset for message in messages if message] == [0, 1, 2]
    assert messages[3] is None


def test_threads_that_make_one_topic_get_one_topic(live_store: Store) -> None:
    """Eight at once: the same id for all, and every publish kept."""

    def make(number: int) -> Any:
        info = live_store.create_topic("t", partitions=2)
        live_store.publish("t", b"%d" % number)
        return info.topic_id

    assert len(set(all_of(make, range(8)))) == 1
    assert sorted(stored(live_store, "t"), key=lambda value: value or b"") == [b"%d" % number for number in range(8)]
