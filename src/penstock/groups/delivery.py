"""A delivery: a message that a group has handed to one of its members, with the right to finish it."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Self

from penstock.errors import LeaseExpired, PenstockError
from penstock.topics.message import Message

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.format.batch import Batch
    from penstock.groups.cursor import Cursor
    from penstock.groups.member import Member
    from penstock.settings import GroupSettings

PARTITION_BITS = 14
"""A delivery's key in its member's table is ``offset << 14 | partition``: one int, and cheaper than a tuple."""
COMMITTING = "committing"
"""A delivery runs in this way while a transaction that finishes it is being committed: not even its consumer's end returns it."""


_numbers = itertools.count()
"""Lots are numbered in the order in which they were leased."""


def message_bytes(batch: Batch) -> int:
    """About how much a message of *batch* takes."""
    return max(1, len(batch.buffer) // len(batch))


class Lot:
    """Messages [index, stop) of one batch that are leased to a member and not handed out yet."""

    __slots__ = ("batch", "cursor", "each", "epoch", "index", "member", "number", "partition", "shift", "stop")

    expires_us: int | None = None
    """Nothing of it expires before this moment; None: nothing ever does."""

    def __init__(self, member: Member, cursor: Cursor, batch: Batch, index: int, stop: int) -> None:
        self.member = member
        self.cursor = cursor
        self.partition = cursor.partition
        self.epoch = cursor.epoch
        self.batch = batch
        self.index = index
        self.stop = stop
        self.each = message_bytes(batch)
        self.number = next(_numbers)
        header = batch.header
        # offset = index + shift where the batch is dense; a compacted one must be asked.
        self.shift: int | None = header.first_offset if header.offset_span == header.count else None

    def renumber(self) -> None:
        """It is leased after all others that there are now."""
        self.number = next(_numbers)

    def offset(self, index: int) -> int:
        """The offset of the message at *index* of the batch."""
        return self.batch.offset(index) if self.shift is None else index + self.shift

    def part(self, member: Member, index: int, stop: int) -> Lot:
        """Messages [index, stop) of the same batch, leased to *member*."""
        return Lot(member, self.cursor, self.batch, index, stop)

    def __len__(self) -> int:
        return self.stop - self.index


class MortalLot(Lot):
    """A lot of messages some of which expire: each is looked at when it is handed out."""

    __slots__ = ("expires_us",)

    def __init__(self, member: Member, cursor: Cursor, batch: Batch, index: int, stop: int, expires_us: int) -> None:
        super().__init__(member, cursor, batch, index, stop)
        self.expires_us = expires_us
        self.shift = None

    def part(self, member: Member, index: int, stop: int) -> Lot:
        """The same."""
        assert self.expires_us is not None
        return MortalLot(member, self.cursor, self.batch, index, stop, self.expires_us)


class Delivery(Message):
    """
    A message that was handed to a consumer. Finish it by `ack`, or give it back by `nack` or `reject`, once.

    As a context manager it acks when the block ends, nacks when it raises (the exception goes on), and keeps its lease while the
    block runs. Otherwise it comes again when its lease ends; then finishing it raises `LeaseExpired` and changes nothing.
    """

    __slots__ = ("_deadline", "_lot", "_running", "_taken_s", "attempt")

    _taken_s: float
    """When it was handed out, while somebody measures, and if it is one that is measured; else it is not set."""

    # Not calling Message.__init__ and taking the rest from the lot: there is one of these for each message delivered.
    def __init__(self, lot: Lot, index: int, offset: int, deadline: float, attempt: int) -> None:
        self._lot = lot
        self._batch = lot.batch
        self._index = index
        self.offset = offset
        self.partition = lot.partition
        self.attempt = attempt
        self._deadline = deadline
        self._running: bool | str = False

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self._lot.member.group.topic

    @property
    def group(self) -> str:
        """The name of the group that delivered it."""
        return self._lot.member.group.name

    @property
    def group_settings(self) -> GroupSettings:
        """What the group does with messages that fail."""
        return self._lot.member.group.settings

    def ack(self, *, wait: bool = False) -> None:
        """
        It is done. Durable within a few milliseconds; with *wait* when this returns.

        Raises `LeaseExpired`: it is not this consumer's any more; nothing was changed.
        """
        self._lot.member.group.ack([self], wait=wait)

    def nack(self, *, delay: object = None, reason: object = None) -> None:
        """
        It failed: deliver it again after *delay* seconds (default: growing with each failure), or dead-letter it.

        *reason* (text, or the exception) goes into the dead letter. Raises `LeaseExpired`.
        """
        self._lot.member.group.nack([self], delay=delay, reason=reason)

    def reject(self, reason: object = None) -> None:
        """It can never be handled: dead-letter it now. Raises `LeaseExpired`."""
        self._lot.member.group.nack([self], reason=reason, reject=True)

    def extend(self, seconds: object = None) -> None:
        """Keep it for *seconds* from now on (default: the group's lease). Raises `LeaseExpired`."""
        self._lot.member.group.extend(self, seconds)

    def __enter__(self) -> Self:
        try:
            self._lot.member.group.begin(self)
            return self
        except BaseException as error:
            # Ctrl-C: the block does not run, so nothing keeps the lease any more.
            self._stop_running(error)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._end(error)
        except BaseException as interrupt:
            # As above: the block has ended.
            self._stop_running(interrupt)
            raise

    def _stop_running(self, error: BaseException) -> None:
        if self._running is True and not isinstance(error, PenstockError):
            self._running = False

    def _end(self, error: BaseException | None) -> None:
        group = self._lot.member.group
        if error is None:
            if group.end(self):
                group.ack([self])
            return
        # What the block raised matters more than a lease that has ended.
        with contextlib.suppress(LeaseExpired):
            if not group.end(self):
                return
            if isinstance(error, Exception):
                group.nack([self], reason=error)
            else:
                # Ctrl-C, cancellation, the end of a generator: a shutdown is not a failure.
                group.give_back(self)


def key_of(delivery: Delivery) -> int:
    """Its key in its member's table."""
    return delivery.offset << PARTITION_BITS | delivery.partition


def is_valid(delivery: Delivery) -> bool:
    """Whether its consumer may still finish *delivery*."""
    lot = delivery._lot  # noqa: SLF001
    return (
        lot.member.holds(delivery) and lot.epoch == lot.cursor.epoch and delivery._running is not COMMITTING  # noqa: SLF001
    )
