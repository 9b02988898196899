"""The files of the console: who gets them, with which headers, and that there is no way from them to any other file."""

from __future__ import annotations

import re
import socket
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from penstock.server.auth import TokenAuth
from penstock.server.http.console.files import FILES, PAGE
from penstock.testing import FakeClock
from tests.server.running import PATIENCE, Running, running, until, write_tokens

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

STATIC = resources.files("penstock.server.http.console") / "static"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CROSS_SITE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def directives(answer: httpx.Response) -> dict[str, str]:
    parts = [part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";")]
    return {name: value for name, _, value in parts}


@pytest.mark.parametrize("path", FILES)
def test_each_file_is_served_with_its_type_and_a_strict_policy(client: httpx.Client, path: str) -> None:
    name, media_type = FILES[path]
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-type"] == media_type
    for header, value in {
        "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cross-origin-resource-policy": "same-origin",
        "x-frame-options": "DENY", "cache-control": "no-cache",
    }.items():  # fmt: skip
        assert answer.headers.get_list(header) == [value]
    assert len(answer.headers.get_list("content-security-policy")) == 1
    policy = directives(answer)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_what_is_in_the_folder_is_what_is_served() -> None:
    assert {one.name for one in STATIC.iterdir()} == {name for name, _ in FILES.values()}


def test_the_files_load_nothing_from_elsewhere_and_make_no_html_of_text() -> None:
    for one in STATIC.iterdir():
        text = one.read_text()
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text), one.name
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage|cookie", text
        ), one.name
        if one.name == "index.html":
            assert not re.findall(r"<script(?![^>]*src=)|<style| style=| on[a-z]+=", text)
    imports = {name for one in STATIC.iterdir() for name in re.findall(r'from "\./([^"]+)"', one.read_text())}
    assert imports <= {name for name, _ in FILES.values()}


