"""What a review of the edges found: each of these hung, or lost something, once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Queue, aio
from penstock.broker import calls_under_way
from penstock.client.publishing import ON_THE_WAY_MAX
from penstock.errors import LeaseExpired, TopicNotFound, Unauthenticated, Unavailable
from penstock.groups.group import Group
from penstock.server.auth import TokenAuth
from penstock.server.native import WRITE_BYTES_HIGH
from penstock.server.running import RunningServer
from penstock.wire.calls import Call
from tests.client.proxy import DOWN
from tests.client.served import PATIENCE_S, eventually, later, within
from tests.client.test_outages import lose
from tests.server.running import write_tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.client.address import Connected, Place
    from tests.client.proxy import Proxy
    from tests.client.served import Served


def given_up(proxy: Proxy, client: Any) -> None:
    """The server is away for so long that the client does not look for it any more."""
    lose(proxy, client)
    with pytest.raises(Unavailable):
        client.topics()


def interrupted(work: Callable[[], object]) -> None:
    """*work* in this thread, the main one, until Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- waiting --------------------------------------------------------------------------------------------------------


def test_a_connection_on_which_many_calls_begin_to_wait_at_once_is_read_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are many calls for a moment, and then none: only what is read next may bring what they wait for."""
    monkeypatch.setattr(calls_under_way, "OUTSTANDING_MAX", 10)
    served.store.create_topic("orders")
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options={}).fields["handle"]
    fetches = [raw.request(Call.FETCH, {"consumer": handle, "count": 1, "wait": None})[0] for _ in range(50)]
    raw.socket.sendall(b"".join(fetches))
    raw.call(Call.PING)


def test_who_was_interrupted_while_he_waited_for_a_message_takes_none_with_him(served: Served) -> None:
    """The next one who asks gets it at once, and nobody failed."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    interrupted(consumer.get)
    served.store.publish("orders", b"x")
    message = consumer.get(PATIENCE_S)
    assert message is not None
    assert message.attempt == 1
    message.ack(wait=True)
    interrupted(lambda: consumer.get_many(5))
    assert consumer.in_flight == 0


def test_a_workers_task_that_was_cancelled_while_it_waited_takes_no_message_with_it(served: Served) -> None:
    """As when its loop ends."""
    client: Any = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")

    async def main() -> None:
        waiting = asyncio.create_task(consumer.take_in_loop(1))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(main())
    served.store.publish("orders", b"x")
    message = consumer.get(PATIENCE_S)
    assert message is not None
    assert message.attempt == 1


def test_a_queue_whose_get_was_interrupted_gives_the_next_item_to_the_next_get(served: Served) -> None:
    """Else it would be gone for a day."""
    with Queue(f"{served.server.address}/jobs") as jobs:
        interrupted(jobs.get)
        jobs.put(b"x")
        assert jobs.get(timeout=PATIENCE_S) == b"x"


def test_who_does_not_read_costs_no_more_memory_however_long_the_answers_are(served: Served) -> None:
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


def test_a_failure_while_messages_are_pushed_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of ours, or of the system: who waits for a push would wait for ever."""
    client: Any = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    taken = Group.take

    def fail(*_: object) -> None:
        raise OSError("a planted failure")

    monkeypatch.setattr(Group, "take", fail)
    with pytest.raises(Unavailable):
        later(lambda: next(iter(consumer))).result(PATIENCE_S)
    monkeypatch.setattr(Group, "take", taken)
    served.store.publish("orders", b"x")
    assert later(lambda: next(iter(consumer))).result(PATIENCE_S).value == b"x"


def test_a_loop_goes_on_while_its_producer_has_as_much_on_the_way_as_it_may(proxy: Proxy, served: Served) -> None:
    """A server that does not answer stops the producer, and nobody else."""
    count = ON_THE_WAY_MAX + 10

    async def main() -> None:
        async with aio.open(proxy.address) as store:
            await store.create_topic("orders")
            async with store.producer("orders", batch_messages=1) as producer:
                proxy.hold(DOWN)
                # A loop that stands still could not let it go again.
                rescue = threading.Timer(PATIENCE_S, proxy.release)
                rescue.start()
                sent = [await producer.send(b"%d" % number) for number in range(count)]
                assert proxy.holds(DOWN), "the loop stood still"
                rescue.cancel()
                proxy.release()
                assert [(await one).offset for one in sent] == list(range(count))

    asyncio.run(main())
    assert served.values("orders") == [b"%d" % number for number in range(count)]


# -- coming back ----------------------------------------------------------------------------------------------------


class Narrow:
    """The way to a server through sockets that hold little, while it is not blocked."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.url, self.token = place.url, place.token
        self.is_blocked = False

    def connect(self, timeout_s: float) -> Connected:
        if self.is_blocked:
            raise ConnectionRefusedError("blocked")
        made = self._place.connect(timeout_s)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            made.setsockopt(socket.SOL_SOCKET, option, 64 * 1024)
        return made


