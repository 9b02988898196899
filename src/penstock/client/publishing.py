"""
Publishing over a connection so that a lost answer never makes a copy.

Every batch carries a producer's id and a sequence, by which the server recognises one that is sent again. A plain publish borrows a
*lane*: an id with its own sequences, that has one batch on its way at a time. A batch that was refused has used up no sequence. A
producer has an id to itself and many batches on their way; when one of them is refused those behind it are refused too (they come
out of turn), and it goes on with the sequence of the first one when the last answer is there.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.errors import Closed, OutcomeUnknown, PenstockError, SequenceGap, Unavailable
from penstock.format.batch_header import Producer as Identity
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.connection import Connection, Pending
    from penstock.format.batch import EncodedBatch
    from penstock.topics.encoder import MessageEncoder


def _random_id() -> int:
    return secrets.randbits(63) << 1


class Lane:
    """A producer's id with its sequences, for one batch at a time."""

    __slots__ = ("_sequences", "id")

    def __init__(self) -> None:
        self.id = _random_id()
        self._sequences: dict[tuple[str, int], int] = {}

    def identity(self, topic: str, partition: int) -> Identity:
        """What the next batch carries."""
        return Identity(self.id, 1, self._sequences.get((topic, partition), 0))

    def advance(self, topic: str, partition: int) -> None:
        """The batch is stored."""
        place = (topic, partition)
        self._sequences[place] = self._sequences.get(place, 0) + 1


class Lanes:
    """As many lanes as there are publishes at once. Safe to use from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._free: deque[Lane] = deque()

    def publish(
        self, topic: str, partition: int, encode: Callable[[Identity | None], EncodedBatch], sync: str | None
    ) -> tuple[int, bool]:
        """Store a batch; returns its first offset, and whether it was there. Raises what the server says, or `OutcomeUnknown`."""
        fields: dict[str, Any] = {"topic": topic, "partition": partition}
        if sync is not None:
            # The strict way of a weaker topic does not look at sequences, so it is not repeated.
            fields["sync"] = sync
            answer = self._connection.call(Call.PUBLISH, fields, [encode(None).data], resend=False)
            return int(answer.fields["offset"]), False
        lane = self.borrow()
        try:
            batch = encode(lane.identity(topic, partition))
            answer = self._connection.call(Call.PUBLISH, fields, [batch.data])
        except PenstockError as error:
            self.give_back(lane, topic, partition, error)
            raise
        self.give_back(lane, topic, partition, None)
        return int(answer.fields["offset"]), bool(answer.fields["duplicate"])

    def borrow(self) -> Lane:
        """A lane for one batch."""
        try:
            return self._free.pop()
        except IndexError:
            return Lane()

    def give_back(self, lane: Lane, topic: str, partition: int, error: PenstockError | None) -> None:
        """The batch that it was borrowed for is stored, or failed."""
        if isinstance(error, (OutcomeUnknown, Unavailable, Closed)):
            return  # the lane goes too: whether its sequence is used nobody knows
        if error is None:
            lane.advance(topic, partition)
        self._free.append(lane)


class RemoteCommitment:
    """A producer's batch on its way to the server."""

    __slots__ = ("_callback", "done", "error", "first_offset")

    def __init__(self) -> None:
        self.done = False
        self.error: PenstockError | None = None
        self.first_offset: int | None = None
        self._callback: Callable[[RemoteCommitment], None] | None = None

    def on_done(self, callback: Callable[[RemoteCommitment], None]) -> None:
        """See `Commitment`."""
        self._callback = callback
        # Both orders are safe: who finishes it sets `done` before it looks for the callback.
        if self.done and self._callback is not None:
            self._callback = None
            callback(self)

    def finish(self, first_offset: int | None, error: PenstockError | None) -> None:
        """The answer is there."""
        self.first_offset, self.error = first_offset, error
        self.done = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


class _Line:
    """A producer's batches to one partition."""

    __slots__ = ("error", "failed_at", "next", "on_the_way")

    def __init__(self) -> None:
        self.next = 0
        self.on_the_way = 0
        self.failed_at: int | None = None
        self.error: PenstockError | None = None


class RemoteOutlet:
    """Where a remote producer's batches go. Its producer calls it under a lock; answers come in the reading thread."""

    def __init__(self, connection: Connection, topic: MessageEncoder, name: str | None) -> None:
        self._connection = connection
        self.topic = topic
        self._id, self._incarnation = _random_id(), 1
        if name is not None:
            opened = connection.call(Call.OPEN_PRODUCER, {"topic": topic.name, "name": name}).fields
            self._id, self._incarnation = int(opened["id"]), int(opened["incarnation"])
        self._lines = [_Line() for _ in range(topic.partitions)]
        self._lock = threading.Lock()

    def identity(self, partition: int) -> Identity:
        """See `Outlet`."""
        line = self._lines[partition]
        with self._lock:
            if line.failed_at is not None:
                if line.on_the_way:
                    assert line.error is not None
                    raise line.error
                line.next, line.failed_at, line.error = line.failed_at, None, None
            return Identity(self._id, self._incarnation, line.next)

    def submit(self, partition: int, batch: EncodedBatch) -> tuple[int | None, RemoteCommitment]:
        """See `Outlet`."""
        line, commitment = self._lines[partition], RemoteCommitment()
        batch.stamp(0, 0, 0, 0, 0, 0)
        with self._lock:
            sequence = line.next
            line.next += 1
            line.on_the_way += 1

        def answered(pending: Pending) -> None:
            error = pending.error
            with self._lock:
                line.on_the_way -= 1
                if error is not None:
                    if line.failed_at is None or sequence < line.failed_at:
                        line.failed_at, line.error = sequence, error
                    elif isinstance(error, SequenceGap):
                        error = line.error
            frame = pending.frame
            commitment.finish(None if frame is None else int(frame.fields["offset"]), error)

        fields = {"topic": self.topic.name, "partition": partition}
        try:
            self._connection.begin(Call.PUBLISH, fields, [batch.data], callback=answered)
        except PenstockError:
            with self._lock:
                line.next -= 1
                line.on_the_way -= 1
            raise
        return None, commitment

    def note_published(self, count: int) -> None:
        """See `Outlet`: the server counts."""

    def commit(self) -> None:
        """See `Outlet`: the server commits."""
