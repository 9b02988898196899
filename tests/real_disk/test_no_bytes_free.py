"""
Not one byte is free: publishing is refused in words that are true, and everything else that a queue is for goes on.

On file systems of their own with every block used: ext4 and XFS in loop devices, and tmpfs, which is quick enough for each run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import penstock
from penstock.errors import StorageFull
from penstock.values import KIB, MIB
from tests.cli.serving import Serving, serving
from tests.conformance.over_http import HttpStore
from tests.grpc.store import GrpcStore
from tests.real_disk.loop_disk import LoopDisk, loop_disk, missing_for_crash_tests, missing_for_kind, run

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.timeout(300)]

KINDS = [
    "tmpfs",
    pytest.param("ext4", marks=pytest.mark.long),
    pytest.param("ext4-nojournal", marks=pytest.mark.long),
    pytest.param("xfs", marks=pytest.mark.long),
]
MEGABYTES = 320
VALUE = bytes(1000)


class MemoryDisk(LoopDisk):
    """A tmpfs of its own: without the tools for loop devices, and quick."""

    def __init__(self, path: str) -> None:
        super().__init__("tmpfs", "tmpfs", path, "")

    def mount(self) -> None:
        """Mount it; does nothing if it is mounted."""
        if not self._mounted:
            run("mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", self.path)
            self._mounted = True


@contextlib.contextmanager
def disk_of(kind: str, folder: pathlib.Path) -> Iterator[LoopDisk]:
    """A small file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    if kind != "tmpfs":
        reason = missing_for_crash_tests() or (None if kind.startswith("ext4") else missing_for_kind(kind, str(folder)))
        if reason is not None and not (
            kind.startswith("ext4") and shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
        ):
            pytest.skip(reason)
        try:
            with loop_disk(kind, str(folder), megabytes=MEGABYTES) as disk:
                yield disk
        except RuntimeError as error:
            pytest.skip(f"needs to mount {kind} in a loop device: {error}")
        return
    path = folder / "tmpfs"
    path.mkdir()
    disk = MemoryDisk(str(path))
    try:
        disk.mount()
    except RuntimeError as error:
        pytest.skip(f"needs to mount a tmpfs: {error}")
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[LoopDisk]:
    """A small file system, empty."""
    with disk_of(request.param, tmp_path) as made:
        yield made


def fill(disk: LoopDisk) -> None:
    """Use every block that an ordinary program can use."""
    for _ in range(20):
        disk.fill()
        # Reserving leaves what is too little for an extent; writing gets that too.
        with contextlib.suppress(OSError), open(os.path.join(disk.path, "ballast-2"), "ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
        # xfs allots more to a file that grows than is written, and takes that back later, when the file is closed or synced.
        os.sync()
        if disk.free_bytes() < 64 * KIB:
            return
    raise AssertionError(f"{disk.free_bytes()} bytes are still free")


def free(disk: LoopDisk) -> None:
    """Give back what was filled."""
    disk.make_room()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(disk.path, "ballast-2"))


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def build(path: str) -> None:
    """A store with topics, groups and some acks."""
    with penstock.open(path) as store:
        prepare(store)


def prepare(store: Any) -> None:
    """Topics with sealed segments, a group with acks, one message that has failed once."""
    for topic in ("orders", "events", "old"):
        store.create_topic(topic, partitions=2, segment_bytes=64 * KIB, retention_age=0.001 if topic == "old" else 3600)
        store.publish_many(topic, [VALUE] * 400)
    with store.subscribe("orders", group="billing", max_deliveries=1) as consumer:
        for _ in range(20):
            consumer.get(timeout=20).ack(wait=True)


KILLED = """
import os, sys, penstock
from tests.real_disk.test_no_bytes_free import prepare
store = penstock.open(sys.argv[1])
prepare(store)
os._exit(9)
"""


