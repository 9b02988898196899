"""
A consumer of a group on a server, for asyncio.

`get` asks the server, which answers when there is a message. Iterating asks for more than one at a time, as `RemoteConsumer` does: the
server pushes ahead what the credit allows. When the last task stops iterating, and while it is paused, what was pushed ahead goes back.
"""

# ruff: noqa: SLF001 - the twin of RemoteConsumer, which it shares its state with

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self, cast

from penstock.aio.consumer import AsyncConsumer, AsyncDelivery, _plain
from penstock.arguments import check_seconds, check_wait, check_whole_number
from penstock.client.consumer import _seconds, ranges_of
from penstock.client.pending import ConnectionLost
from penstock.errors import BadArgument, Closed, LeaseExpired
from penstock.groups.dead_letters import reason_text
from penstock.store.consumer import GET_MANY_MAX
from penstock.wire.answers import whole
from penstock.wire.calls import Call
from penstock.wire.deliveries import decode_deliveries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType

    from penstock.aio.remote_calls import RemoteCalls
    from penstock.client.consumer import RemoteConsumer
    from penstock.client.delivery import RemoteDelivery
    from penstock.client.pending import Pending
    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer

_LOST = "the connection was lost"
PAUSE_SECONDS = 0.02
"""Between two looks at a connection that comes back, or gives up, by itself."""


