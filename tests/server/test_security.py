"""
Every path and method, for every kind of token: a table, and a test that fails when an operation has no row.

All requests are such that they would succeed, or fail by what they name (404), for who may make them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.server.auth import TokenAuth
from penstock.server.http.app import HANDLERS
from penstock.server.http.operations import OPERATIONS
from penstock.testing import FakeClock
from tests.server.running import Running, running, write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

TOKENS: dict[str, dict[str, Any]] = {
    "expired": {"admin": ["*"], "expires": "2020-01-01T00:00:00Z"},
    "elsewhere": {"admin": ["other", "t2*", "*.dlqx"]},
    "publisher": {"publish": ["t"]},
    "consumer": {"consume": ["t"]},
    "reader": {"read": ["*"]},
    "topic-admin": {"admin": ["t"]},
    "dlq-admin": {"admin": ["t.dlq"]},
    "admin": {"admin": ["*"]},
}
WHO = ("none", "bad", *TOKENS)


class Row(NamedTuple):
    """What an operation answers: to those who may ask, who they are, and how it is asked."""

    done: int
    allowed: set[str]
    path: str
    body: Any = None
    denied: int = 403


ALL = set(WHO)
VALID = set(TOKENS) - {"expired"}
READERS = {"reader", "admin"}
RECEIPT = {"receipts": ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]}
GROUP = "/v1/topics/t/groups/g"
CONSUMERS = {"consumer", "topic-admin", "admin"}
DLQ_ADMINS = {"dlq-admin", "admin"}
TABLE: dict[tuple[str, str], Row] = {
    ("GET", "/healthz"): Row(200, ALL, "/healthz"),
    ("GET", "/readyz"): Row(200, ALL, "/readyz"),
    ("GET", "/openapi.json"): Row(200, ALL, "/openapi.json"),
    ("GET", "/metrics"): Row(200, READERS, "/metrics"),
    ("GET", "/v1/stats"): Row(200, READERS, "/v1/stats"),
    ("GET", "/v1/metrics"): Row(200, VALID, "/v1/metrics"),
    ("GET", "/v1/topics"): Row(200, VALID, "/v1/topics"),
    ("POST", "/v1/topics"): Row(200, {"topic-admin", "admin"}, "/v1/topics", {"name": "t"}),
    ("GET", "/v1/topics/{topic}"): Row(200, {"reader", "topic-admin", "admin"}, "/v1/topics/t"),
    ("DELETE", "/v1/topics/{topic}"): Row(404, {"admin"}, "/v1/topics/none"),
    ("POST", "/v1/topics/{topic}/retain"): Row(200, {"topic-admin", "admin"}, "/v1/topics/t/retain"),
    ("POST", "/v1/topics/{topic}/vacuum"): Row(200, {"topic-admin", "admin"}, "/v1/topics/t/vacuum"),
    ("POST", "/v1/topics/{topic}/compact"): Row(400, {"topic-admin", "admin"}, "/v1/topics/t/compact"),
    ("POST", "/v1/topics/{topic}/messages"): Row(
        201, {"publisher", "topic-admin", "admin"}, "/v1/topics/t/messages", {"value": "x"}
    ),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/messages"): Row(
        200, {"reader", "topic-admin", "admin"}, "/v1/topics/t/partitions/0/messages"
    ),
    ("GET", "/v1/topics/{topic}/groups"): Row(200, {"reader", "topic-admin", "admin"}, "/v1/topics/t/groups"),
    ("GET", "/v1/topics/{topic}/groups/{group}"): Row(200, {"reader", "topic-admin", "admin"}, GROUP),
    ("PUT", "/v1/topics/{topic}/groups/{group}"): Row(200, CONSUMERS, GROUP, {"max_deliveries": 3}),
    ("DELETE", "/v1/topics/{topic}/groups/{group}"): Row(404, {"topic-admin", "admin"}, "/v1/topics/t/groups/none"),
    ("POST", "/v1/topics/{topic}/groups/{group}/receive"): Row(200, CONSUMERS, f"{GROUP}/receive", {"max": 1}),
    ("PUT", "/v1/topics/{topic}/groups/{group}/consumers/{consumer}"): Row(204, CONSUMERS, f"{GROUP}/consumers/c"),
    ("DELETE", "/v1/topics/{topic}/groups/{group}/consumers/{consumer}"): Row(204, CONSUMERS, f"{GROUP}/consumers/c"),
    ("POST", "/v1/topics/{topic}/groups/{group}/ack"): Row(409, CONSUMERS, f"{GROUP}/ack", RECEIPT),
    ("POST", "/v1/topics/{topic}/groups/{group}/nack"): Row(409, CONSUMERS, f"{GROUP}/nack", RECEIPT),
    ("POST", "/v1/topics/{topic}/groups/{group}/reject"): Row(409, CONSUMERS, f"{GROUP}/reject", RECEIPT),
    ("POST", "/v1/topics/{topic}/groups/{group}/extend"): Row(409, CONSUMERS, f"{GROUP}/extend", RECEIPT),
    ("GET", "/v1/topics/{topic}/groups/{group}/members"): Row(200, {"reader", "topic-admin", "admin"}, f"{GROUP}/members"),
    ("DELETE", "/v1/topics/{topic}/groups/{group}/members/{member}"): Row(404, {"topic-admin", "admin"}, f"{GROUP}/members/1"),
    ("POST", "/v1/topics/{topic}/groups/{group}/seek"): Row(204, CONSUMERS, f"{GROUP}/seek", {"to": "earliest"}),
    ("POST", "/v1/topics/{topic}/groups/{group}/commit"): Row(204, CONSUMERS, f"{GROUP}/commit", {"offset": 0, "partition": 0}),
    ("GET", "/v1/topics/{topic}/groups/{group}/stream"): Row(200, CONSUMERS, f"{GROUP}/stream?seconds=0"),
    ("GET", "/v1/topics/{topic}/dlq"): Row(200, {"reader", "dlq-admin", "admin"}, "/v1/topics/t/dlq"),
    ("GET", "/v1/topics/{topic}/dlq/{id}"): Row(404, {"reader", "dlq-admin", "admin"}, "/v1/topics/t/dlq/7"),
    ("DELETE", "/v1/topics/{topic}/dlq/{id}"): Row(404, DLQ_ADMINS, "/v1/topics/t/dlq/7"),
    ("POST", "/v1/topics/{topic}/dlq/{id}/replay"): Row(404, DLQ_ADMINS, "/v1/topics/t/dlq/7/replay"),
    ("POST", "/v1/topics/{topic}/dlq/replay-all"): Row(200, DLQ_ADMINS, "/v1/topics/t/dlq/replay-all"),
    ("POST", "/v1/topics/{topic}/dlq/discard-all"): Row(200, DLQ_ADMINS, "/v1/topics/t/dlq/discard-all"),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    auth = TokenAuth(write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.toml", TOKENS))
    with running(auth=auth) as server:
        server.store.sync.create_topic("t")
        server.store.sync.create_topic("secret-of-others")
        server.store.sync.subscribe("t", "g").close()
        yield server


def ask(client: httpx.Client, method: str, path: str, who: str, body: Any = None, **headers: str) -> httpx.Response:
    if who != "none":
        headers["authorization"] = f"Bearer {who}-token"
    if "stream" in path:
        headers["accept"] = "text/event-stream"
    return (
        client.request(method, path, headers=headers, json=body)
        if body is not None
        else client.request(method, path, headers=headers)
    )


def test_every_operation_has_a_row() -> None:
    assert HANDLERS
    assert set(TABLE) == {(operation.method, operation.path) for operation in OPERATIONS}


def expected(row: Row, who: str) -> int:
    if who in row.allowed:
        return row.done
    return 401 if who in ("none", "bad", "expired") else row.denied


@pytest.fixture(scope="module")
def asking(guarded: Running) -> httpx.Client:
    return guarded.client()


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
def test_everybody_gets_what_the_table_says(asking: httpx.Client, method: str, path: str) -> None:
    row = TABLE[method, path]
    answers = {who: ask(asking, method, row.path, who, row.body) for who in WHO}
    assert {who: answer.status_code for who, answer in answers.items()} == {who: expected(row, who) for who in WHO}
    for answer in answers.values():
        if answer.status_code in (401, 403):
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[answer.status_code]
            assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)
            assert "token" not in answer.json().get("principal", "")


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
def test_other_methods_open_nothing(asking: httpx.Client, method: str, path: str) -> None:
    """HEAD asks for the same right as GET; the rest is refused, whoever asks."""
    row = TABLE[method, path]
    if method == "GET" and not path.endswith("stream"):
        for who in ("none", "bad", "elsewhere", "admin"):
            assert ask(asking, "HEAD", row.path, who).status_code == expected(row, who)
    known = {one for one, other in TABLE if other == path}
    for other in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE"} - known:
        answer = ask(asking, other, row.path, "admin", **{"x-http-method-override": method})
        assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert known <= set(answer.headers["allow"].split(", "))


def test_who_may_not_know_a_topic_learns_nothing_of_it(asking: httpx.Client) -> None:
    """The answer is the same whether it is there or not, and lists leave it out."""
    texts = []
    for topic in ("secret-of-others", "secret-that-is-not"):
        answer = ask(asking, "GET", f"/v1/topics/{topic}", "publisher")
        assert answer.status_code == 403
        texts.append(answer.text.replace(topic, "X"))
    assert texts[0] == texts[1]
    names = [topic["name"] for topic in ask(asking, "GET", "/v1/topics", "publisher").json()["topics"]]
    assert names == ["t"]
    assert ask(asking, "GET", "/v1/topics", "elsewhere").json() == {"topics": []}


def test_a_publisher_cannot_make_topics(guarded: Running, tmp_path: Any) -> None:
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"p": {"publish": ["*"]}, "a": {"admin": ["*"]}}))
    with running(auth=auth) as server:
        for token, status in (("p-token", 404), ("a-token", 201), ("p-token", 201)):
            assert server.client(token).post("/v1/topics/new/messages", json={"value": "x"}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer admin-token"), ("authorization", "Bearer admin-token")],
        [("authorization", "Bearer bad-token"), ("authorization", "Bearer admin-token")],
        [("authorization", "Basic YWRtaW46YWRtaW4=")],
        [("authorization", "Bearer admin-token, Basic x")],
        [("authorization", "Bearer")],
        [("authorization", "admin-token")],
        [("authorization", "Bearer admin-tokenx")],
        [("authorization", "Bearer " + "A" * 10_000)],
        [("authorization", "Bearer eyJhbGciOiJub25lIn0.e30.")],
        [("x-forwarded-user", "admin"), ("x-forwarded-for", "127.0.0.1")],
        [("x-authorization", "Bearer admin-token")],
        [("cookie", "token=admin-token")],
    ],
)
def test_tricks_with_headers_open_nothing(asking: httpx.Client, headers: list[tuple[str, str]]) -> None:
    assert asking.get("/v1/stats", headers=headers).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_may_be_in_any_case(asking: httpx.Client, scheme: str) -> None:
    assert asking.get("/v1/stats", headers={"authorization": f"{scheme} admin-token"}).status_code == 200


def test_a_token_in_the_query_is_refused(asking: httpx.Client) -> None:
    assert asking.get("/v1/stats?token=admin-token").status_code == 401
    assert asking.get("/v1/stats?token=x", headers={"authorization": "Bearer admin-token"}).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["//v1/stats", "/v1//stats", "/V1/stats", "/v1/stats/", "/v1/./stats", "/v1/x/../stats", "/v1/stats;x=1", "/%2fv1/stats"],
)
def test_other_spellings_of_a_path_lead_nowhere(guarded: Running, path: str) -> None:
    from tests.server.test_hostile import exchange

    answer = exchange(guarded, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404")


def test_a_letter_of_a_path_in_percent_leads_nowhere(asking: httpx.Client) -> None:
    assert asking.get("/v1/%73tats").status_code == 404
    assert ask(asking, "GET", "/v1/topics/%74", "elsewhere").status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/v1/topics", "/nowhere", "/v1/topics/t/messages", "/v1/stats"])
def test_every_answer_has_the_headers_that_bind_a_browser(asking: httpx.Client, path: str) -> None:
    answer = asking.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


def test_a_token_that_expires_while_it_is_used(tmp_path: Any) -> None:
    clock = FakeClock(now_us=1_700_000_000_000_000)
    tokens = write_tokens(tmp_path / "tokens", {"a": {"admin": ["*"], "expires": "2023-11-14T22:13:30Z"}})
    with running(auth=TokenAuth(tokens, clock=clock)) as server:
        client = server.client("a-token")
        assert client.get("/v1/topics").status_code == 200
        clock.advance(10)
        assert client.get("/v1/topics").status_code == 401


# -- pages of other sites -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_is_refused(client: httpx.Client, topic: str, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/v1/topics"), ("POST", f"/v1/topics/{topic}/messages")):
        answer = client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "FOREIGN_ORIGIN")


def test_a_page_of_the_server_itself_is_not(client: httpx.Client, shared: Running) -> None:
    assert client.get("/v1/topics", headers={"origin": shared.url, "sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7422", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]:1"]
)
def test_without_tokens_a_foreign_name_of_the_loopback_is_refused(client: httpx.Client, host: str) -> None:
    """DNS rebinding: the page's own name leads to 127.0.0.1."""
    answer = client.get("/v1/topics", headers={"host": host, "authorization": "Bearer x"})
    assert (answer.status_code, answer.json()["code"]) == (421, "UNKNOWN_HOST")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:7422", "[::1]"])
def test_the_names_of_the_loopback_are_taken(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/topics", headers={"host": host}).status_code == 200


def test_names_can_be_added() -> None:
    with running(hosts=("queue.internal",)) as server:
        assert server.client().get("/v1/topics", headers={"host": "Queue.internal:80"}).status_code == 200
        assert server.client().get("/v1/topics", headers={"host": "x.queue.internal"}).status_code == 421


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "x" * 100]
)
def test_what_a_form_can_send_is_no_body(client: httpx.Client, topic: str, content_type: str) -> None:
    for path in (f"/v1/topics/{topic}/messages", "/v1/topics", f"/v1/topics/{topic}/groups/g/receive"):
        answer = client.post(path, content=b'{"value": "x", "name": "x"}', headers={"content-type": content_type})
        assert answer.status_code == 415, answer.text
