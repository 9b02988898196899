"""
Penstock's storage core at work, from end to end: `make demo`.

It makes a store in a temporary folder and shows, one step after the other: publishing from many threads with a consumer that tails,
a reader process beside the owner, a process that is killed while it publishes and recovered, history that is merged and read as
Arrow, and a check of every byte. Each step checks what it claims; a wrong number ends the demo with an error.

Called with a command it plays another process of the demo: `demo.py read PATH`, `demo.py publish PATH`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from penstock.format.batch import encode_batch, encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import MIB, SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.verification import verify
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.format.batch import Batch
    from penstock.log.log_reader import LogReader
    from penstock.log.partition_log import PartitionLog

BLOCKING_THREADS = 4
BLOCKING_MESSAGES = 250
TICKET_THREADS = 2
TICKET_MESSAGES = 10_000
CLICKS = 50_000
KILL_AFTER = 2_000
# The demo takes its checkpoints itself, so that each step shows what it is about.
SETTINGS = StoreSettings(checkpoint_interval_ms=600_000)


def say(text: str) -> None:
    print(text, flush=True)


def rate(count: int, seconds: float) -> str:
    return f"{count:>9,} in {seconds:6.2f} s = {count / seconds:>11,.0f}/s"


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


def batches_of(log: PartitionLog | LogReader, offset: int = 0) -> Iterator[Batch]:
    """All committed batches from the one that holds *offset* on."""
    while found := log.read(offset):
        yield from found
        offset = found[-1].end_offset


def text_of(batch: Batch, index: int) -> str:
    value = batch.value(index)
    assert value is not None
    return str(value, "ascii")


# -- the steps --------------------------------------------------------------------------------------------------------


def publish_and_tail(volume: Volume) -> None:
    """Threads that publish into one partition, and one that reads it while they do."""
    orders = volume.log("orders", 0)
    expected = BLOCKING_THREADS * BLOCKING_MESSAGES + TICKET_THREADS * TICKET_MESSAGES
    commits: set[int | None] = set()
    seen: dict[str, int] = {}

    def block(name: str) -> None:
        for number in range(BLOCKING_MESSAGES):
            volume.append(orders, encode_single(f"{name} {number}".encode()))

    def submit(name: str) -> None:
        tickets = [volume.submit(orders, encode_single(f"{name} {number}".encode())) for number in range(TICKET_MESSAGES)]
        for ticket in tickets:
            ticket.wait()
        commits.update(ticket.append_time_us for ticket in tickets)

    def tail() -> None:
        offset = 0
        while offset < expected:
            assert orders.wait_for(offset, timeout=30), f"nothing came after offset {offset}"
            for batch in orders.read(offset):
                assert batch.first_offset == offset, "offsets have no holes"
                name, number = text_of(batch, 0).split()
                assert seen.get(name, -1) + 1 == int(number), "each publisher's order is kept"
                seen[name] = int(number)
                offset = batch.end_offset

    seconds = in_threads(
        *[lambda name=f"block-{one}": block(name) for one in range(BLOCKING_THREADS)],
        *[lambda name=f"ticket-{one}": submit(name) for one in range(TICKET_THREADS)],
        tail,
    )
    assert orders.committed_end == expected
    assert sum(last + 1 for last in seen.values()) == expected
    say(f"  published, synced and consumed  {rate(expected, seconds)}")
    say(
        f"  {BLOCKING_THREADS} threads waited for each message, {TICKET_THREADS} used tickets; one thread tailed and saw all in order"
    )
    say(
        f"  the {TICKET_THREADS * TICKET_MESSAGES:,} tickets took {len(commits):,} commits: those who wait together share one sync"
    )


def read_beside(volume: Volume) -> None:
    """Another process reads the store while this one writes to it."""
    orders, audit = volume.log("orders", 0), volume.log("orders", 1)
    before = orders.committed_end
    reader = start("read", volume.path)
    for number in range(200):
        volume.append(audit, encode_single(b"written beside the reader %d" % number))
    output, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0, "the reader failed"
    messages, live = output.split()
    assert int(messages) == before
    assert live == "True"
    say(f"  another process read {int(messages):,} messages without a lock, while this one wrote {audit.committed_end} more")


def kill_and_recover(path: str) -> None:
    """A child publishes and tells what was acknowledged; it is killed, and the store opened again."""
    child = start("publish", path)
    assert child.stdout is not None
    acknowledged: dict[tuple[str, int], str] = {}
    for line in child.stdout:
        if not line.endswith("\n"):
            break  # killed while it wrote the line
        topic, offset, text = line.rstrip("\n").split("\t")
        acknowledged[topic, int(offset)] = text
        if len(acknowledged) == KILL_AFTER:
            os.kill(child.pid, signal.SIGKILL)  # what it wrote to the pipe before that is still read
    child.stdout.close()
    assert child.wait(timeout=60) == -signal.SIGKILL
    started = time.perf_counter()
    with Volume.open(path, settings=SETTINGS) as volume:
        seconds = time.perf_counter() - started
        found = {
            (topic, batch.offset(index)): text_of(batch, index)
            for topic in ("crashes", "crashes-os")
            for batch in batches_of(volume.log(topic))
            for index in range(len(batch))
        }
    lost = [place for place, text in acknowledged.items() if found.get(place) != text]
    assert not lost, f"{len(lost)} acknowledged messages are lost"
    say(
        f"  killed with SIGKILL after it had acknowledged {len(acknowledged):,} messages, opened again in {seconds * 1000:.0f} ms"
    )
    say(f"  found {len(found):,}, acknowledged and lost: {len(lost)} (the rest was stored, and its caller not told yet)")


def merge_history(volume: Volume) -> None:
    """Messages that were published one by one are merged into large batches, and read faster."""
    clicks = volume.log("clicks")

    def publish() -> None:
        for number in range(CLICKS):
            volume.append(clicks, encode_single(b"click %086d" % number))

    say(f"  published one at a time         {rate(CLICKS, in_threads(publish))}")
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
    rows = batches = 0
    for batch in batches_of(log):
        try:
            rows += batch.to_arrow(["offset", "value"]).num_rows
        except ImportError:  # pyarrow is an extra
            rows += len(batch)
        batches += 1
    assert rows == CLICKS + 1000
    say(f"  {label:<32}{rate(rows, time.perf_counter() - started)}  ({batches:,} batches)")


def check(path: str) -> None:
    found = verify(path)
    assert found.is_sound, found.findings
    assert not found.findings
    say(
        f"  every byte of {found.messages:,} messages in {found.segments} segments checked ({found.bytes / MIB:.1f} MiB): sound"
    )


# -- the other processes ----------------------------------------------------------------------------------------------


def start(command: str, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), command, path], stdout=subprocess.PIPE, text=True)


def be_reader(path: str) -> None:
    """Read all of one partition beside the owner."""
    with VolumeReader.open(path) as reader:
        print(sum(len(batch) for batch in batches_of(reader.log("orders", 0))), reader.is_live)


def be_publisher(path: str) -> None:
    """Publish until killed; write a line for each message after it was acknowledged."""

    def publish(name: str, topic: str) -> None:
        log = volume.log(topic)
        number = 0
        while True:
            text = f"{name} {number}"
            offset = volume.append(log, encode_single(text.encode()))
            # One write call a line, which a pipe takes whole.
            os.write(1, f"{topic}\t{offset}\t{text}\n".encode())
            number += 1
            if topic == "crashes-os":
                time.sleep(0.0005)  # else it leaves the others no time

    with Volume.open(path, settings=SETTINGS) as volume:
        in_threads(
            *[lambda name=f"thread-{one}": publish(name, "crashes") for one in range(3)], lambda: publish("os", "crashes-os")
        )


def main() -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        path = os.path.join(folder, "data")
        say("1. A store with topics: orders and crashes (sync=always), clicks and crashes-os (sync=os)")
        with Volume.open(path, settings=SETTINGS) as volume:
            volume.create_topic("orders", partitions=2)
            volume.create_topic("crashes")
            volume.create_topic("crashes-os", settings=TopicSettings(sync=SyncMode.OS))
            volume.create_topic("clicks", settings=TopicSettings(sync=SyncMode.OS, segment_bytes=MIB))
            say(f"  in {path}, owned by process {os.getpid()}")
            say("2. Many threads publish, one consumes")
            publish_and_tail(volume)
            say("3. A reader beside the owner")
            read_beside(volume)
        say("4. A process is killed while it publishes")
        kill_and_recover(path)
        with Volume.open(path, settings=SETTINGS) as volume:
            say("5. History is merged and read as Arrow")
            merge_history(volume)
        say("6. Verify")
        check(path)
    say(f"All claims held. {time.perf_counter() - started:.1f} s; the folder is removed.")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "read":
        be_reader(sys.argv[2])
    elif sys.argv[1] == "publish":
        be_publisher(sys.argv[2])
    else:
        sys.exit(f"unknown command {sys.argv[1]!r}; run it without arguments")
