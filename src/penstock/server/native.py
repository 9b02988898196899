"""
The listener of the native protocol: sockets, the first greeting, limits. What a client may do is `broker/session.py`.

A connection begins with a hello, within `HANDSHAKE_SECONDS` and `HELLO_BYTES_MAX`; until then it can make the server hold nothing. A client
that sends more than is answered is not read from any more until there is room, and for one that does not read nothing is leased. A frame
that has begun must be whole within a time. What all clients together make the server hold has one bound: `broker/memory_budget.py`. Fields
that are long are read by a thread, so that the loop, which is there for all clients, does not wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from penstock.broker.completions import Completions
from penstock.broker.memory_budget import MemoryBudget
from penstock.broker.session import Session
from penstock.client.address import keep_alive, peer_pid, peer_uid
from penstock.errors import BadBytes, PenstockError, ServerStopping, Unauthenticated, Unavailable, UsageError
from penstock.files import let_go
from penstock.log_events import event, get_logger
from penstock.server.accepting import stop_accepting
from penstock.server.address import Address
from penstock.server.auth import Everyone, tell_client, tell_refused
from penstock.server.call_threads import CallThreads
from penstock.server.descriptors import Connections
from penstock.server.releases import Releases
from penstock.server.sending import waiting_bytes
from penstock.wire.calls import PROTOCOL_VERSION, Call, fields_bytes_max
from penstock.wire.failures import encode_error
from penstock.wire.frame import (
    ANSWER,
    ERROR,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    PUSH,
    REQUEST,
    Frame,
    FrameReader,
    decode_frame,
    encode_frame,
    fields_bytes_of,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from penstock.broker.memory_budget import Account
    from penstock.files import Buffer
    from penstock.server.auth import Authenticator
    from penstock.store.store import Store

DEFAULT_PORT = 7420
_log = get_logger("penstock.server")
HANDSHAKE_SECONDS = 10.0
RELEASE_SECONDS = 5.0
LISTEN_SECONDS = 0.5
"""So long a server that stops still takes acks that were on their way, while calls run."""
GOODBYE_SECONDS = 2.0
"""So long clients have to hang up themselves after they were told that the server begins none of their calls any more."""
LOOK_SECONDS = 0.02
"""How often a server that stops looks whether consumers have finished what they hold."""
CALL_THREADS = 64
"""Threads for calls that wait for the disk."""
READ_BYTES = 256 * 1024
"""What is read at a time."""
LOOP_FIELDS_BYTES = 16 * 1024
"""Fields that are longer are read by a thread."""
FRAME_SECONDS = 60.0
"""Within this a frame that has begun must be whole, if the server is not told another time."""
CUT_SECONDS = 1.0
"""So long a connection that is cut has to read the reason."""
WRITE_BYTES_HIGH = 1024 * 1024
"""What may wait to be sent to one connection before it is not read from, and nothing is leased for it."""
_HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_HTTP_TEXT = b"This is Penstock's native port; HTTP has its own, 7422 if the server was not told another.\n"
_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(_HTTP_TEXT)
    + _HTTP_TEXT
)
"""For who took the wrong port: an error frame would be noise to him."""


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, listener: NativeListener) -> None:
        self._listener = listener
        self._reader = FrameReader(HELLO_BYTES_MAX, fields_bytes_max)
        self._account: Account | None = None
        self._has_to_wait = False
        """Whether the server's memory for its clients has no room for more of this one."""
        self._backlog: deque[bytes] | None = None
        """What came while a frame with long fields is being read by a thread; None if there is no such frame."""
        self._is_timed = False
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._client: dict[str, str] = {}
        """Who it is, for the log, once it is let in."""
        self._deadline: asyncio.TimerHandle | None = None
        self._is_full = False
        self._is_held = False
        self._is_counted = False
        self._is_taking = False
        self._is_deaf = False
        self._outbox: list[Buffer] = []
        """What is sent together when all that came together was handled."""
        self._writing = threading.Lock()
        """Over the socket and what follows, since the thread that commits writes too."""
        self._descriptor = -1
        self._rest = b""
        """What the socket did not take of a frame."""

    # -- what asyncio calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: the transports of other event loops (uvloop's) are none of asyncio's classes.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connected)
        if self._listener.users is not None and peer_uid(connected) not in self._listener.users:
            self._end(0, 0, Unauthenticated("the store belongs to another user"))
            return
        self._is_counted = self._listener.room.take()
        if not self._is_counted:
            self._end(0, 0, Unavailable("the server has as many connections as it may"))
            return
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, transport.abort)
        self._listener.connections.add(self)
        self._account = self._listener.budget.open(self, _named(transport.get_extra_info("peername")))
        if connected is not None and type(transport).__module__ == "asyncio.selector_events":
            # One that writes at once, in this process, and unencrypted: its socket may be written to beside it when its buffer is empty.
            self._descriptor = connected.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        # Of all connections, since it is emptied at once. A new one for each read, as other protocols get, costs more than the read.
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_deaf:
            data = bytes(self._listener.buffer[:nbytes])
            if self._backlog is None:
                self._receive(data, self._reader.cut(data))
            else:
                self._backlog.append(data)

    def _receive(self, data: bytes, frames: Iterator[Buffer], first: tuple[Frame, Exception | None] | None = None) -> None:
        """Carry out *frames*, those that *data* completed; *first* was read by a thread meanwhile, and perhaps is refused."""
        self._listener.completions.run()
        self._is_taking = True
        try:
            if first is not None:
                self._take(*first, is_checked=True)
                if self._transport is None or self._transport.is_closing():
                    return
            for whole in frames:
                if self._session is not None and fields_bytes_of(whole) > LOOP_FIELDS_BYTES:
                    self._read_aside(whole, data, frames)
                    break
                self._take(decode_frame(whole))
                if self._transport is None or self._transport.is_closing():
                    return
        except BadBytes as error:
            if self._session is None and data.startswith(_HTTP_METHODS) and self._transport is not None:
                self._write([_HTTP_ANSWER])
                self._transport.close()
            else:
                self._end(0, 0, error)
            return
        finally:
            self._is_taking = False
            self._flush()
        self._count_partial()
        if self._session is not None and self._session.under_way.is_full:
            self._hold()

    def _take(self, frame: Frame, refusal: Exception | None = None, *, is_checked: bool = False) -> None:
        if frame.kind != REQUEST:
            raise BadBytes("frame", "is no request")
        if self._session is None:
            self._greet(frame)
            return
        try:
            if isinstance(refusal, Unauthenticated):
                raise refusal
            if refusal is None:
                self._session.handle(frame, is_checked=is_checked)
            else:
                self._session.refuse(frame, refusal)
        except Unauthenticated as error:
            # Its token was revoked, or has expired: it can do nothing more here.
            self._end(frame.call, frame.correlation, error)

    def _read_aside(self, whole: Buffer, data: bytes, frames: Iterator[Buffer]) -> None:
        """
        Let a thread read a frame with long fields, one such frame of all connections at a time; read on when it is carried out.

        The loop would stand still for all clients meanwhile, and other frames of this one must not overtake it.
        """
        assert self._session is not None
        assert self._transport is not None
        self._backlog = deque()
        self._transport.pause_reading()
        session, account = self._session, self._account
        if account is not None:
            account.begin(len(whole))

        def read() -> tuple[Frame, Exception | None]:
            frame = decode_frame(whole)
            try:
                session.check(frame)
            except Exception as error:  # noqa: BLE001 - told to the client, as `Session.handle` does
                return frame, error
            return frame, None

        def done(future: asyncio.Future[tuple[Frame, Exception | None]]) -> None:
            backlog, self._backlog = self._backlog or deque(), None
            if account is not None:
                account.end(len(whole))
            if self._transport is None or self._transport.is_closing() or self._is_deaf:
                return
            error = future.exception()
            if error is not None:
                self._end(0, 0, error if isinstance(error, BadBytes) else Unavailable("the server failed to read the call"))
                return
            self._receive(data, frames, future.result())
            self._catch_up(backlog)

        asyncio.get_running_loop().run_in_executor(self._listener.long_fields, read).add_done_callback(done)

    def _catch_up(self, backlog: deque[bytes]) -> None:
        """Carry out what came while a frame was read aside; another such frame may be among it."""
        while backlog and self._backlog is None and self._transport is not None and not self._transport.is_closing():
            piece = backlog.popleft()
            self._receive(piece, self._reader.cut(piece))
        if self._backlog is not None:
            self._backlog.extend(backlog)
        else:
            self._read_on()

    def _count_partial(self) -> None:
        """What is held of a frame that is not whole; it must be whole within `frame_s`."""
        partial_bytes = self._reader.partial_bytes
        account = self._account
        if account is None or partial_bytes == account.receiving:
            return
        account.set_receiving(partial_bytes)
        if partial_bytes and not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(self._listener.frame_s, self._look_at_frame, self._reader.count)

    def _look_at_frame(self, count: int) -> None:
        self._is_timed = False
        if self._transport is None or self._transport.is_closing() or not self._reader.partial_bytes:
            return
        if self._reader.count == count and not self._is_held and not self._is_full and not self._has_to_wait:
            seconds, held = self._listener.frame_s, self._reader.partial_bytes
            _log.warning(
                "cut %s: a frame of which %d bytes came was not finished within %g s", self._name, held, seconds,
                extra=event("frame_unfinished", client=self._name, bytes=held, seconds=seconds),
            )  # fmt: skip
            self._end(0, 0, Unavailable(f"a frame must be finished within {seconds:g} s, and {held:,} bytes of this one came"))
            return
        # Another frame has begun since, or this one waited for the server: it has its time from now on.
        self._is_timed = True
        asyncio.get_running_loop().call_later(self._listener.frame_s, self._look_at_frame, self._reader.count)

    # -- what the budget calls --------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        """See `Holder`."""
        self._has_to_wait = True
        if self._transport is not None:
            self._transport.pause_reading()
        self.set_writable()

    def go_on(self) -> None:
        """See `Holder`."""
        self._has_to_wait = False
        self._read_on()
        self.set_writable()

    def set_writable(self) -> None:
        """Let the session know whether there is room for deliveries and large answers."""
        if self._session is not None:
            may_write = not self._is_full and not self._has_to_wait and not self._listener.budget.is_full
            self._session.set_writable(may_write=may_write)

    def cut(self, error: Unavailable) -> None:
        """See `Holder`."""
        transport = self._transport
        if transport is None:
            return
        self._end(0, 0, error)
        # One that does not read gets neither the answers nor the error.
        asyncio.get_running_loop().call_later(0 if waiting_bytes(transport) else CUT_SECONDS, transport.abort)

    def look(self) -> None:
        """See `Holder`."""
        if self._transport is not None and self._account is not None:
            self._account.set_sending(waiting_bytes(self._transport))

    @property
    def _name(self) -> str:
        return "a client" if self._account is None else self._account.name

    def pause_writing(self) -> None:
        self._is_full = True
        assert self._transport is not None
        self._transport.pause_reading()
        self.set_writable()

    def resume_writing(self) -> None:
        self._is_full = False
        self.look()
        self._read_on()
        self.set_writable()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        with self._writing:
            # From now on its descriptor may be that of another file.
            self._transport, self._descriptor = None, -1
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.connections.discard(self)
        self._reader = FrameReader(HELLO_BYTES_MAX)  # what it held goes now, not with the last reference to this
        if self._account is not None:
            self._account.close()
        if self._is_counted:
            self._is_counted = False
            self._listener.room.give_back()
        if self._session is not None:
            tell_client(came=False, **self._client)
            release = self._session.disconnect(orderly=self._listener.is_stopping)
            self._session = None
            self._listener.releases.begin(release)

    # -- greeting ---------------------------------------------------------------------------------------------------

    def _greet(self, frame: Frame) -> None:
        try:
            if frame.call != Call.HELLO:
                raise UsageError("a connection begins with a hello")
            version = frame.fields.get("version")
            if version != PROTOCOL_VERSION:
                raise UsageError(f"this server speaks version {PROTOCOL_VERSION} of the protocol, not {version!r}")
            if self._listener.is_stopping:
                raise ServerStopping
            token = frame.fields.get("token")
            if token is not None and not isinstance(token, str):
                raise UsageError("a token is a text")
            principal = self._listener.auth.authenticate(token)
        except PenstockError as error:
            tell_refused("native", self._peer(), error)
            self._end(frame.call, frame.correlation, error)
            return
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None
        self._reader.bytes_max = FRAME_BYTES_MAX
        interface, peer = "native" if self._listener.users is None else "folder", self._peer()
        self._session = Session(
            self._listener.store, self._send, self._listener.completions, principal, self._send_now,
            auto_create=self._listener.auto_create, interface=interface, peer=peer,
        )  # fmt: skip
        self._client = {"interface": interface, "peer": peer, "principal": principal.name}
        tell_client(came=True, **self._client)
        self._session.under_way.on_room = self._look_for_room
        self._session.under_way.account = self._account
        if self._account is not None:
            self._account.set_principal(principal.name)
        self.set_writable()
        self._send(encode_frame(ANSWER, frame.call, frame.correlation, self._session.hello()))

    def _peer(self) -> str:
        """The address of the client, or at a Unix socket its process."""
        assert self._transport is not None
        connected = self._transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            return f"pid {peer_pid(connected)}"
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""

    def _end(self, call: int, correlation: int, error: PenstockError) -> None:
        """Say why, and hang up."""
        if self._transport is not None:
            self._flush()
            self._write(encode_frame(ERROR, call, correlation, encode_error(error)))
            self._transport.close()

    def _send(self, parts: list[Buffer]) -> None:
        """Send a frame, together with others where there are any. In the loop."""
        if self._is_taking:
            self._outbox += parts
        elif self._listener.completions.is_running:
            if not self._outbox:
                self._listener.completions.at_end(self._flush)
            self._outbox += parts
        else:
            self._write(parts)

    def _flush(self) -> None:
        if self._outbox:
            parts, self._outbox = self._outbox, []
            self._write(parts)

    def _write(self, parts: list[Buffer]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            with self._writing:
                rest, self._rest = self._rest, b""
                transport.write(b"".join([rest, *parts]))
            account, waiting = self._account, waiting_bytes(transport)
            if account is not None and (waiting or account.sending):
                account.set_sending(waiting)

    def _send_now(self, data: bytes) -> bool:
        """Send a frame from any thread, without waiting. False: nothing was sent, the loop must do it."""
        with self._writing:
            transport = self._transport
            if (
                self._descriptor < 0
                or transport is None
                or self._rest
                or transport.is_closing()
                or transport.get_write_buffer_size()
            ):
                return False
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                return False  # it takes no more, or is broken: the loop will see
            self._rest = data[sent:]
        if self._rest:
            self._listener.completions.add(lambda: self._write([]))
        return True

    def _look_for_room(self) -> None:
        if self._is_held and self._session is not None and self._session.under_way.has_room:
            self._is_held = False
            self._read_on()

    def _hold(self) -> None:
        self._is_held = True
        assert self._transport is not None
        self._transport.pause_reading()

    def _read_on(self) -> None:
        if (
            not self._is_full
            and not self._is_held
            and not self._has_to_wait
            and self._backlog is None
            and self._transport is not None
        ):
            self._transport.resume_reading()

    def look_at_token(self) -> None:
        """End the connection if its token is not valid any more."""
        try:
            if self._session is not None:
                self._session.check_valid()
        except Unauthenticated as error:
            self._end(0, 0, error)

    @property
    def outstanding(self) -> int:
        """Calls that run."""
        return 0 if self._session is None else self._session.under_way.outstanding

    @property
    def in_flight(self) -> int:
        """What its consumers hold and have not finished."""
        return 0 if self._session is None else self._session.in_flight

    def stop_dispatching(self) -> None:
        """The server stops: hand out nothing more, begin nothing new, and tell the client so."""
        if self._session is not None:
            self._session.stop_dispatching()
            self._send(encode_frame(PUSH, Call.STOPPING, 0, {"ended": False}))

    def refuse_all(self) -> None:
        """Begin no more calls: what comes is refused, and its client does it again elsewhere."""
        if self._session is not None:
            self._session.refuse_all()

    def say_goodbye(self) -> None:
        """
        All its calls were answered: tell the client that none that comes from now on is begun, and drop what comes until it hangs up.

        Not to read it would be worse: a socket that is closed with bytes in it takes the answers with it that are on their way. And a
        client that is not told cannot know which of its calls were begun.
        """
        if self._session is not None and not self.outstanding:
            self._flush()
            self._write(encode_frame(PUSH, Call.STOPPING, 0, {"ended": True}))
        self._is_deaf = True

    def abort(self) -> None:
        """Hang up now."""
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """In a forked child: the connection is the parent's, and its client must see it end with the parent."""
        connected = None if self._transport is None else self._transport.get_extra_info("socket")
        if connected is not None and connected.fileno() >= 0:
            let_go(connected.fileno())

    def close(self) -> None:
        """Hang up after what was answered is sent."""
        if self._transport is not None:
            self._transport.close()


def _named(peer: Any) -> str:
    """A client as the log calls it."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "a client of a Unix socket"


class NativeListener:
    """Takes connections for one store, on an address or a Unix socket. Runs in the event loop that it is started in."""

    def __init__(
        self,
        store: Store,
        address: Address | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        auth: Authenticator | None = None,
        allow_insecure: bool = False,
        room: Connections | None = None,
        listening: socket.socket | None = None,
        users: frozenset[int] | None = None,
        auto_create: bool | None = None,
        budget: MemoryBudget | None = None,
        frame_s: float = FRAME_SECONDS,
    ) -> None:
        """
        Listen at *address*, or with *listening*, a socket that listens already and whose name is somebody else's to remove.

        *users*: take in only their processes, by what the kernel says at a Unix socket. *auto_create*: whether clients may have topics
        made by publishing; None means as the store says. *budget*: for what clients make the server hold, shared with its other listeners.
        *frame_s*: within so many seconds a frame that has begun must be whole.
        """
        self.store = store
        self.budget = budget or MemoryBudget()
        self.frame_s = frame_s
        self.auth = auth or Everyone()
        self._address = address or Address("127.0.0.1", DEFAULT_PORT)
        self._tls = tls
        if not allow_insecure:
            self._address.check_safe("native", authenticated=self.auth.checks_tokens, encrypted=tls is not None)
        self.connections: set[Connection] = set()
        self.room = room or Connections()
        """More are refused, so that the store always has descriptors for its own files."""
        self.users = users
        self.auto_create = auto_create
        self._listening = listening
        self._has_name = listening is None
        """Whether the name of its socket is this listener's to remove."""
        self.is_stopping = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._server: asyncio.Server | None = None
        self.releases = Releases()

    async def start(self) -> None:
        """Listen. Raises `BadSetting`: the address is taken or not allowed."""
        loop = asyncio.get_running_loop()
        self.completions = Completions(loop, self.store._volume)  # noqa: SLF001
        self.long_fields = CallThreads(1)
        """Reads frames with long fields, one at a time: each keeps the interpreter busy for a while."""
        self._forget_budget = self.budget.on_full(self._look_for_room)
        self._listening = listening = self._listening or self._address.open("native")
        handshake_s = None if self._tls is None else HANDSHAKE_SECONDS
        if listening.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(
                lambda: Connection(self), sock=listening, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        else:
            self._server = await loop.create_server(
                lambda: Connection(self), sock=listening, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )

    def _look_for_room(self) -> None:
        for connection in list(self.connections):
            connection.set_writable()

    def look_at_tokens(self) -> None:
        """Tokens were read again: end the connections of those that are not valid any more."""
        for connection in list(self.connections):
            connection.look_at_token()

    @property
    def address(self) -> str:
        """Where it listens, as a client is told."""
        if self._address.path:
            return f"penstock+unix://{self._address.path}"
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"penstock{'s' if self._tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"

    def _outstanding(self) -> bool:
        self.completions.run()
        return any(connection.outstanding for connection in self.connections)

    @staticmethod
    async def _until(condition: Callable[[], bool], end: float, look_s: float = 0.01) -> None:
        loop = asyncio.get_running_loop()
        while not condition() and loop.time() < end:  # noqa: ASYNC110 - a few looks while stopping
            await asyncio.sleep(look_s)

    async def drain(self, seconds: float) -> int:
        """
        Take no more connections, hand out nothing more, begin nothing new; return when consumers have finished what they hold.

        At most *seconds* later; returns how many messages are still held then. Calls that look, and those that finish messages, are
        still done.
        """
        await self._stop_dispatching()
        await self._until(lambda: not self.in_flight, asyncio.get_running_loop().time() + seconds, LOOK_SECONDS)
        return self.in_flight

    @property
    def in_flight(self) -> int:
        """What consumers of all clients hold and have not finished."""
        return sum(connection.in_flight for connection in self.connections)

    async def _stop_dispatching(self) -> None:
        if self.is_stopping:
            return
        self.is_stopping = True
        if self._server is not None and self._server.is_serving():
            assert self._listening is not None
            await stop_accepting(self._listening)
            self._server.close()
        for connection in list(self.connections):
            connection.stop_dispatching()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """
        Take no more connections, let running calls end within *timeout_s*, hang up. What consumers held goes back uncounted.

        Calls that wait for messages are not waited for, and not answered: who made them asks the next server.
        """
        await self._stop_dispatching()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        await self._until(lambda: not self._outstanding(), min(end, loop.time() + LISTEN_SECONDS))
        for connection in list(self.connections):
            connection.refuse_all()  # else who never stops asking would keep it from stopping
        await self._until(lambda: not self._outstanding(), end)
        for connection in list(self.connections):
            connection.say_goodbye()
        await self._until(lambda: not self.connections, min(end, loop.time() + GOODBYE_SECONDS))
        for connection in list(self.connections):
            connection.close()
        await self._until(lambda: not self.connections and not self.releases, end)
        for connection in list(self.connections):
            connection.abort()  # it does not read what it was sent
        await self._until(lambda: not self.connections and not self.releases, loop.time() + RELEASE_SECONDS)
        self.completions.close()
        self._forget_budget()
        self.long_fields.shutdown(wait=False)
        if self._address.path and self._has_name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address.path)

    def forget(self) -> None:
        """In a forked child: everything here is the parent's."""
        for connection in list(self.connections):
            connection.forget()
