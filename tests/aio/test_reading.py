"""What a store tells to tasks: messages without a group, numbers, topics, groups, stages."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import replace

import pytest

from penstock.errors import (
    BadArgument,
    GroupNotFound,
    OffsetOutOfRange,
    TopicExists,
    TopicNotFound,
    TransactionFenced,
    UsageError,
)
from tests.aio.helpers import Opener, one, position, run, stored
from tests.conformance.helpers import numbered


@pytest.mark.parametrize("count", [0, 1000, 2501])
def test_reading_gives_every_message_once(opener: Opener, count: int) -> None:
    """However many are fetched at a time."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            for at in range(0, count, 500):
                await store.publish_many("t", numbered(min(500, count - at), at))
            assert await stored(store) == numbered(count)

    run(main())


def test_reading_keeps_to_its_range(opener: Opener) -> None:
    """By offsets, by time, by number, of one partition or all of them."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=2)
            before = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
            await store.publish_many("t", numbered(10), partition=0)
            await store.publish_many("t", numbered(5, 10), partition=1)
            read = store.read
            assert [m.value async for m in read("t", 0, start=3, end=5)] == numbered(2, 3)
            assert [m.value async for m in read("t", partition=1, start="earliest", max_messages=2)] == numbered(2, 10)
            assert [m.value async for m in read("t", 0, start="latest")] == []
            assert [m.value async for m in read("t", start=before)] == numbered(15)
            assert [m.offset async for m in read("t", 1)] == list(range(5))

    run(main())


def test_reading_may_stop_early(opener: Opener) -> None:
    """And begin again."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(10))
            seen = []
            async for message in store.read("t"):
                seen.append(message.value)
                if len(seen) == 3:
                    break
            assert seen == numbered(3)
            assert await stored(store) == numbered(10)

    run(main())


def test_reading_raises_what_the_plain_store_raises(opener: Opener) -> None:
    """When the first message is asked for."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x")
            with pytest.raises(TopicNotFound):
                await stored(store, "nowhere")
            with pytest.raises(OffsetOutOfRange):
                await anext(store.read("t", start=2))
            with pytest.raises(BadArgument):
                await anext(store.read("t", start="somewhere"))
            with pytest.raises(UsageError):
                await anext(store.read("t", max_messages=-1))
            (message,) = [message async for message in store.read("t")]
            with pytest.raises(UsageError):
                message.ack()

    run(main())


def test_tasks_read_side_by_side_while_others_publish(opener: Opener) -> None:
    """Each sees a beginning of the log, without holes."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")

            async def publish() -> None:
                for value in numbered(100):
                    await store.publish("t", value)

            publishing = asyncio.create_task(publish())
            while not publishing.done():
                for found in await asyncio.gather(*[stored(store) for _ in range(3)]):
                    assert found == numbered(len(found))
            await publishing
            assert await stored(store) == numbered(100)

    run(main())


def test_topics_are_made_and_listed(opener: Opener) -> None:
    """Making one again changes nothing; with other settings it is an error."""

    async def main() -> None:
        async with opener() as store:
            info = await store.create_topic("t", partitions=3, retention_age=60)
            assert (info.name, info.partitions, info.settings.retention_age_ms) == ("t", 3, 60_000)
            assert await store.create_topic("t", partitions=3, retention_age=60) == info
            with pytest.raises(TopicExists):
                await store.create_topic("t", partitions=4)
            made = await asyncio.gather(*[store.create_topic("u") for _ in range(10)])
            assert len({one.topic_id for one in made}) == 1
            assert [one.name for one in store.topics()] == ["t", "u"]
            assert store.topic("t") == info
            with pytest.raises(TopicNotFound):
                store.topic("v")

    run(main())


