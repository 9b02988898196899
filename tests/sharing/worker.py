"""
One of many processes that publish to and consume from one folder: `python -m tests.sharing.worker PATH NUMBER INCARNATION HISTORY`.

What it tries and what it is told goes to a history, a line for each, written at once: a line may be torn when it is killed, and is
the last one then. Times are those of the machine, comparable between processes. On its input it is told to stop publishing, and to end.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from typing import Any

import penstock
from penstock.errors import LeaseExpired, OutcomeUnknown, PenstockError
from tests.sharing.processes import SETTINGS

PARTITIONS = 4
GROUPS = ("even", "odd")


class History:
    """Lines of a file."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        """One line, in the file when this returns."""
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


def publish_singly(store: Any, name: str, history: History, stop: threading.Event) -> None:
    """One by one."""
    count = 0
    while not stop.is_set():
        value = f"{name}-one-{count}"
        history.write("try", value)
        receipt = store.publish("t", value.encode(), key=b"%d" % (count % 50))
        history.write("stored", value, receipt.partition, receipt.offset)
        count += 1
        time.sleep(0.005)


def publish_in_batches(store: Any, name: str, partition: int, history: History, stop: threading.Event) -> None:
    """Through a producer, with many batches on their way."""
    with store.producer("t", linger=0.002, max_pending=2_000) as producer:
        sent: collections.deque[tuple[str, Any]] = collections.deque()
        count = 0

        def look(most: int) -> None:
            while len(sent) > most:
                value, future = sent.popleft()
                receipt = future.result()
                history.write("stored", value, receipt.partition, receipt.offset)

        while not stop.is_set():
            for _ in range(10):
                value = f"{name}-many-{count}"
                history.write("try", value)
                sent.append((value, producer.send(value.encode(), partition=partition)))
                count += 1
            look(200)
            time.sleep(0.05)
        look(0)


def consume(store: Any, number: int, history: History) -> None:
    """Half of them iterate, half of them ask; a part waits for the ack to be durable."""
    group = GROUPS[number % len(GROUPS)]
    waits = number % 4 < 2
    consumer = store.subscribe("t", group, lease=20, max_deliveries=1_000)
    while True:
        asked = time.monotonic()
        for message in consumer.get_many(20):
            value = bytes(message.value or b"").decode()
            history.write("got", group, value, asked)
            try:
                message.ack(wait=waits)
            except (LeaseExpired, OutcomeUnknown):
                continue
            if waits:
                history.write("done", group, value, time.monotonic())


def main(path: str, number: int, incarnation: int, history_path: str) -> None:
    """Until told to end."""
    history = History(history_path)
    stop, ending = threading.Event(), threading.Event()
    store = penstock.open(path, give_up=60, **SETTINGS)
    name = f"{number}.{incarnation}"
    print("open", type(store).__name__, flush=True)

    def guarded(work: Any, *given: Any) -> None:
        try:
            work(*given)
        except PenstockError as error:
            if not ending.is_set():
                history.write("failed", type(error).__name__, str(error).replace("\n", " "))

    if number % 2:
        publisher = threading.Thread(target=guarded, args=(publish_singly, store, name, history, stop))
    else:
        publisher = threading.Thread(
            target=guarded, args=(publish_in_batches, store, name, number // 2 % PARTITIONS, history, stop)
        )
    consuming = threading.Thread(target=guarded, args=(consume, store, number, history), daemon=True)
    publisher.start()
    consuming.start()
    sys.stdin.readline()
    stop.set()
    publisher.join()
    print("published", flush=True)
    sys.stdin.readline()
    ending.set()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
