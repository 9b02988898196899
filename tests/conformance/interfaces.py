"""
Every way to consume messages, for the tests that all of them must pass (`test_fairness.py`): the backends of the suite, and those that run
a part of it only.

An interface that is not in `INTERFACES` fails `test_every_interface.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.client.store import RemoteStore
from penstock.sharing.door import SocketDoor
from penstock.sharing.folder import SharedFolder
from penstock.sharing.names import SOCKET_NAME
from penstock.values import MIB
from tests.conformance.backends import (
    BACKENDS,
    LONG_BACKENDS,
    SETTINGS,
    Backend,
    DirectoryBackend,
    HttpBackend,
    ServerBackend,
    keep_clients,
)
from tests.conformance.over_http import HttpStreamStore
from tests.grpc.running import Running
from tests.grpc.store import GrpcStore, PlainGrpcStore

if TYPE_CHECKING:
    from pathlib import Path


class GrpcBackend(ServerBackend):
    """A store in a folder that a gRPC server in this process serves, through the generated stub."""

    name = "grpc"
    door = "grpc"
    has_readers = False

    def _serve(self, owner: Store) -> Any:
        return Running(owner, request_bytes_max=32 * MIB)

    def _connect(self, server: Any, *, auto_create: bool) -> Store:
        client: Any = GrpcStore(server.target)
        return client  # type: ignore[no-any-return]  # it has the same face

    def queue(self, **options: Any) -> Any:
        pytest.skip("no such call over gRPC: a Queue speaks the native protocol")


class PlainGrpcBackend(GrpcBackend):
    """The same, by a client that does not say that it gives messages back."""

    name = "plain_grpc"
    gives_back = False

    def _connect(self, server: Any, *, auto_create: bool) -> Store:
        client: Any = PlainGrpcStore(server.target)
        return client  # type: ignore[no-any-return]  # it has the same face


class StreamBackend(HttpBackend):
    """Over HTTP, by event streams."""

    name = "stream"
    gives_back = False

    def _connect(self, server: Any, *, auto_create: bool) -> Store:
        client: Any = HttpStreamStore(server)
        return client  # type: ignore[no-any-return]  # it has the same face


class SharedBackend(DirectoryBackend):
    """A folder that somebody owns already; every opening is a sibling's."""

    name = "shared"
    has_one_opener = False

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self._owners: dict[Any, Store] = {}

    def open(self, **settings: Any) -> Store:
        auto_create = settings.pop("auto_create", True)
        if self.path not in self._owners:
            self._owners[self.path] = Store.open(
                str(self.path), auto_create=False, settings=replace(SETTINGS, **settings), clock=self.clock, background=self.live,
                door=SocketDoor(),
            )  # fmt: skip
        sibling: Any = RemoteStore(SharedFolder(str(self.path), {}), auto_create=auto_create)
        self._opened.append(sibling)
        return sibling  # type: ignore[no-any-return]  # it has the same face

    def advance(self, seconds: float) -> None:
        for owner in self._owners.values():
            keep_clients(owner, seconds)
        super().advance(seconds)

    def die(self) -> None:
        self._kills += 1
        copy = self.folder / f"killed-{self._kills}"
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns(SOCKET_NAME))
        self.path = copy

    def close(self) -> None:
        super().close()
        while self._owners:
            self._owners.popitem()[1].close()


INTERFACES: tuple[type[Backend], ...] = (*BACKENDS, GrpcBackend, SharedBackend)
"""Those of every run."""
LONG_INTERFACES: tuple[type[Backend], ...] = (*LONG_BACKENDS, PlainGrpcBackend, StreamBackend)
"""Those of the long run."""
PARAMETERS = [
    *(pytest.param(one, id=one.name) for one in INTERFACES),
    *(pytest.param(one, id=one.name, marks=pytest.mark.long) for one in LONG_INTERFACES),
]
