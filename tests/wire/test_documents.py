"""What stores tell about themselves, as JSON and back."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Store
from penstock.errors import BadArgument, BadBytes
from penstock.settings import TopicSettings
from penstock.store.stats import StoreStats
from penstock.wire import documents


def over_the_wire(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


@pytest.fixture
def store() -> Any:
    with Store.open("memory:") as store:
        store.create_topic("plain")
        store.create_topic("other", partitions=3, sync="interval", retention_age=60.5, retention_bytes=1 << 40, dedup_window=5)
        store.publish_many("other", [b"x"] * 10, keys=[b"%d" % number for number in range(10)])
        consumer = store.subscribe("other", "workers", lease=2.5, max_deliveries=7, ordered=True)
        for message in consumer.get_many(2, timeout=1):
            message.ack()
        store.subscribe("other", "watchers", backoff=0.25)
        yield store


def test_topics_round_trip(store: Store) -> None:
    """With all their settings."""
    found = store.topics()
    assert len(found) == 2
    assert [documents.decode_topic(over_the_wire(documents.encode_topic(one))) for one in found] == found


def test_groups_round_trip(store: Store) -> None:
    """With all their settings."""
    found = store.groups()
    assert len(found) == 2
    assert [documents.decode_group(over_the_wire(documents.encode_group(one))) for one in found] == found


def test_stats_round_trip(store: Store) -> None:
    """Partitions are numbers again."""
    stats = store.stats()
    found = documents.decode_stats(over_the_wire(documents.encode_stats(stats)))
    assert found == stats
    assert isinstance(found, StoreStats)
    assert set(found.topics["other"].ends) == {0, 1, 2}


def test_what_a_newer_version_adds_is_ignored(store: Store) -> None:
    """In each of them."""
    topic = over_the_wire(documents.encode_topic(store.topic("other")))
    topic["new"] = topic["settings"]["new"] = 1
    assert documents.decode_topic(topic) == store.topic("other")
    group = over_the_wire(documents.encode_group(store.groups()[0]))
    group["new"] = group["settings"]["new"] = 1
    assert documents.decode_group(group) == store.groups()[0]
    stats = store.stats()
    document = over_the_wire(documents.encode_stats(stats))
    document["new"] = document["topics"]["other"]["new"] = document["topics"]["other"]["groups"]["workers"]["new"] = 1
    assert documents.decode_stats(document) == stats


def _wrong(document: Any) -> list[Any]:
    """The document with each of its parts missing or of another type, one at a time."""
    found: list[Any] = []
    for name in document:
        found.append({other: value for other, value in document.items() if other != name})
        found += [
            {**document, name: value} for value in (None, [], {}, "x", -1, [1], {"x": 1}, 10**400) if value != document[name]
        ]
    return found


@pytest.mark.parametrize("kind", ["topic", "group", "stats"])
def test_documents_that_lie_are_bad_bytes_or_values(store: Store, kind: str) -> None:
    """No other error comes out, whatever is in them."""
    encoded, decode = {
        "topic": (documents.encode_topic(store.topic("other")), documents.decode_topic),
        "group": (documents.encode_group(store.groups()[0]), documents.decode_group),
        "stats": (documents.encode_stats(store.stats()), documents.decode_stats),
    }[kind]
    document = over_the_wire(encoded)
    tried = _wrong(document)
    if kind != "stats":
        tried += [{**document, "settings": one} for one in _wrong(document["settings"])]
    else:
        tried += [{**document, "topics": {"a": one}} for one in _wrong(document["topics"]["other"])]
        group = document["topics"]["other"]["groups"]["workers"]
        tried += [{**document, "topics": {"a": {**document["topics"]["other"], "groups": {"g": one}}}} for one in _wrong(group)]
    refused = 0
    for one in tried:
        try:
            decode(one)
        except BadBytes:
            refused += 1
    assert refused > 10


def test_the_settings_that_a_hello_tells_make_a_topic() -> None:
    """As the client uses them."""
    values = over_the_wire(documents.encode_settings(TopicSettings()))
    assert set(values) == set(documents.encode_settings(TopicSettings()))


@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_moments_round_trip_to_the_microsecond(moment: dt.datetime) -> None:
    """All that a datetime can say."""
    assert documents.decode_place("start", over_the_wire(documents.encode_place("start", moment))) == moment


@pytest.mark.parametrize("where", ["earliest", "latest", 0, 5, 1 << 62])
def test_other_places_travel_as_they_are(where: object) -> None:
    """Words and offsets."""
    assert documents.decode_place("start", over_the_wire(documents.encode_place("start", where))) == where


@pytest.mark.parametrize("where", [True, 1.5, None, [], dt.datetime(2024, 1, 1), b"x", {}])
def test_what_is_no_place_is_refused_where_it_is_given(where: object) -> None:
    """Before it is sent."""
    with pytest.raises(BadArgument):
        documents.encode_place("start", where)


@pytest.mark.parametrize("time_us", [None, True, 1.5, "1", [], 1 << 80, -(1 << 80), 10**400])
def test_times_that_are_none_are_refused(time_us: object) -> None:
    """By the server."""
    with pytest.raises(BadArgument):
        documents.decode_place("start", {"time_us": time_us})
