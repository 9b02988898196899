"""
Where a demonstration happens: a temporary folder, a `penstock serve` process on it, and consumers that are processes of their own.

They are real: the server listens on a Unix socket (or, where the folder's path is too long for one, on a port of the loopback), every
process can be killed, stopped and looked at, and nobody but the operating system tells the others. All of it is gone when the stage is
closed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.cli import interrupts
from penstock.cli.escapes import json_line
from penstock.client.opening import open_store
from penstock.errors import PenstockError
from penstock.server.address import UNIX_PATH_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.demo.screen import Screen
    from penstock.groups.delivery import Delivery
    from penstock.store.stats import GroupStats
    from penstock.store.store import Store

PATIENCE_SECONDS = 60.0
"""How long anything may take before the demonstration fails; on a quiet machine all of it takes a second or two."""
_CHECK_SECONDS = 0.02


class Stalled(Exception):
    """What a demonstration waited for did not happen."""


class Event(NamedTuple):
    """What a consumer told: that it got a message, or that it is done with it."""

    what: str
    partition: int
    offset: int
    attempt: int
    seconds: float
    """When it was heard, by `time.monotonic`."""


class Actor:
    """A consumer that is a process of its own. It tells of each message that it got, and that it is done with it."""

    def __init__(self, name: str, options: dict[str, Any], changed: threading.Condition) -> None:
        self.name = name
        self.events: list[Event] = []
        self.is_ready = False
        self._changed = changed
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "penstock.cli.demo.actor", json_line(options).decode()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for told in self._process.stdout:
            words = told.split()
            if not told.endswith("\n"):
                break  # killed while it wrote the line
            with self._changed:
                if words == ["ready"]:
                    self.is_ready = True
                else:
                    self.events.append(Event(words[0], int(words[1]), int(words[2]), int(words[3]), time.monotonic()))
                self._changed.notify_all()

    def cue(self) -> None:
        """Let it subscribe, if it was told to wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def got(self) -> list[Event]:
        """The deliveries, in order."""
        return [event for event in self.events if event.what == "got"]

    def done(self) -> list[int]:
        """The offsets of what it has acknowledged, in order."""
        return [event.offset for event in self.events if event.what == "done"]

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """SIGKILL; returns how it ended, once everything that it had told is here."""
        self.send(signal.SIGKILL)
        return self._end()

    def _end(self) -> int:
        code = self._process.wait()
        self._listener.join(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._end()


class Stage:
    """A folder, a server and its company. To be closed."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.folder = tempfile.mkdtemp(prefix="penstock-demo-")
        self.data = os.path.join(self.folder, "data")
        self.changed = threading.Condition()
        """Told of every event."""
        self._native = self._choose_address()
        self._server: subprocess.Popen[str] | None = None
        self._actors: list[Actor] = []
        self._stores: list[Store] = []

    def _choose_address(self) -> str:
        path = os.path.join(self.folder, "socket")
        if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
            return f"unix:{path}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{free.getsockname()[1]}"

    @property
    def url(self) -> str:
        """Where the server is."""
        kind, _, path = self._native.partition(":")
        return f"penstock+unix://{path}" if kind == "unix" else f"penstock://{self._native}"

    # -- the server -------------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start `penstock serve`, and return at once; `await_server` waits until clients can connect."""
        # In its own folder and without variables, so that no file or variable of the user's changes it.
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        # One listener, on an address of its own: nothing of a server that the user runs is in the way. By variables, since one of an
        # option that this server does not have is no error.
        quiet |= {"PENSTOCK_SERVE_NO_HTTP": "1", "PENSTOCK_SERVE_NO_GRPC": "1"}
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self._server = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "penstock.cli", "serve", "--data", self.data, "--native", self._native],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder, env=quiet, start_new_session=True,
            )  # fmt: skip

    def await_server(self) -> None:
        """Return when clients can connect. Raises `Stalled`."""
        assert self._server is not None
        assert self._server.stdout is not None
        for told in self._server.stdout:
            if told.startswith("Ready"):
                return
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            raise Stalled(f"the server did not begin: {log.read()[-500:].strip()}")

    @property
    def server_pid(self) -> int:
        """The server's process."""
        assert self._server is not None
        return self._server.pid

    def kill_server(self) -> None:
        """SIGKILL: it can do nothing about it."""
        self._end_server(signal.SIGKILL)

    def stop_server(self) -> int:
        """SIGTERM: it stops in order; returns its exit code."""
        return self._end_server(signal.SIGTERM)

    def _end_server(self, number: signal.Signals) -> int:
        server, self._server = self._server, None
        if server is None:
            return 0
        server.send_signal(number)
        try:
            code = server.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            code = server.wait()
        assert server.stdout is not None
        server.stdout.close()
        return code

    def server_bytes(self) -> int:
        """The memory that the server itself takes, without the files that it has mapped."""
        with open(f"/proc/{self.server_pid}/status", encoding="ascii") as status:
            return next(int(row.split()[1]) for row in status if row.startswith("RssAnon:")) * 1024

    # -- the company ------------------------------------------------------------------------------------------------

    def store(self) -> Store:
        """A client of the server, which is running, in this process."""
        opened = open_store(self.url, give_up=PATIENCE_SECONDS)
        self._stores.append(opened)
        return opened

    def actor(self, name: str, topic: str, group: str, **options: Any) -> Actor:
        """A consumer that is a process of its own; see `penstock.cli.demo.actor` for the options."""
        actor = Actor(name, {"url": self.url, "topic": topic, "group": group, **options}, self.changed)
        self._actors.append(actor)
        return actor

    def group(self, store: Store, topic: str, group: str) -> GroupStats:
        """The numbers of a group."""
        return store.stats().topics[topic].groups[group]

    def wait(self, what: str, happened: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Return when it *happened*. Raises `Stalled`: it did not in time."""
        end = time.monotonic() + seconds
        while not happened():
            interrupts.check()
            if time.monotonic() > end:
                raise Stalled(f"waited {seconds:.0f} s in vain: {what}")
            with self.changed:
                self.changed.wait(_CHECK_SECONDS)

    def close(self) -> None:
        """End every process and remove the folder."""
        for store in self._stores:
            with contextlib.suppress(PenstockError):
                store.close()
        for actor in self._actors:
            actor.close()
        self.kill_server()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Hand:
    """A consumer in a thread of this process, for demonstrations that kill others. What it raises, `join` raises."""

    def __init__(self, store: Store, topic: str, group: str, handle: Callable[[Delivery], None], **options: Any) -> None:
        self._consumer = store.subscribe(topic, group, **options)
        self._handle = handle
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for message in self._consumer:
                self._handle(message)
        except BaseException as error:  # noqa: BLE001 - told by who looks at errors
            self.errors.append(error)

    def close(self) -> None:
        """End its loop."""
        self._consumer.close()
        self._thread.join(PATIENCE_SECONDS)
