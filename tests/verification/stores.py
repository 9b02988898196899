"""Stores in many conditions, and what they hold."""

from __future__ import annotations

import random
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.volume.volume import Volume
from tests.bad_bytes import stores as small
from tests.crash.workload import SETTINGS, Workload
from tests.verification.damages import ANY, STORE, Base, damage
from tests.verification.judge import Contents, Subject, open_and_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.settings import StoreSettings
    from penstock.testing import Operation
    from penstock.volume.topic_files import TopicRecord


class Whole(NamedTuple):
    """A sound store, to be damaged."""

    base: Base
    settings: StoreSettings
    contents: Contents
    topics: list[TopicRecord]
    store_id: bytes

    def subject(self, name: str, files: SimulatedFileSystem) -> Subject:
        return Subject(name, files, STORE, self.settings, self.contents, self.topics, store_id=self.store_id)


def whole(files: SimulatedFileSystem, older: dict[str, list[bytes]], settings: StoreSettings) -> Whole:
    opened = open_and_read(files.kill(), STORE, settings)
    assert opened.error is None
    volume = Volume.open(STORE, settings=settings, files=files.kill(), background=False)
    return Whole(Base(files, older, _foreign_files()), settings, opened.contents, volume.topics, volume.store_id)


@contextmanager
def steady_ids(seed: str) -> Iterator[None]:
    """The ids of stores, topics, segments and journals depend on *seed*, and not on chance: the same files, byte for byte."""
    rng = random.Random(seed)

    def token_hex(count: int) -> str:
        return rng.randbytes(count).hex()

    with mock.patch.multiple("secrets", token_bytes=rng.randbytes, token_hex=token_hex, randbits=rng.getrandbits):
        yield


def steadily(seed: str, make: Callable[[random.Random], Iterator[Subject]]) -> Iterator[Subject]:
    """What *make* makes of random numbers, the same for the same *seed*; each one also if those before it are not judged."""
    subjects = make(random.Random(seed))
    number = 0
    while True:
        with steady_ids(f"{seed} {number}"):
            subject = next(subjects, None)
        if subject is None:
            return
        yield subject
        number += 1


@lru_cache(maxsize=1)
@steady_ids("foreign")
def _foreign_files() -> dict[str, bytes]:
    """A store with topics of the same names, and other messages at the same offsets."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = Store.open(STORE, settings=SETTINGS, files=files, clock=clock, background=False)
    for topic, partitions, sync in (("always", 1, "always"), ("os", 1, "os"), ("orders", 3, "always"), ("weak", 1, "os")):
        store.create_topic(topic, partitions=partitions, sync=sync, segment_bytes=1024)
        for number in range(8):
            store.publish(topic, b"foreign %d" % number, key=str(number))
    return {path: content for path, content in files.kill().files().items() if not path.endswith("/LOCK")}


@lru_cache(maxsize=1)
@steady_ids("small")
def small_stores() -> dict[str, Whole]:
    """Two topics, five batches each, in five conditions; see tests/bad_bytes."""
    # Not those that other tests of this process have made: these are always the same.
    made = {name: make.__wrapped__() for name, make in small.STORES.items()}
    return {name: whole(one.files, one.older, small.SETTINGS) for name, one in made.items()}


@lru_cache(maxsize=4)
@steady_ids("queue")
def queue_store(ending: str) -> Whole:
    """Groups, acks, retries, dead letters, a transaction, several partitions; closed, killed or after a power cut."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = Store.open(STORE, settings=SETTINGS, files=files, clock=clock, background=False)
    older: dict[str, list[bytes]] = {}
    store.create_topic("orders", partitions=3, segment_bytes=1200)
    store.create_topic("weak", sync="os", segment_bytes=1500)
    for number in range(30):
        clock.advance(1)
        store.publish("orders", b"order %d" % number, key=str(number % 7))
        store.publish("weak", b"weak %d" % number)
        if number % 10 == 5:
            for path, content in files.files().items():
                older.setdefault(path, []).append(content)
        if number == 12:
            store._volume.checkpoint()
    with store.transaction() as transaction:
        transaction.publish("orders", b"together", key="a")
        transaction.publish("weak", b"together")
    consumer = store.subscribe("orders", "g", max_deliveries=1)
    for number in range(12):
        message = consumer.get(timeout=0)
        assert message is not None
        if number % 4:
            message.ack()
        else:
            message.nack()
    store.flush()
    if ending == "closed":
        consumer.close()
        store.close()
        state = files.kill()
    elif ending == "killed":
        state = files.kill()
    else:
        state = files.crash(random.Random(5), keep="nothing")
    return whole(state, older, SETTINGS)


