"""
A linter for the order of system calls: reads strace's log of a writer and says where something was promised too early.

What it knows of the disk is what has been proved: bytes are durable when a sync of their file that began after they were written has
returned, a name is durable when a sync of its folder that began after it appeared has returned. Against that it holds:

- an acknowledgement: the frame that commits the operation is durable (I3); for a batch that was written to its log ahead of the
  frame, that batch and the name of its segment were durable before the frame was written;
- a frame's file: its name is durable when an operation in it is acknowledged;
- a rename: what is renamed into place is durable before (else a crash leaves an empty file), and in a run with one thread the
  folder is synced before anything else is acknowledged (R1);
- a checkpoint: when it gets its name, the segments it names are there durably, up to the byte it names;
- a removal by retention: the frame with the new start of the log is durable before (R9).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.files import RealFileSystem
from penstock.format.checkpoint import Checkpoint
from penstock.volume.topic_files import read_topics

CALLS = (
    "write", "pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat",
    "openat",
)  # fmt: skip
STRACE_OPTIONS = ("--seccomp-bpf", "-x", "-s", "300000")
"""Whole buffers, those that are not text as hexadecimal digits."""

_LINE = re.compile(r"^(\d+) +(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))$", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)")
_BATCH = re.compile(rb"(\d+\.\d+\.\d+):(\d+):0:\d+:")
_POSITION = re.compile(r", (\d+) *\) += \d+(?: \([A-Z]+\))?$")
_POSITION_BEFORE_FLAGS = re.compile(r", (\d+), \w+ *\) += \d+(?: \([A-Z]+\))?$")
_DESCRIPTOR = re.compile(r"\d+<([^>]*)>")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Event(NamedTuple):
    """The beginning or the end of a call."""

    thread: int
    name: str
    begins: bool
    text: str
    result: int | None


def parse_events(log: str) -> list[Event]:
    """All beginnings and ends, in the order in which they happened."""
    events = []
    unfinished: dict[int, str] = {}
    with open(log, encoding="latin-1") as file:
        for line in file:
            match = _LINE.match(line.rstrip("\n"))
            if match is None:
                continue
            thread = int(match[1])
            if match[2] is not None:
                text = match[3]
                if text.endswith("<unfinished ...>"):
                    unfinished[thread] = text.removesuffix("<unfinished ...>")
                    events.append(Event(thread, match[2], True, unfinished[thread], None))
                    continue
                events.append(Event(thread, match[2], True, text, None))
                name = match[2]
            else:
                name, text = match[4], unfinished.pop(thread, "") + match[5]
            result = _RESULT.findall(text)
            events.append(Event(thread, name, False, text, int(result[-1]) if result else None))
    return events


def _payload(text: str) -> bytes:
    """The bytes of all buffers of a call."""
    found = b""
    for string in _STRING.findall(text):
        if string.startswith("\\x"):
            found += bytes.fromhex(string.replace("\\x", ""))
        else:
            found += string.encode("latin-1").decode("unicode_escape").encode("latin-1")
    return found


@dataclass(slots=True)
class _Write:
    """Bytes in a file, and what is known of them."""

    start: int
    end: int
    thread: int
    order: int
    durable: int | None = None
    """When it was proved, None as long as it is not."""


@dataclass(slots=True)
class _Name:
    """A name in a folder."""

    order: int
    durable: bool = False


@dataclass(slots=True)
class _Operation:
    """An operation that asked for durability: where its batches were written, by their number."""

    parts: int
    frames: dict[int, tuple[str, _Write]] = field(default_factory=dict)
    ahead: dict[int, tuple[str, _Write]] = field(default_factory=dict)


class CallOrder:
    """Goes through the events of one run and collects what was promised too early."""

    def __init__(self, store: str, history: str, *, one_thread: bool) -> None:
        self._store = store
        self._history = history
        self._one_thread = one_thread
        self._now = 0
        self._writes: dict[str, list[_Write]] = defaultdict(list)
        self._names: dict[str, _Name] = {}
        self._renamed: dict[str, int] = {}
        self._syncs: dict[int, tuple[str, int]] = {}
        self._operations: dict[str, _Operation] = {}
        self._frames: list[tuple[str, _Write]] = []
        self._retaining: int | None = None
        self._checkpoints: dict[str, bytes] = {}
        self._logs: dict[int, str] = {}
        self.violations: list[str] = []
        self.counts: dict[str, int] = defaultdict(int)

    def check(self, log: str) -> list[str]:
        """Everything that is wrong in the run that strace wrote down in *log*."""
        for record in read_topics(RealFileSystem(), os.path.join(self._store, "topics")):
            for partition in range(record.partitions):
                self._logs[record.first_log_id + partition] = os.path.join(self._store, "topics", record.name, str(partition))
        for event in parse_events(log):
            self._now += 1
            if event.name == "write":
                self._take_history(event)
            elif event.name.startswith("pwrite"):
                self._take_write(event)
            elif event.name in {"fdatasync", "fsync"}:
                self._take_sync(event)
            elif event.name.startswith("rename"):
                self._take_rename(event)
            elif event.name.startswith("unlink"):
                self._take_unlink(event)
            elif not event.begins and "O_CREAT" in event.text and (event.result or -1) >= 0:
                self._take_create(event)
        return self.violations

    # -- what happens to files --------------------------------------------------------------------------------------

    def _path(self, event: Event) -> str | None:
        match = _DESCRIPTOR.match(event.text)
        return match[1] if match is not None and match[1].startswith(self._store) else None

    def _take_write(self, event: Event) -> None:
        path = self._path(event)
        if path is None or event.begins or event.result is None:
            return
        match = (_POSITION_BEFORE_FLAGS if event.name == "pwritev2" else _POSITION).search(event.text)
        assert match is not None, event.text[-200:]
        write = _Write(int(match[1]), int(match[1]) + event.result, event.thread, self._now)
        self._writes[path].append(write)
        payload = _payload(event.text)
        if "/checkpoint-" in path:
            self._checkpoints[path] = payload
        is_frame = "/journal/" in path and write.start > 0
        if is_frame:
            self._frames.append((path, write))
        for name, part in set(_BATCH.findall(payload)):
            operation = self._operations.get(name.decode())
            if operation is not None and is_frame:
                operation.frames[int(part)] = (path, write)
            elif operation is not None and path.endswith(".log"):
                operation.ahead[int(part)] = (path, write)

    def _take_sync(self, event: Event) -> None:
        path = self._path(event)
        if path is None:
            return
        if event.begins:
            self._syncs[event.thread] = (path, self._now)
            return
        began_path, began = self._syncs.pop(event.thread, (path, self._now))
        if event.result != 0:
            return
        self.counts["syncs"] += 1
        for write in self._writes[began_path]:
            if write.durable is None and write.order < began:
                write.durable = self._now
        for name, known in self._names.items():
            if known.order < began and os.path.dirname(name) == began_path:
                known.durable = True
        for name, order in list(self._renamed.items()):
            if order < began and os.path.dirname(name) == began_path:
                del self._renamed[name]

    def _take_create(self, event: Event) -> None:
        match = re.search(r"= \d+<([^>]*)>", event.text)
        if match is not None and match[1].startswith(self._store):
            # A new use of the name: what was known of the last one is over.
            self._writes[match[1]] = []
            self._names[match[1]] = _Name(self._now)

    def _take_rename(self, event: Event) -> None:
        source, target = (string for string in _STRING.findall(event.text)[:2])
        if not source.startswith(self._store):
            return
        if event.begins:
            if not source.endswith(".idx.tmp") and not target.endswith(".spare"):
                self._need_durable(source, None, f"renaming {source} to {target}")
            if "checkpoint-" in target:
                self._check_checkpoint(source)
            return
        self.counts["renames"] += 1
        for path in [path for path in self._writes if path == source or path.startswith(source + "/")]:
            self._writes[target + path.removeprefix(source)] = self._writes.pop(path)
        for path in [path for path in self._names if path.startswith(source + "/")]:
            self._names[target + path.removeprefix(source)] = self._names.pop(path)
        self._names.pop(source, None)
        self._names[target] = _Name(self._now)
        if not target.endswith(".idx"):
            self._renamed[target] = self._now

    def _take_unlink(self, event: Event) -> None:
        path = next(iter(_STRING.findall(event.text)), "")
        if not (event.begins and path.startswith(self._store) and path.endswith(".log")):
            return
        self.counts["removals"] += 1
        if self._one_thread:
            frames = [write for _, write in self._frames if self._retaining is not None and write.order > self._retaining]
            if not frames or any(write.durable is None for write in frames):
                self.violations.append(f"{path} is removed before the new start of the log is durable")

    # -- what is promised -------------------------------------------------------------------------------------------

    def _need_durable(self, path: str, end: int | None, why: str) -> None:
        unsynced = [write for write in self._writes[path] if write.durable is None and (end is None or write.start < end)]
        if unsynced:
            self.violations.append(f"{why}: bytes {unsynced[0].start} to {unsynced[0].end} of {path} are not synced")

    def _need_name(self, path: str, why: str) -> None:
        known = self._names.get(path)
        if known is not None and not known.durable:
            self.violations.append(f"{why}: the name of {path} is not synced")

    def _check_checkpoint(self, source: str) -> None:
        self.counts["checkpoints"] += 1
        for row in Checkpoint.decode(self._checkpoints[source]).rows:
            if row.position:
                path = os.path.join(self._logs[row.log_id], f"{row.segment_first:020d}.log")
                why = f"the checkpoint that names {os.path.relpath(path, self._store)} up to byte {row.position}"
                self._need_name(path, why)
                self._need_durable(path, row.position, why)

    def _take_history(self, event: Event) -> None:
        match = _DESCRIPTOR.match(event.text)
        if match is None or match[1] != self._history or not event.begins:
            return
        words = _payload(event.text).decode().split()
        if words[0] == "invoke" and words[2] == "always":
            self._operations[words[1]] = _Operation(len(words) - 3)
        elif words[0] == "retain":
            self._retaining = self._now
        elif words[0] == "ok" and words[1] in self._operations:
            self._check_acknowledgement(words[1], self._operations.pop(words[1]))
            if self._one_thread and self._renamed:
                self.violations.append(
                    f"{words[1]} is acknowledged, and the renaming to {next(iter(self._renamed))} is not synced"
                )
                self._renamed = {}

    def _check_acknowledgement(self, name: str, operation: _Operation) -> None:
        self.counts["acknowledgements"] += 1
        frames = list(operation.frames.values())
        # A batch that a frame holds goes to its segment later, and need not be synced there.
        ahead = [where for part, where in operation.ahead.items() if part not in operation.frames]
        if len(frames) + len(ahead) < operation.parts:
            self.violations.append(f"{name} is acknowledged, and was not written whole")
        if ahead:
            self.counts["written ahead"] += 1
            last = max((write for _, write in ahead), key=lambda write: write.order)
            # The leader of the cycle wrote the batches, and then the frame that refers to them.
            following = [one for one in self._frames if one[1].thread == last.thread and one[1].order > last.order]
            if not following:
                self.violations.append(f"{name} is acknowledged, and no frame was written after its batches")
                return
            frames.append(following[0])
            for path, write in ahead:
                if write.durable is None or write.durable > following[0][1].order:
                    self.violations.append(f"{name}: its batch in {path} was not synced before the frame that refers to it")
                self._need_name(path, f"{name} is acknowledged")
        for path, write in frames:
            if write.durable is None:
                self.violations.append(f"{name} is acknowledged, and its frame in {path} is not synced")
            self._need_name(path, f"{name} is acknowledged")
