"""What gRPC clients can make a server hold, together with those of other interfaces: requests, headers, answers that nobody reads."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker import memory_budget
from penstock.broker.memory_budget import MemoryBudget
from penstock.server.grpc import listener as module
from penstock.server.grpc.sockets import Place, place_of
from penstock.values import MIB
from penstock.wire import penstock_pb2 as pb
from tests.client.served import later
from tests.grpc.helpers import request_of, until
from tests.grpc.raw import CONTINUATION, HEADERS, RawGrpc, frame, literal
from tests.grpc.running import PATIENCE, Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 24 * MIB


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    monkeypatch.setattr(memory_budget, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)
    return MemoryBudget(BUDGET)


@pytest.fixture
def bounded(budget: MemoryBudget) -> Iterator[Running]:
    with running(budget=budget) as server:
        server.store.create_topic("t")
        yield server


@pytest.mark.parametrize("kind", ["many headers", "indexed headers", "one long header"])
def test_headers_without_an_end_are_cut(bounded: Running, budget: MemoryBudget, kind: str) -> None:
    """Without a token, and without a call: gRPC itself would take hundreds of megabytes."""
    blocks = {
        "many headers": b"".join(literal(b"a%03d" % number, b"v" * 100) for number in range(140)),
        "indexed headers": b"\x90" * 16_000,
        "one long header": bytes(16_000),
    }
    first = literal(b":path", b"/x") + (b"\x00\x01a\x7f\x80\x80\x80\x80\x04" if kind == "one long header" else b"")
    stub = bounded.stub()
    with RawGrpc(bounded.target, reads=False) as raw:
        raw.send(frame(HEADERS, 0, 1, b"\x83\x86" + first))
        sent = 0
        with pytest.raises(OSError, match=r"reset|pipe"):
            while sent < 4096 * MIB:
                raw.send(frame(CONTINUATION, 0, 1, blocks[kind]))
                sent += 16_000
    assert (sent >= MIB, budget.cuts) == (True, 1)
    assert stub.Publish(request_of("t", b"others go on"), timeout=PATIENCE).receipts[0].offset == 0
    until(lambda: budget.held == 0)


@pytest.mark.parametrize("path", ["Publish", "PublishStream", "Subscribe"])
def test_requests_that_are_not_finished_have_one_bound(bounded: Running, budget: MemoryBudget, path: str) -> None:
    """Whichever call they are for; small calls of others are answered, and the connections that hold most are cut."""
    stub = bounded.stub()
    clients = [RawGrpc(bounded.target) for _ in range(4)]

    def attack(raw: RawGrpc) -> None:
        for _ in range(6):
            raw.send_part(raw.begin(f"/penstock.v1.Penstock/{path}"), 4 * MIB - 100, 4 * MIB - 200)

    attacks = [later(lambda raw=raw: attack(raw)) for raw in clients]  # type: ignore[misc]
    end = time.monotonic() + PATIENCE
    while budget.cuts < 2:
        assert time.monotonic() < end
        assert stub.Publish(request_of("t", b"x"), timeout=PATIENCE).receipts
    until(lambda: sum(raw.is_cut for raw in clients) >= 2)
    for raw in clients:
        raw.close()
    for one in attacks:
        with contextlib.suppress(OSError):
            one.result(PATIENCE)
    until(lambda: budget.held == 0)
    assert stub.Publish(request_of("t", b"x"), timeout=PATIENCE).receipts


@pytest.mark.parametrize("kind", ["Read", "ListDeadLetters", "Subscribe"])
def test_answers_that_nobody_reads_have_the_same_bound(bounded: Running, budget: MemoryBudget, kind: str) -> None:
    """They are made when there is room; single answers, streams and deliveries alike."""
    store = bounded.store
    store.publish_many("t", [bytes(200_000)] * 4)
    with store.subscribe("t", "g") as consumer:
        for _ in range(4):
            message = consumer.get(timeout=PATIENCE)
            assert message is not None
            message.reject("bad")
        store.flush()
    until(lambda: len(store.dead_letters("t")) == 4)
    path = {"ListDeadLetters": "/penstock.v1.Admin/"}.get(kind, "/penstock.v1.Penstock/") + kind
    stub = bounded.stub()
    clients = [RawGrpc(bounded.target, window=1_000) for _ in range(4)]
    for at, raw in enumerate(clients):
        for number in range(60):
            start = pb.Subscription(topic="t", group=f"g{at}-{number}")
            requests: dict[str, Any] = {
                "Read": pb.ReadRequest(topic="t"),
                "ListDeadLetters": pb.ListDeadLettersRequest(topic="t"),
                "Subscribe": pb.SubscribeRequest(start=start, credit=10),
            }
            raw.request(raw.begin(path), requests[kind].SerializeToString(), ends=kind != "Subscribe")
    most, end = 0, time.monotonic() + PATIENCE
    while budget.cuts < 2:
        assert time.monotonic() < end
        most = max(most, budget.held)
        assert stub.Publish(request_of("small", b"x"), timeout=PATIENCE).receipts
    assert most <= BUDGET + 4 * MIB
    for raw in clients:
        raw.close()
    until(lambda: budget.held == 0)
    pages = list(stub.Read(pb.ReadRequest(topic="t"), timeout=PATIENCE))
    assert sum(len(page.messages) for page in pages) == 4


def test_clients_that_do_nothing_wrong_hold_nothing_after_many_calls(bounded: Running, budget: MemoryBudget) -> None:
    """The estimate of what has come does not drift, with a stream open all the time."""
    stub, stream = bounded.stub(), None
    stream = bounded.subscribe("t", "g", credit=1_000)
    stream.started()
    for number in range(600):
        stub.Publish(request_of("t", b"%d" % number * 2_000), timeout=PATIENCE)
    until(lambda: budget.held == 0)
    assert budget.cuts == 0


def test_peers_are_found_as_the_kernel_knows_them() -> None:
    assert place_of("ipv4:127.0.0.1:5000") == Place("127.0.0.1", 5000)
    assert place_of("ipv6:%5B::1%5D:5000") == Place("::1", 5000)
    assert place_of("ipv6:%5B::ffff:10.0.0.1%5D:5000") == Place("10.0.0.1", 5000)
    assert place_of("unix:") is None
