"""Batches that a client encoded: nothing in them is believed before it was checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number
from penstock.broker.fields import named_parts
from penstock.errors import BadArgument, UsageError
from penstock.format.batch import EncodedBatch
from penstock.wire.deliveries import split_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.broker.topics import Topics
    from penstock.files import Buffer
    from penstock.topics.topic import Topic
    from penstock.wire.frame import Frame


def adopt(topic: Topic, data: Buffer) -> EncodedBatch:
    """A client's batch, checked. Raises `BadBytes`, `MessageTooLarge`."""
    batch = EncodedBatch.adopt(data)
    topic.check_batch(batch)
    return batch


def adopt_unnumbered(topic: Topic, data: Buffer) -> EncodedBatch:
    """
    The same, for a transaction, a stage or a strict publish.

    These are recognised by other means; a sequence in one would only be forged. Raises `UsageError` too.
    """
    batch = adopt(topic, data)
    if batch.producer is not None:
        raise UsageError("batches of this call carry no producer")
    return batch


def adopt_each(
    frame: Frame, topic: Topic, partitions: list[int], adopter: Callable[[Topic, Buffer], EncodedBatch]
) -> Iterator[tuple[int, EncodedBatch]]:
    """Partition and batch for each of *partitions* of one topic, by `adopt` or `adopt_unnumbered`."""
    batches = split_batches(frame.payload)
    if len(partitions) != len(batches):
        raise BadArgument("partitions", str(len(partitions)), f"must name a partition for each of {len(batches)} batches")
    for partition, batch in zip(partitions, batches, strict=True):
        yield topic.check_partition(partition), adopter(topic, batch.buffer)


def adopt_parts(frame: Frame, topics: Topics) -> Iterator[tuple[Topic, int, EncodedBatch]]:
    """Topic, partition and batch for each of the *parts* of a call. Topics are made if need be."""
    batches, parts = split_batches(frame.payload), named_parts(frame.fields)
    if len(parts) != len(batches):
        raise BadArgument("parts", str(len(parts)), f"must name a topic and a partition for each of {len(batches)} batches")
    for (name, partition), batch in zip(parts, batches, strict=True):
        check_whole_number("partition", partition, 0, 1 << 31)
        topic = topics.to_publish(name)
        adopted = adopt_unnumbered(topic, batch.buffer)
        yield topic, topic.check_partition(partition), adopted
