"""Consuming in tasks: messages are finished one by one, together, and by blocks."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock import Store
from penstock.aio import AsyncDelivery
from penstock.errors import BadArgument, LeaseExpired
from tests.aio.helpers import Opener, one, places, position, run, take, until
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.aio import AsyncStore
    from penstock.testing import FakeClock

    Timed = Callable[[], AsyncStore]


# -- finishing --------------------------------------------------------------------------------------------------------


def test_messages_are_finished_one_by_one_and_together(opener: Opener) -> None:
    """By the message or by the consumer; waiting for the disk or not."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            async with store.subscribe("t", "g") as consumer:
                messages = await consumer.get_many(10)
                await messages[0].ack()
                await messages[1].ack(wait=True)
                await consumer.ack(messages[2])
                await consumer.ack(messages[3:5], wait=True)
                await consumer.ack([])
                await consumer.nack(messages[5], delay=0, reason="one")
                await consumer.nack(messages[6:8], delay=0)
                await messages[8].nack(delay=0)
                assert position(store) == 5
                assert consumer.in_flight == 1
                assert places(await take(consumer)) == [(5, 2), (6, 2), (7, 2), (8, 2)]
                await consumer.flush()
                await store.flush()
                counts = store.stats().topics["t"].groups["g"]
                assert (counts.acked, counts.nacked, counts.delivered, counts.redelivered) == (5, 4, 14, 4)

    run(main())


def test_an_ack_that_was_waited_for_is_stored(folder: str, folder_opener: Opener, tmp_path: Path) -> None:
    """Whatever happens to the process afterwards."""

    async def main() -> None:
        async with folder_opener() as store:
            await store.publish_many("t", numbered(4))
            async with store.subscribe("t", "g") as consumer:
                messages = await consumer.get_many(4)
                await messages[0].ack(wait=True)
                await consumer.ack(messages[1], wait=True)
                await messages[2].ack()
                await consumer.flush()
                shutil.copytree(folder, tmp_path / "killed")

    run(main())
    with Store.open(str(tmp_path / "killed"), settings=SETTINGS) as killed:
        assert killed.stats().topics["t"].groups["g"].positions[0] == 3


def test_a_message_is_finished_once(timed: Timed) -> None:
    """The second answer is late, whatever it is."""

    async def main() -> None:
        async with timed() as store:
            await store.publish_many("t", numbered(2))
            async with store.subscribe("t", "g") as consumer:
                first, second = await consumer.get_many(2, 0)
                await first.ack()
                for late in (
                    first.ack(),
                    first.ack(wait=True),
                    first.nack(),
                    first.reject(),
                    first.extend(),
                    consumer.ack(first),
                ):
                    with pytest.raises(LeaseExpired):
                        await late
                with pytest.raises(LeaseExpired):
                    await consumer.ack([first, second], wait=True)
                assert position(store) == 2

    run(main())


def test_an_unfinished_message_comes_again_after_its_lease(timed: Timed, clock: FakeClock) -> None:
    """And the late answer changes nothing."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", lease=30) as consumer:
                message = await one(consumer, 0)
                clock.advance(29)
                assert await consumer.get(0) is None
                clock.advance(2)
                again = await one(consumer, 0)
                assert again.attempt == 2
                with pytest.raises(LeaseExpired):
                    await message.ack()
                await again.ack()
                assert store.stats().topics["t"].groups["g"].expired_leases == 1

    run(main())


def test_extend_moves_the_end_of_the_lease(timed: Timed, clock: FakeClock) -> None:
    """By the group's lease, or as long as asked."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", lease=10) as consumer:
                message = await one(consumer, 0)
                clock.advance(9)
                await message.extend()
                clock.advance(9)
                await message.extend(100)
                clock.advance(99)
                assert await consumer.get(0) is None
                await message.ack()
                with pytest.raises(BadArgument):
                    await message.extend(-1)

    run(main())


def test_a_nack_holds_its_message_back(timed: Timed, clock: FakeClock) -> None:
    """As long as asked, or twice as long each time; never less, and a little more at most."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", backoff=10) as consumer:
                await (await one(consumer, 0)).nack(delay=5)
                clock.advance(4.9)
                assert await consumer.get(0) is None
                clock.advance(0.5)
                await (await one(consumer, 0)).nack()
                clock.advance(15)
                assert await consumer.get(0) is None
                clock.advance(6)
                assert (await one(consumer, 0)).attempt == 3

    run(main())


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_that_ends_acks_its_message(timed: Timed, clock: FakeClock) -> None:
    """However long it took."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", lease=10) as consumer:
                async with await one(consumer, 0) as message:
                    assert isinstance(message, AsyncDelivery)
                    for _ in range(5):
                        clock.advance(60)
                        assert await consumer.get(0) is None
                assert position(store) == 1
                assert consumer.in_flight == 0

    run(main())


def test_a_block_that_fails_nacks_its_message_and_passes_the_error_on(timed: Timed, clock: FakeClock) -> None:
    """The error is the reason."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", max_deliveries=2, backoff=1) as consumer:
                for attempt in (1, 2):
                    with pytest.raises(ValueError, match="cannot"):
                        async with await one(consumer, 0) as message:
                            assert message.attempt == attempt
                            raise ValueError("cannot do that")
                    clock.advance(2)
                assert await consumer.get(0) is None
            assert await until(lambda: store.stats().topics["t"].groups["g"].dead_lettered == 1)
            (letter,) = await store.list_dead_letters("t")
            assert letter.headers["x-dlq-reason"] == b"ValueError: cannot do that"

    run(main())


def test_a_block_may_finish_its_message_itself(opener: Opener) -> None:
    """Then its end does nothing more."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"0")
            async with store.subscribe("t", "g") as consumer:
                async with await one(consumer) as message:
                    await message.ack(wait=True)
                await store.publish("t", b"1")
                async with await one(consumer) as message:
                    await message.nack(delay=0)
                async with await one(consumer) as message:
                    assert (message.offset, message.attempt) == (1, 2)
                await store.publish("t", b"2")
                with pytest.raises(ZeroDivisionError):
                    async with await one(consumer) as message:
                        await message.reject()
                        raise ZeroDivisionError
                assert await until(lambda: position(store) == 3)
                counts = store.stats().topics["t"].groups["g"]
                assert (counts.acked, counts.nacked) == (2, 2)

    run(main())


def test_a_block_cannot_be_entered_too_late(timed: Timed, clock: FakeClock) -> None:
    """The message is somebody else's."""

    async def main() -> None:
        async with timed() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", lease=10) as consumer:
                message = await one(consumer, 0)
                clock.advance(11)
                again = await one(consumer, 0)
                with pytest.raises(LeaseExpired):
                    async with message:
                        raise AssertionError("never begun")
                await again.ack()

    run(main())
