"""A producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import PenstockError, ProducerFull
from penstock.store.future import Promise

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.store.future import Future
    from penstock.store.producer import Producer
    from penstock.topics.receipt import Receipt


class SentFuture(asyncio.Future["Receipt"], Promise):
    """The promise of a receipt. Awaiting it sends at once what still lingers."""

    sent: Future | None = None

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self.done() and self.sent is not None:
            self.sent.send_now()
        return (yield from super().__await__())

    @staticmethod
    def tell(promises: list[tuple[SentFuture, Future]]) -> None:
        """Let their loops settle them, one turn for all: waking a loop costs more than settling."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[SentFuture, Future]]] = {}
        for entry in promises:
            by_loop.setdefault(entry[0].get_loop(), []).append(entry)
        for loop, its_own in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, its_own)


def _settle(promises: list[tuple[SentFuture, Future]]) -> None:
    for promise, future in promises:
        if not promise.done():
            outcome = future.outcome
            if isinstance(outcome, PenstockError):
                promise.set_exception(outcome)
            else:
                promise.set_result(outcome)


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
        promise = SentFuture(loop=asyncio.get_running_loop())
        while True:
            try:
                promise.sent = self._producer.send(value, on_done=promise, **options)
            except ProducerFull:
                if not self._wait_when_full:
                    raise
                await self.flush()
                continue
            return promise

    async def flush(self) -> None:
        """Commit all that was sent; the promises are done then."""
        # They are told before those who flush are woken.
        await asyncio.to_thread(self._producer.flush)

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
