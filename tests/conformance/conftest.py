"""The fixtures of the suite: each test runs once per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import Store
from tests.conformance.backends import BACKENDS, LONG_BACKENDS, SETTINGS, Backend, DirectoryBackend, skip_unless
from tests.volume.gated_files import GatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_PARAMETERS = [
    *(pytest.param(backend, id=backend.name) for backend in BACKENDS),
    *(pytest.param(backend, id=backend.name, marks=pytest.mark.long) for backend in LONG_BACKENDS),
]


@pytest.fixture(params=_PARAMETERS)
def backend_type(request: pytest.FixtureRequest) -> type[Backend]:
    """The ways to reach an engine, one after the other."""
    chosen: type[Backend] = request.param
    return chosen


@pytest.fixture
def backend(backend_type: type[Backend], tmp_path: Path) -> Iterator[Backend]:
    """A backend whose clock stands still until the test moves it, without threads."""
    backend = backend_type(tmp_path, live=False)
    yield backend
    backend.close()


@pytest.fixture
def live(backend_type: type[Backend], tmp_path: Path) -> Iterator[Backend]:
    """A backend on the machine's clock, with its threads."""
    backend = backend_type(tmp_path, live=True)
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    """An empty store on a clock that stands still."""
    return backend.open()


@pytest.fixture
def live_store(live: Backend) -> Store:
    """An empty store on the machine's clock."""
    return live.open()


@pytest.fixture
def lasting(backend: Backend) -> Backend:
    """A backend that finds its data again, on a clock that stands still."""
    skip_unless(backend.keeps_data, f"a {backend.name} store ends with its closing: there is nothing to come back to")
    return backend


@pytest.fixture
def lasting_live(live: Backend) -> Backend:
    """A backend that finds its data again, on the machine's clock."""
    skip_unless(live.keeps_data, f"a {live.name} store ends with its closing: there is nothing to come back to")
    return live


@pytest.fixture
def shared(backend: Backend) -> Backend:
    """A backend that lets others read beside the owner."""
    skip_unless(backend.has_readers, f"a {backend.name} store is its owner's alone: nobody can read beside it")
    return backend


@pytest.fixture
def gated(live: Backend, tmp_path: Path) -> Iterator[tuple[Store, GatedFileSystem]]:
    """A store on a disk whose syncs can be held back, with a topic t of four partitions."""
    skip_unless(isinstance(live, DirectoryBackend), "holds the disk back")
    files = GatedFileSystem()
    with Store.open(str(tmp_path / "gated"), settings=SETTINGS, files=files) as store:
        store.create_topic("t", partitions=4)
        yield store, files
        files.gate.set()
