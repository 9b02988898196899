"""Long polls, receipts and streams."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock.server.auth import TokenAuth
from penstock.server.http.body import ClientGone
from penstock.server.http.consumers import Place
from penstock.testing import FakeClock
from tests.server.running import PATIENCE, Running, running, until, write_tokens

if TYPE_CHECKING:
    from pathlib import Path


def receive(client: httpx.Client, topic: str = "t", group: str = "g", **body: Any) -> list[dict[str, Any]]:
    answer = client.post(f"/v1/topics/{topic}/groups/{group}/receive", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def finish(client: httpx.Client, how: str, *receipts: str, topic: str = "t", group: str = "g", **body: Any) -> httpx.Response:
    return client.post(f"/v1/topics/{topic}/groups/{group}/{how}", json={"receipts": receipts, **body})


@pytest.fixture
def filled(server: Running) -> Running:
    server.store.sync.create_topic("t")
    server.store.sync.publish_many("t", [b"a", b"b", b"c"])
    return server


def group(server: Running, topic: str = "t", name: str = "g") -> Any:
    return server.store.stats().topics[topic].groups[name]


def test_what_is_acked_is_done_and_the_rest_stays(filled: Running, http: httpx.Client) -> None:
    found = receive(http, max=10)
    assert [message["value"] for message in found] == ["a", "b", "c"]
    assert {message["attempt"] for message in found} == {1}
    assert receive(http, max=10) == []
    assert finish(http, "ack", found[0]["receipt"], found[2]["receipt"], wait=True).json() == {"done": 2}
    assert group(filled).lag == 1


def test_a_poll_leases_what_it_asks_for(filled: Running, http: httpx.Client) -> None:
    """What is leased when a server dies is suspected of its death, so a client that may hold much must not have all of it."""
    receive(http, max=1)
    (opened,) = filled.listener.context.consumers._clients.values()
    assert opened.result().consumer.sync._member.buffered == 0


def test_a_poll_is_woken_by_a_publish(filled: Running, http: httpx.Client) -> None:
    receive(http, max=3)
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(receive, http, wait=30)
        until(lambda: filled.listener.context.waiting)
        filled.store.sync.publish("t", b"new")
        assert [message["value"] for message in poll.result(PATIENCE)] == ["new"]


def test_a_poll_that_finds_nothing_ends_in_time(filled: Running, http: httpx.Client) -> None:
    receive(http, max=3)
    assert receive(http, wait=0.05) == []
    assert receive(http) == []


def test_nack_brings_a_message_back_and_counts(filled: Running, http: httpx.Client) -> None:
    (first,) = receive(http)
    assert finish(http, "nack", first["receipt"], delay=0, reason="broken").status_code == 200
    again = next(message for message in receive(http, max=10) if message["offset"] == 0)
    assert again["attempt"] == 2
    assert again["receipt"] != first["receipt"]


def test_reject_makes_a_dead_letter(filled: Running, http: httpx.Client) -> None:
    (first,) = receive(http)
    assert finish(http, "reject", first["receipt"], reason="no good").status_code == 200
    until(lambda: http.get("/v1/topics/t/dlq").json()["count"])
    (dead,) = http.get("/v1/topics/t/dlq").json()["messages"]
    assert {"name": "x-dlq-reason", "value": "no good"} in dead["headers"]


def test_a_receipt_works_once_and_its_copy_is_late(filled: Running, http: httpx.Client) -> None:
    (first,) = receive(http)
    assert finish(http, "ack", first["receipt"]).status_code == 200
    for how in ("ack", "nack", "reject", "extend"):
        answer = finish(http, how, first["receipt"])
        assert (answer.status_code, answer.json()["code"]) == (409, "LEASE_EXPIRED")
        assert answer.json()["late"] == [first["receipt"]]
    assert group(filled).nacked == 0


def test_late_receipts_change_nothing_and_the_others_are_done(filled: Running, http: httpx.Client) -> None:
    found = [message["receipt"] for message in receive(http, max=3)]
    finish(http, "ack", found[1])
    answer = finish(http, "ack", *found)
    assert answer.status_code == 409
    assert (answer.json()["done"], answer.json()["late"]) == (2, [found[1]])
    assert group(filled).lag == 0


def test_a_receipt_is_for_its_topic_and_group_only(filled: Running, http: httpx.Client) -> None:
    filled.store.sync.create_topic("other")
    (first,) = receive(http)
    receive(http, group="h")
    assert finish(http, "ack", first["receipt"], group="h").status_code == 409
    assert finish(http, "ack", first["receipt"], topic="other").status_code == 409
    assert finish(http, "ack", first["receipt"]).status_code == 200


def test_a_guessed_receipt_is_refused(filled: Running, http: httpx.Client) -> None:
    """The number in front of a receipt may be known; the 128 bits behind it are not."""
    (first,) = receive(http)
    raw = base64.urlsafe_b64decode(first["receipt"])
    for guess in (raw[:8] + b"\0" * 16, raw[:-1] + bytes([raw[-1] ^ 1]), raw[:8], raw + b"\0", b""):
        text = base64.urlsafe_b64encode(guess).decode() or "="
        assert finish(http, "ack", text).status_code == 409
    for text in ("x", "é", "A" * 64, "../..", "\x00"):
        assert finish(http, "ack", text).status_code == 409
    assert group(filled).lag == 3
    assert finish(http, "ack", first["receipt"]).status_code == 200


def test_another_principal_cannot_use_a_receipt(tmp_path: Path) -> None:
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {name: {"consume": ["t"]} for name in ("a", "b")}))
    with running(auth=auth) as server:
        server.store.sync.publish("t", b"x")
        a, b = server.client("a-token"), server.client("b-token")
        (first,) = receive(a)
        assert finish(b, "ack", first["receipt"]).status_code == 409
        assert finish(a, "ack", first["receipt"]).status_code == 200


def test_a_lease_that_ended_counts_as_a_failure(filled: Running, http: httpx.Client) -> None:
    (first,) = receive(http, lease=0.05)
    until(
        lambda: (found := receive(http, max=10, wait=0.2)) and any(one["offset"] == 0 and one["attempt"] == 2 for one in found)
    )
    assert finish(http, "ack", first["receipt"]).status_code == 409


def test_a_message_whose_lease_ends_before_the_answer_is_made_is_left_out(filled: Running) -> None:
    """Found by schemathesis: with a lease of a millisecond the whole poll failed, and its other messages were held by nobody."""
    consumers = filled.listener.context.consumers

    async def take() -> int:
        client = await consumers.get(Place("t", "g", "anybody", ""))
        found = await client.consumer.get_many(3, 0)
        assert len(found) == 3
        await found[1].ack()
        return len(consumers.hand(client, found, 5))

    assert filled.call(take()) == consumers.held == 2


def test_an_extended_lease_goes_on() -> None:
    clock = FakeClock()
    with running(store_clock=clock) as server:
        server.store.sync.publish_many("t", [b"a", b"b", b"c"])
        http = server.client()
        (first,) = receive(http, lease=10)
        assert finish(http, "extend", first["receipt"], lease=60).status_code == 200
        clock.advance(11)  # the first lease is over
        assert [message["offset"] for message in receive(http, max=10)] == [1, 2]
        assert finish(http, "ack", first["receipt"]).status_code == 200


def test_a_client_that_went_away_while_it_waited_takes_nothing(filled: Running, http: httpx.Client) -> None:
    receive(http, max=3)
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/topics/t/groups/g/receive", json={"wait": 30}, timeout=0.3)
    until(lambda: not filled.listener.context.waiting)
    filled.store.sync.publish("t", b"new")
    (found,) = receive(http, wait=10)
    assert (found["value"], found["attempt"]) == ("new", 1)


def test_what_does_not_fit_in_the_answer_goes_back_uncounted() -> None:
    with running(response_bytes_max=1024) as server:
        server.store.sync.publish_many("t", [bytes([48 + number]) * 400 for number in range(5)])
        client = server.client()
        found = [receive(client, max=5) for _ in range(3)]
        assert [[message["value"][0] for message in part] for part in found] == [["0", "1"], ["2", "3"], ["4"]]
        assert all(message["attempt"] == 1 for part in found for message in part)


def test_workers_of_an_ordered_group_have_partitions_of_their_own(server: Running, http: httpx.Client) -> None:
    server.store.sync.create_topic("t", partitions=2)
    assert http.put("/v1/topics/t/groups/g", json={"ordered": True}).status_code == 200
    assert receive(http, consumer="one") == receive(http, consumer="two") == []
    for partition in (0, 1):
        server.store.sync.publish_many("t", [b"x", b"y"], partition=partition)
    one, two = receive(http, max=10, wait=30, consumer="one"), receive(http, max=10, wait=30, consumer="two")
    assert {len({message["partition"] for message in part}) for part in (one, two)} == {1}
    assert one[0]["partition"] != two[0]["partition"]


CONSUMERS = "/v1/topics/t/groups/g/consumers"


def test_workers_that_have_joined_share_the_partitions_before_any_of_them_asks(server: Running, http: httpx.Client) -> None:
    server.store.sync.create_topic("t", partitions=4)
    http.put("/v1/topics/t/groups/g", json={"ordered": True})
    for partition in range(4):
        server.store.sync.publish("t", b"x", partition=partition)
    for name in ("a", "b"):
        assert http.put(f"{CONSUMERS}/{name}").status_code == 204
        assert http.put(f"{CONSUMERS}/{name}").status_code == 204, "it is there"
    assert group(server).members == 2
    assert [len(receive(http, max=10, consumer=name)) for name in ("a", "b")] == [2, 2]


def test_a_worker_that_leaves_gives_back_what_it_holds_at_once_and_uncounted(filled: Running, http: httpx.Client) -> None:
    held = receive(http, max=2, consumer="a")
    assert http.delete(f"{CONSUMERS}/a").status_code == 204
    assert finish(http, "ack", held[0]["receipt"]).json()["late"] == [held[0]["receipt"]]
    assert [(one["offset"], one["attempt"]) for one in receive(http, max=10)] == [(0, 1), (1, 1), (2, 1)]
    assert group(filled).members == 1
    for name in ("a", "nobody"):
        assert http.delete(f"{CONSUMERS}/{name}").status_code == 204, "who is not there has left"
    assert filled.listener.context.consumers.held == 3


def test_a_poll_of_a_worker_that_leaves_ends_with_nothing(filled: Running, http: httpx.Client) -> None:
    """And does not make it join again."""
    receive(http, max=3)
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(receive, http, wait=30, consumer="a")
        until(lambda: filled.listener.context.waiting)
        http.delete(f"{CONSUMERS}/a")
        assert poll.result(PATIENCE) == []
    assert group(filled).members == 1


def test_a_worker_holds_no_more_than_it_said(filled: Running, http: httpx.Client) -> None:
    assert http.put(f"{CONSUMERS}/a", json={"in_flight": 2}).status_code == 204
    held = receive(http, max=10, consumer="a")
    assert len(held) == 2
    assert receive(http, max=10, consumer="a") == []
    finish(http, "ack", held[0]["receipt"])
    assert len(receive(http, max=10, consumer="a")) == 1


def test_a_worker_is_that_of_its_own_token(tmp_path: Path) -> None:
    """Another token cannot make it leave, whatever name it uses."""
    tokens = write_tokens(tmp_path / "tokens", {"a": {"admin": ["*"]}, "b": {"consume": ["t"]}})
    with running(auth=TokenAuth(tokens)) as server:
        server.store.sync.publish("t", b"x")
        (held,) = receive(server.client("a-token"), consumer="w")
        assert server.client("b-token").delete(f"{CONSUMERS}/w").status_code == 204
        assert finish(server.client("a-token"), "ack", held["receipt"]).status_code == 200


def test_a_consumer_that_does_not_come_back_is_forgotten_and_its_leases_end() -> None:
    with running(consumer_idle_s=0.1) as server:
        server.store.sync.publish_many("t", [b"a", b"b"])
        client = server.client()
        receive(client, lease=0.05)
        until(lambda: group(server).members == 0)
        assert group(server).expired_leases == 1, "a message that its worker did not survive counts"
        assert server.listener.context.consumers.open == 0


def test_receipts_are_forgotten_some_time_after_their_leases() -> None:
    clock = FakeClock()
    with running(clock=clock) as server:
        server.store.sync.publish_many("t", [b"a", b"b"])
        receive(server.client(), max=2, lease=10)
        context = server.listener.context
        clock.advance(69)
        server.call(context.consumers.sweep())
        assert context.consumers.held == 2
        clock.advance(2)
        server.call(context.consumers.sweep())
        assert context.consumers.held == 0


def test_a_deleted_group_is_made_anew_by_the_next_poll(filled: Running, http: httpx.Client) -> None:
    assert len(receive(http, max=3)) == 3
    assert http.delete("/v1/topics/t/groups/g").status_code == 204
    assert len(receive(http, max=3, wait=30)) == 3


def test_only_so_many_may_wait() -> None:
    with running(waiting_max=1) as server:
        server.store.sync.create_topic("t")
        client = server.client()
        with ThreadPoolExecutor() as pool:
            poll = pool.submit(receive, client, wait=30)
            until(lambda: server.listener.context.waiting)
            refused = client.post("/v1/topics/t/groups/g/receive", json={"wait": 1})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert receive(client) == [], "who does not wait needs no place"
            server.store.sync.publish("t", b"x")
            poll.result(PATIENCE)


def test_only_so_many_consumers_groups_and_topics_are_made() -> None:
    with running(consumers_max=1, groups_max=1, topics_max=1) as server:
        client = server.client()
        assert client.post("/v1/topics", json={"name": "t"}).status_code == 201
        assert client.post("/v1/topics", json={"name": "t"}).status_code == 200
        assert client.post("/v1/topics", json={"name": "u"}).status_code == 503
        assert client.post("/v1/topics/u/messages", json={"value": ""}).status_code == 503
        receive(client)
        assert client.post("/v1/topics/t/groups/h/receive").status_code == 503
        assert client.post("/v1/topics/t/groups/g/receive", json={"consumer": "two"}).status_code == 503


class Departed:
    """A body whose client goes away when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def gone(self) -> None:
        await self.left.wait()