class Copier:
    """`cp -r` of a store while it is written to: file after file, and a long one in several parts."""

    def __init__(self, source: SimulatedFileSystem, rng: random.Random) -> None:
        self._source = source
        self._rng = rng
        self.copy = SimulatedFileSystem()
        self._work: Iterator[None] | None = None
        self._countdown = rng.randint(0, 400)

    def step(self, _: Operation) -> None:
        self._countdown -= 1
        if self._countdown > 0:
            return
        if self._work is None:
            self._work = self._run()
        for _turn in range(self._rng.choice([0, 0, 1, 1, 2, 5])):
            next(self._work, None)

    def finish(self) -> SimulatedFileSystem:
        for _ in self._work or self._run():
            pass
        # Another machine, or another boot: the positions file does not count. Or the same one.
        return self.copy if self._rng.random() < 0.5 else self.copy.crash(self._rng, keep="everything")

    def _run(self) -> Iterator[None]:
        self.copy.make_directory(STORE)
        yield from self._copy_folder(STORE)

    def _copy_folder(self, folder: str) -> Iterator[None]:
        names = self._source.list_directory(folder) if self._source.exists(folder) else []
        self._rng.shuffle(names)  # `cp` takes them as the folder has them, in no order
        for name in names:
            path = f"{folder}/{name}"
            yield
            if not self._source.exists(path):
                continue
            if any(entry == path + "/" for entry in self._source.tree()):
                self.copy.make_directory(path)
                yield from self._copy_folder(path)
                continue
            content = b""
            while True:
                now = self._source.files().get(path)
                if now is None:
                    break  # unlinked; `cp` goes on with the file it has open, which nobody changes any more
                part = now[len(content) : len(content) + self._rng.choice([512, 4096, 1 << 20])]
                content += part
                if not part:
                    break
                yield
            self.copy.replace(path, content)


def copies(rng: random.Random, count: int) -> Iterator[Subject]:
    """Copies that were taken of stores at work."""
    for number in range(count):
        seed = rng.randrange(1 << 30)
        files = SimulatedFileSystem()
        workload = Workload(random.Random(seed), files)
        workload.open()
        workload.create_topics()
        copier = Copier(files, random.Random(seed + 1))
        files.on_operation = copier.step
        workload.run(40)
        files.on_operation = None
        yield _of_workload(f"copy {number} of a store at work, seed {seed}", copier.finish(), workload)


def crash_states(rng: random.Random, count: int) -> Iterator[Subject]:
    """Disks as a power cut, or a kill, may leave them."""
    done = 0
    while done < count:
        seed = rng.randrange(1 << 30)
        files, draw = SimulatedFileSystem(), random.Random(seed + 1)
        workload = Workload(random.Random(seed), files)
        workload.open()
        workload.create_topics()
        states: list[SimulatedFileSystem] = []

        note = partial(_note_state, files, draw, states)
        files.on_operation = note
        workload.run(40)
        files.on_operation = None
        for number, state in enumerate(states[: count - done]):
            yield _of_workload(f"crash state {number} ({state.origin}), seed {seed}", state, workload)
        done += len(states)


def damaged(store: Whole, rng: random.Random, count: int, together: Sequence[int] = ANY) -> Iterator[Subject]:
    """The store with damages, each time others; *together*: how many at once."""
    for _ in range(count):
        name, files = damage(store.base, rng, together)
        yield store.subject(name, files)


def damaged_workloads(rng: random.Random, count: int) -> Iterator[Subject]:
    """Crash states, and copies of stores at work, that were damaged as well."""
    kinds = (copies(rng, count), crash_states(rng, count))
    for number in range(count):
        subject = next(kinds[number % 2])
        name, files = damage(Base(subject.files, {}, _foreign_files()), rng)
        yield subject._replace(name=f"{subject.name}, {name}", files=files)


def _note_state(files: SimulatedFileSystem, draw: random.Random, states: list[SimulatedFileSystem], _: Operation) -> None:
    if draw.random() < 0.04:
        states.append(files.kill() if draw.random() < 0.3 else files.crash(draw))


def _of_workload(name: str, files: SimulatedFileSystem, workload: Workload) -> Subject:
    assert workload.volume is not None
    published: Contents = {}
    for (topic, partition), model in workload.oracle.logs.items():
        for offset, value in enumerate([*model.acked, *workload.oracle.in_flight.get((topic, partition), ())]):
            published[topic, partition, offset] = value
    starts = {key: model.start_asked for key, model in workload.oracle.logs.items()}
    return Subject(name, files, STORE, SETTINGS, published, workload.volume.topics, starts, workload.volume.store_id)
