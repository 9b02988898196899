"""
Publish and PublishStream.

A request becomes one batch for each partition. Where its topic commits by the journal, the batches are submitted in the event loop, and no
thread waits for them: a ticket wakes the call. What needs more (a new topic, deduplication, a stricter sync mode) goes to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from penstock.aio.waiting import committed
from penstock.errors import PenstockError, ServerStopping, TopicNotFound, UsageError
from penstock.server.grpc import translation as to
from penstock.server.grpc.statuses import tell
from penstock.topics.catalog import check_publishable
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.volume.tickets import Append
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.format.batch import EncodedBatch
    from penstock.server.grpc.service import Call
    from penstock.topics.topic import Topic

    Parts = list[tuple[int, Sequence[int], EncodedBatch]]

INLINE_BYTES_MAX = 64 * 1024
INLINE_MESSAGES_MAX = 500
"""Larger requests are encoded in a thread, so that other calls do not wait for it."""


async def publish(call: Call, request: pb.PublishRequest) -> pb.PublishResponse:
    """Store messages of one topic."""
    return await (await begin(call, request))


async def begin(call: Call, request: pb.PublishRequest) -> Awaitable[pb.PublishResponse]:
    """
    Submit what *request* asks for; await the result for the answer. Requests that are begun one after the other are stored in that order.

    Raises what `Store.publish_many` raises, and what `Principal.require` raises; nothing was stored.
    """
    call.require("publish", request.topic)
    messages = to.new_messages(request.messages)
    partition = to.given(request, "partition")
    sync = to.word_of("sync", request.sync, to.SYNC_MODES) if request.HasField("sync") else None
    compression = to.given(request, "compression")
    topic = _journaled(call, request.topic) if sync is None and messages.dedup_keys is None else None
    if topic is None:
        _check_may_create(call, request.topic)
        # Nothing else of this stream may overtake it, so it is waited for here.
        receipts = await asyncio.to_thread(
            lambda: list(
                call.store.publish_many(
                    request.topic, messages.values, keys=messages.keys, headers=messages.headers, partition=partition,
                    timestamps=messages.timestamps, dedup_keys=messages.dedup_keys, sync=sync, ttls=messages.ttls,
                    delays=messages.delays, priorities=messages.priorities, compression=compression,
                )
            )
        )  # fmt: skip
        answer = pb.PublishResponse()
        for receipt in receipts:
            answer.receipts.add(partition=receipt.partition, offset=receipt.offset, duplicate=receipt.duplicate)
        return _ready(answer)

    def encode() -> Parts:
        chosen = options(messages.ttls, messages.delays, messages.priorities, compression)
        columns = Columns(topic, messages.values, messages.keys, messages.headers, messages.timestamps, None, chosen)
        return columns.split(partition)

    small = len(messages.values) <= INLINE_MESSAGES_MAX and request.ByteSize() <= INLINE_BYTES_MAX
    return _submit(call, topic, encode() if small else await asyncio.to_thread(encode))


async def _ready(answer: pb.PublishResponse) -> pb.PublishResponse:
    return answer


def _check_may_create(call: Call, name: str) -> None:
    """Raise unless the topic is there, or who calls may make it. Raises `BadName`, `ReservedName`, `TopicNotFound`."""
    check_publishable(name)
    if call.store._catalog.to_publish_now(name) is None and not call.principal.may("admin", name):  # noqa: SLF001
        raise TopicNotFound(name)


def _journaled(call: Call, name: str) -> Topic | None:
    """The topic, if a ticket can be had for its batches. Raises `BadName`, `ReservedName`."""
    store = call.store
    check_publishable(name)
    if not store.has_threads:
        return None
    try:
        topic = store._catalog.get(name)  # noqa: SLF001
    except TopicNotFound:
        return None
    return topic if topic.logs[0].always else None


def _submit(call: Call, topic: Topic, parts: Parts) -> Awaitable[pb.PublishResponse]:
    volume = call.store._volume  # noqa: SLF001
    if len(parts) == 1:
        number, _, batch = parts[0]
        single = volume.submit(topic.logs[number], batch)

        async def one() -> pb.PublishResponse:
            await committed(single)
            assert single.first_offset is not None
            return _answer(topic, parts, [single.first_offset])

        return one()
    several = volume.submit_changes([Append(topic.logs[number], batch) for number, _, batch in parts])

    async def many() -> pb.PublishResponse:
        await committed(several)
        return _answer(topic, parts, several.first_offsets)

    return many()


def _answer(topic: Topic, parts: Parts, firsts: list[int]) -> pb.PublishResponse:
    places = {
        index: (number, first + at)
        for (number, indices, _), first in zip(parts, firsts, strict=True)
        for at, index in enumerate(indices)
    }
    topic.published += len(places)
    answer = pb.PublishResponse()
    for index in range(len(places)):
        partition, offset = places[index]
        answer.receipts.add(partition=partition, offset=offset, duplicate=False)
    return answer


class PublishStream:
    """
    One PublishStream call: reads requests and submits them, and answers them in their order as they are committed.

    It reads no more while too much is not answered: a client that does not read its answers is not read from.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._begun: deque[tuple[Awaitable[pb.PublishResponse] | PenstockError, int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._has_ended = False
        self._is_reading = False
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Return when the client has closed its side and all is answered. Raises `ServerStopping`."""
        service = self._call.service
        self._reader = asyncio.create_task(self._read_along())
        service.streams.add(self)
        try:
            await self._answer_along()
        finally:
            service.streams.discard(self)
            self._reader.cancel()
            self._count(-self._bytes)
            for begun, _ in self._begun:
                if not isinstance(begun, PenstockError):
                    begun.close()  # type: ignore[attr-defined]  # it is committed all the same, and nobody is told
        if service.is_draining:
            raise ServerStopping("the server is stopping; all that was answered is stored")

    @property
    def in_flight(self) -> int:
        return 0

    def stop(self) -> None:
        if self._is_reading and self._reader is not None:
            self._reader.cancel()

    def look(self) -> None:
        """The token is looked at with each request."""

    async def _read_along(self) -> None:
        call = self._call
        try:
            while not call.service.is_draining:
                self._is_reading = True
                await call.connection.until_room()
                data = await call.read()
                self._is_reading = False
                if data is None:
                    return
                await self._until(self._has_room)
                self._count(len(data))
                begun: Awaitable[pb.PublishResponse] | PenstockError
                try:
                    begun = await begin(call, parse(pb.PublishRequest, data))
                except PenstockError as error:
                    begun = error
                self._begun.append((begun, len(data)))
                self._changed.set()
        finally:
            self._has_ended = True
            self._changed.set()

    def _count(self, more: int) -> None:
        """So much more is being carried out."""
        self._bytes += more
        if more > 0:
            self._call.connection.account.begin(more)
        else:
            self._call.connection.account.end(-more)

    def _has_room(self) -> bool:
        settings = self._call.service.settings
        return not self._begun or (len(self._begun) < settings.publishing_max and self._bytes < settings.publishing_bytes_max)

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def _answer_along(self) -> None:
        while True:
            await self._until(lambda: self._begun or self._has_ended)
            if not self._begun:
                break
            begun, size = self._begun[0]
            try:
                if isinstance(begun, PenstockError):
                    raise begun
                answer = pb.PublishStreamResponse(published=await begun)
            except PenstockError as error:
                answer = pb.PublishStreamResponse(error=tell(error).to_message())
            await self._call.write(answer.SerializeToString())
            self._begun.popleft()
            self._count(-size)
            self._changed.set()
        assert self._reader is not None
        # An error of ours in the reader is the call's error; a cancelled one was told to stop.
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


def parse(kind: Any, data: bytes) -> Any:
    """The message of *kind* in *data*. Raises `UsageError`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise UsageError(f"the request is no {kind.DESCRIPTOR.full_name}") from None
