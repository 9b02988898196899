"""
A program that makes one change to a store of topics and groups, and is killed on the way; `warm.py` runs it.

It is one thread with nothing in the background: the same system calls in the same order each time. `prepare` makes the store that it
changes, and `look` says what a store holds: for each change the answer is all of it, or nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.settings import StoreSettings
from penstock.store.store import Store
from tests.real_disk.writer import STORE, BootFiles

if TYPE_CHECKING:
    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer

OUT_PARTITIONS = 8
STAGES = 3
"""Finished stages that nobody commits, of one message each."""


def open_store(path: str, boot_id: bytes = b"") -> Store:
    """Open the store at *path*, with nothing in the background; *boot_id*: of the machine's boot, if the power had failed."""
    return Store.open(path, settings=StoreSettings(**STORE), files=BootFiles(boot_id), background=False)


def prepare(path: str) -> None:
    """A store with messages, and groups that have finished some of them."""
    with open_store(path) as store:
        store.create_topic("jobs", partitions=3)
        store.create_topic("more")
        store.create_topic("out", partitions=OUT_PARTITIONS)
        for partition in range(3):
            store.publish_many("jobs", [b"%d" % number for number in range(10)], partition=partition)
        store.publish_many("more", [b"%d" % number for number in range(10)])
        for topic in ("jobs", "more"):
            with store.subscribe(topic, "g", max_deliveries=1) as consumer:
                for partition in range(3 if topic == "jobs" else 1):
                    consumer.commit(4, partition)
        for _ in range(STAGES):
            with store.stage("job") as stage:
                stage.publish("out", b"staged", partition=0)


def _take(consumer: Consumer) -> Delivery:
    message = consumer.get(timeout=0)
    assert message is not None
    return message


def change(store: Store, what: str) -> None:
    """Make the change; it is durable when this returns."""
    if what == "dead letter":
        # The first one makes the topic of dead letters, the second finds it.
        consumer = store.subscribe("more", "g")
        _take(consumer).nack(reason="no")
        _take(consumer).nack(reason="no")
    elif what in {"transaction", "large transaction"}:
        jobs, more = store.subscribe("jobs", "g"), store.subscribe("more", "g")
        value = b"x" if what == "transaction" else b"x" * 20_000
        with store.transaction() as transaction:
            for partition in range(OUT_PARTITIONS):
                transaction.publish("out", value, partition=partition)
            for _ in range(3):
                transaction.ack(_take(jobs))
            transaction.ack(_take(more))
    elif what == "abort":
        assert store.abort([identity for identity, _, _ in store._staging._stages.all()]) == STAGES
    elif what == "seek":
        store.seek("jobs", "g", {0: 0, 1: 9, 2: 2})
    elif what == "commit":
        store.subscribe("more", "g").commit(7)
    else:
        assert what == "new group"
        store.subscribe("jobs", "new", start="latest", max_deliveries=7)


def look(path: str, *, drain: bool = False, boot_id: bytes = b"") -> dict[str, Any]:
    """What the store holds; with *drain* also which messages of ``more`` its group is given still, and whether the store works."""
    with open_store(path, boot_id) as store:
        topics = store.stats().topics
        stages = store._staging._stages
        found = {
            "dead": [int(letter.value or b"") for letter in store.dead_letters("more").list()],
            "out": [topics["out"].ends[partition] for partition in range(OUT_PARTITIONS)],
            "stages": sum(len(stages.load(identity).entries) for identity, _, _ in stages.all()),
            "lengths": sorted({len(message.value or b"") for message in store.read("out")}),
            "groups": sorted(f"{group.topic}/{group.name}/{group.max_deliveries}" for group in store.groups()),
            "positions": {
                f"{topic}/{name}": group.positions for topic in ("jobs", "more") for name, group in topics[topic].groups.items()
            },
            "lag": {f"{topic}/{name}": group.lag for topic in ("jobs", "more") for name, group in topics[topic].groups.items()},
        }
        if drain:
            store.publish("more", b"still works")
            found["drained"] = given = []
            with store.subscribe("more", "g", max_deliveries=0) as consumer:
                # One by one: what the killed process held is handed out so.
                while (message := consumer.get(timeout=0)) is not None:
                    given.append(message.offset)
                    message.ack()
    return found


def run(config: dict[str, Any]) -> NoReturn:
    """Change the store as the configuration says, and end the process."""
    store = open_store(config["path"])
    # From here on it counts: the harness looks for this call.
    os.close(os.open(config["marker"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    change(store, config["what"])
    with open(config["marker"], "w", encoding="ascii") as file:
        file.write("done")
    # Not closed: that is no part of the change.
    os._exit(0)
