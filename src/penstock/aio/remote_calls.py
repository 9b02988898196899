"""
Calls to a server from the tasks of an event loop.

The loop itself sends a call where that waits for nothing, and the answer wakes the task: no thread waits for it. While the connection is
lost, and when the socket takes no more, one thread of the store sends, in the order of the calls, and the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.aio.opening import Opened, Opening
from penstock.client.pending import ConnectionLost
from penstock.errors import Closed
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from penstock.client.connection import Connection
    from penstock.client.pending import Pending
    from penstock.errors import PenstockError
    from penstock.files import Buffer
    from penstock.wire.frame import Frame


class RemoteCalls:
    """Makes the calls of one store."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sender: ThreadPoolExecutor | None = None
        self._last: Future[Pending] | None = None

    async def ask(
        self, call: int, fields: dict[str, Any], payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, generation: int | None = None, always: Callable[[Pending], None] | None = None,
        unwanted: Callable[[Pending], None] | None = None,
    ) -> Frame:  # fmt: skip
        """
        Make a call and sleep until its answer is there; raises its error. See `Connection.begin`.

        If the task is cancelled the call goes on, and *unwanted* gets its answer: in the loop, or if that has ended in who reads.
        *always* gets the answer in any case, in the thread that reads.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Pending] = loop.create_future()

        def finish(pending: Pending) -> None:
            if not answered.done():
                answered.set_result(pending)
            elif unwanted is not None:
                unwanted(pending)

        def wake(pending: Pending) -> None:
            if always is not None:
                always(pending)
            try:
                loop.call_soon_threadsafe(finish, pending)
            except RuntimeError:  # the loop has ended
                if unwanted is not None:
                    unwanted(pending)

        def refuse(error: BaseException) -> None:
            if not answered.done():
                answered.set_exception(error)

        def begun_later(begun: Future[Pending]) -> None:
            error = begun.exception()
            if error is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(refuse, error)

        begun = self._begin(call, fields, payload, resend=resend, lost=lost, generation=generation, callback=wake)
        if isinstance(begun, Future):
            begun.add_done_callback(begun_later)
        try:
            pending = await answered
        except asyncio.CancelledError:
            if call == Call.FETCH and answered.cancelled():
                self._cancel(begun)
            elif unwanted is not None and not answered.cancelled() and answered.exception() is None:
                unwanted(answered.result())  # it came at the same moment
            raise
        return pending.result()

    def tell(
        self, call: int, fields: dict[str, Any], generation: int, callback: Callable[[Pending], None] | None = None
    ) -> None:  # fmt: skip
        """Make a call of one connection, and do not wait for the answer. If that connection is gone there is nobody to tell."""
        with contextlib.suppress(Closed):
            self._begin(call, fields, (), resend=False, lost=ConnectionLost("lost"), generation=generation, callback=callback)

    def _begin(self, call: int, fields: dict[str, Any], payload: Sequence[Buffer], **options: Any) -> Pending | Future[Pending]:
        if self._last is None or self._last.done():
            pending = self.connection.begin_now(call, fields, payload, **options)
            if pending is not None:
                return pending
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, "penstock-sender")
        self._last = self._sender.submit(self.connection.begin, call, fields, payload, **options)
        return self._last

    def _cancel(self, begun: Pending | Future[Pending]) -> None:
        """Let the server wait no longer for the sake of a call."""

        def cancel(pending: Pending) -> None:
            generation = pending.generation
            assert generation is not None

            def reached(ping: Pending) -> None:
                if ping.error is None and not pending.done:
                    self.tell(Call.CANCEL, {"correlation": pending.correlation}, generation)

            # A server cancels only what it has begun to do; that it has, the answer to a later call says.
            self.tell(Call.PING, {}, generation, reached)

        if isinstance(begun, Future):
            begun.add_done_callback(lambda done: cancel(done.result()) if done.exception() is None else None)
        else:
            cancel(begun)

    def close(self) -> None:
        """The connection was closed: no more is sent."""
        if self._sender is not None:
            self._sender.shutdown(wait=False)


class AskedOpening(Opening[Opened]):
    """The promise of something that is opened by calls, and not in a thread."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, Opened]]) -> None:
        self._ask = ask
        self._opened = None

    async def _open(self) -> Opened:
        return await self._ask()
