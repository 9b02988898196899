"""Those who subscribe before the first publish: the topic is made for them, as they declare it, or waited for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadArgument, BadSetting, OffsetOutOfRange, PenstockError, TopicExists, TopicNotFound
from tests.conformance.helpers import state_of

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

PATIENCE = 60.0


@pytest.mark.parametrize("start", ["earliest", "latest", 0])
def test_a_consumer_may_come_before_the_first_message(store: Store, start: Any) -> None:
    """It makes the topic, and misses nothing that is published afterwards, wherever it wants to begin."""
    with store.subscribe("t", "g", start=start) as consumer:
        assert store.topic("t").partitions == 1
        store.publish_many("t", [b"a", b"b"])
        assert [message.value for message in consumer.get_many(10, timeout=5)] == [b"a", b"b"]


def test_a_consumer_of_a_topic_that_is_there_begins_where_it_says(store: Store) -> None:
    """Only a topic that was not there is read from its beginning by one who asks for the end."""
    store.publish("t", b"before")
    with store.subscribe("t", "g", start="latest") as consumer:
        store.publish("t", b"after")
        assert [message.value for message in consumer.get_many(10, timeout=5)] == [b"after"]


def test_the_topic_is_made_as_it_is_declared(store: Store) -> None:
    """With its partitions and settings; others that declare the same, or less, are content."""
    with store.subscribe("t", "g", topic_settings={"partitions": 3, "ttl": 60, "priorities": True}) as consumer:
        info = store.topic("t")
        assert (info.partitions, info.settings.ttl_ms, info.settings.priorities) == (3, 60_000, True)
        store.subscribe("t", "h", topic_settings={"partitions": 3}).close()
        store.subscribe("t", "i", topic_settings={"ttl": 60, "partitions": 3, "priorities": True}).close()
        store.subscribe("t", "j").close()
        store.publish("t", b"x", priority="high")
        assert [message.value for message in consumer.get_many(10, timeout=5)] == [b"x"]


def test_a_declaration_that_does_not_fit_names_each_difference(store: Store) -> None:
    """And changes nothing: no group is made."""
    store.create_topic("t", partitions=2, ttl=60)
    before = state_of(store)
    with pytest.raises(TopicExists) as caught:
        store.subscribe("t", "g", topic_settings={"partitions": 4, "ttl": 30, "retain": "until_acked"})
    text = str(caught.value)
    assert "partitions=2, not 4" in text
    assert "ttl_ms=60000, not 30000" in text
    assert "retain=" not in text
    assert state_of(store) == before
    assert store.groups("t") == []


@pytest.mark.parametrize(
    "bad",
    [
        {"start": "yesterday"}, {"start": 7}, {"ordered": "yes"}, {"topic_settings": {"partitons": 3}},
        {"topic_settings": {"partitions": 0}}, {"topic_settings": {"retain": "for ever"}}, {"topic_settings": 5},
        {"ordered": True, "topic_settings": {"priorities": True}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_makes_no_topic(store: Store, bad: dict[str, Any]) -> None:
    """Everything is checked before the topic is made."""
    with pytest.raises((BadSetting, BadArgument, OffsetOutOfRange, PenstockError)):
        store.subscribe("t", "g", **bad)
    assert store.topics() == []


def test_a_subscriber_may_say_that_the_topic_must_be_there(store: Store) -> None:
    with pytest.raises(TopicNotFound):
        store.subscribe("t", "g", create=False)
    assert store.topics() == []


def test_where_topics_are_not_made_by_themselves_a_subscriber_makes_none(backend: Backend) -> None:
    """Like publishing. One that asks for it in so many words does."""
    store = backend.open(auto_create=False)
    with pytest.raises(TopicNotFound, match="create it first"):
        store.subscribe("t", "g")
    assert store.topics() == []


def test_dead_letters_may_be_waited_for(store: Store) -> None:
    """Before the first of them, and before their topic is there."""
    with store.subscribe("t.dlq", "mourners", start="latest") as mourners:
        assert {info.name for info in store.topics()} == {"t", "t.dlq"}
        store.publish("t", b"x")
        with store.subscribe("t", "g") as consumer:
            message = consumer.get(timeout=5)
            assert message is not None
            message.reject("no good")
        assert [letter.value for letter in mourners.get_many(10, timeout=5)] == [b"x"]


@pytest.mark.parametrize("name", ["t.dlq.dlq", "t.deliveries"])
def test_what_no_topic_has_is_not_made(store: Store, name: str) -> None:
    """Dead letters of dead letters, and records of deliveries of a topic that has none."""
    store.create_topic("t")
    with pytest.raises(TopicNotFound):
        store.subscribe(name, "g")
    assert [info.name for info in store.topics()] == ["t"]


def test_a_topic_that_was_deleted_does_not_come_back_with_its_consumers(store: Store) -> None:
    """One that was there, and only goes on, makes nothing anew."""
    consumer = store.subscribe("t", "g")
    store.delete_topic("t")
    with pytest.raises(PenstockError):
        consumer.get(timeout=0)
    assert store.topics() == []


def test_a_producer_and_a_consumer_that_begin_together_agree(live_store: Store) -> None:
    """Whoever is first makes the topic; nothing that is published after the subscription is missed."""
    for turn in range(10):
        name = f"t{turn}"
        both = threading.Barrier(2)

        def publish(name: str = name, both: threading.Barrier = both) -> None:
            both.wait()
            live_store.publish(name, b"first")

        thread = threading.Thread(target=publish)
        thread.start()
        both.wait()
        with live_store.subscribe(name, "g", start="earliest") as consumer:
            thread.join()
            live_store.publish(name, b"second")
            found: list[Any] = []
            while len(found) < 2:
                found += [message.value for message in consumer.get_many(10, timeout=PATIENCE)]
            assert found == [b"first", b"second"]
