"""
Batches that carry a producer's sequence are stored once, however often they are sent.

The log remembers the last 64 batches of each producer (`log/log_state.py`), which is rebuilt with the log after a crash. What is on its
way to the log is remembered here.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.errors import OutcomeUnknown, ProducerFenced, SequenceGap, UsageError
from penstock.interrupts import Held
from penstock.log.log_state import PRODUCERS_MAX
from penstock.volume.tickets import Append, AppendTicket, ChangesTicket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.errors import PenstockError
    from penstock.format.batch import EncodedBatch
    from penstock.format.batch_header import Producer
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.producers import Producers
    from penstock.volume.volume import Volume


class Sent(NamedTuple):
    """The latest batch that a producer has sent to a partition."""

    incarnation: int
    sequence: int
    ticket: Ticket | None = None
    """While it is on its way, and a while longer: a ticket holds its whole batch, and is let go of when the next one comes."""
    failure: PenstockError | None = None
    """What became of it, where the ticket is gone."""

    @property
    def error(self) -> PenstockError | None:
        """Why it was not stored, or may not be; None if it is, or is on its way."""
        ticket = self.ticket
        return self.failure if ticket is None or not ticket.done else ticket.error

    @property
    def is_refused(self) -> bool:
        """Whether it was certainly not stored."""
        return self.error is not None


class SequenceGate:
    """The way into one partition for batches that carry a sequence. Safe to call from any thread."""

    def __init__(self, volume: Volume, log: PartitionLog, producers: Producers) -> None:
        self._volume = volume
        self._log = log
        self._producers = producers
        self._lock = threading.Lock()
        self._sent: OrderedDict[int, Sent] = OrderedDict()
        """Of producers whose latest batch the log does not tell of: it is on its way, or failed."""
        self._on_the_way: OrderedDict[tuple[int, int, int], Ticket] = OrderedDict()

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
            known = self._look(producer)
            if isinstance(known, int):
                return known, None, True
            if known is not None:
                if not isinstance(known, AppendTicket):
                    raise UsageError("this batch is on its way already, together with others")
                return None, known, True
            return self._send(batch, producer, callback)

    def _look(self, producer: Producer) -> Ticket | int | None:
        """What became of a batch: its ticket while it is on its way, its first offset if it is stored, None if it is new."""
        self._producers.check(producer.id, producer.incarnation)
        known = self._latest(producer.id)
        if known is not None and producer.incarnation < known.incarnation:
            raise ProducerFenced(self._producers.name_of(producer.id), producer.incarnation, known.incarnation)
        ticket = self._on_the_way.get((producer.id, producer.incarnation, producer.sequence))
        if ticket is not None and not ticket.done:
            return ticket
        least = most = 0 if known is None or producer.incarnation > known.incarnation else known.sequence + 1
        if known is not None and producer.incarnation == known.incarnation and known.is_refused:
            # The last one was not stored, nor maybe some before it: the producer sends them again, or goes on behind them.
            least = self._stored(producer) + 1
        if known is None and producer.sequence > 0:
            # Nothing is known of it any more, so nothing can be missing.
            least = most = producer.sequence
        if producer.sequence > most:
            raise SequenceGap(self._producers.name_of(producer.id), producer.sequence, most)
        return self._duplicate(producer) if producer.sequence < least else None

    def _stored(self, producer: Producer) -> int:
        """The last sequence of this incarnation that the log has; -1 if it has none."""
        recent = self._log.state.recent.get(producer.id)
        return -1 if recent is None or recent.incarnation != producer.incarnation else recent.newest.sequence

    def _latest(self, identity: int) -> Sent | None:
        sent = self._sent.get(identity)
        if sent is not None:
            error = sent.error
            if isinstance(error, OutcomeUnknown):
                raise error
            # If it was refused, nothing of it is stored, and the producer goes on with the next one, or sends it again.
            return sent
        recent = self._log.state.recent.get(identity)
        return None if recent is None else Sent(recent.incarnation, recent.newest.sequence)

    def _duplicate(self, producer: Producer) -> int:
        recent = self._log.state.recent.get(producer.id)
        if recent is not None and recent.incarnation == producer.incarnation:
            record = recent.find(producer.sequence)
            if record is not None:
                return record.first_offset
        raise OutcomeUnknown(
            "the batch", f"producer {self._producers.name_of(producer.id)} sent {producer.sequence} too long ago to tell"
        )

    def _send(
        self, batch: EncodedBatch, producer: Producer, callback: Callable[[Ticket], None] | None
    ) -> tuple[int | None, AppendTicket | None, bool]:
        if not self._log.always:
            # It is in the log when this returns, which remembers it from then on.
            return self._volume.append(self._log, batch), None, False
        ticket = self._volume.submit(self._log, batch, callback)
        self._note(producer, ticket)
        return None, ticket, False

    def _note(self, producer: Producer, ticket: Ticket) -> None:
        """The batch is on its way with *ticket*."""
        self._forget_done()
        self._sent.pop(producer.id, None)  # to the end, where the newest are
        self._sent[producer.id] = Sent(producer.incarnation, producer.sequence, ticket)
        self._on_the_way[producer.id, producer.incarnation, producer.sequence] = ticket
        while len(self._sent) > PRODUCERS_MAX and next(iter(self._sent.values())).ticket is None:
            # It failed, and its producer has sent nothing since, and may be gone: from now on what the log knows of it counts.
            self._sent.popitem(last=False)

    def _forget_done(self) -> None:
        """Let go of the tickets that are done: what is stored the log remembers."""
        # They are done in the order in which they were sent, or almost.
        while self._on_the_way:
            key, ticket = next(iter(self._on_the_way.items()))
            if not ticket.done:
                return
            del self._on_the_way[key]
            sent = self._sent.get(key[0])
            if sent is not None and sent.ticket is ticket:
                if ticket.error is None:
                    del self._sent[key[0]]
                else:
                    self._sent[key[0]] = sent._replace(ticket=None, failure=ticket.error)


def submit_together(
    volume: Volume, parts: Sequence[tuple[SequenceGate, EncodedBatch]], callback: Callable[[Ticket], None] | None = None
) -> tuple[list[int] | None, Ticket | None, bool]:
    """
    `SequenceGate.submit` of one batch for each of several partitions: in one frame of the journal, where that commits them.

    Returns (offsets, None, duplicate), or (None, the ticket to wait for, duplicate); `offsets_of` has what it gave. In a topic with a
    weaker mode, of which a power cut may have taken a part, what is stored already is not stored again. Raises what
    `SequenceGate.append` raises, and then nothing was stored.
    """
    with Held(), contextlib.ExitStack() as locks:
        # In one order, whatever that of the parts is.
        for gate, _ in sorted(parts, key=lambda part: part[0]._log.log_id):  # noqa: SLF001
            locks.enter_context(gate._lock)  # noqa: SLF001
        known: list[Ticket | int | None] = []
        for gate, batch in parts:
            assert batch.producer is not None
            known.append(gate._look(batch.producer))  # noqa: SLF001
        ticket = next((one for one in known if one is not None and not isinstance(one, int)), None)
        if ticket is not None:
            # It may be done by now, and then some of its batches were seen as stored.
            if not isinstance(ticket, ChangesTicket) or [change.batch.producer for change in ticket.changes] != [  # type: ignore[union-attr]
                batch.producer for _, batch in parts
            ]:
                raise UsageError("some of these batches are on their way already, otherwise than together")
            return None, ticket, True
        new = [part for part, one in zip(parts, known, strict=True) if one is None]
        if not new:
            return [one for one in known if isinstance(one, int)], None, True
        if any(gate._log.always for gate, _ in new):  # noqa: SLF001
            if len(new) < len(parts):
                raise UsageError("some of these batches are stored already, otherwise than together")
            made = volume.submit_changes([Append(gate._log, batch) for gate, batch in new], callback)  # noqa: SLF001
            for gate, batch in new:
                assert batch.producer is not None
                gate._note(batch.producer, made)  # noqa: SLF001
            return None, made, False
        firsts: list[int] = []
        volume.append_all([gate._log for gate, _ in new], [batch for _, batch in new], firsts)  # noqa: SLF001
        places = iter(firsts)
        return [one if isinstance(one, int) else next(places) for one in known], None, False


def offsets_of(ticket: Ticket) -> list[int]:
    """Where the batches of a ticket begin that `submit_together` gave, once it is done."""
    assert isinstance(ticket, ChangesTicket)
    return ticket.first_offsets
