"""A transaction for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from penstock.aio.consumer import AsyncDelivery

if TYPE_CHECKING:
    from penstock.store.transaction import Transaction
    from penstock.topics.receipt import Receipt


class AsyncTransaction:
    """See `penstock.Transaction`; gathering is plain, committing is awaited."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def publish(self, topic: str, value: object, **options: Any) -> None:
        """Publish a message when the transaction commits."""
        self._transaction.publish(topic, value, **options)

    def publish_many(self, topic: str, values: object, **options: Any) -> None:
        """Publish messages when the transaction commits."""
        self._transaction.publish_many(topic, values, **options)

    def ack(self, message: AsyncDelivery) -> None:
        """Finish *message* when the transaction commits."""
        self._transaction.ack(message._delivery if isinstance(message, AsyncDelivery) else message)  # noqa: SLF001

    async def commit(self) -> list[Receipt]:
        """Make everything durable and visible at once."""
        return await asyncio.to_thread(self._transaction.commit)

    @property
    def receipts(self) -> list[Receipt]:
        """The places of its messages, after the commit."""
        return self._transaction.receipts

    def abort(self) -> None:
        """Drop everything."""
        self._transaction.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.abort()
        elif not self._transaction.ended:
            await self.commit()
