"""The fixtures of the suite: each test runs on a memory store and on a folder."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store, aio
from penstock.testing import FakeClock
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.aio.helpers import Opener

MEMORY = "memory:"


@pytest.fixture(params=["memory", "directory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be."""
    return MEMORY if request.param == "memory" else str(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where a store is found again."""
    return str(tmp_path / "store")


@pytest.fixture
def opener(path: str) -> Opener:
    """Opens a store; settings by name."""
    return partial(aio.open, path, **asdict(SETTINGS))


@pytest.fixture
def folder_opener(folder: str) -> Opener:
    """Opens a store that is found again."""
    return partial(aio.open, folder, **asdict(SETTINGS))


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it: take with ``timeout=0`` only."""
    return FakeClock()


@pytest.fixture
def timed(path: str, clock: FakeClock) -> Callable[[], aio.AsyncStore]:
    """Opens a store on that clock."""

    def open_timed(**options: Any) -> aio.AsyncStore:
        return aio.AsyncStore(Store.open(path, settings=SETTINGS, clock=clock, **options))

    return open_timed
