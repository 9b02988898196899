"""
A server that is restarted in order, again and again, under load: clients notice nothing but a pause.

A real `penstock serve`, stopped by SIGTERM and started anew at the same address. Every call is made in a loop, and none may raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Queue, aio
from tests.cli.serving import Serving
from tests.server.test_listening import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

PATIENCE_S = 120.0
PAUSE_S = 0.01
RESTARTS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Place:
    """Where one server after the other serves the same store."""

    def __init__(self, folder: Path, authority: Authority | None) -> None:
        self._data = str(folder / "data")
        port = free_port()
        self._options = ["--data", self._data, "--native", f"127.0.0.1:{port}", "--no-grpc", "--no-http"]
        self.url = f"penstock://127.0.0.1:{port}"
        if authority is not None:
            certificate, key = authority.sign("server")
            self._options += ["--tls-certificate", certificate, "--tls-key", key]
            self.url = f"penstocks://127.0.0.1:{port}?ca={authority.certificate}"
        self.server: Serving | None = Serving(*self._options)

    def restart(self) -> str:
        """Stop it in order, and start the next one; returns what it logged."""
        assert self.server is not None
        code, logged = self.server.stop()
        self.server = None
        assert code == 0, logged
        self.server = Serving(*self._options)
        return logged

    def close(self) -> None:
        if self.server is not None:
            code, logged = self.server.stop()
            self.server = None
            assert code == 0, logged
            assert "Traceback" not in logged


@pytest.fixture(params=["plain", "tls"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    authority = Authority(tmp_path, "ours") if request.param == "tls" else None
    place = Place(tmp_path, authority)
    try:
        yield place
    finally:
        if place.server is not None:
            place.server.process.kill()
            place.server.process.communicate()


class Load:
    """Loops in threads, each with its count of turns; what one raises is kept."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.turns: dict[str, int] = {}
        self.failures: list[str] = []
        self._threads: list[threading.Thread] = []

    def repeat(self, name: str, turn: Callable[[int], object]) -> None:
        self.turns[name] = 0

        def run() -> None:
            try:
                for number in itertools.count():
                    if self.ended.is_set():
                        return
                    turn(number)
                    self.turns[name] += 1
                    time.sleep(PAUSE_S)
            except BaseException:
                self.failures.append(f"{name}: {traceback.format_exc()}")

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    async def arepeat(self, name: str, turn: Callable[[int], Coroutine[Any, Any, object]]) -> None:
        self.turns[name] = 0
        try:
            for number in itertools.count():
                if self.ended.is_set():
                    return
                await turn(number)
                self.turns[name] += 1
                await asyncio.sleep(PAUSE_S)
        except Exception:
            self.failures.append(f"{name}: {traceback.format_exc()}")

    def check(self) -> None:
        assert not self.failures, "\n".join(self.failures)

    def wait_for_turns(self) -> None:
        """Each loop gets further, twice: what it waited for it has, and it does it once more."""
        seen = dict(self.turns)
        end = time.monotonic() + PATIENCE_S
        while True:
            self.check()
            waiting = [name for name, count in seen.items() if self.turns[name] < count + 2]
            if not waiting:
                return
            assert time.monotonic() < end, f"{waiting} get no further; {self.turns}"
            time.sleep(0.02)

    def end(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} hangs"
        self.check()


def restart_under(place: Place, load: Load, restarts: int = RESTARTS) -> None:
    load.wait_for_turns()
    for _ in range(restarts):
        logged = place.restart()
        assert "Traceback" not in logged, logged
        load.wait_for_turns()


