"""A transaction: messages to any topics and acks in any groups, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.arguments import shown
from penstock.errors import BadArgument, UsageError
from penstock.groups.delivery import Delivery
from penstock.groups.registry import GROUPS_OWNER
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.topics.receipt import Receipt
from penstock.volume.tickets import Append, Other

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.format.batch import EncodedBatch
    from penstock.groups.group import Group
    from penstock.groups.reservation import Reservation
    from penstock.topics.catalog import Catalog
    from penstock.topics.options import Options
    from penstock.topics.topic import Topic
    from penstock.volume.tickets import Change
    from penstock.volume.volume import Volume

    _Part = tuple[
        str, Topic | None, list[tuple[int, EncodedBatch]], Callable[[Topic], list[tuple[int, EncodedBatch]]] | None
    ]  # fmt: skip


class Transaction:
    """
    Gathers changes and commits them as one frame of the journal. Made by `Store.transaction`; for one thread.

    As a context manager it commits when the block ends, and drops everything when the block raises: its messages are never seen,
    and what it would have acked stays with its consumer. `receipts` has the places of its messages, in order, after the commit.
    """

    def __init__(self, catalog: Catalog, volume: Volume, check_open: Callable[[], None]) -> None:
        self._catalog = catalog
        self._volume = volume
        self._check_open = check_open
        self._parts: list[_Part] = []
        self._acks: dict[Group, dict[Delivery, None]] = {}
        self._bodies: list[bytes] = []
        self._ended = False
        self.receipts: list[Receipt] = []
        self.first_offsets: list[int] = []
        """Where each batch begins, after the commit."""

    def publish(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        headers: object = None,
        partition: object = None,
        timestamp: object = None,
        ttl: object = None,
        delay: object = None,
        priority: object = None,
        compression: object = None,
    ) -> None:
        """Publish a message when the transaction commits. Raises `UsageError` now if it is not allowed."""
        self._check()
        chosen = options(ttl, delay, priority, compression)
        found = self._catalog.to_publish_now(topic)
        if found is None:
            self._add(topic, lambda target: _encode_one(target, value, key, headers, partition, timestamp, chosen))
            return
        self._parts.append((topic, found, _encode_one(found, value, key, headers, partition, timestamp, chosen), None))

    def publish_many(
        self,
        topic: str,
        values: object,
        *,
        keys: object = None,
        headers: object = None,
        partition: object = None,
        timestamps: object = None,
        ttls: object = None,
        delays: object = None,
        priorities: object = None,
        compression: object = None,
    ) -> None:
        """Publish messages when the transaction commits."""
        self._check()
        chosen = options(ttls, delays, priorities, compression)

        def encode(target: Topic) -> list[tuple[int, EncodedBatch]]:
            columns = Columns(target, values, keys, headers, timestamps, None, chosen)
            return [(number, batch) for number, _, batch in columns.split(partition)] if columns.values else []

        self._add(topic, encode)

    def add_batch(self, topic: Topic, partition: int, batch: EncodedBatch) -> None:
        """Publish a batch that somebody else encoded."""
        self._check()
        self._parts.append((topic.name, topic, [(partition, batch)], None))

    def _add(self, topic: str, encode: Callable[[Topic], list[tuple[int, EncodedBatch]]]) -> None:
        """Encode now, so that what is not allowed is told now; for a topic that is not there yet, once it is."""
        found = self._catalog.to_publish_later(topic, encode)
        self._parts.append((topic, found, [] if found is None else encode(found), encode))

    def ack(self, message: Delivery) -> None:
        """Finish *message* when the transaction commits. Raises `LeaseExpired` then if it is not its consumer's any more."""
        self._check()
        if not isinstance(message, Delivery):
            raise BadArgument("message", shown(message), "must be a message that a group delivered")
        self._acks.setdefault(message._lot.member.group, {})[message] = None  # noqa: SLF001

    def finish_unleased(self, group: Group, partition: int, offsets: list[int]) -> None:
        """Finish messages of a group that has no members, when the transaction commits."""
        self._bodies += group.finish_unleased(partition, offsets)

    @property
    def ended(self) -> bool:
        """Whether it was committed or dropped."""
        return self._ended

    def _check(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended; begin another one")
        self._check_open()

    def commit(self) -> list[Receipt]:
        """
        Make everything durable and visible at once; returns the receipts.

        Raises:
            LeaseExpired: a message to be acked is not its consumer's any more; nothing was changed.
            StorageFull, BatchTooLarge: nothing was changed.
            OutcomeUnknown: the disk failed meanwhile.
        """
        self._check()
        self._ended = True
        reserved: list[Reservation] = []
        committed = False
        try:
            changes = self._resolve()
            if self._bodies:
                changes.append(Other(GROUPS_OWNER, b"".join(self._bodies)))
            operations: list[bytes] = []
            for group, deliveries in self._acks.items():
                reservation = group.reserve_acks(list(deliveries))
                reserved.append(reservation)
                operations += reservation.operations

            def finish() -> None:
                for reservation in reserved:
                    reservation.finish()

            if operations:
                changes.append(Other(GROUPS_OWNER, b"".join(operations), finish))
            if changes:
                ticket = self._volume.commit_changes(changes)
                committed = True
                self.first_offsets = ticket.first_offsets
                self._note_receipts(ticket.first_offsets)
        finally:
            if not committed:
                for reservation in reserved:
                    reservation.release()
        return self.receipts

    def _resolve(self) -> list[Change]:
        """Make the topics that are not there yet; returns what is to be published."""
        changes: list[Change] = []
        for at, (name, found, batches, encode) in enumerate(self._parts):
            if found is not None:
                topic, encoded = found, batches
            else:
                assert encode is not None
                topic = self._catalog.to_publish(name, encode)
                encoded = encode(topic)
                self._parts[at] = (name, topic, encoded, None)
            logs = topic.logs
            changes += [Append(logs[number], batch) for number, batch in encoded]
        return changes

    def _note_receipts(self, first_offsets: list[int]) -> None:
        receipts = self.receipts
        firsts = iter(first_offsets)
        for name, topic, batches, _ in self._parts:
            assert topic is not None
            for number, batch in batches:
                count = batch.count
                topic.published += count
                first = next(firsts)
                if count == 1:
                    receipts.append(Receipt(name, number, first))
                else:
                    receipts += [Receipt(name, number, first + at) for at in range(count)]

    def abort(self) -> None:
        """Drop everything."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self.commit()
        else:
            self.abort()


def _encode_one(
    target: Topic, value: object, key: object, headers: object, partition: object, timestamp: object, chosen: Options | None
) -> list[tuple[int, EncodedBatch]]:
    batch, key_data = target.encode(value, key, headers, timestamp, None, chosen)
    return [(target.partition_for(key_data, partition), batch)]
