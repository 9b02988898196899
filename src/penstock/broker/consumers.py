"""
The consumers that a client has open, by their handles, and the calls on them.

Acks, nacks and credits only move memory: they are done at once, in the event loop and in order.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.aio.waiting import finished_or_undone
from penstock.arguments import check_whole_number, shown
from penstock.broker.fields import table
from penstock.broker.subscription import Subscription
from penstock.errors import BadArgument, PenstockError, Unavailable
from penstock.store.consumer import GET_MANY_MAX
from penstock.store.declaring import check_subscription_options
from penstock.wire import documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.calls_under_way import CallsUnderWay
    from penstock.broker.replies import Answer, Replies
    from penstock.broker.rights import Principal
    from penstock.broker.topics import Topics
    from penstock.groups.member import Origin
    from penstock.store.store import Store
    from penstock.wire.frame import Frame

CONSUMERS_MAX = 10_000
"""What one connection may have open."""
LANES_AHEAD = 4
"""What an iterating consumer is pushed ahead in a topic with priorities: so many may stand before a more urgent one."""
PREFETCH_BYTES_DEFAULT = 1024 * 1024
PREFETCH_BYTES_MAX = 64 * 1024 * 1024
"""What a consumer may hold unfinished, if it does not say, and if it does: the server keeps it in memory."""


class Consumers:
    """The consumers of one client. `find`, `get` and `commit_position` are for any thread, all else for the event loop."""

    def __init__(
        self, store: Store, replies: Replies, under_way: CallsUnderWay, principal: Principal, topics: Topics, origin: Origin
    ) -> None:
        self._store = store
        self._topics = topics
        self._origin = origin
        self._principal = principal
        self._replies = replies
        self._under_way = under_way
        self._subscriptions: dict[int, Subscription] = {}
        # Random: a number of another connection, which a client kept by mistake, must not name anything of this one.
        self._next_handle = secrets.randbits(40)
        self._is_stopping = False

    def find(self, handle: Any) -> Subscription | None:
        """The consumer, if there is one."""
        return self._subscriptions.get(handle) if type(handle) is int else None

    def topic_of(self, handle: Any) -> str | None:
        """The topic of a consumer, if there is one."""
        found = self.find(handle)
        return None if found is None else found.consumer.topic

    def describe(self, frame: Frame) -> Answer:
        """What one consumer has in hand."""
        consumer = self._of(frame).consumer
        unfinished, held = consumer.backlog()
        return {"in_flight": consumer.in_flight, "unfinished": unfinished, "held": held}, []

    async def subscribe(self, frame: Frame) -> Answer:
        """Make a consumer."""
        if len(self._subscriptions) >= CONSUMERS_MAX:
            raise Unavailable(f"this connection has {CONSUMERS_MAX} consumers; close some")
        options = table(frame, "options")
        if "start" in options:
            options["start"] = documents.decode_place("start", options["start"])
        options.setdefault("prefetch_bytes", PREFETCH_BYTES_DEFAULT)
        if type(options["prefetch_bytes"]) is int:  # else it is refused below
            options["prefetch_bytes"] = min(options["prefetch_bytes"], PREFETCH_BYTES_MAX)
        store, fields = self._store, frame.fields
        options["create"] = self._topics.may_make(fields.get("topic"), _wanted(options))
        check_subscription_options(options)
        # Who hangs up meanwhile gets no consumer, and the group no member that nobody is.
        consumer = await finished_or_undone(
            lambda: store.subscribe(fields.get("topic"), fields.get("group"), **options),  # type: ignore[arg-type]
            lambda made: made.close(),
        )
        consumer._member.origin = self._origin  # noqa: SLF001
        self._next_handle += 1
        handle = self._next_handle
        subscription = Subscription(
            consumer, options.get("concurrency", 1), partial(self._replies.push, handle),
            partial(self._principal.require, "consume", consumer.topic), beats=bool(fields.get("beats")), recalls=bool(fields.get("beats")),
        )  # fmt: skip
        subscription.set_writable(may_write=self._replies.writable.is_set())
        if self._is_stopping:
            consumer.pause()
        self._subscriptions[handle] = subscription
        group = consumer._group  # noqa: SLF001
        answer = {"handle": handle, "topic": consumer.topic, "group": consumer.group, "ordered": consumer.ordered,
                  "partitions": len(group.cursors), "lease": group.lease_s, "ttl_ms": self._ttl_ms(consumer.topic)}  # fmt: skip
        answer["settings"] = documents.encode_settings(group.settings)
        if group.has_lanes:
            answer["ahead"] = LANES_AHEAD
        return answer, []

    def _ttl_ms(self, topic: str) -> int:
        return self._store._catalog.get(topic).settings.ttl_ms  # noqa: SLF001

    def get(self, handle: Any) -> Subscription:
        """The consumer; it was heard from. Raises `BadArgument`."""
        found = self.find(handle)
        if found is None:
            raise BadArgument("consumer", shown(handle), "this connection has no such consumer")
        found.heard()
        return found

    def _of(self, frame: Frame) -> Subscription:
        return self.get(frame.fields.get("consumer"))

    async def fetch(self, frame: Frame) -> Answer:
        """Wait for messages, and answer with them."""
        count = check_whole_number("count", frame.fields.get("count"), 1, GET_MANY_MAX)
        self._under_way.begin_wait(frame)
        try:
            await self._replies.writable.wait()
            return await self._of(frame).fetch(count, frame.fields.get("wait"))
        finally:
            self._under_way.end_wait(frame)

    def credit(self, frame: Frame) -> Answer:
        """Let more messages be pushed."""
        self._of(frame).add_credit(check_whole_number("messages", frame.fields.get("messages"), 0, GET_MANY_MAX))
        return {}, []

    def ack(self, frame: Frame) -> Answer | None:
        """Finish messages; with *wait* answer when that is durable."""
        if self._is_finished(frame):
            return {"late": 0}, []
        late, first = self._of(frame).ack(frame.fields.get("tags"))
        told = {"late": late, "tag": first} if late else {"late": 0}
        if frame.fields.get("wait"):
            self._under_way.begin(frame, self._when_durable(told))
            return None
        return told, []

    async def _when_durable(self, fields: dict[str, Any]) -> Answer:
        await asyncio.to_thread(self._store.flush)
        return fields, []

    def _is_finished(self, frame: Frame) -> bool:
        """Of a call that also ends a handler: whether that had finished its message itself. Raises `LeaseExpired`."""
        tag = frame.fields.get("ends")
        return tag is not None and not self._of(frame).end_handler(tag)

    def nack(self, frame: Frame) -> Answer:
        """Fail messages, or reject them."""
        if self._is_finished(frame):
            return {"late": 0}, []
        fields = frame.fields
        late = self._of(frame).nack(
            fields.get("tags"), delay=fields.get("delay"), reason=fields.get("reason"), reject=bool(fields.get("reject"))
        )
        return {"late": late}, []

    def extend(self, frame: Frame) -> Answer:
        """Make a lease longer, or begin it anew for a handler."""
        subscription = self._of(frame)
        delivery = subscription.find(frame.fields.get("tag"))
        if delivery is None:
            return {"late": 1}, []
        group = delivery._lot.member.group  # noqa: SLF001
        if frame.fields.get("begins"):
            group.begin(delivery)
        else:
            group.extend(delivery, frame.fields.get("seconds"))
        return {"late": 0}, []

    def heartbeat(self, frame: Frame) -> Answer:
        """The client is alive: of each consumer it says what its user has; consumers that are not there change nothing."""
        beats = frame.fields.get("consumers")
        if not isinstance(beats, list) or len(beats) > CONSUMERS_MAX:
            raise BadArgument("consumers", shown(beats), "must be a list of [consumer, tag]")
        leases: list[float] = []
        for beat in beats:
            if not isinstance(beat, list) or len(beat) != 2 or any(type(one) is not int for one in beat):
                raise BadArgument("consumers", shown(beat), "must be a list of [consumer, tag]")
            found = self.find(beat[0])
            leases.append(0.0 if found is None else found.beat(beat[1]))
        return {"leases": leases}, []

    def give_back(self, frame: Frame) -> Answer:
        """Give messages back that were not begun."""
        if frame.fields.get("recalled"):
            # Its background does that: it is alive, and its user may hang.
            found = self.find(frame.fields.get("consumer"))
            if found is not None:
                found.answer_recall(frame.fields.get("tags"))
            return {}, []
        if self._is_finished(frame):
            return {}, []
        self._of(frame).give_back(frame.fields.get("tags"))
        return {}, []

    def pause(self, frame: Frame) -> Answer:
        """Stop or go on delivering."""
        consumer = self._of(frame).consumer
        if frame.fields.get("paused"):
            consumer.pause()
        elif not self._is_stopping:
            consumer.resume()
        return {}, []

    def commit_position(self, frame: Frame) -> Answer:
        """Finish all before a position."""
        self._of(frame).consumer.commit(frame.fields.get("position"), frame.fields.get("partition"))  # type: ignore[arg-type]
        return {}, []

    async def unsubscribe(self, frame: Frame) -> Answer:
        """Close a consumer."""
        subscription = self._of(frame)
        subscription.stop_pushing()
        await asyncio.to_thread(subscription.close)
        # Only now: if the connection is lost before, it is closed with the others.
        self._subscriptions.pop(frame.fields["consumer"], None)
        return {}, []

    # -- the end ----------------------------------------------------------------------------------------------------

    def stop_dispatching(self) -> None:
        """The server stops: hand out nothing more. Who waits for messages goes on waiting, and gets none."""
        self._is_stopping = True
        for subscription in self._subscriptions.values():
            subscription.consumer.pause()

    @property
    def in_flight(self) -> int:
        """What they hold and have not finished."""
        return sum(subscription.consumer.in_flight for subscription in self._subscriptions.values())

    def set_writable(self, *, may_write: bool) -> None:
        """The connection takes more, or is full."""
        for subscription in self._subscriptions.values():
            subscription.set_writable(may_write=may_write)

    def disconnect(self, *, orderly: bool) -> Callable[[], None]:
        """Stop pushing, and forget all. Returns what is left to do, which waits for the disk."""
        subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
        for subscription in subscriptions:
            subscription.stop_pushing()

        def release() -> None:
            failed: PenstockError | None = None
            for subscription in subscriptions:
                try:
                    if orderly:
                        subscription.close()
                    else:
                        subscription.lose()
                except PenstockError as error:
                    failed = failed or error  # the others leave all the same
            if failed is not None:
                raise failed

        return release


def _wanted(options: dict[str, Any]) -> bool | None:
    """Whether the client wants its topic made: True, False, or None where it leaves that to the server. Raises `BadArgument`."""
    wanted = options.get("create")
    if wanted is not None and not isinstance(wanted, bool):
        raise BadArgument("create", shown(wanted), "must be true, false or null")
    return wanted
