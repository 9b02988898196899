"""A served store for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.served import PATIENCE_S, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock import Store
    from tests.client.proxy import Proxy


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A store that a server in this process serves."""
    served = Served(tmp_path)
    yield served
    served.close()


@pytest.fixture
def proxy(served: Served) -> Proxy:
    """A bad network in front of it."""
    return served.proxy()


@pytest.fixture
def client(served: Served, proxy: Proxy) -> Store:
    """A client behind the bad network."""
    return served.client(proxy.address, give_up=PATIENCE_S)
