"""A message that a server delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.errors import LeaseExpired
from penstock.topics.message import Message

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.client.consumer import RemoteConsumer
    from penstock.format.batch import Batch
    from penstock.settings import GroupSettings


class RemoteDelivery(Message):
    """
    A message that was handed to a consumer. Finish it by `ack`, or give it back by `nack` or `reject`, once. See `penstock.Delivery`.

    If the connection was lost meanwhile it went back to its group, and finishing it raises `LeaseExpired`.
    """

    __slots__ = ("attempt", "consumer", "fresh_until", "generation", "tag")

    def __init__(
        self, consumer: RemoteConsumer, generation: int, fresh_until: float,
        tag: int, partition: int, offset: int, attempt: int, batch: Batch, index: int,
    ) -> None:  # fmt: skip
        """*fresh_until*: until when, by the monotonic clock, its ack need not wait for the server's answer; 0: it waits."""
        self.consumer = consumer
        self.generation = generation
        self.fresh_until = fresh_until
        self.tag = tag
        self.attempt = attempt
        self.partition = partition
        self.offset = offset
        self._batch = batch
        self._index = index

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self.consumer.topic

    @property
    def group(self) -> str:
        """The name of the group that delivered it."""
        return self.consumer.group

    @property
    def group_settings(self) -> GroupSettings | None:
        """What the group does with messages that fail, as it was when its consumer subscribed; None if the server does not tell."""
        return self.consumer.settings

    def ack(self, *, wait: bool = False) -> None:
        """It is done. Durable within a few milliseconds; with *wait* when this returns. Raises `LeaseExpired`."""
        self.consumer.ack(self, wait=wait)

    def nack(self, *, delay: object = None, reason: object = None) -> None:
        """It failed: deliver it again after *delay* seconds, or dead-letter it. Raises `LeaseExpired`."""
        self.consumer.nack(self, delay=delay, reason=reason)

    def reject(self, reason: object = None) -> None:
        """It can never be handled: dead-letter it now. Raises `LeaseExpired`."""
        self.consumer.reject(self, reason)

    def extend(self, seconds: object = None) -> None:
        """Keep it for *seconds* from now on (default: the group's lease). Raises `LeaseExpired`."""
        self.consumer.extend(self, seconds)

    def __enter__(self) -> Self:
        self.consumer.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self.consumer.end(self, error)
        except LeaseExpired:
            # What the block raised matters more than a lease that has ended.
            if error is None:
                raise
