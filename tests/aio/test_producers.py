"""Producers in tasks: sending gathers, futures are awaited, and a full one makes its senders wait."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store, aio
from penstock.errors import (
    BadArgument,
    Closed,
    MessageTooLarge,
    ProducerFenced,
    ProducerFull,
    ReservedName,
    TopicNotFound,
    UsageError,
)
from penstock.store.future import Promise
from tests.aio.helpers import PATIENCE, SOON, Opener, counted_threads, done, run, stored, until
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered
from tests.volume.gated_files import GatedFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock import Receipt
    from penstock.aio import AsyncProducer, AsyncStore

MODES = pytest.mark.parametrize("sync", ["always", "os"])


@MODES
def test_a_future_gives_the_receipt(opener: Opener, sync: str) -> None:
    """Sending is awaited, and so is the future it gives."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            async with store.producer("t") as producer:
                future = await producer.send(b"x")
                receipt = await future
                assert (receipt.topic, receipt.partition, receipt.offset) == ("t", 0, 0)
            assert await stored(store) == [b"x"]

    run(main())


@MODES
def test_a_thousand_keep_their_order_over_batches(opener: Opener, sync: str) -> None:
    """And need no threads of their own."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            with counted_threads() as threads:
                async with store.producer("t", batch_messages=7) as producer:
                    futures = [await producer.send(value) for value in numbered(1000)]
                    receipts = await asyncio.gather(*futures)
            assert threads[0] < 50
            assert [receipt.offset for receipt in receipts] == list(range(1000))
            assert await stored(store) == numbered(1000)

    run(main())


def test_tasks_may_share_a_producer(opener: Opener) -> None:
    """Each keeps its own order."""

    async def main() -> None:
        async with opener() as store:
            async with store.producer("t", batch_messages=10) as producer:

                async def send(sender: int) -> list[asyncio.Future[Receipt]]:
                    return [await producer.send(b"%d %d" % (sender, at)) for at in range(50)]

                futures = await asyncio.gather(*[send(sender) for sender in range(10)])
            receipts = [await asyncio.gather(*mine) for mine in futures]
            found = await stored(store)
            assert len(found) == 500
            for sender, mine in enumerate(receipts):
                assert [found[receipt.offset] for receipt in mine] == [b"%d %d" % (sender, at) for at in range(50)]
                assert sorted(mine, key=lambda receipt: receipt.offset) == list(mine)

    run(main())


def test_a_message_has_all_that_was_sent_with_it(opener: Opener) -> None:
    """Key, headers, partition, time."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=3)
            by_key = await store.publish("t", b"first", key="k")
            async with store.producer("t") as producer:
                keyed = await producer.send(b"v", key="k", headers=[("a", b"1"), ("a", b"2")], timestamp=5)
                placed = await producer.send(None, partition=2)
            assert (await keyed).partition == by_key.partition
            assert (await placed).partition == 2
            (message,) = [message async for message in store.read("t", by_key.partition, start=1, max_messages=1)]
            assert (message.value, message.key, message.timestamp_us) == (b"v", b"k", 5_000_000)
            assert message.headers.get_all("a") == [b"1", b"2"]

    run(main())


def test_flush_returns_when_all_is_stored(opener: Opener) -> None:
    """Without waiting for the linger."""

    async def main() -> None:
        async with opener() as store, store.producer("t", linger=60) as producer:
            await producer.flush()
            futures = [await producer.send(value) for value in numbered(5)]
            assert producer.pending == 5
            await producer.flush()
            assert await stored(store) == numbered(5)
            assert [(await future).offset for future in futures] == list(range(5))

    run(main())


def test_leaving_the_block_flushes_even_after_an_error(opener: Opener) -> None:
    """The error goes on."""

    async def main() -> None:
        async with opener() as store:
            with pytest.raises(ZeroDivisionError):
                async with store.producer("t", linger=60) as producer:
                    future = await producer.send(b"x")
                    raise ZeroDivisionError
            assert (await future).offset == 0
            assert await stored(store) == [b"x"]

    run(main())


def test_the_linger_ends_by_itself(opener: Opener) -> None:
    """Nobody need flush."""

    async def main() -> None:
        async with opener() as store, store.producer("t", linger=0.01) as producer:
            assert (await (await producer.send(b"x"))).offset == 0

    run(main())


def test_waiting_for_a_future_does_not_wait_for_the_linger(opener: Opener) -> None:
    """As for the plain store: what somebody waits for is sent at once."""

    async def main() -> None:
        async with opener() as store, store.producer("t", linger=60) as producer:
            future = await producer.send(b"x")

            async def wait() -> int:
                return (await future).offset

            task = asyncio.create_task(wait())
            try:
                assert await done(task), "the future is sent only after the linger"
            finally:
                await producer.flush()
            assert await task == 0

    run(main())


