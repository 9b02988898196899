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

from penstock.errors import BadBytes, OutcomeUnknown, PenstockError, SequenceGap, Unavailable
from penstock.format.batch_header import Producer as Identity
from penstock.wire.answers import numbers, whole
from penstock.wire.calls import Call
from penstock.wire.frame import encode_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.client.connection import Connection
    from penstock.client.pending import Pending
    from penstock.files import Buffer
    from penstock.format.batch import EncodedBatch
    from penstock.topics.encoder import MessageEncoder

    Parts = Sequence[tuple[int, EncodedBatch]]


ON_THE_WAY_MAX = 48
"""Batches to one partition that may be unanswered: the server remembers 64, and so recognises each of them."""


FIELDS_KEPT = 10_000
"""Partitions whose fields are kept as they travel."""


LANE_PLACES_MAX = 10_000
"""Partitions that a lane has sequences of: one with more is replaced, with a new id, that begins everywhere at 0."""


def _random_id() -> int:
    return secrets.randbits(63) << 1


def for_server(batch: EncodedBatch, identity: Identity | None) -> EncodedBatch:
    """The *batch* as it travels, with the *identity* of its producer if it has one."""
    chosen = batch if identity is None else batch.with_producer(identity)
    chosen.stamp(0, 0, 0, 0, 0, 0)
    return chosen


class Lane:
    """A producer's id with its sequences, for one batch at a time."""

    __slots__ = ("_sequences", "id")

    def __init__(self) -> None:
        self.id = _random_id()
        self._sequences: dict[tuple[str, int], int] = {}

    def identity(self, topic: str, partition: int) -> Identity:
        """What the next batch carries."""
        return Identity(self.id, 1, self._sequences.get((topic, partition), 0))

    def __len__(self) -> int:
        """Of how many partitions it has a sequence."""
        return len(self._sequences)

    def advance(self, topic: str, partition: int) -> None:
        """The batch is stored."""
        place = (topic, partition)
        self._sequences[place] = self._sequences.get(place, 0) + 1


def request_many(topic: str, parts: Parts, lane: Lane | None) -> tuple[dict[str, Any], list[Buffer]]:
    """Fields and payload of `PUBLISH_MANY`; with a *lane* it may be sent again."""
    payload: list[Buffer] = [
        for_server(batch, None if lane is None else lane.identity(topic, number)).data for number, batch in parts
    ]
    return {"topic": topic, "partitions": [number for number, _ in parts]}, payload


class Lanes:
    """As many lanes as there are publishes at once. Safe to use from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._free: deque[Lane] = deque()
        self._fields: dict[tuple[str, int], bytes] = {}

    def publish(
        self, topic: str, partition: int, encode: Callable[[Identity | None], EncodedBatch], sync: str | None
    ) -> tuple[int, bool]:
        """Store a batch; returns its first offset, and whether it was there. Raises what the server says, or `OutcomeUnknown`."""
        if sync is not None:
            # The strict way of a weaker topic does not look at sequences, so it is not repeated.
            strictly = {"topic": topic, "partition": partition, "sync": sync}
            answer = self._connection.call(Call.PUBLISH, strictly, [encode(None).data], resend=False)
            return whole(answer.fields, "offset"), False
        fields = self._fields.get((topic, partition))
        if fields is None:
            if len(self._fields) >= FIELDS_KEPT:
                self._fields.clear()
            fields = self._fields[topic, partition] = encode_fields({"topic": topic, "partition": partition})
        for attempt in (1, 2):
            lane = self.borrow()
            batch = encode(lane.identity(topic, partition))
            pending = self._connection.begin(Call.PUBLISH, fields, [batch.data])
            try:
                answer = pending.result()
            except SequenceGap:
                # The server knows less of this lane than it did (it came back from a copy, or lost a weak tail): nothing was stored.
                if attempt == 2:
                    raise
            except PenstockError as error:
                self.give_back(lane, topic, partition, error, refused=pending.is_refused)
                if pending.was_sent and not pending.is_refused and isinstance(error, Unavailable):
                    raise OutcomeUnknown("the message", str(error)) from None
                raise
            else:
                self.give_back(lane, topic, partition, None)
                return whole(answer.fields, "offset"), bool(answer.fields.get("duplicate"))
        raise AssertionError("unreachable")

    def publish_many(self, topic: str, parts: Parts, sync: str | None) -> list[int]:
        """Store one batch in each of several partitions, all or none; returns where each begins. Raises as `publish`."""
        if sync is not None:
            # As in `publish`.
            fields, payload = request_many(topic, parts, None)
            answer = self._connection.call(Call.PUBLISH_MANY, {**fields, "sync": sync}, payload, resend=False)
            return numbers(answer.fields, "offsets", len(parts))
        for attempt in (1, 2):
            lane = self.borrow()
            fields, payload = request_many(topic, parts, lane)
            pending = self._connection.begin(Call.PUBLISH_MANY, fields, payload)
            try:
                answer = pending.result()
            except SequenceGap:
                # As in `publish`.
                if attempt == 2:
                    raise
            except PenstockError as error:
                self.give_back_many(lane, topic, fields["partitions"], error, refused=pending.is_refused)
                if pending.was_sent and not pending.is_refused and isinstance(error, Unavailable):
                    raise OutcomeUnknown("the messages", str(error)) from None
                raise
            else:
                self.give_back_many(lane, topic, fields["partitions"], None)
                return numbers(answer.fields, "offsets", len(parts))
        raise AssertionError("unreachable")

    def borrow(self) -> Lane:
        """A lane for one batch."""
        try:
            return self._free.pop()
        except IndexError:
            return Lane()

    def give_back(self, lane: Lane, topic: str, partition: int, error: PenstockError | None, *, refused: bool = False) -> None:
        """The batch that it was borrowed for is stored, or failed; *refused*: the server said so."""
        self.give_back_many(lane, topic, [partition], error, refused=refused)

    def give_back_many(
        self, lane: Lane, topic: str, partitions: Sequence[int], error: PenstockError | None, *, refused: bool = False
    ) -> None:
        """The same for batches that went together."""
        if error is None:
            for partition in partitions:
                lane.advance(topic, partition)
        elif not refused or isinstance(error, (OutcomeUnknown, SequenceGap)):
            return  # the lane goes too: whether its sequence is used nobody knows
        if len(lane) <= LANE_PLACES_MAX:
            self._free.append(lane)


_FINISHING = threading.Lock()
"""Held for the moment in which a batch is done, so that its callback is called once."""


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
        with _FINISHING:
            if not self.done:
                self._callback = callback
                return
        callback(self)

    def finish(self, first_offset: int | None, error: PenstockError | None) -> None:
        """The answer is there."""
        with _FINISHING:
            self.first_offset, self.error = first_offset, error
            self.done = True
            callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


class _Line:
    """A producer's batches to one partition."""

    __slots__ = ("error", "failed_at", "id", "is_lost", "next", "on_the_way")

    def __init__(self, identity: int) -> None:
        self.id = identity
        self.next = 0
        self.on_the_way = 0
        self.failed_at: int | None = None
        """The first sequence that the server has not taken."""
        self.is_lost = False
        """Whether nobody can tell which sequences are used."""
        self.error: PenstockError | None = None


