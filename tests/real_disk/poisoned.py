"""
A process whose handler meets a message that kills it; `serve` forks one for each line it gets.

A message's value is its number; the poison is named by the request, kills with SIGKILL, and spares nobody. The process says on its
output what it did, or nothing, if it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.settings import StoreSettings
from penstock.store.store import Store
from tests.real_disk.writer import STORE

if TYPE_CHECKING:
    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer


class Handler:
    """Handles messages of one group, and dies of one of them."""

    def __init__(self, request: dict[str, Any], group: str) -> None:
        self._poison = b"%d" % request["poison"] if group in request["deadly"] else b""
        self._seconds = request["seconds"]
        self._deadly_seconds = request["deadly_seconds"]

    def __call__(self, message: Delivery) -> None:
        if message.value == self._poison:
            time.sleep(self._deadly_seconds)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._seconds)


def _close_later(consumer: Consumer, stop: threading.Event) -> None:
    stop.wait()
    consumer.close()


def _consume(store: Store, request: dict[str, Any], group: str, stop: threading.Event) -> None:
    handle = Handler(request, group)
    options = {"max_deliveries": request["max_deliveries"], "ordered": request["ordered"], "backoff": 0}
    with store.subscribe("jobs", group, prefetch=100, **options) as consumer:
        if request["how"] == "iteration":
            threading.Thread(target=_close_later, args=(consumer, stop)).start()
            for message in consumer:
                with message:
                    handle(message)
            return
        while not stop.is_set():
            for message in consumer.get_many(10 if request["how"] == "get_many" else 1, timeout=0.05):
                handle(message)
                message.ack()


def live(request: dict[str, Any]) -> dict[str, Any]:
    """Handle everything, with plain consumers or with workers; returns what is left then."""
    store = Store.open(request["path"], settings=StoreSettings(**STORE))
    if request["publish"]:
        store.publish_many("jobs", [b"%d" % number for number in range(request["publish"])])
    stop = threading.Event()
    threads = []
    for group in request["groups"]:
        if request["how"] != "worker":
            threads.append(threading.Thread(target=_consume, args=(store, request, group, stop)))
        else:
            options = {"max_deliveries": request["max_deliveries"], "ordered": request["ordered"], "backoff": 0}
            store.worker("jobs", group=group, concurrency=request["concurrency"], **options)(Handler(request, group))
    if request["how"] == "worker":
        threads.append(threading.Thread(target=store.run))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        groups = store.stats().topics["jobs"].groups
        if len(groups) == len(request["groups"]) and all(group.lag == 0 for group in groups.values()):
            break
        time.sleep(0.01)
    stop.set()
    store.stop()
    for thread in threads:
        thread.join(20)
    letters = store.dead_letters("jobs").list()
    answer = {
        "lag": {name: group.lag for name, group in store.stats().topics["jobs"].groups.items()},
        "dead": [
            [
                letter.headers["x-dlq-group"].decode(), int(letter.value or b""), int(letter.headers["x-dlq-deliveries"]),
                letter.headers["x-dlq-reason"].decode(),
            ]
            for letter in letters
        ],
    }  # fmt: skip
    store.close()
    return answer


def serve() -> None:
    """Fork a process for each request, a line of JSON, and answer how it ended, in one line."""
    for line in sys.stdin:
        request = json.loads(line)
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = live(request)
                os.write(writable, json.dumps(answer).encode())
            finally:
                os._exit(0)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        os.write(1, json.dumps({"status": status, "said": json.loads(said or b"null")}).encode() + b"\n")
