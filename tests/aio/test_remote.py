"""What only a store on a server can do: lose its connection, be pushed to, be asked by a task that is gone."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Receipt, Store, aio
from penstock.aio.remote_consumer import AsyncRemoteConsumer, AsyncRemoteDelivery
from penstock.aio.remote_store import AsyncRemoteStore
from penstock.aio.remote_transaction import AsyncRemoteTransaction
from penstock.errors import BadArgument, BadSetting, Closed, LeaseExpired, OutcomeUnknown, Unavailable
from penstock.server.running import RunningServer
from tests.aio.helpers import PATIENCE, SOON, done, one, run, stored, until
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Iterator

    from penstock.aio import AsyncStore
    from penstock.groups.group import Group
    from penstock.store.stats import GroupStats


class Served:
    """A store, and a server for it."""

    def __init__(self) -> None:
        self.owner = Store.open("memory:", settings=SETTINGS)
        self.server = RunningServer(self.owner)

    def open(self, **options: Any) -> aio.Opening[AsyncStore]:
        """A client."""
        return aio.open(self.server.address, **options)

    def group(self, topic: str = "t", name: str = "g") -> Group:
        """The group on the server."""
        found = self.owner._groups.find(self.owner.topic(topic).topic_id, name)
        assert found is not None
        return found

    def counts(self, topic: str = "t", name: str = "g") -> GroupStats:
        """Its numbers."""
        return self.owner.stats().topics[topic].groups[name]

    async def cut(self) -> None:
        """Cut every connection, and see to it that they are gone."""
        before = set(self.server._listener.connections)
        self.server.disconnect_all()
        assert await until(lambda: not before & set(self.server._listener.connections))


@pytest.fixture
def served() -> Iterator[Served]:
    """A server in this process."""
    found = Served()
    yield found
    found.server.close()
    found.owner.close()


# -- the same face ----------------------------------------------------------------------------------------------------

TWINS = [
    (AsyncRemoteStore, aio.AsyncStore),
    (AsyncRemoteConsumer, aio.AsyncConsumer),
    (AsyncRemoteDelivery, aio.AsyncDelivery),
    (AsyncRemoteTransaction, aio.AsyncTransaction),
]


@pytest.mark.parametrize(("remote", "local"), TWINS)
def test_a_remote_class_has_the_names_and_arguments_of_its_twin(remote: type, local: type) -> None:
    """No more, no fewer, and what is awaited in one is awaited in the other."""
    names = {name for name in dir(local) if not name.startswith("_")}
    assert {name for name in dir(remote) if not name.startswith("_")} == names
    for name in names:
        ours, theirs = inspect.getattr_static(remote, name), inspect.getattr_static(local, name)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs), name
        assert inspect.isasyncgenfunction(ours) == inspect.isasyncgenfunction(theirs), name
        if inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters.values()) == list(inspect.signature(theirs).parameters.values()), (
                name
            )


def test_a_url_opens_a_store_on_a_server(served: Served) -> None:
    """With the errors of `penstock.open`."""

    async def main() -> None:
        async with served.open() as store:
            assert isinstance(store, AsyncRemoteStore)
            assert store.sync.path == served.server.address
        with pytest.raises(BadSetting):
            await served.open(frame_bytes=5)
        for url, error in (("http://127.0.0.1", BadArgument), ("penstock://127.0.0.1:1", Unavailable)):
            with pytest.raises(error):
                await aio.open(url)

    run(main())


def test_no_call_but_opening_closing_and_producers_needs_a_thread(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is sent by the loop, and its answer wakes the task."""

    async def main() -> None:
        store = await served.open()
        stage = store.sync.stage("p")
        stage.publish("staged", b"x")
        identity = stage.finish()
        loop = asyncio.get_running_loop()

        def refuse(*_: object) -> None:
            raise AssertionError("a thread was asked for")

        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_in_executor", refuse)
            patch.setattr("penstock.aio.remote_calls.ThreadPoolExecutor", refuse)
            await _call_everything(store, identity)
        await store.close()

    run(main())


