"""A store outlives the loops that use it, and may be used by several of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store, aio
from tests.aio.helpers import PATIENCE, SOON, one, run, stored, until, waiting
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import Running, numbered
from tests.volume.gated_files import GatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def plain(path: str) -> Iterator[Store]:
    """A plain store, to be used by loops."""
    with Store.open(path, settings=SETTINGS) as store:
        yield store


def test_a_store_is_used_by_one_loop_after_the_other(plain: Store) -> None:
    """It stays open when a loop ends."""
    store = aio.AsyncStore(plain)
    consumer = run(_subscribe(store))
    for turn in range(5):

        async def main(turn: int = turn) -> None:
            await store.publish("t", b"%d" % turn)
            async with await one(consumer) as message:
                assert message.value == b"%d" % turn

        run(main())
    run(consumer.close())
    assert plain.stats().topics["t"].groups["g"].positions == {0: 5}


async def _subscribe(store: aio.AsyncStore) -> aio.AsyncConsumer:
    await store.create_topic("t")
    return await store.subscribe("t", "g")


def test_a_loop_that_ends_while_tasks_wait_leaves_no_waiter(plain: Store) -> None:
    """`asyncio.run` cancels them; the store goes on, and the next message goes to who is there."""
    store = aio.AsyncStore(plain)
    consumer = run(_subscribe(store))

    async def leave() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(consumer.get()) for _ in range(10)]
        assert await until(lambda: waiting(store) == 10)
        return tasks

    tasks = run(leave())
    assert all(task.cancelled() for task in tasks)
    assert waiting(store) == 0
    plain.publish("t", b"x")
    message = consumer.sync.get(PATIENCE)
    assert message is not None
    assert message.attempt == 1
    message.ack()


def test_a_loop_that_ends_in_a_block_gives_the_message_back(plain: Store) -> None:
    """Uncounted."""
    store = aio.AsyncStore(plain)
    consumer = run(_subscribe(store))
    plain.publish("t", b"x")

    async def leave() -> None:
        begun = asyncio.Event()

        async def handle() -> None:
            async with await one(consumer):
                begun.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(handle())
        await begun.wait()
        assert not task.done()

    run(leave())
    message = consumer.sync.get(PATIENCE)
    assert message is not None
    assert message.attempt == 1


def test_a_loop_that_ends_while_publishes_wait_leaves_them_to_the_store(folder: str) -> None:
    """They are committed, and nobody minds that the loop is gone; the same for a producer's."""
    files = GatedFileSystem()
    with Store.open(folder, settings=SETTINGS, files=files) as plain:
        store = aio.AsyncStore(plain)
        run(store.create_topic("t"))
        producers: list[aio.AsyncProducer] = []

        async def leave() -> None:
            producers.append(await store.producer("t", linger=0))
            files.gate.clear()
            tasks = [asyncio.create_task(store.publish("t", value)) for value in numbered(5)]
            await asyncio.sleep(0)
            future = await producers[0].send(b"5")
            assert not future.done()
            assert not any(task.done() for task in tasks)

        run(leave())
        files.gate.set()
        assert plain.publish("t", b"6").offset == 6
        run(producers[0].close())
        assert run(stored(store)) == numbered(7)


@contextlib.contextmanager
def _abandoned(consumer: aio.AsyncConsumer, store: aio.AsyncStore) -> Iterator[None]:
    """A loop that was closed with a task in it, as a program does that does not clean up."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(consumer.get())
    before = waiting(store)
    loop.run_until_complete(until(lambda: waiting(store) == before + 1))
    loop.close()
    try:
        yield
    finally:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del task


def test_a_loop_that_was_closed_with_a_waiting_task_keeps_no_message_from_others(plain: Store) -> None:
    """Nobody cancelled the task, so it still stands in the list; a wake that cannot reach it goes to the next."""
    plain.create_topic("t", sync="os")
    store = aio.AsyncStore(plain)
    for first in (True, False):
        with plain.subscribe("t", "g") as here, plain.subscribe("t", "g") as there:
            gone = aio.AsyncConsumer(there)
            with contextlib.ExitStack() as stack:
                if first:
                    stack.enter_context(_abandoned(gone, store))
                before = waiting(store)
                getting = Running(here.get, SOON)
                asyncio.run(until(lambda before=before: waiting(store) == before + 1))  # type: ignore[misc]
                if not first:
                    stack.enter_context(_abandoned(gone, store))
                woken = threading.Event()

                def wait(getting: Running = getting, woken: threading.Event = woken) -> None:
                    message = getting.result()
                    assert message is not None
                    message.ack()
                    woken.set()

                waiter = Running(wait)
                plain.publish("t", b"x")
                assert woken.wait(SOON / 2), "it sleeps though there is a message for it"
                waiter.result()


def test_two_loops_in_two_threads_share_a_store(plain: Store) -> None:
    """Each has its own twin of the one store; each message is handled once, by either."""
    plain.create_topic("t", partitions=2)
    seen: list[bytes] = []
    ended = threading.Event()

    async def consume(store: aio.AsyncStore, first: int) -> int:
        mine = 0
        async with store.subscribe("t", "g") as consumer:

            async def handle() -> None:
                nonlocal mine
                async for message in consumer:
                    async with message:
                        await asyncio.sleep(0)
                        seen.append(message.value)
                        mine += 1

            tasks = [asyncio.create_task(handle()) for _ in range(5)]
            await asyncio.gather(*[store.publish("t", value) for value in numbered(200, first)])
            assert await until(lambda: len(seen) >= 400 or ended.is_set())
            ended.set()
        await asyncio.gather(*tasks)
        return mine

    threads = [Running(lambda first=first: run(consume(aio.AsyncStore(plain), first))) for first in (0, 200)]
    counts = [thread.result() for thread in threads]
    assert sum(counts) == 400
    assert sorted(seen, key=int) == numbered(400)
    assert plain.stats().topics["t"].groups["g"].lag == 0


def test_a_message_may_be_taken_in_one_loop_and_finished_in_another(plain: Store) -> None:
    """It belongs to the consumer, not to the loop."""
    store = aio.AsyncStore(plain)
    consumer = run(_subscribe(store))
    plain.publish_many("t", numbered(2))
    first, second = run(one(consumer)), run(one(consumer))
    Running(lambda: run(first.ack(wait=True))).result()
    run(consumer.ack([second], wait=True))
    assert plain.stats().topics["t"].groups["g"].positions == {0: 2}


def test_a_store_that_is_closed_in_another_loop_ends_the_tasks_of_this_one(plain: Store) -> None:
    """They are woken across threads."""
    store = aio.AsyncStore(plain)
    consumer = run(_subscribe(store))

    async def main() -> None:
        async def iterate() -> None:
            async for _ in consumer:
                raise AssertionError("there was nothing")

        tasks = [asyncio.create_task(iterate()) for _ in range(5)]
        assert await until(lambda: waiting(store) == 5)
        closing = Running(lambda: run(aio.AsyncStore(plain).close()))
        await asyncio.gather(*tasks)
        await asyncio.to_thread(closing.result)

    run(main())
    assert plain.closed
