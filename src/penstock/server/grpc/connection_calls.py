"""
The connections of gRPC: how many calls and streams of each run at a time, and what each makes the server hold.

gRPC tells of a connection only the address of its other side. Those of a Unix socket are all alike, and count as one.

Theory of operation
-------------------
Each connection has an account of the server's memory for its clients (`broker/memory_budget.py`). The calls count requests that are carried
out, and answers that a client does not read. What gRPC holds of requests that are not whole, and of headers that do not end, it does not
say: it is estimated, now and then, as what the kernel has received for the connection (`sockets.py`) without what calls have read. The
estimate leaves out what travels beside requests (frames, headers, windows, pings) generously, and begins again whenever a connection has
no call. Requests that a client gives up in the middle stay in it until then.

A connection that has received more than `UNKNOWN_BYTES_MAX`, and has no call that was let in, is cut at the second look.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.log_events import event, get_logger
from penstock.server.grpc.sockets import Place, place_of
from penstock.server.grpc.statuses import TooManyStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from penstock.broker.memory_budget import MemoryBudget
    from penstock.errors import Unavailable
    from penstock.server.grpc.settings import GrpcSettings

_log = get_logger("penstock.server")
UNKNOWN_BYTES_MAX = 1024 * 1024
UNREAD_BYTES_LEAST = 128 * 1024
"""Less is what an estimate may be wrong by."""
CALL_BYTES, MESSAGE_BYTES, LOOK_BYTES = 8 * 1024, 128, 1_000
"""What a call, a message either way, and the time between two looks may bring beside requests."""
WINDOW_SHARE = 1 / 100
"""Of what is written: what the client sends to say that it has read it."""
SMALL_ANSWER_BYTES = 1024
"""To be told when a client has an answer costs more than a publish pays for its receipt; a connection has 2,000 such answers at most."""
CUT_SECONDS = 1.0


class Connection:
    """One client."""

    def __init__(self, connections: ConnectionCalls, peer: str) -> None:
        self._connections = connections
        self._budget = connections.budget
        self.place = place_of(peer)
        self.text = peer
        self.turn = asyncio.Semaphore(connections.settings.connection_calls_max)
        self.calls = self.streams = self.let_in = 0
        self.account = self._budget.open(self, peer)
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._unsent: dict[asyncio.Task[Any], int] = {}
        """Calls with answers that the client has not read."""
        self.explained = 0
        """What the bytes that came were for."""
        self._base = 0
        self._was_idle = False
        self._suspect = 0
        self.missed = 0
        """How many looks did not find its socket."""

    @property
    def is_needed(self) -> bool:
        """Whether calls of it run, or have answers on their way."""
        return bool(self.calls or self.streams or self._unsent)

    def left(self) -> None:
        """A call has ended."""
        self._suspect = 0
        if not self.calls and not self.streams:
            self._was_idle = True

    # -- what calls say ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def carrying_out(self, request: bytes) -> Iterator[None]:
        """The server works on *request* in the block."""
        self.has_read(len(request))
        self.account.begin(len(request))
        try:
            yield
        finally:
            self.account.end(len(request))

    def has_read(self, count: int) -> None:
        """A message of *count* bytes was read."""
        self.explained += count + count // 50 + MESSAGE_BYTES

    @contextlib.contextmanager
    def writing(self, count: int) -> Iterator[None]:
        """In the block a message of *count* bytes waits for the client to take it."""
        self._begin_writing(count)
        task = asyncio.current_task()
        assert task is not None
        try:
            yield
        finally:
            self._end_writing(task, count)

    def until_done(self, context: Any, count: int) -> None:
        """The call ends with an answer of *count* bytes, which counts until the client has it, unless it is small."""
        if count <= SMALL_ANSWER_BYTES:
            self.explained += MESSAGE_BYTES
            return
        self._begin_writing(count)
        task = asyncio.current_task()
        assert task is not None

        def done(_: object) -> None:
            self._end_writing(task, count)
            self._connections.leave(self)

        context.add_done_callback(done)

    def _begin_writing(self, count: int) -> None:
        self.explained += int(count * WINDOW_SHARE) + MESSAGE_BYTES
        task = asyncio.current_task()
        assert task is not None
        self._unsent[task] = self._unsent.get(task, 0) + count
        self.account.set_sending(self.account.sending + count)

    def _end_writing(self, task: asyncio.Task[Any], count: int) -> None:
        left = self._unsent.pop(task, 0) - count
        if left > 0:
            self._unsent[task] = left
        if not self.account.is_closed:
            self.account.set_sending(self.account.sending - count)

    async def until_room(self) -> None:
        """Wait until there is room for more requests and deliveries of this connection."""
        while True:
            # Of several that wait each looks again when another one has taken the room.
            if self._budget.is_full and self.account.held > self._budget.allowance:
                await self._connections.until_not_full()
            elif not self._has_room.is_set():
                await self._has_room.wait()
            else:
                return

    # -- what the budget calls --------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        """See `Holder`: no more requests are read; what gRPC reads ahead of each stream has a bound."""
        self._has_room.clear()

    def go_on(self) -> None:
        """See `Holder`."""
        self._has_room.set()

    def look(self) -> None:
        """See `Holder`: calls know when their answers are taken."""

    def cut(self, error: Unavailable) -> None:  # noqa: ARG002
        """See `Holder`. A client that does not read gets no error either: its calls end."""
        for task in list(self._unsent):
            task.cancel()
        if self.place is not None:
            asyncio.get_running_loop().call_later(0 if self.account.receiving else CUT_SECONDS, self._shut)

    def _shut(self) -> None:
        if self.place is not None and not self.account.is_closed:
            self._connections.shut(self.place)

    # -- what the kernel says ---------------------------------------------------------------------------------------

    def measure(self, received: int) -> None:
        """The kernel has received so many bytes for it since it began."""
        self._base += LOOK_BYTES
        unread = received - self._base - self.explained
        if unread < 0 or self._was_idle:
            self._was_idle = False
            self._base, unread = received - self.explained, 0
        unread = unread if unread > UNREAD_BYTES_LEAST else 0
        if unread != self.account.receiving:
            self.account.set_receiving(unread)
        if unread <= UNKNOWN_BYTES_MAX or self.let_in:
            self._suspect = 0
        else:
            self._suspect += 1
            if self._suspect >= 2 and self.place is not None:
                _log.warning(
                    "cut %s: %d bytes came, and no call that could be let in", self.account.name, unread,
                    extra=event("client_cut", client=self.account.name, principal=None, receiving=unread, sending=0,
                                held=self._budget.held, bytes_max=self._budget.bytes_max),
                )  # fmt: skip
                self._budget.cuts += 1
                self._shut()


class ConnectionCalls:
    """All connections of one listener that have calls, or that the kernel knows. Used in the event loop."""

    def __init__(self, settings: GrpcSettings, budget: MemoryBudget) -> None:
        self.settings = settings
        self.budget = budget
        self.shut: Callable[[Place], object] = lambda _: None
        """Cuts the connection to a place."""
        self._by_peer: dict[Place | str, Connection] = {}
        self._by_text: dict[str, Connection] = {}
        """By what gRPC calls a peer: to find the place of each call anew would cost more than the rest here."""
        self._forget_budget = budget.on_full(self._full_changed)
        self._not_full = asyncio.Event()
        self._not_full.set()

    def _full_changed(self) -> None:
        if self.budget.is_full:
            self._not_full.clear()
        else:
            self._not_full.set()

    async def until_not_full(self) -> None:
        """Wait until the server's memory for its clients is not full."""
        await self._not_full.wait()

    def _of(self, peer: str) -> Connection:
        found = self._by_text.get(peer)
        if found is None:
            key = place_of(peer) or peer
            found = self._by_peer.get(key)
            if found is None:
                found = self._by_peer[key] = Connection(self, peer)
            found.text = peer
            self._by_text[peer] = found
        return found

    def leave(self, connection: Connection) -> None:
        """Forget *connection* if nothing needs it, unless its socket is looked at: what came for it is counted from its beginning."""
        if connection.place is None and not connection.is_needed:
            self._forget(connection.account.name, connection)

    def _forget(self, key: Place | str, connection: Connection) -> None:
        if self._by_peer.get(key) is connection:
            del self._by_peer[key]
        if self._by_text.get(connection.text) is connection:
            del self._by_text[connection.text]
        connection.account.close()

    def measure(self, found: dict[Place, int]) -> None:
        """What the kernel has received for each connection that there is."""
        for place, received in found.items():
            connection = self._by_peer.get(place)
            if connection is None:
                connection = self._by_peer[place] = Connection(
                    self, f"ipv{6 if ':' in place.host else 4}:{place.host}:{place.port}"
                )
            connection.missed = 0
            connection.measure(received)
        for key, connection in list(self._by_peer.items()):
            if isinstance(key, Place) and key not in found:
                connection.missed += 1
                if connection.missed >= 2 and not connection.is_needed:
                    self._forget(key, connection)

    def close(self) -> None:
        """The listener has stopped."""
        self._forget_budget()
        for key, connection in list(self._by_peer.items()):
            self._forget(key, connection)

    @contextlib.contextmanager
    def public(self, peer: str) -> Iterator[None]:
        """A call that needs no token has come."""
        connection = self._of(peer)
        connection.explained += CALL_BYTES
        try:
            yield
        finally:
            connection.left()
            self.leave(connection)

    def _begin(self, connection: Connection, principal: str) -> None:
        connection.let_in += 1
        connection.explained += CALL_BYTES
        connection.account.set_principal(principal)

    def _end(self, connection: Connection) -> None:
        connection.let_in -= 1
        connection.left()
        self.leave(connection)

    @contextlib.asynccontextmanager
    async def call(self, peer: str, principal: str) -> AsyncIterator[Connection]:
        """Wait until it is the call's turn: nothing of its request is read before."""
        connection = self._of(peer)
        connection.calls += 1
        self._begin(connection, principal)
        try:
            async with connection.turn:
                await connection.until_room()
                yield connection
        finally:
            connection.calls -= 1
            self._end(connection)

    @contextlib.contextmanager
    def stream(self, peer: str, principal: str) -> Iterator[Connection]:
        """A stream, which may go on for hours, is never waited for. Raises `TooManyStreams`."""
        connection = self._of(peer)
        if connection.streams >= self.settings.connection_streams_max:
            connection.left()
            self.leave(connection)
            raise TooManyStreams(self.settings.connection_streams_max)
        connection.streams += 1
        self._begin(connection, principal)
        try:
            yield connection
        finally:
            connection.streams -= 1
            self._end(connection)
