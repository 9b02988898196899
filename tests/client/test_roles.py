"""Who reads the answers of a connection: whoever waits for one, else its watch."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import connection as module
from penstock.wire.calls import Call
from penstock.wire.frame import PUSH
from tests.client.proxy import DOWN, UP
from tests.client.served import PATIENCE_S, eventually, later

if TYPE_CHECKING:
    from penstock import Store
    from tests.client.proxy import Proxy
    from tests.client.served import Served


def readers(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that take answers from now on."""
    found: list[str] = []
    taken = client._connection._take

    def take(frame: Any) -> None:
        found.append(threading.current_thread().name)
        taken(frame)

    monkeypatch.setattr(client._connection, "_take", take)
    return found


def test_who_waits_for_an_answer_reads_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second thread is woken for it."""
    client = served.client()
    client.publish("orders", b"first")
    found = readers(client, monkeypatch)
    for _ in range(20):
        client.publish("orders", b"x")
    assert set(found) == {threading.current_thread().name}


def test_a_consumer_that_iterates_reads_its_pushes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it waits for them."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    seen: list[bytes] = []

    def iterate() -> None:
        for message in consumer:
            seen.append(bytes(message.value or b""))
            message.ack()

    connection: Any = client._connection  # type: ignore[attr-defined]
    found: list[str] = []
    taken = connection._take

    def take(frame: Any) -> None:
        if frame.kind == PUSH:
            found.append(threading.current_thread().name)
        taken(frame)

    iterating = threading.Thread(target=iterate, name="iterating")
    iterating.start()
    # On a slow machine the watch may have been quicker; whoever it reads for reads himself the next time.
    while connection._reader_id != iterating.ident:
        count = len(seen) + 1
        served.store.publish("orders", b"x")
        eventually(lambda: len(seen) == count)  # noqa: B023
        eventually(connection._role.locked)
    monkeypatch.setattr(connection, "_take", take)
    time.sleep(3 * module.WATCH_SECONDS)
    served.store.publish("orders", b"last")
    eventually(lambda: seen[-1:] == [b"last"])
    assert found == ["iterating"]
    consumer.close()
    iterating.join(PATIENCE_S)
    assert not iterating.is_alive()


def test_answers_reach_all_who_wait(served: Served) -> None:
    """One of many threads reads for all, and when it has its own answer another one does."""
    client = served.client()
    client.create_topic("orders")
    working = [later(lambda: [client.publish("orders", b"x").offset for _ in range(200)]) for _ in range(8)]
    offsets = [offset for one in working for offset in one.result(PATIENCE_S)]
    assert sorted(offsets) == list(range(1_600))


def test_one_who_waits_no_longer_hands_the_reading_on(served: Served) -> None:
    """A get whose time is over was reading; the call beside it still gets its answer."""
    client = served.client()
    client.create_topic("orders")
    consumers = [client.subscribe("orders", f"group-{number}") for number in range(3)]
    waiting = [later(partial(one.get, timeout=wait)) for one, wait in zip(consumers, (0.1, 0.2, 30), strict=True)]
    assert [one.result(PATIENCE_S) for one in waiting[:2]] == [None, None]
    served.store.publish("orders", b"for all")
    assert waiting[2].result(PATIENCE_S).value == b"for all"


def test_pushes_that_nobody_waits_for_are_read(served: Served) -> None:
    """Else a server that cannot send would not read either, and who sends would wait for ever."""
    client = served.client()
    client.create_topic("orders", max_message_bytes=1 << 21)
    consumer = client.subscribe("orders", "workers", prefetch=100, prefetch_bytes=1 << 26)
    for _ in range(40):
        served.store.publish("orders", bytes(1 << 20))
    message = next(iter(consumer))  # from now on megabytes are on their way
    assert message.value is not None
    eventually(lambda: len(consumer._ahead) >= 5)  # type: ignore[attr-defined]
    assert later(lambda: client.publish("orders", bytes(1 << 20))).result(PATIENCE_S).offset == 40


def test_callbacks_are_called_when_nobody_waits(served: Served) -> None:
    """The watch reads for them."""
    client: Any = served.client()
    called = threading.Event()
    client._connection.begin(Call.PING, {}, callback=lambda _: called.set())
    assert called.wait(PATIENCE_S)
    with client.producer("orders", linger=0) as producer:
        for number in range(50):
            assert producer.send(b"x").result(PATIENCE_S).offset == number


def test_an_idle_client_notices_that_the_server_hung_up(proxy: Proxy, client: Any) -> None:
    """And is connected again before anybody asks."""
    client.publish("orders", b"first")
    proxy.cut()
    eventually(lambda: client._connection.generation == 2)
    assert client.publish("orders", b"second").offset == 1


def test_an_interrupted_wait_leaves_the_connection_as_it_was(served: Served) -> None:
    """Ctrl-C while nothing comes: what the client holds is still its own."""
    client: Any = served.client()
    client.create_topic("orders")
    served.store.publish("orders", b"first")
    consumer = client.subscribe("orders", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    main = threading.get_ident()
    assert main == threading.main_thread().ident
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        consumer.get(timeout=PATIENCE_S)
    timer.join()
    message.ack(wait=True)
    assert client._connection.generation == 1
    assert client.publish("orders", b"second").offset == 1


def test_an_interrupted_reader_costs_nobody_an_answer(proxy: Proxy, client: Any) -> None:
    """Ctrl-C while answers are handed out: the connection is made again, and what others wait for is asked again."""
    client.create_topic("orders")
    taken = client._connection._take
    calls = 0

    def take(frame: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        taken(frame)

    proxy.hold(DOWN)
    waiting = later(lambda: client.publish("orders", b"waits"))
    eventually(client._connection._role.locked)
    client._connection._take = take
    interrupted = waiting
    proxy.release()
    with pytest.raises(KeyboardInterrupt):
        interrupted.result(PATIENCE_S)
    assert client.publish("orders", b"after").offset == 1
    assert client._connection.generation == 2


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_those_who_wait_while_another_reads_survive_a_cut(proxy: Proxy, client: Store, direction: str) -> None:
    """Wherever it comes: each is answered once, and stored once."""
    client.create_topic("orders")
    working = [later(lambda: [client.publish("orders", b"x").offset for _ in range(50)]) for _ in range(6)]
    for _ in range(5):
        proxy.cut_after(direction, 700)
        time.sleep(0.05)
    proxy.spare()
    offsets = [offset for one in working for offset in one.result(PATIENCE_S)]
    assert sorted(offsets) == list(range(300))
