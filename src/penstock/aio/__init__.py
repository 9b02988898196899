"""
The same store for asyncio: the same names, awaitable.

>>> import asyncio
>>> from penstock import aio
>>> async def main():
...     async with aio.open("memory:") as store:
...         await store.publish("orders", b"first")
...         async with store.subscribe("orders", group="billing") as consumer:
...             async with await consumer.get() as message:
...                 return message.value
>>> asyncio.run(main())
b'first'

No thread is used for a message: a commit, or the answer of a server, wakes the task that waits for it. Opening, closing and what reads
much of a disk runs in a thread.
"""

from __future__ import annotations

from penstock.aio.consumer import AsyncConsumer, AsyncDelivery
from penstock.aio.opening import Opening
from penstock.aio.opening_store import open_store as open  # noqa: A004 - the name that users expect
from penstock.aio.producer import AsyncProducer
from penstock.aio.store import AsyncStore
from penstock.aio.transaction import AsyncTransaction

__all__ = ["AsyncConsumer", "AsyncDelivery", "AsyncProducer", "AsyncStore", "AsyncTransaction", "Opening", "open"]
