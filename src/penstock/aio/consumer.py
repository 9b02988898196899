"""A consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from penstock.aio.waiting import finished_or_undone
from penstock.arguments import check_wait, check_whole_number
from penstock.errors import Closed, LeaseExpired
from penstock.store.consumer import GET_MANY_MAX, LoopWaiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType

    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer


class AsyncDelivery:
    """A message that was handed to an `AsyncConsumer`; it has the fields of `penstock.Delivery`, and awaitable ways to finish it."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    async def ack(self, *, wait: bool = False) -> None:
        """It is done. Raises `LeaseExpired`."""
        self._delivery.ack()
        if wait:
            await asyncio.to_thread(self._delivery._lot.member.group.flush)  # noqa: SLF001

    async def nack(self, *, delay: object = None, reason: object = None) -> None:
        """It failed. Raises `LeaseExpired`."""
        self._delivery.nack(delay=delay, reason=reason)

    async def reject(self, reason: object = None) -> None:
        """It can never be handled. Raises `LeaseExpired`."""
        self._delivery.reject(reason)

    async def extend(self, seconds: object = None) -> None:
        """Keep it longer. Raises `LeaseExpired`."""
        self._delivery.extend(seconds)

    async def __aenter__(self) -> Self:
        self._delivery.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A cancelled task is no failure: CancelledError is no Exception, so the message goes back uncounted.
        self._delivery.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return repr(self._delivery)


class AsyncConsumer:
    """Takes messages of a group in tasks of one event loop. Made by `AsyncStore.subscribe`."""

    _pushed = False
    """Whether what it takes is pushed to a client that did not ask for it now; see `Group.take`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._group = consumer._group  # noqa: SLF001
        self._member = consumer._member  # noqa: SLF001

    @property
    def sync(self) -> Consumer:
        """The plain consumer below."""
        return self._consumer

    async def get(self, timeout: object = None) -> AsyncDelivery | None:  # noqa: ASYNC109 - the same name as the plain twin's
        """The next message; None if none came within *timeout* seconds."""
        found = await self.take(1, timeout)
        return AsyncDelivery(found[0]) if found else None

    async def get_many(self, count: int, timeout: object = None) -> list[AsyncDelivery]:  # noqa: ASYNC109
        """Up to *count* messages: those that are there, and if there is none, the first that come within *timeout* seconds."""
        check_whole_number("count", count, 1, GET_MANY_MAX)
        return [AsyncDelivery(delivery) for delivery in await self.take(count, timeout)]

    async def take(self, count: int, timeout: object) -> list[Delivery]:  # noqa: ASYNC109
        """The same as plain deliveries."""
        wait_s = check_wait("timeout", timeout)
        found = await self._take_now(count)
        if found or (wait_s == 0 and not self._member.passing):
            return found
        loop = asyncio.get_running_loop()
        end = None if wait_s is None else loop.time() + wait_s
        arrived = asyncio.Event()
        waiter = LoopWaiter(loop, arrived)
        while True:
            arrived.clear()
            woken = False
            self._group.add_waiter(waiter, self._member)
            try:
                found = await self._take_now(count)
                if found:
                    return found
                if self._member.passing:
                    await asyncio.sleep(0)  # others first, then it looks further
                    continue
                left = None if end is None else end - loop.time()
                if left is not None and left <= 0:
                    return []
                until_event = self._group.wait_seconds()
                if until_event is not None and (left is None or until_event < left):
                    left = max(until_event, 0.0005)
                # Not wait_for, which in Python 3.11 may swallow a cancellation that comes with the wake.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await arrived.wait()
                        woken = True
            finally:
                # A task that is cancelled as it is woken has not noticed: another one is woken in its place.
                self._group.remove_waiter(waiter, self._member, woken=woken)

    async def _take_now(self, count: int) -> list[Delivery]:
        if self._group.may_wait:
            # After a crash what is handed out is noted durably before: that waits for the disk.
            return await finished_or_undone(lambda: self._group.take(self._member, count, pushed=self._pushed), self._give_back)
        cold = self._group.cold_read(self._member)
        if cold is not None:
            await asyncio.to_thread(cold)
        return self._group.take(self._member, count, pushed=self._pushed)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        self._group.give_back_all(reversed(deliveries))

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while True:
            try:
                message = await self.get()
            except Closed:
                return
            if message is not None:
                yield message

    async def ack(self, messages: AsyncDelivery | Sequence[AsyncDelivery], *, wait: bool = False) -> None:
        """They are done. Raises `LeaseExpired`."""
        late: LeaseExpired | None = None
        try:
            self._consumer.ack(_plain(messages))
        except LeaseExpired as error:
            late = error
        if wait:
            await self.flush()
        if late is not None:
            raise late

    async def nack(
        self, messages: AsyncDelivery | Sequence[AsyncDelivery], *, delay: object = None, reason: object = None
    ) -> None:
        """They failed. Raises `LeaseExpired`."""
        self._consumer.nack(_plain(messages), delay=delay, reason=reason)

    async def reject(self, message: AsyncDelivery, reason: object = None) -> None:
        """It can never be handled: dead-letter it now. Raises `LeaseExpired`."""
        self._consumer.reject(_plain(message), reason)

    async def extend(self, message: AsyncDelivery, seconds: object = None) -> None:
        """Keep *message* longer. Raises `LeaseExpired`."""
        self._consumer.extend(_plain(message), seconds)

    async def commit(self, position: int | AsyncDelivery, partition: int | None = None) -> None:
        """Everything below is done; durable when it returns."""
        plain = position._delivery if isinstance(position, AsyncDelivery) else position  # noqa: SLF001
        await asyncio.to_thread(self._consumer.commit, plain, partition)

    async def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        await asyncio.to_thread(self._consumer.flush)

    def pause(self) -> None:
        """Hand out no more messages until `resume`."""
        self._consumer.pause()

    def resume(self) -> None:
        """Hand out messages again."""
        self._consumer.resume()

    @property
    def paused(self) -> bool:
        """Whether it was paused."""
        return self._consumer.paused

    @property
    def in_flight(self) -> int:
        """Messages that it was handed and that are not finished."""
        return self._consumer.in_flight

    async def backlog(self) -> tuple[int, int]:
        """How many messages its group has not finished, and how many of these are with consumers, this one or others."""
        return await asyncio.to_thread(self._consumer.backlog)

    async def close(self) -> None:
        """Give back what is not finished, and make durable what is."""
        await asyncio.to_thread(self._consumer.close)

    def close_now(self) -> None:
        """The same, in the calling thread."""
        self._consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _plain(messages: AsyncDelivery | Sequence[AsyncDelivery]) -> Any:
    if isinstance(messages, AsyncDelivery):
        return messages._delivery  # noqa: SLF001
    if not isinstance(messages, (list, tuple)):
        return messages  # the plain consumer says what is wrong with it
    return [message._delivery if isinstance(message, AsyncDelivery) else message for message in messages]  # noqa: SLF001
