"""
A connection to a server that comes back when it is lost.

Theory of operation
-------------------
Any thread makes a call: it sends a frame and waits until the answer with its number comes. Who waits reads: the first thread that waits
has the *role* of the reader, takes what comes, and hands each answer to who waits for it. When it has its own answer it hands the role
on to another one that waits. So a lone call wakes no second thread, which would cost as much as the way to the server and back.

A thread of the connection, the watch, does what nobody else can. It reads as long as answers are due that nobody waits for (those with
a callback), and when pushes may come and nobody has read for a while: a server that cannot send does not read either, and whoever
sends to it would wait for ever. When there is nothing to read for it, it only looks whether the server hangs up.

When the connection breaks the watch connects again, with growing pauses; those who wait go on waiting. Then it greets the server, lets
consumers subscribe again, and sends once more, in the same order, the calls that may be repeated: those that only look, and those
that the server recognises (batches with a sequence, numbered commits). The others fail: what became of them is unknown. If the server
stays away for `give_up_s`, all fail, and the next call tries anew.

A server that is stopped in order says so. It refuses what it does not begin any more (`ServerStopping`), and such a call is *parked*: it
waits, for `give_up_s` at most, until the connection is another one, and is sent there whatever it does. Consumers give back what they
have not begun to handle, and may finish the rest. At last the server says that it has answered all it had begun; then the client hangs up,
and everything that was not answered is parked.

Locks: `_lock` is over sending and the state, and is held while the server does not take what is sent. `_role` is held by who reads, who
never waits for `_lock` while he holds it, except to connect again.
"""

from __future__ import annotations

import contextlib
import os
import random
import ssl
import time
import weakref
from typing import TYPE_CHECKING, Any

from penstock import threads as threading
from penstock.client.address import is_url
from penstock.client.background import Deferred, Soon
from penstock.client.bell import WOKEN, Bell
from penstock.client.channel import Channel
from penstock.client.pending import ConnectionLost, NotBegun, Pending
from penstock.client.pulse import Pulse
from penstock.errors import (
    BadArgument,
    BadBytes,
    BatchTooLarge,
    Closed,
    OutcomeUnknown,
    PenstockError,
    ServerStopping,
    Unavailable,
    UsageError,
)
from penstock.files import let_go
from penstock.log_events import get_logger
from penstock.wire.calls import FIELDS_BYTES_MAX, PROTOCOL_VERSION, Call, fields_bytes_max
from penstock.wire.failures import decode_error, encode_error
from penstock.wire.frame import ERROR, FRAME_BYTES_MAX, HEAD_BYTES, PUSH, REQUEST, Frame, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.client.address import Place
    from penstock.client.pending import Waiter
    from penstock.files import Buffer
    from penstock.wire.frame import Fields

_log = get_logger("penstock")
CONNECT_SECONDS = 10.0
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 2.0
SENDS_MAX = 20
"""How often a call is sent: one that breaks the connection each time must not do so for ever."""
PING_SECONDS = 5.0
"""After so much silence a server that owes an answer is asked whether it is there."""
PARKED_LOOK_SECONDS = 1.0
"""How often calls that wait for the next server are looked at."""
WATCH_SECONDS = 0.05
"""How long pushes may lie unread before the watch reads them."""
LEAVE_SECONDS = 1.0
"""How long closing waits for who reads."""
_NOW_BYTES_MAX = 16 * 1024
"""What a socket that takes bytes at all takes without waiting."""
_NOW_CALLS_MAX = 64
"""So many calls without much payload are sent without waiting."""


_WRONG_DOOR = "; is it the native port (HTTP and gRPC have their own), and does it want TLS (penstocks://)?"
_WRONG_DOOR_TLS = (
    "; is it the native port (HTTP and gRPC have their own), and does it want a certificate (?cert=FILE&key=FILE)?"
)
"""For who has not been connected yet: afterwards a server is only away. The owner of a folder has no ports."""


_CERTIFICATE = "the server wants a certificate of the client: ?cert=FILE&key=FILE"


def _wants_certificate(error: Exception) -> bool:
    """Whether a server has refused a client without a certificate, or with one that it does not know."""
    return (
        isinstance(error, ssl.SSLError)
        and not isinstance(error, ssl.SSLCertVerificationError)
        and "alert" in str(error).lower()
    )


