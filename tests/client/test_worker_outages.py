"""Workers whose server is away for a while."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Unavailable
from tests.client.served import PATIENCE_S, eventually, given_up, later, lose

if TYPE_CHECKING:
    from tests.client.proxy import Proxy
    from tests.client.served import Served


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "loop"])
def test_a_worker_goes_on_when_the_server_was_away_for_too_long_while_a_handler_ended(
    proxy: Proxy, served: Served, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of that handler is told to nobody, and its message comes again; the next ones are handled too."""
    served.store.publish("orders", b"1")
    client = served.client(proxy.address, give_up=0.2)
    begun, may_end = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def handle(message: Any) -> None:
        seen.append(bytes(message.value))
        begun.set()
        assert may_end.wait(PATIENCE_S)

    async def handle_in_loop(message: Any) -> None:
        await asyncio.to_thread(handle, message)

    client.worker("orders", group="workers")(handle_in_loop if is_async else handle)
    running = later(client.run)
    assert begun.wait(PATIENCE_S)
    worker = client._workers._workers[0]
    lose(proxy, client)
    with pytest.raises(Unavailable):
        client.topics()
    may_end.set()
    # It has told the server, in vain, when it tries to take the next one.
    eventually(lambda: worker.handled == 1)
    eventually(lambda: "cannot take messages" in caplog.text)
    proxy.allow()
    eventually(lambda: len(seen) == 2)
    served.store.publish("orders", b"2")
    eventually(lambda: len(seen) == 3)
    assert seen == [b"1", b"1", b"2"]
    assert all(thread.is_alive() for thread in worker._threads)
    client.stop()
    running.result(PATIENCE_S)


def test_async_handlers_go_on_while_the_begin_of_another_waits_for_the_server(
    proxy: Proxy, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop does not wait with it."""
    served.store.publish_many("orders", [b"1"])
    client = served.client(proxy.address, give_up=20)
    ticks: list[int] = []
    seen: list[bytes] = []

    @client.worker("orders", group="workers", concurrency=2)
    async def handle(message: Any) -> None:
        seen.append(bytes(message.value))
        while len(seen) == 1:
            ticks.append(1)
            await asyncio.sleep(0.001)

    running = later(client.run)
    eventually(lambda: bool(ticks))
    worker = client._workers._workers[0]
    asking, answer = threading.Event(), threading.Event()
    begin = worker._begin

    def begin_slowly(messages: list[Any]) -> list[Any]:
        asking.set()
        assert answer.wait(PATIENCE_S)
        return begin(messages)

    monkeypatch.setattr(worker, "_begin", begin_slowly)
    served.store.publish("orders", b"2")
    assert asking.wait(PATIENCE_S)
    before = len(ticks)
    eventually(lambda: len(ticks) > before + 3)
    answer.set()
    eventually(lambda: len(seen) == 2)
    client.stop()
    running.result(PATIENCE_S)


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
