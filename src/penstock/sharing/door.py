"""
The owner's side: a Unix socket in the store's folder.

It listens from the moment the lock is taken, so that others queue up there while the store recovers. A sole owner pays for a socket, and
a thread that sleeps anyway sleeps there; the server, and the modules that it needs, are loaded when the first sibling knocks.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - for the server: it can only be loaded while the main thread lives
import contextlib
import importlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.files import let_go
from penstock.log_events import get_logger
from penstock.sharing import names

if TYPE_CHECKING:
    from penstock.store.store import Store

_log = get_logger("penstock.sharing")
SERVER = "penstock.server.running"
"""Named, not imported: the server is a layer above, and a store that nobody shares never needs it."""


class SocketDoor:
    """See `penstock.volume.door.Door`."""

    def __init__(self) -> None:
        self._folder = ""
        self._listening: socket.socket | None = None
        self._store: Store | None = None
        self._server: Any = None
        self._served = False
        self._left = threading.Event()
        self._lock = threading.Lock()

    def open(self, folder: str) -> None:
        self._folder = folder
        try:
            self._listening = names.listen(folder)
        except OSError as error:
            _log.warning("%s cannot be shared with other processes: no socket can be made there: %s", folder, error)

    def serve(self, store: Store) -> None:
        self._store = store
        if not store.has_threads:
            threading.Thread(target=self._wait_for_ever, name=f"penstock-door {self._folder}", daemon=True).start()

    def _wait_for_ever(self) -> None:
        while not self.wait(3_600):
            pass

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        if self._listening is not None and not self._served and not self._left.is_set():
            poll = select.poll()
            poll.register(self._listening, select.POLLIN)
            if poll.poll(seconds * 1000):
                self._serve()
        return self._left.wait(max(0.0, end - time.monotonic()))

    def _serve(self) -> None:
        """Somebody knocks for the first time, or the door is being closed."""
        with self._lock:
            if self._left.is_set():
                return
            self._served = True
            assert self._listening is not None
            try:
                running = importlib.import_module(SERVER)
                self._server = running.RunningServer(
                    self._store, listening=self._listening, users=names.owners(self._folder), auto_create=True
                )
            except Exception:  # noqa: BLE001 - it is the owner's program that must go on
                _log.exception("%s cannot be shared: its server did not start", self._folder)
                self._listening.close()  # who knocks must not wait for an answer

    @property
    def connections(self) -> int:
        """How many siblings are here."""
        return 0 if self._server is None else int(self._server.connections)

    def leave(self) -> None:
        with self._lock:
            if self._left.is_set():
                return
            self._left.set()
        if self._server is not None:
            settings = None if self._store is None else self._store._volume.settings  # noqa: SLF001
            self._server.close(drain_s=0.0 if settings is None else settings.drain_ms / 1000)
        elif self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits there

    def close(self) -> None:
        self.leave()
        if self._listening is not None:
            self._listening.close()
            with contextlib.suppress(OSError):
                names.remove_socket(self._folder)

    def forget(self) -> None:
        self._left = threading.Event()  # anew: a thread that was not copied may have been in the old one
        self._left.set()
        if self._server is not None:
            self._server.forget()
        if self._listening is not None and self._listening.fileno() >= 0:
            let_go(self._listening.fileno())
