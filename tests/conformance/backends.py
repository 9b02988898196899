"""The ways to reach an engine. A backend opens stores, knows the clock they run on, and says what it cannot do."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import penstock
from penstock import ReadOnlyStore, Store
from penstock.aio.remote_store import AsyncRemoteStore
from penstock.client.address import parse_address
from penstock.client.store import RemoteStore
from penstock.clock import SystemClock
from penstock.server.running import RunningServer
from penstock.settings import StoreSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.awaited import Awaited, LoopThread
from tests.conformance.over_http import HttpServer, HttpStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.clock import Clock

SETTINGS = StoreSettings(
    journal_file_bytes=1024 * 1024, frame_bytes=256 * 1024, reference_bytes=64 * 1024, free_bytes_floor=0, reserve_bytes=0
)
"""Small files: a test opens a store in a few milliseconds, and its journal goes round."""


class Backend:
    """Opens one store again and again; what is still open when the test ends is closed for it."""

    name = ""
    keeps_data = False
    """Whether a store that is closed, or whose process is killed, is found again."""
    has_readers = False
    """Whether a second opener may read beside the owner."""
    has_one_opener = True
    """Whether a second opener is refused."""
    door: str | None = None
    """The listener of a server that it goes through, by the name of its setting; None if there is none."""
    gives_back = True
    """Whether what a consumer was given ahead, and its user was not, can be had by others."""
    leaves_out: ClassVar[dict[str, str]] = {}
    """Modules of tests that it has no answer to at all, and why."""

    def __init__(self, folder: Path, *, live: bool) -> None:
        self.folder = folder
        self.live = live
        self.fake_clock = FakeClock()
        self.live_clock: Clock = SystemClock()
        self._opened: list[Store | ReadOnlyStore] = []

    @property
    def clock(self) -> Clock:
        """The clock that the store runs on."""
        return self.live_clock if self.live else self.fake_clock

    def advance(self, seconds: float) -> None:
        """Let time pass; only where time is the test's to move."""
        assert not self.live
        self.fake_clock.advance(seconds)

    def open(self, **settings: Any) -> Store:
        """Open the store, and make it where there is none yet."""
        raise NotImplementedError

    def reopen(self, **settings: Any) -> Store:
        """Close the store in good order and open it again."""
        self.close()
        return self.open(**settings)

    def kill(self, **settings: Any) -> Store:
        """Open what a killed process would have left at this moment."""
        raise NotImplementedError

    def reader(self) -> ReadOnlyStore:
        """Open the store for reading only, beside its owner."""
        raise NotImplementedError

    def queue(self, **options: Any) -> penstock.Queue:
        """The simple face, on a queue of its own that is found again under the same name."""
        raise NotImplementedError

    def owner(self) -> Any:
        """The store that owns the files, for tests that look inside."""
        return self._opened[-1]

    def close(self) -> None:
        """Close every store that was opened."""
        while self._opened:
            self._opened.pop().close()

    def _open(self, path: str, settings: dict[str, Any]) -> Store:
        auto_create = settings.pop("auto_create", True)
        store = Store.open(
            path, auto_create=auto_create, settings=replace(SETTINGS, **settings), clock=self.clock, background=self.live
        )
        self._opened.append(store)
        return store


class MemoryBackend(Backend):
    """`memory:`: gone when it is closed."""

    name = "memory"

    def open(self, **settings: Any) -> Store:
        return self._open("memory:", settings)

    def queue(self, **options: Any) -> penstock.Queue:
        return penstock.Queue("memory:", **options)


class DirectoryBackend(Backend):
    """A folder on disk."""

    name = "directory"
    keeps_data = True
    has_readers = True

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self.path = folder / "store"
        self._kills = 0

    def open(self, **settings: Any) -> Store:
        return self._open(str(self.path), settings)

    def kill(self, **settings: Any) -> Store:
        self.die()
        return self.open(**settings)

    def die(self) -> None:
        """
        Go on from a copy of the folder, which is what a SIGKILL leaves: all that was written, nothing that was not.

        The old store lives on unseen until the end of the test.
        """
        self._kills += 1
        copy = self.folder / f"killed-{self._kills}"
        shutil.copytree(self.path, copy)
        self.path = copy

    def reader(self) -> ReadOnlyStore:
        reader = penstock.open(str(self.path), read_only=True)
        self._opened.append(reader)
        return reader

    def queue(self, **options: Any) -> penstock.Queue:
        return penstock.Queue(str(self.folder / "queue"), **options)


