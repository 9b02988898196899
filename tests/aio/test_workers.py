"""Workers with async functions, declared on the plain store (`store.sync`), beside tasks that publish."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.aio.helpers import PATIENCE, SOON, Opener, group_of, one, position, run, stored, until
from tests.conformance.helpers import Running, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.aio import AsyncStore


@asynccontextmanager
async def running(store: AsyncStore, **options: Any) -> AsyncIterator[None]:
    """The store's workers, in a thread of their own, while the block runs."""
    thread = Running(lambda: store.sync.run(**options))
    try:
        yield
    finally:
        store.sync.stop()
        await asyncio.to_thread(thread.result)


def test_an_async_function_handles_what_tasks_publish(opener: Opener) -> None:
    """What is there and what comes; it gets plain messages, and acks by returning."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            seen: list[bytes] = []

            @store.sync.worker("t", group="g", concurrency=3)
            async def handle(message: Any) -> None:
                await asyncio.sleep(0)
                seen.append(message.value)

            async with running(store):
                for value in numbered(20, 10):
                    await store.publish("t", value)
                assert await until(lambda: len(seen) == 30)
            assert sorted(seen, key=int) == numbered(30)
            assert position(store) == 30

    run(main())


def test_handlers_run_at_once_as_many_as_asked_for_in_one_thread(opener: Opener) -> None:
    """Five meet inside; all of them in one loop, and never a sixth."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(20))
            inside = most = 0
            threads: set[int] = set()
            ended: list[bytes] = []

            @store.sync.worker("t", group="g", concurrency=5)
            async def handle(message: Any) -> None:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                threads.add(threading.get_ident())
                assert await until(lambda: most == 5)
                inside -= 1
                ended.append(message.value)

            async with running(store):
                assert await until(lambda: len(ended) == 20)
            assert most == 5
            assert len(threads) == 1

    run(main())


def test_a_function_that_fails_is_called_again_and_then_gives_up(opener: Opener) -> None:
    """The others are handled meanwhile."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(3))
            seen: list[tuple[bytes, int]] = []

            @store.sync.worker("t", group="g", max_deliveries=2, backoff=0.005)
            async def handle(message: Any) -> None:
                seen.append((message.value, message.attempt))
                await asyncio.sleep(0)
                if message.value == b"1":
                    raise ValueError("cannot do that")

            async with running(store):
                assert await until(store.groups)
                assert await until(lambda: store.stats().topics["t"].groups["g"].dead_lettered == 1)
                assert await until(lambda: position(store) == 3)
            assert sorted(seen) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]
            (letter,) = await store.list_dead_letters("t")
            assert letter.headers["x-dlq-reason"] == b"ValueError: cannot do that"

    run(main())


def test_a_function_may_take_many_at_once(opener: Opener) -> None:
    """A list of at most as many as asked for."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(25))
            seen: list[list[bytes]] = []

            @store.sync.worker("t", group="g", batch=10)
            async def handle(messages: Any) -> None:
                seen.append([message.value for message in messages])

            async with running(store):
                assert await until(lambda: sum(map(len, seen)) == 25)
            assert max(map(len, seen)) <= 10
            assert [value for part in seen for value in part] == numbered(25)
            assert position(store) == 25

    run(main())


def test_an_ordered_group_is_handled_in_order(opener: Opener) -> None:
    """Each partition by one task at a time, however many there are."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=3)
            for partition in range(3):
                await store.publish_many("t", numbered(20), partition=partition)
            seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

            @store.sync.worker("t", group="g", concurrency=3, ordered=True)
            async def handle(message: Any) -> None:
                await asyncio.sleep(0)
                seen[message.partition].append(message.value)

            async with running(store):
                assert await until(lambda: sum(map(len, seen.values())) == 60)
            assert seen == dict.fromkeys(range(3), numbered(20))

    run(main())


def test_stopping_waits_for_the_handlers_that_run(opener: Opener) -> None:
    """They end and are acked; what was not begun stays for the next, as new as it was."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            begun: list[bytes] = []
            may_end = threading.Event()

            @store.sync.worker("t", group="g", concurrency=2)
            async def handle(message: Any) -> None:
                begun.append(message.value)
                assert await until(may_end.is_set)

            async with running(store):
                assert await until(lambda: len(begun) == 2)
                store.sync.stop()
                may_end.set()
            assert sorted(begun) == numbered(2)  # two begin at once
            assert position(store) == 2
            async with store.subscribe("t", "g") as consumer:
                rest = await consumer.get_many(100)
                assert [(message.offset, message.attempt) for message in rest] == [(offset, 1) for offset in range(2, 10)]

    run(main())


