"""
A program that writes to a store and is made to crash: `python -m tests.real_disk.writer '{"path": ..., "history": ..., ...}'`.

With ``threads`` = 0 it does a fixed number of operations in one thread, with nothing in the background: the same system calls in the
same order each time. With more, that many threads write while the store's own maintenance runs, until somebody ends it.

What it did, and what it was told, goes to the history file, which lies on another disk. Imports are few: it is started often.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import BatchTooLarge, Closed, OutcomeUnknown, PenstockError, StorageFailed, StorageFull
from penstock.files import RealFile, RealFileSystem
from penstock.format.batch import Batch, encode_batch, encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import SyncMode
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume
from tests.real_disk.history import HistoryWriter, key_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog

KIB = 1024
STORE = {
    "journal_file_bytes": 64 * KIB,
    "frame_bytes": 16 * KIB,
    "reference_bytes": 8 * KIB,
    "checkpoint_bytes": 96 * KIB,
    "checkpoint_interval_ms": 30,
    "sync_interval_ms": 10,
    "free_bytes_floor": 0,
    "reserve_bytes": 64 * KIB,
}
"""Small numbers, so that files switch, segments roll and checkpoints come many times in a short run."""
TOPICS: dict[str, tuple[int, TopicSettings]] = {
    "plain": (2, TopicSettings(segment_bytes=16 * KIB, coalesce_below_bytes=4 * KIB)),
    "small": (1, TopicSettings(segment_bytes=1536, coalesce_below_bytes=4 * KIB)),
    "lazy": (2, TopicSettings(sync=SyncMode.OS, segment_bytes=8 * KIB, coalesce_below_bytes=4 * KIB)),
    "timed": (1, TopicSettings(sync=SyncMode.INTERVAL, segment_bytes=4 * KIB, coalesce_below_bytes=4 * KIB)),
}
LOGS = [(topic, partition) for topic, (partitions, _) in TOPICS.items() for partition in range(partitions)]
WEAK_LOGS = [(topic, partition) for topic, partition in LOGS if TOPICS[topic][1].sync is not SyncMode.ALWAYS]
CHANGE_LOGS = [("plain", 0), ("plain", 1), ("lazy", 0), ("timed", 0)]
"""Logs that are changed together. Retention leaves them alone, so that half a change cannot be taken for a removed one."""
RETAINED_LOGS = [("small", 0), ("lazy", 1)]

_APPENDS = {"single": 12, "hundred": 1, "large": 2, "strict": 2, "change": 3}
_CHORES = {"sync": 3, "checkpoint": 3, "retain": 2, "coalesce": 1}


class BootFiles(RealFileSystem):
    """The real file system, in a boot of our choosing: losing the power of a loop device does not boot the machine."""

    __slots__ = ("_boot_id",)

    def __init__(self, boot_id: bytes) -> None:
        self._boot_id = boot_id

    def boot_id(self) -> bytes:
        return self._boot_id or super().boot_id()


class _UnsyncedFile(RealFile):
    __slots__ = ()

    def sync_data(self) -> None:
        pass


class _SyncedOnceFile(RealFile):
    __slots__ = ()

    def sync_data(self) -> None:
        super().sync_data()
        file: RealFile = self
        file.__class__ = _UnsyncedFile


class ForgetfulFiles(BootFiles):
    """A planted bug: it does not sync what *which* names, though it says so. For showing that the harness catches that."""

    __slots__ = ("_which",)

    def __init__(self, boot_id: bytes, which: str) -> None:
        super().__init__(boot_id)
        self._which = which

    def _spoil(self, file: RealFile) -> RealFile:
        if self._which == "journal" and "/journal/" in file.path:
            # The new file is whole, and the frames in it are not synced.
            file.__class__ = _SyncedOnceFile
        elif (self._which == "segments" and file.path.endswith(".log")) or (
            self._which == "temporary files" and file.path.endswith(".tmp")
        ):
            file.__class__ = _UnsyncedFile
        return file

    def open(self, path: str, *, write: bool = False) -> RealFile:
        return self._spoil(super().open(path, write=write))

    def create(self, path: str) -> RealFile:
        return self._spoil(super().create(path))

    def sync_directory(self, path: str) -> None:
        if self._which != "folders":
            super().sync_directory(path)


def make_files(config: dict[str, Any]) -> RealFileSystem:
    """The file system that *config* asks for."""
    boot_id = bytes.fromhex(config.get("boot_id", ""))
    forget = config.get("forget")
    return ForgetfulFiles(boot_id, forget) if forget else BootFiles(boot_id)


def open_volume(config: dict[str, Any], *, background: bool) -> Volume:
    """Open the store of *config*."""
    settings = StoreSettings(**{**STORE, **config.get("settings", {})})
    return Volume.open(config["path"], settings=settings, files=make_files(config), background=background)


def make_batch(op: str, part: int, count: int, size: int) -> EncodedBatch:
    """A batch whose messages can be told from all others; batches of many have keys, large ones headers."""
    values = [value_of(op, part, index, count, size) for index in range(count)]
    if count > 3:
        return encode_batch(values, keys=[key_of(index) for index in range(count)])
    if size > 2000:
        return encode_batch(values, headers=[[("op", op.encode())] for _ in range(count)])
    return encode_single(values[0]) if count == 1 else encode_batch(values)


class Writer:
    """Does operations and writes down what becomes of them."""

    def __init__(self, config: dict[str, Any], volume: Volume, history: HistoryWriter) -> None:
        self._config = config
        self._volume = volume
        self._history = history
        self._session = config["session"]
        self._numbers: dict[int, int] = {}
        self.refusals = 0
        """Appends that were not acknowledged."""

    def create_topics(self) -> None:
        """Make the topics, where they are not there yet."""
        for name, (partitions, settings) in TOPICS.items():
            self._volume.create_topic(name, partitions, settings)
            self._history.line("topic", name)

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, thread: int, where: list[tuple[str, int]], count: int, size: int, *, strict: bool = False) -> bool:
        """Append to one log, or to several together; False if the store takes no more."""
        volume, history = self._volume, self._history
        number = self._numbers.get(thread, 0) + 1
        self._numbers[thread] = number
        op = f"{self._session}.{thread}.{number}"
        logs = [volume.log(topic, partition) for topic, partition in where]
        always = strict or len(logs) > 1 or logs[0].always
        batches = [make_batch(op, part, count, size) for part in range(len(logs))]
        names = [f"{topic}/{partition}:{count}:{size}" for topic, partition in where]
        history.line("invoke", op, "always" if always else "weak", *names)
        try:
            if len(logs) > 1:
                ticket = volume.submit_changes([Append(log, batch) for log, batch in zip(logs, batches, strict=True)])
                ticket.wait()
                offsets = ticket.first_offsets
            else:
                offsets = [volume.append(logs[0], batches[0], sync=SyncMode.ALWAYS if strict else None)]
        except (StorageFull, BatchTooLarge, StorageFailed, Closed) as error:
            history.line("fail", op, type(error).__name__)
            self.refusals += 1
            return isinstance(error, (StorageFull, BatchTooLarge))
        except (OutcomeUnknown, OSError) as error:
            history.line("unknown", op, type(error).__name__)
            self.refusals += 1
            return False
        history.ok(op, offsets)
        return True

    def append_some(self, thread: int, rng: random.Random, kind: str) -> bool:
        """One append of this kind."""
        if kind == "change":
            where = rng.sample(CHANGE_LOGS, rng.randint(2, len(CHANGE_LOGS)))
            if rng.random() < 0.3:
                where.append(where[0])
            count, size = rng.choice([(1, 40), (1, 200), (1, 60), (5, 60), (20, 28), (3, 4096)])
            return self.append(thread, where, count, size)
        if kind == "small":
            return self.append(thread, [("small", 0)], 1, 250)
        if kind == "strict":
            return self.append(thread, [rng.choice(WEAK_LOGS)], rng.choice([1, 4]), rng.randint(20, 300), strict=True)
        count, size = {"single": (1, rng.randint(0, 300)), "hundred": (100, rng.randint(20, 32)), "large": (3, 4096)}[kind]
        return self.append(thread, [rng.choice(LOGS)], count, size)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def do_chore(self, rng: random.Random, kind: str) -> bool:
        """Sync, checkpoint, retain or coalesce; False if the store takes no more."""
        volume, history = self._volume, self._history
        try:
            if kind in {"sync", "checkpoint"}:
                weak = [name for name in WEAK_LOGS if kind == "checkpoint" or name[0] == "timed"]
                ends = [volume.log(*name).committed_end for name in weak]
                if kind == "sync":
                    volume.sync_interval_logs()
                    # Another thread may be at it with the same log: then this call returned before that sync did.
                    if self._config["threads"]:
                        return True
                else:
                    volume.checkpoint()
                for (topic, partition), end in zip(weak, ends, strict=True):
                    history.line("synced", f"{topic}/{partition}", end)
            elif kind == "retain":
                topic, partition = rng.choice(RETAINED_LOGS) if self._config["threads"] else RETAINED_LOGS[0]
                log = volume.log(topic, partition)
                history.line("retain", f"{topic}/{partition}")
                removed, _ = volume.retain(log, messages_max=rng.choice([15, 150]) if self._config["threads"] else 8)
                if removed:
                    history.line("retained", f"{topic}/{partition}", log.log_start)
            else:
                volume.coalesce()
        except (PenstockError, OSError) as error:
            history.line("error", kind, type(error).__name__)
            return isinstance(error, StorageFull)
        return True

    def work_alone(self, rng: random.Random) -> bool:
        """A fixed list of operations; False if the store failed on the way."""
        return all(
            self.do_chore(rng, kind) if kind in _CHORES else self.append_some(0, rng, kind)
            for kind in script(rng, self._config["operations"])
        )

    def work_together(self) -> None:
        """Threads that append until the store fails or the time is over, and one that does chores."""
        stop = threading.Event()
        appending = [threading.Thread(target=self._append_on, args=(number, stop)) for number in range(self._config["threads"])]
        chores = threading.Thread(target=self._do_chores, args=(stop,))
        for thread in appending:
            thread.start()
        if self._config.get("chores", True):
            chores.start()
        deadline = time.monotonic() + self._config["seconds"]
        for thread in appending:
            thread.join(max(deadline - time.monotonic(), 0))
        stop.set()
        for thread in [*appending, chores]:
            if thread.ident is not None:
                thread.join()

    def _append_on(self, thread: int, stop: threading.Event) -> None:
        rng = random.Random(f"{self._config['seed']} {self._session} {thread}")
        appends = {kind: _APPENDS[kind] for kind in self._config.get("appends", _APPENDS)}
        kinds, weights = list(appends), list(appends.values())
        while not stop.is_set():
            if not self.append_some(thread, rng, rng.choices(kinds, weights)[0]):
                return

    def _do_chores(self, stop: threading.Event) -> None:
        rng = random.Random(f"{self._config['seed']} {self._session} chores")
        kinds, weights = list(_CHORES), list(_CHORES.values())
        while not stop.wait(rng.uniform(0.001, 0.02)):
            if not self.do_chore(rng, rng.choices(kinds, weights)[0]):
                return

    # -- after a failure --------------------------------------------------------------------------------------------

    def go_on_after_failure(self) -> None:
        """What a process does whose disk failed: it is refused everywhere, and still serves what was committed."""
        topics = {record.name for record in self._volume.topics}
        there = [name for name in LOGS if name[0] in topics]
        for name in there:
            self.append(90, [name], 1, 60)
        if there == LOGS:
            self.append(90, CHANGE_LOGS, 1, 60)
            self.do_chore(random.Random(0), "checkpoint")
        for topic, partition in there:
            log = self._volume.log(topic, partition)
            try:
                messages = sum(len(batch) for batch in read_all(log))
            except (PenstockError, OSError) as error:
                self._history.line("error", "read", f"{topic}/{partition}", type(error).__name__, error)
                continue
            if messages != log.committed_end - log.log_start:
                self._history.line("error", "read", f"{topic}/{partition}: {messages} messages in {log!r}")
            self._history.line("note", "served", f"{topic}/{partition}", log.log_start, log.committed_end)
        self._history.line("note", "served all")
        self._volume.close()
        self._history.line("note", "closed")


def read_all(log: PartitionLog) -> Iterator[Batch]:
    """Every committed batch of *log*, checked."""
    offset, end = log.log_start, log.committed_end
    while offset < end:
        batches = log.read(offset)
        if not batches:
            return
        yield from batches
        offset = batches[-1].end_offset


def script(rng: random.Random, operations: int) -> list[str]:
    """
    The kinds of a fixed list of operations: appends, with everything else strewn in often enough that all of it happens.

    It begins with segments full of small batches and two checkpoints, since only what both cover is rewritten or removed.
    """
    if not operations:
        return []
    kinds, weights = list(_APPENDS), list(_APPENDS.values())
    chores = ["sync", "checkpoint", "retain", "coalesce"]
    listed = [*["small"] * 12, "checkpoint", "checkpoint", "coalesce", "small", "retain"]
    for number in range(operations):
        listed.append(rng.choices(kinds, weights)[0])
        if number % 5 == 4:
            listed.append(chores[number // 5 % len(chores)])
    return listed


def _say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


def run(config: dict[str, Any]) -> NoReturn:
    """Run as the configuration says, and end the process."""
    # The tests expect nothing on standard error; that a failure is logged, tests/observability shows.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    history = HistoryWriter(config["history"])
    history.line("session", config["session"])
    threads = config.setdefault("threads", 0)
    _say("imported")
    try:
        volume = open_volume(config, background=threads > 0)
    except (PenstockError, OSError) as error:
        history.line("error", "open", type(error).__name__, error)
        _say("failed")
        os._exit(4)
    if not threads:
        # One thread only: whoever asks for a commit carries it out.
        volume._committer._start_thread = lambda: None  # type: ignore[method-assign]
    writer = Writer(config, volume, history)
    try:
        writer.create_topics()
        _say("ready")
        if threads:
            writer.work_together()
            failed = volume._committer.failure is not None
        else:
            failed = not writer.work_alone(random.Random(f"{config['seed']} alone"))
    except (PenstockError, OSError) as error:
        history.line("error", "work", type(error).__name__)
        failed = True
    if failed and config.get("go_on"):
        writer.go_on_after_failure()
    elif not failed:
        try:
            volume.close()
        except (PenstockError, OSError) as error:
            history.line("error", "close", type(error).__name__)
    _say("done")
    os._exit(3 if failed else 0)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