class SimulatedBackend(Backend):
    """A folder on a disk in memory: as a directory, and much quicker, for tests that are many. In no list below."""

    name = "simulated"
    keeps_data = True

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self.files = SimulatedFileSystem()

    def open(self, **settings: Any) -> Store:
        store = open_simulated(self.files, self.fake_clock, **settings)
        self._opened.append(store)
        return store

    def kill(self, **settings: Any) -> Store:
        self.files = self.files.kill()
        return self.open(**settings)


class ServerBackend(DirectoryBackend):
    """A store in a folder that a server in this process serves, through its client."""

    name = "server"
    door: str | None = "native"
    has_one_opener = False

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self._servers: dict[Path, Any] = {}
        self._owners: list[Store] = []

    def open(self, **settings: Any) -> Store:
        auto_create = settings.get("auto_create", True)
        server = self._servers.get(self.path)
        if server is None:
            owner = self._open(str(self.path), settings)
            self._opened.pop()
            server = self._serve(owner)
            self._servers[self.path] = server
            self._owners.append(owner)
        client = self._connect(server, auto_create=auto_create)
        self._opened.append(client)
        return client

    def advance(self, seconds: float) -> None:
        for owner in self._owners:
            keep_clients(owner, seconds)
        super().advance(seconds)

    def _serve(self, owner: Store) -> Any:
        return RunningServer(owner)

    def _connect(self, server: Any, *, auto_create: bool) -> Store:
        client: Any = RemoteStore(parse_address(server.address), auto_create=auto_create)
        return client  # type: ignore[no-any-return]  # it has the same face

    def owner(self) -> Any:
        return self._owners[-1]

    def queue(self, **options: Any) -> penstock.Queue:
        self.open()
        return penstock.Queue(self._servers[self.path].address, **options)

    def close(self) -> None:
        super().close()
        for server in self._servers.values():
            server.close()
        self._servers = {}
        while self._owners:
            self._owners.pop().close()


class AsyncioBackend(ServerBackend):
    """The same through its client for asyncio."""

    name = "asyncio"

    def __init__(self, folder: Path, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self._threads: list[LoopThread] = []

    def open(self, **settings: Any) -> Store:
        remote: Any = super().open(**settings)
        self._opened.pop()
        thread = LoopThread()
        self._threads.append(thread)
        store: Any = Awaited(thread, AsyncRemoteStore(remote))
        self._opened.append(store)
        return store  # type: ignore[no-any-return]  # it has the same face

    def reopen(self, **settings: Any) -> Store:
        super().close()  # and not the loops: what was made in them may still be asked
        return self.open(**settings)

    def close(self) -> None:
        super().close()
        while self._threads:
            self._threads.pop().close()


class HttpBackend(ServerBackend):
    """The same over HTTP, as far as it has the calls."""

    name = "http"
    door = "http"
    leaves_out: ClassVar[dict[str, str]] = {
        "test_bad_input": "HTTP has no types of Python; tests/server/test_hostile.py is about bad requests",
        "test_producers": "no such call over HTTP: producers",
        "test_queue": "no such call over HTTP: the simple face",
        "test_transactions": "no such call over HTTP: transactions",
        "test_workers": "no such call over HTTP: workers",
    }

    def _serve(self, owner: Store) -> Any:
        return HttpServer(owner, live=self.live)

    def _connect(self, server: Any, *, auto_create: bool) -> Store:
        client: Any = HttpStore(server)
        return client  # type: ignore[no-any-return]  # it has the same face


BACKENDS: tuple[type[Backend], ...] = (MemoryBackend, DirectoryBackend, ServerBackend)
"""Those of every run."""
LONG_BACKENDS: tuple[type[Backend], ...] = (AsyncioBackend, HttpBackend)
"""Those of the long run."""


def keep_clients(owner: Store, seconds: float) -> None:
    """A server's clock is about to be moved: its clients, whose heartbeats go by the machine's, are there all the time."""
    for group in owner._groups.all():
        with group.lock:
            for member in group.members:
                if member.client is not None and member.client.beats:
                    member.silent_at = max(member.silent_at, group._clock.monotonic() + seconds + member.patience_s)


def open_simulated(files: SimulatedFileSystem, clock: FakeClock, **settings: Any) -> Store:
    """A store on a disk that can fail."""
    return Store.open("/store", settings=replace(SETTINGS, **settings), files=files, clock=clock, background=False)


def skip_unless(able: bool, reason: str) -> None:
    """Leave out a test that this backend has no answer to."""
    if not able:
        pytest.skip(reason)
