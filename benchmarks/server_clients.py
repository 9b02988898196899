"""
What the clients of each server do, in a process of its own: `python -m benchmarks.server_clients SYSTEM PORT`.

It reads a JSON object a line, {"do": what, ...}, and answers with one: what was done and how long that took, or an error. So each
server has clients that share no interpreter with those of another, and wait idle while another has its turn.

For every server: `publish` is one message that is durable when the call returns. `publish_many` is as quick as its client can:
batches, pipelines or confirms in a window of 1000. `consume` takes what is there in lots of 500 and acknowledges each lot; when the
clock stops every acknowledgement is as durable as the server can say.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.load import BATCH_MESSAGES, MESSAGE_BYTES, VALUE, VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

LOT = 500
"""Messages that a consumer takes and acknowledges together."""
GIVE_UP_SECONDS = 120.0
TOPICS = ("single", "many", "backlog", "flow", "latency")
_PADDING = bytes(MESSAGE_BYTES - 8)


def stamped(moment_ns: int) -> bytes:
    """A message of the usual size that says when it was due."""
    return moment_ns.to_bytes(8, "little") + _PADDING


def age_us(data: bytes) -> float:
    """Microseconds since the moment that a message says."""
    return (time.monotonic_ns() - int.from_bytes(data[:8], "little")) / 1e3


def pace(rate: float, count: int) -> list[int]:
    """When each of *count* messages is due, in ns of the monotonic clock, beginning a little from now."""
    start = time.monotonic_ns() + 300_000_000
    return [start + int(index * 1e9 / rate) for index in range(count)]


def run_threads(works: Sequence[Callable[[], object]], seconds: float) -> dict[str, float]:
    """Call each of *works* again and again in a thread of its own; returns the calls that ended, and the time they took."""
    counts = [0] * len(works)
    errors: list[BaseException] = []
    together = threading.Barrier(len(works) + 1)
    until = [0.0]

    def run(at: int, work: Callable[[], object]) -> None:
        together.wait()
        try:
            while time.perf_counter() < until[0]:
                work()
                counts[at] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    until[0] = start + seconds
    together.wait()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    if errors:
        raise errors[0]
    return {"amount": sum(counts), "seconds": took}


class Client:
    """What every server's client can do. Counts are messages; `flow` and `latency` are topics of their own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def create(self) -> None:
        """Make the topics; once for each server."""
        raise NotImplementedError

    def close(self) -> None:
        """Hang up, where the end of the process is not enough."""

    def publish(self, clients: int, seconds: float) -> dict[str, float]:
        """So many clients at once, one message after the other each."""
        raise NotImplementedError

    def publish_many(self, topic: str, count: int) -> None:
        """As quick as one client can; returns when all are durable."""
        raise NotImplementedError

    def consume(self, topic: str, count: int) -> None:
        """Take and acknowledge so many, which are there or come."""
        raise NotImplementedError

    def send_paced(self, rate: float, count: int) -> None:
        """Publish when each is due, or as soon after as it can, one durable message after the other."""
        raise NotImplementedError

    def receive(self, count: int) -> list[float]:
        """Take so many as they are pushed, acknowledge each; returns microseconds since each was due."""
        raise NotImplementedError


def _send_paced(publish: Callable[[bytes], object], rate: float, count: int) -> None:
    for due in pace(rate, count):
        left = due - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        publish(stamped(due))


