"""
Compaction, vacuum, retention and deletion on the simulated file system, stopped before every operation.

Each case prepares a store, then does one of them while at every operation several disks are taken: nothing un-synced survived, the process
was killed, random mixtures. Each disk is opened and compared with what was published; then the work is done again there and must end in
what a simple reference says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.format.batch import encode_batch
from penstock.log.filtering import EVERYTHING, Protection
from penstock.offset_set import OffsetSet
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.housekeeping import Rules
from penstock.volume.reader import VolumeReader
from penstock.volume.verification import verify
from penstock.volume.volume import Volume
from tests.crash.explorer import crash, crash_recovery
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.log.log_reader import LogReader
    from penstock.log.partition_log import PartitionLog

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=32 * 1024, frame_bytes=8 * 1024, reference_bytes=2_000, free_bytes_floor=0, reserve_bytes=0
)
GRACE_S = 60.0
TTL_S = 30.0
TOPIC = TopicSettings(
    segment_bytes=1_500, index_interval_bytes=256, coalesce_below_bytes=600, coalesce_to_bytes=2_000, compaction=True,
    tombstone_grace_ms=int(GRACE_S * 1000),
)  # fmt: skip
WEAK = TopicSettings(
    sync=SyncMode.OS, segment_bytes=1_500, index_interval_bytes=256, compaction=True, tombstone_grace_ms=60_000
)

Stored = dict[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset."""


def content(log: PartitionLog | LogReader) -> Stored:
    """What can be read, from the start of the log on. Raises `Anomaly` if offsets do not rise."""
    found: Stored = {}
    at = log.log_start
    last = -1
    while at < log.committed_end:
        batches = log.read(at)
        if not batches:
            break
        for batch in batches:
            for index in range(batch.index_of(at), len(batch)):
                key, value, offset = batch.key(index), batch.value(index), batch.offset(index)
                if offset <= last:
                    raise Anomaly(f"reorder: offset {offset} behind {last}")
                last = offset
                found[offset] = (None if key is None else bytes(key), None if value is None else bytes(value))
            at = batch.end_offset
    return found


