"""The fixtures of the suite: each test runs on a memory store and on a folder, and on a server where it uses `opener`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store, aio
from penstock.server.running import RunningServer
from penstock.testing import FakeClock
from tests.aio.helpers import OWNERS
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


class Served:
    """Opens a store on a server: the first time with its settings, then again and again the same one."""

    def __init__(self) -> None:
        self._owner: Store | None = None
        self._server: RunningServer | None = None

    def __call__(self, *, auto_create: bool = True, **settings: Any) -> aio.Opening[aio.AsyncStore]:
        if self._server is None:
            self._owner = Store.open(MEMORY, settings=replace(SETTINGS, **settings))
            self._server = RunningServer(self._owner)
            OWNERS[self._server.address] = self._owner
        return aio.open(self._server.address, auto_create=auto_create)

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None and self._owner is not None:
            del OWNERS[self._server.address]
            self._server.close()
            self._owner.close()


@pytest.fixture(params=["memory", "directory", "server"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens a store; settings by name."""
    if request.param != "server":
        yield partial(aio.open, MEMORY if request.param == "memory" else str(tmp_path / "store"), **asdict(SETTINGS))
        return
    served = Served()
    yield served
    served.close()


@pytest.fixture
def local_opener(path: str) -> Opener:
    """Opens a store of this process, for tests that hold up what is inside, or count it."""
    return partial(aio.open, path, **asdict(SETTINGS))


@pytest.fixture
def folder_opener(folder: str) -> Opener:
    """Opens a store that is found again, for itself alone."""
    return partial(aio.open, folder, share=False, **asdict(SETTINGS))


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
