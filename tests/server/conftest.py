"""The fixtures of the suite: real listeners on free ports of the loopback."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.server.running import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One server for a whole file: its tests use topics of their own."""
    with running() as server:
        yield server


@pytest.fixture
def server() -> Iterator[Running]:
    """A server of the test's own."""
    with running() as server:
        yield server


@pytest.fixture
def http(server: Running) -> httpx.Client:
    """A client of it."""
    return server.client()


@pytest.fixture
def client(shared: Running) -> Iterator[httpx.Client]:
    """A client of the shared server."""
    with shared.client() as client:
        yield client


@pytest.fixture
def topic(shared: Running) -> str:
    """A topic that is there for one test."""
    name = f"topic-{next(_numbers)}"
    shared.store.sync.create_topic(name)
    return name
