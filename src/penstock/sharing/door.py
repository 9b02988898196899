"""
The owner's side: a Unix socket in the store's folder.

It listens from the moment the lock is taken, so that others queue up there while the store recovers. A sole owner pays for a socket and
a thread that sleeps; the server, and the modules that it needs, are loaded when the first sibling knocks.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - for the server: it can only be loaded while the main thread lives
import contextlib
import importlib
import logging
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from penstock.files import let_go
from penstock.sharing import names

if TYPE_CHECKING:
    from penstock.store.store import Store

_log = logging.getLogger("penstock.sharing")
SERVER = "penstock.server.running"
"""Named, not imported: the server is a layer above, and a store that nobody shares never needs it."""


class SocketDoor:
    """See `penstock.volume.door.Door`."""

    def __init__(self) -> None:
        self._folder = ""
        self._listening: socket.socket | None = None
        self._store: Store | None = None
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def open(self, folder: str) -> None:
        self._folder = folder
        try:
            self._listening = names.listen(folder)
        except OSError as error:
            _log.warning("%s cannot be shared with other processes: no socket can be made there: %s", folder, error)

    def serve(self, store: Store) -> None:
        if self._listening is not None:
            self._store = store
            self._thread = threading.Thread(target=self._wait, name=f"penstock-door {self._folder}", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        """Sleep until somebody knocks, or the door is closed."""
        listening = self._listening
        assert listening is not None
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        poll.poll()
        with self._lock:
            if self._closed:
                return
            try:
                running = importlib.import_module(SERVER)
                self._server = running.RunningServer(
                    self._store, listening=listening, users=names.owners(self._folder), auto_create=True
                )
            except Exception:  # noqa: BLE001 - it is the owner's program that must go on
                _log.exception("%s cannot be shared: its server did not start", self._folder)
                listening.close()  # who knocks must not wait for an answer

    @property
    def connections(self) -> int:
        """How many siblings are here."""
        return 0 if self._server is None else int(self._server.connections)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._listening is None:
            return
        if self._server is not None:
            self._server.close()
        elif self._thread is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that sleeps there
            self._thread.join()
        self._listening.close()
        with contextlib.suppress(OSError):
            names.remove_socket(self._folder)

    def forget(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.forget()
        if self._listening is not None and self._listening.fileno() >= 0:
            let_go(self._listening.fileno())
