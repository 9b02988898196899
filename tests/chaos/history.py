"""
What clients saw of a server that things were done to, and what is wrong with it.

Clients note what they try and what they are told; at the end the whole store is read and compared. The anomalies are those of Jepsen's
Kafka workload, and those of queues. Clients' threads may sleep between being told something and noting it, so nothing is judged by the
order in which two clients noted things, but only by what a server must have known: a delivery that somebody asked for after an ack was
durable, or two acks that one and the same server process took.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

POISON = b"!"
"""Ends the values that consumers reject: those must become dead letters, once for each group."""


class Place(NamedTuple):
    """Where a message lies."""

    partition: int
    offset: int


class _Finished(NamedTuple):
    """An ack, or a rejection, that the server took."""

    at_s: float
    server: int | None
    """Which server process took it; None if it was replaced meanwhile."""
    durable: bool


class History:
    """All clients' notes. Safe to use from any thread."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.groups = tuple(groups)
        self._lock = threading.Lock()
        self.tried: set[bytes] = set()
        self.acked: dict[bytes, Place] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.delivered: dict[str, collections.Counter[bytes]] = {group: collections.Counter() for group in self.groups}
        self._places: dict[Place, bytes] = {}
        self._finished: dict[tuple[str, Place], list[_Finished]] = collections.defaultdict(list)
        self._attempts: dict[tuple[str, Place], int] = {}
        self._next_reads: dict[tuple[str, int], int] = {}
        self.late = 0
        """Acks that were refused, or whose answer was lost."""
        self.server = 0
        """Which server process runs; odd while there is none, or none for certain."""
        self.keeps_acks = False
        """Whether every ack that was taken must hold: servers are not killed, but stopped in order."""
        self.attempts_max = 0
        self.anomalies: list[str] = []

    def note(self, kind: str, text: str) -> None:
        """Something is wrong."""
        self.anomalies.append(f"{kind}: {text}")

    # -- the supervisor ---------------------------------------------------------------------------------------------

    def server_goes(self) -> None:
        """Before the server is killed."""
        self.server += 1

    def server_came(self) -> None:
        """After a new one has begun."""
        self.server += 1

    # -- producers --------------------------------------------------------------------------------------------------

    def try_publish(self, value: bytes) -> None:
        """Before it is sent."""
        with self._lock:
            self.tried.add(value)

    def published(self, value: bytes, place: Place) -> None:
        """The server said so."""
        with self._lock:
            self.acked[value] = place
            self._note_place(place, value)

    def was_refused(self, value: bytes) -> None:
        """The client was told that it is certainly not stored."""
        with self._lock:
            self.refused.add(value)

    def is_unknown(self, value: bytes) -> None:
        """The client was told that nobody knows."""
        with self._lock:
            self.unknown.add(value)

    def _note_place(self, place: Place, value: bytes) -> None:
        known = self._places.setdefault(place, value)
        if known != value:
            self.note("inconsistent-offset", f"{place} held {known!r} and {value!r}")

    # -- consumers --------------------------------------------------------------------------------------------------

    def got(self, group: str, value: bytes, place: Place, asked_s: float | None) -> None:
        """A consumer was handed it, after it asked at *asked_s*; None if it may have come earlier, unasked."""
        with self._lock:
            self.delivered[group][value] += 1
            self._note_place(place, value)
            if asked_s is not None and any(one.durable and one.at_s < asked_s for one in self._finished[group, place]):
                self.note("redelivered-after-durable-ack", f"{value!r} at {place} in {group}")

    def finished(self, group: str, value: bytes, place: Place, attempt: int, *, server: int, durable: bool) -> None:
        """The server took the ack; *server* is what `server` was before it was sent."""
        with self._lock:
            same = server == self.server and not server % 2
            one = _Finished(time.monotonic(), server if same else None, durable or self.keeps_acks)
            known = self._finished[group, place]
            # One that is noted after its server was replaced may have been forgotten with it, and been finished once more since.
            if any(other.durable for other in known) and (same or one.durable):
                self.note("redelivered-after-durable-ack", f"{value!r} at {place} was finished once more in {group}")
            elif one.server is not None and any(other.server == one.server for other in known):
                self.note("double-lease", f"{value!r} at {place} was finished twice by one server in {group}")
            known.append(one)
            before = self._attempts.get((group, place), 0)
            if attempt < before and same:
                self.note("delivery-count-regress", f"{value!r} at {place} in {group} had attempt {before}, and now {attempt}")
            self._attempts[group, place] = max(before, attempt)
            self.attempts_max = max(self.attempts_max, attempt)

    def not_finished(self) -> None:
        """The ack was late, or lost."""
        with self._lock:
            self.late += 1

    @property
    def backlog(self) -> int:
        """About how many messages some group was not handed yet."""
        return len(self.acked) - min(len(counter) for counter in self.delivered.values())

    # -- readers ----------------------------------------------------------------------------------------------------

    def read(self, reader: str, place: Place, value: bytes) -> None:
        """Somebody who reads a partition from its beginning came to it."""
        with self._lock:
            expected = self._next_reads.get((reader, place.partition), 0)
            if place.offset < expected:
                self.note("non-monotonic-read", f"{reader} got {place} and expected offset {expected}")
            elif place.offset > expected:
                self.note("skipped-read", f"{reader} got {place} and expected offset {expected}")
            self._next_reads[reader, place.partition] = place.offset + 1
            self._note_place(place, value)

    # -- the end ----------------------------------------------------------------------------------------------------

    def judge(self, stored: Iterable[tuple[Place, bytes]], letters: Iterable[tuple[str, bytes]]) -> list[str]:
        """All that is wrong, now that everything was consumed; *letters* are (group, value) of the dead letters."""
        places: dict[bytes, Place] = {}
        last: dict[tuple[bytes, int], int] = {}
        for place, value in stored:
            self._note_place(place, value)
            if value in places:
                self.note("duplicate", f"{value!r} at {places[value]} and {place}")
            places[value] = place
            producer, count = parse_value(value)
            if count < last.get((producer, place.partition), -1):
                self.note("reorder", f"{value!r} at {place} lies behind number {last[producer, place.partition]}")
            last[producer, place.partition] = count
        for value, place in self.acked.items():
            if places.get(value) != place:
                self.note("lost-write", f"{value!r} was acknowledged at {place}, and is at {places.get(value)}")
        for value in places.keys() - self.tried:
            self.note("invented", f"{value!r}")
        for value in places.keys() & self.refused:
            self.note("aborted-read", f"{value!r} was refused, and is stored")
        for group in self.groups:
            for value in places.keys() - self.delivered[group].keys():
                self.note("unseen", f"{value!r} was never delivered to {group}")
            for value in self.delivered[group].keys() - places.keys():
                self.note("lost-write", f"{value!r} was delivered to {group}, and is not stored")
        self._judge_letters(places, collections.Counter(letters))
        return self.anomalies

    def _judge_letters(self, places: dict[bytes, Place], letters: collections.Counter[tuple[str, bytes]]) -> None:
        poison = {value for value in places if value.endswith(POISON)}
        for group in self.groups:
            for value in poison:
                if not letters[group, value]:
                    self.note("dlq-lost", f"{value!r} of {group}")
        for (group, value), count in letters.items():
            if count > 1:
                self.note("dlq-dup", f"{value!r} of {group}, {count} times")
            if value not in poison:
                self.note("dlq-stray", f"{value!r} of {group} was not rejected")

    def summary(self) -> dict[str, int]:
        """Figures of the run."""
        return {
            "acked": len(self.acked), "refused": len(self.refused), "unknown": len(self.unknown),
            "delivered": sum(sum(counter.values()) for counter in self.delivered.values()),
            "redelivered": sum(sum(counter.values()) - len(counter) for counter in self.delivered.values()),
            "late_acks": self.late, "read": sum(self._next_reads.values()),
        }  # fmt: skip


def make_value(producer: str, count: int) -> bytes:
    """The value number *count* of a producer; one in fifty is poison."""
    return b"%s:%d%s" % (producer.encode(), count, POISON if count % 50 == 49 else b"")


def parse_value(value: bytes) -> tuple[bytes, int]:
    """Whose it is, and which one."""
    producer, _, count = value.removesuffix(POISON).rpartition(b":")
    return producer, int(count)
