"""Clients that do not read what they are sent: the server holds little for them, and serves the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.subscription import PUSH_BYTES_MAX
from penstock.server.native import WRITE_BYTES_HIGH
from penstock.values import MIB
from penstock.wire.calls import Call
from tests.client.proxy import DOWN
from tests.client.served import PATIENCE_S, delivered, eventually, later

if TYPE_CHECKING:
    from tests.client.served import RawClient, Served

MESSAGE_BYTES = 64 * 1024
MESSAGES = 1_000


def waiting_bytes(served: Served) -> int:
    """What the server holds for all its connections."""
    return max(
        (one._transport.get_write_buffer_size() for one in list(served.server._listener.connections) if one._transport),
        default=0,
    )


def most_waiting(served: Served, seconds: float) -> int:
    """The most that it held within a while."""
    most, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        most = max(most, waiting_bytes(served))
        time.sleep(0.002)
    return most


@pytest.fixture
def full(served: Served) -> Served:
    """A topic of 64 MB."""
    served.store.create_topic("big")
    for _ in range(MESSAGES // 50):
        served.store.publish_many("big", [bytes(MESSAGE_BYTES)] * 50)
    return served


def others_are_served(served: Served) -> None:
    other = served.client()
    assert other.publish("others", b"value").offset >= 0
    consumer = other.subscribe("big", "others", prefetch=3)
    for message in consumer.get_many(3, timeout=PATIENCE_S):
        message.ack()
    consumer.close()


def subscribe(raw: RawClient, **options: Any) -> int:
    options = {"prefetch": 100_000, "prefetch_bytes": 1 << 40, **options}
    return int(raw.call(Call.SUBSCRIBE, topic="big", group="workers", options=options).fields["handle"])


def test_pushes_wait_for_the_reader(full: Served) -> None:
    """With credit for a million messages no more is leased than fits on its way."""
    raw = full.raw()
    handle = subscribe(raw)
    for _ in range(10):
        raw.send(Call.CREDIT, {"consumer": handle, "messages": 100_000})
    held = later(lambda: most_waiting(full, 0.5))
    others_are_served(full)
    assert held.result(PATIENCE_S) <= WRITE_BYTES_HIGH + 2 * PUSH_BYTES_MAX
    assert full.store.stats().topics["big"].groups["workers"].in_flight < MESSAGES / 2
    # And it goes on when the client reads.
    seen = 0
    while seen < MESSAGES:
        frame = raw.read()
        assert frame is not None
        seen += len(delivered(frame))
    assert seen == MESSAGES


def test_fetches_wait_for_the_reader(full: Served) -> None:
    """Many requests that are small bring answers that are not."""
    raw = full.raw()
    handle = subscribe(raw)
    raw.socket.sendall(b"".join(raw.request(Call.FETCH, {"consumer": handle, "count": 20, "wait": 1})[0] for _ in range(50)))
    held = later(lambda: most_waiting(full, 0.5))
    others_are_served(full)
    assert held.result(PATIENCE_S) <= WRITE_BYTES_HIGH + 8 * MIB


def test_reads_wait_for_the_reader(full: Served) -> None:
    """A client that asks for everything a hundred times and takes nothing."""
    raw = full.raw()
    fields = {"topic": "big", "partition": 0, "offset": 0, "bytes": MIB}
    raw.socket.sendall(b"".join(raw.request(Call.READ, fields)[0] for _ in range(100)))
    held = later(lambda: most_waiting(full, 0.5))
    others_are_served(full)
    assert held.result(PATIENCE_S) <= WRITE_BYTES_HIGH + 16 * MIB


def test_a_client_that_does_not_read_does_not_stop_the_server(full: Served) -> None:
    """It is hung up on when the time to stop is over, and what it held goes back."""
    raw = full.raw()
    handle = subscribe(raw)
    raw.call(Call.CREDIT, consumer=handle, messages=1_000)
    eventually(lambda: waiting_bytes(full) > WRITE_BYTES_HIGH)
    full.stop(timeout_s=0.5)
    eventually(lambda: full.members("big", "workers") == 0)
    consumer = full.store.subscribe("big", "workers", prefetch=2_000, prefetch_bytes=1 << 30)
    again = consumer.get_many(MESSAGES, timeout=PATIENCE_S)
    assert {one.attempt for one in again} == {1}


def test_a_process_that_consumes_and_produces_much_does_not_lock_itself_up(full: Served) -> None:
    """
    One connection carries both ways, and neither may wait for the other.

    A long answer is on its way, and behind it nothing is read; a long batch goes the other way; and before the long answer there is one
    for the same producer.
    """
    proxy = full.proxy()
    client = full.client(proxy.address)
    client.create_topic("copies", max_message_bytes=64 * MIB)
    consumer = client.subscribe("big", "workers", prefetch=100_000, prefetch_bytes=1 << 40)
    producer = client.producer("copies", linger=0, batch_bytes=64 * MIB)
    proxy.hold(DOWN)
    first = producer.send(b"short")
    eventually(lambda: full.values("copies") == [b"short"])
    fetching = later(lambda: consumer.get_many(500, timeout=PATIENCE_S))
    eventually(lambda: waiting_bytes(full) > WRITE_BYTES_HIGH)
    sending = later(lambda: producer.send(bytes(60 * MIB)).result(PATIENCE_S))
    time.sleep(0.3)
    proxy.release()
    assert len(fetching.result(PATIENCE_S)) == 500
    assert sending.result(PATIENCE_S).offset == 1
    assert first.result(PATIENCE_S).offset == 0
    producer.close()


def test_a_client_that_does_not_read_costs_no_more_memory_however_long_the_answers_are(served: Served) -> None:
    """The numbers of a store with many topics are long; they are made for who takes them."""
    for number in range(25):
        served.store.create_topic(f"topic-{number}-{'x' * 150}")
    raw = served.raw()
    asked = b"".join(raw.request(Call.STATS, {})[0] for _ in range(900))
    raw.socket.sendall(asked)
    [connection] = served.server._listener.connections
    transport: Any = connection._transport
    eventually(lambda: not transport.is_reading())
    most = 0
    for _ in range(20):
        most = max(most, transport.get_write_buffer_size())
        time.sleep(0.02)
    assert most < 4 * WRITE_BYTES_HIGH
