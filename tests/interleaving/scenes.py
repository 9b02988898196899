"""
What many threads do with one store at the same time, and what must be true of it.

A **claim** is what a call that returned has promised: these messages are stored, those are finished. With each claim goes the disk as a
power cut at that very moment would leave it, with nothing of what was not synced. After the run each of these disks is opened, and has to
keep the promise. So it is seen at once if a call returns a step too early.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import threads
from penstock.errors import Closed, PenstockError
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.testing.interleaving import Interleaving, ScheduleFailure, switching_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Delivery

PATH = "/s"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=1024, reference_bytes=512, free_bytes_floor=0, reserve_bytes=0,
    checkpoint_interval_ms=3_600_000, retention_interval_ms=10_000,
)  # fmt: skip
LINES = (
    "penstock/journal/committer.py",
    "penstock/journal/ticket.py",
    "penstock/groups/registry.py",
    "penstock/volume/volume.py",
)
WAITING = 48
"""Messages that wait in `t` when a scene begins."""


class Claim(NamedTuple):
    """What was promised, and the disk of that moment."""

    what: str
    stored: frozenset[bytes]
    finished: frozenset[int]
    disk: SimulatedFileSystem
    in_order: bool


_prepared: list[SimulatedFileSystem] = []


def _prepare() -> SimulatedFileSystem:
    """A disk with a store that was closed in order."""
    if not _prepared:
        files = SimulatedFileSystem()
        with Store.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False) as store:
            store.create_topic("t")
            store.publish_many("t", [b"%d" % number for number in range(WAITING)])
            store.create_topic("u")
            store.subscribe("t", "g").close()
        _prepared.append(files)
    return _prepared[0].crash(random.Random(0), keep="everything")


class Scene:
    """One store, one run, and what was promised in it."""

    def __init__(self, seed: int, *, lines: bool = True, schedule: list[int] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(f"scene {seed}")
        self.run = Interleaving(
            seed, lines=LINES if lines else (), schedule=schedule, expected_steps=2000 if lines else 600, seconds_max=300
        )
        self.disk = _prepare()
        self.claims: list[Claim] = []
        self.acked: set[int] = set()
        self.published: set[bytes] = set()
        self.store: Any = None
        self._failed: list[str] = []

    def claim(
        self, what: str, *, stored: tuple[bytes, ...] = (), finished: tuple[int, ...] = (), in_order: bool = False
    ) -> None:
        """A call has returned."""
        disk = self.disk.crash(self.rng, keep="nothing")
        self.claims.append(Claim(what, frozenset(stored), frozenset(finished), disk, in_order))

    def start(self, *works: Callable[[], object]) -> list[Any]:
        """Threads that do *works*."""
        started = [threads.Thread(target=work, name=work.__name__) for work in works]
        for thread in started:
            thread.start()
        return started

    def take(self, consumer: Any, count: int) -> list[Delivery]:
        """Messages; there must be so many, sooner or later."""
        found: list[Delivery] = []
        while len(found) < count:
            found += consumer.get_many(count - len(found))
        return found

    def check(self, program: Callable[[Scene], None]) -> None:
        """Run *program*, then see whether all promises were kept. Raises `ScheduleFailure`."""

        def whole() -> None:
            self.store = Store.open(PATH, settings=SETTINGS, files=switching_files(self.disk, self.run), clock=self.run.clock)
            program(self)

        try:
            self.run.run(whole)
        except BaseException:
            if self.store is not None:
                self.store.forget()
            raise
        if self.run.left:
            raise ScheduleFailure(f"threads were left: {self.run.left}; seed {self.seed}")
        for claim in self.claims:
            self._check_claim(claim)

    def _check_claim(self, claim: Claim) -> None:
        where = f"{claim.what}; seed {self.seed}, {self.run._strategy!r}"
        try:
            store = Store.open(PATH, settings=SETTINGS, files=claim.disk, clock=FakeClock(), background=False)
        except PenstockError as error:
            raise ScheduleFailure(f"cannot be opened: {error}; {where}") from error
        try:
            there = {message.value for topic in ("t", "u") for message in store.read(topic)}
            if not claim.stored <= there:
                raise ScheduleFailure(f"promised as stored, and lost: {claim.stored - there}; {where}")
            if extra := there - self.published - {b"%d" % number for number in range(WAITING)}:
                raise ScheduleFailure(f"there, and published by nobody: {extra}; {where}")
            cursor = store._group("t", "g").cursors[0]
            finished = {at for at in range(cursor.scan) if at not in cursor.open}
            if not claim.finished <= finished:
                raise ScheduleFailure(f"promised as finished, and given again: {sorted(claim.finished - finished)}; {where}")
            if extra_acks := finished - self.acked:
                raise ScheduleFailure(f"finished, and acked by nobody: {sorted(extra_acks)}; {where}")
            if claim.in_order and not store._volume.was_closed_in_order:
                raise ScheduleFailure(f"closed, but not in order; {where}")
        finally:
            store.close()


# -- what is done ---------------------------------------------------------------------------------------------------


def everything(scene: Scene) -> None:
    """Acks that wait, flushes, transactions, publishes and checkpoints; then it is closed."""
    store = scene.store
    consumer = store.subscribe("t", "g", prefetch=16, lease=40_000)

    def ack_and_wait() -> None:
        for message in scene.take(consumer, 2):
            scene.acked.add(message.offset)
            message.ack(wait=True)
            scene.claim("ack(wait=True)", finished=(message.offset,))

    def ack_and_flush() -> None:
        messages = scene.take(consumer, 3)
        for message in messages:
            scene.acked.add(message.offset)
            message.ack()
        consumer.flush()
        scene.claim("flush", finished=tuple(message.offset for message in messages))

    def transact() -> None:
        [message] = scene.take(consumer, 1)
        scene.acked.add(message.offset)
        scene.published.add(b"in a transaction")
        with store.transaction() as changes:
            changes.ack(message)
            changes.publish("u", b"in a transaction")
        scene.claim("transaction", finished=(message.offset,), stored=(b"in a transaction",))

    def publish() -> None:
        for number in range(2):
            value = b"published %d" % number
            scene.published.add(value)
            store.publish("u", value)
            scene.claim("publish", stored=(value,))

    def send() -> None:
        values = (b"sent 0", b"sent 1")
        scene.published.update(values)
        with store.producer("u", linger=0.01) as producer:
            for value in values:
                producer.send(value)
            producer.flush()
            scene.claim("producer.flush", stored=values)

    def checkpoint() -> None:
        for _ in range(2):
            store._volume.checkpoint()

    for thread in scene.start(ack_and_wait, ack_and_flush, transact, publish, send, checkpoint):
        thread.join()
    store.close()
    scene.claim("close", stored=tuple(scene.published), finished=tuple(scene.acked), in_order=True)


def acks(scene: Scene) -> None:
    """So many acks that a frame does not take them all: two threads wait for theirs, and commit for each other."""
    store = scene.store
    consumer = store.subscribe("t", "g", prefetch=48, lease=40_000)
    messages = scene.take(consumer, 42)
    scene.acked.update(message.offset for message in messages)
    consumer.flush()

    def ack(mine: list[Delivery], *, wait: bool) -> Callable[[], None]:
        def work() -> None:
            for at in range(0, len(mine), 10):
                for message in mine[at : at + 9]:
                    message.ack()
                if wait:
                    mine[at + 9].ack(wait=True)
                else:
                    mine[at + 9].ack()
                    consumer.flush()
                offsets = tuple(message.offset for message in mine[at : at + 10])
                scene.claim("ack(wait=True)" if wait else "flush", finished=offsets)

        work.__name__ = f"acks that {'wait' if wait else 'are flushed'}"
        return work

    for thread in scene.start(ack(messages[:20], wait=True), ack(messages[20:40], wait=False)):
        thread.join()
    for message in messages[40:]:
        message.ack()
    store.close()
    scene.claim("close", finished=tuple(scene.acked), in_order=True)


def checkpoints(scene: Scene) -> None:
    """Acks that wait, acks that do not, and checkpoints that split them; and others who commit meanwhile."""
    store = scene.store
    consumer = store.subscribe("t", "g", prefetch=16, lease=40_000)
    messages = scene.take(consumer, 10)
    scene.acked.update(message.offset for message in messages)
    consumer.flush()

    def ack() -> None:
        for one, other in zip(messages[:6:2], messages[1:6:2], strict=True):
            other.ack()
            one.ack(wait=True)
            scene.claim("ack(wait=True)", finished=(one.offset, other.offset))

    def only_ack() -> None:
        for message in messages[6:]:
            message.ack()

    def publish() -> None:
        for number in range(3):
            scene.published.add(b"published %d" % number)
            store.publish("u", b"published %d" % number)

    def checkpoint() -> None:
        for _ in range(3):
            store._volume.checkpoint()

    for thread in scene.start(ack, only_ack, publish, checkpoint):
        thread.join()
    store.close()
    scene.claim("close", finished=tuple(scene.acked), in_order=True)


def publishing(scene: Scene) -> None:
    """Nobody but those who publish and wait: they commit for each other."""
    store = scene.store

    def publish(number: int) -> Callable[[], None]:
        def work() -> None:
            for count in range(2):
                value = b"published %d %d" % (number, count)
                scene.published.add(value)
                if number:
                    store.publish("u", value)
                else:
                    with store.transaction() as changes:
                        changes.publish("u", value)
                        changes.publish("t", value)
                scene.claim("publish", stored=(value,))

        work.__name__ = f"publish {number}"
        return work

    for thread in scene.start(*map(publish, range(4)), store._volume.checkpoint):
        thread.join()
    store.close()
    scene.claim("close", stored=tuple(scene.published), in_order=True)


def closing(scene: Scene) -> None:
    """It is closed, twice at once, while others are at work: what returned is kept, the others are told."""
    store = scene.store
    consumer = store.subscribe("t", "g", prefetch=16, lease=40_000)

    def ack() -> None:
        with contextlib.suppress(PenstockError):
            for _ in range(4):
                message = consumer.get()
                if message is None:
                    return
                scene.acked.add(message.offset)
                message.ack()
                consumer.flush()
                scene.claim("flush", finished=(message.offset,))

    def publish() -> None:
        with contextlib.suppress(Closed):
            for number in range(4):
                value = b"published %d" % number
                scene.published.add(value)
                store.publish("u", value)
                scene.claim("publish", stored=(value,))

    def submit() -> None:
        with contextlib.suppress(Closed):
            producer = store.producer("u", linger=0.001)
            for number in range(3):
                value = b"sent %d" % number
                scene.published.add(value)
                future = producer.send(value)
                with contextlib.suppress(PenstockError):
                    future.result()
                    scene.claim("future.result", stored=(value,))

    def checkpoint() -> None:
        with contextlib.suppress(Closed):
            for _ in range(3):
                store._volume.checkpoint()

    def close() -> None:
        promised = [claim for claim in scene.claims if claim.what != "close"]
        store.close()
        stored = {value for claim in promised for value in claim.stored}
        finished = {offset for claim in promised for offset in claim.finished}
        scene.claim("close", stored=tuple(stored), finished=tuple(finished), in_order=True)

    for thread in scene.start(ack, publish, submit, checkpoint, close, close):
        thread.join()


def waiting(scene: Scene) -> None:
    """Consumers sleep until something is published; nobody sleeps for ever."""
    store = scene.store
    consumer = store.subscribe("t", "g", prefetch=16, lease=40_000)
    with contextlib.suppress(PenstockError):
        while (message := consumer.get(timeout=0)) is not None:
            scene.acked.add(message.offset)
            message.ack()
    got: list[bytes] = []

    def get() -> None:
        message = consumer.get()
        assert message is not None
        got.append(bytes(message.value))
        scene.acked.add(message.offset)
        message.ack(wait=True)
        scene.claim("ack(wait=True)", finished=(message.offset,))

    def publish() -> None:
        for number in range(2):
            value = b"published %d" % number
            scene.published.add(value)
            store.publish("t", value)
            scene.claim("publish", stored=(value,))

    def send() -> None:
        scene.published.add(b"sent")
        producer = store.producer("t", linger=0.001)
        producer.send(b"sent").result()
        scene.claim("future.result", stored=(b"sent",))

    for thread in scene.start(get, get, get, publish, send):
        thread.join()
    assert sorted(got) == [b"published 0", b"published 1", b"sent"]
    store.close()
    scene.claim("close", stored=tuple(scene.published), finished=tuple(scene.acked), in_order=True)


SCENES = [everything, acks, checkpoints, publishing, closing, waiting]
