"""
A workload on the simulated file system, with an oracle that knows what must be there after a crash at any moment.

The oracle follows the promises, not the implementation: what was acknowledged under ``sync=always`` is there, byte for byte, at
its offset; what was in flight is there as a whole or not at all; logs with a weaker mode keep a prefix, and at least
what was durable; offsets are dense; nothing is there that nobody published.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.log.partition_log import PartitionLog

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=8 * 1024,
    frame_bytes=4 * 1024,
    reference_bytes=900,
    checkpoint_bytes=1024 * 1024,
    free_bytes_floor=0,
    reserve_bytes=0,
)
ALWAYS = TopicSettings(segment_bytes=2_000, index_interval_bytes=256, coalesce_below_bytes=800, coalesce_to_bytes=3_000)
OS = TopicSettings(
    sync=SyncMode.OS, segment_bytes=2_500, index_interval_bytes=256, coalesce_below_bytes=800, coalesce_to_bytes=3_000
)

Key = tuple[str, int]


class Anomaly(AssertionError):
    """The store broke a promise; the name is that of reliability.md section 4."""


@dataclass
class LogModel:
    """What one log must and may hold."""

    always: bool
    acked: list[bytes | None] = field(default_factory=list)
    """The values that were acknowledged, by offset."""
    durable: int = 0
    """Offsets below this must survive power loss (all that is acknowledged, where the mode is always)."""
    start: int = 0
    start_asked: int = 0

    @property
    def must_end(self) -> int:
        """The end that power loss may not go below."""
        return len(self.acked) if self.always else self.durable


@dataclass
class Oracle:
    """The models of all logs, and what is in flight."""

    logs: dict[Key, LogModel] = field(default_factory=dict)
    in_flight: dict[Key, list[bytes | None]] = field(default_factory=dict)
    unknown: bool = False
    """After a failed operation: what was in flight then may be there or not, and nothing after it was acknowledged."""

    def check(self, files: SimulatedFileSystem, *, power_lost: bool, reopen: bool = False) -> None:
        """Open the store on *files* and compare. Raises `Anomaly`."""
        try:
            volume = Volume.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False)
        except PenstockError as error:
            raise Anomaly(f"unbootable after {files.origin}: {type(error).__name__}: {error}") from error
        try:
            found = {key: self._check_log(volume, key, power_lost=power_lost) for key in self.logs}
            self._check_atomic(found)
            extra = {(record.name, p) for record in volume.topics for p in range(record.partitions)} - set(self.logs)
            for key in extra:
                if volume.log(*key).committed_end:
                    raise Anomaly(f"phantom: messages in {key}, which nobody made")
        except PenstockError as error:
            raise Anomaly(f"unreadable after {files.origin}: {type(error).__name__}: {error}") from error
        if reopen:
            ends = {key: volume.log(*key).committed_end for key in self.logs}
            again = Volume.open(PATH, settings=SETTINGS, files=files.crash(random.Random(0), keep="nothing"), background=False)
            for key, end in ends.items():
                if again.log(*key).committed_end != end:
                    raise Anomaly(
                        f"resurrected or lost: {key} ended at {end}, after a second crash at {again.log(*key).committed_end}"
                    )

    def _check_log(self, volume: Volume, key: Key, *, power_lost: bool) -> int:
        model = self.logs[key]
        try:
            log = volume.log(*key)
        except PenstockError:
            raise Anomaly(f"lost-topic: {key}") from None
        end = log.committed_end
        if log.log_start not in (model.start, model.start_asked):
            raise Anomaly(f"log start of {key} is {log.log_start}, neither {model.start} nor {model.start_asked}")
        least = model.must_end if power_lost else len(model.acked)
        most = len(model.acked) + len(self.in_flight.get(key, ()))
        if end < least:
            raise Anomaly(f"lost-write: {key} ends at {end}, {least} were acknowledged")
        if end > most:
            raise Anomaly(f"phantom: {key} ends at {end}, {most} were published")
        expected = [*model.acked, *self.in_flight.get(key, ())]
        at = log.log_start
        while at < end:
            for batch in log.read(at):
                if batch.first_offset > at:
                    raise Anomaly(f"skipped read: {key} offset {at} is missing")
                for index in range(batch.index_of(at), len(batch)):
                    value = batch.value(index)
                    if (None if value is None else bytes(value)) != expected[at]:
                        raise Anomaly(f"inconsistent-offset: {key} offset {at} holds another value")
                    if batch.offset(index) != at:
                        raise Anomaly(f"reorder: {key} offset {at}")
                    at += 1
        return end

    def _check_atomic(self, found: dict[Key, int]) -> None:
        """Of what was in flight everything is there, or nothing: in each log and over all logs together."""
        seen = set()
        for key, values in self.in_flight.items():
            extra = found[key] - len(self.logs[key].acked)
            if extra > 0 and extra != len(values):
                raise Anomaly(f"partial batch: {key} shows {extra} of {len(values)} messages in flight")
            seen.add(extra == len(values))
        if len(seen) > 1 and all(self.logs[key].always for key in self.in_flight):
            raise Anomaly("partial change: one log shows it and another does not")


class Workload:
    """Runs seeded steps on a volume; after each the oracle knows what was acknowledged."""

    def __init__(self, rng: random.Random, files: SimulatedFileSystem) -> None:
        self.rng = rng
        self.files = files
        self.clock = FakeClock()
        self.oracle = Oracle()
        self.counter = 0
        self.steps_done: dict[str, int] = {}
        self.sequences: dict[Key, int] = {}
        self.volume: Volume | None = None

    def open(self) -> None:
        """Open or reopen the store."""
        self.volume = Volume.open(PATH, settings=SETTINGS, files=self.files, clock=self.clock, background=False)
        for key, model in self.oracle.logs.items():
            model.durable = len(model.acked)  # recovery syncs all that it keeps
            assert self.volume.log(*key).committed_end == len(model.acked)

    def open_what_was_left(self) -> None:
        """Open the store after a crash, and take what is there for what was acknowledged. The oracle has checked it."""
        self.volume = Volume.open(PATH, settings=SETTINGS, files=self.files, clock=self.clock, background=False)
        for key, model in self.oracle.logs.items():
            log = self.volume.log(*key)
            model.acked = [*model.acked, *self.oracle.in_flight.get(key, ())][: log.committed_end]
            model.durable = len(model.acked)
            model.start = model.start_asked = log.log_start
        self.oracle.in_flight = {}

    def create_topics(self) -> None:
        """Three topics: two logs with sync=always, two more in another topic, one with sync=os."""
        for name, partitions, settings in (("a", 2, ALWAYS), ("b", 1, ALWAYS), ("weak", 1, OS)):
            self._create(name, partitions, settings)

    def _create(self, name: str, partitions: int, settings: TopicSettings) -> None:
        assert self.volume is not None
        self.volume.create_topic(name, partitions, settings)
        for partition in range(partitions):
            self.oracle.logs[name, partition] = LogModel(always=settings.sync is SyncMode.ALWAYS)

    def run(self, steps: int) -> None:
        """Run *steps* random steps."""
        choices: list[tuple[int, Callable[[], None]]] = [
            (10, self.append_one),
            (4, self.append_many),
            (3, self.append_large),
            (3, self.append_to_many),
            (6, self.append_weak),
            (2, self.append_weak_strictly),
            (3, self.checkpoint),
            (2, self.retain),
            (2, self.seal),
            (2, self.coalesce),
            (3, self.let_go),
            (1, self.close_and_open),
        ]
        weights = [weight for weight, _ in choices]
        for _ in range(steps):
            step = self.rng.choices([one for _, one in choices], weights)[0]
            self.clock.advance(self.rng.choice([0.001, 0.5, 30]))
            step()
            self.steps_done[step.__name__] = self.steps_done.get(step.__name__, 0) + 1

    # -- steps ------------------------------------------------------------------------------------------------------

    def _values(self, count: int, size: int = 10) -> list[bytes | None]:
        values: list[bytes | None] = []
        for _ in range(count):
            self.counter += 1
            value = b"%d." % self.counter
            values.append(value + b"v" * max(0, size - len(value)))
        if count > 1:
            values[1] = None
        return values

    def _log(self, key: Key) -> PartitionLog:
        assert self.volume is not None
        return self.volume.log(*key)

    def _publish(self, keys: list[Key], values: list[list[bytes | None]], *, sync: SyncMode | None = None) -> None:
        assert self.volume is not None
        oracle = self.oracle
        oracle.in_flight = dict(zip(keys, values, strict=True))
        batches = []
        for key, one in zip(keys, values, strict=True):
            self.sequences[key] = self.sequences.get(key, 0) + 1
            producer = Producer(7, 1, self.sequences[key]) if self.rng.random() < 0.3 else None
            batches.append(encode_batch(one, producer=producer))
        expected = [len(oracle.logs[key].acked) for key in keys]
        if len(keys) == 1:
            first = [self.volume.append(self._log(keys[0]), batches[0], sync=sync)]
        else:
            ticket = self.volume.submit_changes(
                [Append(self._log(key), batch) for key, batch in zip(keys, batches, strict=True)]
            )
            ticket.wait()
            first = ticket.first_offsets
        if first != expected:
            raise Anomaly(f"inconsistent-offset: {keys} were given {first}, {expected} were next")
        for key, one in oracle.in_flight.items():
            model = oracle.logs[key]
            model.acked.extend(one)
            if sync is SyncMode.ALWAYS or len(keys) > 1:
                model.durable = len(model.acked)
        oracle.in_flight = {}

    def _always_keys(self) -> list[Key]:
        return [key for key, model in self.oracle.logs.items() if model.always]

    def append_one(self) -> None:
        """One message."""
        self._publish([self.rng.choice(self._always_keys())], [self._values(1)])

    def append_many(self) -> None:
        """A batch of several messages, one of them a tombstone."""
        self._publish([self.rng.choice(self._always_keys())], [self._values(self.rng.randint(2, 6), 30)])

    def append_large(self) -> None:
        """A batch that travels by reference."""
        self._publish([self.rng.choice(self._always_keys())], [self._values(1, self.rng.choice([1_000, 2_600]))])

    def append_to_many(self) -> None:
        """One change to several logs, sometimes with a large part."""
        keys = self.rng.sample(self._always_keys(), 2)
        self._publish(keys, [self._values(2), self._values(1, self.rng.choice([10, 1_000]))])

    def append_weak(self) -> None:
        """A message to a log with sync=os."""
        self._publish([("weak", 0)], [self._values(self.rng.randint(1, 3), 40)])

    def append_weak_strictly(self) -> None:
        """A message to a log with sync=os that must be durable all the same."""
        self._publish([("weak", 0)], [self._values(1)], sync=SyncMode.ALWAYS)

    def checkpoint(self) -> None:
        """Sync the logs and free the journal."""
        assert self.volume is not None
        self.volume.checkpoint()
        for model in self.oracle.logs.values():
            model.durable = len(model.acked)

    def retain(self) -> None:
        """Remove old segments."""
        assert self.volume is not None
        key = self.rng.choice(list(self.oracle.logs))
        model, log = self.oracle.logs[key], self._log(key)
        model.start_asked = log.retention_start(
            before_time_us=None, bytes_max=None, messages_max=6, keep_from=self.volume.keep_from(log)
        )
        self.volume.retain(log, messages_max=6)
        model.start = model.start_asked = log.log_start

    def seal(self) -> None:
        """Seal an active segment, as housekeeping does in a topic to which nothing is published."""
        assert self.volume is not None
        log = self._log(self.rng.choice(list(self.oracle.logs)))
        self.volume.roll(log, lambda: log.is_overdue(0, self.clock.now_us() + 1))

    def coalesce(self) -> None:
        """Merge small batches of sealed segments."""
        assert self.volume is not None
        merged = self.volume.coalesce()
        self.steps_done["merged segments"] = self.steps_done.get("merged segments", 0) + merged

    def let_go(self) -> None:
        """Close all files that may be closed; the next use opens them again."""
        assert self.volume is not None
        self.volume.open_files.descriptors_max = 0
        self.volume.bound_descriptors()

    def close_and_open(self) -> None:
        """An orderly restart."""
        assert self.volume is not None
        self.volume.close()
        self.open()
