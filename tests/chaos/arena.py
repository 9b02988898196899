"""
A server process, eight producers, eight consumers and a reader, and one history of all they saw.

What is done to them is the test's business. No time here says anything but how often something is tried: waiting ends when nothing has
moved for `PATIENCE_S`, on a machine of any speed.
"""

from __future__ import annotations

import collections
import contextlib
import random
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import penstock
from penstock.errors import Closed, OutcomeUnknown, PenstockError, Unavailable
from tests.chaos.clients import CLIENTS, PATIENCE_S, TOPIC, Addresses, Client, NativeClient, patiently
from tests.chaos.history import POISON, History, Place, make_value
from tests.cli.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITIONS = 4
GROUPS = ("even", "odd")
PRODUCERS = ("native", "many", "aio", "many", "http", "http", "grpc", "grpc")
CONSUMERS = ("native", "native", "pushed", "aio", "http", "http", "grpc", "grpc")
"""Which client each of them is; the groups take turns. `many` is a producer with many batches on their way."""
BACKLOG_MAX = 2_000


def _free_ports(count: int) -> list[int]:
    """
    Ports that nobody gets who asks for any.

    A server that was killed comes back to its own, and other tests, and their clients, are given free ports meanwhile.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first = int(file.read().split()[0])
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.SystemRandom().sample(range(first // 2, first), first // 2):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
                if len(found) == count:
                    return found
    raise AssertionError("no port is free")


class Arena:
    """All of it, on one folder."""

    def __init__(
        self, folder: Path, seed: int, *, lease_s: float = 20.0, host: str = "127.0.0.1", before: tuple[str, ...] = ()
    ) -> None:
        """*before* and *host*: a command that runs the server in a network of its own, and its address there."""
        self._data, self._log = folder / "data", folder / "server.log"
        self._seed = seed
        self.history = History(GROUPS)
        self.failures: list[BaseException] = []
        self._stop_producing, self._stop_consuming = threading.Event(), threading.Event()
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []
        self._clients: list[Client] = []
        self._before = before
        self.server = self._serve(*[f"{host}:{port}" for port in (_free_ports(3) if host == "127.0.0.1" else (0, 0, 0))])
        self.addresses = Addresses(*[self.server.address(name) for name in Addresses._fields])
        """Where it listens, also after it was started again."""
        self._lease_s = lease_s
        self.create_topics()

    def create_topics(self) -> None:
        """The topic, and its groups."""
        with penstock.open(self.addresses.native) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS, dedup_window=3_600)
            for group in GROUPS:
                store.subscribe(TOPIC, group, lease=self._lease_s, max_deliveries=0).close()

    # -- the server -------------------------------------------------------------------------------------------------

    def _serve(self, native: str, http: str, grpc: str) -> Serving:
        arguments = ["--data", str(self._data), "--native", native, "--http", http, "--grpc", grpc]
        if self._before:
            arguments.append("--allow-insecure")
        return Serving(*arguments, environment={"PENSTOCK_SERVE_NO_GRPC": "0"}, before=self._before, log=self._log)

    def kill(self) -> None:
        """SIGKILL, and a new one in its place."""
        self.history.server_goes()
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.communicate()
        self.start()

    def start(self) -> None:
        """A server where the last one was."""
        self.server = self._serve(*[one.rpartition("://")[2] for one in self.addresses])
        self.history.server_came()

    # -- clients ----------------------------------------------------------------------------------------------------

    def begin(self, through: Addresses | None = None) -> None:
        """Let them work, *through* a proxy or straight."""
        addresses = through or self.addresses
        for number, kind in enumerate(PRODUCERS):
            self._producers.append(self._thread(self._produce, addresses, kind, number))
        for number, kind in enumerate(CONSUMERS):
            self._consumers.append(self._thread(self._consume, addresses, kind, number))
        self._consumers.append(self._thread(self._read, addresses))
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def _thread(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*given)
            except BaseException as error:
                self.failures.append(error)

        return threading.Thread(target=guarded, name=f"chaos {work.__name__} {given[1:]}", daemon=True)

    def _client(self, addresses: Addresses, kind: str, name: str) -> Client:
        client = CLIENTS[kind](addresses, name)
        self._clients.append(client)
        return client

    def _produce(self, addresses: Addresses, kind: str, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        name = f"{kind}-{number}"
        if kind == "many":
            self._produce_many(addresses, name, number)
            return
        client = self._client(addresses, kind, name)
        count = 0
        while not self._stop_producing.is_set():
            value = make_value(name, count)
            self.history.try_publish(value)
            try:
                self.history.published(value, client.publish(value, b"%d" % rng.randrange(50)))
            except OutcomeUnknown:
                self.history.is_unknown(value)
            except Unavailable:
                self.history.was_refused(value)
            count += 1
            self._breathe(0.002)

    def _produce_many(self, addresses: Addresses, name: str, number: int) -> None:
        client = self._client(addresses, "native", name)
        assert isinstance(client, NativeClient)
        sent: collections.deque[tuple[bytes, Any]] = collections.deque()
        count = 0
        with client.producer() as producer:
            while not self._stop_producing.is_set():
                for _ in range(20):
                    value = make_value(name, count)
                    self.history.try_publish(value)
                    sent.append((value, producer.send(value, partition=number % PARTITIONS)))
                    count += 1
                while len(sent) > 500:
                    self._note_sent(*sent.popleft())
                self._breathe(0.04)
            for value, future in sent:
                self._note_sent(value, future)

    def _breathe(self, seconds: float) -> None:
        """Go on in a while, but not before the consumers have almost all: the backlog is waited for at the end."""
        time.sleep(seconds)
        while self.history.backlog > BACKLOG_MAX and not self._stop_producing.wait(0.02):
            pass

    def _note_sent(self, value: bytes, future: Any) -> None:
        try:
            receipt = future.result()
        except OutcomeUnknown:
            self.history.is_unknown(value)
        except Unavailable:
            self.history.was_refused(value)
        else:
            self.history.published(value, Place(receipt.partition, receipt.offset))

    def _consume(self, addresses: Addresses, kind: str, number: int) -> None:
        history, group = self.history, GROUPS[number % len(GROUPS)]
        durable = number % 3 == 0
        client = self._client(addresses, kind, f"{kind}-{number}")
        client.subscribe(group)
        while not self._stop_consuming.is_set():
            try:
                for got in client.receive():
                    history.got(group, got.value, got.place, got.asked_s)
                    server = history.server
                    poison = got.value.endswith(POISON)
                    if client.reject(got) if poison else client.ack(got, durable=durable):
                        history.finished(
                            group, got.value, got.place, got.attempt, server=server, durable=durable and not poison
                        )
                    else:
                        history.not_finished()
            except Closed:
                if not self._stop_consuming.is_set():
                    raise
                return

    def _read(self, addresses: Addresses) -> None:
        """Read all partitions from the beginning, over and over where it has stopped."""
        with patiently(lambda: penstock.open(addresses.native, give_up=PATIENCE_S)) as store:
            starts = [0] * PARTITIONS
            while not self._stop_consuming.is_set():
                for partition in range(PARTITIONS):
                    try:
                        for message in store.read(TOPIC, partition, start=starts[partition], max_messages=2_000):
                            self.history.read("reader", Place(partition, message.offset), bytes(message.value or b""))
                            starts[partition] = message.offset + 1
                    except (Unavailable, OutcomeUnknown):
                        pass
                time.sleep(0.05)

    # -- the end ----------------------------------------------------------------------------------------------------

    def wait_for_acks(self, count: int) -> None:
        """Wait until more than *count* messages are acknowledged: on a slow machine what was done to the server may be over before."""
        end = time.monotonic() + PATIENCE_S
        while len(self.history.acked) <= count:
            assert time.monotonic() < end, f"only {len(self.history.acked)} messages are acknowledged; {self.failures}"
            self.check()
            time.sleep(0.05)

    def check(self) -> None:
        """Raise what a client could not stand."""
        assert not self.failures, self.failures
        assert not self.history.anomalies, self.history.anomalies[:20]

    def stop_producing(self) -> None:
        """No more messages; returns when the outcome of all is known."""
        self._stop_producing.set()
        for thread in self._producers:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} does not end; {self.failures}"
        self.check()

    def drain(self) -> None:
        """Wait until every group has finished all that is stored."""
        with patiently(lambda: penstock.open(self.addresses.native, give_up=PATIENCE_S)) as store:
            least, moved_s = 1 << 62, time.monotonic()
            while time.monotonic() - moved_s < PATIENCE_S:
                groups = patiently(store.stats).topics[TOPIC].groups
                lag = sum(groups[group].lag for group in GROUPS)
                if not lag:
                    return
                if lag < least:
                    least, moved_s = lag, time.monotonic()
                self.check()
                time.sleep(0.1)
        raise AssertionError(f"{least} messages are not finished, and nothing has moved for {PATIENCE_S} s")

    def end(self) -> None:
        """Stop the clients."""
        self._stop_producing.set()
        self._stop_consuming.set()
        while self._clients:
            with contextlib.suppress(PenstockError):
                self._clients.pop().close()
        for thread in (*self._producers, *self._consumers):
            thread.join(PATIENCE_S)

    def judge(self) -> dict[str, int]:
        """Stop everything, and compare what was seen with what is stored; returns figures."""
        self.end()
        code, logged = self.server.stop()
        assert code == 0, logged
        self.check()
        with penstock.open(self._data) as store:
            stored = [(Place(one.partition, one.offset), bytes(one.value or b"")) for one in store.read(TOPIC)]
            letters = [
                (dict(one.headers)["x-dlq-group"].decode(), bytes(one.value or b""))
                for one in store.dead_letters(TOPIC).list()
            ]  # fmt: skip
        anomalies = self.history.judge(stored, letters)
        assert not anomalies, (len(anomalies), anomalies[:20])
        return {**self.history.summary(), "dead_letters": len(letters), "stored": len(stored), "seed": self._seed}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.process.send_signal(signal.SIGCONT)
        self.end()
        if self.server.process.poll() is None:
            self.server.process.kill()
        self.server.process.communicate()