def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get(PAGE)
    etag = first.headers["etag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        again = client.get(PAGE, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get(PAGE, headers={"if-none-match": '"other"'}).status_code == 200
    assert client.get(f"{PAGE}/main.js").headers["etag"] != etag
    head = client.head(PAGE)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", etag)


def raw(server: Running, target: str) -> bytes:
    """The status line and the rest, for a path that no client of ours would send as it is."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        found = b""
        while some := connection.recv(65536):
            found += some
    return found


@pytest.mark.parametrize(
    "target",
    [
        "/console/../app.py", "/console/..%2f..%2fapp.py", "/console/%2e%2e/files.py", "/console/static/main.js", "/console//main.js",
        "/console/files.py", "/console/main.js/", "/console/main.js%00.html", "/console/....//main.js", "/console/..\\files.py",
        "/console/MAIN.JS", "/console/__init__.py", "/console//etc/passwd", "/console/%2fetc%2fpasswd", "//console",
        "/consolex", "/../console",
    ],
)  # fmt: skip
def test_there_is_no_other_name_for_a_file_and_no_way_out(shared: Running, target: str) -> None:
    answer = raw(shared, target)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"NO_SUCH_PATH" in answer or b"BAD_REQUEST" in answer


def test_only_reading_is_a_method_of_a_file(client: httpx.Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = client.request(method, PAGE)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_browsers_are_led_to_the_page_and_programs_are_not(client: httpx.Client) -> None:
    answer = client.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (302, "console")
    assert str(client.get("/", headers=BROWSER, follow_redirects=True).url).endswith("/console")
    assert str(client.get("/console/", follow_redirects=True).url).endswith("/console")
    plain = client.get("/")
    assert (plain.status_code, plain.json()["code"]) == (404, "NO_SUCH_PATH")


def test_a_link_of_another_site_leads_to_the_page_and_to_nothing_else(client: httpx.Client) -> None:
    assert client.get(PAGE, headers=CROSS_SITE).status_code == 200
    for path in ("/v1/topics", f"{PAGE}/main.js"):
        assert client.get(path, headers=CROSS_SITE).json()["code"] == "FOREIGN_ORIGIN"
    framed = {**CROSS_SITE, "sec-fetch-dest": "iframe"}
    assert client.get(PAGE, headers=framed).json()["code"] == "FOREIGN_ORIGIN"
    loaded = {**CROSS_SITE, "sec-fetch-mode": "no-cors"}
    assert client.get(PAGE, headers=loaded).json()["code"] == "FOREIGN_ORIGIN"
    assert client.get(PAGE, headers={"host": "evil.example"}).json()["code"] == "UNKNOWN_HOST"


def test_the_files_need_no_token_and_are_the_same_whatever_is_in_the_store(client: httpx.Client, tmp_path: Path) -> None:
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"a": {"admin": ["*"]}}))
    with running(auth=auth) as server:
        server.store.sync.create_topic("secret")
        for path in FILES:
            assert server.client().get(path).content == client.get(path).content
        assert server.client().get("/v1/metrics").status_code == 401


def test_without_the_console_there_are_no_such_paths() -> None:
    with running(console=False) as server:
        http = server.client()
        for path in (*FILES, "/", f"{PAGE}/"):
            answer = http.get(path, headers=BROWSER)
            assert (answer.status_code, answer.json()["code"]) == (404, "NO_SUCH_PATH")
        assert http.get("/v1/metrics").status_code == 200


def test_all_its_files_are_one_label_of_the_metrics(server: Running, http: httpx.Client) -> None:
    for path in FILES:
        http.get(path)
    text = http.get("/metrics").text
    assert f'path="/console/{{file}}",status="200"}} {len(FILES)}' in text
    assert "main.js" not in text


# -- the numbers ----------------------------------------------------------------------------------------------------


def dead_letter(server: Running, topic: str, *values: bytes) -> None:
    """Make dead letters of *topic* of these values."""
    store = server.store.sync
    before = len(store.dead_letters(topic)) if topic in {one.name for one in store.topics()} else 0
    store.publish_many(topic, values)
    with store.subscribe(topic, "g") as consumer:
        for number in range(len(values)):
            message = consumer.get(30)
            assert message is not None
            message.reject(f"reason {number}")
    until(lambda: len(store.dead_letters(topic)) == before + len(values))


def test_the_metrics_are_told_as_json(server: Running, http: httpx.Client) -> None:
    server.store.sync.measure()
    dead_letter(server, "t", b"1")
    server.store.sync.publish_many("t", [b"2", b"3"])
    found = http.get("/v1/metrics").json()
    assert found["ready"] is True
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", found["version"])
    topic = found["topics"]["t"]
    assert (topic["messages"], topic["published"], topic["partitions"], topic["dead_letters"]) == (3, 3, 1, 1)
    assert topic["bytes"] == server.store.sync.stats().topics["t"].bytes
    group = topic["groups"]["g"]
    assert (group["lag"], group["positions"], group["dead_lettered"]) == (2, {"0": 1}, 1)
    assert 0 < group["lag_s"] < 60
    assert sum(topic["publish"]["counts"]) == 2
    assert len(topic["publish"]["counts"]) == len(found["bounds_s"]) + 1
    assert sum(found["store"]["fsync"]["counts"]) > 0
    assert found["store"]["path"] == server.store.sync.stats().path


def test_any_number_of_readers_costs_as_much_as_one() -> None:
    clock = FakeClock()
    with running(clock=clock) as server:
        http = server.client()
        first = http.get("/v1/metrics").json()
        server.store.sync.publish("t", b"1")
        assert http.get("/v1/metrics").json() == first
        clock.advance(1.1)
        assert http.get("/v1/metrics").json()["topics"]["t"]["messages"] == 1


def test_the_numbers_tell_what_a_token_may_read_and_no_more(tmp_path: Path) -> None:
    rights: dict[str, dict[str, Any]] = {
        "one": {"read": ["t"]}, "letters": {"read": ["t", "t.dlq"]}, "all": {"read": ["*"]}, "admin": {"admin": ["*"]},
        "publisher": {"publish": ["t"]},
    }  # fmt: skip
    with running(auth=TokenAuth(write_tokens(tmp_path / "tokens", rights))) as server:
        dead_letter(server, "t", b"1")
        server.store.sync.create_topic("other")
        answers = {name: server.client(f"{name}-token").get("/v1/metrics").json() for name in rights}
    assert {name: sorted(found["topics"]) for name, found in answers.items()} == {
        "one": ["t"], "letters": ["t", "t.dlq"], "all": ["other", "t", "t.dlq"], "admin": ["other", "t", "t.dlq"], "publisher": [],
    }  # fmt: skip
    assert "dead_letters" not in answers["one"]["topics"]["t"]
    assert answers["letters"]["topics"]["t"]["dead_letters"] == 1
    assert {name for name, found in answers.items() if "store" in found} == {"all", "admin"}
    assert {name for name, found in answers.items() if "path" in found.get("store", {})} == {"admin"}


# -- pages of dead letters ------------------------------------------------------------------------------------------


def test_dead_letters_come_in_pages_and_the_last_one_says_so(server: Running, http: httpx.Client) -> None:
    dead_letter(server, "t", *[b"%d" % number for number in range(7)])
    seen: list[int] = []
    start: int | None = 0
    for _ in range(3):
        page = http.get("/v1/topics/t/dlq", params={"limit": 3, "start": start}).json()
        assert page["count"] == 7
        seen += [one["offset"] for one in page["messages"]]
        start = page.get("next")
    assert (seen, start) == (list(range(7)), None)


def test_a_filter_looks_at_so_many_and_says_where_to_go_on(server: Running, http: httpx.Client) -> None:
    dead_letter(server, "t", *[b"%d" % number for number in range(7)])
    query: dict[str, Any] = {"reason": "reason 5", "look": 4}
    page = http.get("/v1/topics/t/dlq", params=query).json()
    assert (page["messages"], page["next"]) == ([], 4)
    page = http.get("/v1/topics/t/dlq", params={**query, "start": 4}).json()
    assert [one["offset"] for one in page["messages"]] == [5]
    assert "next" not in page


def test_pages_end_where_an_answer_is_full(server: Running, http: httpx.Client) -> None:
    with running(response_bytes_max=1024) as small:
        dead_letter(small, "t", *[b"x" * 300] * 5)
        client = small.client()
        page = client.get("/v1/topics/t/dlq").json()
        assert 0 < len(page["messages"]) < 5
        assert page["next"] == len(page["messages"])


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The dead letters that were looked at, whether they are there or not."""
    from penstock.store import dead_letter_box

    found: list[int] = []
    plain = dead_letter_box._is_there

    def is_there(group: Any, message: Any) -> bool:
        found.append(message.offset)
        return plain(group, message)

    monkeypatch.setattr(dead_letter_box, "_is_there", is_there)
    return found


def test_what_lies_before_a_dead_letter_is_not_read(server: Running, http: httpx.Client, looked: list[int]) -> None:
    """One of the last ones is listed, opened and sent back as if it were the first."""
    dead_letter(server, "t", *[b"%d" % number for number in range(40)])
    looked.clear()
    assert len(http.get("/v1/topics/t/dlq?start=38").json()["messages"]) == 2
    assert http.get("/v1/topics/t/dlq/38").json()["value"] == "38"
    assert http.post("/v1/topics/t/dlq/38/replay").json() == {"count": 1}
    assert http.get("/v1/topics/t/dlq/38").status_code == 404
    assert http.get("/v1/topics/t/dlq/4000").status_code == 404
    assert set(looked) <= {38, 39}


def test_what_is_gone_is_passed_over(
    server: Running, http: httpx.Client, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lie between two that are there, below and above the last that was taken out."""
    monkeypatch.setattr("penstock.store.dead_letter_box._GAP", 10)
    dead_letter(server, "t", *[b"%d" % number for number in range(60)])
    store = server.store.sync
    store.dead_letters("t").discard(offsets=[*range(1, 40), *range(41, 45), *range(47, 50)])
    looked.clear()
    left = [0, 40, 45, 46, *range(50, 60)]
    assert [one["offset"] for one in http.get("/v1/topics/t/dlq").json()["messages"]] == left
    assert looked == [0, 1, *range(40, 60)]
    assert [one["offset"] for one in http.get("/v1/topics/t/dlq?start=1&limit=2").json()["messages"]] == [40, 45]
    store.dead_letters("t").discard(offsets=range(41, 60))
    assert [one.offset for one in store.dead_letters("t")] == [0, 40]
