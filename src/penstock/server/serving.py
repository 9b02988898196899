"""
A whole server: one store and its listeners, from the first signal to the last.

It stops in order on SIGTERM and SIGINT: nothing new is begun and nothing more is handed out, consumers finish what they hold, running
calls end, what was not finished in time goes back uncounted, the store is closed. A second signal ends it at once, which loses nothing
that was acknowledged. Whatever hangs, it ends (`last_resort.py`). SIGHUP reads tokens and certificates again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.aio.store import AsyncStore
from penstock.broker.memory_budget import BYTES_MAX_DEFAULT, BYTES_MAX_LEAST, MemoryBudget, return_large_blocks
from penstock.errors import BadSetting, PenstockError
from penstock.log_events import event, get_logger
from penstock.server.address import Address
from penstock.server.auth import Everyone, TokenAuth
from penstock.server.call_threads import CallThreads
from penstock.server.descriptors import Connections, raise_limit
from penstock.server.native import CALL_THREADS, FRAME_SECONDS, NativeListener
from penstock.server.tls import TlsFiles
from penstock.store.opening import open_store
from penstock.values import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.server.grpc.listener import GrpcListener
    from penstock.server.http.listener import HttpListener
    from penstock.server.last_resort import LastResort
    from penstock.server.tls import ReloadableContext
    from penstock.store.store import Store

_log = get_logger("penstock.server")
NATIVE_DEFAULT = "127.0.0.1:7420"
GRPC_DEFAULT = "127.0.0.1:7421"
HTTP_DEFAULT = "127.0.0.1:7422"
STOP_MORE_SECONDS = 20.0
"""What ending the listeners takes at most beside the time for running calls: cutting connections, giving back what they had."""
CLOSE_SECONDS = 120.0
"""What closing a store never takes; it syncs some files, and the disk may be slow."""
GRPC_SHARE = 1 / 4
"""Of the connections that there is room for: gRPC counts its own."""
GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "google.rpc")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server is told; an address that is None is not listened on. Raises `BadSetting`."""

    data: str
    native: str | None = NATIVE_DEFAULT
    grpc: str | None = GRPC_DEFAULT
    http: str | None = HTTP_DEFAULT
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tokens: str | None = None
    allow_insecure: bool = False
    auto_create: bool = True
    console: bool = True
    """Whether the HTTP listener has a page for people."""
    stop_s: float = 10.0
    """How long calls that run may take when it stops."""
    drain_s: float = 15.0
    """How long before that consumers may finish what they hold."""
    client_memory_bytes: int = BYTES_MAX_DEFAULT
    """What all clients together may make it hold: unfinished requests, answers that they do not read."""
    frame_s: float = FRAME_SECONDS
    """Within this a frame of the native protocol that has begun must be whole."""
    measure: bool = True
    """Whether it takes times for its metrics: about a microsecond for each batch that is published."""
    needs_grpc: bool = True
    """Whether it must not begin where the packages of gRPC are missing; else it goes without."""

    def __post_init__(self) -> None:
        if self.native is None and self.grpc is None and self.http is None:
            raise BadSetting("native", None, "a server listens somewhere: give native, grpc or http")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BadSetting("tls_key", self.tls_key, "tls_certificate and tls_key come together")
        if type(self.client_memory_bytes) is not int or self.client_memory_bytes < BYTES_MAX_LEAST:
            raise BadSetting("client_memory", self.client_memory_bytes, f"must be {BYTES_MAX_LEAST // MIB} MiB or more")
        if not 1 <= self.frame_s <= 86_400:
            raise BadSetting("frame_timeout", self.frame_s, "must be from 1 s to a day")

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None without it."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)