def test_groups_are_listed_and_deleted(opener: Opener) -> None:
    """By topic or all of them."""

    async def main() -> None:
        async with opener() as store:
            for topic, group in (("t", "a"), ("t", "b"), ("u", "a")):
                await store.create_topic(topic)
                async with store.subscribe(topic, group, max_deliveries=7):
                    pass
            assert [(group.topic, group.name) for group in store.groups()] == [("t", "a"), ("t", "b"), ("u", "a")]
            assert [group.max_deliveries for group in store.groups("t")] == [7, 7]
            await store.delete_group("t", "a")
            assert [group.name for group in store.groups("t")] == ["b"]
            with pytest.raises(GroupNotFound):
                await store.delete_group("t", "a")
            with pytest.raises(GroupNotFound):
                await store.seek("t", "a", 0)

    run(main())


def test_where_a_group_begins_is_its_subscribers_choice(opener: Opener) -> None:
    """When it is made."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            for group, start, expected in (("a", "earliest", 0), ("b", 3, 3), ("c", "latest", 5)):
                async with store.subscribe("t", group, start=start):
                    assert position(store, "t", group) == expected

    run(main())


def test_the_numbers_add_up(opener: Opener) -> None:
    """As the plain store counts."""

    async def main() -> None:
        async with opener() as store:
            await store.publish_many("t", numbered(5))
            async with store.subscribe("t", "g") as consumer:
                first, second, _ = await consumer.get_many(3)
                await first.ack()
                await second.nack(delay=60)
                stats = store.stats()
                # But for the commits: acks are committed by themselves, a moment later.
                assert replace(stats, commits=0) == replace(store.sync.stats(), commits=0)
                topic = stats.topics["t"]
                assert (topic.messages, topic.published, topic.partitions) == (5, 5, 1)
                group = topic.groups["g"]
                assert (group.lag, group.in_flight, group.retrying, group.members) == (4, 1, 1, 1)
                assert (group.delivered, group.acked, group.nacked, group.positions) == (3, 1, 1, {0: 1})

    run(main())


def test_retention_may_be_asked_for(opener: Opener) -> None:
    """Of one topic or of all."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", segment_messages=10, retain="always", retention_bytes=1, sync="os")
            for at in range(0, 100, 10):
                await store.publish_many("t", numbered(10, at))
            removed = await store.retain("t")
            assert removed.segments > 0
            assert removed.bytes > 0
            assert store.stats().topics["t"].messages < 100
            assert (await store.retain()).segments == 0

    run(main())


def test_stages_are_committed_and_dropped(folder_opener: Opener) -> None:
    """They are made with the plain store, in a thread, since they write files."""

    async def main() -> None:
        async with folder_opener() as store:
            await store.create_topic("t")

            def stage(value: bytes) -> str:
                with store.sync.stage("p") as opened:
                    opened.publish("t", value)
                return opened.identity

            identities = await asyncio.gather(*[asyncio.to_thread(stage, value) for value in numbered(2)])
            dropped = await asyncio.to_thread(stage, b"never")
            assert await stored(store) == []
            done = await store.commit("p", 1, identities)
            assert (done.messages, done.duplicate) == (2, False)
            assert (await store.commit("p", 1, identities)).duplicate
            assert await store.abort([dropped]) == 1
            assert await store.abort([dropped]) == 0
            await store.commit("p", 300, [])
            assert sorted(value or b"" for value in await stored(store)) == numbered(2)
            with pytest.raises(TransactionFenced):
                await store.commit("p", 200, [])

    run(main())


def test_a_message_that_was_read_is_the_one_that_is_delivered(opener: Opener) -> None:
    """The same place, the same content."""

    async def main() -> None:
        async with opener() as store:
            await store.publish("t", b"x", key="k", headers={"h": b"1"})
            (read,) = [message async for message in store.read("t")]
            async with store.subscribe("t", "g") as consumer:
                message = await one(consumer)
            for name in ("topic", "partition", "offset", "key", "value", "headers", "timestamp_us", "append_time_us"):
                assert getattr(message, name) == getattr(read, name)

    run(main())