class AsyncRemoteDelivery(AsyncDelivery):
    """A message that a server handed to an `AsyncRemoteConsumer`. See `AsyncDelivery`."""

    __slots__ = ("_consumer", "_finished")

    def __init__(self, delivery: RemoteDelivery, consumer: AsyncRemoteConsumer) -> None:
        super().__init__(cast("Delivery", delivery))  # it has the same face
        self._consumer = consumer
        self._finished = False

    async def ack(self, *, wait: bool = False) -> None:
        await self._consumer.ack(self, wait=wait)

    async def nack(self, *, delay: object = None, reason: object = None) -> None:
        await self._consumer.nack(self, delay=delay, reason=reason)

    async def reject(self, reason: object = None) -> None:
        await self._consumer.reject(self, reason)

    async def extend(self, seconds: object = None) -> None:
        await self._consumer.extend(self, seconds)

    async def __aenter__(self) -> Self:
        await self._consumer._begin_handling(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._consumer._end_handling(self, error)
        except LeaseExpired:
            # What the block raised matters more than a lease that has ended.
            if error is None:
                raise


class AsyncRemoteConsumer(AsyncConsumer):
    """Takes messages of a group on a server in tasks of one event loop. See `AsyncConsumer`; `in_flight` asks the server."""

    def __init__(self, consumer: RemoteConsumer, calls: RemoteCalls) -> None:
        self._consumer = cast("Consumer", consumer)  # it has the same face
        self._remote = consumer
        self._calls = calls
        self._iterating = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def _call(self, call: int, generation: int, **fields: Any) -> dict[str, Any]:
        """A call of one connection, which means nothing on another. Raises `ConnectionLost`."""
        self._check_open()
        given = {"consumer": self._remote._handle, **fields}
        try:
            return (await self._calls.ask(call, given, resend=False, lost=ConnectionLost(_LOST), generation=generation)).fields
        except BadArgument as error:
            raise self._remote.or_closed(error) from None

    def _tell(self, call: int, generation: int, **fields: Any) -> None:
        """The same for what needs no answer."""
        if not self._remote.closed:
            self._calls.tell(call, {"consumer": self._remote._handle, **fields}, generation)

    def _check_open(self) -> None:
        if self._remote.closed:
            raise Closed(f"the consumer of {self._remote.topic}")

    # -- taking -----------------------------------------------------------------------------------------------------

    async def get(self, timeout: object = None) -> AsyncDelivery | None:  # noqa: ASYNC109 - the same name as the plain twin's
        found = await self._take(1, timeout)
        return AsyncRemoteDelivery(found[0], self) if found else None

    async def get_many(self, count: int, timeout: object = None) -> list[AsyncDelivery]:  # noqa: ASYNC109
        check_whole_number("count", count, 1, GET_MANY_MAX)
        return [AsyncRemoteDelivery(delivery, self) for delivery in await self._take(count, timeout)]

    async def take(self, count: int, timeout: object) -> list[Delivery]:  # noqa: ASYNC109
        return cast("list[Delivery]", await self._take(count, timeout))

    async def _take(self, count: int, timeout: object) -> list[RemoteDelivery]:  # noqa: ASYNC109
        wait_s = check_wait("timeout", timeout)
        loop = asyncio.get_running_loop()
        end = None if wait_s is None else loop.time() + wait_s
        while True:
            if self._remote._ahead and time.monotonic() > self._remote._sure_until:
                await self._make_sure()
            found = self._remote._pop_ahead(count)
            if found:
                self._refill()
                return found
            self._check_open()
            left = None if end is None else max(0.0, end - loop.time())
            if self._remote._streams and left != 0:
                self._refill()  # what was in the buffer may have been taken back
                await self._wait_for_push(left)
                continue
            try:
                return await self._fetch(count, left)
            except ConnectionLost:
                if left == 0:
                    return []
                await asyncio.sleep(PAUSE_SECONDS)

    async def _make_sure(self) -> None:
        """See `RemoteConsumer._make_sure`."""
        remote = self._remote
        sent_s = time.monotonic()
        with remote._arrived:
            beat = [remote._handle, remote._first_waiting()]
        with contextlib.suppress(ConnectionLost):
            leases = (await self._call(Call.HEARTBEAT, remote._generation, consumers=[beat])).get("leases")
            remote.confirmed(sent_s, _seconds(leases[0]) if isinstance(leases, list) and leases else 0.0)

    async def _fetch(self, count: int, wait_s: float | None) -> list[RemoteDelivery]:
        handle, generation = self._remote._place()
        fields = {"consumer": handle, "count": count, "wait": wait_s}

        def unwanted(pending: Pending) -> None:
            if pending.frame is not None:
                delivered = decode_deliveries(pending.frame.fields.get("lots"), pending.frame.payload)
                self._tell(Call.RETURN, generation, tags=ranges_of([one.tag for one in delivered]))

        with self._remote.fetching(wait_s):
            try:
                frame = await self._calls.ask(
                    Call.FETCH, fields, resend=False, lost=ConnectionLost(_LOST), generation=generation, unwanted=unwanted
                )
            except BadArgument as error:
                raise self._remote.or_closed(error) from None
        return self._remote.decode(frame, generation)

    # -- pushing ----------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        loop = asyncio.get_running_loop()

        def on_news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._look)

        self._remote.on_news = on_news
        self._iterating += 1
        try:
            while True:
                try:
                    if not self._remote._streams and not self._remote.paused:
                        self._check_open()
                        self._refill(begin=True)
                    found = await self._take(1, None)
                except Closed:
                    return
                if found:
                    yield AsyncRemoteDelivery(found[0], self)
        finally:
            self._iterating -= 1
            if not self._iterating:
                self._stop_pushes()

    async def _wait_for_push(self, wait_s: float | None) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await arrived
        except asyncio.CancelledError:
            if arrived.done() and not arrived.cancelled():
                self._wake(1)  # a task that is cancelled as it is woken has not noticed: another one is woken in its place
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(arrived)

    def _look(self) -> None:
        """Something was pushed, or the connection is another one, or the consumer was closed."""
        if self._remote._streams and not self._remote.closed:
            self._wake(len(self._remote._ahead))
            return
        self._return_ahead()  # pushed before the server knew that nobody iterates any more
        self._wake(len(self._waiting))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            arrived = self._waiting.popleft()
            if not arrived.done():
                arrived.set_result(None)
                count -= 1

    def _refill(self, *, begin: bool = False) -> None:
        if begin or self._remote._streams:
            credit = self._remote._new_credit()
            if credit is not None:
                self._calls.tell(Call.CREDIT, *credit)

    def _stop_pushes(self) -> None:
        remote = self._remote
        with remote._arrived:
            if not remote._streams:
                return
            remote._streams = False
            remote._credit = 0
            generation = remote._generation
        self._tell(Call.CREDIT, generation, messages=0)
        self._look()

    def _return_ahead(self) -> None:
        with self._remote._arrived:
            ahead = list(self._remote._ahead)
            self._remote._ahead.clear()
        if ahead:
            self._tell(Call.RETURN, ahead[0].generation, tags=ranges_of([one.tag for one in ahead]))

    # -- finishing --------------------------------------------------------------------------------------------------

    async def ack(self, messages: AsyncDelivery | Sequence[AsyncDelivery], *, wait: bool = False) -> None:
        await self._finish(Call.ACK, messages, wait=bool(wait))

    async def nack(
        self, messages: AsyncDelivery | Sequence[AsyncDelivery], *, delay: object = None, reason: object = None
    ) -> None:
        seconds = None if delay is None else check_seconds("delay", delay, 0, 1e9)
        await self._finish(Call.NACK, messages, delay=seconds, reason=reason_text(reason))

    async def reject(self, message: AsyncDelivery, reason: object = None) -> None:
        await self._finish(Call.NACK, message, reason=reason_text(reason), reject=True)

    async def extend(self, message: AsyncDelivery, seconds: object = None) -> None:
        given = None if seconds is None else check_seconds("seconds", seconds, 0, 1e9)
        await self._keep(message, seconds=given)

    async def _finish(self, call: int, messages: AsyncDelivery | Sequence[AsyncDelivery], **fields: Any) -> None:
        chosen = self._remote._own(_plain(messages))
        generation = self._remote._generation
        ours = [one for one in chosen if one.generation == generation]
        late = len(chosen) - len(ours)
        if ours:
            try:
                tags = ranges_of([one.tag for one in ours])
                late += whole(await self._call(call, generation, tags=tags, **fields), "late")
            except (ConnectionLost, Closed, LeaseExpired):
                # They went back to their group, with the connection or by themselves.
                late = len(chosen)
        if late:
            raise LeaseExpired(self._remote.topic, chosen[0].partition, chosen[0].offset, late)
        for message in [messages] if isinstance(messages, AsyncDelivery) else messages:
            cast("AsyncRemoteDelivery", message)._finished = True

    async def _keep(self, message: AsyncDelivery, **fields: Any) -> None:
        (plain,) = self._remote._own(_plain(message))
        try:
            late = bool(whole(await self._call(Call.EXTEND, plain.generation, tag=plain.tag, **fields), "late"))
        except (ConnectionLost, Closed):
            late = True
        if late:
            raise LeaseExpired(self._remote.topic, plain.partition, plain.offset)

    async def _begin_handling(self, message: AsyncRemoteDelivery) -> None:
        """A handler runs: see `RemoteConsumer.begin`."""
        self._remote.begin_handler()
        try:
            await self._keep(message, begins=True)
        except BaseException as error:
            self._remote.end_handler()
            if isinstance(error, asyncio.CancelledError):
                self._hand_back(message)
            raise

    async def _end_handling(self, message: AsyncRemoteDelivery, error: BaseException | None) -> None:
        """The handler has ended: see `RemoteConsumer.end`. Raises `LeaseExpired`."""
        tag = message.tag
        try:
            if message._finished:
                return
            if error is None:
                await self._finish(Call.ACK, message, ends=tag)
            elif isinstance(error, Exception):
                await self._finish(Call.NACK, message, reason=reason_text(error), ends=tag)
            else:
                # A cancelled task is no failure; it should not have to wait either.
                self._hand_back(message)
        finally:
            self._remote.end_handler()

    def _hand_back(self, message: AsyncRemoteDelivery) -> None:
        self._tell(Call.RETURN, message.generation, tags=[[message.tag, 1]], ends=message.tag)

    async def commit(self, position: int | AsyncDelivery, partition: int | None = None) -> None:
        plain = position._delivery if isinstance(position, AsyncDelivery) else position
        fields = self._remote._position(plain, partition)  # type: ignore[arg-type]  # it checks
        while True:
            try:
                await self._call(Call.COMMIT_POSITION, self._remote._generation, **fields)
            except ConnectionLost:  # done twice is done once
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def flush(self) -> None:
        await self._calls.ask(Call.FLUSH, {})

    # -- flow -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._set_paused(paused=True)
        self._stop_pushes()

    def resume(self) -> None:
        self._set_paused(paused=False)

    def _set_paused(self, *, paused: bool) -> None:
        # Told again when it subscribes again.
        self._remote._paused = paused
        self._tell(Call.PAUSE, self._remote._generation, paused=paused)

    async def close(self) -> None:
        remote = self._remote
        if not remote._begin_close():
            return
        handle, generation = remote._place()
        try:
            if self._calls.connection.has(generation):
                await self._calls.ask(
                    Call.UNSUBSCRIBE, {"consumer": handle}, resend=False, lost=ConnectionLost(_LOST), generation=generation
                )
        except (ConnectionLost, Closed, BadArgument):
            pass  # it is gone
        finally:
            remote._end_close()
