"""
What a writer did, told line by line in a file on another disk, and the values that make each message traceable.

A message's value begins with a *head* that names the operation that wrote it, so that any value read later says whose it is:

    SESSION.THREAD.NUMBER:PART:INDEX:COUNT:      (part: which log of a change to several logs; index: which message of its batch)

The rest repeats the head, so that a single wrong byte shows. Lines of the history, each written by one unbuffered `write`:

    session SESSION                     a writer begins
    topic NAME                          the topic is durable
    invoke OP MODE LOG:COUNT:SIZE ...   about to append, MODE is what was asked for: always or weak
    ok OP TIME_MS OFFSET ...            acknowledged, with the first offset in each log
    fail OP ERROR                       rejected: certainly not stored
    unknown OP ERROR                    may or may not be stored
    retain LOG                          about to remove old segments
    retained LOG START                  they are gone, the log begins here
    synced LOG END                      a checkpoint or an interval sync returned that began when the log ended here
    error WHAT ERROR                    something else failed
    note TEXT                           for whoever reads it
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import NamedTuple


def value_of(op: str, part: int, index: int, count: int, size: int) -> bytes:
    """The value of one message; at least its head, however small *size* is."""
    head = f"{op}:{part}:{index}:{count}:".encode()
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def key_of(index: int) -> bytes:
    """The key of a message in a batch of many."""
    return b"key-%d" % (index % 7)


class Head(NamedTuple):
    """What the value of a message says of it."""

    op: str
    part: int
    place: int
    total: int


def parse_value(value: bytes) -> Head | None:
    """Whose message this is, or None if no writer ever wrote such a value."""
    try:
        op, part, index, count, _ = value.split(b":", 4)
        head = Head(op.decode("ascii"), int(part), int(index), int(count))
    except ValueError:
        return None
    return head if value_of(*head, len(value)) == value else None


class HistoryWriter:
    """Appends lines; each is in the file when the call returns, whatever happens to the process then."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def line(self, *words: object) -> None:
        """Write one line."""
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

    def ok(self, op: str, offsets: list[int]) -> None:
        """The operation was acknowledged with these first offsets."""
        self.line("ok", op, time.monotonic_ns() // 1_000_000, *offsets)


@dataclass(slots=True)
class Part:
    """One batch of an operation."""

    log: str
    count: int
    size: int
    offset: int | None = None
    """Where the acknowledgement said it is."""


@dataclass(slots=True)
class Operation:
    """An append, to one log or to several at once."""

    op: str
    always: bool
    parts: list[Part]
    outcome: str = "pending"
    time_ms: int = 0
    line: int = 0
    """Which line of the history invoked it."""

    @property
    def producer(self) -> str:
        """The thread that sent it; its operations are numbered in the order sent."""
        return self.op.rpartition(".")[0]

    @property
    def number(self) -> int:
        """Its place in the order of its thread."""
        return int(self.op.rpartition(".")[2])


@dataclass(slots=True)
class History:
    """A history, read as far as it goes; call `read` again for what was added."""

    path: str
    operations: dict[str, Operation] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    retaining: set[str] = field(default_factory=set)
    """Logs for which somebody ever asked for retention."""
    retained: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[int, str]] = field(default_factory=list)
    """(line, text) of all that failed."""
    notes: list[str] = field(default_factory=list)
    lines: int = 0
    _position: int = 0

    def read(self) -> History:
        """Take in the lines that were added since the last call."""
        with open(self.path, "rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode().splitlines():
            self.lines += 1
            kind, _, rest = line.partition(" ")
            self._take(kind, rest)
        return self

    def _take(self, kind: str, rest: str) -> None:
        words = rest.split(" ")
        if kind == "invoke":
            parts = [Part(log, int(count), int(size)) for log, count, size in (word.split(":") for word in words[2:])]
            self.operations[words[0]] = Operation(words[0], words[1] == "always", parts, line=self.lines)
        elif kind == "ok":
            operation = self.operations[words[0]]
            operation.outcome, operation.time_ms = "ok", int(words[1])
            for part, offset in zip(operation.parts, words[2:], strict=True):
                part.offset = int(offset)
        elif kind in {"fail", "unknown"}:
            self.operations[words[0]].outcome = kind
            self.errors.append((self.lines, f"{kind} {rest}"))
        elif kind == "topic":
            self.topics.add(rest)
        elif kind == "retain":
            self.retaining.add(rest)
        elif kind == "retained":
            self.retained[words[0]] = max(self.retained.get(words[0], 0), int(words[1]))
        elif kind == "synced":
            self.synced[words[0]] = max(self.synced.get(words[0], 0), int(words[1]))
        elif kind == "error":
            self.errors.append((self.lines, rest))
        elif kind == "note":
            self.notes.append(rest)
        elif kind != "session":
            raise ValueError(f"{self.path}: line {self.lines} is of no known kind: {kind} {rest}")

    def outcomes(self, outcome: str) -> list[Operation]:
        """The operations with this outcome."""
        return [operation for operation in self.operations.values() if operation.outcome == outcome]
