"""The store for asyncio: what may wait is awaited, what does not is the plain store's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from penstock.aio.consumer import AsyncConsumer
from penstock.aio.opening import Opening
from penstock.aio.producer import AsyncProducer
from penstock.aio.transaction import AsyncTransaction
from penstock.aio.waiting import committed
from penstock.topics.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from penstock.store.metrics import StoreMetrics
    from penstock.store.staging import Committed
    from penstock.store.stats import MemberInfo, StoreStats
    from penstock.store.store import GroupInfo, Retained, Rewritten, Store, TopicInfo
    from penstock.topics.message import Message
    from penstock.topics.receipt import Receipts


class AsyncStore:
    """An open store, for the tasks of one event loop. See `penstock.Store` for what each call means and raises."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def sync(self) -> Store:
        """The plain store below."""
        return self._store

    async def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """See `Store.create_topic`."""
        return await asyncio.to_thread(self._store.create_topic, name, **settings)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return self._store.topics()

    def topic(self, name: str) -> TopicInfo:
        """One topic."""
        return self._store.topic(name)

    async def publish(self, topic: str, value: bytes | None, **options: Any) -> Receipt:
        """See `Store.publish`."""
        if not options:
            begun = self._store.begin_publish(topic, value)
            if begun is not None:
                # Journaled: the task sleeps until the commit, and no thread waits for it.
                target, partition, ticket = begun
                await committed(ticket)
                target.published += 1
                assert ticket.first_offset is not None
                return Receipt(topic, partition, ticket.first_offset)
            if self._store._catalog.to_publish_now(topic) is not None:  # noqa: SLF001
                return self._store.publish(topic, value)
        return await asyncio.to_thread(self._store.publish, topic, value, **options)

    async def publish_many(self, topic: str, values: Sequence[bytes | None], **options: Any) -> Receipts | list[Receipt]:
        """See `Store.publish_many`."""
        return await asyncio.to_thread(self._store.publish_many, topic, values, **options)

    def producer(self, topic: str, **options: Any) -> Opening[AsyncProducer]:
        """See `Store.producer`. Await it, or use it in ``async with``."""
        wait = options.get("when_full", "block") == "block"
        chosen = {**options, "when_full": "raise"} if wait else options
        return Opening(lambda: AsyncProducer(self._store.producer(topic, **chosen), wait_when_full=wait))

    def transaction(self) -> AsyncTransaction:
        """See `Store.transaction`."""
        return AsyncTransaction(self._store.transaction())

    def subscribe(self, topic: str, group: str, **options: Any) -> Opening[AsyncConsumer]:
        """See `Store.subscribe`. Await it, or use it in ``async with``."""
        return Opening(lambda: AsyncConsumer(self._store.subscribe(topic, group, **options)))

    async def commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool = False, note: str | None = None
    ) -> Committed:
        """See `Store.commit`; stages are made with the plain store (`sync`) in a thread, as they write files."""
        return await asyncio.to_thread(self._store.commit, producer, number, stages, keep_committed=keep_committed, note=note)

    async def abort(self, stages: Sequence[str]) -> int:
        """See `Store.abort`."""
        return await asyncio.to_thread(self._store.abort, stages)

    async def list_dead_letters(
        self, topic: str, max_messages: int | None = None, filter: Callable[[Message], bool] | None = None  # noqa: A002
    ) -> list[Message]:  # fmt: skip
        """See `DeadLetters.list`."""
        return await asyncio.to_thread(lambda: self._store.dead_letters(topic).list(max_messages, filter))

    async def replay_dead_letters(self, topic: str, **chosen: Any) -> int:
        """See `DeadLetters.replay`."""
        return await asyncio.to_thread(lambda: self._store.dead_letters(topic).replay(**chosen))

    async def discard_dead_letters(self, topic: str, **chosen: Any) -> int:
        """See `DeadLetters.discard`."""
        return await asyncio.to_thread(lambda: self._store.dead_letters(topic).discard(**chosen))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of one topic."""
        return self._store.groups(topic)

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """The members of a group, and what each holds."""
        return self._store.members(topic, group)

    async def evict_member(self, topic: str, group: str, member: str) -> int:
        """See `Store.evict_member`."""
        return await asyncio.to_thread(self._store.evict_member, topic, group, member)

    async def delete_group(self, topic: str, group: str) -> None:
        """See `Store.delete_group`."""
        await asyncio.to_thread(self._store.delete_group, topic, group)

    async def seek(self, topic: str, group: str, to: Any, *, partition: int | None = None) -> None:
        """See `Store.seek`."""
        await asyncio.to_thread(self._store.seek, topic, group, to, partition=partition)

    async def read(self, topic: str, partition: int | None = None, **options: Any) -> AsyncIterator[Message]:
        """See `Store.read`; the disk is read in a thread, some thousand messages at a time."""
        messages = await asyncio.to_thread(self._store.read, topic, partition, **options)

        def some() -> list[Message]:
            return [message for _, message in zip(range(1_000), messages, strict=False)]

        while chunk := await asyncio.to_thread(some):
            for message in chunk:
                yield message

    async def retain(self, topic: str | None = None) -> Retained:
        """See `Store.retain`."""
        return await asyncio.to_thread(self._store.retain, topic)

    async def vacuum(self, topic: str | None = None) -> Rewritten:
        """See `Store.vacuum`."""
        return await asyncio.to_thread(self._store.vacuum, topic)

    async def compact(self, topic: str | None = None) -> Rewritten:
        """See `Store.compact`."""
        return await asyncio.to_thread(self._store.compact, topic)

    async def delete_topic(self, name: str) -> None:
        """See `Store.delete_topic`."""
        await asyncio.to_thread(self._store.delete_topic, name)

    def stats(self) -> StoreStats:
        """Numbers of this moment."""
        return self._store.stats()

    async def metrics(self) -> StoreMetrics:
        """What `stats` has, and how long things take while it is measured; see `Store.metrics`."""
        return await asyncio.to_thread(self._store.metrics)

    async def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        await asyncio.to_thread(self._store.flush)

    async def close(self) -> None:
        """See `Store.close`."""
        await asyncio.to_thread(self._store.close)

    def close_now(self) -> None:
        """The same, in the calling thread."""
        self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
