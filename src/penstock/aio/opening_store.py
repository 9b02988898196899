"""`penstock.aio.open`: a path means embedded, a URL means a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from penstock.aio.opening import Opening
from penstock.aio.remote_store import AsyncRemoteStore
from penstock.aio.store import AsyncStore
from penstock.client.address import is_url
from penstock.client.opening import open_store as open_plain_store

if TYPE_CHECKING:
    from penstock.client.store import RemoteStore


def open_store(
    path: str | os.PathLike[str], *, create: bool = True, auto_create: bool = True, **settings: Any
) -> Opening[AsyncStore]:
    """Open a store for asyncio: ``store = await aio.open(path)``, or ``async with aio.open(path) as store``. See `penstock.open`."""

    def open_now() -> AsyncStore:
        store = open_plain_store(path, create=create, auto_create=auto_create, **settings)
        if is_url(os.fspath(path)):
            return AsyncRemoteStore(cast("RemoteStore", store))
        return AsyncStore(store)

    return Opening(open_now)
