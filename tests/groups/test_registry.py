"""The groups of a store, by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    import pytest

    from penstock.groups.group import Group


def names(store: Store, topic: str) -> list[str]:
    return [group.name for group in store._groups.of_topic(store._catalog.get(topic).topic_id)]


def test_the_groups_of_a_topic_are_found_without_looking_at_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name; as they were made and deleted, and after a restart. Retention asks for them for each topic."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = Store.open("/store", settings=SETTINGS, files=files, clock=clock, background=False)
    for topic in ("t", "u"):
        store.create_topic(topic)
        for group in ("b", "a", "c"):
            store.subscribe(topic, group).close()
    store.delete_group("t", "a")
    store.delete_topic("u")
    store.create_topic("u")
    for _ in range(2):
        assert names(store, "t") == ["b", "c"]
        assert names(store, "u") == []
        store.close()
        store = Store.open("/store", settings=SETTINGS, files=files, clock=clock, background=False)

    def look_at_all() -> list[Group]:
        raise AssertionError("nobody needs all of them")

    monkeypatch.setattr(store._groups, "all", look_at_all)
    store.retain("t")
    store.delete_topic("t")
    store.close()


def test_two_who_change_different_settings_of_a_group_at_once_both_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changes what it was given, and leaves the rest as it is at that moment, not as it was when it looked."""
    with Store.open("memory:") as store:
        store.create_topic("t")
        store.subscribe("t", "g").close()
        make = store._groups.make

        def make_late(*arguments: Any) -> Group:
            monkeypatch.undo()
            store.subscribe("t", "g", max_deliveries=2).close()
            return make(*arguments)

        monkeypatch.setattr(store._groups, "make", make_late)
        store.subscribe("t", "g", lease=300).close()
        (found,) = store.groups("t")
        assert (found.settings.lease_ms, found.settings.max_deliveries) == (300_000, 2)
