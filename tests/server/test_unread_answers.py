"""Answers that nobody reads: what all of them together make a server hold is bounded, and others are still served."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Unavailable
from penstock.server.http import answers as module
from penstock.server.http.answers import AnswerBudget
from tests.server.running import PATIENCE, Running, running, until
from tests.server.test_hostile import connect

if TYPE_CHECKING:
    import httpx

MIB = 1024 * 1024
READ = b"GET /v1/topics/t/partitions/0/messages?max_messages=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _stalled(server: Running) -> socket.socket:
    found = connect(server)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.sendall(READ)
    return found


def test_clients_that_do_not_read_hold_no_more_than_all_together_may() -> None:
    with running(answers_bytes_max=48 * MIB, send_timeout_s=PATIENCE) as server:
        server.store.sync.create_topic("t")
        for _ in range(8):
            server.store.sync.publish_many("t", [b"x" * 900_000])
        before = _resident()
        stalled = [_stalled(server) for _ in range(60)]
        try:
            budget = server.listener.context.answers
            until(lambda: len(budget._waiting) > 40)
            assert budget.held <= 48 * MIB
            time.sleep(0.5)
            assert _resident() - before < 300 * MIB, "60 answers of 8 MiB, each thrice while it is made, would be 1.4 GiB"
            assert server.client().get("/v1/topics").status_code == 200, "others are served"
        finally:
            for one in stalled:
                one.close()
        until(lambda: not budget.held)


def test_a_client_that_takes_nothing_is_cut_and_makes_room_for_others() -> None:
    with running(answers_bytes_max=1 * MIB, send_timeout_s=0.3) as server:
        server.store.sync.publish_many("t", [b"x" * 500_000] * 8)
        with _stalled(server), _stalled(server):
            answer = server.client().get("/v1/topics/t/partitions/0/messages")
            assert answer.status_code == 200
            assert len(answer.json()["messages"]) == 8
        until(lambda: not server.listener.context.answers.held)


def test_a_large_answer_comes_whole(server: Running, http: httpx.Client) -> None:
    values = [str(number) * 300_000 for number in range(10)]
    server.store.sync.publish_many("t", [value.encode() for value in values])
    found = http.get("/v1/topics/t/partitions/0/messages").json()["messages"]
    assert [message["value"] for message in found] == values
    assert server.listener.context.answers.held == 0


def test_who_waits_too_long_for_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 0.01)

    async def main() -> None:
        budget = AnswerBudget(10)
        async with budget.room(100) as held:  # one always fits
            with pytest.raises(Unavailable):
                async with budget.room(1):
                    pass
            held.shrink(4)
            async with budget.room(1):
                assert budget.held == 4 + 1 * module.MAKING
        assert budget.held == 0

    asyncio.run(main())


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