@pytest.mark.long
def test_no_call_of_a_blocking_client_raises(place: Place) -> None:
    load = Load()
    published: list[bytes] = []
    acked: list[bytes] = []
    with contextlib.ExitStack() as stack:

        def client() -> Any:
            return stack.enter_context(contextlib.closing(penstock.open(place.url, give_up=PATIENCE_S)))

        setup = client()
        for name in ("orders", "bulk", "quiet", "moves", "settled", "jobs"):
            setup.create_topic(name)
        setup.publish_many("quiet", [b"%d" % number for number in range(50)])
        setup.subscribe("quiet", "sought").close()

        one, two, three, four = client(), client(), client(), client()

        def publish(number: int) -> None:
            one.publish("orders", b"single-%d" % number)
            published.append(b"single-%d" % number)

        load.repeat("publish", publish)
        load.repeat("publish_many", lambda number: one.publish_many("bulk", [b"%d" % number] * 20))
        producer = stack.enter_context(two.producer("orders", linger=0))

        def send(number: int) -> None:
            producer.send(b"sent-%d" % number).result(PATIENCE_S)
            published.append(b"sent-%d" % number)

        load.repeat("producer", send)

        def transact(number: int) -> None:
            with two.transaction() as changes:
                changes.publish("orders", b"transacted-%d" % number)
            published.append(b"transacted-%d" % number)

        load.repeat("transaction", transact)

        getting = three.subscribe("orders", "getters")

        def get(_: int) -> None:
            message = getting.get()
            assert message is not None
            message.ack(wait=True)
            acked.append(bytes(message.value))

        load.repeat("get", get)
        several = three.subscribe("bulk", "getters")

        def get_many(_: int) -> None:
            for message in several.get_many(10, timeout=PATIENCE_S):
                message.ack()
            several.flush()

        load.repeat("get_many", get_many)
        iterating = iter(four.subscribe("bulk", "iterators"))

        def iterate(_: int) -> None:
            with next(iterating):
                pass

        load.repeat("iterate", iterate)
        moving = two.subscribe("orders", "movers")

        def consume_and_produce(_: int) -> None:
            message = moving.get()
            with two.transaction() as changes:
                changes.ack(message)
                changes.publish("moves", message.value)

        load.repeat("consume and produce", consume_and_produce)
        load.repeat("read", lambda _: list(four.read("quiet")))
        load.repeat("stats", lambda _: four.stats())
        load.repeat("seek", lambda number: four.seek("quiet", "sought", number % 50))
        load.repeat("subscribe", lambda number: four.subscribe("quiet", f"g{number % 5}").close())
        committing = four.subscribe("quiet", "committers")
        load.repeat("commit", lambda number: committing.commit(number % 50))
        queue = stack.enter_context(Queue(place.url, name="jobs"))

        def put_and_get(number: int) -> None:
            queue.put(b"%d" % number)
            queue.get()
            queue.task_done()

        load.repeat("queue", put_and_get)

        working = client()
        load.turns["worker"] = 0

        @working.worker("orders", group="workers")
        def handle(_: Any) -> None:
            load.turns["worker"] += 1

        runner = threading.Thread(target=working.run, daemon=True)
        runner.start()

        restart_under(place, load)
        load.end()
        working.stop()
        runner.join(PATIENCE_S)
        assert not runner.is_alive()
        assert sorted(bytes(message.value) for message in setup.read("orders")) == sorted(published), "each is stored once"
        assert len(acked) == len(set(acked)), "what was acked, and waited for, came once"
        moved = [bytes(message.value) for message in setup.read("moves")]
        assert len(moved) == len(set(moved)), "each was moved once"
        groups = setup.stats().topics["orders"].groups
        assert [groups[name].dead_lettered for name in ("getters", "movers", "workers")] == [0, 0, 0]
    place.close()


@pytest.mark.long
def test_no_call_of_an_asyncio_client_raises(place: Place) -> None:
    load = Load()
    published: list[bytes] = []

    async def main() -> None:
        async with aio.open(place.url, give_up=PATIENCE_S) as store:
            for name in ("orders", "bulk", "quiet", "moves"):
                await store.create_topic(name)
            await store.publish_many("quiet", [b"%d" % number for number in range(50)])
            await (await store.subscribe("quiet", "sought")).close()
            producer = await store.producer("orders", linger=0)
            getting = await store.subscribe("orders", "getters")
            several = await store.subscribe("bulk", "getters")
            iterating = aiter(await store.subscribe("bulk", "iterators"))
            moving = await store.subscribe("orders", "movers")
            committing = await store.subscribe("quiet", "committers")

            async def publish(number: int) -> None:
                await store.publish("orders", b"single-%d" % number)
                published.append(b"single-%d" % number)

            async def send(number: int) -> None:
                await producer.send(b"sent-%d" % number)
                published.append(b"sent-%d" % number)

            async def transact(number: int) -> None:
                async with store.transaction() as changes:
                    changes.publish("orders", b"transacted-%d" % number)
                published.append(b"transacted-%d" % number)

            async def get(_: int) -> None:
                message = await getting.get()
                assert message is not None
                await message.ack(wait=True)

            async def get_many(_: int) -> None:
                found = await several.get_many(10, timeout=PATIENCE_S)
                await several.ack(found, wait=True)

            async def iterate(_: int) -> None:
                async with await anext(iterating):
                    pass

            async def consume_and_produce(_: int) -> None:
                message = await moving.get()
                assert message is not None
                async with store.transaction() as changes:
                    changes.ack(message)
                    changes.publish("moves", message.value)

            async def read(_: int) -> None:
                assert len([message async for message in store.read("quiet")]) == 50

            async def subscribe(number: int) -> None:
                await (await store.subscribe("quiet", f"g{number % 5}")).close()

            turns: dict[str, Callable[[int], Coroutine[Any, Any, object]]] = {
                "publish": publish, "send": send, "transaction": transact, "get": get, "get_many": get_many, "iterate": iterate,
                "consume and produce": consume_and_produce, "read": read, "subscribe": subscribe,
                "publish_many": lambda number: store.publish_many("bulk", [b"%d" % number] * 20),
                "seek": lambda number: store.seek("quiet", "sought", number % 50),
                "stats": lambda _: asyncio.to_thread(store.stats),
                "commit": lambda number: committing.commit(number % 50),
                "flush": lambda _: getting.flush(),
            }  # fmt: skip
            loops = [asyncio.create_task(load.arepeat(name, turn)) for name, turn in turns.items()]
            await asyncio.sleep(0)
            try:
                await asyncio.to_thread(restart_under, place, load)
            finally:
                load.ended.set()
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.gather(*loops)
            load.check()
            assert sorted([bytes(message.value or b"") async for message in store.read("orders")]) == sorted(published)
            moved = [bytes(message.value or b"") async for message in store.read("moves")]
            assert len(moved) == len(set(moved))

    asyncio.run(main())
    place.close()


__all__ = ["Load", "Place", "free_port", "restart_under"]
