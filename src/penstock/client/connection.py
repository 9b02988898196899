"""
A connection to a server that comes back when it is lost.

Theory of operation
-------------------
Any thread makes a call: it sends a frame and waits until the answer with its number comes. One thread for each connection reads, and
hands each answer to who waits for it. When the connection breaks this thread connects again, with growing pauses; those who wait
go on waiting. Then it greets the server, lets consumers subscribe again, and sends once more, in the same order, the calls that may be
repeated: those that only look, and those that the server recognises (batches with a sequence, numbered commits). The others fail:
what became of them is unknown. If the server stays away for `give_up_s`, all fail, and the next call tries anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import select
import socket
import ssl
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

    from penstock.client.address import Place
    from penstock.files import Buffer

_log = logging.getLogger("penstock")
CONNECT_SECONDS = 10.0
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 2.0
SENDS_MAX = 20
"""How often a call is sent: one that breaks the connection each time must not do so for ever."""
PING_SECONDS = 5.0
"""After so much silence a server that owes an answer is asked whether it is there."""
_RECEIVE_BYTES = 256 * 1024
_NOW_BYTES_MAX = 16 * 1024
"""What a socket that takes bytes at all takes without waiting."""


class ConnectionLost(Unavailable):
    """The connection broke while the call was on its way. Never leaves the client."""


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_OPEN):
        connection.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)


class Pending:
    """A call on its way. `result` waits for it."""

    __slots__ = (
        "_event",
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
        self, call: int, fields: dict[str, Any], payload: Sequence[Buffer], *, resend: bool, lost: PenstockError | None,
        callback: Callable[[Pending], None] | None, generation: int | None = None,
    ) -> None:  # fmt: skip
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
        self._event = threading.Lock()
        self._event.acquire()

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self.frame is not None or self.error is not None

    def finish(self, frame: Frame | None, error: PenstockError | None) -> None:
        """The answer is there. Called once, in the reading thread."""
        self.frame, self.error = frame, error
        self._event.release()
        if self.callback is not None:
            self.callback(self)

    def result(self) -> Frame:
        """Wait for the answer. Raises the error that the server told, `Unavailable` or `OutcomeUnknown`."""
        self._event.acquire()
        self._event.release()
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
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._lock = threading.Lock()
        """Over what follows, and over sending: frames of two calls must not mix, and go in the order of their numbers."""
        self._pending: dict[int, Pending] = {}
        self._next = 1
        self._closed = False
        self._thread: threading.Thread | None = None
        self._returning: list[Callable[[Callable[..., Frame]], None]] = []
        self._pushes: dict[int, Callable[[Frame], None]] = {}
        self._stop = threading.Event()
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answering: threading.Thread | None = None
        with self._lock:
            self._connect()
        _OPEN.add(self)

    # -- calling ----------------------------------------------------------------------------------------------------

    def call(
        self, call: int, fields: dict[str, Any] | None = None, payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, generation: int | None = None,
    ) -> Frame:  # fmt: skip
        """Ask, and wait for the answer. *resend*: it may be sent again when the connection was lost; else *lost* is raised then."""
        return self.begin(call, fields or {}, payload, resend=resend, lost=lost, generation=generation).result()

    def begin(
        self, call: int, fields: dict[str, Any], payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, callback: Callable[[Pending], None] | None = None, generation: int | None = None,
    ) -> Pending:  # fmt: skip
        """
        Ask, and return at once. *callback* is called in the reading thread when the answer is there. Raises `Closed`.

        A call that means nothing on another connection tells the *generation* of its own; it is not sent on any other.
        """
        pending = Pending(call, fields, payload, resend=resend, lost=lost, callback=callback, generation=generation)
        with self._lock:
            self.check_open()
            if self._socket is None and self._thread is None:
                self._connect()
            stale = self._is_stale(pending)
            if not stale:
                self._enlist(pending)
        if stale:
            self._fail_lost(pending, "it is another one now")
        return pending

    def begin_now(
        self, call: int, fields: dict[str, Any], payload: Sequence[Buffer] = (), *, resend: bool = True,
        lost: PenstockError | None = None, callback: Callable[[Pending], None] | None = None, generation: int | None = None,
    ) -> Pending | None:  # fmt: skip
        """The same for an event loop: None if it had to wait, for the connection or until the socket takes more. Raises `Closed`."""
        self.check_open()
        if sum(map(len, payload)) > _NOW_BYTES_MAX or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._socket is None or not _has_room(self._socket):
                return None
            pending = Pending(call, fields, payload, resend=resend, lost=lost, callback=callback, generation=generation)
            stale = self._is_stale(pending)
            if not stale:
                self._enlist(pending)
        finally:
            self._lock.release()
        if stale:
            self._fail_lost(pending, "it is another one now")
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

    def _enlist(self, pending: Pending) -> None:
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
        """Send; an error is the reading thread's to notice. Under the lock."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.sendall(parts[0] if len(parts) == 1 else b"".join(parts))

    def defer(self, work: Callable[[], None]) -> None:
        """
        Do *work* in a thread of its own, in order: what takes a lock that somebody may hold while he sends.

        The reading thread must not wait for such a lock: it could be held until the server reads on, and that until we do.
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

    def on_push(self, handle: int, handler: Callable[[Frame], None] | None) -> None:
        """Give pushes for *handle* to *handler*, in the reading thread."""
        if handler is None:
            self._pushes.pop(handle, None)
        else:
            self._pushes[handle] = handler

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
        self._reader = FrameReader()
        try:
            made.settimeout(CONNECT_SECONDS)
            greeting = {"version": PROTOCOL_VERSION, "token": self.address.token, "client": "python"}
            self.hello = self._ask(made, Call.HELLO, greeting).fields
            self.generation += 1
            for handler in list(self._returning):
                handler(lambda call, fields: self._ask(made, call, fields))
            made.settimeout(None)
        except (OSError, BadBytes) as error:
            made.close()
            raise Unavailable(f"{self.address.url} does not answer as a Penstock server does: {error}") from None
        except BaseException:
            made.close()
            raise
        self._socket = made
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name=f"penstock-client {self.address.url}", daemon=True)
            self._thread.start()

    def _ask(self, made: socket.socket, call: int, fields: dict[str, Any]) -> Frame:
        """One call on a socket that nobody else uses yet."""
        made.sendall(b"".join(encode_frame(REQUEST, call, 0, fields)))
        while True:
            data = made.recv(_RECEIVE_BYTES)
            if not data:
                raise OSError("it hung up")
            for frame in self._reader.feed(data):
                if frame.kind == ERROR:
                    raise decode_error(frame.fields)
                if frame.kind == ANSWER:
                    return frame

    def _read(self) -> None:
        """The reading thread."""
        while not self._closed:
            made = self._socket
            if made is None:
                return
            try:
                data = self._receive(made)
                if not data:
                    raise OSError("it hung up")
                for frame in self._reader.feed(data):
                    self._take(frame)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
                if not isinstance(error, (OSError, BadBytes)):
                    _log.exception("reading from %s failed", self.address.url)
                if not self._come_back(str(error)):
                    return

    def _receive(self, made: socket.socket) -> bytes:
        """What comes next. Raises `OSError` also when the server is silent for long though it is asked whether it is there."""
        silent_s = 0.0
        while True:
            if (isinstance(made, ssl.SSLSocket) and made.pending()) or self._poll(made):
                return made.recv(_RECEIVE_BYTES)
            if self._pending or self._pushes:
                silent_s += PING_SECONDS
                if silent_s >= max(self.give_up_s, 2 * PING_SECONDS):
                    raise OSError(f"it has not answered for {silent_s:g} s")
                self._ping()

    @staticmethod
    def _poll(made: socket.socket) -> bool:
        poller = select.poll()
        poller.register(made, select.POLLIN)
        return bool(poller.poll(PING_SECONDS * 1000))

    def _ping(self) -> None:
        """Ask the server whether it is there; nobody waits for this answer."""
        if self._lock.acquire(blocking=False):
            try:
                if self._socket is not None and _has_room(self._socket):
                    self._send(encode_frame(REQUEST, Call.PING, 0, {}))
            finally:
                self._lock.release()

    def _take(self, frame: Frame) -> None:
        if frame.kind == PUSH:
            handler = self._pushes.get(frame.correlation)
            if handler is not None:
                handler(frame)
            return
        pending = self._pending.pop(frame.correlation, None)
        if pending is not None:
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
            for pending in failed:
                del self._pending[pending.correlation]
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
                    for pending in stale:
                        del self._pending[pending.correlation]
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

    def _give_up(self, error: PenstockError) -> None:
        with self._lock:
            self._thread = None
            failed = list(self._pending.values())
            self._pending.clear()
        for pending in failed:
            pending.finish(None, error)
        for handler in list(self._pushes.values()):
            handler(Frame(PUSH, Call.FETCH, 0, encode_error(error), memoryview(b"")))

    # -- closing ----------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """In a forked child: the connection is the parent's, and ends with it, whether this child lives on or not."""
        made, self._socket = self._socket, None
        self._closed = True
        self._lock = threading.Lock()  # a thread that was not copied may have held the old one
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
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        with self._lock:
            made, self._socket = self._socket, None
            thread = self._thread
        self._stop.set()
        if made is not None:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            made.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._give_up(Closed(self.address.url))
        self._answers.put(None)


def _has_room(made: socket.socket) -> bool:
    """Whether some bytes can be sent without waiting."""
    poll = select.poll()
    poll.register(made, select.POLLOUT)
    return bool(poll.poll(0))
