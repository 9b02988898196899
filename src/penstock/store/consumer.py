"""A consumer: one member of a group, as its user sees it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

from penstock import threads as threading
from penstock.arguments import check_wait, check_whole_number, shown
from penstock.errors import BadArgument, Closed
from penstock.groups.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.groups.delivery import Lot
    from penstock.groups.group import Group
    from penstock.groups.member import Member
    from penstock.groups.registry import Groups

GET_MANY_MAX = 1_000_000


class LoopWaiter:
    """Wakes a task of an event loop from any thread."""

    __slots__ = ("_event", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        self._loop = loop
        self._event = event

    def release(self) -> bool:
        """Wake the task up; False if its loop has ended."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return False
        return True


class Consumer:
    """
    Takes messages of a group. Made by `Store.subscribe`. Safe to use from many threads: each message goes to one of them.

    Close it, or use it as a context manager: what it holds goes back to the group at once, uncounted. Iterating waits for messages
    and ends when the consumer is closed.
    """

    asks_a_server = False

    def __init__(self, group: Group, member: Member, groups: Groups, forget: Callable[[Consumer], None]) -> None:
        self._group = group
        self._member = member
        self._groups = groups
        self._forget = forget

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return self._group.topic

    @property
    def group(self) -> str:
        """The group that it belongs to."""
        return self._group.name

    @property
    def ordered(self) -> bool:
        """Whether its group gives each partition to one consumer at a time."""
        return self._group.ordered

    # -- taking -----------------------------------------------------------------------------------------------------

    def get(self, timeout: object = None) -> Delivery | None:
        """
        The next message; None if none came within *timeout* seconds (None: wait for ever, 0: do not wait).

        It must be finished within the group's lease, by `ack` or `with message`, or it is delivered again.

        Raises:
            Closed: the consumer was closed.
            OffsetOutOfRange: retention took what comes next, and the group's `reset` is ``fail``.
        """
        wait_s = None if timeout is None else check_wait("timeout", timeout)
        found = self._group.take(self._member, 1)
        if not found:
            if wait_s == 0 and not self._member.passing:
                return None
            found = self._wait(1, wait_s)
        return found[0] if found else None

    def get_many(self, count: int, timeout: object = None) -> list[Delivery]:
        """Up to *count* messages: those that are there, and if there is none, the first that come within *timeout* seconds."""
        check_whole_number("count", count, 1, GET_MANY_MAX)
        wait_s = check_wait("timeout", timeout)
        found = self._group.take(self._member, count)
        if not found:
            if wait_s == 0 and not self._member.passing:
                return found
            found = self._wait(count, wait_s)
        return found

    def _wait(self, count: int, wait_s: float | None) -> list[Delivery]:
        """Sleep until there is something to take; never polls."""
        group, member = self._group, self._member
        end = None if wait_s is None else threading.monotonic() + wait_s
        while True:
            waiter = threading.Lock()
            waiter.acquire()
            woken = False
            try:
                group.add_waiter(waiter, member)
                found = group.take(member, count)
                if found:
                    return found
                if member.passing:
                    continue  # also where there is no time to wait: what is there is given
                left = None if end is None else end - threading.monotonic()
                if left is not None and left <= 0:
                    return []
                until_event = group.wait_seconds()
                if until_event is not None and (left is None or until_event < left):
                    left = max(until_event, 0.0005)
                woken = waiter.acquire(timeout=-1 if left is None else left)
            finally:
                group.remove_waiter(waiter, member, woken=woken)

    async def take_in_loop(self, count: int) -> list[Delivery]:
        """Up to *count* messages for the tasks of an event loop, which goes on meanwhile; may be empty. Raises like `get`."""
        loop, group, member = asyncio.get_running_loop(), self._group, self._member
        arrived = asyncio.Event()
        waiter = LoopWaiter(loop, arrived)
        woken = False
        try:
            group.add_waiter(waiter, member)
            if group.may_wait:
                found = await loop.run_in_executor(None, group.take, member, count)
            else:
                found = group.take(member, count)
            if member.passing:
                await asyncio.sleep(0)  # others first, then it looks further
            elif not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(group.wait_seconds()):
                        await arrived.wait()
                        woken = True
        finally:
            group.remove_waiter(waiter, member, woken=woken)
        return found

    def __iter__(self) -> Iterator[Delivery]:
        while True:
            try:
                message = self.get()
            except Closed:
                return
            if message is not None:
                yield message

    # -- finishing --------------------------------------------------------------------------------------------------

    def ack(self, messages: Delivery | Sequence[Delivery], *, wait: bool = False) -> None:
        """
        One message, or several, are done. Durable within a few milliseconds; with *wait* when this returns.

        Raises `LeaseExpired`: some are not this consumer's any more; those changed nothing, the others are done.
        """
        chosen = self._own(messages)
        if chosen:
            self._group.ack(chosen, wait=wait)

    def nack(self, messages: Delivery | Sequence[Delivery], *, delay: object = None, reason: object = None) -> None:
        """They failed: deliver them again after *delay* seconds (default: growing with each failure), or dead-letter them."""
        chosen = self._own(messages)
        if chosen:
            self._group.nack(chosen, delay=delay, reason=reason)

    def reject(self, message: Delivery, reason: object = None) -> None:
        """It can never be handled: dead-letter it now."""
        self._group.nack(self._own(message), reason=reason, reject=True)

    def extend(self, message: Delivery, seconds: object = None) -> None:
        """Keep *message* for *seconds* from now on (default: the group's lease)."""
        self._group.extend(self._own(message)[0], seconds)

    def _own(self, messages: Delivery | Sequence[Delivery]) -> Sequence[Delivery]:
        if isinstance(messages, Delivery):
            messages = [messages]
        elif not isinstance(messages, (list, tuple)):
            raise BadArgument("message", shown(messages), "must be a message that this group delivered, or a list of them")
        own: Lot | None = None
        for message in messages:
            if type(message) is Delivery and message._lot is own:  # noqa: SLF001
                continue  # of the same lot as the one before, as most are
            if not isinstance(message, Delivery) or message._lot.member.group is not self._group:  # noqa: SLF001
                raise BadArgument("message", shown(message), f"was not delivered by group {self.group!r} of {self.topic!r}")
            own = message._lot  # noqa: SLF001
        return messages

    def commit(self, position: int | Delivery, partition: int | None = None) -> None:
        """
        All messages of a partition below the offset *position* are done; for a message: all up to it, and itself.

        Durable when it returns. It never goes back: that is what `Store.seek` is for. Raises `OffsetOutOfRange`.
        """
        if isinstance(position, Delivery):
            self._own(position)
            number, offset = position.partition, position.offset + 1
        else:
            offset = check_whole_number("position", position, 0, (1 << 63) - 1)
            partitions = len(self._group.cursors)
            if partition is None and partitions > 1:
                raise BadArgument("partition", "None", f"must be given: the topic has {partitions} partitions")
            number = check_whole_number("partition", 0 if partition is None else partition, 0, partitions - 1)
        self._group.commit(number, offset)
        self._groups.flush()

    def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        self._groups.flush()

    # -- flow -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out no more messages until `resume`. Those that were handed out stay with their handlers."""
        with self._group.lock:
            self._member.paused = True

    def resume(self) -> None:
        """Hand out messages again."""
        with self._group.lock:
            self._member.paused = False
        self._group.wake_all()

    @property
    def paused(self) -> bool:
        """Whether it was paused."""
        return self._member.paused

    @property
    def in_flight(self) -> int:
        """Messages that it was handed and that are not finished."""
        return self._member.in_flight

    def backlog(self) -> tuple[int, int]:
        """How many messages its group has not finished, and how many of these are with consumers, this one or others."""
        if self._member.closed:
            raise Closed(f"the consumer of {self.topic}")
        with self._group.lock:
            unfinished = self._group.lag()
            return unfinished, sum(member.in_flight for member in self._group.members)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._member.closed

    def close(self) -> None:
        """Give back what is not finished, and make durable what is. Closing twice does nothing."""
        if self._member.closed:
            self._forget(self)  # it may have been closed with its group, when that was deleted
            return
        self._group.leave(self._member)
        self._forget(self)
        self._groups.flush()

    def forget(self) -> None:
        """In a forked child: this consumer is the parent's."""
        self._member.closed = True
        self._member.hand.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer of {self.topic} in {self.group}{', closed' if self.closed else ''}>"