def _advice(error: Exception) -> str:
    """What to do about a connection that cannot be made."""
    if _wants_certificate(error):
        return _CERTIFICATE
    if isinstance(error, ssl.SSLCertVerificationError):
        return "?ca=FILE names a file of the certificates to trust"
    if isinstance(error, ssl.SSLError):
        return "is TLS spoken there? A server without it is penstock://"
    return "is the server running?"


_JITTER = random.SystemRandom()
"""Not the numbers of `random` itself: those are the program's, which may have seeded them."""
_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_OPEN):
        connection.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)


class Connection:
    """One connection, for any number of threads."""

    def __init__(self, address: Place, *, give_up_s: float = 30.0) -> None:
        self.address = address
        self.give_up_s = give_up_s
        self.hello: dict[str, Any] = {}
        self.generation = 0
        """How often it was connected."""
        self._pid = os.getpid()
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        """Over what follows, and over sending: frames of two calls must not mix, and go in the order of their numbers."""
        self._pending: dict[int, Pending] = {}
        self._calling_back: set[int] = set()
        """Those whose answer nobody waits for."""
        self._role = threading.Lock()
        """Held by who reads."""
        self._reader_id = 0
        self._followers: dict[Waiter, None] = {}
        """Those who wait while another one reads."""
        self._parked = 0
        """How many calls may be parked."""
        self._said_goodbye = False
        """Whether the server has answered all that it had begun, and begins nothing more."""
        self._lost: str | None = None
        """Why the connection broke, until the watch has it back."""
        self._turns = 0
        """How often a thread that waits has read."""
        self._handed_over = False
        """Whether somebody who waited was given what he waits for since this was last set to False."""
        self._silent_s = 0.0
        self._next = 1
        self._closed = False
        self._thread: threading.Thread | None = None
        self._bell = Bell()
        self._returning: list[Callable[[Callable[..., Frame]], None]] = []
        self._pushes: dict[int, Callable[[Frame], bool]] = {}
        self._stop = threading.Event()
        self.deferred = Deferred()
        """For callbacks that may have to wait."""
        self.soon = Soon()
        """For what is to be sent, and may be gathered before; it is sent before each other call."""
        self.pulse = Pulse(self)
        try:
            with self._lock:
                self._connect()
        except BaseException:
            self._bell.close()
            raise
        _OPEN.add(self)

    # -- calling ----------------------------------------------------------------------------------------------------

    def call(
        self, call: int, fields: Fields | None = None, payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, generation: int | None = None,
    ) -> Frame:  # fmt: skip
        """Ask, and wait for the answer. *resend*: it may be sent again when the connection was lost; else *lost* is raised then."""
        return self.begin(call, fields or {}, payload, resend=resend, lost=lost, generation=generation).result()

    def begin(
        self, call: int, fields: Fields, payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, callback: Callable[[Pending], None] | None = None, generation: int | None = None,
        urgent: bool = True,
    ) -> Pending:  # fmt: skip
        """
        Ask, and return at once. *callback* is called by who reads, in any thread, when the answer is there. Raises `Closed`.

        A callback is quick, and takes no lock that anybody holds while he waits for an answer. A call that means nothing on
        another connection tells the *generation* of its own; it is not sent on any other. *urgent*: the callback is called as soon
        as the answer is there, and not when somebody reads for another reason, or `WATCH_SECONDS` later.
        """
        if self.soon.waiting and call != Call.ACK:
            self.soon.run()
        pending = Pending(self, call, fields, payload, resend=resend, lost=lost, callback=callback, generation=generation)
        with self._lock:
            self.check_open()
            if self._channel is None and self._thread is None:
                self._connect()
            stale = self._is_stale(pending)
            if not stale:
                self._enlist(pending, urgent=urgent)
        if stale:
            self._fail_lost(pending, "it is another one now")
        elif callback is not None and urgent and not self._role.locked():
            self._bell.ring()
        return pending

    def begin_now(
        self, call: int, fields: Fields, payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, callback: Callable[[Pending], None] | None = None, generation: int | None = None,
    ) -> Pending | None:  # fmt: skip
        """The same for an event loop: None if it had to wait, for the connection or until the socket takes more. Raises `Closed`."""
        self.check_open()
        if sum(map(len, payload)) > _NOW_BYTES_MAX or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._channel is None or not self._channel.has_room():
                return None
            pending = Pending(self, call, fields, payload, resend=resend, lost=lost, callback=callback, generation=generation)
            stale = self._is_stale(pending)
            if not stale:
                self._enlist(pending)
        finally:
            self._lock.release()
        if stale:
            self._fail_lost(pending, "it is another one now")
        elif callback is not None and not self._role.locked():
            self._bell.ring()
        return pending

    def check_open(self) -> None:
        """Raise `Closed` if it was closed, or is the parent's."""
        if os.getpid() != self._pid:
            raise Closed(f"{self.address.url}, which the parent process opened, must be opened anew in this one: here it")
        if self._closed:
            raise Closed(self.address.url)

    def _is_stale(self, pending: Pending) -> bool:
        return pending.generation is not None and (pending.generation != self.generation or self._channel is None)

    def _fail_lost(self, pending: Pending, reason: str) -> None:
        """Not under the lock."""
        lost = pending.lost or OutcomeUnknown("the call", f"the connection to {self.address.url} was lost: {reason}")
        if pending.parked_at is not None and not pending.was_sent and isinstance(lost, ConnectionLost):
            lost = NotBegun(*lost.args)
        pending.finish(None, lost)

    def _enlist(self, pending: Pending, *, urgent: bool = True) -> None:
        """Give it a number, and send it if there is a connection. Under the lock. Raises `BatchTooLarge`."""
        pending.correlation = self._next
        # Before it is enlisted: what cannot be sent must not wait for an answer.
        try:
            parts = encode_frame(REQUEST, pending.call, pending.correlation, pending.fields, pending.payload)
        except (TypeError, ValueError) as error:
            raise UsageError(f"this cannot be sent to a server: {error}") from None
        size = sum(map(len, parts))
        if size > FRAME_BYTES_MAX:
            raise BatchTooLarge("bytes", size, FRAME_BYTES_MAX)
        fields_bytes = len(parts[0]) - HEAD_BYTES
        if fields_bytes > FIELDS_BYTES_MAX and fields_bytes > fields_bytes_max(pending.call):
            raise BatchTooLarge("bytes of fields", fields_bytes, fields_bytes_max(pending.call))
        self._next += 1
        self._pending[pending.correlation] = pending
        if pending.callback is not None and urgent:
            self._calling_back.add(pending.correlation)
        if self._channel is not None:
            pending.was_sent = True
            pending.sends += 1
            self._channel.send(parts)

    def _send_again(self, calls: list[Pending]) -> None:
        """
        Send *calls* on another connection, in their order. Under the lock, which is given back when all are sent.

        Much is sent by a thread of its own: a server that cannot send its answers does not read either, so somebody must read meanwhile.
        """
        channel, lock = self._channel, self._lock
        assert channel is not None

        def send() -> None:
            try:
                for pending in calls:
                    pending.was_sent = True
                    pending.sends += 1
                    channel.send(encode_frame(REQUEST, pending.call, pending.correlation, pending.fields, pending.payload))
            finally:
                lock.release()

        if sum(len(part) for pending in calls for part in pending.payload) <= _NOW_BYTES_MAX and len(calls) <= _NOW_CALLS_MAX:
            send()
            return
        try:
            threading.Thread(target=send, name=f"penstock-client-again {self.address.url}", daemon=True).start()
        except BaseException:
            lock.release()
            raise

    def has(self, generation: int) -> bool:
        """Whether the connection of *generation* is there: what ended with it need not be told to another one."""
        return self._channel is not None and self.generation == generation

    def on_push(self, handle: int, handler: Callable[[Frame], bool] | None) -> None:
        """Give pushes for *handle* to *handler*, called by who reads, in any thread; it says whether anybody had waited for that."""
        if handler is None:
            self._pushes.pop(handle, None)
        else:
            self._pushes[handle] = handler
            self._bell.ring()

    def on_return(self, handler: Callable[[Callable[..., Frame]], None]) -> Callable[[], None]:
        """Call *handler* with a way to make calls whenever the connection is made again; returns how to stop that."""
        self._returning.append(handler)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._returning.remove(handler)

        return remove

    # -- connecting -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect and greet. Under the lock. Raises `Unavailable`, or what the server refuses with."""
        try:
            made = self.address.connect(CONNECT_SECONDS)
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{self.address.url} cannot be reached: {error}; {_advice(error)}") from None
        except BadArgument as error:
            if self.generation:
                # It worked before: its files are being replaced, perhaps.
                raise Unavailable(f"{self.address.url} cannot be reached: {error}") from None
            raise
        channel = Channel(made)
        try:
            channel.set_greeting_seconds(CONNECT_SECONDS)
            greeting = {"version": PROTOCOL_VERSION, "token": self.address.token, "client": "python"}
            self.hello = channel.ask(Call.HELLO, greeting).fields
            self.generation += 1
            for handler in list(self._returning):
                handler(channel.ask)
            channel.set_silence_seconds(PING_SECONDS)
        except (OSError, BadBytes) as error:
            channel.close()
            advice = ""
            if _wants_certificate(error):
                advice = f"; {_CERTIFICATE}"
            elif not self.generation and is_url(self.address.url):
                advice = _WRONG_DOOR_TLS if self.address.url.startswith("penstocks:") else _WRONG_DOOR
            raise Unavailable(f"{self.address.url} does not answer as a Penstock server does: {error}{advice}") from None
        except BaseException:
            channel.close()
            raise
        self._silent_s = 0.0
        self._channel = channel
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name=f"penstock-client {self.address.url}", daemon=True)
            self._thread.start()

    # -- reading ----------------------------------------------------------------------------------------------------

    def wait(self, waiter: Waiter, timeout_s: float | None = None) -> bool:
        """
        Return when *waiter* is done, True, or *timeout_s* has passed; reads meanwhile if nobody else does.

        Whoever calls it holds no lock that a callback or a handler of pushes takes. A waiter that is no call may come back early.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while not waiter.done:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                if self._may_read and self._role.acquire(blocking=False):
                    self._lead(waiter, end)
                    continue
                self._followers[waiter] = None
                # Both orders are safe: who reads gives the role back before he looks for followers.
                if not waiter.done and not (self._may_read and not self._role.locked()):
                    if self._closed and not isinstance(waiter, Pending):
                        break
                    waiter.sleep(left)
        finally:
            self._followers.pop(waiter, None)
            if not waiter.done and self._may_read and not self._role.locked():
                self._hand_on()  # it may have been this thread's turn
        return waiter.done

    @property
    def _may_read(self) -> bool:
        return self._channel is not None and self._lost is None and not self._closed

    def _lead(self, waiter: Waiter, end: float | None) -> None:
        """Read until *waiter* is done, *end* has come or the connection is lost. The caller has the role, which is given back."""
        self._reader_id = threading.get_ident()
        self._turns += 1
        is_main = threading.current_thread() is threading.main_thread()
        try:
            while not waiter.done and self._may_read and (end is None or time.monotonic() < end):
                self._read_once(end, signals=is_main)
        finally:
            self._give_role_back()

    def _give_role_back(self) -> None:
        self._reader_id = 0
        self._role.release()
        self._hand_on()

    def _hand_on(self) -> None:
        """Somebody else must read: one who waits, else the watch if answers are due that nobody waits for."""
        if self._may_read:
            while self._followers:
                try:
                    follower, _ = self._followers.popitem()
                except KeyError:
                    break
                if not follower.done:
                    follower.wake()
                    return
            if self._calling_back:
                self._bell.ring()

    def _read_once(self, end: float | None, *, signals: bool) -> None:
        """
        Wait for bytes, until *end* at most, and hand out the frames in them. The caller has the role.

        *signals*: this thread may be interrupted. That must not happen between taking bytes and handing them out, so it waits before.
        """
        channel = self._channel
        if channel is None:
            return
        is_taking = False
        try:
            if signals or end is not None:
                left = PING_SECONDS if end is None else min(PING_SECONDS, max(0.0, end - time.monotonic()))
                if not channel.has_bytes(left):
                    self._count_silence(left)
                    return
            is_taking = True
            try:
                frames = channel.receive()
            except BlockingIOError:
                self._count_silence(PING_SECONDS)
                return
            if frames is None:
                return
            self._silent_s = 0.0
            for frame in frames:
                self._take(frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
            if not isinstance(error, (OSError, BadBytes)):
                _log.exception("reading from %s failed", self.address.url)
            self._lose(channel, str(error))
        except BaseException:
            if is_taking:
                self._lose(channel, "it was interrupted while it was read from")
            raise

    def _lose(self, channel: Channel, reason: str) -> None:
        """The connection is of no more use: the watch gets it back."""
        self._lost = reason
        channel.hang_up()
        self._bell.ring()

    def _count_silence(self, seconds: float) -> None:
        """Nothing came for so long. Raises `OSError` if the server is silent for long though it is asked whether it is there."""
        if self._pending or self._pushes:
            before, self._silent_s = self._silent_s, self._silent_s + seconds
            if self._silent_s >= max(self.give_up_s, 2 * PING_SECONDS):
                raise OSError(f"it has not answered for {self._silent_s:g} s")
            if before // PING_SECONDS != self._silent_s // PING_SECONDS:
                self._ping()

    # -- the watch --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """The thread of the connection."""
        while not self._closed:
            if self._lost is not None:
                if not self._return():
                    return
                continue
            if self._parked:
                self._fail_overdue()
            channel = self._channel
            if channel is None:
                return
            if not self._calling_back and not self._is_wanted(channel):
                continue
            if self._role.acquire(blocking=False):
                self._read_for_all()
            else:
                self._bell.wait(WATCH_SECONDS)  # who reads now wakes the watch if he must

    def _is_wanted(self, channel: Channel) -> bool:
        """Look until the watch has something to read, or to do."""
        turns = self._turns
        seconds = WATCH_SECONDS if self._pushes else PARKED_LOOK_SECONDS if self._parked else None
        events = self._bell.wait(seconds, channel.fileno())
        if self._closed or self._lost is not None or events == WOKEN:
            return False
        return bool(events) or self._turns == turns  # pushes may lie there, and nobody has read for a while

    def _fail_overdue(self) -> None:
        """Calls wait for the next server as long as they would for one that is away."""
        now = time.monotonic()
        with self._lock:
            parked = [one for one in list(self._pending.values()) if one.parked_at is not None and not one.was_sent]
            self._parked = len(parked)
            overdue = [one for one in parked if one.parked_at is not None and now - one.parked_at > self.give_up_s]
            self._forget(overdue)
        for pending in overdue:
            pending.is_refused = True
            pending.finish(None, ServerStopping())

    def _read_for_all(self) -> None:
        """Read until somebody who waited has what he waited for: he reads himself the next time. The caller has the role."""
        self._reader_id = threading.get_ident()
        self._handed_over = False
        try:
            while self._may_read and (self._calling_back or not self._handed_over):
                self._read_once(None, signals=False)
        finally:
            self._give_role_back()

    def _return(self) -> bool:
        """Get the connection back. False: it was given up."""
        self._role.acquire()
        self._reader_id = threading.get_ident()
        try:
            return self._come_back(self._lost or "")
        finally:
            self._lost = None
            self._give_role_back()

    def _ping(self) -> None:
        """Ask the server whether it is there; nobody waits for this answer."""
        if self._lock.acquire(blocking=False):
            try:
                if self._channel is not None and self._channel.has_room():
                    self._channel.send(encode_frame(REQUEST, Call.PING, 0, {}))
            finally:
                self._lock.release()

    def nudge(self) -> None:
        """Something that is waited for is there, and did not come from the server: who reads must look up."""
        if self._role.locked() and self._reader_id != threading.get_ident():
            self._ping()

    def _take(self, frame: Frame) -> None:
        if frame.kind == PUSH:
            if frame.call == Call.STOPPING:
                self._hear_stopping(frame)
                return
            handler = self._pushes.get(frame.correlation)
            if handler is not None and handler(frame):
                self._handed_over = True
            return
        if frame.kind == ERROR and frame.fields.get("code") == ServerStopping.code and frame.correlation in self._pending:
            self._pending[frame.correlation].park(time.monotonic())
            self._parked += 1
            self._bell.ring()
            return
        pending = self._pending.pop(frame.correlation, None)
        if pending is not None:
            self._calling_back.discard(frame.correlation)
            if pending in self._followers:
                self._handed_over = True
            if frame.kind == ERROR:
                pending.is_refused = True
                pending.finish(None, decode_error(frame.fields))
            else:
                pending.finish(frame, None)

    def _hear_stopping(self, frame: Frame) -> None:
        """The server stops. By who reads."""
        if frame.fields.get("ended"):
            self._said_goodbye = True
            raise OSError("the server was stopped")
        for handler in list(self._pushes.values()):
            handler(frame)

    def _come_back(self, reason: str) -> bool:
        """The connection is lost: try to get it back, and go on with what can be repeated. False: nobody reads any more."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            if self._said_goodbye:
                self._said_goodbye = False
                now = time.monotonic()
                for pending in self._pending.values():
                    pending.park(now)
            failed = [
                one for one in self._pending.values()
                if (one.parked_at is None or one.was_sent) and (not one.resend or one.sends >= SENDS_MAX)
            ]  # fmt: skip
            self._forget(failed)
        for pending in failed:
            self._fail_lost(pending, reason)
        end = time.monotonic() + self.give_up_s
        pause = PAUSE_FIRST_SECONDS
        while not self._closed:
            try:
                stale = self._connect_again()
            except Unavailable as error:
                if time.monotonic() > end:
                    self._give_up(error)
                    return False
                self._stop.wait(pause * _JITTER.uniform(0.5, 1.5))
                pause = min(pause * 2, PAUSE_MOST_SECONDS)
            except PenstockError as error:
                self._give_up(error)  # it is there, and refuses
                return False
            else:
                for pending in stale:
                    self._fail_lost(pending, reason)
                return True
        self._give_up(Closed(self.address.url))
        return False

    def _connect_again(self) -> list[Pending]:
        """Connect, and send what is not answered; returns the calls that were for the lost connection alone. Raises `PenstockError`."""
        self._lock.acquire()
        try:
            self.check_open()
            self._connect()
            # Begun while there was no connection, for the one that was lost.
            stale = [one for one in self._pending.values() if self._is_stale(one)]
            self._forget(stale)
            again = sorted(self._pending.values(), key=lambda one: one.correlation)
        except BaseException:
            self._lock.release()
            raise
        self._send_again(again)
        return stale

    def _forget(self, failed: list[Pending]) -> None:
        for pending in failed:
            del self._pending[pending.correlation]
            self._calling_back.discard(pending.correlation)

    def _give_up(self, error: PenstockError) -> None:
        with self._lock:
            self._thread = None
            failed = list(self._pending.values())
            self._pending.clear()
            self._calling_back.clear()
        for pending in failed:
            pending.finish(None, error)
        for handler in list(self._pushes.values()):
            handler(Frame(PUSH, Call.FETCH, 0, encode_error(error), memoryview(b"")))
        while self._followers:
            with contextlib.suppress(KeyError):
                self._followers.popitem()[0].wake()

    # -- closing ----------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """In a forked child: the connection is the parent's, and ends with it, whether this child lives on or not."""
        channel, self._channel = self._channel, None
        self._closed = True
        # Threads that were not copied may have held the old ones.
        self._lock, self._role = threading.Lock(), threading.Lock()
        self.soon = Soon()
        self.soon.close()
        self.pulse = Pulse(self)
        self.pulse.close()
        if channel is not None and channel.fileno() >= 0:
            let_go(channel.fileno())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hang up. Calls that wait raise `Closed`. Closing twice does nothing."""
        if self._closed:
            return
        channel = self._channel
        self._closed = True
        if channel is not None:
            # Before the lock: somebody may hold it who waits for the server to take what he sends.
            channel.hang_up()
        with self._lock:
            channel, self._channel = self._channel, None
            thread = self._thread
        self._stop.set()
        self.soon.close()
        self.pulse.close()
        self._bell.ring()
        if channel is not None:
            channel.hang_up()
            # Who reads leaves first: the number of a closed socket may soon be that of another file.
            if self._reader_id != threading.get_ident() and self._role.acquire(timeout=LEAVE_SECONDS):
                self._role.release()
            channel.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._give_up(Closed(self.address.url))
        self.deferred.close()
        self._bell.close()
