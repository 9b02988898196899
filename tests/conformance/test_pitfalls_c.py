"""Bugs that real queues shipped: rows C of the list of pitfalls; `test_pitfalls.py` says where the other rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.backends import DirectoryBackend, skip_unless
from tests.conformance.helpers import PATIENCE, drain, numbered, offsets, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_c3_the_next_offset_comes_from_the_log(lasting: Backend) -> None:
    """Open and close without publishing, again and again: the next offset is still the next."""
    store = lasting.open()
    store.publish_many("t", numbered(7))
    for _ in range(5):
        store = lasting.reopen()
    store = lasting.kill()
    assert store.publish("t", b"7").offset == 7


def test_c6_retention_keeps_what_nobody_has_read(backend: Backend) -> None:
    """Sixty messages that are older than the topic keeps them, and a group that has read none: all are delivered."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60)
    store.subscribe("t", "g").close()
    for value in numbered(60):
        store.publish("t", value)
    backend.advance(86_400)
    store.retain("t")
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == numbered(60)
        consumer.flush()
    store.retain("t")
    assert len(stored(store, "t")) < 60


def test_c7_a_topic_without_retention_keeps_everything(backend: Backend) -> None:
    """No hidden default takes its messages."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=0, retain="always")
    for value in numbered(50):
        store.publish("t", value)
    backend.advance(20 * 365 * 86_400)
    assert store.retain().segments == 0
    assert stored(store, "t") == numbered(50)


def test_c12_what_a_seek_skipped_does_not_come_back(backend: Backend) -> None:
    """Nor what was taken in batches before it."""
    store = backend.open()
    store.publish_many("t", numbered(30))
    with store.subscribe("t", "g", lease=10) as consumer:
        consumer.ack(consumer.get_many(5, timeout=0))
        consumer.get_many(5, timeout=0)
        store.seek("t", "g", 20)
        assert offsets(drain(consumer)) == list(range(20, 30))
        backend.advance(3_600)
        assert drain(consumer) == []


def test_c14_iterating_hands_out_all_that_is_there(live_store: Store) -> None:
    """Fifty messages are fifty steps of one loop, with nobody publishing in between."""
    live_store.publish_many("t", numbered(50))
    seen = []
    with live_store.subscribe("t", "g") as consumer:
        for message in consumer:
            message.ack()
            seen.append(message.value)
            if len(seen) == 50:
                break
    assert seen == numbered(50)


def test_c19_a_dead_letter_has_the_bytes_of_its_message(store: Store) -> None:
    """Also of one that lies in a batch with others, with columns that the others have not."""
    payload = b"a" * 5_000
    store.publish_many("t", [b"x", payload, None], keys=[None, b"key", None], headers=[None, {"h": b"\0"}, None])
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    plain, full, tombstone = store.dead_letters("t").list()
    assert (full.value, full.key, full.headers["h"]) == (payload, b"key", b"\0")
    assert (plain.value, plain.key) == (b"x", None)
    assert (tombstone.value, tombstone.key) == (None, None)


def test_c20_every_way_of_publishing_takes_every_field(live_store: Store) -> None:
    """One message by each: they differ in nothing but their offsets."""
    fields: dict[str, Any] = {"key": b"k", "headers": [("h", b"1"), ("h", b"2")], "timestamp": 12.5}
    live_store.publish("t", b"v", **fields)
    live_store.publish_many("t", [b"v"], keys=[b"k"], headers=[fields["headers"]], timestamps=[12.5])
    with live_store.producer("t") as producer:
        producer.send(b"v", **fields).result(PATIENCE)
    with live_store.transaction() as t:
        t.publish("t", b"v", **fields)
        t.publish_many("t", [b"v"], keys=[b"k"], headers=[fields["headers"]], timestamps=[12.5])
    found = [(m.value, m.key, tuple(m.headers), m.timestamp_us) for m in live_store.read("t")]
    assert found == [(b"v", b"k", (("h", b"1"), ("h", b"2")), 12_500_000)] * 5


def test_c25_looking_changes_no_file(shared: Backend) -> None:
    """A reader lists, reads, counts: every file stays as it is, and none is added."""
    skip_unless(isinstance(shared, DirectoryBackend), "looks at the store's files")
    assert isinstance(shared, DirectoryBackend)
    owner = shared.open()
    owner.publish_many("t", numbered(10))
    owner.subscribe("t", "g").close()
    owner.close()

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(shared.folder.rglob("*")) if path.is_file()}

    before = content()
    reader = shared.reader()
    assert stored(reader, "t") == numbered(10)
    reader.topics()
    reader.topic("t")
    reader.close()
    assert content() == before
