"""
Sharing while consumers stand still, die or are cut off: the others get what those held, and no message dies that no handler failed.

Each consumer is a process of its own with the loop that a user writes, over every interface; the signals are real.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import penstock
from tests.cli.serving import serving
from tests.client.proxy import DOWN, UP, Proxy
from tests.conformance.fault_worker import GROUP, TOPIC, WORKERS
from tests.conformance.helpers import numbered, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long

ROOT = str(Path(__file__).parents[2])
LEASE_S = 3.0
PATIENCE_S = 180.0
REMOTE = [kind for kind, worker in WORKERS.items() if worker.door is not None]
"""Those whose connections can be cut."""


class Workers:
    """The processes of a test, and what they have finished."""

    def __init__(self, kind: str, address: str) -> None:
        self._kind = kind
        self.address = address
        self._processes: list[subprocess.Popen[str]] = []
        self.said: list[list[str]] = []
        """The lines of each."""
        self._changed = threading.Condition()
        self._listeners: list[threading.Thread] = []

    def start(self, pace_s: float, address: str | None = None) -> int:
        """One more; returns its number when it has subscribed."""
        number = len(self._processes)
        command = [sys.executable, "-m", "tests.conformance.fault_worker", self._kind, address or self.address, f"{pace_s}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        self.said.append([])
        listener = threading.Thread(target=self._listen, args=(number, process), daemon=True)
        self._listeners.append(listener)
        listener.start()
        self.wait(lambda: "ready" in self.said[number], f"worker {number} does not begin")
        return number

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.said[number].append(line.strip())
                    self._changed.notify_all()

    def signal(self, number: int, which: int) -> None:
        """Send it a signal."""
        self._processes[number].send_signal(which)

    def is_alive(self, number: int) -> bool:
        """Whether it runs."""
        return self._processes[number].poll() is None

    def done(self, number: int | None = None) -> list[tuple[int, int]]:
        """The places of what was finished, by all or by one."""
        lines = [line for said in (self.said if number is None else [self.said[number]]) for line in said]
        return [(int(word[1]), int(word[2])) for word in map(str.split, lines) if word[0] == "done"]

    def wait(self, holds: Any, what: str) -> None:
        """Until *holds*."""
        with self._changed:
            assert self._changed.wait_for(holds, PATIENCE_S), f"{what}: {[said[-3:] for said in self.said]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for listener in self._listeners:
            listener.join()


@pytest.fixture(params=list(WORKERS))
def kind(request: pytest.FixtureRequest) -> str:
    """The interface of the workers."""
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A store to look at, and the address that workers of this kind use."""
    if kind == "shared":
        with penstock.open(str(tmp_path / "data")) as store:
            yield store, str(tmp_path / "data")
        return
    listen = [word for name in ("native", "http", "grpc") for word in (f"--{name}", "127.0.0.1:0")]
    environment = {"PENSTOCK_SERVE_NO_GRPC": "0"}
    with (
        serving("--data", str(tmp_path / "data"), *listen, environment=environment) as server,
        penstock.open(server.address("native")) as store,
    ):
        yield store, server.address(str(WORKERS[kind].door))


def _group(store: Any) -> Any:
    return store.stats().topics[TOPIC].groups[GROUP]


def _begin(store: Any, messages: int, **options: Any) -> None:
    store.create_topic(TOPIC)
    store.subscribe(TOPIC, GROUP, lease=LEASE_S, **options).close()
    store.publish_many(TOPIC, numbered(messages))


def _check_end(store: Any, total: int) -> None:
    """All is finished, and nothing is dead."""
    assert until(lambda: _group(store).lag == 0, PATIENCE_S), _group(store)
    stats = _group(store)
    assert (stats.dead_lettered, stats.lag, stats.positions) == (0, 0, {0: total})
    assert len(store.dead_letters(TOPIC)) == 0


def test_a_stopped_and_a_killed_worker_keep_nothing_from_the_others(place: tuple[Any, str], kind: str) -> None:
    """Nor does the stopped one end when it goes on: it takes its share again."""
    store, address = place
    _begin(store, 300)
    with Workers(kind, address) as workers:
        stopped, killed = workers.start(0.02), workers.start(0.02)
        workers.start(0.02)
        workers.wait(lambda: len(workers.done()) >= 40, "they do not work")
        workers.signal(stopped, signal.SIGSTOP)
        before = len(workers.done(stopped))
        workers.wait(lambda: len(workers.done()) >= 100, "the others do not go on")
        workers.signal(killed, signal.SIGKILL)
        workers.start(0.02)
        _check_end(store, 300)
        assert len(workers.done(stopped)) <= before + 1
        workers.signal(stopped, signal.SIGCONT)
        total = 300
        end = time.monotonic() + PATIENCE_S
        while len(workers.done(stopped)) <= before + 1:
            assert time.monotonic() < end, workers.said[stopped][-3:]
            store.publish_many(TOPIC, numbered(30))
            total += 30
            _check_end(store, total)
        assert workers.is_alive(stopped)


def test_a_stopped_owner_of_a_partition_loses_it_to_a_standby(place: tuple[Any, str], kind: str) -> None:
    """In order, within a few leases, and nothing that was only sent to it is charged."""
    store, address = place
    _begin(store, 0, ordered=True)
    with Workers(kind, address) as workers:
        owner = workers.start(0.5)
        store.publish_many(TOPIC, numbered(12))
        workers.wait(lambda: len(workers.done(owner)) >= 2, "the owner does not work")
        standby = workers.start(0.01)
        workers.signal(owner, signal.SIGSTOP)
        finished = len(workers.done(owner))
        _check_end(store, 12)
        found = [offset for _, offset in workers.done(standby)]
        assert found == sorted(found), str(workers.said)
        assert len(found) >= 12 - finished - 1
        workers.signal(owner, signal.SIGCONT)