class Server:
    """Serves one store. Used once, in one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._auth = Everyone() if settings.tokens is None else TokenAuth(settings.tokens)
        self._tls: ReloadableContext | None = None if settings.tls is None else settings.tls.context()
        self._stopping = asyncio.Event()
        self._native: NativeListener | None = None
        self._grpc: GrpcListener | None = None
        self._http: HttpListener | None = None
        self._room = Connections()
        self._budget = MemoryBudget(settings.client_memory_bytes)
        self.missing: str | None = None
        """What to install for gRPC, if it goes without it because that is missing."""
        self.addresses: dict[str, str] = {}
        """Where it listens, by protocol."""
        self.last_resort: LastResort | None = None
        """What ends the process if stopping hangs; for who has the process to himself."""

    async def run(self, started: Callable[[Server], None] = lambda _: None) -> None:
        """Serve until a signal comes. Calls *started* once clients can connect. Raises `PenstockError`: it could not begin."""
        self._check_addresses()
        # First: the store and the listeners share what there is.
        raise_limit()
        return_large_blocks()
        self._room = Connections()
        if self._room.advice is not None:
            _log.warning("%s", self._room.advice)
        self._check_packages()
        # Not Python's own, which keeps a process from ending as long as one of its threads is at work.
        asyncio.get_running_loop().set_default_executor(CallThreads(CALL_THREADS))
        settings = self._settings
        store = await asyncio.to_thread(open_store, settings.data, auto_create=settings.auto_create)
        # To the end: a signal that comes while it stops must not do what the system does with it.
        with self._handling_signals():
            try:
                if settings.measure:
                    store.measure()
                try:
                    await self._listen(store)
                    self._announce(store)
                    started(self)
                    await self._stopping.wait()
                    await self._drain()
                finally:
                    await self._stop_listening()
            finally:
                self._expect("closing the store", CLOSE_SECONDS)
                await _in_own_thread(store.close)

    def _check_addresses(self) -> None:
        """Refuse before anything is opened what would be open to everybody."""
        if self._settings.allow_insecure:
            return
        for name in ("native", "grpc", "http"):
            text = getattr(self._settings, name)
            if text is not None:
                Address.parse(name, text).check_safe(
                    name, authenticated=self._auth.checks_tokens, encrypted=self._tls is not None
                )

    def _check_packages(self) -> None:
        """Before the store is opened: gRPC comes with an extra."""
        if self._settings.grpc is None:
            return
        missing = [one for one in GRPC_PACKAGES if not _is_installed(one)]
        if missing:
            self.missing = "pip install 'penstock[grpc]'"
            if self._settings.needs_grpc or (self._settings.native is None and self._settings.http is None):
                raise BadSetting(
                    "grpc", self._settings.grpc, f"gRPC needs {', '.join(missing)}: {self.missing}, or use --no-grpc"
                )

    async def _listen(self, store: Store) -> None:
        settings = self._settings
        if settings.native is not None:
            self._native = NativeListener(
                store, Address.parse("native", settings.native), tls=self._tls, auth=self._auth, allow_insecure=settings.allow_insecure,
                room=self._room, budget=self._budget, frame_s=settings.frame_s,
            )  # fmt: skip
            await self._native.start()
            self.addresses["native"] = self._native.address
        if settings.grpc is not None and self.missing is None:
            # Only who wants gRPC needs its libraries.
            from penstock.server.grpc.listener import GrpcListener
            from penstock.server.grpc.settings import GrpcSettings

            self._grpc = GrpcListener(
                store, Address.parse("grpc", settings.grpc), tls=settings.tls, auth=self._auth, allow_insecure=settings.allow_insecure,
                settings=GrpcSettings(connections_max=self._room.set_aside(GRPC_SHARE)), budget=self._budget,
            )  # fmt: skip
            await self._grpc.start()
            self.addresses["grpc"] = self._grpc.address
        if settings.http is not None:
            # Only who wants HTTP needs its libraries.
            from penstock.server.http.listener import HttpListener
            from penstock.server.http.settings import HttpSettings

            self._http = HttpListener(
                AsyncStore(store),
                HttpSettings(
                    listen=settings.http, tls_certificate=settings.tls_certificate, tls_key=settings.tls_key,
                    tls_client_ca=settings.tls_client_ca, allow_insecure=settings.allow_insecure, console=settings.console,
                ),
                self._auth,
                room=self._room,
                budget=self._budget,
            )  # fmt: skip
            await self._http.start()
            path = self._http.address.path
            self.addresses["http"] = f"unix:{path}" if path else self._http.url

    async def _drain(self) -> None:
        """Begin nothing new, hand out nothing more, and let consumers finish what they hold."""
        seconds, loop = self._settings.drain_s, asyncio.get_running_loop()
        began = loop.time()
        self._expect("letting consumers finish", seconds + STOP_MORE_SECONDS)
        _log.info(
            "stopping: nothing new is begun; consumers may finish what they hold for %g s", seconds,
            extra=event("server_draining", seconds=seconds),
        )  # fmt: skip
        drains = [one.drain(seconds) for one in (self._native, self._grpc, self._http) if one is not None]
        await asyncio.gather(*drains)
        held = sum(one.in_flight for one in (self._native, self._grpc, self._http) if one is not None)
        took_s = round(loop.time() - began, 3)
        _log.log(
            logging.WARNING if held else logging.INFO,
            "stopping: consumers hold %d messages still after %g s, which go back uncounted" if held
            else "stopping: consumers hold nothing more (%d) after %g s", held, took_s,
            extra=event("server_drained", held=held, seconds=took_s),
        )  # fmt: skip

    def _expect(self, stage: str, seconds: float) -> None:
        if self.last_resort is not None:
            self.last_resort.expect(stage, seconds)

    def _announce(self, store: Store) -> None:
        """Tell whoever opens the folder where the server is: for `penstock.open` if that can be."""
        for name in ("native", "http", "grpc"):
            if name in self.addresses:
                store._volume.announce(self.addresses[name])  # noqa: SLF001
                return

    async def _stop_listening(self) -> None:
        self._expect("ending connections", self._settings.stop_s + STOP_MORE_SECONDS)
        stops = []
        if self._native is not None:
            stops.append(self._native.stop(self._settings.stop_s))
        if self._grpc is not None:
            stops.append(self._grpc.stop(self._settings.stop_s))
        if self._http is not None:
            stops.append(self._http.stop(self._settings.stop_s))
        await asyncio.gather(*stops)

    @contextlib.contextmanager
    def _handling_signals(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _asked_to_stop(self, number: int) -> None:
        if self._stopping.is_set():
            # At once, by the signal itself: to end tasks in order would wait for them.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._stopping.set()

    def stop(self) -> None:
        """Let `run` end in order."""
        self._stopping.set()

    def reload(self) -> None:
        """Read tokens and certificates again; what cannot be used is logged, and the old ones hold."""
        if isinstance(self._auth, TokenAuth):
            self._auth.reload_or_keep()
            if self._native is not None:
                self._native.look_at_tokens()
        if self._tls is not None:
            try:
                self._tls.reload()
                if self._grpc is not None:
                    self._grpc.reload_tls()
                if self._http is not None:
                    self._http.reload_tls()
            except PenstockError as error:
                _log.error("the files of TLS were not reloaded, those of before still hold: %s", error)


async def _in_own_thread(function: Callable[[], None]) -> None:
    """Whatever the threads for calls are waiting for, this is done. Raises what *function* raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again to who waits
            failure = error
        loop.call_soon_threadsafe(finish, failure)

    threading.Thread(target=run, name="penstock-close", daemon=True).start()
    await done


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # the package around it is missing, or somebody blocked it
        return False
