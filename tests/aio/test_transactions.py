"""Transactions in tasks: gathering is plain, committing is awaited; all of it or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadArgument, LeaseExpired, ReservedName, UsageError
from tests.aio.helpers import PATIENCE, Gate, Opener, done, one, position, run, stored, until, waiting
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aio import AsyncStore
    from penstock.testing import FakeClock


def test_a_block_that_ends_commits_everything_at_once(opener: Opener) -> None:
    """Messages to several topics and acks; before the end nothing of it is seen."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("in", numbered(2))
            await store.create_topic("out", partitions=2)
            async with store.subscribe("in", "g") as consumer:
                first, second = await consumer.get_many(2)
                async with store.transaction() as transaction:
                    transaction.publish("out", b"a", key="k", headers={"h": b"1"}, timestamp=3)
                    transaction.publish_many("out", [b"b", b"c"], partition=1)
                    transaction.publish("new", b"d")
                    transaction.ack(first)
                    assert await stored(store, "out") == []
                    assert position(store, "in") == 0
                assert sorted(value or b"" for value in await stored(store, "out")) == [b"a", b"b", b"c"]
                assert await stored(store, "new") == [b"d"]
                assert position(store, "in") == 1
                assert [(receipt.topic, receipt.offset) for receipt in transaction.receipts][-1] == ("new", 0)
                assert len(transaction.receipts) == 4
                assert consumer.in_flight == 1
                await second.ack()
                with pytest.raises(LeaseExpired):
                    await first.ack()

    run(main())


def test_a_block_that_raises_drops_everything(opener: Opener) -> None:
    """The messages are never seen, their topics not made, and what it would have acked stays."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("in", b"x")
            async with store.subscribe("in", "g") as consumer:
                message = await one(consumer)
                with pytest.raises(ZeroDivisionError):
                    async with store.transaction() as transaction:
                        transaction.publish("out", b"a")
                        transaction.ack(message)
                        raise ZeroDivisionError
                assert [info.name for info in store.topics()] == ["in"]
                assert position(store, "in") == 0
                assert consumer.in_flight == 1
                await message.ack()

    run(main())


def test_a_cancelled_block_drops_everything(opener: Opener) -> None:
    """As an error does."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("out")
            begun = asyncio.Event()

            async def work() -> None:
                async with store.transaction() as transaction:
                    transaction.publish("out", b"a")
                    begun.set()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            assert await done(task, PATIENCE)
            assert await stored(store, "out") == []

    run(main())


def test_a_task_that_is_cancelled_while_it_commits_has_committed(local_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing: here all of it, since the commit cannot be stopped."""

    async def main() -> None:
        async with local_opener() as store:
            await store.publish("in", b"x")
            async with store.subscribe("in", "g") as consumer:
                message = await one(consumer)
                transaction = store.transaction()
                transaction.publish("out", b"a")
                transaction.ack(message)
                gate = Gate(transaction._transaction.commit)
                monkeypatch.setattr(transaction._transaction, "commit", gate)
                task = asyncio.create_task(transaction.commit())
                assert await until(gate.reached.is_set)
                task.cancel()
                gate.open.set()
                assert await until(gate.passed.is_set)
                assert await done(task, PATIENCE)
                assert await stored(store, "out") == [b"a"]
                assert position(store, "in") == 1
                assert consumer.in_flight == 0

    run(main())


def test_it_may_be_committed_or_aborted_by_hand(opener: Opener) -> None:
    """Once; then it takes nothing more, and the end of its block does nothing."""

    async def main() -> None:
        async with opener() as store:
            transaction = store.transaction()
            transaction.publish("t", b"0")
            receipts = await transaction.commit()
            assert [receipt.offset for receipt in receipts] == [0]
            with pytest.raises(UsageError):
                transaction.publish("t", b"never")
            with pytest.raises(UsageError):
                await transaction.commit()
            async with store.transaction() as committed:
                committed.publish("t", b"1")
                await committed.commit()
            async with store.transaction() as dropped:
                dropped.publish("t", b"never")
                dropped.abort()
            async with store.transaction() as empty:
                pass
            assert empty.receipts == []
            assert await stored(store) == numbered(2)

    run(main())


def test_what_is_not_allowed_is_told_at_once(opener: Opener) -> None:
    """And drops everything if nobody catches it."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"0")
            (read,) = [message async for message in store.read("t")]
            with pytest.raises(BadArgument):
                async with store.transaction() as transaction:
                    transaction.publish("t", b"never")
                    transaction.publish("t", "text")
            async with store.transaction() as transaction:
                transaction.publish("t", b"1")
                with pytest.raises(ReservedName):
                    transaction.publish("t.dlq", b"x")
                with pytest.raises(BadArgument):
                    transaction.ack(read)  # type: ignore[arg-type]
            assert await stored(store) == numbered(2)

    run(main())


def test_an_ack_that_comes_too_late_drops_everything(timed: Callable[[], AsyncStore], clock: FakeClock) -> None:
    """The message is somebody else's by now."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("in", b"x")
            async with store.subscribe("in", "g", lease=10) as consumer:
                message = await one(consumer, 0)
                with pytest.raises(LeaseExpired):
                    async with store.transaction() as transaction:
                        transaction.publish("out", b"a")
                        transaction.ack(message)
                        clock.advance(11)
                assert (await one(consumer, 0)).attempt == 2
                assert "out" not in store.stats().topics or await stored(store, "out") == []

    run(main())


def test_a_transaction_inside_a_block_finishes_its_message(opener: Opener) -> None:
    """Exactly once from one topic to the next, by many tasks."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("in", numbered(60))
            await store.create_topic("out")
            async with store.subscribe("in", "g") as consumer:

                async def move() -> None:
                    async for message in consumer:
                        async with message, store.transaction() as transaction:
                            transaction.publish("out", message.value)
                            transaction.ack(message)

                tasks = [asyncio.create_task(move()) for _ in range(5)]
                assert await until(lambda: position(store, "in") == 60)
            await asyncio.gather(*tasks)
            assert sorted(await stored(store, "out"), key=lambda value: int(value or b"-1")) == numbered(60)
            assert store.stats().topics["in"].groups["g"].acked == 60

    run(main())


def test_a_message_is_acked_by_one_of_two_transactions(opener: Opener) -> None:
    """The other one fails as a whole."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("in", b"x")
            await store.create_topic("out")
            async with store.subscribe("in", "g") as consumer:
                message = await one(consumer)

                async def finish(value: bytes) -> None:
                    async with store.transaction() as transaction:
                        transaction.publish("out", value)
                        transaction.ack(message)

                answers = await asyncio.gather(*[finish(value) for value in numbered(5)], return_exceptions=True)
                assert sorted(type(answer).__name__ for answer in answers) == ["LeaseExpired"] * 4 + ["NoneType"]
                assert len(await stored(store, "out")) == 1

    run(main())


def test_a_transaction_wakes_those_who_wait(opener: Opener) -> None:
    """When it commits, not before."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            async with store.subscribe("t", "g") as consumer:
                task = asyncio.create_task(consumer.get())
                assert await until(lambda: waiting(store) == 1)
                async with store.transaction() as transaction:
                    transaction.publish("t", b"x")
                    assert waiting(store) == 1
                assert await done(task, PATIENCE)

    run(main())
