"""Consuming in tasks: taking, waiting, and the flow of messages."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadArgument, Closed, LeaseExpired, OffsetOutOfRange
from tests.aio.helpers import PATIENCE, Opener, done, one, places, position, run, take, until, waiting
from tests.conformance.helpers import Running, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aio import AsyncConsumer, AsyncStore
    from penstock.testing import FakeClock

    Timed = Callable[[], AsyncStore]


# -- taking -----------------------------------------------------------------------------------------------------------


def test_messages_come_in_order_and_say_all_about_themselves(opener: Opener) -> None:
    """With the fields of a plain delivery."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"0", key="k", headers=[("h", b"1"), ("h", b"2")], timestamp=7, dedup_key="d")
            await store.publish("t", None)
            async with store.subscribe("t", "g") as consumer:
                message = await one(consumer)
                assert (message.topic, message.partition, message.offset, message.group) == ("t", 0, 0, "g")
                assert (message.value, message.key, message.attempt, message.dedup_key) == (b"0", b"k", 1, b"d")
                assert (message.headers["h"], message.headers.get_all("h")) == (b"1", [b"1", b"2"])
                assert (message.timestamp_us, message.timestamp) == (7_000_000, dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC))
                assert message.append_time_us > 0
                assert "t/0 offset 0" in repr(message)
                assert (await one(consumer)).value is None
                assert consumer.in_flight == 2
                assert (consumer.sync.topic, consumer.sync.group) == ("t", "g")

    run(main())


def test_nothing_ready_is_none(opener: Opener) -> None:
    """At once, or after the time that was given."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            async with store.subscribe("t", "g") as consumer:
                assert await consumer.get(0) is None
                assert await consumer.get(timeout=0.01) is None
                assert await consumer.get(dt.timedelta(milliseconds=10)) is None
                assert await consumer.get_many(5, 0) == []
                assert await consumer.get_many(5, timeout=0.01) == []
                assert await until(lambda: waiting(store) == 0)

    run(main())


def test_get_many_gives_what_there_is_up_to_the_number(opener: Opener) -> None:
    """And waits for the first only."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(25))
            async with store.subscribe("t", "g") as consumer:
                first = await consumer.get_many(10)
                assert [message.value for message in first] == numbered(10)
                assert len(await consumer.get_many(100)) == 15
                task = asyncio.create_task(consumer.get_many(100))
                assert await until(lambda: waiting(store) == 1)
                await store.publish("t", b"late")
                assert [message.value for message in await task] == [b"late"]

    run(main())


def test_bad_arguments_are_refused(opener: Opener) -> None:
    """With the plain consumer's error, and what is there stays there."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g") as consumer:
                for timeout in (-1, "1", float("nan"), True):
                    with pytest.raises(BadArgument):
                        await consumer.get(timeout)
                    with pytest.raises(BadArgument):
                        await consumer.get_many(1, timeout)
                counts: list[Any] = [0, -1, "1", 1.5, True]
                for count in counts:
                    with pytest.raises(BadArgument):
                        await consumer.get_many(count)
                assert consumer.in_flight == 0
                assert (await one(consumer)).attempt == 1

    run(main())


def test_what_is_no_message_cannot_be_finished(opener: Opener) -> None:
    """With `BadArgument`, whatever it is."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            (read,) = [message async for message in store.read("t")]
            async with store.subscribe("t", "g") as consumer, store.subscribe("t", "h") as stranger:
                foreign = await one(stranger)
                errors: dict[str, type[BaseException] | None] = {}
                bad: list[Any] = ["text", [5], read, [read], foreign, [foreign], 5, None]
                for given in bad:
                    for name in ("ack", "nack"):
                        try:
                            await getattr(consumer, name)(given)
                        except Exception as error:
                            errors[f"{name} {given}"] = type(error)
                assert errors == dict.fromkeys(errors, BadArgument)
                assert len(errors) == 2 * len({str(given) for given in bad})

    run(main())


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("limit", [None, PATIENCE], ids=["for-ever", "some-time"])
def test_a_waiting_task_is_woken_by_a_publish(opener: Opener, sync: str, limit: float | None) -> None:
    """Of another task, of a thread, of a producer, of a transaction."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            producer = await store.producer("t", linger=0)

            async def commit() -> None:
                async with store.transaction() as transaction:
                    transaction.publish("t", b"x")

            ways: list[Callable[[], Any]] = [
                lambda: store.publish("t", b"x"),
                lambda: store.publish_many("t", [b"x"]),
                lambda: asyncio.to_thread(store.sync.publish, "t", b"x"),
                lambda: producer.send(b"x"),
                commit,
            ]
            async with store.subscribe("t", "g") as consumer:
                for way in ways:
                    task = asyncio.create_task(consumer.get(limit))
                    assert await until(lambda: waiting(store) == 1)
                    await way()
                    message = await task
                    assert message is not None
                    await message.ack()
                    assert await until(lambda: waiting(store) == 0)
            await producer.close()

    run(main())


def test_a_waiting_task_is_woken_when_time_makes_a_message_ready(opener: Opener) -> None:
    """The end of a delay, and the end of a lease."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g") as consumer:
                await (await one(consumer)).nack(delay=0.02)
                again = await one(consumer)
                assert again.attempt == 2
                await again.extend(0.03)
                third = await one(consumer)
                assert third.attempt == 3
                with pytest.raises(LeaseExpired):
                    await again.ack()

    run(main())


