"""What an attacker sends: bytes that are no HTTP, lengths that lie, JSON that costs, numbers that overflow, names that climb."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import socket
import time
from typing import Any

import httpx
import pytest

from tests.server.running import PATIENCE, Running, running, until

JSON = {"content-type": "application/json"}


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def exchange(server: Running, data: bytes) -> bytes:
    """All that the server answers until it closes, or is silent."""
    with connect(server) as found:
        answer = b""
        try:
            found.sendall(data)
            while part := found.recv(65536):
                answer += part
                if answer.count(b"\r\n\r\n") and b"close" not in answer.lower() and answer.endswith(b"}"):
                    break
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return answer


def is_well(server: Running) -> None:
    with server.client() as client:
        assert client.get("/healthz").status_code == 200


def answers(server: Running, **options: Any) -> bool:
    """Whether it did; one that cuts off who is slow may do so to us on a busy machine."""
    try:
        with server.client(**options) as client:
            return client.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


HEAD = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
        b"\xff\xff\xff\xff\r\n\r\n",
        b"PENSTOCK\0\0\0\1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/3.0\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: +5\r\n\r\nhello",
        HEAD + b"Content-Length: 0x5\r\n\r\nhello",
        HEAD + b"Content-Length: -1\r\n\r\nhello",
        HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\nhello",
        b"G\xc3\x84T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET\r\nX: y / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_the_connection_closed(shared: Running, data: bytes) -> None:
    answer = exchange(shared, data)
    if answer:  # a reset may be quicker than the answer when much of the request was not read
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 413, 431, 501), answer
        assert b"connection: close" in answer.lower()
        assert b"problem+json" in answer
        assert b"Traceback" not in answer
    is_well(shared)
    assert "t" not in shared.store.stats().topics


def test_a_length_and_chunks_together_are_never_two_requests(shared: Running) -> None:
    """Request smuggling: what follows must not be read as a request of its own."""
    smuggled = HEAD.replace(b"/t/", b"/smuggled/") + b"Content-Length: 1\r\n\r\nx"
    body = b"0\r\n\r\n" + smuggled
    data = (
        HEAD.replace(b"/t/", b"/outer/")
        + b"Content-Length: "
        + str(len(body)).encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        + body
    )
    answer = exchange(shared, data)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400")
    assert not {"outer", "smuggled"} & set(shared.store.stats().topics)
    is_well(shared)


def test_pipelined_requests_are_answered_in_order(shared: Running) -> None:
    with connect(shared) as found:
        found.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        answer = b""
        while answer.count(b"HTTP/1.1 200") < 200:
            answer += found.recv(65536)


def test_a_slow_head_is_cut_off() -> None:
    with running(header_timeout_s=0.3) as server:
        assert exchange(server, b"\xff\xff\xff\xff") == exchange(server, b"PENSTOCK\0\0\0\1") == b""
        silent, slow, second = connect(server), connect(server), connect(server)
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
        slow.settimeout(0.05)
        with pytest.raises(OSError):
            for byte in b"GET /healthz HTTP/1.1\r\nHost: " + b"x" * 500:
                slow.sendall(bytes([byte]))
                try:
                    if not slow.recv(1):
                        raise ConnectionResetError
                except TimeoutError:
                    continue
        for one in (silent, second):
            try:
                while one.recv(65536):
                    pass
            except ConnectionResetError:
                continue
        for one in (silent, slow, second):
            one.close()
        until(lambda: answers(server))


def test_a_slow_body_is_cut_off() -> None:
    with running(body_timeout_s=0.3) as server:
        answer = exchange(server, HEAD + b"Content-Length: 100\r\n\r\nx")
        assert b"408" in answer.split(b"\r\n")[0]
        assert b"BODY_TIMEOUT" in answer
        is_well(server)


def test_a_client_that_goes_away_in_its_body_stores_nothing(server: Running) -> None:
    with connect(server) as found:
        found.sendall(HEAD + b"Content-Length: 100\r\n\r\nx")
    until(lambda: not server.listener.context.connections())
    assert "t" not in server.store.stats().topics


def test_there_are_only_so_many_connections() -> None:
    with running(connections_max=3) as server:
        held = [connect(server) for _ in range(3)]
        until(lambda: server.listener.context.connections() == 3)
        with connect(server) as refused, contextlib.suppress(ConnectionResetError):
            assert refused.recv(1) == b""
        for one in held:
            one.close()
        until(lambda: server.listener.context.connections() == 0)
        is_well(server)


def test_a_body_over_its_limit_is_refused_before_it_is_held() -> None:
    with running(publish_bytes_max=10_000, body_bytes_max=5_000) as server:
        client = server.client()
        server.store.sync.create_topic("t")
        limits = {"/v1/topics/t/messages": 10_000, "/v1/topics": 5_000, "/v1/topics/t/groups/g/ack": 5_000}
        for path, limit in limits.items():
            for body in (b" " * (limit + 1), iter([b" " * 1000] * (limit // 1000 + 1))):
                answer = client.post(path, content=body, headers=JSON)
                assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")
        exact = client.post(
            "/v1/topics/t/messages", content=b"x" * 10_000, headers={"content-type": "application/octet-stream"}
        )
        assert exact.status_code == 201
        claim = exchange(server, HEAD + b"Content-Length: 10000000000\r\n\r\n")
        assert b"413" in claim.split(b"\r\n")[0]


def test_a_client_that_is_refused_while_it_sends_sees_why(shared: Running) -> None:
    """A connection that is closed while its client sends is reset, and the answer with it."""
    with connect(shared) as found:
        for path in (b"/nowhere", b"/v1/stats"):
            found.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
            time.sleep(0.1)  # the answer would be sent now
            found.sendall(b"x" * 200_000)
            answer = b""
            while not answer.endswith(b"}"):
                part = found.recv(65536)
                assert part
                answer += part
            assert b"problem+json" in answer
            assert b"connection: close" not in answer


def test_a_compressed_body_is_not_inflated(client: httpx.Client, topic: str) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    answer = client.post(f"/v1/topics/{topic}/messages", content=bomb, headers={**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 415


def test_a_body_where_there_should_be_none(client: httpx.Client) -> None:
    assert client.request("GET", "/v1/topics", content=b"x").status_code == 413
    assert client.post("/v1/topics/t/dlq/replay-all", content=b"{}", headers=JSON).status_code == 413


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_JSON"), (b"{", "BAD_JSON"), (b"\xff\xfe", "BAD_JSON"), (b"\xef\xbb\xbf{}", "BAD_JSON"), (b"nul", "BAD_JSON"),
        (b'{"value": "a", "value": "b"}', "BAD_JSON"), (b'{"value": NaN}', "BAD_JSON"), (b'{"value": -Infinity}', "BAD_JSON"),
        (b'{"value": 1e400}', "BAD_JSON"), (b'{"partition": ' + b"9" * 1_000_000 + b"}", "BAD_JSON"),
        (b'{"partition": 1' + b"0" * 5000 + b"}", "BAD_JSON"), (b'{"value": "a\nb"}', "BAD_JSON"), (b'{"value": "a"} x', "BAD_JSON"),
        (b"[" * 100_000, "BAD_JSON"), (b"[" * 9 + b"]" * 9, "BAD_JSON"), (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "BAD_JSON"),
        (b"[" + b"[]," * 600_000 + b"[]]", "BAD_JSON"), (b"[" + b"1," * 1_100_000 + b"1]", "BAD_JSON"),
        (b'{"value": "\\ud800"}', "BAD_ARGUMENT"), (b'{"value": "x", "key": "\\udfff"}', "BAD_ARGUMENT"),
        (b'{"value": "x", "dedup_key": "\\ud800"}', "BAD_ARGUMENT"), (b'{"value": "x", "\\ud800": 1}', "BAD_ARGUMENT"),
        (b'{"value": "x", "headers": [{"name": "\\ud800", "value": "x"}]}', "BAD_ARGUMENT"),
        (b"[]", "BAD_ARGUMENT"), (b"1", "BAD_ARGUMENT"), (b"null", "BAD_ARGUMENT"), (b'"x"', "BAD_ARGUMENT"), (b"{}", "BAD_ARGUMENT"),
        (b'{"value": "x", "unknown": 1}', "BAD_ARGUMENT"), (b'{"value": true}', "BAD_ARGUMENT"), (b'{"value": {}}', "BAD_ARGUMENT"),
        (b'{"value": "x", "value_base64": "AA=="}', "BAD_ARGUMENT"), (b'{"value_base64": "A"}', "BAD_ARGUMENT"),
        (b'{"value": "x", "dedup_key": ""}', "BAD_ARGUMENT"), (b'{"value": "x", "timestamp": "2024-02-30T00:00:00Z"}', "BAD_ARGUMENT"),
        (b'{"value": "x", "timestamp": "0001-01-01T00:00:00+14:00"}', "BAD_ARGUMENT"),
        (b'{"value": "x", "partition": -1}', "BAD_ARGUMENT"), (b'{"value": "x", "partition": 1.5}', "BAD_ARGUMENT"),
        (b'{"value": "x", "partition": 18446744073709551616}', "BAD_ARGUMENT"), (b'{"value": "x", "partition": "0"}', "BAD_ARGUMENT"),
        (b'{"value": "x", "headers": {}}', "BAD_ARGUMENT"), (b'{"value": "x", "headers": [{"name": "a"}]}', "BAD_ARGUMENT"),
        (json.dumps({"value": "x", "headers": [{"name": "a", "value": ""}] * 1001}).encode(), "BAD_ARGUMENT"),
        (json.dumps([{"value": ""}] * 10_001).encode(), "BAD_ARGUMENT"),
    ],
)  # fmt: skip
def test_json_that_is_not_a_message_is_refused(
    client: httpx.Client, topic: str, shared: Running, body: bytes, code: str
) -> None:
    answer = client.post(f"/v1/topics/{topic}/messages", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
    assert shared.store.sync.ends(topic) == {0: 0}


def test_json_that_costs_much_costs_little(client: httpx.Client, topic: str) -> None:
    """Four million empty lists would be a quarter of a gigabyte of objects."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = client.post(f"/v1/topics/{topic}/messages", content=b"[" + b"[]," * 4_000_000 + b"[]]", headers=JSON)
    assert answer.status_code in (400, 413)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_text_full_of_brackets_is_only_text(client: httpx.Client, topic: str) -> None:
    value = '[{"' * 200_000 + "\\" * 7 + '"'
    assert client.post(f"/v1/topics/{topic}/messages", json={"value": value}).status_code == 201


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1", "limit=0", "limit=1001", "limit=NaN", "limit=1e3", "limit=9223372036854775808", "limit=", "limit=1&limit=1",
        "limit=+1",
        "limit=%31%00", "limit=" + "9" * 5000,
        "limit=true", "limit= 1", "start=-1", "start=18446744073709551616", "start=1e9", "start=x",
        "start=NaN", "start=earliest%0a", "start=2024-13-01T00:00:00Z", "start=2024-01-01",
        "base64=1", "base64=True", "unknown=1", "limit[]=1",
        "=", "%ff=1", "limit=%ff", "a=1&" * 100,
    ],
)  # fmt: skip
def test_numbers_and_places_in_the_query_are_checked(client: httpx.Client, topic: str, query: str) -> None:
    answer = client.get(f"/v1/topics/{topic}/partitions/0/messages?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_ARGUMENT"), answer.text


