"""How streams end, what a client costs that does not read, and stopping in order."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.errors import StorageFailed
from penstock.server.grpc.subscribing import SubscribeStream
from penstock.store.store import Store
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.conformance.backends import SETTINGS
from tests.grpc.helpers import numbered, refused, request_of, until
from tests.grpc.running import PATIENCE, Running, Subscribed, running
from tests.volume.gated_files import GatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL_WINDOW = {"grpc.http2.bdp_probe": 0, "grpc.http2.lookahead_bytes": 65_536}


def group_of(server: Running, group: str = "g"):
    return server.store.stats().topics["t"].groups[group]


def held(server: Running, count: int, **options: Any):
    """A stream that holds *count* messages."""
    server.store.publish_many("t", numbered(count))
    stream = server.subscribe("t", credit=count, **options)
    stream.started()
    found: list[pb.Delivery] = []
    while len(found) < count:
        found += stream.deliveries()
    return stream, found


# -- the end --------------------------------------------------------------------------------------------------------


def test_closing_the_sending_side_gives_back_what_is_unfinished_uncounted(server: Running) -> None:
    stream, found = held(server, 5)
    assert stream.ack(found[0]) == 0
    stream.end()
    until(lambda: group_of(server).members == 0)
    assert (group_of(server).in_flight, group_of(server).retrying) == (0, 0)
    with server.store.subscribe("t", "g") as consumer:
        again = [consumer.get(PATIENCE) for _ in range(4)]
        assert [(one.offset, one.attempt) for one in again if one is not None] == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_closing_while_a_push_waits_for_room_is_in_order_too(server: Running) -> None:
    server.store.publish_many("t", [bytes(50_000)] * 100)
    stream = Subscribed(server.stub(**SMALL_WINDOW), "t", credit=100)
    stream.started()
    (serving,) = server.listener.service.streams
    assert isinstance(serving, SubscribeStream)
    until(lambda: serving._held)
    stream._requests.put(None)
    until(lambda: not serving._credit)
    # It has read nothing so far, and gets what was on its way; no error.
    kinds = [response.WhichOneof("event") for response in stream.call]
    assert set(kinds[:-1]) == {"deliveries"}
    assert kinds[-1] == "closing"
    until(lambda: group_of(server).members == 0)
    assert (group_of(server).lag, group_of(server).nacked) == (100, 0)


def test_credit_that_is_given_while_a_push_waits_for_room_counts_once(server: Running) -> None:
    server.store.publish_many("t", [bytes(50_000)] * 100)
    stream = Subscribed(server.stub(**SMALL_WINDOW), "t", credit=30, prefetch=1_000)
    stream.started()
    (serving,) = server.listener.service.streams
    assert isinstance(serving, SubscribeStream)
    until(lambda: serving._held)
    stream.send(credit=10)
    stream.send(credit=20)
    got = 0
    while got < 60:
        got += len(stream.deliveries())
    assert got == 60
    assert stream.settle() == 0
    assert (serving._credit, group_of(server).in_flight) == (0, 60)
    stream.end()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_cancelling_gives_back_what_is_unfinished_and_counts_as_many_as_were_handled(server: Running, concurrency: int) -> None:
    stream, found = held(server, 6, concurrency=concurrency, backoff_ms=0)
    assert stream.ack(found[0]) == 0
    stream.cancel()
    until(lambda: group_of(server).members == 0)
    with server.store.subscribe("t", "g") as consumer:
        again = [one for one in (consumer.get(PATIENCE) for _ in range(5)) if one is not None]
    attempts = {one.offset: one.attempt for one in again}
    assert attempts == {offset: 2 if offset <= concurrency else 1 for offset in range(1, 6)}


def test_a_lost_connection_is_the_same(server: Running) -> None:
    server.store.publish_many("t", numbered(3))
    channel = server.channel()
    stream = Subscribed(PenstockStub(channel), "t", credit=3, backoff_ms=0)
    stream.started()
    assert len(stream.deliveries()) == 3
    channel.close()
    until(lambda: group_of(server).members == 0)
    assert group_of(server).nacked == 1
    assert group_of(server).lag == 3


def test_a_stream_that_is_cancelled_while_it_waits_leaves_no_member(server: Running) -> None:
    server.store.create_topic("t")
    streams = [server.subscribe("t", credit=1) for _ in range(10)]
    for stream in streams:
        stream.started()
    for stream in streams:
        stream.cancel()
    until(lambda: group_of(server).members == 0)
    until(lambda: server.listener.service.is_idle)
    assert not server.listener.service.streams
    server.store.publish("t", b"x")
    with server.store.subscribe("t", "g") as consumer:
        assert consumer.get(PATIENCE) is not None


def test_many_cancelled_at_once_lose_nothing(server: Running) -> None:
    """Cancelled while messages are on their way to them: each of them is acked once, by who got it at last."""
    server.store.publish_many("t", numbered(300))
    streams = [server.subscribe("t", credit=50, max_deliveries=0, backoff_ms=0) for _ in range(6)]
    for stream in streams:
        stream.cancel()
    last = server.subscribe("t", credit=1_000, prefetch=1_000)
    last.started()
    seen: set[int] = set()
    while len(seen) < 300:
        found = last.deliveries()
        last.send(ack=[pb.Tags(first=one.tag, count=1) for one in found], credit=len(found))
        seen |= {one.message.offset for one in found}
    until(lambda: group_of(server).lag == 0)
    last.end()


# -- slow clients ---------------------------------------------------------------------------------------------------


def test_a_consumer_that_does_not_read_costs_little_and_delays_nobody(server: Running) -> None:
    for _ in range(6):
        server.store.publish_many("t", [bytes(50_000)] * 100)
    stalled = Subscribed(server.stub(**SMALL_WINDOW), "t", "slow", credit=1_000, prefetch=1_000, prefetch_bytes=60_000_000)
    stalled.started()
    quick = server.subscribe("t", "quick", credit=600, prefetch=1_000)
    quick.started()
    got = 0
    while got < 600:
        found = quick.deliveries()
        got += len(found)
        quick.send(ack=[pb.Tags(first=found[0].tag, count=len(found))])
    quick.end()
    until(lambda: group_of(server, "slow").in_flight)
    assert 0 < group_of(server, "slow").in_flight * 50_000 < 2_500_000, "more than two responses, one sent and one waiting"
    # Meanwhile its requests are read; what it holds it may still finish.
    stalled.send(credit=1, ack=[pb.Tags(first=1, count=1)])
    seen = 0
    while seen < 600:
        found = stalled.deliveries()
        seen += len(found)
        stalled.send(ack=[pb.Tags(first=found[0].tag, count=len(found))])
    until(lambda: group_of(server, "slow").lag == 0)
    stats = group_of(server, "slow")
    assert stats.delivered < 1_250, "what does not fit into a response is hardly ever leased for it"
    stalled.end()


def test_what_waits_behind_a_client_that_does_not_read_goes_to_others(server: Running) -> None:
    """One response is its, and no more: the rest of the lease goes back, and never counts as failed."""
    server.store.publish_many("t", [bytes(50_000)] * 30)
    stalled = Subscribed(server.stub(**SMALL_WINDOW), "t", credit=1_000, prefetch=1_000)
    stalled.started()
    until(lambda: group_of(server).in_flight > 0)
    with server.store.subscribe("t", "g") as consumer:
        seen: list[int] = []
        while len(seen) < 10:
            message = consumer.get(PATIENCE)
            assert message is not None
            message.ack()
            seen.append(message.attempt)
        assert set(seen) == {1}
    stalled.cancel()


def test_a_publisher_that_does_not_read_its_answers_is_not_read_from(store: Store) -> None:
    with running(store, publishing_max=10) as server:
        stub = server.stub(**SMALL_WINDOW)
        sent = 0

        def requests() -> Iterator[pb.PublishRequest]:
            nonlocal sent
            for number in range(20_000):
                sent = number
                # Answers that are larger than their requests: they fill the window first.
                yield request_of("t", *[b""] * 1_000)

        call = stub.PublishStream(requests())
        before = -1
        while before != sent:
            before = sent
            time.sleep(0.2)
        assert before < 2_000
        assert len(list(itertools.islice(call, before))) == before
        call.cancel()


def test_one_publish_that_waits_for_the_disk_keeps_nobody_waiting(tmp_path: Path) -> None:
    files = GatedFileSystem()
    with Store.open(tmp_path / "store", settings=SETTINGS, files=files) as store:
        store.create_topic("t")
        store.publish_many("t", numbered(3))
        with running(store) as server:
            stub, admin = server.stub(), server.admin()
            stream = server.subscribe("t", credit=1)
            stream.started()
            stream.deliveries()
            files.gate.clear()
            futures = [stub.Publish.future(request_of("t", b"x", sync=sync)) for sync in (None, pb.SYNC_MODE_ALWAYS) * 3]
            keyed = pb.PublishRequest(topic="t", messages=[pb.NewMessage(value=b"k", dedup_key=b"k")])
            futures.append(stub.Publish.future(keyed))
            try:
                assert len(admin.ListTopics(pb.ListTopicsRequest(), timeout=PATIENCE).topics) == 1
                found = [one for page in stub.Read(pb.ReadRequest(topic="t"), timeout=PATIENCE) for one in page.messages]
                assert len(found) == 3
                assert not any(future.done() for future in futures)
            finally:
                files.gate.set()
            assert len({future.result(PATIENCE).receipts[0].offset for future in futures}) == 7
            stream.end()


# -- stopping -------------------------------------------------------------------------------------------------------


def stopping(server: Running, seconds: float) -> threading.Thread:
    thread = threading.Thread(target=lambda: server.call(server.listener.stop(seconds)))
    thread.start()
    return thread


def test_a_stream_answers_the_request_that_finishes_its_last_message_before_it_ends(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is held as soon as the ack is taken in; that it is durable, and the answer, come later."""
    stream, found = held(server, 3)
    stopped = stopping(server, 20)
    assert stream.next().closing.reason == "the server is stopping"
    flush, flushing = server.store.flush, threading.Event()

    def flush_late() -> None:
        flushing.set()
        until(lambda: server.listener.service.is_stopping)
        time.sleep(0.3)  # the stream looks again meanwhile
        flush()

    monkeypatch.setattr(server.store, "flush", flush_late)
    assert stream.ack(*found, durable=True) == 0
    assert flushing.is_set()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()


