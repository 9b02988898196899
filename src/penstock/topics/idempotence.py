"""
Batches that carry a producer's sequence are stored once, however often they are sent.

The log remembers the last 64 batches of each producer (`log/log_state.py`), which is rebuilt with the log after a crash. What is on its
way to the log is remembered here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import OutcomeUnknown, ProducerFenced, SequenceGap

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.producers import Producers
    from penstock.volume.tickets import AppendTicket
    from penstock.volume.volume import Volume


_TIDY_EVERY = 64
_TIDY_BYTES = 1024 * 1024
"""After so many batches what is stored is forgotten."""


class Sent(NamedTuple):
    """The latest batch that a producer has sent to a partition."""

    incarnation: int
    sequence: int
    ticket: AppendTicket | None

    @property
    def is_refused(self) -> bool:
        """Whether it was certainly not stored."""
        return self.ticket is not None and self.ticket.done and self.ticket.error is not None


class SequenceGate:
    """The way into one partition for batches that carry a sequence. Safe to call from any thread."""

    def __init__(self, volume: Volume, log: PartitionLog, producers: Producers) -> None:
        self._volume = volume
        self._log = log
        self._producers = producers
        self._lock = threading.Lock()
        self._sent: dict[int, Sent] = {}
        self._on_the_way: dict[tuple[int, int, int], AppendTicket] = {}
        self._sends = self._bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether another thread is inside now, and in a log with a weaker mode perhaps waits for the disk."""
        return self._lock.locked()

    def append(self, batch: EncodedBatch) -> tuple[int, bool]:
        """
        Store *batch* unless it is there already; returns its first offset, and whether it was there. Committed when this returns.

        Raises:
            ProducerFenced: a newer producer of the same name has begun.
            SequenceGap: a batch before it is missing.
            OutcomeUnknown: it is too old to tell whether it was stored.
        """
        first, ticket, duplicate = self.submit(batch)
        if ticket is not None:
            ticket.wait()
            first = ticket.first_offset
        assert first is not None
        return first, duplicate

    def submit(
        self, batch: EncodedBatch, callback: Callable[[Ticket], None] | None = None
    ) -> tuple[int | None, AppendTicket | None, bool]:
        """
        The same without waiting: (offset, None, duplicate), or (None, ticket to wait for, duplicate).

        *callback*: of a ticket that is not a duplicate's; see `Volume.submit`.
        """
        producer = batch.producer
        assert producer is not None
        with self._lock:
            self._producers.check(producer.id, producer.incarnation)
            known = self._latest(producer.id)
            if known is not None and producer.incarnation < known.incarnation:
                raise ProducerFenced(f"{producer.id:#018x}", producer.incarnation, known.incarnation)
            ticket = self._on_the_way.get((producer.id, producer.incarnation, producer.sequence))
            if ticket is not None and not ticket.done:
                return None, ticket, True
            least = most = 0 if known is None or producer.incarnation > known.incarnation else known.sequence + 1
            if known is not None and producer.incarnation == known.incarnation and known.is_refused:
                # The last one was not stored, nor maybe some before it: the producer sends them again, or goes on behind them.
                least = self._stored(producer) + 1
            if known is None and producer.sequence > 0:
                # Nothing is known of it any more, so nothing can be missing.
                least = most = producer.sequence
            if producer.sequence > most:
                raise SequenceGap(f"{producer.id:#018x}", producer.sequence, most)
            if producer.sequence < least:
                return self._duplicate(producer)
            return self._send(batch, producer, callback)

    def _stored(self, producer: Producer) -> int:
        """The last sequence of this incarnation that the log has; -1 if it has none."""
        for record in reversed(self._log.state.recent.get(producer.id, ())):
            if record.incarnation == producer.incarnation:
                return record.sequence
        return -1

    def _latest(self, identity: int) -> Sent | None:
        sent = self._sent.get(identity)
        if sent is not None:
            ticket = sent.ticket
            if ticket is None or not ticket.done or ticket.error is None:
                return sent
            if isinstance(ticket.error, OutcomeUnknown):
                raise ticket.error
            # It was refused: nothing of it is stored, and the producer goes on with the next one, or sends it again.
            return sent
        recent = self._log.state.recent.get(identity)
        return Sent(recent[-1].incarnation, recent[-1].sequence, None) if recent else None

    def _duplicate(self, producer: Producer) -> tuple[int, None, bool]:
        for record in reversed(self._log.state.recent.get(producer.id, ())):
            if record.incarnation == producer.incarnation and record.sequence == producer.sequence:
                return record.first_offset, None, True
        raise OutcomeUnknown("the batch", f"producer {producer.id:#018x} sent {producer.sequence} too long ago to tell")

    def _send(
        self, batch: EncodedBatch, producer: Producer, callback: Callable[[Ticket], None] | None
    ) -> tuple[int | None, AppendTicket | None, bool]:
        if not self._log.always:
            # It is in the log when this returns, which remembers it from then on.
            return self._volume.append(self._log, batch), None, False
        ticket = self._volume.submit(self._log, batch, callback)
        self._sent[producer.id] = Sent(producer.incarnation, producer.sequence, ticket)
        key = (producer.id, producer.incarnation, producer.sequence)
        self._on_the_way[key] = ticket
        self._sends += 1
        self._bytes += len(batch.data)
        if self._sends >= _TIDY_EVERY or self._bytes >= _TIDY_BYTES:
            self._tidy()
        return None, ticket, False

    def _tidy(self) -> None:
        """Forget what is stored: the log remembers it, and a ticket holds its whole batch."""
        self._sends = self._bytes = 0
        self._on_the_way = {key: ticket for key, ticket in self._on_the_way.items() if not ticket.done}
        self._sent = {
            identity: sent
            for identity, sent in self._sent.items()
            if sent.ticket is not None and not (sent.ticket.done and sent.ticket.error is None)
        }
