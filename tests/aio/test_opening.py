"""Opening and closing: stores, consumers and producers are awaited, or entered."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store, aio, threads
from penstock.errors import BadName, BadSetting, Closed, ReadOnly, StoreLocked, StoreNotFound, TopicNotFound
from tests.aio.helpers import PATIENCE, SOON, Gate, Opener, done, one, position, run, stored, until
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aio import Opening


def test_a_store_is_awaited_or_entered(opener: Opener) -> None:
    """Entering closes it at the end; awaiting leaves that to the caller."""

    async def main() -> None:
        async with opener() as store:
            assert (await store.publish("t", b"x")).offset == 0
        with pytest.raises(Closed):
            await store.publish("t", b"y")
        store = await opener()
        await store.publish("t", b"z")
        await store.close()
        await store.close()
        with pytest.raises(Closed):
            store.topics()

    run(main())


def test_an_open_store_can_be_entered(opener: Opener) -> None:
    """``async with await``, as it was written before."""

    async def main() -> None:
        async with await opener() as store:
            await store.publish("t", b"x")
            async with await store.subscribe("t", "g") as consumer:
                await (await one(consumer)).ack()
            async with await store.producer("t") as producer:
                await producer.send(b"y")
            assert await stored(store) == [b"x", b"y"]
        assert store.sync.closed

    run(main())


def test_a_store_is_closed_when_its_block_fails(opener: Opener) -> None:
    """The error goes on."""

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with opener() as store:
                raise ZeroDivisionError
        assert store.sync.closed

    run(main())


def test_a_subscription_is_awaited_or_entered(opener: Opener) -> None:
    """Both give a member of the group; leaving the block ends it."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(2))
            async with store.subscribe("t", "g") as consumer:
                await (await one(consumer)).ack()
            with pytest.raises(Closed):
                await consumer.get(0)
            awaited = await store.subscribe("t", group="g")
            assert (await one(awaited)).value == b"1"
            await awaited.close()
            await awaited.close()
            assert store.stats().topics["t"].groups["g"].members == 0

    run(main())


def test_a_producer_is_awaited_or_entered(opener: Opener) -> None:
    """Both commit what they hold when they are closed."""

    async def main() -> None:
        async with opener() as store:
            async with store.producer("t", linger=60) as producer:
                await producer.send(b"0")
            with pytest.raises(Closed):
                await producer.send(b"never")
            awaited = await store.producer("t", linger=60)
            await awaited.send(b"1")
            await awaited.close()
            await awaited.close()
            assert await stored(store) == numbered(2)

    run(main())


def test_a_folder_is_found_again(folder_opener: Opener) -> None:
    """With what was published and what was acked."""

    async def main() -> None:
        async with folder_opener() as store:
            await store.publish_many("t", numbered(3))
            async with store.subscribe("t", "g") as consumer:
                await (await one(consumer)).ack()
        async with folder_opener(create=False) as store:
            assert await stored(store) == numbered(3)
            assert position(store) == 1

    run(main())


def test_opening_raises_what_the_plain_store_raises(folder: str, folder_opener: Opener) -> None:
    """When it is awaited."""

    async def main() -> None:
        with pytest.raises(StoreNotFound):
            await folder_opener(create=False)
        with pytest.raises(BadSetting):
            async with aio.open(folder, no_such_setting=1):
                pass
        async with folder_opener():
            with pytest.raises(StoreLocked):
                await folder_opener()
        async with folder_opener(auto_create=False) as store:
            with pytest.raises(TopicNotFound):
                await store.publish("t", b"x")

    run(main())


def test_subscribing_raises_what_the_plain_store_raises(opener: Opener) -> None:
    """When it is awaited, and nothing is left behind."""

    async def main() -> None:
        async with opener() as store:
            with pytest.raises(TopicNotFound):
                await store.subscribe("t", "g", create=False)
            await store.create_topic("t")
            with pytest.raises(BadName):
                async with store.subscribe("t", "no/name"):
                    pass
            with pytest.raises(BadSetting):
                await store.subscribe("t", "g", reset="perhaps")
            assert store.groups() == []

    run(main())


def test_a_store_may_be_opened_for_reading(folder: str, folder_opener: Opener) -> None:
    """Beside its owner."""

    async def main() -> None:
        async with folder_opener() as owner:
            await owner.publish_many("t", numbered(3))
            async with aio.open(folder, read_only=True) as reader:
                assert await stored(reader) == numbered(3)
                assert [info.name for info in reader.topics()] == ["t"]

    run(main())


CHANGES: dict[str, Callable[[aio.AsyncStore], Any]] = {
    "publish": lambda store: store.publish("t", b"x"),
    "publish with options": lambda store: store.publish("t", b"x", key="k"),
    "publish_many": lambda store: store.publish_many("t", [b"x"]),
    "producer": lambda store: store.producer("t"),
    "subscribe": lambda store: store.subscribe("t", "g"),
    "create_topic": lambda store: store.create_topic("u"),
    "seek": lambda store: store.seek("t", "g", 0),
    "delete_group": lambda store: store.delete_group("t", "g"),
    "replay_dead_letters": lambda store: store.replay_dead_letters("t"),
    "discard_dead_letters": lambda store: store.discard_dead_letters("t"),
    "commit": lambda store: store.commit("p", 1, []),
    "abort": lambda store: store.abort([]),
    "retain": lambda store: store.retain(),
}
OTHERS: dict[str, Callable[[aio.AsyncStore], Any]] = {
    "list_dead_letters": lambda store: store.list_dead_letters("t"),
    "flush": lambda store: store.flush(),
    "read": lambda store: anext(store.read("t")),
}


