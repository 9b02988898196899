"""The consumers of a client that goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.consumers import Consumers
from penstock.broker.subscription import Subscription
from penstock.errors import StorageFailed
from penstock.store.store import Store


@pytest.mark.parametrize("orderly", [False, True])
def test_one_consumer_that_cannot_leave_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch, orderly: bool) -> None:
    """As where the disk has failed: what the first one notes cannot be written."""

    def fail() -> None:
        raise StorageFailed("data", "a planted failure")

    async def go() -> None:
        with Store.open("memory:") as store:
            store.create_topic("t")
            consumers = Consumers(store, nothing, nothing, nothing, nothing, nothing)
            opened = [store.subscribe("t", group) for group in ("first", "second")]
            consumers._subscriptions = {at: Subscription(one, 1, nothing) for at, one in enumerate(opened)}
            broken = consumers._subscriptions[0]
            with monkeypatch.context() as planted:
                planted.setattr(broken, "close" if orderly else "lose", fail)
                with pytest.raises(StorageFailed):
                    consumers.disconnect(orderly=orderly)()
            groups = store.stats().topics["t"].groups
            assert (groups["first"].members, groups["second"].members) == (1, 0)

    nothing: Any = None
    asyncio.run(go())
