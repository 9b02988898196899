"""A server that is killed again and again under producers and consumers of every protocol."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import aio
from penstock.errors import OutcomeUnknown
from tests.chaos.arena import Arena
from tests.chaos.clients import PATIENCE_S
from tests.client.served import eventually, later

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 100


def test_a_server_that_is_killed_a_hundred_times_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """I1-I8, I15-I29 over the native protocol, from threads and from asyncio, over gRPC and over HTTP."""
    with Arena(tmp_path, seed) as arena:
        arena.begin()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.0, 0.25))
            arena.kill()
            arena.check()
        arena.wait_for_acks(5 * KILLS)
        arena.stop_producing()
        arena.drain()
        counts = {"kills": KILLS, **arena.judge()}
    print(counts)
    record_property("server kills", counts)
    assert counts["acked"] > 5 * KILLS
    assert counts["dead_letters"]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_messages_for_many_partitions_are_stored_together_and_once_over_kills(
    tmp_path: Path, rng: random.Random, seed: int, kind: str
) -> None:
    """The server is killed between the sending of a call and its answer, as often as not; every call that returned is there once, whole."""
    keys = [b"key %d" % number for number in range(12)]
    sent: list[tuple[int, list[tuple[int, int]]]] = []
    unknown: set[int] = set()
    stop = threading.Event()

    def note(call: int, receipts: Any) -> None:
        sent.append((call, [(receipt.partition, receipt.offset) for receipt in receipts]))

    def values(call: int) -> list[bytes]:
        return [b"%d.%d" % (call, number) for number in range(len(keys))]

    def publish(address: str) -> None:
        call = 0
        with penstock.open(address, give_up=PATIENCE_S) as store:
            while not stop.is_set():
                call += 1
                try:
                    note(call, store.publish_many("together", values(call), keys=keys))
                except OutcomeUnknown:
                    unknown.add(call)

    async def publish_awaiting(address: str) -> None:
        call = 0
        async with aio.open(address, give_up=PATIENCE_S) as store:
            while not stop.is_set():
                call += 1
                try:
                    note(call, await store.publish_many("together", values(call), keys=keys))
                except OutcomeUnknown:
                    unknown.add(call)

    with Arena(tmp_path, seed) as arena:
        address = arena.addresses.native
        with penstock.open(address) as store:
            store.create_topic("together", partitions=8)
        publisher = later(lambda: asyncio.run(publish_awaiting(address)) if kind == "asyncio" else publish(address))
        for _ in range(25):
            time.sleep(rng.uniform(0.02, 0.3))
            arena.kill()
        before = len(sent)
        eventually(lambda: len(sent) > before or publisher.done())
        stop.set()
        publisher.result(PATIENCE_S)
        with penstock.open(address) as store:
            stored = {(message.partition, message.offset): bytes(message.value or b"") for message in store.read("together")}
    for call, places in sent:
        assert [stored[place] for place in places] == values(call)
    counts = Counter(stored.values())
    assert set(counts.values()) == {1}
    whole = {int(value.split(b".")[0]) for value in counts}
    assert sum(counts.values()) == len(whole) * len(keys)
    assert whole - unknown == {call for call, _ in sent}
