"""
`penstock.aio.open("penstock://host:port")`: a store on a server, for asyncio.

Messages are checked and encoded as in `penstock.client.store`, and calls are made as `remote_calls.py` says. What is plain in `AsyncStore`
is plain here too, so that the same program runs on both: `topics`, `topic`, `groups`, `stats` and `in_flight` of a consumer ask the
server, and the loop stands still until the answer is there.
"""

# ruff: noqa: SLF001 - the twin of RemoteStore, which it shares its state with

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from penstock.aio import remote_reading
from penstock.aio.opening import Opening
from penstock.aio.producer import AsyncProducer
from penstock.aio.remote_calls import AskedOpening, RemoteCalls
from penstock.aio.remote_consumer import PAUSE_SECONDS, AsyncRemoteConsumer
from penstock.aio.remote_producer import send_aside
from penstock.aio.remote_transaction import AsyncRemoteTransaction
from penstock.aio.store import AsyncStore
from penstock.arguments import check_texts, check_whole_number
from penstock.client.consumer import RemoteConsumer, subscription
from penstock.client.dead_letter_box import chosen_offsets, in_parts, wanted_offsets
from penstock.client.pending import ConnectionLost
from penstock.client.publishing import for_server, request_many
from penstock.client.store import check_topic_name, rewritten_of, stricter
from penstock.errors import OutcomeUnknown, PermissionDenied, SequenceGap, TopicNotFound, Unavailable
from penstock.groups.dead_letters import SUFFIX
from penstock.store.dead_letter_box import check_filter
from penstock.store.store import Retained, Rewritten
from penstock.topics import publication
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.topics.receipt import Receipt, Receipts
from penstock.values import SyncMode
from penstock.wire import documents
from penstock.wire.answers import number_rows, numbers, whole
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from penstock.aio.consumer import AsyncConsumer
    from penstock.client.pending import Pending
    from penstock.client.publishing import Parts, RemoteOutlet
    from penstock.client.store import RemoteStore
    from penstock.format.batch import EncodedBatch
    from penstock.store.staging import Committed
    from penstock.store.store import Store, TopicInfo
    from penstock.topics.encoder import MessageEncoder
    from penstock.topics.message import Message