def test_work_that_nobody_gets_the_result_of_is_undone(server: Running) -> None:
    undone: list[str] = []

    async def lose() -> None:
        body: Any = Departed()

        async def work() -> str:
            body.left.set()
            await asyncio.sleep(0)
            return "done"

        with pytest.raises(ClientGone):
            await server.listener.context.unless_gone(work(), body, undone.append)

    server.call(lose())
    assert undone == ["done"]


# -- streams --------------------------------------------------------------------------------------------------------

EVENTS = {"accept": "text/event-stream"}


class Stream:
    """A stream that is read in a thread."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.status = 0
        self._client, self._path = client, path
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._opened.wait(PATIENCE)

    def _read(self) -> None:
        with self._client.stream("GET", self._path, headers=EVENTS) as answer:
            self.status, self._answer = answer.status_code, answer
            self._opened.set()
            kind = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    self.events.append((kind, json.loads(line[6:])))

    def messages(self) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind == "message"]

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


PATH = "/v1/topics/t/groups/g/stream"


def end(server: Running, *streams: Stream) -> None:
    """The server stops, and with it the streams."""
    server.call(server.listener.stop(30))
    for stream in streams:
        stream.join()


def test_a_stream_sends_what_is_there_and_what_comes(filled: Running, http: httpx.Client) -> None:
    stream = Stream(http, PATH + "?seconds=30")
    until(lambda: len(stream.messages()) == 3)
    filled.store.sync.publish("t", b"new")
    until(lambda: len(stream.messages()) == 4)
    with filled.client() as other:
        assert finish(other, "ack", *[message["receipt"] for message in stream.messages()]).json() == {"done": 4}
    assert group(filled).lag == 0
    filled.call(filled.listener.stop(30))
    stream.join()
    assert stream.events[-1] == ("end", {})


def test_a_stream_sends_no_more_than_may_be_in_flight(filled: Running, http: httpx.Client) -> None:
    stream = Stream(http, PATH + "?in_flight=2&seconds=30")
    until(lambda: len(stream.messages()) == 2)
    with filled.client() as other:
        assert group(filled).in_flight == 2
        finish(other, "ack", stream.messages()[0]["receipt"])
        until(lambda: len(stream.messages()) == 3)
    filled.call(filled.listener.stop(30))
    stream.join()


def test_leases_of_a_stream_run_when_its_client_is_at_the_message() -> None:
    """With a lease of its own too: what waits behind is not charged, however long that takes."""
    clock = FakeClock()
    with running(store_clock=clock) as server:
        server.store.sync.publish_many("t", [b"0", b"1", b"2", b"3"])
        stream = Stream(server.client(), PATH + "?lease=5&in_flight=3")
        until(lambda: len(stream.messages()) == 3)
        with server.client() as other:
            for number in range(3):
                for _ in range(3):
                    clock.advance(4)
                    assert finish(other, "extend", stream.messages()[number]["receipt"], lease=5).status_code == 200
                assert finish(other, "ack", stream.messages()[number]["receipt"]).status_code == 200
                until(lambda: len(stream.messages()) == 4)
            assert group(server).expired_leases == 0
            clock.advance(6)  # and not the 30 s of the group
            until(lambda: group(server).expired_leases == 1)
        end(server, stream)


def test_receipts_of_a_stream_are_good_as_long_as_their_messages_wait() -> None:
    """A client that is slow comes to the last of them after many leases."""
    clock = FakeClock()
    with running(clock=clock) as server:
        server.store.sync.publish_many("t", [b"0", b"1"])
        stream = Stream(server.client(), PATH)
        until(lambda: len(stream.messages()) == 2)
        clock.advance(1_000)
        server.call(server.listener.context.consumers.sweep())
        with server.client() as other:
            for message in stream.messages():
                assert finish(other, "ack", message["receipt"]).status_code == 200
        assert group(server).lag == 0
        end(server, stream)


def test_a_stream_whose_client_stood_still_goes_on_however_long_that_was() -> None:
    """A late receipt is the sign that it is there again."""
    clock, store_clock = FakeClock(), FakeClock()
    with running(clock=clock, store_clock=store_clock) as server:
        server.store.sync.publish_many("t", [b"0", b"1", b"2"])
        stream = Stream(server.client(), PATH + "?in_flight=2")
        until(lambda: len(stream.messages()) == 2)
        store_clock.advance(31)
        until(lambda: group(server).in_flight == 0)
        clock.advance(1_000)
        server.call(server.listener.context.consumers.sweep())
        with server.client() as other:
            assert finish(other, "ack", stream.messages()[0]["receipt"]).status_code == 409
            until(lambda: len(stream.messages()) == 4)
            assert [message["attempt"] for message in stream.messages()] == [1, 1, 1, 1]
        end(server, stream)


def test_a_stream_says_how_many_messages_its_client_handles_at_once(server: Running) -> None:
    """It gets so many, also where there are others; one that does not say it is sent what it finishes in a while."""
    server.store.sync.publish_many("t", [b"x"] * 100)
    other = server.store.sync.subscribe("t", "g")
    gathering = Stream(server.client(), PATH + "?concurrency=20")
    until(lambda: len(gathering.messages()) >= 20)
    plain = Stream(server.client(), PATH)
    until(lambda: len(plain.messages()) == 2)
    assert len(gathering.messages()) == 21
    other.close()
    end(server, gathering, plain)


def test_when_a_stream_ends_what_was_not_finished_is_ready_at_once_and_uncounted(filled: Running, http: httpx.Client) -> None:
    stream = Stream(http, PATH + "?seconds=0.3")
    stream.join()
    assert len(stream.messages()) == 3
    again = receive(http, max=3)
    assert [message["attempt"] for message in again] == [1, 1, 1]
    assert finish(http, "ack", stream.messages()[0]["receipt"]).status_code == 409


def test_a_stream_whose_client_goes_away_ends(filled: Running) -> None:
    with filled.client() as client, client.stream("GET", PATH, headers=EVENTS) as answer:
        next(answer.iter_bytes())
        assert group(filled).members == 1
    until(lambda: group(filled).members == 0)


def test_a_stream_needs_its_accept_header(filled: Running, http: httpx.Client) -> None:
    """A page of another site can make a browser ask for an image there, but not with this header."""
    for accept in ("*/*", "image/png", "text/html"):
        assert http.get(PATH, headers={"accept": accept}).status_code == 406
    assert http.head(PATH, headers=EVENTS).status_code == 405


def test_a_stream_ends_within_a_second_or_two_when_its_right_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    auth = TokenAuth(write_tokens(path, {"a": {"consume": ["t"]}}))
    with running(auth=auth) as server:
        server.store.sync.publish("t", b"x")
        stream = Stream(server.client("a-token"), PATH)
        until(stream.messages)
        write_tokens(path, {"a": {"consume": ["u"]}})
        auth.reload()
        stream.join()
        assert stream.events[-1][0] == "error"
        assert stream.events[-1][1]["code"] == "PERMISSION_DENIED"


def test_a_request_that_waits_gets_nothing_after_its_token_was_revoked(tmp_path: Path) -> None:
    """And the message is there for others, uncounted."""
    path = tmp_path / "tokens"
    auth = TokenAuth(write_tokens(path, {"a": {"consume": ["t"]}, "b": {"consume": ["t"]}}))
    with running(auth=auth) as server:
        server.store.sync.create_topic("t")
        client = server.client("a-token")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.post, "/v1/topics/t/groups/g/receive", json={"wait": 30}, timeout=PATIENCE)
            until(lambda: "g" in server.store.sync.stats().topics["t"].groups and group(server).members)
            write_tokens(path, {"b": {"consume": ["t"]}})
            auth.reload()
            server.store.sync.publish("t", b"x")
            assert waiting.result(PATIENCE).status_code == 401
        [message] = receive(server.client("b-token"))
        assert message["attempt"] == 1


def test_a_stream_that_nobody_reads_holds_little(server: Running) -> None:
    """What is sent waits for the socket; the rest stays in the log."""
    server.store.sync.publish_many("t", [b"x" * 100_000] * 60)
    with server.client() as client, client.stream("GET", PATH + "?in_flight=1000", headers=EVENTS):
        until(lambda: group(server).in_flight)
        time.sleep(0.3)
        assert group(server).in_flight <= 12
        with server.client() as other:
            assert len(receive(other, max=1)) == 1, "nobody else waits for it"


def test_an_evicted_poller_is_told_once_and_may_go_on(filled: Running, http: httpx.Client) -> None:
    """By the name that it gave itself it is found among the members."""
    [message] = receive(http, consumer="worker-3", max=1)
    [member] = http.get("/v1/topics/t/groups/g/members").json()["members"]
    assert (member["name"], member["interface"], member["in_flight"]) == ("worker-3", "http", 1)
    assert member["peer"].startswith("127.0.0.1:")
    assert http.delete(f"/v1/topics/t/groups/g/members/{member['id']}").json() == {"messages": 1}
    assert http.delete(f"/v1/topics/t/groups/g/members/{member['id']}").status_code == 404
    assert finish(http, "ack", message["receipt"]).status_code == 409
    told = http.post("/v1/topics/t/groups/g/receive", json={"consumer": "worker-3"})
    assert (told.status_code, told.json()["code"]) == (409, "CONSUMER_EVICTED")
    [again] = receive(http, consumer="worker-3", max=1)
    assert (again["value"], again["attempt"]) == (message["value"], 1)


def test_the_stream_of_an_evicted_member_ends_with_an_error(filled: Running, http: httpx.Client) -> None:
    headers = {"accept": "text/event-stream"}
    with http.stream("GET", "/v1/topics/t/groups/g/stream", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: message"
        [member] = http.get("/v1/topics/t/groups/g/members").json()["members"]
        http.delete(f"/v1/topics/t/groups/g/members/{member['id']}")
        rest = "\n".join(lines)
    assert "event: error" in rest
    assert "CONSUMER_EVICTED" in rest
