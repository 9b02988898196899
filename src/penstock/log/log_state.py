"""What a log remembers besides its messages: the latest batches of each producer and where each log epoch began."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.format import columns as c
from penstock.format.batch import Batch
from penstock.format.state import EpochStart, ProducerRecord, decode_state, encode_state

if TYPE_CHECKING:
    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer

BATCHES_PER_PRODUCER = 64
PRODUCERS_MAX = 1_000
"""Producers that a log remembers: its state is written at the start of every segment, so it must stay small."""
EPOCHS_KEPT = 256
_STATE_BATCH_BYTES = 1024
"""More than a state batch takes besides its records."""


class LogState:
    """
    Changed by whoever writes the log, one batch at a time; rebuilt by scanning the active segment from its state batch on.

    `recent[producer id]` holds the last batches of the producer's present incarnation, oldest first.
    """

    __slots__ = ("epochs", "recent")

    def __init__(self) -> None:
        self.recent: dict[int, deque[ProducerRecord]] = {}
        self.epochs: list[EpochStart] = []

    def note_epoch(self, first_offset: int, epoch: int) -> None:
        """The batch at *first_offset* was written in *epoch*."""
        if not self.epochs or self.epochs[-1].epoch < epoch:
            self.epochs.append(EpochStart(first_offset, epoch))
            del self.epochs[:-EPOCHS_KEPT]

    def note_producer(self, producer: Producer, first_offset: int, append_time_us: int, count: int) -> None:
        """The batch at *first_offset* came from *producer*."""
        record = ProducerRecord(producer.id, producer.sequence, first_offset, append_time_us, producer.incarnation, count)
        self._add(record)

    def _add(self, record: ProducerRecord) -> None:
        # Taken out and put back: the dict stays in the order of last use, and the longest unheard of goes first.
        known = self.recent.pop(record.producer_id, None)
        if known is None or known[-1].incarnation != record.incarnation:
            known = deque(maxlen=BATCHES_PER_PRODUCER)
        self.recent[record.producer_id] = known
        known.append(record)
        if len(self.recent) > PRODUCERS_MAX:
            del self.recent[next(iter(self.recent))]

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
                        ProducerRecord(
                            run.producer_id, run.producer_sequence, run.first_offset, run.append_time_us,
                            run.producer_incarnation, run.end_index - begin,
                        )
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
            self._add(record)

    def epoch_at(self, offset: int) -> int | None:
        """The log epoch in which *offset* was written, None if that is not known any more."""
        found = None
        for start in self.epochs:
            if start.first_offset > offset:
                break
            found = start.epoch
        return found
