"""Members of a group: those who join or leave while it is deleted, and those who were cancelled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed
from tests.groups.sim import SOON_S

if TYPE_CHECKING:
    from penstock.store.store import Store


def test_a_consumer_that_joins_while_its_group_is_deleted_is_closed_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be handed messages in the name of a group that is not there, and its acks would be forgotten."""
    store.publish("t", b"")
    store.subscribe("t", "g")
    joining, deleted = threading.Event(), threading.Event()
    claim_hand, delete = store._groups.claim_hand, store._groups._deleted

    def claim_when_deleted(*arguments: Any) -> Any:
        joining.set()
        assert deleted.wait(SOON_S)
        return claim_hand(*arguments)

    def tell(group: Any) -> None:
        delete(group)
        deleted.set()

    monkeypatch.setattr(store._groups, "claim_hand", claim_when_deleted)
    monkeypatch.setattr(store._groups, "_deleted", tell)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(store.subscribe("t", "g")), daemon=True)
    thread.start()
    assert joining.wait(SOON_S)
    store.delete_group("t", "g")
    thread.join(SOON_S)
    with pytest.raises(Closed):
        found[0].get(timeout=0)


def test_a_consumer_of_a_deleted_group_is_forgotten_when_it_is_closed(store: Store) -> None:
    with store.subscribe("t", "g"):
        store.delete_group("t", "g")
    assert not store._consumers
