"""What a log remembers besides its messages: the latest batches of each producer and where each log epoch began."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.format import columns as c
from penstock.format.batch import Batch
from penstock.format.state import EpochStart, ProducerRecord, decode_state, encode_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer

BATCHES_PER_PRODUCER = 64
PRODUCERS_MAX = 1_000
"""Producers that a log remembers: its state is written at the start of every segment, so it must stay small."""
EPOCHS_KEPT = 256
_STATE_BATCH_BYTES = 1024
"""More than a state batch takes besides its records."""
_RECENT = struct.Struct("<QQqI")
_pack = _RECENT.pack


class RecentBatches:
    """
    The last batches of one producer's incarnation, oldest first.

    They are packed, 28 bytes each: as objects they would take ten times as much, and every client that comes and goes leaves up to 64
    of them in each log that it wrote to.
    """

    __slots__ = ("_packed", "_producer_id", "incarnation")

    def __init__(self, producer_id: int, incarnation: int) -> None:
        self._producer_id = producer_id
        self.incarnation = incarnation
        self._packed = b""

    def append(self, sequence: int, first_offset: int, append_time_us: int, count: int) -> None:
        """Add the next one; the oldest is forgotten where there are too many."""
        # In one step: another thread sees all of it or nothing.
        self._packed = self._packed[-_PACKED_BYTES_BEFORE:] + _pack(sequence, first_offset, append_time_us, count)

    def _record(self, fields: tuple[int, int, int, int]) -> ProducerRecord:
        sequence, first_offset, append_time_us, count = fields
        return ProducerRecord(self._producer_id, sequence, first_offset, append_time_us, self.incarnation, count)

    @property
    def newest(self) -> ProducerRecord:
        """The last one; there is always one."""
        packed = self._packed
        return self._record(_RECENT.unpack_from(packed, len(packed) - _RECENT.size))

    def find(self, sequence: int) -> ProducerRecord | None:
        """The newest batch with that *sequence*, if it is remembered."""
        return next((record for record in reversed(list(self)) if record.sequence == sequence), None)

    def __iter__(self) -> Iterator[ProducerRecord]:
        return map(self._record, _RECENT.iter_unpack(self._packed))

    def __len__(self) -> int:
        return len(self._packed) // _RECENT.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecentBatches) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes


_PACKED_BYTES_BEFORE = (BATCHES_PER_PRODUCER - 1) * _RECENT.size
"""What is kept of the packed batches when one more comes."""


class LogState:
    """
    Changed by whoever writes the log, one batch at a time; rebuilt by scanning the active segment from its state batch on.

    `recent[producer id]` holds the last batches of the producer's present incarnation, oldest first.
    """

    __slots__ = ("epochs", "recent")

    def __init__(self) -> None:
        self.recent: dict[int, RecentBatches] = {}
        self.epochs: list[EpochStart] = []

    def note_epoch(self, first_offset: int, epoch: int) -> None:
        """The batch at *first_offset* was written in *epoch*."""
        if not self.epochs or self.epochs[-1].epoch < epoch:
            self.epochs.append(EpochStart(first_offset, epoch))
            del self.epochs[:-EPOCHS_KEPT]

    def note_producer(self, producer: Producer, first_offset: int, append_time_us: int, count: int) -> None:
        """The batch at *first_offset* came from *producer*."""
        self._add(producer.id, producer.incarnation, producer.sequence, first_offset, append_time_us, count)

    def _add(
        self, producer_id: int, incarnation: int, sequence: int, first_offset: int, append_time_us: int, count: int
    ) -> None:  # fmt: skip
        # Taken out and put back: the dict stays in the order of last use, and the longest unheard of goes first.
        recent = self.recent
        known = recent.pop(producer_id, None)
        if known is None or known.incarnation != incarnation:
            known = RecentBatches(producer_id, incarnation)
        known.append(sequence, first_offset, append_time_us, count)
        recent[producer_id] = known
        if len(recent) > PRODUCERS_MAX:
            del recent[next(iter(recent))]

    def note_batch(self, batch: Batch) -> None:
        """Take in a batch that a scan found."""
        header = batch.header
        self.note_epoch(header.first_offset, header.log_epoch)
        producer = batch.producer
        if producer is not None:
            self.note_producer(producer, header.first_offset, header.append_time_us, header.count)
        if batch.entry(c.RUNS) is not None:
            begin = 0
            for run in batch.runs():
                if run.flags & c.RUN_PRODUCER:
                    self._add(
                        run.producer_id, run.producer_incarnation, run.producer_sequence, run.first_offset, run.append_time_us,
                        run.end_index - begin,
                    )  # fmt: skip
                begin = run.end_index

    def encode(self, total_bytes: int = 0) -> EncodedBatch:
        """As a state batch, to be stamped; filled up to *total_bytes* where it is shorter."""
        return encode_state([record for known in self.recent.values() for record in known], self.epochs, total_bytes)

    @property
    def room_bytes(self) -> int:
        """How long its state batch may become while twice as many producers come, and some more. Any thread may ask."""
        producers = min(2 * len(self.recent) + 16, PRODUCERS_MAX)
        return _STATE_BATCH_BYTES + EPOCHS_KEPT * 16 + producers * BATCHES_PER_PRODUCER * 40

    def restore(self, data: bytes | memoryview) -> None:
        """Take over a stored state batch. Raises `BadBytes`."""
        batch = Batch(data)
        batch.verify()
        producers, epochs = decode_state(batch)
        self.recent = {}
        self.epochs = epochs
        for record in producers:
            self._add(
                record.producer_id,
                record.incarnation,
                record.sequence,
                record.first_offset,
                record.append_time_us,
                record.count,
            )

    def epoch_at(self, offset: int) -> int | None:
        """The log epoch in which *offset* was written, None if that is not known any more."""
        found = None
        for start in self.epochs:
            if start.first_offset > offset:
                break
            found = start.epoch
        return found
