"""Acks of pushed messages do not wait for their answers: when they are sent, and how a late one is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import consumer as module
from penstock.errors import LeaseExpired, Unavailable
from penstock.wire.calls import Call
from tests.client.proxy import DOWN
from tests.client.served import PATIENCE_S, eventually, given_up, later

if TYPE_CHECKING:
    from tests.client.proxy import Proxy
    from tests.client.served import Served


def lag(served: Served) -> int:
    return served.store.stats().topics["orders"].groups["workers"].lag


def calls_of(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that are made from now on."""
    found: list[int] = []
    begin = client._connection.begin

    def noted(call: int, *arguments: Any, **options: Any) -> Any:
        found.append(call)
        return begin(call, *arguments, **options)

    monkeypatch.setattr(client._connection, "begin", noted)
    return found


def test_many_acks_are_one_call(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last ones are there when flush returns."""
    monkeypatch.setattr("penstock.client.background.SOON_SECONDS", 1.0)  # however slow the machine is
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 1_000)
    consumer = client.subscribe("orders", "workers")
    found = calls_of(client, monkeypatch)
    for number, message in enumerate(consumer):
        message.ack()
        if number == 999:
            break
    consumer.flush()
    assert found.count(Call.ACK) < 200
    assert lag(served) == 0


def test_an_ack_is_sent_though_nothing_else_happens(served: Served) -> None:
    """Within milliseconds: the handler of the next message may take long."""
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 3)
    iterator = iter(client.subscribe("orders", "workers"))
    next(iterator).ack()
    eventually(lambda: lag(served) == 2)
    next(iterator).ack()
    eventually(lambda: lag(served) == 1)


def test_an_ack_goes_before_every_other_call(served: Served) -> None:
    """Whoever asks after it sees it."""
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 20)
    iterator = iter(client.subscribe("orders", "workers"))
    for left in range(19, -1, -1):
        next(iterator).ack()
        assert client.stats().topics["orders"].groups["workers"].lag == left


def test_closing_a_consumer_sends_what_it_acked(served: Served) -> None:
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 5)
    with client.subscribe("orders", "workers") as consumer:
        iterator = iter(consumer)
        for _ in range(5):
            next(iterator).ack()
    assert lag(served) == 0


def test_a_late_ack_is_told_by_the_next_call(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its place: the group was moved, so it changed nothing."""
    monkeypatch.setattr("penstock.client.background.SOON_SECONDS", 0.001)
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 3)
    consumer = client.subscribe("orders", "workers")
    iterator = iter(consumer)
    first, second, third = next(iterator), next(iterator), next(iterator)
    first.ack(wait=True)
    served.store.seek("orders", "workers", 0)
    second.ack()
    with pytest.raises(LeaseExpired) as caught:
        consumer.flush()
    assert (caught.value.partition, caught.value.offset, caught.value.messages) == (0, 1, 1)
    third.ack()
    eventually(lambda: consumer._late is not None)
    again = next(iterator)  # which is not told: it is a loop's
    with pytest.raises(LeaseExpired) as caught:
        again.ack()
    assert caught.value.offset == 2
    consumer.flush()  # it is told once
    assert lag(served) == 2  # and the ack that told it counts


def test_finishing_a_message_twice_is_told_at_once(served: Served) -> None:
    client: Any = served.client()
    client.create_topic("orders")
    client.publish("orders", b"x")
    message = next(iter(client.subscribe("orders", "workers")))
    message.ack()
    with pytest.raises(LeaseExpired):
        message.ack()
    assert lag(served) == 0


def test_an_ack_waits_when_half_of_the_lease_is_over(served: Served) -> None:
    """Then it is not unlikely to be late, and who acks is told himself."""
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 2)
    iterator = iter(client.subscribe("orders", "workers", lease=0.2))
    message = next(iterator)
    time.sleep(0.3)
    with pytest.raises(LeaseExpired):
        message.ack()


def test_an_ack_in_an_ordered_group_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure before it takes it back, so lateness is no rarity."""
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 3)
    consumer = client.subscribe("orders", "workers", ordered=True)
    iterator = iter(consumer)
    first, second = next(iterator), next(iterator)
    first.nack()
    with pytest.raises(LeaseExpired):
        second.ack()


def test_acks_that_a_cut_swallowed_are_told(proxy: Proxy, client: Any, served: Served) -> None:
    """Whether they arrived nobody knows: their messages may come again."""
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 3)
    consumer = client.subscribe("orders", "workers", backoff=0.001)
    iterator = iter(consumer)
    message = next(iterator)
    proxy.hold(DOWN)
    message.ack()
    eventually(lambda: lag(served) == 2)  # it has arrived, and its answer has not
    proxy.cut()
    proxy.release()
    eventually(lambda: client._connection.generation == 2)
    with pytest.raises(LeaseExpired):
        later(consumer.flush).result(PATIENCE_S)


def test_threads_that_ack_at_once_lose_none(served: Served) -> None:
    client: Any = served.client()
    client.create_topic("orders")
    client.publish_many("orders", [b"x"] * 2_000)
    consumer = client.subscribe("orders", "workers", prefetch=module.READ_AHEAD_MAX)

    def work() -> int:
        count = 0
        for message in consumer:
            message.ack()
            count += 1
        return count

    working = [later(work) for _ in range(3)]
    eventually(lambda: lag(served) == 0)
    consumer.close()
    assert sum(one.result(PATIENCE_S) for one in working) == 2_000


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
