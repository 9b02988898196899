"""Many tasks that wait: each wake reaches one that can use it, and closing reaches all of them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed
from tests.aio.helpers import PATIENCE, SOON, Opener, counted_threads, done, one, run, until, waiting
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aio import AsyncConsumer, AsyncStore


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("together", [True, False], ids=["one-batch", "one-by-one"])
def test_as_many_tasks_are_woken_as_there_are_messages(opener: Opener, sync: str, together: bool) -> None:
    """None is left without while there are messages, and no thread waits for any of them."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            async with store.subscribe("t", "g", prefetch=1000) as consumer:
                with counted_threads() as threads:
                    tasks = [asyncio.create_task(consumer.get()) for _ in range(200)]
                    assert await until(lambda: waiting(store) == 200)
                    if together:
                        await store.publish_many("t", numbered(150))
                    else:
                        await asyncio.gather(*[store.publish("t", value) for value in numbered(150)])
                    assert await until(lambda: sum(task.done() for task in tasks) == 150)
                    await store.publish_many("t", numbered(50, 150))
                    assert await done(tasks, PATIENCE)
                assert threads[0] < 50
                messages = [task.result() for task in tasks]
                assert sorted(int(message.value) for message in messages if message is not None) == list(range(200))
                assert await until(lambda: waiting(store) == 0)

    run(main())


def test_tasks_that_wait_take_turns(local_opener: Opener) -> None:
    """The one that has waited longest is woken first: five tasks and five messages, one after the other, are one for each."""

    async def main() -> None:
        async with local_opener() as store:
            await store.create_topic("t", sync="os")
            seen: list[int] = []
            async with store.subscribe("t", "g") as consumer:

                async def consume(name: int) -> None:
                    async for message in consumer:
                        async with message:
                            seen.append(name)

                tasks = [asyncio.create_task(consume(name)) for name in range(5)]
                for count in range(1, 16):
                    assert await until(lambda: waiting(store) == 5)
                    await store.publish("t", b"x")
                    assert await until(lambda count=count: len(seen) == count)  # type: ignore[misc]
            await asyncio.gather(*tasks)
            assert {name: seen.count(name) for name in range(5)} == dict.fromkeys(range(5), 3)

    run(main())


def test_a_busy_task_does_not_starve_the_others(opener: Opener) -> None:
    """While messages come faster than one task handles them, every task gets some."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(300))
            seen: list[int] = []
            async with store.subscribe("t", "g") as consumer:

                async def consume(name: int) -> None:
                    async for message in consumer:
                        async with message:
                            await asyncio.sleep(0)
                            seen.append(name)

                tasks = [asyncio.create_task(consume(name)) for name in range(5)]
                assert await until(lambda: len(seen) == 300)
            await asyncio.gather(*tasks)
            assert min(seen.count(name) for name in range(5)) > 20

    run(main())


def test_a_handler_that_waits_does_not_hold_up_the_others(opener: Opener) -> None:
    """Twenty tasks meet inside their blocks: all of them must have got a message."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            inside, go = [], asyncio.Event()
            async with store.subscribe("t", "g") as consumer:

                async def handle() -> None:
                    async with await one(consumer) as message:
                        inside.append(message.offset)
                        await go.wait()

                tasks = [asyncio.create_task(handle()) for _ in range(20)]
                for value in numbered(20):
                    await store.publish("t", value)
                assert await until(lambda: len(inside) == 20)
                go.set()
                await asyncio.gather(*tasks)
                assert sorted(inside) == list(range(20))
                assert consumer.in_flight == 0

    run(main())


# -- wakes that reach the wrong one -----------------------------------------------------------------------------------


async def _wait_in_turn(store: AsyncStore, *consumers: AsyncConsumer) -> list[asyncio.Task[Any]]:
    tasks = []
    for consumer in consumers:
        tasks.append(asyncio.create_task(consumer.get()))
        assert await until(lambda: waiting(store) == len(tasks))
    return tasks


@pytest.mark.parametrize("last", [0, 1], ids=["paused-first", "paused-last"])
def test_a_paused_member_does_not_use_up_the_wake_of_another(opener: Opener, last: int) -> None:
    """Both wait; the message goes to the one that is not paused."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync="os")
            async with store.subscribe("t", "g") as paused, store.subscribe("t", "g") as ready:
                paused.pause()
                tasks = await _wait_in_turn(store, *([ready, paused] if last else [paused, ready]))
                await store.publish("t", b"x")
                woken = await done(tasks[0 if last else 1])
            await asyncio.gather(*tasks, return_exceptions=True)
            assert woken, "it sleeps though there is a message for it"

    run(main())


@pytest.mark.parametrize("last", [0, 1], ids=["full-first", "full-last"])
def test_a_member_that_is_full_does_not_use_up_the_wake_of_another(opener: Opener, last: int) -> None:
    """Both wait, the one for room, the other for a message: it goes to the other."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync="os")
            async with store.subscribe("t", "g", prefetch=1) as full, store.subscribe("t", "g") as ready:
                await store.publish("t", b"held")
                await one(full)
                tasks = await _wait_in_turn(store, *([ready, full] if last else [full, ready]))
                await store.publish("t", b"x")
                woken = await done(tasks[0 if last else 1])
            await asyncio.gather(*tasks, return_exceptions=True)
            assert woken, "it sleeps though there is a message for it"

    run(main())


