"""
The heartbeat of a connection: it tells the server that this client is alive, and what its users have begun.

Messages that were pushed ahead wait in a consumer's buffer without a lease, and a handler keeps its lease as long as it runs; both only
while the client is heard, since one that stands still must not keep messages from others. So a thread says every third of a lease, for each
consumer that has something to keep, that it is there, and which of the pushed messages are still in the buffer. It does nothing while no
consumer has.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.client.pending import ConnectionLost
from penstock.errors import PenstockError
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from penstock.client.connection import Connection
    from penstock.client.pending import Pending

BEATS_PER_LEASE = 3
PAUSE_LEAST_SECONDS = 0.005
TOGETHER_MAX = 500
"""So many consumers are told of in one frame, whose fields are bounded."""


class Beat(NamedTuple):
    """What is told for one consumer."""

    handle: int
    following: int
    """The first tag that its user was not given."""
    generation: int


class Beating(Protocol):
    """A consumer, as its connection's pulse sees it."""

    lease_s: float

    def beat(self) -> Beat | None:
        """What to tell; None while it has nothing to keep."""
        ...

    def confirmed(self, sent_s: float, lease_s: float) -> None:
        """The server has heard what was sent at *sent_s*; its lease is *lease_s* now, 0 if it does not say."""
        ...


class Pulse:
    """Sends the heartbeats of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._beating: dict[Beating, float] = {}
        """When each is to be told next."""
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def begin(self, consumer: Beating) -> None:
        """*consumer* has something to keep from now on; it was just heard."""
        if consumer in self._beating:
            return
        self._beating[consumer] = time.monotonic() + _pause(consumer)
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(target=self._run, name="penstock-client-pulse", daemon=True)
                    self._thread.start()
        self._wake.put(None)

    def close(self) -> None:
        """Let the thread end."""
        self._stopped = True
        self._wake.put(None)

    def _run(self) -> None:
        while not self._stopped:
            due = min(self._beating.copy().values(), default=None)
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        told: dict[int, list[tuple[Beating, Beat]]] = {}
        for consumer, due in list(self._beating.items()):
            if due > now:
                continue
            # Before it is asked: who begins to keep something now adds it again.
            del self._beating[consumer]
            beat = consumer.beat()
            if beat is not None:
                self._beating.setdefault(consumer, now + _pause(consumer))
                told.setdefault(beat.generation, []).append((consumer, beat))
        for generation, beats in told.items():
            for at in range(0, len(beats), TOGETHER_MAX):
                with contextlib.suppress(PenstockError):
                    self._send(generation, beats[at : at + TOGETHER_MAX], now)

    def _send(self, generation: int, beats: list[tuple[Beating, Beat]], sent_s: float) -> None:
        def answered(pending: Pending) -> None:
            leases = None if pending.frame is None else pending.frame.fields.get("leases")
            if isinstance(leases, list) and len(leases) == len(beats):
                for (consumer, _), lease_s in zip(beats, leases, strict=True):
                    consumer.confirmed(sent_s, float(lease_s) if isinstance(lease_s, (int, float)) else 0.0)

        if self._connection.has(generation):
            self._connection.begin(
                Call.HEARTBEAT, {"consumers": [[beat.handle, beat.following] for _, beat in beats]}, resend=False,
                lost=ConnectionLost("the connection was lost"), callback=answered, generation=generation,
            )  # fmt: skip


def _pause(consumer: Beating) -> float:
    return max(consumer.lease_s / BEATS_PER_LEASE, PAUSE_LEAST_SECONDS)
