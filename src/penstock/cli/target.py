"""What a command works on: the store that its TARGET names, in a folder or on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from penstock.client.address import is_url
from penstock.errors import UsageError
from penstock.sharing.opening import open_store
from penstock.store.store import MEMORY

if TYPE_CHECKING:
    from penstock.store.read_only import ReadOnlyStore
    from penstock.store.store import Store

GIVE_UP_SECONDS = 5.0
"""How long a command looks for a server, or an owner, that is not there: a person waits."""


@overload
def open_target(target: str, *, read_only: Literal[True], create: bool = False, give_up: float = ...) -> ReadOnlyStore: ...
@overload
def open_target(target: str, *, read_only: Literal[False] = False, create: bool = False, give_up: float = ...) -> Store: ...
def open_target(
    target: str, *, read_only: bool = False, create: bool = False, give_up: float = GIVE_UP_SECONDS
) -> Store | ReadOnlyStore:
    """
    Open the store that *target* names; every command comes through here. With *create* it is made if there is none.

    Calls look for a server that went away for *give_up* seconds.
    Of a server the same store is open for all, and its tokens say what may be done. Raises what `penstock.open` raises, and
    `UsageError` for what a command cannot open.
    """
    if is_url(target):
        return open_store(target, auto_create=create, give_up=give_up)
    path = local_path(target)
    if read_only:
        return open_store(path, read_only=True)
    return open_store(path, create=create, auto_create=create, give_up=give_up)


def local_path(target: str) -> str:
    """The folder that *target* names. Raises `UsageError` where it names none."""
    if is_url(target):
        raise UsageError(f"{target} is a server; this command looks at files: give the path of the store's folder")
    if target == MEMORY:
        raise UsageError("a store in memory ends with its process, so a command cannot reach one; give the path of a folder")
    return target