def test_a_future_that_is_cancelled_takes_nothing_back(opener: Opener) -> None:
    """The message is on its way, and the others get their answers."""

    async def main() -> None:
        async with opener() as store, store.producer("t", linger=60) as producer:
            futures = [await producer.send(value) for value in numbered(3)]
            futures[1].cancel()
            await producer.flush()
            assert [(await futures[at]).offset for at in (0, 2)] == [0, 2]
            assert await stored(store) == numbered(3)

    run(main())


BAD: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    ("text", {}, BadArgument),
    (b"x" * 101, {}, MessageTooLarge),
    (b"x", {"key": 5}, BadArgument),
    (b"x", {"headers": {"h": "text"}}, BadArgument),
    (b"x", {"timestamp": "now"}, BadArgument),
    (b"x", {"partition": 1}, TopicNotFound),
]


def test_a_bad_message_is_refused_and_harms_no_other(opener: Opener) -> None:
    """When it is sent."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", max_message_bytes=100)
            async with store.producer("t") as producer:
                await producer.send(b"0")
                for value, options, error in BAD:
                    with pytest.raises(error):
                        await producer.send(value, **options)
                await producer.send(b"1")
            assert await stored(store) == numbered(2)

    run(main())


def test_a_producer_with_bad_arguments_is_not_made(opener: Opener) -> None:
    """With a typed error, when it is awaited."""
    bad: list[dict[str, Any]] = [
        {"linger": -1},
        {"batch_messages": 0},
        {"max_pending": 0},
        {"when_full": "x"},
        {"name": "no/name"},
    ]

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            for options in bad:
                with pytest.raises(UsageError):
                    await store.producer("t", **options)
            with pytest.raises(ReservedName):
                await store.producer("t.dlq")

    run(main())


# -- full -------------------------------------------------------------------------------------------------------------


@MODES
def test_a_full_producer_makes_its_sender_wait(opener: Opener, sync: str) -> None:
    """Not for the linger, and it never holds more than it may."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            async with store.producer("t", linger=60, max_pending=5) as producer:
                for value in numbered(23):
                    await producer.send(value)
                    assert 1 <= producer.pending <= 5
            assert await stored(store) == numbered(23)

    run(main())


def test_many_senders_wait_for_room(opener: Opener) -> None:
    """All of them get it."""

    async def main() -> None:
        async with opener() as store:
            async with store.producer("t", linger=60, max_pending=3) as producer:
                with counted_threads() as threads:
                    await asyncio.gather(*[producer.send(value) for value in numbered(100)])
                assert threads[0] < 50
            found = await stored(store)
            assert sorted(int(value or b"-1") for value in found) == list(range(100))

    run(main())


@MODES
def test_a_full_producer_can_say_so(opener: Opener, sync: str) -> None:
    """And what it took is stored, what it did not is not."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            async with store.producer("t", linger=60, max_pending=3, when_full="raise") as producer:
                for value in numbered(3):
                    await producer.send(value)
                with pytest.raises(ProducerFull):
                    await producer.send(b"too many")
            assert await stored(store) == numbered(3)

    run(main())


@MODES
def test_a_producer_that_was_flushed_has_room(opener: Opener, sync: str) -> None:
    """`flush` returned, so all is committed: nothing is pending, and the next message is taken."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            async with store.producer("t", linger=60, max_pending=3, when_full="raise") as producer:
                for _ in range(50):
                    for value in numbered(3):
                        await producer.send(value)
                    await producer.flush()
                    assert producer.pending == 0

    run(main())


@asynccontextmanager
async def _sender_without_room(
    folder: str,
) -> AsyncIterator[tuple[AsyncStore, AsyncProducer, asyncio.Task[Any], threading.Event]]:
    """A producer that holds all it may, a task that waits to send through it, and the gate that holds the disk back meanwhile."""
    files = GatedFileSystem()
    async with aio.AsyncStore(Store.open(folder, settings=SETTINGS, files=files)) as store:
        await store.create_topic("t")
        producer = await store.producer("t", linger=60, max_pending=1)
        files.gate.clear()
        files.at_gate.clear()
        await producer.send(b"0")
        waiting = asyncio.create_task(producer.send(b"1"))
        assert await until(files.at_gate.is_set)
        assert not waiting.done()
        yield store, producer, waiting, files.gate


