"""A path is written in one way, and only that way leads anywhere: what guards a path before the server must see what the server sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.test_hostile import connect

if TYPE_CHECKING:
    import httpx

    from tests.server.running import Running


def ask(server: Running, target: str) -> bytes:
    """By hand: libraries rewrite paths before they send them."""
    with connect(server) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        found = b""
        while part := raw.recv(65536):
            found += part
        return found


@pytest.mark.parametrize(
    "target",
    [
        "/%761/topics", "/v1%2Ftopics", "/v1%2ftopics", "/v1/%74opics", "/v1/topics/%74", "/v1/topics/%2E%2E/topics", "//v1/topics",
        "/v1//topics",
        "/./v1/topics", "/v1/../v1/topics", "/v1/topics/", "/V1/topics", "/v1/topics;x=1", "/v1/topics%00", "/v1/topics%3Fx", "/%68ealthz",
        "/v1/topics/t/%70artitions/0/messages", "http://localhost/v1/topics", "/v1\\topics", "/%63onsole",
    ],
)  # fmt: skip
def test_what_is_not_the_plain_form_leads_nowhere(server: Running, target: str) -> None:
    server.store.sync.create_topic("t")
    status = ask(server, target).split(b" ", 2)[1]
    assert status in (b"404", b"400"), target


def test_the_plain_form_does(server: Running, http: httpx.Client) -> None:
    server.store.sync.create_topic("a.b-c_d")
    assert ask(server, "/v1/topics").startswith(b"HTTP/1.1 200")
    assert ask(server, "/v1/topics/a.b-c_d").startswith(b"HTTP/1.1 200")
    answer = http.get("/v1/topics/a%20b")
    assert answer.status_code == 400, "what must be encoded is, and a wrong name is told as such"
