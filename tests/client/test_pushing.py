"""Iterating: the server pushes ahead what the credit allows, and no more."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock.client.consumer as module
from penstock.errors import Closed, PenstockError, Unavailable
from penstock.groups.group import Group
from penstock.wire.calls import Call
from penstock.wire.frame import PUSH
from tests.client.served import PATIENCE_S, delivered, eventually, later

if TYPE_CHECKING:
    from tests.client.served import RawClient, Served


def pushed(raw: RawClient, expected: int) -> int:
    """How many messages are pushed until there are so many, and nothing more comes for a while."""
    count = 0
    try:
        while True:
            raw.socket.settimeout(0.2 if count >= expected else PATIENCE_S)
            frame = raw.read()
            if frame is None:
                break
            if frame.kind == PUSH:
                count += len(delivered(frame))
    except TimeoutError:
        pass
    raw.socket.settimeout(PATIENCE_S)
    return count


def subscribe(raw: RawClient, **options: Any) -> int:
    return int(raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options=options).fields["handle"])


def test_ten_thousand_messages_come_once_and_in_order(served: Served) -> None:
    """Each is acked, and none is left."""
    client = served.client()
    client.create_topic("orders")
    count = 10_000
    for first in range(0, count, 1_000):
        served.store.publish_many("orders", [b"%d" % number for number in range(first, first + 1_000)])
    consumer = client.subscribe("orders", "workers")
    seen: list[int] = []
    batch = []
    for message in consumer:
        seen.append(int(message.value))  # type: ignore[arg-type]
        batch.append(message)
        if len(batch) == 25:
            consumer.ack(batch)
            batch = []
        if len(seen) == count:
            break
    assert seen == list(range(count))
    client.flush()
    group = served.store.stats().topics["orders"].groups["workers"]
    assert (group.lag, group.acked, group.redelivered) == (0, count, 0)


def test_messages_that_are_published_meanwhile_come_at_once(served: Served) -> None:
    """A consumer that waits is pushed to."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    arrived = threading.Semaphore(0)

    def iterate() -> None:
        for message in consumer:
            message.ack()
            arrived.release()

    iterating = later(iterate)
    for number in range(50):
        served.store.publish("orders", b"%d" % number)
        assert arrived.acquire(timeout=PATIENCE_S)
    consumer.close()
    iterating.result(PATIENCE_S)


def test_credit_is_never_exceeded(served: Served) -> None:
    """However it is given: at once, in pieces, before the messages and after them."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 500)
    raw = served.raw()
    handle = subscribe(raw, prefetch=1_000)
    assert pushed(raw, 0) == 0
    raw.send(Call.CREDIT, {"consumer": handle, "messages": 7})
    assert pushed(raw, 7) == 7
    for messages in (1, 2, 3):
        raw.send(Call.CREDIT, {"consumer": handle, "messages": messages})
    assert pushed(raw, 6) == 6
    raw.send(Call.CREDIT, {"consumer": handle, "messages": 600})
    assert pushed(raw, 487) == 487
    served.store.publish_many("orders", [b"y"] * 200)
    assert pushed(raw, 113) == 113


def test_credit_that_was_taken_back_pushes_nothing(served: Served) -> None:
    """Also where the server was waiting for messages already."""
    served.store.create_topic("orders")
    raw = served.raw()
    handle = subscribe(raw, prefetch=1_000)
    raw.call(Call.CREDIT, consumer=handle, messages=10)
    time.sleep(0.1)
    raw.call(Call.CREDIT, consumer=handle, messages=0)
    served.store.publish_many("orders", [b"x"] * 20)
    assert pushed(raw, 0) == 0
    raw.send(Call.CREDIT, {"consumer": handle, "messages": 5})
    assert pushed(raw, 5) == 5


def test_a_consumer_holds_no_more_than_its_prefetch(served: Served) -> None:
    """The read-ahead counts."""
    client = served.client()
    client.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 100)
    consumer = client.subscribe("orders", "workers", prefetch=10)
    held = []
    for message in consumer:
        held.append(message)
        time.sleep(0.005)
        assert served.store.stats().topics["orders"].groups["workers"].in_flight <= 10
        if len(held) == 5:
            break
    consumer.close()


def test_read_ahead_goes_back_uncounted_when_the_consumer_is_closed(served: Served) -> None:
    """What was pushed and never seen was nobody's failure."""
    client = served.client()
    client.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 150)
    consumer = client.subscribe("orders", "workers")
    next(iter(consumer)).ack()
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].in_flight >= 50)
    consumer.close()
    again = client.subscribe("orders", "workers", prefetch=1_000).get_many(200, timeout=PATIENCE_S)
    assert len(again) == 149
    assert {one.attempt for one in again} == {1}


