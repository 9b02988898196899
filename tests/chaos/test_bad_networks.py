"""Producers and consumers behind a network that cuts, resets, swallows and holds back."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.chaos.arena import Arena
from tests.chaos.clients import Addresses
from tests.client.proxy import DOWN, UP, Proxy

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FAULTS = 40


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _disturb(proxy: Proxy, rng: random.Random) -> None:
    """One fault."""
    kind = rng.randrange(12)
    if kind < 5:
        # In the middle of a frame, of an answer, of headers: anywhere.
        proxy.cut_after(rng.choice((UP, DOWN)), rng.randrange(20_000), reset=rng.random() < 0.7)
    elif kind < 8:
        proxy.cut()
    elif kind < 11:
        proxy.hold(rng.choice((UP, DOWN)))
        time.sleep(rng.uniform(0.0, 0.3))
        if rng.random() < 0.5:
            proxy.cut()
        proxy.release()
    else:
        proxy.vanish()


def test_cut_reset_and_half_open_connections_lose_and_double_nothing(
    tmp_path: Path, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """The server lives on, so it must tell what is sent again from what is new, and take back what vanished clients hold."""
    with ExitStack() as stack:
        arena = stack.enter_context(Arena(tmp_path, seed, lease_s=3))
        native, http, grpc = proxies = [stack.enter_context(Proxy(_port(one))) for one in arena.addresses]
        arena.begin(Addresses(native.address, http.address.replace("penstock", "http"), grpc.address))
        for _ in range(FAULTS):
            time.sleep(rng.uniform(0.0, 0.15))
            _disturb(rng.choice((native, native, http, grpc)), rng)
            arena.check()
        for proxy in proxies:
            proxy.spare()
        arena.wait_for_acks(200)
        arena.stop_producing()
        arena.drain()
        counts = {"faults": FAULTS, "connections": sum(proxy.connections for proxy in proxies), **arena.judge()}
    print(counts)
    record_property("bad network", counts)
    assert counts["connections"] > FAULTS
    assert counts["acked"] > 200