@pytest.mark.parametrize("owner", [0, 1])
def test_the_member_that_has_the_partition_is_woken(local_opener: Opener, owner: int) -> None:
    """In an ordered group nobody else can take its messages."""

    async def main() -> None:
        async with local_opener() as store:
            await store.create_topic("t", partitions=2, sync="os")
            async with (
                store.subscribe("t", "g", ordered=True) as first,
                store.subscribe("t", "g", ordered=True) as second,
            ):
                consumers = [first, second]
                tasks = await _wait_in_turn(store, *consumers)
                (cursor,) = consumers[owner]._member.cursors
                await store.publish("t", b"x", partition=cursor.partition)
                woken = await done(tasks[owner])
            await asyncio.gather(*tasks, return_exceptions=True)
            assert woken, "it sleeps though there is a message for it"

    run(main())


# -- closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "close",
    [
        lambda store, consumer: consumer.close(),
        lambda store, consumer: store.close(),
        lambda store, consumer: asyncio.to_thread(store.sync.close),
        lambda store, consumer: store.delete_group("t", "g"),
    ],
    ids=["consumer", "store", "plain-store-in-a-thread", "group-deleted"],
)
def test_closing_ends_every_task_that_waits(local_opener: Opener, close: Callable[[AsyncStore, AsyncConsumer], Any]) -> None:
    """Those in `get` are told `Closed`, iterations end, and no waiter stays."""

    async def main() -> None:
        store = await local_opener()
        await store.create_topic("t")
        consumer = await store.subscribe("t", "g")
        group = consumer.sync._group

        async def iterate() -> None:
            async for _ in consumer:
                raise AssertionError("there was nothing")

        getting: list[asyncio.Task[Any]] = [
            *[asyncio.create_task(consumer.get()) for _ in range(10)],
            *[asyncio.create_task(consumer.get(PATIENCE)) for _ in range(10)],
            *[asyncio.create_task(consumer.get_many(5)) for _ in range(10)],
        ]
        iterating = [asyncio.create_task(iterate()) for _ in range(10)]
        assert await until(lambda: len(group._waiters) == 40)
        await close(store, consumer)
        assert await done([*getting, *iterating], PATIENCE)
        assert all(isinstance(task.exception(), Closed) for task in getting)
        assert all(task.exception() is None for task in iterating)
        assert not group._waiters
        await store.close()

    run(main())


def test_closing_while_messages_are_handled_counts_nothing_as_failed(folder_opener: Opener) -> None:
    """What was not finished comes again as new, and the handler is told that it is late."""

    async def main() -> None:
        async with folder_opener() as store:
            await store.publish_many("t", numbered(3))
            consumer = await store.subscribe("t", "g")
            begun, go = asyncio.Event(), asyncio.Event()

            async def handle() -> str:
                try:
                    async with await one(consumer):
                        begun.set()
                        await go.wait()
                except Exception as error:
                    return type(error).__name__
                return "acked"

            task = asyncio.create_task(handle())
            await begun.wait()
            await store.close()
            go.set()
            assert await task == "LeaseExpired"
        async with folder_opener() as store, store.subscribe("t", "g") as consumer:
            assert [(message.offset, message.attempt) for message in await consumer.get_many(5)] == [(0, 1), (1, 1), (2, 1)]

    run(main())


def test_a_consumer_may_be_closed_by_a_task_that_handles_its_message(opener: Opener) -> None:
    """An iteration that ends itself."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            seen = []
            async with store.subscribe("t", "g") as consumer:
                async for message in consumer:
                    async with message:
                        seen.append(message.value)
                    if len(seen) == 3:
                        await consumer.close()
            assert seen == numbered(3)

    run(main())


def test_waiting_is_sleeping(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits is not run until there is something."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            async with store.subscribe("t", "g") as consumer:
                looked = 0
                take = consumer._take_now

                async def count(number: int) -> Any:
                    nonlocal looked
                    looked += 1
                    return await take(number)

                monkeypatch.setattr(consumer, "_take_now", count)
                task = asyncio.create_task(consumer.get())
                assert await until(lambda: waiting(store) == 1)
                before = looked
                await asyncio.sleep(0.05)
                assert looked == before
                await store.publish("t", b"x")
                assert await done(task, SOON)

    run(main())


def test_a_wake_from_a_thread_is_not_lost_between_looking_and_sleeping(opener: Opener) -> None:
    """A thread publishes as fast as it can while a task takes one message after the other."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync="os")

            def publish() -> None:
                for value in numbered(500):
                    store.sync.publish("t", value)

            async with store.subscribe("t", "g") as consumer:
                thread = threading.Thread(target=publish, daemon=True)
                thread.start()
                for value in numbered(500):
                    message = await one(consumer)
                    assert message.value == value
                    await message.ack()
                thread.join()

    run(main())