class RemoteOutlet:
    """Where a remote producer's batches go. Its producer calls it under a lock; answers come in whichever thread reads."""

    is_quick = False

    def __init__(self, connection: Connection, topic: MessageEncoder, name: str | None) -> None:
        self._connection = connection
        self.topic = topic
        self._name = name
        self._incarnation = 1
        identities = [_random_id() for _ in range(topic.partitions)]
        if name is not None:
            opened = connection.call(Call.OPEN_PRODUCER, {"topic": topic.name, "name": name}).fields
            identities = [whole(opened, "id")] * topic.partitions
            self._incarnation = whole(opened, "incarnation")
        self._lines = [_Line(identity) for identity in identities]
        self._lock = threading.RLock()
        """What is entered, and not the condition: see penstock.threads."""
        self._room = threading.Condition(self._lock)

    def identity(self, partition: int) -> Identity:
        """See `Outlet`. Raises the error of a batch before it, as long as its fate hangs over those behind it."""
        line = self._lines[partition]
        with self._lock:
            self._room.wait_for(lambda: line.on_the_way < ON_THE_WAY_MAX)
            if line.error is not None:
                if line.on_the_way:
                    raise line.error
                if line.is_lost:
                    if self._name is not None:
                        raise OutcomeUnknown(f"the last batch of producer {self._name}", "close it and open it again")
                    line.id, line.next = _random_id(), 0
                elif line.failed_at is not None:
                    line.next = line.failed_at
                line.failed_at, line.error, line.is_lost = None, None, False
            return Identity(line.id, self._incarnation, line.next)

    def submit(self, partition: int, batch: EncodedBatch) -> tuple[int | None, RemoteCommitment]:
        """See `Outlet`."""
        line, commitment = self._lines[partition], RemoteCommitment()
        batch.stamp(0, 0, 0, 0, 0, 0)
        with self._lock:
            sequence = line.next
            line.next += 1
            line.on_the_way += 1

        def answered(pending: Pending) -> None:
            error = self._note(line, sequence, pending)
            first = None
            try:
                first = None if pending.frame is None else whole(pending.frame.fields, "offset")
            except BadBytes as wrong:
                error = wrong
            self._connection.deferred.add(lambda: commitment.finish(first, error))

        fields = {"topic": self.topic.name, "partition": partition}
        try:
            self._connection.begin(Call.PUBLISH, fields, [batch.data], callback=answered)
        except PenstockError:
            with self._lock:
                line.next -= 1
                line.on_the_way -= 1
                self._room.notify_all()
            raise
        return None, commitment

    def _note(self, line: _Line, sequence: int, pending: Pending) -> PenstockError | None:
        """What an answer means for those behind it; returns the error for its own messages."""
        error = pending.error
        with self._lock:
            line.on_the_way -= 1
            self._room.notify_all()
            if error is None:
                if line.failed_at is not None and sequence >= line.failed_at:
                    line.failed_at = sequence + 1  # it was taken though one before it was not
                return None
            first = line.error is None
            if not pending.is_refused or isinstance(error, OutcomeUnknown) or (first and isinstance(error, SequenceGap)):
                line.is_lost = True
                if pending.was_sent and not pending.is_refused and isinstance(error, Unavailable):
                    error = OutcomeUnknown("the message", str(error))
            elif isinstance(error, SequenceGap):
                error = line.error  # refused only because one before it was
            elif line.failed_at is None or sequence < line.failed_at:
                line.failed_at = sequence
            if first:
                line.error = error
            return error

    def note_published(self, count: int) -> None:
        """See `Outlet`: the server counts."""

    def commit(self) -> None:
        """See `Outlet`: the server commits."""
