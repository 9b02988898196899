"""The server is away for a while: what waits, what fails, and that nothing reaches the wrong consumer afterwards."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import aio
from penstock.client import connection
from penstock.client.publishing import ON_THE_WAY_MAX
from penstock.errors import BadSetting, LeaseExpired, OutcomeUnknown, PenstockError, Unavailable
from penstock.wire.calls import Call
from tests.client.proxy import DOWN, UP
from tests.client.served import PATIENCE_S, eventually, given_up, later, lose

if TYPE_CHECKING:
    from penstock import Store
    from penstock.client.address import Connected, Place
    from tests.client.proxy import Proxy
    from tests.client.served import Served


# -- publishing -----------------------------------------------------------------------------------------------------


def test_a_publish_waits_while_the_server_is_away(proxy: Proxy, client: Store, served: Served) -> None:
    """And is stored once when it is back."""
    client.publish("orders", b"before")
    lose(proxy, client)
    waiting = later(lambda: client.publish("orders", b"during"))
    assert not waiting.done()
    proxy.allow()
    assert waiting.result(PATIENCE_S).offset == 1
    assert served.values("orders") == [b"before", b"during"]


def test_the_random_numbers_of_the_program_are_left_alone(proxy: Proxy, served: Served) -> None:
    """It may have seeded them; how long a client pauses must not change what it draws."""
    client = served.client(proxy.address, give_up=0.3)
    client.publish("orders", b"before")
    random.seed(7)
    state = random.getstate()
    lose(proxy, client)
    with pytest.raises(Unavailable):
        client.topics()
    assert random.getstate() == state


def test_calls_fail_when_the_server_stays_away_and_work_when_it_is_back(proxy: Proxy, served: Served) -> None:
    """`give_up` seconds after the loss."""
    client = served.client(proxy.address, give_up=0.3)
    client.publish("orders", b"before")
    lose(proxy, client)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        client.publish("orders", b"during")
    with pytest.raises(Unavailable):
        client.topics()
    proxy.allow()
    assert client.publish("orders", b"after").offset == 1
    assert served.values("orders") == [b"before", b"after"]


def test_a_publish_that_was_never_sent_has_certainly_changed_nothing(proxy: Proxy, served: Served) -> None:
    """So it is `Unavailable`, which says that it can be tried again."""
    client = served.client(proxy.address, give_up=0.3)
    client.publish("orders", b"before")
    lose(proxy, client)
    with pytest.raises(Unavailable):
        client.publish("orders", b"during")


def test_a_publish_after_one_that_was_given_up_is_stored(proxy: Proxy, served: Served) -> None:
    """The first one was stored and its answer lost: the second must not be taken for its copy."""
    client = served.client(proxy.address, give_up=0.3)
    client.publish("orders", b"first")
    proxy.hold(DOWN)
    unanswered = later(lambda: client.publish("orders", b"unanswered"))
    eventually(lambda: len(served.values("orders")) == 2)
    proxy.refuse()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        unanswered.result(PATIENCE_S)
    proxy.release()
    proxy.allow()
    receipt = client.publish("orders", b"another")
    assert served.values("orders") == [b"first", b"unanswered", b"another"]
    assert receipt.offset == 2


def test_a_producers_batch_after_one_that_was_given_up_is_stored(proxy: Proxy, served: Served) -> None:
    """As above, of a producer."""
    client = served.client(proxy.address, give_up=0.3)
    with client.producer("orders", linger=0) as producer:
        producer.send(b"first").result(PATIENCE_S)
        proxy.hold(DOWN)
        unanswered = producer.send(b"unanswered")
        eventually(lambda: len(served.values("orders")) == 2)
        proxy.refuse()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            unanswered.result(PATIENCE_S)
        proxy.release()
        proxy.allow()
        sent = [producer.send(b"another"), producer.send(b"and another")]
        receipts = [one.result(PATIENCE_S) for one in sent]
    assert served.values("orders") == [b"first", b"unanswered", b"another", b"and another"]
    assert [one.offset for one in receipts] == [2, 3]


def test_a_named_producers_batch_after_one_that_was_given_up_is_stored(proxy: Proxy, served: Served) -> None:
    """As above, of a producer with a name."""
    client = served.client(proxy.address, give_up=0.3)
    with client.producer("orders", linger=0, name="till") as producer:
        producer.send(b"first").result(PATIENCE_S)
        proxy.hold(DOWN)
        unanswered = producer.send(b"unanswered")
        eventually(lambda: len(served.values("orders")) == 2)
        proxy.refuse()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            unanswered.result(PATIENCE_S)
        proxy.release()
        proxy.allow()
        try:
            producer.send(b"another").result(PATIENCE_S)
        except PenstockError:
            return  # it may say that it cannot go on, but not that it has stored what it has not
    assert served.values("orders") == [b"first", b"unanswered", b"another"]


# -- consuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_subscribing_goes_on_when_the_connection_is_lost_meanwhile(proxy: Proxy, client: Store, direction: str) -> None:
    """Wherever it is cut: the call, or its answer."""
    client.publish("orders", b"first")
    for count in range(0, 80, 8):
        cuts = proxy.cuts
        proxy.cut_after(direction, count)
        with client.subscribe("orders", "billing", lease=30) as consumer:
            assert consumer.get(timeout=PATIENCE_S) is not None
        assert proxy.cuts == cuts + 1
        proxy.spare()


def test_get_goes_on_when_the_server_is_back(proxy: Proxy, client: Store, served: Served) -> None:
    """A consumer that waits sees nothing of the outage, and what it gets then it can finish."""
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    waiting = later(lambda: consumer.get(timeout=PATIENCE_S))
    eventually(lambda: served.members("orders", "workers") == 1)
    lose(proxy, client)
    served.store.publish("orders", b"work")
    proxy.allow()
    message = waiting.result(PATIENCE_S)
    assert message.value == b"work"
    message.ack(wait=True)
    assert served.store.stats().topics["orders"].groups["workers"].lag == 0


def test_a_message_that_was_asked_for_during_an_outage_can_be_finished(proxy: Proxy, client: Store, served: Served) -> None:
    """It was handed out by the new connection, so it is the consumer's."""
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    served.store.publish("orders", b"work")
    lose(proxy, client)
    waiting = later(lambda: consumer.get(timeout=PATIENCE_S))
    time.sleep(0.1)  # it has asked
    proxy.allow()
    message = waiting.result(PATIENCE_S)
    message.ack(wait=True)
    assert served.store.stats().topics["orders"].groups["workers"].lag == 0


