"""Transactions of a client: one call, with all that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.batches import adopt_parts

if TYPE_CHECKING:
    from penstock.broker.consumers import Consumers
    from penstock.broker.replies import Answer
    from penstock.broker.topics import Topics
    from penstock.store.store import Store
    from penstock.wire.frame import Frame


class Transactions:
    """Carries them out. Keeps nothing of its own; waits for the disk."""

    def __init__(self, store: Store, topics: Topics, consumers: Consumers) -> None:
        self._store = store
        self._topics = topics
        self._consumers = consumers

    def commit(self, frame: Frame) -> Answer:
        """Batches to topics and acks of deliveries, all or nothing."""
        transaction = self._store.transaction()
        for topic, partition, batch in adopt_parts(frame, self._topics):
            transaction.add_batch(topic, partition, batch)
        for handle, tags in frame.fields.get("acks", []):
            subscription = self._consumers.get(handle)
            found, missing = subscription.peek(tags)
            if missing:
                raise subscription.expired(missing)
            for delivery in found:
                transaction.ack(delivery)
        transaction.commit()
        for handle, tags in frame.fields.get("acks", []):
            # It may be gone, if the client closed it or hung up meanwhile; the commit is done nevertheless.
            left = self._consumers.find(handle)
            if left is not None:
                left.take(tags)
        return {"offsets": transaction.first_offsets}, []