def test_a_sender_that_is_cancelled_while_it_waits_has_sent_nothing(folder: str) -> None:
    """There was no room for its message yet."""

    async def main() -> None:
        async with _sender_without_room(folder) as (store, producer, waiting, gate):
            waiting.cancel()
            assert await done(waiting, PATIENCE)
            assert waiting.cancelled()
            gate.set()
            await producer.close()
            assert await stored(store) == [b"0"]

    run(main())


def test_the_loop_goes_on_while_a_sender_waits_for_room(folder: str) -> None:
    """A full producer holds up its sender and nobody else."""

    async def main() -> None:
        async with _sender_without_room(folder) as (store, producer, waiting, gate):
            gate.set()
            await waiting
            await producer.close()
            assert await stored(store) == [b"0", b"1"]

    run(main())


# -- closing and fencing ----------------------------------------------------------------------------------------------


@MODES
def test_closing_the_store_answers_every_future(folder_opener: Opener, sync: str) -> None:
    """What it says was stored is there."""

    async def main() -> None:
        store = await folder_opener()
        await store.create_topic("t", sync=sync)
        producer = await store.producer("t", linger=60, batch_messages=7)
        futures = [await producer.send(value) for value in numbered(50)]
        await store.close()
        receipts = await asyncio.gather(*futures)
        with pytest.raises(Closed):
            await producer.send(b"never")
        async with folder_opener() as again:
            found = await stored(again)
        assert [found[receipt.offset] for receipt in receipts] == numbered(50)

    run(main())


def test_closing_ends_senders_that_wait_for_room(opener: Opener) -> None:
    """They took room, or they are told `Closed`; nobody hangs."""

    async def main() -> None:
        async with opener() as store:
            producer = await store.producer("t", linger=60, max_pending=2)
            sending = [asyncio.create_task(producer.send(value)) for value in numbered(20)]
            await asyncio.sleep(0)
            await producer.close()
            assert await done(sending, PATIENCE)
            errors = [task.exception() for task in sending if task.exception() is not None]
            assert all(isinstance(error, Closed) for error in errors), errors
            sent = [await task.result() for task in sending if task.exception() is None]
            assert sorted(receipt.offset for receipt in sent) == list(range(len(await stored(store))))

    run(main())


def test_a_newer_producer_of_the_same_name_fences_the_older(opener: Opener) -> None:
    """The older one is told, by its futures or when it sends."""

    async def main() -> None:
        async with opener() as store:
            older = await store.producer("t", name="p", linger=0)
            await (await older.send(b"0"))
            async with store.producer("t", name="p", linger=0) as newer:
                await (await newer.send(b"1"))
                with pytest.raises(ProducerFenced):
                    await (await older.send(b"never"))
                await (await newer.send(b"2"))
            await older.close()
            assert await stored(store) == numbered(3)

    run(main())


def test_a_callback_is_called_in_the_loop(opener: Opener) -> None:
    """As for every future of asyncio."""

    async def main() -> None:
        async with opener() as store, store.producer("t") as producer:
            called: list[asyncio.Future[Receipt]] = []
            future = await producer.send(b"x")
            future.add_done_callback(called.append)
            await future
            assert await until(lambda: called, SOON)
            assert called == [future]

    run(main())


def test_a_kind_of_promise_that_cannot_be_told_cannot_be_made() -> None:
    """Not when it is to be told, in the committing thread."""

    class Mute(Promise):
        pass

    with pytest.raises(TypeError, match="tell"):
        Mute()  # type: ignore[abstract]


def test_a_callback_that_blocks_keeps_no_promise_of_another_store_waiting(opener: Opener) -> None:
    """Callbacks have one thread in a process; promises are settled without it, and so is the flush of their producer."""
    blocked, may_end = threading.Event(), threading.Event()

    def block(_: Any) -> None:
        blocked.set()
        assert may_end.wait(3 * PATIENCE)

    async def main() -> None:
        async with opener() as store:
            producer = await store.producer("t")
            sent = [await producer.send(b"%d" % number) for number in range(3)]
            receipts = await asyncio.wait_for(asyncio.gather(*sent), PATIENCE)
            assert [receipt.offset for receipt in receipts] == [0, 1, 2]
            last = await producer.send(b"3")
            await asyncio.wait_for(producer.flush(), PATIENCE)
            assert last.done()
            may_end.set()

    with Store.open("memory:") as other, other.producer("u") as blocking:
        blocking.send(b"x", on_done=block)
        blocking.flush()
        assert blocked.wait(PATIENCE)
        try:
            run(main())
        finally:
            may_end.set()
