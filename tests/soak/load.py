# mypy: ignore-errors
"""
Mixed load on one server, at a pace that leaves a machine room for other tests: the clients of the chaos tests on all interfaces, whose
history is judged at the end, and beside them everything else that clients do.
"""

from __future__ import annotations

import contextlib
import json
import random
import urllib.request
from typing import TYPE_CHECKING

import penstock
from penstock.errors import LeaseExpired
from tests.chaos.arena import GROUPS, PARTITIONS, Arena
from tests.chaos.clients import PATIENCE_S, TOPIC, Addresses, patiently
from tests.chaos.history import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.store.store import Store

PACE = 120
"""How much slower the producers are than in the chaos tests."""
PAUSE_S = 0.4
"""How long an errand rests after each of its steps: all of the soak takes about a quarter of a core."""


class Load(Arena):
    """The arena's clients, slower, and others. What retention takes was read before."""

    def begin(self, through: Addresses | None = None) -> None:
        self._stored: list[tuple[Place, bytes]] = []
        self._letters: list[tuple[str, bytes]] = []
        self.errands: dict[str, int] = {}
        works = (self._transact, self._retry, self._delay, self._hoard, self._come_and_go, self._look, self._make_topics)
        self.errand_names = [work.__name__ for work in works]
        for work in works:
            self._consumers.append(self._thread(self._repeat, through or self.addresses, work))
        super().begin(through)

    def create_topics(self) -> None:
        """Topics of which old messages go soon: the disk must stay as it is."""
        small = {"segment_bytes": 128 << 10, "retention_bytes": 256 << 10, "dedup_window": 30}
        passing = {**small, "retain": "always"}
        with penstock.open(self.addresses.native) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS, **small)
            for group in GROUPS:
                store.subscribe(TOPIC, group, lease=20, max_deliveries=0).close()
            for name in ("orders", "invoices", "retried", "delayed", "hoarded"):
                store.create_topic(name, partitions=2, **passing)
            store.create_topic("urgent", partitions=2, priorities=True, **passing)

    def _breathe(self, seconds: float) -> None:
        super()._breathe(seconds * PACE)

    def _read(self, addresses: Addresses) -> None:
        """Read everything as it comes, and keep it for the judge."""
        with patiently(lambda: penstock.open(addresses.native, give_up=PATIENCE_S)) as store:
            starts = [0] * PARTITIONS
            while not self._stop_consuming.wait(0.5):
                self._read_on(store, starts)
            self._read_on(store, starts)

    def _read_on(self, store: Store, starts: list[int]) -> None:
        for partition in range(PARTITIONS):
            for message in store.read(TOPIC, partition, start=starts[partition]):
                place, value = Place(partition, message.offset), bytes(message.value or b"")
                self.history.read("reader", place, value)
                self._stored.append((place, value))
                starts[partition] = message.offset + 1

    # -- everything else --------------------------------------------------------------------------------------------

    def _repeat(self, addresses: Addresses, work: Callable[[Store, random.Random], Iterator[None]]) -> None:
        """An errand, once and again, each time with a connection of its own."""
        rng = random.Random(f"{self._seed} {work.__name__}")
        while not self._stop_producing.is_set():
            with penstock.open(addresses.native, give_up=PATIENCE_S) as store:
                for _ in work(store, rng):
                    self.errands[work.__name__] = self.errands.get(work.__name__, 0) + 1
                    if self._stop_producing.wait(PAUSE_S):
                        break

    def _transact(self, store: Store, rng: random.Random) -> Iterator[None]:
        """Orders become invoices, each once."""
        with store.subscribe("orders", "invoicing") as consumer:
            for _ in range(50):
                store.publish_many(
                    "orders", [b"%d" % number for number in range(10)], keys=[b"%d" % (number % 3) for number in range(10)]
                )
                with store.transaction() as transaction:
                    # More than it has ordered: visitors order too, and retention waits for nobody.
                    for message in consumer.get_many(20, 5):
                        transaction.publish("invoices", bytes(message.value or b"") * rng.randrange(1, 20))
                        transaction.ack(message)
                yield

    def _retry(self, store: Store, rng: random.Random) -> Iterator[None]:
        """The README's loop, with a handler that fails now and then, and dead letters that are sent back or discarded."""
        with store.subscribe("retried", "handlers", max_deliveries=3, backoff=0.05, lease=5) as consumer:
            # What failed and came again was more than one for each that was published: without this there would be ever more.
            if left := consumer.get_many(500, 0.1):
                consumer.ack(left)
            messages = iter(consumer)
            for _ in range(50):
                store.publish("retried", b"work", key=b"%d" % rng.randrange(5), headers={"round": b"1"})
                with contextlib.suppress(ZeroDivisionError), next(messages) as message:
                    if rng.random() < 0.3:
                        raise ZeroDivisionError(f"handling {message.offset}")
                yield
        letters = store.dead_letters("retried")
        if rng.random() < 0.5:
            letters.replay()
        else:
            letters.discard()

    def _delay(self, store: Store, rng: random.Random) -> Iterator[None]:
        """Messages that are delayed, expire, or are urgent."""
        with store.subscribe("delayed", "later") as later, store.subscribe("urgent", "first") as first:
            for _ in range(50):
                store.publish("delayed", b"later", delay=rng.random(), ttl=rng.choice([1, 60]))
                store.publish("urgent", b"now", priority=rng.choice(["high", "medium", "low"]))
                for consumer in (later, first):
                    found = consumer.get_many(20, 0.1)
                    if found:
                        consumer.ack(found)
                yield

    def _hoard(self, store: Store, rng: random.Random) -> Iterator[None]:
        """Consumers that take much and finish nothing; what they have goes back, or its lease ends."""
        with store.subscribe("hoarded", f"hoarder-{rng.randrange(5)}", lease=1, max_deliveries=0) as consumer:
            for _ in range(20):
                store.publish_many("hoarded", [b"x" * 200] * 20)
                taken = consumer.get_many(30, 0.5)
                if taken and rng.random() < 0.1:
                    with contextlib.suppress(LeaseExpired):
                        consumer.ack(taken)
                yield

    def _come_and_go(self, store: Store, rng: random.Random) -> Iterator[None]:
        """Clients that stay for a moment, groups that are made and deleted, producers with names."""
        for number in range(20):
            with penstock.open(self.addresses.native) as other:
                group = f"visitor-{number % 4}"
                with (
                    other.subscribe("invoices", group) as consumer,
                    other.producer("orders", name=f"visitor-{number % 4}") as producer,
                ):
                    producer.send(b"from a visitor")
                    if message := consumer.get(0.05):
                        with contextlib.suppress(LeaseExpired):  # it is the oldest one, and retention may have taken it
                            message.ack()
            if rng.random() < 0.3:
                store.delete_group("invoices", group)
            yield

    def _look(self, store: Store, rng: random.Random) -> Iterator[None]:
        """What operators and their tools ask for."""
        for _ in range(20):
            store.stats()
            store.metrics()
            for path in ("/metrics", "/v1/topics", "/v1/metrics", "/readyz", f"/v1/topics/{TOPIC}"):
                with urllib.request.urlopen(self.addresses.http + path, timeout=60) as answer:
                    data = answer.read()
                    if path.startswith("/v1"):
                        json.loads(data)
            yield

    def _make_topics(self, store: Store, rng: random.Random) -> Iterator[None]:
        """Topics that are made, used and deleted."""
        for number in range(10):
            name = f"passing-{number % 3}"
            store.publish_many(name, [b"x" * 100] * rng.randrange(1, 50))
            with store.subscribe(name, "g", start="earliest") as consumer:
                consumer.ack(consumer.get_many(100, 1))
            yield
            store.delete_topic(name)

    # -- the end ----------------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, int]:
        """Stop everything in order, and compare what was seen with what was read."""
        with penstock.open(self.addresses.native) as store:
            letters = [
                (dict(one.headers)["x-dlq-group"].decode(), bytes(one.value or b"")) for one in store.dead_letters(TOPIC).list()
            ]
        self.end()
        code, logged = self.server.stop()
        assert code == 0, logged
        assert "Traceback" not in logged, logged
        self.check()
        anomalies = self.history.judge(self._stored, letters)
        assert not anomalies, (len(anomalies), anomalies[:20])
        with penstock.open(self._data) as store:
            kept = sum(1 for _ in store.read(TOPIC))
        return {
            **self.history.summary(), "dead_letters": len(letters), "stored": len(self._stored), "kept": kept, "seed": self._seed,
            **self.errands,
        }  # fmt: skip
