"""
A consumer of a group on a server.

A message is asked for when it is wanted: so it is this consumer's from the moment it is handed out, and others can have it until then.
Iterating asks for more than one at a time: the server pushes ahead what the credit allows, and the consumer gives new credit when half
of it is used. When the connection was lost the consumer subscribes again, and what it held is void.

What was pushed waits in a buffer, and its lease runs when the user was given it, which the heartbeat tells (`pulse.py`). Until then the
server may take it back, and says so (`revoked`), or ask for some of it because another consumer is idle (`recall`): then the newest go. If
the server has not confirmed a heartbeat for as long as a lease, as after this process stood still, it is asked before anything more is
taken from the buffer: its answer comes behind all that it has taken back.

An ack of a message that was pushed does not wait for its answer: it is gathered with others for some milliseconds, and goes before any
other call of the connection. If the answer says that it came too late, the next ack, nack, extension or flush of the consumer does
its own work and raises that, and closing logs it. It waits where lateness is not unlikely: in ordered groups, which take back what
lies behind a failure, and when half of the lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from penstock.arguments import check_seconds, check_wait, check_whole_number, shown
from penstock.client.delivery import RemoteDelivery
from penstock.client.pending import ConnectionLost, Waiter
from penstock.client.pulse import Beat
from penstock.errors import BadArgument, Closed, ConsumerEvicted, LeaseExpired, PenstockError, Unavailable
from penstock.groups.dead_letters import reason_text
from penstock.log_events import get_logger
from penstock.store.consumer import GET_MANY_MAX
from penstock.wire import documents
from penstock.wire.answers import text, topic_ttl_us, whole
from penstock.wire.calls import Call
from penstock.wire.deliveries import decode_deliveries
from penstock.wire.failures import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.client.connection import Connection
    from penstock.client.pending import Pending
    from penstock.wire.frame import Frame

READ_AHEAD_MAX = 100
"""The most messages that are pushed ahead of an iterating consumer."""
ACKS_MAX = 64
"""So many acks are sent at once."""
_log = get_logger("penstock")
_LOST = "the connection was lost"


class RemoteConsumer:
    """Takes messages of a group. Made by `RemoteStore.subscribe`. Safe to use from many threads. See `penstock.Consumer`."""

    asks_a_server = True

    def __init__(
        self, connection: Connection, topic: str, group: str, options: dict[str, Any], forget: Callable[[RemoteConsumer], None],
        subscribed: tuple[Frame, int] | None = None,
    ) -> None:  # fmt: skip
        """*subscribed*: who made the call, and in which generation, if that was done already. Raises `ConnectionLost`."""
        self._connection = connection
        self._wanted = subscription(topic, group, options)
        self._forget = forget
        self._closed = False
        self._paused = False
        self._ahead: deque[RemoteDelivery] = deque()
        self._arrived = threading.RLock()
        """What is entered, and not its condition: see penstock.threads."""
        self._news = threading.Condition(self._arrived)
        self._waiters: list[Waiter] = []
        """Those who wait for pushes."""
        self.on_news: Callable[[], None] | None = None
        """Called with each wake of those who wait for pushes, in any thread: for an event loop."""
        self._credit = 0
        self._streams = False
        self._push_error: PenstockError | None = None
        self._unsent: list[RemoteDelivery] = []
        """Those that are acked and not told, of the present generation."""
        self._gathers = False
        self._late: LeaseExpired | None = None
        """What the answer to an ack said that nobody waited for; for the next call to raise."""
        self._following = 0
        """The tag behind the last one that was pushed."""
        self._handlers = 0
        """How many handlers keep the lease of their message."""
        self._fetches = 0
        """How many have asked for messages, and wait."""
        self._sure_until = 0.0
        """Until when, by the monotonic clock, the server holds what is in the buffer for this consumer, unless it has said otherwise."""
        self._window = max(1, min(READ_AHEAD_MAX, int(options.get("prefetch", READ_AHEAD_MAX))))
        self._generation = connection.generation
        if subscribed is None:
            self._take_over(connection.call(Call.SUBSCRIBE, self._wanted, resend=False, lost=ConnectionLost(_LOST)))
            self._generation = connection.generation
        else:
            answer, self._generation = subscribed
            self._take_over(answer)
        self._stop_returning = connection.on_return(self._subscribe_again)
        if self._generation != connection.generation:
            self._closed = True  # for the watch, if it subscribes again at this moment
            self._stop_returning()
            raise ConnectionLost(_LOST)

    def _take_over(self, answer: Frame) -> None:
        fields = answer.fields
        self._handle = whole(fields, "handle")
        self.topic = text(fields, "topic")
        self.group = text(fields, "group")
        self.ordered = bool(fields.get("ordered"))
        self._partitions = whole(fields, "partitions")
        self.settings = documents.decode_group_settings(fields.get("settings"))
        if "ahead" in fields:
            # What is pushed ahead of an iterating consumer stands before a more urgent one that comes later.
            self._window = min(self._window, max(1, whole(fields, "ahead")))
        self._following = 0
        self._set_lease(_seconds(fields.get("lease")))
        self.ttl_us = topic_ttl_us(fields)
        self._connection.on_push(self._handle, self._pushed)

    def _set_lease(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._fresh_s = 0.0 if self.ordered else lease_s / 2

    # -- the heartbeat ----------------------------------------------------------------------------------------------

    def beat(self) -> Beat | None:
        """See `Beating`."""
        with self._arrived:
            if self._closed or not (self._streams or self._ahead or self._handlers or self._fetches):
                return None
            return Beat(self._handle, self._first_waiting(), self._generation)

    def _first_waiting(self) -> int:
        """The first tag that the user was not given. Under the lock of `_arrived`."""
        try:
            return self._ahead[0].tag
        except IndexError:
            return self._following

    def confirmed(self, sent_s: float, lease_s: float) -> None:
        """See `Beating`."""
        with self._arrived:
            if lease_s > 0:
                self._set_lease(lease_s)
            self._sure_until = max(self._sure_until, sent_s + self.lease_s)

    def _make_sure(self) -> None:
        """Ask the server, which may have taken back what is in the buffer: it has said so when it answers."""
        sent_s = time.monotonic()
        with self._arrived:
            handle, following = self._handle, self._first_waiting()
        with contextlib.suppress(ConnectionLost):
            leases = self._call(Call.HEARTBEAT, consumers=[[handle, following]]).get("leases")
            self.confirmed(sent_s, _seconds(leases[0]) if isinstance(leases, list) and leases else 0.0)

    def begin_handler(self) -> None:
        """A handler is about to run: its lease is kept from now on."""
        with self._arrived:
            self._handlers += 1
        self._connection.pulse.begin(self)

    def end_handler(self) -> None:
        """It has ended."""
        with self._arrived:
            self._handlers -= 1

    def _subscribe_again(self, ask: Callable[[int, dict[str, Any]], Frame]) -> None:
        """The connection is back: what was held is void. In the watch."""
        if self._closed:
            return
        self._connection.on_push(self._handle, None)
        try:
            # A topic that was deleted meanwhile is not made anew by one who only comes back.
            answer = ask(Call.SUBSCRIBE, {**self._wanted, "options": {**self._wanted["options"], "create": False}})
        except Unavailable:
            raise
        except PenstockError as error:
            # The group is another one now, or may not be read any more: that is this consumer's end, and nobody else's.
            self._end(error)
            return
        with self._arrived:
            self._take_over(answer)
            self._generation = self._connection.generation
        if self._paused:
            ask(Call.PAUSE, {"consumer": self._handle, "paused": True})
        with self._arrived:
            # After the new generation is set: credit that is given until now goes nowhere, and is not counted.
            self._ahead.clear()
            self._note_late(self._unsent, len(self._unsent))
            self._unsent = []
            self._credit = 0
            self._streams = False
            self._tell_news()

    def _tell_news(self) -> bool:
        """Wake those who wait for pushes, and say whether anybody does. Under the lock of `_arrived`."""
        self._news.notify_all()
        if self.on_news is not None:
            self.on_news()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()
        return bool(waiters)

    def _end(self, error: PenstockError) -> None:
        self._closed = True
        self._stop_returning()
        self._forget(self)
        with self._arrived:
            self._push_error, self._streams = error, False
            self._ahead.clear()
            self._tell_news()

    def _place(self) -> tuple[int, int]:
        """Its handle, and the generation of the connection that this is the handle on."""
        with self._arrived:
            return self._handle, self._generation

    def _call(self, call: int, *, generation: int | None = None, **fields: Any) -> dict[str, Any]:
        """A call that means nothing on another connection, or than that of *generation*. Raises `ConnectionLost`."""
        if self._closed:
            raise Closed(f"the consumer of {self.topic}")
        if self._unsent:
            self._send_acks()
        handle, present = self._place()
        if generation is not None and generation != present:
            raise ConnectionLost(_LOST)
        try:
            answer = self._connection.call(
                call, {"consumer": handle, **fields}, resend=False, lost=ConnectionLost(_LOST), generation=present
            )
        except BadArgument as error:
            raise self.or_closed(error) from None
        return answer.fields

    def or_closed(self, error: BadArgument) -> PenstockError:
        """*error*, or `Closed` if another thread closed the consumer meanwhile: the server does not know it any more then."""
        return Closed(f"the consumer of {self.topic}") if self._closed and error.name == "consumer" else error

    def _call_if_there(self, call: int, **fields: Any) -> dict[str, Any] | None:
        """The same for what the end of a connection settles: None if it is gone, and no other one is made for this."""
        if self._connection.has(self._generation):
            with contextlib.suppress(ConnectionLost, Closed):
                return self._call(call, **fields)
        return None

    # -- taking -----------------------------------------------------------------------------------------------------

    def get(self, timeout: object = None) -> RemoteDelivery | None:
        """The next message; None if none came within *timeout* seconds (None: wait for ever, 0: do not wait)."""
        found = self._take(1, None if timeout is None else check_wait("timeout", timeout))
        return found[0] if found else None

    def get_many(self, count: int, timeout: object = None) -> list[RemoteDelivery]:
        """Up to *count* messages: those that are there, and if there is none, the first that come within *timeout* seconds."""
        check_whole_number("count", count, 1, GET_MANY_MAX)
        return self._take(count, check_wait("timeout", timeout))

    def _take(self, count: int, wait_s: float | None) -> list[RemoteDelivery]:
        end = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if self._ahead and time.monotonic() > self._sure_until:
                self._make_sure()
            found = self._take_ahead(count)
            if found:
                return found
            if self._closed:
                raise Closed(f"the consumer of {self.topic}")
            if self._connection.closed:
                raise Closed(self._connection.address.url)
            left = None if end is None else max(0.0, end - time.monotonic())
            if self._streams and left != 0:
                with contextlib.suppress(ConnectionLost):
                    self._refill()  # what was in the buffer may have been taken back
                self._wait_for_push(left)
                continue
            try:
                return self._fetch(count, left)
            except ConnectionLost:
                if left == 0:
                    return []
                with self._arrived:
                    self._news.wait(0.02)  # the connection comes back, or gives up, by itself

    def _wait_for_push(self, wait_s: float | None) -> None:
        self._send_acks()
        with self._arrived:
            if self._ahead or self._closed or not self._streams:
                return
            waiter = Waiter()
            self._waiters.append(waiter)
        try:
            self._connection.wait(waiter, wait_s)
        finally:
            with self._arrived:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def _take_ahead(self, count: int) -> list[RemoteDelivery]:
        found = self._pop_ahead(count)
        if found and self._streams:
            self._refill()
        return found

    def _pop_ahead(self, count: int) -> list[RemoteDelivery]:
        found: list[RemoteDelivery] = []
        with self._arrived:
            while self._ahead and len(found) < count:
                found.append(self._ahead.popleft())
            if self._push_error is not None and not found:
                error, self._push_error = self._push_error, None
                self._streams = False
                raise error
        if found and self._fresh_s:
            fresh_until = time.monotonic() + self._fresh_s
            for message in found:
                message.fresh_until = fresh_until
        return found

    def _fetch(self, count: int, wait_s: float | None) -> list[RemoteDelivery]:
        if self._closed:
            raise Closed(f"the consumer of {self.topic}")
        handle, generation = self._place()
        fields = {"consumer": handle, "count": count, "wait": wait_s}
        with self.fetching(wait_s):
            pending = self._connection.begin(
                Call.FETCH, fields, resend=False, lost=ConnectionLost(_LOST), generation=generation
            )
            try:
                frame = pending.result()
            except BadArgument as error:
                raise self.or_closed(error) from None
            except BaseException as error:
                if not isinstance(error, PenstockError):
                    self._abandon(pending, handle, generation)
                raise
        return self.decode(frame, generation)

    @contextlib.contextmanager
    def fetching(self, wait_s: float | None) -> Iterator[None]:
        """While the block runs messages are waited for, for *wait_s* at most: if that may be long, the server is told that we are there."""
        if wait_s is not None and wait_s < self.lease_s / 2:
            yield
            return
        with self._arrived:
            self._fetches += 1
        self._connection.pulse.begin(self)
        try:
            yield
        finally:
            with self._arrived:
                self._fetches -= 1

    def _abandon(self, pending: Pending, handle: int, generation: int) -> None:
        """
        Who asked for messages was interrupted (Ctrl-C), and nobody gets the answer: it is called off, and what came goes back uncounted.

        By a thread, since it waits for the server.
        """

        def end() -> None:
            call = partial(self._connection.call, resend=False, lost=ConnectionLost(_LOST), generation=generation)
            with contextlib.suppress(PenstockError):
                # A server cancels only what it has begun to do; that it has, the answer to a later call says.
                call(Call.PING, {})
                call(Call.CANCEL, {"correlation": pending.correlation})
                delivered = self.decode(pending.result(), generation)
                if delivered:
                    call(Call.RETURN, {"consumer": handle, "tags": ranges_of([one.tag for one in delivered])})

        threading.Thread(target=end, name="penstock-client-abandon", daemon=True).start()

    def decode(self, frame: Frame, generation: int) -> list[RemoteDelivery]:
        """The messages that a frame delivers to it."""
        return decode_deliveries(
            frame.fields.get("lots"), frame.payload, partial(RemoteDelivery, self, generation, 0.0), self.ttl_us
        )

    async def take_in_loop(self, count: int) -> list[RemoteDelivery]:
        """Up to *count* messages for the tasks of an event loop, which goes on meanwhile; may be empty."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not answered.done():
                answered.set_result(None)

        def wake(_: Pending) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish)

        if self._closed:
            raise Closed(f"the consumer of {self.topic}")
        handle, generation = self._place()
        fields = {"consumer": handle, "count": count, "wait": None}
        with self.fetching(None):
            pending = self._connection.begin(
                Call.FETCH, fields, resend=False, lost=ConnectionLost(_LOST), callback=wake, generation=generation
            )
            try:
                await answered
            except asyncio.CancelledError:
                self._abandon(pending, handle, generation)
                raise
        try:
            frame = pending.result()
        except ConnectionLost:
            await asyncio.sleep(0.02)
            return []
        return self.decode(frame, generation)

    # -- pushing ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[RemoteDelivery]:
        ahead, monotonic = self._ahead, time.monotonic
        while True:
            if ahead and self._streams:
                now = monotonic()
                if now > self._sure_until:
                    with contextlib.suppress(Closed):
                        self._make_sure()
                try:
                    message = ahead.popleft()
                except IndexError:
                    continue  # another thread iterates too, or it was taken back
                message.fresh_until = now + self._fresh_s  # where that is 0 it is over at once
                if (len(ahead) + self._credit) * 2 <= self._window:
                    with contextlib.suppress(Closed):
                        self._refill()
                yield message
                continue
            try:
                if not self._streams and not self._closed:
                    self._refill()
                found = self.get()
            except Closed:
                return
            except ConnectionLost:
                continue
            if found is not None:
                yield found

    def _refill(self) -> None:
        """Give credit for what was used, when that is half of it."""
        credit = self._new_credit()
        if credit is not None:
            fields, generation = credit
            self._connection.begin(Call.CREDIT, fields, resend=False, generation=generation)

    def _new_credit(self) -> tuple[dict[str, Any], int] | None:
        """The fields of the next `CREDIT`, and the generation that they are for; None if it is too early."""
        with self._arrived:
            waiting = len(self._ahead)
            wanted = self._window - waiting - self._credit
            if self._streams and wanted * 2 < self._window:
                return None
            self._credit += wanted
            if not self._streams:
                self._streams = True
                self._sure_until = max(self._sure_until, time.monotonic() + self.lease_s)
                self._connection.pulse.begin(self)
            generation = self._generation
            return {"consumer": self._handle, "messages": wanted}, generation

    def _pushed(self, frame: Frame) -> bool:
        """By who reads; says whether anybody had waited for it."""
        if frame.call == Call.STOPPING:
            self._connection.deferred.add(self._return_ahead)
            return False
        with self._arrived:
            if "code" in frame.fields:
                if not self._streams:
                    return False
                self._push_error = decode_error(frame.fields)
                self._streams = False
                self._credit = 0
                if isinstance(self._push_error, ConsumerEvicted):
                    self._ahead.clear()  # none of it is this consumer's any more
            elif "recall" in frame.fields:
                self._give_some_back(frame.fields["recall"])
                return False
            elif "revoked" in frame.fields:
                self._drop(frame.fields["revoked"])
                return False
            else:
                delivered = self.decode(frame, self._generation)
                self._credit -= len(delivered)
                self._ahead.extend(delivered)
                if delivered:
                    self._following = delivered[-1].tag + 1
            return self._tell_news()

    def _return_ahead(self) -> None:
        """The server stops, and others can have what nobody has begun to handle here."""
        with self._arrived:
            ahead = list(self._ahead)
            self._ahead.clear()
        if ahead:
            fields = {"consumer": self._handle, "tags": ranges_of([one.tag for one in ahead])}
            with contextlib.suppress(PenstockError):
                self._connection.begin(
                    Call.RETURN, fields, resend=False, lost=ConnectionLost(_LOST), generation=ahead[0].generation
                )

    def _drop(self, tags: Any) -> None:
        """The server has taken them back: those that the user was not given are gone. Under the lock of `_arrived`."""
        gone = [range(first, first + count) for first, count in tags]
        for message in list(self._ahead):
            if any(message.tag in one for one in gone):
                with contextlib.suppress(ValueError):  # the user was quicker
                    self._ahead.remove(message)

    def _give_some_back(self, count: Any) -> None:
        """Another consumer is idle: the newest that the user was not given go to it. By who reads; under the lock of `_arrived`."""
        tags: list[int] = []
        with contextlib.suppress(IndexError):
            while len(tags) < count:
                tags.append(self._ahead.pop().tag)
        fields = {"consumer": self._handle, "tags": ranges_of(tags[::-1]), "recalled": True}
        generation = self._generation

        def answer() -> None:
            with contextlib.suppress(PenstockError):
                self._connection.begin(Call.RETURN, fields, resend=False, lost=ConnectionLost(_LOST), generation=generation)

        self._connection.deferred.add(answer)

    # -- finishing --------------------------------------------------------------------------------------------------

    def ack(self, messages: RemoteDelivery | Sequence[RemoteDelivery], *, wait: bool = False) -> None:
        """
        They are done. Durable within a few milliseconds; with *wait* when this returns.

        Raises `LeaseExpired`; without *wait* perhaps for one that was acked before, see the head of the module.
        """
        if not wait and isinstance(messages, RemoteDelivery) and messages.consumer is self and self._ack_later(messages):
            self._raise_late()
        else:
            self._finish(Call.ACK, messages, wait=bool(wait))

    def _ack_later(self, message: RemoteDelivery) -> bool:
        """Ack it without waiting for the answer; False if it should be waited for."""
        fresh_until = message.fresh_until
        if not fresh_until or time.monotonic() >= fresh_until or self._closed:
            return False
        message.fresh_until = 0.0  # whoever finishes it once more is told at once
        with self._arrived:
            if message.generation != self._generation:
                return False
            self._unsent.append(message)
            is_full = len(self._unsent) >= ACKS_MAX
            begins, self._gathers = not self._gathers, True
        if is_full:
            self._send_acks()
        if begins:
            self._connection.soon.add(self._send_acks)
        return True

    def _send_acks(self) -> bool:
        """Send the acks that were gathered; False if there are none, and then nobody calls this any more."""
        with self._arrived:
            messages, self._unsent = self._unsent, []
            if not messages:
                self._gathers = False
                return False
            handle, generation = self._handle, self._generation

        def answered(pending: Pending) -> None:
            fields = {"late": len(messages)} if pending.frame is None else pending.frame.fields
            late = fields.get("late")
            if late:
                with self._arrived:
                    first = [one for one in messages if one.tag == fields.get("tag")]
                    self._note_late(first or messages, late if type(late) is int else len(messages))

        told = {"consumer": handle, "tags": ranges_of([one.tag for one in messages])}
        try:
            if not self._connection.has(generation):
                raise ConnectionLost(_LOST)
            self._connection.begin(
                Call.ACK, told, resend=False, lost=ConnectionLost(_LOST), callback=answered, generation=generation, urgent=False
            )
        except (Unavailable, Closed):
            with self._arrived:
                self._note_late(messages, len(messages))
        return True

    def _note_late(self, messages: list[RemoteDelivery], count: int) -> None:
        """So many were acked too late, the first of *messages* among them. Under the lock of `_arrived`."""
        if count:
            place = messages[0] if self._late is None else self._late
            before = 0 if self._late is None else self._late.messages
            self._late = LeaseExpired(self.topic, place.partition, place.offset, count + before)

    def _raise_late(self) -> None:
        if self._late is not None:
            with self._arrived:
                late, self._late = self._late, None
            if late is not None:
                raise late

    def nack(self, messages: RemoteDelivery | Sequence[RemoteDelivery], *, delay: object = None, reason: object = None) -> None:
        """They failed: deliver them again after *delay* seconds, or dead-letter them. Raises `LeaseExpired`."""
        seconds = None if delay is None else check_seconds("delay", delay, 0, 1e9)
        self._finish(Call.NACK, messages, delay=seconds, reason=reason_text(reason))

    def reject(self, message: RemoteDelivery, reason: object = None) -> None:
        """It can never be handled: dead-letter it now. Raises `LeaseExpired`."""
        self._finish(Call.NACK, message, reason=reason_text(reason), reject=True)

    def _finish(self, call: int, messages: RemoteDelivery | Sequence[RemoteDelivery], **fields: Any) -> None:
        chosen = self._own(messages)
        ours = [one for one in chosen if one.generation == self._generation]
        late = len(chosen) - len(ours)
        if ours:
            try:
                tags = ranges_of([one.tag for one in ours])
                late += whole(self._call(call, generation=ours[0].generation, tags=tags, **fields), "late")
            except (ConnectionLost, Closed, LeaseExpired):
                # They went back to their group, with the connection or by themselves.
                late = len(chosen)
        if late:
            raise LeaseExpired(self.topic, chosen[0].partition, chosen[0].offset, late)
        self._raise_late()

    def extend(self, message: RemoteDelivery, seconds: object = None) -> None:
        """Keep *message* for *seconds* from now on (default: the group's lease). Raises `LeaseExpired`."""
        given = None if seconds is None else check_seconds("seconds", seconds, 0, 1e9)
        self._keep(message, seconds=given)

    def begin(self, message: RemoteDelivery) -> None:
        """A handler runs: the lease goes on as long as it does, and this process is heard. Raises `LeaseExpired`."""
        self.begin_handler()
        try:
            self._keep(message, begins=True)
        except BaseException:
            self.end_handler()
            raise

    def end(self, message: RemoteDelivery, error: BaseException | None) -> None:
        """
        The handler of *message* has ended: ack it, or nack it with the *error*, unless the handler has finished it.

        Ctrl-C, cancellation and the end of a generator are no failures: then it goes back uncounted. Raises `LeaseExpired`.
        """
        try:
            if error is None:
                self._finish(Call.ACK, message, ends=message.tag)
            elif isinstance(error, Exception):
                self._finish(Call.NACK, message, reason=reason_text(error), ends=message.tag)
            else:
                self.give_back(message, ends=message.tag)
        finally:
            self.end_handler()

    def _keep(self, message: RemoteDelivery, **fields: Any) -> None:
        self._own(message)
        if message.generation != self._generation:
            raise self._expired(message)
        try:
            late = whole(self._call(Call.EXTEND, generation=message.generation, tag=message.tag, **fields), "late")
        except (ConnectionLost, Closed):
            late = True
        if late:
            raise self._expired(message)
        self._raise_late()

    def _expired(self, message: RemoteDelivery) -> LeaseExpired:
        return LeaseExpired(self.topic, message.partition, message.offset)

    def give_back(self, message: RemoteDelivery, **fields: Any) -> None:
        """It was not handled, and that is nobody's fault. Late ones change nothing."""
        if message.generation == self._generation and not self._closed:
            with contextlib.suppress(ConnectionLost):
                self._call(Call.RETURN, generation=message.generation, tags=[[message.tag, 1]], **fields)

    def _own(self, messages: RemoteDelivery | Sequence[RemoteDelivery]) -> Sequence[RemoteDelivery]:
        if isinstance(messages, RemoteDelivery):
            messages = [messages]
        elif not isinstance(messages, (list, tuple)):
            raise BadArgument("message", shown(messages), "must be a message that this group delivered, or a list of them")
        for message in messages:
            if not isinstance(message, RemoteDelivery) or message.consumer is not self:
                raise BadArgument("message", shown(message), f"was not delivered by group {self.group!r} of {self.topic!r}")
        return messages

    def commit(self, position: int | RemoteDelivery, partition: int | None = None) -> None:
        """All messages of a partition below the offset *position* are done; for a message: all up to it, and itself. Durable."""
        fields = self._position(position, partition)
        while True:
            try:
                self._call(Call.COMMIT_POSITION, **fields)
            except ConnectionLost:
                with self._arrived:
                    self._news.wait(0.02)  # to commit twice is to commit once
            else:
                return

    def _position(self, position: int | RemoteDelivery, partition: int | None) -> dict[str, Any]:
        if isinstance(position, RemoteDelivery):
            self._own(position)
            number, offset = position.partition, position.offset + 1
        else:
            offset = check_whole_number("position", position, 0, (1 << 63) - 1)
            if partition is None and self._partitions > 1:
                raise BadArgument("partition", "None", f"must be given: the topic has {self._partitions} partitions")
            number = check_whole_number("partition", 0 if partition is None else partition, 0, self._partitions - 1)
        return {"position": offset, "partition": number}

    def flush(self) -> None:
        """Return when every ack and nack so far is durable. Raises `LeaseExpired` if some came too late."""
        self._connection.call(Call.FLUSH)
        self._raise_late()

    # -- flow -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out no more messages until `resume`."""
        self._paused = True
        self._call_if_there(Call.PAUSE, paused=True)  # who subscribes again pauses again

    def resume(self) -> None:
        """Hand out messages again."""
        self._paused = False
        self._call_if_there(Call.PAUSE, paused=False)

    @property
    def paused(self) -> bool:
        """Whether it was paused."""
        return self._paused

    @property
    def in_flight(self) -> int:
        """Messages that it was handed and that are not finished."""
        found = None if self._closed else self._call_if_there(Call.CONSUMER)
        return 0 if found is None else whole(found, "in_flight") - len(self._ahead)

    def backlog(self) -> tuple[int, int]:
        """How many messages its group has not finished, and how many of these are with consumers, this one or others."""
        while True:
            try:
                found = self._call(Call.CONSUMER)
            except ConnectionLost:
                with self._arrived:
                    self._news.wait(0.02)  # the connection comes back, or gives up, by itself
            else:
                return int(found["unfinished"]), int(found["held"])

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Give back what is not finished, and make durable what is. Closing twice does nothing."""
        if not self._begin_close():
            return
        try:
            handle, generation = self._place()
            self._send_acks()
            if self._connection.has(generation):
                self._connection.call(
                    Call.UNSUBSCRIBE, {"consumer": handle}, resend=False, lost=ConnectionLost(_LOST), generation=generation
                )
        except (ConnectionLost, Closed, BadArgument):
            pass  # it is gone
        finally:
            self._end_close()
            if self._late is not None:
                # Closing itself worked; whoever wants to know waits or flushes before.
                _log.warning("acks of %d messages of %s in %s came too late", self._late.messages, self.topic, self.group)

    def _begin_close(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        self._stop_returning()
        self._forget(self)
        return True

    def _end_close(self) -> None:
        self._connection.on_push(self._handle, None)
        with self._arrived:
            self._ahead.clear()
            is_waited_for = self._tell_news()
        if is_waited_for:
            self._connection.nudge()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer of {self.topic} in {self.group}{', closed' if self._closed else ''}>"


def subscription(topic: str, group: str, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of `SUBSCRIBE`: this client sends heartbeats, and gives back what it is asked for."""
    return {"topic": topic, "group": group, "options": options, "beats": True}


def _seconds(value: object) -> float:
    """A time that a server may tell; 0 if it does not."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def ranges_of(tags: list[int]) -> list[list[int]]:
    """Tags as [first, count] pairs."""
    if tags and tags == [*range(tags[0], tags[0] + len(tags))]:
        return [[tags[0], len(tags)]]
    found: list[list[int]] = []
    for tag in tags:
        if found and found[-1][0] + found[-1][1] == tag:
            found[-1][1] += 1
        else:
            found.append([tag, 1])
    return found
