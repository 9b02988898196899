"""A real listener in a thread of its own, so that tests can talk to it with any client."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from penstock import aio
from penstock.server.auth import TokenAuth, hash_token
from penstock.server.http import HttpListener, HttpSettings
from penstock.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from penstock.broker.memory_budget import MemoryBudget
    from penstock.clock import Clock

PATIENCE = 60.0
T = TypeVar("T")


class Running:
    """A listener that serves a memory store, unless a path is given."""

    def __init__(
        self, *, path: str = "memory:", auth: TokenAuth | None = None, clock: Clock | None = None, store_clock: Clock | None = None,
        budget: MemoryBudget | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        """*clock* is the listener's, *store_clock* that of leases; *budget*: for what clients make it hold."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.settings = HttpSettings(**{"listen": "127.0.0.1:0", **settings})
        self.store: aio.AsyncStore = self.call(self._open(path, store_clock))
        try:
            self.listener = HttpListener(self.store, self.settings, auth, clock=clock, budget=budget)
            self.call(self.listener.start())
        except BaseException:
            self.call(self.store.close())
            self._end()
            raise
        self._clients: list[httpx.Client] = []

    @staticmethod
    async def _open(path: str, clock: Clock | None) -> aio.AsyncStore:
        return await aio.open(path) if clock is None else aio.AsyncStore(Store.open(path, clock=clock))

    def begin(self, main: Coroutine[Any, Any, T]) -> Any:
        """Run *main* in the server's loop; returns its future."""
        return asyncio.run_coroutine_threadsafe(main, self._loop)

    def call(self, main: Coroutine[Any, Any, T]) -> T:
        """Run *main* in the server's loop, to its end."""
        result: T = self.begin(main).result(PATIENCE)
        return result

    @property
    def url(self) -> str:
        return self.listener.url

    @property
    def port(self) -> int:
        return self.listener.address.port

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A client; closed with the server."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # Loading the certificates of the system takes longer than most tests; those of TLS bring their own.
        options.setdefault("verify", False)
        made = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, **options)
        self._clients.append(made)
        return made

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.call(self.listener.stop(2))
        self.call(self.store.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    server = Running(**options)
    try:
        yield server
    finally:
        server.close()


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return when it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.005)


def write_tokens(path: Path, tokens: dict[str, dict[str, Any]]) -> str:
    """A file of tokens: name -> rights, and `expires`; each token is its name with `-token` behind it."""
    lines = []
    for name, entry in tokens.items():
        lines += ["[[token]]", f'name = "{name}"', f'sha256 = "{hash_token(name + "-token").hex()}"']
        if "expires" in entry:
            lines.append(f"expires = {entry['expires']}")
        lines.append("[token.rights]")
        lines += [f"{right} = {list(topics)!r}" for right, topics in entry.items() if right != "expires"]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
