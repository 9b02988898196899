"""
The judge of crash tests: opens a store after a crash, reads all of it, and names every anomaly.

Reading is done by a child of a small server process (`serve`), so that nothing of the store stays
open or mapped in the test's own process, and so that it can end without closing the store, as a killed one does. Judging is done by
`Judge`, which remembers over many crashes of one store what was ever seen in it.

Anomalies (reliability.md, section 4):

    lost-write           acknowledged and durable, or seen after a recovery, and not there any more
    inconsistent-offset  another message lies where the acknowledgement said it would, or where one was seen before
    duplicate            one message at two offsets
    torn-batch           a part of a batch
    torn-change          a change to several logs that is in some of them only
    phantom              a value that nobody ever wrote, or not to this log
    aborted-read         a message whose append was refused
    resurrected          a message that was gone after an earlier crash, or below the start of the log, is back
    non-dense            offsets that do not follow each other
    reorder              messages of one thread in another order than sent
    lost-topic           a topic whose creation was acknowledged is not there
    broken               the store cannot be opened or read
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import OffsetOutOfRange
from penstock.format import columns
from tests.real_disk.history import Head, History, HistoryWriter, key_of, parse_value, value_of
from tests.real_disk.writer import LOGS, Writer, open_volume, read_all

if TYPE_CHECKING:
    from penstock.format.batch import Batch
    from penstock.log.partition_log import PartitionLog


class Run(NamedTuple):
    """Messages of one batch that lie one behind the other: all of it, if `place` is 0 and `length` is `total`."""

    offset: int
    op: str
    part: int
    total: int
    place: int
    length: int

    @property
    def batch(self) -> str:
        """Which batch it is of."""
        return f"{self.op}:{self.part}"


class LogContent(NamedTuple):
    """All that a log holds, from its start to its end."""

    start: int
    end: int
    runs: list[Run]


_EMPTY = LogContent(0, 0, [])


class StoreContent(NamedTuple):
    """All that a store holds, and what was wrong with the reading of it."""

    logs: dict[str, LogContent]
    topics: set[str]
    anomalies: list[str]


# -- reading, in a process of its own -----------------------------------------------------------------------------------


def read_log(name: str, log: PartitionLog, anomalies: list[str]) -> LogContent:
    """Read a log from its start to its end, with every checksum; what is wrong by itself goes to *anomalies*."""
    runs: list[Run] = []
    expected = log.log_start
    begun: Head | None = None  # the first message of the run that is being read
    length = 0
    for batch in read_all(log):
        has_keys, has_headers = batch.entry(columns.KEY) is not None, batch.entry(columns.HEADERS) is not None
        for index in range(batch.index_of(expected), len(batch)):
            offset = batch.offset(index)
            if offset != expected:
                anomalies.append(f"non-dense {name}: offset {offset} where {expected} is next")
                expected = offset
            stored = batch.value(index)
            value = b"" if stored is None else bytes(stored)
            if begun is not None and value == value_of(begun.op, begun.part, begun.place + length, begun.total, len(value)):
                length += 1
            else:
                if begun is not None:
                    runs.append(Run(offset - length, begun.op, begun.part, begun.total, begun.place, length))
                begun, length = parse_value(value), 1
                if begun is None:
                    anomalies.append(f"phantom {name}: the value at offset {offset} is of no writer: {value[:60]!r}")
                    begun = Head("0.0.0", 0, 0, 1)
            if has_keys or begun.total > 3:
                _judge_key(name, batch, index, begun, begun.place + length - 1, anomalies)
            if has_headers or (len(value) > 2000 and begun.total <= 3):
                _judge_headers(name, batch, index, begun, len(value), anomalies)
            expected += 1
    if begun is not None:
        runs.append(Run(expected - length, begun.op, begun.part, begun.total, begun.place, length))
    if expected != log.committed_end:
        anomalies.append(f"non-dense {name}: reading ended at {expected}, the log at {log.committed_end}")
    if log.log_start:
        try:
            log.read(log.log_start - 1)
            anomalies.append(f"resurrected {name}: offset {log.log_start - 1} is served below the log's start")
        except OffsetOutOfRange:
            pass
    return LogContent(log.log_start, expected, runs)


def _judge_key(name: str, batch: Batch, index: int, head: Head, message: int, anomalies: list[str]) -> None:
    key = batch.key(index)
    if (None if key is None else bytes(key)) != (key_of(message) if head.total > 3 else None):
        anomalies.append(f"inconsistent-offset {name}: the key at offset {batch.offset(index)} of {head} is {key!r}")


def _judge_headers(name: str, batch: Batch, index: int, head: Head, size: int, anomalies: list[str]) -> None:
    found = [(header, bytes(value)) for header, value in batch.headers(index)]
    if found != ([("op", head.op.encode())] if head.total <= 3 and size > 2000 else []):
        anomalies.append(f"inconsistent-offset {name}: the headers at offset {batch.offset(index)} of {head} are {found!r}")


def inspect(request: dict[str, Any]) -> StoreContent:
    """Open the store (which recovers it), read everything, append one message to each log if asked to, and end as asked."""
    volume = open_volume(request, background=False)
    volume._committer._start_thread = lambda: None  # type: ignore[method-assign]
    anomalies: list[str] = []
    logs = {
        f"{record.name}/{partition}": read_log(f"{record.name}/{partition}", volume.log(record.name, partition), anomalies)
        for record in volume.topics
        for partition in range(record.partitions)
    }
    content = StoreContent(logs, {record.name for record in volume.topics}, anomalies)
    if request.get("append"):
        writer = Writer({"threads": 0, **request}, volume, HistoryWriter(request["history"]))
        writer.create_topics()
        for name in LOGS:
            writer.append(0, [name], 1, 60, strict=True)
        writer.append(0, [("plain", 0), ("plain", 1), ("timed", 0)], 2, 60)
    if request.get("close"):
        volume.close()
    return content


def serve() -> None:
    """Answer requests, one line of JSON each, with a child for each that writes its answer to a file and dies without goodbye."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                answer: Any = inspect(request)
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            with open(request["answer"], "wb") as file:
                pickle.dump(answer, file)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.write(1, b"%d\n" % status)


