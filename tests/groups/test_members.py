"""Members of a group: those who join or leave while it is deleted, and those who were cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed
from tests.aio.helpers import until
from tests.groups.sim import SOON_S

if TYPE_CHECKING:
    from penstock import Consumer
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


def test_a_cancelled_subscribe_leaves_no_member_behind(memory: Store) -> None:
    from penstock.aio import AsyncStore

    memory.create_topic("t", partitions=2)
    subscribe = memory.subscribe
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Consumer:
        entered.set()
        go_on.wait(2 * SOON_S)
        try:
            return subscribe(*args, **options)
        finally:
            left.set()

    memory.subscribe = slowly  # type: ignore[method-assign]

    async def main() -> None:
        task = asyncio.ensure_future(AsyncStore(memory).subscribe("t", "g", ordered=True)._open())
        assert await asyncio.to_thread(entered.wait, SOON_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(left.wait, SOON_S)
        assert await until(lambda: memory._group("t", "g").members == [])

    asyncio.run(main())
    memory.subscribe = subscribe  # type: ignore[method-assign]
