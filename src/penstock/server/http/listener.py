"""
The HTTP listener: an application run by uvicorn in the event loop of the caller, beside other listeners.

```python
listener = HttpListener(store, HttpSettings(listen="127.0.0.1:7422"), TokenAuth("tokens.toml"))
await listener.start()
...
await listener.drain(15)      # no new work is begun; consumers may finish what they hold
await listener.stop(5)        # nobody waits any more; running requests end
```
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from penstock.broker.memory_budget import MemoryBudget
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.log_events import get_logger
from penstock.server.accepting import stop_accepting
from penstock.server.address import Address
from penstock.server.auth import Everyone
from penstock.server.descriptors import Connections
from penstock.server.http.app import HostGuard, make_app
from penstock.server.http.context import Context
from penstock.server.http.protocol import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from penstock.aio import AsyncStore
    from penstock.clock import Clock
    from penstock.server.auth import Authenticator
    from penstock.server.http.settings import HttpSettings
    from penstock.server.tls import ReloadableContext

_log = get_logger("penstock")

DRAIN_LOOK_S = 0.02


class HttpListener:
    """
    Serves one open store over HTTP. It does not close the store.

    Raises `BadSetting` when it is made: a public address needs tokens and TLS. Use it in one event loop, once.
    """

    def __init__(
        self,
        store: AsyncStore,
        settings: HttpSettings,
        auth: Authenticator | None = None,
        *,
        clock: Clock | None = None,
        room: Connections | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """*room*: for connections, and *budget*: for what clients make the server hold, both together with other listeners."""
        self._settings = settings
        self._auth = auth or Everyone()
        self._address = settings.address
        self._tls: ReloadableContext | None = None if settings.tls is None else settings.tls.context()
        if not settings.allow_insecure:
            self._address.check_safe("listen", authenticated=self._auth.checks_tokens, encrypted=self._tls is not None)
        self._store = store
        self._clock = clock or SystemClock()
        self._room = room or Connections()
        self._budget = budget or MemoryBudget()
        self._context: Context | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address:
        """Where it listens, with the port that it got."""
        return self._address

    @property
    def url(self) -> str:
        """The same for clients; for a Unix socket with any host name."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://localhost" if self._address.path else f"{scheme}://{self._address}"

    @property
    def context(self) -> Context:
        """What its requests share."""
        assert self._context is not None, "it was not started"
        return self._context

    async def start(self) -> None:
        """Listen; returns when clients can connect. Raises `BadSetting`."""
        found = self._address.open("listen")
        if not self._address.path:
            self._address = Address(self._address.host, found.getsockname()[1])
        self._context = context = Context(self._store, self._settings, self._auth, self._clock, self._budget)
        # With tokens a name alone opens nothing: a page of another site has none. Without them the name tells it from a client.
        any_name = self._auth.checks_tokens or bool(self._address.path) or self._settings.allow_insecure
        guard = HostGuard(self._settings.hosts, any_name=any_name)
        self._server = _Server(make_app(context, guard), self._settings, self._tls, found, self._room, self._budget)
        context.connections = lambda: len(self._server.server_state.connections) if self._server else 0
        context.consumers.start()
        self._serving = asyncio.create_task(self._server.serve())
        began = asyncio.create_task(self._server.began.wait())
        await asyncio.wait({self._serving, began}, return_when=asyncio.FIRST_COMPLETED)
        if not began.done():
            began.cancel()
            await self._serving
        _log.info("listening for HTTP on %s", self._address)

    async def drain(self, seconds: float) -> bool:
        """
        Begin no new work: publishing and receiving are refused. Return when clients have finished all that they hold, or after *seconds*.

        Waiting requests end at once. Returns whether all was finished.
        """
        context = self.context
        context.draining = True
        context.stopping.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A look now and then instead of an event: leases end by time alone, and this happens once.
                while context.consumers.in_flight:  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_LOOK_S)
        return not context.consumers.in_flight

    @property
    def in_flight(self) -> int:
        """What clients hold and have not finished."""
        return 0 if self._context is None else self._context.consumers.in_flight

    async def stop(self, seconds: float = 10.0) -> None:
        """
        Accept no more connections, wake whoever waits, and return when the requests that run have ended, at most after *seconds*.

        What clients hold and have not finished goes back to its groups at once, uncounted. Stopping twice does nothing.
        """
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        self._server = None
        context = self.context
        context.draining = True
        context.stopping.set()
        context.ending.set()
        server.config.timeout_graceful_shutdown = max(0, seconds)  # type: ignore[assignment]  # it takes fractions too
        server.ask_to_stop()
        await serving
        server.abort()
        await context.consumers.stop()
        self._address.remove()
        with contextlib.suppress(PenstockError):
            await self._store.flush()

    def reload_tls(self) -> None:
        """Use the certificate that the files hold now, for new connections. Raises `BadSetting`: the old one is still used."""
        if self._tls is not None:
            self._tls.reload()


class _Server(uvicorn.Server):
    """uvicorn, as one of several listeners: signals and logging are the program's business, the socket is given."""

    def __init__(
        self, app: Any, settings: HttpSettings, tls: ssl.SSLContext | None, listening: socket.socket, room: Connections,
        budget: MemoryBudget,
    ) -> None:  # fmt: skip

        class OurConnection(Connection):
            header_timeout_s = settings.header_timeout_s
            connections_max = settings.connections_max

        OurConnection.room = room
        OurConnection.budget = budget

        self._protocol = OurConnection
        super().__init__(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                loop="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # it takes fractions too
                h11_max_incomplete_event_size=settings.header_bytes_max,
            )
        )
        self.began = asyncio.Event()
        self._ended = asyncio.Event()
        self._tls = tls
        self._handshake_s = settings.header_timeout_s
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the program."""
        yield

    async def main_loop(self) -> None:
        """Renew the Date header each second until it is to stop; uvicorn's own looks ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._ended.wait()

    def ask_to_stop(self) -> None:
        """Let `serve` end in order."""
        self._protocol.stopping = True
        self.should_exit = True
        self._ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listen on the socket that was given; unlike uvicorn's own, with a limit for the TLS handshake."""
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"sock": self._listening, "ssl": self._tls}
        if self._tls is not None:
            options |= {"ssl_handshake_timeout": self._handshake_s, "ssl_shutdown_timeout": self._handshake_s}

        def make() -> asyncio.Protocol:
            found: asyncio.Protocol = self.config.http_protocol_class(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]
            return found

        if self._listening.family == socket.AF_UNIX:
            server: asyncio.AbstractServer = await loop.create_unix_server(make, **options)
        else:
            server = await loop.create_server(make, **options)
        self.servers = [server]  # type: ignore[list-item]
        self.started = True
        self.began.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then let what is there end."""
        await stop_accepting(self._listening)
        await super().shutdown(sockets)

    def abort(self) -> None:
        """Cut the connections that did not end in time."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
