"""
Penstock at work, from end to end: `make demo`.

It makes a store in a temporary folder and shows, one step after the other: producers with competing consumers; consumer processes that
are killed at work; a message that kills every process that touches it; retries, dead letters and their replay; transactions under fire;
deduplication after a crash; a reader process beside the owner; history that is merged and read as Arrow; a check of every byte. Each
step checks what it claims; a wrong number ends the demo with an error.

Called with a command it plays another process of the demo: `demo.py COMMAND PATH`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import penstock
from penstock.format.batch import encode_batch, encode_single
from penstock.settings import StoreSettings
from penstock.values import MIB
from penstock.volume.verification import verify
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.log.partition_log import PartitionLog

PRODUCERS, CONSUMERS, EVENTS = 3, 3, 5_000
MAILS, KILL_MAILER_AFTER = 500, 301
ORDERS, KILL_INVOICER_AFTER = 600, (80, 100, 120)
PAYMENTS_TOLD = 1_000
CLICKS = 25_000


def say(text: str) -> None:
    print(text, flush=True)


def rate(count: int, seconds: float) -> str:
    return f"{count:>7,} in {seconds:5.2f} s = {count / seconds:>9,.0f}/s"


def in_threads(*works: Callable[[], None]) -> float:
    """Run all of them at once; returns the seconds until the last one ended, and raises what any of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - started


def left_of(store: penstock.Store, topic: str, group: str, **options: object) -> Iterator[penstock.Delivery]:
    """Handle and acknowledge all that a group has left."""
    with store.subscribe(topic, group, **options) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            yield message
            message.ack()


# -- other processes --------------------------------------------------------------------------------------------------


def start(command: str, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), command, path], stdout=subprocess.PIPE, text=True)


def lines_until_killed(command: str, path: str, kill_after: int) -> tuple[list[list[str]], int]:
    """What another process told, word by word, before it was killed after so many lines; and how it ended."""
    child = start(command, path)
    assert child.stdout is not None
    told = []
    for line in child.stdout:
        if not line.endswith("\n"):
            break  # killed while it wrote the line
        told.append(line.split())
        if len(told) == kill_after:
            os.kill(child.pid, signal.SIGKILL)  # what it wrote to the pipe before that is still read
    child.stdout.close()
    return told, child.wait(timeout=60)


