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

Locks: `_lock` is over sending and the state, and is held while the server does not take what is sent. `_role` is held by who reads, who
never waits for `_lock` while he holds it, except to connect again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import select
import socket
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from penstock.errors import BadBytes, BatchTooLarge, Closed, OutcomeUnknown, PenstockError, Unavailable, UsageError
from penstock.files import let_go
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.failures import decode_error, encode_error
from penstock.wire.frame import ANSWER, ERROR, FRAME_BYTES_MAX, PUSH, REQUEST, Frame, FrameReader, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.client.address import Connected, Place
    from penstock.files import Buffer
    from penstock.wire.frame import Fields

_log = logging.getLogger("penstock")
CONNECT_SECONDS = 10.0
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 2.0
SENDS_MAX = 20
"""How often a call is sent: one that breaks the connection each time must not do so for ever."""
PING_SECONDS = 5.0
"""After so much silence a server that owes an answer is asked whether it is there."""
WATCH_SECONDS = 0.05
"""How long pushes may lie unread before the watch reads them."""
_RECEIVE_BYTES = 64 * 1024
_RECEIVE_MUCH_BYTES = 1024 * 1024
"""What is asked for when the last time there was more than asked for."""
SOON_SECONDS = 0.005
"""How long acks that nobody waits for are gathered."""
LEAVE_SECONDS = 1.0
"""How long closing waits for who reads."""
_NOW_BYTES_MAX = 16 * 1024
"""What a socket that takes bytes at all takes without waiting."""
_POLL_GONE = getattr(select, "POLLRDHUP", 0)
_TIMEVAL = struct.Struct("@ll")
_WOKEN, _GONE = 1, 2


class ConnectionLost(Unavailable):
    """The connection broke while the call was on its way. Never leaves the client."""


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_OPEN):
        connection.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)


class Waiter:
    """Something that a thread waits for, by `Connection.wait`."""

    __slots__ = ("_event", "done")

    def __init__(self) -> None:
        self.done = False
        """Whether it is there. Set before it is woken."""
        self._event = threading.Lock()
        self._event.acquire()

    def wake(self) -> None:
        """Let the thread look again: it is done, or this thread is to read."""
        try:  # noqa: SIM105 - for each answer, and suppress costs more than all the rest here
            self._event.release()
        except RuntimeError:
            pass  # it was woken already

    def sleep(self, seconds: float | None) -> None:
        """Sleep until it is woken."""
        if seconds is None:
            self._event.acquire()
        else:
            self._event.acquire(timeout=max(0.0, seconds))

    def set(self) -> None:
        """It is there."""
        self.done = True
        self.wake()


class Pending(Waiter):
    """A call on its way. `result` waits for it."""

    __slots__ = (
        "_connection",
        "call",
        "callback",
        "correlation",
        "error",
        "fields",
        "frame",
        "generation",
        "is_refused",
        "lost",
        "payload",
        "resend",
        "sends",
        "was_sent",
    )

    def __init__(
        self, connection: Connection, call: int, fields: Fields, payload: Sequence[Buffer], *, resend: bool,
        lost: PenstockError | None, callback: Callable[[Pending], None] | None, generation: int | None = None,
    ) -> None:  # fmt: skip
        self.done = False
        self._event = threading.Lock()
        self._event.acquire()
        self._connection = connection
        self.call = call
        self.fields = fields
        self.payload = payload
        self.resend = resend
        self.lost = lost
        self.callback = callback
        self.generation = generation
        self.correlation = 0
        self.frame: Frame | None = None
        self.error: PenstockError | None = None
        self.was_sent = False
        self.sends = 0
        self.is_refused = False
        """Whether the server itself answered with the error."""

    def finish(self, frame: Frame | None, error: PenstockError | None) -> None:
        """The answer is there. Called once, by who reads."""
        self.frame, self.error = frame, error
        self.done = True
        self.wake()
        if self.callback is not None:
            self.callback(self)

    def result(self) -> Frame:
        """Wait for the answer. Raises the error that the server told, `Unavailable` or `OutcomeUnknown`."""
        if not self.done:
            self._connection.wait(self)
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return self.frame