class PenstockClient(Client):
    """Ours. Batches by `publish_many`; acks are durable within milliseconds, and `flush` waits for the last."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._stores: list[Any] = [self._connect()]
        self._consumers: dict[str, Any] = {}

    def _connect(self) -> Any:
        return importlib.import_module("penstock").open(f"penstock://127.0.0.1:{self.port}")

    def create(self) -> None:
        for topic in TOPICS:
            # Merging in the background would run beside some turns and not beside others.
            self._stores[0].create_topic(topic, sync="always", coalesce_below_bytes=0)
            self._stores[0].subscribe(topic, "group", start="earliest").close()

    def publish(self, clients: int, seconds: float) -> dict[str, float]:
        while len(self._stores) < clients:
            self._stores.append(self._connect())
        return run_threads([partial(store.publish, "single", VALUE) for store in self._stores[:clients]], seconds)

    def publish_many(self, topic: str, count: int) -> None:
        for _ in range(count // BATCH_MESSAGES):
            self._stores[0].publish_many(topic, VALUES)

    def _consumer(self, topic: str) -> Any:
        if topic not in self._consumers:
            self._consumers[topic] = self._stores[0].subscribe(topic, "group", prefetch=2 * LOT)
        return self._consumers[topic]

    def consume(self, topic: str, count: int) -> None:
        consumer = self._consumer(topic)
        while count > 0:
            found = consumer.get_many(LOT, timeout=GIVE_UP_SECONDS)
            _check_some(found)
            consumer.ack(found)
            count -= len(found)
        consumer.flush()

    def send_paced(self, rate: float, count: int) -> None:
        _send_paced(lambda data: self._stores[0].publish("latency", data), rate, count)

    def receive(self, count: int) -> list[float]:
        ages: list[float] = []
        for message in self._consumer("latency"):
            ages.append(age_us(message.value))
            message.ack()
            if len(ages) == count:
                break
        return ages


class RedisClient(Client):
    """Redis Streams. Batches are pipelines; the acknowledgement of a lot travels with the request for the next one."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._connections: list[Any] = [self._connect()]
        found = self._connections[0].config_get("append*")
        if (found["appendonly"], found["appendfsync"]) != ("yes", "always"):
            raise AssertionError(f"Redis would not sync: {found}")

    def _connect(self) -> Any:
        return importlib.import_module("redis").Redis(port=self.port, decode_responses=False)

    def create(self) -> None:
        for topic in TOPICS:
            self._connections[0].xgroup_create(topic, "group", id="0", mkstream=True)

    def publish(self, clients: int, seconds: float) -> dict[str, float]:
        while len(self._connections) < clients:
            self._connections.append(self._connect())
        fields = {b"v": VALUE}
        return run_threads([partial(one.xadd, "single", fields) for one in self._connections[:clients]], seconds)

    def publish_many(self, topic: str, count: int) -> None:
        for _ in range(count // BATCH_MESSAGES):
            pipeline = self._connections[0].pipeline(transaction=False)
            for value in VALUES:
                pipeline.execute_command("XADD", topic, "*", b"v", value)
            pipeline.execute()

    def _read(self, pipeline: Any, topic: str) -> None:
        pipeline.execute_command(
            "XREADGROUP", "GROUP", "group", "one", "COUNT", LOT, "BLOCK", int(GIVE_UP_SECONDS * 1000), "STREAMS", topic, ">"
        )

    def consume(self, topic: str, count: int) -> None:
        connection = self._connections[0]
        finished: list[bytes] = []
        while count > 0:
            pipeline = connection.pipeline(transaction=False)
            if finished:
                pipeline.execute_command("XACK", topic, "group", *finished)
            self._read(pipeline, topic)
            finished = [entry[0] for entry in _entries(pipeline.execute()[-1])]
            _check_some(finished)
            count -= len(finished)
        connection.execute_command("XACK", topic, "group", *finished)

    def send_paced(self, rate: float, count: int) -> None:
        _send_paced(lambda data: self._connections[0].xadd("latency", {b"v": data}), rate, count)

    def receive(self, count: int) -> list[float]:
        connection = self._connections[0]
        ages: list[float] = []
        while len(ages) < count:
            entries = _entries(
                connection.xreadgroup("group", "one", {"latency": ">"}, count=LOT, block=int(GIVE_UP_SECONDS * 1000))
            )
            _check_some(entries)
            for number, fields in entries:
                ages.append(age_us(fields[b"v"]))
                connection.xack("latency", "group", number)
        return ages


def _entries(answer: Any) -> Any:
    """The entries of the only stream in what XREADGROUP answered; its shape changes with protocol and client."""
    if not answer:
        return []
    entries = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    return entries[0] if entries and entries[0] and isinstance(entries[0][0], (list, tuple)) else entries


class NatsClient(Client):
    """
    NATS JetStream.

    `publish_async` with 1000 on their way. A lot is acknowledged by its last message (ack policy `all`), which is quicker than one by
    one, and the last of all waits for the answer.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._nats = importlib.import_module("nats")
        self._api = importlib.import_module("nats.js.api")
        self._loop = asyncio.new_event_loop()
        self._connections: list[Any] = []
        self._streams: list[Any] = []
        self._pulls: dict[str, Any] = {}
        self._run(self._connect())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _connect(self) -> None:
        connection = await self._nats.connect(f"nats://127.0.0.1:{self.port}", ping_interval=3600)
        self._connections.append(connection)
        self._streams.append(connection.jetstream(timeout=GIVE_UP_SECONDS, publish_async_max_pending=BATCH_MESSAGES))

    def close(self) -> None:
        async def run() -> None:
            for connection in self._connections:
                await connection.close()

        self._run(run())
        self._loop.close()

    def create(self) -> None:
        for topic in TOPICS:
            config = self._api.StreamConfig(name=topic, subjects=[topic], storage=self._api.StorageType.FILE)
            self._run(self._streams[0].add_stream(config))

    def publish(self, clients: int, seconds: float) -> dict[str, float]:
        async def run() -> dict[str, float]:
            while len(self._streams) < clients:
                await self._connect()
            start = time.perf_counter()
            until = start + seconds

            async def one(stream: Any) -> int:
                count = 0
                while time.perf_counter() < until:
                    await stream.publish("single", VALUE)
                    count += 1
                return count

            amount = sum(await asyncio.gather(*[one(stream) for stream in self._streams[:clients]]))
            return {"amount": amount, "seconds": time.perf_counter() - start}

        result: dict[str, float] = self._run(run())
        return result

    def publish_many(self, topic: str, count: int) -> None:
        async def run() -> None:
            stream = self._streams[0]
            for _ in range(count // BATCH_MESSAGES):
                answers = [await stream.publish_async(topic, value) for value in VALUES]
            await stream.publish_async_completed()
            for answer in answers:
                answer.result()

        self._run(run())

    def consume(self, topic: str, count: int) -> None:
        async def run() -> None:
            if topic not in self._pulls:
                config = self._api.ConsumerConfig(
                    ack_policy=self._api.AckPolicy.ALL, max_ack_pending=1_000_000, ack_wait=GIVE_UP_SECONDS
                )
                self._pulls[topic] = await self._streams[0].pull_subscribe(topic, "group", config=config)
            left = count
            while left > 0:
                found = await self._pulls[topic].fetch(LOT, timeout=GIVE_UP_SECONDS)
                _check_some(found)
                left -= len(found)
                if left > 0:
                    await found[-1].ack()
                else:
                    await found[-1].ack_sync(timeout=GIVE_UP_SECONDS)

        self._run(run())

    def send_paced(self, rate: float, count: int) -> None:
        async def run() -> None:
            for due in pace(rate, count):
                left = due - time.monotonic_ns()
                if left > 0:
                    await asyncio.sleep(left / 1e9)
                await self._streams[0].publish("latency", stamped(due))

        self._run(run())

    def receive(self, count: int) -> list[float]:
        async def run() -> list[float]:
            ages: list[float] = []
            done = asyncio.Event()

            async def take(message: Any) -> None:
                ages.append(age_us(message.data))
                await message.ack()
                if len(ages) == count:
                    done.set()

            config = self._api.ConsumerConfig(deliver_policy=self._api.DeliverPolicy.NEW, max_ack_pending=1_000_000)
            subscription = await self._streams[0].subscribe("latency", cb=take, manual_ack=True, config=config)
            await asyncio.wait_for(done.wait(), GIVE_UP_SECONDS)
            await subscription.unsubscribe()
            return ages

        found: list[float] = self._run(run())
        return found


class RabbitClient(Client):
    """
    RabbitMQ with quorum queues.

    Batches are confirms in a window of 1000, by pika's connection with callbacks; a lot is acknowledged at once (`multiple`). It never
    says whether an acknowledgement is durable.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._pika = importlib.import_module("pika")
        self._durable = self._pika.BasicProperties(delivery_mode=2)
        self._channels: list[Any] = [self._connect()]
        self._quick: Any = None
        self._quick_connection: Any = None

    def _parameters(self) -> Any:
        return self._pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0, blocked_connection_timeout=GIVE_UP_SECONDS)

    def _connect(self) -> Any:
        channel = self._pika.BlockingConnection(self._parameters()).channel()
        channel.confirm_delivery()
        return channel

    def create(self) -> None:
        for topic in TOPICS:
            self._channels[0].queue_declare(topic, durable=True, arguments={"x-queue-type": "quorum"})

    def publish(self, clients: int, seconds: float) -> dict[str, float]:
        while len(self._channels) < clients:
            self._channels.append(self._connect())
        return run_threads(
            [
                partial(one.basic_publish, "", "single", VALUE, self._durable, mandatory=True)
                for one in self._channels[:clients]
            ],
            seconds,
        )

    def _open_quick(self) -> Any:
        """A channel of the connection with callbacks, which runs only inside a call."""
        if self._quick is None:

            def opened(channel: Any) -> None:
                self._quick = channel
                channel.confirm_delivery(self._confirmed, callback=lambda _: connection.ioloop.stop())

            connection = self._pika.SelectConnection(self._parameters(), lambda one: one.channel(on_open_callback=opened))
            self._quick_connection = connection
            connection.ioloop.start()
            self._sent = self._done = 0
        return self._quick

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            raise AssertionError("RabbitMQ refused a message")
        self._done = method.delivery_tag if method.multiple else self._done + 1
        self._refill()

    def _refill(self) -> None:
        while self._sent < self._wanted and self._sent - self._done < BATCH_MESSAGES:
            self._quick.basic_publish("", self._topic, VALUES[self._sent % BATCH_MESSAGES], self._durable)
            self._sent += 1
        if self._done >= self._wanted:
            self._quick_connection.ioloop.stop()

    def publish_many(self, topic: str, count: int) -> None:
        self._open_quick()
        self._topic, self._wanted = topic, self._sent + count
        self._refill()
        self._quick_connection.ioloop.start()

    def _take(self, topic: str, prefetch: int, take: Callable[[Any, Any, Any, Any], bool]) -> None:
        """Let messages be pushed until *take* says that it has enough."""
        channel = self._open_quick()

        def pushed(*message: Any) -> None:
            if take(*message):
                channel.basic_cancel(tag, callback=lambda _: self._quick_connection.ioloop.stop())

        channel.basic_qos(prefetch_count=prefetch)
        tag = channel.basic_consume(topic, pushed)
        self._quick_connection.ioloop.start()

    def consume(self, topic: str, count: int) -> None:
        taken = 0

        def take(channel: Any, method: Any, _properties: Any, _body: Any) -> bool:
            nonlocal taken
            taken += 1
            if taken % LOT == 0 or taken == count:
                channel.basic_ack(method.delivery_tag, multiple=True)
            return taken == count

        self._take(topic, 2 * LOT, take)

    def send_paced(self, rate: float, count: int) -> None:
        channel = self._channels[0]
        _send_paced(lambda data: channel.basic_publish("", "latency", data, self._durable, mandatory=True), rate, count)

    def receive(self, count: int) -> list[float]:
        ages: list[float] = []

        def take(channel: Any, method: Any, _properties: Any, body: bytes) -> bool:
            ages.append(age_us(body))
            channel.basic_ack(method.delivery_tag)
            return len(ages) == count

        self._take("latency", LOT, take)
        return ages


