"""`penstock.open`: a path means embedded, and the keywords are the store's settings."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.arguments import shown
from penstock.errors import BadArgument
from penstock.settings import StoreSettings, no_such_setting
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import MEMORY, Store

if TYPE_CHECKING:
    Path = str | os.PathLike[str]


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
    Open the store in the folder *path*, and make it if there is none (unless *create* is False); or ``"memory:"``, a store of its own.

    One process owns a store at a time; others may open it with *read_only*. With *auto_create* publishing makes a topic that is not
    there. *settings* are the store's settings by name (docs/reference/settings.md). Returns after recovery: what it serves is durable.

    Raises:
        StoreLocked: another process owns it; the error names its pid and host.
        StoreNotFound: there is none, and it may not be made.
        Corrupt: stored data is damaged; nothing was changed.
        BadSetting, BadArgument: the call is wrong.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadArgument("path", shown(path), 'must be the path of a folder, or "memory:"')
    if "://" in text:
        raise BadArgument("path", shown(path), "must be a folder here; penstock.open takes the URL of a server")
    known = {field.name for field in fields(StoreSettings)}
    for name, value in settings.items():
        if name not in known:
            raise no_such_setting(name, value, "store", known)
    if read_only:
        if text == MEMORY:
            raise BadArgument(
                "read_only", "True", "a memory store belongs to one opener, so there is nothing to read beside it"
            )
        return ReadOnlyStore(text)
    chosen = StoreSettings(**settings) if settings else None
    return Store.open(text, create=create, auto_create=auto_create, settings=chosen)