def test_a_handler_that_does_not_end_in_time_loses_its_message(opener: Opener) -> None:
    """It goes back uncounted, and the others of the worker are not harmed."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            begun, may_end = threading.Event(), threading.Event()

            @store.sync.worker("t", group="g")
            async def handle(message: Any) -> None:
                begun.set()
                await until(may_end.is_set)

            async with running(store, stop_timeout=0.01):
                assert await until(begun.is_set)
            async with store.subscribe("t", "g") as consumer:
                message = await one(consumer)
                assert message.attempt == 1
                may_end.set()
                await message.ack()
            assert position(store) == 1

    run(main())


def test_a_worker_that_was_stopped_leaves_no_waiter_behind(opener: Opener) -> None:
    """Its loop is gone: a wake that went there would be lost."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            seen = []

            @store.sync.worker("t", group="g", concurrency=2)
            async def handle(message: Any) -> None:
                seen.append(message.value)

            for turn in range(1, 4):
                async with running(store):
                    await store.publish("t", b"x")
                    assert await until(lambda turn=turn: len(seen) == turn)  # type: ignore[misc]
                assert not group_of(store)._waiters
            assert position(store) == 3

    run(main())


def test_workers_of_several_functions_run_side_by_side(opener: Opener) -> None:
    """Plain and async ones, of two groups; a chain from one topic to the next."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(20))
            await store.create_topic("u")
            plain: list[bytes | None] = []

            @store.sync.worker("t", group="plain")
            def note(message: Any) -> None:
                plain.append(message.value)

            @store.sync.worker("t", group="chain", concurrency=4)
            async def pass_on(message: Any) -> None:
                # The handler's loop has a twin of the store of its own.
                await type(store)(store.sync).publish("u", message.value)

            async with running(store):
                assert await until(lambda: len(plain) == 20)
                assert await until(lambda: store.stats().topics["u"].messages == 20)
            assert plain == numbered(20)
            assert sorted(await stored(store, "u"), key=lambda value: int(value or b"-1")) == numbered(20)

    run(main())


def test_closing_the_store_stops_the_workers(opener: Opener) -> None:
    """The thread in `run` returns."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            seen = []

            @store.sync.worker("t", group="g")
            async def handle(message: Any) -> None:
                seen.append(message.value)

            thread = Running(store.sync.run)
            assert await until(lambda: seen)
        await asyncio.to_thread(thread.result)

    run(main())


def test_a_worker_may_be_stopped_by_its_own_handler(opener: Opener) -> None:
    """What the handler was doing is acked."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            seen: list[bytes] = []

            @store.sync.worker("t", group="g")
            async def handle(message: Any) -> None:
                seen.append(message.value)
                if len(seen) == 3:
                    store.sync.stop()

            await asyncio.wait_for(asyncio.to_thread(store.sync.run), PATIENCE)
            assert seen == numbered(3)
            assert position(store) == 3

    run(main())


def test_starting_and_stopping_at_any_moment_loses_nothing(opener: Opener) -> None:
    """Messages come all the while; each is handled once, none counts as failed."""
    times = 15

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync="os")
            seen: list[bytes] = []

            @store.sync.worker("t", group="g", concurrency=3)
            async def handle(message: Any) -> None:
                await asyncio.sleep(0)
                assert message.attempt == 1
                seen.append(message.value)

            for turn in range(times):
                async with running(store):
                    for value in numbered(5, turn * 5):
                        await store.publish("t", value)
                    await asyncio.sleep(0.0005 * (turn % 4))
            async with running(store):
                assert await until(lambda: len(seen) >= times * 5)
            assert sorted(seen, key=int) == numbered(times * 5)
            assert await until(lambda: store.stats().topics["t"].groups["g"].members == 0, SOON)
            assert position(store) == times * 5

    run(main())