def test_much_that_is_sent_again_does_not_hang_on_answers_that_nobody_reads(served: Served) -> None:
    """The server sends more than fits on the way and reads no more meanwhile; so who sends must not be the only one who could read."""
    served.store.publish("history", bytes(900_000))
    client: Any = served.client()
    client.create_topic("orders", partitions=4)
    way = client._connection.address = Narrow(client._connection.address)
    way.is_blocked = True
    served.server.disconnect_all()
    eventually(lambda: client._connection._channel is None)
    asked = {"topic": "history", "partition": 0, "offset": 0, "bytes": 1 << 20}
    reads = [later(lambda: client._connection.call(Call.READ, asked)) for _ in range(12)]
    eventually(lambda: len(client._connection._pending) == 12)
    producer = client.producer("orders", linger=0, batch_bytes=256 * 1024)
    sent = [producer.send(bytes(250_000), partition=at % 4) for at in range(48)]
    way.is_blocked = False
    for one in reads:
        assert len(one.result(PATIENCE_S).payload) > 900_000
    for one in sent:
        one.result(PATIENCE_S)


def test_acks_go_on_after_one_that_nobody_could_be_told(proxy: Proxy, served: Served) -> None:
    """The first one is late, and is told so; those after it are done."""
    client: Any = served.client(proxy.address, give_up=0.2)
    client.create_topic("orders")
    client.publish("orders", b"1")
    consumer = client.subscribe("orders", "workers", lease=300)
    messages = iter(consumer)
    first = next(messages)
    given_up(proxy, client)
    first.ack()
    eventually(lambda: consumer._late is not None)  # it is gathered for some milliseconds
    proxy.allow()
    served.store.publish("orders", b"2")

    def take() -> Any:
        while True:
            try:
                return next(iter(consumer))
            except Unavailable:  # the push that will not come
                continue

    again = [take(), take()]
    with pytest.raises(LeaseExpired):
        again[0].ack()
    again[1].ack()
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].lag == 0)


# -- ending while the server is away --------------------------------------------------------------------------------


def test_workers_stop_though_their_server_stays_away(proxy: Proxy, served: Served) -> None:
    """There is nobody to tell that they take no more."""
    client: Any = served.client(proxy.address, give_up=0.2)
    client.create_topic("orders")
    begun = threading.Event()

    def handle(_: object) -> None:
        begun.set()

    client.worker("orders", group="workers")(handle)
    running = later(client.run)
    served.store.publish("orders", b"x")
    assert begun.wait(PATIENCE_S)
    given_up(proxy, client)
    client.stop()
    running.result(PATIENCE_S)
    assert not [thread for thread in client._workers._workers[0]._threads if thread.is_alive()]


def test_a_consumer_can_be_left_though_its_server_stays_away(proxy: Proxy, served: Served) -> None:
    """What it held went back with the connection."""
    client: Any = served.client(proxy.address, give_up=0.2)
    client.create_topic("orders")
    with client.subscribe("orders", "workers") as consumer:
        given_up(proxy, client)
        assert consumer.in_flight == 0
        consumer.pause()
    assert consumer.closed


