"""The listener of gRPC: address, TLS, and stopping in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import grpc
from grpc import aio

from penstock.broker.memory_budget import MemoryBudget
from penstock.errors import BadSetting
from penstock.log_events import get_logger
from penstock.server.address import Address
from penstock.server.auth import Everyone
from penstock.server.grpc.health import Health
from penstock.server.grpc.router import ADMIN, MESSAGES, Router
from penstock.server.grpc.service import Service
from penstock.server.grpc.settings import GrpcSettings
from penstock.server.grpc.sockets import Sockets

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from penstock.server.auth import Authenticator
    from penstock.server.tls import TlsFiles
    from penstock.store.store import Store

DEFAULT_PORT = 7421
_log = get_logger("penstock.server")
LOOK_SECONDS = 0.5
"""How often open streams are looked at: a right that was taken away ends them within a second."""
WATCH_SECONDS, WATCH_SHARE = 0.5, 100
"""How often the kernel is asked what has come: after so long, and so many times as long as that takes the processor."""
CUT_SECONDS = 1.0
RELEASE_SECONDS = 5.0


class GrpcListener:
    """Takes gRPC calls for one store, on an address or a Unix socket. Runs in the event loop that it is started in."""

    def __init__(
        self,
        store: Store,
        address: Address | None = None,
        *,
        tls: TlsFiles | None = None,
        auth: Authenticator | None = None,
        allow_insecure: bool = False,
        settings: GrpcSettings | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """*budget*: for what clients make the server hold, shared with its other listeners."""
        self._settings = settings or GrpcSettings()
        self.service = Service(store, self._settings, auth or Everyone(), budget or MemoryBudget())
        self._address = address or Address("127.0.0.1", DEFAULT_PORT)
        if not allow_insecure:
            self._address.check_safe("grpc", authenticated=self.service.auth.checks_tokens, encrypted=tls is not None)
        self._tls = None if tls is None else _Certificates(tls)
        self._server: Any = None
        self._health: Health | None = None
        self._looker: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen. Raises `BadSetting`: the address is taken or not allowed."""
        self._health = Health([MESSAGES, ADMIN])
        server = aio.server(handlers=[Router(self.service, self._health)], options=self._settings.options())
        try:
            self._port = self._bind(server)
            await server.start()
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise BadSetting("grpc", str(self._address), f"cannot listen there: {error}") from None
        except BaseException:
            await server.stop(None)
            raise
        self._server = server
        self._looker = asyncio.create_task(self._look_forever())
        if not self._address.path:
            sockets = Sockets(self._port)
            self.service.connections.shut = sockets.shut
            self._watcher = asyncio.create_task(self._watch_forever(sockets))

    async def _watch_forever(self, sockets: Sockets) -> None:
        """Look what has come for each connection, as often as costs next to nothing."""
        while True:
            found = await asyncio.to_thread(sockets.look)
            self.service.connections.measure(found)
            await asyncio.sleep(max(WATCH_SECONDS, WATCH_SHARE * sockets.look_s))

    def _bind(self, server: Any) -> int:
        address = self._address
        with contextlib.ExitStack() as stack:
            if address.path:
                address.make_way("grpc")
                # Its name appears with the final rights: nobody gets in between.
                stack.callback(os.umask, os.umask(0o177))
                place = f"unix:{quote(os.path.abspath(address.path))}"
            else:
                host = address.resolve()
                place = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
            if self._tls is None:
                return int(server.add_insecure_port(place))
            return int(server.add_secure_port(place, self._tls.credentials()))

    @property
    def address(self) -> str:
        """Where it listens, as a gRPC client is told: host:port, or unix:/path."""
        if self._address.path:
            return f"unix:{os.path.abspath(self._address.path)}"
        return str(Address(self._address.host, self._port))

    async def _look_forever(self) -> None:
        assert self._health is not None
        service = self.service
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for stream in list(service.streams):
                stream.look()
            failed = service.store._volume.failure is not None or service.store.closed  # noqa: SLF001
            full = service.store._volume.is_full  # noqa: SLF001
            self._health.set(is_serving=not failed and not service.is_draining, is_whole=not full)

    def reload_tls(self) -> None:
        """Use the certificate that the files hold now, for new connections. Raises `BadSetting`: the old one is still used."""
        if self._tls is not None:
            self._tls.reload()

    @property
    def in_flight(self) -> int:
        """What consumers hold and have not finished."""
        return sum(stream.in_flight for stream in self.service.streams)

    async def drain(self, seconds: float) -> int:
        """
        Begin nothing new, hand out nothing more; return when consumers have finished what they hold, at most *seconds* later.

        Returns how many messages are still held then. Calls that finish something, and those that only look, are still done.
        """
        service = self.service
        service.is_draining = True
        if self._health is not None:
            self._health.set(is_serving=False)
        for stream in list(service.streams):
            stream.stop()
        await _until(lambda: not self.in_flight, seconds)
        return self.in_flight

    async def stop(self, timeout_s: float = 10.0) -> None:
        """
        Begin no new calls, let running ones end within *timeout_s*, hang up.

        Consumers get no more messages and may finish those that they have, unless `drain` gave them the time for it; what they have
        not finished by then goes back uncounted.
        """
        server, self._server = self._server, None
        if server is None or self._health is None or self._looker is None:
            return
        service, loop = self.service, asyncio.get_running_loop()
        end = loop.time() + timeout_s
        if not service.is_draining:
            await self.drain(timeout_s)
        service.is_stopping = True
        self._looker.cancel()
        await _until(lambda: not service.calls, max(0.0, end - loop.time()))
        await server.stop(CUT_SECONDS)
        await _until(lambda: service.is_idle, RELEASE_SECONDS)
        if self._watcher is not None:
            self._watcher.cancel()
        service.connections.close()
        self._address.remove()


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - a few looks while stopping
                await asyncio.sleep(0.01)


class _Certificates:
    """The certificate of a listener, which may be replaced while it runs. gRPC wants PEM where the others want a context."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._newest = self._read()
        self._used = self._newest

    def _read(self) -> Any:
        # Checked by OpenSSL first, which says what is wrong with them; gRPC does so at the first connection.
        self._files.context()
        try:
            with open(self._files.key, "rb") as file:
                key = file.read()
            with open(self._files.certificate, "rb") as file:
                certificate = file.read()
            roots = None
            if self._files.client_ca is not None:
                with open(self._files.client_ca, "rb") as file:
                    roots = file.read()
        except OSError as error:
            raise BadSetting("tls_certificate", self._files.certificate, f"cannot be read: {error.strerror}") from None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=roots)

    def credentials(self) -> Any:
        """For a port; with files of whom to accept, clients must show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._newest, self._fetch, require_client_authentication=self._files.client_ca is not None
        )

    def _fetch(self) -> Any:
        """Called at each handshake, in threads of gRPC; None means that nothing has changed."""
        newest = self._newest
        if newest is self._used:
            return None
        self._used = newest
        return newest

    def reload(self) -> None:
        self._newest = self._read()
