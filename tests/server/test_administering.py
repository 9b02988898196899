"""Topics, groups and dead letters over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.running import Running, until

if TYPE_CHECKING:
    import httpx


def test_a_topic_is_created_once_with_the_settings_that_were_given(client: httpx.Client) -> None:
    wanted = {
        "name": "orders", "partitions": 3, "sync": "interval", "segment_bytes": 1 << 20, "segment_messages": 10, "segment_age": 1.5,
        "max_message_bytes": 1000, "dedup_window": 2, "retain": "always", "retention_age": 60, "retention_bytes": 5,
    }  # fmt: skip
    first, second = client.post("/v1/topics", json=wanted), client.post("/v1/topics", json=wanted)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    settings = first.json()["settings"]
    assert (settings["segment_age_ms"], settings["retention_age_ms"], settings["dedup_window_ms"]) == (1500, 60_000, 2000)
    other = client.post("/v1/topics", json={**wanted, "partitions": 4})
    assert (other.status_code, other.json()["code"]) == (409, "TOPIC_EXISTS")
    found = client.get("/v1/topics/orders").json()
    assert (found["partitions"], found["starts"], found["ends"]) == (3, [0, 0, 0], [0, 0, 0])
    assert "orders" in [topic["name"] for topic in client.get("/v1/topics").json()["topics"]]


def test_a_topic_takes_every_setting(client: httpx.Client) -> None:
    wanted = {
        "name": "all-settings", "aging": 1.5, "dead_letter_retention": 2, "index_interval_bytes": 128, "coalesce_below_bytes": 7,
        "coalesce_to_bytes": 64, "group_expiry": 3, "tombstone_grace": 4, "priorities": True,
    }  # fmt: skip
    settings = client.post("/v1/topics", json=wanted).json()["settings"]
    assert (settings["aging_ms"], settings["dead_letter_retention_ms"], settings["coalesce_below_bytes"]) == (1500, 2000, 7)
    assert (settings["index_interval_bytes"], settings["coalesce_to_bytes"]) == (128, 64)


def test_retention_is_done_when_asked_for(client: httpx.Client, shared: Running) -> None:
    client.post("/v1/topics", json={"name": "retained", "retain": "always", "retention_messages": 1, "segment_messages": 1})
    shared.store.sync.publish_many("retained", [b"0"])
    shared.store.sync.publish_many("retained", [b"1"])
    shared.store.sync.publish_many("retained", [b"2"])
    found = client.post("/v1/topics/retained/retain").json()
    assert found["segments"] >= 1
    assert found["bytes"] > 0
    assert client.get("/v1/topics/retained").json()["starts"] != [0]


def test_what_is_not_there_is_not_found(client: httpx.Client, topic: str) -> None:
    for path, code in {
        "/v1/topics/none": "TOPIC_NOT_FOUND",
        "/v1/topics/none/groups": "TOPIC_NOT_FOUND",
        "/v1/topics/none/dlq": "TOPIC_NOT_FOUND",
        "/v1/topics/none/partitions/0/messages": "TOPIC_NOT_FOUND",
        f"/v1/topics/{topic}/groups/none": "GROUP_NOT_FOUND",
        f"/v1/topics/{topic}/dlq/0": "NOT_FOUND",
    }.items():
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    for path in ("/v1/topics/none/groups/g/receive", "/v1/topics/none/groups/g/seek", f"/v1/topics/{topic}/groups/none/seek"):
        body: dict[str, Any] = {"to": "latest"} if path.endswith("seek") else {"create": False}
        assert client.post(path, json=body).status_code == 404


def test_a_group_is_made_changed_described_and_deleted(client: httpx.Client, topic: str, shared: Running) -> None:
    shared.store.sync.publish_many(topic, [b"a", b"b", b"c"])
    path = f"/v1/topics/{topic}/groups/g"
    assert client.put(path, json={"start": 1, "lease": 5, "max_deliveries": 2}).status_code == 200
    changed = client.put(path, json={"lease": 0.5}).json()["settings"]
    assert (changed["lease_ms"], changed["max_deliveries"]) == (500, 2)
    found = client.get(path).json()
    assert (found["lag"], found["positions"], found["members"]) == (2, [1], 0)
    assert [group["name"] for group in client.get(f"/v1/topics/{topic}/groups").json()["groups"]] == ["g"]
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(("to", "position"), [("latest", 3), ("earliest", 0), (2, 2), ("1", 1), ("2000-01-01T00:00:00Z", 0)])
def test_a_group_is_moved(client: httpx.Client, topic: str, shared: Running, to: Any, position: int) -> None:
    shared.store.sync.publish_many(topic, [b"a", b"b", b"c"])
    path = f"/v1/topics/{topic}/groups/g"
    client.put(path, json={})
    assert client.post(f"{path}/seek", json={"to": to}).status_code == 204
    assert client.get(path).json()["positions"] == [position]


def test_a_place_that_is_not_there_moves_nothing(client: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/groups/g"
    client.put(path, json={})
    for body, status in (({"to": 7}, 404), ({"to": -1}, 400), ({"to": "x"}, 400), ({}, 400), ({"to": 0, "partition": 9}, 404)):
        assert client.post(f"{path}/seek", json=body).status_code == status, body


def test_an_offset_is_committed_and_never_goes_back(client: httpx.Client, topic: str, shared: Running) -> None:
    shared.store.sync.publish_many(topic, [b"a", b"b", b"c"])
    path = f"/v1/topics/{topic}/groups/g"
    client.put(path, json={})
    for offset, status, position in ((2, 204, 2), (1, 204, 2), (4, 404, 2), (3, 204, 3)):
        assert client.post(f"{path}/commit", json={"offset": offset, "partition": 0}).status_code == status
        assert client.get(path).json()["positions"] == [position]
    assert client.post(f"{path}/commit", json={"offset": 0, "partition": 1}).status_code == 404
    assert client.post(f"{path}/commit", json={"offset": 0}).status_code == 400


def dead(client: httpx.Client, shared: Running, topic: str, count: int) -> str:
    shared.store.sync.publish_many(topic, [b"%d" % number for number in range(count)])
    found = client.post(f"/v1/topics/{topic}/groups/g/receive", json={"max": count, "wait": 30}).json()["messages"]
    receipts = [message["receipt"] for message in found]
    assert client.post(f"/v1/topics/{topic}/groups/g/reject", json={"receipts": receipts}).status_code == 200
    path = f"/v1/topics/{topic}/dlq"
    until(lambda: client.get(path).json()["count"] == count)
    return path


def test_dead_letters_are_listed_shown_replayed_and_discarded(client: httpx.Client, topic: str, shared: Running) -> None:
    path = dead(client, shared, topic, 4)
    assert [one["value"] for one in client.get(path, params={"limit": 2, "start": 1}).json()["messages"]] == ["1", "2"]
    assert client.get(f"{path}/2").json()["value"] == "2"
    assert client.post(f"{path}/1/replay").json() == {"count": 1}
    assert client.delete(f"{path}/2").status_code == 204
    for answer in (
        client.get(f"{path}/1"),
        client.post(f"{path}/1/replay"),
        client.delete(f"{path}/2"),
        client.get(f"{path}/99"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert client.get(path).json()["count"] == 2
    assert client.post(f"{path}/replay-all").json() == {"count": 2}
    again = client.post(f"/v1/topics/{topic}/groups/g/receive", json={"max": 10, "wait": 30}).json()["messages"]
    assert sorted(message["value"] for message in again) == ["0", "1", "3"]


def test_dead_letters_are_chosen_by_a_query(client: httpx.Client, topic: str, shared: Running) -> None:
    path = dead(client, shared, topic, 4)
    place = {letter.headers["x-dlq-source-offset"]: letter.append_time_us for letter in shared.store.sync.dead_letters(topic)}

    def listed(**query: Any) -> list[str]:
        return sorted(one["value"] for one in client.get(path, params=query).json()["messages"])

    assert listed(source_start=1, source_end=3) == ["1", "2"]
    assert listed(group="g", partition=0) == ["0", "1", "2", "3"]
    assert listed(group="other") == listed(reason="nothing*like this") == listed(key="k") == []
    assert listed(until_us=min(place.values())) == []
    assert len(listed(since_us=min(place.values()))) == 4
    assert listed(header="x-dlq-group") == listed(header="x-dlq-group=g") == ["0", "1", "2", "3"]
    assert listed(header="x-dlq-group=h") == listed(header="none") == listed(key_base64="/w==") == []
    assert listed(key="k", key_base64="aw==") == []
    for wrong in ({"partition": "x"}, {"key_base64": "?"}):
        assert client.get(path, params=wrong).status_code == 400
    assert client.post(f"{path}/discard-all", params={"source_end": 1}).json() == {"count": 1}
    assert client.post(f"{path}/replay-all", params={"source_start": 3}).json() == {"count": 1}
    assert listed() == ["1", "2"]
    assert client.post(f"{path}/discard-all").json() == {"count": 2}


def test_a_topic_without_dead_letters_has_none(client: httpx.Client, topic: str) -> None:
    found = client.get(f"/v1/topics/{topic}/dlq").json()
    assert (found["messages"], found["count"]) == ([], 0)
    assert client.post(f"/v1/topics/{topic}/dlq/replay-all").json() == {"count": 0}
