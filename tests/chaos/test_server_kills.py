"""A server that is killed again and again under producers and consumers of every protocol."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos.arena import Arena

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

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
