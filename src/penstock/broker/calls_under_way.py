"""
The calls of one connection that are under way: how many, and whether more may be read.

Calls that wait for messages are counted apart: only other calls may bring what they wait for, so they must not keep those out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.broker.memory_budget import Account
    from penstock.broker.replies import Answer, Replies
    from penstock.wire.frame import Frame

OUTSTANDING_MAX = 1_000
PUBLISHING_BYTES_MAX = 64 * 1024 * 1024
"""Calls, and bytes of publishes, of one connection that may be under way; more wait in its socket."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""What one call may read."""
WAITING_MAX = 10_000
LARGE_ANSWER_BYTES = 64 * 1024
"""An answer with a longer payload is sent when the connection has room for it."""
LARGE_ANSWERS_MAX = 4
"""What one connection may have open."""


class _AnsweredError(Exception):
    """The call was answered already."""


class CallsUnderWay:
    """Calls that have begun and are not answered. All methods run in the event loop."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self.account: Account | None = None
        """Counts the bytes of what is under way, if anybody does."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        self._large_answers = asyncio.Semaphore(LARGE_ANSWERS_MAX)
        self._publishing = 0
        self._publishing_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called whenever a call has ended, or only waits from now on, so that more may be read."""

    @property
    def outstanding(self) -> int:
        """Calls that run; those that wait for messages do not count."""
        return len(self._tasks) - len(self._waiting) + self._publishing

    @property
    def is_full(self) -> bool:
        """Whether no more calls should be read for now."""
        return self.outstanding > OUTSTANDING_MAX or self._publishing_bytes > PUBLISHING_BYTES_MAX

    @property
    def has_room(self) -> bool:
        """Whether reading may go on."""
        return self.outstanding <= OUTSTANDING_MAX // 2 and self._publishing_bytes <= PUBLISHING_BYTES_MAX // 2

    def check_new(self, frame: Frame) -> None:
        """Raise `UsageError` if a call with this number still runs."""
        if frame.correlation in self._tasks:
            raise UsageError(f"correlation {frame.correlation} belongs to a call that still runs")

    def begin(self, frame: Frame, work: Coroutine[Any, Any, Answer]) -> None:
        """Run *work*, and answer with what it returns or raises."""
        task = asyncio.get_running_loop().create_task(self._run(frame, work))
        self._tasks[frame.correlation] = task
        size = len(frame.payload)
        if size and self.account is not None:
            self.account.begin(size)

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.pop(frame.correlation, None)
            if size and self.account is not None:
                self.account.end(size)
            self.on_room()

        task.add_done_callback(done)

    async def _run(self, frame: Frame, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            fields, payload = await work
        except _AnsweredError:
            pass
        except asyncio.CancelledError:
            self._replies.refuse(frame, Unavailable("the call was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end other clients' sessions
            self._replies.refuse(frame, error)
        else:
            if sum(map(len, payload)) > LARGE_ANSWER_BYTES:
                await self._until_writable()
            self._replies.answer(frame, fields, payload)

    async def _until_writable(self) -> None:
        """Wait for room for a large answer: of several that wait for it each looks again when another one has taken it."""
        while not self._replies.writable.is_set() and not self._replies.closed:
            await self._replies.writable.wait()

    async def when_writable(self, later: Callable[[Frame], Answer], frame: Frame) -> Answer:
        """A large answer is made when the connection has room for it."""
        async with self._large_answers:
            await self._until_writable()
            # From here on it counts: others look for room after it.
            wanted = frame.fields.get("bytes")
            size = max(LARGE_ANSWER_BYTES, min(wanted, READ_BYTES_MAX)) if type(wanted) is int else LARGE_ANSWER_BYTES
            if self.account is not None:
                self.account.begin(size)
            try:
                answer = await asyncio.to_thread(later, frame)
                self._replies.answer(frame, *answer)
            finally:
                if self.account is not None:
                    self.account.end(size)
        raise _AnsweredError

    def begin_publish(self, size: int) -> None:
        """A publish of *size* bytes has begun, which is no task."""
        self._publishing += 1
        self._publishing_bytes += size
        if self.account is not None:
            self.account.begin(size)

    def end_publish(self, size: int) -> None:
        """It has ended, either way."""
        self._publishing -= 1
        self._publishing_bytes -= size
        if self.account is not None:
            self.account.end(size)
        self.on_room()

    def begin_wait(self, frame: Frame) -> None:
        """The call waits for messages from now on, until `end_wait`. Raises `Unavailable` if too many do."""
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX:,} calls of this connection wait for messages already")
        self._waiting.add(frame.correlation)
        self.on_room()

    def end_wait(self, frame: Frame) -> None:
        """The call waits no longer."""
        self._waiting.discard(frame.correlation)

    def cancel(self, frame: Frame) -> Answer:
        """The client asks to end a call that waits; others have begun to change something."""
        correlation = frame.fields.get("correlation")
        if correlation in self._waiting:
            self._cancel(correlation)
        return {}, []

    def end_all(self) -> None:
        """End all calls: nobody is there for their answers."""
        for task in list(self._tasks.values()):
            task.cancel()

    def _cancel(self, correlation: int) -> None:
        task = self._tasks.get(correlation)
        if task is not None:
            task.cancel()
