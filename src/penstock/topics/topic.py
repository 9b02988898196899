"""A topic: checks what is published, chooses partitions, and appends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.arguments import check_moment_us, check_whole_number, shown
from penstock.errors import BadArgument, BatchTooLarge, MessageTooLarge, TopicNotFound
from penstock.format.batch import encode_batch, encode_single
from penstock.topics import publication
from penstock.topics.deduplication import DedupWindow, Seen
from penstock.topics.idempotence import SequenceGate
from penstock.topics.partitioner import partition_of_key
from penstock.topics.receipt import Receipt, Receipts
from penstock.values import BATCH_MESSAGES_MAX, SyncMode
from penstock.volume.tickets import Append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.clock import Clock
    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.producers import Producers
    from penstock.volume.tickets import AppendTicket
    from penstock.volume.topic_files import TopicRecord
    from penstock.volume.volume import Volume


class Topic:
    """One topic of an open store. Safe to use from any thread."""

    def __init__(
        self, record: TopicRecord, logs: Sequence[PartitionLog], volume: Volume, clock: Clock, producers: Producers
    ) -> None:
        self.record = record
        self.name = record.name
        self.topic_id = record.topic_id
        self.partitions = record.partitions
        self.settings = record.settings
        self.logs = list(logs)
        self.published = 0
        """Messages since the store was opened, duplicates not counted."""
        self._volume = volume
        self._clock = clock
        self._turn = 0
        self._limit = record.settings.max_message_bytes
        self._always = record.settings.sync is SyncMode.ALWAYS
        self._dedup = DedupWindow(self.logs, record.settings.dedup_window_ms)
        self._gates = [SequenceGate(volume, log, producers) for log in self.logs]

    # -- checking ---------------------------------------------------------------------------------------------------

    def check_partition(self, partition: object) -> int:
        """A partition that the topic has. Raises `BadArgument` or `TopicNotFound`."""
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

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self, value: object, key: object, headers: object, partition: object, timestamp: object, dedup_key: object, sync: object
    ) -> Receipt:
        """Store one message; see `Store.publish`."""
        mode = None if sync is None else SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
        if type(value) is bytes and key is None and headers is None and timestamp is None and dedup_key is None:
            # The way that most messages go.
            if len(value) > self._limit:
                self.check_size(len(value))
            batch = encode_single(value)
            number = 0 if partition is None and self.partitions == 1 else self.partition_for(None, partition)
            offset = self._volume.append(self.logs[number], batch, sync=mode)
            self.published += 1
            return Receipt(self.name, number, offset)
        dedup = publication.dedup_key_bytes(dedup_key)
        batch, key_data = self.encode(value, key, headers, timestamp, dedup)
        number = self.partition_for(key_data, partition)
        if dedup is not None:
            return self._publish_once(dedup, batch, number, mode)
        offset = self._volume.append(self.logs[number], batch, sync=mode)
        self.published += 1
        return Receipt(self.name, number, offset)

    def begin_publish(self, value: object) -> tuple[Topic, int, AppendTicket] | None:
        """See `Store.begin_publish`."""
        if not self._always:
            return None
        data = publication.value_bytes(value)
        self.check_size(0 if data is None else len(data))
        number = 0 if self.partitions == 1 else self.next_partition()
        batch = encode_batch([None]) if data is None else encode_single(data)
        return self, number, self._volume.submit(self.logs[number], batch)

    def _publish_once(self, dedup: bytes, batch: EncodedBatch, partition: int, mode: SyncMode | None) -> Receipt:
        found, pending = self._dedup.claim([dedup], self._clock.now_us())
        seen = found[0]
        if seen is not None:
            self._dedup.settle(pending, None, ())
            return Receipt(self.name, seen.partition, seen.offset, duplicate=True)
        places = None
        try:
            offset = self._volume.append(self.logs[partition], batch, sync=mode)
            places = {dedup: Seen(partition, offset, self._clock.now_us())}
        finally:
            self._dedup.settle(pending, places, (dedup,))
        self.published += 1
        return Receipt(self.name, partition, offset)

    def publish_many(
        self,
        values: object,
        keys: object,
        headers: object,
        partition: object,
        timestamps: object,
        dedup_keys: object,
        sync: object,
    ) -> Receipts | list[Receipt]:
        """Store several messages; see `Store.publish_many`."""
        mode = None if sync is None else SyncMode.of(sync)  # type: ignore[arg-type]
        messages = Columns(self, values, keys, headers, timestamps, dedup_keys)
        if messages.dedup_keys is not None:
            return self._publish_many_once(messages, partition, mode)
        if not messages.values:
            return Receipts(self.name, [])
        parts = messages.split(partition)
        firsts = self._append_all([(number, batch) for number, _, batch in parts], mode)
        self.published += len(messages.values)
        ranges = [(number, first, batch.count) for (number, _, batch), first in zip(parts, firsts, strict=True)]
        if len(parts) == 1:
            return Receipts(self.name, ranges)
        places: list[tuple[int, int]] = [(0, 0)] * len(messages.values)
        for which, (_, indices, _) in enumerate(parts):
            for at, index in enumerate(indices):
                places[index] = (which, at)
        return Receipts(self.name, ranges, places)

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

    def _append_all(self, batches: list[tuple[int, EncodedBatch]], mode: SyncMode | None) -> list[int]:
        if len(batches) == 1:
            number, batch = batches[0]
            return [self._volume.append(self.logs[number], batch, sync=mode)]
        if self._always or mode is SyncMode.ALWAYS:
            changes = [Append(self.logs[number], batch) for number, batch in batches]
            return self._volume.commit_changes(changes).first_offsets
        return [self._volume.append(self.logs[number], batch, sync=mode) for number, batch in batches]

    def _publish_many_once(self, messages: Columns, partition: object, mode: SyncMode | None) -> list[Receipt]:
        """The slow way: messages whose key was seen are left out, and the rest is stored."""
        assert messages.dedup_keys is not None
        keys = list(dict.fromkeys([key for key in messages.dedup_keys if key is not None]))
        found, pending = self._dedup.claim(keys, self._clock.now_us())
        known = {key: seen for key, seen in zip(keys, found, strict=True) if seen is not None}
        claimed = [key for key in keys if key not in known]
        places: dict[bytes, Seen] | None = None
        try:
            first_of: dict[bytes, int] = {}
            wanted: list[int] = []
            for index, key in enumerate(messages.dedup_keys):
                if key is None or (key not in known and key not in first_of):
                    wanted.append(index)
                    if key is not None:
                        first_of[key] = index
            receipts: dict[int, Receipt] = {}
            if wanted:
                parts = messages.split(partition, wanted)
                firsts = self._append_all([(number, batch) for number, _, batch in parts], mode)
                for (number, indices, _), first in zip(parts, firsts, strict=True):
                    for at, index in enumerate(indices):
                        receipts[index] = Receipt(self.name, number, first + at)
                self.published += len(wanted)
            now_us = self._clock.now_us()
            places = {key: Seen(receipts[at].partition, receipts[at].offset, now_us) for key, at in first_of.items()}
        finally:
            self._dedup.settle(pending, places, claimed)
        answer = []
        for index, key in enumerate(messages.dedup_keys):
            receipt = receipts.get(index)
            if receipt is None:
                assert key is not None
                seen = known.get(key) or places[key]
                receipt = Receipt(self.name, seen.partition, seen.offset, duplicate=True)
            answer.append(receipt)
        return answer

    def append_batch(self, partition: int, batch: EncodedBatch) -> Receipt:
        """Store a batch that its producer encoded, once if it carries a sequence; its first message's receipt."""
        if batch.producer is None:
            return Receipt(self.name, partition, self._volume.append(self.logs[partition], batch))
        first, duplicate = self._gates[partition].append(batch)
        return Receipt(self.name, partition, first, duplicate)

    def gate(self, partition: int) -> SequenceGate:
        """The way in for batches with a sequence."""
        return self._gates[partition]

    def dedup_floor(self, partition: int) -> int | None:
        """The first offset that deduplication still needs."""
        return self._dedup.floor(partition, self._clock.now_us())

    @property
    def dedup_evicted(self) -> int:
        """Deduplication keys that were forgotten before their window ended."""
        return self._dedup.evicted


class Columns:
    """Messages for one topic as checked columns."""

    __slots__ = ("_topic", "dedup_keys", "headers", "keys", "times_us", "values")

    def __init__(
        self, topic: Topic, values: object, keys: object, headers: object, timestamps: object, dedup_keys: object
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
