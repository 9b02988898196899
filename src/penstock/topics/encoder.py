"""What a publisher does before a message goes anywhere: check it, choose its partition, encode it. Needs no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.arguments import check_moment_us, check_whole_number, shown
from penstock.errors import BadArgument, BatchTooLarge, MessageTooLarge, TopicNotFound
from penstock.format.batch import encode_batch, encode_single
from penstock.topics import publication
from penstock.topics.partitioner import partition_of_key
from penstock.values import BATCH_MESSAGES_MAX, SyncMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.format.batch import EncodedBatch
    from penstock.settings import TopicSettings


class MessageEncoder:
    """Checks and encodes messages for one topic. Safe to use from any thread."""

    def __init__(self, name: str, partitions: int, settings: TopicSettings) -> None:
        self.name = name
        self.partitions = partitions
        self.settings = settings
        self._limit = settings.max_message_bytes
        self._turn = 0

    def check_partition(self, partition: object) -> int:
        """A partition that the topic has. Raises `BadArgument` or `TopicNotFound`."""
        if type(partition) is int and 0 <= partition < self.partitions:
            return partition
        number = check_whole_number("partition", partition, 0, 1 << 31)
        if number >= self.partitions:
            raise TopicNotFound(self.name, number)
        return number

    def next_partition(self) -> int:
        """The next one in turn, for messages without a key."""
        # Two threads may get the same one: the turns need not be exact, only even.
        self._turn = turn = (self._turn + 1) % self.partitions
        return turn

    def partition_for(self, key: bytes | None, partition: object) -> int:
        """Where a message goes: the given partition, else by its key, else in turn."""
        if partition is not None:
            return self.check_partition(partition)
        if self.partitions == 1:
            return 0
        return self.next_partition() if key is None else partition_of_key(key, self.partitions)

    def check_size(self, size: int) -> None:
        """Raise `MessageTooLarge` if a message of *size* bytes is over the topic's limit."""
        if size > self._limit:
            raise MessageTooLarge(f"a message for {self.name!r}", size, self._limit)

    def encode(
        self, value: object, key: object, headers: object, timestamp: object, dedup_key: bytes | None = None
    ) -> tuple[EncodedBatch, bytes | None]:
        """One message as a batch, and its key. Raises `UsageError`."""
        if type(value) is bytes and key is None and headers is None and timestamp is None and dedup_key is None:
            # The way that most messages go.
            if len(value) > self._limit:
                self.check_size(len(value))
            return encode_single(value), None
        data = publication.value_bytes(value)
        key_data = publication.key_bytes(key)
        pairs = publication.header_pairs(headers)
        time_us = None if timestamp is None else check_moment_us("timestamp", timestamp)
        self.check_size(publication.message_bytes(data, key_data, pairs))
        if data is not None and key_data is None and not pairs and time_us is None and dedup_key is None:
            return encode_single(data), None
        batch = encode_batch(
            [data],
            keys=None if key_data is None else [key_data],
            headers=[pairs] if pairs else None,
            times_us=None if time_us is None else [time_us],
            dedup_keys=None if dedup_key is None else [dedup_key],
        )
        return batch, key_data

    def check_message(
        self, value: object, key: object, headers: object, partition: object, timestamp: object, dedup_key: object, sync: object
    ) -> None:
        """Raise what `publish` would raise of a message that is not allowed."""
        if sync is not None:
            SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
        publication.dedup_key_bytes(dedup_key)
        _, key_data = self.encode(value, key, headers, timestamp)
        self.partition_for(key_data, partition)

    def check_messages(
        self,
        values: object,
        keys: object,
        headers: object,
        partition: object,
        timestamps: object,
        dedup_keys: object,
        sync: object,
    ) -> None:
        """Raise what `publish_many` would raise of messages that are not allowed."""
        if sync is not None:
            SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
        messages = Columns(self, values, keys, headers, timestamps, dedup_keys)
        if messages.values:
            messages.split(partition)


