"""Answers that nobody reads: what all of them together make a server hold is bounded, and others are still served."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from penstock.broker import memory_budget
from penstock.broker.memory_budget import Account, MemoryBudget
from penstock.server.http.answers import MAKING
from tests.client.served import later
from tests.server.running import PATIENCE, Running, running, until
from tests.server.test_hostile import connect

if TYPE_CHECKING:
    import httpx

    from penstock.errors import Unavailable

MIB = 1024 * 1024
PUBLISH = (
    b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: 12000000\r\n\r\n"
)
READ = b"GET /v1/topics/t/partitions/0/messages?max_messages=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _push(found: socket.socket, data: bytes) -> None:
    """Send as much as the server takes."""
    found.settimeout(1.0)
    with contextlib.suppress(OSError):
        found.sendall(data)
    found.settimeout(PATIENCE)


async def _begin(account: Account, count: int) -> None:
    account.begin(count)


class _Nothing:
    """A connection of another interface, whose requests the server is carrying out."""

    def hold_back(self) -> None: ...

    def go_on(self) -> None: ...

    def cut(self, error: Unavailable) -> None: ...

    def look(self) -> None: ...


def _stalled(server: Running) -> socket.socket:
    found = connect(server)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.sendall(READ)
    return found


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    monkeypatch.setattr(memory_budget, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", 0.1)
    return MemoryBudget(64 * MIB)


def test_clients_that_do_not_read_hold_no_more_than_all_together_may(budget: MemoryBudget) -> None:
    """Answers are made one after the other as there is room; those that hold most are cut; others are served meanwhile."""
    with running(budget=budget, send_timeout_s=PATIENCE) as server:
        server.store.sync.create_topic("t")
        for _ in range(8):
            server.store.sync.publish_many("t", [b"x" * 900_000])
        before, client = _resident(), server.client()
        stalled = [_stalled(server) for _ in range(40)]
        try:
            most = grown = 0
            while budget.cuts < 5:
                most, grown = max(most, budget.held), max(grown, _resident() - before)
                assert client.get("/v1/topics").status_code == 200, "others are served"
            # Full at 48 MiB, and then one answer more that is being made.
            assert most <= 48 * MIB + MAKING * 8 * MIB
            assert grown < 250 * MIB, "40 answers of 8 MiB, each thrice while it is made, would be 960 MiB"
        finally:
            for one in stalled:
                one.close()
        until(lambda: not budget.held)
        assert len(client.get("/v1/topics/t/partitions/0/messages").json()["messages"]) == 8


def test_a_client_that_takes_nothing_is_cut_and_makes_room_for_others(budget: MemoryBudget) -> None:
    """After `send_timeout_s`, also where nothing is full."""
    with running(budget=budget, send_timeout_s=0.3) as server:
        server.store.sync.publish_many("t", [b"x" * 500_000] * 8)
        with _stalled(server), _stalled(server):
            answer = server.client().get("/v1/topics/t/partitions/0/messages")
            assert answer.status_code == 200
            assert len(answer.json()["messages"]) == 8
            until(lambda: not budget.held)


def test_bodies_that_are_not_finished_have_the_same_bound(budget: MemoryBudget) -> None:
    """Clients that want more wait, unread; the biggest is cut and gets 503; small requests are answered meanwhile."""
    with running(budget=budget, body_timeout_s=PATIENCE) as server:
        server.store.sync.create_topic("t")
        client, hogs = server.client(), [connect(server) for _ in range(12)]
        try:
            sends = [later(lambda hog=hog: _push(hog, PUBLISH + bytes(11 * MIB))) for hog in hogs]  # type: ignore[misc]
            most = 0
            while budget.cuts < 3 or not all(one.done() for one in sends):
                most = max(most, budget.held)
                octets = {"content-type": "application/octet-stream"}
                assert client.post("/v1/topics/t/messages", content=b"small", headers=octets).status_code == 201
            assert most <= 64 * MIB + 12 * 320 * 1024, "and what each connection reads ahead"
        finally:
            for hog in hogs:
                hog.close()
        until(lambda: not budget.held)


def test_a_client_whose_body_holds_most_is_told_why_it_is_cut(budget: MemoryBudget) -> None:
    with running(budget=budget, publish_bytes_max=60 * MIB, body_timeout_s=PATIENCE) as server:
        server.store.sync.create_topic("t")
        with connect(server) as hog:
            _push(hog, PUBLISH.replace(b"12000000", b"60000000") + bytes(40 * MIB))
            answer = hog.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"held most of it" in answer
        until(lambda: not budget.held)


def test_a_body_that_waited_for_room_too_long_is_refused_and_may_come_again(
    budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "PATIENCE_SECONDS", PATIENCE)
    with running(budget=budget, body_timeout_s=0.5) as server:
        server.store.sync.create_topic("t")
        other, *_ = [budget.open(_Nothing(), "a connection") for _ in range(30)]
        server.call(_begin(other, 60 * MIB))
        octets = {"content-type": "application/octet-stream"}
        answer = server.client().post("/v1/topics/t/messages", content=bytes(1_000_000), headers=octets)
        assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
        server.call(_begin(other, -60 * MIB))
        assert server.client().post("/v1/topics/t/messages", content=bytes(1_000_000), headers=octets).status_code == 201
        until(lambda: not budget.held)


def test_a_large_answer_comes_whole(server: Running, http: httpx.Client) -> None:
    values = [str(number) * 300_000 for number in range(10)]
    server.store.sync.publish_many("t", [value.encode() for value in values])
    found = http.get("/v1/topics/t/partitions/0/messages").json()["messages"]
    assert [message["value"] for message in found] == values
    until(lambda: not server.listener.context.memory.held)


def test_one_number_has_one_name_and_older_ones_are_taken(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish_many("t", [b"x"] * 5)
    for name in ("max_messages", "limit"):
        assert len(http.get(f"/v1/topics/t/partitions/0/messages?{name}=2").json()["messages"]) == 2
    assert http.get("/v1/topics/t/partitions/0/messages?limit=2&max_messages=2").status_code == 400
    for name in ("max_messages", "max"):
        assert len(http.post(f"/v1/topics/t/groups/{name}/receive", json={name: 2}).json()["messages"]) == 2
    assert http.post("/v1/topics/t/groups/g/receive", json={"max": 2, "max_messages": 2}).status_code == 400


def test_a_dead_letter_has_the_id_that_its_paths_take(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish_many("t", [b"x", b"y"])
    for message in http.post("/v1/topics/t/groups/g/receive", json={"max_messages": 2}).json()["messages"]:
        http.post("/v1/topics/t/groups/g/reject", json={"receipts": [message["receipt"]]})
    until(lambda: http.get("/v1/topics/t/dlq").json()["count"] == 2)
    letters = http.get("/v1/topics/t/dlq?max_messages=5").json()["messages"]
    assert [letter["id"] for letter in letters] == [0, 1]
    assert http.get(f"/v1/topics/t/dlq/{letters[1]['id']}").json()["id"] == 1
    assert http.post(f"/v1/topics/t/dlq/{letters[1]['id']}/replay").status_code == 200
