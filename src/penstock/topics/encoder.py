"""What a publisher does before a message goes anywhere: check it, choose its partition, encode it. Needs no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.arguments import check_moment_us, check_whole_number, shown
from penstock.clock import SystemClock
from penstock.errors import BadArgument, BadBytes, BatchTooLarge, MessageTooLarge, TopicNotFound
from penstock.format.batch import Batch, encode_batch, encode_single
from penstock.format.columns import DELIVER, EXPIRES, NAMES, PRIORITY, RELATIVE
from penstock.format.compression import COMPRESS_FROM_BYTES, Codec, parse_compression
from penstock.topics import publication
from penstock.topics.options import (
    PRIORITIES,
    US_MAX,
    Moment,
    Options,
    Wishes,
    column,
    deliver_column,
    due,
    packing,
    priority_number,
    ttl_us,
)
from penstock.topics.partitioner import partition_of_key
from penstock.values import BATCH_MESSAGES_MAX, SyncMode, batch_bytes_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.clock import Clock
    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer
    from penstock.settings import TopicSettings


class MessageEncoder:
    """Checks and encodes messages for one topic. Safe to use from any thread."""

    def __init__(self, name: str, partitions: int, settings: TopicSettings, clock: Clock | None = None) -> None:
        self.name = name
        self.partitions = partitions
        self.settings = settings
        self.codec, self.level = parse_compression(settings.compression)
        self.clock = clock or SystemClock()
        self._limit = settings.max_message_bytes
        # A value of so many bytes at most needs no second look: it is allowed, and too short to be compressed.
        self.single_limit = self._limit if self.codec is Codec.NONE else min(self._limit, COMPRESS_FROM_BYTES - 1)
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
        self,
        value: object,
        key: object,
        headers: object,
        timestamp: object,
        dedup_key: bytes | None = None,
        options: Options | None = None,
    ) -> tuple[EncodedBatch, bytes | None]:
        """One message as a batch, and its key. Raises `UsageError`."""
        if (
            type(value) is bytes
            and key is None
            and headers is None
            and timestamp is None
            and dedup_key is None
            and options is None
            and len(value) <= self.single_limit
        ):
            # The way that most messages go.
            return encode_single(value), None
        data = publication.value_bytes(value)
        key_data = publication.key_bytes(key)
        pairs = publication.header_pairs(headers)
        time_us = None if timestamp is None else check_moment_us("timestamp", timestamp)
        self.check_size(publication.message_bytes(data, key_data, pairs))
        wishes, codec, level = Wishes(), self.codec, self.level
        if options is not None:
            wishes = self.check_wishes(options.ttl, options.delay, options.priority)
            if options.compression is not None:
                codec, level = packing(options.compression)
        elif data is not None and key_data is None and not pairs and time_us is None and dedup_key is None:
            return self.single(data), None
        return self.encode_columns(
            [data],
            keys=None if key_data is None else [key_data],
            headers=[pairs] if pairs else None,
            times_us=None if time_us is None else [time_us],
            dedup_keys=None if dedup_key is None else [dedup_key],
            ttls_us=None if wishes.ttl_us is None else [wishes.ttl_us],
            dues=None if wishes.due is None else [wishes.due],
            priorities=[wishes.priority] if wishes.priority else None,
            codec=codec,
            level=level,
        ), key_data

    def single(self, value: bytes) -> EncodedBatch:
        """A value whose size is allowed, and nothing else, as a batch."""
        if len(value) <= self.single_limit:
            return encode_single(value)
        return encode_batch([value], codec=self.codec, level=self.level)

    def encode_columns(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[list[tuple[str, bytes]] | None] | None,
        times_us: Sequence[int | None] | None,
        ttls_us: Sequence[int | None] | None,
        dues: Sequence[int | Moment | None] | None,
        priorities: Sequence[int] | None,
        codec: Codec,
        level: int | None,
        dedup_keys: Sequence[bytes | None] | None = None,
        producer: Producer | None = None,
    ) -> EncodedBatch:
        """Checked columns as a batch. Raises `BatchTooLarge` also where it is too large only before it is compressed."""
        deliver_us, relative = (None, False) if dues is None else deliver_column(dues, self.clock.now_us)
        batch = encode_batch(
            values,
            keys=keys,
            headers=headers,
            times_us=times_us,
            expires_us=ttls_us,
            expires_relative=True,
            deliver_us=deliver_us,
            deliver_relative=relative,
            priorities=priorities,
            dedup_keys=dedup_keys,
            producer=producer,
            codec=codec,
            level=level,
        )
        if codec is not Codec.NONE:
            self._check_raw_size(batch)
        return batch

    def _check_raw_size(self, batch: EncodedBatch) -> None:
        most = batch_bytes_limit(self._limit)
        if batch.raw_bytes > most:
            raise BatchTooLarge("bytes", batch.raw_bytes, most)

    def check_wishes(self, ttl: object, delay: object, priority: object) -> Wishes:
        """The options of one message. Raises `BadArgument`."""
        if priority is not None:
            self.check_priorities(priority)
        return Wishes(ttl_us(ttl), due(delay), priority_number(priority))

    def check_priorities(self, given: object) -> None:
        """Raise `BadArgument` if the topic has no priorities."""
        if not self.settings.priorities:
            why = f"the topic {self.name!r} has no priorities; they are chosen when a topic is made, with priorities=True"
            raise BadArgument("priority", shown(given), why)

    def check_options(self, batch: Batch) -> None:
        """Check how messages that somebody else encoded expire, are due and are urgent. Raises `BadBytes`, `BadArgument`."""
        batch.check_numbers()
        priorities = batch.entry(PRIORITY)
        if priorities is not None:
            self.check_priorities(priorities.max)
            if priorities.max >= len(PRIORITIES):
                raise BadBytes("priority column", f"has {priorities.max}, and the highest is {len(PRIORITIES) - 1}")
        for column_id, least in ((EXPIRES, 1), (DELIVER, 0)):
            entry = batch.entry(column_id)
            if (
                entry is not None
                and entry.flags & RELATIVE
                and (entry.min or entry.max)
                and not least <= entry.min <= entry.max <= US_MAX
            ):
                raise BadBytes(f"{NAMES[column_id]} column", f"has {entry.min} to {entry.max} microseconds from the appending")

    def check_batch(self, batch: EncodedBatch) -> None:
        """
        Check a batch that somebody else encoded, whose checksums and tables are right.

        Raises:
            BadBytes: a column does not inflate, or a number in it is impossible.
            MessageTooLarge, BatchTooLarge, BadArgument: it is not allowed in this topic.
        """
        bare = batch.is_bare
        if bare and len(batch.data) <= self._limit:
            return
        content = Batch(batch.data)
        compressed = False
        if not bare:
            self.check_options(content)
            compressed = content.is_compressed
            if compressed:
                self._check_raw_size(batch)
        if not compressed and len(batch.data) <= self._limit:
            return
        for index in range(batch.count):
            value, key = content.value(index), content.key(index)
            size = publication.message_bytes(
                None if value is None else bytes(value), None if key is None else bytes(key), content.headers(index)
            )
            self.check_size(size)

    def check_message(
        self,
        value: object,
        key: object,
        headers: object,
        partition: object,
        timestamp: object,
        dedup_key: object,
        sync: object,
        options: Options | None = None,
    ) -> None:
        """Raise what `publish` would raise of a message that is not allowed."""
        if sync is not None:
            SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
        publication.dedup_key_bytes(dedup_key)
        _, key_data = self.encode(value, key, headers, timestamp, None, options)
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
        options: Options | None = None,
    ) -> None:
        """Raise what `publish_many` would raise of messages that are not allowed."""
        if sync is not None:
            SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
        messages = Columns(self, values, keys, headers, timestamps, dedup_keys, options)
        if messages.values:
            messages.split(partition)


class Columns:
    """Messages for one topic as checked columns."""

    __slots__ = (
        "_topic", "codec", "dedup_keys", "dues", "headers", "keys", "level", "priorities", "times_us", "ttls_us", "values"
    )  # fmt: skip

    def __init__(
        self,
        topic: MessageEncoder,
        values: object,
        keys: object,
        headers: object,
        timestamps: object,
        dedup_keys: object,
        options: Options | None = None,
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
        self.ttls_us: list[int | None] | None = None
        self.dues: list[int | Moment | None] | None = None
        self.priorities: list[int] | None = None
        self.codec, self.level = topic.codec, topic.level
        if options is not None:
            self._take(options, count)
        self._check_sizes()

    def _take(self, options: Options, count: int) -> None:
        self.ttls_us = column("ttls", options.ttl, count, ttl_us)
        self.dues = column("delays", options.delay, count, due)
        if options.priority is not None:
            self._topic.check_priorities(options.priority)
            self.priorities = column("priorities", options.priority, count, priority_number)
        if options.compression is not None:
            self.codec, self.level = packing(options.compression)

    def take_from(self, source: Batch) -> None:
        """Let the messages expire, be due and be as urgent as those of *source*, a batch of a client. Raises `UsageError`, `BadBytes`."""
        self._topic.check_options(source)
        indices = range(len(source))
        for column_id in (EXPIRES, DELIVER):
            entry = source.entry(column_id)
            if entry is None:
                continue
            moments = [source.moment(column_id, index) for index in indices]
            if entry.flags & RELATIVE:
                moments = [None if one is None else one - source.header.append_time_us for one in moments]
            elif column_id == EXPIRES:
                now_us = self._topic.clock.now_us()
                moments = [None if one is None else one - now_us for one in moments]
            else:
                moments = [None if one is None else Moment(one) for one in moments]
            if column_id == EXPIRES:
                self.ttls_us = moments
            else:
                self.dues = moments
        if source.entry(PRIORITY) is not None:
            self.priorities = [source.priority(index) for index in indices]

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
        return self._topic.encode_columns(
            values,
            keys=pick(self.keys),
            headers=pick(self.headers),
            times_us=pick(self.times_us),
            ttls_us=pick(self.ttls_us),
            dues=pick(self.dues),
            priorities=pick(self.priorities),
            codec=self.codec,
            level=self.level,
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
