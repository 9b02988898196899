"""
A consumer of a client that is somewhere else.

The client names its deliveries by tags, numbers that count up. It takes messages in two ways: it asks for some and waits (`fetch`), or
gives credit, and messages are pushed as they come, as many as the credit allows. What was handed out and is not finished is held
here; it is given back, and the oldest counted as failed, when the connection is lost.

The lease of a message that was asked for runs at once. One that was pushed waits at the client for its turn, without a lease, as long as
the client is heard; its lease runs when the client says, by a heartbeat, that its user has it. Of a client that sends none the leases of
the oldest run, as many as it handles at once, from when it was heard after they were pushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from typing import TYPE_CHECKING, Any

from penstock.aio.consumer import AsyncConsumer
from penstock.errors import BadArgument, Closed, LeaseExpired, PenstockError, Unavailable
from penstock.log_events import get_logger
from penstock.wire.deliveries import encode_deliveries
from penstock.wire.failures import encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.files import Buffer
    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer

    Push = Callable[[dict[str, Any], list[Buffer]], None]

_log = get_logger("penstock.broker")
TAGS_MORE_MAX = 100_000
"""How many more tags a call may name than there are deliveries: late ones."""
ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""What one answer or push holds, if it is more than one message."""
PUSH_MESSAGES_MAX = 500
PUSH_BYTES_MAX = 1024 * 1024
"""What one push holds, so that a slow connection has little on its way."""


class Pushing(AsyncConsumer):
    """Takes what is pushed."""

    _pushed = True


