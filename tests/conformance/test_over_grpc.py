"""
The suite over gRPC, by an adapter over the generated stub: delivery here, the rest in test_over_grpc_long.py.

Tests that ask for what the proto does not have are skipped with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.values import MIB
from tests.conformance import test_delivery
from tests.conformance.backends import Backend, DirectoryBackend
from tests.grpc.running import Running
from tests.grpc.store import GrpcStore

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from penstock import Store

NOT_OVER_GRPC = {
    "test_fetching_is_not_delivering_however_often_members_come_and_go": "a thousand streams take too long",
    "test_keys_over_the_limit_are_forgotten_oldest_first": "a hundred thousand publishes take too long",
    "test_a_list_may_be_acked_in_any_order": "many examples, of what the engine does",
    "test_a_pair": "told on quick backends only",
    "test_alone": "each feature is in stories of several",
    "test_any_features_at_once": "told on quick backends only",
    "test_every_feature_is_in_pairs_with_every_other_or_there_is_a_reason": "about the tests",
}
"""Tests that are left out, and why."""


class GrpcBackend(DirectoryBackend):
    """A store in a folder that a gRPC server in this process serves, through the generated stub."""

    name = "grpc"
    has_one_opener = False
    has_readers = False

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self._servers: dict[Path, Running] = {}
        self._owners: list[Store] = []

    def open(self, **settings: Any) -> Store:
        server = self._servers.get(self.path)
        if server is None:
            owner = self._open(str(self.path), settings)
            self._opened.pop()
            server = self._servers[self.path] = Running(owner, request_bytes_max=32 * MIB)
            self._owners.append(owner)
        client: Any = GrpcStore(server.target)
        self._opened.append(client)
        return client  # type: ignore[no-any-return]  # it has the same face

    def owner(self) -> Any:
        return self._owners[-1]

    def queue(self, **options: Any) -> Any:
        pytest.skip("no such call over gRPC: a Queue speaks the native protocol")

    def close(self) -> None:
        super().close()
        for server in self._servers.values():
            server.close()
        self._servers = {}
        while self._owners:
            self._owners.pop().close()


@pytest.fixture
def backend_type() -> type[Backend]:
    """This one instead of the others."""
    return GrpcBackend


def collect(module: ModuleType) -> dict[str, Any]:
    """The tests of a module, under names that no other module has."""
    prefix = module.__name__.rpartition(".")[2]
    return {
        f"{prefix}_{name.removeprefix('test_')}": found
        for name, found in vars(module).items()
        if name.startswith("test_") and callable(found) and name not in NOT_OVER_GRPC
    }


globals().update(collect(test_delivery))