def latest(stored: Stored) -> dict[bytes, tuple[int, bytes]]:
    """Of each key that is not deleted its last value and where that lies."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for offset, (key, value) in sorted(stored.items()):
        if key is not None and value is not None:
            found[key] = (offset, value)
        elif key is not None:
            found.pop(key, None)
    return found


def tombstones(stored: Stored) -> dict[bytes, int]:
    """Where the deletion of each key lies whose last message that is."""
    last = {key: (offset, value) for offset, (key, value) in sorted(stored.items()) if key is not None}
    return {key: offset for key, (offset, value) in last.items() if value is None}


def compacted(stored: Stored, limit: int, *, tombstones: bool = True) -> Stored:
    """The simple reference: what compaction of all offsets below *limit* leaves."""
    last = {key: offset for offset, (key, _) in sorted(stored.items()) if key is not None and offset < limit}
    return {
        offset: (key, value)
        for offset, (key, value) in stored.items()
        if offset >= limit or key is None or (last[key] == offset and (tombstones or value is not None))
    }


@dataclass
class Case:
    """A store with one topic whose messages are known."""

    settings: TopicSettings = TOPIC
    seed: int = 1
    messages: int = 40
    share: float = 1.0
    """Before how many of the operations disks are taken."""
    files: SimulatedFileSystem = field(default_factory=SimulatedFileSystem)
    clock: FakeClock = field(default_factory=FakeClock)
    published: Stored = field(default_factory=dict)
    graces_over: bool = False
    """Whether tombstones may go."""
    mortal: set[int] = field(default_factory=set)
    """Which of them expire after `TTL_S`."""
    mortals: float = 0.0
    """How many of those to come do."""
    checked: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.volume = self.open(self.files)
        self.volume.create_topic("t", 1, self.settings)
        self.log = self.volume.log("t")
        self.publish(self.messages)
        self.settle()
        self.limit = self.log.segment_firsts[-1]
        """Where the active segment of both checkpoints begins."""

    def open(self, files: SimulatedFileSystem) -> Volume:
        """Open the store on *files*."""
        return Volume.open(PATH, settings=SETTINGS, files=files, clock=self.clock, background=False)

    def publish(self, messages: int) -> None:
        """Batches of few messages, with keys, without, and with tombstones."""
        stop = len(self.published) + messages
        while len(self.published) < stop:
            count = self.rng.randint(1, 3)
            keys = [self.rng.choice([None, b"", b"a", b"b", b"long" * 10]) for _ in range(count)]
            values = [self.rng.choice([None, b"%d" % self.rng.randrange(1000) + b"." * 40]) for _ in range(count)]
            ttls = [round(TTL_S * 1e6) if self.rng.random() < self.mortals else None for _ in range(count)]
            has_ttls = any(ttl is not None for ttl in ttls)
            first = self.volume.append(
                self.log, encode_batch(values, keys=keys, expires_us=ttls if has_ttls else None, expires_relative=has_ttls)
            )
            self.mortal.update([first + at for at, ttl in enumerate(ttls) if ttl is not None])
            self.published.update({first + at: pair for at, pair in enumerate(zip(keys, values, strict=True))})
            self.clock.advance(0.01)

    def settle(self) -> None:
        """Let both checkpoints point to the active segment."""
        self.volume.checkpoint()
        self.volume.checkpoint()

    def compact(self, volume: Volume) -> None:
        """Compact the log of *volume*."""
        volume.housekeeping.compact(volume.log("t"), Protection(), self.clock.now_us())

    def explore(self, act: Callable[[Volume], None], check: Callable[[Volume], None], *, states: int = 5) -> int:
        """Do *act* on the store, and *check* what every crash before each of its operations leaves; returns how many."""

        def at_operation(operation: object) -> None:
            if self.rng.random() >= self.share:
                return
            for index in range(states):
                state = crash(self.files, self.rng, index)
                origin = f"before {operation}, state {index} ({state.origin})"
                if self.rng.random() < 0.1:
                    state, _ = crash_recovery(state, self.rng, 40, self.open)
                try:
                    volume = self.open(state)
                    check(volume)
                    volume.close()
                    if self.rng.random() < 0.2:
                        found = verify(PATH, files=state)
                        if any(finding.is_damage for finding in found.findings):
                            raise Anomaly(f"verify finds damage: {found.findings}")
                except Anomaly as anomaly:
                    raise Anomaly(f"{origin}: {anomaly}") from anomaly
                except PenstockError as error:
                    raise Anomaly(f"{origin}: {type(error).__name__}: {error}") from error
                self.checked += 1

        self.files.on_operation = at_operation
        try:
            act(self.volume)
        finally:
            self.files.on_operation = None
        check(self.volume)
        return self.checked

    def check_compacted(self, volume: Volume, limit: int) -> None:
        """Old or new, but nothing else: the latest of each key, all without a key, all that is not sealed; then compact to the end."""
        log = volume.log("t")
        stored = content(log)
        self.check_subset(stored)
        known = {offset: pair for offset, pair in self.published.items() if offset < log.committed_end}
        if latest(stored) != latest(known):
            raise Anomaly("the latest messages of the keys are not the same")
        if not self.graces_over and tombstones(stored) != tombstones(known):
            raise Anomaly("tombstones are gone within their grace")
        for offset, (key, _) in self.published.items():
            if (key is None or offset >= limit) and offset not in stored and offset < log.committed_end:
                raise Anomaly(f"lost: offset {offset}, which compaction must not touch")

    def check_subset(self, stored: Stored) -> None:
        """Nothing is there that was not published so."""
        for offset, pair in stored.items():
            if self.published.get(offset) != pair:
                raise Anomaly(f"inconsistent-offset: {offset} holds another message")


def compaction_case(seed: int, share: float = 1.0, *, settings: TopicSettings = TOPIC) -> int:
    """Two sweeps, the second after the tombstones' grace, each stopped everywhere; returns how many disks were looked at."""
    case = Case(settings=settings, seed=seed, share=share)
    # Not settled: of a log with a weak mode a crash may take these.
    case.publish(8)

    def check(volume: Volume) -> None:
        case.check_compacted(volume, case.limit)
        if volume is not case.volume and case.rng.random() < 0.3:
            volume.checkpoint()
            volume.checkpoint()
            case.compact(volume)
            case.check_compacted(volume, volume.log("t").segment_firsts[-1])

    case.explore(case.compact, check, states=4)
    if content(case.log) != compacted(case.published, case.limit):
        raise Anomaly("compaction left something else than the reference")
    # Just before the grace is over: nothing goes, and after it all.
    case.clock.advance(GRACE_S - 1)
    case.compact(case.volume)
    check(case.volume)
    case.clock.advance(2)
    case.graces_over = True
    case.explore(case.compact, check, states=6)
    if content(case.log) != compacted(case.published, case.limit, tombstones=False):
        raise Anomaly("tombstones stayed, or more than they went")
    return case.checked


