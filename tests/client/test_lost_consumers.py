"""A consumer whose connection is gone: what it was at counts as failed, what it had only fetched does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.wire.calls import Call
from tests.client.served import PATIENCE_S, delivered, eventually

if TYPE_CHECKING:
    from tests.client.served import Served

FAST: dict[str, Any] = {"backoff": 0.001, "backoff_max": 0.001}


def attempts(served: Served, count: int) -> list[int]:
    """The attempts of all messages, by offset, as the next consumer sees them."""
    consumer = served.store.subscribe("orders", "workers", prefetch=1_000)
    found: list[Any] = []
    while len(found) < count:
        more = consumer.get_many(count, timeout=PATIENCE_S)
        assert more, "a message is missing"
        found += more
    return [one.attempt for one in sorted(found, key=lambda one: one.offset)]


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_as_many_as_are_handled_at_once_count_as_failed(served: Served, concurrency: int) -> None:
    """The oldest of those that are not finished."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 10)
    proxy = served.proxy()
    client = served.client(proxy.address, give_up=0)
    consumer = client.subscribe("orders", "workers", concurrency=concurrency, **FAST)
    held = consumer.get_many(10, timeout=PATIENCE_S)
    held[0].ack(wait=True)
    held[4].ack(wait=True)
    proxy.refuse()
    eventually(lambda: served.members("orders", "workers") == 0)
    expected = [2 if number < concurrency else 1 for number in range(8)]
    assert attempts(served, 8) == expected


def test_what_was_pushed_ahead_counts_like_the_rest(served: Served) -> None:
    """One of a hundred, where one is handled at a time."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 100)
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options=FAST).fields["handle"]
    raw.send(Call.CREDIT, {"consumer": handle, "messages": 100})
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].in_flight == 100)
    raw.close()
    eventually(lambda: served.members("orders", "workers") == 0)
    assert attempts(served, 100) == [2] + [1] * 99


def test_who_says_goodbye_has_failed_at_nothing(served: Served) -> None:
    """Closing a consumer gives back; so does closing the store."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 5)
    client = served.client()
    client.subscribe("orders", "workers", **FAST).get_many(2, timeout=PATIENCE_S)
    client.close()
    eventually(lambda: served.members("orders", "workers") == 0)
    assert attempts(served, 5) == [1] * 5


def test_a_message_that_kills_its_consumers_is_dead_lettered(served: Served) -> None:
    """After as many deliveries as the group allows; those around it are delivered."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"poison", b"food"])
    for _ in range(3):
        raw = served.raw()
        options = {"max_deliveries": 3, **FAST}
        handle = raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options=options).fields["handle"]
        while True:
            frame = raw.call(Call.FETCH, consumer=handle, count=1, wait=PATIENCE_S)
            (message,) = delivered(frame)
            if bytes(message.batch.value(message.index) or b"") == b"poison":
                break
            raw.call(Call.RETURN, consumer=handle, tags=[[message.tag, 1]])
        raw.close()
        eventually(lambda: served.members("orders", "workers") == 0)
    eventually(lambda: len(served.store.dead_letters("orders")) == 1)
    (letter,) = served.store.dead_letters("orders")
    assert letter.value == b"poison"
    assert "connection" in str(letter.headers)
    next_one = served.store.subscribe("orders", "workers").get(timeout=PATIENCE_S)
    assert next_one is not None
    assert (next_one.value, next_one.attempt) == (b"food", 1)


def test_a_cut_consumer_of_an_ordered_group_loses_no_order(served: Served) -> None:
    """The next one begins with the oldest that is not finished."""
    served.store.create_topic("orders", partitions=2)
    for partition in (0, 1):
        served.store.publish_many("orders", [b"%d" % number for number in range(20)], partition=partition)
    raw = served.raw()
    options = {"ordered": True, **FAST}
    handle = raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options=options).fields["handle"]
    held = delivered(raw.call(Call.FETCH, consumer=handle, count=10, wait=PATIENCE_S))
    raw.call(Call.ACK, consumer=handle, tags=[[held[0].tag, 3]], wait=True)
    raw.close()
    eventually(lambda: served.members("orders", "workers") == 0)
    consumer = served.store.subscribe("orders", "workers", ordered=True)
    seen: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, seen.values())) < 37:
        for message in consumer.get_many(100, timeout=PATIENCE_S):
            seen[message.partition].append(int(message.value))  # type: ignore[arg-type]
            message.ack()
    for numbers in seen.values():
        assert numbers == list(range(20 - len(numbers), 20))


def test_the_connection_of_one_consumer_does_not_fail_another(served: Served) -> None:
    """Two connections, one group."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 4)
    one, other = served.raw(), served.client()
    handle = one.call(Call.SUBSCRIBE, topic="orders", group="workers", options=FAST).fields["handle"]
    one.call(Call.FETCH, consumer=handle, count=2, wait=PATIENCE_S)
    held = other.subscribe("orders", "workers").get_many(2, timeout=PATIENCE_S)
    one.close()
    eventually(lambda: served.members("orders", "workers") == 1)
    for message in held:
        message.ack(wait=True)
    assert served.store.stats().topics["orders"].groups["workers"].acked == len(held) > 0
