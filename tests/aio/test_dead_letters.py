"""Dead letters from tasks: listed, sent back and thrown away by awaitable calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadArgument, TopicNotFound
from tests.aio.helpers import Opener, one, position, run, stored, until
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from penstock.aio import AsyncStore


async def _bury(store: AsyncStore, count: int) -> None:
    await store.publish_many("t", numbered(count), keys=["k"] * count)
    async with store.subscribe("t", "g") as consumer:
        for _ in range(count):
            await (await one(consumer)).reject("not today")
        assert await until(lambda: store.stats().topics["t"].groups["g"].dead_lettered == count)


def test_rejected_messages_are_listed(opener: Opener) -> None:
    """With the reason; all of them or some."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 5)
            letters = await store.list_dead_letters("t")
            assert [letter.value for letter in letters] == numbered(5)
            assert letters[0].headers["x-dlq-reason"] == b"not today"
            assert letters[0].headers["x-dlq-source-topic"] == b"t"
            assert [letter.value for letter in await store.list_dead_letters("t", 2)] == numbered(2)
            assert [letter.value for letter in await store.list_dead_letters("t", max_messages=2)] == numbered(2)
            assert position(store) == 5

    run(main())


def test_a_topic_without_dead_letters_has_an_empty_list(opener: Opener) -> None:
    """And nothing to send back or throw away."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            assert await store.list_dead_letters("t") == []
            assert await store.replay_dead_letters("t") == 0
            assert await store.discard_dead_letters("t") == 0
            for call in (store.list_dead_letters, store.replay_dead_letters, store.discard_dead_letters):
                with pytest.raises(TopicNotFound):
                    await call("nowhere")

    run(main())


def test_dead_letters_are_sent_back(opener: Opener) -> None:
    """All or the chosen ones, as new; waiting tasks get them."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 5)
            async with store.subscribe("t", "g") as consumer:
                task = asyncio.create_task(consumer.get())
                assert await store.replay_dead_letters("t", filter=lambda letter: letter.value == b"3") == 1
                message = await task
                assert message is not None
                assert (message.value, message.key, message.attempt, list(message.headers)) == (b"3", b"k", 1, [])
                assert await store.replay_dead_letters("t", offsets=[0, 1]) == 2
                assert await store.replay_dead_letters("t") == 2
                assert await store.list_dead_letters("t") == []
                assert [message.value for message in await consumer.get_many(10)] == [b"0", b"1", b"2", b"4"]

    run(main())


def test_dead_letters_are_thrown_away(opener: Opener) -> None:
    """All or the chosen ones."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 5)
            assert await store.discard_dead_letters("t", offsets=[1]) == 1
            assert await store.discard_dead_letters("t", filter=lambda letter: letter.value in (b"0", b"4")) == 2
            assert [letter.value for letter in await store.list_dead_letters("t")] == [b"2", b"3"]
            assert await store.discard_dead_letters("t") == 2
            assert await store.list_dead_letters("t") == []
            assert await stored(store) == numbered(5)

    run(main())


def test_a_letter_is_sent_back_once_however_many_ask(opener: Opener) -> None:
    """Tasks that replay at once share the letters."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 20)
            counts = await asyncio.gather(*[store.replay_dead_letters("t") for _ in range(4)])
            assert sum(counts) == 20
            assert len(await stored(store)) == 40

    run(main())


def test_nonsense_chooses_nothing(opener: Opener) -> None:
    """It is refused, and a filter that fails changes nothing."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 2)
            for call in (store.replay_dead_letters, store.discard_dead_letters):
                with pytest.raises(BadArgument):
                    await call("t", filter="text")
                with pytest.raises(BadArgument):
                    await call("t", offsets=5)
                with pytest.raises(ZeroDivisionError):
                    await call("t", filter=lambda letter: 1 / 0)
            assert len(await store.list_dead_letters("t")) == 2

    run(main())


def test_dead_letters_are_an_ordinary_topic(opener: Opener) -> None:
    """Tasks may read it and consume it."""

    async def main() -> None:
        async with opener() as store:
            await _bury(store, 3)
            assert await stored(store, "t.dlq") == numbered(3)
            async with store.subscribe("t.dlq", "watch") as consumer:
                assert [message.value for message in await consumer.get_many(10)] == numbered(3)

    run(main())