def test_a_few_dead_letters_are_listed_without_reading_them_all(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million."""
    client: Any = served.client()
    client.publish_many("orders", [bytes(400_000)] * 12)
    with served.store.subscribe("orders", "workers") as consumer:
        while messages := consumer.get_many(100, 0):
            for message in messages:
                message.reject("a planted failure")
    eventually(lambda: len(client.dead_letters("orders")) == 12)
    reads = []
    call = client._connection.call

    def noted(number: int, *arguments: Any, **options: Any) -> Any:
        reads.append(number)
        return call(number, *arguments, **options)

    monkeypatch.setattr(client._connection, "call", noted)
    assert [one.offset for one in client.dead_letters("orders").list(2)] == [0, 1]
    assert reads.count(Call.READ) == 1
    assert len(client.dead_letters("orders").list()) == 12


def test_a_server_stops_soon_though_its_clients_never_stop_asking(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun is answered; then it hangs up."""
    # Long enough for the next ones to come meanwhile.
    monkeypatch.setattr(served.store, "flush", lambda: time.sleep(0.05))
    raw = served.raw()
    asked = b"".join(raw.request(Call.FLUSH, {})[0] for _ in range(100))

    def ask() -> None:
        with contextlib.suppress(OSError):
            while True:
                raw.socket.sendall(asked)

    def read() -> None:
        while raw.read() is not None:
            pass

    asking, reading = later(ask), later(read)
    [connection] = served.server._listener.connections
    eventually(lambda: connection.outstanding)
    with within(PATIENCE_S):
        served.stop(2 * PATIENCE_S)
    reading.result(PATIENCE_S)
    asking.result(PATIENCE_S)


# -- rights ---------------------------------------------------------------------------------------------------------


def test_who_lost_his_token_is_given_no_more_messages(served: Served, tmp_path: Path) -> None:
    """Neither what he asked for before, nor what he gave credit for; they are ready for others, and nobody failed."""
    rights = {"boss": {"admin": ["*"]}, "worker": {"consume": ["orders"]}}
    auth = TokenAuth(write_tokens(tmp_path / "tokens", rights))
    served.store.create_topic("orders")
    with RunningServer(served.store, auth=auth) as server:
        client: Any = served.client(f"{server.address}?token=worker-token")
        pushed, asked = client.subscribe("orders", "pushed"), client.subscribe("orders", "asked")
        taking = [later(lambda: next(iter(pushed))), later(asked.get)]
        eventually(lambda: pushed._streams)
        client.topics()  # what was sent before it is with the server
        write_tokens(tmp_path / "tokens", {"boss": rights["boss"]})
        auth.reload()
        served.store.publish("orders", b"secret")
        for one in taking:
            with pytest.raises(Unauthenticated):
                one.result(PATIENCE_S)
    for group in ("pushed", "asked"):
        with served.store.subscribe("orders", group) as consumer:
            message = consumer.get(PATIENCE_S)
            assert message is not None
            assert message.attempt == 1


def test_publishing_makes_a_topic_only_for_who_may_make_it(served: Served, tmp_path: Path) -> None:
    """As over HTTP; by a transaction and a producer too."""
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"writer": {"publish": ["new*"]}, "boss": {"admin": ["new*"]}}))
    with RunningServer(served.store, auth=auth) as server:
        writer: Any = served.client(f"{server.address}?token=writer-token")
        for publish in (
            lambda: writer.publish("new-one", b"x"),
            lambda: writer.producer("new-one"),
            lambda: transact(writer, "new-one"),
        ):
            with pytest.raises(TopicNotFound):
                publish()
        assert served.store.topics() == []
        served.client(f"{server.address}?token=boss-token").publish("new-one", b"1")
        writer.publish("new-one", b"2")
        transact(writer, "new-one")
        assert served.values("new-one") == [b"1", b"2", b"3"]


def transact(client: Any, topic: str) -> None:
    with client.transaction() as transaction:
        transaction.publish(topic, b"3")