async def _call_everything(store: AsyncStore, stage: str) -> None:
    await store.create_topic("t", partitions=2)
    await store.publish("t", b"0", partition=0)
    await store.publish("t", b"1", partition=0, dedup_key="k")
    await store.publish_many("t", numbered(3, 2), partition=0, sync="always")
    await store.commit("p", 1, [stage])
    assert await store.abort([stage]) == 0
    assert [topic.name for topic in store.topics()] == ["staged", "t"]
    assert store.topic("t").partitions == 2
    consumer = await store.subscribe("t", "g", backoff=0.001)
    async with await one(consumer) as message:
        await message.extend(5)
        assert message.value == b"0"
    await (await one(consumer)).ack(wait=True)
    await (await one(consumer)).reject("bad")
    await (await one(consumer)).nack(reason="again")
    consumer.pause()
    assert consumer.paused
    assert await consumer.get(0) is None
    consumer.resume()
    rest = await consumer.get_many(5, SOON)
    await consumer.extend(rest[0], 5)
    async with store.transaction() as transaction:
        transaction.publish("t", b"5", partition=1)
        transaction.ack(rest[0])
    assert len(transaction.receipts) == 1
    await consumer.flush()
    assert consumer.in_flight == len(rest) - 1
    await consumer.commit(5, 0)
    async for message in consumer:
        await message.ack()
        break
    await consumer.close()
    assert [message.value for message in await store.list_dead_letters("t")] == [b"2"]
    assert await store.replay_dead_letters("t", filter=lambda message: message.value == b"2") == 1
    assert await store.discard_dead_letters("t") == 0
    assert [message.value async for message in store.read("t", 0, max_messages=2)] == [b"0", b"1"]
    await store.seek("t", "g", "earliest")
    assert [group.name for group in store.groups("t")] == ["g"]
    assert store.stats().topics["t"].groups["g"].members == 0
    await store.flush()
    await store.delete_group("t", "g")
    assert await store.retain("t") == (0, 0)


def test_a_thousand_publishes_at_once_are_stored_once_each(served: Served) -> None:
    """To a topic that none of them has seen."""

    async def main() -> None:
        async with served.open() as store:
            before = threading.active_count()
            receipts = await asyncio.gather(*[store.publish("t", value) for value in numbered(1_000)])
            assert threading.active_count() <= before + 12  # the server's
            assert sorted(receipt.offset for receipt in receipts) == list(range(1_000))
            assert sorted(await stored(store), key=lambda value: int(value or b"-1")) == numbered(1_000)

    run(main())


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_cancelled_get_leaves_nobody_waiting_on_the_server(served: Served) -> None:
    """The server is told, and the next one gets the message."""

    async def main() -> None:
        async with served.open() as store:
            await store.create_topic("t")
            async with store.subscribe("t", "g") as consumer:
                tasks = [asyncio.create_task(consumer.get()) for _ in range(20)]
                assert await until(lambda: len(served.group()._waiters) == 20)
                for task in tasks:
                    task.cancel()
                assert await done(tasks)
                assert all(task.cancelled() for task in tasks)
                assert await until(lambda: not served.group()._waiters)
                await store.publish("t", b"x")
                assert (await one(consumer)).attempt == 1

    run(main())


def test_gets_that_are_cancelled_at_any_moment_lose_nothing(served: Served, rng: random.Random) -> None:
    """What comes for a task that is gone goes back uncounted."""

    async def main() -> None:
        async with served.open() as store:
            await store.create_topic("t", sync="os")
            async with store.subscribe("t", "g", lease=600) as consumer:
                seen: list[bytes | None] = []
                for value in numbered(150):
                    task = asyncio.create_task(consumer.get())
                    await store.publish("t", value)
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(rng.random() * 0.0005)
                    task.cancel()
                    (message,) = await asyncio.gather(task, return_exceptions=True)
                    if isinstance(message, aio.AsyncDelivery):
                        assert message.attempt == 1
                        seen.append(message.value)
                        await message.ack()
                while len(seen) < 150:
                    message = await one(consumer, SOON)
                    assert message.attempt == 1
                    seen.append(message.value)
                    await message.ack()
                assert sorted(seen, key=lambda value: int(value or b"-1")) == numbered(150)

    run(main())