def test_a_late_ack_finishes_no_other_message(proxy: Proxy, client: Store, served: Served) -> None:
    """An ack that was given during the outage is not taken for one of a message that came after it."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"one", b"two"])
    consumer = client.subscribe("orders", "workers", backoff=60, backoff_max=60)
    first = consumer.get(timeout=PATIENCE_S)
    assert first is not None
    lose(proxy, client)
    eventually(lambda: served.members("orders", "workers") == 0)
    getting = later(lambda: consumer.get(timeout=PATIENCE_S))
    time.sleep(0.1)  # it has asked
    acking = later(first.ack)
    time.sleep(0.1)
    proxy.allow()
    with pytest.raises(LeaseExpired):
        acking.result(PATIENCE_S)
    second = getting.result(PATIENCE_S)
    assert second.value == b"two"
    client.flush()
    assert served.store.stats().topics["orders"].groups["workers"].acked == 0


def test_acks_of_before_the_outage_are_late(proxy: Proxy, client: Store, served: Served) -> None:
    """During it and after it, alone and in a transaction."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"one", b"two", b"three"])
    consumer = client.subscribe("orders", "workers", backoff=0.001, backoff_max=0.001)
    held = consumer.get_many(3, timeout=PATIENCE_S)
    lose(proxy, client)
    during = later(held[0].ack)
    time.sleep(0.05)
    proxy.allow()
    with pytest.raises(LeaseExpired):
        during.result(PATIENCE_S)
    with pytest.raises(LeaseExpired):
        held[1].ack()
    with pytest.raises(LeaseExpired):
        consumer.nack(held)
    with pytest.raises(LeaseExpired):
        held[1].extend(10)
    with pytest.raises(LeaseExpired), client.transaction() as transaction:
        transaction.publish("out", b"never")
        transaction.ack(held[2])
    again: list[Any] = []
    while len(again) < 3:
        again += consumer.get_many(3, timeout=PATIENCE_S)
    assert sorted(one.value for one in again) == [b"one", b"three", b"two"]
    consumer.ack(again, wait=True)


def test_consumers_keep_their_topics_after_an_outage(proxy: Proxy, client: Store, served: Served) -> None:
    """Also where the server numbers them anew, and they ask while it is away."""
    for topic in ("a", "b", "c"):
        served.store.create_topic(topic)
    consumers = {topic: client.subscribe(topic, "workers") for topic in ("a", "b", "c")}
    consumers["a"].close()
    for topic in ("b", "c"):
        served.store.publish(topic, topic.encode())
    lose(proxy, client)
    waiting = {topic: later(lambda one=consumers[topic]: one.get(timeout=PATIENCE_S)) for topic in ("b", "c")}  # type: ignore[misc]
    time.sleep(0.1)  # they have asked
    proxy.allow()
    found = {topic: waiting[topic].result(PATIENCE_S).value for topic in ("b", "c")}
    assert found == {"b": b"b", "c": b"c"}


def test_closing_a_consumer_during_an_outage_closes_no_other(proxy: Proxy, client: Store, served: Served) -> None:
    """The numbers of consumers begin anew with each connection."""
    for topic in ("a", "b"):
        served.store.create_topic(topic)
    first, second = client.subscribe("a", "workers"), client.subscribe("b", "workers")
    lose(proxy, client)
    closing = later(first.close)
    time.sleep(0.1)
    proxy.allow()
    closing.result(PATIENCE_S)
    served.store.publish("b", b"work")
    message = second.get(timeout=PATIENCE_S)
    assert message is not None
    assert message.value == b"work"
    assert served.members("b", "workers") == 1