def vacuum_case(seed: int, share: float = 1.0) -> int:
    """A few messages are not finished; the rest goes, and they never do."""
    case = Case(seed=seed, share=share)
    unfinished = OffsetSet([1, case.limit // 2, case.limit - 2])
    floor = case.limit

    def vacuum(volume: Volume) -> None:
        volume.checkpoint()
        volume.checkpoint()
        log = volume.log("t")
        log.floors["groups"] = 1
        volume.housekeeping.vacuum(log, Rules(messages_max=0), Protection(floor, unfinished))

    def check(volume: Volume) -> None:
        stored = content(volume.log("t"))
        case.check_subset(stored)
        for offset in case.published:
            if (offset in unfinished or offset >= floor) and offset not in stored:
                raise Anomaly(f"lost: offset {offset} is not finished")
        if volume is not case.volume and case.rng.random() < 0.3:
            vacuum(volume)
            check_done(volume)

    def check_done(volume: Volume) -> None:
        if set(content(volume.log("t"))) != {one for one in case.published if one in unfinished or one >= floor}:
            raise Anomaly("vacuum left finished messages, or took others")

    case.explore(vacuum, check)
    check_done(case.volume)
    return case.checked


def retention_case(seed: int, share: float = 1.0) -> int:
    """Segments go from the front; what is below the start is never served again, though its file may come back."""
    case = Case(seed=seed, share=share)
    starts = {0}

    def retain(volume: Volume) -> None:
        volume.checkpoint()
        volume.checkpoint()
        volume.housekeeping.retain(volume.log("t"), Rules(messages_max=20))
        starts.add(volume.log("t").log_start)

    def check(volume: Volume) -> None:
        log = volume.log("t")
        stored = content(log)
        if log.log_start not in starts | {wanted}:
            raise Anomaly(f"the log begins at {log.log_start}")
        if stored != {offset: pair for offset, pair in case.published.items() if offset >= log.log_start}:
            raise Anomaly(f"with a start at {log.log_start} offsets {sorted(stored)} are served")
        check_below_start(log, stored)
        check_below_start(VolumeReader.open(PATH, files=volume._files).log("t"), stored)
        left = volume_names(volume)
        if volume is not case.volume and left != log.segment_firsts:
            raise Anomaly(f"the log has the segments {log.segment_firsts}, and the files {left} are there")

    wanted = case.log.retention_start(
        before_time_us=None, bytes_max=None, messages_max=20, keep_from=case.volume.keep_from(case.log)
    )  # fmt: skip
    case.explore(retain, check, states=6)
    if not case.log.log_start == wanted > 0:
        raise Anomaly("retention did nothing")
    return case.checked


def sealing_case(seed: int, share: float = 1.0, *, settings: TopicSettings = TOPIC) -> int:
    """
    The active segment of a topic to which nothing is published is sealed, then all of the topic goes; and what comes later is kept.

    Of a log with a weak mode a crash may take the end of what was published last, and nothing from the middle.
    """
    case = Case(settings=settings, seed=seed, share=share)
    durable = case.log.committed_end
    case.publish(6)
    end = case.log.committed_end

    def seal_and_retain(volume: Volume) -> None:
        log = volume.log("t")
        first = log.committed_end
        if not volume.roll(log, lambda: log.is_overdue(0, EVERYTHING)):
            raise Anomaly("a segment with messages was not sealed")
        if log.segment_firsts[-1] != first or volume.roll(log, lambda: log.is_overdue(0, EVERYTHING)):
            raise Anomaly("a segment without messages was sealed")
        volume.checkpoint()
        volume.checkpoint()
        volume.housekeeping.retain(log, Rules(messages_max=0))

    def check(volume: Volume) -> None:
        log = volume.log("t")
        stored = content(log)
        case.check_subset(stored)
        last = log.committed_end
        if last < (end if log.always else durable) or last > end:
            raise Anomaly(f"the log ends at {last}, and {end} were published")
        if log.log_start not in (0, end) or sorted(stored) != list(range(log.log_start, last)):
            raise Anomaly(f"with a start at {log.log_start} offsets {sorted(stored)} are served")
        if stored:
            check_below_start(log, stored)
        reader = VolumeReader.open(PATH, files=volume._files).log("t")
        if (reader.log_start, reader.committed_end) != (log.log_start, last):
            raise Anomaly(f"a reader sees offsets from {reader.log_start} to {reader.committed_end}")
        if content(reader) != stored:
            raise Anomaly("a reader finds something else than the owner")
        if volume is case.volume:
            return
        if volume_names(volume) != log.segment_firsts:
            raise Anomaly(f"the log has the segments {log.segment_firsts}, and the files {volume_names(volume)} are there")
        if case.rng.random() < 0.5 and last > log.segment_firsts[-1]:
            seal_and_retain(volume)
            if content(log) or log.log_start != last:
                raise Anomaly("messages stayed")
        first = volume.append(log, encode_batch([b"later"]))
        if first != last or content(log).get(first) != (None, b"later"):
            raise Anomaly(f"what is published later is not at {last}")

    case.explore(seal_and_retain, check, states=6)
    if (case.log.log_start, case.log.committed_end, len(case.log.segment_firsts)) != (end, end, 1):
        raise Anomaly("messages stayed")
    return case.checked


def expiry_case(seed: int, share: float = 1.0, *, settings: TopicSettings = TOPIC) -> int:
    """Most messages expire, and go, also those of the active segment; the others, and what is with a consumer, never do."""
    case = Case(settings=settings, seed=seed, share=share, mortals=0.9)
    durable = case.log.committed_end
    case.publish(8)
    end = case.log.committed_end
    in_hand = OffsetSet([min(case.mortal), max(case.mortal)])
    living = set(case.published) - case.mortal | set(in_hand)
    case.clock.advance(TTL_S - 1)
    over_us = case.clock.now_us() + 2_000_000

    def expire(volume: Volume) -> None:
        log, now_us = volume.log("t"), case.clock.now_us()
        protection = Protection(unfinished=in_hand)
        volume.housekeeping.seal_expired(log, protection, now_us, asked=True)
        volume.checkpoint()
        volume.checkpoint()
        volume.housekeeping.expire(log, protection, OffsetSet(), now_us, asked=True)

    def check(volume: Volume) -> None:
        log = volume.log("t")
        stored, last = content(log), log.committed_end
        case.check_subset(stored)
        if last < (end if log.always else durable) or last > end or log.log_start:
            raise Anomaly(f"the log goes from {log.log_start} to {last}, and {end} were published")
        lost = sorted(one for one in living if one < last and one not in stored)
        if lost:
            raise Anomaly(f"lost: offsets {lost} live")
        if content(VolumeReader.open(PATH, files=volume._files).log("t")) != stored:
            raise Anomaly("a reader finds something else than the owner")
        if volume is not case.volume and case.rng.random() < 0.3:
            expire(volume)
            check_done(volume)

    def check_done(volume: Volume) -> None:
        log = volume.log("t")
        stored = content(log)
        if case.clock.now_us() < over_us:
            return
        for first, following in pairwise([*log.segment_firsts, log.committed_end]):
            here = [one for one in stored if first <= one < following]
            if len([one for one in here if one not in living]) * 2 >= max(1, len(here)):
                raise Anomaly(f"of the segment at {first}, with offsets {here}, half has expired")

    case.explore(expire, check, states=3)
    if set(content(case.log)) != set(case.published):
        raise Anomaly("messages went before they expired")
    case.clock.advance(2)
    case.explore(expire, check, states=4)
    check_done(case.volume)
    if len(content(case.log)) > len(case.published) / 2:
        raise Anomaly("most has expired, and stayed")
    return case.checked


def check_below_start(log: PartitionLog | LogReader, stored: Stored) -> None:
    """I38: who reads there is told where the log begins, and gets neither nothing nor something else."""
    for offset in {0, log.log_start // 2, log.log_start - 1}:
        if not 0 <= offset < log.log_start:
            continue
        try:
            batches = log.read(offset)
        except OffsetOutOfRange as told:
            if told.first != min(stored):
                raise Anomaly(f"a reader at {offset} is told that the log begins at {told.first}") from None
        else:
            raise Anomaly(f"a reader at {offset}, below the start at {log.log_start}, gets {batches}")


def volume_names(volume: Volume) -> list[int]:
    """The first offsets that the files of the log's folder name."""
    files = volume._files
    return [int(name[:20]) for name in sorted(files.list_directory(f"{PATH}/topics/t/0")) if name.endswith(".log")]


def deletion_case(seed: int, share: float = 1.0) -> int:
    """The topic is there as a whole or not at all; one that is made afterwards has nothing of it."""
    case = Case(seed=seed, messages=20, share=share)
    case.volume.create_topic("other", 1, TOPIC)
    case.volume.append(case.volume.log("other"), encode_batch([b"stays"]))
    old_id = case.log.identity.topic_id

    def act(volume: Volume) -> None:
        volume.delete_topic("t")
        volume.create_topic("t", 2, TOPIC)
        volume.append(volume.log("t", 1), encode_batch([b"new"]))

    def check(volume: Volume) -> None:
        if content(volume.log("other")) != {0: (None, b"stays")}:
            raise Anomaly("another topic lost its message")
        records = {record.name: record for record in volume.topics}
        if "t" in records and records["t"].topic_id == old_id:
            if content(volume.log("t")) != case.published:
                raise Anomaly("the topic is there in part")
        elif "t" in records and (content(volume.log("t", 0)) or content(volume.log("t", 1)) not in ({}, {0: (None, b"new")})):
            raise Anomaly("the new topic has messages of the old one")
        if volume is not case.volume:
            if "t" in records:
                volume.delete_topic("t")
            volume.create_topic("t", 3, TOPIC)
            if any(volume.log("t", partition).committed_end for partition in range(3)):
                raise Anomaly("a new topic is not empty")
            if set(volume._files.list_directory(f"{PATH}/topics")) != {"t", "other"}:
                raise Anomaly("files of deleted topics are left")

    case.explore(act, check, states=6)
    return case.checked
