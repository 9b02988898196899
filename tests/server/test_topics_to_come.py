"""Who may have a topic made by subscribing to it, by each door: whoever may make topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

import penstock
from penstock.errors import PermissionDenied, TopicNotFound
from penstock.server.auth import TokenAuth
from penstock.server.running import RunningServer
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.conformance.helpers import Running, until
from tests.grpc.running import Running as RunningGrpc
from tests.server.running import running, write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKENS = {"boss": {"admin": ["t"]}, "worker": {"consume": ["t", "t.dlq"], "read": ["t", "t.dlq"]}}


@pytest.fixture
def auth(tmp_path: Path) -> TokenAuth:
    return TokenAuth(write_tokens(tmp_path / "tokens.toml", TOKENS))


def url(server: RunningServer, token: str) -> str:
    return f"{server.address}?token={token}-token"


def test_over_the_native_protocol(auth: TokenAuth) -> None:
    with penstock.open("memory:") as own, RunningServer(own, auth=auth) as server:
        with penstock.open(url(server, "worker")) as worker:
            with pytest.raises(TopicNotFound):
                worker.subscribe("t", "g")
            with pytest.raises(PermissionDenied):
                worker.subscribe("t", "g", create=True)
            assert own.topics() == []
            with penstock.open(url(server, "boss")) as boss:
                boss.subscribe("t", "g").close()
            worker.subscribe("t", "g").close()
            # The dead letters of a topic that is there are not one topic more that somebody decides to have.
            worker.subscribe("t.dlq", "g").close()
        assert [info.name for info in own.topics()] == ["t", "t.dlq"]


def test_a_worker_whose_token_may_not_make_the_topic_waits_for_it(auth: TokenAuth, caplog: pytest.LogCaptureFixture) -> None:
    with (
        penstock.open("memory:") as own,
        RunningServer(own, auth=auth) as server,
        penstock.open(url(server, "worker")) as store,
    ):
        seen: list[bytes | None] = []

        @store.worker("t", group="g", start="latest")
        def handle(message: penstock.Delivery) -> None:
            seen.append(message.value)

        run = Running(store.run)
        until(lambda: "waits for the topic t" in caplog.text)
        own.publish("t", b"first")
        until(lambda: seen == [b"first"])
        store.stop()
        run.result()


@pytest.mark.parametrize("request_of", ["receive", "join", "configure", "stream"])
def test_over_http(auth: TokenAuth, request_of: str) -> None:
    """Each request that makes a group."""
    with running(auth=auth) as server:

        def ask(token: str) -> int:
            client, path = server.client(f"{token}-token"), "/v1/topics/t/groups/g"
            if request_of == "receive":
                return client.post(f"{path}/receive", json={"consumer": "c"}).status_code
            if request_of == "join":
                return client.put(f"{path}/consumers/c").status_code
            if request_of == "configure":
                return client.put(path, json={"topic_settings": {"partitions": 2}}).status_code
            with client.stream(
                "GET", f"{path}/stream", params={"seconds": 0}, headers={"Accept": "text/event-stream"}
            ) as answer:
                return answer.status_code

        assert ask("worker") == 404
        assert server.store.topics() == []
        assert ask("boss") in {200, 204}
        assert [info.name for info in server.store.topics()] == ["t"]
        assert ask("worker") in {200, 204}


def test_over_http_a_topic_is_not_made_for_whoever_says_so(auth: TokenAuth) -> None:
    with running(auth=auth) as server:
        client, path = server.client("boss-token"), "/v1/topics/t/groups/g"
        assert client.post(f"{path}/receive", json={"create": False}).status_code == 404
        assert client.put(f"{path}/consumers/c", json={"create": False}).status_code == 404
        assert client.put(path, json={"create": False}).status_code == 404
        assert server.store.topics() == []


def test_over_http_a_declaration_that_does_not_fit_tells_what_differs(auth: TokenAuth) -> None:
    with running(auth=auth) as server:
        server.store.sync.create_topic("t", partitions=2)
        answer = server.client("boss-token").put("/v1/topics/t/groups/g", json={"topic_settings": {"partitions": 3}})
        assert answer.status_code == 409
        assert "partitions=2, not 3" in answer.json()["detail"]


def test_over_http_a_poller_of_a_deleted_topic_does_not_make_it_anew_without_the_right(auth: TokenAuth) -> None:
    """Not with its next request either: its consumer was there."""
    with running(auth=auth) as server:
        server.store.sync.create_topic("t")
        client, path = server.client("worker-token"), "/v1/topics/t/groups/g/receive"
        assert client.post(path, json={}).status_code == 200
        server.store.sync.delete_topic("t")
        assert [client.post(path, json={}).status_code for _ in range(2)] == [404, 404]
        assert server.store.topics() == []


def test_over_grpc(auth: TokenAuth) -> None:
    server = RunningGrpc(auth=auth)
    try:

        def ask(token: str, **fields: Any) -> grpc.StatusCode:
            def requests() -> Iterator[pb.SubscribeRequest]:
                yield pb.SubscribeRequest(start=pb.Subscription(topic="t", group="g", **fields))

            with grpc.insecure_channel(server.target) as channel:
                call = PenstockStub(channel).Subscribe(requests(), metadata=[("authorization", f"Bearer {token}-token")])
                try:
                    list(call)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        assert ask("worker") is grpc.StatusCode.NOT_FOUND
        assert ask("worker", create=True) is grpc.StatusCode.PERMISSION_DENIED
        assert ask("boss", create=False) is grpc.StatusCode.NOT_FOUND
        assert server.store.topics() == []
        assert ask("boss", partitions=2) is grpc.StatusCode.OK
        assert server.store.topic("t").partitions == 2
        assert ask("worker", partitions=3) is grpc.StatusCode.ALREADY_EXISTS
        assert ask("worker") is grpc.StatusCode.OK
    finally:
        server.close()
