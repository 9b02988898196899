"""The fixtures of the suite: real listeners on free ports of the loopback, over stores on disk."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.grpc.running import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.wire.penstock_pb2_grpc import AdminStub, PenstockStub

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for a whole file: its tests use topics of their own."""
    with Store.open(tmp_path_factory.mktemp("shared") / "store", settings=SETTINGS) as store, running(store) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own."""
    with Store.open(tmp_path / "store", settings=SETTINGS) as store:
        yield store


@pytest.fixture
def server(store: Store) -> Iterator[Running]:
    """A server of the test's own."""
    with running(store) as server:
        yield server


@pytest.fixture(scope="module")
def stub(shared: Running) -> PenstockStub:
    return shared.stub()


@pytest.fixture(scope="module")
def admin(shared: Running) -> AdminStub:
    return shared.admin()


@pytest.fixture
def topic(shared: Running) -> str:
    """A topic that is there for one test."""
    name = f"topic-{next(_numbers)}"
    shared.store.create_topic(name)
    return name
