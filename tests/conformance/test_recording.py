"""Topics that record their deliveries, on any store: the setting, its records, and whose they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadSetting, PenstockError, ReservedName
from tests.conformance.helpers import drain, numbered

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

WINDOW_S = 10


def records(store: Store) -> list[dict[str, Any]]:
    return [json.loads(message.value or b"") for message in store.read("t.deliveries")]


def test_what_groups_are_handed_is_recorded_by_group_and_window(backend: Backend) -> None:
    store = backend.open()
    assert store.create_topic("t", record_deliveries=True).settings.record_deliveries
    assert store.create_topic("t", record_deliveries=True).name == "t"
    assert not store.create_topic("plain").settings.record_deliveries
    for topic in ("t", "plain"):
        store.publish_many(topic, numbered(4))
    backend.advance(2)
    for topic, group in (("t", "g"), ("t", "h"), ("plain", "g")):
        with store.subscribe(topic, group) as consumer:
            assert len(drain(consumer)) == 4
    backend.advance(WINDOW_S)
    assert backend.owner()._deliveries.write() == 2
    found = {record["group"]: record for record in records(store)}
    assert {group: (one["delivered"], one["redelivered"], one["max_us"]) for group, one in found.items()} == {
        "g": (4, 0, 2_000_000),
        "h": (4, 0, 2_000_000),
    }
    assert [topic.name for topic in store.topics()] == ["plain", "t", "t.deliveries"]
    if backend.keeps_data:
        store = backend.reopen()
        assert store.topic("t").settings.record_deliveries
        assert len(records(store)) == 2


def test_only_penstock_writes_records(store: Store, backend: Backend) -> None:
    store.create_topic("t", record_deliveries=True)
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
    backend.advance(WINDOW_S)
    backend.owner()._deliveries.write()
    for call in (
        lambda: store.publish("t.deliveries", b"x"),
        lambda: store.publish_many("t.deliveries", [b"x"]),
        lambda: store.create_topic("u.deliveries"),
    ):
        with pytest.raises(ReservedName, match=r"\.deliveries"):
            call()
    assert len(records(store)) == 1


@pytest.mark.parametrize("value", ["yes", 0.5])
def test_a_value_that_is_neither_true_nor_false_is_refused(store: Store, value: Any) -> None:
    with pytest.raises(PenstockError) as caught:
        store.create_topic("t", record_deliveries=value)
    assert isinstance(caught.value, BadSetting) or "record_deliveries" in str(caught.value)
    assert store.topics() == []