def test_a_waiting_task_is_woken_by_what_others_give_back(opener: Opener) -> None:
    """A nack without delay; a consumer that leaves; an ack that makes room."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(2))
            async with store.subscribe("t", "g", prefetch=1) as consumer:
                held = await one(consumer)
                task = asyncio.create_task(consumer.get())
                assert await until(lambda: waiting(store) == 1)
                await held.ack()
                second = await task
                assert second is not None
                assert second.value == b"1"
                async with store.subscribe("t", "g") as other:
                    task = asyncio.create_task(other.get())
                    assert await until(lambda: waiting(store) == 1)
                    await second.nack(delay=0)
                    third = await task
                    assert third is not None
                    assert (third.value, third.attempt) == (b"1", 2)
                    task = asyncio.create_task(consumer.get())
                    assert await until(lambda: waiting(store) == 1)
                    await other.close()
                    fourth = await task
                    assert fourth is not None
                    assert (fourth.value, fourth.attempt) == (b"1", 2)

    run(main())


def test_iteration_gives_every_message_and_ends_with_the_consumer(opener: Opener) -> None:
    """Those that are there and those that come."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            seen: list[bytes] = []
            async with store.subscribe("t", "g") as consumer:

                async def consume() -> None:
                    async for message in consumer:
                        async with message:
                            seen.append(message.value)

                task = asyncio.create_task(consume())
                assert await until(lambda: len(seen) == 5)
                await store.publish_many("t", numbered(5, 5))
                assert await until(lambda: len(seen) == 10)
                assert not task.done()
            await task
            assert seen == numbered(10)
            assert position(store) == 10

    run(main())


def test_iteration_may_be_left_and_begun_again(opener: Opener) -> None:
    """Nothing is taken that was not given."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(6))
            async with store.subscribe("t", "g") as consumer:
                seen = []
                for _ in range(3):
                    async for message in consumer:
                        await message.ack()
                        seen.append(message.value)
                        if len(seen) % 2 == 0:
                            break
                assert seen == numbered(6)
                assert consumer.in_flight == 0

    run(main())


# -- flow -------------------------------------------------------------------------------------------------------------


def test_a_paused_consumer_hands_out_nothing_until_it_is_resumed(opener: Opener) -> None:
    """A task that waits is woken by `resume`; what was handed out can be finished."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(3))
            async with store.subscribe("t", "g") as consumer:
                held = await one(consumer)
                consumer.pause()
                assert consumer.paused
                assert await consumer.get(0) is None
                assert await consumer.get(0.01) is None
                task = asyncio.create_task(consumer.get())
                assert await until(lambda: waiting(store) == 1)
                await store.publish("t", b"3")
                assert await until(lambda: waiting(store) == 1)
                assert not task.done()
                await held.ack()
                consumer.resume()
                message = await task
                assert message is not None
                assert message.value == b"1"

    run(main())


def test_prefetch_bounds_what_is_in_flight(opener: Opener) -> None:
    """Over all tasks that share the consumer."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            async with store.subscribe("t", "g", prefetch=3) as consumer:
                tasks = [asyncio.create_task(consumer.get()) for _ in range(5)]
                assert await until(lambda: sum(task.done() for task in tasks) == 3 and waiting(store) == 2)
                assert consumer.in_flight == 3
                for task in [task for task in tasks if task.done()]:
                    message = task.result()
                    assert message is not None
                    await message.ack()
                assert await done(list(tasks), PATIENCE)
                assert consumer.in_flight == 2

    run(main())


def test_commit_finishes_all_below(opener: Opener) -> None:
    """By an offset or a message; it never goes back."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            async with store.subscribe("t", "g") as consumer:
                messages = await consumer.get_many(5)
                await consumer.commit(messages[2])
                assert position(store) == 3
                await consumer.commit(7)
                assert position(store) == 7
                await consumer.commit(1)
                assert position(store) == 7
                assert consumer.in_flight == 0
                with pytest.raises(LeaseExpired):
                    await messages[4].ack()
                with pytest.raises(OffsetOutOfRange):
                    await consumer.commit(11)
                for bad in ("5", -1, 1.5, None):
                    with pytest.raises(BadArgument):
                        await consumer.commit(bad)  # type: ignore[arg-type]
                assert places(await take(consumer)) == [(7, 1), (8, 1), (9, 1)]

    run(main())