def test_a_consumer_that_iterates_notices_that_the_server_stays_away(proxy: Proxy, served: Served) -> None:
    """It raises, or goes on when the server is back; it does not wait for ever."""
    client = served.client(proxy.address, give_up=0.2)
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    served.store.publish("orders", b"one")
    seen = []

    def iterate() -> None:
        for message in consumer:
            seen.append(message.value)
            message.ack()
            if message.value == b"two":
                return

    iterating = later(iterate)
    eventually(lambda: seen == [b"one"])
    # Else the loop might be told that its ack came too late.
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].lag == 0)
    client.flush()
    lose(proxy, client)
    time.sleep(1)  # longer than it takes to give up
    proxy.allow()
    served.store.publish("orders", b"two")
    try:
        iterating.result(PATIENCE_S)
    except Unavailable:
        pass
    else:
        assert seen == [b"one", b"two"]


def test_a_consumer_that_cannot_come_back_fails_alone(proxy: Proxy, client: Store, served: Served) -> None:
    """Its group was made anew with other settings meanwhile; publishing is none of its business."""
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers", ordered=False)
    lose(proxy, client)
    eventually(lambda: served.members("orders", "workers") == 0)
    served.store.delete_group("orders", "workers")
    served.store.subscribe("orders", "workers", ordered=True)
    proxy.allow()
    assert client.publish("orders", b"still works").offset == 0
    with pytest.raises(PenstockError) as caught:
        consumer.get(timeout=PATIENCE_S)
    assert isinstance(caught.value, (BadSetting, Unavailable))


def test_what_the_server_says_of_its_own_loss_stays_inside(proxy: Proxy, client: Store, served: Served) -> None:
    """No error that a user sees is of a class that only the client knows."""
    served.store.create_topic("orders")
    served.store.publish("orders", b"work")
    consumer = client.subscribe("orders", "workers")
    kinds = set()
    for call in (lambda: consumer.commit(1), consumer.pause, consumer.resume, lambda: consumer.in_flight):
        proxy.hold(DOWN)
        waiting = later(call)
        time.sleep(0.05)
        proxy.cut()
        proxy.release()
        try:
            waiting.result(PATIENCE_S)
        except PenstockError as error:
            kinds.add(type(error))
    assert {kind.__module__ for kind in kinds} <= {"penstock.errors"}


def test_a_client_that_comes_back_into_a_black_hole_can_be_closed(
    proxy: Proxy, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes the connection, greets, and says no more while consumers subscribe again."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.5)
    client = served.client(proxy.address, give_up=1)
    client.create_topic("orders")
    client.subscribe("orders", "workers")
    # The answer to the hello passes, the next one does not.
    greeting = 20 + len(_hello_fields(client))
    _cut_and_hold_after(proxy, greeting)
    closing = later(client.close)
    try:
        closing.result(PATIENCE_S)
    finally:
        proxy.release()


def _hello_fields(client: Any) -> bytes:
    import json

    return json.dumps(client._connection.hello, separators=(",", ":")).encode()


def _cut_and_hold_after(proxy: Proxy, count: int) -> None:
    """Cut the connection, let *count* bytes come down the next one, then nothing."""
    passed = 0
    share = proxy.share
    connections = proxy.connections

    def counted(link: Any, direction: str, size: int) -> int:
        nonlocal passed
        if direction == DOWN and proxy.connections > connections:
            passed += size
            if passed >= count:
                proxy.hold(DOWN)
        return share(link, direction, size)

    proxy.share = counted  # type: ignore[method-assign]
    proxy.cut()
    eventually(lambda: passed >= count)


def test_a_server_that_takes_everything_and_says_nothing_is_given_up(
    proxy: Proxy, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that swallows packets looks like this; so does a server that hangs."""
    monkeypatch.setattr(connection, "PING_SECONDS", 0.1)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.5)
    client = served.client(proxy.address, give_up=0.5)
    client.publish("orders", b"before")
    proxy.hold(UP)
    proxy.hold(DOWN)
    waiting = later(lambda: client.publish("orders", b"during"))
    try:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            waiting.result(PATIENCE_S)
    finally:
        proxy.release()


def test_a_client_can_be_closed_while_a_call_is_stuck_in_the_network(proxy: Proxy, served: Served) -> None:
    """A publish that is too long for the buffers of a network that swallows it."""
    client = served.client(proxy.address, give_up=0.5)
    client.create_topic("orders", max_message_bytes=1 << 25)
    proxy.hold(UP)
    stuck = later(lambda: client.publish("orders", bytes(1 << 25)))
    time.sleep(0.3)
    closing = later(client.close)
    try:
        closing.result(PATIENCE_S)
        with pytest.raises(PenstockError):
            stuck.result(PATIENCE_S)
    finally:
        proxy.release()
        proxy.refuse()


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


def test_a_consumer_can_be_left_though_its_server_stays_away(proxy: Proxy, served: Served) -> None:
    """What it held went back with the connection."""
    client: Any = served.client(proxy.address, give_up=0.2)
    client.create_topic("orders")
    with client.subscribe("orders", "workers") as consumer:
        given_up(proxy, client)
        assert consumer.in_flight == 0
        consumer.pause()
    assert consumer.closed
