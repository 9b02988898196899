"""Publishing and reading over HTTP."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.running import Running, running

if TYPE_CHECKING:
    import httpx

OCTETS = {"content-type": "application/octet-stream"}


def publish(client: httpx.Client, topic: str, body: Any, status: int = 201) -> Any:
    answer = client.post(f"/v1/topics/{topic}/messages", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def read(client: httpx.Client, topic: str, partition: int = 0, **query: Any) -> Any:
    answer = client.get(f"/v1/topics/{topic}/partitions/{partition}/messages", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_message_comes_back_as_it_was_published(client: httpx.Client, topic: str) -> None:
    sent = {
        "value": "grüße 🙂", "key": "k", "timestamp": "2024-05-01T10:00:00.000001Z", "dedup_key": "d-1",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value_base64": "/w=="}],
    }  # fmt: skip
    assert publish(client, topic, sent) == {"topic": topic, "partition": 0, "offset": 0, "duplicate": False}
    (message,) = read(client, topic)["messages"]
    assert message == {"topic": topic, "partition": 0, "offset": 0, **sent}


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe", bytes(range(256)) * 40, "é".encode()])
def test_any_bytes_go_through_as_base64_and_raw(client: httpx.Client, topic: str, shared: Running, data: bytes) -> None:
    publish(client, topic, {"value_base64": base64.b64encode(data).decode()})
    raw = client.post(f"/v1/topics/{topic}/messages", content=data, headers=OCTETS)
    assert raw.status_code == 201
    assert [message.value for message in shared.store.sync.read(topic)] == [data, data]
    for message in read(client, topic, base64="true")["messages"]:
        assert base64.b64decode(message["value_base64"]) == data


def test_null_is_a_tombstone(client: httpx.Client, topic: str) -> None:
    publish(client, topic, {"value": None, "key": "k"})
    assert read(client, topic)["messages"][0]["value"] is None


def test_a_raw_message_takes_the_rest_from_headers(client: httpx.Client, shared: Running) -> None:
    shared.store.sync.create_topic("raw", partitions=3)
    headers = {
        **OCTETS, "X-Penstock-Key": "user-1", "X-Penstock-Partition": "2", "X-Penstock-Header-Source": "web",
        "X-Penstock-Timestamp": "2024-05-01T10:00:00Z", "Idempotency-Key": "once",
    }  # fmt: skip
    first = client.post("/v1/topics/raw/messages", content=b"\xff", headers=headers)
    again = client.post("/v1/topics/raw/messages", content=b"other", headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "duplicate": True}
    (message,) = read(client, "raw", 2)["messages"]
    assert message["key"] == "user-1"
    assert message["value_base64"] == "/w=="
    assert message["headers"] == [{"name": "source", "value": "web"}]
    assert message["timestamp"].startswith("2024-05-01T10:00:00")


def test_an_idempotency_key_is_the_dedup_key_of_what_has_none(client: httpx.Client, topic: str) -> None:
    path, header = f"/v1/topics/{topic}/messages", {"idempotency-key": "a"}
    assert client.post(path, json={"value": "1"}, headers=header).status_code == 201
    assert client.post(path, json={"value": "1"}, headers=header).json()["duplicate"]
    assert client.post(path, json={"value": "1", "dedup_key": "a"}).json()["duplicate"]
    assert not client.post(path, json={"value": "1", "dedup_key": "b"}, headers=header).json()["duplicate"]
    assert read(client, topic)["end"] == 2


def test_an_idempotency_key_makes_an_array_safe_to_repeat(client: httpx.Client, topic: str) -> None:
    path, body = f"/v1/topics/{topic}/messages", [{"value": "1"}, {"value": "2", "dedup_key": "own"}, {"value": "3"}]
    first = client.post(path, json=body, headers={"idempotency-key": "k"}).json()["receipts"]
    again = client.post(path, json=body, headers={"idempotency-key": "k"}).json()["receipts"]
    assert again == [{**receipt, "duplicate": True} for receipt in first]
    assert client.post(path, json={"value": "2", "dedup_key": "own"}).json()["duplicate"]
    assert read(client, topic)["end"] == 3


def test_an_array_goes_to_the_partition_that_a_header_names(client: httpx.Client, shared: Running) -> None:
    shared.store.sync.create_topic("array", partitions=3)
    body = [{"value": "1", "key": "a"}, {"value": "2", "key": "b"}]
    answer = client.post("/v1/topics/array/messages", json=body, headers={"x-penstock-partition": "2"})
    assert [receipt["partition"] for receipt in answer.json()["receipts"]] == [2, 2]


def test_a_header_that_would_be_passed_over_is_refused(client: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/messages"
    for name in ("X-Penstock-Partiton", "X-Penstock-Dedup-Key"):
        assert client.post(path, content=b"x", headers={**OCTETS, name: "0"}).status_code == 400
    for name in ("X-Penstock-Key", "X-Penstock-Partition", "X-Penstock-Header-A"):
        assert client.post(path, json={"value": "x"}, headers={name: "0"}).status_code == 400
    assert client.post(path, json=[{"value": "x"}], headers={"X-Penstock-Key": "0"}).status_code == 400
    assert read(client, topic)["end"] == 0


def test_an_array_is_published_as_one(client: httpx.Client, topic: str) -> None:
    receipts = publish(client, topic, [{"value": str(number)} for number in range(100)])["receipts"]
    assert [receipt["offset"] for receipt in receipts] == list(range(100))


def test_an_array_with_one_bad_message_stores_nothing(client: httpx.Client, topic: str) -> None:
    for bad in (
        {"value": 1},
        {},
        {"value": "x", "more": 1},
        {"value_base64": "*"},
        {"value": "x", "partition": 7},
        {"value": "\ud800"},
    ):
        answer = client.post(f"/v1/topics/{topic}/messages", content=json.dumps([{"value": "good"}, bad]), headers=JSON)
        assert answer.status_code == 400, (bad, answer.text)
    assert read(client, topic)["end"] == 0


JSON = {"content-type": "application/json"}


def uuid_of(client: httpx.Client, topic: str) -> str:
    found: str = client.get(f"/v1/topics/{topic}").json()["uuid"]
    return found


def test_a_page_of_another_topic_with_the_same_name_is_refused(client: httpx.Client, topic: str) -> None:
    publish(client, topic, [{"value": "a"}])
    asked = {"start": "0", "uuid": "0" * 32}
    gone = client.get(f"/v1/topics/{topic}/partitions/0/messages", params=asked)
    assert (gone.status_code, gone.json()["code"]) == (404, "TOPIC_NOT_FOUND")


def test_pages_follow_each_other(client: httpx.Client, topic: str) -> None:
    publish(client, topic, [{"value": str(number)} for number in range(25)])
    found, start = [], "earliest"
    while True:
        page = read(client, topic, start=start, limit=10)
        if not page["messages"]:
            break
        found += [message["value"] for message in page["messages"]]
        start = page["next"]
    assert found == [str(number) for number in range(25)]
    assert page == {"uuid": uuid_of(client, topic), "messages": [], "next": 25, "end": 25}
    assert read(client, topic, start=25, uuid=page["uuid"]) == page


def test_reading_begins_at_a_place(client: httpx.Client, topic: str) -> None:
    publish(client, topic, [{"value": "a"}, {"value": "b"}])
    assert read(client, topic, start="latest") == {"uuid": uuid_of(client, topic), "messages": [], "next": 2, "end": 2}
    assert [one["offset"] for one in read(client, topic, start="1")["messages"]] == [1]
    assert len(read(client, topic, start="2020-01-01T00:00:00Z")["messages"]) == 2
    gone = client.get(f"/v1/topics/{topic}/partitions/0/messages", params={"start": "3"})
    assert gone.status_code == 404
    assert gone.json() | {"title": "", "detail": "", "type": ""} == {
        "type": "", "title": "", "detail": "", "status": 404, "code": "OFFSET_OUT_OF_RANGE", "offset": 3, "first": 0, "end": 2,
    }  # fmt: skip


def test_an_answer_is_bounded_in_bytes_and_one_message_always_fits() -> None:
    with running(response_bytes_max=1024) as server:
        client = server.client()
        publish(client, "t", [{"value": "x" * 400} for _ in range(5)] + [{"value": "y" * 5000}])
        sizes, start = [], 0
        while page := read(client, "t", start=start)["messages"]:
            sizes.append(len(page))
            start = page[-1]["offset"] + 1
        assert sizes == [2, 2, 1, 1]


def test_a_topic_with_its_own_limit_says_so(client: httpx.Client, shared: Running) -> None:
    shared.store.sync.create_topic("small", max_message_bytes=10)
    answer = client.post("/v1/topics/small/messages", json={"value": "x" * 11})
    assert (answer.status_code, answer.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
    assert answer.headers["content-type"] == "application/problem+json"


def test_curl_walks_the_api(shared: Running) -> None:
    """A client that is not ours, nor Python's."""

    def curl(*arguments: str) -> str:
        done = subprocess.run(
            ["curl", "-sS", "--fail-with-body", *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    base = shared.url + "/v1/topics"
    curl("-X", "POST", base, "--json", '{"name": "walk"}')
    curl(f"{base}/walk/messages", "--json", '{"value": "hello"}')
    curl(f"{base}/walk/messages", "-H", "content-type: application/octet-stream", "--data-binary", "raw")
    found = json.loads(curl(f"{base}/walk/groups/g/receive", "--json", '{"max": 10, "wait": 30}'))["messages"]
    assert [message["value"] for message in found] == ["hello", "raw"]
    receipts = json.dumps({"receipts": [message["receipt"] for message in found]})
    assert json.loads(curl(f"{base}/walk/groups/g/ack", "--json", receipts)) == {"done": 2}
    events = curl("-N", "-H", "accept: text/event-stream", f"{base}/walk/groups/g/stream?seconds=0.1")
    assert "event: end" in events
