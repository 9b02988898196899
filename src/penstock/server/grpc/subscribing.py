"""
Subscribe: one stream is one consumer.

Two tasks share the stream. The reader takes the client's requests one after the other, settles what they finish, and answers. The pusher
leases messages while there is credit, and writes them. A write returns when the client has room for it: a client that does not read
costs one response, and nothing more is leased for it; nor are its requests read when their answers cannot be written.

Credit and prefetch are two limits: credit is used up by each message that is pushed and comes only from the client, prefetch bounds what is
pushed and not finished. Tags name deliveries of this stream only; they begin at a random number, so that a tag of another stream, kept by
mistake, names nothing here.

A client may also fetch, as many as it says and without credit: one task more, while it waits.

Leasing reads files and settling may wait for the disk, so both are done in threads. The tags' table is changed by one of the two at a time
(`_table`); the end of the stream waits for a thread that still settles (`_busy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

from penstock.aio.consumer import AsyncConsumer
from penstock.aio.waiting import finished_or_undone
from penstock.arguments import check_whole_number, shown
from penstock.broker.subscription import PUSH_MESSAGES_MAX, TAGS_MORE_MAX, Subscription, expand_tags
from penstock.broker.topics import may_make
from penstock.errors import BadArgument, ConsumerEvicted, LeaseExpired, PenstockError, ServerStopping, UsageError
from penstock.groups.delivery import Delivery, is_valid
from penstock.groups.member import Origin
from penstock.server.auth import tell_client
from penstock.server.grpc import translation as to
from penstock.server.grpc.publishing import parse
from penstock.store.consumer import GET_MANY_MAX
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.server.grpc.service import Call
    from penstock.store.consumer import Consumer

LOOK_SECONDS = 0.02
"""How often a stream that ends looks whether its client has finished everything."""
FIRST_MESSAGES = 32
"""How many messages are leased at first; more, up to `PUSH_MESSAGES_MAX`, as long as they fit into one response."""
NO_CREDIT = "no message is pushed before a request gives credit, or fetches: send credit with start"
EOF_SECONDS = 0.05
"""How long after the end of requests a cancellation may come: then it was none."""


async def subscribe(call: Call) -> None:
    """Return when the client has closed its side. Raises what ends it otherwise."""
    data = await call.read()
    first: pb.SubscribeRequest = pb.SubscribeRequest() if data is None else parse(pb.SubscribeRequest, data)
    if not first.HasField("start"):
        raise UsageError("the first request of Subscribe has `start`")
    start = first.start
    call.require("consume", start.topic)
    options = _options(call, start)
    catalog = call.store._catalog  # noqa: SLF001
    options["create"] = may_make(catalog, call.principal, start.topic, options.get("create"), auto_create=catalog.auto_create)
    consumer = await finished_or_undone(
        lambda: call.store.subscribe(start.topic, start.group, **options), lambda made: made.close()
    )
    await SubscribeStream(call, consumer, options.get("concurrency", 1), recalls=start.recallable).run(first)


def _options(call: Call, start: pb.Subscription) -> dict[str, Any]:
    settings, options = call.service.settings, to.group_options(start)
    for name, most in (("prefetch", settings.prefetch_max), ("prefetch_bytes", settings.prefetch_bytes_max)):
        if name in options:
            check_whole_number(name, options[name], 1, most)
    return options


class _Taking(AsyncConsumer):
    """Takes in a thread always: leasing reads files."""

    async def _take_now(self, count: int) -> list[Delivery]:
        return await finished_or_undone(lambda: self._group.take(self._member, count, pushed=self._pushed), self._give_back)


class _Pushing(_Taking):
    """The same for what is pushed."""

    _pushed = True


class SubscribeStream(Subscription):
    """One Subscribe call that has begun."""

    def __init__(self, call: Call, consumer: Consumer, concurrency: int, *, recalls: bool = False) -> None:
        super().__init__(consumer, concurrency, self._announce, recalls=recalls)
        self._announcements: list[pb.SubscribeResponse] = []
        self._announcing: asyncio.Task[None] | None = None
        clock = call.store._clock  # noqa: SLF001
        self._origin = Origin("grpc", call.context.peer(), call.principal.name, clock.monotonic())
        loop = asyncio.get_running_loop()
        consumer._member.origin = self._origin  # noqa: SLF001
        consumer._member.on_evicted = lambda: _tell(loop, self._evicted)  # noqa: SLF001
        self._taking = _Taking(consumer)
        self._pushing = _Pushing(consumer)
        self._call = call
        self._write_lock = asyncio.Lock()
        self._table = asyncio.Lock()
        self._busy = threading.Lock()
        self._writing = 0
        self._answering = False
        self._fetching: asyncio.Task[None] | None = None
        self._most = FIRST_MESSAGES
        self._tag_seen = -1
        self._left: list[Delivery] = []
        """Leased, and did not fit into the last response: the next begins with them, so that their order stays."""
        self._ending: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    async def run(self, first: pb.SubscribeRequest) -> None:
        """Serve until one side ends it; what the client has not finished then goes back."""
        service = self._call.service
        service.streams.add(self)
        client = {"interface": "grpc", "peer": self._origin.peer, "principal": self._origin.principal}
        tell_client(came=True, **client)
        orderly = False
        tasks: list[asyncio.Task[None]] = []
        try:
            group = self.consumer._group  # noqa: SLF001
            started = pb.Started(
                partitions=len(group.cursors), settings=to.group_settings_of(group.settings), credit=first.credit
            )
            if not first.credit and not first.HasField("fetch"):
                started.hint = NO_CREDIT
            await self._write(pb.SubscribeResponse(started=started))
            if service.is_draining:
                self.stop()
            reader = asyncio.create_task(self._read_along(first))
            pusher = asyncio.create_task(self._push_along())
            tasks = [reader, pusher]
            waited: list[asyncio.Future[Any]] = [*tasks, self._ending]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._ending.done() and (why := self._ending.result()) is not None:
                orderly = True
                raise why
            if self._ending.done() and not reader.done():
                orderly = True
                await self._finish(reader, pusher)
                raise ServerStopping("the server is stopping; what was not finished is ready for others")
            for task in tasks:
                if task.done():
                    task.result()
            # Only the reader ends without an error: the client has closed its side. Or it was cancelled, which looks the same at first, but
            # then nothing can be written any more.
            await self._stop_pushing(pusher)
            await asyncio.sleep(EOF_SECONDS)
            await self._write(pb.SubscribeResponse(closing=pb.Closing(reason="the client has closed its side")))
            orderly = True
        finally:
            service.streams.discard(self)
            tell_client(came=False, **client)
            tasks += [task for task in (self._fetching, self._announcing) if task is not None]
            for task in tasks:
                task.cancel()
                task.add_done_callback(_heard)
            service.releases.begin(self._close if orderly else self._lose)

    async def _finish(self, reader: asyncio.Task[None], pusher: asyncio.Task[None]) -> None:
        """Push no more, and let the client finish what it has. The listener cancels whoever takes too long."""
        await self._stop_pushing(pusher)
        await self._write(pb.SubscribeResponse(closing=pb.Closing(reason="the server is stopping")))
        service = self._call.service
        # A request that finishes the last message is still to be answered.
        while (self._answering or (self.in_flight and not service.is_stopping)) and not reader.done():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    async def _stop_pushing(self, pusher: asyncio.Task[None]) -> None:
        """Lease no more. What is handed out is written first, else its client could not finish it; and gRPC takes one write at a time."""
        self._take_credit_back()
        while self._writing and not pusher.done():  # noqa: ASYNC110 - it happens once
            await asyncio.sleep(LOOK_SECONDS)
        self._take_credit_back()
        pusher.cancel()
        if self._fetching is not None:
            self._fetching.cancel()

    # -- what the listener calls ------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """What its client holds and has not finished."""
        return 0 if self.consumer.closed else self.consumer.in_flight

    def _evicted(self) -> None:
        if not self._ending.done():
            self._ending.set_result(ConsumerEvicted(self.consumer.topic, self.consumer.group))

    def stop(self) -> None:
        """The server stops."""
        if not self._ending.done():
            self._ending.set_result(None)

    def look(self) -> None:
        """End if the token does not allow it any more; and what waits behind a client that does not read goes back, uncounted."""
        if self._left and self._tag_seen == self._next_tag:
            self._give_left_back()
        self._tag_seen = self._next_tag
        try:
            self._call.require("consume", self.consumer.topic)
        except PenstockError as error:
            if not self._ending.done():
                self._ending.set_result(error)

    def _close(self) -> None:
        with self._busy:
            self.close()

    def _lose(self) -> None:
        with self._busy:
            self.lose()

    # -- pushing ----------------------------------------------------------------------------------------------------

    async def _write(self, response: pb.SubscribeResponse) -> None:
        await self._write_bytes(response.SerializeToString())

    async def _write_bytes(self, data: bytes) -> None:
        async with self._write_lock:
            await self._call.write(data)

    def _announce(self, fields: dict[str, Any], _: object) -> None:
        """Tell the client what it did not ask for, when there is room."""
        response = pb.SubscribeResponse()
        if "recall" in fields:
            response.recall.messages = fields["recall"]
        else:
            response.revoked.tags.extend([pb.Tags(first=first, count=count) for first, count in fields["revoked"]])
        self._announcements.append(response)
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._write_announcements())
            self._announcing.add_done_callback(_heard)

    async def _write_announcements(self) -> None:
        while self._announcements:
            await self._write(self._announcements.pop(0))

    async def _push_along(self) -> None:
        while True:
            await self._has_credit.wait()
            found = await self._take(self._pushing, min(max(self._credit, 1), self._most), None)
            if found:
                # After leasing, which may wait for long: what is written counts from here on, and others look for room after it.
                await self._call.connection.until_room()
                await self._give_out(found, 0)

    async def _take(self, taking: AsyncConsumer, count: int, wait_s: float | None) -> list[Delivery]:
        left, self._left = [one for one in self._left if is_valid(one)], []
        if not left:
            return await taking.take(count, wait_s)
        self._left = left[count:]
        return left[:count]

    async def _give_out(self, found: list[Delivery], number: int) -> None:
        """
        Write what one response holds of *found*, with the *number* of the fetch that it answers; 0 pushes, and uses credit up.

        The rest is for the next response; without credit, or if the token does not allow it any more, it goes back.
        """
        self._writing += 1
        try:
            try:
                async with self._table:
                    self._call.require("consume", self.consumer.topic)
                    # Some or all of the credit may have been taken back meanwhile.
                    end = len(found) if number else min(self._credit, len(found))
                    response, left = self._hand(found[:end])
            except BaseException:
                _give_back(found)
                raise
            self._left = [*left, *found[end:], *self._left]
            response.deliveries.id = number
            handed = len(response.deliveries.messages)
            if number:
                self._fetching = None
            else:
                # Before it is written: while that waits, the client may take credit back and give new.
                self._credit -= handed
            if not self._credit:
                self._take_credit_back()
            data = response.SerializeToString()
            # A client that does not read keeps this waiting: only the bytes are kept, and what is leased.
            del response, left, found
            if number or handed:
                await self._write_bytes(data)
        finally:
            self._writing -= 1

    def _begin_fetch(self, request: pb.SubscribeRequest) -> None:
        if not request.id:
            raise BadArgument("fetch", "true", "needs an id, by which it is answered")
        if self._fetching is not None:
            raise UsageError("one fetch at a time: the last one is not answered yet")
        count = check_whole_number("max_messages", request.fetch.max_messages, 1, GET_MANY_MAX)
        wait_s = request.fetch.wait_ms / 1000 if request.fetch.HasField("wait_ms") else None
        self._fetching = asyncio.create_task(self._fetch(request.id, min(count, self._most), wait_s))
        self._fetching.add_done_callback(_heard)

    async def _fetch(self, number: int, count: int, wait_s: float | None) -> None:
        try:
            await self._give_out(await self._take(self._taking, count, wait_s), number)
        except Exception as error:  # noqa: BLE001 - it is the stream's
            if not self._ending.done():
                self._ending.set_result(error)

    def _hand(self, deliveries: Sequence[Delivery]) -> tuple[pb.SubscribeResponse, list[Delivery]]:
        """The response that hands out as many of *deliveries* as one response holds, at least one; and the rest."""
        bytes_max = self._call.service.settings.push_bytes_max
        response = pb.SubscribeResponse(deliveries=pb.Deliveries())
        size = 0
        for at, delivery in enumerate(deliveries):
            message, bytes_of_it = to.message_of(delivery)
            size += bytes_of_it
            if at and size > bytes_max:
                # The next time only as many are leased as fit.
                self._most = at
                return response, list(deliveries[at:])
            response.deliveries.messages.add(tag=self._next_tag, attempt=delivery.attempt, message=message)
            self._held[self._next_tag] = delivery
            self._next_tag += 1
        if len(self._held) > 2 * self.consumer.in_flight + 1_000:
            self._forget_expired()
        if len(deliveries) >= self._most and 2 * size <= bytes_max:
            self._most = min(2 * self._most, PUSH_MESSAGES_MAX)
        return response, []

    # -- settling ---------------------------------------------------------------------------------------------------

    async def _read_along(self, first: pb.SubscribeRequest) -> None:
        call, request = self._call, first
        while True:
            self._answering = True
            await self._handle(request)
            self._answering = False
            data = await call.read()
            if data is None:
                return
            request = parse(pb.SubscribeRequest, data)
            if request.HasField("start"):
                raise UsageError("only the first request of Subscribe has `start`")

    async def _handle(self, request: pb.SubscribeRequest) -> None:
        self._origin.heard = self._call.store._clock.monotonic()  # noqa: SLF001
        if request.durable and not request.id:
            raise BadArgument("durable", "true", "needs an id, by which it is answered")
        late = 0
        self.heard()
        if request.ack or request.nack or request.extend or request.give_back or request.recalled:
            async with self._table:
                self._check_tags(request)
                late = await asyncio.to_thread(self._settle, request)
        if request.drop_credit:
            self._take_credit_back()
        if request.credit:
            self._give_credit(request.credit)
        if request.HasField("fetch") and not self._ending.done():
            self._begin_fetch(request)
        if request.id:
            if request.durable:
                await asyncio.to_thread(self._call.store.flush)
            await self._write(pb.SubscribeResponse(settled=pb.Settled(id=request.id, late=late)))

    def _give_credit(self, messages: int) -> None:
        if self._credit + messages > GET_MANY_MAX:
            raise BadArgument("credit", shown(messages), f"with what is left it is over {GET_MANY_MAX:,}")
        if not self._ending.done():
            self._credit += messages
            self._has_credit.set()

    def _take_credit_back(self) -> None:
        """Nothing more is pushed, and what was leased to be pushed goes back."""
        self._credit = 0
        self._has_credit.clear()
        self._give_left_back()

    def _give_left_back(self) -> None:
        left, self._left = self._left, []
        _give_back(left)

    def _check_tags(self, request: pb.SubscribeRequest) -> None:
        """All tags of a request together are bounded, before any work is done for them."""
        named = sum(tags.count for tags in request.ack) + sum(tags.count for tags in request.give_back)
        named += sum(tags.count for one in request.nack for tags in one.tags)
        named += sum(tags.count for one in request.extend for tags in one.tags)
        if named > len(self._held) + TAGS_MORE_MAX:
            raise BadArgument("tags", shown(named), "the request names more deliveries than there are")

    def _settle(self, request: pb.SubscribeRequest) -> int:
        """Finish what *request* says; returns how many were not this consumer's any more. Waits for the disk."""
        with self._busy:
            late = self.ack(_pairs(request.ack))[0] if request.ack else 0
            for nack in request.nack:
                delay = nack.delay_ms / 1000 if nack.HasField("delay_ms") else None
                late += self.nack(_pairs(nack.tags), delay=delay, reason=nack.reason or None, reject=nack.reject)
            for extend in request.extend:
                late += self._extend(extend)
            if request.recalled:
                self.answer_recall(_pairs(request.give_back))
            elif request.give_back:
                self.give_back(_pairs(request.give_back))
            return late

    def _extend(self, extend: pb.Extend) -> int:
        seconds = extend.lease_ms / 1000 if extend.HasField("lease_ms") else None
        late = 0
        for tag in expand_tags(_pairs(extend.tags), len(self._held)):
            delivery = self.find(tag)
            try:
                if delivery is None:
                    late += 1
                else:
                    delivery.extend(seconds)
            except LeaseExpired:
                late += 1
        return late


def _pairs(tags: Iterable[pb.Tags]) -> list[list[int]]:
    return [[one.first, one.count] for one in tags]


def _give_back(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        with contextlib.suppress(PenstockError):
            delivery._lot.member.group.give_back(delivery)  # noqa: SLF001


def _heard(task: asyncio.Task[None]) -> None:
    """A task that ended while the stream did has nobody else to tell."""
    if not task.cancelled():
        task.exception()


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call *function* in the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(function)