def test_a_paused_consumer_is_pushed_nothing(served: Served) -> None:
    """And goes on when it is resumed."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    seen: list[bytes] = []

    def iterate() -> None:
        for message in consumer:
            seen.append(message.value)  # type: ignore[arg-type]
            message.ack()

    iterating = later(iterate)
    served.store.publish("orders", b"one")
    eventually(lambda: seen == [b"one"])
    consumer.pause()
    served.store.publish("orders", b"two")
    time.sleep(0.2)
    assert seen == [b"one"]
    consumer.resume()
    eventually(lambda: seen == [b"one", b"two"])
    consumer.close()
    iterating.result(PATIENCE_S)


@pytest.mark.parametrize("closed", ["consumer", "store"])
def test_closing_while_messages_are_pushed_ends_the_loop(served: Served, closed: str) -> None:
    """In another thread, at any moment; what it held goes back."""
    client = served.client()
    client.create_topic("orders")
    served.store.publish_many("orders", [b"x"] * 2_000)
    consumer = client.subscribe("orders", "workers")
    seen = 0

    def iterate() -> None:
        nonlocal seen
        for message in consumer:
            seen += 1
            try:
                message.ack()
            except PenstockError:
                return

    iterating = later(iterate)
    eventually(lambda: seen > 100)
    (consumer if closed == "consumer" else client).close()
    iterating.result(PATIENCE_S)
    eventually(lambda: served.members("orders", "workers") == 0)
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].in_flight == 0)


def test_two_threads_may_iterate_one_consumer(served: Served) -> None:
    """Each message goes to one of them."""
    client = served.client()
    client.create_topic("orders")
    count = 2_000
    served.store.publish_many("orders", [b"%d" % number for number in range(count)])
    consumer = client.subscribe("orders", "workers")
    seen: list[list[int]] = [[], []]

    def iterate(mine: list[int]) -> None:
        for message in consumer:
            message.ack()
            mine.append(int(message.value))  # type: ignore[arg-type]

    running = [later(lambda mine=mine: iterate(mine)) for mine in seen]  # type: ignore[misc]
    eventually(lambda: sum(map(len, seen)) == count)
    client.flush()
    consumer.close()
    for one in running:
        one.result(PATIENCE_S)
    assert sorted(seen[0] + seen[1]) == list(range(count))
    assert served.store.stats().topics["orders"].groups["workers"].lag == 0


def test_get_and_iterating_can_be_mixed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pushed ahead comes first."""
    monkeypatch.setattr(module, "READ_AHEAD_MAX", 10)
    client = served.client()
    client.create_topic("orders")
    served.store.publish_many("orders", [b"%d" % number for number in range(40)])
    consumer = client.subscribe("orders", "workers")
    seen = [int(next(iter(consumer)).value)]  # type: ignore[arg-type]
    while len(seen) < 40:
        found = consumer.get_many(3, timeout=PATIENCE_S)
        assert found
        seen += [int(one.value) for one in found]  # type: ignore[arg-type]
    assert seen == list(range(40))
    assert consumer.get(timeout=0) is None


def test_an_error_while_pushing_reaches_the_loop(served: Served) -> None:
    """The group is deleted under it: the consumer is closed, and the loop ends."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    iterating = later(lambda: [message.value for message in consumer])
    eventually(lambda: served.members("orders", "workers") == 1)
    time.sleep(0.1)
    served.store.delete_group("orders", "workers")
    with contextlib.suppress(Closed):
        assert iterating.result(PATIENCE_S) == []


def test_big_messages_are_counted_once_as_delivered(served: Served) -> None:
    """What did not fit into a push was never delivered."""
    served.store.create_topic("orders")
    served.store.publish_many("orders", [bytes(100_000)] * 60)
    raw = served.raw()
    handle = subscribe(raw, prefetch=1_000, prefetch_bytes=1 << 24)
    raw.send(Call.CREDIT, {"consumer": handle, "messages": 60})
    assert pushed(raw, 60) == 60
    assert served.store.stats().topics["orders"].groups["workers"].delivered == 60


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
