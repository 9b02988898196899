"""`penstock.open`: a path means embedded, shared with whoever else opens it; a URL means a server."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from penstock.arguments import check_seconds, shown
from penstock.client.address import is_url
from penstock.client.opening import GIVE_UP_SECONDS
from penstock.client.opening import open_store as open_alone
from penstock.errors import BadArgument, NoAccess, StoreLocked, Unavailable
from penstock.files import DIRECTORY_MODE
from penstock.settings import StoreSettings, no_such_setting
from penstock.sharing.door import SocketDoor
from penstock.store.store import MEMORY, Store

if TYPE_CHECKING:
    from penstock.client.store import RemoteStore
    from penstock.store.read_only import ReadOnlyStore

    Path = str | os.PathLike[str]
    Share = bool | Literal["helper"]

HELPER = "helper"
_OPEN: weakref.WeakSet[RemoteStore] = weakref.WeakSet()


def _close_all() -> None:
    """A program that ends without closing its stores closes them now, as those that it owns: what its consumers hold is no failure."""
    for store in list(_OPEN):
        with contextlib.suppress(Exception):
            store.close()


atexit.register(_close_all)


@overload
def open_store(
    path: Path, *, read_only: Literal[False] = False, create: bool = True, auto_create: bool = True, share: Share = True, **settings: Any
) -> Store: ...  # fmt: skip
@overload
def open_store(
    path: Path, *, read_only: Literal[True], create: bool = True, auto_create: bool = True, share: Share = True, **settings: Any
) -> ReadOnlyStore: ...  # fmt: skip
def open_store(
    path: Path, *, read_only: bool = False, create: bool = True, auto_create: bool = True, share: Share = True, **settings: Any
) -> Store | ReadOnlyStore:  # fmt: skip
    """
    Open a store: in the folder *path*, in memory (``"memory:"``), or on a server (``"penstock://host:port"``).

    A folder is made a store if it is none yet, unless *create* is False. The first process that opens it owns it, and others that open
    it reach it through the owner, with the same calls and guarantees; when the owner ends, another one takes its place. With *share* False
    nobody else gets in, and it is refused where somebody else has it; with ``"helper"`` a small process owns it from the start, and no
    user's. Any number may open it with *read_only*. With *auto_create* publishing makes a topic that is not there.

    *settings* are the store's settings by name (docs/reference/settings.md); those of the owner hold. A server has its own. Where calls
    go to another process there is `give_up`: after how many seconds without it they raise `Unavailable` (default 30). Returns after
    recovery: what it serves is durable.

    Raises:
        StoreLocked: another process owns it, and does not share it, or *share* is False; the error names its pid and host.
        StoreNotFound: there is none, and it may not be made.
        Unavailable: the server, or the owner, cannot be reached.
        Corrupt: stored data is damaged; nothing was changed.
        BadSetting, BadArgument: the call is wrong.
    """
    if share is not True and share is not False and share != HELPER:
        raise BadArgument("share", shown(share), 'must be True, False or "helper"')
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    is_folder = isinstance(text, str) and bool(text) and "\0" not in text and text != MEMORY and not is_url(text)
    if not is_folder or read_only:
        if read_only:
            reader: ReadOnlyStore = open_alone(path, read_only=True, create=create, auto_create=auto_create, **settings)
            return reader
        store: Store = open_alone(path, create=create, auto_create=auto_create, **settings)
        return store
    give_up_s = check_seconds("give_up", settings.pop("give_up", GIVE_UP_SECONDS), 0, 1e6)
    if share is False:
        alone: Store = open_alone(path, create=create, auto_create=auto_create, **settings)
        return alone
    chosen = _settings(settings)
    assert isinstance(text, str)
    if share is True:
        try:
            return Store.open(text, create=create, auto_create=auto_create, settings=chosen, door=SocketDoor())
        except StoreLocked:
            pass
    elif create:
        _make_folder(text)
    return cast(
        "Store", _open_as_sibling(os.path.abspath(text), settings, create=create, auto_create=auto_create, give_up_s=give_up_s)
    )


def _settings(given: dict[str, Any]) -> StoreSettings | None:
    known = {field.name for field in fields(StoreSettings)}
    for name, value in given.items():
        if name not in known:
            raise no_such_setting(name, value, "store", known)
    return StoreSettings(**given) if given else None


def _make_folder(path: str) -> None:
    """What is needed to start a helper, which makes the rest, and all of it durable."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)


def _open_as_sibling(
    folder: str, settings: dict[str, Any], *, create: bool, auto_create: bool, give_up_s: float
) -> RemoteStore:  # fmt: skip
    # Imported here: a process that owns its store needs no client.
    from penstock.client.store import RemoteStore
    from penstock.sharing.folder import SharedFolder

    end = time.monotonic() + give_up_s
    place = SharedFolder(folder, settings, create=create)
    while True:
        try:
            store = RemoteStore(place, auto_create=auto_create, give_up_s=give_up_s)
        except (StoreLocked, NoAccess):
            raise
        except Unavailable:
            # It hung up before it greeted us: it ended at this moment, and somebody follows it.
            if time.monotonic() > end:
                raise
        else:
            _OPEN.add(store)
            return store
