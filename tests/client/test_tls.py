"""Over TLS: one OpenSSL object is never used by two threads at once."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.client.tls import TlsSocket
from penstock.errors import Unavailable
from penstock.server import native
from penstock.server.running import RunningServer
from penstock.server.tls import TlsFiles
from tests.client.served import PATIENCE_S, eventually, later
from tests.server.test_listening import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.served import Served


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture
def server(served: Served, authority: Authority) -> Iterator[RunningServer]:
    """The store of `served` once more, over TLS."""
    certificate, key = authority.sign("server")
    running = RunningServer(served.store, tls=TlsFiles(certificate, key).context())
    yield running
    running.close(1.0)


@pytest.fixture
def client(server: RunningServer, authority: Authority) -> Iterator[Any]:
    client = penstock.open(f"{server.address}?ca={authority.certificate}", give_up=5)
    yield client
    client.close()


class _Alone:
    """Stands for an OpenSSL object, and notes when two threads are inside it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.inside = threading.Lock()
        self.crowded = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*arguments: Any) -> Any:
            if not self.inside.acquire(blocking=False):
                self.crowded += 1
                return method(*arguments)
            try:
                time.sleep(0)  # lets another thread in, if nothing else keeps it out
                return method(*arguments)
            finally:
                self.inside.release()

        return call


def test_threads_that_send_and_read_at_once_are_never_both_inside(client: Any, served: Served) -> None:
    """Publishing, consuming and acking, in several threads of one connection."""
    client.create_topic("orders", sync="os")
    consumer = client.subscribe("orders", "workers")
    made = client._connection._channel._made
    assert isinstance(made, TlsSocket)
    alone = _Alone(made._object)
    made._object = alone  # type: ignore[assignment]
    seen: list[int] = []

    def iterate() -> None:
        for message in consumer:
            message.ack()
            seen.append(message.offset)

    iterating = later(iterate)
    working = [later(lambda: [client.publish("orders", bytes(2_000)).offset for _ in range(100)]) for _ in range(4)]
    assert sorted(offset for one in working for offset in one.result(PATIENCE_S)) == list(range(400))
    eventually(lambda: len(seen) == 400)
    consumer.close()
    iterating.result(PATIENCE_S)
    assert alone.crowded == 0
    assert served.store.stats().topics["orders"].groups["workers"].lag == 0


def test_long_batches_travel_both_ways(client: Any, rng: Any) -> None:
    """Longer than any record or buffer of TLS."""
    client.create_topic("orders", max_message_bytes=1 << 23)
    value = rng.randbytes(5_000_000)
    assert client.publish("orders", value).offset == 0
    assert [message.value for message in client.read("orders")] == [value]


def test_a_client_of_another_authority_says_why_it_cannot_connect(server: RunningServer, tmp_path: Any) -> None:
    other = Authority(tmp_path / "other", "theirs")
    with pytest.raises(Unavailable, match="certificate"):
        penstock.open(f"{server.address}?ca={other.certificate}", give_up=0.1)


def test_a_handshake_that_does_not_end_is_cut_off(
    served: Served, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as long as a hello may take, and not asyncio's minute."""
    assert native.HANDSHAKE_SECONDS <= 10
    monkeypatch.setattr(native, "HANDSHAKE_SECONDS", 0.3)
    certificate, key = authority.sign("server")
    running = RunningServer(served.store, tls=TlsFiles(certificate, key).context())
    try:
        with socket.create_connection(("127.0.0.1", int(running.address.rpartition(":")[2])), 5) as silent:
            silent.settimeout(PATIENCE_S)
            assert silent.recv(1) == b""
    finally:
        running.close(1.0)