def build_and_kill(path: str) -> None:
    """The same, and its owner dies without closing it."""
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False, cwd=os.getcwd(), capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def use_without_room(store: Any, *, journeys: int = 200) -> set[tuple[int, int]]:
    """All that must work with no byte free; returns which messages were acked for good."""
    with pytest.raises(StorageFull) as refused:
        store.publish("orders", VALUE)
    assert "free" in str(refused.value)
    with pytest.raises(StorageFull):
        store.publish_many("events", [VALUE] * 100)
    acked = set()
    with store.subscribe("orders", group="billing") as consumer:
        for number in range(journeys):
            message = consumer.get(timeout=20)
            if number == 7:
                message.nack(reason="it cannot be done")  # its last delivery: it becomes a dead letter
                continue
            message.ack(wait=True)
            acked.add((message.partition, message.offset))
    until(lambda: len(list(store.dead_letters("orders"))) == 1, "the dead letter does not come")
    assert sum(1 for _ in store.read("events")) == 400
    with store.subscribe("events", group="new") as consumer:
        first = consumer.get(timeout=20)
        first.nack(delay=0)
        consumer.get(timeout=20).ack()
    return acked


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_store_opens_on_a_full_disk_and_can_be_drained(disk: LoopDisk, how: str) -> None:
    """Opened twice there, since what one opening needs the next one needs too."""
    path = os.path.join(disk.path, "store")
    (build if how == "closed" else build_and_kill)(path)
    fill(disk)
    with penstock.open(path) as store:
        acked = use_without_room(store)
    fill(disk)
    with penstock.open(path) as store:
        again = set()
        with store.subscribe("orders", group="billing") as consumer:
            while (found := consumer.get(timeout=1)) is not None:
                again.add((found.partition, found.offset))
                found.ack()
        assert not again & acked
        assert len(again | acked) == 400 - 20 - 1
        free(disk)
        until(lambda: publishes(store), "there is room, and publishing is refused")
        until(lambda: store._volume._space.has_reserve, "there is room, and no reserve is held")


def publishes(store: Any) -> bool:
    """Whether a message is taken."""
    try:
        store.publish("orders", VALUE)
    except StorageFull:
        return False
    return True


@pytest.mark.parametrize("how", ["delete", "retain"])
def test_deleting_and_retention_make_room_on_a_full_disk_at_once(disk: LoopDisk, how: str) -> None:
    """Topics are deleted when the disk is full. What was read of one, and is read no more, holds nothing back."""
    path = os.path.join(disk.path, "store")
    with penstock.open(path, free_bytes_floor=4 * MIB, retention_interval_ms=86_400_000) as store:
        store.create_topic("large", segment_bytes=4 * MIB, retention_age=0.001)
        for _ in range(40):
            store.publish_many("large", [bytes(1 << 19)] * 4)
        assert sum(1 for _ in store.read("large")) == 160
        store.create_topic("orders")
        fill(disk)
        with pytest.raises(StorageFull):
            store.publish("orders", VALUE)
        # What becomes free is the store's own: nobody else gives anything back.
        if how == "delete":
            store.delete_topic("large")
        else:
            with store.subscribe("large", group="all") as consumer:
                while messages := consumer.get_many(50, timeout=1):
                    consumer.ack(messages)
            del messages  # they would keep their segments
            until(lambda: (store.retain("large"), disk.free_bytes() > 40 * MIB)[1], "retention frees nothing")
        until(lambda: disk.free_bytes() > 40 * MIB, f"nothing is free: {disk.free_bytes()}", 10)
        until(lambda: publishes(store), "there is room, and publishing is refused", 10)


def test_an_owner_is_killed_again_and_again_on_a_full_disk(disk: LoopDisk) -> None:
    """Each opening needs a journal file and a checkpoint; it must leave as much as it found."""
    path = os.path.join(disk.path, "store")
    build_and_kill(path)
    script = """
import os, sys, penstock
store = penstock.open(sys.argv[1])
with store.subscribe("orders", group="billing") as consumer:
    consumer.get(timeout=20).ack(wait=True)
    os._exit(9)
"""
    for _ in range(6):
        fill(disk)
        done = subprocess.run([sys.executable, "-c", script, path], check=False, capture_output=True, text=True)
        assert done.returncode == 9, done.stderr
    fill(disk)
    with penstock.open(path) as store:
        assert store.stats().topics["orders"].groups["billing"].lag == 400 - 26
        assert store.stats().is_full
    assert len([name for name in os.listdir(os.path.join(path, "journal")) if not name.startswith(".")]) <= 2


