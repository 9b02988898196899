"""Each event of the log is provoked, and has the fields that docs/observability.md tells."""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import database as databases
from penstock.errors import StorageFull
from penstock.groups.delivery_times import WINDOW_US
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.docs.pages import ROOT, rows
from tests.groups.sim import PATH, SETTINGS, Sim, numbered, one, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY_S = 86_400.0
PATIENCE_S = 60.0


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, Any]]]:
    """The events of a name so far, without the name; each has exactly the fields that the page tells."""
    caplog.set_level(logging.INFO, logger="penstock")
    page = (ROOT / "docs" / "observability.md").read_text()
    fields = {row[0].strip("`"): set(row[1].split(", ")) for row in rows(page, "event")}

    def find(name: str) -> list[dict[str, Any]]:
        found = [dict(record.penstock) for record in caplog.records if hasattr(record, "penstock")]
        found = [about for about in found if about.pop("event") == name]
        assert all(about.keys() == fields[name] for about in found)
        return found

    return find


@pytest.fixture
def sim() -> Iterator[Sim]:
    sim = Sim()
    yield sim
    sim.files.capacity_bytes = None
    sim.files.clear_faults()
    sim.store.close()


def fill_disk(sim: Sim) -> None:
    """Nothing can be published any more."""
    sim.files.capacity_bytes = 0
    sim.store._volume._space.left = 0  # the next publish asks


