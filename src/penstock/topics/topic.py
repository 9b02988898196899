"""A topic: checks what is published, chooses partitions, and appends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import asked_us
from penstock.errors import UsageError
from penstock.format.batch import encode_batch, encode_single
from penstock.topics import publication
from penstock.topics.deduplication import DedupWindow, Seen
from penstock.topics.encoder import Columns, MessageEncoder
from penstock.topics.idempotence import SequenceGate, submit_together
from penstock.topics.receipt import Receipt, Receipts
from penstock.values import SyncMode
from penstock.volume.tickets import Append

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.clock import Clock
    from penstock.format.batch import EncodedBatch
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.options import Options
    from penstock.topics.producers import Producers
    from penstock.volume.tickets import AppendTicket
    from penstock.volume.topic_files import TopicRecord
    from penstock.volume.volume import Volume


class Topic(MessageEncoder):
    """One topic of an open store. Safe to use from any thread."""

    def __init__(
        self, record: TopicRecord, logs: Sequence[PartitionLog], volume: Volume, clock: Clock, producers: Producers
    ) -> None:
        super().__init__(record.name, record.partitions, record.settings, clock)
        self.record = record
        self.topic_id = record.topic_id
        self.logs = list(logs)
        self.published = 0
        """Messages since the store was opened, duplicates not counted."""
        self._volume = volume
        self._always = record.settings.sync is SyncMode.ALWAYS
        self._dedup = DedupWindow(self.logs, record.settings.dedup_window_ms, lambda: asked_us(clock))
        self._gates = [SequenceGate(volume, log, producers) for log in self.logs]

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        value: object,
        key: object,
        headers: object,
        partition: object,
        timestamp: object,
        dedup_key: object,
        sync: object,
        options: Options | None = None,
    ) -> Receipt:
        """Store one message; see `Store.publish`."""
        mode = None if sync is None else SyncMode.of(sync)  # type: ignore[arg-type]  # it checks
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
            batch = encode_single(value)
            number = 0 if partition is None and self.partitions == 1 else self.partition_for(None, partition)
            offset = self._volume.append(self.logs[number], batch, sync=mode)
            self.published += 1
            return Receipt(self.name, number, offset)
        dedup = publication.dedup_key_bytes(dedup_key)
        batch, key_data = self.encode(value, key, headers, timestamp, dedup, options)
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
        batch = encode_batch([None]) if data is None else self.single(data)
        return self, number, self._volume.submit(self.logs[number], batch)

    def _publish_once(self, dedup: bytes, batch: EncodedBatch, partition: int, mode: SyncMode | None) -> Receipt:
        found, pending = self._dedup.claim([dedup], self._dedup_us())
        seen = found[0]
        if seen is not None:
            self._dedup.settle(pending, None, ())
            return Receipt(self.name, seen.partition, seen.offset, duplicate=True)
        places = None
        try:
            offset = self._volume.append(self.logs[partition], batch, sync=mode)
            places = {dedup: Seen(partition, offset, self._dedup_us())}
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
        options: Options | None = None,
    ) -> Receipts | list[Receipt]:
        """Store several messages; see `Store.publish_many`."""
        messages = Columns(self, values, keys, headers, timestamps, dedup_keys, options)
        return self.publish_columns(messages, partition, sync)

    def publish_columns(self, messages: Columns, partition: object, sync: object) -> Receipts | list[Receipt]:
        """Store checked messages; see `Store.publish_many`."""
        mode = None if sync is None else SyncMode.of(sync)  # type: ignore[arg-type]
        if messages.dedup_keys is not None:
            return self._publish_many_once(messages, partition, mode)
        if not messages.values:
            return Receipts(self.name, [])
        parts = messages.split(partition)
        firsts = self.append_all([(number, batch) for number, _, batch in parts], mode)
        self.published += len(messages.values)
        ranges = [(number, first, batch.count) for (number, _, batch), first in zip(parts, firsts, strict=True)]
        return Receipts.of_parts(self.name, ranges, [indices for _, indices, _ in parts])

    def append_all(
        self, batches: Sequence[tuple[int, EncodedBatch]], mode: SyncMode | None, firsts: list[int] | None = None
    ) -> list[int]:
        """Store *batches*, one for each partition: if that is refused, none. Returns where each begins, in *firsts* if that is given."""
        found: list[int] = [] if firsts is None else firsts
        self._volume.append_all([self.logs[number] for number, _ in batches], [batch for _, batch in batches], found, sync=mode)
        return found

    def _publish_many_once(self, messages: Columns, partition: object, mode: SyncMode | None) -> list[Receipt]:
        """The slow way: messages whose key was seen are left out, and the rest is stored."""
        assert messages.dedup_keys is not None
        keys = list(dict.fromkeys([key for key in messages.dedup_keys if key is not None]))
        found, pending = self._dedup.claim(keys, self._dedup_us())
        known = {key: seen for key, seen in zip(keys, found, strict=True) if seen is not None}
        claimed = [key for key in keys if key not in known]
        first_of: dict[bytes, int] = {}
        receipts: dict[int, Receipt] = {}
        places: dict[bytes, Seen] = {}
        parts: list[tuple[int, Sequence[int], EncodedBatch]] = []
        firsts: list[int] = []
        try:
            wanted: list[int] = []
            for index, key in enumerate(messages.dedup_keys):
                if key is None or (key not in known and key not in first_of):
                    wanted.append(index)
                    if key is not None:
                        first_of[key] = index
            if wanted:
                parts += messages.split(partition, wanted)
                self.append_all([(number, batch) for number, _, batch in parts], mode, firsts)
        finally:
            # If a log of a weaker mode failed half-way, whoever tries again must not store the messages of those before it twice.
            for (number, indices, _), first in zip(parts, firsts, strict=False):
                for at, index in enumerate(indices):
                    receipts[index] = Receipt(self.name, number, first + at)
            self.published += len(receipts)
            now_us = self._dedup_us()
            for key, at in first_of.items():
                if at in receipts:
                    places[key] = Seen(receipts[at].partition, receipts[at].offset, now_us)
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

    def submit_batches(
        self, parts: Sequence[tuple[int, EncodedBatch]], callback: Callable[[Ticket], None] | None = None
    ) -> tuple[list[int] | None, Ticket | None, bool]:
        """
        Store batches that their producer encoded, one for each partition, together; each once if it carries a sequence.

        Returns what `submit_together` returns. Raises `UsageError` if only some carry one.
        """
        numbered = [batch.producer is not None for _, batch in parts]
        if not any(numbered):
            if self._always:
                changes = [Append(self.logs[number], batch) for number, batch in parts]
                return None, self._volume.submit_changes(changes, callback), False
            return self.append_all(parts, None), None, False
        if not all(numbered):
            raise UsageError("either all batches of a call carry a producer's sequence or none does")
        return submit_together(self._volume, [(self._gates[number], batch) for number, batch in parts], callback)

    def gate(self, partition: int) -> SequenceGate:
        """The way in for batches with a sequence."""
        return self._gates[partition]

    def _dedup_us(self) -> int:
        """The time that the window of keys goes by."""
        return round(self.clock.monotonic() * 1_000_000)

    def dedup_floor(self, partition: int) -> int | None:
        """The first offset that deduplication still needs."""
        return self._dedup.floor(partition, self._dedup_us())

    @property
    def dedup_evicted(self) -> int:
        """Deduplication keys that were forgotten before their window ended."""
        return self._dedup.evicted