def test_acks_go_on_for_ever_on_a_full_disk(disk: LoopDisk) -> None:
    """The journal goes round in the files that it has: many times as much as they hold."""
    path = os.path.join(disk.path, "store")
    settings: dict[str, Any] = {"journal_file_bytes": 64 * KIB, "frame_bytes": 16 * KIB, "reference_bytes": 8 * KIB}
    settings |= {"checkpoint_interval_ms": 50, "free_bytes_floor": MIB, "reserve_bytes": MIB}
    with penstock.open(path, **settings) as store:
        store.create_topic("orders")
        store.publish_many("orders", [b"x"] * 2_000)
        with store.subscribe("orders", group="g") as consumer:
            fill(disk)
            before = store._volume._journal.bytes_written
            for _ in range(2_000):
                message = consumer.get(timeout=20)
                message.ack(wait=True)
            assert store._volume._journal.bytes_written - before > 3 * 64 * KIB


FACES = ["native", "http", "grpc"]


@contextlib.contextmanager
def face_of(kind: str, server: Serving, path: str) -> Iterator[Any]:
    """The store as a client of its server sees it."""
    if kind == "native":
        with penstock.open(server.address("native")) as store:
            yield store
    elif kind == "shared":
        with penstock.open(path) as store:
            yield store
    elif kind == "http":
        place: Any = SimpleNamespace(port=int(server.address("http").rsplit(":", 1)[1]))
        with contextlib.closing(HttpStore(place)) as over_http:
            yield over_http
    else:
        with contextlib.closing(GrpcStore(server.address("grpc"))) as over_grpc:
            yield over_grpc


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_on_a_full_disk_does_all_but_publishing_and_says_so(kind: str, tmp_path: pathlib.Path) -> None:
    """Started there; then every interface in turn; readiness, health, metrics and log tell."""
    with disk_of(kind, tmp_path) as disk:
        path = os.path.join(disk.path, "store")
        build_and_kill(path)
        fill(disk)
        arguments = ("--data", path, "--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        with serving(*arguments, environment={"PENSTOCK_SERVE_NO_GRPC": "0"}) as server:
            http = server.address("http")
            acked: set[tuple[int, int]] = set()
            for number, face in enumerate(FACES):
                with face_of(face, server, path) as store:
                    if not number:
                        acked |= use_without_room(store, journeys=60)
                    else:
                        acked |= _use_again(store)
                if not number:
                    fill(disk)
            assert len(acked) == 59 + 20
            ready = httpx.get(f"{http}/readyz")
            assert ready.status_code == 503
            assert "disk is full" in ready.text
            assert "consuming goes on" in ready.text
            assert httpx.get(f"{http}/healthz").status_code == 200
            told = httpx.get(f"{http}/metrics").text
            assert "penstock_storage_full 1" in told
            assert "penstock_storage_floor_bytes 104857600" in told
            assert int(float(_sample(told, "penstock_storage_free_bytes"))) < MIB
            assert int(float(_sample(told, "penstock_storage_refused_total"))) >= 4
            with grpc.insecure_channel(server.address("grpc")) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                whole, bad = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.NOT_SERVING
                until(lambda: health.Check(whole).status == bad, "the server says that all is well")
                own = health.Check(health_pb2.HealthCheckRequest(service="penstock.v1.Penstock"))
                assert own.status == health_pb2.HealthCheckResponse.SERVING
            with penstock.open(server.address("native")) as store:
                store.delete_topic("events")
                store.retain("old")
                free(disk)
                until(lambda: publishes(store), "there is room, and publishing is refused")
            until(lambda: httpx.get(f"{http}/readyz").status_code == 200, "there is room, and the server is not ready")
            code, logged = server.stop()
            assert code == 0, logged
            assert logged.count("publishing is refused, consuming goes on") == 1, logged
            assert logged.count("publishing goes on") == 1, logged


def _use_again(store: Any) -> set[tuple[int, int]]:
    with pytest.raises(StorageFull):
        store.publish("orders", VALUE)
    acked = set()
    with store.subscribe("orders", group="billing") as consumer:
        for _ in range(10):
            message = consumer.get(timeout=20)
            message.ack(wait=True)
            acked.add((message.partition, message.offset))
    assert sum(1 for _ in store.read("events")) == 400
    return acked


def _sample(text: str, name: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} "))
