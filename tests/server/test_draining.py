"""SIGTERM, with consumers at work on every interface: they finish what they hold, nothing new is begun, and the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

import penstock
from penstock import aio
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.cli.serving import PATIENCE_S, Serving, serving
from tests.client.served import RawClient, eventually, later
from tests.grpc.helpers import refused, request_of
from tests.grpc.running import Subscribed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRPC = {"PENSTOCK_SERVE_NO_GRPC": "0"}
"""The suite goes without it where nobody asks for it: it takes a while to load."""
ANYWHERE = ("--native", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """Its consumers have a minute: only a test that fails waits so long."""
    with serving("--data", str(tmp_path / "data"), *ANYWHERE, "--drain-timeout", "60s", environment=GRPC) as found:
        yield found


def is_refusing(url: str) -> bool:
    answer = httpx.get(f"{url}/readyz")
    return answer.status_code == 503 and answer.json()["code"] == "SERVER_STOPPING"


def ended(server: Serving) -> tuple[int, str]:
    _, logged = server.process.communicate(timeout=PATIENCE_S)
    return server.process.returncode, logged


def look(folder: Path) -> Any:
    with penstock.open(str(folder / "data")) as store:
        return store.stats().topics["t"]


def test_consumers_of_every_interface_finish_what_they_hold(server: Serving, tmp_path: Path) -> None:
    url = server.address("http")
    with (
        penstock.open(server.address("native"), give_up=PATIENCE_S) as store,
        grpc.insecure_channel(server.address("grpc")) as channel,
    ):
        store.create_topic("t")
        store.publish_many("t", [b"%d" % number for number in range(8)])
        blocking = store.subscribe("t", "blocking", prefetch=8)
        held = blocking.get_many(8, timeout=PATIENCE_S)
        over_http = httpx.post(f"{url}/v1/topics/t/groups/http/receive", json={"max": 8}).json()["messages"]
        stream = Subscribed(PenstockStub(channel), "t", "grpc", 8)
        stream.started()
        over_grpc = stream.deliveries()

        async def hold_in_asyncio() -> None:
            async with aio.open(server.address("native"), give_up=PATIENCE_S) as remote:
                consumer = await remote.subscribe("t", "asyncio", prefetch=8)
                messages = await consumer.get_many(8, timeout=PATIENCE_S)
                await asyncio.to_thread(begin_to_stop)
                await messages[0].nack(delay=3600)
                await messages[1].extend(30)
                await consumer.ack(messages[1:], wait=True)

        def begin_to_stop() -> None:
            server.signal(signal.SIGTERM)
            eventually(lambda: is_refusing(url))

        asyncio.run(hold_in_asyncio())
        # Nothing new is begun.
        refused_publish = httpx.post(f"{url}/v1/topics/t/messages", json={"value": "new"})
        assert (refused_publish.status_code, refused_publish.json()["code"]) == (503, "SERVER_STOPPING")
        with refused(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"):
            PenstockStub(channel).Publish(request_of("t", b"new"))
        riding_out = later(lambda: store.publish("t", b"new"))
        waiting = later(lambda: store.subscribe("t", "another").get(timeout=PATIENCE_S))
        # It is alive, and what only looks is answered.
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert len(list(store.read("t"))) == 8
        # What is held is finished in every way.
        blocking.extend(held[0], 30)
        held[0].nack(delay=3600)
        held[1].ack(wait=True)
        with store.transaction() as changes:
            changes.ack(held[2])
            changes.publish("t", b"moved")
        blocking.commit(held[-1])
        receipts = [message["receipt"] for message in over_http]
        group = f"{url}/v1/topics/t/groups/http"
        assert httpx.post(f"{group}/extend", json={"receipts": receipts[:1]}).status_code == 200
        assert httpx.post(f"{group}/nack", json={"receipts": receipts[:1], "delay": 3600}).status_code == 200
        assert httpx.post(f"{group}/ack", json={"receipts": receipts[1:], "wait": True}).json() == {"done": 7}
        assert server.process.poll() is None, "the consumer over gRPC still holds messages"
        assert not riding_out.done()
        assert stream.next().closing.reason == "the server is stopping"
        assert stream.ack(*over_grpc, durable=True) == 0
        code, logged = ended(server)
        assert code == 0, logged
        assert "consumers hold nothing more" in logged
        assert "Traceback" not in logged
        store.close()
        for one in (riding_out, waiting):
            assert one.exception(PATIENCE_S) is not None
    topic = look(tmp_path)
    assert topic.messages == 9, "the eight, and what a transaction moved; nothing else was published"
    assert {name: group.lag for name, group in topic.groups.items() if name != "another"} == {
        "blocking": 1, "asyncio": 2, "http": 2, "grpc": 1,
    }  # fmt: skip
    assert all(group.nacked <= 1 and group.in_flight == 0 for group in topic.groups.values())


def test_what_is_not_finished_in_time_goes_back_uncounted(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), *ANYWHERE, "--drain-timeout", "300ms", environment=GRPC) as server:
        with penstock.open(server.address("native"), give_up=0.1) as store:
            store.publish_many("t", [b"x"] * 4)
            store.subscribe("t", "native", concurrency=4).get_many(4, timeout=PATIENCE_S)
            url = server.address("http")
            assert len(httpx.post(f"{url}/v1/topics/t/groups/http/receive", json={"max": 4}).json()["messages"]) == 4
            with grpc.insecure_channel(server.address("grpc")) as channel:
                stream = Subscribed(PenstockStub(channel), "t", "grpc", 4)
                stream.started()
                assert len(stream.deliveries()) == 4
                server.signal(signal.SIGTERM)
                code, logged = ended(server)
        assert code == 0, logged
        assert re.search(r"consumers hold 12 messages still after 0\.\d+ s, which go back uncounted", logged), logged
    with penstock.open(str(tmp_path / "data")) as again:
        for group in ("native", "http", "grpc"):
            found = again.subscribe("t", group).get_many(4, timeout=PATIENCE_S)
            assert [message.attempt for message in found] == [1] * 4, group


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(server: Serving, number: signal.Signals) -> None:
    url = server.address("http")
    with penstock.open(server.address("native"), give_up=0.1) as store:
        store.publish("t", b"x")
        assert store.subscribe("t", "g").get(timeout=PATIENCE_S) is not None
        server.signal(number)
        eventually(lambda: is_refusing(url))
        server.signal(number)
        assert ended(server)[0] == -number


def test_an_event_stream_lasts_until_its_messages_are_finished(server: Serving, tmp_path: Path) -> None:
    url = server.address("http")
    httpx.post(f"{url}/v1/topics/t/messages", json={"value": "x"})
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        client.stream("GET", f"{url}/v1/topics/t/groups/g/stream", headers={"accept": "text/event-stream"}) as stream,
    ):
        lines = stream.iter_lines()
        data = next(line for line in lines if line.startswith("data:"))
        (receipt,) = re.findall(r'"receipt": "([^"]+)"', data)
        server.signal(signal.SIGTERM)
        eventually(lambda: is_refusing(url))
        assert httpx.post(f"{url}/v1/topics/t/groups/g/ack", json={"receipts": [receipt]}).json() == {"done": 1}
        assert "event: end" in list(lines)
    assert ended(server)[0] == 0
    assert look(tmp_path).groups["g"].lag == 0


def test_an_iterating_consumer_gives_back_what_it_has_not_begun(server: Serving, tmp_path: Path) -> None:
    """Else its server would wait for a hundred handlers."""
    with penstock.open(server.address("native"), give_up=0.1) as store:
        store.publish_many("t", [b"%d" % number for number in range(50)])
        consumer = store.subscribe("t", "g")
        iterating = iter(consumer)
        with next(iterating):
            server.signal(signal.SIGTERM)
            eventually(lambda: is_refusing(server.address("http")))
        code, logged = ended(server)
        assert code == 0, logged
        assert "consumers hold nothing more" in logged
    group = look(tmp_path).groups["g"]
    assert (group.lag, group.nacked) == (49, 0)


# -- whatever clients do, it ends -----------------------------------------------------------------------------------


def _unread(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect((urlsplit(f"//{host}").hostname or host, int(port)))
    return found


@pytest.mark.long
def test_it_ends_however_its_clients_behave(tmp_path: Path) -> None:
    """Clients that were stopped, answers that nobody reads, open streams, long polls, half a request."""
    with (
        serving(
            "--data", str(tmp_path / "data"), *ANYWHERE, "--drain-timeout", "1s", "--stop-timeout", "2s", environment=GRPC
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        url, native = server.address("http"), server.address("native")
        with penstock.open(native) as store:
            for _ in range(5):
                store.publish_many("t", [os.urandom(500_000)] * 10)
        # A process that was stopped while it consumes, in each way.
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                opened = penstock.open(native)
                for group in ("a", "b"):
                    opened.subscribe("t", group).get(timeout=PATIENCE_S)
                iterating = iter(opened.subscribe("t", "c"))
                next(iterating)
                (tmp_path / "ready").touch()
                time.sleep(3600)
            os._exit(0)
        try:
            eventually((tmp_path / "ready").exists)
            os.kill(child, signal.SIGSTOP)
            # HTTP: answers that nobody reads, a body that never ends, a long poll, a stream.
            for request in (
                b"GET /v1/topics/t/partitions/0/messages HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
                (
                    b"POST /v1/topics/empty/groups/g/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b'Content-Length: 11\r\n\r\n{"wait":60}'
                ),
                b"GET /v1/topics/t/groups/h/stream HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
                b"GET /v1",
            ):
                one = stack.enter_context(_unread(url.removeprefix("http://")))
                one.sendall(request)
            # Native: reads that nobody takes, a call that waits, half a frame.
            raw = RawClient(int(native.rpartition(":")[2]), hello=True)
            stack.callback(raw.socket.close)
            for _ in range(20):
                raw.send(57, {"topic": "t", "partition": 0, "offset": 0, "bytes": 30_000_000})
            half = stack.enter_context(_unread(native.removeprefix("penstock://")))
            half.sendall(b"\x50\x00")
            # gRPC: streams that nobody reads, with and without credit; a Read; half a preface.
            channel = stack.enter_context(grpc.insecure_channel(server.address("grpc")))
            stub = PenstockStub(channel)
            streams = [Subscribed(stub, "t", f"s{number}", 50) for number in range(5)]
            for number, stream in enumerate(streams):
                if number % 2:
                    stream.started()
            stack.enter_context(_unread(server.address("grpc"))).sendall(b"PRI * HTTP/2.0")
            time.sleep(0.5)
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            code, logged = ended(server)
            assert code == 0, logged
            assert "does not stop" not in logged, logged
            assert time.monotonic() - began < PATIENCE_S
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
