"""The server stops in order: what runs is answered, what waits ends, and nobody is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from penstock import Store
from penstock.errors import Unavailable
from penstock.server.address import Address
from penstock.server.native import NativeListener
from penstock.wire.calls import Call
from penstock.wire.frame import ANSWER
from tests.client.served import PATIENCE_S, eventually, later, within
from tests.client.test_hostile import batch

if TYPE_CHECKING:
    from tests.client.served import Served


def test_running_publishes_are_answered(served: Served) -> None:
    """Every batch that the server has read is committed, and its answer sent, before it hangs up."""
    served.store.create_topic("orders")
    raw = served.raw()
    committer = served.store._volume._committer
    count = 200
    cycle = _Gate(committer)
    requests = [
        raw.request(Call.PUBLISH, {"topic": "orders", "partition": 0}, [batch(b"%d" % number)]) for number in range(count)
    ]
    raw.socket.sendall(b"".join(data for data, _ in requests))
    [connection] = served.server._listener.connections
    eventually(lambda: connection.outstanding == count)  # all are read, and the disk is slow
    stopping = later(served.stop)
    time.sleep(0.2)
    cycle.open()
    answered = 0
    while (frame := raw.read()) is not None:
        if frame.call == Call.STOPPING:
            continue
        assert frame.kind == ANSWER, frame.fields
        answered += 1
    stopping.result(PATIENCE_S)
    assert answered == count
    assert len(served.values("orders")) == count


@pytest.mark.parametrize("turns", range(7))
def test_a_connection_that_comes_as_the_server_stops_is_hung_up(turns: int) -> None:
    """However far the event loop has come with it: it was accepted, or is being set up, or is there."""

    async def stop_meanwhile() -> socket.socket:
        with Store.open("memory:") as store:
            listener = NativeListener(store, Address("127.0.0.1", 0))
            await listener.start()
            url = urlsplit(listener.address)
            client = socket.create_connection((url.hostname, url.port))  # the kernel answers it
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.stop()
            return client

    with asyncio.run(stop_meanwhile()) as client:
        client.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):  # nobody had accepted it
            assert client.recv(100) == b""


class _Gate:
    """Holds back the thread that commits."""

    def __init__(self, committer: object) -> None:
        self._opened = threading.Event()
        self._committer = committer
        name = next(one for one in ("_commit_pending", "_cycle", "_run_cycle", "_lead") if hasattr(committer, one))
        original = getattr(committer, name)

        def held(*arguments: object) -> object:
            self._opened.wait(PATIENCE_S)
            return original(*arguments)

        setattr(committer, name, held)

    def open(self) -> None:
        self._opened.set()


def test_waiting_fetches_end(served: Served) -> None:
    """At once, not when the time to stop is over."""
    client = served.client(give_up=0.2)
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    waiting = later(consumer.get)
    eventually(lambda: served.members("orders", "workers") == 1)
    time.sleep(0.1)
    with within(PATIENCE_S):
        served.stop(timeout_s=2 * PATIENCE_S)
    with pytest.raises(Unavailable):
        waiting.result(PATIENCE_S)


def test_a_consumer_waits_through_an_orderly_restart(served: Served) -> None:
    """As it does through a crash: `get` goes on with the next server."""
    proxy = served.proxy()
    client = served.client(proxy.address)
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    waiting = later(lambda: consumer.get(timeout=PATIENCE_S))
    eventually(lambda: served.members("orders", "workers") == 1)
    time.sleep(0.1)
    served.stop()
    served.start()
    proxy.move(served.port)
    served.store.publish("orders", b"work")
    assert waiting.result(PATIENCE_S).value == b"work"


def test_clients_that_ask_on_do_not_hold_up_the_stop(served: Served) -> None:
    """Who asks again while the server stops is refused, and not waited for."""
    client = served.client(give_up=0.1)
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                consumer.get(timeout=PATIENCE_S)
            except Unavailable:
                continue

    asking = [later(ask) for _ in range(3)]
    time.sleep(0.2)
    try:
        with within(PATIENCE_S):
            served.stop(timeout_s=2 * PATIENCE_S)
    finally:
        ended.set()
        client.close()
    for one in asking:
        one.exception(PATIENCE_S)


def test_what_consumers_held_goes_back_uncounted(served: Served) -> None:
    """Stopping is nobody's failure."""
    client = served.client(give_up=0.1)
    client.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 10)
    client.subscribe("orders", "workers", concurrency=10).get_many(6, timeout=PATIENCE_S)
    served.stop()
    eventually(lambda: served.members("orders", "workers") == 0)
    again = served.store.subscribe("orders", "workers").get_many(10, timeout=PATIENCE_S)
    assert [one.attempt for one in again] == [1] * 10


def test_nobody_is_let_in_any_more(served: Served) -> None:
    """And the clients that were there find the next server."""
    proxy = served.proxy()
    client = served.client(proxy.address)
    client.publish("orders", b"one")
    address = served.server.address
    served.stop()
    with pytest.raises(Unavailable):
        served.client(address)
    waiting = later(lambda: client.publish("orders", b"two"))
    served.start()
    proxy.move(served.port)
    assert waiting.result(PATIENCE_S).offset == 1
    assert served.values("orders") == [b"one", b"two"]


def test_unfinished_stages_are_dropped(served: Served) -> None:
    """Those that were finished can be committed after it."""
    proxy = served.proxy()
    client = served.client(proxy.address)
    client.create_topic("orders")
    with client.stage("job") as finished:
        finished.publish("orders", b"kept")
    open_stage = client.stage("job")
    open_stage.publish("orders", b"lost")
    served.stop()
    served.start()
    proxy.move(served.port)
    with pytest.raises(Unavailable):
        open_stage.finish()
    assert client.commit("job", 1, [finished.identity]).messages == 1
    assert served.values("orders") == [b"kept"]


def test_a_restart_of_the_whole_store_doubles_nothing(served: Served) -> None:
    """The sequences of producers are found again in the log."""
    proxy = served.proxy()
    client = served.client(proxy.address)
    with client.producer("orders", linger=0, name="till") as producer:
        sent = [producer.send(b"%d" % number) for number in range(100)]
        served.stop()
        sent += [producer.send(b"%d" % number) for number in range(100, 200)]
        served.start()
        proxy.move(served.port)
        receipts = [one.result(PATIENCE_S) for one in sent]
    assert [one.offset for one in receipts] == list(range(200))
    assert served.values("orders") == [b"%d" % number for number in range(200)]


def test_a_server_stops_soon_though_its_clients_never_stop_asking(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun is answered; then it hangs up."""
    # Long enough for the next ones to come meanwhile.
    monkeypatch.setattr(served.store, "flush", lambda: time.sleep(0.05))
    raw = served.raw()
    asked = b"".join(raw.request(Call.FLUSH, {})[0] for _ in range(100))

    def ask() -> None:
        with contextlib.suppress(OSError):
            while True:
                raw.socket.sendall(asked)

    def read() -> None:
        while raw.read() is not None:
            pass

    asking, reading = later(ask), later(read)
    [connection] = served.server._listener.connections
    eventually(lambda: connection.outstanding)
    with within(PATIENCE_S):
        served.stop(2 * PATIENCE_S)
    reading.result(PATIENCE_S)
    asking.result(PATIENCE_S)
