"""A producer for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import ProducerFull
from penstock.store.future import CALLBACKS
from penstock.store.producer import CALLBACK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.store.future import Future
    from penstock.store.producer import Producer
    from penstock.topics.receipt import Receipt


class SentFuture(asyncio.Future["Receipt"]):
    """The promise of a receipt. Awaiting it sends at once what still lingers."""

    sent: Future | None = None

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self.done() and self.sent is not None:
            self.sent.send_now()
        return (yield from super().__await__())


class AsyncProducer:
    """Publishes to one topic in batches. Made by `AsyncStore.producer`."""

    def __init__(self, producer: Producer, *, wait_when_full: bool) -> None:
        self._producer = producer
        self._wait_when_full = wait_when_full

    async def send(self, value: bytes | None, **options: Any) -> SentFuture:
        """
        Take one message; returns the promise of its receipt, which may be awaited.

        While the producer holds as many as it may, this waits, unless it was made with ``when_full="raise"``.
        """
        loop = asyncio.get_running_loop()
        promise = SentFuture(loop=loop)

        def settle(future: Future) -> None:
            if promise.done():
                return
            error = future.exception()
            if error is None:
                promise.set_result(future.result())
            else:
                promise.set_exception(error)

        def done(future: Future) -> None:
            try:
                loop.call_soon_threadsafe(settle, future)
            except RuntimeError:
                return  # the loop has ended

        while True:
            try:
                promise.sent = self._producer.send(value, on_done=done, **options)
            except ProducerFull:
                if not self._wait_when_full:
                    raise
                await self.flush()
                continue
            return promise

    async def flush(self) -> None:
        """Commit all that was sent; the promises are done then."""
        await asyncio.to_thread(self._flush)

    def _flush(self) -> None:
        self._producer.flush()
        # Another thread tells the promises: without this the last of them could come a moment after this returns.
        CALLBACKS.drain(CALLBACK_SECONDS)

    @property
    def pending(self) -> int:
        """Messages that are not committed yet."""
        return self._producer.pending

    async def close(self) -> None:
        """Commit what it holds and take no more."""
        await asyncio.to_thread(self._producer.close)

    def close_now(self) -> None:
        """The same, in the calling thread."""
        self._producer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
