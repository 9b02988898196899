"""
What clients come with, make and delete leaves nothing in the server: no entry, no object, whatever names they choose.

By counts of objects, not by the memory of the process, which the allocator has its own mind about.
"""

from __future__ import annotations

import collections
import gc
import re
import time
from typing import TYPE_CHECKING

import penstock
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROUNDS = 20
NAMES = r"(topic|group|other|visitor)-\d+(\.dlq|\.deliveries)*"
PATIENCE_S = 60.0
REMEMBERED = {"penstock.log.log_state.RecentBatches"}
"""A log remembers its last 1,000 producers on purpose, each client one of them, so that a batch that is sent again is no copy."""


def _visit(address: str, number: int) -> None:
    """All that a client can make under names of its own, and then delete."""
    with penstock.open(address) as client:
        topic = f"topic-{number}"
        client.create_topic(topic, partitions=2, record_deliveries=True, group_expiry=60, dedup_window=60)
        client.publish_many(topic, [b"x"] * 20)
        client.publish(topic, b"once", dedup_key=f"key-{number}")
        client.publish(topic, b"later", delay=3_600, ttl=7_200)
        with client.producer(topic) as producer:
            producer.send(b"sent")
        with client.subscribe(topic, f"group-{number}", lease=43_200, max_deliveries=1) as consumer:
            consumer.get(1).ack()  # type: ignore[union-attr]
            consumer.get(1).reject("bad")  # type: ignore[union-attr]
            with client.transaction() as transaction:
                transaction.ack(consumer.get(1))  # type: ignore[arg-type]
            assert consumer.get_many(5, 1)
            # With messages in its consumer's hands, and a lease that ends in half a day.
            client.delete_group(topic, f"group-{number}")
        with client.subscribe(topic, f"other-{number}", lease=43_200, start="earliest") as consumer:
            assert consumer.get_many(5, 1)
            client.delete_topic(topic)
        with client.subscribe("kept", f"visitor-{number}") as consumer:
            client.publish("kept", b"for all")
            assert consumer.get(1) is not None
        client.delete_group("kept", f"visitor-{number}")
        client.metrics()


def _objects() -> collections.Counter[str]:
    gc.collect()
    return collections.Counter(
        f"{type(one).__module__}.{type(one).__qualname__}"
        for one in gc.get_objects()
        if str(type(one).__module__).startswith("penstock.")
    )


def _wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_clients_that_make_and_delete_topics_and_groups_leave_no_object_behind(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store, RunningServer(store) as server:
        store.measure()
        store.create_topic("kept", retain="always")
        for number in range(ROUNDS):
            _visit(server.address, number)
        assert _wait_for(lambda: server.connections == 0)
        before = _objects()
        for number in range(ROUNDS, 2 * ROUNDS):
            _visit(server.address, number)
        grown: list[tuple[str, int]] = []

        def is_as_before() -> bool:
            # Some tasks and batches are under way at any moment; what is left behind is at least one for each round.
            more = _objects() - before
            grown[:] = [(name, count) for name, count in more.items() if count >= ROUNDS // 2 and name not in REMEMBERED]
            return not grown

        # Some of it goes in the background, a moment later.
        assert _wait_for(is_as_before), grown


def test_no_table_of_the_server_has_an_entry_of_a_topic_or_group_that_is_deleted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store, RunningServer(store) as server:
        store.measure()
        store.create_topic("kept", retain="always")
        for number in range(3):
            _visit(server.address, number)

        def named() -> list[str]:
            """Whatever is kept in a table under a name of these."""
            gc.collect()
            tables = [one for one in gc.get_objects() if isinstance(one, (dict, set))]
            keys = [key if isinstance(key, tuple) else (key,) for table in tables for key in list(table)]
            return [repr(key) for key in keys if any(isinstance(part, str) and re.fullmatch(NAMES, part) for part in key)]

        assert _wait_for(lambda: not named()), named()