def test_commit_is_for_one_partition(opener: Opener) -> None:
    """Which must be named where there are several."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=2)
            await store.publish_many("t", numbered(4), partition=1)
            async with store.subscribe("t", "g") as consumer:
                with pytest.raises(BadArgument):
                    await consumer.commit(2)
                await consumer.commit(2, partition=1)
                assert store.stats().topics["t"].groups["g"].positions == {0: 0, 1: 2}

    run(main())


def test_seek_moves_a_group(opener: Opener) -> None:
    """To any place; what was handed out before is void, and waiting tasks are woken."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            async with store.subscribe("t", "g") as consumer:
                messages = await consumer.get_many(5)
                await consumer.ack(messages[:4])
                task = asyncio.create_task(consumer.get())
                assert await until(lambda: waiting(store) == 1)
                await store.seek("t", "g", "earliest")
                first = await task
                assert first is not None
                assert (first.offset, first.attempt) == (0, 1)
                with pytest.raises(LeaseExpired):
                    await messages[4].ack()
                await store.seek("t", group="g", to=3)
                assert places(await take(consumer)) == [(3, 1), (4, 1)]
                await store.seek("t", "g", "latest")
                assert await consumer.get(0) is None
                await store.seek("t", "g", {0: 4})
                assert places(await take(consumer)) == [(4, 1)]
                with pytest.raises(OffsetOutOfRange):
                    await store.seek("t", "g", 6)
                with pytest.raises(BadArgument):
                    await store.seek("t", "g", "somewhere")
                assert position(store) == 4

    run(main())


def test_closing_gives_back_what_is_not_finished(opener: Opener) -> None:
    """At once and uncounted; late answers are refused."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            consumer = await store.subscribe("t", "g")
            messages = await consumer.get_many(3)
            await messages[0].ack()
            await consumer.close()
            with pytest.raises(LeaseExpired):
                await messages[1].ack()
            with pytest.raises(Closed):
                await consumer.get(0)
            async with store.subscribe("t", "g") as other:
                assert places(await take(other)) == [(1, 1), (2, 1), (3, 1), (4, 1)]

    run(main())


def test_an_ordered_group_goes_on_only_after_what_failed(timed: Timed, clock: FakeClock) -> None:
    """In the order of its partition."""

    async def main() -> None:
        async with timed() as store:
            await store.publish_many("t", numbered(4))
            async with store.subscribe("t", "g", ordered=True, backoff=10) as consumer:
                first, second = await consumer.get_many(2, 0)
                await first.nack()
                with pytest.raises(LeaseExpired):
                    await second.ack()
                assert await consumer.get(0) is None
                clock.advance(11)
                assert places(await take(consumer)) == [(0, 2), (1, 1), (2, 1), (3, 1)]

    run(main())


def test_tasks_threads_and_members_share_a_group(opener: Opener) -> None:
    """Each message goes to one of them, whoever it is."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=3)
            seen: list[bytes] = []

            def in_a_thread() -> None:
                with store.sync.subscribe("t", "g") as plain:
                    while (found := plain.get(PATIENCE)) is not None:
                        with found:
                            value = found.value
                            assert value is not None
                            seen.append(value)
                        if value == b"end":
                            return

            async def in_a_task(consumer: AsyncConsumer) -> None:
                async for message in consumer:
                    async with message:
                        seen.append(message.value)
                    if message.value == b"end":
                        return

            threads = [Running(in_a_thread) for _ in range(2)]
            async with store.subscribe("t", "g") as first, store.subscribe("t", "g") as second:
                tasks = [asyncio.create_task(in_a_task(consumer)) for consumer in (first, first, second, second)]
                for value in numbered(200):
                    await store.publish("t", value)
                assert await until(lambda: len(seen) == 200)
                for _ in range(len(threads) + len(tasks)):
                    await store.publish("t", b"end")
                await asyncio.gather(*tasks)
                for thread in threads:
                    await asyncio.to_thread(thread.result)
            assert sorted(seen) == sorted([*numbered(200), *[b"end"] * 6])
            assert store.stats().topics["t"].groups["g"].lag == 0

    run(main())
