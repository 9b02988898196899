"""
One client of a server: which call is done by what, and when.

A session knows no sockets. It is given frames, and gives frames to `send`, both in the event loop. Calls that only move memory are
done at once and in order: publishing (the answer comes when the batch is committed, and nobody waits for it), acks, credits. All
others go to a thread, and may overtake each other.

What a call does stands with its noun: `publishing`, `consumers`, `stages`, `transactions`, `topics`, `groups`, `reading`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.broker.calls_under_way import CallsUnderWay
from penstock.broker.consumers import Consumers
from penstock.broker.groups import Groups
from penstock.broker.publishing import Publishing
from penstock.broker.reading import Reading
from penstock.broker.replies import Replies
from penstock.broker.rights import require
from penstock.broker.stages import Stages
from penstock.broker.topics import Topics
from penstock.broker.transactions import Transactions
from penstock.errors import ServerStopping, UsageError
from penstock.groups.member import Origin
from penstock.wire import documents
from penstock.wire.calls import PROTOCOL_VERSION, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.broker.completions import Completions
    from penstock.broker.replies import Answer, Send
    from penstock.broker.rights import Principal
    from penstock.store.store import Store
    from penstock.wire.frame import Frame


_LARGE = frozenset({Call.READ, Call.TOPICS, Call.STATS, Call.METRICS, Call.GROUPS, Call.DEAD_LETTERS})
"""Calls whose answers grow with what is stored: they are made a few at a time, for who reads them."""


_WHILE_STOPPING = frozenset({
    Call.PING, Call.CREDIT, Call.ACK, Call.RETURN, Call.PAUSE, Call.EXTEND, Call.NACK, Call.CANCEL, Call.CONSUMER, Call.FETCH,
    Call.COMMIT_POSITION, Call.UNSUBSCRIBE, Call.FLUSH, Call.TOPICS, Call.TOPIC, Call.STATS, Call.METRICS, Call.COMMITTED, Call.GROUPS,
    Call.POSITIONS, Call.READ, Call.OFFSET_OF_TIME, Call.DEAD_LETTERS, Call.STAGE_ABANDON, Call.MEMBERS,
    Call.EVICT_MEMBER,
})  # fmt: skip
"""Calls that a server still takes while it stops: those that finish what consumers hold, and those that only look."""


class Session:
    """
    What one connection may do, and what it has open. All methods run in the event loop.

    Attributes:
        under_way: its calls that are not answered yet, and whether more may be read.
    """

    def __init__(
        self, store: Store, send: Send, completions: Completions, principal: Principal,
        send_now: Callable[[bytes], bool] = lambda _: False, *, auto_create: bool | None = None, interface: str = "native", peer: str = "",
    ) -> None:  # fmt: skip
        """
        *interface* and *peer* are what `Store.members` tells of the client.

        *send_now*: send a frame from any thread without waiting; False if it must go by *send*.

        *auto_create*: whether the client may have topics made by publishing; None means as the store says.
        """
        self._store = store
        self._clock = store._clock  # noqa: SLF001
        self._origin = origin = Origin(interface, peer, principal.name, self._clock.monotonic())
        self._principal = principal
        self._is_stopping = False
        self._refuses_all = False
        self._replies = replies = Replies(send, send_now)
        self.under_way = under_way = CallsUnderWay(replies)
        self._topics = topics = Topics(store, principal, auto_create=auto_create)
        self._consumers = consumers = Consumers(store, replies, under_way, principal, topics, origin)
        self._stages = stages = Stages(store, topics)
        publishing = Publishing(store, topics, replies, under_way, completions, principal.scope)
        groups, reading = Groups(store), Reading(store, topics)
        self._now: dict[int, Callable[[Frame], Answer | None]] = {
            Call.PING: lambda _: ({}, []),
            Call.PUBLISH: publishing.publish,
            Call.PUBLISH_MANY: publishing.publish_many,
            Call.CREDIT: consumers.credit,
            Call.ACK: consumers.ack,
            Call.RETURN: consumers.give_back,
            Call.PAUSE: consumers.pause,
            Call.EXTEND: consumers.extend,
            Call.NACK: consumers.nack,
            Call.CANCEL: under_way.cancel,
            Call.CONSUMER: consumers.describe,
            Call.HEARTBEAT: consumers.heartbeat,
        }
        self._later: dict[int, Callable[[Frame], Answer]] = {
            Call.TOPICS: topics.list,
            Call.TOPIC: topics.describe,
            Call.CREATE_TOPIC: topics.create,
            Call.TOPIC_TO_PUBLISH: topics.describe_to_publish,
            Call.STATS: topics.stats,
            Call.METRICS: topics.metrics,
            Call.RETAIN: topics.retain,
            Call.FLUSH: topics.flush,
            Call.VACUUM: topics.vacuum,
            Call.COMPACT: topics.compact,
            Call.DELETE_TOPIC: topics.delete,
            Call.PUBLISH_ONCE: publishing.publish_once,
            Call.OPEN_PRODUCER: publishing.open_producer,
            Call.TRANSACT: Transactions(store, topics, consumers).commit,
            Call.STAGE_ADD: stages.add,
            Call.STAGE_FINISH: stages.finish,
            Call.STAGE_ABANDON: stages.abandon,
            Call.COMMIT: stages.commit,
            Call.ABORT: stages.abort,
            Call.COMMITTED: stages.committed,
            Call.COMMIT_POSITION: consumers.commit_position,
            Call.GROUPS: groups.list,
            Call.DELETE_GROUP: groups.delete,
            Call.SEEK: groups.seek,
            Call.MEMBERS: groups.members,
            Call.EVICT_MEMBER: groups.evict_member,
            Call.POSITIONS: reading.positions,
            Call.READ: reading.read,
            Call.OFFSET_OF_TIME: reading.offset_of_time,
            Call.DEAD_LETTERS: groups.dead_letters,
            Call.REPLAY_DEAD_LETTERS: groups.replay_dead_letters,
            Call.DISCARD_DEAD_LETTERS: groups.discard_dead_letters,
        }
        self._awaited: dict[int, Callable[[Frame], Coroutine[Any, Any, Answer]]] = {
            Call.SUBSCRIBE: consumers.subscribe,
            Call.FETCH: consumers.fetch,
            Call.UNSUBSCRIBE: consumers.unsubscribe,
            Call.STAGE: stages.begin,
        }

    def hello(self) -> dict[str, Any]:
        """What the server tells a client that it took in."""
        return {
            "version": PROTOCOL_VERSION,
            "store_id": self._store._volume.store_id.hex(),  # noqa: SLF001
            "auto_create": self._topics.auto_create,
            "default": documents.encode_settings(self._store._catalog.default),  # noqa: SLF001
        }

    def check_valid(self) -> None:
        """Raise `Unauthenticated` if the client's token is not valid any more."""
        self._principal.check_valid()

    def refuse(self, frame: Frame, error: Exception) -> None:
        """Tell the client that a call failed."""
        self._replies.refuse(frame, error)

    def check(self, frame: Frame) -> None:
        """Raise `PenstockError` if the client may not make this call. In any thread."""
        self._principal.check_valid()
        require(self._principal, frame, self._consumers.topic_of)

    def handle(self, frame: Frame, *, is_checked: bool = False) -> None:
        """
        Do what a request asks for, or begin to; *is_checked*: `check` was called.

        Raises `Unauthenticated`: its token is not valid any more, and the connection is to end.
        """
        self._origin.heard = self._clock.monotonic()
        if not is_checked:
            self._principal.check_valid()
        try:
            if self._is_stopping and not self._is_taken_while_stopping(frame):
                raise ServerStopping
            self.under_way.check_new(frame)
            if not is_checked:
                require(self._principal, frame, self._consumers.topic_of)
            now = self._now.get(frame.call)
            if now is not None:
                answer = now(frame)
                if answer is not None:
                    self._replies.answer(frame, *answer)
                return
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end other clients' sessions
            self._replies.refuse(frame, error)
            return
        later, awaited = self._later.get(frame.call), self._awaited.get(frame.call)
        if frame.call in _LARGE and later is not None:
            work: Coroutine[Any, Any, Answer] = self.under_way.when_writable(later, frame)
        elif later is not None:
            work = asyncio.to_thread(later, frame)
        elif awaited is not None:
            work = awaited(frame)
        else:
            unknown = UsageError(f"there is no call {frame.call} in version {PROTOCOL_VERSION} of the protocol")
            self._replies.refuse(frame, unknown)
            return
        self.under_way.begin(frame, work)

    def _is_taken_while_stopping(self, frame: Frame) -> bool:
        """A transaction that acks finishes what a consumer holds."""
        return not self._refuses_all and (
            frame.call in _WHILE_STOPPING or (frame.call == Call.TRANSACT and bool(frame.fields.get("acks")))
        )

    def stop_dispatching(self) -> None:
        """The server stops: hand out nothing more, and begin nothing new. What consumers hold may be finished."""
        self._is_stopping = True
        self._consumers.stop_dispatching()

    def refuse_all(self) -> None:
        """Begin no more calls of any kind."""
        self._refuses_all = True

    @property
    def in_flight(self) -> int:
        """What its consumers hold and have not finished."""
        return self._consumers.in_flight

    def set_writable(self, *, may_write: bool) -> None:
        """The connection takes more, or is full."""
        if may_write:
            self._replies.writable.set()
        else:
            self._replies.writable.clear()
        self._consumers.set_writable(may_write=may_write)

    def disconnect(self, *, orderly: bool) -> Callable[[], None]:
        """The connection is gone. Returns what is left to do, in any thread: it waits for the disk."""
        self._replies.closed = True
        self.under_way.end_all()
        release_consumers = self._consumers.disconnect(orderly=orderly)
        release_stages = self._stages.disconnect()

        def release() -> None:
            try:
                release_consumers()
            finally:
                release_stages()

        return release
