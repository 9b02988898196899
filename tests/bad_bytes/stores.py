"""Small stores to be damaged, and the judge of what a damaged one may do."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import Corrupt
from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import FIXED_BYTES, Producer
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.log.partition_log import PartitionLog

STORE = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=8192, frame_bytes=2048, reference_bytes=200, checkpoint_bytes=1024, free_bytes_floor=0, reserve_bytes=0
)
TOPICS = {
    "always": TopicSettings(sync=SyncMode.ALWAYS, segment_bytes=1024, index_interval_bytes=256),
    "os": TopicSettings(sync=SyncMode.OS, segment_bytes=1024, index_interval_bytes=256),
}


class Stored(NamedTuple):
    """A batch as a reader sees it; `content` is all of it but the stamps: extensions, directory and columns."""

    first_offset: int
    end_offset: int
    append_time_us: int
    content: bytes


def stored(batch: Batch) -> Stored:
    return Stored(batch.first_offset, batch.end_offset, batch.header.append_time_us, bytes(batch.buffer[FIXED_BYTES:]))


@dataclass(frozen=True)
class Store:
    """The files of a store, what must be read from each topic, and other states that its files were in before."""

    files: SimulatedFileSystem
    batches: dict[str, list[Stored]]
    older: dict[str, list[bytes]]

    def with_file(self, path: str, content: bytes) -> SimulatedFileSystem:
        """The same files, and one of them with other content."""
        files = self.files.kill()
        files.replace(path, content)
        return files

    def without_file(self, path: str) -> SimulatedFileSystem:
        """The same files without one of them."""
        files = self.files.kill()
        files.unlink(path)
        return files


def open_volume(files: SimulatedFileSystem, clock: FakeClock | None = None) -> Volume:
    """Open the store as its owner, without threads: nothing happens by itself."""
    return Volume.open(STORE, settings=SETTINGS, files=files, clock=clock or FakeClock(), background=False)


def read_all(log: PartitionLog) -> list[Stored]:
    """Every committed batch, in one sweep from the start."""
    found: list[Stored] = []
    offset = log.log_start
    while part := log.read(offset):
        found += map(stored, part)
        offset = part[-1].end_offset
    return found


def _batches() -> list[EncodedBatch]:
    """What each topic gets: the second and the fourth are so long that the journal only refers to them."""
    return [
        encode_single(b"first"),
        encode_batch([b"", None, b"3"], keys=[b"k", b"", None], headers=[[("h", b"1"), ("h", b"2")], None, []]),
        encode_batch([b"by a producer"], producer=Producer(7, 1, 5)),
        encode_single(b"x" * 64),
        encode_single(b"last"),
    ]


class _Builder:
    """Writes a store, and keeps a copy of each state that each file was in."""

    def __init__(self) -> None:
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.older: dict[str, list[bytes]] = {}
        self.volume = open_volume(self.files, self.clock)
        for name, settings in TOPICS.items():
            self.volume.create_topic(name, settings=settings)
        self._remember()

    def append(self, *numbers: int) -> None:
        for number in numbers:
            for log in self.volume.logs:
                self.clock.advance(1)
                self.volume.append(log, _batches()[number])
                self._remember()

    def checkpoint(self) -> None:
        self.volume.checkpoint()
        self._remember()

    def close(self) -> None:
        self.volume.close()
        self._remember()

    def reopen(self) -> None:
        self.close()
        self.volume = open_volume(self.files, self.clock)

    def _remember(self) -> None:
        for path, content in self.files.files().items():
            copies = self.older.setdefault(path, [])
            if content not in copies:
                copies.append(content)

    def store(self, files: SimulatedFileSystem) -> Store:
        """The store as *files* have it; all that is in them is what must be read, whatever is damaged later."""
        batches = {log.identity.topic: read_all(log) for log in open_volume(files.kill()).logs}
        present = files.files()
        older = {
            path: [copy for copy in copies if copy != present[path]] for path, copies in self.older.items() if path in present
        }
        return Store(files, batches, older)


@lru_cache(maxsize=1)
def closed_store() -> Store:
    """Closed in order: two segments a topic, one of them sealed, and the index caches of the others."""
    builder = _Builder()
    builder.append(0, 1)
    builder.checkpoint()
    builder.append(2, 3, 4)
    builder.close()
    store = builder.store(builder.files.kill())
    assert [len(batches) for batches in store.batches.values()] == [5, 5]
    return store


@lru_cache(maxsize=1)
def killed_store() -> Store:
    """The process was killed: a part lies below the last checkpoint and a part above, and its last frame is a reference."""
    builder = _Builder()
    builder.append(0, 1)
    builder.checkpoint()
    builder.append(2, 4, 3)
    store = builder.store(builder.files.kill())
    assert [len(batches) for batches in store.batches.values()] == [5, 5]
    return store


@lru_cache(maxsize=1)
def reopened_store() -> Store:
    """Closed in order, opened again, written and killed: of the two checkpoints the older one says that the store is clean."""
    builder = _Builder()
    builder.append(0, 1)
    builder.reopen()
    builder.append(2, 3, 4)
    store = builder.store(builder.files.kill())
    assert [len(batches) for batches in store.batches.values()] == [5, 5]
    return store


@lru_cache(maxsize=1)
def powerless_store() -> Store:
    """Like reopened, but after a power cut that left only what was synced: the end of the always topic is in the journal alone."""
    builder = _Builder()
    builder.append(0, 1)
    builder.reopen()
    builder.append(2, 4)
    store = builder.store(builder.files.crash(Random(0), keep="nothing"))
    assert [len(batches) for batches in store.batches.values()] == [4, 2]
    return store


@lru_cache(maxsize=1)
def referring_store() -> Store:
    """Like powerless, but the end of the always topic is in its segment, and the journal refers to it."""
    builder = _Builder()
    builder.append(0, 1)
    builder.reopen()
    builder.append(3)
    store = builder.store(builder.files.crash(Random(0), keep="nothing"))
    assert [len(batches) for batches in store.batches.values()] == [3, 2]
    return store


STORES = {
    "closed": closed_store,
    "killed": killed_store,
    "reopened": reopened_store,
    "powerless": powerless_store,
    "referring": referring_store,
}


class SilentLoss(AssertionError):
    """Committed messages are missing or changed, and no error says so."""


def examine(files: SimulatedFileSystem, store: Store, damaged_path: str = "") -> str:
    """
    Open a damaged store and read all of it: "whole", or the names of the typed errors that came.

    Where the damaged file belongs to a topic, that topic is read in one sweep, and once more by a reader that asks for one batch
    at a time; of the other one only the end is looked at, to save time. Else all are read in one sweep.

    Raises:
        SilentLoss: something was read that was not written, or less than was committed without an error.
        Exception: any error but `Corrupt` and those below it; none of them is allowed.
    """
    try:
        volume = open_volume(files)
    except Corrupt as error:
        return type(error).__name__
    topics = {record.name for record in volume.topics}
    if topics != set(store.batches):
        raise SilentLoss(f"the topics are {topics}")
    outcomes = set()
    for topic, expected in store.batches.items():
        log = volume.log(topic)
        if (log.log_start, log.committed_end) != (0, expected[-1].end_offset):
            raise SilentLoss(f"{log} should end at {expected[-1].end_offset}")
        if f"/{topic}/" in damaged_path:
            outcomes |= {_seek(log, batch, batch.first_offset) for batch in expected}
        elif "/topics/" in damaged_path:
            continue
        outcomes.add(_sweep(log, expected))
    volume._release()
    return ", ".join(sorted(outcomes - {"whole"})) or "whole"


def _sweep(log: PartitionLog, expected: list[Stored]) -> str:
    try:
        found = read_all(log)
    except Corrupt as error:
        return type(error).__name__
    if found != expected:
        raise SilentLoss(f"{log.identity.topic}: {found} instead of {expected}")
    return "whole"


def _seek(log: PartitionLog, expected: Stored, offset: int) -> str:
    try:
        found = [stored(batch) for batch in log.read(offset, 1)]
    except Corrupt as error:
        return type(error).__name__
    if found != [expected]:
        raise SilentLoss(f"{log.identity.topic}: offset {offset} gave {found} instead of {expected}")
    return "whole"


class Fault(NamedTuple):
    """One damaged store."""

    name: str
    path: str
    files: SimulatedFileSystem


def examine_all(store: Store, faults: Iterable[Fault], allows: Callable[[Fault, str], bool] | None = None) -> Counter[str]:
    """
    Examine one damaged store after the other and count the outcomes.

    Fails at the end, with the first of those that did what none may do. *allows* says which outcomes are right, a loss being
    the outcome "SilentLoss"; without it all are but that one.
    """
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    for fault in faults:
        try:
            outcome, details = examine(fault.files, store, fault.path), ""
        except SilentLoss as error:
            outcome, details = "SilentLoss", str(error)
        except Exception:
            problems.append(f"{fault.name}: {traceback.format_exc(limit=-4)}")
            continue
        outcomes[outcome] += 1
        if not (outcome != "SilentLoss" if allows is None else allows(fault, outcome)):
            problems.append(f"{fault.name}: {outcome} {details}")
    assert not problems, f"{len(problems)} faults, of which the first are:\n" + "\n".join(problems[:10])
    return outcomes
