"""A server in a thread of this process: for tests, and for programs that share their store while they use it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

from penstock.server.address import Address
from penstock.server.call_threads import CallThreads
from penstock.server.native import CALL_THREADS, NativeListener

if TYPE_CHECKING:
    from penstock.store.store import Store


class RunningServer:
    """Serves an open store until it is closed; the store stays open. *options* are those of `NativeListener`; the port is any."""

    def __init__(self, store: Store, address: Address | None = None, **options: Any) -> None:
        self._listener = NativeListener(store, address or Address("127.0.0.1", 0), **options)
        # Not the one that a policy may choose: what it has open must be found in a forked child.
        self._loop = asyncio.SelectorEventLoop()
        self._started = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="penstock-server", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(CallThreads(CALL_THREADS))
        try:
            self._loop.run_until_complete(self._listener.start())
        except BaseException as error:  # noqa: BLE001 - raised again to who started it
            self._failures.append(error)
            self._loop.close()
            return
        finally:
            self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    @property
    def address(self) -> str:
        """What clients open."""
        return self._listener.address

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._listener.connections)

    def disconnect_all(self) -> None:
        """Cut every connection, as a bad network would."""

        def cut() -> None:
            for connection in list(self._listener.connections):
                connection.abort()

        self._loop.call_soon_threadsafe(cut)

    def forget(self) -> None:
        """In a forked child: the server is the parent's."""
        self._listener.forget()

    def close(self, timeout_s: float = 10.0, *, drain_s: float = 0.0) -> None:
        """Stop in order; before that consumers may finish what they hold, for *drain_s* at most. Closing twice does nothing."""
        if self._thread.is_alive():
            if drain_s:
                asyncio.run_coroutine_threadsafe(self._listener.drain(drain_s), self._loop).result()
            asyncio.run_coroutine_threadsafe(self._listener.stop(timeout_s), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
