"""The store that a pipeline works on, from the driver's side."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from penstock.errors import StoreLocked, TopicNotFound
from penstock.sharing.opening import open_store
from penstock.spark import connections
from penstock.spark.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.spark.options import StorePlace
    from penstock.store.reading import TopicPositions


def source_options(store: str | os.PathLike[str] | Mapping[str, str]) -> dict[str, str]:
    """The options of the data source for a folder, a URL, or such options themselves, where a `token` can be one."""
    return {"store": os.fspath(store)} if isinstance(store, (str, os.PathLike)) else dict(store)


def place_of(store: str | os.PathLike[str] | Mapping[str, str]) -> StorePlace:
    """Where it is. Raises `BadSetting`."""
    return WriteOptions.parse(source_options(store), streaming=False).place


def positions(place: StorePlace, topic: str) -> TopicPositions:
    """Where the partitions of *topic* begin and end now. Raises `StoreNotFound`, `TopicNotFound`, `Unavailable`."""
    found: TopicPositions | None = connections.patiently(place, lambda: connections.reader(place).positions([topic]).get(topic))
    if found is None:
        raise TopicNotFound(topic)
    return found


@contextlib.contextmanager
def changing(place: StorePlace) -> Iterator[Any]:
    """The store, to change it: through its owner if it has one that shares it. Raises `StoreLocked`, `Unavailable`."""
    if place.is_server:
        yield connections.reader(place)
        return
    with connections.patiently(
        place, lambda: open_store(place.path, create=False, give_up=place.retry_ms / 1000), when=StoreLocked
    ) as store:
        yield store