class Subscription:
    """One remote consumer, and the `Client` of its member. Used in the event loop; closed in any thread."""

    def __init__(
        self, consumer: Consumer, concurrency: int, push: Push, check_allowed: Callable[[], None] = lambda: None, *,
        beats: bool = False, recalls: bool = False,
    ) -> None:  # fmt: skip
        """
        *check_allowed* raises if its client may not be given messages any more: its token may have ended since it asked.

        *beats*, *recalls*: see `groups.member.Client`.
        """
        self.beats = beats
        self.recalls = recalls
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.consumer = consumer
        self._check_allowed = check_allowed
        self._taking = AsyncConsumer(consumer)
        self._pushing: AsyncConsumer = Pushing(consumer)
        self._concurrency = concurrency
        self._push = push
        self._held: dict[int, Delivery] = {}
        # Random: a tag of another connection, which a client kept by mistake, must not name anything here.
        self._next_tag = secrets.randbits(40)
        self._credit = 0
        self._each_bytes = 0
        """About how much a message took of the last push or answer."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._has_credit = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._asked_back = 0
        self._begun_to = self._next_tag
        consumer._group.watch(consumer._member, self)  # noqa: SLF001

    # -- handing out ------------------------------------------------------------------------------------------------

    async def fetch(self, count: int, wait: object) -> tuple[dict[str, Any], list[Buffer]]:
        """Up to *count* messages, as fields and payload. Raises what `Consumer.get_many` and *check_allowed* raise."""
        return self._hand_out(await self._take_allowed(self._taking, count, wait), ANSWER_BYTES_MAX)

    async def _take_allowed(self, taking: AsyncConsumer, count: int, wait: object) -> list[Delivery]:
        found = await taking.take(count, wait)
        try:
            self._check_allowed()
        except PenstockError:
            self._keep(found)
            raise
        return found

    def _hand_out(self, deliveries: Sequence[Delivery], bytes_max: int) -> tuple[dict[str, Any], list[Buffer]]:
        first = self._next_tag
        lots, payload = encode_deliveries(deliveries, first)
        while len(deliveries) > 1 and sum(map(len, payload)) > bytes_max:
            # The second half is not the client's yet: it is handed out again at once.
            half = len(deliveries) // 2
            self._keep(deliveries[half:])
            deliveries = deliveries[:half]
            lots, payload = encode_deliveries(deliveries, first)
        self._next_tag += len(deliveries)
        self._held.update(zip(range(first, self._next_tag), deliveries, strict=True))
        self._each_bytes = sum(map(len, payload)) // max(1, len(deliveries))
        if len(self._held) > 2 * self.consumer.in_flight + 1_000:
            self._forget_expired()
        return {"lots": lots}, payload

    @staticmethod
    def _keep(deliveries: Sequence[Delivery]) -> None:
        """They are not handed out after all: nobody has seen them."""
        if deliveries:
            group = deliveries[0]._lot.member.group  # noqa: SLF001
            # In an ordered group the first one takes back those behind it.
            group.give_back_all(reversed(deliveries), delivered=False)

    def _forget_expired(self) -> None:
        self._held = {tag: one for tag, one in self._held.items() if one._lot.member.holds(one)}  # noqa: SLF001

    def add_credit(self, messages: int) -> None:
        """So many more messages may be pushed; 0 takes back all credit that is left."""
        self._credit = self._credit + messages if messages else 0
        if self._credit > 0:
            self._has_credit.set()
            if self._pump is None:
                self._pump = asyncio.get_running_loop().create_task(self._push_along())
        else:
            self._has_credit.clear()

    def set_writable(self, *, may_write: bool) -> None:
        """The connection takes more, or is full: then nothing is leased for it."""
        if may_write:
            self._may_write.set()
        else:
            self._may_write.clear()

    async def _push_along(self) -> None:
        while not self.consumer.closed:
            await self._has_credit.wait()
            await self._may_write.wait()
            try:
                # About as many as fit; what does not would have to go back.
                fitting = max(1, PUSH_BYTES_MAX // max(1, self._each_bytes))
                count = min(max(self._credit, 1), PUSH_MESSAGES_MAX, fitting)
                found = await self._take_allowed(self._pushing, count, None)
            except Exception as error:  # noqa: BLE001 - the client is told, and begins anew with new credit; else it would wait for ever
                self._credit = 0
                self._has_credit.clear()
                self._pump = None
                if not isinstance(error, PenstockError):
                    _log.error("messages of %s could not be pushed", self.consumer.topic, exc_info=error)
                    error = Unavailable("the server failed to do this; its log says why")
                self._push(encode_error(error), [])
                return
            if found and self._credit <= 0:
                self._keep(found)  # the credit was taken back while it waited
            elif found:
                fields, payload = self._hand_out(found, PUSH_BYTES_MAX)
                handed = sum(lot[3][1] for lot in fields["lots"])
                self._credit -= handed
                if self._credit <= 0:
                    self._has_credit.clear()
                self._push(fields, payload)

    # -- its client -------------------------------------------------------------------------------------------------

    def heard(self, *, acting: bool = True) -> None:
        """The client made a call, for this consumer if it is *acting*."""
        consumer = self.consumer
        consumer._group.heard(consumer._member, acting=acting)  # noqa: SLF001
        if not self.beats:
            self._take_turns()

    def _take_turns(self) -> None:
        consumer = self.consumer
        consumer._group.begin_turns(consumer._member)  # noqa: SLF001

    def beat(self, following: int) -> float:
        """The client is alive, and its user has what was pushed below the tag *following*. Returns the lease."""
        consumer = self.consumer
        group, member = consumer._group, consumer._member  # noqa: SLF001
        begun: list[Delivery] = []
        for tag, delivery in self._held.items():  # in the order of their tags
            if tag >= following:
                break
            begun.append(delivery)
        is_acting = following > self._begun_to
        self._begun_to = max(self._begun_to, following)
        member.patience_s = group.lease_s
        group.heard(member, acting=is_acting)
        if begun and member.waiting:
            group.begin_leases(member, begun)
        return group.lease_s

    def recall(self, count: int) -> None:
        """See `Client`."""
        self._asked_back = count
        self._tell({"recall": count})

    def revoked(self, deliveries: Sequence[Delivery]) -> None:
        """See `Client`."""
        if self.recalls:
            gone = set(map(id, deliveries))
            tags = [tag for tag, delivery in list(self._held.items()) if id(delivery) in gone]
            if tags:
                self._tell({"revoked": tag_ranges(tags)})

    def _tell(self, fields: dict[str, Any]) -> None:
        if threading.get_ident() == self._loop_thread:
            # Before the answer to the call that did it.
            self._push(fields, [])
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._push, fields, [])

    def answer_recall(self, tags: Any) -> None:
        """The client gives back what it has not begun of what it was asked for."""
        given = self.take(tags)[0]
        member = self.consumer._member  # noqa: SLF001
        self.consumer._group.recalled(member, reversed(given), spent=len(given) < self._asked_back)  # noqa: SLF001

    # -- finishing --------------------------------------------------------------------------------------------------

    def take(self, tags: Any) -> tuple[list[Delivery], int]:
        """The deliveries of *tags* ([first, count] pairs), which are finished then, and how many of them are not there any more."""
        found: list[Delivery] = []
        missing = 0
        for tag in expand_tags(tags, len(self._held)):
            delivery = self._held.pop(tag, None)
            if delivery is None:
                missing += 1
            else:
                found.append(delivery)
        return found, missing

    def peek(self, tags: Any) -> tuple[list[Delivery], int]:
        """Like `take`, and they stay."""
        wanted = list(expand_tags(tags, len(self._held)))
        found = [self._held[tag] for tag in wanted if tag in self._held]
        return found, len(wanted) - len(found)

    def expired(self, messages: int) -> LeaseExpired:
        """The error for deliveries that are not there any more; the client knows which."""
        return LeaseExpired(self.consumer.topic, 0, 0, messages)

    def find(self, tag: Any) -> Delivery | None:
        """The delivery of *tag*, which stays; None if it is not there any more."""
        return self._held.get(tag) if type(tag) is int else None

    def end_handler(self, tag: Any) -> bool:
        """The handler of a delivery has ended. False: it had finished the message itself, and there is nothing left to do."""
        delivery = self.find(tag)
        if delivery is None:
            return False
        if delivery._lot.member.group.end(delivery):  # noqa: SLF001
            return True
        del self._held[tag]
        return False

    def ack(self, tags: Any) -> tuple[int, int | None]:
        """They are done; returns how many are not this consumer's any more, and the first of these, by its tag."""
        held = self._held
        wanted = expand_tags(tags, len(held))
        taken = [held.pop(tag, None) for tag in wanted]
        found = [one for one in taken if one is not None]
        missing = len(taken) - len(found)
        first = wanted[taken.index(None)] if missing else None
        try:
            self.consumer.ack(found)
        except LeaseExpired as late:
            missing += late.messages
            for tag, one in zip(wanted, taken, strict=True):
                if first is None and one is not None and (one.partition, one.offset) == (late.partition, late.offset):
                    first = tag
        if not self.beats:
            self._take_turns()
        return missing, first

    def nack(self, tags: Any, *, delay: Any, reason: str | None, reject: bool) -> int:
        """They failed; returns how many are not this consumer's any more. Raises `BadArgument`."""
        known = [one for one in (self._held.get(tag) for tag in expand_tags(tags, len(self._held))) if one is not None]
        group = self.consumer._group  # noqa: SLF001
        late = self._late(lambda: group.nack(known, delay=delay, reason=reason, reject=reject)) if known else 0
        _, missing = self.take(tags)
        if not self.beats:
            self._take_turns()
        return missing + late

    @staticmethod
    def _late(work: Callable[[], object]) -> int:
        try:
            work()
        except LeaseExpired as error:
            return error.messages
        return 0

    def give_back(self, tags: Any) -> None:
        """They were not handled, and that is nobody's fault."""
        self.consumer._group.give_back_all(self.take(tags)[0])  # noqa: SLF001
        if not self.beats:
            self._take_turns()

    # -- the end ----------------------------------------------------------------------------------------------------

    def stop_pushing(self) -> None:
        """Push no more. In the event loop."""
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None

    def close(self) -> None:
        """The client said goodbye: what it has not finished goes back uncounted. Waits for the disk."""
        self._held.clear()
        self.consumer.close()

    def lose(self) -> None:
        """
        The connection was lost: as many of its oldest deliveries as it handled at once count as failed, the rest goes back uncounted.

        Waits for the disk.
        """
        held = [one for one in self._held.values() if one._lot.member.holds(one)]  # noqa: SLF001
        self._held.clear()
        with contextlib.suppress(PenstockError):
            if held:
                self.consumer.nack(held[: self._concurrency], reason="the connection of its consumer was lost")
        with contextlib.suppress(Closed, PenstockError):
            self.consumer.close()


def tag_ranges(tags: Sequence[int]) -> list[list[int]]:
    """Tags that rise, as [first, count] pairs."""
    found: list[list[int]] = []
    for tag in tags:
        if found and found[-1][0] + found[-1][1] == tag:
            found[-1][1] += 1
        else:
            found.append([tag, 1])
    return found


def expand_tags(tags: Any, most: int) -> list[int]:
    """The tags that [first, count] pairs name. Raises `BadArgument`; no more are made than there can be."""
    found: list[int] = []
    if not isinstance(tags, list):
        raise BadArgument("tags", str(tags)[:60], "must be a list of [first, count]")
    for pair in tags:
        if not isinstance(pair, list) or len(pair) != 2 or any(type(one) is not int or one < 0 for one in pair):
            raise BadArgument("tags", str(pair)[:60], "must be a list of [first, count]")
        first, count = pair
        if len(found) + count > most + TAGS_MORE_MAX:
            raise BadArgument("tags", str(pair)[:60], "name more deliveries than there are")
        found += range(first, first + count)
    return found
