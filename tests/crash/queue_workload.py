"""
A workload on a whole store, with an oracle that knows what must be there after a crash at any moment.

Like `workload.py`, one floor higher: transactions over topics and groups, two-phase commits, dead letters, seeks, deduplication keys.
Each of them is a *change*: messages for logs, messages that groups finish, cursors that move, a number that is committed. While it is
under way the oracle holds it in `flight`, and after a crash all of it is there or nothing of it. Acks that nobody waited for are
*volatile*: of those a crash may keep any number, from the first one on. A message that was in somebody's hands may have failed by it,
once; if that was once too often it is *doomed*, and becomes a dead letter when its group is asked for messages.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, StageNotFound, TransactionFenced
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.producers import TRANSACTIONS_KEPT
from penstock.topics.stages import StageLimits
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=16 * 1024,
    frame_bytes=8 * 1024,
    reference_bytes=900,
    checkpoint_bytes=1024 * 1024,
    free_bytes_floor=0,
    reserve_bytes=0,
)
TOPIC: dict[str, Any] = {
    "segment_bytes": 2_500, "index_interval_bytes": 256, "coalesce_below_bytes": 800, "coalesce_to_bytes": 3_000,
    "dedup_window": 600_000,
}  # fmt: skip
TOPICS = {"in": 2, "out": 1, "side": 2}
GROUPS = {"shared": False, "ordered": True}
DEAD = ("in.dlq", 0)
PRODUCER = "job"
MAX_DELIVERIES = 3
JOINED_BYTES = 1_000
"""Small batches of a stage are joined to such."""

Key = tuple[str, int]
Place = tuple[int, int]


@dataclass
class GroupState:
    """What a group of ``in`` has durably, and what may be lost."""

    base: list[int] = field(default_factory=lambda: [0, 0])
    generation: list[int] = field(default_factory=lambda: [0, 0])
    done: set[Place] = field(default_factory=set)
    volatile: list[Place] = field(default_factory=list)
    """Acked by nobody who waited, in order."""
    failures: dict[Place, int] = field(default_factory=dict)
    durable_failures: dict[Place, int] = field(default_factory=dict)
    doomed: set[Place] = field(default_factory=set)
    """Failed too often, by a crash, and not dead letters yet."""

    def is_done(self, place: Place) -> bool:
        """Whether that is durable."""
        return place[1] < self.base[place[0]] or place in self.done

    def finish(self, place: Place) -> None:
        """Durably."""
        self.done.add(place)
        self.failures.pop(place, None)
        self.durable_failures.pop(place, None)
        self.doomed.discard(place)

    def seek(self, partition: int, offset: int) -> None:
        """Durably."""
        self.base[partition] = offset
        self.generation[partition] += 1
        self.done = {place for place in self.done if place[0] != partition}
        self.volatile = [place for place in self.volatile if place[0] != partition]
        self.doomed = {place for place in self.doomed if place[0] != partition}
        for table in (self.failures, self.durable_failures):
            for place in [one for one in table if one[0] == partition]:
                del table[place]


@dataclass
class Change:
    """What one call does, all of it or nothing."""

    appends: dict[Key, list[bytes]] = field(default_factory=dict)
    finished: list[tuple[str, Place]] = field(default_factory=list)
    seeks: dict[tuple[str, int], int] = field(default_factory=dict)
    box: list[int] = field(default_factory=list)
    """Dead letters that are taken out."""
    number: int | None = None
    messages: int = 0
    stages: tuple[str, ...] = ()
    dedup_key: str = ""
    moves: dict[bytes, tuple[str, Place]] = field(default_factory=dict)
    """Dead letters of doomed messages: any of them, each with its message or not at all."""

    def as_found(self, letters: list[bytes]) -> Change:
        """The same, if *letters* are what there is of `moves`. Raises `Anomaly`."""
        if not self.moves:
            return self
        if len(set(letters)) < len(letters) or not self.moves.keys() >= set(letters):
            raise Anomaly(f"phantom: the dead letters {letters}, of which only {list(self.moves)} were due")
        return Change({DEAD: letters} if letters else {}, [self.moves[letter] for letter in letters])


@dataclass
class Oracle:
    """What must be there, and what is under way."""

    logs: dict[Key, list[bytes]] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=lambda: {name: GroupState() for name in GROUPS})
    box: set[int] = field(default_factory=set)
    results: dict[int, int] = field(default_factory=dict)
    stages: dict[str, tuple[int, list[tuple[Key, bytes]]]] = field(default_factory=dict)
    """When each was begun, and its messages."""
    committed_us: int = 0
    """When the last number was committed: the next commit removes what was staged before that."""
    keys: dict[str, Place] = field(default_factory=dict)
    flight: Change = field(default_factory=Change)
    clock: FakeClock = field(default_factory=FakeClock)
    drained: int = 0

    # -- landing ----------------------------------------------------------------------------------------------------

    def land(self) -> None:
        """The change that was under way succeeded."""
        change, self.flight = self.flight, Change()
        for key, values in change.appends.items():
            if key == DEAD:
                self.box |= set(range(len(self.logs[DEAD]), len(self.logs[DEAD]) + len(values)))
            self.logs[key] += values
        for name, place in change.finished:
            self.groups[name].finish(place)
        for (name, partition), offset in change.seeks.items():
            self.groups[name].seek(partition, offset)
        self.box -= set(change.box)
        if change.number is not None:
            # One less than are kept: another one may be under way.
            self.results[change.number] = change.messages
            self.results = {one: self.results[one] for one in sorted(self.results)[1 - TRANSACTIONS_KEPT :]}
            self.stages = {one: made for one, made in self.stages.items() if made[0] >= self.committed_us}
            self.committed_us = self.clock.now_us()
        for identity in change.stages:
            self.stages.pop(identity, None)
        if change.dedup_key:
            ((_, partition),) = change.appends
            self.keys[change.dedup_key] = (partition, len(self.logs["in", partition]) - 1)

    def all_durable(self) -> None:
        """Acks and failures so far are durable."""
        for group in self.groups.values():
            for place in group.volatile:
                group.finish(place)
            group.volatile = []
            group.durable_failures = dict(group.failures)

    def resolve(self, store: Store) -> None:
        """Take what *store* has after a crash for what was acknowledged; nobody uses it yet, and it was checked."""
        observed = Observed(store, self.results, self.flight)
        self.flight = change = self._as_found(observed)
        applied = self._check_change(observed, change)
        if applied:
            self.land()
        elif change.number is None:
            # Those that were being aborted.
            there = {identity for identity, _, _ in store._staging._stages.all()}
            self.stages = {one: made for one, made in self.stages.items() if one not in change.stages or one in there}
        self.flight = Change()
        for name, group in self.groups.items():
            flying = [place for one, place in change.finished if one == name]
            for place in [*group.volatile, *flying]:
                if place in observed.finished[name]:
                    group.finish(place)
            group.volatile = []
            group.failures = dict(observed.failures[name])
            group.durable_failures = dict(observed.failures[name])
            group.doomed = set(observed.doomed[name])

    # -- checking ---------------------------------------------------------------------------------------------------

    def check(self, files: SimulatedFileSystem, *, power_lost: bool, reopen: bool = False) -> None:
        """Open the store on *files* and compare. Raises `Anomaly`. With *reopen* also what can be done with it then."""
        store = self._open(files)
        try:
            observed = Observed(store, self.results, self.flight)
            change = self._as_found(observed)
            applied = self._check_change(observed, change)
            self._check_groups(observed, change, applied=applied)
            self._check_dead_letters(observed)
            self._check_stages(files, store, applied=applied)
            if reopen:
                self._check_second_crash(files, observed)
                self._check_commits(store, applied=applied)
                self._check_keys(store, observed)
                self._drain(store)
                self._check_afterlife(files, store)
        except PenstockError as error:
            raise Anomaly(f"unusable after {files.origin}: {type(error).__name__}: {error}") from error

    def _open(self, files: SimulatedFileSystem) -> Store:
        clock = FakeClock(now_us=self.clock.now_us(), monotonic=self.clock.monotonic())
        try:
            return open_store(files, clock)
        except PenstockError as error:
            raise Anomaly(f"unbootable after {files.origin}: {type(error).__name__}: {error}") from error

    def _as_found(self, observed: Observed) -> Change:
        """What is under way; of messages that were to be moved to the dead letters those that were."""
        return self.flight.as_found(observed.logs[DEAD][len(self.logs[DEAD]) :])

    def _check_change(self, observed: Observed, change: Change) -> bool | None:
        """What was acknowledged is there; of *change* all or nothing is. Returns which; None if it cannot be told."""
        signs: dict[str, bool] = {}
        for key, acked in self.logs.items():
            found = observed.logs[key]
            flying = change.appends.get(key, [])
            if found[: len(acked)] != acked:
                raise Anomaly(f"lost-write: {key} holds {found}, acknowledged were {acked}")
            if found[len(acked) :] not in ([], flying):
                raise Anomaly(f"partial change or phantom: {key} shows {found[len(acked) :]} behind what was acknowledged")
            if flying:
                signs[f"messages of {key}"] = len(found) > len(acked)
        for (name, partition), generation in observed.generations.items():
            moved = generation - self.groups[name].generation[partition]
            if moved not in (0, (name, partition) in change.seeks):
                raise Anomaly(f"lost seek: {name}/{partition} is at generation {generation}")
            if (name, partition) in change.seeks:
                signs[f"seek of {name}/{partition}"] = bool(moved)
        for name, place in change.finished:
            if place not in self.groups[name].volatile:
                signs[f"{place} of {name}"] = place in observed.finished[name]
        for offset in change.box:
            signs[f"dead letter {offset}"] = offset not in observed.box
        if change.number is not None:
            signs[f"number {change.number}"] = observed.results[change.number] is not None
        if len(set(signs.values())) > 1:
            raise Anomaly(f"partial-transaction: {signs}")
        for number, messages in self.results.items():
            if observed.results[number] != messages:
                raise Anomaly(f"commit {number} gave {messages}, and is now {observed.results[number]}")
        return next(iter(signs.values()), None)

    def _check_groups(self, observed: Observed, change: Change, *, applied: bool | None) -> None:
        for name, group in self.groups.items():
            expected = group
            if applied and any(one == name for one, _ in change.seeks):
                expected = copy.deepcopy(group)
                for (one, partition), offset in change.seeks.items():
                    if one == name:
                        expected.seek(partition, offset)
            found = observed.finished[name]
            flying = {place for one, place in change.finished if one == name}
            volatile = [place for place in expected.volatile if place not in flying]
            for partition in (0, 1):
                for offset in range(len(observed.logs["in", partition])):
                    place = (partition, offset)
                    if expected.is_done(place):
                        if place not in found:
                            raise Anomaly(f"lost ack: {place} of {name} was finished durably")
                    elif place in found and place not in volatile and place not in flying:
                        raise Anomaly(f"unseen: {place} of {name} is finished, and nobody finished it")
            kept = [place in found for place in volatile]
            if kept != sorted(kept, reverse=True):
                raise Anomaly(f"half-applied acks of {name}: {list(zip(volatile, kept, strict=True))}")
            for place in {*expected.durable_failures, *observed.failures[name]} - found:
                least, count = expected.durable_failures.get(place, 0), observed.failures[name].get(place, 0)
                if not least <= count <= expected.failures.get(place, 0) + 1:
                    raise Anomaly(f"delivery-count: {place} of {name} had failed {least} times, now {count}")

    def _check_dead_letters(self, observed: Observed) -> None:
        """Once each, of a message that its group is through with."""
        letters = observed.letters
        if len(set(letters)) < len(letters):
            raise Anomaly(f"dlq-dup: {letters}")

    def _check_stages(self, files: SimulatedFileSystem, store: Store, *, applied: bool | None) -> None:
        """What was finished can be committed; of what was not finished nothing is left."""
        if files.exists(f"{PATH}/staging"):
            names = files.list_directory(f"{PATH}/staging")
            unfinished = [name for name in names if name.endswith((".new", ".probe"))]
            unfinished += [name for name in names if name.endswith(".part") and name.split(".")[0] + ".stage" not in names]
            if unfinished:
                raise Anomaly(f"orphan: {unfinished}")
        for identity, (begun_us, _) in self.stages.items():
            if identity in self.flight.stages and (applied or self.flight.number is None):
                continue  # committed, or being aborted
            if applied and self.flight.number is not None and begun_us < self.committed_us:
                continue  # nobody can want it any more
            try:
                found = store._staging._stages.load(identity)
            except StageNotFound:
                raise Anomaly(f"lost stage: {identity} was finished") from None
            for part in found.parts:
                staged = store._staging._stages.open_part(identity, part)
                links = staged.file.links()
                staged.file.close()
                if links != 1:
                    raise Anomaly(f"orphan: a part of {identity} has {links} names, and was not committed")

    # -- what can be done then --------------------------------------------------------------------------------------

    def _check_second_crash(self, files: SimulatedFileSystem, observed: Observed) -> None:
        """What was seen once stays."""
        again = Observed(self._open(files.crash(random.Random(0), keep="nothing")), self.results, self.flight)
        for name in ("logs", "finished", "generations", "failures", "box", "results"):
            if getattr(again, name) != getattr(observed, name):
                raise Anomaly(f"resurrected or lost: {name} was {getattr(observed, name)}, now {getattr(again, name)}")

    def _check_commits(self, store: Store, *, applied: bool | None) -> None:
        """A committer that does not know whether it succeeded asks again; one that comes too late is refused; orphans go."""
        change = self.flight
        if change.number is not None:
            before = {
                key: len(store._volume.log(*key).read(0)) and store._volume.log(*key).committed_end for key in change.appends
            }
            result = store.commit(PRODUCER, change.number, list(change.stages))
            if (result.messages, result.duplicate) != (change.messages, bool(applied)):
                raise Anomaly(f"repeated commit: {result}, first it was {change.messages} messages, applied: {applied}")
            for key, values in change.appends.items():
                end = store._volume.log(*key).committed_end
                if end != len(self.logs[key]) + len(values):
                    raise Anomaly(f"duplicate: {key} ends at {end} after a repeated commit, {before[key]} before")
        known = {*self.results, *([] if change.number is None else [change.number])}
        for number, messages in self.results.items():
            result = store.commit(PRODUCER, number, [])
            if (result.messages, result.duplicate) != (messages, True):
                raise Anomaly(f"repeated commit: {result}, first it was {messages} messages")
        for number in set(range(max(known, default=0))) - known:
            try:
                result = store.commit(PRODUCER, number, [])
            except TransactionFenced:
                continue
            if number > min(known) or not result.duplicate:
                raise Anomaly(f"not fenced: number {number} was passed over")
        clock = store._clock.watched
        assert isinstance(clock, FakeClock)
        for step in (1, 2, 3):
            clock.advance(1)
            store.commit(PRODUCER, max(known, default=0) + step, [])
        left = store._staging._stages.all()
        if left:
            raise Anomaly(f"orphan: {left}")

    def _check_keys(self, store: Store, observed: Observed) -> None:
        """A key is remembered if and only if its message is there."""
        for key, (partition, offset) in self.keys.items():
            receipt = store.publish("in", b"again", partition=1 - partition, dedup_key=key)
            if (receipt.partition, receipt.offset, receipt.duplicate) != (partition, offset, True):
                raise Anomaly(f"dedup-miss: {key} lies at {(partition, offset)}, and not at {receipt}")
        change = self.flight
        if change.dedup_key:
            ((_, partition),) = change.appends
            offset = len(self.logs["in", partition])
            stored = len(observed.logs["in", partition]) > offset
            receipt = store.publish("in", b"again", partition=partition, dedup_key=change.dedup_key)
            if (receipt.offset, receipt.duplicate) != (offset, stored):
                raise Anomaly(f"dedup-false-drop or miss: {receipt}, its first message was stored: {stored}")

    def _drain(self, store: Store) -> None:
        """Every group gets what it has not finished, each message once, or it is a dead letter then."""
        observed = Observed(store, {}, Change())
        dead = set(observed.letters)
        for name in GROUPS:
            wanted = {
                (partition, offset)
                for partition in (0, 1)
                for offset in range(len(observed.logs["in", partition]))
                if (partition, offset) not in observed.finished[name]
            }
            given: list[Place] = []
            consumer = store.subscribe("in", name)
            clock = store._clock.watched
            assert isinstance(clock, FakeClock)
            empty = 0
            while empty < 3:
                found = consumer.get_many(10, timeout=0)
                empty = 0 if found else empty + 1
                clock.advance(0 if found else 400)
                given += [(message.partition, message.offset) for message in found]
                consumer.ack(found)
            consumer.close()
            moved = {
                (int(partition), int(offset))
                for letter in set(Observed(store, {}, Change()).letters) - dead
                for group, partition, offset, _ in [letter.split(b"/", 3)]
                if group.decode() == name
            }
            if sorted(given) != sorted(wanted - moved) or not moved <= wanted:
                raise Anomaly(f"unseen or twice: {name} was given {sorted(given)}, {moved} are dead, {sorted(wanted)} were due")
        self.drained += 1

    def _check_afterlife(self, files: SimulatedFileSystem, store: Store) -> None:
        """The store goes on, and what is acknowledged then survives the next power loss."""
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                store.publish(topic, b"after", partition=partition)
        with store.stage(PRODUCER) as stage:
            stage.publish("out", b"staged")
        consumer = store.subscribe("in", "shared")
        taken = consumer.get_many(2, timeout=0)
        consumer.reject(taken[0], "after")
        taken[1].ack(wait=True)
        again = self._open(files.crash(random.Random(0), keep="nothing"))
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                if [message.value for message in again.read(topic, partition)][-1] != b"after":
                    raise Anomaly(f"lost-write: {topic}/{partition} after a second crash")
        if list(again.read("in.dlq"))[-1].headers["x-dlq-reason"] != b"after":
            raise Anomaly("dlq-lost after a second crash")
        for message in taken:
            cursor = again._group("in", "shared").cursors[message.partition]
            if message.offset >= cursor.scan or message.offset in cursor.open:
                raise Anomaly(f"lost ack: {message} after a second crash")
        if again.commit(PRODUCER, 1_000_000, [stage.identity]).messages != 1:
            raise Anomaly("lost stage after a second crash")


class Observed:
    """What a store holds after a crash."""

    def __init__(self, store: Store, results: Iterable[int], flight: Change) -> None:
        self.logs: dict[Key, list[bytes]] = {DEAD: []}
        for info in store.topics():
            for partition in range(info.partitions):
                self.logs[info.name, partition] = [_text(message) for message in store.read(info.name, partition)]
        self.letters = [b"/".join(text.split(b"/", 4)[:4]) for text in self.logs[DEAD]]
        self.box = {message.offset for message in store.dead_letters("in").list()}
        self.generations: dict[tuple[str, int], int] = {}
        self.finished: dict[str, set[Place]] = {}
        self.failures: dict[str, dict[Place, int]] = {}
        self.doomed: dict[str, set[Place]] = {}
        for name in GROUPS:
            cursors = store._group("in", name).cursors
            self.generations |= {(name, cursor.partition): cursor.generation for cursor in cursors}
            self.finished[name] = {
                (cursor.partition, offset)
                for cursor in cursors
                for offset in range(min(cursor.scan, len(self.logs["in", cursor.partition])))
                if offset not in cursor.open
            }
            self.failures[name] = {
                (cursor.partition, offset): failure.count for cursor in cursors for offset, failure in cursor.failures.items()
            }
            self.doomed[name] = {
                (cursor.partition, offset)
                for cursor in cursors
                for offset, failure in cursor.failures.items()
                if failure.condemned or failure.count >= MAX_DELIVERIES
            }
        self.results: dict[int, int | None] = {}
        for number in (*results, *([] if flight.number is None else [flight.number])):
            known = store.committed(PRODUCER, number)
            self.results[number] = None if known is None else known.messages


def _text(message: Any) -> bytes:
    """The value; of a dead letter first what it is a dead letter of."""
    value = bytes(message.value or b"")
    group = message.headers.get("x-dlq-group")
    if group is None:
        return value
    partition, offset = message.headers["x-dlq-source-partition"], message.headers["x-dlq-source-offset"]
    return _letter(group.decode(), (int(partition), int(offset)), 0, value)


def _letter(group: str, place: Place, generation: int, value: bytes) -> bytes:
    return b"%s/%d/%d/%d/%s" % (group.encode(), *place, generation, value)


def open_store(files: SimulatedFileSystem, clock: FakeClock) -> Store:
    """The store, which takes the smallest stages for large ones: all but the first batch for a log is adopted."""
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=clock, background=False)
    store._staging._stages.limits = StageLimits(
        inline_bytes_max=1, adopt_bytes_min=1, adopt_batch_bytes_min=1, joined_bytes=JOINED_BYTES
    )
    return store


class Workload:
    """Runs seeded steps on a store; after each the oracle knows what was acknowledged."""

    def __init__(self, rng: random.Random, files: SimulatedFileSystem) -> None:
        self.rng = rng
        self.files = files
        self.clock = FakeClock()
        self.oracle = Oracle(clock=self.clock)
        self.counter = 0
        self.steps_done: dict[str, int] = {}
        self.parts = 0
        self.held: list[Delivery] = []
        self.store: Any = None
        self.consumers: dict[str, Consumer] = {}

    # -- the frame --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or reopen the store."""
        self.store = open_store(self.files, self.clock)
        self.held = []
        self.consumers = {}

    def open_what_was_left(self) -> None:
        """Open the store after a crash, and take what is there for what was acknowledged. The oracle has checked it."""
        self.open()
        self.oracle.resolve(self.store)

    def create_topics(self) -> None:
        """Three topics, and two groups on the first."""
        for name, partitions in TOPICS.items():
            self.store.create_topic(name, partitions=partitions, **TOPIC)
            self.oracle.logs |= {(name, partition): [] for partition in range(partitions)}
        self.oracle.logs[DEAD] = []
        self.subscribe()

    def subscribe(self) -> None:
        """One consumer for each group; leases are long, so that nothing ends by itself."""
        for name, ordered in GROUPS.items():
            self.consumers[name] = self.store.subscribe(
                "in", name, ordered=ordered, prefetch=6, max_deliveries=MAX_DELIVERIES, lease=80_000, backoff=0.001
            )

    def run(self, steps: int, only: Collection[str] = ()) -> None:
        """Run *steps* random steps, of all kinds or *only* of these."""
        choices: list[tuple[int, Callable[[], object]]] = [
            (6, self.publish),
            (2, self.publish_large),
            (2, self.publish_to_many),
            (3, self.publish_once),
            (14, self.take),
            (10, self.ack),
            (2, self.ack_and_wait),
            (4, self.nack),
            (2, self.reject),
            (6, self.transaction),
            (3, self.stage),
            (1, self.leave_a_stage),
            (4, self.commit_stages),
            (1, self.commit_again),
            (1, self.abort_stages),
            (2, self.seek),
            (1, self.commit_position),
            (1, self.replay_dead_letters),
            (3, self.checkpoint),
            (1, self.restart),
        ]
        if only:
            choices = [(weight, step) for weight, step in choices if step.__name__ in only]
        weights = [weight for weight, _ in choices]
        if not self.consumers:
            self.subscribe()
        for _ in range(steps):
            step = self.rng.choices([one for _, one in choices], weights)[0]
            self.clock.advance(self.rng.choice([0.001, 0.5, 3]))
            if step() is not None:
                self.steps_done[step.__name__] = self.steps_done.get(step.__name__, 0) + 1

    def _values(self, count: int, size: int = 10) -> list[bytes]:
        self.counter += count
        return [(b"%d." % number).ljust(size, b"v") for number in range(self.counter - count, self.counter)]

    def _do(self, change: Change, work: Callable[[], object]) -> object:
        """Make *change* by *work*, which returns when it is durable."""
        oracle = self.oracle
        oracle.flight = change
        before = self.store._volume.commits
        done = work()
        oracle.land()
        self._note(before)
        return done or True

    def _note(self, before: int) -> None:
        """If there was a commit since *before*, and it took all that groups had noted, that is durable."""
        if self.store._volume.commits > before and not any(type(one) in (bytes, tuple) for one in self.store._groups._noted):
            self.oracle.all_durable()

    def _group(self, delivery: Delivery) -> GroupState:
        return self.oracle.groups[delivery.group]

    def _pick(self) -> Delivery | None:
        """One of those that are held, out of them."""
        self.held = [one for one in self.held if one._lot.member.holds(one)]
        return self.held.pop(self.rng.randrange(len(self.held))) if self.held else None

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self) -> object:
        """One or some messages."""
        partition, values = self.rng.randrange(2), self._values(self.rng.choice([1, 1, 3]))
        return self._do(Change({("in", partition): values}), lambda: self.store.publish_many("in", values, partition=partition))

    def publish_large(self) -> object:
        """A message that is written ahead of its frame."""
        (value,) = self._values(1, 1_200)
        return self._do(Change({("in", 0): [value]}), lambda: self.store.publish("in", value, partition=0))

    def publish_to_many(self) -> object:
        """A batch whose keys spread over partitions: all of it or nothing."""
        values = self._values(4)
        keys = [b"a", b"b", b"c", b"d"]
        from penstock.topics.partitioner import partition_of_key

        appends: dict[Key, list[bytes]] = {}
        for key, value in zip(keys, values, strict=True):
            appends.setdefault(("side", partition_of_key(key, 2)), []).append(value)
        return self._do(Change(appends), lambda: self.store.publish_many("side", values, keys=keys))

    def publish_once(self) -> object:
        """A new deduplication key, or one of before."""
        if self.oracle.keys and self.rng.random() < 0.4:
            key = self.rng.choice(list(self.oracle.keys))
            receipt = self.store.publish("in", b"again", partition=0, dedup_key=key)
            if (receipt.partition, receipt.offset) != self.oracle.keys[key]:
                raise Anomaly(f"dedup-miss: {receipt}")
            return True
        (value,) = self._values(1)
        partition, key = self.rng.randrange(2), f"key {self.counter}"
        return self._do(
            Change({("in", partition): [value]}, dedup_key=key),
            lambda: self.store.publish("in", value, partition=partition, dedup_key=key),
        )

    # -- consuming --------------------------------------------------------------------------------------------------

    def take(self) -> object:
        """Some messages for one of the groups, whose doomed messages become dead letters then, all or some."""
        before = self.store._volume.commits
        name = self.rng.choice(list(GROUPS))
        oracle = self.oracle
        oracle.flight = Change(
            moves={
                _letter(name, place, 0, oracle.logs["in", place[0]][place[1]]): (name, place)
                for place in oracle.groups[name].doomed
            }
        )
        found = self.consumers[name].get_many(self.rng.randint(1, 3), timeout=0)
        if oracle.flight.moves:
            # Their topic is made with the first of them.
            is_made = any(info.name == DEAD[0] for info in self.store.topics())
            letters = self.store.read(DEAD[0], start=len(oracle.logs[DEAD])) if is_made else ()
            oracle.flight = oracle.flight.as_found([_text(message) for message in letters])
        oracle.land()
        for message in found:
            place = (message.partition, message.offset)
            if self._group(message).is_done(place) or place in self._group(message).volatile:
                raise Anomaly(f"redelivered-after-ack: {place} of {message.group}")
        self.held += found
        self._note(before)
        return found or None

    def ack(self) -> object:
        """It becomes durable with something else."""
        delivery = self._pick()
        if delivery is not None:
            self._group(delivery).volatile.append((delivery.partition, delivery.offset))
            delivery.ack()
        return delivery

    def ack_and_wait(self) -> object:
        """It is durable, and all before it."""
        delivery = self._pick()
        if delivery is not None:
            self._group(delivery).volatile.append((delivery.partition, delivery.offset))
            before = self.store._volume.commits
            delivery.ack(wait=True)
            self._note(before)
        return delivery

    def nack(self) -> object:
        """It failed; the last time it becomes a dead letter."""
        return self._fail(reject=False)

    def reject(self) -> object:
        """It becomes a dead letter at once."""
        return self._fail(reject=True)

    def _fail(self, *, reject: bool) -> object:
        delivery = self._pick()
        if delivery is None:
            return None
        group, place = self._group(delivery), (delivery.partition, delivery.offset)
        count = group.failures[place] = group.failures.get(place, 0) + 1
        change = Change()
        if reject or count >= MAX_DELIVERIES:
            letter = _letter(delivery.group, place, 0, bytes(delivery.value or b""))
            change = Change({DEAD: [letter]}, [(delivery.group, place)])
        return self._do(change, (lambda: delivery.reject("no")) if reject else lambda: delivery.nack(delay=0, reason="no"))

    def seek(self) -> object:
        """One partition or both, as one."""
        name = self.rng.choice(list(GROUPS))
        targets = {
            partition: self.rng.randint(0, len(self.oracle.logs["in", partition]))
            for partition in self.rng.choice([[0], [1], [0, 1], [0, 1]])
        }
        # Letters of before would look like those of after: a message is dead-lettered once in this workload.
        for partition, offset in targets.items():
            dead = [
                int(one.split(b"/")[2])
                for one in self.oracle.logs[DEAD]
                if one.startswith(b"%s/%d/" % (name.encode(), partition))
            ]
            targets[partition] = max([offset, *[at + 1 for at in dead]])
        change = Change(seeks={(name, partition): offset for partition, offset in targets.items()})
        return self._do(change, lambda: self.store.seek("in", name, targets))

    def commit_position(self) -> object:
        """Everything below an offset is finished: it goes the way of acks, and is waited for."""
        name, partition = self.rng.choice(list(GROUPS)), self.rng.randrange(2)
        end = len(self.oracle.logs["in", partition])
        offset = max(0, end - self.rng.randint(0, 4))
        group = self.oracle.groups[name]
        change = Change(
            finished=[
                (name, (partition, at))
                for at in range(offset)
                if not group.is_done((partition, at)) and (partition, at) not in group.volatile
            ]
        )
        return self._do(change, lambda: self.consumers[name].commit(offset, partition))

    def replay_dead_letters(self) -> object:
        """A dead letter goes back to where it came from."""
        if not self.oracle.box:
            return None
        offset = self.rng.choice(sorted(self.oracle.box))
        _, partition, _, _, value = self.oracle.logs[DEAD][offset].split(b"/", 4)
        change = Change({("in", int(partition)): [value]}, box=[offset])
        # Its group is made on first use, in a frame of its own.
        len(self.store.dead_letters("in"))
        return self._do(change, lambda: self.store.dead_letters("in").replay(offsets=[offset]))

    # -- transactions -----------------------------------------------------------------------------------------------

    def transaction(self) -> object:
        """Messages to several topics, sometimes a large one, and acks of one or both groups."""
        change = Change()
        deliveries = [one for one in (self._pick(), self._pick()) if one is not None]
        transaction = self.store.transaction()
        for topic, partition in self.rng.sample([("in", 0), ("in", 1), ("out", 0), ("side", 0), ("side", 1)], 3):
            values = self._values(self.rng.choice([1, 2]), self.rng.choice([10, 10, 1_000]))
            change.appends[topic, partition] = values
            transaction.publish_many(topic, values, partition=partition)
        for delivery in deliveries:
            change.finished.append((delivery.group, (delivery.partition, delivery.offset)))
            transaction.ack(delivery)
        if self.rng.random() < 0.1:
            transaction.abort()
            self.held += deliveries
            return True
        return self._do(change, transaction.commit)

    def stage(self) -> object:
        """The first phase."""
        begun_us = self.clock.now_us()
        stage = self.store.stage(PRODUCER)
        messages = self._fill(stage)
        # Finished it is there; until then it may be there or not, and nobody has its id.
        identity = stage.finish()
        self.oracle.stages[identity] = (begun_us, messages)
        self.parts += len(self.store._staging._stages.load(identity).parts)
        return True

    def _fill(self, stage: Any) -> list[tuple[Key, bytes]]:
        """The messages in the order in which a commit publishes them: all that parts hold comes last."""
        first: list[tuple[Key, bytes]] = []
        last: list[tuple[Key, bytes]] = []
        for topic, partition in self.rng.sample([("in", 1), ("out", 0), ("side", 0), ("side", 1)], 2):
            for number in range(self.rng.choice([1, 1, 3])):
                values = self._values(2, self.rng.choice([10, 700]))
                stage.publish_many(topic, values, partition=partition)
                (last if number else first).extend(((topic, partition), value) for value in values)
        return [*first, *last]

    def leave_a_stage(self) -> object:
        """A process that is gone left it unfinished."""
        self._fill(self.store.stage(PRODUCER))
        return True

    def commit_stages(self) -> object:
        """The second phase, often of several stages."""
        chosen = self.rng.sample(list(self.oracle.stages), min(len(self.oracle.stages), self.rng.randint(0, 3)))
        change = Change(number=max(self.oracle.results, default=0) + self.rng.choice([1, 1, 2]), stages=tuple(chosen))
        for in_part in (False, True):
            for identity in chosen:
                for key, value in self._of_stage(identity, in_part=in_part):
                    change.appends.setdefault(key, []).append(value)
                    change.messages += 1
        return self._do(change, lambda: self.store.commit(PRODUCER, change.number, chosen))

    def _of_stage(self, identity: str, *, in_part: bool) -> list[tuple[Key, bytes]]:
        """The messages of a stage that it holds itself, or in its parts: the first call for each log is not in a part."""
        messages = self.oracle.stages[identity][1]
        seen: dict[Key, int] = {}
        chosen = []
        for key, value in messages:
            seen[key] = seen.get(key, 0) + 1
            if (seen[key] > 2) == in_part:
                chosen.append((key, value))
        return chosen

    def commit_again(self) -> object:
        """A number gives its first answer."""
        if not self.oracle.results:
            return None
        number = self.rng.choice(sorted(self.oracle.results)[-10:])
        result = self.store.commit(PRODUCER, number, [])
        if (result.messages, result.duplicate) != (self.oracle.results[number], True):
            raise Anomaly(f"repeated commit: {result}")
        return True

    def abort_stages(self) -> object:
        """One is dropped."""
        if not self.oracle.stages:
            return None
        identity = self.rng.choice(list(self.oracle.stages))
        return self._do(Change(stages=(identity,)), lambda: self.store.abort([identity]))

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> object:
        """By way of a snapshot everything is durable."""
        self.store._volume.checkpoint()
        self.oracle.all_durable()
        if self.rng.random() < 0.5:
            self.store._volume.coalesce()
        return True

    def restart(self) -> object:
        """An orderly one."""
        self.store.close()
        self.oracle.all_durable()
        self.open()
        self.subscribe()
        return True