class Connection:
    """One connection, for any number of threads."""

    def __init__(self, address: Place, *, give_up_s: float = 30.0) -> None:
        self.address = address
        self.give_up_s = give_up_s
        self.hello: dict[str, Any] = {}
        self.generation = 0
        """How often it was connected."""
        self._pid = os.getpid()
        self._socket: Connected | None = None
        self._reader = FrameReader()
        self._receive_bytes = _RECEIVE_BYTES
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
        self._bell, self._bell_rope = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_rope.setblocking(False)
        self._returning: list[Callable[[Callable[..., Frame]], None]] = []
        self._pushes: dict[int, Callable[[Frame], bool]] = {}
        self._stop = threading.Event()
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answering: threading.Thread | None = None
        self._soon: dict[Callable[[], bool], None] = {}
        self._sooner: threading.Thread | None = None
        self._soon_wake = threading.Event()
        try:
            with self._lock:
                self._connect()
        except BaseException:
            self._bell.close()
            self._bell_rope.close()
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
        if self._soon and call != Call.ACK:
            self.run_soon()
        pending = Pending(self, call, fields, payload, resend=resend, lost=lost, callback=callback, generation=generation)
        with self._lock:
            self.check_open()
            if self._socket is None and self._thread is None:
                self._connect()
            stale = self._is_stale(pending)
            if not stale:
                self._enlist(pending, urgent=urgent)
        if stale:
            self._fail_lost(pending, "it is another one now")
        elif callback is not None and urgent and not self._role.locked():
            self._wake_watch()
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
            if self._socket is None or not _has_room(self._socket):
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
            self._wake_watch()
        return pending

    def check_open(self) -> None:
        """Raise `Closed` if it was closed, or is the parent's."""
        if os.getpid() != self._pid:
            raise Closed(f"{self.address.url}, which the parent process opened, must be opened anew in this one: here it")
        if self._closed:
            raise Closed(self.address.url)

    def _is_stale(self, pending: Pending) -> bool:
        return pending.generation is not None and (pending.generation != self.generation or self._socket is None)

    def _fail_lost(self, pending: Pending, reason: str) -> None:
        """Not under the lock."""
        lost = pending.lost or OutcomeUnknown("the call", f"the connection to {self.address.url} was lost: {reason}")
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
        self._next += 1
        self._pending[pending.correlation] = pending
        if pending.callback is not None and urgent:
            self._calling_back.add(pending.correlation)
        if self._socket is not None:
            pending.was_sent = True
            pending.sends += 1
            self._send(parts)

    def _transmit(self, pending: Pending) -> None:
        """Send it once more."""
        pending.was_sent = True
        pending.sends += 1
        self._send(encode_frame(REQUEST, pending.call, pending.correlation, pending.fields, pending.payload))

    def _send(self, parts: list[Buffer]) -> None:
        """Send; an error is for who reads to notice. Under the lock."""
        made = self._socket
        assert made is not None
        try:
            made.sendall(parts[0] if len(parts) == 1 else b"".join(parts))
        except OSError:
            pass
        except BaseException:
            _hang_up(made)  # Ctrl-C in the middle of a frame: nothing can follow it
            raise

    def defer(self, work: Callable[[], None]) -> None:
        """
        Do *work* in a thread of its own, in order: what takes a lock that somebody may hold while he sends.

        Who reads must not wait for such a lock: it could be held until the server reads on, and that until we do.
        """
        if self._answering is None:
            self._answering = threading.Thread(target=self._run_deferred, name="penstock-client-answers", daemon=True)
            self._answering.start()
        self._answers.put(work)

    def _run_deferred(self) -> None:
        while (work := self._answers.get()) is not None:
            try:
                work()
            except Exception:  # noqa: BLE001 - the next ones still want theirs
                _log.exception("an answer could not be handled")

    def soon(self, work: Callable[[], bool]) -> None:
        """
        Call *work* every `SOON_SECONDS`, and before each call that is made, until it says that there is nothing to do.

        In any thread, and maybe in two at once.
        """
        self._soon[work] = None
        if self._sooner is None:
            with self._lock:
                if self._sooner is None and not self._closed:
                    self._sooner = threading.Thread(target=self._run_soon, name="penstock-client-soon", daemon=True)
                    self._sooner.start()
        self._soon_wake.set()

    def run_soon(self) -> None:
        """Do now what is to be done soon."""
        for work in list(self._soon):
            self._soon.pop(work, None)
            if work():
                self._soon[work] = None
                self._soon_wake.set()  # its thread may have seen that there was nothing

    def _run_soon(self) -> None:
        while not self._closed:
            self._soon_wake.wait()
            self._soon_wake.clear()
            while self._soon and not self._stop.wait(SOON_SECONDS):
                self.run_soon()

    def on_push(self, handle: int, handler: Callable[[Frame], bool] | None) -> None:
        """Give pushes for *handle* to *handler*, called by who reads, in any thread; it says whether anybody had waited for that."""
        if handler is None:
            self._pushes.pop(handle, None)
        else:
            self._pushes[handle] = handler
            self._wake_watch()

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
            raise Unavailable(f"{self.address.url} cannot be reached: {error}; is the server running?") from None
        self._reader, self._receive_bytes = FrameReader(), _RECEIVE_BYTES
        try:
            made.settimeout(CONNECT_SECONDS)
            greeting = {"version": PROTOCOL_VERSION, "token": self.address.token, "client": "python"}
            self.hello = self._ask(made, Call.HELLO, greeting).fields
            self.generation += 1
            for handler in list(self._returning):
                handler(lambda call, fields: self._ask(made, call, fields))
            made.settimeout(None)
            # Not by Python's own timeout, which costs a second system call for each.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(PING_SECONDS))
        except (OSError, BadBytes) as error:
            made.close()
            raise Unavailable(f"{self.address.url} does not answer as a Penstock server does: {error}") from None
        except BaseException:
            made.close()
            raise
        self._silent_s = 0.0
        self._socket = made
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name=f"penstock-client {self.address.url}", daemon=True)
            self._thread.start()

    def _ask(self, made: Connected, call: int, fields: dict[str, Any]) -> Frame:
        """One call on a socket that nobody else uses yet."""
        made.sendall(b"".join(encode_frame(REQUEST, call, 0, fields)))
        while True:
            data = made.recv(_RECEIVE_BYTES)
            if data is None:
                continue
            if not data:
                raise OSError("it hung up")
            for frame in self._reader.feed(data):
                if frame.kind == ERROR:
                    raise decode_error(frame.fields)
                if frame.kind == ANSWER:
                    return frame

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
        return self._socket is not None and self._lost is None and not self._closed

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
                self._wake_watch()

    def _read_once(self, end: float | None, *, signals: bool) -> None:
        """
        Wait for bytes, until *end* at most, and hand out the frames in them. The caller has the role.

        *signals*: this thread may be interrupted. That must not happen between taking bytes and handing them out, so it waits before.
        """
        made = self._socket
        if made is None:
            return
        is_taking = False
        try:
            if signals or end is not None:
                left = PING_SECONDS if end is None else min(PING_SECONDS, max(0.0, end - time.monotonic()))
                if not _poll(made, select.POLLIN, left):
                    self._count_silence(left)
                    return
            is_taking = True
            try:
                data = made.recv(self._receive_bytes)
            except BlockingIOError:
                self._count_silence(PING_SECONDS)
                return
            if data is None:
                return
            if not data:
                raise OSError("it hung up")
            self._receive_bytes = _RECEIVE_BYTES if len(data) < self._receive_bytes else _RECEIVE_MUCH_BYTES
            self._silent_s = 0.0
            for frame in self._reader.feed(data):
                self._take(frame)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
            if not isinstance(error, (OSError, BadBytes)):
                _log.exception("reading from %s failed", self.address.url)
            self._lose(made, str(error))
        except BaseException:
            if is_taking:
                self._lose(made, "it was interrupted while it was read from")
            raise

    def _lose(self, made: Connected, reason: str) -> None:
        """The connection is of no more use: the watch gets it back."""
        self._lost = reason
        _hang_up(made)
        self._wake_watch()

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
            made = self._socket
            if made is None:
                return
            if not self._calling_back and not self._is_wanted(made):
                continue
            if self._role.acquire(blocking=False):
                self._read_for_all()
            else:
                self._look(made, WATCH_SECONDS, gone=False)  # who reads now wakes the watch if he must

    def _is_wanted(self, made: Connected) -> bool:
        """Look until the watch has something to read, or to do."""
        turns = self._turns
        events = self._look(made, WATCH_SECONDS if self._pushes else None)
        if self._closed or self._lost is not None or events == _WOKEN:
            return False
        return bool(events) or self._turns == turns  # pushes may lie there, and nobody has read for a while

    def _read_for_all(self) -> None:
        """Read until somebody who waited has what he waited for: he reads himself the next time. The caller has the role."""
        self._reader_id = threading.get_ident()
        self._handed_over = False
        try:
            while self._may_read and (self._calling_back or not self._handed_over):
                self._read_once(None, signals=False)
        finally:
            self._give_role_back()

    def _look(self, made: Connected, seconds: float | None, *, gone: bool = True) -> int:
        """Wait until the server hangs up (if *gone* is set) or somebody wakes the watch; returns which."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        descriptor = made.fileno()
        if gone:
            if descriptor < 0:
                return _GONE
            poller.register(descriptor, _POLL_GONE)
        found = 0
        for one, _ in poller.poll(None if seconds is None else seconds * 1000):
            if one != descriptor:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
                found |= _WOKEN
            else:
                found |= _GONE
        return found

    def _wake_watch(self) -> None:
        with contextlib.suppress(OSError):  # it was rung often and not heard yet, or the connection was closed
            self._bell_rope.send(b"x")

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
                if self._socket is not None and _has_room(self._socket):
                    self._send(encode_frame(REQUEST, Call.PING, 0, {}))
            finally:
                self._lock.release()

    def nudge(self) -> None:
        """Something that is waited for is there, and did not come from the server: who reads must look up."""
        if self._role.locked() and self._reader_id != threading.get_ident():
            self._ping()

    def _take(self, frame: Frame) -> None:
        if frame.kind == PUSH:
            handler = self._pushes.get(frame.correlation)
            if handler is not None and handler(frame):
                self._handed_over = True
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

    def _come_back(self, reason: str) -> bool:
        """The connection is lost: try to get it back, and go on with what can be repeated. False: nobody reads any more."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            failed = [one for one in self._pending.values() if not one.resend or one.sends >= SENDS_MAX]
            self._forget(failed)
        for pending in failed:
            self._fail_lost(pending, reason)
        end = time.monotonic() + self.give_up_s
        pause = PAUSE_FIRST_SECONDS
        while not self._closed:
            try:
                with self._lock:
                    if self.closed:
                        break
                    self._connect()
                    # Begun while there was no connection, for the one that was lost.
                    stale = [one for one in self._pending.values() if self._is_stale(one)]
                    self._forget(stale)
                    for pending in sorted(self._pending.values(), key=lambda one: one.correlation):
                        self._transmit(pending)
            except Unavailable as error:
                if time.monotonic() > end:
                    self._give_up(error)
                    return False
                self._stop.wait(pause * random.uniform(0.5, 1.5))
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
        made, self._socket = self._socket, None
        self._closed = True
        # Threads that were not copied may have held the old ones.
        self._lock, self._role = threading.Lock(), threading.Lock()
        if made is not None and made.fileno() >= 0:
            let_go(made.fileno())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hang up. Calls that wait raise `Closed`. Closing twice does nothing."""
        if self._closed:
            return
        made = self._socket
        self._closed = True
        if made is not None:
            # Before the lock: somebody may hold it who waits for the server to take what he sends.
            _hang_up(made)
        with self._lock:
            made, self._socket = self._socket, None
            thread = self._thread
        self._stop.set()
        self._soon_wake.set()
        self._wake_watch()
        if made is not None:
            _hang_up(made)
            # Who reads leaves first: the number of a closed socket may soon be that of another file.
            if self._reader_id != threading.get_ident() and self._role.acquire(timeout=LEAVE_SECONDS):
                self._role.release()
            made.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._give_up(Closed(self.address.url))
        self._answers.put(None)
        self._bell.close()
        self._bell_rope.close()


def _has_room(made: Connected) -> bool:
    """Whether some bytes can be sent without waiting."""
    return _poll(made, select.POLLOUT, 0)


def _poll(made: Connected, events: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(made, events)
    return bool(poller.poll(seconds * 1000))


def _hang_up(made: Connected) -> None:
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)


def _timeval(seconds: float) -> bytes:
    """As the kernel wants it."""
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
