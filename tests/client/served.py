"""A store in a folder, the server over it, and who talks to that."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import pytest

import penstock
from penstock import Store
from penstock.errors import PenstockError, Unavailable
from penstock.server.running import RunningServer
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.deliveries import Delivered, decode_deliveries
from penstock.wire.failures import decode_error
from penstock.wire.frame import ERROR, REQUEST, Frame, FrameReader
from tests.client.proxy import Proxy
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock.files import Buffer

PATIENCE_S = 60.0
"""How long a test waits for what must happen. It never waits so long unless the test fails."""


class Served:
    """Opens the store and serves it; closes all that it opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[Any] = []
        self.store = Store.open(str(folder / "store"), settings=SETTINGS)
        self.server = RunningServer(self.store)

    @property
    def port(self) -> int:
        return int(self.server.address.rpartition(":")[2])

    def client(self, address: str | None = None, **options: Any) -> Store:
        """A client, straight or through a proxy."""
        found: Store = penstock.open(address or self.server.address, **options)
        self._open.append(found)
        return found

    def proxy(self) -> Proxy:
        found = Proxy(self.port)
        self._open.append(found)
        return found

    def raw(self, *, hello: bool = True) -> RawClient:
        found = RawClient(self.port, hello=hello)
        self._open.append(found)
        return found

    def values(self, topic: str, partition: int | None = None) -> list[bytes]:
        """What is stored, as the owner of the store sees it."""
        return [bytes(message.value or b"") for message in self.store.read(topic, partition)]

    def members(self, topic: str, group: str) -> int:
        """How many consumers a group has."""
        return self.store.stats().topics[topic].groups[group].members

    def stop(self, timeout_s: float = PATIENCE_S) -> None:
        self.server.close(timeout_s)

    def start(self) -> None:
        """Serve the same store again, on another port."""
        self.server = RunningServer(self.store)

    def close(self) -> None:
        """Also what hangs, so that a test that fails does not stop those after it."""
        for proxy in [one for one in self._open if isinstance(one, Proxy)]:
            proxy.allow()
            proxy.release()
        while self._open:
            _close(self._open.pop())
        _close(self.server, 1.0)
        _close(self.store)


def _close(one: Any, *arguments: Any) -> None:
    with contextlib.suppress(TimeoutError, PenstockError):
        later(lambda: one.close(*arguments)).result(PATIENCE_S)


class RawClient:
    """Speaks the protocol by hand."""

    def __init__(self, port: int, *, hello: bool) -> None:
        self.socket = socket.socket()
        # Little fits on its way, so that who does not read is noticed soon.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(PATIENCE_S)
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._correlation = 0
        if hello:
            self.call(Call.HELLO, version=PROTOCOL_VERSION)

    def send(self, call: int, fields: dict[str, Any], payload: Iterable[Buffer] = (), correlation: int | None = None) -> int:
        """Ask; returns the correlation."""
        data, number = self.request(call, fields, payload, correlation)
        self.socket.sendall(data)
        return number

    def request(
        self, call: int, fields: dict[str, Any], payload: Iterable[Buffer] = (), correlation: int | None = None
    ) -> tuple[bytes, int]:
        """The bytes of a request, and its correlation."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        # By hand: what the library refuses to send must arrive too.
        text = json.dumps(fields).encode()
        data = b"".join(payload)
        return struct.pack(
            "<IBBHQI", 16 + len(text) + len(data), REQUEST, call, 0, correlation, len(text)
        ) + text + data, correlation

    def read(self) -> Frame | None:
        """The next frame; None when the server hung up."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(self._reader.feed(data))
        return self._frames.pop(0)

    def until(self, correlation: int) -> Frame:
        """The answer to a request; pushes and other answers before it are thrown away."""
        while True:
            frame = self.read()
            assert frame is not None, "the server hung up"
            if frame.kind in (2, 3) and frame.correlation == correlation:
                return frame

    def ask(self, call: int, fields: dict[str, Any], payload: Iterable[Buffer] = ()) -> Frame:
        """Ask, and return the frame that answers, error or not."""
        return self.until(self.send(call, fields, payload))

    def call(self, call: int, *payload: Buffer, **fields: Any) -> Frame:
        """Ask, and raise what the server says."""
        frame = self.ask(call, fields, payload)
        if frame.kind == ERROR:
            raise decode_error(frame.fields)
        return frame

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def delivered(frame: Frame) -> list[Delivered]:
    """The messages of an answer or a push."""
    return decode_deliveries(frame.fields.get("lots", []), frame.payload)


def later(work: Callable[[], Any]) -> Future[Any]:
    """Run *work* in a thread that does not keep the process alive if it hangs."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def eventually(condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE_S) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what or "it never happened"
        time.sleep(0.005)


def connected(client: Any) -> bool:
    """Whether a client has a connection now."""
    return client._connection._channel is not None


def lose(proxy: Proxy, client: Any) -> None:
    """Take the server away, and wait until the client has noticed."""
    proxy.refuse()
    eventually(lambda: not connected(client))


def given_up(proxy: Proxy, client: Any) -> None:
    """The server is away for so long that the client does not look for it any more."""
    lose(proxy, client)
    with pytest.raises(Unavailable):
        client.topics()


@contextlib.contextmanager
def within(seconds: float) -> Any:
    """Fail if the block takes longer; it must end by itself."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds
