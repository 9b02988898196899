"""The two faces of a store: opened here, and over a server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.client.address import parse_address
from penstock.client.store import RemoteStore
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.clock import Clock


@contextlib.contextmanager
def open_face(folder: Path, *, served: bool, clock: Clock | None = None) -> Iterator[Store | RemoteStore]:
    """A store in *folder*, itself or as a client of its server sees it."""
    with Store.open(folder / "store", settings=SETTINGS, clock=clock) as own:
        if not served:
            yield own
            return
        with RunningServer(own) as server, RemoteStore(parse_address(server.address)) as remote:
            yield remote
