"""A bad network: forwards bytes, and cuts, holds back or refuses where a test says so."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Self

UP, DOWN = "up", "down"
"""To the server, to the client."""
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Stands between clients and one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"penstock://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._refuses = False
        self.closed = False
        self._holds: set[str] = set()
        self._paces: dict[str, tuple[int, float]] = {}
        self._budget: tuple[str, int, bool] | None = None
        self.cuts = 0
        self.accepted = threading.Condition()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            with self.accepted:
                self.connections += 1
                self.accepted.notify_all()
            link.start()

    # -- faults -----------------------------------------------------------------------------------------------------

    def cut_after(self, direction: str, count: int, *, reset: bool = False) -> None:
        """Let *count* more bytes pass in *direction*, then cut the connection that sent them."""
        with self._lock:
            self._budget = (direction, count, reset)

    def spare(self) -> None:
        """Cut no more."""
        with self._lock:
            self._budget = None

    def cut(self, *, reset: bool = False) -> None:
        """Cut all connections now, in order or by a reset."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset = reset
            link.cut()

    def slow_down(self, direction: str, count: int, seconds: float) -> None:
        """From now on pass *count* bytes on every so many *seconds* in *direction*: whoever is there reads slowly."""
        self._paces[direction] = (count, seconds)

    def vanish(self) -> None:
        """All clients are gone, and the server is never told: its ends stay open, and silent, until this is closed."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.vanish()

    def refuse(self) -> None:
        """Cut all, and let nobody in: the server is gone."""
        self._refuses = True
        self.cut()

    def allow(self) -> None:
        """Let clients in again."""
        self._refuses = False

    def move(self, port: int) -> None:
        """The server is somewhere else from now on."""
        self._port = port

    def hold(self, direction: str) -> None:
        """Pass nothing on in *direction*, and cut nothing: a black hole."""
        self._holds.add(direction)

    def release(self) -> None:
        """Pass on everything again, also what was held."""
        self._holds.clear()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.wake.set()

    def share(self, link: _Link, direction: str, size: int) -> int:
        """How many of *size* bytes may pass; fewer means: then cut."""
        with self._lock:
            if self._budget is None or self._budget[0] != direction:
                return size
            _, left, link.reset = self._budget
            if size <= left:
                self._budget = (direction, left - size, link.reset)
                return size
            self._budget = None
            self.cuts += 1
            return left

    def holds(self, direction: str) -> bool:
        return direction in self._holds

    def pace(self, direction: str) -> tuple[int, float]:
        """How many bytes are passed on at a time, and how long that takes."""
        return self._paces.get(direction, (65_536, 0.0))

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def close(self) -> None:
        self._refuses = self.closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reset = False
        self.wake = threading.Event()
        self._is_cut = False
        self._has_vanished = False

    def start(self) -> None:
        client, server = self._ends
        threading.Thread(target=self._pass_on, args=(client, server, UP), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(server, client, DOWN), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(self._proxy.pace(direction)[0]):
                if self._has_vanished:
                    continue  # read, and told nobody
                while self._proxy.holds(direction) and not self._is_cut:
                    self.wake.wait(0.02)
                    self.wake.clear()
                passing = self._proxy.share(self, direction, len(data))
                seconds = self._proxy.pace(direction)[1]
                if seconds:
                    time.sleep(seconds)
                target.sendall(data[:passing])
                if passing < len(data):
                    break
        except OSError:
            pass
        self.cut()

    def vanish(self) -> None:
        self._has_vanished = True
        with contextlib.suppress(OSError):
            self._ends[0].shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._is_cut = True
        if self._has_vanished and not self._proxy.closed:
            self._ends[0].close()
            return
        for end in self._ends:
            with contextlib.suppress(OSError):
                if self.reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.shutdown(socket.SHUT_RD)  # wakes who reads from it; the reset comes with the closing
                else:
                    end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)