def test_a_slow_worker_and_a_quick_one_share_by_speed(place: tuple[Any, str], kind: str) -> None:
    """The quick one is never idle for long: the slow one finishes only what it can meanwhile."""
    store, address = place
    _begin(store, 0)
    with Workers(kind, address) as workers:
        slow = workers.start(0.5)
        if WORKERS[kind].gives_back:
            # All of it is pushed to the slow one.
            store.publish_many(TOPIC, numbered(200))
            workers.wait(lambda: workers.done(slow), "the slow one does not work")
        began_s = time.monotonic()
        workers.start(0.01)
        if not WORKERS[kind].gives_back:
            store.publish_many(TOPIC, numbered(200))
        _check_end(store, 200)
        took_s = time.monotonic() - began_s
        # What it may finish in that time, and one before and one behind.
        assert len(workers.done(slow)) <= took_s / 0.5 + 3
        workers.wait(lambda: len(set(workers.done())) == 200, "not all were finished")


# -- the network ----------------------------------------------------------------------------------------------------


class Far:
    """Workers of which the first is behind a bad network, and the others are not."""

    def __init__(self, workers: Workers, proxy: Proxy, pace_s: float) -> None:
        self.workers = workers
        self.proxy = proxy
        scheme = workers.address.partition("://")[0]
        self.number = workers.start(pace_s, proxy.address.replace("penstock", scheme, 1))

    @property
    def done(self) -> int:
        """What the far one has finished."""
        return len(self.workers.done(self.number))

    def works(self, more: int = 3) -> None:
        """Return when it has finished some more."""
        seen = self.done
        self.workers.wait(lambda: self.done >= seen + more, "the far one does not work")

    def works_again(self, store: Any, total: int) -> None:
        """What is published from now on is shared with it: return when it has finished some of that."""
        seen, end = self.done, time.monotonic() + PATIENCE_S
        while self.done <= seen + 3:
            assert time.monotonic() < end, self.workers.said[self.number][-3:]
            store.publish_many(TOPIC, numbered(30))
            total += 30
            _check_end(store, total)
        assert self.workers.is_alive(self.number)


@pytest.fixture(params=REMOTE)
def far_kind(request: pytest.FixtureRequest) -> str:
    """The interface of the workers, if there is a network in between."""
    return str(request.param)


@pytest.fixture
def far(far_kind: str, tmp_path: Path) -> Iterator[tuple[Any, Far]]:
    """A store to look at with an empty topic, and a worker behind a bad network."""
    listen = [word for name in ("native", "http", "grpc") for word in (f"--{name}", "127.0.0.1:0")]
    with (
        serving("--data", str(tmp_path / "data"), *listen, environment={"PENSTOCK_SERVE_NO_GRPC": "0"}) as server,
        penstock.open(server.address("native")) as store,
    ):
        address = server.address(str(WORKERS[far_kind].door))
        with Proxy(int(address.rpartition(":")[2])) as proxy, Workers(far_kind, address) as workers:
            _begin(store, 0)
            yield store, Far(workers, proxy, 0.01)
            proxy.release()


def test_a_worker_whose_connection_is_cut_goes_on_and_nothing_dies(far: tuple[Any, Far]) -> None:
    """Again and again, in order and by resets; what was pushed to it comes again, to it or to the other."""
    store, worker = far
    worker.workers.start(0.01)
    total = 0
    for number in range(4):
        store.publish_many(TOPIC, numbered(100))
        total += 100
        worker.works()
        worker.proxy.cut(reset=number % 2 == 1)
    _check_end(store, total)
    worker.works_again(store, total)


def test_a_worker_in_a_black_hole_keeps_nothing_from_the_others(far: tuple[Any, Far]) -> None:
    """Nothing comes through, and nobody is told. When the network is there again the worker goes on."""
    store, worker = far
    store.publish_many(TOPIC, numbered(100))
    worker.works()
    worker.proxy.hold(UP)
    worker.proxy.hold(DOWN)
    worker.workers.start(0.01)
    _check_end(store, 100)
    worker.proxy.release()
    worker.works_again(store, 100)


def test_a_worker_that_does_not_read_keeps_nothing_from_the_others(far: tuple[Any, Far]) -> None:
    """What it says arrives, its heartbeats too, and nothing that is sent to it does."""
    store, worker = far
    store.publish_many(TOPIC, numbered(100))
    worker.works()
    worker.proxy.hold(DOWN)
    worker.workers.start(0.01)
    _check_end(store, 100)
    worker.proxy.release()
    worker.works_again(store, 100)


def test_a_worker_that_reads_slowly_takes_only_what_it_reads(far: tuple[Any, Far]) -> None:
    """About ten messages in a second; the other one takes the rest, and nothing that is still on its way counts as failed."""
    store, worker = far
    # Longer than one push is on its way: of a gRPC client the server cannot know what has arrived.
    store.subscribe(TOPIC, GROUP, lease=30.0).close()
    worker.proxy.slow_down(DOWN, 1_024, 0.1)
    worker.workers.start(0.01)
    store.publish_many(TOPIC, [b"x" * 900] * 200)
    _check_end(store, 200)
    assert _group(store).expired_leases == 0
    assert len(worker.workers.done()) - worker.done >= 100


def test_a_client_that_vanishes_keeps_nothing_for_long(far: tuple[Any, Far]) -> None:
    """Its end of the connection stays open, and silent."""
    store, worker = far
    store.publish_many(TOPIC, numbered(100))
    worker.works()
    worker.workers.signal(worker.number, signal.SIGSTOP)
    worker.proxy.vanish()
    worker.workers.start(0.01)
    _check_end(store, 100)