class AsyncRemoteStore(AsyncStore):
    """A store on a server, for the tasks of one event loop. See `AsyncStore` and `penstock.Store`."""

    def __init__(self, store: RemoteStore) -> None:
        super().__init__(cast("Store", store))  # it has the same face
        self._remote = store
        self._calls = RemoteCalls(store._connection)
        self._finding: dict[str, asyncio.Lock] = {}

    # -- topics -----------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        answer = await self._calls.ask(Call.CREATE_TOPIC, self._remote._topic_to_create(name, settings))
        return self._remote._know(documents.decode_topic(answer.fields))

    async def _to_publish(self, name: str, check: Callable[[MessageEncoder], object]) -> MessageEncoder:
        """The topic that *name* publishes to; made after *check* has seen one like it, where that is allowed."""
        remote = self._remote
        remote._check_open()
        known = remote._known(name)
        if known is not None:
            return known
        # A thousand tasks that begin with the same topic ask for it once.
        lock = self._finding.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                if name not in remote._topics:
                    await self._find(name, check)
                return remote._topics[name]
        finally:
            self._finding.pop(name, None)

    async def _find(self, name: str, check: Callable[[MessageEncoder], object]) -> None:
        try:
            answer = await self._calls.ask(Call.TOPIC, {"topic": name})
        except PermissionDenied as error:
            raise PermissionDenied(error.principal, "publish", name) from None
        except TopicNotFound:
            if not self._remote._may_create:
                raise
            check(self._remote._draft(name))
            answer = await self._calls.ask(Call.TOPIC_TO_PUBLISH, {"topic": name})
        self._remote._know(documents.decode_topic(answer.fields))

    # -- publishing -------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, value: bytes | None, **options: Any) -> Receipt:
        return await self._publish(topic, value, **options)

    async def _publish(
        self, topic: str, value: bytes | None, *, key: Any = None, headers: Any = None, partition: int | None = None,
        timestamp: Any = None, dedup_key: str | bytes | None = None, sync: str | SyncMode | None = None, ttl: Any = None,
        delay: Any = None, priority: str | None = None, compression: str | None = None,
    ) -> Receipt:  # fmt: skip
        chosen = options(ttl, delay, priority, compression)
        target = await self._to_publish(
            topic, lambda new: new.check_message(value, key, headers, partition, timestamp, dedup_key, sync, chosen)
        )
        mode = None if sync is None else SyncMode.of(sync)
        if publication.dedup_key_bytes(dedup_key) is not None:
            one = Columns(
                target, [value], None if key is None else [key], None if headers is None else [headers],
                None if timestamp is None else [timestamp], [dedup_key], chosen,
            )  # fmt: skip
            return (await self._publish_once(target, one, partition, mode))[0]
        batch, key_data = target.encode(value, key, headers, timestamp, None, chosen)
        number = target.partition_for(key_data, partition)
        return Receipt(topic, number, await self._send(target, number, batch, mode))

    async def publish_many(self, topic: str, values: Sequence[bytes | None], **options: Any) -> Receipts | list[Receipt]:
        return await self._publish_many(topic, values, **options)

    async def _publish_many(
        self, topic: str, values: Sequence[bytes | None], *, keys: Any = None, headers: Any = None, partition: int | None = None,
        timestamps: Any = None, dedup_keys: Any = None, sync: str | SyncMode | None = None, ttls: Any = None, delays: Any = None,
        priorities: Any = None, compression: str | None = None,
    ) -> Receipts | list[Receipt]:  # fmt: skip
        chosen = options(ttls, delays, priorities, compression)
        target = await self._to_publish(
            topic, lambda new: new.check_messages(values, keys, headers, partition, timestamps, dedup_keys, sync, chosen)
        )
        mode = None if sync is None else SyncMode.of(sync)
        messages = Columns(target, values, keys, headers, timestamps, dedup_keys, chosen)
        if messages.dedup_keys is not None:
            return await self._publish_once(target, messages, partition, mode)
        if not messages.values:
            return Receipts(topic, [])
        parts = messages.split(partition)
        firsts = await self._send_all(target, parts, mode)
        ranges = [(number, first, batch.count) for (number, _, batch), first in zip(parts, firsts, strict=True)]
        return Receipts.of_parts(topic, ranges, [indices for _, indices, _ in parts])

    async def _send(self, target: MessageEncoder, number: int, batch: EncodedBatch, mode: SyncMode | None) -> int:
        """Store a batch so that a lost answer never makes a copy, see `client/publishing.py`; returns its first offset."""
        strict = stricter(target, mode)
        if strict is not None:
            # The strict way of a weaker topic does not look at sequences, so it is not repeated.
            fields = {"topic": target.name, "partition": number, "sync": strict}
            answer = await self._calls.ask(Call.PUBLISH, fields, [for_server(batch, None).data], resend=False)
            return whole(answer.fields, "offset")
        try:
            return await self._send_in_lane(target.name, number, batch)
        except SequenceGap:
            # The server knows less of this lane than it did; nothing was stored, and the lane is gone.
            return await self._send_in_lane(target.name, number, batch)

    async def _send_in_lane(self, topic: str, number: int, batch: EncodedBatch) -> int:
        lanes = self._remote._lanes
        lane = lanes.borrow()
        is_refused = True

        def answered(pending: Pending) -> None:
            nonlocal is_refused
            is_refused = pending.is_refused
            lanes.give_back(lane, topic, number, pending.error, refused=is_refused)

        fields = {"topic": topic, "partition": number}
        data = for_server(batch, lane.identity(topic, number)).data
        try:
            answer = await self._calls.ask(Call.PUBLISH, fields, [data], always=answered)
        except Unavailable as error:
            if is_refused:
                raise
            raise OutcomeUnknown("the message", str(error)) from None
        return whole(answer.fields, "offset")

    async def _send_all(
        self, target: MessageEncoder, parts: Sequence[tuple[int, Sequence[int], EncodedBatch]], mode: SyncMode | None
    ) -> list[int]:
        """The same for one batch in each of several partitions: all of them or none."""
        if len(parts) == 1:
            number, _, batch = parts[0]
            return [await self._send(target, number, batch, mode)]
        batches = [(number, batch) for number, _, batch in parts]
        strict = stricter(target, mode)
        if strict is not None:
            fields, payload = request_many(target.name, batches, None)
            answer = await self._calls.ask(Call.PUBLISH_MANY, {**fields, "sync": strict}, payload, resend=False)
            return numbers(answer.fields, "offsets", len(batches))
        try:
            return await self._send_all_in_lane(target.name, batches)
        except SequenceGap:
            # As in `_send`.
            return await self._send_all_in_lane(target.name, batches)

    async def _send_all_in_lane(self, topic: str, batches: Parts) -> list[int]:
        lanes = self._remote._lanes
        lane = lanes.borrow()
        is_refused = True

        def answered(pending: Pending) -> None:
            nonlocal is_refused
            is_refused = pending.is_refused
            lanes.give_back_many(lane, topic, fields["partitions"], pending.error, refused=is_refused)

        fields, payload = request_many(topic, batches, lane)
        try:
            answer = await self._calls.ask(Call.PUBLISH_MANY, fields, payload, always=answered)
        except Unavailable as error:
            if is_refused:
                raise
            raise OutcomeUnknown("the messages", str(error)) from None
        return numbers(answer.fields, "offsets", len(batches))

    async def _publish_once(
        self, target: MessageEncoder, messages: Columns, partition: int | None, mode: SyncMode | None
    ) -> list[Receipt]:
        request = self._remote._once(target, messages, partition, mode)
        if request is None:
            return []
        fields, payload, every_key = request
        answer = await self._calls.ask(Call.PUBLISH_ONCE, fields, payload, resend=every_key)
        return [Receipt(target.name, one[0], one[1], bool(one[2])) for one in number_rows(answer.fields, "receipts", 3)]

    def producer(self, topic: str, **options: Any) -> Opening[AsyncProducer]:
        wait = options.get("when_full", "block") == "block"
        chosen = {**options, "when_full": "raise"} if wait else options

        def open_now() -> AsyncProducer:
            made = self._remote.producer(topic, **chosen)
            send_aside(made, cast("RemoteOutlet", made._outlet))
            return AsyncProducer(made, wait_when_full=wait)

        return Opening(open_now)

    def transaction(self) -> AsyncRemoteTransaction:
        return AsyncRemoteTransaction(self._remote.transaction(), self._calls)

    async def commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool = False, note: str | None = None
    ) -> Committed:
        fields = self._remote._to_commit(producer, number, stages, keep_committed=keep_committed, note=note)
        answer = (await self._calls.ask(Call.COMMIT, fields)).fields
        return self._remote._committed(producer, number, answer, duplicate=bool(answer.get("duplicate")))

    async def abort(self, stages: Sequence[str]) -> int:
        self._remote._check_open()
        wanted = check_texts("stages", stages, "stage ids")
        return whole((await self._calls.ask(Call.ABORT, {"stages": wanted})).fields, "count")

    # -- consuming --------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, group: str, **options: Any) -> Opening[AsyncConsumer]:
        return AskedOpening(lambda: self._subscribe(topic, group, options))

    async def _subscribe(self, topic: str, group: str, options: dict[str, Any]) -> AsyncConsumer:
        remote, connection = self._remote, self._calls.connection
        given = remote._subscription(topic, group, options)
        while True:
            generation = connection.generation

            def unwanted(pending: Pending, generation: int = generation) -> None:
                if pending.frame is not None:
                    self._calls.tell(Call.UNSUBSCRIBE, {"consumer": pending.frame.fields.get("handle")}, generation)

            fields = subscription(topic, group, given)
            try:
                answer = await self._calls.ask(
                    Call.SUBSCRIBE, fields, resend=False, lost=ConnectionLost("lost"), generation=generation, unwanted=unwanted
                )
                consumer = RemoteConsumer(connection, topic, group, given, remote._consumers.discard, (answer, generation))
            except ConnectionLost:
                await asyncio.sleep(PAUSE_SECONDS)  # what the lost connection had subscribed is gone with it
                continue
            remote._consumers.add(consumer)
            return AsyncRemoteConsumer(consumer, self._calls)

    async def evict_member(self, topic: str, group: str, member: str) -> int:
        fields = self._remote._to_evict(topic, group, member)
        return whole((await self._calls.ask(Call.EVICT_MEMBER, fields, resend=False)).fields, "messages")

    async def delete_group(self, topic: str, group: str) -> None:
        self._remote._check_group(topic, group)
        await self._calls.ask(Call.DELETE_GROUP, {"topic": topic, "group": group}, resend=False)

    async def seek(self, topic: str, group: str, to: Any, *, partition: int | None = None) -> None:
        fields = self._remote._to_seek(topic, group, to, partition)
        if fields is not None:
            await self._calls.ask(Call.SEEK, fields)

    # -- dead letters -----------------------------------------------------------------------------------------------

    async def list_dead_letters(
        self, topic: str, max_messages: int | None = None, filter: Callable[[Message], bool] | None = None  # noqa: A002
    ) -> list[Message]:  # fmt: skip
        self._check_topic(topic)
        check_filter(filter)
        if filter is not None:
            return [one for one in await self.list_dead_letters(topic) if filter(one)][:max_messages]
        if max_messages is not None:
            check_whole_number("max_messages", max_messages, 0, 1 << 62)
        fields = {"topic": topic, "max_messages": max_messages}
        places = number_rows((await self._calls.ask(Call.DEAD_LETTERS, fields)).fields, "places", 2)
        found: list[Message] = []
        for partition in sorted({partition for partition, _ in places}):
            offsets = {offset for number, offset in places if number == partition}
            rest = remote_reading.messages(
                self._calls, topic + SUFFIX, partition, start=min(offsets), end=max(offsets) + 1, max_messages=None
            )
            found += [message async for message in rest if message.offset in offsets]
        return found

    async def replay_dead_letters(self, topic: str, **chosen: Any) -> int:
        return await self._take_out(Call.REPLAY_DEAD_LETTERS, topic, **chosen)

    async def discard_dead_letters(self, topic: str, **chosen: Any) -> int:
        return await self._take_out(Call.DISCARD_DEAD_LETTERS, topic, **chosen)

    async def _take_out(
        self, call: int, topic: str, filter: Callable[[Message], bool] | None = None, offsets: Iterable[int] | None = None  # noqa: A002
    ) -> int:  # fmt: skip
        self._check_topic(topic)
        wanted = wanted_offsets(filter, offsets)
        if filter is not None:
            wanted = chosen_offsets(await self.list_dead_letters(topic), filter, wanted)
        # All of them: not sent again if the answer is lost, what came later must not go with it.
        count = 0
        for some in in_parts(wanted):
            fields = {"topic": topic, "offsets": some}
            count += whole((await self._calls.ask(call, fields, resend=some is not None)).fields, "count")
        return count

    # -- the rest ---------------------------------------------------------------------------------------------------

    async def read(self, topic: str, partition: int | None = None, **options: Any) -> AsyncIterator[Message]:
        """See `Store.read`; the server is asked for a megabyte at a time."""
        async for message in self._read(topic, partition, **options):
            yield message

    def _read(
        self, topic: str, partition: int | None, *, start: Any = "earliest", end: Any = None, max_messages: int | None = None
    ) -> AsyncIterator[Message]:  # fmt: skip
        self._check_topic(topic)
        return remote_reading.messages(self._calls, topic, partition, start=start, end=end, max_messages=max_messages)

    def _check_topic(self, topic: str) -> None:
        self._remote._check_open()
        check_topic_name(topic)

    async def retain(self, topic: str | None = None) -> Retained:
        self._remote._check_open()
        if topic is not None:
            check_topic_name(topic)
        fields = (await self._calls.ask(Call.RETAIN, {"topic": topic})).fields
        return Retained(whole(fields, "segments"), whole(fields, "bytes"))

    async def vacuum(self, topic: str | None = None) -> Rewritten:
        return rewritten_of((await self._calls.ask(Call.VACUUM, self._remote._chosen_topic(topic))).fields)

    async def compact(self, topic: str | None = None) -> Rewritten:
        return rewritten_of((await self._calls.ask(Call.COMPACT, self._remote._chosen_topic(topic))).fields)

    async def delete_topic(self, name: str) -> None:
        self._check_topic(name)
        await self._calls.ask(Call.DELETE_TOPIC, {"topic": name}, resend=False)
        self._remote._topics.pop(name, None)

    async def flush(self) -> None:
        await self._calls.ask(Call.FLUSH, {})

    async def close(self) -> None:
        """See `Store.close`; in a thread, since producers commit what they hold."""
        await super().close()
        self._calls.close()

    def close_now(self) -> None:
        super().close_now()
        self._calls.close()
