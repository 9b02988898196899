"""`penstock.aio.open`: a path means embedded, a URL means a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.aio.opening import Opening
from penstock.aio.remote_store import AsyncRemoteStore
from penstock.aio.store import AsyncStore
from penstock.client.store import RemoteStore
from penstock.sharing.opening import open_store as open_plain_store

if TYPE_CHECKING:
    import os

    from penstock.sharing.opening import Share


def open_store(
    path: str | os.PathLike[str], *, create: bool = True, auto_create: bool = True, share: Share = True, **settings: Any
) -> Opening[AsyncStore]:
    """Open a store for asyncio: ``store = await aio.open(path)``, or ``async with aio.open(path) as store``. See `penstock.open`."""

    def open_now() -> AsyncStore:
        store = open_plain_store(path, create=create, auto_create=auto_create, share=share, **settings)
        if isinstance(store, RemoteStore):  # on a server, or in a folder that another process owns
            return AsyncRemoteStore(store)
        return AsyncStore(store)

    return Opening(open_now)
