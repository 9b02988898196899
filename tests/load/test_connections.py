"""Five thousand idle connections and two hundred busy ones on one server, and one that does not read."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.frame import REQUEST, encode_frame
from tests.cli.serving import serving
from tests.client.served import RawClient, eventually
from tests.load.process import MB, descriptors, rss_bytes, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

IDLE = 5_000
ACTIVE = 200
WORKERS = 20
ROUNDS = 5
SILENT = 20
PATIENCE_S = 120.0
LOW_LIMIT = ("bash", "-c", 'ulimit -Sn 1024; exec "$0" "$@"')
"""As a service manager starts it: the server must raise the limit itself."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process may have as many as the server; where the system does not let it, the test cannot be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * (IDLE + ACTIVE):
        pytest.skip(f"needs {2 * (IDLE + ACTIVE)} descriptors, and may have {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _connect_idle(port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that have said hello, and then nothing."""
    hello = b"".join(encode_frame(REQUEST, Call.HELLO, 1, {"version": PROTOCOL_VERSION}))
    found: list[socket.socket] = []
    for _ in range(0, IDLE, 100):
        some = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) for _ in range(100)]
        for one in some:
            one.sendall(hello)
        for one in some:
            assert one.recv(65_536)
        found += some
    return found


def _work(stores: list[penstock.Store], latencies_s: list[float], failures: list[BaseException]) -> None:
    try:
        for _ in range(ROUNDS):
            for store in stores:
                begun_s = time.monotonic()
                store.publish("t", b"x" * 100)
                latencies_s.append(time.monotonic() - begun_s)
                with store.subscribe("t", "g") as consumer:
                    message = consumer.get(PATIENCE_S)
                    assert message is not None
                    message.ack()
    except BaseException as error:
        failures.append(error)


@pytest.mark.usefixtures("many_descriptors")
def test_five_thousand_idle_and_two_hundred_busy_connections_are_held(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with (
        serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", before=LOW_LIMIT) as server,
        contextlib.ExitStack() as stack,
    ):
        pid, address = server.process.pid, server.address("native")
        before = rss_bytes(pid)
        idle = _connect_idle(_port(address), stack)
        counts = {"idle_rss_mb": rss_bytes(pid) // MB, "bytes_each": (rss_bytes(pid) - before) // IDLE}
        stores = [stack.enter_context(penstock.open(address)) for _ in range(ACTIVE)]
        assert descriptors(pid) > IDLE + ACTIVE
        latencies_s: list[float] = []
        failures: list[BaseException] = []
        workers = [
            threading.Thread(target=_work, args=(stores[number::WORKERS], latencies_s, failures)) for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
        assert not failures, failures
        assert len(latencies_s) == ACTIVE * ROUNDS
        counts |= {"rss_mb": rss_bytes(pid) // MB, "threads": threads(pid)}
        # Each of those that were silent is still there.
        ping = b"".join(encode_frame(REQUEST, Call.PING, 2, {}))
        for one in idle:
            one.sendall(ping)
        for one in idle:
            assert one.recv(65_536)
        code, logged = server.stop()
        assert code == 0, logged
    latencies_s.sort()
    counts["publish_p99_ms"] = round(latencies_s[-len(latencies_s) // 100] * 1000)
    record_property("connections", counts)
    print(counts)
    assert counts["bytes_each"] < 20_000
    assert counts["rss_mb"] < 250
    assert counts["threads"] < 100, "a thread for a connection"


def test_consumers_that_stop_reading_cost_little_and_delay_nobody(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each has given credit for far more than it reads, of messages that are large."""
    with (
        serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http") as server,
        penstock.open(server.address("native")) as store,
        contextlib.ExitStack() as stack,
    ):
        pid = server.process.pid
        store.create_topic("t")
        # Once before, so that what the server needs for anybody is there.
        store.subscribe("t", "normal").close()
        for _ in range(300):
            store.publish("t", b"x" * 100_000)
        with store.subscribe("t", "warm") as consumer:
            for one in consumer.get_many(300, PATIENCE_S):
                one.ack()
        before = rss_bytes(pid)
        for number in range(SILENT):
            silent = stack.enter_context(RawClient(_port(server.address("native")), hello=True))
            silent.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            subscribed = silent.call(Call.SUBSCRIBE, topic="t", group=f"silent-{number}", options={"prefetch": 10_000})
            silent.send(Call.CREDIT, {"consumer": subscribed.fields["handle"], "messages": 10_000})
        eventually(
            lambda: all(store.stats().topics["t"].groups[f"silent-{number}"].in_flight for number in range(SILENT)),
            "nothing is pushed",
            PATIENCE_S,
        )
        time.sleep(1)  # for more to come, if more came
        each = (rss_bytes(pid) - before) / SILENT
        latencies_s = []
        with store.subscribe("t", "fresh", start="latest") as consumer:
            for number in range(100):
                begun_s = time.monotonic()
                store.publish("t", b"%d" % number)
                message = consumer.get(PATIENCE_S)
                assert message is not None
                assert message.value == b"%d" % number
                message.ack()
                latencies_s.append(time.monotonic() - begun_s)
    counts = {"mb_each": round(each / MB, 2), "median_ms": round(sorted(latencies_s)[50] * 1000, 2)}
    record_property("consumers that do not read", counts)
    print(counts)
    assert each < 2 * MB
    assert counts["median_ms"] < 5_000
