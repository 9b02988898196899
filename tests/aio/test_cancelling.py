"""Cancellation: a task that is cancelled takes no message with it, and no wake."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock import Store, aio
from tests.aio.helpers import PATIENCE, SOON, Gate, Opener, done, one, position, run, until, waiting
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from penstock.aio import AsyncDelivery, AsyncStore

TICKS = 8
"""So many turns of the loop around a publish cover every moment of a task that it wakes."""


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- in a block -------------------------------------------------------------------------------------------------------


def test_a_cancelled_handler_gives_its_message_back_uncounted(opener: Opener) -> None:
    """At once; a shutdown is not a failure."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", max_deliveries=2) as consumer:
                for _ in range(5):
                    begun = asyncio.Event()

                    async def handle(begun: asyncio.Event = begun) -> None:
                        async with await one(consumer) as message:
                            assert message.attempt == 1
                            begun.set()
                            await asyncio.sleep(PATIENCE)

                    task = asyncio.create_task(handle())
                    await begun.wait()
                    task.cancel()
                    assert await done(task, PATIENCE)
                    assert task.cancelled()
                    assert consumer.in_flight == 0
                async with await one(consumer) as message:
                    assert message.attempt == 1
                counts = store.stats().topics["t"].groups["g"]
                assert (counts.nacked, counts.acked, counts.dead_lettered) == (0, 1, 0)

    run(main())


def test_a_timeout_around_the_block_gives_back_and_one_inside_fails(opener: Opener) -> None:
    """Around it the block is cancelled; inside it is an error like any other."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", backoff=0.001) as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01), await one(consumer):
                        await asyncio.sleep(PATIENCE)
                message = await one(consumer)
                assert message.attempt == 1
                with pytest.raises(TimeoutError):
                    async with message, asyncio.timeout(0.01):
                        await asyncio.sleep(PATIENCE)
                assert (await one(consumer)).attempt == 2

    run(main())


def test_a_task_group_that_fails_gives_back_what_the_others_held(opener: Opener) -> None:
    """The one that failed is nacked, its siblings are not."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(4))
            async with store.subscribe("t", "g", backoff=30) as consumer:
                begun: list[int] = []

                async def handle() -> None:
                    async with await one(consumer) as message:
                        begun.append(message.offset)
                        await until(lambda: len(begun) == 4)
                        if message.offset == 2:
                            raise ValueError("this one")
                        await asyncio.sleep(PATIENCE)

                with pytest.raises(ExceptionGroup):
                    async with asyncio.TaskGroup() as group:
                        for _ in range(4):
                            group.create_task(handle())
                again = await consumer.get_many(10, timeout=0)
                assert [(message.offset, message.attempt) for message in again] == [(0, 1), (1, 1), (3, 1)]
                assert store.stats().topics["t"].groups["g"].retrying == 1

    run(main())


# -- while it waits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, PATIENCE], ids=["for-ever", "some-time"])
@pytest.mark.parametrize("holding", [False, True], ids=["nothing-held", "one-held"])
def test_a_cancelled_get_leaves_no_waiter_behind(local_opener: Opener, limit: float | None, holding: bool) -> None:
    """Nor a message: the next one gets it."""

    async def main() -> None:
        async with local_opener() as store:
            await store.publish("t", b"held")
            async with store.subscribe("t", "g") as consumer:
                held = await one(consumer)
                if not holding:
                    await held.ack()

                async def iterate() -> None:
                    async for _ in consumer:
                        raise AssertionError("there was nothing")

                tasks: list[asyncio.Task[Any]] = [asyncio.create_task(consumer.get(limit)) for _ in range(20)]
                tasks += [asyncio.create_task(consumer.get_many(5, limit)) for _ in range(20)]
                tasks += [asyncio.create_task(iterate()) for _ in range(10)]
                assert await until(lambda: waiting(store) == 50)
                for task in tasks:
                    task.cancel()
                assert await done(tasks, PATIENCE)
                assert all(task.cancelled() for task in tasks)
                assert await until(lambda: waiting(store) == 0)
                await store.publish("t", b"x")
                assert (await one(consumer)).value == b"x"

    run(main())


