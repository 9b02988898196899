"""A transaction on a server, for asyncio."""

# ruff: noqa: SLF001 - the twin of RemoteTransaction, which it shares its state with

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.aio.transaction import AsyncTransaction
from penstock.client.pending import ConnectionLost
from penstock.errors import LeaseExpired
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from penstock.aio.consumer import AsyncDelivery
    from penstock.aio.remote_calls import RemoteCalls
    from penstock.aio.remote_consumer import AsyncRemoteDelivery
    from penstock.client.transaction import RemoteTransaction
    from penstock.store.transaction import Transaction
    from penstock.topics.receipt import Receipt


class AsyncRemoteTransaction(AsyncTransaction):
    """See `AsyncTransaction`. Gathering the first message for a topic that this store has not seen yet asks the server for it."""

    def __init__(self, transaction: RemoteTransaction, calls: RemoteCalls) -> None:
        super().__init__(cast("Transaction", transaction))  # it has the same face
        self._remote = transaction
        self._calls = calls
        self._acked: list[AsyncRemoteDelivery] = []

    def ack(self, message: AsyncDelivery) -> None:
        super().ack(message)
        self._acked.append(cast("AsyncRemoteDelivery", message))

    async def commit(self) -> list[Receipt]:
        request = self._remote._end()
        if request is None:
            return self._remote.receipts
        fields, payload = request
        lost, generation = ConnectionLost("lost"), self._remote._generation()
        try:
            answer = await self._calls.ask(Call.TRANSACT, fields, payload, resend=False, lost=lost, generation=generation)
        except (ConnectionLost, LeaseExpired) as error:
            raise self._remote._failure(error) from None
        for message in self._acked:
            message._finished = True
        return self._remote._committed(answer)
