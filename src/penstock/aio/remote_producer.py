"""
A producer of a server, for asyncio.

A batch that is full, or awaited, is sent by whoever sent its last message: here an event loop, which must not wait for a server that does
not answer or a socket that takes no more. So the loop only encodes batches, and a thread of the producer sends them in their order. What
gathers meanwhile is bounded by the producer's `max_pending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.background import Deferred
from penstock.client.publishing import RemoteCommitment
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.publishing import RemoteOutlet
    from penstock.format.batch import EncodedBatch
    from penstock.store.producer import Producer
    from penstock.topics.encoder import MessageEncoder


class QueuedOutlet:
    """An `Outlet` that hands batches to another one in a thread, in their order. Its producer calls it under a lock."""

    is_quick = False

    def __init__(self, inner: RemoteOutlet) -> None:
        self._inner = inner
        self._queue = Deferred()

    @property
    def topic(self) -> MessageEncoder:
        """See `Outlet`."""
        return self._inner.topic

    def identity(self, partition: int) -> None:
        """See `Outlet`: a batch gets its identity when it is its turn."""

    def submit(self, partition: int, batch: EncodedBatch) -> tuple[None, RemoteCommitment]:
        """See `Outlet`."""
        commitment = RemoteCommitment()
        self._queue.add(lambda: self._send(partition, batch, commitment))
        return None, commitment

    def _send(self, partition: int, batch: EncodedBatch, commitment: RemoteCommitment) -> None:
        try:
            sent = self._inner.submit(partition, batch.with_producer(self._inner.identity(partition)))[1]
        except PenstockError as error:
            commitment.finish(None, error)
            return
        sent.on_done(lambda done: commitment.finish(done.first_offset, done.error))

    def note_published(self, count: int) -> None:
        """See `Outlet`."""
        self._inner.note_published(count)

    def commit(self) -> None:
        """See `Outlet`: the server commits."""

    def close(self) -> None:
        """Its producer was closed, and all is sent."""
        self._queue.close()


def send_aside(producer: Producer, inner: RemoteOutlet) -> None:
    """Let *producer*, which has sent nothing yet, send by a thread of its own what it would give to *inner*."""
    outlet, forget = QueuedOutlet(inner), producer._forget  # noqa: SLF001

    def end(closed: Producer) -> None:
        forget(closed)
        outlet.close()

    producer._outlet, producer._forget = outlet, end  # noqa: SLF001