def test_a_get_under_a_timeout_leaves_no_waiter_behind(opener: Opener) -> None:
    """`asyncio.timeout` and `asyncio.wait_for` cancel."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            async with store.subscribe("t", "g") as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await consumer.get()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.get(), 0.01)
                assert await until(lambda: waiting(store) == 0)
                await store.publish("t", b"x")
                assert (await one(consumer)).attempt == 1

    run(main())


class Case(NamedTuple):
    """One of two tasks that wait is cancelled so many turns after a publish. What was asked of it, and what came of it."""

    ticks: int
    chosen: int
    asked: bool
    ended: bool
    reached: bool
    left: int


async def _cancel_around_a_publish(store: AsyncStore, ticks: int, chosen: int, limit: float | None, *, holding: bool) -> Case:
    topic = f"t-{ticks}-{chosen}"
    await store.create_topic(topic, sync="os")
    async with store.subscribe(topic, "g") as consumer:
        if holding:
            # A lease runs, so that waiting has an end of its own.
            await store.publish(topic, b"held")
            await one(consumer)
        tasks: list[asyncio.Task[AsyncDelivery | None]] = []
        for number in (1, 2):
            tasks.append(asyncio.create_task(consumer.get(limit)))
            assert await until(lambda number=number: waiting(store, topic) == number)  # type: ignore[misc]
        await store.publish(topic, b"x")
        await _turns(ticks)
        asked = tasks[chosen].cancel()
        await until(lambda: any(task.done() and not task.cancelled() for task in tasks), SOON)
        await until(tasks[chosen].done, SOON)
        reached = any(task.done() and not task.cancelled() and task.result() is not None for task in tasks)
        ended = tasks[chosen].cancelled()
    # Closing ends whoever still waits.
    assert await done(tasks, PATIENCE)
    await asyncio.gather(*tasks, return_exceptions=True)
    return Case(ticks, chosen, asked, ended, reached, waiting(store, topic))


@pytest.mark.parametrize("holding", [False, True], ids=["nothing-held", "one-held"])
@pytest.mark.parametrize("limit", [None, PATIENCE], ids=["for-ever", "some-time"])
def test_a_task_cancelled_as_it_is_woken_passes_the_wake_on_and_ends(
    opener: Opener, limit: float | None, holding: bool
) -> None:
    """At whichever moment: the message reaches one of the two, and a cancellation that was accepted is not forgotten."""

    async def main() -> None:
        async with opener() as store:
            for ticks in range(TICKS):
                for chosen in (0, 1):
                    case = await _cancel_around_a_publish(store, ticks, chosen, limit, holding=holding)
                    assert case.reached, f"the other task sleeps though there is a message: {case}"
                    assert case.ended or not case.asked, f"the task goes on, and a shutdown hangs: {case}"
                    assert case.left == 0, case

    run(main())


def _killed_with(count: int, folder_opener: Opener, folder: str, tmp_path: Path) -> str:
    """What a process leaves that dies with so many messages in its hands."""
    killed = str(tmp_path / "killed")

    async def die() -> None:
        async with folder_opener() as store:
            await store.publish_many("t", numbered(count))
            async with store.subscribe("t", "g") as consumer:
                await consumer.get_many(count)
                await store.flush()
                shutil.copytree(folder, killed)

    run(die())
    return killed


def test_a_cancelled_get_of_a_suspect_gives_it_back(folder_opener: Opener, folder: str, tmp_path: Path) -> None:
    """After a crash taking waits for the disk, in a thread; what it took for nobody is ready again."""
    killed = _killed_with(3, folder_opener, folder, tmp_path)

    async def main() -> None:
        async with aio.AsyncStore(Store.open(killed, settings=SETTINGS)) as store, store.subscribe("t", "g") as consumer:
            group = consumer._group
            assert group.may_wait
            take = group.take
            gate = Gate(take)
            group.take = gate  # type: ignore[method-assign]
            task = asyncio.create_task(consumer.get())
            assert await until(gate.reached.is_set)
            task.cancel()
            gate.open.set()
            assert await until(gate.passed.is_set)
            group.take = take  # type: ignore[method-assign]
            assert await done(task, PATIENCE)
            assert task.cancelled()
            assert await until(lambda: consumer.in_flight == 0, SOON), "a message is held that nobody has"
            seen = []
            for _ in range(3):
                message = await one(consumer, SOON)
                seen.append(message.offset)
                await message.ack()
            assert seen == [0, 1, 2]

    run(main())


def test_suspects_are_taken_one_at_a_time_by_tasks_that_wait(folder_opener: Opener, folder: str, tmp_path: Path) -> None:
    """After a crash several tasks get everything, each message alone."""
    killed = _killed_with(10, folder_opener, folder, tmp_path)

    async def main() -> None:
        async with aio.AsyncStore(Store.open(killed, settings=SETTINGS)) as store:
            seen: list[int] = []
            inside = 0
            async with store.subscribe("t", "g") as consumer:

                async def consume() -> None:
                    nonlocal inside
                    async for message in consumer:
                        async with message:
                            inside += 1
                            assert inside == 1
                            await asyncio.sleep(0)
                            inside -= 1
                            seen.append(message.offset)

                tasks = [asyncio.create_task(consume()) for _ in range(4)]
                assert await until(lambda: len(seen) == 10)
            await asyncio.gather(*tasks)
            assert sorted(seen) == list(range(10))

    run(main())


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_storm_of_cancellations_loses_and_doubles_nothing(opener: Opener, rng: random.Random, sync: str) -> None:
    """Tasks are cancelled at any moment and replaced; each message is finished once, and none counts as failed."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync, partitions=2)
            seen: list[bytes] = []
            async with store.subscribe("t", "g", prefetch=20) as consumer:

                async def consume() -> None:
                    async for message in consumer:
                        async with message:
                            assert message.attempt == 1
                            await _turns(2)
                            # Nothing can cancel between this and the end of the block.
                            seen.append(message.value)

                tasks = [asyncio.create_task(consume()) for _ in range(8)]
                retired: list[asyncio.Task[None]] = []
                for value in numbered(300):
                    await store.publish("t", value)
                    await _turns(rng.randrange(4))
                    chosen = rng.randrange(len(tasks))
                    tasks[chosen].cancel()
                    retired.append(tasks[chosen])
                    tasks[chosen] = asyncio.create_task(consume())
                assert await until(lambda: len(seen) >= 300), f"{300 - len(seen)} messages are with nobody"
            await asyncio.gather(*tasks, *retired, return_exceptions=True)
            assert sorted(seen) == sorted(numbered(300))
            assert position(store, partition=0) + position(store, partition=1) == 300
            counts = store.stats().topics["t"].groups["g"]
            assert (counts.nacked, counts.expired_leases, counts.in_flight) == (0, 0, 0)

    run(main())