def test_stopping_lets_consumers_finish_what_they_hold(server: Running) -> None:
    stream, found = held(server, 3)
    stream.send(credit=100)
    stopped = stopping(server, 20)
    assert stream.next().closing.reason == "the server is stopping"
    server.store.publish("t", b"new")
    with refused(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"):
        server.stub().Publish(request_of("t", b"x"))
    assert stream.ack(*found[:2], durable=True) == 0
    assert stopped.is_alive()
    stream.send(ack=[pb.Tags(first=found[2].tag, count=1)])
    with refused(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"):
        stream.next()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()
    assert (group_of(server).acked, group_of(server).lag, group_of(server).members) == (3, 1, 0)


def test_stopping_gives_back_uncounted_what_is_not_finished_in_time(server: Running) -> None:
    stream, _ = held(server, 3)
    stopped = stopping(server, 0.3)
    assert stream.next().WhichOneof("event") == "closing"
    with pytest.raises(grpc.RpcError):
        stream.next()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()
    stats = group_of(server)
    assert (stats.lag, stats.members, stats.in_flight) == (3, 0, 0)
    assert stats.nacked == 0


def test_stopping_wakes_who_waits_at_once(server: Running) -> None:
    server.store.create_topic("t")
    streams = [server.subscribe("t", f"g{number}", credit=5) for number in range(5)]
    for stream in streams:
        stream.started()
    health = health_pb2_grpc.HealthStub(server.channel())
    watching = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    stopped = stopping(server, 2 * PATIENCE)
    assert next(watching).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for stream in streams:
        assert stream.next().WhichOneof("event") == "closing"
        with refused(grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING"):
            stream.next()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()


def test_stopping_answers_what_a_stream_of_publishes_has_sent(server: Running) -> None:
    """Every request that was answered is stored, and no other."""
    go_on = threading.Event()

    def requests() -> Iterator[pb.PublishRequest]:
        for number in itertools.count():
            yield request_of("t", b"%d" % number)
            if number == 2_000:
                go_on.wait(PATIENCE)

    answered = []
    with pytest.raises(grpc.RpcError) as caught:
        for answer in server.stub().PublishStream(requests()):
            answered.append(answer.published.receipts[0].offset)
            if len(answered) == 500:
                stopped = stopping(server, 20)
    go_on.set()
    stopped.join(PATIENCE)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert answered == list(range(len(answered)))
    assert server.store.stats().topics["t"].messages == len(answered)


def test_health_tells_that_the_disk_has_failed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    health = health_pb2_grpc.HealthStub(server.channel())
    request = health_pb2.HealthCheckRequest(service="penstock.v1.Penstock")
    assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    monkeypatch.setattr(type(server.store._volume), "failure", property(lambda _: str(StorageFailed)))
    until(lambda: health.Check(request).status == health_pb2.HealthCheckResponse.NOT_SERVING)
    monkeypatch.undo()