def _check_some(found: Any) -> None:
    if not found:
        raise TimeoutError("no message came")


CLIENTS: dict[str, Callable[[int], Client]] = {
    "penstock": PenstockClient, "redis": RedisClient, "nats": NatsClient, "rabbitmq": RabbitClient,
}  # fmt: skip


def _timed(work: Callable[[], object], count: int) -> dict[str, float]:
    start = time.monotonic()
    work()
    end = time.monotonic()
    return {"amount": count, "seconds": end - start, "start": start, "end": end}


def answer(client: Client, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    match asked["do"]:
        case "create":
            client.create()
            return {}
        case "publish":
            return client.publish(asked["clients"], asked["seconds"])
        case "publish_many":
            return _timed(lambda: client.publish_many(asked["topic"], asked["count"]), asked["count"])
        case "consume":
            return _timed(lambda: client.consume(asked["topic"], asked["count"]), asked["count"])
        case "send_paced":
            client.send_paced(asked["rate"], asked["count"])
            return {}
        case "receive":
            return {"ages": client.receive(asked["count"])}
    raise ValueError(f"cannot {asked['do']}")


def main(arguments: list[str]) -> int:
    """Answer line after line until there is no more."""
    name, port = arguments
    client = CLIENTS[name](int(port))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = answer(client, asked)
        except Exception as error:  # noqa: BLE001 - told to the one who asked
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)
    client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
