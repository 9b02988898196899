"""A transaction: messages to any topics and acks in any groups, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from penstock.arguments import shown
from penstock.errors import BadArgument, UsageError
from penstock.format.batch import encode_single
from penstock.groups.delivery import Delivery
from penstock.groups.registry import GROUPS_OWNER
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.topics.receipt import Receipt
from penstock.volume.tickets import Other

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.format.batch import EncodedBatch
    from penstock.groups.group import Group
    from penstock.groups.reservation import Reservation
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.catalog import Catalog
    from penstock.topics.options import Options
    from penstock.topics.topic import Topic
    from penstock.volume.volume import Volume


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
        # What is to be published: each batch with its topic and log.
        self._topics: list[Topic] = []
        self._logs: list[PartitionLog] = []
        self._batches: list[EncodedBatch | bytes] = []
        """Values that are batches of their own are encoded by the commit, which knows then what to stamp."""
        self._bare = True
        """Whether all of them are such values."""
        self._late: list[tuple[int, str, Callable[[Topic], list[tuple[int, EncodedBatch]]]]] = []
        """Of topics that are not there yet: which of the batches come before, the topic's name, and what encodes for it."""
        self._acks: dict[Group, dict[Delivery, None]] = {}
        self._bodies: list[bytes] = []
        self._ended = False
        self._receipts: list[Receipt] | None = None
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
        topics = self._topics
        # Mostly the topic of the message before. One that is deleted meanwhile is noticed by the commit.
        known = topics[-1] if topics and topics[-1].name == topic else self._catalog.to_publish_now(topic)
        if (
            type(value) is bytes and key is None and headers is None and timestamp is None and ttl is None and delay is None
            and priority is None and compression is None and type(partition) is int and known is not None
            and 0 <= partition < known.partitions and len(value) <= known.single_limit and not self._ended
        ):  # fmt: skip
            # The way that most messages go, in as few steps as can be: a transaction has several. A store that is closed
            # meanwhile is noticed by the commit too.
            topics.append(known)
            self._logs.append(known.logs[partition])
            self._batches.append(value)
            return
        self._check()
        chosen = options(ttl, delay, priority, compression)
        if known is None:
            self._add(topic, lambda target: _encode_one(target, value, key, headers, partition, timestamp, chosen))
            return
        batch, key_data = known.encode(value, key, headers, timestamp, None, chosen)
        if type(partition) is not int or not 0 <= partition < known.partitions:
            partition = known.partition_for(key_data, partition)
        self._put(known, [(partition, batch)])

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
        self._put(topic, [(partition, batch)])

    def _add(self, topic: str, encode: Callable[[Topic], list[tuple[int, EncodedBatch]]]) -> None:
        """Encode now, so that what is not allowed is told now; for a topic that is not there yet, once it is."""
        found = self._catalog.to_publish_later(topic, encode)
        if found is None:
            self._late.append((len(self._batches), topic, encode))
        else:
            self._put(found, encode(found))

    def _put(self, topic: Topic, batches: list[tuple[int, EncodedBatch]]) -> None:
        self._bare = False
        for number, batch in batches:
            self._topics.append(topic)
            self._logs.append(topic.logs[number])
            self._batches.append(batch)

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
        self._commit()
        return self.receipts

    def _commit(self) -> None:
        self._check()
        self._ended = True
        reserved: list[Reservation] = []
        try:
            if self._late:
                self._resolve()
            others: list[Other] = []
            if self._bodies:
                others.append(Other(GROUPS_OWNER, b"".join(self._bodies)))
            operations: list[bytes] = []
            for group, deliveries in self._acks.items():
                operations += group.reserve_acks(list(deliveries), reserved).operations

            def finish() -> None:
                for reservation in reserved:
                    reservation.finish()

            if operations:
                others.append(Other(GROUPS_OWNER, b"".join(operations), finish))
            batches = self._batches
            if self._bare and batches:
                self.first_offsets = self._volume.commit_together(self._logs, cast("list[bytes]", batches), others)
                for topic in self._topics:
                    topic.published += 1
            elif others or batches:
                encoded = [encode_single(batch) if isinstance(batch, bytes) else batch for batch in batches]
                self.first_offsets = self._volume.commit_together(self._logs, encoded, others)
                for topic, each in zip(self._topics, encoded, strict=True):
                    topic.published += each.count
        except BaseException:
            try:
                _release(reserved)
            except BaseException:
                # Ctrl-C, once more: nobody else would ever release them.
                _release(reserved)
                raise
            raise

    def _resolve(self) -> None:
        """Make the topics that are not there yet, and put what is published there in its place."""
        topics, logs, batches = self._topics, self._logs, self._batches
        self._topics, self._logs, self._batches = [], [], []
        done = 0
        for at, name, encode in [*self._late, (len(batches), "", None)]:
            self._topics += topics[done:at]
            self._logs += logs[done:at]
            self._batches += batches[done:at]
            done = at
            if encode is not None:
                topic = self._catalog.to_publish(name, encode)
                self._put(topic, encode(topic))
        self._late = []

    @property
    def receipts(self) -> list[Receipt]:
        """The places of its messages, in order, after the commit; made when they are looked at."""
        if self._receipts is None:
            places = zip(self._topics, self._logs, self._batches, self.first_offsets, strict=False)
            found = [
                Receipt(topic.name, log.identity.partition, first + at)
                for topic, log, batch, first in places
                for at in range(1 if isinstance(batch, bytes) else batch.count)
            ]
            if not self.first_offsets:
                return found
            self._receipts = found
        return self._receipts

    def abort(self) -> None:
        """Drop everything."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self._commit()
        else:
            self.abort()


def _release(reserved: list[Reservation]) -> None:
    for reservation in reserved:
        reservation.release()


def _encode_one(
    target: Topic, value: object, key: object, headers: object, partition: object, timestamp: object, chosen: Options | None
) -> list[tuple[int, EncodedBatch]]:
    batch, key_data = target.encode(value, key, headers, timestamp, None, chosen)
    return [(target.partition_for(key_data, partition), batch)]
