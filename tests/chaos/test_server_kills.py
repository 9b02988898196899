"""
A server that is killed again and again under producers and consumers.

The server is a process, `penstock serve` on a Unix socket; its clients are threads here, which reconnect by themselves. After the last kill
everything is drained and compared: what was acknowledged is stored, once; each group got all of it; what was acked durably did not come
again.
"""

from __future__ import annotations

import collections
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import LeaseExpired, OutcomeUnknown, PenstockError, Unavailable
from tests.cli.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

KILLS = 100
PARTITIONS = 4
PRODUCERS = 8
CONSUMERS = 8
GROUPS = ("even", "odd")


class History:
    """What clients saw, and what is wrong with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.tried: set[bytes] = set()
        self.delivered: dict[str, collections.Counter[bytes]] = {group: collections.Counter() for group in GROUPS}
        self.done: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.anomalies: list[str] = []

    def published(self, value: bytes, receipt: penstock.Receipt) -> None:
        """The server said so."""
        with self.lock:
            self.acked[value] = (receipt.partition, receipt.offset)

    def got(self, group: str, value: bytes) -> None:
        """A consumer was handed it."""
        with self.lock:
            self.delivered[group][value] += 1
            if value in self.done[group]:
                self.anomalies.append(f"redelivered-after-durable-ack: {value!r} in {group}")

    def finished(self, group: str, value: bytes) -> None:
        """Acked, and the ack is durable."""
        with self.lock:
            self.done[group].add(value)


def _produce(url: str, number: int, history: History, stop: threading.Event, rng: random.Random) -> None:
    """Half of them publish one by one, half through a producer with many batches on their way."""
    with penstock.open(url, give_up=60) as store:
        if number % 2:
            count = 0
            while not stop.is_set():
                value = b"one-%d-%d" % (number, count)
                history.tried.add(value)
                history.published(value, store.publish("t", value, key=b"%d" % rng.randrange(50)))
                count += 1
                time.sleep(0.002)
        else:
            with store.producer("t", linger=0.002, max_pending=2_000) as producer:
                sent: collections.deque[tuple[bytes, Any]] = collections.deque()
                count = 0
                while not stop.is_set():
                    for _ in range(20):
                        value = b"many-%d-%d" % (number, count)
                        history.tried.add(value)
                        sent.append((value, producer.send(value, partition=number // 2 % PARTITIONS)))
                        count += 1
                    while len(sent) > 500:
                        value, future = sent.popleft()
                        history.published(value, future.result())
                    # Not more than the consumers can take: the backlog is waited for at the end.
                    time.sleep(0.03)
                for value, future in sent:
                    history.published(value, future.result())


def _consume(url: str, number: int, history: History, stop: threading.Event) -> None:
    group = GROUPS[number % len(GROUPS)]
    with penstock.open(url, give_up=60) as store:
        consumer = store.subscribe("t", group, lease=20, max_deliveries=1_000)

        def close_when_told() -> None:
            stop.wait()
            consumer.close()

        threading.Thread(target=close_when_told, daemon=True).start()
        for message in consumer:
            value = bytes(message.value or b"")
            history.got(group, value)
            try:
                message.ack(wait=number % 3 == 0)
            except (LeaseExpired, OutcomeUnknown):
                continue
            except PenstockError:
                if stop.is_set():
                    return
                continue
            if number % 3 == 0:
                history.finished(group, value)


def test_a_server_that_is_killed_a_hundred_times_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """I1-I8, I16-I24 over the native protocol."""
    url = f"penstock+unix://{tmp_path / 'socket'}"
    arguments = ("--data", str(tmp_path / "data"), "--native", f"unix:{tmp_path / 'socket'}", "--no-http")
    history = History()
    server = Serving(*arguments)
    failures: list[BaseException] = []

    def guarded(work: Callable[..., None], *given: Any) -> None:
        try:
            work(*given)
        except BaseException as error:
            failures.append(error)

    stop_producing, stop_consuming = threading.Event(), threading.Event()
    with penstock.open(url) as store:
        store.create_topic("t", partitions=PARTITIONS)
    producers = [
        threading.Thread(target=guarded, args=(_produce, url, number, history, stop_producing, random.Random(seed + number)))
        for number in range(PRODUCERS)
    ]
    consumers = [
        threading.Thread(target=guarded, args=(_consume, url, number, history, stop_consuming)) for number in range(CONSUMERS)
    ]
    for thread in (*producers, *consumers):
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.0, 0.4))
            server.process.send_signal(signal.SIGKILL)
            server.process.communicate()
            server = Serving(*arguments)
            assert not failures, failures
        stop_producing.set()
        for thread in producers:
            thread.join(120)
            assert not thread.is_alive()
        _drain(url, history)
    finally:
        stop_producing.set()
        stop_consuming.set()
        for thread in (*producers, *consumers):
            thread.join(60)
        code, logged = server.stop()
    assert not failures, failures
    assert code == 0, logged
    _judge(tmp_path, history)
    counts = {
        "kills": KILLS, "acked": len(history.acked), "delivered": sum(map(len, history.delivered.values())), "seed": seed,
        "redelivered": sum(sum(counter.values()) - len(counter) for counter in history.delivered.values()),
    }  # fmt: skip
    print(counts)
    record_property("server kills", counts)
    assert counts["acked"] > 20 * KILLS


def _drain(url: str, history: History) -> None:
    """Wait until every group has got all that is stored."""
    with penstock.open(url) as store:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                groups = store.stats().topics["t"].groups
            except Unavailable:
                continue
            if all(groups[group].lag == 0 for group in GROUPS):
                return
            time.sleep(0.1)
    raise AssertionError(f"not drained: {history.anomalies[:5]}")


def _judge(folder: Path, history: History) -> None:
    stored: dict[bytes, tuple[int, int]] = {}
    orders: dict[tuple[bytes, int], int] = {}
    with penstock.open(folder / "data") as store:
        for message in store.read("t"):
            value = bytes(message.value or b"")
            if value in stored:
                history.anomalies.append(f"duplicate: {value!r} at {stored[value]} and {message.partition}/{message.offset}")
            stored[value] = (message.partition, message.offset)
            kind, number, count = value.split(b"-")
            if kind == b"many":
                last = orders.get((number, message.partition), -1)
                if int(count) < last:
                    history.anomalies.append(f"reorder: {value!r} behind {last}")
                orders[number, message.partition] = int(count)
        assert not store.topics()[0].name.endswith(".dlq")
    for value, place in history.acked.items():
        if stored.get(value) != place:
            history.anomalies.append(f"lost: {value!r} was acknowledged at {place}, and is at {stored.get(value)}")
    for value in stored.keys() - history.tried:
        history.anomalies.append(f"invented: {value!r}")
    for group in GROUPS:
        for value in stored.keys() - history.delivered[group].keys():
            history.anomalies.append(f"not delivered: {value!r} to {group}")
    assert not history.anomalies, history.anomalies[:20]
