"""Records of deliveries killed at every operation: each is there as a whole or not at all, and never twice."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from penstock.errors import TopicNotFound
from penstock.groups.delivery_times import WINDOW_US, DeliveryTimes
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.crash.explorer import crash
from tests.groups.sim import PATH, SETTINGS, numbered

if TYPE_CHECKING:
    from penstock.groups.delivery_times import Window
    from penstock.testing import Operation

ROUNDS = 4


def open_store(files: SimulatedFileSystem, clock: FakeClock) -> Store:
    return Store.open(PATH, settings=SETTINGS, files=files, clock=clock, background=False)


def records(store: Store) -> list[bytes | None]:
    try:
        return [message.value for message in store.read("t.deliveries")]
    except TopicNotFound:
        return []


def explore(rng: random.Random, disks: int = 3) -> int:
    """Deliver, write and close while *disks* are taken before every operation; returns how many were checked."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_store(files, clock)
    store.create_topic("t", record_deliveries=True)
    store.publish_many("t", numbered(100))
    consumers = [store.subscribe("t", name) for name in ("a", "b")]
    found: list[tuple[int, bool, list[bytes | None]]] = []
    durable = 0

    def at_operation(_: Operation) -> None:
        for index in range(disks):
            disk = crash(files, rng, index)
            with open_store(disk, clock) as other:
                seen = records(other)
            with open_store(disk, clock) as again:
                assert records(again) == seen, "opening writes nothing of what was lost"
            found.append((durable, index == 1, seen))

    files.on_operation = at_operation
    for _ in range(ROUNDS):
        for consumer in consumers:
            consumer.get_many(rng.randint(1, 5), 0)
        clock.advance(WINDOW_US / 1e6)
        durable += store._deliveries.write()
    for consumer in consumers:
        consumer.get_many(2, 0)
    store.close()
    files.on_operation = None
    with open_store(files, clock) as last:
        written = records(last)
    assert len(written) == 2 * ROUNDS + 2, "each window once"
    assert len(set(written)) == len(written)
    for least, _, seen in found:
        assert seen == written[: len(seen)], "what is there is what was written, in order and once"
        assert len(seen) >= least, "what was written before stays"
        assert len(seen) % 2 == 0, "the windows of a topic are written together"
    assert {len(seen) for _, _, seen in found} >= set(range(0, 2 * ROUNDS + 1, 2))
    return len(found)


def test_a_crash_at_any_operation_leaves_each_record_whole_or_not_at_all_and_none_twice(rng: random.Random) -> None:
    assert explore(rng) > 50


def test_a_window_that_stays_in_its_group_while_it_is_written_is_found() -> None:
    """The bug that this must find: a window that is written when it is over, and again on close."""
    plain = DeliveryTimes.take

    def take(self: DeliveryTimes, *, unfinished: bool) -> list[Window]:
        windows = plain(self, unfinished=unfinished)
        self.put_back(windows)
        return windows

    with mock.patch.object(DeliveryTimes, "take", take), pytest.raises(AssertionError, match="each window once"):
        explore(random.Random(1), disks=0)
