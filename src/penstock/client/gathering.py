"""Messages encoded by a client for later: batches of a transaction or a stage, each with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.topics.encoder import Columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.format.batch import EncodedBatch
    from penstock.topics.encoder import MessageEncoder
    from penstock.topics.options import Options

    Target = Callable[[str, Callable[[MessageEncoder], object]], MessageEncoder]
    Placed = tuple[MessageEncoder, int, EncodedBatch]


def place_message(
    to_publish: Target, topic: str, value: object, key: object, headers: object, partition: object, timestamp: object,
    options: Options | None,
) -> Placed:  # fmt: skip
    """The message as a batch of one, with topic and partition. A topic is made only for a message that is allowed."""
    target = to_publish(topic, lambda new: new.encode(value, key, headers, timestamp, None, options))
    batch, key_data = target.encode(value, key, headers, timestamp, None, options)
    return target, target.partition_for(key_data, partition), batch


def place_messages(
    to_publish: Target, topic: str, values: object, keys: object, headers: object, partition: object, timestamps: object,
    options: Options | None,
) -> list[Placed]:  # fmt: skip
    """The messages as batches, one or more for each partition."""
    target = to_publish(topic, lambda new: Columns(new, values, keys, headers, timestamps, None, options))
    columns = Columns(target, values, keys, headers, timestamps, None, options)
    return [(target, number, batch) for number, _, batch in columns.split(partition)] if columns.values else []
