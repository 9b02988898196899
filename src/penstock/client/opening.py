"""Opening a store that is not shared: a path means embedded, a URL means a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from penstock.arguments import check_seconds
from penstock.client.address import is_url, parse_address
from penstock.errors import HIDDEN, BadArgument, BadSetting
from penstock.store.opening import open_store as open_path

if TYPE_CHECKING:
    from penstock.store.read_only import ReadOnlyStore
    from penstock.store.store import Store

    Path = str | os.PathLike[str]

GIVE_UP_SECONDS = 30.0


@overload
def open_store(
    path: Path, *, read_only: Literal[False] = False, create: bool = True, auto_create: bool = True, **settings: Any
) -> Store: ...
@overload
def open_store(
    path: Path, *, read_only: Literal[True], create: bool = True, auto_create: bool = True, **settings: Any
) -> ReadOnlyStore: ...
def open_store(
    path: Path, *, read_only: bool = False, create: bool = True, auto_create: bool = True, **settings: Any
) -> Store | ReadOnlyStore:
    """
    Open a store: in the folder *path*, alone, in memory, or on a server. What `penstock.open` does where nothing is shared.

    Arguments and errors are those of `penstock.sharing.opening.open_store`.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if isinstance(text, str) and is_url(text):
        if read_only:
            raise BadArgument("read_only", "True", "a server says by your token what you may do")
        give_up_s = check_seconds("give_up", settings.pop("give_up", GIVE_UP_SECONDS), 0, 1e6)
        for name in settings:
            if name == "token":
                raise BadSetting(name, HIDDEN, "give the token in the variable PENSTOCK_TOKEN, or in the URL as ?token=...")
            raise BadSetting(name, HIDDEN, "a server has its own settings; its clients have give_up")
        from penstock.client.store import RemoteStore  # a process with a store of its own needs no client

        # It has the same face; what it is made of is its own.
        return cast("Store", RemoteStore(parse_address(text), auto_create=auto_create, give_up_s=give_up_s))
    if read_only:
        reader: ReadOnlyStore = open_path(path, read_only=True, create=create, auto_create=auto_create, **settings)
        return reader
    store: Store = open_path(path, create=create, auto_create=auto_create, **settings)
    return store