@pytest.mark.parametrize("partition", ["-1", "1.0", "x", "2147483648", "99999999999999999999999", "0x0", "%00", "٣"])
def test_a_partition_in_the_path_is_a_small_whole_number(client: httpx.Client, topic: str, partition: str) -> None:
    assert client.get(f"/v1/topics/{topic}/partitions/{partition}/messages").status_code == 400
    assert client.get(f"/v1/topics/{topic}/partitions/7/messages").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"max": 0}, {"max": -1}, {"max": 1001}, {"max": 2**63}, {"max": 1.5}, {"max": "1"}, {"max": None}, {"max": True},
        {"wait": -1}, {"wait": 1e12}, {"wait": "1"}, {"wait": None}, {"lease": 0}, {"lease": -1}, {"lease": 1e12}, {"lease": "30"},
        {"consumer": "a/b"}, {"consumer": "_a"}, {"consumer": "x" * 197}, {"consumer": "a\nb"}, {"consumer": 1}, {"prefetch": 1},
        {"max": 1, "max_messages": 1}, [], 1, "x",
    ],
)  # fmt: skip
def test_what_a_poll_may_ask_for_is_bounded(client: httpx.Client, topic: str, body: Any) -> None:
    answer = client.post(f"/v1/topics/{topic}/groups/g/receive", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_ARGUMENT"), answer.text


NAMES = [
    "..", "../../etc/cron.d/x", "/etc/x", "a/../../b", "..%2f", "%00", "a\0b", ".", "a\nb", "a\r\nSet-Cookie: x=1", "x" * 197, "x" * 10_000,
    "a\u202eb", "é", "İ", "-a", ".lock", "__internal", "{{7*7}}", "<img src=x onerror=alert(1)>", "'; DROP", "*", ">", ".*",
    "a b", "a;b", "",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_refused_unless_they_follow_the_rule(client: httpx.Client, topic: str, shared: Running, name: str) -> None:
    before = set(shared.store.stats().topics)
    made = client.post("/v1/topics", json={"name": name})
    assert made.status_code == 400, made.text
    assert made.json()["code"] in ("BAD_NAME", "BAD_ARGUMENT")
    for path in (f"/v1/topics/{quoted(name)}/messages", f"/v1/topics/{topic}/groups/{quoted(name)}/receive"):
        answer = client.post(path, json={"value": "x"} if "messages" in path else {})
        assert answer.status_code in (400, 404, 431), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert "set-cookie" not in answer.headers
    assert set(shared.store.stats().topics) == before
    assert shared.store.groups(topic) == []


def quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="").replace(".", "%2E")


@pytest.mark.parametrize("name", ["orders.dlq", "x" * 193])
def test_reserved_names_are_refused(client: httpx.Client, name: str) -> None:
    assert client.post("/v1/topics", json={"name": name}).json()["code"] == "RESERVED_NAME"
    answer = client.post(f"/v1/topics/{name}/messages", json={"value": "x"})
    assert (answer.status_code, answer.json()["code"]) == (403, "RESERVED_NAME")


def test_a_pickle_is_bytes_like_any_other(client: httpx.Client, topic: str, tmp_path: Any) -> None:
    bomb = b"cos\nsystem\n(S'touch " + str(tmp_path / "pwned").encode() + b"'\ntR."
    headers = {"content-type": "application/octet-stream", "serializer": "pickle"}
    assert client.post(f"/v1/topics/{topic}/messages", content=bomb, headers=headers).status_code == 201
    assert client.get(f"/v1/topics/{topic}/partitions/0/messages").status_code == 200
    assert not (tmp_path / "pwned").exists()


def test_a_failure_inside_is_told_without_its_trace(
    server: Running, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ValueError("/secret/path")

    server.store.topics = broken  # type: ignore[method-assign,assignment]
    answer = http.get("/v1/topics")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text
    assert "secret" in caplog.text
