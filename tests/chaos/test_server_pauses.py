"""A server that stands still for a while (a machine that swaps, a virtual machine that moves), and one that is stopped in order."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import OutcomeUnknown, Unavailable
from tests.chaos.arena import Arena
from tests.chaos.clients import PATIENCE_S, TOPIC, patiently

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAUSES = 8
STOPS = 5
STOP_SECONDS_MAX = 60.0


def test_clients_of_a_server_that_stands_still_wait_or_are_told_and_nothing_is_lost(
    tmp_path: Path, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """SIGSTOP; leases end meanwhile, and what is acked late is refused."""
    with Arena(tmp_path, seed, lease_s=2) as arena:
        arena.begin()
        # Not one of the arena's: it gives up long before them.
        with penstock.open(arena.addresses.native, give_up=1) as impatient:
            impatient.topic(TOPIC)
            for number in range(PAUSES):
                time.sleep(rng.uniform(0.0, 0.4))
                arena.server.signal(signal.SIGSTOP)
                if number == PAUSES // 2:
                    with pytest.raises((OutcomeUnknown, Unavailable)):
                        impatient.publish("other", b"x")
                else:
                    time.sleep(rng.uniform(0.0, 0.8))
                arena.server.signal(signal.SIGCONT)
                arena.check()
            # It is there again, for who gave up too.
            assert patiently(lambda: impatient.topic(TOPIC)).name == TOPIC
        arena.wait_for_acks(200)
        arena.stop_producing()
        arena.drain()
        counts = {"pauses": PAUSES, **arena.judge()}
    print(counts)
    record_property("server pauses", counts)
    assert counts["acked"] > 200


def test_a_server_that_is_stopped_under_load_loses_and_doubles_nothing(
    tmp_path: Path,
    rng: random.Random,
    seed: int,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I46: what was answered holds, also acks that nobody waited for; what was handed out comes again, and nobody failed."""
    # A stream that ends by its deadline has failed, and here nobody may fail.
    monkeypatch.setattr("tests.chaos.clients.GRPC_S", PATIENCE_S)
    with Arena(tmp_path, seed, lease_s=600) as arena:
        arena.history.keeps_acks = True
        arena.begin()
        slowest_s = 0.0
        for _ in range(STOPS):
            time.sleep(rng.uniform(0.2, 1.0))
            begun_s = time.monotonic()
            arena.history.server_goes()
            code, logged = arena.server.stop()
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            assert code == 0, logged
            assert "Traceback" not in logged
            arena.start()
            arena.check()
        arena.wait_for_acks(300)
        arena.stop_producing()
        arena.drain()
        counts = {"stops": STOPS, "slowest_s": round(slowest_s, 2), **arena.judge()}
        assert arena.history.attempts_max == 1, "somebody was told that a message had failed"
    print(counts)
    record_property("orderly stops", counts)
    assert slowest_s < STOP_SECONDS_MAX
    assert counts["acked"] > 300
