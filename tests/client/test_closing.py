"""Closing, forking, and many threads on one client."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed, LeaseExpired, PenstockError
from penstock.wire.calls import Call
from tests.client.proxy import DOWN
from tests.client.served import PATIENCE_S, eventually, later, within

if TYPE_CHECKING:
    from penstock import Store
    from tests.client.proxy import Proxy
    from tests.client.served import Served


# -- closing --------------------------------------------------------------------------------------------------------


def test_calls_that_wait_raise_closed(served: Served) -> None:
    """A get, in any number of threads."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    waiting = [later(consumer.get) for _ in range(5)]
    time.sleep(0.1)
    with within(PATIENCE_S):
        client.close()
    for one in waiting:
        with pytest.raises(Closed):
            one.result(PATIENCE_S)


@pytest.mark.parametrize("call", ["get", "ack", "extend"])
def test_a_call_that_reaches_the_server_after_the_close_of_another_thread_raises_closed_or_late(
    served: Served, call: str
) -> None:
    """The server does not know the consumer any more; its word for that, a bad argument, is not what the user did."""
    client = served.client()
    client.publish("orders", b"x")
    consumer = client.subscribe("orders", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    assert message is not None
    remote: Any = consumer
    place = remote._place

    def close_then_go_on() -> Any:
        found = place()
        if not remote.closed:
            consumer.close()
        return found

    remote._place = close_then_go_on
    with pytest.raises(Closed if call == "get" else LeaseExpired):
        consumer.get(timeout=PATIENCE_S) if call == "get" else getattr(message, call)()


def test_publishes_that_wait_for_an_answer_raise_closed(proxy: Proxy, client: Store) -> None:
    """Nobody waits for a connection that was given up by its owner."""
    client.publish("orders", b"before")
    proxy.hold(DOWN)
    waiting = [later(lambda: client.publish("orders", b"x")) for _ in range(3)]
    time.sleep(0.1)
    with within(PATIENCE_S):
        client.close()
    for one in waiting:
        with pytest.raises(PenstockError):
            one.result(PATIENCE_S)


def test_closing_during_an_outage_does_not_wait_for_the_server(proxy: Proxy, client: Store) -> None:
    """Nothing is left to tell it."""
    client.create_topic("orders")
    client.subscribe("orders", "workers")
    proxy.refuse()
    eventually(lambda: client._connection._channel is None)  # type: ignore[attr-defined]
    waiting = later(lambda: client.publish("orders", b"x"))
    time.sleep(0.05)
    later(client.close).result(PATIENCE_S)
    with pytest.raises(PenstockError):
        waiting.result(PATIENCE_S)


def test_a_closed_client_says_so(served: Served) -> None:
    """Every call of it, and of what it made; closing again does nothing."""
    client = served.client()
    client.create_topic("orders")
    consumer, producer = client.subscribe("orders", "workers"), client.producer("orders")
    stage = client.stage("job")
    client.close()
    client.close()
    assert client.closed
    calls: list[Any] = [
        lambda: client.publish("orders", b"x"), lambda: client.publish_many("orders", [b"x"]), client.topics, client.stats,
        lambda: client.topic("orders"), lambda: client.subscribe("orders", "workers"), client.transaction,
        lambda: client.stage("job"), lambda: client.commit("job", 1, []), lambda: client.abort([]), lambda: client.committed("job", 1),
        client.groups, lambda: client.delete_group("orders", "workers"), lambda: client.seek("orders", "workers", 0),
        lambda: client.dead_letters("orders"), lambda: list(client.read("orders")), client.retain, client.flush,
        lambda: client.producer("orders"), lambda: client.create_topic("more"), consumer.get, lambda: consumer.get_many(1),
        lambda: consumer.commit(1), lambda: producer.send(b"x"), stage.finish,
    ]  # fmt: skip
    for number, call in enumerate(calls):
        with pytest.raises(Closed):
            call()
            pytest.fail(f"call {number} worked")
    consumer.close()
    producer.close()
    assert list(consumer) == []


def test_closing_tells_the_server(served: Served) -> None:
    """Its consumers leave their groups at once, and no connection is left."""
    client = served.client()
    client.create_topic("orders")
    client.subscribe("orders", "workers")
    client.close()
    assert served.members("orders", "workers") == 0
    eventually(lambda: served.server.connections == 0)


def test_closing_commits_what_producers_hold(served: Served) -> None:
    """As closing a store does."""
    client = served.client()
    client.create_topic("orders")
    producer = client.producer("orders", linger=10)
    sent = [producer.send(b"%d" % number) for number in range(10)]
    client.close()
    assert [one.result(0).offset for one in sent] == list(range(10))
    assert len(served.values("orders")) == 10


def test_no_thread_outlives_its_client(served: Served) -> None:
    """However often it was connected."""
    before = threading.active_count()
    for _ in range(10):
        client = served.client()
        client.publish("orders", b"x")
        served.server.disconnect_all()
        client.publish("orders", b"x")
        client.close()
    eventually(lambda: threading.active_count() <= before + 3, "threads are left")


# -- forking --------------------------------------------------------------------------------------------------------


def in_a_child(work: Any) -> int:
    """Run *work* in a forked child; returns what it returns."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(60)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_that_it_has_no_store(served: Served) -> None:
    """The connection is the parent's, where it goes on."""
    client = served.client()
    client.publish("orders", b"before")
    consumer = client.subscribe("orders", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    assert message is not None

    def child() -> int:
        for call in (lambda: client.publish("orders", b"child"), consumer.get, message.ack, client.topics):
            try:
                call()
            except PenstockError:
                continue
            return 1
        return 0

    assert in_a_child(child) == 0
    assert client.publish("orders", b"after").offset == 1
    message.ack(wait=True)
    assert served.values("orders") == [b"before", b"after"]
    assert served.store.stats().topics["orders"].groups["workers"].acked == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_closes_its_copy_leaves_the_parents_connection(served: Served) -> None:
    """As every child does that ends the block it was forked in."""
    client = served.client()
    client.publish("orders", b"before")
    consumer = client.subscribe("orders", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    assert message is not None

    def child() -> int:
        consumer.close()
        client.close()
        return 0

    assert in_a_child(child) == 0
    time.sleep(0.1)
    assert client._connection.generation == 1  # type: ignore[attr-defined]
    message.ack(wait=True)
    assert client.publish("orders", b"after").offset == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_may_open_its_own(served: Served) -> None:
    """Beside the parent's."""
    client = served.client()
    client.publish("orders", b"parent")
    address = served.server.address

    def child() -> int:
        import penstock

        own = penstock.open(address)
        own.publish("orders", b"child")
        own.close()
        return 0

    assert in_a_child(child) == 0
    client.publish("orders", b"parent")
    assert served.values("orders") == [b"parent", b"child", b"parent"]


# -- threads --------------------------------------------------------------------------------------------------------


def test_two_threads_share_a_client(served: Served) -> None:
    """One publishes what the other consumes."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")

    def consume() -> list[int]:
        seen: list[int] = []
        while len(seen) < 300:
            message = consumer.get(timeout=PATIENCE_S)
            assert message is not None
            seen.append(int(message.value))  # type: ignore[arg-type]
            message.ack()
        return seen

    consuming = later(consume)
    for number in range(300):
        client.publish("orders", b"%d" % number)
    assert consuming.result(PATIENCE_S) == list(range(300))


def test_sixty_four_threads_publish(served: Served) -> None:
    """Each in its order, all of it once."""
    client = served.client()
    client.create_topic("orders", partitions=4)
    threads, each = 64, 30

    def publish(thread: int) -> None:
        for number in range(each):
            client.publish("orders", b"%d.%d" % (thread, number), key=b"%d" % thread)

    for one in [later(lambda thread=thread: publish(thread)) for thread in range(threads)]:  # type: ignore[misc]
        one.result(PATIENCE_S)
    stored = served.values("orders")
    assert len(set(stored)) == len(stored) == threads * each
    for thread in range(threads):
        mine = [value for value in stored if value.startswith(b"%d." % thread)]
        assert mine == [b"%d.%d" % (thread, number) for number in range(each)]


def test_many_threads_consume_one_group(served: Served) -> None:
    """Each message goes to one of them."""
    client = served.client()
    client.create_topic("orders")
    count = 500
    served.store.publish_many("orders", [b"%d" % number for number in range(count)])
    consumers = [client.subscribe("orders", "workers") for _ in range(8)]

    seen: list[int] = []

    def consume(consumer: Any) -> None:
        while len(seen) < count:
            message = consumer.get(timeout=0.05)
            if message is not None:
                seen.append(int(message.value))
                message.ack()

    for one in [later(lambda one=one: consume(one)) for one in consumers]:  # type: ignore[misc]
        one.result(PATIENCE_S)
    assert sorted(seen) == list(range(count))


def test_a_callback_may_call_the_client(served: Served) -> None:
    """It runs in a thread that nobody waits for."""
    client = served.client()
    client.create_topic("orders")
    client.create_topic("copies")
    done = threading.Event()

    def copy(_: Any) -> None:
        client.publish("copies", b"copy")
        done.set()

    with client.producer("orders", linger=0) as producer:
        producer.send(b"x", on_done=copy)
        assert done.wait(PATIENCE_S)
    assert served.values("copies") == [b"copy"]


def test_a_callback_that_fails_harms_nobody(served: Served) -> None:
    """The connection goes on reading."""
    client = served.client()
    with client.producer("orders", linger=0) as producer:
        producer.send(b"x", on_done=lambda _: 1 / 0).result(PATIENCE_S)
        producer.send(b"y").result(PATIENCE_S)
    assert client.publish("orders", b"z").offset == 2


def test_timestamps_with_deduplication_keys_are_kept_to_the_microsecond(served: Served) -> None:
    """They travel another way than those without."""
    import datetime as dt

    client = served.client()
    client.create_topic("orders", dedup_window=60)
    moments = [dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_997, dt.UTC),
               dt.datetime(1, 1, 1, 0, 0, 0, 3, dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 1, dt.UTC)]  # fmt: skip
    for number, moment in enumerate(moments):
        client.publish("orders", b"x", timestamp=moment, dedup_key=b"%d" % number)
    assert [one.timestamp for one in served.store.read("orders")] == moments


def test_the_server_forgets_clients_that_are_gone(served: Served) -> None:
    """Not what they have stored, but the batches that it kept for them in memory."""
    import tracemalloc

    served.store.create_topic("orders", max_message_bytes=1 << 21)
    with served.client() as client:
        client.publish("orders", bytes(1 << 20))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(30):
        with served.client() as client:
            client.publish("orders", bytes(1 << 20))
    try:
        # The last ones may not have gone yet.
        eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 15 << 20)
    finally:
        tracemalloc.stop()


def test_a_stuck_connection_of_one_client_does_not_stop_others(served: Served) -> None:
    """Requests that wait in threads are of all clients."""
    served.store.create_topic("orders")
    raws = [served.raw() for _ in range(20)]
    for raw in raws:
        handle = raw.call(Call.SUBSCRIBE, topic="orders", group="waiting").fields["handle"]
        for _ in range(20):
            raw.send(Call.FETCH, {"consumer": handle, "count": 1, "wait": None})
    with within(PATIENCE_S):
        assert served.client().publish("orders", b"x").offset == 0
        assert len(served.client().topics()) == 1
