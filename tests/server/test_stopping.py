"""Stopping: nothing new is begun, nobody waits, running requests end, and nothing is lost or stored twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock import aio
from tests.aio.helpers import Gate
from tests.server.running import PATIENCE, Running, running, until
from tests.server.test_hostile import HEAD, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = 2 * PATIENCE
"""`call` does not wait so long: who uses up this time fails."""


@pytest.fixture
def patient() -> Iterator[Running]:
    """A server that cuts nobody off, unless it stops."""
    with running(wait_max_s=LONG, header_timeout_s=LONG, body_timeout_s=LONG, keep_alive_s=LONG) as server:
        yield server


def test_waiting_polls_end_at_once_and_empty(patient: Running) -> None:
    patient.store.sync.create_topic("t")
    with ThreadPoolExecutor(8) as pool:
        polls = [
            pool.submit(
                httpx.post, f"{patient.url}/v1/topics/t/groups/g{number}/receive", json={"wait": LONG}, timeout=PATIENCE
            )
            for number in range(8)
        ]
        until(lambda: patient.listener.context.waiting == 8)
        patient.call(patient.listener.stop(LONG))
        for poll in polls:
            assert poll.result(PATIENCE).json() == {"messages": []}
            assert poll.result(PATIENCE).headers["connection"] == "close"


def test_while_draining_acks_are_taken_and_new_work_is_not(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish_many("t", [b"1", b"2"])
    first, second = http.post("/v1/topics/t/groups/g/receive", json={"max": 2}).json()["messages"]
    drain = server.begin(server.listener.drain(LONG))
    until(lambda: server.listener.context.draining)
    for method, path, body in (
        ("POST", "/v1/topics/t/messages", {"value": "x"}),
        ("POST", "/v1/topics/t/groups/g/receive", {}),
        ("POST", "/v1/topics", {"name": "u"}),
        ("POST", "/v1/topics/t/dlq/replay-all", None),
        ("GET", "/readyz", None),
    ):
        answer = http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "SERVER_STOPPING"), path
    assert http.get("/healthz").status_code == 200
    for message in (first, second):
        assert not drain.done()
        assert http.post("/v1/topics/t/groups/g/ack", json={"receipts": [message["receipt"]]}).status_code == 200
    assert drain.result(PATIENCE) is True
    server.call(server.listener.stop(LONG))
    stats = server.store.stats().topics["t"]
    assert (stats.messages, stats.groups["g"].lag) == (2, 0)


def test_what_was_not_finished_in_time_goes_back_uncounted(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish("t", b"1")
    assert http.post("/v1/topics/t/groups/g/receive", json={}).json()["messages"]
    assert server.call(server.listener.drain(0.05)) is False
    server.call(server.listener.stop(1))
    (again,) = server.store.sync.subscribe("t", "g").get_many(5, PATIENCE)
    assert again.attempt == 1


def test_a_running_request_ends_and_its_client_is_answered(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(server.store.sync.publish)
    monkeypatch.setattr(server.store.sync, "publish", gate)
    with ThreadPoolExecutor() as pool:
        publish = pool.submit(
            httpx.post, f"{server.url}/v1/topics/t/messages", json={"value": "x", "key": "k"}, timeout=PATIENCE
        )
        assert gate.reached.wait(PATIENCE)
        stop = server.begin(server.listener.stop(LONG))
        until(server.listener.context.stopping.is_set)
        gate.open.set()
        assert publish.result(PATIENCE).status_code == 201
        stop.result(PATIENCE)


def test_a_request_that_does_not_end_is_cut_off_at_the_deadline(patient: Running) -> None:
    with connect(patient) as stuck:
        stuck.sendall(HEAD + b"Content-Length: 10\r\n\r\nx")
        until(lambda: patient.listener.context.connections() == 1)
        patient.call(patient.listener.stop(0.5))
        try:
            while stuck.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert "t" not in patient.store.stats().topics


def test_a_client_that_does_not_read_its_answer_is_cut_off_at_the_deadline(server: Running) -> None:
    server.store.sync.publish_many("t", [b"x" * 500_000] * 12)
    with connect(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(b"GET /v1/topics/t/partitions/0/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        server.call(server.listener.stop(0.3))
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(65536):
                size += len(part)
        assert size < 6_000_000, "the rest of it was not waited for"


def test_idle_connections_do_not_hold_up_the_end(patient: Running) -> None:
    assert patient.client().get("/healthz").status_code == 200
    with connect(patient):
        patient.call(patient.listener.stop(LONG))
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", patient.port), timeout=5)


def test_stopping_twice_does_nothing(server: Running) -> None:
    server.call(server.listener.stop(1))
    server.call(server.listener.stop(1))


@pytest.mark.parametrize("drained", [True, False])
def test_under_load_nothing_is_lost_or_stored_twice(tmp_path: Path, drained: bool) -> None:
    """What was answered with 201 is there once; what was refused or cut off is there at most once. Acks hold, and nothing has failed."""
    path = str(tmp_path / "store")
    answered: set[str] = set()
    tried: set[str] = set()
    acked: set[int] = set()

    def produce(url: str, name: int) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            for number in range(100_000):
                value = f"{name}-{number}"
                tried.add(value)
                try:
                    answer = client.post("/v1/topics/t/messages", json={"value": value, "key": str(name)})
                except httpx.HTTPError:
                    return
                if answer.status_code != 201:
                    assert answer.status_code == 503
                    return
                answered.add(value)

    def consume(url: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while True:
                try:
                    answer = client.post("/v1/topics/t/groups/g/receive", json={"max": 5, "wait": 20})
                    found: list[dict[str, Any]] = answer.json()["messages"] if answer.status_code == 200 else []
                    if not found:
                        return
                    receipts = [message["receipt"] for message in found]
                    if client.post("/v1/topics/t/groups/g/ack", json={"receipts": receipts}).status_code == 200:
                        acked.update(message["offset"] for message in found)
                except httpx.HTTPError:
                    return

    with running(path=path) as server:
        server.store.sync.create_topic("t")
        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(produce, server.url, name) for name in range(5)]
            work += [pool.submit(consume, server.url) for _ in range(3)]
            until(lambda: len(answered) > 60 and len(acked) > 20)
            if drained:
                assert server.call(server.listener.drain(50))
            server.call(server.listener.stop(30))
            for one in work:
                one.result(PATIENCE)

    async def look() -> tuple[list[str], set[int], int]:
        async with aio.open(path) as store:
            values = [(message.value or b"").decode() async for message in store.read("t")]
            async with store.subscribe("t", "g", prefetch=100_000) as consumer:
                left = await consumer.get_many(100_000, 0)
                return values, {delivery.offset for delivery in left}, sum(delivery.attempt > 1 for delivery in left)

    values, left, failed = asyncio.run(look())
    assert len(values) == len(set(values))
    assert answered <= set(values) <= tried
    assert not left & acked
    assert drained is False or len(left) + len(acked) == len(values)
    assert failed == 0, "a shutdown is not a failure"
