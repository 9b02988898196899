"""Many calls and streams on one channel, and peers that say nothing any more."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import grpc
from grpc import aio

from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.grpc.helpers import refused, request_of, until
from tests.grpc.running import PATIENCE, Running, Subscribed, running


def test_a_thousand_calls_at_once_on_one_channel_are_all_answered(server: Running) -> None:
    server.store.create_topic("t")

    async def publish() -> list[int]:
        async with aio.insecure_channel(server.listener.address) as channel:
            stub = PenstockStub(channel)
            answers = await asyncio.gather(
                *[stub.Publish(request_of("t", b"%d" % number), timeout=PATIENCE) for number in range(1_000)]
            )
            return sorted(answer.receipts[0].offset for answer in answers)

    assert asyncio.run(publish()) == list(range(1_000))
    until(lambda: not any(one.is_needed for one in server.listener.service.connections._by_peer.values()))


def test_calls_beyond_those_that_may_run_wait_for_their_turn() -> None:
    with running(connection_calls_max=2) as server:
        server.store.create_topic("t")

        async def publish() -> int:
            async with aio.insecure_channel(server.listener.address) as channel:
                stub = PenstockStub(channel)
                answers = await asyncio.gather(
                    *[stub.Publish(request_of("t", b"x" * 1_000), timeout=PATIENCE) for _ in range(20)]
                )
                return len(answers)

        assert asyncio.run(publish()) == 20


def test_calls_work_however_many_streams_are_open_and_streams_beyond_the_limit_are_refused() -> None:
    with running(connection_streams_max=120) as server:
        server.store.create_topic("t")
        stub = PenstockStub(server.channel())
        streams = [Subscribed(stub, "t", f"g{number}") for number in range(120)]
        for stream in streams:
            stream.started()
        assert stub.Publish(request_of("t", b"x"), timeout=PATIENCE).receipts[0].offset == 0
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS"):
            Subscribed(stub, "t", "one-more").started()
        streams[0].end()
        until(lambda: server.listener.service.calls < 120)
        Subscribed(stub, "t", "one-more").started()


def test_a_subscriber_without_credit_is_told_so(server: Running) -> None:
    server.store.create_topic("t")
    started = server.subscribe("t", "g").started()
    assert (started.HasField("credit"), started.credit) == (True, 0)
    assert "credit" in started.hint
    assert not server.subscribe("t", "h", credit=3).started().HasField("hint")


def test_zeros_of_answers_are_there(server: Running) -> None:
    """Libraries that leave out what was not said must not leave out the first message."""
    receipt = server.stub().Publish(request_of("t", b"x")).receipts[0]
    assert receipt.HasField("offset")
    assert receipt.HasField("partition")
    stream = server.subscribe("t", "g", credit=1)
    stream.started()
    (delivery,) = stream.deliveries()
    assert delivery.message.HasField("offset")
    assert delivery.message.HasField("partition")
    group = server.admin().GetStats(pb.GetStatsRequest()).topics["t"].groups["g"]
    assert group.HasField("nacked")


CLIENT = """
import sys, time
import grpc
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import PenstockStub
requests = iter([pb.SubscribeRequest(start=pb.Subscription(topic="t", group="g"), credit=1)])
def forever():
    yield from requests
    time.sleep(3600)
stream = PenstockStub(grpc.insecure_channel(sys.argv[1])).Subscribe(forever())
next(stream)
print("subscribed", flush=True)
time.sleep(3600)
"""


def test_a_peer_that_stands_still_is_cut_in_the_time_that_is_documented() -> None:
    """Not a minute after the first ping, which is the library's own time."""
    with running(keep_alive_ms=1_000, keep_alive_answer_ms=500) as server:
        server.store.create_topic("t")
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.listener.address], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"subscribed\n"
            client.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            until(lambda: not server.store.stats().topics["t"].groups["g"].members)
            assert time.monotonic() - began < 40, "a second and a half is due"
        finally:
            client.kill()
            client.communicate()
