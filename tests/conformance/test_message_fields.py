"""The fields of a message, by every way of publishing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.helpers import PATIENCE

if TYPE_CHECKING:
    from penstock import Store


def test_every_way_of_publishing_takes_every_field(live_store: Store) -> None:
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