def test_a_task_cancelled_as_it_enters_its_block_gives_the_message_back(served: Served) -> None:
    """The server may have begun to keep its lease."""

    async def main() -> None:
        async with served.open() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g") as consumer:
                message = await one(consumer)
                task = asyncio.create_task(message.__aenter__())
                await asyncio.sleep(0)
                task.cancel()
                assert await done(task)
                assert task.cancelled()
                assert (await one(consumer, SOON)).attempt == 1

    run(main())


def test_a_cancelled_subscription_leaves_no_member_behind(served: Served) -> None:
    """Whenever the answer comes."""

    async def main() -> None:
        async with served.open() as store:
            await store.create_topic("t")
            for turns in range(10):
                task = asyncio.ensure_future(store.subscribe("t", "g")._open())
                await asyncio.sleep(turns * 0.0005)
                task.cancel()
                (consumer,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(consumer, aio.AsyncConsumer):
                    await consumer.close()
            async with store.subscribe("t", "g"):
                assert await until(lambda: served.counts().members == 1, SOON)

    run(main())


# -- pushing ----------------------------------------------------------------------------------------------------------


def test_what_was_pushed_ahead_goes_back_when_nobody_iterates_any_more(served: Served) -> None:
    """At once, and uncounted: another consumer gets it."""

    async def main() -> None:
        async with served.open() as store:
            await store.publish_many("t", numbered(50))
            async with store.subscribe("t", "g") as first, store.subscribe("t", "g") as second:
                async for message in first:
                    await message.ack()
                    if message.offset == 4:
                        break
                rest: list[aio.AsyncDelivery] = []
                while len(rest) < 45:
                    rest += await second.get_many(50, SOON)
                assert sorted((message.offset, message.attempt) for message in rest) == [(offset, 1) for offset in range(5, 50)]

    run(main())


def test_what_was_pushed_ahead_goes_back_while_it_is_paused(served: Served) -> None:
    """And comes again when it goes on."""

    async def main() -> None:
        async with served.open() as store:
            await store.publish_many("t", numbered(20))
            async with store.subscribe("t", "g") as consumer:
                seen: list[int] = []

                async def iterate() -> None:
                    async for message in consumer:
                        seen.append(message.offset)
                        await message.ack()
                        if len(seen) == 3:
                            consumer.pause()

                task = asyncio.create_task(iterate())
                assert await until(lambda: served.counts().in_flight == 0 and len(seen) == 3)
                await store.publish("t", b"more")
                assert len(seen) == 3
                consumer.resume()
                assert await until(lambda: len(seen) == 21)
            assert await done(task)
            assert task.exception() is None
            assert sorted(seen) == list(range(21))

    run(main())


def test_tasks_that_iterate_share_what_is_pushed(served: Served) -> None:
    """Each message goes to one; the block around the consumer ends them all."""

    async def main() -> None:
        async with served.open() as store:
            await store.create_topic("t")
            seen: list[bytes | None] = []
            async with store.subscribe("t", "g") as consumer:

                async def iterate() -> None:
                    async for message in consumer:
                        async with message:
                            seen.append(message.value)

                tasks = [asyncio.create_task(iterate()) for _ in range(5)]
                await asyncio.gather(*[store.publish("t", value) for value in numbered(300)])
                assert await until(lambda: served.counts().acked == 300)
            await asyncio.gather(*tasks)
            assert sorted(seen, key=lambda value: int(value or b"-1")) == numbered(300)

    run(main())


@pytest.mark.parametrize("whole", [False, True], ids=["consumer", "store"])
def test_closing_ends_every_task_that_waits_for_a_server(served: Served, whole: bool) -> None:
    """Those in `get` are told `Closed`, iterations end."""

    async def main() -> None:
        store = await served.open()
        await store.create_topic("t")
        consumer = await store.subscribe("t", "g")

        async def iterate() -> None:
            async for _ in consumer:
                raise AssertionError("there was nothing")

        getting = [asyncio.create_task(consumer.get(limit)) for limit in (None, PATIENCE)]
        iterating = [asyncio.create_task(iterate()) for _ in range(3)]
        assert await until(lambda: len(served.group()._waiters) >= 2)
        await (store if whole else consumer).close()
        assert await done([*getting, *iterating])
        assert all(isinstance(task.exception(), Closed) for task in getting)
        assert all(task.exception() is None for task in iterating)
        await store.close()

    run(main())


# -- losing the connection --------------------------------------------------------------------------------------------


def test_publishes_over_connections_that_are_cut_are_stored_once(served: Served) -> None:
    """Whether the call or its answer was lost."""

    async def main() -> None:
        async with served.open() as store:
            await store.create_topic("t")

            async def publish(task: int) -> None:
                for value in numbered(40, task * 40):
                    await store.publish("t", value)

            tasks = [asyncio.create_task(publish(task)) for task in range(10)]
            for _ in range(5):
                await asyncio.sleep(0.02)
                await served.cut()
            await asyncio.gather(*tasks)
            assert sorted(await stored(store), key=lambda value: int(value or b"-1")) == numbered(400)

    run(main())


def test_a_waiting_get_and_an_iteration_outlive_their_connection(served: Served) -> None:
    """They subscribe again, and get what comes then."""

    async def main() -> None:
        async with served.open() as store:
            for topic in ("t", "u"):
                await store.create_topic(topic)
            async with store.subscribe("t", "g") as first, store.subscribe("u", "g") as second:
                for turn in range(3):
                    getting = asyncio.create_task(one(first))
                    iterating = asyncio.create_task(_next(aiter(second)))
                    assert await until(lambda: served.group("t")._waiters and served.group("u")._waiters)
                    await served.cut()
                    for topic in ("t", "u"):
                        await store.publish(topic, b"%d" % turn)
                    for message in (await getting, await iterating):
                        assert message.value == b"%d" % turn
                        await message.ack(wait=True)

    run(main())


async def _next(messages: AsyncIterator[aio.AsyncDelivery]) -> aio.AsyncDelivery:
    return await anext(messages)


def test_what_was_held_over_a_lost_connection_is_void(served: Served) -> None:
    """Finishing it raises, by each of the ways; it comes again, counted for the one that was handled."""

    async def main() -> None:
        async with served.open() as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", "g", backoff=0.001) as consumer:
                held = await one(consumer)
                await served.cut()
                assert await until(lambda: served.server.connections == 1)
                again = await one(consumer)
                assert (again.offset, again.attempt) == (0, 2)
                for late in (held.ack(), held.nack(), held.reject(), held.extend(), held.__aenter__()):
                    with pytest.raises(LeaseExpired):
                        await late
                transaction = store.transaction()
                transaction.ack(held)
                with pytest.raises(LeaseExpired):
                    await transaction.commit()
                await again.ack()

    run(main())


def test_a_server_that_stays_away_is_told_to_who_waits(served: Served) -> None:
    """Those in `get`, those who iterate, those who publish; the loop goes on meanwhile."""

    async def main() -> None:
        store = await served.open(give_up=0.2)
        await store.create_topic("t")
        consumer = await store.subscribe("t", "g")
        tasks = [asyncio.create_task(consumer.get()), asyncio.create_task(_next(aiter(consumer)))]
        assert await until(lambda: served.group()._waiters)
        await asyncio.to_thread(served.server.close)
        tasks.append(asyncio.create_task(consumer.get()))
        assert await done(tasks, PATIENCE)
        assert all(isinstance(task.exception(), Unavailable) for task in tasks), tasks
        with pytest.raises(Unavailable):
            await store.publish("t", b"x")
        await store.close()

    run(main())


def test_a_publish_whose_answer_never_came_has_an_unknown_outcome(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its sequence is not used again: the next message is no copy of it."""

    async def main() -> None:
        async with served.open() as store:
            await store.publish("t", b"0")
            connection = store.sync._connection  # type: ignore[attr-defined]  # a remote store's
            with monkeypatch.context() as patch:
                patch.setattr(connection, "_take", lambda _: None)
                lost = asyncio.create_task(store.publish("t", b"1"))
                assert await until(lambda: served.owner.ends("t") == {0: 2})
                connection._give_up(Unavailable("it stays away"))
                assert await done(lost)
            assert isinstance(lost.exception(), OutcomeUnknown)
            assert await store.publish("t", b"2") == Receipt("t", 0, 2)
            assert await stored(store) == numbered(3)

    run(main())