async def _errors(
    store: aio.AsyncStore, calls: dict[str, Callable[[aio.AsyncStore], Any]]
) -> dict[str, type[BaseException] | None]:
    found: dict[str, type[BaseException] | None] = {}
    for name, call in calls.items():
        try:
            await call(store)
            found[name] = None
        except Exception as error:
            found[name] = type(error)
    return found


def test_a_store_opened_for_reading_changes_nothing(folder: str, folder_opener: Opener) -> None:
    """It says `ReadOnly`, like the plain one."""

    async def main() -> None:
        async with folder_opener() as owner:
            await owner.publish("t", b"0")
        async with aio.open(folder, read_only=True) as reader:
            assert await _errors(reader, CHANGES) == dict.fromkeys(CHANGES, ReadOnly)

    run(main())


def test_a_closed_store_refuses_every_call(opener: Opener) -> None:
    """With `Closed`."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"0")
            async with store.subscribe("t", "g"):
                pass
        calls = CHANGES | OTHERS
        assert await _errors(store, calls) == dict.fromkeys(calls, Closed)
        for plain in (store.topics, store.groups, store.stats, store.transaction):
            with pytest.raises(Closed):
                plain()

    run(main())


def test_closing_does_not_hold_up_the_loop(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks go on while the disk is waited for."""

    async def main() -> None:
        store = await opener()
        gate = Gate(store.sync.close)
        monkeypatch.setattr(store.sync, "close", gate)
        closing = asyncio.create_task(store.close())
        assert await until(gate.reached.is_set)
        assert not closing.done()
        gate.open.set()
        assert await done(closing, PATIENCE)
        assert store.sync.closed

    run(main())


def test_closing_beside_the_very_first_ack_closes(local_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ack starts the thread that stores acks; closing must wait for that, not fail over it and keep the store locked."""
    reached, may_start = threading.Event(), threading.Event()

    class SlowThread(threading.Thread):
        def start(self) -> None:
            if self.name == "penstock-groups":
                reached.set()
                assert may_start.wait(PATIENCE)
            super().start()

    async def main() -> None:
        store = await local_opener()
        await store.create_topic("t", sync="os")
        consumer = await store.subscribe("t", "g")
        group = consumer.sync._group
        with monkeypatch.context() as patch:
            patch.setattr(threads, "Thread", SlowThread)
            acking = asyncio.create_task(asyncio.to_thread(group._journal.wake))
            assert await until(reached.is_set)
            closing = asyncio.create_task(store.close())
            await done(closing, 0.05)
            may_start.set()
            await acking
            await closing
        assert store.sync.closed

    run(main())


# -- cancelled while opening ------------------------------------------------------------------------------------------


async def _cancel_while_opening(gate: Gate, opening: Opening[Any]) -> None:
    """Enter *opening*, be cancelled while the thread that opens stands at *gate*, and let it pass then."""

    async def use() -> None:
        async with opening:
            pass

    task = asyncio.create_task(use())
    assert await until(gate.reached.is_set)
    task.cancel()
    gate.open.set()
    assert await until(gate.passed.is_set)
    assert await done(task)
    assert task.cancelled()


def _can_be_opened(folder: str) -> bool:
    try:
        Store.open(folder, settings=SETTINGS).close()
    except StoreLocked:
        return False
    return True


def test_a_cancelled_opening_leaves_the_store_to_others(
    folder: str, folder_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens cannot be stopped; what it opened for nobody is closed again, else the store is locked for ever."""

    async def main() -> None:
        gate = Gate(Store.open)
        monkeypatch.setattr(Store, "open", gate)
        await _cancel_while_opening(gate, folder_opener())
        monkeypatch.undo()
        assert await until(lambda: _can_be_opened(folder)), "nobody can open the store any more"
        async with folder_opener() as store:
            assert not store.sync.closed

    run(main())


def test_a_loop_that_ends_while_it_opens_leaves_the_store_to_others(
    folder: str, folder_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.run` cancels the task and waits for the thread; then nobody is left to close what it opened."""
    gate = Gate(Store.open)
    monkeypatch.setattr(Store, "open", gate)

    async def main() -> None:
        task = asyncio.create_task(folder_opener()._open())
        assert await until(gate.reached.is_set)
        assert not task.done()
        task.add_done_callback(lambda _: gate.open.set())

    run(main())
    assert gate.passed.is_set()
    monkeypatch.undo()
    assert run(until(lambda: _can_be_opened(folder))), "nobody can open the store any more"


def test_a_cancelled_subscription_leaves_no_member_behind(local_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that nobody has would keep its share of the partitions of an ordered group, and nobody would get them."""

    async def main() -> None:
        async with local_opener() as store:
            await store.publish("t", b"x")
            gate = Gate(store.sync.subscribe)
            monkeypatch.setattr(store.sync, "subscribe", gate)
            await _cancel_while_opening(gate, store.subscribe("t", "g", ordered=True))
            monkeypatch.undo()
            async with store.subscribe("t", "g", ordered=True) as consumer:
                assert await until(lambda: store.stats().topics["t"].groups["g"].members == 1, SOON)
                assert (await one(consumer, SOON)).value == b"x"

    run(main())


def test_a_cancelled_producer_is_closed(local_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its store would keep it to its end."""

    async def main() -> None:
        async with local_opener() as store:
            await store.create_topic("t")
            gate = Gate(store.sync.producer)
            monkeypatch.setattr(store.sync, "producer", gate)
            await _cancel_while_opening(gate, store.producer("t"))
            monkeypatch.undo()
            assert await until(lambda: not store.sync._open_producers, SOON)

    run(main())


def test_settings_are_those_of_the_plain_store(folder: str) -> None:
    """By name."""

    async def main() -> None:
        async with aio.open(folder, **asdict(SETTINGS)) as store:
            assert store.sync._volume.settings == SETTINGS

    run(main())