def wait_for(find: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a thread of the store tells, however slow the machine is."""
    end = time.monotonic() + PATIENCE_S
    while not (found := find()):
        assert time.monotonic() < end, "nothing is told"
        time.sleep(0.005)
    return found


def test_handler_failed(told: Any) -> None:
    with penstock.open("memory:") as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", numbered(3), partition=1)

        @store.worker("orders", group="billing", batch=3, max_deliveries=1)
        def handle(messages: Any) -> None:
            store.stop()
            raise ValueError("no")

        store.run()
    assert told("handler_failed") == [
        {"topic": "orders", "group": "billing", "partition": 1, "offset": 0, "messages": 3, "error": "ValueError"}
    ]


def test_dead_letter_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", partitions=2)
    sim.store.publish_many("t", numbered(2), partition=1)
    consumer = sim.store.subscribe("t", "g")
    _, message = take(consumer)
    fill_disk(sim)
    message.reject("no good")
    assert told("dead_letter_failed") == [
        {"topic": "t", "group": "g", "partition": 1, "offset": 1, "error": StorageFull.code}
    ]  # fmt: skip
    assert len(sim.store.dead_letters("t")) == 0


def test_deliveries_not_recorded(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", record_deliveries=True)
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    sim.clock.advance(WINDOW_US / 1e6)
    fill_disk(sim)
    for _ in range(2):
        sim.store._deliveries.write()
    assert told("deliveries_not_recorded") == [{"topic": "t", "error": "StorageFull"}]


def test_dead_letters_expired(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", dead_letter_retention=DAY_S)
    sim.store.publish_many("t", numbered(3))
    for message in take(sim.store.subscribe("t", "g")):
        message.reject("no good")
    sim.store.retain()
    assert told("dead_letters_expired") == []
    sim.clock.advance(2 * DAY_S)
    sim.store.retain()
    assert told("dead_letters_expired") == [{"topic": "t.dlq", "messages": 3}]


def test_messages_skipped(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes=1, retain="always")
    consumer = sim.store.subscribe("t", "g", start="earliest")
    for value in numbered(100):
        sim.store.publish("t", value)
    sim.store.retain()
    first = one(consumer).offset
    assert first > 0
    assert told("messages_skipped") == [{"topic": "t", "group": "g", "partition": 0, "messages": first}]


def test_messages_skipped_by_a_database_consumer(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes=1, retain="always")
    sim.store.publish("t", b"0")
    with closing(sqlite3.connect(":memory:")) as connection:
        with databases.consumer(sim.store, "t", "g", connection=connection) as consumer:
            batch = consumer.get(0)
            assert batch is not None
            with batch:
                pass
        for value in numbered(100):
            sim.store.publish("t", value)
        sim.store.retain()
        with databases.consumer(sim.store, "t", "g", connection=connection, reset="earliest") as consumer:
            assert consumer.get(0) is not None
            skipped = consumer.skipped
    assert skipped > 0
    assert {"topic": "t", "group": "g", "partition": 0, "messages": skipped} in told("messages_skipped")


def test_messages_lost(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", sync="os")
    sim.store.publish_many("t", numbered(4), sync="always")
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g")
    consumer.ack(take(consumer), wait=True)
    sim.lose_power()
    assert sim.store.ends("t") == {0: 4}
    assert told("messages_lost") == [{"topic": "t", "group": "g", "partition": 0, "messages": 3}]


def busy_store(files: SimulatedFileSystem) -> Store:
    """One whose own threads look for work all the time."""
    return Store.open(PATH, settings=replace(SETTINGS, retention_interval_ms=10), files=files, clock=FakeClock())


def fill(store: Store) -> None:
    """Many segments, which may be removed and rewritten: both checkpoints point behind them."""
    for number in range(100):
        store.publish("t", b"x" * 100, key=b"%d" % (number % 3))
    for _ in range(2):
        store._volume.checkpoint()


def test_retention_failed(told: Any) -> None:
    files = SimulatedFileSystem()
    with busy_store(files) as store:
        store.create_topic("t", segment_bytes=1_000, retention_bytes=1)
        files.fail("unlink", 1, errno.EIO, count=None, path_contains="/topics/t/")
        fill(store)
        found = wait_for(lambda: told("retention_failed"))
        files.clear_faults()
    assert found[0] == {"topic": "t", "partition": 0, "error": "OSError"}


def test_unfinished_removed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes_hard=3_000)
    sim.store.subscribe("t", "g", start="earliest").close()
    for value in numbered(100):
        sim.store.publish("t", value)
    removed = sim.store.retain()
    assert removed.segments > 0
    assert told("unfinished_removed") == [
        {"topic": "t", "partition": 0, "segments": removed.segments, "bytes": removed.bytes}
    ]  # fmt: skip


def test_group_expired(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY_S)
    sim.store.subscribe("t", "g", start="earliest").close()
    for days in (29, 2):
        assert told("group_expired") == []
        sim.clock.advance(days * DAY_S)
        sim.store.retain()
    assert told("group_expired") == [{"topic": "t", "group": "g"}]
    sim.store.retain()
    assert len(told("group_expired")) == 1, "once"


def test_rewriting_failed(told: Any) -> None:
    files = SimulatedFileSystem()
    with busy_store(files) as store:
        store.create_topic("t", segment_bytes=1_000, compaction=True)
        files.fail("create", 1, errno.EIO, count=None, path_contains=".log.tmp")
        fill(store)
        found = wait_for(lambda: told("rewriting_failed"))
        files.clear_faults()
    assert found[0] == {"topic": "t", "partition": 0, "error": "OSError"}


def test_coalescing_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_messages=10)
    for value in numbered(40):
        sim.store.publish("t", value)
    sim.store.close()
    file = sim.files.open(f"{PATH}/topics/t/0/{10:020}.log", write=True)
    file.pwrite(bytes(64), 0)
    file.close()
    sim.restart()
    sim.store.publish("t", b"a change")
    for _ in range(2):
        sim.store._volume.checkpoint()
    sim.store._volume.coalesce()
    assert told("coalescing_failed") == [{"topic": "t", "partition": 0, "error": "DamagedFile"}]


def test_batch_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", partitions=2)
    sim.store.publish_many("t", numbered(3), partition=1)

    def handle(cursor: Any, message: Any) -> None:
        consumer.stop()
        raise ValueError("no")

    with (
        closing(sqlite3.connect(":memory:")) as connection,
        databases.consumer(sim.store, "t", "g", connection=connection) as consumer,
    ):
        consumer.run(handle)
    assert told("batch_failed") == [{"topic": "t", "group": "g", "partition": 1, "messages": 3, "error": "ValueError"}]


def test_outbox_set_aside(sim: Sim, told: Any, tmp_path: Path) -> None:
    sim.store.create_topic("t", max_message_bytes=1_000)
    with closing(sqlite3.connect(tmp_path / "outbox")) as connection:
        for value in (b"good", b"x" * 2_000):
            databases.outbox.publish(connection, "t", value)
        connection.commit()
        with databases.relay(sim.store, connection=connection) as relay:
            assert relay.run_once() == 1
    [found] = told("outbox_set_aside")
    assert found.pop("error").startswith("MESSAGE_TOO_LARGE: ")
    assert found == {"table": "penstock_outbox", "id": 2}


def test_every_event_has_a_test() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {row[0].strip("`") for row in rows(page, "event")} <= tests