def tell(*words: object) -> None:
    """One write call a line, which a pipe takes whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def be_mailer(path: str) -> None:
    """Handle mails until killed; tell each before it is handled, and after its ack is durable."""
    store = penstock.open(path)
    for message in store.subscribe("mails", "mailer"):
        tell("handles", message.offset)
        message.ack(wait=True)
        tell("acked", message.offset)


def be_victim(path: str) -> None:
    """Handle letters until there are none; one of them kills the process, as a bug in a C library might."""
    with penstock.open(path) as store, store.subscribe("letters", "reader", max_deliveries=3) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            with message:
                if message.value == b"poison":
                    os.kill(os.getpid(), signal.SIGKILL)
                tell(message.offset)


def be_invoicer(path: str) -> None:
    """Write an invoice for each order, and acknowledge the order, in one transaction."""
    with penstock.open(path) as store, store.subscribe("orders", "invoicing", max_deliveries=0) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            with store.transaction() as transaction:
                transaction.publish("invoices", b"for order %d" % message.offset)
                transaction.ack(message)
            tell(message.offset)


def be_payer(path: str) -> None:
    """Publish payments until killed, from three threads; tell each when it is acknowledged."""
    store = penstock.open(path)

    def pay(first: int) -> None:
        for number in range(first, 1_000_000, 3):
            receipt = store.publish("payments", b"payment %d" % number, dedup_key=f"payment-{number}")
            tell(number, receipt.offset)

    in_threads(*[lambda first=first: pay(first) for first in range(3)])


def be_reader(path: str) -> None:
    """Read a topic beside the owner."""
    with penstock.open(path, read_only=True) as store:
        tell(sum(1 for _ in store.read("events")))


# -- the steps --------------------------------------------------------------------------------------------------------


def compete(store: penstock.Store) -> None:
    """Producers publish, the consumers of one group share the messages, another group gets all of them too."""
    store.create_topic("events", partitions=4)
    total = PRODUCERS * EVENTS
    handled: list[list[bytes]] = [[] for _ in range(CONSUMERS)]
    audited: list[bytes] = []
    shared = [store.subscribe("events", "billing") for _ in range(CONSUMERS)]
    alone = store.subscribe("events", "audit", prefetch=1_000)

    def produce(name: str) -> None:
        with store.producer("events") as producer:
            for number in range(EVENTS):
                producer.send(f"{name}/{number}".encode(), key=f"user-{number % 100}")

    def consume(consumer: penstock.Consumer, values: list[bytes]) -> None:
        for message in consumer:
            with message:
                values.append(message.value)

    def audit() -> None:
        while len(audited) < total:
            messages = alone.get_many(1_000, timeout=30)
            assert messages, "nothing came any more"
            audited.extend(message.value for message in messages)
            alone.ack(messages)
        while store.stats().topics["events"].groups["billing"].lag:
            time.sleep(0.005)
        for consumer in shared:
            consumer.close()  # ends their loops

    seconds = in_threads(
        *[lambda name=f"producer-{one}": produce(name) for one in range(PRODUCERS)],
        *[lambda pair=pair: consume(*pair) for pair in zip(shared, handled, strict=True)],
        audit,
    )
    alone.close()
    counts = Counter(value for values in handled for value in values)
    assert len(counts) == total
    assert set(counts.values()) == {1}, "each message went to one consumer of the group"
    assert len(audited) == len(set(audited)) == total
    groups = store.stats().topics["events"].groups
    assert groups["billing"].lag == groups["audit"].lag == 0
    say(f"  published, synced, handled twice   {rate(total, seconds)}")
    say(
        f"  {PRODUCERS} producers, 4 partitions; {CONSUMERS} consumers of one group had {[len(one) for one in handled]} messages,"
    )
    say("  each message one of them; a second group had all of them too")


def kill_a_consumer(path: str) -> None:
    with penstock.open(path) as store:
        store.publish_many("mails", [b"mail %d" % number for number in range(MAILS)])
    told, status = lines_until_killed("mail", path, KILL_MAILER_AFTER)
    assert status == -signal.SIGKILL
    handled = {int(offset) for word, offset in told if word == "handles"}
    acked = {int(offset) for word, offset in told if word == "acked"}
    with penstock.open(path) as store:
        again = {message.offset: message.attempt for message in left_of(store, "mails", "mailer")}
    assert not acked & set(again), "what was acknowledged does not come again"
    assert handled | set(again) == set(range(MAILS)), "nothing is lost"
    counted = [offset for offset, attempt in again.items() if attempt > 1]
    assert len(counted) <= 1, "only the one that it was working on counts as failed"
    say(f"  killed with SIGKILL after {len(acked)} of {MAILS} mails; all others came again, none of the acknowledged did")
    say(f"  of those that it held {len(counted)} counts as failed: it cannot have been working on more")


def find_the_poison(path: str) -> None:
    with penstock.open(path) as store:
        store.publish_many("letters", [b"poison" if number == 5 else b"harmless" for number in range(20)])
    deaths, read = 0, set()
    while True:
        told, status = lines_until_killed("read-letters", path, sys.maxsize)
        read |= {int(offset) for (offset,) in told}
        if status == 0:
            break
        deaths += 1
        assert deaths <= 8, "the message is not found"
    with penstock.open(path) as store:
        (letter,) = store.dead_letters("letters").list()
    assert letter.headers["x-dlq-source-offset"] == b"5"
    assert read == set(range(20)) - {5}
    say(
        f"  after {deaths} dead processes it was a dead letter ({letter.headers['x-dlq-reason'].decode()}); its 19 neighbours were read"
    )


def retry_and_replay(store: penstock.Store) -> None:
    store.publish_many("tasks", [b"task %d" % number for number in range(100)])
    deliveries: Counter[int] = Counter()
    done = set()

    def handle(message: penstock.Delivery) -> None:
        deliveries[message.offset] += 1
        if message.offset % 10 == 0 and message.attempt < 3:
            raise ConnectionError("the other side is away")
        if message.offset in {7, 8}:
            raise ValueError("cannot be parsed")
        done.add(message.value)

    with store.subscribe("tasks", "workers", max_deliveries=4, backoff=0.02) as consumer:
        while (message := consumer.get(timeout=0.5)) is not None:
            try:
                with message:
                    handle(message)
            except (ConnectionError, ValueError):
                continue
    assert len(done) == 98
    assert [deliveries[offset] for offset in (1, 10, 7)] == [1, 3, 4]
    dead = store.dead_letters("tasks")
    assert {letter.headers["x-dlq-reason"] for letter in dead.list()} == {b"ValueError: cannot be parsed"}
    say(f"  10 tasks failed twice and succeeded then; {len(dead)} failed 4 times and are dead letters")

    sent_back = dead.replay()  # the fault is mended
    done |= {message.value for message in left_of(store, "tasks", "workers")}
    assert (sent_back, len(done), len(dead)) == (2, 100, 0)
    say("  both were sent back to their topic, and handled")


def commit_under_fire(path: str) -> None:
    killed = orders = 0
    while not killed:  # on a busy machine all of them may be done before
        with penstock.open(path) as store:
            store.publish_many("orders", [b"order"] * ORDERS)
            store.create_topic("invoices")
        orders += ORDERS
        for kill_after in KILL_INVOICER_AFTER:
            _, status = lines_until_killed("invoice", path, kill_after)
            killed += status == -signal.SIGKILL
    _, status = lines_until_killed("invoice", path, sys.maxsize)
    assert status == 0
    with penstock.open(path) as store:
        invoices = Counter(message.value for message in store.read("invoices"))
        assert store.stats().topics["orders"].groups["invoicing"].lag == 0
    assert len(invoices) == orders
    assert set(invoices.values()) == {1}
    say(f"  {orders} orders, {killed} processes killed at work: {len(invoices)} invoices, one for each order")


def publish_again(path: str) -> None:
    told, status = lines_until_killed("pay", path, PAYMENTS_TOLD)
    assert status == -signal.SIGKILL
    acknowledged = {int(number): int(offset) for number, offset in told}
    began = time.perf_counter()
    with penstock.open(path) as store:
        seconds = time.perf_counter() - began
        found = {message.offset: message.value for message in store.read("payments")}
        lost = [number for number, offset in acknowledged.items() if found.get(offset) != b"payment %d" % number]
        assert not lost, f"{len(lost)} acknowledged payments are lost"
        wanted = range(max(acknowledged) + 10)
        receipts = [store.publish("payments", b"payment %d" % number, dedup_key=f"payment-{number}") for number in wanted]
        duplicates = sum(receipt.duplicate for receipt in receipts)
        assert duplicates == len(found)
        stored = Counter(message.value for message in store.read("payments"))
    assert set(stored.values()) == {1}
    assert len(stored) == len(wanted)
    say(
        f"  killed with SIGKILL after it had told of {len(acknowledged):,} payments, opened again in {seconds * 1000:.0f} ms, lost: none"
    )
    say(
        f"  all {len(wanted):,} published again with the same keys: {duplicates:,} duplicates were left out, each payment is there once"
    )


def read_beside(store: penstock.Store) -> None:
    reader = start("read", store.path)
    for number in range(200):
        store.publish("audit", b"written beside the reader %d" % number)
    output, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0, "the reader failed"
    assert int(output) == PRODUCERS * EVENTS
    say(f"  another process read {int(output):,} messages without a lock, while this one wrote 200 more")


def merge_history(path: str) -> None:
    """Messages that were published one by one are merged into large batches, and read faster."""
    # Below the public names: coalescing happens by itself a while after a segment was sealed; here it is called.
    with Volume.open(path, settings=StoreSettings(checkpoint_interval_ms=600_000)) as volume:
        clicks = volume.log("clicks")
        for number in range(CLICKS):
            volume.append(clicks, encode_single(b"click %086d" % number))
        volume.append(clicks, encode_batch([b"and one batch"] * 1000))
        # Two: files that the older checkpoint points into are left as they are.
        volume.checkpoint()
        volume.checkpoint()
        read_arrow(clicks, "read as Arrow, as written")
        count = volume.coalesce()
        assert count > 0
        read_arrow(clicks, f"the same, {count} segments merged")


def read_arrow(log: PartitionLog, label: str) -> None:
    started = time.perf_counter()
    offset = rows = batches = 0
    while found := log.read(offset):
        for batch in found:
            try:
                rows += batch.to_arrow(["offset", "value"]).num_rows
            except ImportError:  # pyarrow is an extra
                rows += len(batch)
            batches += 1
        offset = found[-1].end_offset
    assert rows == CLICKS + 1000
    say(f"  {label:<34} {rate(rows, time.perf_counter() - started)}  ({batches:,} batches)")


def check(path: str) -> None:
    found = verify(path)
    assert found.is_sound, found.findings
    assert not found.findings
    say(
        f"  every byte of {found.messages:,} messages in {found.segments} segments checked ({found.bytes / MIB:.1f} MiB): sound"
    )


def main() -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        path = os.path.join(folder, "data")
        say(f"A store in {path}")
        say("1. Producers and competing consumers")
        with penstock.open(path) as store:
            compete(store)
        say("2. A consumer process is killed at work")
        kill_a_consumer(path)
        say("3. A message kills every process that handles it")
        find_the_poison(path)
        say("4. Retries, dead letters, replay")
        with penstock.open(path) as store:
            retry_and_replay(store)
        say("5. Transactions: consume and produce exactly once")
        commit_under_fire(path)
        say("6. A publisher is killed, and publishes again: deduplication")
        publish_again(path)
        say("7. A reader beside the owner")
        with penstock.open(path) as store:
            read_beside(store)
            store.create_topic("clicks", sync="os", segment_bytes=MIB)
        say("8. History is merged")
        merge_history(path)
        say("9. Verify")
        check(path)
    say(f"All claims held. {time.perf_counter() - started:.1f} s; the folder is removed.")


COMMANDS = {"mail": be_mailer, "read-letters": be_victim, "invoice": be_invoicer, "pay": be_payer, "read": be_reader}

if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif len(sys.argv) == 3 and sys.argv[1] in COMMANDS:
        COMMANDS[sys.argv[1]](sys.argv[2])
    else:
        sys.exit(f"unknown command {sys.argv[1:]}; run it without arguments")
