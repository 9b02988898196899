"""
The listener of the native protocol: sockets, the first greeting, limits. What a client may do is `broker/session.py`.

A connection begins with a hello, within `HANDSHAKE_SECONDS` and `HELLO_BYTES_MAX`; until then it can make the server hold nothing. A client
that sends more than is answered is not read from any more until there is room, and for one that does not read nothing is leased.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, cast

from penstock.broker.completions import Completions
from penstock.broker.session import Session
from penstock.client.address import keep_alive, peer_uid
from penstock.errors import BadBytes, PenstockError, Unauthenticated, Unavailable, UsageError
from penstock.files import let_go
from penstock.server.accepting import stop_accepting
from penstock.server.address import Address
from penstock.server.auth import Everyone
from penstock.server.descriptors import Connections
from penstock.server.releases import Releases
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.failures import encode_error
from penstock.wire.frame import ANSWER, ERROR, FRAME_BYTES_MAX, HELLO_BYTES_MAX, REQUEST, Frame, FrameReader, encode_frame

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from penstock.files import Buffer
    from penstock.server.auth import Authenticator
    from penstock.store.store import Store

DEFAULT_PORT = 7420
_log = logging.getLogger("penstock.server")
HANDSHAKE_SECONDS = 10.0
RELEASE_SECONDS = 5.0
LISTEN_SECONDS = 0.5
"""So long a server that stops still takes calls: acks and publishes that were on their way."""
CALL_THREADS = 64
"""Threads for calls that wait for the disk."""
READ_BYTES = 256 * 1024
"""What is read at a time."""
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
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
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
        if connected is not None and type(transport).__module__ == "asyncio.selector_events":
            # One that writes at once, in this process, and unencrypted: its socket may be written to beside it when its buffer is empty.
            self._descriptor = connected.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        # Of all connections, since it is emptied at once. A new one for each read, as other protocols get, costs more than the read.
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_deaf:
            self._receive(bytes(self._listener.buffer[:nbytes]))

    def _receive(self, data: bytes) -> None:
        self._listener.completions.run()
        self._is_taking = True
        try:
            for frame in self._reader.feed(data):
                if frame.kind != REQUEST:
                    raise BadBytes("frame", "is no request")
                if self._session is None:
                    self._greet(frame)
                else:
                    self._session.handle(frame)
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
        if self._session is not None and self._session.under_way.is_full:
            self._hold()

    def pause_writing(self) -> None:
        self._is_full = True
        assert self._transport is not None
        self._transport.pause_reading()
        if self._session is not None:
            self._session.set_writable(may_write=False)

    def resume_writing(self) -> None:
        self._is_full = False
        self._read_on()
        if self._session is not None:
            self._session.set_writable(may_write=True)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        with self._writing:
            # From now on its descriptor may be that of another file.
            self._transport, self._descriptor = None, -1
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.connections.discard(self)
        if self._is_counted:
            self._is_counted = False
            self._listener.room.give_back()
        if self._session is not None:
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
                raise Unavailable("the server is stopping")
            token = frame.fields.get("token")
            if token is not None and not isinstance(token, str):
                raise UsageError("a token is a text")
            principal = self._listener.auth.authenticate(token)
        except PenstockError as error:
            self._end(frame.call, frame.correlation, error)
            return
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None
        self._reader.bytes_max = FRAME_BYTES_MAX
        self._session = Session(
            self._listener.store, self._send, self._listener.completions, principal, self._send_now,
            auto_create=self._listener.auto_create,
        )  # fmt: skip
        self._session.under_way.on_room = self._look_for_room
        self._send(encode_frame(ANSWER, frame.call, frame.correlation, self._session.hello()))

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
        if not self._is_full and not self._is_held and self._transport is not None:
            self._transport.resume_reading()

    @property
    def outstanding(self) -> int:
        """Calls that run."""
        return 0 if self._session is None else self._session.under_way.outstanding

    def finish(self) -> None:
        """The server stops: end the calls that wait for messages, so that the others can be waited for."""
        if self._session is not None:
            self._session.under_way.end_waits()

    def be_deaf(self) -> None:
        """
        Begin no more calls: what comes is read and dropped, and its client, which gets no answer, does it again elsewhere.

        Not to read it would be worse: a socket that is closed with bytes in it takes the answers with it that are on their way.
        """
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
    ) -> None:
        """
        Listen at *address*, or with *listening*, a socket that listens already and whose name is somebody else's to remove.

        *users*: take in only their processes, by what the kernel says at a Unix socket. *auto_create*: whether clients may have topics
        made by publishing; None means as the store says.
        """
        self.store = store
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
    async def _until(condition: Callable[[], bool], end: float) -> None:
        loop = asyncio.get_running_loop()
        while not condition() and loop.time() < end:  # noqa: ASYNC110 - a few looks while stopping
            await asyncio.sleep(0.01)

    async def stop(self, timeout_s: float = 10.0) -> None:
        """
        Take no more connections, let running calls end within *timeout_s*, hang up. What consumers held goes back uncounted.

        Calls that wait for messages are not waited for.
        """
        self.is_stopping = True
        if self._server is not None and self._server.is_serving():
            assert self._listening is not None
            await stop_accepting(self._listening)
            self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        for connection in list(self.connections):
            connection.finish()
        await self._until(lambda: not self._outstanding(), min(end, loop.time() + LISTEN_SECONDS))
        for connection in list(self.connections):
            connection.be_deaf()  # else who never stops asking would keep it from stopping
        await self._until(lambda: not self._outstanding(), end)
        for connection in list(self.connections):
            connection.close()
        await self._until(lambda: not self.connections and not self.releases, end)
        for connection in list(self.connections):
            connection.abort()  # it does not read what it was sent
        await self._until(lambda: not self.connections and not self.releases, loop.time() + RELEASE_SECONDS)
        self.completions.close()
        if self._address.path and self._has_name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address.path)

    def forget(self) -> None:
        """In a forked child: everything here is the parent's."""
        for connection in list(self.connections):
            connection.forget()