# -- judging --------------------------------------------------------------------------------------------------------


@dataclass
class Judge:
    """Compares what a store holds with what its history says. One for each store, for as long as the store lives."""

    history: History
    seen: dict[str, LogContent] = field(default_factory=dict)
    """What the last look found: recovery made it durable before it showed it."""
    gone: set[str] = field(default_factory=set)
    """``OP:PART`` of batches that were not there after a recovery: they may not come back."""
    removed: set[str] = field(default_factory=set)
    """``OP:PART`` of batches that retention took."""
    lost: int = 0
    """Batches in logs with a weaker mode that power loss was allowed to take."""
    power_lost: bool = False

    def judge(self, content: StoreContent | str, *, power_lost: bool) -> list[str]:
        """
        Every anomaly there is, given that power failed since the last look or that processes died at most.

        *content* was read after the history was (`History.read`), with nothing written in between.
        """
        if isinstance(content, str):
            return [f"broken: {content}"]
        self.power_lost = power_lost
        anomalies = list(content.anomalies)
        anomalies += [f"lost-topic {name}" for name in sorted(self.history.topics - content.topics)]
        visible: dict[str, int] = {}
        names = {part.log for operation in self.history.operations.values() for part in operation.parts}
        for name in sorted(names | set(content.logs)):
            log = content.logs.get(name, _EMPTY)
            self._judge_start(name, log, anomalies)
            self._judge_seen(name, log, anomalies)
            self._judge_messages(name, log, visible, anomalies)
        self._judge_operations(content, visible, anomalies)
        self.seen = dict(content.logs)
        return anomalies

    def _judge_start(self, name: str, log: LogContent, anomalies: list[str]) -> None:
        before = self.seen.get(name, _EMPTY)
        least = max(before.start, self.history.retained.get(name, 0))
        if log.start < least:
            anomalies.append(f"resurrected {name}: it begins at {log.start}, and began at {least} before")
        if log.start > least and name not in self.history.retaining:
            anomalies.append(f"lost-write {name}: it begins at {log.start} instead of {least}, and nobody removed anything")

    def _judge_seen(self, name: str, log: LogContent, anomalies: list[str]) -> None:
        before = self.seen.get(name)
        if before is None:
            return
        if log.end < before.end:
            anomalies.append(f"lost-write {name}: it ends at {log.end}, and offsets up to {before.end} were seen")
        now = {run.offset: run for run in log.runs}
        anomalies += [
            f"inconsistent-offset {name}: offset {run.offset} was {run} and is {now.get(run.offset)}"
            for run in before.runs
            if log.start <= run.offset < log.end and now.get(run.offset) != run
        ]

    def _judge_messages(self, name: str, log: LogContent, visible: dict[str, int], anomalies: list[str]) -> None:
        """Whole batches, of operations that exist, each once, those of one thread in their order."""
        operations = self.history.operations
        latest: dict[str, int] = {}
        for run in log.runs:
            batch, offset = run.batch, run.offset
            if run.place or run.length != run.total:
                anomalies.append(f"torn-batch {name}: {run.length} of {run.total} messages of {batch} from offset {offset} on")
            operation = operations.get(run.op)
            if operation is None or run.part >= len(operation.parts):
                anomalies.append(f"phantom {name}: {batch} at offset {offset} was never sent")
                continue
            part = operation.parts[run.part]
            if (part.log, part.count) != (name, run.total):
                anomalies.append(f"phantom {name}: {batch} at offset {offset} was sent to {part.log}")
            if batch in visible:
                anomalies.append(f"duplicate {name}: {batch} at offsets {visible[batch]} and {offset}")
            if batch in self.gone:
                anomalies.append(f"resurrected {name}: {batch} at offset {offset} was not there after an earlier crash")
            if operation.outcome == "fail":
                anomalies.append(f"aborted-read {name}: {batch} at offset {offset} was refused")
            if operation.outcome == "ok" and part.offset != offset:
                anomalies.append(f"inconsistent-offset {name}: {batch} is at {offset}, it was acknowledged at {part.offset}")
            if operation.number < latest.get(operation.producer, 0):
                anomalies.append(f"reorder {name}: {batch} at offset {offset} lies behind {latest[operation.producer]}")
            latest[operation.producer] = operation.number
            visible[batch] = offset

    def _durable_ends(self) -> dict[str, int]:
        """Up to where each log with a weaker mode may not lose anything."""
        ends = {name: log.end for name, log in self.seen.items()}
        for name, end in self.history.synced.items():
            # A log that lost its tail gets the same offsets again, so that an old promise may be about other messages;
            # but what was promised was there then, and what was lost lay behind it.
            ends[name] = max(ends.get(name, 0), end)
        for operation in self.history.outcomes("ok"):
            if operation.always:
                for part in operation.parts:
                    assert part.offset is not None
                    ends[part.log] = max(ends.get(part.log, 0), part.offset + part.count)
        return ends

    def _judge_operations(self, content: StoreContent, visible: dict[str, int], anomalies: list[str]) -> None:
        durable = self._durable_ends()
        for operation in self.history.operations.values():
            states = []
            for number, part in enumerate(operation.parts):
                batch = f"{operation.op}:{number}"
                log = content.logs.get(part.log, _EMPTY)
                state = "there" if batch in visible else "removed" if batch in self.removed else "absent"
                if state == "absent" and batch not in self.gone:
                    state = self._judge_absent(operation, number, log, durable.get(part.log, 0), anomalies)
                states.append(state)
            if "there" in states and "absent" in states:
                where = [f"{part.log}: {state}" for part, state in zip(operation.parts, states, strict=True)]
                anomalies.append(f"torn-change {operation.op}: {', '.join(where)}")

    def _judge_absent(self, operation: Any, number: int, log: LogContent, durable: int, anomalies: list[str]) -> str:
        part = operation.parts[number]
        batch = f"{operation.op}:{number}"
        if part.offset is not None and part.offset < log.start:
            self.removed.add(batch)
            return "removed"
        self.gone.add(batch)
        if operation.outcome != "ok":
            return "absent"
        assert part.offset is not None
        if operation.always or not self.power_lost or part.offset < min(durable, log.end):
            anomalies.append(
                f"lost-write {part.log}: {batch}, acknowledged at {part.offset} "
                f"({'always' if operation.always else 'weak'}), the log is [{log.start}, {log.end})"
            )
        elif part.offset < durable:
            anomalies.append(f"lost-write {part.log}: {batch} at {part.offset}, and offsets up to {durable} were durable")
        else:
            self.lost += 1
        return "absent"