class Columns:
    """Messages for one topic as checked columns."""

    __slots__ = ("_topic", "dedup_keys", "headers", "keys", "times_us", "values")

    def __init__(
        self, topic: MessageEncoder, values: object, keys: object, headers: object, timestamps: object, dedup_keys: object
    ) -> None:
        self._topic = topic
        self.values: list[bytes | None] = _values(values)
        count = len(self.values)
        if count > BATCH_MESSAGES_MAX:
            raise BatchTooLarge("messages", count, BATCH_MESSAGES_MAX)
        self.keys = _column("keys", keys, count, publication.key_bytes)
        self.headers = _column("headers", headers, count, publication.header_pairs)
        self.times_us = _column("timestamps", timestamps, count, _time_us)
        self.dedup_keys = _column("dedup_keys", dedup_keys, count, publication.dedup_key_bytes)
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.keys is None and self.headers is None:
            try:
                longest = max(map(len, self.values), default=0)  # type: ignore[arg-type]
            except TypeError:
                longest = max([0 if value is None else len(value) for value in self.values], default=0)
            self._topic.check_size(longest)
            return
        for index, value in enumerate(self.values):
            self._topic.check_size(
                publication.message_bytes(
                    value,
                    None if self.keys is None else self.keys[index],
                    None if self.headers is None else self.headers[index],
                )
            )

    def split(self, partition: object, wanted: Sequence[int] | None = None) -> list[tuple[int, Sequence[int], EncodedBatch]]:
        """(partition, indices, batch) for each partition that gets any; *wanted* are the indices that count."""
        topic = self._topic
        indices: Sequence[int] = range(len(self.values)) if wanted is None else wanted
        if partition is not None or topic.partitions == 1 or self.keys is None:
            # Without keys they stay together: one batch, in the next partition.
            number = topic.partition_for(None, partition)
            return [(number, indices, self._encode(None if wanted is None else indices))]
        by_partition: dict[int, list[int]] = {}
        keyless = -1
        for index in indices:
            key = self.keys[index]
            if key is None:
                if keyless < 0:
                    keyless = topic.next_partition()
                number = keyless
            else:
                number = partition_of_key(key, topic.partitions)
            by_partition.setdefault(number, []).append(index)
        return [(number, chosen, self._encode(chosen)) for number, chosen in sorted(by_partition.items())]

    def encode_all(self) -> EncodedBatch:
        """All of them as one batch, wherever they go."""
        return self._encode(None)

    def _encode(self, indices: Sequence[int] | None) -> EncodedBatch:
        def pick(column: list[Any] | None) -> list[Any] | None:
            return column if column is None or indices is None else [column[index] for index in indices]

        values = pick(self.values)
        assert values is not None
        return encode_batch(
            values,
            keys=pick(self.keys),
            headers=pick(self.headers),
            times_us=pick(self.times_us),
            dedup_keys=pick(self.dedup_keys),
        )


def _values(values: object) -> list[bytes | None]:
    if isinstance(values, (str, *publication.BYTES_LIKE)) or not hasattr(values, "__iter__"):
        raise BadArgument("values", shown(values), "must be a list of bytes")
    found: list[Any] = list(values)
    try:
        b"".join(found)  # the quick look: all of them are bytes-like
    except TypeError:
        return [publication.value_bytes(value) for value in found]
    if set(map(type, found)) != {bytes}:
        return [publication.value_bytes(value) for value in found]
    return found


def _column(name: str, column: object, count: int, convert: Any) -> list[Any] | None:
    if column is None:
        return None
    if isinstance(column, (str, dict, *publication.BYTES_LIKE)) or not hasattr(column, "__iter__"):
        raise BadArgument(name, shown(column), f"must be a list with {count} entries, one for each value")
    found = [convert(entry) for entry in column]
    if len(found) != count:
        raise BadArgument(name, f"a list of {len(found)}", f"must have {count} entries, one for each value")
    return None if all(entry is None for entry in found) else found


def _time_us(value: object) -> int | None:
    return None if value is None else check_moment_us("timestamps", value)
